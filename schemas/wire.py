"""Wire columns: how features are stored in a ``tf.train.Example`` and in a run.

An Example has only lists of bytes, int64 and float32. Each dtype has one lossless encoding in
them:

================================ ======== ==================================================
dtype                            list     how
================================ ======== ==================================================
bool, int8 … int64, uint8 …      int64    one value each; a uint64 keeps its bits, so its upper
uint64                                    half reads as negative
float16, bfloat16, float32       float32  one value each: float32 holds every float16, bfloat16
float64                          bytes    packed: little-endian bytes, in one string
string                           bytes    one value each
tensors and sequences of int8,   bytes    packed: little-endian bytes, row-major, in one string,
uint8, int16, uint16, float16,            at most a quarter of the size of a list of them
bfloat16, float64
================================ ======== ==================================================
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Literal

ListKind = Literal["bytes", "int64", "float32"]
Dtype = Literal[
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "string",
]

FLOATS = frozenset({"float16", "bfloat16", "float32", "float64"})
_PACKED = frozenset({"int8", "uint8", "int16", "uint16", "float16", "bfloat16", "float64"})
ITEM_BYTES = {
    "bool": 1,
    "int8": 1,
    "uint8": 1,
    "int16": 2,
    "uint16": 2,
    "float16": 2,
    "bfloat16": 2,
    "int32": 4,
    "uint32": 4,
    "float32": 4,
    "int64": 8,
    "uint64": 8,
    "float64": 8,
}
"""Size in bytes of one packed value."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class WireColumn:
    """One stored list: a feature of a ``tf.train.Example`` and a column of a run.

    In Arrow: ``large_binary``, ``int64`` or ``float32`` if ``length`` is 1; a ``fixed_size_list``
    of it for a larger fixed length; a ``large_list`` if it varies. A null is a feature that is
    absent from this Example.
    """

    name: str
    kind: ListKind
    length: int | None = 1
    """Values per record; None if it varies."""
    optional: bool = False
    packed: Dtype | None = None
    """Dtype of the values packed in one byte string; None if each value is a list item."""


def list_kind(dtype: str) -> ListKind:
    """Which of an Example's three kinds of list stores single values of a dtype."""
    if dtype in ("string", "float64"):
        return "bytes"
    return "float32" if dtype in FLOATS else "int64"


def value_column(
    name: str, dtype: Dtype, shape: tuple[int | None, ...], *, optional: bool
) -> WireColumn:
    """The column that stores values of a dtype and shape, row-major."""
    if dtype == "float64" or (shape and dtype in _PACKED):
        return WireColumn(name=name, kind="bytes", optional=optional, packed=dtype)
    length: int | None = 1
    for dim in shape:
        length = None if dim is None or length is None else length * dim
    return WireColumn(name=name, kind=list_kind(dtype), length=length, optional=optional)


@functools.lru_cache(maxsize=1 << 14)  # every step asks for those of all features again
def tensor_columns(
    name: str, dtype: Dtype, shape: tuple[int | None, ...], *, optional: bool
) -> tuple[WireColumn, ...]:
    """The columns of a tensor, with ``<name>/shape`` if its length does not give its dimensions."""
    values = value_column(name, dtype, shape, optional=optional)
    if shape.count(None) < 2:
        return (values,)
    return (values, WireColumn(name=f"{name}/shape", kind="int64", length=len(shape)))
