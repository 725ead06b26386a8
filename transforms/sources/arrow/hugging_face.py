"""The source of Hugging Face datasets on disk, as written by ``Dataset.save_to_disk``.

They are Arrow streams whose schema has the metadata ``huggingface``: JSON with a type for each
column, which adds to Arrow's own type the names of classes, shapes of arrays, and which columns are
images or sounds. ``datasets`` is not required. A record's id is ``relative/path#row``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
from collections.abc import Collection, Mapping, Set
from collections.abc import Sequence as Many
from typing import Any, get_args

import pyarrow as pa

from ....schemas.blocks import Selection, SourceFile
from ....schemas.config import config_class
from ....schemas.errors import SchemaError
from ....schemas.features import (
    Audio,
    ClassLabel,
    Dtype,
    Feature,
    Features,
    Image,
    Sequence,
    Struct,
    Tensor,
    is_optional,
)
from ....schemas.recipe import OpenSource
from ...storage.opened_source import is_hidden
from ..table_files import select_where, types_to_json
from .files import DAMAGE, ArrowSource
from .hive import infer_with_folders
from .ipc import FORMAT
from .rows import RowReader

METADATA = b"huggingface"
_DTYPES = frozenset(get_args(Dtype))
_ITEMS = re.compile(r"\.feature(?=\.|$)")
"""What the items of a list are called in the metadata."""
_ARRAY = re.compile(r"Array[2-5]D")

SUFFIX = ".arrow"
_CACHES = ("cache-", "tmp")


def column_types(schema: pa.Schema) -> dict[str, Any]:
    """The type of each column in the metadata; {} if there are none."""
    try:
        found = json.loads((schema.metadata or {}).get(METADATA, b"{}"))
        features = found.get("info", {}).get("features", {})
    except (ValueError, AttributeError, RecursionError):
        return {}
    return dict(features) if isinstance(features, dict) else {}


def class_names(spec: Any) -> tuple[str, ...] | None:
    """The class names of a column; None if it has none."""
    names = spec.get("names") if isinstance(spec, dict) else None
    if not isinstance(names, list) or spec.get("_type") != "ClassLabel" or not names:
        return None
    return tuple(names) if all(isinstance(name, str) for name in names) else None


def classes_of(spec: Any, name: str = "") -> dict[str, tuple[str, ...]]:
    """The class names of all columns, including nested ones, by dotted path."""
    names = class_names(spec)
    if names is not None:
        return {name: names}
    found: dict[str, tuple[str, ...]] = {}
    if isinstance(spec, dict):
        for key, inner in spec.items():
            found |= classes_of(inner, f"{name}.{key}" if name else key)
    return found


def classes_by_leaf(specs: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """The class names of all columns, by the names of their features.

    >>> label = {"_type": "ClassLabel", "names": ["x"]}
    >>> classes_by_leaf({"a": label, "b": {"_type": "List", "feature": label}})
    {'a': ('x',), 'b': ('x',)}
    """
    return {_ITEMS.sub("", name): names for name, names in classes_of(specs).items()}


def is_media(spec: Any) -> bool:
    """Whether a column holds images or sounds."""
    return isinstance(spec, dict) and spec.get("_type") in ("Image", "Audio")


def with_column_types(
    inferred: Mapping[str, Feature | Struct], specs: Mapping[str, Any], *, declared: Collection[str]
) -> dict[str, Feature | Struct]:
    """The features of Arrow columns, refined by their metadata.

    Args:
        inferred: The features inferred from Arrow types.
        specs: The result of :func:`column_types`.
        declared: Names whose type the user has declared, which are kept.
    """
    return {
        name: _typed(feature, specs.get(name), name, declared) for name, feature in inferred.items()
    }


def _typed(found: Any, spec: Any, name: str, declared: Collection[str]) -> Any:
    if name in declared:
        return found
    if isinstance(found, Struct):
        if is_media(spec):
            return media_feature(spec)
        fields = spec if isinstance(spec, dict) and not isinstance(spec.get("_type"), str) else {}
        return Struct(
            {
                key: _typed(field, fields.get(key), f"{name}.{key}", declared)
                for key, field in found.fields.items()
            }
        )
    if not isinstance(spec, dict):
        return found
    kind, optional = spec.get("_type"), is_optional(found)
    names = class_names(spec)
    if names is not None:
        # A class inferred from the rows of a label is equivalent.
        return found if isinstance(found, ClassLabel) else ClassLabel(names, optional=optional)
    if is_media(spec):
        return media_feature(spec)
    if kind in ("List", "LargeList", "Sequence") and isinstance(found, Sequence):
        items = class_names(spec.get("feature"))
        return found if items is None else Sequence(ClassLabel(items), optional=optional)
    if isinstance(kind, str) and _ARRAY.fullmatch(kind) and spec.get("dtype") in _DTYPES:
        shape = spec.get("shape")
        if isinstance(found, Tensor) and isinstance(shape, list) and len(shape) == len(found.shape):
            return Tensor(spec["dtype"], tuple(shape))
    return found


def media_feature(spec: Mapping[str, Any]) -> Image | Audio:
    """The feature of a column of images or sounds."""
    return Image(storage="encoded") if spec["_type"] == "Image" else Audio(storage="encoded")


class DescribedColumns(ArrowSource):
    """A source whose files may have the metadata: classes, shapes, images and sounds."""

    @staticmethod
    def _reader(schema: pa.Schema, features: Features, *, path: str) -> RowReader:
        classes = classes_by_leaf(column_types(schema))
        return RowReader(schema, features, path=path, classes=classes)

    def infer(self, files: Many[SourceFile], opened: OpenSource) -> Mapping[str, Any]:
        """The features of the columns, from the types in the metadata and the Arrow types.

        Raises:
            SchemaError: if no file can be read, their columns differ, or one cannot be stored.
            RecipeError: if ``label`` or ``types`` name a column that does not exist.
        """
        if self.hive:
            return infer_with_folders(self, files, opened)
        inspected = self._inspect(files, opened)
        specs = _specs({each.file.path: each.schema for each in inspected})
        inferred = self._infer(inspected, opened)
        return with_column_types(inferred, specs, declared=self.types or {})

    def named_numbers(self, files: Many[SourceFile], opened: OpenSource) -> Set[str]:
        """The features whose classes are in the metadata, which are those of the first file."""
        for file in files:
            if file.num_bytes and not file.problem:
                with contextlib.suppress(*DAMAGE):
                    schema = self._format.open(opened, file.path).schema
                    return {*classes_by_leaf(column_types(schema))}
        return set()

    def _read_label(self, schema: pa.Schema) -> str | None:
        """None if the metadata names the classes of the label: rows are not read for them."""
        is_class = class_names(column_types(schema).get(self.label or "")) is not None
        return None if is_class else self.label


def _specs(schemas: Mapping[str, pa.Schema]) -> dict[str, Any]:
    """The column types in the metadata of files, by path. Classes must be the same in all.

    Raises:
        SchemaError: naming two files with different classes, whose numbers would conflict.
    """
    (first, specs), *others = ((path, column_types(schema)) for path, schema in schemas.items())
    mine = classes_of(specs)
    for path, found in others:
        named = classes_of(found)
        differ = sorted(n for n in mine.keys() & named.keys() if mine[n] != named[n])
        if differ:
            name = differ[0]
            raise SchemaError(
                f"Column {name!r} has the classes {_shown(mine[name])} in {first} and "
                f"{_shown(named[name])} in {path}. Cast one dataset to the features of the other."
            )
    return specs


@config_class
class HuggingFace(DescribedColumns):
    """A ``datasets.Dataset`` or ``DatasetDict`` written by ``save_to_disk``.

    Classes keep their names and numbers, arrays their shapes. Images and sounds are the files
    embedded in the dataset; rows that only name a path are rejected. A row of class -1, which means
    no class, is rejected; ``types={"label": "int64"}`` keeps it as a number. The splits of a
    DatasetDict are its folders: ``splits=ss.Splits.by_folder()``.

    Attributes:
        url: The folder, or any fsspec URL of it.
        label: The column to predict.
        types: Overrides the dataset's types: ``{"age": "float32"}``, or a feature. The field of a
            struct is ``"struct.field"``.
    """

    url: str
    label: str | None = None
    types: Mapping[str, Any] | None = None

    _format = dataclasses.replace(FORMAT, name="a dataset's Arrow file")
    _remedy = "Give all files the same columns."

    def settings(self) -> dict[str, object]:
        """The settings that determine the records and their inferred features, as plain JSON."""
        return {"label": self.label, "types": types_to_json(self.types)}

    def select(self, files: Many[SourceFile]) -> Selection:
        """Selects Arrow files, except the cache files of ``datasets``."""
        return select_where(files, _why_skipped)


def _why_skipped(path: str) -> str:
    name = path.rpartition("/")[2]
    if is_hidden(path):
        return "hidden file"
    if not name.endswith(SUFFIX):
        return "not an .arrow file"
    return "cache of datasets" if name.startswith(_CACHES) else ""


def _shown(names: tuple[str, ...]) -> str:
    return ", ".join(map(repr, names[:5])) + (", …" if len(names) > 5 else "")
