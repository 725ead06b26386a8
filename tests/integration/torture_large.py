"""Builds of inputs that are too large for the tests: part of ``make torture``.

``python -m tests.integration.torture_large [--scale X] [NAME …]`` makes each input, builds it
through the command line in a process of its own, checks how many records and rejects came of it,
and prints the time of the build and the memory of its largest process. A count that differs ends
it with exit code 1.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import struct
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path

from PIL import Image as PillowImage

_RECIPE = """
import snapshard as ss

recipe = ss.Recipe(name="large", source={source}, splits=ss.Splits(train=0.9, test=0.1){rest})
"""


@dataclasses.dataclass(frozen=True)
class Large:
    """An input, and what must come of it."""

    source: str
    num_examples: int
    num_rejects: int = 0
    rest: str = ""


def many_rows(folder: Path, scale: float) -> Large:
    """2.3 GB of CSV: 22.4 million rows in one file."""
    num_chunks = max(1, round(100 * scale))
    rows = "".join(
        f"{row},{row * 0.37:.4f},{'abcdefgh'[row % 8] * 60},{row % 1000},2026-01-01T09:00:00\n"
        for row in range(224_000)
    ).encode()
    with open(folder / "rows.csv", "wb") as file:
        file.write(b"id,value,text,group,time\n")
        for _ in range(num_chunks):
            file.write(rows)
    return Large('ss.Csv("rows.csv")', 224_000 * num_chunks)


def many_folders(folder: Path, scale: float) -> Large:
    """30,000 folders, of one image each: as many classes."""
    num = max(2, round(30_000 * scale))
    for number in range(num):
        inner = folder / "images" / f"class-{number:05}"
        inner.mkdir(parents=True)
        PillowImage.new("RGB", (4, 4), (number % 256, number // 256, 0)).save(inner / "0.png")
    return Large('ss.ImageFolder("images")', num)


def large_image(folder: Path, scale: float) -> Large:
    """A PNG of 20,000 × 20,000 pixels among 199 small ones."""
    side = max(14_000, round(20_000 * scale))  # over the limit of pixels

    def chunk(kind: bytes, content: bytes) -> bytes:
        checked = kind + content
        return struct.pack(">I", len(content)) + checked + struct.pack(">I", zlib.crc32(checked))

    inner = folder / "images" / "one"
    inner.mkdir(parents=True)
    for number in range(199):
        PillowImage.new("RGB", (32, 32), (number, 0, 0)).save(inner / f"{number}.png")
    packer = zlib.compressobj(1)
    line = bytes(1 + 3 * side)
    packed = b"".join(packer.compress(line) for _ in range(side)) + packer.flush()
    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    (inner / "large.png").write_bytes(
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", packed) + chunk(b"IEND", b"")
    )
    decode = ', prepare=[ss.images.decode("image"), ss.images.resize("image", (32, 32))]'
    return Large('ss.ImageFolder("images")', 199, num_rejects=1, rest=decode)


INPUTS: dict[str, Callable[[Path, float], Large]] = {
    "rows": many_rows,
    "folders": many_folders,
    "image": large_image,
}


def build(name: str, folder: Path, *, scale: float) -> str:
    """Makes an input and builds it.

    Returns:
        A line of what it took.

    Raises:
        AssertionError: if the build fails, or not all that it read came of it.
    """
    large = INPUTS[name](folder, scale)
    recipe = _RECIPE.format(source=large.source, rest=large.rest)
    (folder / "recipe.py").write_text(recipe)
    num_bytes = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    started = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "snapshard", "build", "recipe.py", "--out", "out"],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    told = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - started
    assert os.waitstatus_to_exitcode(status) == 0, told[-4000:]
    (path,) = folder.glob("out/large/*/manifest.json")
    manifest = json.loads(path.read_bytes())
    found = (
        sum(split["num_examples"] for split in manifest["splits"].values()),
        manifest["num_rejects"],
    )
    assert found == (large.num_examples, large.num_rejects), found
    return (
        f"{name:<8} {num_bytes / 1e9:>6.2f} GB {large.num_examples:>12,} examples "
        f"{large.num_rejects} rejects {seconds:>6.0f} s {usage.ru_maxrss / 2**20:>5.1f} GiB"
    )


def main() -> None:
    """Reads the arguments, and builds."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", default=list(INPUTS), metavar="NAME")
    parser.add_argument("--scale", type=float, default=1.0, help="of the inputs' sizes")
    chosen = parser.parse_args()
    for name in chosen.names:
        with tempfile.TemporaryDirectory(prefix="snapshard-large-") as folder:
            print(build(name, Path(folder), scale=chosen.scale), flush=True)


if __name__ == "__main__":
    sys.exit(main())
