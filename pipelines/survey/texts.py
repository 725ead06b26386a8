"""What the texts of string columns are: nearly numbers, times, or a few that repeat.

Inference makes a column a string as soon as one cell is not a number, and always if its cells are
dates. This looks at such columns again, for suggestions and for the explanations of errors. It
decides nothing: no feature of a build depends on it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...schemas.blocks import Block, FileRange, RawBatch, SourceFile
from ...schemas.errors import RecipeError, SchemaError, SnapshardError
from ...schemas.features import Dtype, Features, Scalar, written
from ...schemas.manifest import MAX_LABELS
from ...schemas.recipe import Source
from ...transforms.sources.arrow.values import parse_times
from ...transforms.sources.blocks import cut_spacing
from ...transforms.sources.csv.cells import unfit_texts
from ...transforms.sources.csv.rows import thousands_setting
from ...transforms.sources.csv.source import Csv
from ...transforms.sources.csv.types import are_wide
from ...transforms.sources.json.source import JsonLines
from ...transforms.storage.opened_source import OpenedSource

MAX_BYTES = 256 << 20
"""Maximum total size of the files that are read."""

_NEARLY = 0.9
"""A column is nearly of a kind if at least this share of its cells is."""
_ENOUGH = 1000
"""After this many cells, a kind that not half of them are of is not looked for any more."""
_MISSING = frozenset(
    ("?", "??", "-", "--", "---", ".", "..", "*", "n.a.", "N.A.", "n.d.", "na", "none", "None")
) | {"missing", "Missing", "MISSING", "\\N", "<NA>", "(null)", "nil", "NIL", "#DIV/0!", "#VALUE!"}
"""Texts that stand for a missing value among numbers, however many there are."""
_MAX_ODD = 3
"""Maximum number of texts that are shown of those that are not of the kind."""
_MAX_SHOWN_CHARS = 40
_NUMBER = re.compile(r"\s*[-+]?[0-9]+([.,][0-9]*)?\s*")
_WITH_UNIT = re.compile(
    r"\s*[-+(]?\s*[$€£¥₹~<>]?\s*[-+]?[0-9]+(?:[.,' ][0-9]{3})*(?:[.,][0-9]+)?"
    r"\s*([%°$€£¥₹]|[A-Za-zµ]{1,4})?[-+)]?\s*"
)
"""A number with signs or a unit, such as ``$6,669.00``, ``36 %``, ``(54)`` or ``29,47-``."""
_LIKE_TIME = re.compile(r"[ \t]*[0-9]{4}-")
_KINDS = {
    "integer": "integers",
    "number": "numbers",
    "time s": "ISO 8601 times",
    "time ms": "ISO 8601 times",
    "time us": "ISO 8601 times",
    "time ns": "ISO 8601 times",
}
"""Kind of a cell -> what its cells are called. Narrow kinds come first."""


@dataclasses.dataclass
class _Kind:
    """The cells that are of a kind, and the first ones that are not."""

    num: int = 0
    odd: list[str] = dataclasses.field(default_factory=list)
    """Different texts that are not of this kind, at most one more than are shown."""
    first_odd: str = ""
    """Where the first of them is."""

    @property
    def is_all_but_gaps(self) -> bool:
        """Whether all cells are of this kind but those that stand for a missing value."""
        return self.num > 0 and len(self.odd) <= _MAX_ODD and _MISSING.issuperset(self.odd)


@dataclasses.dataclass
class TextColumn:
    """The cells of a string column, apart from missing values."""

    num_cells: int = 0
    complete: bool = True
    """Whether all of the files were read."""
    texts: Counter[str] | None = dataclasses.field(default_factory=Counter)
    """How often each text occurs; None if there are more than ``MAX_LABELS``."""
    marked: str | None = None
    """The first number with marks between thousands, if all cells are such or other numbers."""
    unmarked: bool = False
    """Whether a cell is neither."""
    units: set[str | None] = dataclasses.field(default_factory=set)
    """What follows the numbers in the cells, such as ``%``; None if a cell is no such number."""
    with_unit: str = ""
    """The first number with a sign or unit."""
    are_lists: bool = True
    """Whether all cells are lists of JSON."""
    wide: bool = False
    """Whether a number among the cells loses digits as a float32."""
    _kinds: dict[str, _Kind] = dataclasses.field(
        default_factory=lambda: {name: _Kind() for name in _KINDS}
    )

    @property
    def kind(self) -> str | None:
        """The kind that most cells are of: ``integer``, ``number`` or ``time`` and a unit."""
        name = max(self._kinds, key=lambda name: self._kinds[name].num)
        found = self._kinds[name]
        enough = found.num >= _NEARLY * self.num_cells or found.is_all_but_gaps
        return name if self.num_cells and enough else None

    @property
    def is_uniform(self) -> bool:
        """Whether all cells are of the kind."""
        return self.kind is not None and self._kinds[self.kind].num == self.num_cells

    @property
    def are_with_units(self) -> bool:
        """Whether all cells are numbers with signs, or all with one unit."""
        letters = {unit for unit in self.units if unit and unit.isalpha()}
        return None not in self.units and (not letters or len(self.units) == 1)

    @property
    def odd(self) -> tuple[str, ...]:
        """Different texts that are not of the kind; () if there are too many to show."""
        texts = self._kinds[self.kind].odd if self.kind is not None else []
        return tuple(texts) if len(texts) <= _MAX_ODD else ()

    @property
    def dtype(self) -> Dtype:
        """The dtype of a column that is nearly of numbers."""
        return "int64" if self.kind == "integer" else "float64" if self.wide else "float32"

    def explain(self) -> str:
        """``999 of 1,000 cells are integers; row 17 holds 'n.a.'``; empty if no kind is near."""
        if self.kind is None or self.is_uniform:
            return ""
        cells = self._kinds[self.kind]
        num_odd = self.num_cells - cells.num
        shown = ", ".join(map(_shown, cells.odd[:_MAX_ODD]))
        more = ", …" if len(cells.odd) > _MAX_ODD else ""
        where = f"{cells.first_odd} holds {shown}"
        if num_odd > 1:
            where = f"{num_odd:,} hold {shown}{more} (the first in {cells.first_odd})"
        among = "" if self.complete else "of those read, "
        return f"{among}{cells.num:,} of {self.num_cells:,} cells are {_KINDS[self.kind]}; {where}"

    def add(self, cells: pa.Array, places: _Places) -> None:
        """Adds the cells of consecutive records; ``places`` says where each is."""
        coded = cells.cast(pa.large_binary()).dictionary_encode()
        codes = coded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        counts = np.bincount(codes[codes >= 0], minlength=len(coded.dictionary))
        texts = [text.decode(errors="backslashreplace") for text in coded.dictionary.to_pylist()]
        before = self.num_cells
        self.num_cells += int(counts.sum())
        if self.texts is not None:
            for text, count in zip(texts, counts.tolist(), strict=True):
                self.texts[text] += count
            if len(self.texts) > MAX_LABELS:
                self.texts = None
        for text in () if self.unmarked else texts:
            is_marked = bool(thousands_setting(text))
            self.marked = self.marked or (text if is_marked else None)
            self.unmarked |= not is_marked and not _NUMBER.fullmatch(text)
        for text in texts if self.are_with_units else ():
            form = _WITH_UNIT.fullmatch(text)
            self.units.add(form and (form[1] or ""))
            self.with_unit = self.with_unit or (
                text if text.lstrip("+- ").strip("0123456789. ") else ""
            )
        self.are_lists = self.are_lists and all(map(_is_list, texts))
        for name, kind in self._kinds.items():
            if before >= _ENOUGH and kind.num < before / 2 and not kind.is_all_but_gaps:
                continue  # Regular expressions on texts that are only texts take long.
            fits = _fits(coded.dictionary, texts, name)
            kind.num += int(counts[fits].sum())
            odd = np.flatnonzero(~fits)
            if len(odd) and not kind.odd:
                kind.first_odd = places.name(int(np.flatnonzero(np.isin(codes, odd))[0]))
            new = (texts[index] for index in odd if texts[index] not in kind.odd)
            while len(kind.odd) <= _MAX_ODD and (text := next(new, None)) is not None:
                kind.odd.append(text)
            if name == "number" and not self.wide and fits.any():
                with contextlib.suppress(ValueError):  # nan(1)
                    numbers = [float(texts[index]) for index in np.flatnonzero(fits)]
                    (self.wide,) = are_wide([pa.array(numbers, pa.float64())])

    def forget_numbers(self, num: int) -> None:
        """Keeps only times among the kinds if not exactly this many cells are numbers."""
        if self.kind in ("integer", "number") and self._kinds[self.kind].num != num:
            del self._kinds["integer"], self._kinds["number"]

    def thousands(self) -> str:
        """How a CSV source reads cells that are numbers with marks; empty if not all are."""
        if self.unmarked or self.marked is None:
            return ""
        setting = thousands_setting(self.marked)
        found = f"Numbers with marks: {setting} in the source reads {self.marked!r} as thousands"
        both = self.marked.count(",") == 1 and "." not in self.marked
        return f"{found}, decimal=',' as a fraction." if both else f"{found}."

    def null_values(self) -> str:
        """The setting of a CSV source that reads the odd texts as missing; empty if too many."""
        added = "".join(f", {written(text)}" for text in self.odd)
        return added and f"null_values=(*ss.Csv.null_values{added})"


@dataclasses.dataclass(frozen=True)
class _Places:
    """Where the records of a batch are: in which row of which file."""

    batch: RawBatch
    num_before: int
    noun: str
    file: str
    """``" of b.csv"``, or nothing if there is only one file."""

    def name(self, index: int) -> str:
        """``row 17``, counted from 1, for a record of the batch; rejected rows count."""
        own = int(self.batch.ids[index].rpartition("#")[2])
        before = sum((reject.position or 0) < own for reject in self.batch.rejects)
        return f"{self.noun} {self.num_before + before + index + 1:,}{self.file}"


def read_texts(
    source: Source, files: Sequence[SourceFile], opened: OpenedSource, features: Features
) -> dict[str, TextColumn]:
    """What the string columns among features hold, read from at most 256 MiB of files.

    Args:
        source: A source of tables.
        files: Its files.
        opened: Its root.
        features: Its features.
    """
    names = [n for n, f in features.items() if isinstance(f, Scalar) and f.dtype == "string"]
    columns = {name: TextColumn() for name in names}
    wanted: Features = {name: Scalar("string", optional=True) for name in names}
    ranges, complete = _first_ranges(source, files, opened) if names else ([], True)
    noun = "line" if isinstance(source, JsonLines) else "row"
    for part in ranges:
        file, num_before = f" of {part.path}" if len(ranges) > 1 else "", 0
        for batch in source.read(Block((part,)), features=wanted, opened=opened, ordered=[0]):
            places = _Places(batch, num_before, noun, file)
            for name, column in columns.items():
                column.add(batch.columns.column(name), places)
            num_before += len(batch.ids) + len(batch.rejects)
    for name, column in columns.items():
        column.complete = complete
        if isinstance(source, JsonLines) and column.explain():
            column.forget_numbers(_num_numbers(source, ranges, opened, name, column.dtype))
    return columns


def _num_numbers(
    source: Source, ranges: Sequence[FileRange], opened: OpenedSource, name: str, dtype: Dtype
) -> int:
    """How many values of a JSON key are numbers, not texts that look like numbers."""
    wanted: Features = {name: Scalar(dtype, optional=True)}
    return sum(
        len(batch.ids) - batch.columns.column(name).null_count
        for part in ranges
        for batch in source.read(Block((part,)), features=wanted, opened=opened, ordered=[0])
    )


@contextlib.contextmanager
def explaining_strings(
    source: Source, files: Sequence[SourceFile], opened: OpenedSource, features: Features
) -> Iterator[None]:
    """Adds to errors of recipes why columns of CSV or JSON Lines that they name are strings.

    TensorFlow's errors about strings name no column: these are about every such column.
    """
    try:
        yield
    except (RecipeError, SchemaError) as error:
        message = _explained(str(error), source, files, opened, features)
        if message == str(error):
            raise
        raise type(error)(message) from error


def _explained(
    message: str,
    source: Source,
    files: Sequence[SourceFile],
    opened: OpenedSource,
    features: Features,
) -> str:
    named = {
        name: feature
        for name, feature in features.items()
        if repr(name) in message or "tf.string" in message
    }
    # With a stored inventory, the source is not accessed.
    if not isinstance(source, Csv | JsonLines) or not named or not opened.root:
        return message
    try:
        columns = read_texts(source, files, opened, named)
    except SnapshardError:
        return message
    for name, column in columns.items():
        if explained := column.explain():
            message += "" if message.endswith((".", "!", "?")) else "."
            message += f" {name!r} was inferred as a string: {explained}."
            if isinstance(source, Csv) and (setting := column.null_values()):
                message += f" If that means a missing value, add {setting} to the source."
    return message


def read_integers(
    source: Source, files: Sequence[SourceFile], opened: OpenedSource, name: str
) -> Counter[int] | None:
    """How often each integer of a column occurs; None if there are many, or much to read."""
    ranges, complete = _first_ranges(source, files, opened)
    if not complete:
        return None
    counts: Counter[int] = Counter()
    wanted: Features = {name: Scalar("int64", optional=True)}
    for part in ranges:
        for batch in source.read(Block((part,)), features=wanted, opened=opened, ordered=[0]):
            counted = batch.columns.column(name).drop_null().value_counts()
            counts.update({count["values"].as_py(): count["counts"].as_py() for count in counted})
            if len(counts) > MAX_LABELS:
                return None
    return counts


def _first_ranges(
    source: Source, files: Sequence[SourceFile], opened: OpenedSource
) -> tuple[list[FileRange], bool]:
    """The first files, or the beginning of a large one, and whether that is all."""
    ranges: list[FileRange] = []
    left = MAX_BYTES
    readable = [file for file in files if not file.problem and file.num_bytes]
    for file in readable:
        stop = file.num_bytes
        if stop > left and not ranges:
            stop = next(iter(source.cuts(file, opened, every=cut_spacing(stop))), stop)
        elif stop > left:
            return ranges, False
        ranges.append(FileRange(path=file.path, sha256=file.sha256, start=0, stop=stop))
        left -= stop
        if stop < file.num_bytes:
            return ranges, False
    return ranges, True


def _fits(cells: pa.Array, texts: Sequence[str], kind: str) -> npt.NDArray[np.bool_]:
    """Which cells are of a kind."""
    if not kind.startswith("time"):
        return ~unfit_texts(cells, pa.int64() if kind == "integer" else pa.float64())
    if not any(_LIKE_TIME.match(text) for text in texts):
        return np.zeros(len(texts), bool)
    return ~parse_times(pa.array(texts, pa.large_string()), kind.removeprefix("time "))[1]


def _is_list(text: str) -> bool:
    if not (text.lstrip().startswith("[") and text.rstrip().endswith("]")):
        return False
    try:
        return isinstance(json.loads(text), list)
    except (ValueError, RecursionError):
        return False


def _shown(text: str) -> str:
    return repr(text if len(text) <= _MAX_SHOWN_CHARS else f"{text[:_MAX_SHOWN_CHARS]}…")
