"""Infers the prepare steps that a folder of images needs, from the sizes in their headers."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence

from ...schemas.blocks import SourceFile
from ...schemas.recipe import OpenSource, PrepareStep
from ..media.image_header import UnreadableImageError, read_header
from ..prepare import images
from ..storage.opened_source import path_bytes
from ..storage.read_files import read_headers

MAX_HEADERS = 20_000
"""Of more files, those with the lowest hashes of their paths are looked at."""
FALLBACK_SIZE = (256, 256)
"""Where no size is the rule."""


def infer_image_steps(
    files: Sequence[SourceFile], opened: OpenSource, *, name: str = "image"
) -> list[PrepareStep]:
    """Infers the steps for a folder of images; the same files give the same steps.

    Images of one size are copied as they are. Of several sizes, they are resized to the one that
    more than half of them have, or fitted into 256×256 with black beside them where none is the
    rule. Files without a readable header do not count.

    Args:
        files: The records' files. Of more than 20,000, so many are looked at.
        opened: The source's root.
        name: The image feature.
    """
    sizes = Counter(read_sizes(files, opened))
    if len(sizes) <= 1:
        return []
    size, count = max(sizes.items(), key=lambda item: (item[1], item[0]))
    ruled = 2 * count > sizes.total()
    resize = images.resize(name, size if ruled else FALLBACK_SIZE, keep_ratio=not ruled)
    return [images.decode(name), resize]


def read_sizes(files: Sequence[SourceFile], opened: OpenSource) -> list[tuple[int, int]]:
    """Heights and widths, as shown, of the images whose headers can be read."""
    readable = [file for file in files if not file.problem]
    if len(readable) > MAX_HEADERS:
        readable = sorted(readable, key=_path_hash)[:MAX_HEADERS]
    headers = read_headers(
        readable,
        opened,
        read=lambda _, data: read_header(data),
        unreadable=UnreadableImageError,
        cut_short="truncated image",
    )
    return [(header.height, header.width) for header in headers]


def _path_hash(file: SourceFile) -> bytes:
    return hashlib.blake2b(path_bytes(file.path), digest_size=16).digest()
