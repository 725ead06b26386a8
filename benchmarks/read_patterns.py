"""The patterns of input pipelines that tutorials teach, for any kind of snapshot.

Each gives shuffled batches of parsed tensors, endlessly; ``unparsed`` alone does neither.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

AUTO = tf.data.AUTOTUNE
BUFFER = 1000
"""Records in the buffers of ``shuffle``, as tutorials have it."""


@dataclasses.dataclass(frozen=True)
class Records:
    """A snapshot as the patterns see it."""

    shards: list[str]
    features: dict[str, dict[str, Any]]
    compression: str
    batch_size: int

    @property
    def columns(self) -> dict[str, Any]:
        """The description that ``tf.io.parse_example`` takes."""
        dtypes = {"float32": tf.float32, "int64": tf.int64, "bool": tf.int64}
        columns = {}
        for name, feature in self.features.items():
            packed = feature.get("packed", False)  # a float64, which stays its bytes here
            dtype = tf.string if packed else dtypes.get(feature.get("dtype", ""), tf.string)
            default = feature.get("default")
            columns[name] = tf.io.FixedLenFeature([], dtype, "" if packed else default)
        return columns

    @property
    def image(self) -> dict[str, Any] | None:
        """What is known of the images, if there are any."""
        return self.features.get("image")

    def open(self, names: Any) -> Any:
        """The serialized examples of shards."""
        return tf.data.TFRecordDataset(names, "GZIP" if self.compression == "gzip" else "")

    def parse_one(self, content: Any) -> dict[str, Any]:
        """One example, parsed by itself."""
        found: dict[str, Any] = tf.io.parse_single_example(content, self.columns)
        if self.image:
            found["image"] = self.pixels(found["image"])
        return found

    def parse_many(self, content: Any) -> dict[str, Any]:
        """A batch of examples."""
        found: dict[str, Any] = tf.io.parse_example(content, self.columns)
        if self.image and self.image["storage"] == "raw":
            flat = tf.io.decode_raw(found["image"], tf.uint8)
            found["image"] = tf.reshape(flat, [-1, *self.shape])
        elif self.image:
            found["image"] = tf.map_fn(
                self.pixels, found["image"], fn_output_signature=tf.TensorSpec(self.shape, tf.uint8)
            )
        return found

    @property
    def shape(self) -> list[int]:
        """Of an image."""
        assert self.image
        return [self.image["height"], self.image["width"], 3]

    def pixels(self, content: Any) -> Any:
        """One image as ``uint8[height, width, 3]``."""
        assert self.image
        if self.image["storage"] == "raw":
            return tf.reshape(tf.io.decode_raw(content, tf.uint8), self.shape)
        return tf.ensure_shape(tf.io.decode_jpeg(content, channels=3), self.shape)

    def names(self) -> Any:
        """The shards in another order every epoch."""
        return tf.data.Dataset.from_tensor_slices(self.shards).shuffle(len(self.shards))

    def interleaved(self) -> Any:
        """Records of all shards by turns."""
        return self.names().interleave(self.open, num_parallel_calls=AUTO, deterministic=False)


def one_by_one(records: Records) -> Any:
    """Shard after shard, each example parsed by itself: ``map`` as it comes."""
    found = records.open(records.names()).shuffle(BUFFER).map(records.parse_one)
    return found.batch(records.batch_size).repeat()


def prefetched(records: Records) -> Any:
    """``one_by_one`` with ``prefetch``."""
    return one_by_one(records).prefetch(AUTO)


def parallel(records: Records) -> Any:
    """``prefetched`` with a parallel ``map``."""
    found = records.open(records.names()).shuffle(BUFFER)
    found = found.map(records.parse_one, num_parallel_calls=AUTO)
    return found.batch(records.batch_size).repeat().prefetch(AUTO)


def interleaved(records: Records) -> Any:
    """``parallel`` with the shards interleaved: the whole advice, examples one by one."""
    found = records.interleaved().shuffle(BUFFER)
    found = found.map(records.parse_one, num_parallel_calls=AUTO)
    return found.batch(records.batch_size).repeat().prefetch(AUTO)


def cached(records: Records) -> Any:
    """``interleaved`` with the parsed examples kept in memory, read to their end once already."""
    found = records.interleaved().map(records.parse_one, num_parallel_calls=AUTO).cache()
    for _ in found.batch(records.batch_size):
        pass
    return found.shuffle(BUFFER).batch(records.batch_size).repeat().prefetch(AUTO)


def batched(records: Records) -> Any:
    """Interleaved, batched, and then parsed with ``tf.io.parse_example``."""
    found = records.interleaved().shuffle(BUFFER).batch(records.batch_size).repeat()
    return found.map(records.parse_many, num_parallel_calls=AUTO).prefetch(AUTO)


def batched_once(records: Records, *, shuffles: bool) -> Any:
    """One epoch as in ``batched``, or in stored order."""
    found = records.interleaved().shuffle(BUFFER) if shuffles else records.open(records.shards)
    found = found.batch(records.batch_size)
    return found.map(records.parse_many, num_parallel_calls=AUTO).prefetch(AUTO)


def unparsed(records: Records) -> Any:
    """``TFRecordDataset(shards).batch()``: nothing parsed, nothing shuffled."""
    return records.open(records.shards).batch(records.batch_size).repeat()


PATTERNS: dict[str, Callable[[Records], Any]] = {
    "one by one": one_by_one,
    "… and prefetch": prefetched,
    "… and a parallel map": parallel,
    "… and interleave": interleaved,
    "batched, then parsed": batched,
    "parsed, kept in memory: second epoch": cached,
    "`TFRecordDataset(…).batch()`, no parsing": unparsed,
}
ALIKE = {
    "one by one": ["… and prefetch", "… and a parallel map"],
    "batched, then parsed": ["… and interleave"],
    "parsed, kept in memory: second epoch": [],
}
"""Patterns -> those that differ from it in how they parse, not in what they shuffle."""
BASE = "… and interleave"
UNPARSED = "`TFRecordDataset(…).batch()`, no parsing"


def files(folder: str, *, size: int | None, batch_size: int) -> Any:
    """Image files of class folders: listed, shuffled, read and decoded in every epoch."""

    def decode(path: Any) -> tuple[Any, Any]:
        image = tf.io.decode_jpeg(tf.io.read_file(path), channels=3)
        if size is not None:
            image = tf.image.resize(image, [size, size])
        return image, tf.strings.split(path, "/")[-2]

    listed = tf.data.Dataset.list_files(f"{folder}/*/*", shuffle=True)
    found = listed.map(decode, num_parallel_calls=AUTO).batch(batch_size)
    return found.repeat().prefetch(AUTO)


def decoding(contents: list[bytes], *, batch_size: int, dct: str) -> dict[str, Any]:
    """JPEGs in memory decoded and batched, in every form that may be the fastest."""
    decode = functools.partial(tf.io.decode_jpeg, channels=3, dct_method=dct)

    def batch(part: Any, iterations: int) -> Any:
        return tf.map_fn(decode, part, fn_output_signature=tf.uint8, parallel_iterations=iterations)

    held = tf.data.Dataset.from_tensor_slices(contents).repeat()
    forms = {
        "one by one": held.map(decode, num_parallel_calls=AUTO, deterministic=False).batch(
            batch_size
        )
    }
    for iterations in (1, 10):
        forms[f"map_fn, {iterations} at a time"] = held.batch(batch_size).map(
            functools.partial(batch, iterations=iterations),
            num_parallel_calls=AUTO,
            deterministic=False,
        )
    return {name: form.prefetch(AUTO) for name, form in forms.items()}


def decoding_by_function(contents: list[bytes], *, batch_size: int, dct: str) -> Any:
    """JPEGs of one size in memory, decoded in batches by the operation that the reader takes."""
    shape = tf.io.extract_jpeg_shape(contents[0]).numpy().tolist()

    @tf.function(input_signature=[tf.TensorSpec([], tf.string)])
    def decode(content: Any) -> Any:
        return tf.ensure_shape(tf.io.decode_jpeg(content, 3, dct_method=dct), shape)

    def batch(part: Any) -> Any:
        return tf.raw_ops.MapDefun(
            arguments=[part],
            captured_inputs=[],
            output_types=[tf.uint8],
            output_shapes=[shape],
            f=decode.get_concrete_function(),
        )

    held = tf.data.Dataset.from_tensor_slices(contents).repeat().batch(batch_size)
    return held.map(batch, num_parallel_calls=AUTO, deterministic=False).prefetch(AUTO)
