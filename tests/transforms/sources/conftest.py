"""Reads sources as a build does, without TensorFlow: lists, infers, cuts into blocks and reads."""

import dataclasses
import hashlib
import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from snapshard.pipelines.prepare.block_worker import RejectPayloads
from snapshard.schemas.blocks import Block, FileRange, SourceFile
from snapshard.schemas.errors import Reject, StorageError
from snapshard.schemas.features import Feature, flatten
from snapshard.schemas.limits import Limits
from snapshard.transforms.rejects import MAX_PAYLOAD_BYTES
from snapshard.transforms.sources.blocks import MIN_CUT_BYTES
from snapshard.transforms.storage.opened_source import OpenedSource, open_source

DEFAULT_LIMITS = Limits()


@dataclasses.dataclass(frozen=True)
class Got:
    """What came of a source."""

    features: dict[str, Feature]
    rows: dict[str, dict[str, Any]]
    """Record id -> wire values by column."""
    rejects: list[Reject]

    @property
    def rejected(self) -> dict[str, str]:
        """Record id -> message."""
        return {reject.record_id: reject.message for reject in self.rejects}

    def column(self, name: str) -> list[Any]:
        return [row[name] for row in self.rows.values()]


class Reading:
    """Reads the files of a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, name: str, content: bytes) -> str:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return str(path)

    def read(
        self,
        source: Any,
        *,
        features: dict[str, Feature] | None = None,
        cut: bool = True,
        every: int = MIN_CUT_BYTES,
        limits: Limits = DEFAULT_LIMITS,
    ) -> Got:
        """Reads all blocks of a source, each file cut wherever it can be, ``every`` bytes apart."""
        opened = open_source(source.url, str(self.folder), limits)
        files = source.select(opened.list()).files
        found = features or flatten(source.infer(files, opened))[0]
        got = Got(dict(found), {}, [])
        for file in files:
            cuts = source.cuts(file, opened, every=every) if cut and file.num_bytes else ()
            ends = [0, *cuts, file.num_bytes]
            for start, stop in itertools.pairwise(ends):
                sha256 = "" if file.problem else self._sha256(opened, file.path)
                part = FileRange(
                    path=file.path, sha256=sha256, start=start, stop=stop, problem=file.problem
                )
                block = Block((part,))
                payloads = RejectPayloads(
                    block, features=found, numbered=source.numbered, opened=opened
                )
                for batch in source.read(block, features=found, opened=opened, ordered=[0]):
                    batch.columns.validate(full=True)
                    rows = batch.columns.to_pylist()
                    assert len(batch.ids) == len(rows)
                    assert not got.rows.keys() & set(batch.ids)
                    got.rows.update(zip(batch.ids, rows, strict=True))
                    got.rejects.extend(payloads.complete(batch.rejects, batch))
        for reject in got.rejects:
            assert reject.source in reject.message
            assert reject.reason
            assert reject.exception.isidentifier()
            self._check_payload(reject, opened)
        return got

    def _sha256(self, opened: Any, path: str) -> str:
        try:
            return hashlib.sha256(opened.read(path)).hexdigest()
        except StorageError:  # which goes away before it is read
            return ""

    def _check_payload(self, reject: Reject, opened: Any) -> None:
        """What the record held is there, or told where it lies; but for files not to be opened."""
        place = reject.place
        if reject.payload is not None:
            assert place is None
            assert len(reject.payload) <= MAX_PAYLOAD_BYTES
            if reject.payload_kind == "values":
                assert isinstance(json.loads(reject.payload), dict)
            return
        if place is None:
            assert reject.stage == "inventory"
            return
        assert place.num_bytes is None or place.num_bytes > MAX_PAYLOAD_BYTES
        if place.start is not None:
            content = opened.read(reject.source, place.start, place.stop)
            assert hashlib.sha256(content).hexdigest() == place.sha256


def make_block(files: tuple[SourceFile, ...], opened: OpenedSource) -> Block:
    """What the inventory makes of listed files: contents hashed."""
    return Block(
        tuple(
            FileRange(
                path=file.path,
                sha256="" if file.problem else hashlib.sha256(opened.read(file.path)).hexdigest(),
                start=0,
                stop=file.num_bytes,
                problem=file.problem,
                of=file.of,
                unpaired=file.unpaired,
            )
            for file in files
        )
    )


@pytest.fixture
def reading(tmp_path: Path) -> Reading:
    return Reading(tmp_path)
