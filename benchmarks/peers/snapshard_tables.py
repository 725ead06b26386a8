"""Builds a table with snapshard and a ``preprocessing_fn``."""

import sys
import time

STARTED = time.perf_counter()

import json  # noqa: E402
import os  # noqa: E402

import apache_beam as beam  # noqa: E402
import table_features  # noqa: E402
import tensorflow as tf  # noqa: E402
from apache_beam.runners.portability.fn_api_runner import FnApiRunner  # noqa: E402

import snapshard as ss  # noqa: E402
import snapshard.pipelines.build  # noqa: E402
import snapshard.pipelines.prepare.job  # noqa: E402
import snapshard.pipelines.write.job  # noqa: E402


def main() -> None:
    """Usage: snapshard_tables.py KIND TABLE OUT [WORKERS]."""
    kind, table, out = sys.argv[1:4]
    workers = int(sys.argv[4]) if len(sys.argv) > 4 else 1
    # What the engine and TensorFlow import on first use is import time too.
    with beam.Pipeline(FnApiRunner()) as pipeline:
        pipeline | beam.Create([0]) | beam.Reshuffle()
    tf.constant(0)
    # The contender's schema has no double.
    wide = {
        name for name in table_features.COLUMNS[kind] if name.endswith(("latitude", "longitude"))
    }
    recipe = ss.Recipe(
        name=kind,
        source=ss.Csv(table, types=dict.fromkeys(sorted(wide), "float32")),
        preprocessing_fn=getattr(table_features, kind),
        splits=ss.Splits(train=1.0),
    )
    imported, spent = time.perf_counter(), sum(os.times()[:4])
    snapshot = ss.build(recipe, out, workers=workers)
    done, spent = time.perf_counter(), sum(os.times()[:4]) - spent
    facts = {
        "import_seconds": imported - STARTED,
        "seconds": done - imported,
        "processor_seconds": spent,
        "num_examples": sum(split.num_examples for split in snapshot.manifest.splits.values()),
    }
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
