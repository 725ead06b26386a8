"""Infers the features of JSON Lines from their objects.

=============================== ==================================================================
values                          feature
=============================== ==================================================================
true, false                     bool
integers                        int64; uint64 if some are too large for int64 and none is negative;
                                string if neither holds them all
other numbers                   float64, also for integers among them; string if an integer would
                                change as a float64 (from 2^53 on)
strings                         string, including times: see ``types``
a list                          Sequence; a Tensor for lists of lists, each dimension None
an object                       features named ``key.inner``; the same for lists of objects, with
                                one more dimension
values of different kinds       string: strings unchanged, all others as JSON text
null or a missing key           optional; string if there is nothing else
the label, if strings or bools  ClassLabel, names sorted, if there are at most 1,000 of them
=============================== ==================================================================

pyarrow types each window of lines, and the types of the windows are joined, so the result does not
depend on where windows begin.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from collections.abc import Sequence as SequenceOf
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ....schemas.errors import SchemaError
from ....schemas.features import Feature, Scalar, Sequence, Tensor
from ....schemas.wire import Dtype
from ...examples.dtypes import holds_exactly, is_exact
from ...examples.row_values import UnfitError
from ...in_parts import in_parts
from ..arrow.types import MAX_DEPTH, Leaf, extract, leaves_of, nulls
from ..arrow.values import EXACT
from ..text_stream import Rows
from .rows import FileLines, join_files, parse
from .values import parse_line

Kind = Literal["null", "bool", "natural", "int", "uint64", "wide", "float", "string"]
"""``natural`` integers fit both int64 and uint64, ``wide`` ones neither."""

_DTYPES: dict[Kind, Dtype] = {
    "bool": "bool",
    "natural": "int64",
    "int": "int64",
    "uint64": "uint64",
    "float": "float64",
}


_FEW_LINES = 32
"""So many lines that pyarrow cannot parse are parsed one by one."""

Keys = tuple[str, ...]
"""The keys of nested objects that lead to a value, ignoring lists."""


@dataclasses.dataclass
class Seen:
    """What is known of a name so far."""

    kind: Kind
    depth: int
    """Depth of lists around each value; -1 if it differs."""
    missing: bool = False
    empty: bool = False
    """Whether all its values were empty lists."""
    inexact: bool = False
    """Whether an integer changes as a float64."""


@dataclasses.dataclass
class JsonTypes:
    """The types of the values under each name, as inferred so far."""

    path: str
    seen: dict[Keys, Seen] = dataclasses.field(default_factory=dict)
    num_rows: int = 0

    def to_json(self) -> dict[str, Any]:
        """Plain JSON, which :meth:`from_json` reads."""
        seen = [[list(keys), *dataclasses.astuple(facts)] for keys, facts in self.seen.items()]
        return {"seen": seen, "num_rows": self.num_rows}

    @classmethod
    def from_json(cls, path: str, value: Any) -> JsonTypes:
        """Reads the output of :meth:`to_json`."""
        seen = {tuple(keys): Seen(*facts) for keys, *facts in value["seen"]}
        return cls(path, seen, value["num_rows"])

    @classmethod
    def of_files(cls, files: SequenceOf[FileLines], *, max_columns: int) -> JsonTypes | None:
        """The types in several files; None if merging those of each file might give others.

        The types are the same wherever windows begin. What may differ is the order of names: if
        lines have other forms, or lack what is inside an object.
        """
        lines, types = join_files(files), cls(files[0].path)
        if not len(lines):
            return types
        if _odd_lines(lines).any():
            return None
        inferred, _ = types._of_lines(lines, complete=True)
        return None if inferred is None or len(inferred.seen) > max_columns else inferred

    def add(self, lines: Rows) -> None:
        """Adds some lines. Lines that are not objects are ignored."""
        if lines.problem or not len(lines):
            return
        odd = _odd_lines(lines)
        plain = lines.take(np.flatnonzero(~odd)) if odd.any() else lines
        for part in self._parsed(plain):
            self.merge(part)
        for line in np.flatnonzero(odd).tolist():
            self._add_line(lines, line)

    def merge(self, other: JsonTypes) -> None:
        """Adds what is known from other lines."""
        if not other.num_rows:
            return
        before = self.num_rows
        for name, seen in other.seen.items():
            known = self.seen.get(name)
            if known is None:
                late = before > 0 and not self._stands_empty(name, self.seen)
                self.seen[name] = dataclasses.replace(seen, missing=seen.missing or late)
            else:
                self.seen[name] = _join(known, seen)
        for name, known in self.seen.items():
            if name not in other.seen and not self._stands_empty(name, other.seen):
                known.missing = True
        self.num_rows += other.num_rows

    def features(self) -> dict[str, Feature]:
        """The feature of each name."""
        above = {keys[:n] for keys in self.seen for n in range(1, len(keys))}
        # A value where other lines have an object: both become text.
        mixed = {keys for keys in above if keys in self.seen and self.seen[keys].kind != "null"}
        joined: dict[str, Seen] = {}
        for keys, seen in self.seen.items():
            if keys in above - mixed or any(keys[:n] in mixed for n in range(1, len(keys))):
                continue
            name, known = ".".join(keys), seen
            if keys in mixed:
                known = dataclasses.replace(seen, kind="string", depth=-1)
            if name in joined:
                # An object in some lines, a key with a dot in others.
                known = _join(joined[name], known)
            joined[name] = known
        return {name: _feature(seen) for name, seen in joined.items()}

    def _stands_empty(self, keys: Keys, seen: dict[Keys, Seen]) -> bool:
        """Whether a parent was always an empty list, in which case nothing is missing."""
        above = (seen.get(keys[:n]) for n in range(1, len(keys)))
        return any(parent is not None and parent.empty and not parent.missing for parent in above)

    def _parsed(self, lines: Rows) -> Iterator[JsonTypes]:
        """The types that pyarrow finds, by halving lines that it cannot parse."""

        def find(start: int, stop: int) -> list[JsonTypes] | None:
            part = lines.part(start, stop)
            types, unclear = self._of_lines(part)
            if unclear.any():
                clear = part.take(np.flatnonzero(~unclear))
                return [self._by_line(part.take(np.flatnonzero(unclear))), *self._parsed(clear)]
            return None if types is None else [types]

        for start, stop, found in in_parts(find, len(lines), smallest=_FEW_LINES):
            if isinstance(found, list):
                yield from found
            else:
                yield self._by_line(lines.part(start, stop))

    def _by_line(self, lines: Rows) -> JsonTypes:
        types = JsonTypes(self.path)
        for line in range(len(lines)):
            types._add_line(lines, line)
        return types

    def _of_lines(
        self, lines: Rows, *, complete: bool = False
    ) -> tuple[JsonTypes | None, npt.NDArray[np.bool_]]:
        """The types that pyarrow finds, or the lines it may read inexactly; neither if it fails.

        If ``complete``, each line must have all values that are inside of objects.
        """
        table, clear = parse(lines, None), np.zeros(len(lines), bool)
        if table is None:
            return None, clear
        try:
            unclear = _unclear_rows(table, self.path)
            if complete and not _is_complete(table, self.path):
                return None, clear
            return (None if unclear.any() else self._of_table(table)), unclear
        except SchemaError:  # {"x": {"a": {"b": 1}, "a.b": 2}}: such lines will be rejected
            return None, clear

    def _of_table(self, table: pa.Table) -> JsonTypes:
        types = JsonTypes(self.path, num_rows=table.num_rows)
        for column, field in zip(table.columns, table.schema, strict=True):
            schema = pa.schema([field])
            for leaf in leaves_of(schema, path=self.path).values():
                cells = extract(column.combine_chunks(), leaf)
                types.seen[_keys(leaf, schema)] = Seen(
                    _kind(cells.values),
                    len(leaf.shape),
                    missing=bool(cells.missing().any()),
                    empty=pa.types.is_null(leaf.type) and bool(leaf.shape),
                    inexact=_is_inexact(cells.values),
                )
        return types

    def _add_line(self, lines: Rows, line: int) -> None:
        try:
            value = parse_line(lines.text(line))
            seen_values = list(_of_value(value, (), 0))
            "".join(key for keys, _ in seen_values for key in keys).encode()
        except (UnfitError, UnicodeEncodeError):
            return
        types = JsonTypes(self.path, num_rows=1)
        for keys, seen in seen_values:
            if seen.depth + len(keys) > MAX_DEPTH:
                raise SchemaError(
                    f"{self.path} byte {int(lines.positions[line])}: {keys[0]!r} is nested more "
                    f"than {MAX_DEPTH} levels deep. Flatten it, or remove the line."
                )
            if not keys[-1] or keys[-1].endswith("."):
                raise SchemaError(
                    f"{self.path} byte {int(lines.positions[line])}: the key {'.'.join(keys)!r} is "
                    "empty or ends with a dot. Rename it, or remove the line."
                )
            known = types.seen.get(keys)
            types.seen[keys] = seen if known is None else _join(known, seen)
        self.merge(types)


def _keys(leaf: Leaf, schema: pa.Schema) -> Keys:
    """The keys that lead to a leaf: its name, split where objects are nested."""
    type_, keys = schema.field(leaf.column).type, [schema.names[leaf.column]]
    for index in leaf.fields:
        while not pa.types.is_struct(type_):
            type_ = type_.value_type
        keys.append(type_.field(index).name)
        type_ = type_.field(index).type
    return tuple(keys)


def _odd_lines(lines: Rows) -> npt.NDArray[np.bool_]:
    """Which lines pyarrow would misread, or that are nested too deeply for it."""
    odd = np.zeros(len(lines), bool)
    data = np.frombuffer(lines.data, np.uint8)
    long = _long_integers(data)
    odd[np.maximum(np.searchsorted(lines.starts, long, side="right") - 1, 0)] = True
    opens = np.flatnonzero((data == ord("{")) | (data == ord("[")))
    of_lines = np.searchsorted(lines.starts, opens, side="right") - 1
    many = np.bincount(np.maximum(of_lines, 0), minlength=len(lines)) >= MAX_DEPTH
    for line in np.flatnonzero(many).tolist():
        part = data[lines.starts[line] : lines.stops[line]]
        step = np.zeros(len(part), np.int64)
        step[(part == ord("{")) | (part == ord("["))] = 1
        step[(part == ord("}")) | (part == ord("]"))] = -1
        odd[line] |= step.cumsum().max() >= MAX_DEPTH
    return odd


def _long_integers(data: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    """Starts of 19 or more digits that may be an integer, not a fraction or a string."""
    run = data - np.uint8(ord("0")) < 10
    for step in (1, 2, 4, 8, 3):  # runs of 2, 4, 8, 16, 19
        run = run[step:] & run[:-step] if len(run) > step else run[:0]
    starts = np.flatnonzero(run)
    before = data[np.maximum(starts - 1, 0)]
    # 46 begins a fraction, 34 a string; after 48 to 57 the digits began earlier.
    inside = (before >= 48) & (before <= 57)
    kept: npt.NDArray[np.int64] = starts[(before != 46) & (before != 34) & ~inside]
    return kept


def _kind(values: pa.Array) -> Kind:
    type_ = values.type
    if pa.types.is_null(type_):
        return "null"
    if pa.types.is_boolean(type_):
        return "bool"
    if pa.types.is_integer(type_):
        lowest = pc.min(values).as_py()
        return "natural" if lowest is None or lowest >= 0 else "int"
    # pyarrow parses strings that look like times as times.
    return "float" if pa.types.is_floating(type_) else "string"


def _is_inexact(values: pa.Array) -> bool:
    if not pa.types.is_integer(values.type):
        return False
    return not holds_exactly(values.drop_null().to_numpy(), "float64").all()


def _unclear_rows(table: pa.Table, path: str) -> npt.NDArray[np.bool_]:
    """Rows with floats so large that they may be integers that lost digits."""
    doubtful = np.zeros(table.num_rows, bool)
    for column, field in zip(table.columns, table.schema, strict=True):
        for leaf in leaves_of(pa.schema([field]), path=path).values():
            if pa.types.is_floating(leaf.type):
                cells = extract(column.combine_chunks(), leaf)
                large = np.abs(cells.values.to_numpy(zero_copy_only=False)) >= EXACT
                doubtful[cells.rows_of_values()[large]] = True
    return doubtful


def _is_complete(table: pa.Table, path: str) -> bool:
    """Whether each row has all values that are inside of objects."""
    for leaf in leaves_of(table.schema, path=path).values():
        if leaf.fields:
            cells = extract(table.column(leaf.column).combine_chunks(), leaf)
            rows = cells.rows_of_values()[~nulls(cells.values)]
            if len(np.unique(rows)) < table.num_rows:
                return False
    return True


def _of_value(value: Any, keys: Keys, depth: int) -> Iterator[tuple[Keys, Seen]]:
    if len(keys) + depth > MAX_DEPTH:
        yield keys, Seen("null", depth + 1)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _of_value(item, (*keys, key), depth)
    elif isinstance(value, list):
        if not value:
            yield keys, Seen("null", depth + 1, empty=True)
        for item in value:
            yield from _of_value(item, keys, depth + 1)
    else:
        yield (
            keys,
            Seen(
                _kind_of_value(value),
                depth,
                missing=value is None and not depth,
                inexact=isinstance(value, int) and not is_exact(value, "float64"),
            ),
        )


def _kind_of_value(value: Any) -> Kind:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, float):
        return "float"
    if not isinstance(value, int):
        return "string"
    if value < 0:
        return "int" if value >= -(2**63) else "wide"
    return "natural" if value < 2**63 else "uint64" if value < 2**64 else "wide"


def _join(one: Seen, other: Seen) -> Seen:
    inexact = one.inexact or other.inexact
    return dataclasses.replace(_joined(one, other), inexact=inexact)


def _joined(one: Seen, other: Seen) -> Seen:
    missing = one.missing or other.missing
    empty = one.empty and other.empty
    # A null says nothing about lists, and an empty list nothing about lists inside it.
    if one.kind == "null" and one.depth <= other.depth:
        return Seen(
            other.kind, other.depth, missing, empty or (other.kind == "null" and other.empty)
        )
    if other.kind == "null" and other.depth <= one.depth:
        return Seen(one.kind, one.depth, missing, empty or (one.kind == "null" and one.empty))
    if one.depth != other.depth:
        return Seen("string", -1, missing)
    return Seen(_join_kinds(one.kind, other.kind), one.depth, missing)


def _join_kinds(one: Kind, other: Kind) -> Kind:
    """The narrowest kind that holds both."""
    kinds = {one, other}
    if len(kinds) == 1:
        return one
    if "string" in kinds or "bool" in kinds:
        return "string"
    if "float" in kinds:
        return "float"
    if "wide" in kinds or kinds == {"int", "uint64"}:
        return "wide"
    return "uint64" if "uint64" in kinds else "int"


def _feature(seen: Seen) -> Feature:
    dtype = _DTYPES.get(seen.kind, "string")
    if seen.kind == "float" and seen.inexact:
        dtype = "string"
    if seen.depth <= 0:
        return Scalar(dtype, optional=seen.missing)
    if seen.depth == 1:
        return Sequence(Scalar(dtype), optional=seen.missing)
    return Tensor(dtype, (None,) * seen.depth)
