"""Converts lines of JSON to the wire columns of features, with a reject for each invalid line.

Lines are read a window at a time, each with its offset. pyarrow parses a window directly into the
types of the features. If that fails, Python reads the lines around the failure one by one. Python's
result is authoritative, so records and rejects do not depend on where windows begin.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.json

from ....schemas.blocks import RawBatch
from ....schemas.errors import Reject, SchemaError
from ....schemas.features import ClassLabel, Feature, Features, Timestamp, tensor_form
from ....schemas.wire import FLOATS
from ...examples.dtypes import PRECISION, numpy_dtype
from ...examples.row_values import UnfitError
from ...rejects import reject_at, with_bytes
from ...runs.files import wire_schema
from ..arrow.rows import RowReader
from ..arrow.types import extract, leaves_of
from ..arrow.values import EXACT, item_of
from ..table_files import concat
from ..text_stream import Rows, Text, join_rows, text_start
from .values import find_value, fitted, parse_line, routes

WINDOW_BYTES = 1 << 20
"""Approximate size of a window, which has complete lines only."""
MAX_LINE_BYTES = 64 << 20
"""Maximum length of a line."""

TOO_LONG = "line too long"
_BLANKS = b" \t\r"
_IS_BLANK = np.isin(np.arange(256), list(_BLANKS))

_CHUNK_LINES = 512
_MAX_SAMPLED_LINES = 1000

Tree = dict[str, Any]
"""Key -> (depth of lists under it, a Tree or the type of values)."""


def find_lines(text: Text, start: int, stop: int) -> Iterator[Rows]:
    """The lines that begin in [start, stop) of a text, in windows. Skips a byte order mark.

    Raises:
        DamagedError: if the rest of a compressed file cannot be decompressed, after all complete
            lines before the damage have been yielded.
    """
    offset, held = start or text_start(text), b""
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
            yield Rows(
                data=held,
                offset=offset,
                starts=np.array([0]),
                stops=np.array([len(held)]),
                problem=TOO_LONG,
                max_row_bytes=max_bytes,
            )
            offset, held, skipping = offset + len(held), b"", True
        if ended:
            return


def _split(data: bytes, offset: int) -> Rows:
    array = np.frombuffer(data, np.uint8)
    breaks = np.flatnonzero(array == ord("\n"))
    starts = np.concatenate(([0], breaks + 1))
    stops = np.concatenate((breaks, [len(data)]))
    # Most lines have no outer blanks except a carriage return.
    full = stops > starts
    starts, stops = starts[full], stops[full]
    blank_first = _IS_BLANK[array[starts]]
    blank_last = _IS_BLANK[array[stops - 1]]
    for line in np.flatnonzero(blank_first | blank_last).tolist():
        begin, end = int(starts[line]), int(stops[line])
        stripped = data[begin:end].strip(_BLANKS)
        begin += data[begin:end].find(stripped) if stripped else 0
        starts[line], stops[line] = begin, begin + len(stripped)
    full = stops > starts
    return Rows(data=data, offset=offset, starts=starts[full], stops=stops[full])


class FileLines(NamedTuple):
    """The lines of a small file, which are parsed together with those of others."""

    path: str
    windows: Sequence[Rows]
    what: str = "line"
    """What holds an object, for messages."""


def join_files(files: Sequence[FileLines]) -> Rows:
    """The lines of several files, whose ``offset`` is meaningless."""
    return join_rows([lines for file in files for lines in file.windows])


def read_together(files: Sequence[FileLines], features: Features) -> RawBatch | None:
    """The records of several files; None if there may be rejects."""
    lines = join_files(files)
    reader = JsonReader(files[0].path, features)
    try:
        batch = reader.read_valid(lines)
    except SchemaError:  # names the file at fault when that is read alone
        return None
    if batch is None or batch.rejects:
        return None
    ids = [
        f"{file.path}#{position}"
        for file in files
        for lines in file.windows
        for position in lines.positions.tolist()
    ]
    return dataclasses.replace(batch, ids=ids)


class JsonReader:
    """Converts the lines of one file to batches of wire columns."""

    def __init__(self, path: str, features: Features, *, what: str = "line") -> None:
        """Finds nothing yet.

        Args:
            path: The file's path, relative to the source.
            features: Those of the lines.
            what: What holds an object, for messages: a line, or an object of a document.
        """
        self._path = path
        self._what = what
        self._features = features
        self._parts = {name: name.split(".") for name in features}
        self._wire = wire_schema(features)
        self.fast: _Fast | None = None
        self._types: dict[str, pa.DataType] = {}
        forms = {name: tensor_form(feature) for name, feature in features.items()}
        self._dtypes = {name: form.dtype if form else "" for name, form in forms.items()}

    def read(self, lines: Rows) -> RawBatch:
        """The records of a window."""
        if lines.problem:
            too_long = f"the line does not end within {lines.max_row_bytes:,} bytes"
            reject = self._reject(lines, 0, UnfitError(lines.detail or too_long, lines.problem))
            return RawBatch(ids=[], columns=self._nothing(), rejects=(reject,))
        if not self._types:
            self.find_routes(lines)
        whole = self._read_fast(lines)
        if whole is not None:
            return whole
        batches = []
        for start in range(0, len(lines), _CHUNK_LINES):
            part = lines.part(start, min(start + _CHUNK_LINES, len(lines)))
            batches.append(self._read_fast(part) or self._read_singly(part))
        return concat(batches) if batches else RawBatch(ids=[], columns=self._nothing())

    def read_valid(self, lines: Rows) -> RawBatch | None:
        """The records of a window; None if pyarrow cannot parse all of it."""
        self.find_routes(lines)
        return self._read_fast(lines)

    def _nothing(self) -> pa.RecordBatch:
        return pa.RecordBatch.from_pylist([], schema=self._wire)

    def find_routes(self, lines: Rows) -> None:
        """Finds the paths of the features in the objects, from the first lines that have them."""
        tree: Tree | None = {}
        left = dict(self._parts)
        others: set[str] = set()
        for line in range(min(len(lines), _MAX_SAMPLED_LINES)):
            if not left:
                break
            try:
                record = parse_line(lines.text(line))
            except UnfitError:
                continue
            for name, parts in list(left.items()):
                route = routes(record, parts)
                if route is None or route[1] is None:
                    continue
                del left[name]
                steps, value = route
                others |= _joined_keys(parts) - {key for key, _ in steps}
                type_ = _value_type(self._features[name], value)
                depth = sum(lists for _, lists in steps)
                if depth not in _depths(self._features[name]):
                    # The values differ in kind, which only line-by-line reading detects.
                    depth, tree = _depths(self._features[name])[0], None
                if _leads_elsewhere(parts, [key for key, _ in steps]):
                    tree = None
                self._types[name] = _nested(type_, depth)
                tree = _planted(tree, steps, type_)
        for name, parts in left.items():
            feature = self._features[name]
            depth = _depths(feature)[0]
            # No column has an empty name, so these dots are part of a key.
            keys = parts if all(parts) else [name]
            steps = (*((key, 0) for key in keys[:-1]), (keys[-1], depth))
            others |= _joined_keys(parts) - set(keys)
            type_ = _value_type(feature, None)
            self._types[name] = _nested(type_, depth)
            tree = _planted(tree, steps, type_)
        if tree is not None:
            schema = pa.schema([pa.field(key, _arrow(*node)) for key, node in tree.items()])
            self.fast = _Fast(
                schema=schema,
                others=_OtherKeys(others),
                reader=RowReader(schema, self._features, path=self._path, unit="byte"),
            )

    def _read_fast(self, lines: Rows) -> RawBatch | None:
        """The records of lines, if pyarrow can parse them all; else None."""
        fast = self.fast
        if fast is None or not len(lines) or fast.may_differ(lines.data):
            return None
        table = parse(lines, fast.schema)
        if table is None:
            return None
        batch = table.combine_chunks().to_batches()[0]
        try:
            for row in np.flatnonzero(self._may_be_inexact(batch)).tolist():
                self._values(lines.text(row))
        except UnfitError:
            return None
        return fast.reader.read(batch, lines.positions, payload=lines.text)

    def _may_be_inexact(self, batch: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        """Rows with floats so large that they may be integers that are inexact in the dtype."""
        doubtful = np.zeros(len(batch), bool)
        for name, leaf in leaves_of(batch.schema, path=self._path).items():
            if pa.types.is_floating(leaf.type):
                cells = extract(batch.column(leaf.column), leaf)
                values = np.abs(cells.values.to_numpy(zero_copy_only=False))
                dtype = self._dtypes[name]
                large = values >= 1 << PRECISION[dtype]
                # Below EXACT a float equals the written number.
                whole = (values >= EXACT) | (values == np.floor(values))
                with np.errstate(over="ignore"):
                    same = (values < EXACT) & (values == values.astype(numpy_dtype(dtype)))
                doubtful[cells.rows_of_values()[large & whole & ~same]] = True
        return doubtful

    def _read_singly(self, lines: Rows) -> RawBatch:
        rejects: list[Reject] = []
        rows: list[int] = []
        columns: dict[str, list[Any]] = {name: [] for name in self._features}
        for line in range(len(lines)):
            try:
                values = self._values(lines.text(line))
            except UnfitError as error:
                rejects.append(self._reject(lines, line, error))
                continue
            except RecursionError:
                deep = UnfitError(f"the {self._what} is nested too deeply", "nested too deeply")
                rejects.append(self._reject(lines, line, deep))
                continue
            rows.append(line)
            for name, value in values.items():
                columns[name].append(value)
        schema = pa.schema([(name, self._types[name]) for name in columns])
        arrays = [pa.array(columns[field.name], field.type) for field in schema]
        reader = RowReader(schema, self._features, path=self._path, unit="byte")
        at = lines.positions[np.array(rows, np.int64)]
        batch = reader.read(
            pa.RecordBatch.from_arrays(arrays, schema=schema),
            at,
            payload=lambda row: lines.text(rows[row]),
        )
        ordered = sorted((*rejects, *batch.rejects), key=lambda reject: reject.position or 0)
        return dataclasses.replace(batch, rejects=tuple(ordered))

    def _values(self, line: bytes) -> dict[str, Any]:
        value = parse_line(line, what=self._what)
        values = {}
        for name, parts in self._parts.items():
            try:
                values[name] = fitted(
                    find_value(value, parts), self._types[name], self._dtypes[name]
                )
            except UnfitError as error:
                raise UnfitError(f"{name!r} {error}", error.reason) from None
        return values

    def _reject(self, lines: Rows, line: int, error: UnfitError) -> Reject:
        position = int(lines.positions[line])
        reject = reject_at(
            self._path,
            position,
            stage="read",
            reason=error.reason,
            message=f"{self._path} byte {position}: {error}. Fix the {self._what}, or raise "
            f"max_rejects to quarantine such {self._what}s.",
            exception=type(error).__name__,
        )
        return with_bytes(reject, lines.text(line))


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Fast:
    """How pyarrow parses lines."""

    schema: pa.Schema
    others: _OtherKeys
    reader: RowReader

    def may_differ(self, data: bytes) -> bool:
        """Whether lines may contain what pyarrow ignores: a value elsewhere, an invalid key."""
        if self.others.may_be_in(data):
            return True
        if data.isascii():
            return False
        try:
            data.decode()
        except UnicodeDecodeError:
            return True
        return False


_ESCAPED_KEY = re.compile(rb'[{,]\s*"[^"\\]*\\(?:[^"\\]|\\.)*"\s*:')
"""A key that contains an escape; sometimes also a text that looks like one."""


class _OtherKeys:
    r"""Finds, in JSON text, the other keys under which a feature may be.

    >>> keys = _OtherKeys({"a.b"})
    >>> texts = rb'{"a.b": 1}', rb'{"\u0061\u002E\u0062": 1}', rb'{"a": "\u0061.b\u00e9"}'
    >>> [keys.may_be_in(text) for text in texts]
    [True, True, False]
    """

    def __init__(self, keys: set[str]) -> None:
        self._quoted = [f'"{key}"'.encode() for key in sorted(keys)]

    def may_be_in(self, data: bytes) -> bool:
        """Whether a text may contain one of the keys; an escaped key may be any of them."""
        if not self._quoted:
            return False
        if any(key in data for key in self._quoted):
            return True
        return b"\\" in data and _ESCAPED_KEY.search(data) is not None


def parse(lines: Rows, schema: pa.Schema | None) -> pa.Table | None:
    """Parses lines with pyarrow, one row each; None if it cannot.

    Args:
        lines: At least one.
        schema: The keys to read, by name; None reads all and infers their types.
    """
    data = np.frombuffer(lines.data, np.uint8)
    # Otherwise parts of objects on several lines would be taken for rows.
    if (data[lines.starts] != ord("{")).any() or (data[lines.stops - 1] != ord("}")).any():
        return None
    options: Mapping[str, Any] = {"newlines_in_values": lines.breaks_in_cells}
    if schema is None:
        try:
            lines.data.decode()  # else a key might not be UTF-8, and pyarrow could not name it
        except UnicodeDecodeError:
            return None
    else:
        options = {
            **options,
            "explicit_schema": schema,
            "unexpected_field_behavior": "ignore",
        }
    try:
        table = pa.json.read_json(
            pa.py_buffer(lines.data),
            read_options=pa.json.ReadOptions(block_size=len(lines.data) + 1, use_threads=False),
            parse_options=pa.json.ParseOptions(**options),
        )
        # pyarrow 25 returns arrays that are too short for lists of lists that hold only nulls.
        table.validate()
    except pa.ArrowException:
        return None
    return table if table.num_rows == len(lines) else None


def _value_type(feature: Feature, value: Any) -> pa.DataType:
    """The type to parse a feature's values as; ``value`` is one of them, if known."""
    form = tensor_form(feature)
    assert form is not None
    while isinstance(value, list) and value:
        value = value[0]
    item = item_of(feature)
    if isinstance(item, ClassLabel | Timestamp):
        numeric = isinstance(value, int) and not isinstance(value, bool)
        # Classes of which only some are integers are read as texts.
        mixed = isinstance(item, ClassLabel) and 0 < item.num_written("int") < len(item.names)
        return pa.int64() if numeric and not mixed else pa.large_string()
    if form.dtype == "string":
        return pa.large_string()
    if form.dtype in FLOATS:
        return pa.float64()
    if form.dtype == "bool":
        return pa.bool_()
    return pa.uint64() if form.dtype == "uint64" else pa.int64()


def _depths(feature: Feature) -> tuple[int, ...]:
    """The possible depths of lists around a feature's values, the usual one first."""
    form = tensor_form(feature)
    shape = () if form is None else form.shape
    flat = len(shape) > 1 and shape.count(None) <= 1
    return (len(shape), 1) if flat else (len(shape),)


def _nested(type_: pa.DataType, depth: int) -> pa.DataType:
    for _ in range(depth):
        type_ = pa.list_(type_)
    return type_


def _planted(
    tree: Tree | None, steps: tuple[tuple[str, int], ...], type_: pa.DataType
) -> Tree | None:
    """The tree with another leaf; None if the leaf conflicts with another one."""
    if tree is None:
        return None
    (key, depth), *below = steps
    if not below:
        if key in tree:
            return None
        return {**tree, key: (depth, type_)}
    before = tree.get(key, (depth, {}))
    if before[0] != depth or not isinstance(before[1], dict):
        return None
    inner = _planted(before[1], tuple(below), type_)
    return None if inner is None else {**tree, key: (depth, inner)}


def _arrow(depth: int, node: Any) -> pa.DataType:
    if isinstance(node, dict):
        node = pa.struct([pa.field(key, _arrow(*below)) for key, below in node.items()])
    return _nested(node, depth)


def _joined_keys(parts: list[str]) -> set[str]:
    """All keys that may occur on the path to a name with dots."""
    if len(parts) == 1:
        return set(parts)
    bounds = range(len(parts) + 1)
    return {".".join(parts[start:stop]) for start in bounds for stop in bounds if start < stop}


def _leads_elsewhere(parts: list[str], keys: list[str]) -> bool:
    """Whether a key on the path to a value may begin another path to it, in another line.

    >>> _leads_elsewhere(["a", "b", "a"], ["a.b", "a"])
    True
    >>> _leads_elsewhere(["a", "b", "a"], ["a", "b", "a"])
    False
    """
    at = 0
    for key in keys:
        stops = range(at + 1, len(parts) + 1)
        if ({".".join(parts[at:stop]) for stop in stops} - {key}) & set(keys):
            return True
        at += key.count(".") + 1
    return False
