"""From Python values, one a record, to the wire columns of a feature."""

from collections.abc import Mapping
from collections.abc import Sequence as Many
from typing import Any

import numpy as np
import pyarrow as pa

from ...schemas.features import Feature, Features, WireColumn, tensor_form
from ..examples.row_values import to_array, to_lists
from ..runs.files import arrow_type, wire_schema

Lists = Mapping[str, Any]
"""The stored lists of one value, by wire column; none at all for a missing one."""


def wire_lists(name: str, feature: Feature, value: object) -> Lists:
    """The stored lists of a value; None is a missing one.

    Raises:
        SchemaError: if the value does not fit its feature, or is missing where it must not.
    """
    form = tensor_form(feature)
    if form is None:
        raise TypeError(f"{name!r} is {feature}, which is not a value")
    if value is None and form.optional:
        return {}
    return to_lists(name, form, to_array(name, feature, value))


def wire_arrays(name: str, feature: Feature, rows: Many[Lists]) -> dict[str, pa.Array]:
    """The wire columns of a feature, from what :func:`wire_lists` gave for each record."""
    return {
        column.name: _array(column, [row.get(column.name) for row in rows])
        for column in feature.wire_columns(name)
    }


def wire_batch(features: Features, rows: Many[Mapping[str, Lists]]) -> pa.RecordBatch:
    """Records in wire form, from what :func:`wire_lists` gave for each, by feature."""
    columns: dict[str, pa.Array] = {}
    for name, feature in features.items():
        columns.update(wire_arrays(name, feature, [row[name] for row in rows]))
    schema = wire_schema(features)
    return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)


def _array(column: WireColumn, lists: Many[Any]) -> pa.Array:
    kind = arrow_type(column)
    if column.length == 1:
        return pa.array([None if one is None else _plain(one[0]) for one in lists], kind)
    return pa.array(
        [None if one is None else [_plain(value) for value in one] for one in lists], kind
    )


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value
