"""Histograms of the number of records and their bytes over the key space.

A histogram has equal bins of the key, separate for each partition and stratum. Each run has one;
they add up exactly in any order, and the plan is computed from the sum. Planning never reads the
records, and reads keys only for the few bins that contain a cut.

There are 4,096 bins, unless there are so many runs that planning cannot read any of their keys:
then there are so many bins that every cut can be at the edge of one (:class:`KeyBins`).
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from .keys import Keys

BIN_BITS = 12
"""A bin is the top 12 bits of the key …"""
FINE_BITS = 24
"""… or up to this many bits: 16.8 million bins, for which planning holds about 34 bytes each."""
NUM_KEY_BINS = 1 << BIN_BITS
BIN_SHIFT = 64 - BIN_BITS

_SCHEMA = pa.schema(
    [
        ("partition", pa.int16()),
        ("stratum", pa.int32()),
        ("bin", pa.int32()),
        ("num_records", pa.int64()),
        ("num_bytes", pa.int64()),
        ("max_bytes", pa.int64()),
    ]
)
_BITS = b"bits"
_PENDING = 1 << 20
"""Maximum number of entries to collect before they are added up (about 40 B each)."""

Ints = npt.NDArray[np.int64]


def key_bins(keys: Keys, bits: int = BIN_BITS) -> npt.NDArray[np.int32]:
    """The bin of each key: int32[n] for uint64[n]."""
    return (keys >> np.uint64(64 - bits)).astype(np.int32)


@dataclasses.dataclass(frozen=True)
class KeyBins:
    """The cells of a histogram."""

    bits: int = BIN_BITS
    """A bin is this number of the key's top bits."""
    ends: tuple[int, ...] = ()
    """For hash splits and more than 4,096 bins: the first key after each split but the last. The
    number of the split then replaces the partition, so no end is inside a cell."""

    def partitions(self, partitions: npt.NDArray[np.int16], keys: Keys) -> npt.NDArray[np.int16]:
        """The partitions under which records are counted: int16[n]."""
        if not self.ends:
            return partitions
        ends = np.array(self.ends, np.uint64)
        return np.searchsorted(ends, keys, side="right").astype(np.int16)


def stratum_codes(strata: pa.Array, names: Sequence[str]) -> npt.NDArray[np.int32]:
    """Index into ``names`` of each row's stratum: int32[n], -1 if it is not among them.

    A null belongs to the stratum of the empty string.
    """
    if pa.types.is_dictionary(strata.type):
        of_entry = stratum_codes(strata.dictionary, names)
        empty = names.index("") if "" in names else -1
        lookup = np.append(of_entry, np.int32(empty))
        codes: npt.NDArray[np.int32] = lookup[strata.indices.fill_null(-1).to_numpy()]
        return codes
    texts = strata.cast(pa.large_binary()).fill_null(b"")
    known = pa.array([_encoded(name) for name in names], pa.large_binary())
    indices: npt.NDArray[np.int32] = pc.index_in(texts, value_set=known).fill_null(-1).to_numpy()
    return indices


def _encoded(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")


@dataclasses.dataclass(frozen=True, eq=False)
class KeyColumns:
    """The columns that decide where records go: one row per record, in any order."""

    partitions: npt.NDArray[np.int16]
    """int16[n]."""
    keys: Keys
    """uint64[n]."""
    num_bytes: npt.NDArray[np.int64]
    """int64[n], encoded sizes."""
    strata: pa.Array | None = None
    """string or binary[n], the values of ``stratify_by`` as text; None unless stratified."""


@dataclasses.dataclass(frozen=True, eq=False)
class KeyHistogram:
    """Records and encoded bytes by partition, stratum and key bin; sparse.

    The columns hold an entry for each non-empty (partition, stratum, bin), in that order, so
    equal contents have equal columns. Create one with :meth:`from_arrays` or :meth:`merge`.
    """

    strata: tuple[str, ...]
    """Names of the strata, sorted by their UTF-8 bytes; ``("",)`` if there are none."""
    partition: npt.NDArray[np.int16]
    stratum: npt.NDArray[np.int32]
    """Indices into ``strata``."""
    bin: npt.NDArray[np.int32]
    num_records: Ints
    num_bytes: Ints
    max_bytes: Ints
    """Size of the largest record."""
    bits: int = BIN_BITS
    """There are 2**bits bins."""

    @classmethod
    def empty(cls, bits: int = BIN_BITS) -> KeyHistogram:
        """The histogram of no records."""
        none = np.empty(0, np.int64)
        return _add_up((), none, none, none, none, none, none, bits=bits)

    @classmethod
    def from_arrays(
        cls,
        partitions: npt.NDArray[np.int16],
        keys: Keys,
        *,
        num_bytes: npt.NDArray[np.int64],
        strata: pa.Array | None = None,
        bits: int = BIN_BITS,
    ) -> KeyHistogram:
        """Counts records.

        Args:
            partitions: int16[n], at least 0.
            keys: uint64[n].
            num_bytes: int64[n], encoded size of each record.
            strata: string or binary[n], or a dictionary of them: the stratum of each record. A
                null counts as the empty string. None puts all records into the stratum ``""``.
            bits: There are 2**bits bins.
        """
        if strata is None:
            names: tuple[str, ...] = ("",)
            codes = np.zeros(len(keys), np.int32)
        else:
            distinct = strata.unique()
            if pa.types.is_dictionary(distinct.type):
                distinct = distinct.dictionary.take(distinct.indices)
            texts = distinct.cast(pa.large_binary()).fill_null(b"").to_pylist()
            names = tuple(t.decode("utf-8", "surrogateescape") for t in sorted(set(texts)))
            codes = stratum_codes(strata, names)
        ones = np.ones(len(keys), np.int64)
        sizes = np.asarray(num_bytes, np.int64)
        bins = key_bins(keys, bits)
        return _add_up(names, partitions, codes, bins, ones, sizes, sizes, bits=bits)

    @classmethod
    def merge(
        cls, histograms: Iterable[KeyHistogram], *, max_pending: int = _PENDING
    ) -> KeyHistogram:
        """Adds histograms up. The sums are of integers, so the order does not matter."""
        merged = cls.empty()
        pending: list[KeyHistogram] = []
        num_pending = 0
        for histogram in histograms:
            pending.append(histogram)
            num_pending += len(histogram.bin)
            if num_pending > max(max_pending, len(merged.bin)):
                merged, pending, num_pending = _concatenate([merged, *pending]), [], 0
        if len(pending) == 1 and not len(merged.bin):
            return pending[0]
        return _concatenate([merged, *pending]) if pending else merged

    @classmethod
    def joined(cls, parts: Iterable[KeyHistogram]) -> KeyHistogram:
        """Joins the result of :meth:`parts`, in its order; only without strata.

        Holds one part at a time, in addition to the result.
        """
        held: dict[str, list[Any]] = {name: [] for name in _SCHEMA.names}
        bits = BIN_BITS
        for part in parts:
            bits = max(bits, part.bits)
            for name, columns in held.items():
                columns.append(getattr(part, name).copy())
        whole = {name: np.concatenate(held.pop(name)) for name in _SCHEMA.names}
        # With hash splits the parts are in order; otherwise each has some of every partition.
        if (whole["partition"][1:] < whole["partition"][:-1]).any():
            order = np.argsort(whole["partition"], kind="stable")
            whole = {name: whole.pop(name)[order] for name in _SCHEMA.names}
        return cls(("",), **whole, bits=bits)

    def to_bytes(self) -> bytes:
        """Serializes as Arrow IPC streams; equal histograms give equal bytes."""
        names = pa.array([_encoded(name) for name in self.strata], pa.large_binary())
        # Names are a column of their own batch: metadata would have to be text.
        name_batch = pa.record_batch([names], schema=pa.schema([("strata", pa.large_binary())]))
        columns = [
            self.partition,
            self.stratum,
            self.bin,
            self.num_records,
            self.num_bytes,
            self.max_bytes,
        ]
        schema = _SCHEMA.with_metadata({_BITS: str(self.bits)})
        batch = pa.record_batch([pa.array(column) for column in columns], schema=schema)
        sink = pa.BufferOutputStream()
        for part in (name_batch, batch):
            with pa.ipc.new_stream(sink, part.schema) as writer:
                writer.write_batch(part)
        data: bytes = sink.getvalue().to_pybytes()
        return data

    @classmethod
    def from_bytes(cls, data: bytes) -> KeyHistogram:
        """Reads what :meth:`to_bytes` wrote."""
        source = pa.BufferReader(data)
        names, entries = (pa.ipc.open_stream(source).read_all() for _ in range(2))
        texts = names.column("strata").to_pylist()
        columns: dict[str, Any] = {n: entries.column(n).to_numpy() for n in _SCHEMA.names}
        strata = tuple(t.decode("utf-8", "surrogateescape") for t in texts)
        return cls(strata, **columns, bits=int(entries.schema.metadata[_BITS]))

    def parts(self, num_parts: int) -> list[KeyHistogram]:
        """Cuts the histogram into equal key ranges; their number is a power of two up to 4,096."""
        part = self.bin >> (self.bits - num_parts.bit_length() + 1)
        order = np.argsort(part, kind="stable")
        edges = np.searchsorted(part[order], np.arange(num_parts + 1))
        return [self.take(order[start:stop]) for start, stop in itertools.pairwise(edges.tolist())]

    def take(self, rows: npt.NDArray[np.intp]) -> KeyHistogram:
        """Selects entries by their indices; drops strata without any."""
        used, strata = np.unique(self.stratum[rows], return_inverse=True)
        return KeyHistogram(
            tuple(self.strata[index] for index in used),
            self.partition[rows],
            strata.astype(np.int32),
            self.bin[rows],
            self.num_records[rows],
            self.num_bytes[rows],
            self.max_bytes[rows],
            self.bits,
        )

    def coarse(self, *, partitioned: bool) -> KeyHistogram:
        """The same records in 4,096 bins.

        Args:
            partitioned: Whether the partitions are those of the records, rather than the number
                of a hash split (see :class:`KeyBins`).
        """
        return _add_up(
            self.strata,
            self.partition if partitioned else np.zeros_like(self.partition),
            self.stratum,
            self.bin >> (self.bits - BIN_BITS),
            self.num_records,
            self.num_bytes,
            self.max_bytes,
        )


def _concatenate(histograms: Sequence[KeyHistogram]) -> KeyHistogram:
    bits = {part.bits for part in histograms if len(part.bin)} or {BIN_BITS}
    if len(bits) > 1:
        raise ValueError(f"histograms with different numbers of bins: 2 to the {sorted(bits)}")
    names = sorted({name for part in histograms for name in part.strata}, key=_encoded)
    place = {name: index for index, name in enumerate(names)}
    codes = [
        np.array([place[name] for name in part.strata], np.int32)[part.stratum]
        for part in histograms
    ]
    return _add_up(
        tuple(names),
        np.concatenate([part.partition for part in histograms]),
        np.concatenate(codes),
        np.concatenate([part.bin for part in histograms]),
        np.concatenate([part.num_records for part in histograms]),
        np.concatenate([part.num_bytes for part in histograms]),
        np.concatenate([part.max_bytes for part in histograms]),
        bits=bits.pop(),
    )


def _add_up(
    names: tuple[str, ...],
    partitions: npt.NDArray[np.integer],
    strata: npt.NDArray[np.integer],
    bins: npt.NDArray[np.integer],
    num_records: Ints,
    num_bytes: Ints,
    max_bytes: Ints,
    bits: int = BIN_BITS,
) -> KeyHistogram:
    cell = ((partitions.astype(np.int64) * len(names) + strata) << bits) + bins
    order = np.argsort(cell, kind="stable")
    cell = cell[order]
    starts = np.flatnonzero(np.diff(cell, prepend=-1))
    cell = cell[starts]

    def combined(ufunc: np.ufunc, values: Ints) -> Ints:
        if not len(starts):
            return np.empty(0, np.int64)
        sums: Ints = ufunc.reduceat(values[order], starts)
        return sums

    group, bin_ = cell >> bits, cell & ((1 << bits) - 1)
    partition, stratum = np.divmod(group, max(len(names), 1))
    return KeyHistogram(
        names,
        partition.astype(np.int16),
        stratum.astype(np.int32),
        bin_.astype(np.int32),
        combined(np.add, num_records),
        combined(np.add, num_bytes),
        combined(np.maximum, max_bytes),
        bits,
    )
