"""Lines of a text, a window at a time, with the place of each in the text."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from .text_stream import Text

WINDOW_BYTES = 1 << 20
"""About so much text is looked at at once: whole lines, so more where one is longer."""
MAX_LINE_BYTES = 64 << 20
"""A line longer than this is none."""

_MARK = b"\xef\xbb\xbf"
_BLANKS = b" \t\r"


@dataclasses.dataclass(frozen=True)
class Lines:
    """The lines of a window that are not blank."""

    data: bytes
    offset: int
    """Where the window begins in the text, in bytes."""
    starts: npt.NDArray[np.int64]
    stops: npt.NDArray[np.int64]
    """Where each line begins and ends in the window; without its line break, and blanks there."""
    too_long: int = 0
    """How long a line may be, where this is the beginning of a longer one and nothing else."""

    def __len__(self) -> int:
        return len(self.starts)

    def text(self, line: int) -> bytes:
        """One line."""
        return self.data[self.starts[line] : self.stops[line]]

    def part(self, start: int, stop: int) -> Lines:
        """Some of the lines, as they stand."""
        first, last = int(self.starts[start]), int(self.stops[stop - 1])
        return Lines(
            self.data[first:last],
            self.offset + first,
            self.starts[start:stop] - first,
            self.stops[start:stop] - first,
        )

    def take(self, mask: npt.NDArray[np.bool_]) -> Lines:
        """The lines where the mask holds, put together."""
        texts = [self.text(line) + b"\n" for line in np.flatnonzero(mask).tolist()]
        ends = np.cumsum([0, *map(len, texts)])
        return Lines(b"".join(texts), self.offset, ends[:-1], ends[1:] - 1)

    @property
    def positions(self) -> npt.NDArray[np.int64]:
        """Where each line begins in the text, in bytes."""
        return self.starts + self.offset


def find_lines(text: Text, start: int, stop: int) -> Iterator[Lines]:
    """The lines that begin in [start, stop) of a text, in windows; a mark at its head left out.

    Raises:
        DamagedError: where what is left of a compressed file cannot be decompressed, once all
            whole lines before have been given.
    """
    offset, held = start, b""
    if start == 0 and text.read(0, len(_MARK)) == _MARK:
        offset = len(_MARK)
    max_bytes = MAX_LINE_BYTES if text.max_row_bytes is None else text.max_row_bytes
    skipping = False
    while True:
        first = offset + len(held)
        piece = text.read(first, min(first + WINDOW_BYTES, stop))
        ended = not piece
        if skipping:
            end = piece.find(b"\n") + 1
            skipping = not end
            offset, piece = first + (end or len(piece)), piece[end or len(piece) :]
        held += piece
        cut = len(held) if ended else held.rfind(b"\n") + 1
        if cut:
            yield _split(held[:cut], offset)
            offset, held = offset + cut, held[cut:]
        elif len(held) > max_bytes:
            whole = np.array([0]), np.array([len(held)])
            yield Lines(held, offset, *whole, too_long=max_bytes)
            offset, held, skipping = offset + len(held), b"", True
        if ended:
            return


def _split(data: bytes, offset: int) -> Lines:
    array = np.frombuffer(data, np.uint8)
    breaks = np.flatnonzero(array == ord("\n"))
    starts = np.concatenate(([0], breaks + 1))
    stops = np.concatenate((breaks, [len(data)]))
    # Most lines have no blanks at their ends but a carriage return.
    full = stops > starts
    starts, stops = starts[full], stops[full]
    blank_first = np.isin(array[starts], list(_BLANKS))
    blank_last = np.isin(array[stops - 1], list(_BLANKS))
    for line in np.flatnonzero(blank_first | blank_last).tolist():
        begin, end = int(starts[line]), int(stops[line])
        stripped = data[begin:end].strip(_BLANKS)
        begin += data[begin:end].find(stripped) if stripped else 0
        starts[line], stops[line] = begin, begin + len(stripped)
    full = stops > starts
    return Lines(data, offset, starts[full].astype(np.int64), stops[full].astype(np.int64))
