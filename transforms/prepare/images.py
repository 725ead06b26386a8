"""Steps on images: decode, resize, crop, convert, encode, and the check of encoded images.

They run in TensorFlow, compiled for batches. An encoded image has the side columns
``<name>/height``, ``<name>/width`` (of the upright picture) and ``<name>/orientation``, which its
source reads from the file's header (``image_header``). Training is fastest with raw pixels, that
is, without ``encode``.

A feature ``BoundingBoxes(image=name)`` belongs to the image. Boxes are fractions of the upright
picture, so stretching and rotating do not change them. Padding and cropping do: boxes are clipped
at the border, and a box that becomes empty is dropped, together with its values in the sequences
named by ``BoundingBoxes(labels=…)``. A decoded ``Mask(image=name)`` changes as its image does, by
nearest neighbour.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Annotated, Any, Literal, NamedTuple

import pydantic

from ...schemas.config import config_class
from ...schemas.errors import RecipeError
from ...schemas.features import (
    BoundingBoxes,
    Features,
    Image,
    Mask,
    Tensor,
    frames_of,
    side_columns,
    written,
)
from ..media.image_codecs import (
    Format,
    Origin,
    decode_indices,
    decode_pixels,
    decode_small,
    encode_pixels,
    is_jpeg,
    is_stored_as,
    jpeg_scale,
    luma,
    orientation_of,
    origin_name,
    turn_upright,
    with_image,
)
from .values import NO_FEATURES, BuiltIn, find_media

__all__ = [
    "CenterCrop",
    "Check",
    "Convert",
    "Decode",
    "Encode",
    "PadOrCrop",
    "Resize",
    "center_crop",
    "check",
    "convert",
    "decode",
    "encode",
    "pad_or_crop",
    "resize",
]

FRAMES_DIFFER = "the frames of the clip differ in size"
FRAME_TURNED = "a frame has an EXIF orientation"
Size = Annotated[int, pydantic.Field(ge=1, le=65_535)]


@config_class
class Decode(BuiltIn):
    """Decodes an image to ``uint8[height, width, channels]``, upright.

    Supports JPEG (with libjpeg's accurate DCT, for the same bytes everywhere), PNG, GIF (the first
    frame; transparency becomes black), BMP and WebP; the format is detected by content, not by file
    name. Grayscale, CMYK, palettes and 16 bits become 8-bit channels; the EXIF orientation is
    applied. Truncated images are rejected. Without a ``resize``, pixels are stored in each
    image's own size.

    A mask is decoded to the samples of its PNG: the indices of a palette, or shades of grey as they
    are stored, 0 and 1 in an image of 1 bit. Other files are rejected.

    Args:
        name: The image feature, or a mask, which has 1 channel whatever ``channels`` says.
        channels: 1 for luma (ITU-R BT.601), 3 for RGB (transparency is dropped), 4 for RGBA
            (opaque if the image has no transparency; a GIF with a transparent colour is
            rejected).
        dtype: ``"uint16"`` keeps all bits of PNGs of 16 bits; other files are rejected. None is the
            dtype that ``features=`` or ``types=`` declares, ``"uint8"`` by default.
        at_least: (height, width) that a later step needs. JPEGs are decoded at 1/2, 1/4 or 1/8 of
            their size if that is still at least as high and as wide, which is much faster. Their
            pixels are close to those of a full decoding that is resized (docs/steps.md). None
            decodes all images at their full size, as other formats always are.

    Raises:
        RecipeError: if an argument is invalid.
    """

    name: str
    channels: Literal[1, 3, 4] = 3
    _: dataclasses.KW_ONLY
    dtype: Literal["uint8", "uint16"] | None = None
    at_least: tuple[Size, Size] | None = None

    kind = "images.decode"
    sees_features = True

    def settings(self) -> dict[str, object]:
        """Everything that affects the output, as plain JSON, for the fingerprint."""
        return {
            name: value
            for name, value in super().settings().items()
            if value is not None or name not in ("dtype", "at_least")
        }

    def features(self, features: Features) -> Features:
        """The features after this step.

        Raises:
            RecipeError: if there is no encoded image of this name, or it cannot be scaled.
        """
        image = image_feature(self, self.name, features)
        if image.storage != "encoded":
            raise RecipeError(
                f"prepare: {self!r}: {self.name!r} is already decoded. Remove this step."
            )
        dtype = self.dtype or image.dtype
        if self.at_least is not None:
            masks = ", ".join(map(repr, _masks_of(self.name, features)))
            problem = (
                f"the mask {masks} must have its image's size"
                if masks
                else f"{self.name!r} is a mask, whose indices cannot be scaled"
                if isinstance(image, Mask)
                else f"{self.name!r} has 16 bits, which no JPEG has"
                if dtype == "uint16"
                else ""
            )
            if problem:
                raise RecipeError(f"prepare: {self!r}: {problem}. Remove at_least=.")
        if isinstance(image, Mask):
            return {**features, self.name: dataclasses.replace(image, storage="raw")}
        height, width = image.height, image.width
        if self.at_least is not None and not self._is_never_scaled(height, width):
            height = width = None  # which depends on the format of the file
        decoded = Image(height=height, width=width, channels=self.channels, dtype=dtype)
        return {**features, self.name: decoded}

    def _is_never_scaled(self, height: int | None, width: int | None) -> bool:
        """Whether images of this size are smaller than ``at_least`` even at 1/2 of it."""
        assert self.at_least is not None
        sides = zip((height, width), self.at_least, strict=True)
        return any(side is not None and (side + 1) // 2 < least for side, least in sides)

    def apply(self, record: dict[str, Any], features: Features = NO_FEATURES) -> dict[str, Any]:
        """Replaces the encoded bytes by ``uint8[height, width, channels]``."""
        import tensorflow as tf

        sides = side_columns(self.name, Image(storage="encoded"))
        height, width, orientation = (record[side] for side in sides)
        data, feature, scale = record[self.name], features.get(self.name), None
        if isinstance(feature, Mask):
            pixels = decode_indices(data)
        else:
            dtype = feature.dtype if isinstance(feature, Image) else "uint8"
            if self.at_least is not None:
                scale = jpeg_scale(data, tf.stack([height, width]), self.at_least)
            pixels = decode_pixels(data, self.channels, self.dtype or dtype, scale)
        image = turn_upright(pixels, orientation)
        rest = {name: value for name, value in record.items() if name not in sides}
        is_same = tf.equal(orientation, 1)
        if scale is not None:
            is_same &= tf.equal(scale, 0)
        origin = Origin(data, image, is_same)
        return {**rest, self.name: image, origin_name(self.name): origin}


decode = Decode


@config_class
class Convert(BuiltIn):
    """Converts a decoded image to grayscale (1 channel) or RGB (3 channels), ``uint8``.

    Grayscale is luma (ITU-R BT.601), repeated in three channels when it becomes RGB. Transparency
    is dropped.

    Args:
        name: The image feature.
        to: ``"grayscale"`` or ``"rgb"``.

    Raises:
        RecipeError: if an argument is invalid.
    """

    name: str
    to: Literal["grayscale", "rgb"]
    kind = "images.convert"

    def features(self, features: Features) -> Features:
        """The features after this step.

        Raises:
            RecipeError: if there is no decoded image of this name.
        """
        image = decoded_feature(self, self.name, features)
        if isinstance(image, Mask):
            raise RecipeError(
                f"prepare: {self!r}: {self.name!r} is a mask, which has indices of classes and no "
                "colours. Remove this step."
            )
        channels: Literal[1, 3] = 1 if self.to == "grayscale" else 3
        return {**features, self.name: dataclasses.replace(image, channels=channels)}

    def apply(self, record: dict[str, Any]) -> dict[str, Any]:
        """Replaces ``uint8[height, width, any]`` by ``uint8[height, width, 1 or 3]``."""
        import tensorflow as tf

        image = record[self.name]
        given = image.shape[2]
        wanted = 1 if self.to == "grayscale" else 3
        if given == wanted:
            return record
        if wanted == 1:
            converted = luma(image[..., :3])
        else:
            converted = tf.repeat(image, 3, axis=2) if given == 1 else image[..., :3]
        # Grayscale computed from colours stays so when it is expanded to three channels.
        return with_image(record, self.name, converted, is_same=wanted < given)


convert = Convert


@config_class
class Encode(BuiltIn):
    """Encodes a decoded image as the bytes of a file: smaller, but slower to train from.

    If no step has changed the image, and its file has this format and number of channels, the
    file's bytes are kept, so encoding twice loses nothing. (Your own functions and filters between
    decoding and encoding count as changes.) Without this step, images are stored as raw pixels.

    Args:
        name: The image feature.
        format: ``"jpeg"`` (1 or 3 channels, colours at half the resolution) or ``"png"``
            (lossless).
        quality: JPEG quality, 1 to 100; the default is 90.

    Raises:
        RecipeError: if an argument is invalid.
    """

    name: str
    format: Format = "jpeg"
    _: dataclasses.KW_ONLY
    quality: Annotated[int, pydantic.Field(ge=1, le=100)] | None = None

    kind = "images.encode"
    sees_features = True

    def __post_init__(self) -> None:
        """Checks that only a JPEG has a quality."""
        if self.format == "png" and self.quality is not None:
            raise ValueError("quality is only for JPEG: PNG is lossless")

    def settings(self) -> dict[str, object]:
        """Everything that affects the output, as plain JSON, for the fingerprint."""
        return {**super().settings(), "quality": self._quality}

    @property
    def _quality(self) -> int | None:
        return 90 if self.format == "jpeg" and self.quality is None else self.quality

    def features(self, features: Features) -> Features:
        """The features after this step.

        Raises:
            RecipeError: if there is no decoded image of this name, or the format cannot hold it.
        """
        image = decoded_feature(self, self.name, features)
        if self.format == "jpeg" and image.channels == 4:
            raise RecipeError(
                f"prepare: {self!r}: JPEG does not support transparency. Decode {self.name!r} with "
                'channels=3, or encode it with format="png".'
            )
        if self.format == "jpeg" and image.dtype == "uint16":
            raise RecipeError(
                f"prepare: {self!r}: JPEG has 8 bits, and {self.name!r} has 16. Encode it with "
                'format="png".'
            )
        if self.format == "jpeg" and isinstance(image, Mask):
            raise RecipeError(
                f"prepare: {self!r}: JPEG is lossy, and would change the classes of the mask "
                f'{self.name!r}. Encode it with format="png".'
            )
        return {**features, self.name: dataclasses.replace(image, storage="encoded")}

    def apply(self, record: dict[str, Any], features: Features = NO_FEATURES) -> dict[str, Any]:
        """Replaces ``uint8[height, width, channels]`` by the file's bytes and its side columns."""
        import tensorflow as tf

        image = record[self.name]
        feature = features.get(self.name)
        if isinstance(feature, Mask) and feature.names is not None:
            # Those of pixels are validated after the steps.
            with tf.control_dependencies([_check_indices(image, feature)]):
                image = tf.identity(image)
        origin = record.get(origin_name(self.name))

        def anew() -> Any:
            return encode_pixels(image, file_format=self.format, quality=self._quality or 0)

        if origin is None or origin.pixels is not record[self.name]:
            data = anew()
        else:
            stored = is_stored_as(
                origin.data,
                file_format=self.format,
                channels=int(image.shape[2]),
                bits=8 * image.dtype.size,
            )
            data = tf.cond(origin.is_same & stored, lambda: tf.identity(origin.data), anew)
        height, width, _ = tf.unstack(tf.shape(image, tf.int64))
        sides = side_columns(self.name, Image(storage="encoded"))
        values = (height, width, tf.constant(1, tf.int64))
        rest = {name: value for name, value in record.items() if name != origin_name(self.name)}
        return {**rest, self.name: data, **dict(zip(sides, values, strict=True))}


encode = Encode


@config_class
class Check(BuiltIn):
    """Checks an image that stays encoded by decoding it, JPEGs at 1/8 of their size.

    Every image that no step decodes is checked automatically, so the build rather than the trainer
    finds truncated images.
    """

    name: str

    kind = "images.check"
    sees_features = True

    def __repr__(self) -> str:
        """As shown in errors."""
        return f"check of the encoded image {self.name!r}"

    def features(self, features: Features) -> Features:
        """The features, unchanged.

        Raises:
            RecipeError: if there is no encoded image of this name.
        """
        if _frame(self.name, features) is not None:
            return features
        if image_feature(self, self.name, features).storage != "encoded":
            raise RecipeError(
                f"prepare: {self!r}: {self.name!r} is already decoded, which checks it. Remove "
                "this step."
            )
        return features

    def apply(self, record: dict[str, Any], features: Features = NO_FEATURES) -> dict[str, Any]:
        """Fails if the image does not decode, or not to the size stated in its header.

        The frames of a clip must also have one size, and no EXIF orientation.
        """
        import tensorflow as tf

        data = record[self.name]
        if _frame(self.name, features) is not None:
            with tf.control_dependencies([_check_frames(data)]):
                return {**record, self.name: tf.identity(data)}
        sides = side_columns(self.name, Image(storage="encoded"))
        height, width, orientation = (record[side] for side in sides)
        stated = tf.cast(tf.stack([height, width]), tf.int32)
        stated = tf.where(orientation >= 5, tf.reverse(stated, [0]), stated)

        def check_jpeg() -> Any:
            return tf.reduce_all(tf.shape(decode_small(data))[:2] == (stated + 7) // 8)

        feature = features.get(self.name)
        dtype = feature.dtype if isinstance(feature, Image) else "uint8"

        def check_other() -> Any:
            return tf.reduce_all(tf.shape(decode_pixels(data, 3, dtype))[:2] == stated)

        if dtype == "uint8":
            agrees = tf.cond(is_jpeg(data), check_jpeg, check_other)
        else:
            agrees = check_other()
        verdict = tf.debugging.Assert(agrees, ["the image's size is not what its header states"])
        with tf.control_dependencies([verdict]):
            return {**record, f"{self.name}/height": tf.identity(height)}


check = Check


def _frame(name: str, features: Features) -> Image | None:
    """What the frames of a clip are; None if the feature of this name is none."""
    return frames_of(features[name]) if name in features else None


def _check_frames(frames: Any) -> Any:
    """Asserts that encoded frames, ``string[frames]``, decode to one size, and are upright."""
    import tensorflow as tf

    def one(data: Any) -> Any:
        def jpeg() -> Any:
            stated = tf.io.extract_jpeg_shape(data)[:2]
            small = tf.shape(decode_small(data))[:2]
            text = ["the image's size is not what its header states"]
            agrees = tf.debugging.Assert(tf.reduce_all(small == (stated + 7) // 8), text)
            with tf.control_dependencies([agrees]):
                return tf.identity(stated)

        size = tf.cond(is_jpeg(data), jpeg, lambda: tf.shape(decode_pixels(data, 3))[:2])
        turned = [f"{FRAME_TURNED}. Save the clip's frames upright"]
        with tf.control_dependencies([tf.debugging.Assert(orientation_of(data) == 1, turned)]):
            return tf.identity(size)

    sizes = tf.map_fn(
        one, frames, fn_output_signature=tf.TensorSpec([2], tf.int32), parallel_iterations=1
    )
    text = [f"{FRAMES_DIFFER}. Resize them to one size"]
    return tf.debugging.Assert(tf.reduce_all(sizes == sizes[:1]), text)


class Window(NamedTuple):
    """The part of the old picture that becomes the new one, in pixels of the old one.

    float32[2] each, (y, x). A window larger than the old picture includes padding around it.
    """

    start: Any
    length: Any
    given: Any
    """Height and width of the old picture."""


@config_class
class Resize(BuiltIn):
    """Resizes a decoded image to ``uint8[height, width, channels]``; its boxes and masks follow.

    Bilinear (``tf.image.resize``), rounded to the nearest integer; masks by nearest neighbour.

    The encoded frames of a clip are decoded and resized one by one, and become a
    ``Tensor("uint8", (None, height, width, channels))``.

    Args:
        name: The image feature, or the clip.
        size: (height, width) in pixels.
        keep_ratio: True fits the image into ``size`` and centres it on black (a mask on its
            ``ignore``, else 0); ``"crop"`` fills
            ``size`` and crops the excess equally at both ends; False stretches the image.
        antialias: Whether to widen the filter when shrinking the image. Without it, resizing is
            faster, but fine patterns are aliased.

    Raises:
        RecipeError: if an argument is invalid.
    """

    name: str
    size: tuple[Size, Size]
    _: dataclasses.KW_ONLY
    keep_ratio: bool | Literal["crop"] = False
    antialias: bool = True

    kind = "images.resize"
    sees_features = True

    def settings(self) -> dict[str, object]:
        """Everything that affects the output, as plain JSON, for the fingerprint."""
        settings = super().settings()
        if self.antialias:
            del settings["antialias"]
        return settings

    def features(self, features: Features) -> Features:
        """The features after this step.

        Raises:
            RecipeError: if there is no decoded image of this name, or its mask is encoded.
        """
        frame = _frame(self.name, features)
        if frame is not None:
            return {**features, self.name: Tensor("uint8", (None, *self.size, frame.channels))}
        return {**features, **_sized(self, self.name, self.size, features)}

    def apply(self, record: dict[str, Any], features: Features = NO_FEATURES) -> dict[str, Any]:
        """Replaces ``uint8[any, any, channels]`` by ``uint8[height, width, channels]``.

        Of a clip, ``string[frames]`` by ``uint8[frames, height, width, channels]``.
        """
        import tensorflow as tf

        frame = _frame(self.name, features)
        if frame is not None:
            return {**record, self.name: self._resize_frames(record[self.name], frame)}
        wanted = tf.constant(self.size)
        given = tf.shape(record[self.name])[:2]
        shares = tf.cast(wanted, tf.float64) / tf.cast(given, tf.float64)
        window = None
        if self.keep_ratio == "crop":
            # Crop before scaling: otherwise a long, thin image would grow without bounds.
            part = tf.cast(wanted, tf.float64) / tf.reduce_max(shares)
            cropped = tf.clip_by_value(tf.cast(tf.round(part), tf.int32), 1, given)
            before = (given - cropped) // 2
            window = Window(*(tf.cast(x, tf.float32) for x in (before, cropped, given)))

            def change(pixels: Any, feature: Image | None) -> Any:
                part = tf.slice(pixels, [*tf.unstack(before), 0], [*tf.unstack(cropped), -1])
                return self._scale(part, wanted, feature)

        elif self.keep_ratio:
            exact = tf.cast(given, tf.float64) * tf.reduce_min(shares)
            fitted = tf.clip_by_value(tf.cast(tf.round(exact), tf.int32), 1, wanted)
            before = (wanted - fitted) // 2
            window = Window(*(tf.cast(x, tf.float32) for x in (-before, wanted, fitted)))

            def change(pixels: Any, feature: Image | None) -> Any:
                scaled = self._scale(pixels, fitted, feature)
                return _pad(scaled, before, wanted - fitted - before, feature)

        else:

            def change(pixels: Any, feature: Image | None) -> Any:
                return self._scale(pixels, wanted, feature)

        return _changed(record, self, change, features=features, window=window)

    def _resize_frames(self, frames: Any, frame: Image) -> Any:
        """Decodes and resizes the frames of a clip, one at a time."""
        import tensorflow as tf

        def one(data: Any) -> Any:
            pixels = turn_upright(decode_pixels(data, frame.channels), orientation_of(data))
            return self.apply({self.name: pixels}, {self.name: frame})[self.name]

        spec = tf.TensorSpec([*self.size, frame.channels], tf.uint8)
        return tf.map_fn(one, frames, fn_output_signature=spec, parallel_iterations=1)

    def _scale(self, image: Any, size: Any, feature: Image | None) -> Any:
        import tensorflow as tf

        def scale() -> Any:
            if isinstance(feature, Mask):
                return tf.image.resize(image, size, method="nearest")
            scaled = tf.image.resize(image, size, method="bilinear", antialias=self.antialias)
            return tf.cast(tf.round(scaled), image.dtype)

        # At the same size the filter would return the same pixels, at the cost of a decoding.
        same = tf.reduce_all(tf.shape(image)[:2] == size)
        return tf.cond(same, lambda: image, scale)


resize = Resize


@config_class
class _Framing(BuiltIn):
    """Cuts or pads images to a size, without scaling them."""

    name: str
    size: tuple[Size, Size]
    sees_features = True


@config_class
class CenterCrop(_Framing):
    """Crops a decoded image to its centre, ``uint8[height, width, channels]``.

    Its boxes and masks follow.

    If the excess is odd, one pixel more is removed at the bottom and on the right. Smaller images
    are rejected.

    Args:
        name: The image feature.
        size: (height, width) in pixels.

    Raises:
        RecipeError: if an argument is invalid.
    """

    kind = "images.center_crop"

    def features(self, features: Features) -> Features:
        """The features after this step.

        Raises:
            RecipeError: if there is no decoded image of this name, it is smaller than the crop, or
                its mask is encoded.
        """
        cropped = _sized(self, self.name, self.size, features)
        image = image_feature(self, self.name, features)
        given = (image.height or self.size[0], image.width or self.size[1])
        if given[0] < self.size[0] or given[1] < self.size[1]:
            raise RecipeError(
                f"prepare: {self!r}: the images are {given[0]}×{given[1]} (height × width), "
                "smaller than the crop. Resize them first, or use a smaller crop."
            )
        return {**features, **cropped}

    def apply(self, record: dict[str, Any], features: Features = NO_FEATURES) -> dict[str, Any]:
        """Replaces ``uint8[any, any, channels]`` by ``uint8[height, width, channels]``."""
        import tensorflow as tf

        given, wanted = tf.shape(record[self.name])[:2], tf.constant(self.size)
        fits = tf.debugging.Assert(
            tf.reduce_all(given >= wanted), ["the image is smaller than the crop"]
        )
        with tf.control_dependencies([fits]):
            before = (given - wanted) // 2
        window = Window(*(tf.cast(x, tf.float32) for x in (before, wanted, given)))

        def change(pixels: Any, feature: Image | None) -> Any:
            return tf.slice(pixels, [*tf.unstack(before), 0], [*self.size, -1])

        return _changed(record, self, change, features=features, window=window)


center_crop = CenterCrop


@config_class
class PadOrCrop(_Framing):
    """Pads a decoded image with black, or crops it to its centre, in each dimension, to ``size``.

    Its boxes and masks follow; masks are padded with their ``ignore``, else 0. If the difference is
    odd, one pixel more is added or removed at the bottom and on the right.

    Args:
        name: The image feature.
        size: (height, width) in pixels.

    Raises:
        RecipeError: if an argument is invalid.
    """

    kind = "images.pad_or_crop"

    def features(self, features: Features) -> Features:
        """The features after this step.

        Raises:
            RecipeError: if there is no decoded image of this name, or its mask is encoded.
        """
        return {**features, **_sized(self, self.name, self.size, features)}

    def apply(self, record: dict[str, Any], features: Features = NO_FEATURES) -> dict[str, Any]:
        """Replaces ``uint8[any, any, channels]`` by ``uint8[height, width, channels]``."""
        import tensorflow as tf

        given, wanted = tf.shape(record[self.name])[:2], tf.constant(self.size)
        kept = tf.minimum(given, wanted)
        cropped, padded = (given - kept) // 2, (wanted - kept) // 2
        window = Window(*(tf.cast(x, tf.float32) for x in (cropped - padded, wanted, given)))

        def change(pixels: Any, feature: Image | None) -> Any:
            part = tf.slice(pixels, [*tf.unstack(cropped), 0], [*tf.unstack(kept), -1])
            return _pad(part, padded, wanted - kept - padded, feature)

        return _changed(record, self, change, features=features, window=window)


pad_or_crop = PadOrCrop


def _pad(image: Any, before: Any, after: Any, feature: Image | None) -> Any:
    """Pads an image with black, and a mask with its index for padding."""
    import tensorflow as tf

    sides = tf.pad(tf.stack([before, after], axis=1), [[0, 1], [0, 0]])
    value = feature.padding if isinstance(feature, Mask) else 0
    return tf.pad(image, sides, constant_values=tf.constant(value, image.dtype))


def _changed(
    record: dict[str, Any],
    step: Resize | CenterCrop | PadOrCrop,
    change: Callable[[Any, Image | None], Any],
    *,
    features: Features,
    window: Window | None,
) -> dict[str, Any]:
    """The record with a step's image of another geometry, and its masks and boxes adjusted to it.

    Args:
        record: A record of tensors.
        step: The step, whose ``size`` is that of the new picture.
        change: Maps pixels of the old picture to the new one, for the feature that they belong to.
        features: The features of the record.
        window: The part of the old picture that becomes the new one; None if it is all of it.
    """
    import tensorflow as tf

    given = tf.shape(record[step.name])[:2]
    for name in (step.name, *_masks_of(step.name, features)):
        pixels, feature = record[name], features.get(name)
        if name != step.name:
            alike = tf.reduce_all(tf.shape(pixels)[:2] == given)
            text = [
                f"the mask {name} has another size than its image:",
                tf.shape(pixels)[:2],
                given,
            ]
            with tf.control_dependencies([tf.debugging.Assert(alike, text)]):
                pixels = tf.identity(pixels)
        changed = change(pixels, feature if isinstance(feature, Image) else None)
        changed = tf.ensure_shape(changed, (*step.size, pixels.shape[2]))
        is_same = tf.reduce_all(given == tf.constant(step.size))
        record = with_image(record, name, changed, is_same=is_same)
    if window is None:
        return record
    for boxes, feature in features.items():
        if isinstance(feature, BoundingBoxes) and feature.image == step.name:
            labels = [name for name in feature.per_box if name in features]
            record = record | move_boxes(record, boxes, labels=labels, window=window)
    return record


def _masks_of(name: str, features: Features) -> dict[str, Mask]:
    """The masks that belong to an image, by name."""
    return {
        mask: feature
        for mask, feature in features.items()
        if isinstance(feature, Mask) and feature.image == name and mask != name
    }


def _check_indices(indices: Any, mask: Mask) -> Any:
    """Asserts that all indices, ``uint8[height, width, 1]``, are those of classes."""
    import tensorflow as tf

    assert mask.names is not None
    valid = tf.cast(indices, tf.int32) < len(mask.names)
    if mask.ignore is not None:
        valid |= indices == mask.ignore
    largest = tf.reduce_max(tf.where(valid, tf.zeros_like(indices), indices))
    text = f"an index that is not of one of the {len(mask.names)} classes in names=, nor ignore=:"
    return tf.debugging.Assert(tf.reduce_all(valid), [text, largest])


def move_boxes(
    record: dict[str, Any], name: str, *, labels: Iterable[str], window: Window
) -> dict[str, Any]:
    """Converts boxes ``float32[num_boxes, 4]`` to fractions of a window; drops those outside.

    Args:
        record: A record of tensors.
        name: The boxes feature.
        labels: The sequences with one value per box.
        window: The part of the old picture that becomes the new one.

    Returns:
        The boxes and the labels, by name.
    """
    import tensorflow as tf

    boxes = record[name]
    corners = tf.reshape(boxes, [-1, 2, 2])  # [box, first or last, y or x]
    corners = (corners * window.given - window.start) / window.length
    corners = tf.clip_by_value(corners, 0.0, 1.0)
    kept = tf.reduce_all(corners[:, 1] > corners[:, 0], axis=1)
    moved = {name: tf.boolean_mask(tf.reshape(corners, [-1, 4]), kept)}
    for label in labels:
        values = record[label]
        alike = tf.debugging.Assert(
            tf.shape(values)[0] == tf.shape(boxes)[0], ["the image has not one label for each box"]
        )
        with tf.control_dependencies([alike]):
            moved[label] = tf.boolean_mask(values, kept)
    return moved


def image_feature(step: object, name: str, features: Features) -> Image:
    """The image of this name.

    Raises:
        RecipeError: if it does not exist.
    """
    if _frame(name, features) is not None:
        raise RecipeError(
            f"prepare: {step!r}: {name!r} is a clip, a sequence of frames. To decode and resize "
            f"each of them, write ss.images.resize({written(name)}, (height, width))."
        )
    return find_media(step, name, features, Image, what="Images")


def decoded_feature(step: object, name: str, features: Features) -> Image:
    """The decoded image of this name.

    Raises:
        RecipeError: if it does not exist, or is encoded.
    """
    image = image_feature(step, name, features)
    if image.storage != "raw":
        raise RecipeError(
            f"prepare: {step!r}: {name!r} is still encoded. Put ss.images.decode({written(name)}) "
            "before this step."
        )
    return image


def _sized(step: object, name: str, size: tuple[int, int], features: Features) -> dict[str, Image]:
    """An image and its masks, of another size."""
    image = decoded_feature(step, name, features)
    masks = {mask: decoded_feature(step, mask, features) for mask in _masks_of(name, features)}
    return {
        key: dataclasses.replace(feature, height=size[0], width=size[1])
        for key, feature in {name: image, **masks}.items()
    }
