"""Parses a batch of serialized examples into tensors."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import tensorflow as tf  # type: ignore[import-untyped, unused-ignore]

from . import facts
from .images import HAS_WEBP, image_batch
from .kinds import PIXELS, has_pixels, is_clip, is_encoded
from .targets import Asked, Supervised, ask

Values = dict[str, Any]


def parse(
    serialized: Any,
    *,
    columns: Sequence[str] | None = None,
    as_supervised: Supervised = False,
    masks: bool | None = None,
    expand_scalars: bool = False,
    image_size: tuple[int, int] | None = None,
    dtype: str | None = None,
    scale: float | None = None,
    decode: bool = True,
) -> Any:
    """Parses a batch of serialized examples, for a custom pipeline.

        tf.data.TFRecordDataset(reader.files("train")).batch(128).map(reader.parse)

    Args:
        serialized: string[batch].
        columns: As in ``dataset``.
        as_supervised: As in ``dataset``.
        masks: As in ``dataset``.
        expand_scalars: As in ``dataset``.
        image_size: As in ``dataset``.
        dtype: As in ``dataset``.
        scale: As in ``dataset``.
        decode: As in ``dataset``.

    Returns:
        A batch as ``dataset`` yields it.

    Raises:
        ValueError: if an option is invalid.
    """
    return make_parser(
        ask(columns, as_supervised, masks),
        expand_scalars=expand_scalars,
        image_size=image_size,
        dtype=dtype,
        scale=scale,
        decode=decode,
    )(serialized)


def make_parser(
    asked: Asked,
    *,
    expand_scalars: bool = False,
    image_size: tuple[int, int] | None = None,
    dtype: str | None = None,
    scale: float | None = None,
    decode: bool = True,
    needs_size: bool = True,
    decodes_clips: bool = True,
) -> Callable[[Any], Any]:
    """Builds the function that parses a batch, and checks its options; see ``dataset``.

    ``needs_size`` is False if nothing will be parsed: ``image_size`` may then be missing. With
    ``decodes_clips=False``, the frames of clips stay bytes, for ``clip_decoder``.
    """
    features = asked.features
    pixels = {name: one for name, one in features.items() if decode or not is_encoded(one)}
    sizes = _image_sizes(pixels, image_size, needs_size)
    convert = _conversion(features, image_size, dtype, scale)

    def parse_batch(serialized: Any) -> Any:
        values = (
            _by_layout(serialized, features)
            if facts.LAYOUT
            else _by_proto(serialized, features, asked.names)
        )
        for name, feature in features.items():
            if feature["kind"] == "audio" and feature["dtype"] == "int16":
                values[name] = tf.cast(values[name], tf.float32) / 32_768
        for name, size in sizes.items():
            if is_clip(features[name]):
                if decodes_clips:
                    values[name] = _decode_clips(name, values[name], size, convert)
                continue
            parts = [values[part] for part in (name, *facts.SIDES.get(name, ()))]
            images = image_batch(name, parts, size)
            # A mask has classes, which have no scale.
            values[name] = convert(images) if features[name]["kind"] == "image" else images
        for length, name in asked.lengths.items():
            values[length] = values[name].row_lengths()
        batch = asked.arrange(values)
        if not expand_scalars:
            return batch
        if asked.sides is None:
            return tf.nest.map_structure(_expanded, batch)
        return tf.nest.map_structure(_expanded, batch[0]), *batch[1:]

    return parse_batch


def _expanded(value: Any) -> Any:
    """A batch of scalars as [batch, 1]; any other as it is."""
    is_scalar = isinstance(value, tf.Tensor) and value.shape.rank == 1
    return value[:, tf.newaxis] if is_scalar else value


def clip_decoder(
    asked: Asked,
    *,
    image_size: tuple[int, int] | None,
    dtype: str | None,
    scale: float | None,
) -> Callable[[Any, str], Any]:
    """Builds the function that decodes a feature of a batch parsed with ``decodes_clips=False``.

    It maps ``string[batch, frames]``, dense or ragged, to images with one more ``[height, width,
    channels]``, if the feature of this name is a clip, and returns others as they are.
    """
    features = asked.features
    sizes = _image_sizes(features, image_size, needs_size=True)
    convert = _conversion(features, image_size, dtype, scale)

    def decode(value: Any, name: str) -> Any:
        if name not in sizes or not is_clip(features[name]):
            return value
        return _decode_clips(name, value, sizes[name], convert)

    return decode


def _decode_clips(
    name: str, clips: Any, size: tuple[int, int], convert: Callable[[Any], Any]
) -> Any:
    """The frames of a batch of clips, ``string[batch, frames]``, decoded."""
    if isinstance(clips, tf.RaggedTensor):
        return clips.with_flat_values(convert(image_batch(name, [clips.flat_values], size)))
    images = convert(image_batch(name, [tf.reshape(clips, [-1])], size))
    outer = [-1 if dim is None else dim for dim in clips.shape]
    return tf.reshape(images, [*outer, *images.shape[1:]])


def _conversion(
    features: Mapping[str, dict[str, Any]],
    image_size: tuple[int, int] | None,
    dtype: str | None,
    scale: float | None,
) -> Callable[[Any], Any]:
    """The function that converts the pixels of images to ``dtype``, multiplied by ``scale``.

    Raises:
        ValueError: if an option is invalid, ``dtype`` cannot hold the pixels of a feature, or there
            are no images.
    """
    has_images = any(map(has_pixels, facts.FEATURES.values()))
    if not has_images and (image_size, dtype, scale) != (None, None, None):
        raise ValueError(
            f"image_size=, dtype= and scale= apply to images, but {facts.NAME} has none: leave "
            "them out."
        )
    name = ("uint8" if scale is None else "float32") if dtype is None else dtype
    try:
        # as_dtype takes numbers, too, which are TensorFlow's own.
        kind = tf.as_dtype(str(name) if isinstance(name, int) else name)
    except (TypeError, ValueError):
        raise ValueError(f"dtype={dtype!r} must name a type such as 'float32'.") from None
    if not (kind.is_floating or kind.is_integer):
        raise ValueError(f"dtype={dtype!r} must be a numeric type.")
    if scale is not None and not kind.is_floating:
        raise ValueError(f"scale={scale} needs a floating-point dtype, found {kind.name}.")
    as_stored = dtype is None and scale is None
    for column, feature in features.items():
        stored = tf.as_dtype("uint8" if is_clip(feature) else feature.get("dtype", "uint8"))
        is_image = feature["kind"] == "image" or is_clip(feature)
        if is_image and scale is None and not as_stored and float(kind.max) < stored.max:
            raise ValueError(
                f"dtype={dtype!r} cannot hold the pixels of {column!r}, which are {stored.name}: "
                "pass a larger type, or float16 with scale=."
            )

    def convert(images: Any) -> Any:
        if as_stored:
            return images
        # A float16 holds no more than 65,504.
        through = tf.float32 if images.dtype == tf.uint16 and kind.size < 4 else kind
        images = tf.cast(images, through)
        return tf.cast(images if scale is None else images * tf.cast(scale, through), kind)

    return convert


def _image_sizes(
    features: dict[str, dict[str, Any]], image_size: tuple[int, int] | None, needs_size: bool
) -> dict[str, tuple[int, int]]:
    """(height, width) of the images, by feature name.

    Raises:
        ValueError: if ``image_size`` is invalid, or missing although images differ in size; if
            this TensorFlow cannot decode the images.
    """
    sides = tf.nest.flatten(image_size)
    valid = [side for side in sides if hasattr(side, "__index__") and 0 < side < 2**16]
    if image_size is not None and (len(sides) != 2 or valid != sides):
        raise ValueError(f"image_size={image_size!r} must be (height, width), two integers.")
    sizes = {
        name: tuple(image_size or (feature["height"], feature["width"]))
        for name, feature in features.items()
        if has_pixels(feature)
    }
    for name, size in sizes.items():
        if needs_size and None in size:
            raise ValueError(
                f"The images of {name!r} may differ in size: pass image_size=(h, w), or decode="
                "False for an augment= that crops them; or build again with ss.images.resize, or, "
                "if all have one size, declared: ss.Image(height, width)."
            )
        formats = facts.IMAGE_FORMATS.get(name, ())
        if needs_size and "webp" in formats and not HAS_WEBP:
            raise ValueError(
                f"{name!r} has WebP images, which TensorFlow {tf.__version__} cannot decode: "
                "install TensorFlow 2.21, pass decode=False or other columns=, read with "
                "reader.arrays and Pillow, or store pixels (ss.images.decode in the recipe)."
            )
    return sizes


def _by_proto(
    serialized: Any, features: dict[str, dict[str, Any]], names: Collection[str]
) -> Values:
    """Parses a batch with ``tf.io.parse_example``; images stay bytes."""
    columns: dict[str, Any] = {}
    fills: dict[str, tuple[str, Any]] = {}
    defaults: dict[Any, Any] = {}

    def default_of(dtype: Any, value: Any) -> Any:
        """One constant for all features that share it: one for each would take thousands of ops."""
        key = (dtype, repr(value))
        if key not in defaults:  # an empty one means that the feature is required
            defaults[key] = tf.constant([] if value is None else value, dtype)
        return defaults[key]

    for name, feature in features.items():
        shape = feature.get("shape", [])
        is_ragged = None in shape and not feature.get("packed")
        if is_ragged or ("present" in feature and None not in shape):
            columns[name] = tf.io.RaggedFeature(_stored(feature), row_splits_dtype=tf.int64)
        elif feature.get("packed"):
            default = default_of(tf.string, b"" if feature.get("optional") else None)
            columns[name] = tf.io.FixedLenFeature([], tf.string, default)
        else:
            default = default_of(_stored(feature), _default(feature))
            columns[name] = tf.io.FixedLenFeature(shape, _stored(feature), default)
        if "present" in feature and None not in shape:  # the list's length says if there is a value
            fills[feature["present"]] = (name, _default(feature))
        if shape.count(None) > 1:
            columns[f"{name}/shape"] = tf.io.FixedLenFeature([len(shape)], tf.int64)
        for side in facts.SIDES.get(name, ()):  # what pixels need, or the rate of a sound
            columns[side] = tf.io.FixedLenFeature([], tf.int64)
    values: Values = tf.io.parse_example(serialized, columns)
    if fills:
        values |= _filled(values, fills, default_of, serialized.shape[0])
    lists = {str(one.get("present", "")): name for name, one in features.items()}
    lists = {mask: name for mask, name in lists.items() if mask in names and mask not in fills}
    values |= _lists_present(serialized, lists) if lists else {}
    values |= _scalars_unpacked(values, features)
    for name, feature in features.items():
        if feature["kind"] not in PIXELS:
            values[name] = _tensor(values[name], feature, values.pop(f"{name}/shape", None))
    return values


def _filled(
    values: Values,
    fills: Mapping[str, tuple[str, Any]],
    default_of: Callable[[Any, Any], Any],
    num: int | None,
) -> Values:
    """Lists of at most one value as scalars, filled, and the masks that say which have one.

    A batch of one feature is a few small tensors, so what counts is the number of operations: those
    that can be are shared by all features.
    """
    splits = tf.stack([values[name].row_splits for name, _ in fills.values()])
    are_there = tf.ensure_shape(splits[:, 1:] > splits[:, :-1], [len(fills), num])
    filled: Values = dict(zip(fills, tf.unstack(are_there), strict=True))
    lengths, shape = tf.constant([num or -1]), tf.constant([num or -1, 1])
    for name, fill in fills.values():
        lists = values[name]
        dense = tf.raw_ops.RaggedTensorToTensor(
            shape=shape,
            values=lists.values,
            default_value=default_of(lists.dtype, fill),
            row_partition_tensors=[lists.row_splits],
            row_partition_types=["ROW_SPLITS"],
        )
        filled[name] = tf.reshape(dense, lengths)
    return filled


def _stored(feature: dict[str, Any]) -> Any:
    """The dtype of the list in which a feature is stored."""
    dtype = feature.get("dtype", "string")
    if feature.get("packed") or dtype == "string" or feature["kind"] in PIXELS:
        return tf.string
    return tf.float32 if dtype in ("float16", "bfloat16", "float32") else tf.int64


def _default(feature: dict[str, Any]) -> Any:
    """The default for a missing value, in the dtype in which it would be stored."""
    default = feature.get("default")
    if isinstance(default, bool):
        return int(default)
    if feature.get("dtype") == "uint64" and default is not None and default >= 2**63:
        return default - 2**64  # the same bits
    return default


def _lists_present(serialized: Any, lists: dict[str, str]) -> Values:
    """bool[batch] by mask: whether a list exists; ``parse_example`` returns it as empty if not."""
    part = functools.partial(tf.io.decode_proto, output_types=[tf.string])
    (features,) = part(serialized, "tensorflow.Example", ["features"]).values
    entries = part(features[:, 0], "tensorflow.Features", ["feature"])
    (keys,) = part(entries.values[0], "tensorflow.Features.FeatureEntry", ["key"]).values
    is_there = {mask: tf.reduce_any(keys == name, axis=[1, 2]) for mask, name in lists.items()}
    return {mask: tf.ensure_shape(flags, serialized.shape) for mask, flags in is_there.items()}


def _tensor(value: Any, feature: dict[str, Any], sizes: Any) -> Any:
    """A batch of one feature as ``dtype[batch, *shape]``, from the list in which it is stored.

    ``sizes`` are the dimensions of each record's tensor if the length does not determine them.
    """
    shape, dtype = feature.get("shape", []), tf.as_dtype(feature["dtype"])
    if feature.get("packed") and "default" in feature:
        return value
    if feature.get("packed"):
        value = _unpacked(value, feature)
    if dtype == tf.uint64 and value.dtype == tf.int64:
        value = tf.ragged.map_flat_values(tf.bitcast, value, dtype)
    if value.dtype != dtype:
        value = tf.cast(value, dtype)
    return _ragged(value, shape, sizes) if None in shape and len(shape) > 1 else value


def _scalars_unpacked(values: Values, features: Mapping[str, dict[str, Any]]) -> Values:
    """The scalars that are stored as their bytes, filled; at once those of one type and default."""
    alike: dict[Any, list[str]] = {}
    for name, feature in features.items():
        if feature.get("packed") and "default" in feature:
            alike.setdefault((feature["dtype"], repr(feature["default"])), []).append(name)
    unpacked: Values = {}
    for (kind, _), names in alike.items():
        stored, dtype = tf.stack([values[name] for name in names]), tf.as_dtype(kind)
        decoded = tf.squeeze(tf.io.decode_raw(stored, dtype, fixed_length=dtype.size), [2])
        default = tf.cast(features[names[0]]["default"], dtype)
        numbers = tf.where(stored == b"", default, decoded)
        unpacked |= dict(zip(names, tf.unstack(numbers), strict=True))
    return unpacked


def _unpacked(value: Any, feature: dict[str, Any]) -> Any:
    """The numbers of a feature that is stored as the bytes of its array."""
    shape, dtype = feature.get("shape", []), tf.as_dtype(feature["dtype"])
    if None in shape:
        flat = tf.io.decode_raw(tf.strings.reduce_join(value), dtype)
        lengths = tf.cast(tf.strings.length(value) // dtype.size, tf.int64)
        return tf.RaggedTensor.from_row_lengths(flat, lengths)
    return tf.reshape(tf.io.decode_raw(value, dtype), [value.shape[0] or -1, *shape])


def _ragged(value: Any, shape: list[int | None], sizes: Any) -> Any:
    """Reshapes lists ``[batch, None]`` to ``tf.RaggedTensor`` ``[batch, *shape]``, row-major."""
    if sizes is None:  # one dimension varies, and follows from the lists' lengths
        rest = value.row_lengths() // tf.TensorShape([dim for dim in shape if dim]).num_elements()
        fixed = tf.ones_like(rest)
        sizes = tf.stack([fixed * dim if dim else rest for dim in shape], axis=1)
    last = max(axis for axis, dim in enumerate(shape) if dim is None)
    result = tf.reshape(value.flat_values, [-1, *shape[last + 1 :]])
    for axis in range(last, -1, -1):
        rows = tf.reduce_prod(sizes[:, :axis], axis=1)  # of this dimension, in each record
        if shape[axis] is None:
            lengths = tf.repeat(sizes[:, axis], rows) if axis else sizes[:, 0]
            result = tf.RaggedTensor.from_row_lengths(result, lengths)
        else:
            num = tf.reduce_sum(rows) if axis else sizes.shape[0]
            result = tf.RaggedTensor.from_uniform_row_length(result, shape[axis], nrows=num)
    return result


def _by_layout(serialized: Any, features: dict[str, dict[str, Any]]) -> Values:
    """Parses a batch faster than ``tf.io.parse_example``, using the fixed layout of examples.

    Every value of this snapshot has a fixed length, so it is at the same place in every example.
    The bytes between the values (names and lengths) are the same in all examples, and are compared.
    This saves 3 to 9 % of the processor time of reading images.
    """
    length = sum(len(head) + size for _, head, size in facts.LAYOUT)
    other = [f"an example does not belong to {facts.NAME} {facts.FINGERPRINT}"]
    fits = tf.debugging.Assert(tf.reduce_all(tf.strings.length(serialized) == length), other)
    with tf.control_dependencies([fits]):  # with fixed_length= it would zero-fill its output first
        content = tf.io.decode_raw(serialized, tf.uint8)
    content = tf.reshape(content, [serialized.shape[0] or -1, length])
    same, values, begin = [], {}, 0
    for name, head, size in facts.LAYOUT:
        end = begin + len(head)
        same.append(tf.reduce_all(content[:, begin:end] == tf.constant(list(head), tf.uint8)))
        begin = end + size
        if name in features:
            values[name] = content[:, end:begin]
    with tf.control_dependencies([tf.debugging.Assert(tf.reduce_all(same), other)]):
        values = {name: tf.identity(value) for name, value in values.items()}
    for name, value in values.items():
        if features[name]["kind"] in PIXELS:
            continue
        dtype, shape = tf.as_dtype(features[name]["dtype"]), features[name].get("shape", [])
        if dtype not in (tf.int64, tf.bool):  # these take one byte each
            value = tf.reshape(value, [-1, value.shape[1] // dtype.size, dtype.size])
            value = tf.bitcast(value, dtype)
        values[name] = tf.cast(tf.reshape(value, [serialized.shape[0] or -1, *shape]), dtype)
    return values
