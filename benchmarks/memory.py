"""The peak memory of a build: it must not grow with the data.

Makes folders of photographs of two total sizes, builds each from nothing, and samples the
proportional set size (PSS) of the whole process tree, the analysis process included. The recipe
decodes, resizes, and runs a ``preprocessing_fn`` with a full pass over the labels.

    python benchmarks/memory.py --gigabytes 0.4 2
"""

import argparse
import io
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import psutil
from PIL import Image

RECIPE = """
import snapshard as ss


def preprocessing_fn(inputs):
    import tensorflow as tf
    import tensorflow_transform as tft

    label = tf.cast(inputs["label"], tf.float32)
    return {"image": inputs["image"], "label": inputs["label"], "z": tft.scale_to_z_score(label)}


recipe = ss.Recipe(
    name="photos",
    source=ss.ImageFolder("photos"),
    prepare=[ss.images.decode("image"), ss.images.resize("image", (64, 64))],
    preprocessing_fn=preprocessing_fn,
)
"""


def make_photos(folder: Path, *, num_bytes: int) -> int:
    """Writes JPEGs of 640×480 until there are so many bytes; gives how many."""
    rng = np.random.default_rng(0)
    made = []
    for _ in range(32):
        coarse = rng.integers(0, 256, (60, 80, 3), np.uint8)
        picture = Image.fromarray(coarse).resize((640, 480), Image.Resampling.BICUBIC)
        noisy = np.clip(
            np.asarray(picture, np.int16) + rng.integers(-12, 13, (480, 640, 3)), 0, 255
        )
        buffer = io.BytesIO()
        Image.fromarray(noisy.astype(np.uint8)).save(buffer, "JPEG", quality=85)
        made.append(buffer.getvalue())
    size = num = 0
    while size < num_bytes:
        content = made[num % len(made)]
        path = folder / str(num % 10) / f"{num:06d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        # A comment after the end makes each file's content its own.
        path.write_bytes(content + f"{num}".encode())
        size += len(content)
        num += 1
    return num


def tree_pss(pid: int) -> int:
    """PSS in bytes of a process and all below it; what ends meanwhile counts as 0."""
    total = 0
    try:
        family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return 0
    for process in family:
        try:
            with open(f"/proc/{process.pid}/smaps_rollup") as file:
                total += next(int(line.split()[1]) for line in file if line.startswith("Pss:"))
        except (OSError, StopIteration):
            continue
    return total * 1024


def peak_of(command: list[str]) -> tuple[float, float, int]:
    """Runs a command: its peak PSS in bytes, its seconds, and how often was sampled."""
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    peak, samples = 0, 0
    ended = threading.Event()

    def sample() -> None:
        nonlocal peak, samples
        while not ended.wait(0.02):
            peak = max(peak, tree_pss(process.pid))
            samples += 1

    thread = threading.Thread(target=sample)
    thread.start()
    _, errors = process.communicate()
    ended.set()
    thread.join()
    if process.returncode:
        sys.exit(errors.decode()[-4000:])
    return peak, time.perf_counter() - started, samples


def main() -> None:
    """Builds from each amount of input and prints the peaks."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gigabytes", type=float, nargs="+", default=[0.4, 2.0])
    parser.add_argument("--workers", type=int, default=1)
    arguments = parser.parse_args()
    print(f"{'input':>8} {'images':>8} {'peak PSS':>10} {'seconds':>8}   sampled every")
    for amount in arguments.gigabytes:
        with tempfile.TemporaryDirectory(prefix="bench-", dir=".") as scratch:
            num = make_photos(Path(scratch) / "photos", num_bytes=int(amount * 1e9))
            recipe = Path(scratch) / "recipe.py"
            recipe.write_text(RECIPE)
            os.sync()
            command = [sys.executable, "-m", "snapshard", "build", str(recipe)]
            options = ["--out", f"{scratch}/out", "--workers", str(arguments.workers)]
            peak, seconds, samples = peak_of([*command, *options])
            print(
                f"{amount:>6} GB {num:>8,} {peak / 1e6:>7,.0f} MB {seconds:>8.1f}"
                f"   {1000 * seconds / samples:.0f} ms",
                flush=True,
            )


if __name__ == "__main__":
    main()
