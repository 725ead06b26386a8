"""Arrow types as features: the leaf columns of nested types, and what each becomes.

A struct's fields are leaves called ``<struct>.<field>``; lists around a leaf, also around a
struct that it is a field of, are its dimensions; a map is a list of structs of ``key`` and
``value``. Extension types are what they are stored as; dictionaries and run-end encoding are
only a way to write values down.

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
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ....schemas.errors import SchemaError
from ....schemas.features import (
    Feature,
    Scalar,
    Sequence,
    Struct,
    Tensor,
    Timestamp,
    tensor_form,
)
from ....schemas.wire import Dtype
from ..table_files import other_columns

MAX_DEPTH = 32
"""Lists and structs inside each other, at most."""

_Bools = npt.NDArray[np.bool_]
_Ints = npt.NDArray[np.int64]

_FLOATS: Mapping[int, Dtype] = {16: "float16", 32: "float32", 64: "float64"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Leaf:
    """One leaf of a column: a feature to be."""

    name: str
    """The column's, and those of the structs' fields that lead to it, joined by dots."""
    column: int
    """Index of the column in its schema."""
    fields: tuple[int, ...]
    """Which field to take of each struct on the way."""
    type: pa.DataType
    """Of the values, neither nested nor encoded."""
    shape: tuple[int | None, ...] = ()
    """The lists around it, outer ones first: their length, or None where it varies."""


@dataclasses.dataclass(frozen=True)
class Level:
    """Some lists beside each other."""

    lengths: _Ints
    valid: _Bools
    """Where False, there is no list; its length is 0."""


@dataclasses.dataclass(frozen=True)
class Cells:
    """A leaf taken apart: its lists, outer ones first, and all of its values in a row.

    The lengths of one level add up to the number of lists in the next, or of values.
    """

    levels: tuple[Level, ...]
    values: pa.Array

    def missing(self) -> _Bools:
        """Which rows have no value or list."""
        return ~self.levels[0].valid if self.levels else nulls(self.values)

    def rows_of_values(self) -> _Ints:
        """The row of each value."""
        rows: _Ints | None = None
        for level in self.levels:
            found = np.arange(len(level.lengths)) if rows is None else rows
            rows = np.repeat(found, level.lengths)
        return np.arange(len(self.values)) if rows is None else rows


def nulls(array: pa.Array) -> _Bools:
    """Which values of an array are null, bool[n]."""
    if array.null_count == 0:
        return np.zeros(len(array), bool)
    found: _Bools = array.is_null().to_numpy(zero_copy_only=False)
    return found


def leaves_of(schema: pa.Schema, *, path: str) -> dict[str, Leaf]:
    """The leaves of a schema's columns, by name. A struct without fields has none.

    Raises:
        SchemaError: if two columns have one name, or one has none, or is of a type that nothing
            can be made of; ``path`` says where.
    """
    found: dict[str, Leaf] = {}
    for index, field in enumerate(schema):
        for leaf in _below(field.name, field.type, column=index, path=path):
            if leaf.name in found:
                raise SchemaError(
                    f"{path}: two columns are called {leaf.name!r}. Rename one of them."
                )
            found[leaf.name] = leaf
    return found


def plain_type(type_: pa.DataType) -> pa.DataType:
    """A type without what only says how its values are written down."""
    while True:
        if isinstance(type_, pa.BaseExtensionType):
            type_ = type_.storage_type
        elif pa.types.is_dictionary(type_) or pa.types.is_run_end_encoded(type_):
            type_ = type_.value_type
        elif pa.types.is_map(type_):
            return pa.list_(pa.struct([("key", type_.key_type), ("value", type_.item_type)]))
        else:
            return type_


def extract(column: pa.Array, leaf: Leaf) -> Cells:
    """Takes a leaf out of its column, an array of the type that the leaf was found in."""
    levels: list[Level] = []
    fields = iter(leaf.fields)
    array = _plain(column)
    while True:
        if pa.types.is_struct(array.type):
            # Gives null where the struct itself is.
            array = _plain(pc.struct_field(array, [next(fields)]))
        elif _is_list(array.type):
            lengths = pc.list_value_length(array).fill_null(0)
            levels.append(Level(lengths.to_numpy().astype(np.int64), ~nulls(array)))
            array = _plain(array.flatten())
        else:
            return Cells(tuple(levels), array)


def _below(
    name: str,
    type_: pa.DataType,
    *,
    column: int,
    path: str,
    fields: tuple[int, ...] = (),
    shape: tuple[int | None, ...] = (),
) -> Iterator[Leaf]:
    last = name.rpartition(".")[2]
    if not last:
        raise SchemaError(
            f"{path}: column {column + 1} holds a name that is empty or ends with a dot "
            f"({name!r}). Rename it."
        )
    if len(fields) + len(shape) > MAX_DEPTH:
        raise SchemaError(
            f"{path}: column {name!r} is nested more than {MAX_DEPTH} deep. Leave it out, or store "
            "it flat."
        )
    if isinstance(type_, pa.BaseExtensionType) and type_.extension_name == "pandas.period":
        raise SchemaError(
            f"{path}: column {name!r} holds periods of pandas, stored as numbers that only pandas "
            f"can read. Make times of them: data[{name!r}].dt.to_timestamp()."
        )
    type_ = plain_type(type_)
    if pa.types.is_struct(type_):
        for index in range(type_.num_fields):
            field = type_.field(index)
            yield from _below(
                f"{name}.{field.name}",
                field.type,
                column=column,
                path=path,
                fields=(*fields, index),
                shape=shape,
            )
    elif _is_list(type_):
        length = type_.list_size if pa.types.is_fixed_size_list(type_) else None
        if length is not None and length < 1:
            raise SchemaError(
                f"{path}: column {name!r} is {type_}, whose lists hold nothing. Leave it out."
            )
        yield from _below(
            name,
            type_.value_type,
            column=column,
            path=path,
            fields=fields,
            shape=(*shape, length),
        )
    elif pa.types.is_union(type_) or pa.types.is_interval(type_):
        raise SchemaError(
            f"{path}: column {name!r} is {type_}, which no feature can hold. Leave it out with "
            "columns=, or store it as numbers or strings."
        )
    else:
        yield Leaf(name=name, column=column, fields=fields, type=type_, shape=shape)


def _is_list(type_: pa.DataType) -> bool:
    tests = (
        pa.types.is_list,
        pa.types.is_large_list,
        pa.types.is_fixed_size_list,
        pa.types.is_list_view,
        pa.types.is_large_list_view,
    )
    return any(test(type_) for test in tests)


def _plain(array: pa.Array) -> pa.Array:
    """An array whose type is what :func:`plain_type` says, on the outside."""
    while True:
        type_ = array.type
        if isinstance(type_, pa.BaseExtensionType):
            array = array.storage
        elif pa.types.is_dictionary(type_):
            array = array.dictionary_decode()
        elif pa.types.is_run_end_encoded(type_):
            array = pc.run_end_decode(array)
        elif pa.types.is_map(type_):
            array = array.cast(plain_type(type_))
        else:
            return array


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
