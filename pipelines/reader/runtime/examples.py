"""Parses ``tf.train.Example`` without TensorFlow: from the bytes of one example to its values."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from .kinds import PIXELS, is_clip

_Spans = tuple[int, list[tuple[int, int]], bool]
"""A list's tag, the spans of its items, and whether these bytes may differ between examples."""
_NO_SPANS: _Spans = (0, [], True)
_MAX_LAYOUTS = 1_000
"""Maximum number of example lengths for which spans are cached …"""
_MAX_SPANS = 100
"""… if an example has fewer spans than this."""
_ITEMS = {0x0A: (0x0A,), 0x12: (0x0A, 0x0D), 0x1A: (0x0A, 0x08)}
"""For each kind of list (bytes, float32, int64) the tags of its items: packed, and single."""
_AS_STORED = {"string": bytes, "float32": np.float32, "int64": np.int64}
"""Types of scalars that need no conversion."""


class Parser:
    """Parses a serialized ``tf.train.Example`` into NumPy values."""

    def __init__(
        self,
        features: dict[str, dict[str, Any]],
        *,
        sides: dict[str, list[str]],
        decode: Callable[[bytes, int], Any] | None,
    ) -> None:
        self._features, self._sides, self._decode = features, sides, decode
        names = [
            name
            for feature in self._features
            for name in (feature, f"{feature}/shape", *sides.get(feature, ()))
        ]
        self._wanted = {name.encode(): name for name in names}
        self.layouts: dict[int, tuple[dict[str, _Spans], list[tuple[int, int, bytes]]]] = {}

    def __call__(self, serialized: bytes) -> dict[str, Any]:
        """The values of one record by name, with masks, rates and orientations.

        Raises:
            ValueError: if they do not match ``FEATURES``.
            IndexError: if the message is truncated.
        """
        lists = self.lists_of(serialized)
        values: dict[str, Any] = {}
        for name, feature in self._features.items():
            for part in (f"{name}/rate", f"{name}/orientation"):
                if part in self._sides.get(name, ()):
                    values[part] = _one(part, lists)
            if feature["kind"] in PIXELS:
                values[name] = self._image(name, feature, lists)
                continue
            try:
                values[name] = _tensor(feature, lists.get(name), lists.get(f"{name}/shape"))
            except ValueError as error:
                raise ValueError(f"feature {name!r}: {error}") from None
            if is_clip(feature) and self._decode is not None:
                values[name] = [self._decode(clip, feature["channels"]) for clip in values[name]]
            if "present" in feature:
                values[feature["present"]] = np.bool_(name in lists)
        return values

    def lists_of(self, serialized: bytes) -> dict[str, Any]:
        """The lists of an Example by name: bytes, or an array of int64 or float32."""
        spans, between = self.layouts.get(len(serialized), ({}, [(0, 0, b"?")]))
        for start, stop, content in between:
            if serialized[start:stop] != content:
                spans = self._spans(serialized)
                break
        return {
            name: _list(tag, [serialized[start:stop] for start, stop in items])
            for name, (tag, items, _) in spans.items()
        }

    def _spans(self, serialized: bytes) -> dict[str, _Spans]:
        """Finds where the items of each list are, and caches it by the example's length.

        Another example of the same length, with the same bytes between the items, has its items at
        the same places.
        """
        by_name: dict[bytes, _Spans] = {}
        for tag, start, stop in _fields(serialized, 0, len(serialized)):
            for entry, first, last in _fields(serialized, start, stop) if tag == 0x0A else ():
                name, spans = b"", _NO_SPANS
                for part, begin, end in _fields(serialized, first, last) if entry == 0x0A else ():
                    if part == 0x0A:
                        name = serialized[begin:end]
                    elif part == 0x12:
                        spans = _items(serialized, begin, end)
                by_name[name] = spans
        wanted = {
            self._wanted[name]: spans
            for name, spans in by_name.items()
            if name in self._wanted and spans != _NO_SPANS
        }
        free = sorted(span for _, items, free in by_name.values() if free for span in items)
        if len(free) < _MAX_SPANS and len(self.layouts) < _MAX_LAYOUTS:
            starts = [0, *(stop for _, stop in free)]
            stops = [*(start for start, _ in free), len(serialized)]
            between = [(a, b, serialized[a:b]) for a, b in zip(starts, stops, strict=True)]
            self.layouts[len(serialized)] = (wanted, between)
        return wanted

    def _image(self, name: str, feature: dict[str, Any], lists: dict[str, Any]) -> Any:
        content, size = _one(name, lists), (feature["height"], feature["width"])
        if feature["storage"] == "encoded":
            if feature.get("dtype") == "uint16" and self._decode is decode_image:
                raise ValueError(
                    f"{name!r} has 16 bits, of which Pillow keeps 8. Pass another decode=, or "
                    "store pixels (ss.images.decode in the recipe)."
                )
            return content if self._decode is None else self._decode(content, feature["channels"])
        if None in size:
            size = (int(_one(f"{name}/height", lists)), int(_one(f"{name}/width", lists)))
        shape = (*size, feature["channels"])
        dtype = np.dtype(feature.get("dtype", "uint8"))
        if len(content) != math.prod(shape) * dtype.itemsize:
            raise ValueError(f"{name!r} has {len(content):,} bytes, expected pixels {shape}")
        return np.frombuffer(content, dtype.newbyteorder("<")).astype(dtype).reshape(shape)


def _one(name: str, lists: dict[str, Any]) -> Any:
    if len(lists.get(name, ())) != 1:
        raise ValueError(f"{name!r} has {len(lists.get(name, ()))} values, expected 1")
    return lists[name][0]


def _tensor(feature: dict[str, Any], values: Any, sizes: Any) -> Any:
    """One feature's value, from the list in which it is stored (None if there is none)."""
    shape, dtype = feature.get("shape", []), feature["dtype"]
    missing = values is None or len(values) == 0
    if not (missing or shape) and type(values[0]) is _AS_STORED.get(dtype) and len(values) == 1:
        return values[0]
    if missing and "default" in feature:
        default = feature["default"]
        if dtype == "string":
            return default if isinstance(default, bytes) else default.encode()
        return np.float32(default) if dtype == "bfloat16" else np.dtype(dtype).type(default)
    if missing and None not in shape:
        raise ValueError("has no value")
    if missing:
        values = [b""] if feature.get("packed") else [] if dtype == "string" else np.empty(0)
    if isinstance(values, list) != (bool(feature.get("packed")) or dtype == "string"):
        raise ValueError(f"is stored as {type(values).__name__}, expected {dtype}")
    if feature.get("packed"):
        stored = np.dtype("uint16" if dtype == "bfloat16" else dtype).newbyteorder("<")
        values = np.frombuffer(values[0], stored)
    if dtype == "string":
        flat = np.empty(len(values), object)
        flat[:] = values
    elif dtype == "bfloat16":
        flat = values if values.dtype == np.float32 else values.astype(np.uint32) << 16
        flat = flat.view(np.float32) if flat.dtype == np.uint32 else flat.astype(np.float32)
    elif feature["kind"] == "audio" and dtype == "int16":
        flat = values.astype(np.float32) / 32_768
    else:
        flat = values.astype(dtype)
    dims = list(shape)
    if shape.count(None) > 1:
        dims = [] if sizes is None else [int(size) for size in sizes]
    elif None in shape:
        dims[shape.index(None)] = flat.size // math.prod(dim for dim in shape if dim)
    if len(dims) != len(shape) or math.prod(dims) != flat.size:
        raise ValueError(f"has {flat.size} values and sizes {dims}, expected shape {shape}")
    return flat.reshape(dims) if shape else flat[0]


def _items(data: bytes, start: int, stop: int) -> _Spans:
    """Which list a Feature has, and the spans of its items: one if packed, else one for each."""
    spans = _NO_SPANS
    for tag, begin, end in _fields(data, start, stop):
        if kinds := _ITEMS.get(tag):
            items = [field for field in _fields(data, begin, end) if field[0] in kinds]
            # An unpacked varint ends where its own bytes say, so its bytes must be compared.
            free = all(kind != 0x08 for kind, _, _ in items)
            spans = (tag, [(a, b) for _, a, b in items], free)
    return spans


def _list(tag: int, items: list[bytes]) -> Any:
    """The values: bytes, or an array of float32 or int64."""
    if tag == 0x1A:
        return _varints(b"".join(items))
    return np.frombuffer(b"".join(items), "<f4") if tag == 0x12 else items


def _varints(content: bytes) -> npt.NDArray[np.int64]:
    """Decodes protobuf varints."""
    if len(content) <= 10:  # faster in plain Python
        numbers, start = [], 0
        while start < len(content):
            number, start = _varint(content, start)
            numbers.append(number & 0xFFFFFFFFFFFFFFFF)
        return np.array(numbers, np.uint64).view(np.int64)
    digits = np.frombuffer(content, np.uint8)
    last = digits < 128
    if last.all():
        return digits.astype(np.int64)
    if not last[-1]:
        raise ValueError("a number is truncated")
    ends = np.flatnonzero(last)
    starts = np.concatenate([[0], ends[:-1] + 1])
    places = np.arange(len(digits)) - np.repeat(starts, ends - starts + 1)
    if places.max() > 9:
        raise ValueError("a number has more than 10 bytes")
    parts = (digits & 127).astype(np.uint64) << (7 * places).astype(np.uint64)
    return np.add.reduceat(parts, starts).view(np.int64)


def _fields(data: bytes, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """The fields of a protobuf message: (tag, start of the value, end of the value)."""
    while start < stop:
        tag, start = (data[start], start + 1) if data[start] < 128 else _varint(data, start)
        kind = tag & 7
        if kind == 2:
            size, start = (data[start], start + 1) if data[start] < 128 else _varint(data, start)
            end = start + size
        elif kind == 0:
            _, end = _varint(data, start)
        elif kind in (1, 5):
            end = start + (8 if kind == 1 else 4)
        else:
            raise ValueError(f"invalid protobuf wire type {kind} at byte {start}")
        if end > stop:
            raise ValueError(f"a field at byte {start} ends at {end}, its message at {stop}")
        yield tag, start, end
        start = end


def _varint(data: bytes, start: int) -> tuple[int, int]:
    """Decodes one varint; returns it and the position after it."""
    digit = data[start]
    value, shift, start = digit & 127, 7, start + 1
    while digit > 127:
        digit = data[start]
        value, shift, start = value | (digit & 127) << shift, shift + 7, start + 1
    return value, start


def decode_image(content: bytes, channels: int) -> npt.NDArray[np.uint8]:
    """Decodes an image file by Pillow: ``uint8[height, width, channels]``, upright as per EXIF."""
    from PIL import Image, ImageOps  # type: ignore[import-not-found, unused-ignore]

    mode = {1: "L", 3: "RGB", 4: "RGBA"}[channels]
    with Image.open(io.BytesIO(content)) as image:
        if channels == 1:
            image.draft("L", None)  # use the luminance that a JPEG stores
        upright = ImageOps.exif_transpose(image)
        if upright.mode.startswith("I"):  # 16 bits, which Pillow would clip: keep the upper 8
            deep = np.array(upright)
            alpha = np.uint8(255) * (deep != image.info.get("transparency", -1))
            upright = Image.fromarray((deep >> 8).astype(np.uint8))
            upright.putalpha(Image.fromarray(alpha))
        if image.format == "GIF":  # its transparent pixels are black, as TensorFlow reads them
            black = Image.new("RGBA", upright.size, "black")
            upright = Image.alpha_composite(black, upright.convert("RGBA"))
        pixels = np.array(upright.convert(mode), np.uint8)
    return pixels.reshape(*pixels.shape[:2], channels)
