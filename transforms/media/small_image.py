"""Image files as Pillow reads them, for figures and sketches: of 8 bits, large JPEGs small.

simplejpeg gives the same pixels of a small JPEG in a quarter of the time: it parses no EXIF.
"""

from __future__ import annotations

import io
import math

import numpy as np
import numpy.typing as npt
import PIL.Image

from .image_header import ImageHeader, read_header

_COLOURS = {"L": "GRAY", "RGB": "RGB"}
"""simplejpeg's names of the modes that it decodes to."""


def small_image(
    content: bytes, *, mode: str, side: int, max_pixels: int
) -> tuple[PIL.Image.Image, ImageHeader]:
    """Decodes an image file; a JPEG at the lowest of its scales that suffices.

    Args:
        content: The file's bytes.
        mode: Pillow's mode of the result: "L", "RGB" or "RGBA".
        side: Pixels of each side that suffice.
        max_pixels: More are refused.

    Returns:
        The image, not turned by its EXIF orientation, and its header.

    Raises:
        ValueError, OSError, SyntaxError: if it is damaged, too large, or of an unknown format.
    """
    header = read_header(content, max_pixels=max_pixels)
    if header.format == "jpeg" and (pixels := _jpeg(content, mode, side)) is not None:
        return PIL.Image.fromarray(pixels), header
    image = PIL.Image.open(io.BytesIO(content))
    image.draft(mode, (side, side))
    return of_8_bits(image).convert(mode), header


def _jpeg(content: bytes, mode: str, side: int) -> npt.NDArray[np.uint8] | None:
    """The pixels of a JPEG; None if Pillow must decide what they are, or whether it is damaged."""
    import simplejpeg  # type: ignore[import-untyped, unused-ignore]

    if mode not in _COLOURS:
        return None
    try:
        height, width, stored, _ = simplejpeg.decode_jpeg_header(content)
        if stored not in ("Gray", "YCbCr", "RGB"):
            return None
        scale = next(s for s in (8, 4, 2, 1) if min(height, width) >= s * side or s == 1)
        size = math.ceil(height / scale), math.ceil(width / scale)
        smaller = {} if scale == 1 else {"min_height": size[0], "min_width": size[1]}
        pixels: npt.NDArray[np.uint8] = simplejpeg.decode_jpeg(content, _COLOURS[mode], **smaller)
    except ValueError:
        return None
    if pixels.shape[:2] != size:
        return None
    return pixels[..., 0] if mode == "L" else pixels


def of_8_bits(image: PIL.Image.Image) -> PIL.Image.Image:
    """The high bytes of grey values of 16 bits, which Pillow would clip; other images unchanged."""
    if image.mode.startswith("I"):
        return PIL.Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    return image
