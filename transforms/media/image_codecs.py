"""Images as bytes and as pixels, in TensorFlow operations on one image: decode, turn, encode."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from ...schemas.features import RESERVED_PREFIX

Format = Literal["jpeg", "png"]

NO_ALPHA = "a GIF with a transparent colour, whose alpha is not known; decode it to 3 channels"
"""Why an image does not decode to four channels."""

_PNG_COLOURS = {1: b"\0", 3: b"\2", 4: b"\6"}


class Origin(NamedTuple):
    """The file that an image was decoded from; goes along in the record while steps run."""

    data: Any
    """The file's bytes, a string scalar."""
    pixels: Any
    """The image that the record holds; another one there is of another origin."""
    is_same: Any
    """Whether they are the file's own pixels, but for colours left out: a bool scalar."""


def origin_name(name: str) -> str:
    """Where a record has the origin of an image."""
    return f"{RESERVED_PREFIX}origin/{name}"


def with_image(record: dict[str, Any], name: str, image: Any, *, is_same: Any) -> dict[str, Any]:
    """The record with another image, made from the one that was there."""
    origin = record.get(origin_name(name))
    record = {**record, name: image}
    if origin is not None:
        record[origin_name(name)] = Origin(origin.data, image, origin.is_same & is_same)
    return record


def is_jpeg(data: Any) -> Any:
    """Whether encoded bytes, a string scalar, are a JPEG: a bool scalar."""
    import tensorflow as tf

    return tf.strings.substr(data, 0, 3) == b"\xff\xd8\xff"


def _is_animated(webp: Any) -> Any:
    import tensorflow as tf

    flags = tf.io.decode_raw(tf.strings.substr(webp, 20, 1), tf.uint8)[0]
    extended = tf.strings.substr(webp, 12, 4) == b"VP8X"
    return extended & (tf.bitwise.bitwise_and(flags, tf.constant(2, tf.uint8)) != 0)


def decode_small(data: Any) -> Any:
    """Decodes a JPEG, a string scalar, to 1/8 of its size: all of its scan, a pixel a block."""
    import tensorflow as tf

    return tf.io.decode_jpeg(data, channels=3, ratio=8, dct_method="INTEGER_FAST")


def _has_transparent_colour(gif: Any) -> Any:
    """Whether an extension before the first frame makes a colour transparent: a bool scalar."""
    import tensorflow as tf

    codes = tf.io.decode_raw(gif, tf.uint8)
    size = tf.size(codes)

    def at(place: Any) -> Any:
        # Zero behind the end, so that both loops stop there.
        code = codes[tf.minimum(place, size - 1)]
        return tf.where(place < size, tf.cast(code, tf.int32), 0)

    def skip(place: Any, found: Any) -> tuple[Any, Any]:
        found |= (at(place + 1) == 0xF9) & (at(place + 3) % 2 == 1)
        (place,) = tf.while_loop(
            lambda block: at(block) > 0, lambda block: (block + at(block) + 1,), (place + 2,)
        )
        return place + 1, found

    flags = at(tf.constant(10))
    colours = tf.where(flags >= 128, tf.bitwise.left_shift(6, flags % 8), 0)
    start = 13 + colours
    return tf.while_loop(lambda place, found: at(place) == 0x21, skip, (start, tf.constant(False)))[
        1
    ]


def is_webp(data: Any) -> Any:
    """Whether encoded bytes, a string scalar, are a WebP: a bool scalar."""
    import tensorflow as tf

    substr = tf.strings.substr
    return (substr(data, 0, 4) == b"RIFF") & (substr(data, 8, 4) == b"WEBP")


def decode_pixels(data: Any, channels: int) -> Any:
    """Decodes a string scalar to ``uint8[height, width, channels]``, as it lies in the file."""
    import tensorflow as tf

    def jpeg(channels: int) -> Any:
        return tf.io.decode_jpeg(data, channels=channels, dct_method="INTEGER_ACCURATE")

    def other(channels: int) -> Any:
        return tf.io.decode_image(data, channels=channels, expand_animations=False)

    def opaque(image: Any) -> Any:
        alpha = tf.fill(tf.shape(image[..., :1]), tf.constant(255, tf.uint8))
        return tf.concat([image, alpha], axis=2)

    def webp(channels: int) -> Any:
        # TensorFlow 2.21 corrupts its memory with an animation that has no transparency.
        single = tf.debugging.Assert(~_is_animated(data), ["an animated WebP"])
        with tf.control_dependencies([single]):
            # It decodes to the channels that the file has, and to no others.
            image = tf.image.decode_webp(tf.identity(data))[0]
        if channels == 4:
            return tf.cond(tf.shape(image)[2] == 4, lambda: image, lambda: opaque(image))
        return image[..., :3] if channels == 3 else luma(image[..., :3])

    def grey_jpeg() -> Any:
        # libjpeg turns no CMYK into grey.
        cmyk = tf.io.extract_jpeg_shape(data)[2] == 4
        return tf.cond(cmyk, lambda: luma(jpeg(3)), lambda: jpeg(1))

    def png_with_alpha() -> Any:
        # Below 8 bits, TensorFlow gives images without transparency a wrong alpha.
        shallow = tf.reduce_any(tf.strings.substr(data, 24, 1) == [b"\1", b"\2", b"\4"])
        bare = tf.cond(
            shallow,
            lambda: tf.shape(tf.io.decode_png(data))[2] % 2 == 1,
            lambda: tf.constant(False),
        )
        return tf.cond(bare, lambda: opaque(other(3)), lambda: tf.io.decode_png(data, channels=4))

    def without_alpha() -> Any:
        # TensorFlow paints black what is transparent in a GIF, and does not say where.
        is_gif = tf.strings.substr(data, 0, 3) == b"GIF"
        transparent = tf.cond(
            is_gif, lambda: _has_transparent_colour(data), lambda: tf.constant(False)
        )
        with tf.control_dependencies([tf.debugging.Assert(~transparent, [NO_ALPHA])]):
            return opaque(other(3))

    def other_with_alpha() -> Any:
        png = tf.strings.substr(data, 0, 4) == b"\x89PNG"
        return tf.cond(png, png_with_alpha, without_alpha)

    branches = {
        1: (grey_jpeg, lambda: luma(other(3))),
        3: (lambda: jpeg(3), lambda: other(3)),
        4: (lambda: opaque(jpeg(3)), other_with_alpha),
    }
    as_jpeg, as_other = branches[channels]

    def no_jpeg() -> Any:
        return tf.cond(is_webp(data), lambda: webp(channels), as_other)

    image = tf.cond(is_jpeg(data), as_jpeg, no_jpeg)
    return tf.ensure_shape(image, (None, None, channels))


def turn_upright(image: Any, orientation: Any) -> Any:
    """Applies an EXIF orientation (int64 scalar, 1 to 8) to ``[height, width, channels]``."""
    import tensorflow as tf

    def among(*values: int) -> Any:
        return tf.reduce_any(orientation == tf.constant(values, tf.int64))

    def turn() -> Any:
        turned = tf.cond(orientation >= 5, lambda: tf.transpose(image, (1, 0, 2)), lambda: image)
        turned = tf.cond(among(2, 3, 6, 7), lambda: tf.reverse(turned, [1]), lambda: turned)
        return tf.cond(among(3, 4, 7, 8), lambda: tf.reverse(turned, [0]), lambda: turned)

    turned = tf.cond(orientation == 1, lambda: image, turn)
    return tf.ensure_shape(turned, (None, None, image.shape[2]))


def luma(image: Any) -> Any:
    """BT.601 luma in 16-bit fixed point, as Pillow computes it: grey stays exactly as it is."""
    import tensorflow as tf

    weights = tf.constant([19_595, 38_470, 7_471], tf.int32)
    total = tf.reduce_sum(tf.cast(image, tf.int32) * weights, axis=2, keepdims=True)
    return tf.cast((total + 0x8000) // 0x10000, tf.uint8)


def encode_pixels(image: Any, *, file_format: Format, quality: int) -> Any:
    """Encodes ``uint8[height, width, channels]`` to a string scalar, the same bytes each time."""
    import tensorflow as tf

    if file_format == "png":
        return tf.io.encode_png(image)
    channels = {1: "grayscale", 3: "rgb"}[image.shape[2]]
    return tf.io.encode_jpeg(image, format=channels, quality=quality)


def is_stored_as(data: Any, *, file_format: Format, channels: int) -> Any:
    """Whether encoded bytes are of a format and hold so many channels, of 8 bits: a bool scalar."""
    import tensorflow as tf

    if file_format == "jpeg":
        return tf.cond(
            is_jpeg(data),
            lambda: tf.io.extract_jpeg_shape(data)[2] == channels,
            lambda: tf.constant(False),
        )
    is_png = tf.strings.substr(data, 0, 8) == b"\x89PNG\r\n\x1a\n"
    kind = b"\x08" + _PNG_COLOURS[channels]
    # Bytes that are no PNG may be too short to have a byte 24.
    return tf.cond(is_png, lambda: tf.strings.substr(data, 24, 2) == kind, lambda: is_png)
