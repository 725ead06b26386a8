"""The WebDataset source: consecutive files of a tar with the same key are one record.

The key of a member is its path up to the first dot of its file name; the rest is the name of the
part: ``a/0001.left.jpg`` is the part ``left.jpg`` of the sample ``a/0001``. Tars are read
sequentially. A part's suffix decides its feature:

====================================== ===================================================
part                                   feature
====================================== ===================================================
``jpg``, ``jpeg``, ``png``, ``webp``,  ``image``, an encoded Image
``gif``, ``bmp``
``wav``, ``flac``, ``mp3``, ``ogg``    ``audio``, an encoded Audio
``cls``                                ``label``: int64 if all are integers, else a ClassLabel
``txt``                                ``text``, a Text
``json``                               ``json.<field>``, with dots for nested objects; typed like
                                       side tables in JSON Lines
``npy``                                ``array``, a Tensor; dimensions that vary are None
anything else                          the part's name, its bytes as a string
``left.jpg`` …                         ``left.image`` …
====================================== ===================================================
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, NamedTuple, get_args

import numpy as np
import pydantic

from ....schemas.blocks import Block, RawBatch, Selection, SourceFile
from ....schemas.config import config_class
from ....schemas.errors import DataError, SchemaError
from ....schemas.features import (
    Audio,
    ClassLabel,
    Dtype,
    Feature,
    Features,
    Image,
    Scalar,
    Text,
)
from ....schemas.limits import too_many_columns
from ....schemas.recipe import OpenSource
from ...examples.row_values import UnfitError
from ...media.image_header import MAX_PIXELS
from ...rejects import reject_at, with_values
from ...storage import is_chained
from ...storage.decompress import (
    MAGIC_BYTES,
    DamagedError,
    Read,
    compression_of,
    decompressed,
)
from ...storage.opened_source import is_hidden, matches
from ...storage.tar import (
    BLOCK_BYTES,
    LINKS,
    Content,
    TarArchive,
    TarDamagedError,
    TarHeaders,
    TarMember,
    archive_scheme,
    content_of,
)
from ..json.values import object_without_doubles
from ..python_values import (
    Lists,
    PendingRows,
    array_feature,
    flat_record,
    media_lists,
    value_feature,
    wire_lists,
)
from ..table_files import select_where

_EMPTY_BYTES = 20 * BLOCK_BYTES
_END_BYTES = 1 << 20
"""Maximum zeros in an empty tar, and at the end of others. A broken copy leaves more."""
_PIECE_BYTES = 1 << 20

SAMPLED = 500
"""Maximum number of samples of a tar used to infer the types of parts, …"""
SAMPLED_TARS = 16
"""… and of evenly spaced tars."""
BATCH_SAMPLES = 256

_RANGE = re.compile(r"([0-9]+)\.\.([0-9]+)")
_BRACES = re.compile(r"\{([^{}]*)\}")
_MAX_NAMES = 100_000

_KINDS = {
    **dict.fromkeys(("jpg", "jpeg", "png", "webp", "gif", "bmp"), "image"),
    **dict.fromkeys(("wav", "flac", "mp3", "ogg"), "audio"),
    "cls": "label",
    "txt": "text",
    "json": "json",
    "npy": "array",
}
_INTEGER = re.compile(rb"\s*-?[0-9]{1,18}\s*")
_DTYPES = frozenset(get_args(Dtype))


@dataclasses.dataclass(kw_only=True)
class Sample:
    """The parts of a key."""

    offset: int
    """Offset of its first member in the decompressed tar."""
    key: str
    parts: dict[str, bytes] = dataclasses.field(default_factory=dict)
    num_bytes: int = 0
    """Total size of the parts."""
    problem: str = ""


def read_samples(opened: OpenSource, path: str, start: int, stop: int) -> Iterator[Sample]:
    """Reads the samples of bytes [start, stop) of a tar. A compressed tar is read entirely.

    Raises:
        DataError: if the tar is damaged: it is unknown how many samples it lacks.
        StorageError: if the file cannot be read.
    """
    stream = _Forward(opened, path, start, stop)
    archive: TarArchive | None = None
    sample: Sample | None = None
    for member in _members(stream, opened, path, start):
        named = None if member.kind == "folder" else split_name(member.name)
        if named is None:
            continue
        key, part = named
        if sample is None or sample.key != key:
            if sample is not None:
                yield sample
            sample = Sample(offset=start + member.offset, key=key)
        if member.kind in LINKS:
            archive = archive or _whole(opened, path)
            content = archive.linked(start + member.offset)
            _add(sample, part, member.name, content, archive.read, opened)
        else:
            _add(sample, part, member.name, content_of(member), stream.read, opened)
    if sample is not None:
        yield sample


def sample_offsets(opened: OpenSource, path: str, *, num_bytes: int, every: int) -> tuple[int, ...]:
    """Offsets of samples, ``every`` bytes apart; none if the tar is compressed, or has links.

    A link may lead anywhere, so what it leads to is found by reading the tar from its beginning.

    Raises:
        DataError: if the tar is damaged: it is unknown how many samples it lacks.
        StorageError: if the file cannot be read.
    """
    stream = _Forward(opened, path, 0, num_bytes)
    if stream.compression:
        return ()
    offsets, key = [0], ""
    for member in _members(stream, opened, path, 0):
        if member.kind in LINKS:
            return ()
        named = split_name(member.name)
        if named is None or named[0] == key:
            continue
        key = named[0]
        if member.offset - offsets[-1] >= every:
            offsets.append(member.offset)
    return tuple(offsets[1:])


def _members(stream: _Forward, opened: OpenSource, path: str, start: int) -> Iterator[TarMember]:
    """The members of a part of a tar that begins at ``start``; their offsets are in the part.

    Raises:
        DataError: if the tar is damaged.
    """
    headers = TarHeaders(stream.read)
    try:
        yield from headers
        problem = _behind(stream, headers.offset, opened, path)
    except TarDamagedError as error:
        problem = str(error)
    if problem := stream.damage or problem:
        raise DataError(
            f"{path}: the tar cannot be read from byte {start + headers.offset:,} on: {problem}. "
            "It is unknown how many samples it lacks: copy or create it again, or leave it out of "
            "shards=."
        )


def _whole(opened: OpenSource, path: str) -> TarArchive:
    """The tar as an archive, which finds what links lead to."""
    num_bytes = int(opened.filesystem.size(opened.full_path(path)) or 0)
    return TarArchive(
        functools.partial(opened.read, path),
        num_bytes=num_bytes,
        stamp="",
        name=path,
        max_expansion=opened.limits.max_expansion,
    )


def _add(
    sample: Sample, part: str, name: str, content: Content, read: Read, opened: OpenSource
) -> None:
    max_bytes, max_parts = opened.limits.max_record_bytes, opened.limits.max_columns
    if part in sample.parts:
        problem = f"it has two parts {part!r}"
    elif not part:
        problem = f"the member {name!r} has no suffix"
    elif content.problem:
        problem = f"its part {part!r} is a {content.problem}"
    elif sample.num_bytes + content.num_bytes > max_bytes:
        problem = f"with its part {part!r} it has more than {max_bytes:,} bytes"
    elif len(sample.parts) == max_parts:
        problem = f"it has more than {max_parts:,} parts"
    else:
        found = read(content.start, content.start + content.num_bytes)
        problem = "" if len(found) == content.num_bytes else f"its part {part!r} is truncated"
        sample.parts[part] = found
        sample.num_bytes += len(found)
    sample.problem = sample.problem or problem


def split_name(name: str) -> tuple[str, str] | None:
    """(key, part) of a member; None for hidden and metadata files."""
    folder, slash, bare = name.removeprefix("./").rpartition("/")
    if not bare or bare.startswith(".") or (bare.startswith("__") and bare.endswith("__")):
        return None
    stem, _, part = bare.partition(".")
    return folder + slash + stem, part.lower()


def _behind(stream: _Forward, offset: int, opened: OpenSource, path: str) -> str:
    """What is wrong after the last member. A tar ends with zeros; a range may end anywhere."""
    if stream.is_zero(offset):
        return stream.behind_end(offset)
    if stream.holds(offset):
        return "no valid header"
    more = not stream.compression and opened.read(path, stream.stop, stream.stop + 1)
    return "" if more else "it ends without an end-of-archive marker"


class _Forward:
    """Reads a file sequentially, with small steps back."""

    def __init__(self, opened: OpenSource, path: str, start: int, stop: int) -> None:
        self.stop = stop
        self.damage = ""
        self.compression = compression_of(opened.read(path, 0, MAGIC_BYTES)) if not start else ""
        self._starts_within = start > 0
        self._held_from, self._held = 0, b""
        if self.compression:
            self._pieces = decompressed(
                lambda first, last: opened.read(path, first, last),
                self.compression,
                max_expansion=opened.limits.max_expansion,
            )
        else:
            self._pieces = (
                opened.read(path, first, min(first + _PIECE_BYTES, stop))
                for first in range(start, stop, _PIECE_BYTES)
            )

    def read(self, start: int, stop: int) -> bytes:
        """Bytes [start, stop), fewer at the end. ``start`` is never far before the previous one."""
        self._fill(start, stop)
        first = start - self._held_from
        assert first >= 0
        return self._held[first : max(stop - self._held_from, first)]

    def is_zero(self, offset: int) -> bool:
        """Whether there is a block of zeros at the offset."""
        return self.read(offset, offset + BLOCK_BYTES) == bytes(BLOCK_BYTES)

    def behind_end(self, offset: int) -> str:
        """What is wrong after the zeros that mark the end, such as another tar."""
        num_bytes = 0
        while block := self.read(offset + num_bytes, offset + num_bytes + _PIECE_BYTES):
            if block.strip(b"\0"):
                return f"it has data after the end-of-archive marker at byte {offset:,}"
            num_bytes += len(block)
        if self.damage:
            return self.damage
        empty = not offset and not self._starts_within
        if num_bytes % BLOCK_BYTES or num_bytes > (_EMPTY_BYTES if empty else _END_BYTES):
            return f"the rest is {num_bytes:,} zero bytes"
        return ""

    def holds(self, offset: int) -> bool:
        """Whether there is a byte at the offset."""
        return bool(self.read(offset, offset + 1))

    def _fill(self, start: int, stop: int) -> None:
        """Reads up to ``stop``, at least a piece, and keeps the previous piece for steps back."""
        end = self._held_from + len(self._held)
        if stop <= end:
            return
        # At least a piece, because all held bytes are copied each time.
        stop = max(stop, end + _PIECE_BYTES)
        kept_from = start - _PIECE_BYTES
        drop = min(max(kept_from - self._held_from, 0), len(self._held))
        held = [self._held[drop:]]
        self._held_from += drop
        while end < stop:
            try:
                piece = next(self._pieces, b"")
            except DamagedError as error:
                self.damage, piece = str(error), b""
            if not piece:
                break
            end += len(piece)
            if end <= kept_from:
                # Skip the piece.
                held, self._held_from = [], end
            else:
                held.append(piece)
        self._held = b"".join(held)


@config_class
class WebDataset:
    """Tar files of samples: ``0001.jpg``, ``0001.cls`` and ``0001.json`` are one record.

    Files of a key must be consecutive in the tar. The module documents the feature of each
    part: images, sounds, texts, labels, JSON fields, arrays. A part that some samples lack is
    optional, but an image, a sound or a tensor is required, or the sample is rejected. A part that
    is a link is what it leads to. A damaged tar is refused.

    Attributes:
        shards: The tars: a file, a folder, a glob, or names with braces:
            ``"data-{000..009}.tar"``, ``"{a,b}.tar"``, of which none may be missing. Each
            compressed tar (``.tar.gz`` …), and one with links, is read sequentially, as one block.
            Other large tars are cut.
        max_pixels: Images of more pixels are rejected before they are decoded.
    """

    shards: str
    max_pixels: Annotated[int, pydantic.Field(gt=0)] = MAX_PIXELS

    media = True
    numbered = True
    label = "label"
    side_urls = ()

    def __post_init__(self) -> None:
        """Checks the braces."""
        _expand(self._tail)

    @property
    def url(self) -> str:
        """The folder or glob of the tars. The plain name of a tar would be opened as a folder."""
        head, tail, rest = self._parts
        tail = _BRACES.sub("*", tail)
        if archive_scheme(tail) == "tar" and not re.search(r"[*?\[]", tail):
            stem, _, suffix = tail.rpartition(".")
            tail = f"{stem}[.]{suffix}"
        return head + tail + rest

    @property
    def _parts(self) -> tuple[str, str, str]:
        """The prefix of the names, the names, and the rest of a chained URL.

        Names begin below the last folder without a wildcard or brace.
        """
        names, mark, rest = self.shards.partition("::")
        if not is_chained(self.shards):
            names, mark, rest = self.shards, "", ""
        wildcard = re.search(r"[*?\[{]", names)
        before = names[: wildcard.start()] if wildcard else names.rstrip("/")
        start = before.rfind("/") + 1
        return names[:start], names[start:], mark + rest

    @property
    def _tail(self) -> str:
        return self._parts[1]

    def settings(self) -> dict[str, object]:
        """The settings that determine the records, as plain JSON, for the fingerprint."""
        return {"max_pixels": self.max_pixels}

    def select(self, files: Sequence[SourceFile]) -> Selection:
        """Selects the tars.

        Raises:
            DataError: if a tar that braces name is missing.
        """
        wanted = _expand(self._tail) if "{" in self._tail else []
        globs = [tuple(name.split("/")) for name in wanted]
        named = set(wanted)

        def why_skipped(path: str) -> str:
            if is_hidden(path):
                return "hidden file"
            if archive_scheme(path) != "tar":
                return "not a tar"
            parts = tuple(path.split("/"))
            if wanted and path not in named and not any(matches(parts, glob) for glob in globs):
                return "not named by the braces"
            return ""

        selection = select_where(files, why_skipped)
        paths = {file.path for file in selection.files}
        missing = [name for name in wanted if name not in paths and not re.search(r"[*?\[]", name)]
        if missing:
            raise DataError(
                f"WebDataset: {self.shards} names {len(wanted):,} tars, but {len(missing):,} of "
                f"them are missing (first: {missing[0]!r}). Add them, or correct the braces."
            )
        return selection

    def cuts(self, file: SourceFile, opened: OpenSource, *, every: int) -> tuple[int, ...]:
        """Offsets of samples at which to cut a large tar."""
        if file.problem:
            return ()
        return sample_offsets(opened, file.path, num_bytes=file.num_bytes, every=every)

    def infer(self, files: Sequence[SourceFile], opened: OpenSource) -> Mapping[str, Any]:
        """The features of the parts, from the first samples of up to 16 tars.

        If labels are names, all tars are read for them.

        Raises:
            DataError: if there is no sample.
            SchemaError: if parts of a kind have no common type, or there are too many.
        """
        readable = [file for file in files if not file.problem]
        types = PartTypes()
        for file in readable[:: -(-len(readable) // SAMPLED_TARS) or 1]:
            for sample in itertools.islice(_samples(opened, file), SAMPLED):
                types.add(sample.parts)
        features = types.features()
        if not features:
            raise DataError(
                f"WebDataset: no samples in {self.shards}. Expected tars of files such as 0001.jpg "
                "and 0001.cls. For a tar of class folders, use ImageFolder."
            )
        if len(features) > opened.limits.max_columns:
            limit = opened.limits.max_columns
            raise SchemaError(too_many_columns(self.shards, len(features), limit))
        labels = [name for name, feature in features.items() if isinstance(feature, ClassLabel)]
        if labels:
            names = self._names(readable, opened, labels)
            for name in labels:
                optional = getattr(features[name], "optional", False)
                features[name] = ClassLabel(tuple(sorted(names[name])), optional=optional)
        return features

    def _names(
        self, files: Sequence[SourceFile], opened: OpenSource, labels: Sequence[str]
    ) -> dict[str, set[str]]:
        names: dict[str, set[str]] = {name: set() for name in labels}
        for file in files:
            for sample in _samples(opened, file):
                for part, content in sample.parts.items():
                    kind, name = kind_of(part)
                    if kind == "label" and name in names:
                        with contextlib.suppress(UnicodeDecodeError):
                            names[name].add(content.decode().strip())
        return names

    def read(
        self, block: Block, *, features: Features, opened: OpenSource, ordered: Sequence[int]
    ) -> Iterator[RawBatch]:
        """Reads the samples of a block's ranges; ids are ``path#offset``.

        Raises:
            DataError: if a tar is damaged: it is unknown how many samples it lacks.
            StorageError: if one cannot be read, or has changed since the inventory.
        """
        for index in ordered:
            part = block.ranges[index]
            path, pending = part.path, PendingRows(features, part.path, max_rows=BATCH_SAMPLES)
            if part.problem:
                pending.rejects.append(
                    reject_at(
                        path,
                        None,
                        stage="inventory",
                        reason=part.problem,
                        message=part.problem,
                        exception="OSError",
                    )
                )
                yield pending.batch()
                continue
            for sample in read_samples(opened, path, part.start, part.stop):
                _add_sample(pending, sample, features, path=path, max_pixels=self.max_pixels)
                if pending.is_full:
                    yield pending.batch()
                    pending = PendingRows(features, path, max_rows=BATCH_SAMPLES)
            if len(pending):
                yield pending.batch()


def _add_sample(
    pending: PendingRows, sample: Sample, features: Features, *, path: str, max_pixels: int
) -> None:
    """Adds a sample, or the reject of one that does not fit."""
    where = f"{path}: sample {sample.key!r}"
    if sample.problem:
        message = f"{where}: {sample.problem}"
        reject = reject_at(path, sample.offset, stage="read", reason="unfit part", message=message)
        pending.rejects.append(with_values(reject, sample.parts))
        return
    try:
        row = read_parts(sample.parts, features, max_pixels=max_pixels)
    except UnfitError as error:
        reject = reject_at(
            path,
            sample.offset,
            stage=error.stage,
            reason=error.reason,
            message=f"{where}: {error}",
            exception=type(error).__name__,
        )
        pending.rejects.append(with_values(reject, sample.parts))
        return
    pending.add(sample.offset, row, num_bytes=sum(map(len, sample.parts.values())))


def holds_samples(url: str, files: Sequence[SourceFile]) -> bool:
    """Whether a URL looks like WebDataset: only tars, or a tar of samples."""
    paths = [file.path for file in files if not is_hidden(file.path)]
    if paths and all(archive_scheme(path) == "tar" for path in paths):
        return True
    if archive_scheme(url) != "tar":
        return False
    named = [split_name(path) for path in paths if "/" not in path]
    known = Counter(key for key, part in filter(None, named) if kind_of(part)[0] != "bytes")
    return len(named) == len(paths) and 2 * sum(n > 1 for n in known.values()) > len(known) > 0


def _samples(opened: OpenSource, file: SourceFile) -> Iterator[Sample]:
    for found in read_samples(opened, file.path, 0, file.num_bytes):
        if not found.problem:
            yield found


def _expand(text: str) -> list[str]:
    """All names that braces expand to.

    Raises:
        ValueError: if the braces are invalid.

    >>> _expand("a-{08..10}.tar")
    ['a-08.tar', 'a-09.tar', 'a-10.tar']
    """
    braces = _BRACES.search(text)
    if braces is None:
        if "{" in text or "}" in text:
            raise ValueError(f"{text!r} has an unmatched brace")
        return [text]
    span = _RANGE.fullmatch(braces[1])
    if span is not None:
        first, last = span.groups()
        if int(last) - int(first) >= _MAX_NAMES or int(first) > int(last):
            raise ValueError(
                f"{{{braces[1]}}} in {text!r}: expected a range of up to {_MAX_NAMES:,}"
            )
        width = len(first) if first.startswith("0") or len(first) == len(last) else 0
        choices = [str(number).zfill(width) for number in range(int(first), int(last) + 1)]
    else:
        choices = braces[1].split(",")
    rest = _expand(text[braces.end() :])
    if len(choices) * len(rest) > _MAX_NAMES:
        raise ValueError(f"{text!r} expands to more than {_MAX_NAMES:,} names")
    return [text[: braces.start()] + choice + end for choice in choices for end in rest]


def kind_of(part: str) -> tuple[str, str]:
    """The kind of a part, and the name of its feature.

    >>> kind_of("left.jpg"), kind_of("cls"), kind_of("depth.raw")
    (('image', 'left.image'), ('label', 'label'), ('bytes', 'depth.raw'))
    """
    prefix, dot, suffix = part.rpartition(".")
    kind = _KINDS.get(suffix)
    return ("bytes", part) if kind is None else (kind, prefix + dot + kind)


@dataclasses.dataclass
class PartTypes:
    """The types of the parts of samples, as inferred so far."""

    num_samples: int = 0
    kinds: dict[str, str] = dataclasses.field(default_factory=dict)
    counts: dict[str, int] = dataclasses.field(default_factory=dict)
    values: dict[str, list[Any]] = dataclasses.field(default_factory=dict)

    def add(self, parts: Mapping[str, bytes]) -> None:
        """Adds a sample. Unreadable parts are ignored.

        Raises:
            SchemaError: if a name has different kinds.
        """
        self.num_samples += 1
        for name, kind, value in _values(parts):
            if (other := self.kinds.setdefault(name, kind)) != kind:
                raise SchemaError(
                    f"The feature {name!r} comes from parts of two kinds, {other} and {kind}. "
                    "Rename one of them: .cls, .npy, .txt, images and sounds are stored as label, "
                    "array, text, image and audio, any other part under its own name."
                )
            self.counts[name] = self.counts.get(name, 0) + 1
            self.values.setdefault(name, []).append(_type_of(kind, value))

    def features(self) -> dict[str, Feature]:
        """The features of the parts.

        Raises:
            SchemaError: if the values of a part have no common type.
        """
        return {
            name: self._feature(name, kind, optional=self.counts[name] < self.num_samples)
            for name, kind in self.kinds.items()
            # A field that is always null has no type.
            if any(value is not None for value in self.values[name])
        }

    def _feature(self, name: str, kind: str, *, optional: bool) -> Feature:
        values = self.values[name]
        if kind == "image":
            return Image(storage="encoded")
        if kind == "audio":
            return Audio(storage="encoded")
        if kind == "text":
            return Text(optional=optional)
        if kind == "label":
            texts = sorted({value.decode() for value in values})
            if all(_INTEGER.fullmatch(value) for value in values):
                return Scalar("int64", optional=optional)
            return ClassLabel(tuple(texts), optional=optional)
        if kind == "array":
            return _array_feature(name, values, optional=optional)
        if kind == "json":
            present = [value for value in values if value is not None]
            missing = optional or len(present) < len(values)
            return value_feature(
                name,
                present,
                optional=missing,
                where="The samples: ",
                remedy="Convert it in the samples, or leave it out.",
            )
        return Scalar("string", optional=optional)


def read_parts(
    parts: Mapping[str, bytes], features: Mapping[str, Feature], *, max_pixels: int = MAX_PIXELS
) -> dict[str, Lists]:
    """The stored lists of a sample's features, by feature.

    Raises:
        UnfitError: if a part is missing, unreadable, or does not fit its feature.
    """
    found = {name: (kind, value) for name, kind, value in _values(parts, checked=True)}
    rows: dict[str, Lists] = {}
    for name, feature in features.items():
        kind, value = found.get(name, ("", None))
        if isinstance(feature, Image | Audio):
            rows[name] = media_lists(name, feature, value, max_pixels=max_pixels)
            continue
        if kind == "label":
            value = _label(value, feature)
        rows[name] = wire_lists(name, feature, value)
    return rows


def _label(value: bytes | None, feature: Feature) -> Any:
    if value is None or isinstance(feature, Text):
        return value
    if isinstance(feature, Scalar) and feature.dtype != "string":
        if not _INTEGER.fullmatch(value):
            raise UnfitError(f"cls is {value[:40]!r}, expected a number")
        return int(value)
    return value.strip()


def _values(parts: Mapping[str, bytes], *, checked: bool = False) -> Iterator[tuple[str, str, Any]]:
    """(name of the feature, kind, value) of all parts, except unreadable ones.

    Raises:
        UnfitError: if ``checked`` and a part is unreadable.
    """
    taken: dict[str, str] = {}
    for part, content in parts.items():
        kind, name = kind_of(part)
        if checked and name in taken:
            message = f"the parts {taken[name]!r} and {part!r} are both {name!r}"
            raise UnfitError(message, "two parts of one kind", stage="read")
        taken[name] = part
        try:
            value = _READERS.get(kind, bytes)(content)
        except (ValueError, RecursionError, EOFError, OSError, MemoryError) as error:
            if checked:
                message = f"the part {part!r} cannot be read: {error}"
                suffix = part.rpartition(".")[2]
                raise UnfitError(message, f"no {suffix}", stage="read") from None
            continue
        if kind == "json":
            yield from ((f"{name}.{field}", kind, item) for field, item in value.items())
        else:
            yield name, kind, value


def _read_json(content: bytes) -> dict[str, Any]:
    value = object_without_doubles(content)
    if not isinstance(value, dict):
        raise ValueError(f"it is a {type(value).__name__}, expected an object")  # noqa: TRY004
    return flat_record(value)


def _read_array(content: bytes) -> Any:
    array = np.load(io.BytesIO(content), allow_pickle=False)
    if not isinstance(array, np.ndarray):
        raise ValueError("it is an archive of arrays, expected one array")  # noqa: TRY004
    if array.dtype.name not in _DTYPES:
        raise ValueError(f"its dtype is {array.dtype}, which an Example cannot store")
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _read_label(content: bytes) -> bytes:
    content.decode()
    return content.strip()


_READERS: dict[str, Callable[[bytes], Any]] = {
    "json": _read_json,
    "array": _read_array,
    "label": _read_label,
    "text": bytes.decode,
}


class _ArrayType(NamedTuple):
    dtype: Dtype
    shape: tuple[int, ...]


def _type_of(kind: str, value: Any) -> Any:
    """The part of a value that determines its feature, so that images need not be kept."""
    if kind == "array":
        dtype: Dtype = value.dtype.name
        return _ArrayType(dtype, value.shape)
    return value if kind in ("json", "label") else kind


def _array_feature(name: str, values: list[_ArrayType], *, optional: bool) -> Feature:
    dtypes: list[Dtype] = sorted({value.dtype for value in values})
    ranks = sorted({len(value.shape) for value in values})
    if len(dtypes) > 1 or len(ranks) > 1:
        raise SchemaError(
            f"The arrays {name!r} have the dtypes {', '.join(dtypes)} and "
            f"{', '.join(map(str, ranks))} dimensions; expected one of each. Give the other arrays "
            "another suffix."
        )
    return array_feature(dtypes[0], [value.shape for value in values], optional=optional)
