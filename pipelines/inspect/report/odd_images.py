"""Images and sounds that look like another class than their label says: likely labelled wrong.

Each image, or spectrogram of a sound, becomes a histogram of the directions of its edges in 8 × 8
cells (HOG, Dalal and Triggs 2005). A kernel ridge regression learns the classes from all images,
and its prediction for each is the one that it would make without that image, which has a closed
form: for C = (K + λ I)^-1, the score of image i is y_i - (C y)_i / C_ii. Images whose label scores
far below another class are odd.

Of 1,486 photographs of hands that show ten digits, it recognizes 92 %, and two that were put into a
wrong class are among the 6 oddest; of 1,200 spoken digits 96 %, and three wrong ones are the 2nd to
4th.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from ....schemas.features import Feature
from .pictures import thumbnail

MAX_IMAGES = 3_000
"""Memory and time grow with the square and the third power of their number: 36 MB and 1 s."""
_MIN_IMAGES = 40
_MIN_ACCURACY = 0.7
"""Where so few images are recognized, a wrong prediction says nothing about the label."""
_LEAD = 0.3
"""By how much another class's score exceeds the label's: of scores from about 0 to about 1."""
_MAX_ODD = 16
_SIDE, _CELLS, _DIRECTIONS = 32, 8, 8
_BATCH = 64
"""Images that are made vectors together."""
_RIDGE, _WIDTH = 0.03, 0.6
_PIVOTS = 250
"""Rows that are eliminated together."""

Vectors = npt.NDArray[np.float32]


@dataclasses.dataclass(frozen=True, kw_only=True)
class OddImage:
    """An image that looks like another class."""

    row: int
    looks_like: str
    neighbour: int
    """The most similar image of that class."""


def find_odd(vectors: Vectors, classes: Sequence[str | None]) -> tuple[list[OddImage], float]:
    """The images whose label is least plausible, the oddest first.

    Args:
        vectors: :func:`edge_vectors` of the images.
        classes: The class of each; None if it has none.

    Returns:
        At most 16 images, and the share of all that are recognized without being known.
    """
    rows = np.flatnonzero(
        [c is not None and v.any() for c, v in zip(classes, vectors, strict=True)]
    )
    if len(rows) > MAX_IMAGES:
        rows = rows[np.linspace(0, len(rows) - 1, MAX_IMAGES).astype(int)]
    names, truth = np.unique([str(classes[row]) for row in rows.tolist()], return_inverse=True)
    if len(rows) < _MIN_IMAGES or len(names) < 2:
        return [], 0.0
    used, places = vectors[rows], np.arange(len(rows))
    inverse = _ridge_kernel(used)
    _invert(inverse)
    targets = (truth[:, None] == np.arange(len(names))).astype(np.float32)
    centred = targets - targets.mean(axis=0)
    scores = centred - (inverse @ centred) / np.diag(inverse)[:, None]
    own = scores[places, truth]
    scores[places, truth] = -np.inf
    best = scores.argmax(axis=1)
    lead = scores[places, best] - own
    accuracy = float((lead < 0).mean())
    if accuracy < _MIN_ACCURACY:
        return [], accuracy
    found = []
    for at in np.argsort(-lead)[:_MAX_ODD].tolist():
        if lead[at] > _LEAD:
            alike = np.where(truth == best[at], used @ used[at], -np.inf).argmax()
            looks_like = str(names[best[at]])
            odd = OddImage(row=int(rows[at]), looks_like=looks_like, neighbour=int(rows[alike]))
            found.append(odd)
    return found, accuracy


def _ridge_kernel(vectors: Vectors) -> Vectors:
    """K + λ I of vectors of length 1, with a Gaussian kernel."""
    kernel: Vectors = vectors @ vectors.T
    kernel *= -2
    kernel += 2  # the squared distances
    np.maximum(kernel, 0, out=kernel)
    some = kernel[:: 1 + len(kernel) // _PIVOTS]
    kernel /= -_WIDTH * max(float(np.median(some)), 1e-6)
    np.exp(kernel, out=kernel)
    kernel.flat[:: len(kernel) + 1] += _RIDGE
    return kernel


def _invert(matrix: Vectors) -> None:
    """Inverts a positive definite matrix in place; NumPy would take five times its memory.

    Gauss-Jordan elimination by blocks. No pivot is small, as all eigenvalues are at least λ.
    """
    blocks = [slice(at, at + _PIVOTS) for at in range(0, len(matrix), _PIVOTS)]
    for pivot in blocks:
        inverse = np.linalg.inv(matrix[pivot, pivot])
        rows, columns = inverse @ matrix[pivot], matrix[:, pivot].copy()
        for block in blocks:
            matrix[block] -= columns[block] @ rows
        matrix[pivot] = rows
        matrix[:, pivot] = columns @ -inverse
        matrix[pivot, pivot] = inverse


def edge_vectors(values: Sequence[Any], feature: Feature) -> Vectors:
    """The directions of edges in images or spectrograms: float32[images, 512] of length 1, or 0.

    0 is an image without an edge, or a missing one.
    """
    batches = [values[start : start + _BATCH] for start in range(0, len(values), _BATCH)]
    vectors = [_edge_vectors(_greys(batch, feature)) for batch in batches]
    return np.concatenate([np.zeros((0, _CELLS**2 * _DIRECTIONS), np.float32), *vectors])


def _greys(values: Iterable[Any], feature: Feature) -> npt.NDArray[np.float32]:
    """The images, or spectrograms of sounds, as float32[images, 32, 32]; 0 if missing."""
    images = (None if value is None else thumbnail(value, feature, 2 * _SIDE) for value in values)
    blank = np.zeros((_SIDE, _SIDE), np.float32)
    return np.array(
        [
            blank
            if image is None
            else np.asarray(image.convert("L").resize((_SIDE, _SIDE), Image.Resampling.BOX), "f4")
            for image in images
        ]
    )


def _edge_vectors(grey: npt.NDArray[np.float32]) -> Vectors:
    vertical, horizontal = np.gradient(grey, axis=1), np.gradient(grey, axis=2)
    strength = np.hypot(vertical, horizontal)
    direction = np.arctan2(vertical, horizontal) % np.pi / np.pi * _DIRECTIONS
    lower = np.floor(direction).astype(int) % _DIRECTIONS
    upper_part = direction - np.floor(direction)
    wide = _SIDE // _CELLS
    cells = np.zeros((len(grey), _CELLS, _CELLS, _DIRECTIONS), np.float32)
    for number in range(_DIRECTIONS):
        own = np.where(lower == number, 1 - upper_part, 0)
        own += np.where((lower + 1) % _DIRECTIONS == number, upper_part, 0)
        parts = (strength * own).reshape(-1, _CELLS, wide, _CELLS, wide)
        cells[..., number] = parts.sum(axis=(2, 4))
    vectors = np.sqrt(cells.reshape(len(grey), -1))
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.maximum(lengths, 1e-6), np.float32)
