"""Which formats image files have, by their first bytes: what a reader must be able to decode."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from .image_header import jpeg_components

_MAGIC = {
    "jpeg": b"\xff\xd8\xff",
    "png": b"\x89PNG",
    "gif": b"GIF8",
    "bmp": b"BM",
    "webp": b"RIFF",
}
_CMYK_COMPONENTS = 4


def found_formats(contents: pa.Array, *, channels: int) -> tuple[str, ...]:
    """The formats of some images, sorted.

    Args:
        contents: large_binary[n], image files that can be decoded.
        channels: Of the feature. Where it is 1, ``cmyk`` is among the formats if a JPEG has four
            components: libjpeg, and so TensorFlow, turns all others into grey by itself.
    """
    found = set()
    for name, magic in _MAGIC.items():
        has = pc.starts_with(contents, magic)
        if not pc.any(has).as_py():
            continue
        found.add(name)
        if name == "jpeg" and channels == 1:
            components = map(jpeg_components, contents.filter(has).to_pylist())
            if _CMYK_COMPONENTS in components:
                found.add("cmyk")
        if pc.all(has).as_py():
            break
    return tuple(sorted(found))
