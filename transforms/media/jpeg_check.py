"""A quick look at whole batches of JPEGs that stay encoded: do they all decode, to their size?

It can only say yes: a batch of which it does not goes through the graph of the steps, which
finds the culprits. Its loop holds nothing but the decoding, which makes it a quarter cheaper
than that graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .image_codecs import decode_small

_PARALLEL_IMAGES = 8


class JpegCheck:
    """Decodes JPEGs at 1/8 of their size; thread-safe, and costly enough to keep."""

    def __init__(self, names: Sequence[str]) -> None:
        """Compiles the graph; ``names`` are the encoded images of a record."""
        import tensorflow as tf

        self._tf, self._names = tf, tuple(names)
        with tf.device("/CPU:0"):
            self._sizes = tf.function(_small_sizes, autograph=False).get_concrete_function(
                tf.TensorSpec([None], tf.string)
            )

    def passes(self, columns: pa.RecordBatch) -> bool:
        """Whether all images of a batch are JPEGs that decode to what their headers state.

        Args:
            columns: Wire columns, the images' side columns among them.
        """
        return all(self._passes(columns, name) for name in self._names)

    def _passes(self, columns: pa.RecordBatch, name: str) -> bool:
        data = columns.column(name)
        if data.null_count or not pc.all(pc.starts_with(data, b"\xff\xd8\xff")).as_py():
            return False
        height, width, orientation = (
            columns.column(f"{name}/{part}").to_numpy()
            for part in ("height", "width", "orientation")
        )
        turned = orientation >= 5
        stated = np.stack([np.where(turned, width, height), np.where(turned, height, width)], 1)
        with self._tf.device("/CPU:0"):
            try:
                found = self._sizes(self._tf.constant(data.to_numpy(zero_copy_only=False)))
            except self._tf.errors.OpError:
                return False
        return bool(np.array_equal(found.numpy(), (stated + 7) // 8))


def _small_sizes(data: Any) -> Any:
    """int32[n, 2]: height and width at 1/8 of JPEGs, string[n]."""
    import tensorflow as tf

    num_images = tf.shape(data)[0]
    images = tf.TensorArray(tf.string, size=num_images, element_shape=[]).unstack(data)
    sizes = tf.TensorArray(tf.int32, size=num_images, element_shape=[2])
    _, sizes = tf.while_loop(
        lambda row, sizes: row < num_images,
        lambda row, sizes: (
            row + 1,
            sizes.write(row, tf.shape(decode_small(images.read(row)))[:2]),
        ),
        (tf.constant(0), sizes),
        parallel_iterations=_PARALLEL_IMAGES,
        maximum_iterations=num_images,
    )
    return sizes.stack()
