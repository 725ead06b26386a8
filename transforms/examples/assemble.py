"""Assembles rows from pieces: the bytes of each row, piece after piece, in one Arrow column.

Pieces made of numbers and constants are stored by NumPy in one preallocated buffer; columns of
bytes that exist already are joined with them by Arrow, which alone copies them.
"""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from .varint import (
    Matrix,
    Rows,
    Sizes,
    equal_widths,
    lay_beside,
    scatter,
    through_table,
    varint_sizes,
)

# Rows assembled at a time: their part of the buffer stays in the processor's cache while one
# piece after the other is stored in it.
_TILE_ROWS = 4096


@dataclasses.dataclass(frozen=True)
class Piece:
    """Some bytes of each row, before they are built."""

    sizes: Sizes
    """int64[n], bytes of each row; 0 where the row has none."""
    build: Callable[[slice], Iterator[tuple[Rows, Matrix]]]
    """For a range of rows: groups of rows (counted from the range's start) and their bytes."""


def length_head(lengths: Sizes) -> Piece:
    """``0a <length>``: before a value of a list of bytes, and before all of an Example."""
    sizes = 1 + varint_sizes(lengths).astype(np.int64)

    def head(chosen: Sizes) -> Matrix:
        return lay_beside([b"\x0a", chosen], len(chosen))

    def build(tile: slice) -> Iterator[tuple[Rows, Matrix]]:
        tile_lengths = lengths[tile]
        for _, rows in equal_widths(sizes[tile]):
            yield rows, through_table(head, tile_lengths[rows])

    return Piece(sizes, build)


def assemble(pieces: list[Piece]) -> pa.LargeBinaryArray:
    """Builds pieces one after the other within each row: large_binary[n]."""
    sizes = pieces[0].sizes.copy()
    for piece in pieces[1:]:
        sizes += piece.sizes
    offsets = running(sizes)
    out = np.empty(int(offsets[-1]), np.uint8)
    for first in range(0, len(sizes), _TILE_ROWS):
        tile = slice(first, first + _TILE_ROWS)
        starts = offsets[:-1][tile].copy()
        for piece in pieces:
            for rows, chunk in piece.build(tile):
                scatter(out, starts[rows], chunk)
            starts += piece.sizes[tile]
    return binary_array(offsets, pa.py_buffer(out))


def join(parts: list[pa.Array]) -> pa.Array:
    """Appends columns of large_binary[n] to each other, row by row; a null adds nothing."""
    if len(parts) == 1:
        return parts[0]
    separator = pa.scalar(b"", pa.large_binary())
    return pc.binary_join_element_wise(
        *parts, separator, null_handling="replace", null_replacement=b""
    )


def running(sizes: npt.NDArray[Any]) -> Sizes:
    """Offsets of n neighbours from their sizes: int64[n + 1]."""
    offsets = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, dtype=np.int64, out=offsets[1:])
    return offsets


def binary_array(offsets: Sizes, data: pa.Buffer) -> pa.LargeBinaryArray:
    """Cuts bytes at n + 1 offsets: large_binary[n]; nothing is copied."""
    buffers = [None, pa.py_buffer(offsets), data]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(offsets) - 1, buffers)
