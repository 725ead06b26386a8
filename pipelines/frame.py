"""To pandas: the first records of a split as a table to look at, without TensorFlow."""

from __future__ import annotations

import importlib
import itertools
import json
import types
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ..schemas.errors import RecipeError
from ..schemas.features import Audio, ClassLabel, Feature, Features, Image, Timestamp, is_optional
from ..schemas.naming import MANIFEST, join
from ..transforms import storage
from ..transforms.examples.stored_records import stored_ids

if TYPE_CHECKING:
    import pandas as pd  # type: ignore[import-untyped, unused-ignore]


_NULLABLE = {"bool": "boolean"} | {
    f"{sign.lower()}{bits}": f"{sign}{bits}" for sign in ("Int", "UInt") for bits in (8, 16, 32, 64)
}
"""dtype -> the type with which pandas shows gaps."""


class Statistics(dict[str, Any]):
    """The content of ``statistics.json``, which docs/statistics.md describes."""

    def to_pandas(self) -> pd.DataFrame:
        """A row for each split and feature, a column for each figure that is a number."""
        pd = _pandas()
        rows = {
            (split, name): dict(_numbers(facts))
            for split, found in self["splits"].items()
            for name, facts in found["features"].items()
        }
        index = pd.MultiIndex.from_tuples(list(rows), names=["split", "feature"])
        return pd.DataFrame(list(rows.values()), index=index)


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


def to_pandas(
    folder: str, reader: types.ModuleType, features: Features, *, split: str, num: int
) -> pd.DataFrame:
    """The first records of a split: see :meth:`Snapshot.to_pandas`.

    Args:
        folder: The snapshot's folder.
        reader: The snapshot's reader.
        features: Its features.
        split: A split, or a part of one.
        num: The maximum number of records.
    """
    pd = _pandas()
    if isinstance(num, bool) or not isinstance(num, int) or num < 0:
        raise RecipeError(f"to_pandas: num={num!r}, expected a number of records such as 1000.")
    if not storage.is_local(folder):
        raise RecipeError(
            f"{storage.redact(folder)} is not on this machine, and to_pandas reads local "
            f"snapshots. Copy the folder with its {MANIFEST}, or use reader().dataset()."
        )
    arrays, splits = (
        importlib.import_module(f"{reader.__name__}.{name}") for name in ("arrays", "splits")
    )
    manifest = json.loads(storage.read_bytes(join(folder, MANIFEST)))
    try:
        records = arrays.Records(split, masks=True, root=storage.local_path(folder))
        sections = splits.select(split).sections(manifest)
    except ValueError as error:
        raise RecipeError(str(error)) from None
    rows = [dict(flat(row)) for row in records.__getitems__(range(min(num, len(records))))]
    ids: list[str] = []
    for section in sections:
        if len(ids) < len(rows):
            ids += _ids(folder, section)
    columns: dict[str, Any] = {}
    for name, feature in features.items():
        present = reader.FEATURES[name].get("present")
        has_value = [present is None or bool(row[present]) for row in rows]
        values = [row[name] if has else None for row, has in zip(rows, has_value, strict=True)]
        columns[name] = _column(values, feature)
    return pd.DataFrame(columns, index=pd.Index(ids[: len(rows)], name="record_id"))


def _ids(folder: str, section: Any) -> list[str]:
    """The ids of consecutive records of a shard."""
    ids = itertools.chain.from_iterable(
        batch.to_pylist()
        for batch in stored_ids(join(folder, f"index/{section.entry['file']}.parquet"))
    )
    own = itertools.islice(ids, section.first, section.first + section.num)
    return [record_id.decode() for record_id in own]


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
