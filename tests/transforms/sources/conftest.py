"""Reads sources as a build does, without TensorFlow: lists, infers, cuts into blocks and reads."""

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import pytest

from snapshard.schemas.blocks import Block, FileRange
from snapshard.schemas.errors import Reject
from snapshard.schemas.features import Feature, flatten
from snapshard.transforms.opened_source import open_source


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
        self, source: Any, *, features: dict[str, Feature] | None = None, cut: bool = True
    ) -> Got:
        """Reads all blocks of a source, each file cut wherever it can be."""
        opened = open_source(source.url, str(self.folder))
        files = source.select(opened.list()).files
        found = features or flatten(source.infer(files, opened))[0]
        got = Got(dict(found), {}, [])
        for file in files:
            cuts = source.cuts(file, opened) if cut and file.num_bytes else ()
            ends = [0, *cuts, file.num_bytes]
            for start, stop in itertools.pairwise(ends):
                part = FileRange(
                    path=file.path, sha256="", start=start, stop=stop, problem=file.problem
                )
                for batch in source.read(
                    Block((part,)), features=found, opened=opened, ordered=[0]
                ):
                    batch.columns.validate(full=True)
                    rows = batch.columns.to_pylist()
                    assert len(batch.ids) == len(rows)
                    assert not got.rows.keys() & set(batch.ids)
                    got.rows.update(zip(batch.ids, rows, strict=True))
                    got.rejects.extend(batch.rejects)
        for reject in got.rejects:
            assert reject.source in reject.message
            assert reject.reason
        return got


@pytest.fixture
def reading(tmp_path: Path) -> Reading:
    return Reading(tmp_path)
