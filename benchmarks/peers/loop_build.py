"""The loop that people write by hand: ``TFRecordWriter``, 1,024 images a file.

Each image is checked by decoding it at 1/8 of its size, and its file's bytes are stored, as
snapshard does with ``prepare=[]``. The files are shuffled beforehand.
"""

import sys
import time

STARTED = time.perf_counter()

import json  # noqa: E402
import random  # noqa: E402
from pathlib import Path  # noqa: E402

import tensorflow as tf  # noqa: E402


def main() -> None:
    """Usage: loop_build.py IMAGES OUT."""
    images, out = Path(sys.argv[1]), Path(sys.argv[2])
    tf.io.decode_jpeg(next(images.glob("*/*")).read_bytes(), ratio=8)
    imported = time.perf_counter()
    paths = sorted(images.glob("*/*"))
    labels = {name: index for index, name in enumerate(sorted(p.name for p in images.iterdir()))}
    random.Random(0).shuffle(paths)
    out.mkdir(parents=True)
    for start in range(0, len(paths), 1024):
        with tf.io.TFRecordWriter(str(out / f"train-{start // 1024:05d}.tfrecord")) as writer:
            for path in paths[start : start + 1024]:
                content = path.read_bytes()
                tf.io.decode_jpeg(content, channels=3, ratio=8)
                label = labels[path.parent.name]
                features = {
                    "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[content])),
                    "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
                }
                example = tf.train.Example(features=tf.train.Features(feature=features))
                writer.write(example.SerializeToString())
    done = time.perf_counter()
    facts = {
        "import_seconds": imported - STARTED,
        "seconds": done - imported,
        "num_examples": len(paths),
    }
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
