"""Feature types: what a record holds, and how each lies in a ``tf.train.Example``.

A feature is what a person means (an image, a class); a :class:`WireColumn` is how it is
stored: one list of an Example, one column of a run. ``wire_columns`` leads from one to the
other, and everything that writes or reads examples (encoder, reader, schema) goes through it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Annotated, Literal

import pydantic

from .config import config_class
from .errors import RecipeError

ListKind = Literal["bytes", "int64", "float32"]
ScalarDtype = Literal[
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "float32", "string"
]

RESERVED_PREFIX = "snapshard/"
"""Feature names must not begin so: runs keep keys and ids under it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class WireColumn:
    """One stored list: a feature of a ``tf.train.Example`` and a column of a run.

    In Arrow: ``large_binary``, ``int64`` or ``float32`` where ``length`` is 1; a
    ``fixed_size_list`` of it for a larger fixed length; a ``large_list`` where it varies.
    A null is a feature that this Example does not have.
    """

    name: str
    kind: ListKind
    length: int | None = 1
    """Values per record; None where it varies."""
    optional: bool = False


_PYTHON_TYPES: Mapping[str, tuple[type, ...]] = {
    "bool": (bool,),
    "float32": (float, int),
    "string": (str,),
}
"""What a default of a dtype is in Python; an int elsewhere."""


def list_kind(dtype: str) -> ListKind:
    """Says which of an Example's three lists holds values of a dtype."""
    if dtype == "float32":
        return "float32"
    return "bytes" if dtype == "string" else "int64"


@config_class
class Image:
    """An image of ``uint8[height, width, channels]``.

    ``storage="raw"`` keeps the pixels (row-major, as ``tf.io.decode_raw`` reads them):
    trains fastest. ``storage="encoded"`` keeps the file's bytes (JPEG, PNG, GIF, BMP) with
    their size and EXIF orientation beside them. A height and width of None differ from
    record to record; then ``<name>/height`` and ``<name>/width`` stand in the Example.
    """

    height: int | None = None
    width: int | None = None
    channels: Literal[1, 3, 4] = 3
    storage: Literal["raw", "encoded"] = "raw"
    kind: Literal["image"] = "image"

    def wire_columns(self, name: str) -> tuple[WireColumn, ...]:
        """The stored columns of a feature of this type called ``name``."""
        pixels = WireColumn(name=name, kind="bytes")
        size = tuple(
            WireColumn(name=f"{name}/{part}", kind="int64") for part in ("height", "width")
        )
        if self.storage == "encoded":
            return (pixels, *size, WireColumn(name=f"{name}/orientation", kind="int64"))
        return (pixels,) if self.fixed_size else (pixels, *size)

    @property
    def fixed_size(self) -> bool:
        """Whether every image has the same height and width."""
        return self.height is not None and self.width is not None


@config_class
class ClassLabel:
    """A class, stored as an int64: the index of its name in ``names``."""

    names: tuple[str, ...]
    kind: Literal["class_label"] = "class_label"

    def __post_init__(self) -> None:
        """Checks that names are unique."""
        if len(set(self.names)) != len(self.names):
            raise ValueError("class names must be unique")

    def wire_columns(self, name: str) -> tuple[WireColumn, ...]:
        """The stored columns of a feature of this type called ``name``."""
        return (WireColumn(name=name, kind="int64"),)


@config_class
class Scalar:
    """One number, bool or string.

    Integers and bool lie in the int64 list, float32 in the float list, strings (UTF-8 or any
    bytes) in the bytes list. ``optional`` scalars may be missing: absent from the Example,
    sparse in a ``preprocessing_fn``, ``default`` in the reader (where none is given: 0,
    False, the empty string, and NaN for float32, which a loss does not overlook).
    """

    dtype: ScalarDtype
    optional: bool = False
    default: bool | int | float | str | None = None
    kind: Literal["scalar"] = "scalar"

    def __post_init__(self) -> None:
        """Checks that the default is of the dtype; NaN, which is float32's own, becomes None."""
        default, expected = self.default, _PYTHON_TYPES.get(self.dtype, (int,))
        if default is None:
            return
        if not isinstance(default, expected) or isinstance(default, bool) != (expected == (bool,)):
            raise ValueError(f"default={default!r} is no {self.dtype}")
        if isinstance(default, float) and math.isinf(default):
            raise ValueError(f"default={default} must be finite")  # JSON has no infinity
        if isinstance(default, float) and math.isnan(default):
            object.__setattr__(self, "default", None)

    def wire_columns(self, name: str) -> tuple[WireColumn, ...]:
        """The stored columns of a feature of this type called ``name``."""
        return (WireColumn(name=name, kind=list_kind(self.dtype), optional=self.optional),)

    @property
    def fill(self) -> bool | int | float | str:
        """What the reader puts where the value is missing."""
        if self.default is not None:
            return self.default
        if self.dtype == "float32":
            return math.nan
        if self.dtype == "string":
            return ""
        return False if self.dtype == "bool" else 0


@config_class
class Tensor:
    """A dense tensor of fixed shape, or a list of varying length (``shape=(None,)``).

    Values lie row-major in one list. Optional tensors may be missing: the reader gives a list
    of length zero, so only ``shape=(None,)`` may be optional.
    """

    dtype: ScalarDtype
    shape: tuple[int | None, ...]
    optional: bool = False
    kind: Literal["tensor"] = "tensor"

    def __post_init__(self) -> None:
        """Checks which shapes can be stored."""
        if None in self.shape and self.shape != (None,):
            raise ValueError("a shape is fixed, or (None,) for a list of varying length")
        if any(dim is not None and dim < 1 for dim in self.shape):
            raise ValueError("dimensions are positive")
        if self.optional and self.shape != (None,):
            raise ValueError("only a list of shape (None,) can be optional")

    @property
    def length(self) -> int | None:
        """Values per record; None where it varies."""
        if self.shape == (None,):
            return None
        return math.prod(dim for dim in self.shape if dim is not None)

    def wire_columns(self, name: str) -> tuple[WireColumn, ...]:
        """The stored columns of a feature of this type called ``name``."""
        return (
            WireColumn(
                name=name, kind=list_kind(self.dtype), length=self.length, optional=self.optional
            ),
        )


Feature = Image | ClassLabel | Scalar | Tensor
Features = Mapping[str, Feature]
"""Features by name. Their order means nothing; they are stored in the order of their names."""

_ADAPTER: pydantic.TypeAdapter[dict[str, Feature]] = pydantic.TypeAdapter(
    dict[str, Annotated[Feature, pydantic.Field(discriminator="kind")]]
)


def wire_columns(features: Features) -> tuple[WireColumn, ...]:
    """All stored columns of the features, in the order of their names' UTF-8 bytes.

    Raises:
        RecipeError: if two features would store the same column, or a name is reserved.
    """
    columns: dict[str, WireColumn] = {}
    for name, feature in features.items():
        if not name or name.startswith(RESERVED_PREFIX):
            raise RecipeError(
                f"Feature name {name!r} is empty or begins with the reserved {RESERVED_PREFIX!r}. "
                "Rename it."
            )
        for column in feature.wire_columns(name):
            if column.name in columns:
                raise RecipeError(
                    f"Feature {name!r} stores a column {column.name!r} that another feature has "
                    "already. Rename one of them."
                )
            columns[column.name] = column
    return tuple(sorted(columns.values(), key=lambda column: column.name.encode()))


def features_to_json(features: Features) -> dict[str, object]:
    """Features as plain JSON, names sorted; :func:`features_from_json` is its dual."""
    dumped = _ADAPTER.dump_python(dict(features), mode="json")
    return {name: dumped[name] for name in sorted(dumped, key=str.encode)}


def features_from_json(value: object) -> dict[str, Feature]:
    """Reads what :func:`features_to_json` wrote.

    Raises:
        pydantic.ValidationError: if it is not of that form.
    """
    return _ADAPTER.validate_python(value)
