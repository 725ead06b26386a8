"""Builds class folders of JPEGs with snapshard, storing the files' bytes (``prepare=[]``)."""

import sys
import time

STARTED = time.perf_counter()

import json  # noqa: E402

import apache_beam as beam  # noqa: E402
from apache_beam.runners.portability.fn_api_runner import FnApiRunner  # noqa: E402

import snapshard as ss  # noqa: E402
import snapshard.pipelines.build  # noqa: E402
import snapshard.pipelines.prepare.job  # noqa: E402
import snapshard.pipelines.write.job  # noqa: E402


def main() -> None:
    """Usage: snapshard_build.py IMAGES OUT [WORKERS]."""
    images, out = sys.argv[1:3]
    workers = int(sys.argv[3]) if len(sys.argv) > 3 else 1
    # What the engine imports on first use is import time too. Images that are stored as they are
    # need no TensorFlow.
    with beam.Pipeline(FnApiRunner()) as pipeline:
        pipeline | beam.Create([0]) | beam.Reshuffle()
    recipe = ss.Recipe(name="images", source=ss.ImageFolder(images))
    imported = time.perf_counter()
    snapshot = ss.build(recipe, out, workers=workers)
    done = time.perf_counter()
    splits = snapshot.manifest.splits.values()
    facts = {
        "import_seconds": imported - STARTED,
        "seconds": done - imported,
        "num_examples": sum(split.num_examples for split in splits),
    }
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
