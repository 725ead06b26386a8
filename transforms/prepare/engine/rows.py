"""Converts single records to serialized Examples and back, for use in scripts.

Both functions follow a snapshot's features, and neither needs TensorFlow. For many records, encode
a record batch (``encode``) and parse with TensorFlow: that is a hundred times as fast.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ....schemas.errors import SchemaError
from ....schemas.features import (
    Feature,
    Features,
    Image,
    Struct,
    WireColumn,
    flatten,
    is_encoded,
    side_columns,
    tensor_form,
    wire_columns,
)
from ...examples.decode import ExampleList, NotAnExampleError, read_lists
from ...examples.encode import encode_examples
from ...examples.row_values import Flat, from_lists, to_array, to_lists, unfit
from ...media.image_header import UnreadableImageError
from ...media.tiff import readable_image
from ...runs.files import arrow_type
from .validate import Validator


def encode_example(record: Mapping[str, object], features: Mapping[str, Feature | Struct]) -> bytes:
    """Encodes one record as a serialized ``tf.train.Example``, as a build would.

    Args:
        record: A value per feature. A raw ``Image`` is ``uint8[height, width, channels]``; an
            encoded one the file's bytes (JPEG, PNG, GIF, BMP), from which its size and
            orientation are read. An ``Audio`` is samples in [-1, 1], or int16 if it is stored
            so; if rates vary, ``<name>/rate`` gives the samples per second. A ``ClassLabel`` is
            its name or its index, a ``Timestamp`` a datetime with a time zone, a
            ``np.datetime64`` or an int, a string is str or bytes. Anything else is a value that
            NumPy converts to an array of its shape. A ``Struct`` is a dict, or its fields by
            their dotted names. An optional feature may be None or missing.
        features: The features of the snapshot.

    Returns:
        The serialized Example: the same bytes for the same record.

    Raises:
        SchemaError: if a feature is missing or unknown, or a value does not have the type,
            shape, range and limits of its feature.
        RecipeError: if features and their names contradict each other.

    >>> import snapshard as ss
    >>> features = {"age": ss.Scalar("uint8"), "label": ss.ClassLabel(("cat", "dog"))}
    >>> serialized = ss.encode_example({"age": 7, "label": "dog"}, features)
    >>> ss.parse_example(serialized, features)
    {'age': 7, 'label': 1}
    """
    flat, _ = flatten(features)
    values = _leaves(record, flat)
    sides = {side for name, leaf in flat.items() for side in _given_sides(name, leaf)}
    unknown = sorted(set(values) - set(flat) - sides)
    if unknown:
        raise SchemaError(
            f"The record has {unknown}, which are not features; expected "
            f"{sorted(flat)}. Leave them out, or declare them."
        )
    lists: dict[str, Flat] = {}
    for name, feature in flat.items():
        lists |= _to_wire(name, feature, values)
    arrays = {column.name: _array(column, lists[column.name]) for column in wire_columns(flat)}
    columns = pa.record_batch(arrays)
    for problem in Validator(flat).problems(columns):
        raise SchemaError(f"The record is invalid: {problem.message}")
    return bytes(encode_examples(columns)[0].as_py())


def parse_example(serialized: bytes, features: Mapping[str, Feature | Struct]) -> dict[str, Any]:
    """Parses one serialized ``tf.train.Example``: the inverse of :func:`encode_example`.

    Args:
        serialized: An Example; anything it holds in addition to the features is ignored.
        features: The features of the snapshot.

    Returns:
        A value per feature: a raw ``Image`` as ``uint8[height, width, channels]``, an encoded
        one as the file's bytes; an ``Audio`` as float32 samples in [-1, 1], with its
        ``<name>/rate`` if rates vary; a ``ClassLabel`` as its index; a ``Timestamp`` as an
        int in its unit; a ``Text`` as str; a ``Scalar`` as bool, int, float or bytes; a
        ``Struct`` as a dict; anything else as an array of its dtype and shape (objects of bytes
        for strings). None if an optional feature is absent: the caller chooses what to put
        there (the snapshot's reader puts the feature's default).

    Raises:
        SchemaError: if the bytes are not an Example, or an Example of other features.
    """
    try:
        stored = read_lists(serialized)
    except NotAnExampleError as error:
        raise SchemaError(
            f"These {len(serialized):,} bytes are not a serialized tf.train.Example: {error}. "
            "Give one record of a TFRecord file, without its framing."
        ) from None
    flat, _ = flatten(features)
    lists = {column.name: _stored(column, stored) for column in wire_columns(flat)}
    values: dict[str, Any] = {}
    for name, feature in flat.items():
        values |= _from_wire(name, feature, lists)
    return _nested(values, features, "")


def _leaves(record: Mapping[str, Any], features: Features, prefix: str = "") -> dict[str, Any]:
    """The record with the fields of nested dicts under their dotted names."""
    leaves: dict[str, Any] = {}
    for key, value in record.items():
        name = f"{prefix}{key}"
        is_struct = name not in features and any(leaf.startswith(f"{name}.") for leaf in features)
        if is_struct and isinstance(value, Mapping):
            leaves |= _leaves(value, features, f"{name}.")
        elif not is_struct or value is not None:
            leaves[name] = value
    return leaves


def _nested(
    values: Mapping[str, Any], features: Mapping[str, Feature | Struct], prefix: str
) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for key, feature in features.items():
        name = f"{prefix}{key}"
        if isinstance(feature, Struct):
            nested[key] = _nested(values, feature.fields, f"{name}.")
        else:
            nested[key] = values[name]
            sides = _given_sides(name, feature)
            nested |= {side.removeprefix(prefix): values[side] for side in sides}
    return nested


def _given_sides(name: str, feature: Feature) -> tuple[str, ...]:
    """Side columns that a record must give for a feature; an image's come from its file."""
    return () if isinstance(feature, Image) else side_columns(name, feature)


def _to_wire(name: str, feature: Feature, record: Mapping[str, Any]) -> dict[str, Flat]:
    """The stored lists of one feature's value."""
    value, form = record.get(name), tensor_form(feature)
    if value is None:
        if form is not None and form.optional:
            return {name: None}
        raise unfit(name, feature, "missing", "Give it a value, or declare it optional.")
    if isinstance(feature, Image):
        return _image_to_wire(name, feature, value)
    if form is None:
        if not isinstance(value, bytes):
            raise unfit(name, feature, f"a {type(value).__name__}", "Give the file's bytes.")
        return {name: [value]}
    lists = to_lists(name, form, to_array(name, feature, value))
    for side in _given_sides(name, feature):
        lists[side] = np.array([_rate(side, record.get(side))])
    return lists


def _rate(name: str, value: Any) -> int:
    if isinstance(value, int | np.integer) and not isinstance(value, bool) and 0 < value < 2**63:
        return int(value)
    raise SchemaError(f"{name!r} is {value!r}, expected the samples per second, a positive int.")


def _image_to_wire(name: str, feature: Image, value: object) -> dict[str, Flat]:
    if feature.storage == "encoded":
        if not isinstance(value, bytes):
            raise unfit(name, feature, f"a {type(value).__name__}", "Give the file's bytes.")
        try:
            value, header = readable_image(value)
        except UnreadableImageError as error:
            found = f"not a valid image ({error})"
            raise unfit(name, feature, found, "Pass the bytes of a valid image.") from None
        height, width = header.height, header.width
        content = {name: [value], f"{name}/orientation": np.array([header.orientation])}
    else:
        pixels = np.asarray(value)
        if pixels.ndim != 3 or (pixels.dtype.name, pixels.shape[2]) != (
            feature.dtype,
            feature.channels,
        ):
            found = f"{pixels.dtype}{list(pixels.shape)}"
            raise unfit(name, feature, found, "Pass an array of that dtype and shape.")
        height, width = pixels.shape[:2]
        content = {name: [pixels.astype(pixels.dtype.newbyteorder("<")).tobytes()]}
    if (feature.height or height, feature.width or width) != (height, width):
        raise unfit(name, feature, f"an image of {height}×{width}", "Resize it.")
    return content | {f"{name}/height": np.array([height]), f"{name}/width": np.array([width])}


def _array(column: WireColumn, flat: Flat) -> pa.Array:
    """One row of a stored column."""
    kind = arrow_type(column)
    if flat is None:
        return pa.nulls(1, kind)
    if column.length == 1:
        return pa.array(flat, kind)
    values = pa.array(flat, kind.value_type)
    if column.length is None:
        return pa.LargeListArray.from_arrays(pa.array([0, len(values)], pa.int64()), values)
    return pa.FixedSizeListArray.from_arrays(values, column.length)


def _stored(column: WireColumn, lists: Mapping[str, ExampleList]) -> Flat:
    """The values of a stored column, checked for their kind and number."""
    stored = lists.get(column.name)
    if stored is None:
        if column.optional:
            return None
        raise SchemaError(
            f"The Example has no feature {column.name!r}, which is not optional; it has "
            f"{sorted(lists)}. Parse it with the features of its own snapshot."
        )
    if stored.kind != column.kind or len(stored.values) != (column.length or len(stored.values)):
        raise SchemaError(
            f"Feature {column.name!r} of the Example holds {len(stored.values):,} values of kind "
            f"{stored.kind}, expected {column.length or 'any number'} of {column.kind}. Parse it "
            "with the features of its own snapshot."
        )
    return stored.values


def _from_wire(name: str, feature: Feature, lists: Mapping[str, Flat]) -> dict[str, Any]:
    """The value of one feature and of its side columns, from its stored lists."""
    if lists[name] is None:
        return {name: None}
    if isinstance(feature, Image):
        return {name: _image_from_wire(name, feature, lists)}
    if is_encoded(feature):
        return {name: bytes(lists[name][0])}
    sides = {side: int(lists[side][0]) for side in _given_sides(name, feature)}
    return {name: from_lists(name, feature, lists), **sides}


def _image_from_wire(
    name: str, feature: Image, values: Mapping[str, Flat]
) -> bytes | npt.NDArray[Any]:
    (content,) = values[name]
    if feature.storage == "encoded":
        return bytes(content)
    height, width = feature.height, feature.width
    if height is None or width is None:
        height, width = (int(values[f"{name}/{side}"][0]) for side in ("height", "width"))
    shape = (height, width, feature.channels)
    num_bytes = math.prod(shape[:2]) * feature.pixel_bytes
    if min(shape) < 0 or len(content) != num_bytes:
        found = f"{len(content):,} bytes for {list(shape)}"
        raise unfit(name, feature, found, "Restore the record from its source.")
    pixels = np.frombuffer(content, np.dtype(feature.dtype).newbyteorder("<"))
    return pixels.astype(feature.dtype).reshape(shape)
