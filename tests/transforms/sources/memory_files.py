"""Files that lie in memory, as sources open them, and what reading them gave."""

from collections.abc import Sequence

import pyarrow as pa

from snapshard.schemas.blocks import RawBatch, SourceFile
from snapshard.schemas.features import Features
from snapshard.schemas.limits import Limits
from snapshard.transforms.runs.files import wire_schema


class Memory:
    """A source's files that lie in memory."""

    filesystem = None
    limits = Limits()

    def __init__(self, contents: dict[str, bytes]) -> None:
        self.contents = contents

    def full_path(self, path: str) -> str:
        return path

    def read_side(self, url: str) -> bytes:
        raise AssertionError(url)

    def read(self, path: str, start: int = 0, stop: int | None = None) -> bytes:
        return self.contents[path][start:stop]

    def files(self) -> list[SourceFile]:
        return [
            SourceFile(path=path, num_bytes=len(data), stamp="")
            for path, data in self.contents.items()
        ]


class PlainText:
    """Bytes as the text of a plain UTF-8 file."""

    plain = True

    def __init__(self, data: bytes, *, max_row_bytes: int | None = None) -> None:
        self.data, self.stop, self.max_row_bytes = data, len(data), max_row_bytes

    def read(self, start: int, stop: int) -> bytes:
        return self.data[start:stop]


def joined(batches: Sequence[RawBatch], features: Features) -> RawBatch:
    """Batches as one, which may be of no rows."""
    none = pa.RecordBatch.from_pylist([], schema=wire_schema(features))
    return RawBatch(
        ids=[name for batch in batches for name in batch.ids],
        columns=pa.concat_batches([none, *(batch.columns for batch in batches)]),
        rejects=tuple(reject for batch in batches for reject in batch.rejects),
    )
