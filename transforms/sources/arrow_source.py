"""What the sources of Parquet and Arrow files are alike in: their arguments, and what they do."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from ...schemas.blocks import Block, RawBatch, Selection, SourceFile
from ...schemas.features import Features
from ...schemas.recipe import OpenSource
from .arrow_files import ArrowFormat, ArrowTables
from .table_files import check_types, types_to_json


@dataclasses.dataclass(frozen=True)
class ArrowSource(abc.ABC):
    """A source of tables of one format. What its arguments mean, the format's own class says."""

    url: str
    label: str | None = None
    columns: tuple[str, ...] | None = None
    types: Mapping[str, Any] | None = None
    media = False
    numbered = True
    side_urls: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        """Checks the types."""
        check_types(self.types)

    @property
    @abc.abstractmethod
    def _format(self) -> ArrowFormat: ...

    @abc.abstractmethod
    def select(self, files: Sequence[SourceFile]) -> Selection:
        """Takes files of the format, those of a glob's own suffix, and a single file as it is."""

    def settings(self) -> dict[str, object]:
        """What shapes the records and what is inferred of them, as plain JSON."""
        columns = None if self.columns is None else list(self.columns)
        return {"columns": columns, "label": self.label, "types": types_to_json(self.types)}

    def cuts(self, file: SourceFile, opened: OpenSource) -> tuple[int, ...]:
        """Where row groups of Parquet files, or record batches of IPC files, begin."""
        return self._tables.cuts(file, opened)

    def offset_of(self, file: SourceFile, row: int, opened: OpenSource) -> int | None:
        """About where a row lies, in bytes."""
        return self._tables.offset_of(file, row, opened)

    def infer(self, files: Sequence[SourceFile], opened: OpenSource) -> Mapping[str, Any]:
        """The features of the rows, from the files' schemas and statistics.

        Which columns lack values is told from all rows where no statistics say it; above 256 MiB,
        those that may hold nulls are taken to do so.

        Raises:
            SchemaError: if no file can be read, their columns differ, or one cannot be stored.
            RecipeError: if ``label`` or ``types`` name no column.
        """
        return self._tables.infer(files, opened)

    def read(
        self, block: Block, *, features: Features, opened: OpenSource, ordered: Sequence[int]
    ) -> Iterator[RawBatch]:
        """Reads what begins in a block's ranges; ids are ``path#row``.

        Raises:
            SchemaError: if a file lacks the column of a feature, or has one of another type.
        """
        return self._tables.read(block, features=features, opened=opened, ordered=ordered)

    @property
    def _tables(self) -> ArrowTables:
        return ArrowTables(
            format=self._format, label=self.label, columns=self.columns, types=self.types
        )
