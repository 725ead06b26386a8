"""Feature types that contain others: sequences of values, and structs of named fields.

Neither is stored as such. A sequence is a tensor whose first dimension varies. A struct's fields
are separate features, ``<struct>.<field>``, for steps and in the Example; only the reader nests
them again (:func:`flatten`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

import pydantic

from .config import config_class, is_unicode
from .errors import SchemaError
from .media import Audio, Image, Mask
from .values import (
    BoundingBoxes,
    ClassLabel,
    Domain,
    Scalar,
    Tensor,
    TensorFeature,
    TensorForm,
    Text,
    Timestamp,
    masked,
)

Item = Annotated[
    Scalar | ClassLabel | Text | Timestamp | Tensor | Image, pydantic.Field(discriminator="kind")
]


@config_class
class Sequence(TensorFeature):
    """Any number of values of one type; the reader returns a ``tf.RaggedTensor``.

    ``of`` is a Scalar, ClassLabel, Text or Timestamp, or a Tensor of fixed shape (vectors). Write
    a sequence of structs as a struct of sequences. Where an ``optional`` sequence is missing, the
    reader returns an empty one and a mask, ``<name>_present``; with ``default=()`` there is no
    mask.

    ``Sequence(Image(storage="encoded"))`` is a clip: the bytes of its frames, in their order, for
    steps and in the Example. The reader decodes them, to ``uint8[frames, height, width,
    channels]``. All frames of a clip have the same size and no EXIF orientation. Pixels of a clip
    are a ``Tensor("uint8", (None, height, width, channels))``.
    """

    of: Item
    optional: bool = False
    default: tuple[()] | None = None
    kind: Literal["sequence"] = "sequence"

    def __post_init__(self) -> None:
        """Checks the item type."""
        if isinstance(self.of, Image):
            if self.of.storage != "encoded" or self.of.dtype != "uint8" or self.optional:
                raise ValueError(
                    'the images of a sequence are uint8 files, Image(storage="encoded"), and the '
                    "sequence cannot be optional; pixels are a Tensor"
                )
            return
        if self.of.optional:
            raise ValueError("items of a sequence cannot be optional: make the sequence optional")
        if None in self.of.form.shape:
            raise ValueError("the tensors of a sequence must have a fixed shape")

    @property
    def domain(self) -> Domain:
        """Limits on each value."""
        return self.of.domain if isinstance(self.of, Scalar | Tensor | Text) else Domain()

    @property
    def form(self) -> TensorForm:
        """As a tensor."""
        if isinstance(self.of, Image):
            return TensorForm(dtype="string", shape=(None,))
        item = self.of.form
        shape = (None, *item.shape)
        return TensorForm(
            dtype=item.dtype,
            shape=shape,
            optional=self.optional,
            fill="" if item.dtype == "string" else 0,
            masked=masked(item.dtype, shape, optional=self.optional, default=self.default),
        )


Leaf = (
    Image
    | Mask
    | Audio
    | ClassLabel
    | Scalar
    | Tensor
    | Text
    | Timestamp
    | BoundingBoxes
    | Sequence
)


@config_class
class Struct:
    """Named fields: a nested dict in the reader, features ``<struct>.<field>`` everywhere else."""

    fields: Mapping[str, Any]
    kind: Literal["struct"] = "struct"

    def __post_init__(self) -> None:
        """Checks the fields."""
        if not self.fields:
            raise ValueError("fields: expected at least one")
        for name, field in self.fields.items():
            if not name or not isinstance(field, Leaf | Struct):
                raise ValueError(f"fields: {name!r} is {field!r}, expected a feature")


def flatten(features: Mapping[str, Any]) -> tuple[dict[str, Leaf], tuple[str, ...]]:
    """Features with the fields of structs as separate features.

    Returns:
        The flat features, and the names of all structs, including inner ones (``a``, ``a.b``).

    Raises:
        SchemaError: if a name is not valid Unicode, for example a lone surrogate, which cannot be
            stored in a snapshot.

    >>> flatten({"at": Struct({"x": Scalar("float32")})})[1]
    ('at',)
    """
    flat: dict[str, Leaf] = {}
    structs: list[str] = []
    for name, feature in features.items():
        if isinstance(feature, Struct):
            inner = {f"{name}.{field}": value for field, value in feature.fields.items()}
            below, names = flatten(inner)
            flat.update(below)
            structs += [name, *names]
        else:
            if not is_unicode(name):
                raise SchemaError(
                    f"The feature name {name!a} is not valid Unicode. Rename the column, key or "
                    "file that it comes from."
                )
            flat[name] = feature
    return flat, tuple(structs)


def nest(features: Mapping[str, Leaf], structs: Iterable[str]) -> dict[str, Leaf | Struct]:
    """Flat features with the fields of structs nested in them: the inverse of :func:`flatten`.

    >>> nest({"at.x": Scalar("float32")}, ["at"])["at"].fields["x"].dtype
    'float32'
    """
    names = set(structs)
    nested: dict[str, Leaf | Struct] = {}
    inside: dict[str, dict[str, Leaf]] = {}
    for name, feature in features.items():
        ends = [at for at, letter in enumerate(name) if letter == "."]
        outer = next((name[:at] for at in ends if name[:at] in names), None)
        if outer is None:
            nested[name] = feature
            continue
        fields = inside.setdefault(outer, {})
        fields[name[len(outer) + 1 :]] = feature
        inner = {struct[len(outer) + 1 :] for struct in names if struct.startswith(f"{outer}.")}
        nested[outer] = Struct(nest(fields, inner))
    return nested
