"""The features of Arrow columns, told from their types and from which of them lack values.

============================= ================================================================
Arrow type                    feature
============================= ================================================================
bool, int8 … uint64           Scalar of it
halffloat, float, double      Scalar: float16, float32, float64
decimal32 … decimal256        Scalar("float64"): the nearest; 15 digits always survive, more may
                              not; one without places behind the point must be exact.
                              ``types={"price": "string"}`` keeps all digits
string, binary, views, null   Scalar("string")
timestamp                     Timestamp of its unit; a time zone is taken as UTC, as Arrow stores
                              it, and so is a time without one; files of one source must either
                              all have a zone or none, unless a feature is declared
date32, date64                Timestamp("s"), Timestamp("ms")
time32, time64, duration      Scalar: int32 or int64, with the column's ``unit``
list of those                 Sequence; of lists of fixed size, of vectors
fixed-size list               Tensor; other lists of lists too: every dimension that varies is
                              None, and inside one record lists of one level have one length
struct                        Struct
list of structs               Struct of sequences
map                           Struct of two sequences, ``key`` and ``value``
dictionary, run-end encoded   what their values are
extension                     what it is stored as
============================= ================================================================

A leaf that lacks a value in some row is optional. A tensor of fixed size that does becomes a
sequence; where more dimensions vary, such rows are rejected, since an Example cannot tell a
missing tensor from an empty one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

import pyarrow as pa

from ...schemas.errors import SchemaError
from ...schemas.features import (
    Feature,
    Scalar,
    Sequence,
    Struct,
    Tensor,
    Timestamp,
    tensor_form,
)
from ...schemas.wire import Dtype
from .arrow_leaves import Leaf, extract, leaves_of, plain_type
from .table_files import other_columns

_FLOATS: Mapping[int, Dtype] = {16: "float16", 32: "float32", 64: "float64"}


def infer_features(
    schema: pa.Schema, *, missing: Collection[str], path: str
) -> dict[str, Feature | Struct]:
    """The features of columns of these types.

    Args:
        schema: The columns.
        missing: Names of the leaves that lack a value in some row, as
            :func:`missing_leaves` gives them for a batch.
        path: Where the columns are from, for errors.

    Raises:
        SchemaError: if a column cannot be stored, or has another's name.
    """
    leaves = leaves_of(schema, path=path)
    features = {name: leaf_feature(leaf, missing=name in missing) for name, leaf in leaves.items()}
    return nest(schema, features, path=path)


def nest(
    schema: pa.Schema, features: Mapping[str, Feature], *, path: str
) -> dict[str, Feature | Struct]:
    """The features of columns: those of the leaves, put into the structs that hold them.

    Raises:
        SchemaError: if there are none.
    """
    found: dict[str, Feature | Struct] = {}
    for field in schema:
        feature = _nested(field.name, field.type, features)
        if feature is not None:
            found[field.name] = feature
    if not found:
        raise SchemaError(f"{path} has no columns. Is it the right file?")
    return found


def missing_leaves(batch: pa.RecordBatch, *, path: str) -> set[str]:
    """Names of the leaves that lack a value in some row of a batch."""
    return {
        name
        for name, leaf in leaves_of(batch.schema, path=path).items()
        if extract(batch.column(leaf.column), leaf).missing().any()
    }


def leaf_feature(leaf: Leaf, *, missing: bool) -> Feature:
    """The feature of one leaf; ``missing`` says whether some row lacks it."""
    item: Scalar | Timestamp = _item(leaf.type)
    if not leaf.shape:
        if isinstance(item, Timestamp):
            return Timestamp(item.unit, optional=missing)
        return Scalar(item.dtype, optional=missing, unit=item.unit)
    dtype: Dtype = "int64" if isinstance(item, Timestamp) else item.dtype
    first, *rest = leaf.shape
    if None not in rest and (first is None or missing):
        of = Tensor(dtype, tuple(rest), unit=item.unit) if rest else item
        return Sequence(of, optional=missing)
    return Tensor(dtype, leaf.shape, unit=item.unit)


def _item(type_: pa.DataType) -> Scalar | Timestamp:
    types = pa.types
    if types.is_boolean(type_):
        return Scalar("bool")
    if types.is_integer(type_):
        return Scalar(str(type_))  # type: ignore[arg-type]
    if types.is_floating(type_):
        return Scalar(_FLOATS[type_.bit_width])
    if types.is_decimal(type_):
        return Scalar("float64")
    if types.is_timestamp(type_):
        return Timestamp(type_.unit)
    if types.is_date(type_):
        return Timestamp("s" if types.is_date32(type_) else "ms")
    if types.is_time(type_) or types.is_duration(type_):
        return Scalar("int32" if types.is_time32(type_) else "int64", unit=type_.unit)
    return Scalar("string")


def _nested(name: str, type_: pa.DataType, features: Mapping[str, Feature]) -> Any:
    """The feature of a column, Structs put together again; None for a struct without fields."""
    type_ = plain_type(type_)
    inner = type_
    while not pa.types.is_struct(inner) and hasattr(inner, "value_type"):
        inner = plain_type(inner.value_type)
    if not pa.types.is_struct(inner):
        return features[name]
    fields = {
        field.name: found
        for field in inner
        if (found := _nested(f"{name}.{field.name}", field.type, features)) is not None
    }
    return Struct(fields) if fields else None


def join_schemas(
    schemas: Mapping[pa.Schema, str], *, declared: Mapping[str, Any]
) -> dict[str, Leaf]:
    """The leaves of the columns of some files, as :func:`join_leaves` joins two.

    Args:
        schemas: At least one, each with a file that has it.
        declared: The types that are declared by name.

    Raises:
        SchemaError: naming a column that one file lacks, or whose types have nothing in common.
    """
    (first, path), *others = schemas.items()
    joined = leaves_of(first, path=path)
    for schema, other in others:
        found = leaves_of(schema, path=other)
        joined = join_leaves(joined, found, paths=(path, other), declared=declared)
    return joined


def join_leaves(
    one: Mapping[str, Leaf],
    other: Mapping[str, Leaf],
    *,
    paths: tuple[str, str],
    declared: Mapping[str, Any],
) -> dict[str, Leaf]:
    """The leaves of two files' columns, of types that hold the values of both.

    Args:
        one: Leaves by name, which give the order.
        other: Those of the other file.
        paths: The files, for errors.
        declared: The types that are declared by name, so that they need not be inferred.

    Raises:
        SchemaError: naming columns that one file lacks, or whose types have nothing in common.
    """
    if one.keys() != other.keys():
        raise SchemaError(
            f"{other_columns(other, one, paths=(paths[1], paths[0]))}. Name those that all files "
            "have with columns=, or read them as two sources."
        )
    joined = {}
    for name, leaf in one.items():
        found = other[name]
        type_ = _join_types(leaf.type, found.type)
        if _differ(leaf.type, found.type, declared.get(name)) or (
            name not in declared and (type_ is None or len(leaf.shape) != len(found.shape))
        ):
            fix = f'Store one type, or declare it: types={{{name!r}: "…"}}.'
            if _is_zoned(leaf.type) is not _is_zoned(found.type):
                fix = (
                    "Store one type. Where the times without a zone are UTC, declare it as a "
                    f'feature of times: types={{{name!r}: ss.Timestamp("us")}}.'
                )
            raise SchemaError(
                f"Column {name!r} is {leaf.type}{_dims(leaf)} in {paths[0]} and "
                f"{found.type}{_dims(found)} in {paths[1]}. {fix}"
            )
        shape = leaf.shape
        if len(shape) == len(found.shape):
            pairs = zip(shape, found.shape, strict=True)
            shape = tuple(a if a == b else None for a, b in pairs)
        joined[name] = dataclasses.replace(leaf, type=type_ or leaf.type, shape=shape)
    return joined


def _dims(leaf: Leaf) -> str:
    return "".join(f"[{'' if dim is None else dim}]" for dim in leaf.shape)


def _differ(one: pa.DataType, other: pa.DataType, declared: Any) -> bool:
    """Whether a declared type would take durations of two units for numbers of one.

    As text a duration has no unit.
    """
    units = {type_.unit for type_ in (one, other) if pa.types.is_duration(type_)}
    form = tensor_form(declared) if isinstance(declared, Feature) else None
    dtype = form.dtype if form is not None else declared
    return len(units) > 1 and dtype == "string"


def _is_zoned(type_: pa.DataType) -> bool | None:
    """Whether a time has a zone; None for what is no time of day on a date."""
    if pa.types.is_date(type_):
        return False
    return type_.tz is not None if pa.types.is_timestamp(type_) else None


def _join_types(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """A type that holds the values of both; None where there is none."""
    if one == other:
        return one
    if _is_zoned(one) is not _is_zoned(other):
        return None
    if pa.types.is_timestamp(one) and pa.types.is_timestamp(other):
        return pa.timestamp(max(one.unit, other.unit, key=("s", "ms", "us", "ns").index))
    if pa.types.is_decimal(one) and pa.types.is_decimal(other):
        return one
    if {pa.types.is_decimal(one), pa.types.is_decimal(other)} == {True, False} and (
        pa.types.is_floating(one) or pa.types.is_floating(other)
    ):
        return pa.float64()
    try:
        return (
            pa.unify_schemas(
                [pa.schema([("x", one)]), pa.schema([("x", other)])], promote_options="permissive"
            )
            .field("x")
            .type
        )
    except (pa.ArrowTypeError, pa.ArrowInvalid):
        return None
