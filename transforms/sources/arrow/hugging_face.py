"""Datasets of Hugging Face on disk as a source, as ``Dataset.save_to_disk`` writes them.

They are Arrow streams whose schema carries the metadata ``huggingface``: JSON with a type for each
column, which says more than Arrow's own: names of classes, shapes of arrays, which columns are
images and sounds. ``datasets`` itself is not needed. A record's id is ``relative/path#row``.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from collections.abc import Sequence as Many
from typing import Any, get_args

import pyarrow as pa

from ....schemas.blocks import Block, RawBatch, Selection, SourceFile
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
from ...storage.globs import is_hidden
from ..table_files import check_types, types_to_json
from .files import DAMAGE, ArrowTables
from .ipc import FORMAT
from .media_rows import MediaRowReader

METADATA = b"huggingface"
_DTYPES = frozenset(get_args(Dtype))
_ARRAY = re.compile(r"Array[2-5]D")

SUFFIX = ".arrow"
_CACHES = ("cache-", "tmp")


def column_types(schema: pa.Schema) -> dict[str, Any]:
    """What the metadata say of each column; {} where there are none."""
    try:
        found = json.loads((schema.metadata or {}).get(METADATA, b"{}"))
        features = found.get("info", {}).get("features", {})
    except (ValueError, AttributeError, RecursionError):
        return {}
    return dict(features) if isinstance(features, dict) else {}


def class_names(spec: Any) -> tuple[str, ...] | None:
    """The names of a column's classes; None where it has none."""
    names = spec.get("names") if isinstance(spec, dict) else None
    if not isinstance(names, list) or spec.get("_type") != "ClassLabel" or not names:
        return None
    return tuple(names) if all(isinstance(name, str) for name in names) else None


def classes_of(spec: Any, name: str = "") -> dict[str, tuple[str, ...]]:
    """The names of the classes of all columns, also those inside lists and structs, by place."""
    names = class_names(spec)
    if names is not None:
        return {name: names}
    found: dict[str, tuple[str, ...]] = {}
    if isinstance(spec, dict):
        for key, inner in spec.items():
            found |= classes_of(inner, f"{name}.{key}" if name else key)
    return found


def is_media(spec: Any) -> bool:
    """Whether a column is one of images or sounds."""
    return isinstance(spec, dict) and spec.get("_type") in ("Image", "Audio")


def with_column_types(
    inferred: Mapping[str, Feature | Struct], specs: Mapping[str, Any], *, declared: Collection[str]
) -> dict[str, Feature | Struct]:
    """The features of Arrow columns with what the metadata say of them.

    Args:
        inferred: What Arrow's types say.
        specs: What :func:`column_types` gave.
        declared: Names whose type the user has given, which stay.
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
        # Texts of a label that were gathered from the rows say the same.
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


@config_class
class HuggingFace:
    """A ``datasets.Dataset`` or ``DatasetDict`` that ``save_to_disk`` wrote.

    Classes keep their names and numbers, arrays their shapes; images and sounds are the files
    that the dataset holds (what it only names a path of is rejected). A row whose class is -1,
    which stands for none, is rejected; ``types={"label": "int64"}`` keeps it as a number. The
    splits of a DatasetDict are its folders: ``splits=ss.Splits.by_folder()``.

    Attributes:
        url: The folder, or any fsspec URL of it.
        label: The column to predict.
        types: Types in place of those that the dataset says: ``{"age": "float32"}``, or a feature.
            A struct's field is ``"struct.field"``.
    """

    url: str
    label: str | None = None
    types: Mapping[str, Any] | None = None

    media = False
    numbered = True
    side_urls = ()

    def __post_init__(self) -> None:
        """Checks the types."""
        check_types(self.types)

    def settings(self) -> dict[str, object]:
        """What shapes the records and what is inferred of them, as plain JSON."""
        return {"label": self.label, "types": types_to_json(self.types)}

    def select(self, files: Many[SourceFile]) -> Selection:
        """Takes the Arrow files, without those that ``datasets`` caches results in."""
        selected, skipped = [], Counter[str]()
        for file in files:
            name = file.path.rpartition("/")[2]
            if is_hidden(file.path):
                skipped["hidden file"] += 1
            elif not name.endswith(SUFFIX):
                skipped["not an .arrow file"] += 1
            elif name.startswith(_CACHES):
                skipped["cache of datasets"] += 1
            else:
                selected.append(file)
        return Selection(files=tuple(selected), num_skipped=dict(sorted(skipped.items())))

    def cuts(self, file: SourceFile, opened: OpenSource) -> tuple[int, ...]:
        """Where the record batches of an IPC file begin; a stream cannot be cut."""
        return self._tables(self.label).cuts(file, opened)

    def offset_of(self, file: SourceFile, row: int, opened: OpenSource) -> int | None:
        """About where a row lies, in bytes."""
        return self._tables(self.label).offset_of(file, row, opened)

    def infer(self, files: Many[SourceFile], opened: OpenSource) -> Mapping[str, Any]:
        """The features of the columns, as the dataset says, and as their Arrow types do.

        Raises:
            SchemaError: if no file can be read, their columns differ, or one cannot be stored.
            RecipeError: if ``label`` or ``types`` name no column.
        """
        specs = self._specs(files, opened)
        # What the dataset says of a label spares a look at all rows; what it is, Arrow need not.
        is_class = class_names(specs.get(self.label or "")) is not None
        inferred = self._tables(None if is_class else self.label).infer(files, opened)
        return with_column_types(inferred, specs, declared=self.types or {})

    def read(
        self, block: Block, *, features: Features, opened: OpenSource, ordered: Many[int]
    ) -> Iterator[RawBatch]:
        """Reads the rows of a block's ranges; ids are ``path#row``.

        Raises:
            SchemaError: if a file lacks the column of a feature, or has one of another type.
        """
        tables = self._tables(self.label)
        return tables.read(block, features=features, opened=opened, ordered=ordered)

    def _specs(self, files: Many[SourceFile], opened: OpenSource) -> dict[str, Any]:
        """What the files say of their columns, which must be the same classes in all.

        Raises:
            SchemaError: naming two files of other classes: their numbers would mix.
        """
        specs: dict[str, Any] = {}
        first = ""
        for file in files:
            if file.problem or not file.num_bytes:
                continue
            try:
                found = column_types(FORMAT.open(opened, file.path).schema)
            except DAMAGE:
                continue
            if not first:
                specs, first = found, file.path
            mine, others = classes_of(specs), classes_of(found)
            differ = sorted(n for n in mine.keys() & others.keys() if mine[n] != others[n])
            if differ:
                name = differ[0]
                raise SchemaError(
                    f"Column {name!r} has the classes {_shown(mine[name])} in {first} and "
                    f"{_shown(others[name])} in {file.path}. Cast one dataset to the features of "
                    "the other, or read them as two sources."
                )
        return specs

    def _tables(self, label: str | None) -> ArrowTables:
        return ArrowTables(
            format=dataclasses.replace(FORMAT, name="a dataset's Arrow file"),
            label=label,
            columns=None,
            types=self.types,
            reader=MediaRowReader,
        )


def _shown(names: tuple[str, ...]) -> str:
    return ", ".join(map(repr, names[:5])) + (", …" if len(names) > 5 else "")
