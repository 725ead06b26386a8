"""Parquet files as a source: one record a row, read by row groups.

A record's id is ``relative/path#row``. What each column becomes stands in ``arrow_types``, which
of them may be missing is told from the files' statistics, and from the rows where these do not
say. A damaged row group is one reject; the rows read before the damage, and all other row groups,
are kept.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from ...schemas.blocks import Selection, SourceFile
from ...schemas.config import config_class
from ...schemas.recipe import OpenSource
from ..storage.read_files import is_at_hand, open_for_arrow
from .arrow_files import BATCH_BYTES, BATCH_ROWS, ArrowFormat, Unit, offset_between
from .arrow_leaves import leaves_of
from .arrow_source import ArrowSource
from .parquet_footer import read_row_groups
from .parquet_sizes import check_lists, rows_at_once
from .table_files import select_files

SUFFIXES = (".parquet", ".pq", ".parq")
"""What Parquet files' names end with."""


@config_class
class Parquet(ArrowSource):
    """Rows of Parquet files.

    Attributes:
        url: A file, a folder (its ``.parquet`` files, at any depth), a glob, or any fsspec URL.
        label: The column to predict. Strings and bools become a ClassLabel; numbers stay.
        columns: The columns to read; all by default.
        types: Types in place of inferred ones: ``{"age": "float32"}``, or a feature such as
            ``ss.ClassLabel(("no", "yes"))`` or ``ss.Tensor("uint8", (28, 28))``. A struct's
            field is ``"struct.field"``.
    """

    def select(self, files: Sequence[SourceFile]) -> Selection:
        """Takes Parquet files, those of a glob's own suffix, and a single file as it is."""
        return select_files(self.url, files, suffixes=SUFFIXES, what="a .parquet file")

    @property
    def _format(self) -> ArrowFormat:
        return _FORMAT


class _ParquetFile:
    """One open file."""

    def __init__(self, opened: OpenSource, path: str) -> None:
        source = open_for_arrow(opened, path)
        local = is_at_hand(source)
        # Of a store, a row group's columns are fetched in few and large requests.
        self._file = pq.ParquetFile(source, pre_buffer=not local, page_checksum_verification=True)
        self._path = path
        self._source, self._num_bytes = source, source.size()
        self._max_expansion = opened.limits.max_expansion
        self._groups = read_row_groups(source)
        self.schema: pa.Schema = self._file.schema_arrow

    @functools.cached_property
    def units(self) -> Sequence[Unit]:
        found, row = [], 0
        for group in self._groups:
            # The blocks of a file end where it does: a place that makes no sense must not lie
            # outside of all.
            start = max(0, min(group.offset, self._num_bytes - 1))
            found.append(Unit(start, row, group.num_rows))
            row += group.num_rows
        return found

    def read(self, unit: int, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        group = self._groups[unit]
        check_lists(group, columns, num_bytes=self._num_bytes, max_expansion=self._max_expansion)
        row_bytes = max(1, group.num_bytes // max(1, group.num_rows))
        num_rows = max(1, min(BATCH_ROWS, BATCH_BYTES // row_bytes))
        batches: Iterator[pa.RecordBatch] = self._file.iter_batches(
            batch_size=rows_at_once(self._source, unit, group, columns, num_rows=num_rows),
            row_groups=[unit],
            columns=list(columns),
            use_threads=False,
        )
        for batch in batches:
            batch.validate()
            yield batch

    def offset_of(self, row: int) -> int:
        return offset_between(self.units, row, num_bytes=self._num_bytes)

    def lacking(self) -> tuple[set[str], set[str]]:
        """Statistics count the nulls of single values, and nulls and empty lists together."""
        leaves = leaves_of(self.schema, path=self._path)
        counts = self._null_counts()
        known, unknown = set(), set()
        for name, leaf in leaves.items():
            column = self.schema.names[leaf.column]
            if not leaf.shape and name in counts:
                found = counts[name]
            else:
                below = [n for path, n in counts.items() if path.startswith(f"{column}.")]
                found = None if None in below or any(below) or not below else 0
            if found is None:
                unknown.add(name)
            elif found:
                known.add(name)
        return known, unknown

    def _null_counts(self) -> dict[str, int | None]:
        """Nulls of each stored column over all row groups; None where some do not say."""
        counts: dict[str, int | None] = {}
        for group in self._groups:
            for name, found in group.null_counts.items():
                before = counts.get(name, 0)
                counts[name] = None if before is None or found is None else before + found
        return counts


_FORMAT = ArrowFormat(name="Parquet", unit="row group", open=_ParquetFile)
