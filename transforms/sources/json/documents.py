r"""Finds the records of JSON files that are not one object per line.

A file is one of three forms, as its beginning shows:

- ``lines``: each line is an object (JSON Lines).
- ``list``: the file is a list, whose items are the records: ``[{"x": 1}, {"x": 2}]``.
- ``objects``: objects that span lines, usually one per file: ``{\n  "x": 1\n}``.

With ``records="data"``, the file is an object, and the list is under its key: ``{"data": […]}``.

The text is read a window at a time, from any record on, so a list of any length is read in bounded
memory. Quotes, commas and brackets tell where records end; only the records are parsed. What is
between them becomes line breaks, so a window reads like JSON Lines::

    [{"x": 1}, {"x": 2}]   is read as   ␤{"x": 1}␤ {"x": 2}␤
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
from collections.abc import Callable, Iterator
from typing import Literal

import numpy as np
import numpy.typing as npt

from ...examples.row_values import UnfitError
from ...storage.decompress import DamagedError
from ..text_stream import Offsets, Rows, Text, text_start
from .rows import MAX_LINE_BYTES, TOO_LONG, WINDOW_BYTES, find_lines
from .values import parse_line

NO_LIST = "no list"
_HEAD_BYTES = 1 << 16
"""The form of a file shows in its first 64 KiB."""
_BLANKS = b" \t\r\n"
_BREAK = ord("\n")
_MEMBER = re.compile(rb'[ \t\r\n]*("(?:[^"\\]|\\.)*")[ \t\r\n]*:[ \t\r\n]*', re.DOTALL)
_MAX_SHOWN_KEYS = 8
_MAX_KEYS = 3
_STEPS = np.zeros(256, np.int64)
_STEPS[list(b"{[")] = 1
_STEPS[list(b"}]")] = -1
_IS_BLANK = np.isin(np.arange(256), list(_BLANKS))
_IS_MARK = np.isin(np.arange(256), list(b"{}[],"))


@dataclasses.dataclass(frozen=True)
class Form:
    """How the records of a file are stored."""

    kind: Literal["lines", "list", "objects", "none"]
    start: int = 0
    """Where the text of the first record begins: after the bracket of a list."""
    head_bytes: int = 0
    """So many first bytes show the form to the reader of a range."""
    inner: bool = False
    """Whether the list is a value of an object, which may have more keys."""
    problem: str = ""
    """Why the file has no records, if ``none``."""

    @property
    def record(self) -> str:
        """What a record is called in messages."""
        return "line" if self.kind == "lines" else "value"


class _NoListError(Exception):
    """A file has no list of records under the keys that ``records`` names."""


def find_form(text: Text, records: str | None = None) -> Form:
    """The form of a file.

    Args:
        text: Its text.
        records: Keys, joined by dots, of the list of records in the file's object.
    """
    try:
        begin = text_start(text)
        head = text.read(begin, min(begin + _HEAD_BYTES, text.stop))
        value = head.lstrip(_BLANKS)
        first = begin + len(head) - len(value)
        if records is not None:
            start = _list_under(text, first, records)
            return Form("list", start=start, head_bytes=first + 1, inner=True)
    except DamagedError:
        return Form("lines")  # whose reading reports the damage
    except _NoListError as error:
        return Form("none", problem=str(error))
    if value.startswith(b"["):
        end = _end_of(value)
        is_line = b"\n" not in value[:end] and value[end:].strip(_BLANKS)
        if not is_line:
            return Form("list", start=first + 1, head_bytes=first + 1)
    if value.startswith(b"{") and _spans_lines(value):
        return Form("objects", start=first, head_bytes=first + 1)
    return Form("lines")


def find_records(
    text: Text,
    start: int,
    stop: int,
    form: Form,
    *,
    is_cut: Callable[[], bool] = lambda: False,
) -> Iterator[Rows]:
    """The records that begin in [start, stop) of a text, in windows.

    Args:
        text: The text of a file.
        start: 0, or an offset that :func:`find_cuts` has returned.
        stop: The end of the text, or another such offset.
        form: The form of the file.
        is_cut: Whether the file goes on after ``stop``.

    Raises:
        DamagedError: if the rest of a compressed file cannot be decompressed, after all complete
            records before the damage have been yielded.
    """
    if form.kind == "lines":
        yield from find_lines(text, start, stop)
        return
    if form.kind == "none":
        yield _bad(0, b"", NO_LIST, form.problem)
        return
    max_bytes = MAX_LINE_BYTES if text.max_row_bytes is None else text.max_row_bytes
    structure, offset, held = _Structure(), max(start, form.start), b""
    skipping = False
    while True:
        place = offset + len(held)
        piece = text.read(place, min(place + WINDOW_BYTES, stop))
        found = _find_ends(structure.add(piece), form)
        if skipping and piece:
            end = _first_end(found)
            skipping = end is None
            end = len(piece) if end is None else end
            found, piece, offset = found.after(end), piece[end:], offset + end
            if not piece:
                continue
        ends, data = found.ends + len(held), held + piece
        if found.closing is not None:
            closing = len(held) + found.closing
            yield _rows(data[: closing + 1], offset, ends, form, closed=True)
            if form.kind == "list" and data[closing] != ord("]"):
                yield _bad(offset + closing, b"}", "not JSON", "the bracket } closes nothing")
            yield from _rest(text, offset + closing + 1, stop, form)
            return
        cut = int(ends[-1]) if len(ends) else 0
        if not piece:
            cut = len(data)
        if cut:
            yield _rows(data[:cut], offset, ends, form)
        offset, held = offset + cut, data[cut:]
        if len(held) > max_bytes:
            yield _bad(
                offset, held, TOO_LONG, f"the record does not end within {max_bytes:,} bytes"
            )
            offset, held, skipping = offset + len(held), b"", True
        if not piece:
            if form.kind == "list" and not is_cut():
                why = "the file ends before its list does, so records are missing"
                yield _bad(offset, b"", "truncated", why)
            return


def find_cuts(text: Text, form: Form, *, every: int) -> tuple[int, ...]:
    """Offsets, between records, at which a file may be cut, about ``every`` bytes apart."""
    structure, offset, cuts = _Structure(), form.start, list[int]()
    wanted, last = every, text.stop - every // 2
    while wanted < last and (piece := text.read(offset, min(offset + WINDOW_BYTES, text.stop))):
        found = _find_ends(structure.add(piece), form)
        ends = found.ends + offset
        while (at := int(np.searchsorted(ends, wanted))) < len(ends) and ends[at] < last:
            cuts.append(int(ends[at]))
            wanted = cuts[-1] - cuts[-1] % every + every
        if found.closing is not None:
            break
        offset += len(piece)
    return tuple(cuts)


def lists_of_objects(text: Text) -> list[str]:
    """What ``records`` could be: the keys of lists of objects in the object that a file is."""
    found: list[str] = []

    def look(place: int, above: str, depth: int) -> None:
        for key, value in _members(text, place):
            head = text.read(value, min(value + _HEAD_BYTES, text.stop))
            if head.startswith(b"[") and head[1:].lstrip(_BLANKS).startswith(b"{"):
                found.append(above + key)
            elif depth < _MAX_KEYS:
                look(value, f"{above}{key}.", depth + 1)

    begin = text_start(text)
    head = text.read(begin, min(begin + _HEAD_BYTES, text.stop))
    look(begin + len(head) - len(head.lstrip(_BLANKS)), "", 1)
    return found


@dataclasses.dataclass(frozen=True)
class _Marks:
    """The commas and brackets outside of strings in a piece of text."""

    positions: Offsets
    kinds: npt.NDArray[np.uint8]
    depths: Offsets
    """The depth of brackets after each."""


class _Structure:
    """Finds commas and brackets in a text that comes in pieces."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._is_escaped = False

    def add(self, piece: bytes) -> _Marks:
        """The marks of the next piece."""
        data = np.frombuffer(piece, np.uint8)
        quotes = np.flatnonzero(data == ord('"'))
        escaped = self._escaped(piece, data)
        if len(escaped):
            quotes = quotes[~np.isin(quotes, escaped, assume_unique=True)]
        positions = np.flatnonzero(_IS_MARK[data])
        inside = (np.searchsorted(quotes, positions) + self._in_string) % 2 == 1
        positions = positions[~inside]
        kinds = data[positions]
        depths = np.cumsum(_STEPS[kinds]) + self._depth
        self._in_string = bool((len(quotes) + self._in_string) % 2)
        self._depth = int(depths[-1]) if len(depths) else self._depth
        return _Marks(positions, kinds, depths)

    def _escaped(self, piece: bytes, data: npt.NDArray[np.uint8]) -> Offsets:
        """The positions of escaped bytes: after each first, third, … backslash of a run."""
        before, self._is_escaped = self._is_escaped and bool(piece), self._is_escaped and not piece
        first = np.zeros(int(before), np.int64)
        if b"\\" not in piece:
            return first
        slashes = np.flatnonzero(data == ord("\\"))
        if before and slashes[0] == 0:
            slashes = slashes[1:]
        begins = np.flatnonzero(np.diff(slashes, prepend=-2) != 1)
        run = np.repeat(slashes[begins], np.diff(begins, append=len(slashes)))
        escaped = slashes[(slashes - run) % 2 == 0] + 1
        self._is_escaped = bool(len(escaped)) and int(escaped[-1]) == len(piece)
        return np.concatenate((first, escaped))


@dataclasses.dataclass(frozen=True)
class _Ends:
    """Where records end in a piece of text."""

    ends: Offsets
    """After the comma of each, or after the bracket that closes an object."""
    closing: int | None
    """The bracket that ends the list, or that nothing has opened."""

    def after(self, place: int) -> _Ends:
        """The same in what follows a place before the bracket."""
        closing = None if self.closing is None else self.closing - place
        return _Ends(self.ends[self.ends > place] - place, closing)


def _find_ends(marks: _Marks, form: Form) -> _Ends:
    closed = np.flatnonzero(marks.depths < 0)
    closing = int(marks.positions[closed[0]]) if len(closed) else None
    is_end = marks.kinds == ord(",") if form.kind == "list" else _STEPS[marks.kinds] < 0
    ends = marks.positions[is_end & (marks.depths == 0)] + 1
    return _Ends(ends if closing is None else ends[ends <= closing], closing)


def _first_end(found: _Ends) -> int | None:
    """Where the first record ends; None if it goes on."""
    return int(found.ends[0]) if len(found.ends) else found.closing


def _rows(data: bytes, offset: int, ends: Offsets, form: Form, *, closed: bool = False) -> Rows:
    """The records of a window: those that end at ``ends``, and what follows the last of them."""
    is_list = form.kind == "list"
    array = np.frombuffer(bytearray(data), np.uint8)
    if is_list:
        array[ends - 1] = _BREAK
        array[-1:] = _BREAK if closed else array[-1:]
    solid = np.flatnonzero(~_IS_BLANK[array])
    first = np.searchsorted(solid, np.append(0, ends))
    stop = np.searchsorted(solid, np.append(ends, len(data)))
    full = stop > first
    # Two commas enclose a record that is empty: a reject.
    kept = full | (np.append(np.ones(len(ends), bool), False) if is_list else False)
    begins = np.append(0, ends)[kept]
    starts, stops = begins.copy(), begins.copy()
    starts[full[kept]] = solid[first[full]]
    stops[full[kept]] = solid[stop[full] - 1] + 1
    breaks = np.flatnonzero(array == _BREAK)
    inside = np.searchsorted(breaks, starts) != np.searchsorted(breaks, stops)
    return Rows(
        data=array.tobytes(),
        offset=offset,
        starts=starts,
        stops=stops,
        breaks_in_cells=bool(inside.any()),
    )


def _bad(offset: int, data: bytes, problem: str, detail: str) -> Rows:
    """What stands for a part of a text that cannot be read."""
    starts, stops = np.array([0]), np.array([len(data)])
    return Rows(
        data=data, offset=offset, starts=starts, stops=stops, problem=problem, detail=detail
    )


def _rest(text: Text, offset: int, stop: int, form: Form) -> Iterator[Rows]:
    """A bad row if a text goes on after the list that is all of its file."""
    while not form.inner and (piece := text.read(offset, min(offset + WINDOW_BYTES, stop))):
        if rest := piece.lstrip(_BLANKS):
            where = offset + len(piece) - len(rest)
            why = "expected nothing after the end of the list; what follows is lost"
            yield _bad(where, rest, "content after the end", why)
            return
        offset += len(piece)


def _end_of(value: bytes) -> int:
    """Where the list or object at the beginning of a text ends; its length if it does not."""
    marks = _Structure().add(value)
    ends = marks.positions[(marks.depths == 0) & (_STEPS[marks.kinds] < 0)]
    return int(ends[0]) + 1 if len(ends) else len(value)


def _spans_lines(value: bytes) -> bool:
    r"""Whether the object at the beginning of a text, or its part up to there, spans lines.

    The first line of JSON Lines may be damaged: so all must be valid JSON.

    >>> _spans_lines(b'{"x":\n1}\n'), _spans_lines(b'{"x":\n{"x": 1}\n{"x": 2}\n')
    (True, False)
    """
    line, newline, _ = value.partition(b"\n")
    if not newline or is_object(line):
        return False
    end = _end_of(value)
    if b"\n" not in value[:end]:
        return False
    if end < len(value) or is_object(value):
        return is_object(value[:end])
    # No string contains a line break.
    text = value[: value.rfind(b"\n")].decode("utf-8", "surrogateescape").rstrip()
    try:
        json.JSONDecoder().raw_decode(text)
    except json.JSONDecodeError as error:
        return error.pos >= len(text) - 1
    except (RecursionError, ValueError):
        return False
    return True


def is_object(text: bytes) -> bool:
    """Whether a text is a JSON object that can be a record."""
    try:
        parse_line(text)
    except UnfitError:
        return False
    return True


def _list_under(text: Text, first: int, records: str) -> int:
    """Where the items of the list under some keys begin."""
    if text.read(first, first + 1) == b"[":
        raise _NoListError(f"is a list itself: leave out records={records!r}")
    place = _find_member(text, first, records.split("."))
    if place is None:
        members = itertools.islice(_members(text, first), _MAX_SHOWN_KEYS)
        keys = ", ".join(repr(key) for key, _ in members) or "no keys"
        raise _NoListError(f"has nothing under records={records!r}. Its object has {keys}")
    if text.read(place, place + 1) != b"[":
        raise _NoListError(f"has something other than a list under records={records!r}")
    return place + 1


def _find_member(text: Text, place: int, parts: list[str]) -> int | None:
    """Where the value under keys of the object at ``place`` begins; None if there is none.

    As in names of features, keys are joined by dots, and a key may contain dots.
    """
    rests = {".".join(parts[:n]): parts[n:] for n in range(1, len(parts) + 1)}
    for key, value in _members(text, place):
        if key in rests:
            inner = _find_member(text, value, rests[key]) if rests[key] else value
            if inner is not None:
                return inner
    return None


def _members(text: Text, place: int) -> Iterator[tuple[str, int]]:
    """The keys of the object at ``place``, if one is there, and where their values begin."""
    offset: int | None = place + 1 if text.read(place, place + 1) == b"{" else None
    while offset is not None:
        member = _MEMBER.match(text.read(offset, min(offset + _HEAD_BYTES, text.stop)))
        if member is None:
            return
        value = offset + member.end()
        try:
            key = json.loads(member[1].decode("utf-8", "replace"), strict=False)
        except ValueError:  # an invalid escape
            return
        yield key, value
        offset = _after_member(text, value)


def _after_member(text: Text, offset: int) -> int | None:
    """Where the member after the value at ``offset`` begins; None if it is the last."""
    structure, items = _Structure(), Form("list")
    while piece := text.read(offset, min(offset + WINDOW_BYTES, text.stop)):
        found = _find_ends(structure.add(piece), items)
        if len(found.ends):
            return offset + int(found.ends[0])
        if found.closing is not None:
            return None
        offset += len(piece)
    return None
