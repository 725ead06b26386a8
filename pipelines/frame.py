"""To pandas: the first records of a split as a table to look at, without TensorFlow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ..schemas.errors import DamagedSnapshotError, RecipeError
from ..schemas.features import Audio, ClassLabel, Feature, Features, Image, Timestamp, is_optional
from ..schemas.naming import STATISTICS
from .records import Record, value_of

if TYPE_CHECKING:
    import pandas as pd  # type: ignore[import-untyped, unused-ignore]


_NULLABLE = {"bool": "boolean"} | {
    f"{sign.lower()}{bits}": f"{sign}{bits}" for sign in ("Int", "UInt") for bits in (8, 16, 32, 64)
}
"""dtype -> the type with which pandas shows gaps."""


RAW, RAW_DATASET = "raw", "(raw)"
"""Where the figures of columns as they were read are; and what is named like a split in tables."""
OTHER_FORM = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What reading edited statistics may raise."""


def damaged_statistics(why: Exception | str) -> DamagedSnapshotError:
    """The error for statistics that are not such as a build writes."""
    shown = why if isinstance(why, str) else f"{type(why).__name__}: {why}"
    return DamagedSnapshotError(
        f"{STATISTICS} is damaged ({shown}). `snapshard verify` shows what else is; building again "
        "with --repair repairs it."
    )


class Statistics(dict[str, Any]):
    """The content of ``statistics.json``, which docs/statistics.md describes."""

    def to_pandas(self) -> pd.DataFrame:
        """A row for each split and feature, a column for each figure that is a number.

        Columns as they were read, where steps change them, are in the split ``(raw)``.
        """
        pd = _pandas()
        splits = self["splits"] | ({RAW_DATASET: self[RAW]} if RAW in self else {})
        rows = {
            (split, name): dict(_numbers(facts))
            for split, found in splits.items()
            for name, facts in found["features"].items()
        }
        index = pd.MultiIndex.from_tuples(list(rows), names=["split", "feature"])
        return pd.DataFrame(list(rows.values()), index=index)

    def _repr_html_(self) -> str | None:
        try:
            html: str = self.to_pandas()._repr_html_()
        except RecipeError:  # without pandas
            return None
        return html


def _numbers(facts: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in flat(facts):
        if not isinstance(value, list):
            yield key, value


def _pandas() -> Any:
    try:
        import pandas as pd
    except ImportError:
        raise RecipeError("to_pandas needs pandas: pip install pandas.") from None
    return pd


def to_pandas(records: Iterable[Record], features: Features) -> pd.DataFrame:
    """Records as a table: see :meth:`Snapshot.to_pandas`."""
    pd = _pandas()
    records = [*records]
    columns: dict[str, Any] = {}
    for name, feature in features.items():
        values = [value_of(record, name, feature) for record in records]
        columns[name] = _column(values, feature)
    ids = [record.record_id for record in records]
    return pd.DataFrame(columns, index=pd.Index(ids, name="record_id"))


def flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Features by dotted name, from possibly nested dicts."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _column(values: list[Any], feature: Feature) -> Any:
    """The values of a feature, None where one is missing, as pandas shows them best."""
    import pandas as pd

    if isinstance(feature, ClassLabel) and feature.names:
        codes = [-1 if value is None else int(value) for value in values]
        return pd.Categorical.from_codes(codes, categories=list(feature.names))
    if isinstance(feature, Timestamp):
        missing = np.iinfo(np.int64).min  # NumPy's NaT
        times = np.array([missing if value is None else int(value) for value in values], np.int64)
        return pd.DatetimeIndex(times.view(f"datetime64[{feature.unit}]"), tz="UTC")
    known = next((value for value in values if value is not None), None)
    if isinstance(known, np.ndarray | list):  # each in a cell of its own
        cells = np.empty(len(values), object)
        cells[:] = values
        return cells
    if isinstance(known, bytes) and not isinstance(feature, Image | Audio):
        return [None if value is None else value.decode(errors="replace") for value in values]
    kind = _NULLABLE.get(getattr(feature, "dtype", ""))
    if isinstance(known, np.integer | np.bool_ | bool | int) and kind and is_optional(feature):
        return pd.array(values, kind)
    return values
