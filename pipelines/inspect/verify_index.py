"""What is wrong with a shard's index files: what they tell is held against the shard."""

from __future__ import annotations

import io
from collections.abc import Iterable

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ...schemas.features import ClassLabel, Feature
from ...schemas.manifest import MAX_LABELS, ShardEntry
from ...transforms.examples.decode import example_features, int64_values
from ...transforms.examples.index import class_codes_from_bytes, index_from_bytes
from ...transforms.examples.tfrecord import FRAME_BYTES, Frames

_COLUMNS = ["id", "source", "position"]
_MAX_BYTES = 1 << 48
"""No record is so long: what says so is no length."""


class StaleIndexError(Exception):
    """What an index file tells wrongly; ``record`` and ``offset`` say of which record, if one."""

    def __init__(self, what: str, *, record: int | None = None, offset: int | None = None) -> None:
        """Takes what is wrong, in words that follow "it"."""
        super().__init__(what)
        self.record = record
        self.offset = offset


def check_offsets(content: bytes, shard: ShardEntry, *, num_bytes: int | None) -> Frames:
    """Reads ``<shard>.idx``, and checks that frames lie end to end and fill the shard.

    Args:
        content: The file's.
        shard: What the manifest says of the shard.
        num_bytes: Of the shard, uncompressed; None where that is not known.

    Raises:
        StaleIndexError: if they do not.
    """
    try:
        offsets, lengths = index_from_bytes(content)
    except ValueError as error:
        raise StaleIndexError(str(error)) from None
    _check_count(len(offsets), shard)
    if not len(offsets):
        return offsets, lengths
    odd = np.flatnonzero((lengths < FRAME_BYTES) | (lengths >= _MAX_BYTES))
    if len(odd):
        n = int(odd[0])
        raise StaleIndexError(f"tells a length of {int(lengths[n]):,} bytes", record=n)
    ends = np.cumsum(lengths)
    wrong = np.flatnonzero(offsets != ends - lengths)
    if len(wrong):
        n = int(wrong[0])
        raise StaleIndexError(
            f"tells the offset {int(offsets[n]):,}, and the records before it end at "
            f"{int(ends[n] - lengths[n]):,}",
            record=n,
        )
    if num_bytes is not None and int(ends[-1]) != num_bytes:
        raise StaleIndexError(
            f"tells that the records end at byte {int(ends[-1]):,}, and the shard has "
            f"{num_bytes:,} bytes"
        )
    return offsets, lengths


def check_against_frames(content: bytes, found: Frames, shard: ShardEntry) -> None:
    """Holds ``<shard>.idx`` against where the shard's records do lie.

    Raises:
        StaleIndexError: naming the first record that it tells wrongly.
    """
    try:
        offsets, lengths = index_from_bytes(content)
    except ValueError as error:
        raise StaleIndexError(str(error)) from None
    both = min(len(offsets), len(found[0]))
    wrong = np.flatnonzero(
        (offsets[:both] != found[0][:both]) | (lengths[:both] != found[1][:both])
    )
    if len(wrong):
        n = int(wrong[0])
        what = (
            f"tells {int(lengths[n]):,} bytes from byte {int(offsets[n]):,}, where no record "
            f"begins: the shard has it at byte {int(found[0][n]):,}, {int(found[1][n]):,} bytes "
            "long"
        )
        if offsets[n] == found[0][n]:
            what = f"tells {int(lengths[n]):,} bytes, and the record has {int(found[1][n]):,}"
        if len(wrong) > 1:
            what += f"; so of {len(wrong):,} records"
        raise StaleIndexError(what, record=n, offset=int(found[0][n]))
    _check_count(len(offsets), shard)


def check_table(content: bytes, shard: ShardEntry) -> None:
    """Checks that ``<shard>.parquet`` is a table of ids, one for each record.

    Raises:
        StaleIndexError: if it is not.
    """
    try:
        metadata = pq.read_metadata(io.BytesIO(content))
        names = metadata.schema.to_arrow_schema().names
    except (pa.ArrowException, OSError, ValueError) as error:
        raise StaleIndexError(f"is no Parquet file: {_first_line(error)}") from None
    if names != _COLUMNS:
        raise StaleIndexError(f"has the columns {', '.join(names)}, expected {', '.join(_COLUMNS)}")
    _check_count(metadata.num_rows, shard)


def check_labels(content: bytes, shard: ShardEntry, *, label: Feature | None) -> None:
    """Checks that ``<shard>.labels`` has the shard's classes, as often as the manifest says.

    Raises:
        StaleIndexError: if it has not.
    """
    try:
        codes = class_codes_from_bytes(content)
    except ValueError as error:
        raise StaleIndexError(str(error)) from None
    _check_count(len(codes), shard)
    if not isinstance(label, ClassLabel):
        return
    odd = np.flatnonzero((codes < -1) | (codes >= len(label.names)))
    if len(odd):
        n = int(odd[0])
        raise StaleIndexError(
            f"tells the class {int(codes[n])}, and there are {len(label.names):,}", record=n
        )
    unknown = sorted(shard.label_counts.keys() - set(label.names))
    if unknown:
        raise StaleIndexError(
            f"has no records of {unknown[0][:100]!r}, which manifest.json counts and is no class"
        )
    if len(shard.label_counts) >= MAX_LABELS:
        return
    counts = np.bincount(codes[codes >= 0], minlength=len(label.names))
    for name, count in zip(label.names, counts.tolist(), strict=True):
        expected = shard.label_counts.get(name, 0)
        if count != expected:
            raise StaleIndexError(
                f"tells of {count:,} records of {name!r}, and manifest.json of {expected:,}"
            )


def check_against_examples(
    content: bytes, examples: Iterable[bytes], *, name: str, label: ClassLabel
) -> None:
    """Holds ``<shard>.labels`` against the classes that the shard's examples have.

    Raises:
        StaleIndexError: naming the first record whose class it tells wrongly.
    """
    try:
        codes = class_codes_from_bytes(content).tolist()
        for n, (code, example) in enumerate(zip(codes, examples, strict=False)):
            values = int64_values(example_features(example).get(name, b"")) or [-1]
            if code != values[0]:
                told, held = (_class_name(value, label) for value in (code, values[0]))
                raise StaleIndexError(f"tells {told}, and the example has {held}", record=n)
    except ValueError:
        # No class can be told of what is no example, or no list of classes.
        return


def _class_name(code: int, label: ClassLabel) -> str:
    known = 0 <= code < len(label.names)
    return f"the class {label.names[code]!r}" if known else "no class"


def read_id(content: bytes, record: int) -> str | None:
    """The id of one record, from ``<shard>.parquet``; None where it cannot be read."""
    try:
        table = pq.ParquetFile(io.BytesIO(content))
        before = 0
        for group in range(table.metadata.num_row_groups):
            num_rows = table.metadata.row_group(group).num_rows
            if record < before + num_rows:
                ids = table.read_row_group(group, columns=["id"]).column(0)
                found: str = ids[record - before].as_py()
                return found
            before += num_rows
    except (pa.ArrowException, OSError, ValueError, KeyError):
        pass
    return None


def _check_count(number: int, shard: ShardEntry) -> None:
    if number != shard.num_examples:
        raise StaleIndexError(
            f"tells of {number:,} records, and the shard has {shard.num_examples:,}"
        )


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
