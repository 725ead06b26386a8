"""Pinned inventories: what a chain of steps builds, kept so that all its steps see the same.

Files that arrive, or rows that a query gives, after the inventory are for the next chain. Only what
was listed is pinned: contents stay where they are.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from typing import Any

from ...schemas.blocks import Block, SourceFile
from ...schemas.naming import Workspace
from ...schemas.recipe import Source
from ...transforms.sources.extracted import ExtractedTable
from ...transforms.storage.opened_source import OpenedSource
from ...transforms.storage.sealed import put_sealed, read_sealed
from .step import Inventory, read_descriptors, write_descriptors

_WHAT = "pinned-1"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pinned:
    """What an inventory found.

    Attributes:
        inventory: It.
        extracted: What records that lie in no files were extracted to; None where they lie in
            some, or where extracting them again is all that can be done.
    """

    inventory: Inventory
    extracted: Source | None


def put_pinned(
    url: str, workspace: Workspace, *, inventory: Inventory, extracted: Source | None
) -> None:
    """Keeps what an inventory found.

    Raises:
        StorageError: if it cannot be written.
    """
    table = extracted.to_json() if isinstance(extracted, ExtractedTable) else None
    head = {
        "blocks": [
            url.rpartition("/")[2].partition(".")[0]
            for url in write_descriptors(inventory.blocks, workspace)
        ],
        "extracted": table,
        "input_digest": inventory.input_digest,
        "num_bytes": inventory.num_bytes,
        "num_skipped": dict(inventory.num_skipped),
        "stop_key": inventory.stop_key,
    }
    lines = [json.dumps(head, sort_keys=True), *_lines(inventory)]
    put_sealed(url, "\n".join(lines).encode("ascii"), what=_WHAT)


def read_pinned(url: str, workspace: Workspace) -> Pinned | None:
    """What :func:`put_pinned` kept; None where it is missing or damaged.

    Raises:
        DamagedWorkError: if a list of its blocks is not what was written.
        StorageError: if one cannot be read.
    """
    content = read_sealed(url, what=_WHAT)
    if content is None:
        return None
    first, *rows = content.decode("ascii").split("\n")
    head: dict[str, Any] = json.loads(first)
    files, selected = [], []
    for row in rows:
        taken, *values = json.loads(row)
        path, num_bytes, stamp, sha256, problem = values
        file = SourceFile(
            path=path, num_bytes=num_bytes, stamp=stamp, sha256=sha256, problem=problem
        )
        selected.append(file)
        if taken:
            files.append(file)
    blocks = (line for name in head["blocks"] for line in read_descriptors(workspace.blocks(name)))
    inventory = Inventory(
        files=tuple(files),
        num_skipped=head["num_skipped"],
        num_bytes=head["num_bytes"],
        blocks=tuple(Block.from_line(line) for line in blocks),
        input_digest=head["input_digest"],
        num_hashed=0,
        selected=tuple(selected),
        stop_key=head["stop_key"],
    )
    table = head["extracted"]
    extracted = None
    if table is not None:
        extracted = ExtractedTable.from_json(table, folder=workspace.extracted)
    return Pinned(inventory=inventory, extracted=extracted)


def changed_files(inventory: Inventory, opened: OpenedSource) -> list[str]:
    """The files of an inventory that are gone, or no longer as they were listed.

    Raises:
        StorageError: if the source cannot be listed.
    """
    now = {file.path: (file.num_bytes, file.stamp) for file in opened.list()}
    return [
        file.path
        for file in inventory.files
        if not file.problem and now.get(file.path) != (file.num_bytes, file.stamp)
    ]


def _lines(inventory: Inventory) -> Iterator[str]:
    """A line for each of the records' files, in order: whether it is taken, and what it is."""
    taken = {file.path for file in inventory.files}
    for file in inventory.selected:
        row = [file.path in taken, file.path, file.num_bytes, file.stamp, file.sha256, file.problem]
        yield json.dumps(row)
