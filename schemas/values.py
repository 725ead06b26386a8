"""Feature types of plain values: numbers, strings, classes, times, boxes, and tensors of them.

Each is stored as a :class:`TensorForm`: a dtype and a shape, which determine its wire columns, the
tensors that steps get, and those that the reader returns.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import math
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

import pydantic
from pydantic_core import ArgsKwargs

from .config import config_class
from .wire import FLOATS, Dtype, WireColumn, tensor_columns

Value = bool | int | float | str

NOT_A_TIME = -(2**63)
"""NumPy's NaT."""

_WRITTEN = {
    "bool": re.compile("true|false").fullmatch,
    "int": re.compile("0|-?[1-9][0-9]*").fullmatch,
}
_PYTHON_TYPES: Mapping[str, tuple[type, ...]] = {"bool": (bool,), "string": (str,)} | {
    dtype: (float, int) for dtype in FLOATS
}
"""Python types of the values of a dtype; int for those not listed."""


def _dtype_name(value: Any) -> Any:
    """The name of a dtype, including NumPy's and TensorFlow's; explains why complex is refused."""
    name = getattr(value, "name", None) or getattr(value, "__name__", None) or value
    if not isinstance(name, str):
        raise ValueError('expected a dtype such as "float32"')  # noqa: TRY004 - to pydantic
    name = {"str": "string", "bytes": "string", "object": "string"}.get(name, name)
    if name.startswith("complex"):
        raise ValueError(
            f"{name} cannot be stored: a tf.train.Example has no complex numbers, and few layers "
            "accept them. Use two float features, the real and the imaginary part"
        )
    return name


TimeUnit = Literal["s", "ms", "us", "ns"]
DtypeField = Annotated[Dtype, pydantic.BeforeValidator(_dtype_name)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TensorForm:
    """A feature's tensor of one record."""

    dtype: Dtype
    shape: tuple[int | None, ...] = ()
    """None for dimensions that vary between records."""
    optional: bool = False
    fill: Value = 0
    """Value that steps and the reader use where an optional scalar is missing."""
    masked: bool = False
    """Whether the reader also returns a mask of missing values: see :func:`masked`."""

    def wire_columns(self, name: str) -> tuple[WireColumn, ...]:
        """The stored columns of a tensor called ``name``."""
        return tensor_columns(name, self.dtype, self.shape, optional=self.optional)


def masked(dtype: str, shape: tuple[int | None, ...], *, optional: bool, default: object) -> bool:
    """Whether the reader returns a mask of a feature, ``<name>_present``.

    It does if a feature may be missing and its values do not show that: it has no ``default``, and
    it is not a single float, which is NaN where missing.
    """
    return optional and default is None and (bool(shape) or dtype not in FLOATS)


class TensorFeature(abc.ABC):
    """A feature that is stored as one tensor."""

    @property
    @abc.abstractmethod
    def form(self) -> TensorForm:
        """As a tensor."""

    def wire_columns(self, name: str) -> tuple[WireColumn, ...]:
        """The stored columns of a feature of this type called ``name``."""
        return self.form.wire_columns(name)


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Domain:
    """The values that a feature may have; records with other values are rejected."""

    min: float | int | None = None
    max: float | int | None = None
    values: tuple[Value, ...] | None = None
    finite: bool = False
    """Whether NaN and infinity are refused."""
    max_length: int | None = None
    """Maximum length of each string: characters of a Text, bytes of a Scalar or Tensor."""


def _check_domain(dtype: str, domain: Domain) -> None:
    """Checks that a domain's limits are valid for the dtype.

    Raises:
        ValueError: if they are not.
    """
    is_number = dtype not in ("bool", "string")
    for name in ("min", "max"):
        limit = getattr(domain, name)
        if limit is not None and (not is_number or not _is_of(dtype, limit) or limit != limit):
            raise ValueError(f"{name}={limit!r} is not a valid limit for {dtype}")
    if domain.min is not None and domain.max is not None and domain.min > domain.max:
        raise ValueError(f"min={domain.min} is above max={domain.max}")
    if domain.values is not None:
        unfit = [value for value in domain.values if not _is_of(dtype, value)]
        if unfit or not domain.values:
            raise ValueError(f"values={domain.values!r} are not values of {dtype}")
    if domain.finite and dtype not in FLOATS:
        raise ValueError(f"finite=True is for floats, not for {dtype}")
    if domain.max_length is not None and (dtype != "string" or domain.max_length < 0):
        raise ValueError(f"max_length={domain.max_length} is for strings, and must be 0 or more")


def _check_unit(dtype: str, unit: str | None) -> None:
    """Checks that a feature with a unit of time holds integers.

    Raises:
        ValueError: if it does not.
    """
    if unit is not None and "int" not in dtype:
        raise ValueError(f"unit={unit!r} is for integers, not for {dtype}")


def _is_of(dtype: str, value: object) -> bool:
    expected = _PYTHON_TYPES.get(dtype, (int,))
    return isinstance(value, expected) and isinstance(value, bool) == (expected == (bool,))


class _Bounded(TensorFeature, Domain):
    """A feature with limits on its values as arguments."""

    @property
    def domain(self) -> Domain:
        """The limits as one object."""
        return Domain(
            min=self.min,
            max=self.max,
            values=self.values,
            finite=self.finite,
            max_length=self.max_length,
        )


@functools.lru_cache(maxsize=64)
def _num_written(names: tuple[str, ...], kind: str) -> int:
    # Sources ask for each value, and there may be thousands of names.
    return sum(map(bool, map(_WRITTEN[kind], names)))


@config_class
class ClassLabel(TensorFeature):
    """A class, stored as an int64: the index of its name in ``names``.

    A source reads the names. If it has integers instead, a dict says what they mean:
    ``ClassLabel({0: "died", 1: "lived"})``. The classes are then in the order of the integers,
    which are in ``values``; records with other values are rejected.

    An ``optional`` class may be missing: absent from the Example. The reader then returns -1 and a
    mask, ``<name>_present``; with ``default`` (a name, its index, or -1) that class and no mask.
    """

    names: tuple[str, ...]
    optional: bool = False
    default: str | int | None = None
    values: (
        tuple[Annotated[int, pydantic.Field(strict=True, ge=-(2**63), lt=2**63)], ...] | None
    ) = None
    kind: Literal["class_label"] = "class_label"

    if TYPE_CHECKING:

        def __init__(
            self,
            names: Iterable[str] | Mapping[int, str],
            optional: bool = False,
            default: str | int | None = None,
            values: tuple[int, ...] | None = None,
        ) -> None: ...

    @pydantic.model_validator(mode="before")
    @classmethod
    def _names_by_value(cls, given: Any) -> Any:
        """Divides a dict of names by integer into ``names`` and ``values``, in their order."""
        arguments = getattr(given, "kwargs", given)
        names = arguments.get("names") if isinstance(arguments, dict) else None
        if not isinstance(names, Mapping):
            return given
        if not names or not all(type(value) is int for value in names):
            raise ValueError(
                f'names={names!r}: expected integers, as in {{0: "died", 1: "lived"}}; names that '
                'are in the data are a list, as in ["died", "lived"]'
            )
        if arguments.get("values") is not None:
            raise ValueError("values: they are the keys of the dict of names, do not repeat them")
        values = sorted(names)
        divided = {
            **arguments,
            "names": tuple(names[number] for number in values),
            "values": tuple(values),
        }
        if isinstance(given, dict):
            return divided
        return ArgsKwargs(given.args, divided)

    def __post_init__(self) -> None:
        """Checks that names are unique, and that the default is one of them."""
        if len(set(self.names)) != len(self.names):
            raise ValueError("class names must be unique")
        if self.values is not None and (
            len(self.values) != len(self.names) or sorted({*self.values}) != [*self.values]
        ):
            raise ValueError(f"values={self.values}: expected one integer per name, ascending")
        default = self.default
        if isinstance(default, str) and default not in self.names:
            raise ValueError(f"default={default!r} is not one of the names")
        if isinstance(default, int) and not -1 <= default < len(self.names):
            raise ValueError(f"default={default!r} must be a name, its index, or -1")

    def num_written(self, kind: str) -> int:
        """How many names are written as values of a kind: "bool" or "int".

        If some are, such a value of a source is a name; otherwise it is the index of one.

        >>> [ClassLabel(names).num_written("int") for names in (("1", "2", "other"), ("a", "b"))]
        [2, 0]
        """
        return 0 if self.values is not None else _num_written(self.names, kind)

    @property
    def numbered(self) -> bool:
        """Whether the integers of the data are not other than those that are stored, 0 to n - 1."""
        return self.values is not None and self.values != tuple(range(len(self.names)))

    @property
    def form(self) -> TensorForm:
        """As a tensor."""
        fill: str | int | None = self.default
        if isinstance(fill, str):
            fill = self.names.index(fill)
        if fill is None:
            fill = -1 if self.optional else 0
        return TensorForm(
            dtype="int64",
            optional=self.optional,
            fill=fill,
            masked=masked("int64", (), optional=self.optional, default=self.default),
        )


@config_class
class Scalar(_Bounded):
    """One number, bool or string (UTF-8 or any bytes).

    ``optional`` scalars may be missing: absent from the Example, sparse in a
    ``preprocessing_fn``. The reader then returns ``default``. Without a default it returns NaN for
    floats, which a loss does not overlook, and for all other types 0, False or the empty string
    together with a mask, ``<name>_present``.

    ``min``, ``max``, ``values`` (an enumeration), ``finite`` (neither NaN nor infinite) and
    ``max_length`` (bytes of a string) limit the values; records with others are rejected.

    ``unit`` makes an integer a duration or a time of day, in s, ms, us or ns. Times in other units
    are converted; if the result would not be an integer, the record is rejected.
    """

    dtype: DtypeField
    optional: bool = False
    default: Value | None = None
    unit: TimeUnit | None = None
    kind: Literal["scalar"] = "scalar"

    def __post_init__(self) -> None:
        """Checks default and limits; NaN, already the default of floats, becomes None."""
        _check_domain(self.dtype, self.domain)
        _check_unit(self.dtype, self.unit)
        default = self.default
        if default is None:
            return
        if not _is_of(self.dtype, default):
            raise ValueError(f"default={default!r} is not a {self.dtype}")
        if isinstance(default, float) and math.isinf(default):
            raise ValueError(f"default={default} must be finite")  # JSON has no infinity
        if isinstance(default, float) and math.isnan(default):
            object.__setattr__(self, "default", None)

    @property
    def fill(self) -> Value:
        """The value that the reader returns where it is missing."""
        if self.default is not None:
            return self.default
        if self.dtype in FLOATS:
            return math.nan
        if self.dtype == "string":
            return ""
        return False if self.dtype == "bool" else 0

    @property
    def form(self) -> TensorForm:
        """As a tensor."""
        if self.default is None:
            return _scalar_form(self.dtype, self.optional)
        return TensorForm(dtype=self.dtype, optional=self.optional, fill=self.fill)


@functools.cache
def _scalar_form(dtype: Dtype, optional: bool) -> TensorForm:
    """The form of a scalar without a default: the same object for thousands of columns."""
    return TensorForm(
        dtype=dtype,
        optional=optional,
        fill=Scalar(dtype).fill,
        masked=masked(dtype, (), optional=optional, default=None),
    )


@config_class
class Tensor(_Bounded):
    """A tensor of one dtype; dimensions of None vary between records.

    Values are stored row-major in one list, or packed in one byte string: see ``schemas.wire``. If
    two or more dimensions vary, ``<name>/shape`` is stored too. The reader returns a
    ``tf.RaggedTensor`` if dimensions vary. Only a tensor whose first dimension alone varies may be
    ``optional``: where it is missing, the reader returns one of length zero and a mask,
    ``<name>_present``; with ``default=()`` there is no mask.

    ``unit`` makes integers times, durations or times of day, in s, ms, us or ns; times count from
    1970-01-01T00:00:00 UTC.

    ``names`` names the values of a vector, such as the classes of ``ss.tables.multi_hot`` and the
    columns of ``ss.tables.stack``.
    """

    dtype: DtypeField
    shape: tuple[int | None, ...]
    optional: bool = False
    unit: TimeUnit | None = None
    default: tuple[()] | None = None
    names: tuple[str, ...] | None = None
    kind: Literal["tensor"] = "tensor"

    def __post_init__(self) -> None:
        """Checks shape and limits."""
        _check_domain(self.dtype, self.domain)
        _check_unit(self.dtype, self.unit)
        if any(dim is not None and dim < 1 for dim in self.shape):
            raise ValueError(f"shape={self.shape}: dimensions must be positive, or None")
        if self.optional and (self.shape[:1] != (None,) or None in self.shape[1:]):
            raise ValueError("only a tensor whose first dimension alone varies can be optional")
        names = self.names
        if names is not None and (self.shape != (len(names),) or len({*names}) != len(names)):
            raise ValueError(f"names: expected one for each value, all different; {self.shape=}")

    @property
    def form(self) -> TensorForm:
        """As a tensor."""
        return TensorForm(
            dtype=self.dtype,
            shape=self.shape,
            optional=self.optional,
            fill="" if self.dtype == "string" else 0,
            masked=masked(self.dtype, self.shape, optional=self.optional, default=self.default),
        )


@config_class
class Text(TensorFeature):
    """Text, valid UTF-8, of at most ``max_length`` characters; the reader returns a string.

    Where an ``optional`` text is missing, the reader returns ``default``; without a default, the
    empty string and a mask, ``<name>_present``.
    """

    max_length: Annotated[int, pydantic.Field(ge=0)] | None = None
    optional: bool = False
    default: str | None = None
    kind: Literal["text"] = "text"

    @property
    def domain(self) -> Domain:
        """Its limits."""
        return Domain(max_length=self.max_length)

    @property
    def form(self) -> TensorForm:
        """As a tensor."""
        return TensorForm(
            dtype="string",
            optional=self.optional,
            fill=self.default or "",
            masked=masked("string", (), optional=self.optional, default=self.default),
        )


@config_class
class Timestamp(TensorFeature):
    """A point in time: an int64, in ``unit`` since 1970-01-01T00:00:00 UTC.

    Times in finer units are never rounded: if the result would not be an integer, the record is
    rejected. Where an ``optional`` time is missing, the reader returns the smallest int64 (NumPy's
    NaT) and a mask, ``<name>_present``; with ``default``, a number of units, that and no mask.
    """

    unit: TimeUnit = "us"
    optional: bool = False
    default: Annotated[int, pydantic.Field(ge=-(2**63), lt=2**63)] | None = None
    kind: Literal["timestamp"] = "timestamp"

    @property
    def form(self) -> TensorForm:
        """As a tensor."""
        return TensorForm(
            dtype="int64",
            optional=self.optional,
            fill=NOT_A_TIME if self.default is None else self.default,
            masked=masked("int64", (), optional=self.optional, default=self.default),
        )


@config_class
class BoundingBoxes(TensorFeature):
    """Any number of boxes of one image: ``float32[num_boxes, 4]``.

    A box is (ymin, xmin, ymax, xmax) as fractions of the image's height and width, 0 to 1, as in
    TensorFlow's ``tf.image``. ``image`` names the image feature that the boxes belong to: steps
    that change its geometry transform the boxes too. ``labels`` names a Sequence of one value per
    box, such as its class, or several of them: if a box is cropped away, its values are removed
    too.
    """

    image: str = "image"
    labels: str | tuple[str, ...] | None = None
    kind: Literal["bounding_boxes"] = "bounding_boxes"

    @property
    def per_box(self) -> tuple[str, ...]:
        """The names in ``labels``."""
        if self.labels is None:
            return ()
        return (self.labels,) if isinstance(self.labels, str) else self.labels

    @property
    def form(self) -> TensorForm:
        """As a tensor."""
        return TensorForm(dtype="float32", shape=(None, 4))
