"""Builds a table as the documentation of tensorflow-transform says: one job, one shard."""

import sys
import time

STARTED = time.perf_counter()

import json  # noqa: E402
import os  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import apache_beam as beam  # noqa: E402
import table_features  # noqa: E402
import tensorflow as tf  # noqa: E402
import tensorflow_transform.beam as tft_beam  # noqa: E402
from apache_beam.runners.portability.fn_api_runner import FnApiRunner  # noqa: E402
from tensorflow_transform.tf_metadata import schema_utils  # noqa: E402
from tfx_bsl.coders.example_coder import RecordBatchToExamplesEncoder  # noqa: E402
from tfx_bsl.public import tfxio  # noqa: E402


def _one_more(num: Any, record: Any) -> Any:
    del record
    return num + 1


def main() -> None:
    """Usage: tft_tables.py KIND TABLE OUT."""
    kind, table, out = sys.argv[1:4]
    with beam.Pipeline(FnApiRunner()) as pipeline:
        pipeline | beam.Create([0]) | beam.Reshuffle()
    tf.constant(0)
    columns = table_features.COLUMNS[kind]
    spec = {
        name: tf.io.VarLenFeature(dtype) if missing else tf.io.FixedLenFeature([], dtype)
        for name, (dtype, missing) in columns.items()
    }
    source = tfxio.BeamRecordCsvTFXIO(
        physical_format="text",
        column_names=list(columns),
        schema=schema_utils.schema_from_feature_spec(spec),
    )
    Path(out).mkdir(parents=True)
    imported, spent = time.perf_counter(), sum(os.times()[:4])
    with beam.Pipeline() as pipeline, tft_beam.Context(temp_dir=f"{out}/temp"):
        raw = (
            pipeline
            | "ReadText"
            >> beam.io.ReadFromText(table, coder=beam.coders.BytesCoder(), skip_header_lines=1)
            | "DecodeCsv" >> source.BeamSource()
        )
        transformed, transform_fn = (
            raw,
            source.TensorAdapterConfig(),
        ) | tft_beam.AnalyzeAndTransformDataset(
            getattr(table_features, kind), output_record_batches=True
        )
        data, metadata = transformed
        encoder = RecordBatchToExamplesEncoder(metadata.schema)
        (
            data
            | "Encode" >> beam.FlatMapTuple(lambda batch, _: encoder.encode(batch))
            | "Write" >> beam.io.WriteToTFRecord(f"{out}/train", num_shards=1)
        )
        transform_fn | tft_beam.WriteTransformFn(out)
    done, spent = time.perf_counter(), sum(os.times()[:4]) - spent
    files = [str(path) for path in Path(out).glob("train-*")]
    # Inside TensorFlow: counting in Python would take long.
    num_examples = int(tf.data.TFRecordDataset(files).reduce(tf.int64.as_numpy_dtype(0), _one_more))
    facts = {
        "import_seconds": imported - STARTED,
        "seconds": done - imported,
        "processor_seconds": spent,
        "num_examples": num_examples,
    }
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
