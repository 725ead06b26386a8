"""Images of a batch: decoded, turned upright, in one size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf  # type: ignore[import-untyped, unused-ignore]

from . import facts

Size = tuple[int, int]
_FORMATS = ("jpeg", "cmyk", "png", "gif", "bmp", "webp")
"""What an encoded image may be; "cmyk" stands for JPEGs of four components."""


def image_batch(name: str, parts: list[Any], size: Size) -> Any:
    """``uint8[batch, height, width, channels]`` of one feature.

    Args:
        name: Of the feature.
        parts: Its contents, string[batch] or uint8[batch, bytes]; and int64[batch] of each column
            beside it: the height and the width of raw images, the orientation of encoded ones.
        size: (height, width).
    """
    feature = facts.FEATURES[name]
    if feature["storage"] == "raw" and feature["height"]:
        return _pixels(parts[0], feature, size)
    shape = [*size, feature["channels"]]

    def one(content: Any, *sides: Any) -> Any:
        if feature["storage"] == "raw":
            image = tf.reshape(tf.io.decode_raw(content, tf.uint8), [*sides, shape[2]])
        else:
            image = decode(content, shape[2], facts.IMAGE_FORMATS.get(name) or _FORMATS)
            image = _upright(image, sides[0]) if sides else image
        if size != (feature["height"], feature["width"]):
            same = tf.reduce_all(tf.shape(image)[:2] == size)
            image = tf.cond(same, lambda: image, lambda: resize(image, size))
        return tf.ensure_shape(image, shape)

    specs = [tf.TensorSpec([], part.dtype) for part in parts]
    f = tf.function(one, autograph=False).get_concrete_function(*specs)
    (images,) = tf.raw_ops.MapDefun(  # takes 10 µs less of an image than tf.map_fn
        arguments=parts, captured_inputs=[], output_types=[tf.uint8], output_shapes=[shape], f=f
    )
    return images


def _pixels(pixels: Any, feature: dict[str, Any], size: Size) -> Any:
    """A batch of images that are stored as pixels of one size."""
    stored = (feature["height"], feature["width"])
    if pixels.dtype == tf.string:
        pixels = tf.io.decode_raw(pixels, tf.uint8)
    images = tf.reshape(pixels, [pixels.shape[0] or -1, *stored, feature["channels"]])
    return images if size == stored else resize(images, size)


def resize(images: Any, size: Size) -> Any:
    """One image, or a batch, in another size, antialiased."""
    return tf.saturate_cast(tf.round(tf.image.resize(images, size, antialias=True)), tf.uint8)


def decode(content: Any, channels: int, formats: Any) -> Any:
    """An image file's content as ``uint8[height, width, channels]``.

    TensorFlow decodes each format by another operation, so the graph has a branch for each that
    the snapshot may hold, and none for the others.
    """
    if {*formats} == {"jpeg"} or (channels != 1 and {*formats} <= {"jpeg", "cmyk"}):
        image = _jpeg(content, min(channels, 3))
        return _opaque(image) if channels == 4 else image
    is_jpeg = tf.strings.substr(content, 0, 3) == b"\xff\xd8\xff"
    if channels == 1:
        return tf.cond(
            is_jpeg,
            lambda: _grey_jpeg(content),
            lambda: _luma(_other(content, formats)),
        )
    if channels == 4:
        return tf.cond(
            is_jpeg, lambda: _opaque(_jpeg(content, 3)), lambda: _transparent(content, formats)
        )
    return tf.cond(is_jpeg, lambda: _jpeg(content, 3), lambda: _other(content, formats))


def _jpeg(content: Any, channels: int) -> Any:
    return tf.io.decode_jpeg(content, channels, dct_method="INTEGER_ACCURATE")


def _plain(content: Any, channels: int = 3) -> Any:
    """PNG, GIF or BMP."""
    return tf.io.decode_image(content, channels=channels, expand_animations=False)


def _webp(content: Any) -> Any:
    """With the channels that the file has, whatever is asked for."""
    return tf.image.decode_webp(content)[0]


def _unless_webp(
    content: Any, formats: Any, webp: Callable[[], Any], other: Callable[[], Any]
) -> Any:
    if "webp" not in formats:
        return other()
    is_riff = tf.strings.substr(content, 0, 4) == b"RIFF"
    is_webp = is_riff & (tf.strings.substr(content, 8, 4) == b"WEBP")
    return tf.cond(is_webp, webp, other)


def _other(content: Any, formats: Any) -> Any:
    """RGB of what is not a JPEG."""
    return _unless_webp(content, formats, lambda: _webp(content)[..., :3], lambda: _plain(content))


def _luma(image: Any) -> Any:
    """Grey of RGB, by ITU-R 601-2 with Pillow's integers."""
    weighted = tf.cast(image, tf.int32) * tf.constant([19_595, 38_470, 7_471])
    total = tf.reduce_sum(weighted, axis=2, keepdims=True)
    return tf.cast((total + 0x8000) // 0x10000, tf.uint8)


def _grey_jpeg(content: Any) -> Any:
    """The luminance that a JPEG stores; of four components, that of their RGB."""
    is_cmyk = tf.io.extract_jpeg_shape(content)[2] == 4
    return tf.cond(is_cmyk, lambda: _luma(_jpeg(content, 3)), lambda: _jpeg(content, 1))


def _opaque(image: Any) -> Any:
    return tf.pad(image, [[0, 0], [0, 0], [0, 1]], constant_values=255)


def _transparent(content: Any, formats: Any) -> Any:
    """RGBA of what is not a JPEG."""

    def png() -> Any:  # of less than 8 bits, TensorFlow adds an alpha where there is none
        shallow = tf.reduce_any(tf.strings.substr(content, 24, 1) == [b"\1", b"\2", b"\4"])
        is_bare = tf.cond(
            shallow, lambda: tf.shape(tf.io.decode_png(content))[2] % 2 == 1, lambda: False
        )
        return tf.cond(is_bare, lambda: _opaque(_plain(content)), lambda: _plain(content, 4))

    def webp() -> Any:
        has_alpha = tf.shape(_webp(content))[2] == 4
        return tf.cond(has_alpha, lambda: _webp(content), lambda: _opaque(_webp(content)[..., :3]))

    def other() -> Any:
        return _unless_webp(content, formats, webp, lambda: _opaque(_plain(content)))

    return tf.cond(tf.strings.substr(content, 0, 4) == b"\x89PNG", png, other)


def _upright(image: Any, orientation: Any) -> Any:
    """An image turned as its EXIF orientation, 1 to 8, says."""
    turned = tf.cond(orientation >= 5, lambda: tf.transpose(image, [1, 0, 2]), lambda: image)
    rows = tf.reduce_any(orientation == tf.constant([3, 4, 7, 8], tf.int64))
    columns = tf.reduce_any(orientation == tf.constant([2, 3, 6, 7], tf.int64))
    return tf.raw_ops.Reverse(tensor=turned, dims=tf.stack([rows, columns, False]))
