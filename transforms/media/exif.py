"""The EXIF orientation of a JPEG in TensorFlow operations, for serving.

A build reads it with ``image_header`` and stores it beside the image; a server has the bytes alone.

Source: CIPA DC-008 (Exif 2.32), 4.6.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

_HEAD_BYTES = 1 << 16
_ENTRY_BYTES = 12
_MAX_ENTRIES = 64


def orientation_of(content: Any) -> Any:
    """The orientation, int64 scalar from 1 to 8, that an encoded image states; 1 where it does not.

    Looks for the first EXIF block in the first 64 KiB, where cameras put it.
    """
    is_jpeg = tf.strings.substr(content, 0, 3) == b"\xff\xd8\xff"
    data = tf.io.decode_raw(tf.strings.substr(content, 0, _HEAD_BYTES), tf.uint8)
    return tf.cond(is_jpeg, lambda: _orientation(data), lambda: tf.constant(1, tf.int64))


def _orientation(data: Any) -> Any:
    mark = tf.constant(list(b"Exif\0\0"), tf.uint8)
    num_places = tf.maximum(tf.shape(data)[0] - mark.shape[0], 0)
    matches = tf.ones([num_places], tf.bool)
    for offset in range(mark.shape[0]):
        matches &= data[offset : offset + num_places] == mark[offset]
    places = tf.where(matches)

    def read() -> Any:
        return _from_tiff(data[tf.cast(places[0, 0], tf.int32) + mark.shape[0] :])

    return tf.cond(tf.size(places) > 0, read, lambda: tf.constant(1, tf.int64))


def _from_tiff(tiff: Any) -> Any:
    tiff = tf.concat([tiff, tf.zeros([_MAX_ENTRIES * _ENTRY_BYTES + 16], tf.uint8)], 0)
    tiff = tf.cast(tiff, tf.int64)
    little = tiff[0] == ord("I")

    def number(place: Any, size: int) -> Any:
        digits = tiff[place : place + size]
        weights = tf.constant([256**power for power in range(size)], tf.int64)
        return tf.reduce_sum(digits * tf.where(little, weights, weights[::-1]))

    length = tf.shape(tiff, tf.int64)[0]
    start = tf.minimum(number(4, 4), length - _MAX_ENTRIES * _ENTRY_BYTES - 2)
    num_entries = tf.minimum(number(start, 2), _MAX_ENTRIES)
    entries = tf.reshape(
        tiff[start + 2 : start + 2 + _MAX_ENTRIES * _ENTRY_BYTES], [_MAX_ENTRIES, _ENTRY_BYTES]
    )
    pair = tf.constant([1, 256], tf.int64)
    pair = tf.where(little, pair, pair[::-1])
    tags = tf.reduce_sum(entries[:, :2] * pair, 1)
    values = tf.reduce_sum(entries[:, 8:10] * pair, 1)
    wanted = (tags == 0x0112) & (tf.range(_MAX_ENTRIES, dtype=tf.int64) < num_entries)
    found = tf.boolean_mask(values, wanted)
    value = tf.cond(tf.size(found) > 0, lambda: found[0], lambda: tf.constant(1, tf.int64))
    return tf.where((value >= 1) & (value <= 8), value, tf.constant(1, tf.int64))
