"""Builds class folders of JPEGs with TensorFlow Datasets, with or without Beam.

Runs in an environment of its own: tensorflow-datasets, tensorflow, apache-beam and
importlib_resources. The example generator checks every image by decoding it at 1/8 of its size
and stores the file's bytes, as snapshard does with ``prepare=[]``.
"""

import sys
import time

STARTED = time.perf_counter()

import json  # noqa: E402
import os  # noqa: E402

import apache_beam as beam  # noqa: E402
import tensorflow as tf  # noqa: E402
import tensorflow_datasets as tfds  # noqa: E402
from apache_beam.options.pipeline_options import PipelineOptions  # noqa: E402
from apache_beam.runners.portability.fn_api_runner import FnApiRunner  # noqa: E402
from tfds_images import BeamImages, Images  # noqa: E402


def main() -> None:
    """Usage: tfds_build.py beam|plain IMAGES OUT [beam option …]."""
    mode, images, out, *options = sys.argv[1:]
    os.environ["IMAGES"] = images
    builder = (BeamImages if mode == "beam" else Images)(data_dir=out)
    # What the engine and TensorFlow import on first use is import time too.
    with beam.Pipeline(FnApiRunner()) as pipeline:
        pipeline | beam.Create([0]) | beam.Reshuffle()
    tf.constant(0)
    imported = time.perf_counter()
    config = tfds.download.DownloadConfig(
        beam_runner="apache_beam.runners.portability.fn_api_runner.FnApiRunner",
        beam_options=PipelineOptions(options),
    )
    builder.download_and_prepare(download_config=config)
    done = time.perf_counter()
    facts = {
        "import_seconds": imported - STARTED,
        "seconds": done - imported,
        "num_examples": builder.info.splits["train"].num_examples,
    }
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
