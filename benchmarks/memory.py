"""The peak memory of a build: it must not grow with the data.

Makes folders of images, builds each from nothing, and samples the resident memory of the whole
process tree, mapped files included; once with pages that processes share counted for each of them
(RSS), once divided among them (PSS). Sizes are of photographs of 100 kB; counts are of images of
1 kB. The files are hard links to 64 contents: they need no space. ``--tensorflow`` decodes and
resizes the photographs, and runs a ``preprocessing_fn`` with a full pass over the labels.

    python benchmarks/memory.py --gigabytes 0.4 4 20 --files 10000 100000 1000000 --svg memory.svg
    python benchmarks/memory.py --gigabytes 0.4 4 20 --tensorflow
"""

import argparse
import io
import json
import math
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import psutil
from PIL import Image

NUM_CONTENTS = 64
MAX_LINKS = 50_000
STORED = """
import snapshard as ss

recipe = ss.Recipe(name="images", source=ss.ImageFolder("images"))
"""
DECODED = """
import snapshard as ss


def preprocessing_fn(inputs):
    import tensorflow as tf
    import tensorflow_transform as tft

    label = tf.cast(inputs["label"], tf.float32)
    return {"image": inputs["image"], "label": inputs["label"], "z": tft.scale_to_z_score(label)}


recipe = ss.Recipe(
    name="images",
    source=ss.ImageFolder("images"),
    prepare=[ss.images.decode("image"), ss.images.resize("image", (64, 64))],
    preprocessing_fn=preprocessing_fn,
)
"""


def make_contents(*, width: int, height: int, quality: int) -> list[bytes]:
    """JPEGs of random colours and noise."""
    rng = np.random.default_rng(0)
    contents = []
    for _ in range(NUM_CONTENTS):
        coarse = rng.integers(0, 256, (height // 8, width // 8, 3), np.uint8)
        picture = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
        noise = rng.integers(-12, 13, (height, width, 3))
        noisy = np.clip(np.asarray(picture, np.int16) + noise, 0, 255).astype(np.uint8)
        buffer = io.BytesIO()
        Image.fromarray(noisy).save(buffer, "JPEG", quality=quality)
        contents.append(buffer.getvalue())
    return contents


def make_files(folder: Path, contents: Sequence[bytes], num: int) -> None:
    """Writes so many files in ten class folders, as hard links to a few."""
    for number in range(num):
        path = folder / "images" / str(number % 10) / f"{number:07d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        content = number % len(contents)
        first = folder / "contents" / f"{content}-{number // len(contents) // MAX_LINKS}"
        if not first.exists():
            first.parent.mkdir(exist_ok=True)
            first.write_bytes(contents[content])
        os.link(first, path)


def tree_memory(pid: int) -> tuple[int, int, int]:
    """RSS in bytes of a process and all below it, what of it no file is mapped to, and PSS."""
    total = anonymous = shared_once = 0
    try:
        family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return 0, 0, 0
    for process in family:
        try:
            with open(f"/proc/{process.pid}/status") as file:
                lines = dict(line.split(":", 1) for line in file)
            with open(f"/proc/{process.pid}/smaps_rollup") as file:
                pss = next((line.split()[1] for line in file if line.startswith("Pss:")), "0")
        except OSError:
            continue
        shared_once += int(pss)
        total += int(lines.get("VmRSS", "0 kB").split()[0])
        anonymous += int(lines.get("RssAnon", "0 kB").split()[0])
    return total * 1024, anonymous * 1024, shared_once * 1024


def peak_of(command: list[str]) -> tuple[int, int, int, float, float]:
    """Runs a command: its peaks of memory in bytes, and its seconds and processor seconds."""
    started, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    peaks = [0, 0, 0]
    ended = threading.Event()

    def sample() -> None:
        while not ended.wait(0.05):
            peaks[:] = map(max, peaks, tree_memory(process.pid))

    thread = threading.Thread(target=sample)
    thread.start()
    _, errors = process.communicate()
    ended.set()
    thread.join()
    if process.returncode:
        sys.exit(errors.decode()[-4000:])
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime
    return peaks[0], peaks[1], peaks[2], time.perf_counter() - started, processor


def measure(
    num: int, contents: Sequence[bytes], recipe: str, options: Sequence[str]
) -> list[float]:
    """Builds so many images; gives what ``peak_of`` gives, after gigabytes and files."""
    with tempfile.TemporaryDirectory(prefix="bench-", dir=".") as scratch:
        make_files(Path(scratch), contents, num)
        Path(scratch, "recipe.py").write_text(recipe)
        os.sync()
        command = [sys.executable, "-m", "snapshard", "build", f"{scratch}/recipe.py"]
        measured = peak_of([*command, "--out", f"{scratch}/out", *options])
    gigabytes = sum(map(len, contents)) / len(contents) * num / 1e9
    row = [gigabytes, num, *measured]
    print(
        f"{gigabytes:>8.2f} GB {num:>9,} files, RSS {row[2] / 1e6:>7,.0f} MB, of it "
        f"anonymous {row[3] / 1e6:,.0f} MB, PSS {row[4] / 1e6:,.0f} MB, {row[5]:.1f} s, "
        f"of processor {row[6]:.1f} s",
        flush=True,
    )
    return row


def svg_of(curves: dict[str, list[tuple[float, float]]]) -> str:
    """A plot of megabytes over size or number, relative to the smallest, on a logarithmic axis."""
    width, height, left, bottom = 640, 320, 60, 40
    top = 200 * math.ceil(max(y for points in curves.values() for _, y in points) / 200)
    decades = max(math.log10(points[-1][0] / points[0][0]) for points in curves.values()) or 1

    def at(x: float, first: float, y: float) -> tuple[float, float]:
        right = math.log10(x / first) / decades * (width - left - 150)
        return left + right, height - bottom - y / top * (height - 2 * bottom)

    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for y in range(0, top + 1, 200):
        x0, y0 = at(1, 1, y)
        lines.append(f'<path d="M{x0} {y0:.0f}H{width - 150}" stroke="#ddd"/>')
        lines.append(f'<text x="{x0 - 6}" y="{y0 + 4:.0f}" text-anchor="end">{y} MB</text>')
    for decade in range(math.floor(decades) + 1):
        x0, y0 = at(10**decade, 1, 0)
        lines.append(f'<text x="{x0:.0f}" y="{y0 + 18}" text-anchor="middle">× {10**decade}</text>')
    for (name, points), color in zip(curves.items(), ("#06c", "#c60", "#393"), strict=False):
        places = [at(x, points[0][0], y) for x, y in points]
        path = " L".join(f"{x:.0f} {y:.0f}" for x, y in places)
        lines.append(f'<path d="M{path}" fill="none" stroke="{color}" stroke-width="2"/>')
        lines += [f'<circle cx="{x:.0f}" cy="{y:.0f}" r="3" fill="{color}"/>' for x, y in places]
        x0, y0 = places[-1]
        lines.append(f'<text x="{x0 + 8:.0f}" y="{y0 + 4:.0f}" fill="{color}">{name}</text>')
    return "\n".join([*lines, "</svg>\n"])


def main() -> None:
    """Builds from each amount of input and prints the peaks."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gigabytes", type=float, nargs="*", default=[0.4, 4.0])
    parser.add_argument("--files", type=int, nargs="*", default=[])
    parser.add_argument("--tensorflow", action="store_true")
    parser.add_argument("--rows", help="JSON Lines file that rows are added to, and plotted from")
    parser.add_argument("--svg", help="where the plot is written")
    parser.add_argument("options", nargs="*", help="of the build, after --")
    arguments = parser.parse_args()
    recipe = DECODED if arguments.tensorflow else STORED
    rows: list[tuple[str, list[float]]] = []
    if arguments.rows and os.path.exists(arguments.rows):
        rows = [json.loads(line) for line in Path(arguments.rows).read_text().splitlines()]

    def add(name: str, num: int, contents: Sequence[bytes]) -> None:
        rows.append((name, measure(num, contents, recipe, arguments.options)))
        if arguments.rows:
            with open(arguments.rows, "a") as file:
                file.write(json.dumps(rows[-1]) + "\n")

    photos = make_contents(width=640, height=480, quality=85)
    size = sum(map(len, photos)) / len(photos)
    for amount in arguments.gigabytes:
        name = "size, TensorFlow" if arguments.tensorflow else "size"
        add(name, round(amount * 1e9 / size), photos)
    small = make_contents(width=24, height=24, quality=85)
    for num in arguments.files:
        add("number of files", num, small)
    if arguments.svg:
        curves: dict[str, list[tuple[float, float]]] = {}
        for name, row in rows:
            x = row[1] if name == "number of files" else row[0]
            curves.setdefault(name, []).append((x, row[2] / 1e6))
        Path(arguments.svg).write_text(svg_of(curves))


if __name__ == "__main__":
    main()
