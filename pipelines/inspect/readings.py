"""What data may mean: the readings of a folder, and the refusal of one that has several."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

from ...schemas.errors import DataError
from ...schemas.features import call
from ...schemas.recipe import Source
from ...schemas.splits import Splits
from ...transforms.sources.combined import Sources


@dataclasses.dataclass(frozen=True)
class Reading:
    """One meaning of a folder: a source, and what it makes of the folder's names."""

    source: Source
    splits: Splits | None = None
    """If names say them."""
    means: str = "without a label"
    """Where the label comes from, for people: what follows "a record is an image"."""

    def line(self) -> str:
        """Arguments of ``ss.Recipe``, to copy."""
        splits = "" if self.splits is None else f", splits=ss.{self.splits!r}"
        return f"source={source_text(self.source)}{splits}"


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
        lines = "".join(f"\n    {reading.line()}" for reading in readings)
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
