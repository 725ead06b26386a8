"""Reads single records of a published snapshot to look at, wherever it is, without TensorFlow."""

from __future__ import annotations

import dataclasses
import importlib
import itertools
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..schemas.errors import DamagedSnapshotError, RecipeError
from ..schemas.features import ClassLabel, Feature, mask_name
from ..schemas.manifest import Manifest
from ..schemas.naming import ShardName, join
from ..transforms import storage
from ..transforms.examples.index import class_codes_from_bytes, index_from_bytes
from ..transforms.examples.stored_records import stored_ids
from ..transforms.examples.tfrecord import (
    FOOT_BYTES,
    HEAD_BYTES,
    frame_trouble,
    stored_examples,
)

_READ_BYTES = 4 << 20
"""Consecutive records of up to this many bytes are read at once."""


@dataclasses.dataclass(frozen=True)
class Record:
    """One record of a snapshot."""

    record_id: str
    values: dict[str, Any]
    """By feature, as ``reader.arrays`` returns them; images of files as their content. With masks,
    rates and orientations."""


def id_name(features: Iterable[str]) -> str:
    """The name of the records' ids beside features, none of which has it.

    >>> id_name(["x"]), id_name(["record_id"])
    ('record_id', 'record_id_')
    """
    name = "record_id"
    while name in features:
        name += "_"
    return name


def value_of(record: Record, name: str, feature: Feature) -> Any:
    """The value of a feature; None if it is missing, where the record says so."""
    mask = mask_name(name, feature)
    return record.values[name] if mask is None or record.values[mask] else None


def read_records(
    folder: str,
    manifest: Manifest,
    reader: types.ModuleType,
    split: str,
    *,
    num: int | None,
    ids: Collection[str] = (),
    label: str | None = None,
) -> Iterator[Record]:
    """Reads records of a snapshot in stored order: see :meth:`Snapshot.records`."""
    try:
        splits, examples, facts = (
            importlib.import_module(f"{reader.__name__}.{name}")
            for name in ("splits", "examples", "facts")
        )
    except ModuleNotFoundError:
        raise RecipeError(
            f"{storage.redact(folder)} was built by an older version: read it with its own "
            "reader, or build it again."
        ) from None
    parse = examples.Parser(facts.FEATURES, sides=facts.SIDES, decode=None)
    try:
        sections = [*splits.select(split).sections(manifest.model_dump(include={"splits"}))]
    except ValueError as error:
        raise RecipeError(str(error)) from None
    code = None if label is None else _code_of(manifest, label)
    missing = set(ids)
    left = num
    for section in sections:
        if left == 0:
            return
        name = ShardName.parse(section.entry["file"])
        if name is None:
            raise DamagedSnapshotError(f"{section.entry['file']!r} is not the name of a shard.")
        rows = np.arange(section.first, section.first + section.num)
        if code is not None:
            url = join(folder, name.labels_file)
            (codes,) = _index(url, lambda content: [class_codes_from_bytes(content)], section.entry)
            rows = rows[codes[rows] == code]
        stored: list[bytes] = []
        if ids:
            stored = _ids(folder, name)
            rows = rows[[stored[row].decode() in missing for row in rows]]
        rows = rows[:left]
        if not len(rows):
            continue
        stored = stored or _ids(folder, name)
        found = _examples(folder, name, rows, section.entry)
        for row, example in zip(rows.tolist(), found, strict=True):
            record_id = stored[row].decode()
            missing.discard(record_id)
            try:
                values = parse(example)
            except (ValueError, IndexError) as error:
                raise DamagedSnapshotError(
                    f"{join(folder, str(name))}: record {record_id!r} is not a valid "
                    f"example: {error}. Run `snapshard verify` to find all damage."
                ) from None
            yield Record(record_id, values)
        left = None if left is None else left - len(rows)
    if missing and left != 0:
        raise RecipeError(f"Split {split!r} has no record {min(missing)!r}.")


def _code_of(manifest: Manifest, label: str) -> int:
    feature = manifest.features[manifest.label] if manifest.label is not None else None
    if not isinstance(feature, ClassLabel):
        raise RecipeError("The label of this snapshot is not a class: leave out --class.")
    if label not in feature.names:
        known = ", ".join(map(repr, feature.names[:20]))
        raise RecipeError(f"There is no class {label!r}, only {known}.")
    return feature.names.index(label)


def _ids(folder: str, name: ShardName) -> list[bytes]:
    """The ids of a shard's records."""
    with storage.losses_as_damage():
        arrays = stored_ids(join(folder, name.index_files[1]))
        return [*itertools.chain.from_iterable(array.to_pylist() for array in arrays)]


def _index(
    url: str,
    parse: Callable[[bytes], Sequence[npt.NDArray[Any]]],
    shard: Mapping[str, Any],
) -> Sequence[npt.NDArray[Any]]:
    """The arrays of an index file, which have a value for each record of their shard."""
    try:
        with storage.losses_as_damage():
            arrays = parse(storage.read_bytes(url))
        found = f"it is of {len(arrays[0]):,} records"
        if len(arrays[0]) == shard["num_examples"]:
            return arrays
    except ValueError as error:
        found = str(error)
    raise DamagedSnapshotError(
        f"{storage.redact(url)} is damaged: {found}, and its shard has "
        f"{shard['num_examples']:,}. Run `snapshard verify` to find all damage."
    )


def _examples(
    folder: str, name: ShardName, rows: npt.NDArray[np.int64], shard: Mapping[str, Any]
) -> Iterator[bytes]:
    """The serialized examples at ascending places of a shard."""
    with storage.losses_as_damage():
        yield from _examples_at(folder, name, rows, shard)


def _examples_at(
    folder: str, name: ShardName, rows: npt.NDArray[np.int64], shard: Mapping[str, Any]
) -> Iterator[bytes]:
    url = join(folder, str(name))
    if name.compression != "none":  # which has no random access
        wanted = set(rows.tolist())
        examples = stored_examples(url, name.compression)
        first = itertools.islice(examples, max(wanted) + 1)
        yield from (example for row, example in enumerate(first) if row in wanted)
        return
    offsets, lengths = _index(join(folder, name.index_files[0]), index_from_bytes, shard)
    starts, sizes = offsets[rows].astype(np.int64), lengths[rows].astype(np.int64)
    at = 0
    while at < len(rows):
        # As many as are adjacent, and small together.
        stop = at + 1
        while (
            stop < len(rows)
            and starts[stop] == starts[stop - 1] + sizes[stop - 1]
            and starts[stop] + sizes[stop] - starts[at] <= _READ_BYTES
        ):
            stop += 1
        end = int(starts[stop - 1] + sizes[stop - 1])
        content = storage.read_bytes(url, int(starts[at]), end)
        for place in range(at, stop):
            start, size = int(starts[place] - starts[at]), int(sizes[place])
            frame = content[start : start + size]
            trouble = frame_trouble(frame, size)
            if trouble is not None:
                raise DamagedSnapshotError(
                    f"{storage.redact(url)} is damaged at byte {int(starts[place]):,}: {trouble}. "
                    "Run `snapshard verify` to find all damage."
                )
            yield frame[HEAD_BYTES : size - FOOT_BYTES]
        at = stop
