"""Parsing rows of CSV text with pyarrow: one window of rows, one block, one thread."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from .csv_rows import Offsets, Rows

TRUE_VALUES = ("true", "True", "TRUE")
FALSE_VALUES = ("false", "False", "FALSE")

_ASCII = bytes(range(128)) + b"x" * 128
_INTEGER = r"^[ \t]*[-+]?[0-9]+[ \t]*$"
_MAX_DIGITS = 400
"""More than any float has. Python itself reads 4,300."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Table:
    """How the rows of one file are to be read."""

    path: str
    """The file, relative to the source's root."""
    header: tuple[str, ...]
    delimiter: str
    null_values: tuple[str, ...]
    encoding: str = "utf-8"
    plain: bool = True
    """Whether offsets count the file's own bytes, not those of a text made of it."""

    def place(self, position: int) -> str:
        """A place in the file, for messages."""
        return f"{self.path} byte {position}" + ("" if self.plain else " of its text as UTF-8")

    def parse(
        self,
        rows: Rows,
        *,
        types: Mapping[int, pa.DataType] | None = None,
        columns: Sequence[int] | None = None,
        zero_one: bool = True,
        on_ragged: Callable[[Any], str] | None = None,
    ) -> pa.Table:
        """Parses rows with pyarrow; columns are named by their position: ``"0"``, ``"1"`` ….

        Args:
            rows: At least one row.
            types: Position -> type; without, a column's type is inferred.
            columns: Positions of the columns to read; all by default.
            zero_one: Whether ``1`` and ``0`` are bools too.
            on_ragged: Asked what to do with a row of too few or too many cells.

        Raises:
            pa.ArrowInvalid: if a cell does not fit its column's type, or a row is ragged.
        """
        data = rows.data
        if data.startswith(b"\xef"):
            # At the very start pyarrow takes this for a mark to be left out.
            data = b"\n" + data
        return pa.csv.read_csv(
            pa.py_buffer(data),
            read_options=pa.csv.ReadOptions(
                column_names=[str(i) for i in range(len(self.header))],
                block_size=len(data) + 1,
                use_threads=False,
            ),
            parse_options=pa.csv.ParseOptions(
                delimiter=self.delimiter,
                newlines_in_values=rows.breaks_in_cells,
                invalid_row_handler=on_ragged,
            ),
            convert_options=pa.csv.ConvertOptions(
                column_types={str(i): kind for i, kind in (types or {}).items()},
                include_columns=None if columns is None else [str(i) for i in columns],
                null_values=list(self.null_values),
                strings_can_be_null=True,
                true_values=[*TRUE_VALUES, *(["1"] if zero_one else [])],
                false_values=[*FALSE_VALUES, *(["0"] if zero_one else [])],
            ),
        )

    def ragged(self, rows: Rows) -> list[int]:
        """Rows with too few or too many cells."""
        found: list[int] = []

        def skip(row: Any) -> str:
            found.append(row.number - 1)
            return "skip"

        # pyarrow cannot report a row that is not UTF-8; letters do not change where cells end.
        ascii_rows = dataclasses.replace(rows, data=rows.data.translate(_ASCII))
        self.parse(ascii_rows, types={0: pa.binary()}, columns=[0], on_ragged=skip)
        return found

    def whole(self, rows: Rows) -> Rows:
        """The rows with the right number of cells."""
        return rows.take(np.delete(np.arange(len(rows)), self.ragged(rows)))

    def texts(self, rows: Rows, column: int) -> pa.Array:
        """The cells of one column as they stand, large_binary[n]; null where missing.

        Raises:
            pa.ArrowInvalid: if a row is ragged.
        """
        table = self.parse(rows, types={column: pa.large_binary()}, columns=[column])
        return table.column(0).combine_chunks()

    def written_integers(
        self, rows: Rows, kept: Offsets, column: int, *, values: pa.Array, smallest: int
    ) -> tuple[Offsets, np.ndarray[Any, Any]]:
        """The cells of a column of floats that are written as integers, but for small ones.

        Args:
            rows: The rows.
            kept: The numbers of those that were parsed, int64[n].
            column: The column's position.
            values: The floats that its cells were parsed as, [n].
            smallest: The smallest integer to find, whatever its sign.

        Returns:
            Where they lie in ``values``, int64[m], and the integers, as objects [m].
        """
        large = np.flatnonzero(np.abs(values.to_numpy(zero_copy_only=False)) >= smallest)
        if not len(large):
            return large, np.zeros(0, object)
        texts = self.texts(rows.take(kept[large]), column)
        written = pc.match_substring_regex(texts, _INTEGER).fill_null(False)
        integers = [_integer(text) for text in texts.filter(written).to_pylist()]
        return large[written.to_numpy(zero_copy_only=False)], np.array(integers, object)


def _integer(text: bytes) -> int:
    digits = text.strip(b" \t")
    size = int(digits.lstrip(b"+-0")[:_MAX_DIGITS] or b"0")
    return -size if digits.startswith(b"-") else size
