"""The TFRecord source: Examples, SequenceExamples and serialized tensors.

The file has no schema: features are inferred from the records. A record's id is ``path#offset``, in
uncompressed bytes. All intact records of a damaged file are kept; the damage becomes rejects that
give its location. The compression is detected from the content: GZIP, ZLIB or none.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple

import google_crc32c
import numpy as np
import pyarrow as pa

from ....schemas.blocks import Block, FileRange, RawBatch, Selection, SourceFile
from ....schemas.config import config_class
from ....schemas.errors import RECORD_ERROR, Reject, SchemaError
from ....schemas.features import RESERVED_PREFIX, Features, Image
from ....schemas.limits import Limits
from ....schemas.manifest import MAX_LABELS
from ....schemas.recipe import OpenSource
from ...examples.tfrecord import FRAME_BYTES, HEAD, HEAD_BYTES, masked
from ...in_parts import in_batches, in_parts
from ...rejects import reject_at, with_bytes
from ...runs.files import wire_schema
from ...storage.decompress import DamagedError, compression_of, decompressed
from ..arrow.rows import RowReader
from ..bundles import remembered
from ..folders.annotations.model import BadBoxes, InvalidAnnotationError
from ..table_files import (
    INFER_ALL_BYTES,
    check_columns,
    check_types,
    concat,
    no_rows,
    read_ranges,
    select_files,
    types_to_json,
    utf8_texts,
    with_class,
    with_types,
)
from .boxes import ENCODED, IMAGE, KINDS, ObjectReader, Objects, check_lists, is_of_boxes
from .columns import (
    IMAGE_SIDES,
    ColumnShape,
    adapted,
    decode,
    image_columns,
    kinds_of,
    shapes_of,
    shown,
)

SUFFIXES = (".tfrecord", ".tfrecords", ".tfrec", ".tfrecord.gz", ".tfrecords.gz", ".tfrec.gz")
"""Suffixes of TFRecord files, possibly followed by ``-00000-of-00010``."""

_SHARD = re.compile(r"(?:[._-]tfrec(?:ord)?s?|\.records?)-\d+-of-\d+(?:\.gz)?$")
_BARE_SHARD = re.compile(r"(?:^|/)(?:[^./]+-\d+-of-\d+|part-(?:[mr]-)?\d+)(?:\.gz)?$")
"""Names that may hold TFRecords: ``train-00000-of-01024``, and Spark's ``part-r-00000``."""
_RECORDS = (".record", ".records")
"""Suffixes that the tools of the Object Detection API use."""
_BATCH_BYTES = 4 << 20
_BATCH_RECORDS = 4_096
_SAMPLE_RECORDS = 10_000

_READ_BYTES = 4 << 20
_UNFIT = "not such a record"


@config_class
class TFRecords:
    """Records of TFRecord files, uncompressed or compressed with GZIP or ZLIB.

    Each feature of an Example becomes a feature: a scalar if every record has one value, a tensor
    if all have the same number of values, else a sequence. Frames of a SequenceExample become
    sequences of vectors. Bytes written by ``tf.io.serialize_tensor`` become the tensor, whether
    they are a feature or the entire record (which becomes the feature ``tensor``).

    Attributes:
        url: A file, a folder (its ``.tfrecord``, ``.tfrecords``, ``.tfrec`` and ``.record`` files
            and their shards, at any depth), a glob, or any fsspec URL.
        label: The feature to predict. Strings become a ClassLabel; numbers are kept.
        types: Overrides inferred types: ``{"age": "int32"}``, or a feature such as
            ``ss.Image(storage="encoded")`` for the bytes of image files, ``ss.Image(28, 28, 1)``
            for those of pixels (as for ``tf.io.decode_raw``), ``ss.ClassLabel(…)`` for the index of
            a class, ``ss.Tensor("float32", (28, 28))`` for a flat list.
        boxes: ``"object_detection"``: the records are those of the TensorFlow Object Detection API.
            ``image/encoded`` is the feature ``image``, and of the lists ``image/object/…`` are made
            ``boxes`` and, where records have them, ``box_labels``, ``box_crowd`` and
            ``box_difficult``. Classes are the texts that occur, sorted, or else the numbers.
        bad_boxes: What becomes of an image with boxes that have no area or exceed the image by
            more than a pixel; see ``ImageFolder``.
    """

    url: str
    label: str | None = None
    types: Mapping[str, Any] | None = None
    boxes: Literal["object_detection"] | None = None
    bad_boxes: BadBoxes = "reject"
    numbered = True
    side_urls: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        """Checks the types, and that bad boxes are boxes."""
        if self.bad_boxes != "reject" and self.boxes is None:
            raise ValueError("bad_boxes= is for boxes=")
        images = {name for name, wanted in (self.types or {}).items() if _is_image(wanted)}
        check_types({n: wanted for n, wanted in (self.types or {}).items() if n not in images})

    @property
    def media(self) -> bool:
        """Whether records contain images, in which case 1 % may be rejected by default."""
        return self.boxes is not None or any(map(_is_image, (self.types or {}).values()))

    def settings(self) -> dict[str, object]:
        """The settings that determine the records, as plain JSON, for the fingerprint."""
        boxes: dict[str, object] = {} if self.boxes is None else {"boxes": self.boxes}
        if self.bad_boxes != "reject":
            boxes["bad_boxes"] = self.bad_boxes
        return {"label": self.label, "types": types_to_json(self.types), **boxes}

    def select(self, files: Sequence[SourceFile]) -> Selection:
        """Selects TFRecord files, files with a glob's suffix, or a single file of any name."""
        shards = (
            match[0]
            for file in files
            for pattern in (_SHARD, _BARE_SHARD)
            if (match := pattern.search(file.path.lower())) is not None
        )
        return select_files(
            self.url, files, suffixes=(*SUFFIXES, *_RECORDS, *set(shards)), what="a .tfrecord file"
        )

    def cuts(self, file: SourceFile, opened: OpenSource, *, every: int) -> tuple[int, ...]:
        """Offsets of records at which to cut a large uncompressed file."""
        if file.problem or file.num_bytes <= every + every // 2:
            return ()
        try:
            offsets = frame_offsets(opened, file.path, num_bytes=file.num_bytes, every=every)
        except ValueError:
            return ()
        return tuple(offsets)

    def head_bytes(self, file: SourceFile, opened: OpenSource) -> int:
        """0: nothing precedes the records."""
        del file, opened
        return 0

    def infer(self, files: Sequence[SourceFile], opened: OpenSource) -> Mapping[str, Any]:
        """The features of all records up to 256 MiB, else of the first records of each file.

        Raises:
            SchemaError: if no record can be read, or a feature has values of several kinds.
            RecipeError: if ``label`` or ``types`` name a feature that does not exist.
        """
        readable = [file for file in files if not file.problem and file.num_bytes]
        everything = sum(file.num_bytes for file in readable) <= INFER_ALL_BYTES
        limit = None if everything else _SAMPLE_RECORDS
        shapes = _Shapes()
        num_records = 0
        for file in readable:
            look = functools.partial(self._look, file, opened, limit)
            facts = remembered(opened, file.sha256, f"columns {limit}", look)
            num_records += facts["num_records"]
            for name, value in facts["columns"].items():
                shapes.add(name, ColumnShape.from_json(value), path=file.path)
        if not num_records:
            raise SchemaError(
                f"TFRecords: none of {len(files):,} files has an intact record (first: "
                f"{files[0].path if files else None!r}), so features cannot be inferred. Copy or "
                "create them again, or correct the source in the recipe."
            )
        made: dict[str, Any] = {}
        if self.boxes is not None:
            check_lists(list(shapes.found))
            shapes.found = {n: s for n, s in shapes.found.items() if not is_of_boxes(n)}
            made = {IMAGE: Image(storage="encoded"), **self._infer_boxes(readable, opened)}
        check_columns("TFRecords", shapes.found, label=self.label, types=self.types)
        inferred = {name: s.feature(num_records) for name, s in sorted(shapes.found.items())}
        images = {n: w for n, w in (self.types or {}).items() if _is_image(w)}
        rest = {n: w for n, w in (self.types or {}).items() if n not in images}
        return with_class(
            with_types(inferred, rest) | images | made,
            label=self.label,
            types=self.types,
            texts_of=lambda label: (_texts_of(opened, file, label) for file in readable),
        )

    def read(
        self, block: Block, *, features: Features, opened: OpenSource, ordered: Sequence[int]
    ) -> Iterator[RawBatch]:
        """Reads the records that begin in a block's ranges; ids are ``path#offset``."""
        return read_ranges(
            block,
            ordered,
            features=features,
            read=lambda part: self._read_part(part, features, opened),
        )

    def _read_part(
        self, part: FileRange, features: Features, opened: OpenSource
    ) -> Iterator[RawBatch]:
        boxes = None if self.boxes is None else ObjectReader(features, bad_boxes=self.bad_boxes)
        reader = _ExampleReader(features, path=part.path, boxes=boxes)
        try:
            for frames in _batches(read_frames(opened, part.path, part.start, part.stop)):
                yield reader.read(frames)
        except ValueError as error:
            reject = reject_at(
                part.path,
                None,
                stage="read",
                reason="not a TFRecord file",
                message=f"{part.path}: {error}, expected TFRecord. Copy or create it again, or "
                "remove it from the source.",
                exception=type(error).__name__,
            )
            yield no_rows(features, reject)

    def _infer_boxes(self, files: Sequence[SourceFile], opened: OpenSource) -> dict[str, Any]:
        """The features of the boxes in all records."""
        objects = Objects()

        def look(file: SourceFile) -> list[list[Any]]:
            of_file = Objects()
            for _, batch in decoded_records(opened, file, None):
                of_file.add(batch)
            return of_file.to_json()

        for file in files:
            objects.add_json(
                remembered(opened, file.sha256, "boxes", functools.partial(look, file))
            )
        return objects.features(mends=self.bad_boxes != "reject")

    def _look(self, file: SourceFile, opened: OpenSource, limit: int | None) -> dict[str, Any]:
        """The shapes of a file's features, as JSON."""
        shapes = _Shapes()
        num_records = 0
        for num, batch in decoded_records(opened, file, limit):
            num_records += num
            for name, shape in shapes_of(batch).items():
                shapes.add(name, shape, path=file.path)
        columns = {name: shape.to_json() for name, shape in shapes.found.items()}
        return {"num_records": num_records, "columns": columns}


class _Shapes:
    """The common shape of each feature over all files so far."""

    def __init__(self) -> None:
        self.found: dict[str, ColumnShape] = {}
        self._paths: dict[str, str] = {}

    def add(self, name: str, shape: ColumnShape, *, path: str) -> None:
        """Adds the shape of a feature in a file, or in a part of it."""
        if not name or name.startswith(RESERVED_PREFIX):
            raise SchemaError(
                f"{path}: a record has a feature {name!r}; a name must not be empty or begin with "
                f"{RESERVED_PREFIX!r}. Write the file again."
            )
        known = self.found.get(name)
        if known is None or not known.kind:
            self._paths[name] = path
        if known is not None:
            shape = known.merge(shape, name=name, paths=(self._paths[name], path))
        self.found[name] = shape


class _ExampleReader:
    """Converts records of one file to batches of wire columns."""

    def __init__(self, features: Features, *, path: str, boxes: ObjectReader | None = None) -> None:
        self._path, self._boxes = path, boxes
        self._wire = wire_schema(features)
        of_boxes: Features = {} if boxes is None else boxes.features
        self._features = {n: f for n, f in features.items() if n not in of_boxes}
        self._images = {n: f for n, f in self._features.items() if _is_image(f)}
        self._values = {n: f for n, f in self._features.items() if n not in self._images}
        self._kinds = {name: kinds_of(feature) for name, feature in self._features.items()}
        self._names = {name: name for name in self._features}
        """Where the values of features are in the records."""
        if boxes is not None:
            self._names[IMAGE] = ENCODED
        self._decoded = {self._names[name]: kinds for name, kinds in self._kinds.items()}
        if of_boxes:
            self._decoded |= {**KINDS, ENCODED: ("string",)}

    def read(self, frames: Sequence[Frame]) -> RawBatch:
        """The records of some frames. Damaged and invalid ones become rejects."""
        rejects = [self._damaged(frame) for frame in frames if frame.problem]
        good = [frame for frame in frames if not frame.problem]
        empty = pa.RecordBatch.from_pylist([], schema=self._wire)
        parts = [RawBatch(ids=[], columns=empty)]
        for some, decoded in _decode_frames(good, self._decoded):
            if isinstance(decoded, pa.RecordBatch):
                parts.append(self._convert(some, decoded, rejects))
            else:
                why = f"not a tf.train.Example, SequenceExample or tensor ({decoded})"
                rejects.append(self._unfit(some[0], why, exception=type(decoded).__name__))
        return dataclasses.replace(concat(parts), rejects=tuple(rejects))

    def _convert(
        self, frames: Sequence[Frame], batch: pa.RecordBatch, rejects: list[Reject]
    ) -> RawBatch:
        columns: dict[str, pa.Array] = {}
        ready: dict[str, pa.Array] = {}
        problems: dict[int, str] = {}
        for name, feature in self._features.items():
            values = batch.column(self._names[name])
            column, unfit = adapted(values, feature, kinds=self._kinds[name])
            for row in np.flatnonzero(unfit).tolist():
                value = shown(values[row].as_py())
                problems.setdefault(row, f"feature {name!r} is {value}, expected {feature}")
            if name in self._images:
                made, unreadable_images = image_columns(name, column)
                ready |= made
                for row, problem in unreadable_images.items():
                    problems.setdefault(row, f"feature {name!r}: {problem}")
            else:
                columns[name] = column
        reasons: dict[int, str] = {}
        if self._boxes is not None and self._boxes.features:
            made, invalid = self._boxes.read(batch, self._sizes(batch, ready))
            ready |= made
            reasons = {row: InvalidAnnotationError.reason for row in invalid.keys() - problems}
            problems = {**invalid, **problems}
        rejects += [
            self._unfit(frames[row], problems[row], reason=reasons.get(row, _UNFIT))
            for row in sorted(problems)
        ]
        kept = np.array([row for row in range(len(frames)) if row not in problems], np.int64)
        arrow = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
        offsets = np.array([frame.offset for frame in frames], np.int64)
        if not columns:
            ids = [f"{self._path}#{offset}" for offset in offsets[kept].tolist()]
            rows = RawBatch(ids=ids, columns=arrow)
        else:
            reader = RowReader(arrow.schema, self._values, path=self._path, unit="byte")
            rows = reader.read(
                arrow.take(pa.array(kept)),
                offsets[kept],
                payload=lambda row: frames[int(kept[row])].content,
            )
        rejects += rows.rejects
        row_of = {f"{self._path}#{frame.offset}": row for row, frame in enumerate(frames)}
        chosen = pa.array([row_of[record_id] for record_id in rows.ids], pa.int64())
        arrays = [
            ready[name].take(chosen) if name in ready else rows.columns.column(name)
            for name in self._wire.names
        ]
        return RawBatch(ids=rows.ids, columns=pa.RecordBatch.from_arrays(arrays, schema=self._wire))

    def _sizes(
        self, batch: pa.RecordBatch, ready: Mapping[str, pa.Array]
    ) -> list[tuple[int, int, int]]:
        """The height, width and orientation of the image of each record, for its boxes."""
        if IMAGE not in self._images:
            encoded = Image(storage="encoded")
            column, _ = adapted(batch.column(ENCODED), encoded, kinds=kinds_of(encoded))
            ready, _ = image_columns(IMAGE, column)
        return list(
            zip(*(ready[f"{IMAGE}/{side}"].to_pylist() for side in IMAGE_SIDES), strict=True)
        )

    def _damaged(self, frame: Frame) -> Reject:
        lost = " Nothing after it can be read." if frame.last else ""
        reject = reject_at(
            self._path,
            frame.offset,
            stage="read",
            reason="damaged file" if frame.last else "damaged record",
            message=f"{self._path} byte {frame.offset}: {frame.problem}.{lost} Copy or create "
            "the file again, or raise max_rejects to do without what is lost.",
            exception="DamagedError",
        )
        return with_bytes(reject, frame.content) if frame.content else reject

    def _unfit(
        self, frame: Frame, why: str, *, reason: str = _UNFIT, exception: str = RECORD_ERROR
    ) -> Reject:
        reject = reject_at(
            self._path,
            frame.offset,
            stage="validate",
            reason=reason,
            message=f"{self._path} byte {frame.offset}: {why}. Fix the record, declare another "
            "type, or raise max_rejects to quarantine it.",
            exception=exception,
        )
        return with_bytes(reject, frame.content)


def _is_image(wanted: object) -> bool:
    return isinstance(wanted, Image) and wanted.storage == "encoded"


def _batches(frames: Iterator[Frame]) -> Iterator[list[Frame]]:
    return in_batches(
        frames, lambda it: len(it.content), max_size=_BATCH_BYTES, max_items=_BATCH_RECORDS
    )


def _decode_frames(
    frames: Sequence[Frame], kinds: Mapping[str, Sequence[str]] | None = None
) -> Iterator[tuple[Sequence[Frame], pa.RecordBatch | Exception]]:
    """Decodes intact records together, if that fails in halves; the error of a single one."""

    def decode_together(start: int, stop: int) -> pa.RecordBatch | Exception:
        try:
            return decode([frame.content for frame in frames[start:stop]], kinds)
        except (RuntimeError, pa.ArrowException) as error:
            return error

    for start, stop, decoded in in_parts(decode_together, len(frames)):
        yield frames[start:stop], decoded


def decoded_records(
    opened: OpenSource, file: SourceFile, limit: int | None
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The decoded records of a file, except damaged ones, and their number in each batch.

    A batch without columns has no length.
    """
    num_records = 0
    try:
        for frames in _batches(read_frames(opened, file.path, 0, file.num_bytes)):
            intact = [frame for frame in frames if not frame.problem]
            for some, decoded in _decode_frames(intact):
                if isinstance(decoded, pa.RecordBatch):
                    num_records += len(some)
                    yield len(some), decoded
            if limit is not None and num_records >= limit:
                return
    except ValueError:
        return


def _texts_of(opened: OpenSource, file: SourceFile, label: str) -> list[str] | None:
    """The distinct texts of a label; None if too many for a class."""

    def look() -> list[str] | None:
        texts: set[bytes] = set()
        for _, batch in decoded_records(opened, file, None):
            if label in batch.schema.names:
                texts.update(v for v in batch.column(label).flatten().unique().to_pylist() if v)
            if len(texts) > MAX_LABELS:
                return None
        return utf8_texts(texts)

    return remembered(opened, file.sha256, "classes", look)


class Frame(NamedTuple):
    """A record, or the problem at its offset."""

    offset: int
    content: bytes
    """The record; if damaged, the available part, or empty if its start is unknown."""
    problem: str = ""
    last: bool = False
    """Whether nothing after it can be read."""


def is_named(path: str) -> bool:
    """Whether the name of a file is that of TFRecords, and of nothing else."""
    lower = path.lower()
    return lower.endswith(SUFFIXES) or _SHARD.search(lower) is not None


def holds_frame(file: SourceFile, opened: OpenSource) -> bool:
    """Whether a file begins with a record."""
    try:
        first = next(read_frames(opened, file.path, 0, file.num_bytes), None)
    except ValueError:
        return False
    return first is not None and not first.problem


def compression(head: bytes) -> str:
    """The compression of a TFRecord file with this head: ``gzip``, ``zlib`` or ``none``.

    Raises:
        ValueError: if it is not a TFRecord file.
    """
    if compression_of(head) == "gzip":
        return "gzip"
    if len(head) >= HEAD_BYTES and _head_problem(head) == "":
        return "none"
    if len(head) >= 2 and head[0] & 15 == 8 and int.from_bytes(head[:2], "big") % 31 == 0:
        return "zlib"
    raise ValueError("it does not begin with a TFRecord frame header")


def read_frames(opened: OpenSource, path: str, start: int, stop: int) -> Iterator[Frame]:
    """The frames that begin in [start, stop), or all frames of a compressed file.

    After a record with a wrong checksum, or of more bytes than the limit, reading continues. A
    record whose length is unreliable, or that is cut off by the end of the file, is the last frame.

    Raises:
        ValueError: if it is not a TFRecord file.
    """
    kind = compression(opened.read(path, 0, HEAD_BYTES))
    if kind == "none":
        yield from _frames(_ranged(opened, path, start), start, stop, limits=opened.limits)
        return
    pieces = decompressed(
        lambda a, b: opened.read(path, a, b), kind, max_expansion=opened.limits.max_expansion
    )
    yield from _frames(pieces, 0, None, limits=opened.limits)


def frame_offsets(opened: OpenSource, path: str, *, num_bytes: int, every: int) -> list[int]:
    """Offsets of frames, about ``every`` bytes apart, up to the first damaged one.

    Raises:
        ValueError: if it is not a TFRecord file.
    """
    if compression(opened.read(path, 0, HEAD_BYTES)) != "none":
        return []
    offsets: list[int] = []
    at, window, window_start = 0, b"", 0
    while at + HEAD_BYTES <= num_bytes:
        if not window_start <= at <= window_start + len(window) - HEAD_BYTES:
            window, window_start = opened.read(path, at, at + _READ_BYTES), at
        head = window[at - window_start : at - window_start + HEAD_BYTES]
        if len(head) < HEAD_BYTES or _head_problem(head):
            break
        if at >= (offsets[-1] if offsets else 0) + every:
            offsets.append(at)
        at += HEAD.unpack(head)[0] + FRAME_BYTES
    return offsets


def _frames(
    pieces: Iterator[bytes], start: int, stop: int | None, *, limits: Limits
) -> Iterator[Frame]:
    held, at, offset = b"", 0, start

    def fill(num_bytes: int) -> bool:
        """Reads pieces until ``num_bytes`` are held."""
        nonlocal held, at
        parts, size = [held[at:]], len(held) - at
        while size < num_bytes:
            piece = next(pieces, b"")
            if not piece:
                break
            parts.append(piece)
            size += len(piece)
        held, at = b"".join(parts), 0
        return size >= num_bytes

    def skip(num_bytes: int) -> bool:
        """Passes over bytes, which are not held; False if there are fewer."""
        nonlocal held, at
        at += num_bytes
        while at > len(held) and (piece := next(pieces, b"")):
            held, at = piece, at - len(held)
        return at <= len(held)

    try:
        while stop is None or offset < stop:
            if len(held) - at < HEAD_BYTES and not fill(HEAD_BYTES):
                if held:
                    problem = f"truncated: the file has {len(held)} of {HEAD_BYTES} header bytes"
                    yield Frame(offset, b"", problem, True)
                return
            problem = _head_problem(held[at : at + HEAD_BYTES])
            if problem:
                yield Frame(offset, b"", problem, True)
                return
            length = HEAD.unpack_from(held, at)[0]
            size = length + FRAME_BYTES
            if length > limits.max_record_bytes:
                problem = (
                    f"a record claims {length:,} bytes, more than {limits.max_record_bytes:,} bytes"
                )
                is_whole = skip(size)
                yield Frame(offset, b"", problem, not is_whole)
                if not is_whole:
                    return
                offset += size
                continue
            if len(held) - at < size and not fill(size):
                problem = f"truncated: the file has {len(held):,} of its {size:,} bytes"
                yield Frame(offset, held[HEAD_BYTES:], problem, True)
                return
            content = held[at + HEAD_BYTES : at + HEAD_BYTES + length]
            stored = int.from_bytes(held[at + size - 4 : at + size], "little")
            if masked(google_crc32c.value(content)) == stored:
                yield Frame(offset, content)
            else:
                yield Frame(offset, content, "the checksum of the record does not match")
            at += size
            offset += size
    except DamagedError as error:
        yield Frame(offset, b"", str(error), True)


def _head_problem(head: bytes) -> str:
    _, checksum = HEAD.unpack(head[:HEAD_BYTES])
    if masked(google_crc32c.value(head[:8])) != checksum:
        return "the checksum of a record's length does not match"
    return ""


def _ranged(opened: OpenSource, path: str, start: int) -> Iterator[bytes]:
    while piece := opened.read(path, start, start + _READ_BYTES):
        start += len(piece)
        yield piece
