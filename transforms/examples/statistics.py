"""Measures the examples of a shard while they are written: exact figures, and a sample.

Counts, extremes, means and deviations cover every value. Float sums depend on the order of their
terms, so values are taken in the shard's order, in chunks of 16,384, however records are batched:
the sum and the squares of a chunk are NumPy's, chunks and shards are put together in order, by the
method of Chan, Golub and LeVeque (1979). So the figures are alike on every engine.

Distinct values are counted by their smallest hashes (Bar-Yossef et al., 2002), whose estimate does
not depend on the order: exactly below 256 values, with a standard error of 6 % above.

Quantiles, histograms and frequent values need the values themselves. They come from the first
records of each shard, 4,096 for a split: keys are hashes, so these are a uniform sample.

Where steps change records, each run is measured as well as it was read. How records are divided
into runs must not matter: sums are exact, of integers. There is no sample, as the records of a run
are in the source's order: all numbers are counted, close ones together where there are many, and
texts where a column has at most 64 different ones.
"""

from __future__ import annotations

import base64
import bisect
import contextlib
import dataclasses
import functools
import io
import math
import struct
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import mmh3
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ...schemas.features import (
    Audio,
    BoundingBoxes,
    Feature,
    Features,
    Image,
    Mask,
    TensorForm,
    is_optional,
    item_class,
    side_columns,
    tensor_form,
)
from .dtypes import joined_bytes, unpacked
from .row_values import PCM
from .sizing import list_lengths, varying_lists

SAMPLE_RECORDS = 4096
"""Records per split whose values are sampled: fewer of tables of more than 64 single features."""
_SAMPLE_VALUES = 1 << 18
"""Values per split that are sampled."""
MEDIA_RECORDS = 64
"""Records per split whose pixels and samples of sound are measured."""
_MEDIA_BYTES = 1 << 25
"""Bytes per split of a feature that are measured: fewer records of large photographs."""
_SIDE = 256
"""Pixels that encoded images are measured with, at least, of each side."""
_MAX_PIXELS = 1 << 26
"""Of larger images Pillow warns."""
MODES = {1: "L", 3: "RGB", 4: "RGBA"}
MAX_SAMPLED_FEATURES = 500
"""Of wider tables only the exact figures are measured: a sample would take longer than a build."""
_CHUNK = 16_384
_MAX_TEXT = 100
"""Bytes of a sampled text."""
NUM_HASHES = 256
MAX_TALLIED = 64
"""Different texts of a raw column that are counted, at most."""
_MAX_BUCKETS = 512
"""Buckets that the numbers of a raw column are counted in, at most."""

Array = npt.NDArray[Any]


@dataclasses.dataclass
class Numbers:
    """Exact figures of numbers that were added in a fixed order."""

    count: int = 0
    """Without those that are not finite."""
    num_zeros: int = 0
    num_non_finite: int = 0
    min: float | int | None = None
    max: float | int | None = None
    mean: float = 0.0
    squares: float = 0.0
    """Sum of the squared differences from the mean."""

    def merge(self, other: Numbers) -> None:
        """Adds the figures of the numbers that come next."""
        self.num_zeros += other.num_zeros
        self.num_non_finite += other.num_non_finite
        if not other.count:
            return
        if not self.count:
            self.count, self.min, self.max = other.count, other.min, other.max
            self.mean, self.squares = other.mean, other.squares
            return
        total = self.count + other.count
        delta = other.mean - self.mean
        if math.isfinite(delta):
            self.mean += delta * other.count / total
        else:
            self.mean = self.mean * (self.count / total) + other.mean * (other.count / total)
        self.squares += other.squares + delta * delta * self.count * other.count / total
        self.count = total
        ends = [end for end in (self.min, self.max, other.min, other.max) if end is not None]
        self.min, self.max = min(ends), max(ends)

    @property
    def deviation(self) -> float | None:
        """The population's standard deviation; None without numbers, or if it overflows."""
        if not self.count or not math.isfinite(self.squares):
            return None
        return math.sqrt(self.squares / self.count)

    @classmethod
    def of(cls, values: Array) -> Numbers:
        """The figures of one chunk."""
        return cls.of_rows(values[np.newaxis])[0]

    @classmethod
    def of_rows(cls, rows: Array) -> list[Numbers]:
        """The figures of each row of a matrix: those of a chunk of its values."""
        length = rows.shape[1]
        if not length:
            return [cls() for _ in rows]
        with np.errstate(all="ignore"):
            wide = rows.astype(np.float64)
            totals = wide.sum(axis=1)
            lows, highs = rows.min(axis=1), rows.max(axis=1)
            # A mean of equal numbers may differ from them in its last bit.
            means = np.where(lows == highs, lows, totals / length)
            zeros = length - np.count_nonzero(wide, axis=1)
            squares = np.square(wide - means[:, np.newaxis]).sum(axis=1)
        columns = (zeros, lows, highs, means, squares)
        found = [
            cls(length, num_zeros, 0, low, high, mean, square)
            for num_zeros, low, high, mean, square in zip(
                *(c.tolist() for c in columns), strict=True
            )
        ]
        for row in np.flatnonzero(~np.isfinite(totals)):
            found[row] = cls._of_finite(rows[row])
        return found

    @classmethod
    def _of_finite(cls, values: Array) -> Numbers:
        """The figures of a chunk whose sum is not finite."""
        finite = values[np.isfinite(values)]
        if len(finite) < len(values):
            found = cls.of(finite)
            found.num_non_finite = len(values) - len(finite)
            return found
        with np.errstate(all="ignore"):
            wide = values.astype(np.float64)
            low, high = values.min().item(), values.max().item()
            mean = float((wide / len(wide)).sum()) if low != high else float(low)
            zeros, squares = len(wide) - np.count_nonzero(wide), np.square(wide - mean).sum()
        return cls(len(wide), int(zeros), 0, low, high, mean, float(squares))


_Sums = tuple[Fraction, Fraction]
"""The exact sums of numbers, and of their squares."""
_LIMB = 18
"""Bits of a part of a mantissa: 16,384 products of two such parts have a sum that float64 holds."""


def exact_sums(rows: Array) -> list[_Sums]:
    """The sums of each row of a matrix of at most 16,384 columns; infinite numbers and NaN are 0.

    A number is m × 2^e with a mantissa m of 53 bits, which is three parts of 18 bits. Products of
    parts are summed in float64 for each exponent, without rounding, and put together as integers.
    """
    with np.errstate(all="ignore"):
        wide = rows.astype(np.float64)
        mantissas, exponents = np.frexp(np.where(np.isfinite(wide), wide, 0.0))
    whole = (mantissas * 2.0**53).astype(np.int64)
    known = whole != 0
    low = int(exponents[known].min()) if known.any() else 0
    places = np.where(known, exponents - low, 0)
    num_rows, num = len(rows), int(places.max(initial=0)) + 1
    index = (np.arange(num_rows)[:, np.newaxis] * num + places).ravel()
    mask = (1 << _LIMB) - 1
    c0, c1, c2 = whole & mask, (whole >> _LIMB) & mask, whole >> 2 * _LIMB

    def total(parts: Sequence[Array], scale: int) -> Array:
        """Sums of polynomials in 2^18 with these coefficients, by row, of Python's integers."""
        of_rows = np.zeros(num_rows, object)
        powers = np.array([1 << scale * place for place in range(num)], object)
        for power, part in enumerate(parts):
            sums = np.bincount(index, part.ravel(), minlength=num_rows * num)
            found = sums.astype(np.int64).astype(object).reshape(num_rows, num)
            of_rows += (found * powers).sum(axis=1) * (1 << _LIMB * power)
        return of_rows

    singles = total([c0, c1, c2], 1)
    squares = total([c0 * c0, 2 * c0 * c1, c1 * c1 + 2 * c0 * c2, 2 * c1 * c2, c2 * c2], 2)
    unit = Fraction(2) ** (low - 53)
    return [
        (one * unit, square * unit * unit) for one, square in zip(singles, squares, strict=True)
    ]


class _Stream:
    """Takes the values of a shard in order, in batches of any size."""

    def __init__(self, *, hashed: bool = False, summed: bool = False) -> None:
        self.sums: _Sums | None = (Fraction(0), Fraction(0)) if summed else None
        self.numbers = Numbers()
        self.hashes = np.empty(0, np.uint64) if hashed else None
        self.tally = Tally() if hashed and summed else None
        self._held: list[Array] = []
        self._num_held = 0

    def add(self, values: Array) -> None:
        if not len(values):
            return
        self._held.append(values)
        self._num_held += len(values)
        if self._num_held >= _CHUNK:
            values = np.concatenate(self._held) if len(self._held) > 1 else values
            stop = len(values) // _CHUNK * _CHUNK
            for start in range(0, stop, _CHUNK):
                chunk = values[start : start + _CHUNK]
                self._fold(chunk, Numbers.of(chunk))
                if self.sums is not None:
                    self._sum(*exact_sums(chunk[np.newaxis]))
            # A copy: a view would keep its whole batch in memory.
            self._held = [values[stop:].copy()]
            self._num_held = len(values) - stop

    @classmethod
    def finish(cls, streams: Iterable[_Stream]) -> None:
        """Takes what streams still hold: equally many values of several streams at once."""
        alike: dict[tuple[Any, int], list[_Stream]] = {}
        for stream in streams:
            if stream._num_held:
                held = np.concatenate(stream._held)
                stream._held = [held]
                alike.setdefault((held.dtype, len(held)), []).append(stream)
        for (_, length), group in alike.items():
            num = max(1, _CHUNK // length)
            for start in range(0, len(group), num):
                some = group[start : start + num]
                rows = np.stack([stream._held[0] for stream in some])
                for stream, row, numbers in zip(some, rows, Numbers.of_rows(rows), strict=True):
                    stream._fold(row, numbers)
                    stream._held, stream._num_held = [], 0
                if some[0].sums is not None:
                    for stream, sums in zip(some, exact_sums(rows), strict=True):
                        stream._sum(sums)

    def _sum(self, more: _Sums) -> None:
        assert self.sums is not None
        self.sums = (self.sums[0] + more[0], self.sums[1] + more[1])

    def _fold(self, chunk: Array, numbers: Numbers) -> None:
        self.numbers.merge(numbers)
        if self.hashes is not None:
            self.hashes = smallest(self.hashes, _hashes_of_numbers(chunk))
        if self.tally is not None:
            self.tally.add(chunk)


class Tally:
    """How often numbers occur: each one, or those of a bucket where more than 512 are different.

    The bits of a float64, with those of negative ones inverted, are an integer that grows with the
    number. A bucket holds numbers whose integers agree but for the last ``level`` bits; the level
    is the lowest with at most 512 buckets, so neither the order of numbers nor how they are divided
    matters, and close numbers are told apart as well as far ones (as in HdrHistogram, by Tene).

    Attributes:
        buckets: The integers without these bits, ascending: int64[n].
        counts: The numbers in each bucket: int64[n].
    """

    def __init__(self, level: int = 0, packed: str = "") -> None:
        """Begins without numbers, or with what :meth:`to_json` returned."""
        self.level = level
        content = zlib.decompress(base64.b64decode(packed)) if packed else b""
        steps, counts = np.frombuffer(content, np.int64).reshape(2, -1)
        self.buckets: npt.NDArray[np.int64] = np.cumsum(steps)
        self.counts: npt.NDArray[np.int64] = counts

    def to_json(self) -> list[Any]:
        """Plain JSON: about 700 bytes for 512 buckets."""
        steps = np.diff(self.buckets, prepend=np.int64(0))
        packed = zlib.compress(np.stack([steps, self.counts]).tobytes())
        return [self.level, base64.b64encode(packed).decode()]

    def add(self, numbers: Array) -> None:
        """Counts more numbers; those that are not finite are left out."""
        wide = numbers.astype(np.float64) + 0.0  # -0.0 is 0.0
        bits = wide[np.isfinite(wide)].view(np.int64)
        self._merge(*np.unique(_in_order(bits) >> self.level, return_counts=True))

    def merge(self, other: Tally) -> None:
        """Adds what another one counted."""
        level = max(self.level, other.level)
        self.buckets, self.level = self.buckets >> level - self.level, level
        self._merge(other.buckets >> level - other.level, other.counts)

    def _merge(self, buckets: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]) -> None:
        """Adds buckets of the same level; leaves out as many bits more as it takes."""
        merged = np.concatenate([self.buckets, buckets])
        order = np.argsort(merged, kind="stable")
        merged, counts = merged[order], np.concatenate([self.counts, counts])[order]
        num_bits = bisect.bisect_left(
            range(64), True, key=lambda bits: len(_starts(merged >> bits)) <= _MAX_BUCKETS
        )
        self.level, merged = self.level + num_bits, merged >> num_bits
        starts = _starts(merged)
        self.buckets = merged[starts]
        self.counts = np.add.reduceat(counts, starts) if len(starts) else counts

    def spans(self, low: float, high: float) -> npt.NDArray[np.float64]:
        """Where each bucket begins and ends: float64[n, 2]; twice the number that is alone in it.

        Args:
            low: The lowest of all numbers.
            high: The highest one.
        """
        ends = self.buckets + (self.level > 0)
        spans = _in_order(np.stack([self.buckets, ends], axis=1) << self.level).view(np.float64)
        if len(spans):
            spans[0, 0], spans[-1, 1] = low, high
        return spans


def _starts(ascending: npt.NDArray[np.int64]) -> npt.NDArray[np.intp]:
    """Where each distinct value begins."""
    return np.flatnonzero(np.diff(ascending, prepend=ascending[:1] - 1))


def _in_order(bits: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Integers that grow with the float64 of these bits; and the bits, given such integers."""
    return np.where(bits < 0, bits ^ np.int64(2**63 - 1), bits)


def smallest(known: npt.NDArray[np.uint64], more: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The smallest distinct hashes of both, ascending, at most NUM_HASHES."""
    if len(known) == NUM_HASHES:
        more = more[more < known[-1]]
        if not len(more):
            return known
    # Faster than np.unique, which hashes them again.
    merged = np.sort(np.concatenate([known, more]))
    is_new = np.append(True, merged[1:] != merged[:-1])[: len(merged)]
    distinct: npt.NDArray[np.uint64] = merged[is_new]
    return distinct[:NUM_HASHES]


def estimate_distinct(hashes: npt.NDArray[np.uint64]) -> tuple[int, bool]:
    """The number of distinct values whose smallest hashes these are, and whether it is exact."""
    if len(hashes) < NUM_HASHES:
        return len(hashes), True
    return round((NUM_HASHES - 1) * 2.0**64 / (float(hashes[-1]) + 1)), False


def _hashes_of_numbers(values: Array) -> npt.NDArray[np.uint64]:
    """A hash of each number: the finalizer of SplitMix64 (Steele, Lea and Flood, 2014)."""
    if values.dtype.kind not in "iu":
        wide = values.astype(np.float64) + 0.0  # -0.0 is 0.0
        bits = wide[np.isfinite(wide)].view(np.uint64)
    else:
        bits = values.astype(np.int64).view(np.uint64)
    with np.errstate(over="ignore"):
        bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    hashes: npt.NDArray[np.uint64] = bits ^ (bits >> np.uint64(31))
    return hashes


def _hashes_of_texts(values: pa.Array) -> npt.NDArray[np.uint64]:
    texts = pc.unique(values).to_pylist()
    return np.array([mmh3.hash64(text, signed=False)[0] for text in texts], np.uint64)


Read = Callable[[pa.RecordBatch], Array]
"""Takes the values of a feature from wire columns, in order, without missing ones."""


class ExampleMeasures:
    """What to measure of each feature: made once for a snapshot."""

    def __init__(self, features: Features, *, sampled: bool = True) -> None:
        """Decides it.

        Args:
            features: Of the records.
            sampled: Whether their first ones are a sample.
        """
        self.features = features
        ordered = sorted(features, key=str.encode)
        self.streams: dict[tuple[str, str], Read] = {}
        """By feature and aspect: "values", "lengths", "heights", "widths" or "rates"."""
        sides: dict[tuple[str, str], str] = {}
        self.class_lists = {
            name: len(items.names)
            for name in ordered
            if (items := item_class(features[name])) is not None
        }
        """Lists of classes, whose values are counted: their numbers of classes."""
        varying = set(varying_lists(features))
        for name in ordered:
            feature = features[name]
            if isinstance(feature, Image) and not feature.fixed_size:
                sides |= {(name, f"{side}s"): f"{name}/{side}" for side in ("height", "width")}
            if isinstance(feature, Audio) and (rate := side_columns(name, feature)):
                sides[name, "rates"] = rate[0]
            form = tensor_form(feature)
            if form is None:
                continue
            if form.dtype == "string" and not form.shape:
                self.streams[name, "lengths"] = _text_lengths(name)
            elif name in varying:
                self.streams[name, "lengths"] = _list_lengths(name, feature)
            if form.dtype != "string" and not isinstance(feature, Audio):
                self.streams[name, "values"] = _values(name, form)
        self.streams |= {key: _column(side) for key, side in sides.items()}
        single = {name: form for name in ordered if (form := _single(features[name]))}
        is_wide = len(single) > MAX_SAMPLED_FEATURES
        if is_wide:
            single = {}
        most = SAMPLE_RECORDS if sampled else 0
        self.num_sampled = min(most, _SAMPLE_VALUES // max(1, len(single)))
        self.numbers = [name for name, form in single.items() if form.dtype != "string"]
        """Features of a single number, or class."""
        self.texts = [name for name, form in single.items() if form.dtype == "string"]
        of_records = [key for key in self.streams if key[1] != "values" and not is_wide]
        keys = [*((name, "values") for name in self.numbers), *of_records]
        self.sampled = {key: sides.get(key, key[0]) for key in keys}
        """The numbers sampled of each record, by feature and aspect, each with the column whose
        nulls mark missing ones."""
        media = {name: _media_measure(features[name]) for name in ordered if sampled}
        self.media = {name: measure for name, measure in media.items() if measure is not None}


def _single(feature: Feature) -> TensorForm | None:
    form = tensor_form(feature)
    return form if form is not None and not form.shape and not isinstance(feature, Audio) else None


def _column(name: str) -> Read:
    return lambda columns: _known(columns.column(name)).to_numpy(zero_copy_only=False)


def _known(column: pa.Array) -> pa.Array:
    return column.drop_null() if column.null_count else column


def _text_lengths(name: str) -> Read:
    return lambda columns: pc.binary_length(_known(columns.column(name))).to_numpy()


def _list_lengths(name: str, feature: Feature) -> Read:
    def read(columns: pa.RecordBatch) -> Array:
        lengths = list_lengths(columns, name, feature)
        missing = columns.column(name)
        return lengths[missing.is_valid().to_numpy(False)] if missing.null_count else lengths

    return read


def _values(name: str, form: TensorForm) -> Read:
    wire = form.wire_columns(name)[0]

    def read(columns: pa.RecordBatch) -> Array:
        column = _known(columns.column(name))
        if wire.packed is not None:
            return unpacked(joined_bytes(column), wire.packed)
        flat = column if wire.length == 1 else column.flatten()
        values: Array = flat.to_numpy(zero_copy_only=False)
        return values.view(np.uint64) if form.dtype == "uint64" else values

    return read


Measure = Callable[[pa.Scalar], list[Any]]
"""Measures one sampled value of a feature of media."""


def _media_measure(feature: Feature) -> Measure | None:
    """What is measured of sampled images, sounds and boxes; files of sounds are not decoded."""
    if isinstance(feature, Mask):
        return _count_indices if feature.storage == "raw" else _count_indices_of_file
    if isinstance(feature, Image) and feature.storage == "raw":
        return lambda cell: _sum_channels(cell, feature)
    if isinstance(feature, Image) and feature.dtype == "uint8":
        return lambda cell: _sum_channels_of_file(cell, feature)
    if isinstance(feature, Audio) and feature.storage == "raw":
        return lambda cell: _sum_squares(cell, feature)
    return _areas if isinstance(feature, BoundingBoxes) else None


def _count_indices(cell: pa.Scalar) -> list[Any]:
    """Pairs of an index of a mask and its number of pixels."""
    return _numbers_of_each(np.frombuffer(cell.as_buffer(), np.uint8))


def _count_indices_of_file(cell: pa.Scalar) -> list[Any]:
    """The same of a PNG, as masks are stored: of 8 bits, and checked; none of a very large one."""
    import PIL.Image

    content = bytes(cell.as_buffer())
    if math.prod(struct.unpack(">II", content[16:24])) > _MAX_PIXELS:  # as Pillow refuses, too
        return []
    with PIL.Image.open(io.BytesIO(content), formats=("PNG",)) as file:
        return _numbers_of_each(np.asarray(file).ravel())


def _numbers_of_each(indices: Array) -> list[Any]:
    counts = np.bincount(indices)
    return [[int(index), int(counts[index])] for index in np.flatnonzero(counts)]


def _sum_channels(cell: pa.Scalar, image: Image) -> list[Any]:
    """The number of pixels of an image, and the sum of each channel and of its squares."""
    pixels = np.frombuffer(cell.as_buffer(), np.dtype(image.dtype).newbyteorder("<"))
    wide = pixels.reshape(-1, image.channels).astype(np.int64)
    return [len(wide), *wide.sum(axis=0).tolist(), *np.square(wide).sum(axis=0).tolist()]


def _sum_channels_of_file(cell: pa.Scalar, image: Image) -> list[Any]:
    """The same of an encoded image, and a one for the mode that it is stored in.

    A large JPEG is measured at 1/2, 1/4 or 1/8 of its size.
    """
    from ..media.small_image import small_image

    content, unknown = bytes(cell.as_buffer()), [0] * (1 + 2 * image.channels + len(MODES))
    try:
        small, header = small_image(
            content, mode=MODES[image.channels], side=_SIDE, max_pixels=_MAX_PIXELS
        )
    except Exception:  # whatever makes Pillow raise; the record has been checked as it is read
        return unknown
    if header.format == "gif":  # whose transparent pixels the reader draws in another colour
        return unknown
    num, pixels = header.height * header.width, np.asarray(small, np.int64)
    pixels = pixels.reshape(-1, image.channels)
    means = [*pixels.mean(axis=0), *np.square(pixels).mean(axis=0)]
    stored = [int(channels == header.channels) for channels in MODES]
    return [num, *(float(num * mean) for mean in means), *stored]


def _sum_squares(cell: pa.Scalar, sound: Audio) -> list[Any]:
    """The number of samples of a sound, and the sum of their squares."""
    if sound.dtype == "int16":
        samples = np.frombuffer(cell.as_buffer(), "<i2") / PCM
    else:
        samples = cell.values.to_numpy(zero_copy_only=False).astype(np.float64)
    return [len(samples), float(np.square(samples).sum())]


def _areas(cell: pa.Scalar) -> list[Any]:
    """The area of each box, as a share of its image."""
    boxes = cell.values.to_numpy(zero_copy_only=False).astype(np.float64).reshape(-1, 4)
    areas: list[float] = ((boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])).tolist()
    return areas


def _num_bytes(cell: pa.Scalar) -> int:
    num: int = cell.as_buffer().size if hasattr(cell, "as_buffer") else cell.values.nbytes
    return num


class ShardStatistics:
    """Measures one shard."""

    def __init__(self, measures: ExampleMeasures, *, num_shards: int) -> None:
        """Begins it.

        Args:
            measures: What to measure.
            num_shards: Shards of the split, which share its sample.
        """
        self._measures = measures
        hashed = {(name, "values") for name in measures.numbers}
        summed = not measures.num_sampled and len(measures.features) <= MAX_SAMPLED_FEATURES
        self.streams = {
            key: _Stream(hashed=key in hashed, summed=summed) for key in measures.streams
        }
        self._classes = {name: np.zeros(num, int) for name, num in measures.class_lists.items()}
        self._texts = {name: np.empty(0, np.uint64) for name in measures.texts}
        self._left = math.ceil(measures.num_sampled / num_shards)
        self._media_left = math.ceil(MEDIA_RECORDS / num_shards)
        self._media_bytes = dict.fromkeys(measures.media, _MEDIA_BYTES // num_shards)
        self._numbers: list[npt.NDArray[np.float64]] = []
        self._sampled_texts: dict[str, list[str | None]] = {name: [] for name in measures.texts}
        self._media: dict[str, list[Any]] = {name: [] for name in measures.media}

    def add(self, columns: pa.RecordBatch) -> None:
        """Takes the next examples of the shard.

        Args:
            columns: Their wire columns.
        """
        for key, read in self._measures.streams.items():
            values = read(columns)
            self.streams[key].add(values)
            if (counts := self._classes.get(key[0])) is not None and key[1] == "values":
                counts += np.bincount(values, minlength=len(counts))[: len(counts)]
        for name, known in self._texts.items():
            self._texts[name] = smallest(known, _hashes_of_texts(_known(columns.column(name))))
        if self._left and columns.num_rows:
            self._sample(columns.slice(0, self._left))
            self._left -= min(self._left, columns.num_rows)
        if self._media_left and columns.num_rows and self._measures.media:
            self._measure_media(columns.slice(0, self._media_left))
            self._media_left -= min(self._media_left, columns.num_rows)

    def _sample(self, rows: pa.RecordBatch) -> None:
        numbers = np.full((len(self._measures.sampled), rows.num_rows), np.nan)
        for place, (key, gaps) in enumerate(self._measures.sampled.items()):
            column = rows.column(gaps)
            known = slice(None)
            if column.null_count:
                known = column.is_valid().to_numpy(zero_copy_only=False)
            numbers[place, known] = self._measures.streams[key](rows)
        self._numbers.append(numbers)
        for name, texts in self._sampled_texts.items():
            cut = pc.binary_slice(rows.column(name), 0, _MAX_TEXT)
            texts += [None if text is None else _as_text(text) for text in cut.to_pylist()]

    def _measure_media(self, rows: pa.RecordBatch) -> None:
        for name, measure in self._measures.media.items():
            for cell in rows.column(name):
                is_measured = cell.is_valid and self._media_bytes[name] > 0
                if is_measured:
                    self._media_bytes[name] -= _num_bytes(cell)
                self._media[name].append(measure(cell) if is_measured else None)

    def to_json(self) -> dict[str, Any]:
        """The figures as plain JSON: see :class:`SplitStatistics`."""
        measured: dict[str, dict[str, Any]] = {}
        _Stream.finish(self.streams.values())
        for (name, aspect), stream in self.streams.items():
            facts = measured.setdefault(name, {})
            facts[aspect] = list(vars(stream.numbers).values())
            if stream.hashes is not None:
                facts["hashes"] = _encoded(stream.hashes)
        for name, hashes in self._texts.items():
            measured.setdefault(name, {})["hashes"] = _encoded(hashes)
        empty = np.empty((len(self._measures.sampled), 0))
        numbers = np.concatenate([empty, *self._numbers], axis=1)
        return {
            "features": measured,
            "num_sampled": numbers.shape[1],
            "numbers": _encoded(numbers),
            "texts": self._sampled_texts,
            "media": self._media,
            "classes": {
                name: [[int(index), int(counts[index])] for index in np.flatnonzero(counts)]
                for name, counts in self._classes.items()
            },
        }


def _encoded(values: Array) -> str:
    return base64.b64encode(np.ascontiguousarray(values).tobytes()).decode()


def _decoded(text: str, dtype: Any) -> Array:
    return np.frombuffer(base64.b64decode(text), dtype)


class RawStatistics:
    """Measures the records of a run as they were read, before any step."""

    def __init__(self, measures: ExampleMeasures) -> None:
        """Begins it.

        Args:
            measures: What to measure, without a sample.
        """
        self._measures = measures
        self._exact = ShardStatistics(measures, num_shards=1)
        self._num_records = 0
        self._num_missing = Counter[str]()
        self._texts: dict[str, Counter[str]] = {name: Counter() for name in measures.texts}

    def add(self, columns: pa.RecordBatch) -> None:
        """Takes the next records of the run.

        Args:
            columns: Their wire columns.
        """
        self._exact.add(columns)
        self._num_records += columns.num_rows
        for name, feature in self._measures.features.items():
            if is_optional(feature):
                self._num_missing[name] += columns.column(name).null_count
        for name in [*self._texts]:
            cut = pc.binary_slice(_known(columns.column(name)), 0, _MAX_TEXT)
            texts, counts = pc.value_counts(cut).flatten()
            shown = map(_as_text, texts.to_pylist())
            _count_texts(self._texts, name, dict(zip(shown, counts.to_pylist(), strict=True)))

    def to_json(self) -> dict[str, Any]:
        """The figures as plain JSON: see :class:`RawTotals`."""
        return {
            "num_records": self._num_records,
            "num_missing": self._num_missing,
            "exact": self._exact.to_json(),
            "sums": [
                [name, aspect, *map(str, stream.sums)]
                for (name, aspect), stream in self._exact.streams.items()
                if stream.sums is not None
            ],
            "texts": {name: list(counts.items()) for name, counts in self._texts.items()},
            "tallies": {
                name: stream.tally.to_json()
                for (name, _), stream in self._exact.streams.items()
                if stream.tally is not None
            },
        }


class RawTotals:
    """Figures of all records as they were read: those of the runs, put together in any order.

    Attributes:
        features: Features of the records.
        num_records: Number of records.
        num_missing: Number of records without a value, by feature.
        texts: Numbers of each text of the features that have at most 64 different ones.
        tallies: How often the numbers of each feature occur.
    """

    def __init__(self, features: Features) -> None:
        """Begins without runs."""
        measures = ExampleMeasures(features, sampled=False)
        self.features = features
        self._exact = SplitStatistics(measures)
        self.num_records = 0
        self.num_missing = Counter[str]()
        self.texts: dict[str, Counter[str]] = {name: Counter() for name in measures.texts}
        self.tallies = {name: Tally() for name in measures.numbers}
        self._sums: dict[tuple[str, str], _Sums] = {}

    def add(self, run: Mapping[str, Any]) -> None:
        """Adds the next run: what :meth:`RawStatistics.to_json` returned."""
        self._exact.add(run["exact"])
        for name, aspect, *sums in run["sums"]:
            one, square = map(Fraction, sums)
            before = self._sums.get((name, aspect), (Fraction(0), Fraction(0)))
            self._sums[name, aspect] = (before[0] + one, before[1] + square)
        self.num_records += run["num_records"]
        self.num_missing.update(run["num_missing"])
        for name, tally in self.tallies.items():
            tally.merge(Tally(*run["tallies"][name]))
        for name in [*self.texts]:
            more = run["texts"].get(name)
            _count_texts(self.texts, name, None if more is None else dict(more))

    def finish(self) -> SplitStatistics:
        """The figures that :class:`SplitStatistics` has without a sample, once all runs are in."""
        for key, numbers in self._exact.numbers.items():
            _set_exact(numbers, self._sums.get(key))
        return self._exact


def _set_exact(numbers: Numbers, sums: _Sums | None) -> None:
    """Replaces what depends on how records are divided into runs, in its last bits.

    Without sums, as of very wide tables, there are no mean and no deviation.
    """
    if not numbers.count or numbers.min is None or numbers.max is None:
        return
    numbers.min, numbers.max = numbers.min + 0, numbers.max + 0  # -0.0 is 0.0
    numbers.mean, numbers.squares = math.nan, math.inf
    if sums is not None:
        total, squares = sums
        numbers.mean = float(total / numbers.count)
        with contextlib.suppress(OverflowError):
            numbers.squares = float(squares - total * total / numbers.count)


def _count_texts(texts: dict[str, Counter[str]], name: str, more: Mapping[str, int] | None) -> None:
    """Counts more texts of a feature; forgets it once it has too many different ones."""
    if more is not None:
        texts[name].update(more)
    if more is None or len(texts[name]) > MAX_TALLIED:
        del texts[name]


def _as_text(value: bytes) -> str:
    return value.decode(errors="backslashreplace")


class SplitStatistics:
    """The figures of a split: those of its shards, put together in their order.

    Attributes:
        numbers: By feature and aspect, as :class:`ExampleMeasures` names them.
        hashes: The smallest hashes of a feature's values.
        texts: Single strings of the sampled records, of at most 100 bytes.
        media: What was measured of each sampled record's image, sound or boxes; None if nothing.
        classes: The numbers of each class in lists of classes, by its index.
        num_sampled: Number of sampled records.
    """

    def __init__(self, measures: ExampleMeasures) -> None:
        """Begins without shards."""
        self.classes: dict[str, Counter[int]] = {name: Counter() for name in measures.class_lists}
        self.numbers = {key: Numbers() for key in measures.streams}
        self.hashes = {n: np.empty(0, np.uint64) for n in (*measures.numbers, *measures.texts)}
        self.texts: dict[str, list[str | None]] = {name: [] for name in measures.texts}
        self.media: dict[str, list[Any]] = {name: [] for name in measures.media}
        self.num_sampled = 0
        self._keys = list(measures.sampled)
        self._tables: list[npt.NDArray[np.float64]] = [np.empty((len(self._keys), 0))]

    def add(self, shard: Mapping[str, Any]) -> None:
        """Adds the next shard: what :meth:`ShardStatistics.to_json` returned."""
        for (name, aspect), numbers in self.numbers.items():
            numbers.merge(Numbers(*shard["features"][name][aspect]))
        for name, known in self.hashes.items():
            hashes = _decoded(shard["features"][name]["hashes"], np.uint64)
            self.hashes[name] = smallest(known, hashes)
        for name, texts in self.texts.items():
            texts += shard["texts"][name]
        num = shard["num_sampled"]
        for name, media in self.media.items():
            found = shard["media"][name]
            media += found + [None] * (num - len(found))
        for name, counts in self.classes.items():
            counts.update(dict(shard["classes"][name]))
        self.num_sampled += num
        self._tables.append(_decoded(shard["numbers"], np.float64).reshape(len(self._keys), num))

    @functools.cached_property
    def sampled(self) -> dict[tuple[str, str], npt.NDArray[np.float64]]:
        """Numbers of the sampled records, by feature and aspect: float64[num_sampled].

        NaN where one is missing.
        """
        return dict(zip(self._keys, np.concatenate(self._tables, axis=1), strict=True))
