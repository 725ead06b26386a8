"""Confirms that stored images decode, without TensorFlow.

The graph of the steps, whose decoders are the reader's, judges all that is not confirmed here, and
finds the reasons of rejects. So nothing that the reader refuses may be confirmed; the reverse costs
only time. JPEGs are decoded at 1/8 of their size, which reads the entire scan; PNGs are inflated;
WebPs are decoded by the library that TensorFlow uses too. Other formats are left to the graph.
"""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Collection, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from .image_header import MAX_PIXELS, UnreadableImageError, read_header

_SAMPLES = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
"""Samples of a PNG's pixel, by its colour type."""
_PALETTE = 3
_PLAIN = frozenset(
    (b"cHRM", b"eXIf", b"gAMA", b"iCCP", b"pHYs", b"sBIT", b"sRGB", b"tEXt", b"tIME", b"tRNS")
)
"""Ancillary chunks of a PNG, about which libpng only warns."""
_MAX_FILTER = 4
_MAX_INFLATED_BYTES = 1 << 28


def confirmed(
    columns: pa.RecordBatch, names: Sequence[str], clips: Collection[str] = ()
) -> npt.NDArray[np.bool_]:
    """Which records have only images that decode to their stated sizes: ``bool[n]``.

    Args:
        columns: Wire columns, including the images' side columns.
        names: The encoded images of a record of dtype uint8, and its clips.
        clips: Those of the names that are clips.
    """
    sure = np.ones(columns.num_rows, np.bool_)
    for name in names:
        if name in clips:
            sure &= np.fromiter(map(_clip, columns.column(name)), np.bool_, len(sure))
        else:
            sure &= _images(columns, name)
    return sure


def _images(columns: pa.RecordBatch, name: str) -> npt.NDArray[np.bool_]:
    images = columns.column(name)
    height, width, orientation = (
        columns.column(f"{name}/{part}").fill_null(0).to_numpy()
        for part in ("height", "width", "orientation")
    )
    turned = orientation >= 5
    stated = zip(np.where(turned, width, height), np.where(turned, height, width), strict=True)
    both = zip(images, stated, strict=True)
    sure = (image.is_valid and _decodes(image, size) for image, size in both)
    return np.fromiter(sure, np.bool_, len(images))


def _clip(clip: pa.LargeListScalar) -> bool:
    """Whether all frames decode, to one size, and are upright."""
    if not clip.is_valid or clip.values.null_count:
        return False
    try:
        headers = [read_header(frame.as_py()) for frame in clip.values]
    except UnreadableImageError:
        return False
    shapes = {(header.height, header.width, header.orientation) for header in headers}
    return len(shapes) <= 1 and all(
        header.orientation == 1 and _decodes(frame, (header.height, header.width))
        for frame, header in zip(clip.values, headers, strict=True)
    )


def _decodes(image: pa.LargeBinaryScalar, size: tuple[int, int]) -> bool:
    """Whether an encoded image decodes to a height and width, before its EXIF orientation."""
    data = memoryview(image.as_buffer()).cast("B")
    head = bytes(data[:8])
    if head[:3] == b"\xff\xd8\xff":
        return _jpeg_decodes(data, size)
    if head == b"\x89PNG\r\n\x1a\n":
        return _png_decodes(data, size)
    return head[:4] == b"RIFF" and _webp_decodes(data, size)


def _jpeg_decodes(data: memoryview, size: tuple[int, int]) -> bool:
    """Decodes at 1/8 of the size: the entire scan, one pixel per block. Warnings are errors."""
    import simplejpeg  # type: ignore[import-untyped, unused-ignore]

    try:
        small = simplejpeg.decode_jpeg(
            data, "GRAY", fastdct=True, fastupsample=True, min_height=1, min_width=1
        )
    except ValueError:
        return False
    # A lossless JPEG, which TensorFlow cannot read, is decoded at its full size.
    return max(size) > 1 and small.shape[:2] == tuple((side + 7) // 8 for side in size)


def _png_decodes(data: memoryview, size: tuple[int, int]) -> bool:
    """Whether a PNG, not interlaced, has the usual chunks, and inflates to pixels of its size."""
    try:
        chunks = list(_chunks(data))
        width, height, depth, colour, *methods = struct.unpack(">IIBBBBB", chunks[0][1])
    except (struct.error, ValueError):
        return False
    line = (width * _SAMPLES.get(colour, 0) * depth + 7) // 8 + 1
    inflated = height * line
    kinds = [kind for kind, _ in chunks]
    first, num = kinds.index(b"IDAT") if b"IDAT" in kinds else 0, kinds.count(b"IDAT")
    expected = [b"IHDR", *[b"PLTE"] * (colour == _PALETTE), *[b"IDAT"] * num, b"IEND"]
    if (
        [kind for kind in kinds if kind not in _PLAIN] != expected
        or kinds[first : first + num] != [b"IDAT"] * num
        or (height, width, *methods) != (*size, 0, 0, 0)
        or inflated > _MAX_INFLATED_BYTES
    ):
        return False
    colours = len(dict(chunks).get(b"PLTE", b"")) / 3
    if colour == _PALETTE and colours not in range(1, (1 << depth) + 1):
        return False
    inflater = zlib.decompressobj()
    try:
        content = b"".join(content for kind, content in chunks if kind == b"IDAT")
        lines = inflater.decompress(content, inflated + 1)
    except zlib.error:
        return False
    is_whole = len(lines) == inflated and inflater.eof and not inflater.unused_data
    return is_whole and int(np.frombuffer(lines, np.uint8)[::line].max()) <= _MAX_FILTER


def _chunks(data: memoryview) -> Iterator[tuple[bytes, memoryview]]:
    """The kinds and contents of a PNG's chunks up to its end.

    Raises:
        ValueError: if one is damaged.
        struct.error: where the file ends.
    """
    position, kind = 8, b""
    while kind != b"IEND":
        length, kind = struct.unpack_from(">I4s", data, position)
        stop = position + 8 + length
        if struct.unpack_from(">I", data, stop) != (zlib.crc32(data[position + 4 : stop]),):
            raise ValueError(f"the chunk at {position} is damaged")
        yield kind, data[position + 8 : stop]
        position = stop + 4


def _webp_decodes(data: memoryview, size: tuple[int, int]) -> bool:
    from PIL import Image as Pillow

    if size[0] * size[1] > MAX_PIXELS // 2:  # above which Pillow warns
        return False
    try:
        image = Pillow.open(io.BytesIO(data), formats=["WEBP"])
        image.load()
    except (OSError, SyntaxError, ValueError):
        return False
    return getattr(image, "n_frames", 1) == 1 and image.size[::-1] == size
