"""Steps on images: ``decode`` and ``resize``, and the check of images that stay encoded.

They run in TensorFlow, compiled over a whole batch. An encoded image comes with the columns
``<name>/height``, ``<name>/width`` (of the picture as shown) and ``<name>/orientation``, which
its source reads from the file's header (``image_header``).
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

import pydantic

from ...schemas.config import config_class
from ...schemas.errors import RecipeError
from ...schemas.features import Features, Image, side_columns

_Size = Annotated[int, pydantic.Field(ge=1, le=65_535)]


@config_class
class Decode:
    """See :func:`decode`."""

    name: str
    channels: Literal[1, 3, 4] = 3

    def __repr__(self) -> str:
        """As it is written in a recipe."""
        channels = "" if self.channels == 3 else f", channels={self.channels}"
        return f"ss.images.decode({json.dumps(self.name, ensure_ascii=False)}{channels})"

    def settings(self) -> dict[str, object]:
        """What shapes the output, as plain JSON, for the fingerprint."""
        return {"step": "images.decode", "name": self.name, "channels": self.channels}

    def features(self, features: Features) -> Features:
        """The features after this step.

        Raises:
            RecipeError: if there is no encoded image of this name.
        """
        image = _image(self, self.name, features)
        if image.storage != "encoded":
            raise RecipeError(f"prepare: {self!r}: {self.name!r} is decoded already. Leave it out.")
        decoded = Image(height=image.height, width=image.width, channels=self.channels)
        return {**features, self.name: decoded}

    def apply(self, record: dict[str, Any]) -> dict[str, Any]:
        """Replaces the encoded bytes by ``uint8[height, width, channels]``."""
        image = decode_pixels(record[self.name], self.channels)
        image = turn_upright(image, record[f"{self.name}/orientation"])
        sides = side_columns(self.name, Image(storage="encoded"))
        rest = {name: value for name, value in record.items() if name not in sides}
        return {**rest, self.name: image}


@config_class
class Resize:
    """See :func:`resize`."""

    name: str
    size: tuple[_Size, _Size]
    keep_ratio: bool = False

    def __repr__(self) -> str:
        """As it is written in a recipe."""
        ratio = ", keep_ratio=True" if self.keep_ratio else ""
        return (
            f"ss.images.resize({json.dumps(self.name, ensure_ascii=False)}, "
            f"({self.size[0]}, {self.size[1]}){ratio})"
        )

    def settings(self) -> dict[str, object]:
        """What shapes the output, as plain JSON, for the fingerprint."""
        return {
            "step": "images.resize",
            "name": self.name,
            "size": list(self.size),
            "keep_ratio": self.keep_ratio,
        }

    def features(self, features: Features) -> Features:
        """The features after this step.

        Raises:
            RecipeError: if there is no decoded image of this name.
        """
        image = _image(self, self.name, features)
        if image.storage != "raw":
            raise RecipeError(
                f"prepare: {self!r}: {self.name!r} is still encoded. Put "
                f"{decode(self.name)!r} before it."
            )
        height, width = self.size
        resized = Image(height=height, width=width, channels=image.channels)
        return {**features, self.name: resized}

    def apply(self, record: dict[str, Any]) -> dict[str, Any]:
        """Replaces ``uint8[any, any, channels]`` by ``uint8[height, width, channels]``."""
        import tensorflow as tf

        image = record[self.name]
        height, width = self.size
        if not self.keep_ratio:
            image = tf.ensure_shape(_scale(image, self.size), (height, width, image.shape[2]))
            return {**record, self.name: image}
        given = tf.cast(tf.shape(image)[:2], tf.float64)
        wanted = tf.constant(self.size, tf.float64)
        factor = tf.reduce_min(wanted / given)
        fitted = tf.cast(tf.round(given * factor), tf.int32)
        fitted = tf.clip_by_value(fitted, 1, tf.constant(self.size))
        image = _scale(image, fitted)
        before = (tf.constant(self.size) - fitted) // 2
        image = tf.image.pad_to_bounding_box(image, before[0], before[1], height, width)
        return {**record, self.name: image}


@config_class
class Check:
    """Decodes an image that is stored encoded, and keeps its bytes; see :func:`check`."""

    name: str

    def __repr__(self) -> str:
        """As an error names it."""
        return f"check of the encoded image {self.name!r}"

    def settings(self) -> dict[str, object]:
        """What shapes the output, as plain JSON, for the fingerprint."""
        return {"step": "images.check", "name": self.name}

    def features(self, features: Features) -> Features:
        """The features, unchanged."""
        return features

    def apply(self, record: dict[str, Any]) -> dict[str, Any]:
        """Fails where the image does not decode, or not to the size that its header states."""
        import tensorflow as tf

        data = record[self.name]
        sides = side_columns(self.name, Image(storage="encoded"))
        height, width, orientation = (record[side] for side in sides)
        stated = tf.cast(tf.stack([height, width]), tf.int32)
        stated = tf.where(orientation >= 5, tf.reverse(stated, [0]), stated)

        def check_jpeg() -> Any:
            return tf.reduce_all(tf.shape(decode_small(data))[:2] == (stated + 7) // 8)

        def check_other() -> Any:
            image = tf.io.decode_image(data, channels=3, expand_animations=False)
            return tf.reduce_all(tf.shape(image)[:2] == stated)

        agrees = tf.cond(is_jpeg(data), check_jpeg, check_other)
        verdict = tf.debugging.Assert(agrees, ["the image's size is not what its header states"])
        with tf.control_dependencies([verdict]):
            return {**record, f"{self.name}/height": tf.identity(height)}


def decode(name: str, channels: Literal[1, 3, 4] = 3) -> Decode:
    """Decodes an image to ``uint8[height, width, channels]``, upright.

    JPEG (with libjpeg's accurate DCT, so that bytes are the same everywhere), PNG, GIF (its first
    frame) and BMP, whatever the file is called: the content decides. Greyscale, CMYK, palettes and
    16 bits become 8-bit channels; the EXIF orientation is applied. An image that does not decode to
    its end is rejected. Without a :func:`resize`, pixels are stored with each image's own size.

    Args:
        name: The image feature.
        channels: 1 for luma (ITU-R BT.601), 3 for RGB (transparency is dropped), 4 for RGBA
            (opaque where the image has no transparency).

    Raises:
        RecipeError: if an argument is unfit.
    """
    return Decode(name=name, channels=channels)


def resize(name: str, size: tuple[int, int], *, keep_ratio: bool = False) -> Resize:
    """Resizes a decoded image to ``uint8[height, width, channels]``.

    Bilinear, with a filter as wide as the scale when it shrinks the image (``antialias=True`` of
    ``tf.image.resize``), rounded to the nearest integer.

    Args:
        name: The image feature.
        size: (height, width) in pixels.
        keep_ratio: Fit the image into ``size`` and centre it on black, instead of stretching it.

    Raises:
        RecipeError: if an argument is unfit.
    """
    return Resize(name=name, size=size, keep_ratio=keep_ratio)


def check(name: str) -> Check:
    """Checks an image that stays encoded by decoding it, at 1/8 of its size where it is a JPEG.

    Every image that no step decodes is checked so, without being asked: a truncated image must
    not wait for the trainer.
    """
    return Check(name=name)


def is_jpeg(data: Any) -> Any:
    """Whether encoded bytes, a string scalar, are a JPEG: a bool scalar."""
    import tensorflow as tf

    return tf.strings.substr(data, 0, 3) == b"\xff\xd8\xff"


def decode_small(data: Any) -> Any:
    """Decodes a JPEG, a string scalar, to 1/8 of its size: all of its scan, a pixel a block."""
    import tensorflow as tf

    return tf.io.decode_jpeg(data, channels=3, ratio=8, dct_method="INTEGER_FAST")


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

    def grey_jpeg() -> Any:
        # libjpeg turns no CMYK into grey.
        cmyk = tf.io.extract_jpeg_shape(data)[2] == 4
        return tf.cond(cmyk, lambda: _luma(jpeg(3)), lambda: jpeg(1))

    def png_with_alpha() -> Any:
        # Below 8 bits, TensorFlow gives images without transparency a wrong alpha.
        shallow = tf.reduce_any(tf.strings.substr(data, 24, 1) == [b"\1", b"\2", b"\4"])
        bare = tf.cond(
            shallow,
            lambda: tf.shape(tf.io.decode_png(data))[2] % 2 == 1,
            lambda: tf.constant(False),
        )
        return tf.cond(bare, lambda: opaque(other(3)), lambda: tf.io.decode_png(data, channels=4))

    def other_with_alpha() -> Any:
        png = tf.strings.substr(data, 0, 4) == b"\x89PNG"
        return tf.cond(png, png_with_alpha, lambda: opaque(other(3)))

    branches = {
        1: (grey_jpeg, lambda: _luma(other(3))),
        3: (lambda: jpeg(3), lambda: other(3)),
        4: (lambda: opaque(jpeg(3)), other_with_alpha),
    }
    image = tf.cond(is_jpeg(data), *branches[channels])
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


def _scale(image: Any, size: Any) -> Any:
    import tensorflow as tf

    def scale() -> Any:
        scaled = tf.image.resize(image, size, method="bilinear", antialias=True)
        return tf.cast(tf.round(scaled), tf.uint8)

    # At its own size the filter gives back each pixel, at the price of a decoding.
    same = tf.reduce_all(tf.shape(image)[:2] == size)
    return tf.cond(same, lambda: image, scale)


def _luma(image: Any) -> Any:
    """BT.601 luma in 16-bit fixed point, as Pillow computes it: grey stays exactly as it is."""
    import tensorflow as tf

    weights = tf.constant([19_595, 38_470, 7_471], tf.int32)
    total = tf.reduce_sum(tf.cast(image, tf.int32) * weights, axis=2, keepdims=True)
    return tf.cast((total + 0x8000) // 0x10000, tf.uint8)


def _image(step: object, name: str, features: Features) -> Image:
    feature = features.get(name)
    if not isinstance(feature, Image):
        images = sorted(key for key, value in features.items() if isinstance(value, Image))
        found = f"is a {type(feature).__name__}" if feature is not None else "does not exist"
        raise RecipeError(
            f"prepare: {step!r}: feature {name!r} {found}. Images here: "
            f"{', '.join(map(repr, images)) or 'none'}."
        )
    return feature
