"""What data may mean: the readings of a folder, and the refusal of one that has several."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

from ...schemas.errors import DataError
from ...schemas.features import call, written
from ...schemas.recipe import ExtractedSource, Source
from ...schemas.splits import Splits
from ...transforms import storage
from ...transforms.sources.combined import Sources, urls_of

_SHOWN = 4


@dataclasses.dataclass(frozen=True)
class Reading:
    """One meaning of a folder: a source, and what it makes of the folder's names."""

    source: Source | ExtractedSource
    splits: Splits | None = None
    """If names say them."""
    means: str = "without a label"
    """Where the label comes from, for people: what follows "a record is an image"."""
    against: tuple[str, ...] = ()
    """What speaks against it, a sentence each."""
    num_rejects: int = 0
    """How many records are known to be rejects."""
    notes: tuple[str, ...] = ()
    """What else was seen, a sentence each."""

    def line(self) -> str:
        """Arguments of ``ss.Recipe``, to copy; credentials are left out of URLs."""
        splits = "" if self.splits is None else f", splits=ss.{self.splits!r}"
        rejects = f", max_rejects={self.num_rejects}" if self.num_rejects else ""
        source = source_text(self.source)
        for url in urls_of(self.source):
            source = source.replace(written(url), written(storage.redact(url)))
        return f"source={source}{splits}{rejects}"


class UnclearError(DataError):
    """A folder that has several meanings, or none that is complete."""

    def __init__(self, seen: str, readings: Sequence[Reading]) -> None:
        """Says what was seen, and a line to copy for each reading.

        Args:
            seen: What was seen, and why it is not clear.
            readings: What it may mean.
        """
        self.seen, self.readings = seen, tuple(readings)
        how = " What may be meant, as a line of a recipe:" if readings else ""
        said = (text for reading in readings for text in (*reading.against, f"  {reading.line()}"))
        lines = "".join(f"\n  {text}" for text in said)
        super().__init__(f"{seen}{how}{lines}")

    def with_readings(self, readings: Iterable[Reading]) -> UnclearError:
        """The same error with other readings."""
        return UnclearError(self.seen, list(readings))


def source_text(source: Any) -> str:
    """The code that makes a source."""
    if isinstance(source, Sources):
        parts = (f"{name}={source_text(part)}" for name, part in source.sources)
        return f"ss.Sources({', '.join(parts)})"
    return f"ss.{call(source, type(source).__name__)}"


def quoted(names: Sequence[str]) -> str:
    """Names in quotes for a message, the first few of many."""
    shown = ", ".join(map(repr, names[:_SHOWN]))
    return f"{shown} … ({len(names):,})" if len(names) > _SHOWN else shown
