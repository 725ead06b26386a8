"""Leaf columns of nested Arrow types: what they are called, and how to take them apart.

A struct's fields are leaves called ``<struct>.<field>``; lists around a leaf, also around a
struct that it is a field of, are its dimensions; a map is a list of structs of ``key`` and
``value``. Extension types are what they are stored as; dictionaries and run-end encoding are
only a way to write values down.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ...schemas.errors import SchemaError

MAX_DEPTH = 32
"""Lists and structs inside each other, at most."""

_Bools = npt.NDArray[np.bool_]
_Ints = npt.NDArray[np.int64]


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
