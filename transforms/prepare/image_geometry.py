"""Steps that change where an image's pixels lie: resize, centre crop; its boxes follow.

A feature ``BoundingBoxes(image=name)`` belongs to the image. Its boxes are shares of the picture
as it is shown, so stretching and turning leave them as they are. Padding and cropping move them;
what lies beyond the border is cut off, and a box of which nothing is left is dropped, together with
its value in the sequence that ``BoundingBoxes(labels=…)`` names.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, NamedTuple

import pydantic

from ...schemas.config import config_class
from ...schemas.errors import RecipeError
from ...schemas.features import BoundingBoxes, Features, Image
from ..media.image_codecs import with_image
from .values import find_media

Size = Annotated[int, pydantic.Field(ge=1, le=65_535)]


class Window(NamedTuple):
    """What part of the picture before a step makes the picture after it, in the old one's pixels.

    float32[2] each, (y, x). A window larger than the old picture has padding around it.
    """

    start: Any
    length: Any
    given: Any
    """The old picture's own height and width."""


@config_class
class Resize:
    """See :func:`~.images.resize`."""

    name: str
    size: tuple[Size, Size]
    keep_ratio: bool | Literal["crop"] = False
    antialias: bool = True

    sees_features = True

    def __repr__(self) -> str:
        """As it is written in a recipe."""
        ratio = "" if not self.keep_ratio else f", keep_ratio={quoted(self.keep_ratio)}"
        antialias = "" if self.antialias else ", antialias=False"
        return f"ss.images.resize({quoted(self.name)}, {self.size}{ratio}{antialias})"

    def settings(self) -> dict[str, object]:
        """What shapes the output, as plain JSON, for the fingerprint."""
        found: dict[str, object] = {
            "step": "images.resize",
            "name": self.name,
            "size": list(self.size),
            "keep_ratio": self.keep_ratio,
        }
        return found if self.antialias else {**found, "antialias": False}

    def features(self, features: Features) -> Features:
        """The features after this step.

        Raises:
            RecipeError: if there is no decoded image of this name.
        """
        return {**features, self.name: _sized(self, self.name, self.size, features)}

    def apply(self, record: dict[str, Any], features: Features | None = None) -> dict[str, Any]:
        """Replaces ``uint8[any, any, channels]`` by ``uint8[height, width, channels]``."""
        import tensorflow as tf

        image = record[self.name]
        height, width = self.size
        wanted = tf.constant(self.size)
        given = tf.shape(image)[:2]
        shares = tf.cast(wanted, tf.float64) / tf.cast(given, tf.float64)
        window = None
        if self.keep_ratio == "crop":
            # Cropped before it is scaled: the other way about, a long strip would grow without
            # bounds.
            part = tf.cast(wanted, tf.float64) / tf.reduce_max(shares)
            cropped = tf.clip_by_value(tf.cast(tf.round(part), tf.int32), 1, given)
            before = (given - cropped) // 2
            image = tf.slice(image, [*tf.unstack(before), 0], [*tf.unstack(cropped), -1])
            image = self._scale(image, wanted)
            window = Window(*(tf.cast(x, tf.float32) for x in (before, cropped, given)))
        elif self.keep_ratio:
            exact = tf.cast(given, tf.float64) * tf.reduce_min(shares)
            fitted = tf.clip_by_value(tf.cast(tf.round(exact), tf.int32), 1, wanted)
            image = self._scale(image, fitted)
            before = (wanted - fitted) // 2
            image = tf.image.pad_to_bounding_box(image, before[0], before[1], height, width)
            window = Window(*(tf.cast(x, tf.float32) for x in (-before, wanted, fitted)))
        else:
            image = self._scale(image, wanted)
        image = tf.ensure_shape(image, (height, width, record[self.name].shape[2]))
        is_same = tf.reduce_all(given == wanted)
        record = with_image(record, self.name, image, is_same=is_same)
        if window is None:
            return record
        return _follow(record, self.name, window=window, features=features or {})

    def _scale(self, image: Any, size: Any) -> Any:
        import tensorflow as tf

        def scale() -> Any:
            scaled = tf.image.resize(image, size, method="bilinear", antialias=self.antialias)
            return tf.cast(tf.round(scaled), tf.uint8)

        # At its own size the filter gives back each pixel, at the price of a decoding.
        same = tf.reduce_all(tf.shape(image)[:2] == size)
        return tf.cond(same, lambda: image, scale)


@config_class
class CenterCrop:
    """See :func:`~.images.center_crop`."""

    name: str
    size: tuple[Size, Size]

    sees_features = True

    def __repr__(self) -> str:
        """As it is written in a recipe."""
        return f"ss.images.center_crop({quoted(self.name)}, {self.size})"

    def settings(self) -> dict[str, object]:
        """What shapes the output, as plain JSON, for the fingerprint."""
        return {"step": "images.center_crop", "name": self.name, "size": list(self.size)}

    def features(self, features: Features) -> Features:
        """The features after this step.

        Raises:
            RecipeError: if there is no decoded image of this name, or it is known to be smaller.
        """
        cropped = _sized(self, self.name, self.size, features)
        image = image_feature(self, self.name, features)
        given = (image.height or self.size[0], image.width or self.size[1])
        if given[0] < self.size[0] or given[1] < self.size[1]:
            raise RecipeError(
                f"prepare: {self!r}: the images are {given[0]}×{given[1]} (height × width), "
                "smaller than the crop. Resize them before it, or crop less."
            )
        return {**features, self.name: cropped}

    def apply(self, record: dict[str, Any], features: Features | None = None) -> dict[str, Any]:
        """Replaces ``uint8[any, any, channels]`` by ``uint8[height, width, channels]``."""
        import tensorflow as tf

        image = record[self.name]
        given, wanted = tf.shape(image)[:2], tf.constant(self.size)
        fits = tf.debugging.Assert(
            tf.reduce_all(given >= wanted), ["the image is smaller than the crop"]
        )
        with tf.control_dependencies([fits]):
            before = (given - wanted) // 2
        cropped = tf.slice(image, [*tf.unstack(before), 0], [*self.size, -1])
        cropped = tf.ensure_shape(cropped, (*self.size, image.shape[2]))
        window = Window(*(tf.cast(x, tf.float32) for x in (before, wanted, given)))
        is_same = tf.reduce_all(given == wanted)
        record = with_image(record, self.name, cropped, is_same=is_same)
        return _follow(record, self.name, window=window, features=features or {})


def _follow(
    record: dict[str, Any], name: str, *, window: Window, features: Features
) -> dict[str, Any]:
    """The record with the boxes of an image cut to what the picture shows now."""
    for boxes, feature in features.items():
        if isinstance(feature, BoundingBoxes) and feature.image == name:
            labels = feature.labels if feature.labels in features else None
            record = record | move_boxes(record, boxes, labels=labels, window=window)
    return record


def move_boxes(
    record: dict[str, Any], name: str, *, labels: str | None, window: Window
) -> dict[str, Any]:
    """Boxes ``float32[num_boxes, 4]`` as shares of a window; those outside it are left out.

    Args:
        record: Of tensors.
        name: The boxes.
        labels: A sequence of one value a box, if there is one.
        window: What has become of the picture.

    Returns:
        The boxes and the labels, by name.
    """
    import tensorflow as tf

    boxes = record[name]
    corners = tf.reshape(boxes, [-1, 2, 2])  # [box, first or last, y or x]
    corners = (corners * window.given - window.start) / window.length
    corners = tf.clip_by_value(corners, 0.0, 1.0)
    kept = tf.reduce_all(corners[:, 1] > corners[:, 0], axis=1)
    found = {name: tf.boolean_mask(tf.reshape(corners, [-1, 4]), kept)}
    if labels is not None:
        values = record[labels]
        alike = tf.debugging.Assert(
            tf.shape(values)[0] == tf.shape(boxes)[0], ["the image has not one label for each box"]
        )
        with tf.control_dependencies([alike]):
            found[labels] = tf.boolean_mask(values, kept)
    return found


def image_feature(step: object, name: str, features: Features) -> Image:
    """The image of this name.

    Raises:
        RecipeError: if there is none.
    """
    return find_media(step, name, features, Image, what="Images")


def decoded_feature(step: object, name: str, features: Features) -> Image:
    """The decoded image of this name.

    Raises:
        RecipeError: if there is none, or it is encoded.
    """
    image = image_feature(step, name, features)
    if image.storage != "raw":
        raise RecipeError(
            f"prepare: {step!r}: {name!r} is still encoded. Put ss.images.decode({quoted(name)}) "
            "before it."
        )
    return image


def _sized(step: object, name: str, size: tuple[int, int], features: Features) -> Image:
    image = decoded_feature(step, name, features)
    return Image(height=size[0], width=size[1], channels=image.channels)


def quoted(value: object) -> str:
    """A value as it is written in a recipe, strings in double quotes."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)
