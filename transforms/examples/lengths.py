"""Lengths of lists: how long each record's tensor is along its first dimension, where that varies.

Batches of alike length waste little on padding; where to cut them is measured on a sample while
shards are written, when the columns are at hand.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ...schemas.features import Feature, Features, tensor_form
from ...schemas.wire import ITEM_BYTES

SAMPLE_RECORDS = 4096
"""So many records of a split are measured, or one of each shard where there are more shards."""

_NUM_PARTS = 8


def varying_lists(features: Features) -> list[str]:
    """Names of the features whose first dimension varies, in the order of their bytes."""
    forms = {name: tensor_form(feature) for name, feature in features.items()}
    varying = [name for name, form in forms.items() if form and form.shape[:1] == (None,)]
    return sorted(varying, key=str.encode)


def list_lengths(columns: pa.RecordBatch, name: str, feature: Feature) -> npt.NDArray[np.int64]:
    """The first dimension of a feature in each record: int64[n], 0 where it is missing.

    Args:
        columns: Wire columns.
        name: A feature of which :func:`varying_lists` tells.
        feature: Itself.
    """
    form = tensor_form(feature)
    assert form is not None
    rest = form.shape[1:]
    if None in rest:
        lengths = pc.list_element(columns.column(f"{name}/shape"), 0)
        divisor = 1
    elif form.wire_columns(name)[0].packed:
        lengths = pc.binary_length(columns.column(name))
        divisor = ITEM_BYTES[form.dtype]
    else:
        lengths = pc.list_value_length(columns.column(name))
        divisor = 1
    found: npt.NDArray[np.int64] = lengths.cast(pa.int64()).fill_null(0).to_numpy()
    return found // (divisor * (1 if None in rest else math.prod(dim or 1 for dim in rest)))


def length_boundaries(lengths: Iterable[int]) -> list[int]:
    """Lengths that part a sample into eighths: distinct, rising, the last one its longest.

    Each is a length that occurs, so lists padded to the next boundary fit.

    >>> length_boundaries([3, 9, 4, 4, 5, 12, 7, 6])
    [3, 4, 5, 6, 7, 9, 12]
    """
    ordered = np.sort(np.fromiter(lengths, np.int64))
    if not len(ordered):
        return []
    # The smallest length that so many eighths of the records do not exceed.
    places = -(-np.arange(1, _NUM_PARTS + 1) * len(ordered) // _NUM_PARTS) - 1
    boundaries: list[int] = np.unique(ordered[places]).tolist()
    return boundaries
