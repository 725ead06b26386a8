"""Image files as Pillow reads them, for figures and sketches: of 8 bits, large JPEGs small."""

from __future__ import annotations

import io

import numpy as np
import PIL.Image

from .image_header import ImageHeader, read_header


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
    image = PIL.Image.open(io.BytesIO(content))
    image.draft(mode, (side, side))
    return of_8_bits(image).convert(mode), header


def of_8_bits(image: PIL.Image.Image) -> PIL.Image.Image:
    """The high bytes of grey values of 16 bits, which Pillow would clip; other images unchanged."""
    if image.mode.startswith("I"):
        return PIL.Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    return image
