"""Near-duplicates: images and texts that are almost, but not quite, the same in several splits.

A photograph that was saved again, resized or slightly cropped; a text with a few other words. Equal
contents are found exactly (``split_leakage``), and these by sketches
(``transforms.runs.similarity``): only records that share a band of their sketches are compared.
Sketches are in a scratch file, so memory holds about 60 bytes per record. The result depends only
on the records, not on their blocks or on the workers.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...schemas.blocks import SplitPlan
from ...schemas.features import Feature, Features, Image, Mask, Scalar, Text
from ...schemas.naming import Workspace
from ...transforms import storage
from ...transforms.activity import advance
from ...transforms.examples import similarity
from ...transforms.examples.contents import content_hashes
from ...transforms.runs.files import ID, KEY, PARTITION, wire_schema
from ...transforms.runs.partitions import strata_of
from ...transforms.runs.summary import RunTable, run_readers
from .split_leakage import split_of_rows

MAX_RECORDS = 50_000
"""By default, near-duplicates are counted among up to this many prepared records …"""
MAX_BYTES = 128 << 20
"""… of up to this many bytes together."""

_SHOWN = 10
_NEIGHBOURS = 256
"""In a band, a record is compared with so many others next to it, in the order of sketches."""
_PAIRS_AT_ONCE = 1 << 14
_FACTS = np.dtype([("key", np.uint64), ("content", np.uint64), ("split", np.int16)])

Rows = npt.NDArray[np.void]
Numbers = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True, kw_only=True)
class NearDuplicates:
    """What resembles something in another split."""

    counts: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """``"train, test"``: how many records of test resemble, but do not equal, one of train."""
    pairs: Sequence[Mapping[str, object]] = ()
    """Up to 10 of each two splits, the most alike first: ``feature``, ``likeness``, ``splits`` and
    ``ids``."""
    not_counted: str = ""
    """Why nothing was compared, if so."""

    def to_json(self) -> dict[str, object]:
        """As plain JSON, for ``build.json``."""
        if self.not_counted:
            return {"not_counted": self.not_counted}
        return {"counts": dict(self.counts), "pairs": list(self.pairs)}


@dataclasses.dataclass(frozen=True)
class _Kind:
    """How the values of a feature are sketched and compared."""

    dtype: np.dtype[np.void]
    sketches: Callable[[pa.RecordBatch], Iterator[Rows | None]]
    bands: Callable[[Rows], Sequence[npt.NDArray[np.uint64]]]
    likeness: Callable[[Rows, Numbers, Numbers], npt.NDArray[np.float64]]
    """Of all sketches, and two rows for each pair."""


def find_near_duplicates(
    table: RunTable,
    plans: Sequence[SplitPlan],
    *,
    features: Features,
    label: str | None,
    stratify_by: str | None,
    workspace: Workspace,
    wanted: bool | None = None,
    stop: threading.Event | None = None,
) -> NearDuplicates:
    """Counts the records whose image or text resembles one of an earlier split.

    Args:
        table: The final runs.
        plans: The splits.
        features: Features of the prepared records.
        label: The feature to predict, which does not count when contents are compared.
        stratify_by: The feature whose values are the strata; None for none.
        workspace: Where the runs are.
        wanted: Whether to count; None counts if there are few enough records and bytes.
        stop: Ends the search early.

    Raises:
        CancelledError: soon after ``stop`` is set.
        DamagedWorkError: if a run is damaged.
    """
    used = [plan for plan in plans if plan.shards]
    kinds = {name: kind for name, f in features.items() if (kind := _kind_of(name, f)) is not None}
    if reason := _why_not(table, used, kinds, wanted):
        return NearDuplicates(not_counted=reason)
    stop = stop or threading.Event()
    compared = {name: f for name, f in features.items() if name != label} or features
    with storage.scratch_folder(workspace.root) as scratch:
        sketched = _Sketched(kinds, scratch)
        with sketched:
            for reader in run_readers(table, workspace, features):
                for batch in reader.scan():
                    if stop.is_set():
                        raise CancelledError
                    splits = split_of_rows(
                        used,
                        partitions=batch.column(PARTITION).to_numpy(),
                        keys=batch.column(KEY).to_numpy(),
                        strata=strata_of(batch, features, stratify_by),
                    )
                    kept = np.flatnonzero(splits >= 0)
                    contents = content_hashes(batch.select(wire_schema(compared).names))
                    sketched.add(batch.take(pa.array(kept)), splits[kept], contents[kept])
        return sketched.compare([plan.name for plan in used], stop)


def _why_not(
    table: RunTable, used: Sequence[SplitPlan], kinds: Mapping[str, _Kind], wanted: bool | None
) -> str:
    """Why near-duplicates are not counted; empty if they are."""
    if wanted is False:
        return "near_duplicates=False"
    if len(used) < 2:
        return "there is one split"
    if not kinds:
        return "there are no images or texts"
    if wanted is None and table.total("num_records") > MAX_RECORDS:
        return f"there are more than {MAX_RECORDS:,} records; near_duplicates=True counts them"
    if wanted is None and table.total("num_bytes") > MAX_BYTES:
        size = f"{MAX_BYTES >> 20} MiB of prepared records"
        return f"there are more than {size}; near_duplicates=True counts them"
    return ""


def _kind_of(name: str, feature: Feature) -> _Kind | None:
    """How a feature is compared; None if it is not."""
    if isinstance(feature, Mask) or (isinstance(feature, Image) and feature.dtype != "uint8"):
        return None  # masks are alike by nature, and 16 bits are more than a sketch compares
    if isinstance(feature, Image):
        return _Kind(
            similarity.IMAGE_SKETCH,
            lambda batch: (
                similarity.image_sketch(image) for image in _images(name, feature, batch)
            ),
            similarity.image_bands,
            similarity.image_likeness,
        )
    if isinstance(feature, Text) or (isinstance(feature, Scalar) and feature.dtype == "string"):
        return _Kind(
            similarity.TEXT_SKETCH,
            lambda batch: (
                None if value is None else similarity.text_sketch(value)
                for value in batch.column(name).to_pylist()
            ),
            similarity.text_bands,
            similarity.text_likeness,
        )
    return None


def _images(name: str, feature: Image, batch: pa.RecordBatch) -> Iterator[Any]:
    """The images of a batch as grey values."""
    values = (value.as_buffer() if value.is_valid else b"" for value in batch.column(name))
    if feature.storage == "encoded":
        yield from (similarity.encoded_image(bytes(value)) for value in values)
        return
    present = batch.schema.names
    heights, widths = (
        batch.column(f"{name}/{axis}").to_pylist()
        if f"{name}/{axis}" in present
        else [getattr(feature, axis)] * batch.num_rows
        for axis in ("height", "width")
    )
    for value, height, width in zip(values, heights, widths, strict=True):
        yield similarity.raw_image(
            bytes(value), height=height, width=width, channels=feature.channels
        )


class _Sketched:
    """The sketches of all records, in files, and what is known of the records."""

    def __init__(self, kinds: Mapping[str, _Kind], folder: str) -> None:
        self._kinds = kinds
        self._paths = {name: os.path.join(folder, f"sketches-{i}") for i, name in enumerate(kinds)}
        self._ids_path = os.path.join(folder, "ids")
        self._rows: dict[str, list[Numbers]] = {name: [] for name in kinds}
        """Of each feature, the records that have a sketch."""
        self._facts: list[Rows] = []
        self._id_bytes: list[Numbers] = []
        self._num_records = 0

    def __enter__(self) -> None:
        """Opens the files for writing."""
        with contextlib.ExitStack() as stack:
            self._files = {
                name: stack.enter_context(open(path, "wb")) for name, path in self._paths.items()
            }
            self._ids = stack.enter_context(open(self._ids_path, "wb"))
            self._stack = stack.pop_all()

    def __exit__(self, *_: object) -> None:
        """Closes the files."""
        self._stack.close()

    def add(
        self, batch: pa.RecordBatch, splits: npt.NDArray[np.int16], contents: npt.NDArray[np.uint64]
    ) -> None:
        """Sketches some records."""
        facts = np.zeros(batch.num_rows, _FACTS)
        facts["key"] = batch.column(KEY).to_numpy()
        facts["content"], facts["split"] = contents, splits
        self._facts.append(facts)
        ids = batch.column(ID).to_pylist()
        self._id_bytes.append(np.array([len(record_id) for record_id in ids], np.int64))
        self._ids.write(b"".join(ids))
        for name, kind in self._kinds.items():
            rows = []
            for row, sketch in enumerate(kind.sketches(batch)):
                if sketch is not None:
                    rows.append(self._num_records + row)
                    self._files[name].write(sketch.tobytes())
            self._rows[name].append(np.array(rows, np.int64))
        self._num_records += batch.num_rows

    def compare(self, names: Sequence[str], stop: threading.Event) -> NearDuplicates:
        """Compares the records of splits with these names.

        Raises:
            CancelledError: soon after ``stop`` is set.
        """
        facts = np.concatenate([np.zeros(0, _FACTS), *self._facts])
        resembles = np.zeros((len(names), len(facts)), bool)
        """Whether a record resembles one of a split before its own."""
        best: dict[tuple[int, int], dict[tuple[str, int, int], float]] = {}
        for feature, kind in self._kinds.items():
            rows = np.concatenate([np.zeros(0, np.int64), *self._rows[feature]])
            if len(rows) < 2:
                continue
            sketches = np.asarray(np.memmap(self._paths[feature], kind.dtype, "r"))
            for one, other, likeness in _alike(kind, sketches, facts[rows], stop):
                one, other = rows[one], rows[other]
                swapped = facts["split"][one] > facts["split"][other]
                first, second = np.where(swapped, other, one), np.where(swapped, one, other)
                resembles[facts["split"][first], second] = True
                pairs = zip(first.tolist(), second.tolist(), likeness.tolist(), strict=True)
                for a, b, value in pairs:
                    splits = int(facts["split"][a]), int(facts["split"][b])
                    best.setdefault(splits, {})[feature, a, b] = value
                for splits, known in best.items():
                    best[splits] = dict(sorted(known.items(), key=_order(facts))[:_SHOWN])
        counts = {}
        for earlier, later in sorted(best):
            number = int(resembles[earlier][facts["split"] == later].sum())
            counts[f"{names[earlier]}, {names[later]}"] = number
        return NearDuplicates(counts=counts, pairs=self._describe(best, names))

    def _describe(
        self,
        best: Mapping[tuple[int, int], Mapping[tuple[str, int, int], float]],
        names: Sequence[str],
    ) -> list[Mapping[str, object]]:
        """The pairs with the ids of their records."""
        ends = np.cumsum(np.concatenate([np.zeros(1, np.int64), *self._id_bytes])).tolist()
        with open(self._ids_path, "rb") as file:

            def id_of(row: int) -> str:
                file.seek(ends[row])
                return file.read(ends[row + 1] - ends[row]).decode("utf-8", "backslashreplace")

            return [
                {
                    "feature": feature,
                    "likeness": round(likeness, 3),
                    "splits": [names[first], names[second]],
                    "ids": [id_of(a), id_of(b)],
                }
                for (first, second), pairs in sorted(best.items())
                for (feature, a, b), likeness in pairs.items()
            ]


def _order(facts: Rows) -> Callable[[tuple[tuple[str, int, int], float]], Any]:
    """The order of pairs: the most alike first, then by feature and keys."""

    def key(item: tuple[tuple[str, int, int], float]) -> tuple[float, str, int, int]:
        (feature, a, b), likeness = item
        return -round(likeness, 3), feature, int(facts["key"][a]), int(facts["key"][b])

    return key


def _alike(
    kind: _Kind, sketches: Rows, facts: Rows, stop: threading.Event
) -> Iterator[tuple[Numbers, Numbers, npt.NDArray[np.float64]]]:
    """Pairs of rows of different splits and contents that are alike, and how much.

    A pair may come several times: for each band that it shares.
    """
    bands = kind.bands(sketches)
    rank = _digests(bands)
    for band in bands:
        order = np.lexsort((facts["key"], rank, band))
        held = band[order]
        for distance in range(1, min(_NEIGHBOURS, len(order) - 1) + 1):
            advance()
            if stop.is_set():
                raise CancelledError
            together = np.flatnonzero(held[distance:] == held[:-distance])
            if not len(together):
                break
            one, other = order[together], order[together + distance]
            differ = facts["split"][one] != facts["split"][other]
            differ &= facts["content"][one] != facts["content"][other]
            one, other = one[differ], other[differ]
            for start in range(0, len(one), _PAIRS_AT_ONCE):
                a, b = (rows[start : start + _PAIRS_AT_ONCE] for rows in (one, other))
                likeness = kind.likeness(sketches, a, b)
                alike = np.flatnonzero(likeness)
                if len(alike):
                    yield a[alike], b[alike], likeness[alike]


def _digests(bands: Sequence[npt.NDArray[np.uint64]]) -> npt.NDArray[np.uint64]:
    """Equal for rows whose bands are all equal: such rows are neighbours in every band."""
    total = np.zeros(len(bands[0]), np.uint64)
    for band in bands:
        total = total * np.uint64(0x9E37_79B9_7F4A_7C15) + band
    return total
