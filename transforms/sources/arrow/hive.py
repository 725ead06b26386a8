"""Columns in the names of folders: ``year=2024/month=01/part-0.parquet``, as Hive and Spark write.

Each key is a column whose value is the same in all rows of a file. Names are percent-decoded. As in
pyarrow, the values of all files decide the type: int64 if all are integers (``01`` is 1), else
string; ``__HIVE_DEFAULT_PARTITION__`` is a missing value. A table source with ``hive=True`` calls
these functions, which call the same source without it.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa

from ....schemas.blocks import Block, RawBatch, SourceFile
from ....schemas.errors import SchemaError
from ....schemas.features import ClassLabel, Feature, Features, Scalar
from ....schemas.recipe import OpenSource
from ....schemas.wire import FLOATS
from ...runs.files import wire_schema
from ..table_files import check_columns, with_class, with_types
from .rows import RowReader

MISSING = "__HIVE_DEFAULT_PARTITION__"
_FOLDER = re.compile(r"([^=/]+)=([^/]*)")
_BOOLS = ("false", "true", "0", "1")
_INTEGER = re.compile(r"-?[0-9]{1,18}")


def folder_values(path: str) -> dict[str, str | None]:
    """The columns in the folders of a path.

    >>> folder_values("sales/year=2024/city=S%C3%A3o%20Paulo/part=0.csv")
    {'year': '2024', 'city': 'São Paulo'}
    """
    folders = path.split("/")[:-1]
    pairs = (found.groups() for folder in folders if (found := _FOLDER.fullmatch(folder)))
    return {unquote(key): None if value == MISSING else unquote(value) for key, value in pairs}


def keys_of(paths: Iterable[str]) -> tuple[str, ...]:
    """The keys in the folders of all paths; () unless they are the same in all of them."""
    keys = {tuple(folder_values(path)) for path in paths}
    return keys.pop() if len(keys) == 1 else ()


def infer_with_folders(
    source: Any, files: Sequence[SourceFile], opened: OpenSource
) -> dict[str, Any]:
    """The features of a source's rows, and those of the keys in folders.

    Raises:
        SchemaError: if files have other keys than others, or none, or a column of such a name.
    """
    kind = type(source).__name__
    keys = keys_of(file.path for file in files)
    if not keys:
        first = files[0].path
        others = (
            f.path for f in files if tuple(folder_values(f.path)) != tuple(folder_values(first))
        )
        named = " and ".join([first, *itertools.islice(others, 1)])
        raise SchemaError(
            f"{kind}(hive=True): all files must be in folders of the same keys, such as "
            f"year=2024/month=01; found {named}. Leave out hive=True to read only the columns "
            "in the files."
        )
    inner = _without_folders(source, keys)
    inferred = dict(inner.infer(files, opened))
    if both := sorted(keys & inferred.keys()):
        raise SchemaError(
            f"{kind}(hive=True): {both[0]!r} is both a column of the files and a key of their "
            "folders. Leave out hive=True to read it from the files."
        )
    values = {key: {folder_values(file.path)[key] for file in files} for key in keys}
    found = {key: _feature(texts) for key, texts in values.items()}
    check_columns(kind, [*inferred, *found], label=source.label, types=source.types)
    own = {name: wanted for name, wanted in (source.types or {}).items() if name in found}
    features = with_types(found, own)
    if source.label in features:
        features = with_class(
            features,
            label=source.label,
            types=own,
            texts_of=lambda label: [sorted(text for text in values[label] if text is not None)],
        )
    return {**inferred, **features}


def read_with_folders(
    source: Any, block: Block, *, features: Features, opened: OpenSource, ordered: Sequence[int]
) -> Iterator[RawBatch]:
    """Reads a block, with the columns of its files' folders.

    Raises:
        SchemaError: if the name of a folder is no value of its feature.
    """
    by_path = {part.path: folder_values(part.path) for part in block.ranges}
    keys = {key for values in by_path.values() for key in values}
    own = {name: feature for name, feature in features.items() if name not in keys}
    ours = {name: feature for name, feature in features.items() if name in keys}
    values = _stored(by_path, ours)
    rows = {path: row for row, path in enumerate(by_path)}
    schema = wire_schema(features)
    inner = _without_folders(source, keys)
    for batch in inner.read(block, features=own, opened=opened, ordered=ordered):
        if len(rows) == 1:
            taken = pa.array(np.zeros(len(batch.ids), np.int64))
        else:
            paths = (record_id.rpartition("#")[0] for record_id in batch.ids)
            taken = pa.array([rows[path] for path in paths], pa.int64())
        arrays = [
            values.column(name).take(taken)
            if name in values.schema.names
            else batch.columns.column(name)
            for name in schema.names
        ]
        made = pa.RecordBatch.from_arrays(arrays, schema=schema)
        yield dataclasses.replace(batch, columns=made)


def _without_folders(source: Any, keys: Iterable[str]) -> Any:
    """The same source of the columns that are in the files."""
    held = set(keys)
    changes: dict[str, Any] = {"hive": False}
    if source.label in held:
        changes["label"] = None
    if source.types:
        changes["types"] = {n: wanted for n, wanted in source.types.items() if n not in held}
    if isinstance(source.columns if hasattr(source, "columns") else None, tuple):
        changes["columns"] = tuple(name for name in source.columns if name not in held)
    return dataclasses.replace(source, **changes)


def _feature(texts: set[str | None]) -> Feature:
    """The feature of a key with these values."""
    known = [text for text in texts if text is not None]
    integers = known and all(_INTEGER.fullmatch(text) for text in known)
    return Scalar("int64" if integers else "string", optional=None in texts)


def _stored(by_path: Mapping[str, Mapping[str, str | None]], features: Features) -> pa.RecordBatch:
    """The stored values of keys, a row for each path."""
    columns = {}
    for name, feature in features.items():
        texts = [values.get(name) for values in by_path.values()]
        convert, kind = _parser(feature)
        try:
            columns[name] = pa.array([None if t is None else convert(t) for t in texts], kind)
        except (ValueError, OverflowError):
            raise _unfit(name, feature, sorted({text for text in texts if text})) from None
    batch = pa.RecordBatch.from_pydict(columns)
    read = RowReader(batch.schema, features, path=next(iter(by_path))).read(
        batch, np.arange(len(by_path))
    )
    if read.rejects:
        raise SchemaError(read.rejects[0].message.partition(", or raise max_rejects")[0])
    return read.columns


def _parser(feature: Feature) -> tuple[Callable[[str], Any], pa.DataType]:
    """How the text of a feature's value is parsed, and the type that it then has."""
    integers = isinstance(feature, ClassLabel) and feature.values is not None
    dtype = feature.dtype if isinstance(feature, Scalar) else "int64" if integers else "string"
    if dtype in FLOATS:
        return float, pa.float64()
    if dtype == "bool":
        return (lambda text: bool(_BOOLS.index(text.lower()) % 2)), pa.bool_()
    if "int" in dtype:
        return int, pa.uint64() if dtype == "uint64" else pa.int64()
    return str, pa.large_string()


def _unfit(name: str, feature: Feature, texts: Sequence[str]) -> SchemaError:
    shown = ", ".join(f"{name}={text}" for text in texts[:3])
    return SchemaError(
        f"Among the folders are {shown}, but {name!r} is declared as {feature}. Correct types= or "
        "features=, or rename the folders."
    )
