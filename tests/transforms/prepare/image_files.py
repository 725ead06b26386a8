"""Image files that Pillow cannot write, made by hand, for Pillow to read as an oracle."""

from __future__ import annotations

import base64
import io
import struct
import zlib
from typing import Any

import numpy as np
from PIL import Image as Pillow

# (first column, first row, step of columns, step of rows) of the seven passes.
_ADAM7 = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2))
_ADAM7 += ((0, 1, 1, 2),)
_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}


def png(
    samples: Any,
    *,
    colour: int,
    depth: int,
    interlaced: bool = False,
    palette: bytes = b"",
    transparency: bytes = b"",
    orientation: int = 0,
) -> bytes:
    """A PNG of ``samples``, unsigned integers [height, width, channels] below 2 ** depth."""
    height, width, channels = samples.shape
    assert channels == _CHANNELS[colour]
    places = _ADAM7 if interlaced else ((0, 0, 1, 1),)
    passes = [samples[row::down, column::right] for column, row, right, down in places]
    lines = b"".join(_lines(part, depth) for part in passes if part.size)
    head = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, int(interlaced))
    chunks = _chunk(b"IHDR", head)
    if orientation:
        chunks += _chunk(b"eXIf", exif(orientation))
    if palette:
        chunks += _chunk(b"PLTE", palette)
    if transparency:
        chunks += _chunk(b"tRNS", transparency)
    chunks += _chunk(b"IDAT", zlib.compress(lines)) + _chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunks


def _lines(samples: Any, depth: int) -> bytes:
    bits = np.unpackbits(samples.astype(">u2").view(np.uint8).reshape(*samples.shape, 2), axis=-1)[
        ..., 16 - depth :
    ]
    rows = np.packbits(bits.reshape(len(samples), -1), axis=1)
    return b"".join(b"\0" + row.tobytes() for row in rows)


def _chunk(kind: bytes, content: bytes) -> bytes:
    crc = zlib.crc32(kind + content)
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", crc)


def exif(orientation: int) -> bytes:
    """A TIFF structure that states an orientation alone."""
    return b"MM\0*\0\0\0\x08\0\1" + struct.pack(">HHIHH", 0x0112, 3, 1, orientation, 0) + bytes(4)


def with_adobe(jpeg: bytes, transform: int | None) -> bytes:
    """A JPEG whose Adobe segment states another transform of colours, or that has none."""
    start = jpeg.index(b"\xff\xee\0\x0eAdobe")
    if transform is None:
        return jpeg[:start] + jpeg[start + 16 :]
    return jpeg[: start + 15] + bytes([transform]) + jpeg[start + 16 :]


def gif(
    canvas: tuple[int, int], frames: list[tuple[int, int, Any]], *, transparent: int | None = None
) -> bytes:
    """A GIF of frames (left, top, uint8[height, width]) of a palette of 256 colours.

    Its codes are all of 9 bits: the table is cleared before it grows.
    """
    width, height = canvas
    palette = bytes(v for i in range(256) for v in (i, 255 - i, i // 2))
    data = b"GIF89a" + struct.pack("<HHBBB", width, height, 0xF7, 0, 0) + palette
    for left, top, indices in frames:
        if transparent is not None:
            data += b"\x21\xf9\x04\x01\0\0" + bytes([transparent, 0])
        sides = indices.shape[::-1]
        data += b"\x2c" + struct.pack("<HHHHB", left, top, *sides, 0) + b"\x08"
        values = indices.ravel()
        groups = [values[i : i + 100] for i in range(0, len(values), 100)]
        codes = np.concatenate([np.concatenate([[256], group]) for group in groups] + [[257]])
        bits = (codes[:, None] >> np.arange(9)) & 1
        packed = np.packbits(bits.astype(np.uint8), bitorder="little").tobytes()
        for start in range(0, len(packed), 255):
            block = packed[start : start + 255]
            data += bytes([len(block)]) + block
        data += b"\0"
    return data + b";"


def shown_by_pillow(content: bytes, channels: int) -> Any:
    """uint8[height, width, channels] as Pillow shows a file: upright, the first frame."""
    picture: Any = Pillow.open(io.BytesIO(content))
    if channels == 1 and picture.format == "JPEG":
        # Grey is the luma that the file holds, not one made of colours that were rounded.
        picture.draft("L", picture.size)
    turns = {2: 0, 3: 3, 4: 1, 5: 5, 6: 4, 7: 6, 8: 2}
    orientation = picture.getexif().get(0x0112, 1)
    if picture.mode.startswith("I"):
        picture = Pillow.fromarray((np.asarray(picture) >> 8).astype(np.uint8))
    if orientation in turns:
        picture = picture.transpose(Pillow.Transpose(turns[orientation]))
    if channels == 4:
        return np.asarray(picture.convert("RGBA"))
    if channels == 1 and picture.mode == "L":
        return np.asarray(picture)[..., None]
    if picture.mode == "P":
        picture = picture.convert("RGBA")
    colours = picture.convert("RGB")
    return np.asarray(colours) if channels == 3 else np.asarray(colours.convert("L"))[..., None]


def arithmetic() -> dict[str, bytes]:
    """JPEGs of arithmetic coding, which libjpeg-turbo's cjpeg wrote: 17 by 11 pixels."""
    return {name: base64.b64decode(text) for name, text in _ARITHMETIC.items()}


_ARITHMETIC = {
    "sequential": (
        "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDAA0JCgsKCA0LCgsODg0PEyAVExISEyccHhcgLikxMC4pLSwz"
        "Oko+MzZGNywtQFdBRkxOUlNSMj5aYVpQYEpRUk//2wBDAQ4ODhMREyYVFSZPNS01T09PT09PT09PT09P"
        "T09PT09PT09PT09PT09PT09PT09PT09PT09PT09PT09PT09PT0//yQARCAALABEDASIAAhEBAxEB/8wA"
        "CgAQEAUBEBEF/9oADAMBAAIRAxEAPwDLagueWHOA2zSx64ERfrQeRuSKzQdh392bvL4OoxLJUuYdm4t0"
        "W7eXYq2iU9nOVoLSVRCVfS/9HbtCvh4a8YX5MChM6MfsVTzegetv4x3u1Pbo/9k="
    ),
    "progressive": (
        "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDAA0JCgsKCA0LCgsODg0PEyAVExISEyccHhcgLikxMC4pLSwz"
        "Oko+MzZGNywtQFdBRkxOUlNSMj5aYVpQYEpRUk//2wBDAQ4ODhMREyYVFSZPNS01T09PT09PT09PT09P"
        "T09PT09PT09PT09PT09PT09PT09PT09PT09PT09PT09PT09PT0//ygARCAALABEDASIAAhEBAxEB/8wA"
        "BgAQARD/2gAMAwEAAhADEAAAAcdoay/7QJokDBj/zAAEEAX/2gAIAQEAAQUCPdiUWddshaNVUFz/zAAE"
        "EQX/2gAIAQMBAT8BJx7st4GHaP/MAAQRBf/aAAgBAgEBPwFCyN25RugWAR3w/8wABBAF/9oACAEBAAY/"
        "AnFgvYD/zAAEEAX/2gAIAQEAAT8h5/UgBdZDkgyA/9oADAMBAAIAAwAAABAvoP/MAAQRBf/aAAgBAwEB"
        "PxDBXDj/zAAEEQX/2gAIAQIBAT8QPE6rda80rfb/zAAEEAX/2gAIAQEAAT8QpeMWhusXjELTGNd0p/cK"
        "/9k="
    ),
    "grey": (
        "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDAA0JCgsKCA0LCgsODg0PEyAVExISEyccHhcgLikxMC4pLSwz"
        "Oko+MzZGNywtQFdBRkxOUlNSMj5aYVpQYEpRUk//yQALCAALABEBAREA/8wABgAQEAX/2gAIAQEAAD8A"
        "y2oLnlhzgNs0seuBEX60Hkbkis0HYYhR2G6u2cKK722sEPAKHWVN9ZqheoIl14D/2Q=="
    ),
}


def twelve_bits() -> dict[str, bytes]:
    """JPEGs of 12 bits a sample, 17 by 11 pixels, which Pillow does not read.

    ``imagecodecs.jpeg_encode(samples, bitspersample=12, level=75)`` wrote them, of imagecodecs
    2026.3.6 with libjpeg-turbo 3.1.3: samples of x * 240, y * 390 and (x + y) * 150, or of x * 240
    alone. It reads what it wrote in grey within 1 of 4,095.
    """
    return {name: base64.b64decode(text) for name, text in _TWELVE_BITS.items()}


_TWELVE_BITS = {
    "colours": (
        "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDAAgGBgcGBQgHBwcJCQgKDBQNDAsLDBkSEw8UHRofHh0aHBwg"
        "JC4nICIsIxwcKDcpLDAxNDQ0Hyc5PTgyPC4zNDL/2wBDAQkJCQwLDBgNDRgyIRwhMjIyMjIyMjIyMjIy"
        "MjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjL/wQARDAALABEDASIAAhEBAxEB/8QA"
        "FgABAQEAAAAAAAAAAAAAAAAACgAL/8QAKRAAAAIGCQUAAAAAAAAAAAAAAAkCBQcn0uEIChglNUJDRFIa"
        "V2eTpP/EABYBAQEBAAAAAAAAAAAAAAAAAAkHCv/EACkRAAABCAoDAAAAAAAAAAAAAAABAwUHCEFCYQkK"
        "GBohIyUyUWKRktH/2gAMAwEAAhEDEQA/ABJl41RTCnecNnILHLxqimFO84bOQY4XjRdYhdTtlJk00ogs"
        "cvGi6xC6nbKTJppRCUs5tRJ/J3OeDOoSqwYubTsDsMZJTGdZ0injz45CGvHZdYh22UnrSiEEFtRJ/t5G"
        "y68GLm4O+5Po/9k="
    ),
    "grey": (
        "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDAAgGBgcGBQgHBwcJCQgKDBQNDAsLDBkSEw8UHRofHh0aHBwg"
        "JC4nICIsIxwcKDcpLDAxNDQ0Hyc5PTgyPC4zNDL/wQALDAALABEBAREA/8QAFQABAQAAAAAAAAAAAAAA"
        "AAAACwz/xAAYEAACAwAAAAAAAAAAAAAAAAAACkaDwf/aAAgBAQAAPwA0dSaDUYPAKTQajBDgkR1JoNRg"
        "8ApNBqMEOD//2Q=="
    ),
}
