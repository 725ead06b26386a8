"""Single records to serialized Examples and back, for people with a script of their own.

Both go by a snapshot's features, and neither needs TensorFlow. For many records at once, encode a
record batch (``encode``) and parse with TensorFlow: that is a hundred times as fast.
"""

import math
import reprlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..schemas.errors import SchemaError
from ..schemas.features import (
    ClassLabel,
    Feature,
    Features,
    Image,
    Scalar,
    Tensor,
    WireColumn,
    wire_columns,
)
from .decode import ExampleList, NotAnExampleError, read_lists
from .encode import encode_examples
from .prepare.image_header import UnreadableImageError, read_header
from .runs import arrow_type

Flat = Any
"""The values of one stored list: list[bytes], int64[n] or float32[n]; None where it is absent."""


def encode_example(record: Mapping[str, object], features: Features) -> bytes:
    """Encodes one record as a serialized ``tf.train.Example``, as a build would.

    Args:
        record: A value per feature. An ``Image`` is ``uint8[height, width, channels]`` where it
            is stored raw, else the file's bytes (JPEG, PNG, GIF, BMP), whose size and
            orientation are read from them. A ``ClassLabel`` is its name or its index. A string
            is str or bytes. A ``Tensor`` is whatever NumPy makes an array of its shape of. An
            optional feature may be None or missing.
        features: The features of the snapshot.

    Returns:
        The same bytes for the same record.

    Raises:
        SchemaError: if the record has not the features, each of its type, shape and range.
        RecipeError: if features and their names contradict each other.

    >>> import snapshard as ss
    >>> features = {"age": ss.Scalar("uint8"), "label": ss.ClassLabel(("cat", "dog"))}
    >>> serialized = ss.encode_example({"age": 7, "label": "dog"}, features)
    >>> ss.parse_example(serialized, features)
    {'age': 7, 'label': 1}
    """
    unknown = sorted(set(record) - set(features))
    if unknown:
        raise SchemaError(
            f"The record has {unknown}, which no feature describes; expected "
            f"{sorted(features)}. Leave it out, or declare it."
        )
    values: dict[str, Flat] = {}
    for name, feature in features.items():
        values |= _to_wire(name, feature, record.get(name))
    arrays = {column.name: _array(column, values[column.name]) for column in wire_columns(features)}
    return bytes(encode_examples(pa.record_batch(arrays))[0].as_py())


def parse_example(serialized: bytes, features: Features) -> dict[str, Any]:
    """Parses one serialized ``tf.train.Example``: the dual of :func:`encode_example`.

    Args:
        serialized: An Example; what it holds beside the features is ignored.
        features: The features of the snapshot.

    Returns:
        A value per feature: an ``Image`` as ``uint8[height, width, channels]`` where it is
        stored raw, else the file's bytes; a ``ClassLabel`` as its index; a ``Scalar`` as bool,
        int, float, or bytes; a ``Tensor`` as an array of its dtype and shape (objects of bytes
        for strings). None where an optional feature is absent: what to put there is for the
        caller to choose (the emitted reader puts the feature's default).

    Raises:
        SchemaError: if the bytes are no Example, or one of other features.
    """
    try:
        lists = read_lists(serialized)
    except NotAnExampleError as error:
        raise SchemaError(
            f"{len(serialized):,} bytes are no serialized tf.train.Example: {error}. Give one "
            "record of a TFRecord file, without its framing."
        ) from None
    values = {column.name: _stored(column, lists) for column in wire_columns(features)}
    return {name: _from_wire(name, feature, values) for name, feature in features.items()}


def _to_wire(name: str, feature: Feature, value: object) -> dict[str, Flat]:
    """The stored lists of one feature's value."""
    if value is None:
        if isinstance(feature, Scalar | Tensor) and feature.optional:
            return {name: None}
        raise _unfit(name, feature, "nothing", "Give it a value, or declare it optional.")
    if isinstance(feature, Image):
        return _image_to_wire(name, feature, value)
    if isinstance(feature, ClassLabel):
        return {name: _class_index(name, feature, value)}
    shape = feature.shape if isinstance(feature, Tensor) else ()
    return {name: _flatten(name, feature, value, dtype=feature.dtype, shape=shape)}


def _image_to_wire(name: str, feature: Image, value: object) -> dict[str, Flat]:
    if feature.storage == "encoded":
        if not isinstance(value, bytes):
            raise _unfit(name, feature, f"a {type(value).__name__}", "Give the file's bytes.")
        try:
            header = read_header(value)
        except UnreadableImageError as error:
            raise _unfit(name, feature, f"no image ({error})", "Mend it.") from None
        height, width = header.height, header.width
        content = {name: [value], f"{name}/orientation": np.array([header.orientation])}
    else:
        pixels = np.asarray(value)
        if pixels.ndim != 3 or pixels.dtype != np.uint8 or pixels.shape[2] != feature.channels:
            found = f"{pixels.dtype}{list(pixels.shape)}"
            raise _unfit(name, feature, found, "Convert it.")
        height, width = pixels.shape[:2]
        content = {name: [pixels.tobytes()]}
    if (feature.height or height, feature.width or width) != (height, width):
        raise _unfit(name, feature, f"an image of {height}×{width}", "Resize it.")
    return content | {f"{name}/height": np.array([height]), f"{name}/width": np.array([width])}


def _class_index(name: str, feature: ClassLabel, value: Any) -> npt.NDArray[np.int64]:
    if isinstance(value, str) and value in feature.names:
        return np.array([feature.names.index(value)])
    is_index = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if is_index and 0 <= int(value) < len(feature.names):
        return np.array([int(value)])
    raise _unfit(name, feature, reprlib.repr(value), "Give one of its names, or its index.")


def _flatten(
    name: str, feature: Scalar | Tensor, value: object, *, dtype: str, shape: tuple[int | None, ...]
) -> Flat:
    """The values row-major, once their type, shape and range are as declared."""
    try:
        array: npt.NDArray[Any] = np.asarray(value, object if dtype == "string" else None)
    except ValueError:
        raise _unfit(name, feature, "ragged", "Make its rows equally long.") from None
    fits = array.ndim == 1 if shape == (None,) else array.shape == shape
    if not fits:
        raise _unfit(name, feature, f"of shape {list(array.shape)}", "Reshape it.")
    if dtype == "string":
        return [_encoded(name, feature, text) for text in array.ravel().tolist()]
    kinds = {"bool": "b", "float32": "fiu"}.get(dtype, "iu")
    if array.dtype.kind not in kinds and not (array.size == 0 and array.dtype == np.float64):
        raise _unfit(name, feature, f"{reprlib.repr(value)} ({array.dtype})", "Convert it.")
    with np.errstate(over="ignore"):
        stored = array.astype(np.float32 if dtype == "float32" else np.int64).ravel()
    if not _in_range(array.ravel(), stored, dtype):
        raise _unfit(name, feature, reprlib.repr(value), "It is out of range: take a wider type.")
    return stored


def _in_range(values: npt.NDArray[Any], stored: npt.NDArray[Any], dtype: str) -> bool:
    if dtype == "float32":
        return bool(np.array_equal(np.isinf(values), np.isinf(stored)))
    if dtype == "bool":
        return not values.size or (int(values.min()) >= 0 and int(values.max()) <= 1)
    limits = np.iinfo(dtype)
    return not values.size or (int(values.min()) >= limits.min and int(values.max()) <= limits.max)


def _encoded(name: str, feature: Feature, text: object) -> bytes:
    if isinstance(text, bytes):
        return bytes(text)
    if isinstance(text, str):
        try:
            return text.encode()
        except UnicodeEncodeError:
            raise _unfit(name, feature, reprlib.repr(text), "It is no UTF-8: give bytes.") from None
    raise _unfit(name, feature, reprlib.repr(text), "Give str or bytes.")


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
    """The values of a stored column, of the kind and number that it should have."""
    found = lists.get(column.name)
    if found is None:
        if column.optional:
            return None
        raise SchemaError(
            f"The Example has no feature {column.name!r}, which is not optional; it has "
            f"{sorted(lists)}. Parse it with the features of its own snapshot."
        )
    if found.kind != column.kind or len(found.values) != (column.length or len(found.values)):
        raise SchemaError(
            f"Feature {column.name!r} of the Example holds {len(found.values):,} values of kind "
            f"{found.kind}, expected {column.length or 'any number'} of {column.kind}. Parse it "
            "with the features of its own snapshot."
        )
    return found.values


def _from_wire(name: str, feature: Feature, values: Mapping[str, Flat]) -> Any:
    """The value of one feature, from its stored lists."""
    flat = values[name]
    if flat is None:
        return None
    if isinstance(feature, Image):
        return _image_from_wire(name, feature, values)
    if isinstance(feature, ClassLabel):
        index = int(flat[0])
        if not 0 <= index < len(feature.names):
            raise _unfit(name, feature, f"{index}", "The Example is of other features.")
        return index
    if feature.dtype == "string":
        array = np.array([*flat, None], object)[:-1]
    else:
        numbers = np.asarray(flat)
        array = numbers.astype(feature.dtype)
        if not _in_range(numbers, array, feature.dtype):
            raise _unfit(name, feature, reprlib.repr(flat), "The Example is of other features.")
    if isinstance(feature, Scalar):
        return array[0] if feature.dtype == "string" else array[0].item()
    return array if None in feature.shape else array.reshape(feature.shape)


def _image_from_wire(
    name: str, feature: Image, values: Mapping[str, Flat]
) -> bytes | npt.NDArray[np.uint8]:
    (content,) = values[name]
    if feature.storage == "encoded":
        return bytes(content)
    height, width = feature.height, feature.width
    if height is None or width is None:
        height, width = (int(values[f"{name}/{side}"][0]) for side in ("height", "width"))
    shape = (height, width, feature.channels)
    pixels = np.frombuffer(content, np.uint8)
    if min(shape) < 0 or pixels.size != math.prod(shape):
        raise _unfit(name, feature, f"{pixels.size:,} bytes for {list(shape)}", "Restore it.")
    return pixels.reshape(shape).copy()


def _describe(feature: Feature) -> str:
    """What a value of a feature should be, in words."""
    if isinstance(feature, Image):
        if feature.storage == "encoded":
            size = f" of {feature.height}×{feature.width}" if feature.fixed_size else ""
            return f"the bytes of an image file{size}"
        sides = f"{feature.height or 'height'}, {feature.width or 'width'}, {feature.channels}"
        return f"uint8[{sides}]"
    if isinstance(feature, ClassLabel):
        return f"one of {len(feature.names)} class names, or its index"
    if isinstance(feature, Tensor):
        return f"{feature.dtype}{list(feature.shape)}"
    return feature.dtype


def _unfit(name: str, feature: Feature, found: str, fix: str) -> SchemaError:
    return SchemaError(f"Feature {name!r} is {found}, expected {_describe(feature)}. {fix}")
