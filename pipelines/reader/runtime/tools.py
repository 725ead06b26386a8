"""The commands of a snapshot's reader: they measure, show and serve the snapshot.

    python SNAPSHOT/reader benchmark --batch-size 128 --mb-per-s 10,100
    python SNAPSHOT/reader doctor --step-ms 50

In the snapshot's folder, use ``python -m reader``. MB are 1,000,000 bytes, of the shards as stored.
Exit codes: 0 success, 2 the command cannot be executed as given, 4 the snapshot is damaged.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from . import facts
from .benchmark import benchmark
from .console import DAMAGED, MB, Output, RefusedError, reason, visible
from .doctor import doctor
from .kinds import has_pixels
from .serve import serve
from .timing import Input, Snapshot, load_tensorflow, size_of


def profile(arguments: argparse.Namespace, out: Output) -> int:
    """Writes a TensorBoard profile of some batches."""
    tf = load_tensorflow()
    source = Input(arguments)
    iterator = iter(source.dataset())
    next(iterator)
    tf.profiler.experimental.start(arguments.folder)
    for step in range(arguments.batches):
        with tf.profiler.experimental.Trace("next_batch", step_num=step, _r=1):
            next(iterator)
    tf.profiler.experimental.stop()
    found = tf.io.gfile.glob(f"{arguments.folder}/plugins/profile/*/*.xplane.pb")
    if not found:
        raise RefusedError(f"TensorFlow wrote no profile into {arguments.folder}.")
    out.facts |= {"batches": arguments.batches, "files": found}
    out.say(f"{arguments.batches} batches of {source.batch_size} profiled: {max(found)}")
    out.say(
        f"tensorboard --logdir {arguments.folder}  (with the plugin tensorboard-plugin-profile)"
    )
    return 0


def show(arguments: argparse.Namespace, out: Output) -> int:
    """Shows features, splits, classes and the first records."""
    load_tensorflow()
    from .api import dataset

    snapshot = Snapshot(arguments.root)
    split, features = snapshot.split(arguments.split), facts.FEATURES
    out.say(
        f"{facts.NAME} {facts.FINGERPRINT}; label: {facts.LABEL or 'none'}; "
        f"compression: {facts.COMPRESSION}\n"
    )
    rows = []
    for name, feature in features.items():
        shape = feature.get("shape", [])
        if has_pixels(feature):
            shape = [*shape, feature["height"], feature["width"], feature["channels"]]
        stated = [
            key
            for key in ("unit", "rate", "default", "optional", "present", "storage")
            if feature.get(key)
        ]
        notes = [f"{key} {feature[key]}" for key in stated]
        if feature.get("names"):
            notes.insert(0, f"{len(feature['names']):,} classes")
        kind, dtype = feature["kind"], feature.get("dtype", "uint8")
        rows.append((name, kind, dtype, str(shape or ""), ", ".join(notes)))
    out.table("features", ("feature", "kind", "dtype", "shape", ""), rows)
    out.say()
    counts: dict[str, dict[str, int]] = {}
    table = []
    for name, entry in snapshot.splits.items():
        found = counts[name] = {}
        for shard in entry["shards"]:
            for label, count in shard["label_counts"].items():
                found[label] = found.get(label, 0) + count
        top = sorted(found.items(), key=lambda item: -item[1])[:5]
        listed = ", ".join(f"{visible(label)}: {count:,}" for label, count in top)
        megabytes = entry["num_bytes"] / MB
        table.append((name, entry["num_examples"], len(entry["shards"]), megabytes, listed))
    out.table("splits", ("split", "examples", "shards", "MB", "most frequent"), table)
    out.facts |= {"name": facts.NAME, "label": facts.LABEL, "label_counts": counts}
    images = [name for name, feature in features.items() if feature["kind"] == "image"]
    if arguments.sheet and not images:
        raise RefusedError(f"--sheet: {facts.NAME} has no images.")
    pixels = [feature for feature in features.values() if has_pixels(feature)]
    unsized = any(one["height"] is None or one["width"] is None for one in pixels)
    size = (96, 96) if pixels and (arguments.sheet or unsized) else None
    size = tuple(arguments.image_size) if pixels and arguments.image_size else size
    resized: dict[str, Any] = {"image_size": size} if pixels else {}
    number = max(arguments.records, arguments.sheet_images if arguments.sheet else 1)
    batch = next(iter(dataset(split, number, shuffle=False, root=snapshot.root, **resized)))
    flat = dict(_flat(batch))
    out.facts["records"] = []
    for index in range(min(arguments.records, size_of(batch))):
        out.say(f"\n{split} record {index}")
        record = {name: _value(flat[name][index], features.get(name, {})) for name in flat}
        out.facts["records"].append(record)
        for name, text in record.items():
            out.say(f"  {visible(name)}: {text}")
    if arguments.sheet:
        _sheet(flat[images[0]], arguments.sheet)
        out.say(f"\n{size_of(batch)} images of {images[0]!r}: {arguments.sheet}")
    return 0


def _flat(values: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Features by dotted name, from possibly nested dicts."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _value(value: Any, feature: dict[str, Any]) -> str:
    """One value as a line of text."""
    tf = load_tensorflow()
    if feature.get("kind") == "audio" or (feature and has_pixels(feature)):
        mean = float(tf.reduce_mean(tf.cast(value, tf.float32)))
        return f"{value.dtype.name}{value.shape.as_list()}, mean {mean:.3g}"
    found = value.to_list() if hasattr(value, "to_list") else value.numpy()
    found = found.tolist() if hasattr(found, "tolist") else found
    names = feature.get("names")
    if names and isinstance(found, int) and 0 <= found < len(names):
        name = visible(names[found])
        return name if name == str(found) else f"{found} = {name}"
    text = visible(repr(found.decode(errors="replace") if isinstance(found, bytes) else found))
    return text if len(text) <= 200 else f"{text[:200]} …"


def _sheet(images: Any, path: str) -> None:
    """Writes images as one PNG, in a square grid."""
    tf = load_tensorflow()
    count, height, width, channels = images.shape
    columns = int(count**0.5 + 0.999)
    rows = -(-count // columns)
    images = tf.pad(images, [[0, rows * columns - count], [0, 2], [0, 2], [0, 0]])
    grid = tf.reshape(images, [rows, columns, height + 2, width + 2, channels])
    grid = tf.transpose(grid, [0, 2, 1, 3, 4])
    pixels = tf.reshape(grid, [rows * (height + 2), columns * (width + 2), channels])
    try:
        tf.io.write_file(path, tf.io.encode_png(pixels))
    except tf.errors.OpError as error:
        raise RefusedError(f"--sheet {path} cannot be written: {error.message}.") from None


_SPLIT = "or part of it, such as 'train[:1000]'; default: train, or the largest"


def _parser() -> argparse.ArgumentParser:
    """The argument parser of all commands."""
    parser = argparse.ArgumentParser(
        prog=f"python {os.path.relpath(os.path.dirname(os.path.abspath(__file__)))}",
        description=str(__doc__).splitlines()[0],
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(run: Callable[..., int], *, reads: bool = True) -> argparse.ArgumentParser:
        text = str(run.__doc__)
        added = commands.add_parser(run.__name__, help=text, description=text)
        added.set_defaults(run=run)
        added.add_argument(
            "--root",
            help="folder or URL of the snapshot; default: this one",
        )
        added.add_argument("--json", action="store_true", help="print one JSON object")
        if reads:
            added.add_argument("--split", help=_SPLIT)
            added.add_argument("--batch-size", type=int, default=128, metavar="N")
            added.add_argument(
                "--option", action="append", default=[], metavar="NAME=VALUE",
                help="an option of reader.dataset(), for example seed=1",
            )  # fmt: skip
            added.add_argument("--image-size", nargs=2, type=int, metavar=("H", "W"))
        return added

    one = command(benchmark)
    one.add_argument("--seconds", type=float, default=5, help="duration of each measurement")
    one.add_argument(
        "--mb-per-s", type=_rates, metavar="10,100", help="simulate stores with these rates"
    )
    one = command(doctor)
    one.add_argument("--step-ms", type=float, default=50, help="duration of a training step")
    one.add_argument("--seconds", type=float, default=2, help="duration of each measurement")
    one.add_argument("--mb-per-s", type=_rate, metavar="N", help="simulate storage with this rate")
    one.add_argument("--augment", metavar="FILE.py:FUNCTION", help="passed to reader.dataset()")
    one = command(profile)
    one.add_argument("folder", metavar="DIR", help="TensorBoard's log folder")
    one.add_argument("--batches", type=int, default=100, metavar="N")
    one = command(show, reads=False)
    one.add_argument("--split", help=_SPLIT)
    one.add_argument("--records", type=int, default=3, metavar="N", help="how many to show")
    one.add_argument("--sheet", metavar="FILE.png", help="write the first images to one file")
    one.add_argument("--sheet-images", type=int, default=64, metavar="N", help="on the sheet")
    one.add_argument("--image-size", nargs=2, type=int, metavar=("H", "W"), help="on the sheet")
    one = command(serve, reads=False)
    one.add_argument(
        "--workers", type=int, default=1, metavar="N", help="default: 1; 0: only the dispatcher"
    )
    one.add_argument(
        "--port",
        type=int,
        default=0,
        help="of the dispatcher, or with --join of the first worker; workers use the next ports; "
        "0: any free ports",
    )
    one.add_argument(
        "--host",
        default="localhost",
        help="this machine's name, as other machines see it; the service then listens on all "
        "interfaces, without authentication; default: localhost, on loopback only",
    )
    one.add_argument("--join", metavar="grpc://…", help="start only workers, for that dispatcher")
    return parser


def _rates(text: str) -> list[float]:
    try:
        rates = [float(part) for part in text.split(",")]
    except ValueError:
        rates = [0.0]
    if not all(0 < rate < float("inf") for rate in rates):
        raise argparse.ArgumentTypeError(f"expected numbers above 0 such as 10,100, found {text!r}")
    return rates


def _rate(text: str) -> float:
    (rate,) = _rates(text) if "," not in text else [0.0]
    if not rate:
        raise argparse.ArgumentTypeError(f"expected a number above 0, found {text!r}")
    return rate


def _say_error(message: str) -> None:
    print("\n".join(map(visible, f"error: {message}".split("\n"))), file=sys.stderr)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit code."""
    parsed = _parser().parse_args(arguments)
    out = Output(parsed.json)
    try:
        code: int = parsed.run(parsed, out)
        if out.facts:
            out.end()
    except RefusedError as error:
        _say_error(str(error))
        return error.code
    except BrokenPipeError:  # the reader of the output has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (ValueError, OSError) as error:
        hint = " On the command line, use --image-size H W." if "image_size=(" in str(error) else ""
        _say_error(f"{error}{hint}")
        return 2
    except Exception as error:
        if "tensorflow" not in type(error).__module__:
            raise
        _say_error(f"the snapshot cannot be read: {reason(error)}")
        return DAMAGED if type(error).__name__ == "DataLossError" else 2
    except KeyboardInterrupt:
        _say_error("interrupted.")
        return 130
    return code
