"""TIFF images: their headers, and their pixels as a PNG, which TensorFlow decodes.

A TIFF's directory is read here and checked before Pillow decodes anything: sizes, kinds of pixels,
and the places of the strips or tiles. Pillow gets a directory of the checked tags only, since
others could make it read gigabytes. Source: TIFF 6.0.
"""

from __future__ import annotations

import io
import struct
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .image_header import MAX_PIXELS, ImageHeader, UnreadableImageError, check_size, read_header

_ORDERS = {b"II*\0": "<", b"MM\0*": ">"}
_NEW_SUBFILE, _WIDTH, _HEIGHT, _BITS, _COMPRESSION, _PHOTOMETRIC = 254, 256, 257, 258, 259, 262
_FILL_ORDER, _STRIPS, _ORIENTATION, _SAMPLES, _ROWS, _STRIP_BYTES = 266, 273, 274, 277, 278, 279
_PLANES, _PREDICTOR, _COLOURS, _TILE_WIDTH, _TILE_HEIGHT, _TILES = 284, 317, 320, 322, 323, 324
_TILE_BYTES, _SUBFILES, _EXTRA, _SAMPLE_FORMAT = 325, 330, 338, 339
_KEPT = frozenset({
    _WIDTH, _HEIGHT, _BITS, _COMPRESSION, _PHOTOMETRIC, _STRIPS, _ORIENTATION, _SAMPLES, _ROWS,
    _STRIP_BYTES, _PREDICTOR, _COLOURS, _TILE_WIDTH, _TILE_HEIGHT, _TILES, _TILE_BYTES, _EXTRA,
})  # fmt: skip
_DTYPES = {1: "u1", 3: "u2", 4: "u4"}
"""Unsigned integers, by the types' numbers."""
_COMPRESSIONS = frozenset({1, 5, 8, 32773, 32946})
"""None, LZW, Deflate (two numbers) and PackBits, which lose nothing."""
_MAX_PIECES = 1 << 18
"""Of strips or tiles, each of which costs memory."""
_MODES: dict[tuple[int, tuple[int, ...], tuple[int, ...]], str] = {
    (1, (1,), ()): "1",
    (1, (8,), ()): "L",
    (1, (16,), ()): "I;16",
    (2, (8, 8, 8), ()): "RGB",
    (2, (8, 8, 8, 8), (2,)): "RGBA",
    (3, (8,), ()): "P",
}
"""Pillow's modes by photometric interpretation, bits of the samples, and extra samples."""
_PNG = b"\x89PNG\r\n\x1a\n"
_MARK = b"tEXtSource\0TIFF"
"""The first chunk after the header of a PNG made from a TIFF."""
_MARK_START = 37
_CHANNELS = {"P": 3, "RGB": 3, "RGBA": 4}
_EXPECTED = (
    "expected one uncompressed image, or one with LZW, Deflate or PackBits, of 1, 8 or 16 bits of "
    "grey (0 is black), 8 bits of RGB or RGBA (alpha not premultiplied), or a palette of 256 "
    "colours. Save it as such a TIFF or as a PNG"
)


def readable_image(data: bytes, *, max_pixels: int = MAX_PIXELS) -> tuple[bytes, ImageHeader]:
    """The bytes of an image in a format that TensorFlow decodes, and their header.

    A TIFF becomes a PNG of the same pixels, upright; other bytes are returned unchanged. A palette
    keeps its indices, and 16 bits are kept. The same bytes give the same PNG with one version of
    Pillow, which is a part of the fingerprint.

    Args:
        data: The bytes of an image file.
        max_pixels: Images with more are refused before they are decoded; TIFFs also from Pillow's
            limit on, :data:`~.image_header.MAX_PIXELS`.

    Raises:
        UnreadableImageError: as :func:`~.image_header.read_header` does.
    """
    if data[:4] in _ORDERS:
        data = _as_png(data, min(max_pixels, MAX_PIXELS))
    return data, read_header(data, max_pixels=max_pixels)


def is_converted(data: bytes) -> bool:
    """Whether an image's bytes are a PNG that :func:`readable_image` made from a TIFF."""
    return data.startswith(_MARK, _MARK_START)


def read_any_header(data: bytes) -> ImageHeader:
    """The header of an image file, including TIFF, from its first bytes if they suffice.

    Raises:
        UnreadableImageError: as :func:`~.image_header.read_header` does.
    """
    return _read_directory(data, MAX_PIXELS).header if data[:4] in _ORDERS else read_header(data)


def has_16_bits(data: bytes) -> bool:
    """Whether a PNG or TIFF has 16 bits for each sample, from its first bytes if they suffice.

    Raises:
        UnreadableImageError: as :func:`read_any_header` does for a TIFF.
    """
    if data[:4] in _ORDERS:
        return _read_directory(data, MAX_PIXELS).mode.startswith("I;16")
    return data.startswith(_PNG) and data[24:25] == b"\x10"


class _Directory(NamedTuple):
    """A checked directory."""

    order: str
    """``<`` or ``>``."""
    entries: dict[int, bytes]
    """The kept tags and their 12 bytes."""
    header: ImageHeader
    mode: str


def _read_directory(data: bytes, max_pixels: int) -> _Directory:
    try:
        order = _ORDERS[data[:4]]
        (start,) = struct.unpack_from(order + "I", data, 4)
        (num_entries,) = struct.unpack_from(order + "H", data, start)
        stop = start + 2 + 12 * num_entries
        (following,) = struct.unpack_from(order + "I", data, stop)
        entries: dict[int, bytes] = {}
        for at in range(start + 2, stop, 12):
            entries.setdefault(struct.unpack_from(order + "H", data, at)[0], data[at : at + 12])

        def number(tag: int, default: int) -> int:
            values = _values(data, order, entries.get(tag), [default])
            return int(values[0]) if len(values) else default

        if following or _SUBFILES in entries or number(_NEW_SUBFILE, 0):
            raise _unsupported("a TIFF of several images, such as pages or a preview")
        mode = _mode(data, order, entries)
        width, height = number(_WIDTH, 0), number(_HEIGHT, 0)
        orientation = number(_ORIENTATION, 1)
    except struct.error:
        raise _cut_short(data) from None
    orientation = orientation if 1 <= orientation <= 8 else 1
    if orientation >= 5:
        height, width = width, height
    header = ImageHeader("tiff", height, width, _CHANNELS.get(mode, 1), orientation)
    check_size(header, max_pixels)
    kept = {tag: entries[tag] for tag in sorted(_KEPT & entries.keys())}
    return _Directory(order, kept, header, mode)


def _mode(data: bytes, order: str, entries: dict[int, bytes]) -> str:
    """Pillow's mode of the pixels.

    Raises:
        UnreadableImageError: if they are of another kind.
    """

    def numbers(tag: int, *default: int) -> tuple[int, ...]:
        return tuple(_values(data, order, entries.get(tag), default)[:8].tolist())

    samples = numbers(_SAMPLES, 1)
    bits = numbers(_BITS, 1)
    if len(bits) == 1 and samples in ((3,), (4,)):
        # A single number is meant for all samples.
        bits *= samples[0]
    photometric, compression = numbers(_PHOTOMETRIC), numbers(_COMPRESSION, 1)
    extra, formats = numbers(_EXTRA), numbers(_SAMPLE_FORMAT, 1)
    predictor, planes, fill = numbers(_PREDICTOR, 1), numbers(_PLANES, 1), numbers(_FILL_ORDER, 1)
    mode = _MODES.get((photometric[0], bits, extra)) if len(photometric) == 1 else None
    is_usual = (
        samples == (len(bits),)
        and len(compression) == 1
        and compression[0] in _COMPRESSIONS
        and set(formats) == {1}
        and fill == (1,)
        and (len(bits) == 1 or planes == (1,))
        and predictor in ((1,), (2,))
    )
    if mode is None or not is_usual:
        raise _unsupported(
            f"a TIFF of photometric interpretation {_text(photometric)}, {_text(bits)} bits, "
            f"sample format {_text(formats)}, extra samples {_text(extra)}, compression "
            f"{_text(compression)}, predictor {_text(predictor)}, planar "
            f"configuration {_text(planes)}, fill order {_text(fill)}"
        )
    if mode == "P" and len(_values(data, order, entries.get(_COLOURS), ())) != 3 << 8:
        raise UnreadableImageError("damaged image", "the TIFF's palette does not have 256 colours")
    return mode


def _text(values: tuple[int, ...]) -> str:
    return "/".join(map(str, values)) or "none"


def _values(
    data: bytes, order: str, entry: bytes | None, default: npt.ArrayLike
) -> npt.NDArray[np.int64]:
    """The integers of a tag, int64[n]; ``default`` if it is missing.

    Raises:
        struct.error: if the file ends before them.
    """
    if entry is None:
        return np.asarray(default, np.int64)
    tag, kind, count, place = struct.unpack(order + "HHII", entry)
    if kind not in _DTYPES:
        raise UnreadableImageError(
            "damaged image", f"the TIFF's tag {tag} has values of type {kind}, expected integers"
        )
    if count > _MAX_PIECES:
        raise UnreadableImageError(
            "too costly to decode", f"the TIFF's tag {tag} has more than {_MAX_PIECES:,} values"
        )
    dtype = np.dtype(order + _DTYPES[kind])
    num_bytes = count * dtype.itemsize
    content = entry[8 : 8 + num_bytes] if num_bytes <= 4 else data[place : place + num_bytes]
    if len(content) < num_bytes:
        raise struct.error
    return np.frombuffer(content, dtype).astype(np.int64)


def _check_pieces(data: bytes, directory: _Directory, max_pixels: int) -> None:
    """Checks that the strips or tiles cover the image and are inside the file, once each.

    Raises:
        UnreadableImageError: where not.
    """

    def values(tag: int, *default: int) -> npt.NDArray[np.int64]:
        return _values(data, directory.order, directory.entries.get(tag), default)

    (width,), (height,) = values(_WIDTH)[:1], values(_HEIGHT)[:1]
    has_tiles = _TILES in directory.entries
    if has_tiles:
        starts, lengths = values(_TILES), values(_TILE_BYTES)
        across, down = values(_TILE_WIDTH, 0), values(_TILE_HEIGHT, 0)
    else:
        starts, lengths = values(_STRIPS), values(_STRIP_BYTES)
        across, down = values(_WIDTH), values(_ROWS, int(height))
    if len(across) != 1 or len(down) != 1 or min(across[0], down[0]) < 1:
        raise UnreadableImageError("damaged image", "the TIFF's strips or tiles have no size")
    num_pieces = -(-int(width) // int(across[0])) * -(-int(height) // int(down[0]))
    if has_tiles and num_pieces * int(across[0]) * int(down[0]) > max_pixels:
        raise UnreadableImageError(
            "too many pixels", f"the TIFF's tiles have more than {max_pixels:,} pixels"
        )
    if not num_pieces == len(starts) == len(lengths):
        raise UnreadableImageError(
            "damaged image",
            f"the TIFF has {len(starts)} strips or tiles of {len(lengths)} lengths, expected "
            f"{num_pieces}",
        )
    if (starts + lengths).max() > len(data):
        raise _cut_short(data)
    if lengths.sum() > len(data):
        raise UnreadableImageError("damaged image", "the TIFF's strips or tiles overlap")


def _as_png(data: bytes, max_pixels: int) -> bytes:
    """A TIFF as an upright PNG of the same pixels.

    Raises:
        UnreadableImageError: if it is damaged, or its pixels are of another kind.
    """
    import PIL.Image
    import PIL.ImageOps
    import PIL.PngImagePlugin

    directory = _read_directory(data, max_pixels)
    try:
        _check_pieces(data, directory, max_pixels)
    except struct.error:
        raise _cut_short(data) from None
    order, entries, header, mode = directory
    # A directory begins at an even place.
    start = len(data) + len(data) % 2
    parts = [data[:4], struct.pack(order + "I", start), data[8:].ljust(start - 8, b"\0")]
    parts += [struct.pack(order + "H", len(entries)), *entries.values(), bytes(4)]
    try:
        with PIL.Image.open(io.BytesIO(b"".join(parts)), formats=["TIFF"]) as opened:
            opened.load()
            image = PIL.ImageOps.exif_transpose(opened)
    except PIL.Image.DecompressionBombError as why:
        # The limit can be lowered for the process, in PIL.Image.MAX_IMAGE_PIXELS.
        raise UnreadableImageError("too many pixels", f"Pillow refuses the TIFF: {why}") from None
    except (OSError, ValueError, TypeError, SyntaxError, KeyError, IndexError, struct.error) as why:
        raise UnreadableImageError("damaged image", f"the TIFF does not decode: {why}") from None
    if image.mode == "I;16B":
        image = PIL.Image.fromarray(np.asarray(image).astype(np.uint16))
    if image.mode != mode or image.size != (header.width, header.height):
        raise UnreadableImageError(
            "damaged image",
            f"the TIFF decodes to {image.width}×{image.height} pixels of mode {image.mode}, "
            f"expected {header.width}×{header.height} of {mode}",
        )
    mark = PIL.PngImagePlugin.PngInfo()
    mark.add_text("Source", "TIFF")
    sink = io.BytesIO()
    # Fewer bits of a palette would lose samples.
    image.save(sink, "PNG", bits=8, compress_level=6, pnginfo=mark)
    return sink.getvalue()


def _cut_short(data: bytes) -> UnreadableImageError:
    return UnreadableImageError(
        "truncated image", f"the TIFF's pixels or tags end after its last byte, {len(data):,}"
    )


def _unsupported(found: str) -> UnreadableImageError:
    return UnreadableImageError("unsupported image format", f"{found}; {_EXPECTED}")
