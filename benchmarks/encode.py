"""Speed of the columnar encoder beside tfx_bsl's, on the same data, in one run.

Each repetition times both encoders one after the other, in alternating order, on the same record
batch, in processor time; a ratio is that of one repetition. tfx_bsl takes list columns only, so
they are wrapped beforehand, outside the timing. It gives Python bytes; ours gives an Arrow array,
which the second line of each case turns into Python bytes too.

Run: python benchmarks/encode.py [--repeats 15] [--rows 4096 65536]
"""

import argparse
import functools
import statistics
import time
from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa
from rich.console import Console
from rich.table import Table
from tfx_bsl.coders.example_coder import RecordBatchToExamplesEncoder

from snapshard.transforms.examples.encode import encode_examples

Encode = Callable[[], object]


def cases(num_rows: list[int], rng: np.random.Generator) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Names and record batches in wire form."""
    for rows in num_rows:
        yield f"20 numeric × {rows:,}", numeric(rows, rng)
    rows = min(num_rows)
    images = [rng.bytes(int(size)) for size in rng.integers(10_000, 14_000, rows)]
    labels = pa.array(rng.integers(0, 10, rows))
    yield (
        f"12 kB image + label × {rows:,}",
        pa.record_batch({"image": pa.array(images, pa.large_binary()), "label": labels}),
    )
    words = [f"value-{number}".encode() for number in rng.integers(0, 1000, rows)]
    texts = {f"text_{number:02d}": pa.array(words, pa.large_binary()) for number in range(20)}
    yield f"20 short texts × {rows:,}", pa.record_batch(texts)
    vectors = pa.array(rng.normal(size=rows * 128).astype(np.float32))
    embedding = pa.FixedSizeListArray.from_arrays(vectors, 128)
    yield (
        f"128 floats + label × {rows:,}",
        pa.record_batch({"embedding": embedding, "label": labels}),
    )
    bounds = np.concatenate([[0], np.cumsum(rng.integers(50, 300, rows))])
    tokens = pa.LargeListArray.from_arrays(bounds, rng.integers(0, 30_000, bounds[-1]))
    yield f"175 tokens × {rows:,}", pa.record_batch({"tokens": tokens})


def numeric(num_rows: int, rng: np.random.Generator) -> pa.RecordBatch:
    """Ten float32 and ten int64 columns; the integers have one to six digits."""
    floats = {
        f"feature_{number:02d}": pa.array(rng.normal(size=num_rows).astype(np.float32))
        for number in range(10)
    }
    integers = {
        f"count_{number:02d}": pa.array(rng.integers(0, 10 ** (1 + number % 6), num_rows))
        for number in range(10)
    }
    return pa.record_batch(floats | integers)


def as_lists(batch: pa.RecordBatch, *, large: bool) -> pa.RecordBatch:
    """The same features as tfx_bsl takes them."""
    list_type = pa.large_list if large else pa.list_
    arrays = []
    for column in batch.columns:
        kind = column.type
        if hasattr(kind, "value_type"):
            arrays.append(column.cast(list_type(kind.value_type)))
        else:
            offsets = pa.array(np.arange(len(column) + 1), pa.int64() if large else pa.int32())
            make = pa.LargeListArray if large else pa.ListArray
            arrays.append(make.from_arrays(offsets, column))
    return pa.RecordBatch.from_arrays(arrays, names=batch.schema.names)


def seconds(encode: Encode) -> float:
    """Processor time of one call: both encoders use one thread, and other load counts little."""
    start = time.process_time()
    encode()
    return time.process_time() - start


def faster(first: Encode, second: Encode) -> Encode:
    """The faster of two, each tried five times."""
    return min((first, second), key=lambda encode: min(seconds(encode) for _ in range(5)))


def paired(theirs: Encode, ours: Encode, repeats: int) -> list[tuple[float, float]]:
    """Seconds of both, repetition by repetition; which goes first alternates."""
    seconds(ours)
    found = []
    for number in range(repeats):
        if number % 2:
            our_time, their_time = seconds(ours), seconds(theirs)
        else:
            their_time, our_time = seconds(theirs), seconds(ours)
        found.append((their_time, our_time))
    return found


def as_python_bytes(batch: pa.RecordBatch) -> object:
    """Our encoder's examples in the form that tfx_bsl gives."""
    return encode_examples(batch).to_pylist()


def main() -> None:
    """Runs all cases and prints a table: medians, and the spread of the ratio."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=15, help="timings of each case")
    parser.add_argument(
        "--rows",
        type=int,
        nargs="+",
        default=[4096, 65_536],
        help="rows a batch; the cases other than numeric take the smallest",
    )
    arguments = parser.parse_args()
    table = Table("case", "tfx_bsl rows/s", "snapshard rows/s", "ratio", "lowest", "highest")
    for column in table.columns[1:]:
        column.justify = "right"
    encoder = RecordBatchToExamplesEncoder()
    for name, batch in cases(arguments.rows, np.random.default_rng(0)):
        theirs = faster(
            functools.partial(encoder.encode, as_lists(batch, large=False)),
            functools.partial(encoder.encode, as_lists(batch, large=True)),
        )
        for label, function in ((name, encode_examples), ("  … as bytes", as_python_bytes)):
            times = paired(theirs, functools.partial(function, batch), arguments.repeats)
            rates = [
                batch.num_rows / statistics.median(column) for column in zip(*times, strict=True)
            ]
            ratios = sorted(their_time / our_time for their_time, our_time in times)
            table.add_row(
                label,
                *(f"{rate:,.0f}" for rate in rates),
                *(f"{r:.2f}" for r in (statistics.median(ratios), ratios[0], ratios[-1])),
            )
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
