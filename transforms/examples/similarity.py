"""Sketches of images and texts: small arrays whose distance says how alike the contents are.

An image has a difference hash of 64 bits (N. Krawetz, "Kind of like that", 2013: whether each pixel
of a thumbnail of 9 × 8 grey values is brighter than its left neighbour) and a thumbnail of 16 × 16
grey values. A text has a MinHash signature of 128 values (A. Broder, "On the resemblance and
containment of documents", 1997) over its shingles of 3 words. Both find likely pairs by bands of
equal bits or values (locality-sensitive hashing: P. Indyk and R. Motwani, "Approximate nearest
neighbors", 1998), of which only those are compared that share a band.

Nothing here is random: the permutations come from a fixed seed.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence

import mmh3
import numpy as np
import numpy.typing as npt
import PIL.Image

from ..media.small_image import small_image
from .contents import GOLDEN, Hashes, mixed

MAX_BITS = 6
"""Images are alike if up to this many of the 64 bits of their hashes differ …"""
MIN_CORRELATION = 0.95
"""… and their thumbnails have at least this correlation."""
MAX_PIXELS = 1 << 25
MIN_JACCARD = 0.8
"""Texts are alike if they have at least this estimated share of common shingles."""
SHINGLE_WORDS = 3
NUM_PERMUTATIONS = 128
MIN_WORDS = 10
"""Shorter texts are not compared: short phrases are equal by chance."""

_THUMBNAIL = 16
_FLAT = 4.0
"""Images whose thumbnail has a smaller standard deviation, of 255, show nothing to compare."""
_NUM_BANDS = 16
_SHINGLES_AT_ONCE = 2048
_MAX_WORDS_HELD = 1 << 18
# Scripts without spaces count by character.
_WORD = re.compile(r"[\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff]|[^\W_\u0e00-\u0eff\u3040-\u9fff]+")

Image = PIL.Image.Image
Rows = npt.NDArray[np.int64]

IMAGE_SKETCH = np.dtype([("hash", np.uint64), ("thumbnail", np.uint8, (_THUMBNAIL**2,))])
TEXT_SKETCH = np.dtype([("signature", np.uint32, (NUM_PERMUTATIONS,))])


def encoded_image(content: bytes) -> Image | None:
    """An image file as grey values, a JPEG at the lowest scale that suffices.

    None if it is damaged or has more than 33 million pixels, which would take much memory.
    """
    try:
        return small_image(content, mode="L", side=4 * _THUMBNAIL, max_pixels=MAX_PIXELS)[0]
    except (OSError, ValueError, SyntaxError):
        return None


def raw_image(pixels: bytes, *, height: int, width: int, channels: int) -> Image | None:
    """Pixels, uint8 [height, width, channels], as grey values; None if they are none."""
    if not pixels or len(pixels) != height * width * channels or channels == 2:
        return None
    mode = {1: "L", 3: "RGB", 4: "RGBA"}[channels]
    return PIL.Image.frombytes(mode, (width, height), pixels).convert("L")


def image_sketch(image: Image | None) -> npt.NDArray[np.void] | None:
    """An :data:`IMAGE_SKETCH` of a grey image; None if it shows nothing to compare."""
    if image is None:
        return None
    thumbnail = _shrunk(image, _THUMBNAIL, _THUMBNAIL)
    wide = thumbnail.astype(np.int64)
    if len(wide) * (wide @ wide) - wide.sum() ** 2 < (_FLAT * len(wide)) ** 2:
        return None
    grey = _shrunk(image, 8, 9).reshape(8, 9)
    sketch = np.zeros((), IMAGE_SKETCH)
    sketch["hash"] = np.packbits(grey[:, 1:] > grey[:, :-1]).view(np.uint64)[0]
    sketch["thumbnail"] = thumbnail
    return sketch


def _shrunk(image: Image, height: int, width: int) -> npt.NDArray[np.uint8]:
    """The grey values of a smaller image: uint8[height * width]."""
    shrunk = image.resize((width, height), PIL.Image.Resampling.BOX)
    return np.frombuffer(shrunk.tobytes(), np.uint8)


def text_sketch(content: bytes) -> npt.NDArray[np.void] | None:
    """A :data:`TEXT_SKETCH` of UTF-8; None if it is too short or no text.

    Words are compared without case and punctuation.
    """
    try:
        words = _WORD.findall(content.decode().casefold())
    except UnicodeDecodeError:
        return None
    if len(words) < MIN_WORDS:
        return None
    hashes = np.array([_word_hash(word) for word in words], np.uint64)
    shingles = np.zeros(len(words) - SHINGLE_WORDS + 1, np.uint64)
    for place in range(SHINGLE_WORDS):
        shingles = mixed(shingles * GOLDEN + hashes[place : place + len(shingles)])
    sketch = np.zeros((), TEXT_SKETCH)
    sketch["signature"] = _signature(shingles)
    return sketch


@functools.lru_cache(_MAX_WORDS_HELD)
def _word_hash(word: str) -> int:
    return int(mmh3.hash64(word.encode("utf-8", "surrogatepass"), signed=False)[0])


def _signature(shingles: Hashes) -> npt.NDArray[np.uint32]:
    """The least value of all shingles in each permutation: uint32[128].

    The permutations are multiplications by odd numbers, modulo 2**64, of which the high bits count
    (M. Dietzfelbinger and others, "A reliable randomized algorithm for the closest-pair problem",
    1997).
    """
    factors, terms = _permutations()
    least = np.full(NUM_PERMUTATIONS, np.iinfo(np.uint64).max, np.uint64)
    for start in range(0, len(shingles), _SHINGLES_AT_ONCE):
        some = shingles[start : start + _SHINGLES_AT_ONCE, np.newaxis]
        np.minimum(least, (some * factors + terms).min(axis=0), out=least)
    return (least >> np.uint64(32)).astype(np.uint32)


@functools.cache
def _permutations() -> tuple[Hashes, Hashes]:
    numbers = mixed(np.arange(1, 2 * NUM_PERMUTATIONS + 1, dtype=np.uint64) * GOLDEN)
    return numbers[:NUM_PERMUTATIONS] | np.uint64(1), numbers[NUM_PERMUTATIONS:]


def image_bands(sketches: npt.NDArray[np.void]) -> Sequence[Hashes]:
    """The bands of images, uint64[n] each: hashes that differ in up to 6 bits share one of 7."""
    hashes = sketches["hash"]
    edges = np.linspace(0, 64, MAX_BITS + 2).astype(int)
    return [
        (hashes >> np.uint64(start)) & np.uint64((1 << (stop - start)) - 1)
        for start, stop in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)
    ]


def text_bands(sketches: npt.NDArray[np.void]) -> Sequence[Hashes]:
    """The bands of texts, uint64[n] each: 16, of 8 values.

    Texts that share 80 % of their shingles share a band in 95 of 100 cases, with 90 % in all but
    one of 10,000.
    """
    size = NUM_PERMUTATIONS // _NUM_BANDS
    bands = []
    for number in range(_NUM_BANDS):
        band = np.zeros(len(sketches), np.uint64)
        for column in range(number * size, (number + 1) * size):
            band = mixed(band * GOLDEN + sketches["signature"][:, column].astype(np.uint64))
        bands.append(band)
    return bands


def image_likeness(sketches: npt.NDArray[np.void], a: Rows, b: Rows) -> npt.NDArray[np.float64]:
    """The correlation of the thumbnails of images a[n] and b[n]; 0 if they are not alike: [n]."""
    likeness = np.zeros(len(a))
    hashes, thumbnails = sketches["hash"], sketches["thumbnail"]
    close = np.flatnonzero(np.bitwise_count(hashes[a] ^ hashes[b]) <= MAX_BITS)
    first, second = (thumbnails[rows[close]].astype(np.float64) for rows in (a, b))
    first -= first.mean(axis=1, keepdims=True)
    second -= second.mean(axis=1, keepdims=True)
    product = np.sqrt((first**2).sum(axis=1) * (second**2).sum(axis=1))
    correlation = (first * second).sum(axis=1) / product
    likeness[close] = np.where(correlation >= MIN_CORRELATION, correlation, 0)
    return likeness


def text_likeness(sketches: npt.NDArray[np.void], a: Rows, b: Rows) -> npt.NDArray[np.float64]:
    """The estimated share of common shingles of texts a[n] and b[n]; 0 if too few: [n]."""
    signatures = sketches["signature"]
    jaccard = (signatures[a] == signatures[b]).mean(axis=1)
    likeness: npt.NDArray[np.float64] = np.where(jaccard >= MIN_JACCARD, jaccard, 0)
    return likeness
