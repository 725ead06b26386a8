"""What a feature is, by its entry in ``FEATURES``. Loads neither NumPy nor TensorFlow."""

from __future__ import annotations

from typing import Any

PIXELS = ("image", "mask")
"""The kinds of features that are images: with colours, or with the index of a class per pixel."""


def is_clip(feature: dict[str, Any]) -> bool:
    """Whether a feature is a sequence of encoded images."""
    return feature.get("of") == "image"


def is_encoded(feature: dict[str, Any]) -> bool:
    """Whether a feature is stored as the content of image files."""
    return feature.get("storage") == "encoded" or is_clip(feature)


def has_pixels(feature: dict[str, Any]) -> bool:
    """Whether a feature is an image, a mask or a clip."""
    return feature["kind"] in PIXELS or is_clip(feature)
