"""How fast the snapshot's reader is, beside the patterns that tutorials teach.

Snapshots of four kinds, each plain and with GZIP: raw images of 64×64; the photographs themselves,
JPEGs of 100×100; rows of 22 features; lines of text with a label. All contenders of a table give
the same records, shuffled, but for stored order, no parsing, and decoding alone. Rounds are
interleaved, and ratios are taken within a round. What counts is the processor time of an example,
of all threads together: it depends little on what else the machine does. The files lie in the page
cache: this measures the pipelines, not the disk.

Each is read in a window of time, after a warm-up; so starting an epoch counts by its share, and
starting the pipeline does not.

    python benchmarks/read.py --images DIR --tfds-python ENV/bin/python

DIR holds class folders of JPEGs, for example the full sign_digits; photographs of another size than
most have are left out (three of sign_digits would take as long to decode as all others together).
The tables are made. For `tfds.as_dataset` name the Python of an environment with
tensorflow-datasets (build.py says how to make one).
"""

import argparse
import collections
import dataclasses
import functools
import itertools
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf
from build import spread
from read_against import load_reader
from read_patterns import (
    ALIKE,
    BASE,
    PATTERNS,
    UNPARSED,
    Records,
    decoding,
    decoding_by_function,
    files,
)
from read_window import mixing, rate, some_epochs

HERE = Path(__file__).resolve().parent
KINDS = {
    "raw": "images of 64×64, stored as pixels",
    "jpeg": "photographs of 100×100, stored as JPEG",
    "table": "rows of 22 features",
    "text": "lines of text with a label",
    "raw gzip": "images of 64×64, stored as pixels, GZIP",
    "jpeg gzip": "photographs of 100×100, stored as JPEG, GZIP",
    "table gzip": "rows of 22 features, GZIP",
    "text gzip": "lines of text with a label, GZIP",
}
READERS: dict[str, dict[str, Any]] = {
    "**`reader.dataset`, shuffled**": {},
    "`reader.dataset`, shuffled with a seed": {"seed": 1},
    '`reader.dataset`, `cache="memory"`': {"cache": "memory"},
    '`reader.dataset`, `cache="decoded"`': {"cache": "decoded"},
    "`reader.dataset`, stored order": {"shuffle": False},
}
READER = next(iter(READERS))
TFDS = "`tfds.as_dataset`, `shuffle(1000)`"
FILES = "the files themselves, read and decoded"
DECODING = "decoding alone, from memory, as exactly"
BY_FUNCTION = "decoding alone, from memory, by the reader's own operation"
INEXACT = "decoding alone, the inexact default"
Measure = Callable[[], tuple[float, float]]


@dataclasses.dataclass(frozen=True)
class Window:
    """How long each contender is read, in seconds, and in what batches."""

    warm: float
    seconds: float
    batch_size: int


def multiply(images: Path, target: Path, *, copies: int) -> None:
    """Copies every photograph of the commonest size ``copies`` times, each under its own name."""
    paths = sorted(images.glob("*/*"))
    sizes = [tuple(tf.io.extract_jpeg_shape(path.read_bytes()).numpy()) for path in paths]
    common, _ = collections.Counter(sizes).most_common(1)[0]
    for path, size in zip(paths, sizes, strict=True):
        folder = target / path.parent.name
        folder.mkdir(parents=True, exist_ok=True)
        for copy in range(copies if size == common else 0):
            shutil.copyfile(path, folder / f"{path.stem}-{copy}{path.suffix.lower()}")


def build(kinds: list[str], images: Path, scratch: Path, *, num_rows: int) -> dict[str, Path]:
    """Builds a snapshot of each kind; gives their folders."""
    script = str(HERE / "peers" / "read_snapshots.py")
    command = [sys.executable, script, str(images), str(scratch / "out"), str(num_rows), *kinds]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"the build failed:\n{done.stderr[-4000:]}")
    return {kind: Path(path) for kind, path in json.loads(done.stdout.splitlines()[-1]).items()}


def compression_of(snapshot: Path) -> str:
    """How the shards are compressed: "gzip" or "none"."""
    return "gzip" if any(snapshot.glob("train-*.tfrecord.gz")) else "none"


class Tfds:
    """The process that reads with TensorFlow Datasets, in an environment of its own."""

    def __init__(self, python: str) -> None:
        self.said = tempfile.TemporaryFile("w+")  # noqa: SIM115 - close() closes it
        self.process = subprocess.Popen(
            [python, str(HERE / "peers" / "tfds_read.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.said,
            text=True,
            env={**os.environ, "PYTHONPATH": str(HERE)},
        )

    def ask(self, records: Records, **wish: Any) -> tuple[float, float]:
        """The answer of the process about a snapshot."""
        assert self.process.stdin
        assert self.process.stdout
        facts = {
            "shards": records.shards,
            "features": records.features,
            "batch_size": records.batch_size,
        }
        print(json.dumps(facts | wish), file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        if not line:
            self.said.seek(0)
            sys.exit(f"{self.process.args} failed:\n{self.said.read()[-4000:]}")
        first, second = json.loads(line)
        return first, second

    def close(self) -> None:
        """Ends the process."""
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait()
        self.said.close()


def described(snapshot: Path, batch_size: int) -> Records:
    """What the patterns have to know of a snapshot."""
    shards = sorted(map(str, snapshot.glob("train-*.tfrecord*")))
    features = load_reader(snapshot).FEATURES
    return Records(shards, features, compression_of(snapshot), batch_size)


def fastest(forms: dict[str, Any], measure: Callable[[Any], tuple[float, float]]) -> Any:
    """The dataset that reads fastest, of two tries each."""
    rates = {name: max(measure(form)[0] for _ in range(2)) for name, form in forms.items()}
    best = max(rates, key=rates.__getitem__)
    told = ", ".join(f"{name} {value:,.0f}" for name, value in rates.items())
    print(f"decoding alone, examples/s: {told}", file=sys.stderr)
    return forms[best]


def contenders(
    kind: str, snapshot: Path, images: Path, tfds: Tfds | None, window: Window
) -> dict[str, Measure]:
    """Name -> what measures it once."""
    reader, records = load_reader(snapshot), described(snapshot, window.batch_size)
    facts = {
        "num_examples": reader.NUM_EXAMPLES["train"],
        "batch_size": window.batch_size,
        "warm": window.warm,
        "seconds": window.seconds,
    }
    measure = functools.partial(rate, **facts)
    datasets: dict[str, Any] = {}
    if records.image:
        size = 64 if kind.startswith("raw") else None
        datasets[FILES] = files(str(images), size=size, batch_size=window.batch_size)
    for name, pattern in PATTERNS.items():
        datasets[name] = pattern(records)
    for name, options in READERS.items():
        datasets[name] = reader.dataset("train", window.batch_size, epochs=None, **options)
    for _ in reader.dataset("train", window.batch_size):
        pass  # so that all lies in the page cache
    if kind.startswith("jpeg"):
        # The same photographs in an order like the snapshot's: neighbours in the folders are alike.
        paths = random.Random(0).sample(sorted(images.glob("*/*")), reader.NUM_EXAMPLES["train"])
        contents = [path.read_bytes() for path in paths]
        for name, dct in ((DECODING, "INTEGER_ACCURATE"), (INEXACT, "")):
            forms = decoding(contents, batch_size=window.batch_size, dct=dct)
            datasets[name] = fastest(forms, measure)
        datasets[BY_FUNCTION] = decoding_by_function(
            contents, batch_size=window.batch_size, dct="INTEGER_ACCURATE"
        )
    found: dict[str, Measure] = {
        name: functools.partial(measure, dataset) for name, dataset in datasets.items()
    }
    if tfds and records.compression == "none":
        wish = {"warm": window.warm, "seconds": window.seconds}
        found[TFDS] = functools.partial(tfds.ask, records, **wish)
    return found


def numbered(snapshot: Path, folder: Path, *, feature: str) -> list[int]:
    """Copies a snapshot with each record's place in it; gives the places behind the shards.

    So that public means tell, of any contender, which records are in a batch. The place replaces
    the label, or the first pixel of raw images, whose labels have to stay short.
    """
    # Without the index, which tells where the records lie that are replaced here.
    shutil.copytree(snapshot, folder, ignore=shutil.ignore_patterns("*.idx"))
    kind = {"none": "", "gzip": "GZIP"}[compression_of(snapshot)]
    places = itertools.count()
    ends = []
    for shard in sorted(folder.glob("train-*.tfrecord*")):
        contents = list(tf.data.TFRecordDataset(str(shard), kind).as_numpy_iterator())
        with tf.io.TFRecordWriter(str(shard), kind) as writer:
            for content, place in zip(contents, places, strict=False):
                example = tf.train.Example.FromString(content)
                values = example.features.feature[feature]
                if feature == "label":
                    values.int64_list.value[:] = [place]
                else:
                    pixels = place.to_bytes(3, "big") + values.bytes_list.value[0][3:]
                    values.bytes_list.value[:] = [pixels]
                writer.write(example.SerializeToString(deterministic=True))
        ends.append(ends[-1] + len(contents) if ends else len(contents))
    # The reader knows the sizes of its shards, and the checksums of their first records.
    manifest = json.loads((folder / "manifest.json").read_text())
    for entry in manifest["splits"]["train"]["shards"]:
        entry["num_bytes"] = (folder / entry["file"]).stat().st_size
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with (folder / "reader/facts.py").open("a") as facts:
        facts.write("SHARD_CHECKSUMS = {}\n")
    return ends


def mixings(
    snapshot: Path, folder: Path, tfds: Tfds | None, *, batch_size: int
) -> dict[str, tuple[float, float]]:
    """Name -> shards in a batch, and how often its records are together again."""
    raw = described(snapshot, batch_size).features.get("image", {}).get("storage") == "raw"
    feature = "image" if raw else "label"
    ends = numbered(snapshot, folder, feature=feature)
    reader, records = load_reader(folder), described(folder, batch_size)
    only = dataclasses.replace(records, features={feature: records.features[feature]})
    # Patterns that differ in parsing alone mix alike.
    datasets = {name: PATTERNS[name](only) for name in ALIKE}
    for name, options in READERS.items():
        datasets[name] = reader.dataset(
            "train", batch_size, epochs=None, columns=[feature], **options
        )
    found = {
        name: mixing(some_epochs(dataset, feature, num_examples=ends[-1]), ends)
        for name, dataset in datasets.items()
    }
    if tfds and records.compression == "none":
        found[TFDS] = tfds.ask(records, ends=ends, feature=feature)
    return found | {name: found[like] for like, names in ALIKE.items() for name in names}


def table(
    measured: dict[str, list[tuple[float, float]]], mixed: dict[str, tuple[float, float]]
) -> str:
    """What an example costs each contender, and how it mixes, in Markdown, the cheapest first."""
    bases = {"one by one": BASE, "unparsed": UNPARSED}
    if DECODING in measured:
        bases["decoding alone"] = DECODING
    head = ["", "µs of processor, median (min to max)", *(f"× {base}" for base in bases)]
    head += ["examples/s", "shards in a batch", "together again, × chance"]
    rows = [head, ["---"] * len(head)]
    middle = {
        name: statistics.median(cost for _, cost in rounds) for name, rounds in measured.items()
    }
    for name in sorted(measured, key=middle.__getitem__):
        costs = [cost for _, cost in measured[name]]
        row = [name, f"{middle[name]:.1f} ({min(costs):.1f} to {max(costs):.1f})"]
        for base in bases.values():
            pairs = zip(measured[name], measured[base], strict=True)
            row.append(
                "1" if name == base else spread([own / other for (_, own), (_, other) in pairs])
            )
        row.append(f"{statistics.median(rate for rate, _ in measured[name]):,.0f}")
        shards, together = mixed.get(name, (None, None))
        row.append("–" if shards is None else f"{shards:.1f}")
        row.append("–" if together is None else f"{together:.1f}")
        rows.append(row)
    return "\n".join(f"| {' | '.join(row)} |".replace("|  |", "| |") for row in rows)


def main() -> None:
    """Times all contenders of each kind and prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    data = os.environ.get("SNAPSHARD_DATA")
    default = Path(data) / "sign_digits" if data else None
    parser.add_argument("--images", type=Path, default=default, required=default is None)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--copies", type=int, default=10, help="of each image")
    parser.add_argument("--rows", type=int, default=100_000, help="of the table and the text")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=0.4, help="of each window")
    parser.add_argument("--warm", type=float, default=0.2, help="seconds before each window")
    parser.add_argument("--tfds-python", help="Python of an environment with TFDS")
    parser.add_argument("--smoke", action="store_true", help="little of all, to see that it runs")
    arguments = parser.parse_args()
    if arguments.smoke:
        arguments.copies, arguments.rows, arguments.rounds = 1, 1000, 1
        arguments.seconds = arguments.warm = 0.02
    window = Window(arguments.warm, arguments.seconds, arguments.batch_size)
    tfds = Tfds(arguments.tfds_python) if arguments.tfds_python else None
    with tempfile.TemporaryDirectory(prefix="bench-", dir=".") as folder:
        scratch = Path(folder).resolve()
        images = scratch / "images"
        multiply(arguments.images, images, copies=arguments.copies)
        snapshots = build(arguments.kinds, images, scratch, num_rows=arguments.rows)
        print(
            f"{arguments.rounds} rounds, windows of {arguments.seconds} s, batches of "
            f"{arguments.batch_size}, 16 shards, {os.cpu_count()} processors"
        )
        for kind, snapshot in snapshots.items():
            measures = contenders(kind, snapshot, images, tfds, window)
            measured: dict[str, list[tuple[float, float]]] = {}
            for number in range(arguments.rounds):
                turn = number * len(measures) // arguments.rounds
                names = [*measures][turn:] + [*measures][:turn]
                for name in names:
                    measured.setdefault(name, []).append(measures[name]())
            copy = scratch / "numbered"
            mixed = mixings(snapshot, copy, tfds, batch_size=window.batch_size)
            shutil.rmtree(copy)
            num = load_reader(snapshot).NUM_EXAMPLES["train"]
            size = sum(path.stat().st_size for path in snapshot.glob("train-*"))
            print(f"\n### {num:,} {KINDS[kind]}: {size / 1e6:.0f} MB\n")
            print(table(measured, mixed), flush=True)
    if tfds:
        tfds.close()


if __name__ == "__main__":
    main()
