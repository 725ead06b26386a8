"""Reads an image's header: format, size, orientation. Decodes no pixel.

The content decides the format, never the name. Sizes are those of the picture as displayed, with
its EXIF orientation applied. Only formats that TensorFlow decodes are known: JPEG, PNG, GIF, BMP
and WebP; ``tiff`` reads TIFF. Anything else is reported with a reason by which rejects can be
grouped. Takes a few microseconds per image, a tenth of the time of Pillow's parser.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from ...schemas.errors import ReasonedError

SUFFIXES = (".bmp", ".gif", ".jpe", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")
"""The usual suffixes of images."""
MAX_PIXELS = 178_956_970
"""Pillow's own threshold for a decompression bomb: half a GiB as RGB."""

_SOF = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_PROGRESSIVE = frozenset({0xC2, 0xC6, 0xCA, 0xCE})
_STANDALONE = frozenset({0x00, 0x01, *range(0xD0, 0xD8)})
_APP14 = 0xEE
_PNG = b"\x89PNG\r\n\x1a\n"
_FOREIGN: dict[str, Callable[[bytes], bool]] = {
    "TIFF": lambda data: data[:4] in (b"II*\0", b"MM\0*"),
    "BigTIFF": lambda data: data[:4] in (b"II+\0", b"MM\0+"),
    "HEIF, AVIF or video": lambda data: data[4:8] == b"ftyp",
    "JPEG 2000": lambda data: data[4:8] == b"jP  " or data[:4] == b"\xff\x4f\xff\x51",
    "JPEG XL": lambda data: data[:2] == b"\xff\x0a" or data[4:8] == b"JXL ",
    "Photoshop": lambda data: data[:4] == b"8BPS",
    "icon": lambda data: data[:4] in (b"\0\0\1\0", b"\0\0\2\0"),
    "PDF": lambda data: data[:5] == b"%PDF-",
}
_FRAME_PIXELS = 3
"""The cost of one pixel of a picture, in pixels of a GIF's frames, which are not yet coloured."""
_MAX_SCANS = 200
"""Of a progressive JPEG; encoders make about ten. Each costs as much time as an entire picture."""
_MAX_TEXTS = 100
"""Compressed texts in a PNG, each of which may grow to 8 MB."""
_CONTROLS = frozenset(range(32)) - frozenset(b"\t\n\r\f\x1b")

_FORMAT_MAGIC = {
    "jpeg": b"\xff\xd8\xff",
    "png": b"\x89PNG",
    "gif": b"GIF8",
    "bmp": b"BM",
    "webp": b"RIFF",
}
_CMYK_COMPONENTS = 4


class ImageHeader(NamedTuple):
    """The header of one image."""

    format: str
    """``jpeg``, ``png``, ``gif``, ``bmp``, ``webp``, or ``tiff`` before its conversion."""
    height: int
    """As displayed: the EXIF orientation is applied."""
    width: int
    channels: int
    """1 for shades of grey, 3 for colours, 4 for colours with transparency."""
    orientation: int
    """EXIF orientation, 1 to 8; 1 if none is given."""
    more_pixels: int = 0
    """Of all frames of a GIF with several, which are decoded along with the one that counts."""


class UnreadableImageError(ReasonedError):
    """Bytes that cannot be decoded as an image."""


def rotated_frame(header: ImageHeader) -> UnreadableImageError:
    """Why a frame of a clip with an EXIF orientation is rejected."""
    return UnreadableImageError(
        "rotated frame",
        f"it has the EXIF orientation {header.orientation}. Save the clip's frames upright",
    )


def read_header(data: bytes, *, max_pixels: int = MAX_PIXELS) -> ImageHeader:
    """Reads the header of an image file from its bytes; the first ones may be enough.

    Raises:
        UnreadableImageError: with one of the reasons ``empty file``, ``zero-filled file``,
            ``text, not an image``, ``not an image``, ``unsupported image format``,
            ``truncated image``, ``damaged image``, ``too many pixels``, ``too costly to decode``.
    """
    try:
        if data[:3] == b"\xff\xd8\xff":
            header = _read_jpeg(data)
        elif data[:8] == _PNG:
            header = _read_png(data)
        elif data[:6] in (b"GIF87a", b"GIF89a"):
            header = _read_gif(data)
        elif data[:2] == b"BM" and len(data) >= 26 and data[6:10] == bytes(4):
            header = _read_bmp(data)
        elif data[:4] == b"RIFF" and data[8:12] == b"WEBP":
            header = _read_webp(data)
        else:
            raise _no_image(data)
    except (IndexError, struct.error):
        raise UnreadableImageError(
            "truncated image", f"the file ends within the image's header, after {len(data)} bytes"
        ) from None
    check_size(header, max_pixels)
    return header


def check_size(header: ImageHeader, max_pixels: int) -> None:
    """Checks the size that a header states.

    Raises:
        UnreadableImageError: ``damaged image`` if it is 0, ``too many pixels`` above the limit.
    """
    if header.height < 1 or header.width < 1:
        raise UnreadableImageError(
            "damaged image", f"the header states {header.width}×{header.height} pixels"
        )
    if header.more_pixels > _FRAME_PIXELS * max_pixels:
        raise UnreadableImageError(
            "too many pixels",
            f"its frames have {header.more_pixels:,} pixels together, more than "
            f"{_FRAME_PIXELS * max_pixels:,}",
        )
    if header.height * header.width > max_pixels:
        raise UnreadableImageError(
            "too many pixels",
            f"the header states {header.width}×{header.height} pixels, more than {max_pixels:,}",
        )


def diagnose(data: bytes) -> str:
    """Why an image with a valid header does not decode: it is truncated, or damaged."""
    if data[:3] == b"\xff\xd8\xff":
        # A thumbnail in the metadata has its own end, but before the last scan begins.
        complete = data.rfind(b"\xff\xd9") > data.rfind(b"\xff\xda")
    elif data[:8] == _PNG:
        complete = b"IEND" in data[-64:]
    elif data[:3] == b"GIF":
        complete = data.rstrip(b"\0").endswith(b";")
    elif data[:4] == b"RIFF":
        complete = len(data) >= 8 + int.from_bytes(data[4:8], "little")
    else:
        complete = len(data) >= int.from_bytes(data[2:6], "little")
    return "damaged image" if complete else "truncated image"


def jpeg_components(data: bytes) -> int:
    """The number of a JPEG's components: 1 for grey, 3 for colours, 4 for CMYK; 0 if unknown."""
    try:
        for marker, position, _ in _jpeg_segments(data):
            if marker in _SOF:
                return data[position + 5]
    except (IndexError, UnreadableImageError):
        pass
    return 0


def _jpeg_segments(data: bytes) -> Iterator[tuple[int, int, int]]:
    """The segments of a JPEG's header: marker, start and end of the content.

    Raises:
        IndexError: where the file ends.
        UnreadableImageError: if the pixels begin before any frame header.
    """
    position = 2
    while True:
        position = data.find(b"\xff", position)
        if position < 0:
            raise IndexError
        marker = data[position + 1]
        if marker == 0xFF:
            position += 1
            continue
        if marker in _STANDALONE:
            position += 2
            continue
        length = data[position + 2] << 8 | data[position + 3]
        if marker not in _SOF and (marker in (0xD9, 0xDA) or length < 2):
            raise UnreadableImageError("damaged image", "the JPEG has no frame header")
        yield marker, position + 4, position + 2 + length
        position += 2 + length


def _read_jpeg(data: bytes) -> ImageHeader:
    orientation, adobe = 1, False
    segments = _jpeg_segments(data)
    for marker, start, stop in segments:
        if marker in _SOF:
            precision, height, width, components = struct.unpack_from(">BHHB", data, start)
            if precision != 8 or components not in (1, 3, 4):
                raise UnreadableImageError(
                    "unsupported image format",
                    f"a JPEG of {components} components of {precision} bits; expected 8 bits, and "
                    "1, 3 or 4 components",
                )
            if components == 4 and not (adobe or _has_adobe(data, segments)):
                # TensorFlow and Pillow each assume one or the other, and they disagree.
                raise UnreadableImageError(
                    "unsupported image format",
                    "a CMYK JPEG without an Adobe segment, so that it is unknown whether its inks "
                    "are inverted",
                )
            if marker in _PROGRESSIVE and data.count(b"\xff\xda", stop) > _MAX_SCANS:
                raise UnreadableImageError(
                    "too costly to decode", f"the JPEG has more than {_MAX_SCANS} scans"
                )
            if orientation >= 5:
                height, width = width, height
            return ImageHeader("jpeg", height, width, 1 if components == 1 else 3, orientation)
        if marker == 0xE1 and data[start : start + 6] == b"Exif\0\0":
            orientation = _exif_orientation(data[start + 6 : stop])
        adobe |= marker == _APP14 and data[start : start + 5] == b"Adobe"
    raise AssertionError("segments end with an exception")


def _has_adobe(data: bytes, segments: Iterator[tuple[int, int, int]]) -> bool:
    """Whether there is an Adobe segment between the frame header and the pixels."""
    with contextlib.suppress(UnreadableImageError):
        return any(
            marker == _APP14 and data[start : start + 5] == b"Adobe"
            for marker, start, _ in segments
        )
    return False


def _read_png(data: bytes) -> ImageHeader:
    kind, width, height, depth, colour = struct.unpack_from(">4sIIBB", data, 12)
    if kind != b"IHDR" or depth not in (1, 2, 4, 8, 16) or colour not in (0, 2, 3, 4, 6):
        raise UnreadableImageError("damaged image", "the PNG does not begin with a valid IHDR")
    if sum(map(data.count, (b"zTXt", b"iTXt", b"iCCP"))) > _MAX_TEXTS:
        raise UnreadableImageError(
            "too costly to decode", f"the PNG has more than {_MAX_TEXTS} compressed texts"
        )
    orientation = 1
    if b"eXIf" in data:
        position = 8
        while position + 8 <= len(data):
            length, kind = struct.unpack_from(">I4s", data, position)
            if kind == b"eXIf":
                orientation = _exif_orientation(data[position + 8 : position + 8 + length])
                break
            position += 12 + length
    if orientation >= 5:
        height, width = width, height
    return ImageHeader("png", height, width, {0: 1, 4: 1, 6: 4}.get(colour, 3), orientation)


def _read_gif(data: bytes) -> ImageHeader:
    """The size of the largest frame, not the canvas: TensorFlow gives the first frame that size."""
    width, height = canvas = struct.unpack_from("<HH", data, 6)
    flags = data[10]
    position = 13 + (3 << ((flags & 7) + 1) if flags & 0x80 else 0)
    frames: list[tuple[int, int, int, int]] = []
    try:
        while data[position] in (0x21, 0x2C):
            frame = None
            if data[position] == 0x2C:
                *frame, flags = struct.unpack_from("<HHHHB", data, position + 1)
                position += 11 + (3 << ((flags & 7) + 1) if flags & 0x80 else 0)
            else:
                position += 2
            while data[position]:
                position += data[position] + 1
            position += 1
            if frame is not None:
                frames.append((frame[0], frame[1], frame[2], frame[3]))
    except (IndexError, struct.error):
        # A first frame suffices; TensorFlow tolerates errors after it.
        if not frames:
            raise
    if frames:
        width, height = max(frame[2] for frame in frames), max(frame[3] for frame in frames)
        whole = max(canvas[0], width), max(canvas[1], height)
        if frames[0] != (0, 0, *whole):
            # TensorFlow crops the picture to the largest frame's size, wherever frames are placed.
            raise UnreadableImageError(
                "unsupported image format",
                f"a GIF of {whole[0]}×{whole[1]} pixels whose first frame has "
                f"{frames[0][2]}×{frames[0][3]}, from ({frames[0][0]}, {frames[0][1]}) on; "
                "expected a first frame that is the picture",
            )
    num_pixels = sum(frame[2] * frame[3] for frame in frames)
    return ImageHeader("gif", height, width, 3, 1, num_pixels if len(frames) > 1 else 0)


def _read_bmp(data: bytes) -> ImageHeader:
    header_bytes, width, height = struct.unpack_from("<Iii", data, 14)
    bits, compression = (0, 0)
    if header_bytes >= 40:
        bits, compression = struct.unpack_from("<HI", data, 28)
    good = (bits in (24, 32) and compression == 0) or (
        # The usual order of bytes, written out as masks.
        bits == 32
        and compression == 3
        and struct.unpack_from("<III", data, 54) == (0xFF0000, 0xFF00, 0xFF)
    )
    if bits == 8 and compression == 0:
        # TensorFlow reads the index as the shade: only a palette that maps it so is correct.
        start = 14 + header_bytes
        palette = data[start : start + 1024]
        good = all(palette[i::4] == bytes(range(256)) for i in range(3))
    if not good:
        raise UnreadableImageError(
            "unsupported image format",
            f"a BMP of {bits or 'unknown'} bits a pixel, compression {compression}; expected 24 or "
            "32 bits, or 8 bits of grey, uncompressed",
        )
    return ImageHeader("bmp", abs(height), width, 1 if bits == 8 else 3, 1)


def _read_webp(data: bytes) -> ImageHeader:
    kind = data[12:16]
    orientation = 1
    if kind == b"VP8 ":
        code, width, height = struct.unpack_from("<3sHH", data, 23)
        if code != b"\x9d\x01\x2a":
            raise UnreadableImageError("damaged image", "the WebP has no frame header")
        return ImageHeader("webp", height & 0x3FFF, width & 0x3FFF, 3, 1)
    if kind == b"VP8L":
        signature, bits = struct.unpack_from("<BI", data, 20)
        if signature != 0x2F:
            raise UnreadableImageError("damaged image", "the WebP has no frame header")
        height, width = (bits >> 14 & 0x3FFF) + 1, (bits & 0x3FFF) + 1
        return ImageHeader("webp", height, width, 4 if bits >> 28 & 1 else 3, 1)
    if kind != b"VP8X":
        if len(data) < 16:
            raise IndexError
        raise UnreadableImageError("damaged image", f"the WebP begins with a chunk {kind!r}")
    flags, width, height = struct.unpack_from("<B3x3s3s", data, 20)
    if flags & 2:
        raise UnreadableImageError(
            "unsupported image format", "an animated WebP; expected a single picture"
        )
    height, width = (int.from_bytes(side, "little") + 1 for side in (height, width))
    if flags & 8:
        orientation = _webp_orientation(data)
    if orientation >= 5:
        height, width = width, height
    return ImageHeader("webp", height, width, 4 if flags & 16 else 3, orientation)


def _webp_orientation(data: bytes) -> int:
    """From the EXIF chunk, which follows the pixels."""
    position = 12
    stop = 8 + int.from_bytes(data[4:8], "little")
    while position + 8 <= stop:
        kind, length = struct.unpack_from("<4sI", data, position)
        if kind == b"EXIF":
            exif = data[position + 8 : position + 8 + length]
            if len(exif) < length:
                raise IndexError
            return _exif_orientation(exif.removeprefix(b"Exif\0\0"))
        position += 8 + length + length % 2
    return 1


def _exif_orientation(tiff: bytes) -> int:
    """Orientation, 1 to 8, from a TIFF structure; 1 if it is missing or invalid."""
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(tiff[:4])
    if order is None:
        return 1
    try:
        (start,) = struct.unpack_from(order + "I", tiff, 4)
        (num_entries,) = struct.unpack_from(order + "H", tiff, start)
        tag = struct.pack(order + "H", 0x0112)
        for entry in range(start + 2, start + 2 + 12 * num_entries, 12):
            if tiff[entry : entry + 2] == tag:
                (kind,) = struct.unpack_from(order + "H", tiff, entry + 2)
                form = order + ("I" if kind == 4 else "H")
                value: int = struct.unpack_from(form, tiff, entry + 8)[0]
                return value if 1 <= value <= 8 else 1
    except struct.error:
        pass
    return 1


def _no_image(data: bytes) -> UnreadableImageError:
    if not data:
        return UnreadableImageError("empty file", "the file has no bytes")
    if not data.strip(b"\0"):
        return UnreadableImageError("zero-filled file", f"all {len(data)} bytes are zero")
    for name, matches in _FOREIGN.items():
        if matches(data):
            return UnreadableImageError(
                "unsupported image format", f"{name}; expected JPEG, PNG, GIF, BMP, WebP or TIFF"
            )
    expected = "expected JPEG, PNG, GIF, BMP, WebP or TIFF"
    start = data[:1024]
    try:
        # The cut may be inside a character.
        start.decode("utf-8", "strict" if len(data) == len(start) else "ignore")
        text = _CONTROLS.isdisjoint(start) and (len(start) < 1024 or _mostly_ascii(start))
    except UnicodeDecodeError:
        text = False
    if text:
        return UnreadableImageError(
            "text, not an image",
            f"begins with {start[:20].decode('utf-8', 'replace')!r}; {expected}",
        )
    return UnreadableImageError(
        "not an image", f"begins with the bytes {data[:8].hex(' ')}; {expected}"
    )


def _mostly_ascii(start: bytes) -> bool:
    return sum(byte < 128 for byte in start) > len(start) // 2


def found_formats(contents: pa.Array, *, channels: int) -> tuple[str, ...]:
    """The formats of some images, sorted.

    Args:
        contents: large_binary[n], image files that can be decoded.
        channels: Of the feature. If it is 1, ``cmyk`` is included if a JPEG has four components:
            libjpeg, and so TensorFlow, converts all others to grey itself.
    """
    formats = set()
    for name, magic in _FORMAT_MAGIC.items():
        has = pc.starts_with(contents, magic)
        if not pc.any(has).as_py():
            continue
        formats.add(name)
        if name == "jpeg" and channels == 1:
            components = map(jpeg_components, contents.filter(has).to_pylist())
            if _CMYK_COMPONENTS in components:
                formats.add("cmyk")
        if pc.all(has).as_py():
            break
    return tuple(sorted(formats))
