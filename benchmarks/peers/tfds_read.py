"""Reads snapshots' shards with ``tfds.as_dataset``, as its documentation says, when told to.

Runs in an environment of its own: tensorflow-datasets and tensorflow. Each line of the standard
input is a JSON object: a snapshot to read in windows of time, or to read twice for its mixing; each
line of the standard output is the answer to one.

- The records are the snapshot's own, which ``tfds.folder_dataset.write_metadata`` describes.
- Files are shuffled and interleaved, 16 at a time; ``ReadConfig`` leaves prefetching to the end of
  the pipeline. Then 1,000 records are shuffled, batched and prefetched.
"""

import contextlib
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import tensorflow as tf
import tensorflow_datasets as tfds
from read_window import mixing, rate, some_epochs


def feature(declared: dict[str, Any]) -> Any:
    """A feature of a snapshot in the terms of TensorFlow Datasets."""
    if declared["kind"] == "image":
        shape = (declared["height"], declared["width"], declared["channels"])
        if declared["storage"] == "raw":
            return tfds.features.Tensor(shape=shape, dtype=tf.uint8, encoding="bytes")
        return tfds.features.Image(shape=shape, encoding_format="jpeg")
    if declared["kind"] == "class_label":
        return tfds.features.ClassLabel(names=declared["names"])
    if declared["dtype"] == "string":
        return tfds.features.Text()
    return tfds.features.Scalar(dtype=tf.as_dtype(declared["dtype"]))


def describe(shards: list[str], features: dict[str, Any], folder: Path) -> Any:
    """A builder of the records in the shards, which are linked to under the names it wants."""
    for number, shard in enumerate(shards):
        name = f"bench-train.tfrecord-{number:05}-of-{len(shards):05}"
        os.symlink(shard, folder / name)
    tfds.folder_dataset.write_metadata(
        data_dir=folder,
        features=tfds.features.FeaturesDict(
            {name: feature(declared) for name, declared in features.items()}
        ),
        check_data=False,
    )
    return tfds.builder_from_directory(folder)


def read(builder: Any, batch_size: int, **options: Any) -> Any:
    """An endless dataset of batches."""
    config = tfds.ReadConfig(skip_prefetch=True, interleave_cycle_length=16)
    found = builder.as_dataset(split="train", shuffle_files=True, read_config=config, **options)
    return found.shuffle(1000).batch(batch_size).repeat().prefetch(tf.data.AUTOTUNE)


def answer(wish: dict[str, Any], builders: dict[str, Any], folder: Path) -> list[float]:
    """The rate, or the mixing, of one snapshot."""
    shards, batch_size = wish["shards"], wish["batch_size"]
    key = "|".join(shards)
    if key not in builders:
        place = folder / str(len(builders))
        place.mkdir()
        builders[key] = describe(shards, wish["features"], place)
    num_examples = builders[key].info.splits["train"].num_examples
    if "ends" not in wish:
        window = {"warm": wish["warm"], "seconds": wish["seconds"]}
        dataset = read(builders[key], batch_size)
        return list(rate(dataset, num_examples=num_examples, batch_size=batch_size, **window))
    feature = wish["feature"]
    only = tfds.decode.PartialDecoding({feature: True})
    dataset = read(builders[key], batch_size, decoders=only)
    return list(mixing(some_epochs(dataset, feature, num_examples=num_examples), wish["ends"]))


def main() -> None:
    """Answers until the standard input ends."""
    builders: dict[str, Any] = {}
    # TensorFlow Datasets prints, too.
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(sys.stderr):
        for line in sys.stdin:
            found = answer(json.loads(line), builders, Path(folder))
            print(json.dumps(found), file=sys.__stdout__, flush=True)


if __name__ == "__main__":
    main()
