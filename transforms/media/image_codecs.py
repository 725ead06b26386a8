"""Images as bytes and as pixels: decode, turn, encode, in TensorFlow operations on one image.

Batches of encoded images are divided into parts by decoded size.
"""

from __future__ import annotations

import functools
import sys
import zlib
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import numpy as np

from ...schemas.blocks import RawBatch
from ...schemas.features import RESERVED_PREFIX, Features, Image

Format = Literal["jpeg", "png"]

NO_ALPHA = "a GIF with a transparent colour, whose alpha is not known; decode it to 3 channels"
"""Why an image cannot be decoded to four channels."""

NOT_16_BITS = 'not a PNG of 16 bits, as dtype="uint16" expects'
"""Why a file cannot be decoded to 16 bits."""
NOT_A_MASK = (
    "not a PNG of a palette, or of grey with 1, 2, 4 or 8 bits, whose samples are the indices of "
    "classes. Convert the file: map each colour to the index of its class, and save the indices as "
    'a PNG of mode "P" or "L"'
)
"""Why a file cannot be decoded as a mask."""

_PNG = b"\x89PNG\r\n\x1a\n"
_IHDR_BYTES = 8 + 25
_MASK_KINDS = [bytes([depth, colour]) for depth in (1, 2, 4, 8) for colour in (0, 3)]
"""The bytes 24 and 25 of a mask: bits of a sample; grey, or a palette."""
_GREY_CRC = int(
    np.uint32(zlib.crc32(bytes(17)) ^ zlib.crc32(bytes(13) + b"\3" + bytes(3))).view(np.int32)
)
"""What changes the CRC of a header when its palette becomes grey: CRC-32 is linear."""

_PNG_COLOURS = {1: b"\0", 3: b"\2", 4: b"\6"}

JPEG_SCALES = (1, 2, 4, 8)
"""What the height and width of a JPEG can be divided by when it is decoded."""

_EXIF_HEAD_BYTES = 1 << 16
_EXIF_ENTRY_BYTES = 12
_MAX_EXIF_ENTRIES = 64

MAX_PART_PIXELS = 48 << 20
"""Maximum decoded together, unless a single image has more: 144 MiB as RGB."""


class Origin(NamedTuple):
    """The file that an image was decoded from; kept in the record while steps run."""

    data: Any
    """The file's bytes, a string scalar."""
    pixels: Any
    """The image in the record; any other image there has another origin."""
    is_same: Any
    """Whether they are the file's own pixels, except for dropped colours: a bool scalar."""


def origin_name(name: str) -> str:
    """The name of an image's origin in a record."""
    return f"{RESERVED_PREFIX}origin/{name}"


def with_image(record: dict[str, Any], name: str, image: Any, *, is_same: Any) -> dict[str, Any]:
    """The record with a new image, made from the previous one."""
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
    """Decodes a JPEG, a string scalar, at 1/8 of its size: the entire scan, one pixel per block."""
    import tensorflow as tf

    return tf.io.decode_jpeg(data, channels=3, ratio=8, dct_method="INTEGER_FAST")


def _has_transparent_colour(gif: Any) -> Any:
    """Whether an extension before the first frame makes a colour transparent: a bool scalar."""
    import tensorflow as tf

    codes = tf.io.decode_raw(gif, tf.uint8)
    size = tf.size(codes)

    def at(place: Any) -> Any:
        # Zero after the end, which stops both loops.
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


def jpeg_scale(data: Any, size: Any, at_least: tuple[int, int]) -> Any:
    """The number in ``JPEG_SCALES`` of the smallest scale that is large enough: int32 scalar.

    Args:
        data: An encoded image, a string scalar; one that is no JPEG is not scaled.
        size: Its upright height and width: int64[2].
        at_least: The least height and width.
    """
    import tensorflow as tf

    scales = tf.constant(JPEG_SCALES, tf.int64)[:, tf.newaxis]
    is_large = tf.reduce_all((size + scales - 1) // scales >= at_least, axis=1)
    return tf.where(is_jpeg(data), tf.reduce_sum(tf.cast(is_large[1:], tf.int32)), 0)


def decode_pixels(data: Any, channels: int, dtype: str = "uint8", scale: Any = None) -> Any:
    """Decodes a string scalar to ``dtype[height, width, channels]``, as stored in the file.

    ``scale`` is that of a JPEG, from :func:`jpeg_scale`: the decoder reads all of the file, and
    computes the pixels of a smaller image from the low frequencies of each block.
    """
    import tensorflow as tf

    if dtype == "uint16":
        return _decode_deep(data, channels)

    def scaled_jpeg(channels: int, scale: int) -> Any:
        return tf.io.decode_jpeg(
            data, channels=channels, ratio=scale, dct_method="INTEGER_ACCURATE"
        )

    def jpeg(channels: int) -> Any:
        if scale is None:
            return scaled_jpeg(channels, 1)
        ways = [functools.partial(scaled_jpeg, channels, number) for number in JPEG_SCALES]
        return tf.switch_case(scale, ways)

    def other(channels: int) -> Any:
        return tf.io.decode_image(data, channels=channels, expand_animations=False)

    def opaque(image: Any) -> Any:
        alpha = tf.fill(tf.shape(image[..., :1]), tf.constant(255, tf.uint8))
        return tf.concat([image, alpha], axis=2)

    def webp(channels: int) -> Any:
        # TensorFlow 2.21 corrupts its memory with an animation that has no transparency.
        single = tf.debugging.Assert(~_is_animated(data), ["an animated WebP"])
        with tf.control_dependencies([single]):
            # Decodes to the channels of the file, and to no others.
            image = tf.image.decode_webp(tf.identity(data))[0]
        if channels == 4:
            return tf.cond(tf.shape(image)[2] == 4, lambda: image, lambda: opaque(image))
        return image[..., :3] if channels == 3 else luma(image[..., :3])

    def grey_jpeg() -> Any:
        # libjpeg cannot convert CMYK to grey.
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
        # TensorFlow paints a GIF's transparent pixels black, and does not report which they are.
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


def decoding_error(data: bytes) -> str:
    """Why an image does not decode; empty if it does."""
    import tensorflow as tf

    try:
        with tf.device("/CPU:0"):
            decode_pixels(tf.constant(data), 3)
    except tf.errors.OpError as error:
        return str(error.message)
    return ""


def _decode_deep(data: Any, channels: int) -> Any:
    """Decodes a PNG of 16 bits, a string scalar, to ``uint16[height, width, channels]``."""
    import tensorflow as tf

    substr = tf.strings.substr
    is_png = (substr(data, 0, 8) == _PNG) & (tf.strings.length(data) >= _IHDR_BYTES)
    is_deep = tf.cond(is_png, lambda: substr(data, 24, 1) == b"\x10", lambda: is_png)
    with tf.control_dependencies([tf.debugging.Assert(is_deep, [NOT_16_BITS])]):
        data = tf.identity(data)
    image = tf.io.decode_png(data, channels=max(channels, 3), dtype=tf.uint16)
    return tf.ensure_shape(luma(image) if channels == 1 else image, (None, None, channels))


def decode_indices(data: Any) -> Any:
    """Decodes the file of a mask, a string scalar, to its samples: ``uint8[height, width, 1]``.

    TensorFlow would convert the samples of a palette to colours, and scale those below 8 bits.
    """
    import tensorflow as tf

    substr = tf.strings.substr
    is_png = substr(data, 0, 8) == _PNG
    # A shorter PNG does not decode. TensorFlow's own error about its length would show its bytes.
    is_long = tf.strings.length(data) >= _IHDR_BYTES + 8
    is_mask, depth, has_palette = tf.cond(
        is_png & is_long,
        lambda: (
            tf.reduce_any(substr(data, 24, 2) == _MASK_KINDS),
            tf.io.decode_raw(substr(data, 24, 1), tf.uint8)[0],
            substr(data, 25, 1) == b"\3",
        ),
        lambda: (is_png, tf.constant(8, tf.uint8), tf.constant(False)),
    )
    with tf.control_dependencies([tf.debugging.Assert(is_mask, [NOT_A_MASK])]):
        data = tf.identity(data)
    grey = tf.cond(has_palette, lambda: _as_grey(data), lambda: data)
    steps = tf.gather(tf.constant([1, 255, 85, 1, 17], tf.uint8), tf.cast(depth % 8, tf.int32))
    return tf.ensure_shape(tf.io.decode_png(grey, channels=1) // steps, (None, None, 1))


def _as_grey(png: Any) -> Any:
    """A PNG of a palette as one of grey with the same samples: without chunks before the pixels."""
    import tensorflow as tf

    substr, last = tf.strings.substr, tf.strings.length(png) - 8

    def integer(place: Any) -> Any:
        return tf.io.decode_raw(substr(png, place, 4), tf.int32, little_endian=False)[0]

    def before_pixels(place: Any) -> Any:
        return (place < last) & (substr(png, place + 4, 4) != b"IDAT")

    def skip(place: Any) -> tuple[Any]:
        length = tf.clip_by_value(integer(place), 0, last - place)
        return (tf.minimum(place + 12 + length, last),)

    (pixels,) = tf.while_loop(before_pixels, skip, (tf.constant(_IHDR_BYTES),))
    crc = tf.bitwise.bitwise_xor(integer(29), tf.constant(_GREY_CRC))
    letters = tf.constant([bytes([value]) for value in range(256)])
    shifted = tf.bitwise.right_shift(crc, tf.constant([24, 16, 8, 0]))
    digits = tf.gather(letters, tf.bitwise.bitwise_and(shifted, 255))
    parts = [substr(png, 0, 25), b"\0", substr(png, 26, 3), tf.strings.reduce_join(digits)]
    return tf.strings.join([*parts, substr(png, pixels, tf.strings.length(png))])


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
    """BT.601 luma in 16-bit fixed point, as Pillow computes it: grey is exactly unchanged."""
    import tensorflow as tf

    kind = tf.int32 if image.dtype == tf.uint8 else tf.int64
    weights = tf.constant([19_595, 38_470, 7_471], kind)
    total = tf.reduce_sum(tf.cast(image, kind) * weights, axis=2, keepdims=True)
    return tf.cast((total + 0x8000) // 0x10000, image.dtype)


def encode_pixels(image: Any, *, file_format: Format, quality: int) -> Any:
    """Encodes ``uint8[height, width, channels]`` to a string scalar, deterministically."""
    import tensorflow as tf

    if file_format == "png":
        return tf.io.encode_png(image)
    channels = {1: "grayscale", 3: "rgb"}[image.shape[2]]
    return tf.io.encode_jpeg(image, format=channels, quality=quality)


def is_stored_as(data: Any, *, file_format: Format, channels: int, bits: int) -> Any:
    """Whether encoded bytes have a format and this many channels of 8 or 16 bits: a bool scalar."""
    import tensorflow as tf

    if file_format == "jpeg":
        return tf.cond(
            is_jpeg(data),
            lambda: tf.io.extract_jpeg_shape(data)[2] == channels,
            lambda: tf.constant(False),
        )
    is_png = tf.strings.substr(data, 0, 8) == _PNG
    kind = bytes([bits]) + _PNG_COLOURS[channels]
    # Bytes that are not a PNG may be too short to have a byte 24.
    return tf.cond(is_png, lambda: tf.strings.substr(data, 24, 2) == kind, lambda: is_png)


def orientation_of(content: Any) -> Any:
    """The orientation of an encoded image, int64 scalar from 1 to 8; 1 if none is stated.

    For serving: a build reads it with ``image_header`` and stores it with the image. Looks for
    the first EXIF block in the first 64 KiB, where cameras put it. Source: CIPA DC-008 (Exif
    2.32), 4.6.
    """
    import tensorflow as tf

    has_jpeg = is_jpeg(content)
    data = tf.io.decode_raw(tf.strings.substr(content, 0, _EXIF_HEAD_BYTES), tf.uint8)
    return tf.cond(has_jpeg, lambda: _jpeg_orientation(data), lambda: tf.constant(1, tf.int64))


def _jpeg_orientation(data: Any) -> Any:
    import tensorflow as tf

    mark = tf.constant(list(b"Exif\0\0"), tf.uint8)
    num_places = tf.maximum(tf.shape(data)[0] - mark.shape[0], 0)
    matches = tf.ones([num_places], tf.bool)
    for offset in range(mark.shape[0]):
        matches &= data[offset : offset + num_places] == mark[offset]
    places = tf.where(matches)

    def read() -> Any:
        return _tiff_orientation(data[tf.cast(places[0, 0], tf.int32) + mark.shape[0] :])

    return tf.cond(tf.size(places) > 0, read, lambda: tf.constant(1, tf.int64))


def _tiff_orientation(tiff: Any) -> Any:
    import tensorflow as tf

    tiff = tf.concat([tiff, tf.zeros([_MAX_EXIF_ENTRIES * _EXIF_ENTRY_BYTES + 16], tf.uint8)], 0)
    tiff = tf.cast(tiff, tf.int64)
    little = tiff[0] == ord("I")

    def number(place: Any, size: int) -> Any:
        digits = tiff[place : place + size]
        weights = tf.constant([256**power for power in range(size)], tf.int64)
        return tf.reduce_sum(digits * tf.where(little, weights, weights[::-1]))

    length = tf.shape(tiff, tf.int64)[0]
    start = tf.minimum(number(4, 4), length - _MAX_EXIF_ENTRIES * _EXIF_ENTRY_BYTES - 2)
    num_entries = tf.minimum(number(start, 2), _MAX_EXIF_ENTRIES)
    entries = tf.reshape(
        tiff[start + 2 : start + 2 + _MAX_EXIF_ENTRIES * _EXIF_ENTRY_BYTES],
        [_MAX_EXIF_ENTRIES, _EXIF_ENTRY_BYTES],
    )
    pair = tf.constant([1, 256], tf.int64)
    pair = tf.where(little, pair, pair[::-1])
    tags = tf.reduce_sum(entries[:, :2] * pair, 1)
    values = tf.reduce_sum(entries[:, 8:10] * pair, 1)
    wanted = (tags == 0x0112) & (tf.range(_MAX_EXIF_ENTRIES, dtype=tf.int64) < num_entries)
    orientations = tf.boolean_mask(values, wanted)
    value = tf.cond(
        tf.size(orientations) > 0, lambda: orientations[0], lambda: tf.constant(1, tf.int64)
    )
    return tf.where((value >= 1) & (value <= 8), value, tf.constant(1, tf.int64))


def parts_by_pixels(
    batch: RawBatch,
    features: Features,
    *,
    max_pixels: int = MAX_PART_PIXELS,
    max_rows: int = sys.maxsize,
) -> Iterator[RawBatch]:
    """The batch, divided into parts with a bounded number of pixels and rows if it has too many.

    Args:
        batch: With the wire columns of the features.
        features: The size of an encoded image is in its side columns.
        max_pixels: Of a part, unless a single image has more.
        max_rows: Of a part.
    """
    names = [
        name
        for name, feature in features.items()
        if isinstance(feature, Image) and feature.storage == "encoded"
    ]
    pixels = np.zeros(len(batch.ids), np.int64)
    for name in names:
        height, width = (batch.columns.column(f"{name}/{side}") for side in ("height", "width"))
        if height.null_count == width.null_count == 0:
            pixels += height.to_numpy() * width.to_numpy()
    if pixels.sum() <= max_pixels and len(pixels) <= max_rows:
        yield batch
        return
    start, held = 0, 0
    for row, weight in enumerate(pixels.tolist()):
        if row > start and (held + weight > max_pixels or row - start == max_rows):
            yield _part(batch, start, row)
            start, held = row, 0
        held += weight
    yield _part(batch, start, len(batch.ids))


def _part(batch: RawBatch, start: int, stop: int) -> RawBatch:
    """Some of a batch's rows; its rejects and its count of filtered records go with the first."""
    first = start == 0
    return RawBatch(
        ids=batch.ids[start:stop],
        columns=batch.columns.slice(start, stop - start),
        rejects=batch.rejects if first else (),
        num_filtered=batch.num_filtered if first else 0,
    )
