"""The inventory as an artifact: what later steps need of the source, so that none reads it again.

An inventory is named by its content. A reference, one for each set of options, names the current
one: it is what steps that run one by one have in common, and a root of garbage collection.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ...schemas.blocks import Block, FileRange, SourceFile, packed
from ...schemas.features import features_from_json, features_to_json
from ...schemas.fingerprint import digest
from ...schemas.naming import Workspace
from ...transforms import storage
from ...transforms.sources.extracted import ExtractedTable
from ...transforms.storage.artifacts import put_artifact, put_large_artifact, read_artifact
from ...transforms.storage.opened_source import OpenedSource
from ..inventory.step import Inventory, read_descriptors, write_descriptors
from .inference_cache import Inferred

_INVENTORY = "inventory-1"
_REFERENCE = "reference-1"


@dataclasses.dataclass(frozen=True, kw_only=True)
class StoredInventory:
    """What the inventory step found."""

    inventory: Inventory
    inferred: Inferred
    sides: Sequence[str]
    """The sha256 of each of the source's side files, in the order of ``side_urls``."""
    extracted: Mapping[str, ExtractedTable]
    """What records that are not in files were extracted to, by the names of their sources."""
    parts: Mapping[str, object]
    """The parts of the fingerprint, as JSON."""
    fingerprint: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reference:
    """Names the current inventory of a recipe's name and a set of options."""

    inventory: str
    """Digest of the inventory's content."""
    fingerprint: str
    """Of the snapshot that is built from it."""
    started: float
    """When the inventory was taken, in seconds since 1970."""


def put_inventory(stored: StoredInventory, workspace: Workspace) -> str:
    """Puts an inventory into the workspace; returns the digest that names it.

    Raises:
        StorageError: if it cannot be written.
    """
    inventory, extracted = stored.inventory, stored.extracted
    head = {
        "blocks": [
            url.rpartition("/")[2].partition(".")[0]
            for url in write_descriptors(inventory.blocks, workspace)
        ],
        "tables": {name: table.to_json() for name, table in extracted.items()},
        "features": features_to_json(stored.inferred.features),
        "fingerprint": stored.fingerprint,
        "input_digest": inventory.input_digest,
        "names": list(stored.inferred.features),
        "num_bytes": inventory.num_bytes,
        "num_skipped": dict(inventory.num_skipped),
        "parts": dict(stored.parts),
        "sides": list(stored.sides),
        "stop_key": inventory.stop_key,
        "structs": list(stored.inferred.structs),
    }

    def lines() -> Iterator[bytes]:
        yield json.dumps(head, sort_keys=True).encode("ascii")
        yield from (f"\n{line}".encode("ascii") for line in _file_lines(inventory))

    # Encoded twice, first for the name, instead of held: a million files have 200 MB.
    hasher = hashlib.sha256()
    for line in lines():
        hasher.update(line)
    name = hasher.hexdigest()[:32]
    url = workspace.inventory(name)
    put_large_artifact(url, lines(), what=_INVENTORY, near=workspace.root)
    return name


def read_inventory(name: str, workspace: Workspace) -> StoredInventory | None:
    """What :func:`put_inventory` put under this name; None if it is missing or damaged.

    Raises:
        DamagedWorkError: if a list of its blocks is damaged.
        StorageError: if it cannot be read.
    """
    content = read_artifact(workspace.inventory(name), what=_INVENTORY)
    if content is None:
        return None
    lines = io.BytesIO(content)
    head: dict[str, Any] = json.loads(lines.readline())
    start = lines.tell()
    selected = files = packed(SourceFile, (file for _, file in map(_file_of, lines)))
    if b"\n[false" in content:
        lines.seek(start)
        files = packed(SourceFile, (file for is_taken, file in map(_file_of, lines) if is_taken))
    blocks = (
        Block.from_line(line)
        for digest in head["blocks"]
        for line in read_descriptors(workspace.blocks(digest))
    )
    features = features_from_json(head["features"])
    return StoredInventory(
        inventory=Inventory(
            files=files,
            num_skipped=head["num_skipped"],
            num_bytes=head["num_bytes"],
            blocks=tuple(
                dataclasses.replace(block, ranges=packed(FileRange, block.ranges, of=len(selected)))
                for block in blocks
            ),
            input_digest=head["input_digest"],
            num_hashed=0,
            selected=selected,
            stop_key=head["stop_key"],
        ),
        inferred=Inferred(
            {feature: features[feature] for feature in head["names"]}, tuple(head["structs"])
        ),
        sides=tuple(head["sides"]),
        extracted={
            name: ExtractedTable.from_json(table, folder=workspace.extracted)
            for name, table in head.get("tables", {}).items()
        },
        parts=head["parts"],
        fingerprint=head["fingerprint"],
    )


def _file_of(line: bytes) -> tuple[bool, SourceFile]:
    """Whether a file is taken, and the file, from a line of :func:`_file_lines`."""
    is_taken, path, num_bytes, stamp, sha256, problem = json.loads(line)
    return is_taken, SourceFile(
        path=path, num_bytes=num_bytes, stamp=stamp, sha256=sha256, problem=problem
    )


def _file_lines(inventory: Inventory) -> Iterator[str]:
    """A line for each of the records' files, in order: whether it is taken, and its fields."""
    takes_all = inventory.selected is inventory.files
    taken = set() if takes_all else {file.path for file in inventory.files}
    for file in inventory.selected:
        fields = [file.path, file.num_bytes, file.stamp, file.sha256, file.problem]
        yield json.dumps([takes_all or file.path in taken, *fields])


def changed_files(inventory: Inventory, opened: OpenedSource) -> list[str]:
    """The files of an inventory that are gone or no longer as they were listed.

    Raises:
        StorageError: if the source cannot be listed.
    """
    now = {file.path: (file.num_bytes, file.stamp) for file in opened.list()}
    return [
        file.path
        for file in inventory.files
        if not file.problem and now.get(file.path) != (file.num_bytes, file.stamp)
    ]


def reference_id(options: Mapping[str, object]) -> str:
    """Names the reference of builds with these options."""
    return digest({"reference": 1, **options})[:32]


def put_reference(name: str, reference: Reference, workspace: Workspace) -> None:
    """Makes a reference name an inventory.

    Raises:
        StorageError: if it cannot be written.
    """
    content = json.dumps(dataclasses.asdict(reference), sort_keys=True).encode()
    put_artifact(workspace.reference(name), content, what=_REFERENCE)


def read_reference(name: str, workspace: Workspace) -> Reference | None:
    """A reference; None if there is none, or it is damaged.

    Raises:
        StorageError: if it cannot be read.
    """
    content = read_artifact(workspace.reference(name), what=_REFERENCE)
    return None if content is None else Reference(**json.loads(content))


def references(workspace: Workspace) -> dict[str, Reference]:
    """All references of a workspace, by name.

    Raises:
        StorageError: if they cannot be read.
    """
    names = [name.removesuffix(".json") for name in storage.list_names(workspace.references)]
    # Garbage collection of another process may have removed one by now.
    references = {name: read_reference(name, workspace) for name in names}
    return {name: reference for name, reference in references.items() if reference is not None}
