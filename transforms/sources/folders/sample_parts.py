"""Converts the parts of WebDataset samples to features, by suffix.

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

import dataclasses
import io
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, get_args

import numpy as np

from ....schemas.errors import SchemaError
from ....schemas.features import (
    Audio,
    ClassLabel,
    Dtype,
    Feature,
    Image,
    Scalar,
    Sequence,
    Tensor,
    Text,
)
from ...media.image_header import MAX_PIXELS
from ..arrow.media_rows import UnfitPartError, media_lists
from ..json.values import object_without_doubles
from ..python_values import Lists, flat_record, value_feature, wire_lists

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
        """Adds a sample. Unreadable parts are ignored."""
        self.num_samples += 1
        for name, kind, value in _values(parts):
            self.kinds[name] = kind
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
        UnfitPartError: if a part is missing, unreadable, or does not fit its feature.
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
        try:
            rows[name] = wire_lists(name, feature, value)
        except SchemaError as error:
            stage, reason = "validate", "missing part" if value is None else "unfit part"
            raise UnfitPartError(stage, reason, str(error)) from None
    return rows


def _label(value: bytes | None, feature: Feature) -> Any:
    if value is None or isinstance(feature, Text):
        return value
    if isinstance(feature, Scalar) and feature.dtype != "string":
        if not _INTEGER.fullmatch(value):
            raise UnfitPartError("read", "unfit part", f"cls is {value[:40]!r}, expected a number")
        return int(value)
    return value.strip()


def _values(parts: Mapping[str, bytes], *, checked: bool = False) -> Iterator[tuple[str, str, Any]]:
    """(name of the feature, kind, value) of all parts, except unreadable ones.

    Raises:
        UnfitPartError: if ``checked`` and a part is unreadable.
    """
    taken: dict[str, str] = {}
    for part, content in parts.items():
        kind, name = kind_of(part)
        if checked and name in taken:
            message = f"the parts {taken[name]!r} and {part!r} are both {name!r}"
            raise UnfitPartError("read", "two parts of one kind", message)
        taken[name] = part
        try:
            value = _READERS.get(kind, bytes)(content)
        except (ValueError, RecursionError, EOFError, OSError, MemoryError) as error:
            if checked:
                message = f"the part {part!r} cannot be read: {error}"
                raise UnfitPartError("read", f"no {part.rpartition('.')[2]}", message) from None
            continue
        if kind == "json":
            yield from ((f"{name}.{field}", kind, one) for field, one in value.items())
        else:
            yield name, kind, value


def _read_json(content: bytes) -> dict[str, Any]:
    found = object_without_doubles(content)
    if not isinstance(found, dict):
        raise ValueError(f"it is a {type(found).__name__}, expected an object")  # noqa: TRY004
    return flat_record(found)


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
    if ranks == [0]:
        return Scalar(dtypes[0], optional=optional)
    sizes = [{value.shape[axis] for value in values} for axis in range(ranks[0])]
    shape = tuple(min(size) if len(size) == 1 and min(size) else None for size in sizes)
    if optional and None not in shape[1:]:
        of = Tensor(dtypes[0], shape=shape[1:]) if shape[1:] else Scalar(dtypes[0])
        return Sequence(of, optional=True)
    return Tensor(dtypes[0], shape=shape)
