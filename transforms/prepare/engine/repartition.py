"""The step across records that changes none: it starts a stage in which all splits are known."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ....schemas.blocks import RawBatch
from ....schemas.config import config_class
from ....schemas.features import Features
from ....schemas.recipe import SortedRecords
from ....schemas.splits import Splits
from ...runs.keys import order_by_key


@config_class
class Repartition:
    """Passes records on in key order."""

    prefix_bytes = 0

    def settings(self) -> dict[str, object]:
        """Everything that affects the output, as plain JSON, for the fingerprint."""
        return {"step": "repartition"}

    def features(self, features: Features) -> Features:
        """The features, unchanged."""
        return features

    def check(self, splits: Splits) -> None:
        """Accepts any splits."""

    def order(
        self, ids: Sequence[str], columns: Any, *, features: Features, seed: int
    ) -> tuple[Any, Any]:
        """Sorts by the records' own keys."""
        del columns, features
        return order_by_key(ids, seed)

    def merge(self, records: Iterator[SortedRecords], *, features: Features) -> Iterator[RawBatch]:
        """Returns the records unchanged."""
        del features
        for part in records:
            yield RawBatch(ids=list(part.ids), columns=part.columns)
