"""How fast a build is, beside TensorFlow Datasets and the loop that people write by hand.

All read the same images, check each by decoding it at 1/8 of its size, and store the files'
bytes. snapshard alone also hashes every input, shuffles globally, splits, verifies what it wrote
and makes it durable. Rounds are interleaved, so that the machine's moods fall on all alike;
ratios are taken within a round.

    python benchmarks/build.py --images DIR --tfds-python ENV/bin/python

DIR holds class folders of JPEGs, for example the full sign_digits. Peers that need an
environment of their own run in the one named: `uv venv ENV && uv pip install --python
ENV/bin/python tensorflow-datasets==4.9.10 tensorflow apache-beam importlib_resources`.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PEERS = Path(__file__).resolve().parent / "peers"


def multiply(images: Path, target: Path, *, copies: int) -> int:
    """Copies every image ``copies`` times under names of its own; gives how many there are."""
    num = 0
    for path in sorted(images.glob("*/*")):
        folder = target / path.parent.name
        folder.mkdir(parents=True, exist_ok=True)
        for copy in range(copies):
            shutil.copyfile(path, folder / f"{path.stem}-{copy}{path.suffix.lower()}")
            num += 1
    return num


def time_once(command: list[str], *, num_images: int) -> dict[str, float]:
    """Runs one contender; gives its seconds as a whole process, and those after its imports."""
    # Worker processes import the builder's module by name.
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": str(PEERS)}
    started = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    whole = time.perf_counter() - started
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr[-4000:]}")
    facts = json.loads(done.stdout.splitlines()[-1])
    if facts["num_examples"] != num_images:
        sys.exit(f"{' '.join(command)} made {facts['num_examples']} of {num_images} examples")
    return {"work": facts["seconds"], "whole": whole}


def contenders(arguments: argparse.Namespace, images: Path) -> dict[str, list[str]]:
    """Name -> command, the output folder left to be appended."""
    own, tfds = sys.executable, arguments.tfds_python
    found = {
        "snapshard": [own, str(PEERS / "snapshard_build.py"), str(images)],
        "loop": [own, str(PEERS / "loop_build.py"), str(images)],
    }
    if tfds:
        script = str(PEERS / "tfds_build.py")
        found["tfds"] = [tfds, script, "plain", str(images)]
        found["tfds+beam"] = [tfds, script, "beam", str(images)]
        found["tfds+beam×2"] = [tfds, script, "beam", str(images)]
    return found


OPTIONS = {"tfds+beam×2": ["--direct_running_mode=multi_processing", "--direct_num_workers=2"]}


def spread(values: list[float], unit: str = "") -> str:
    """Median, minimum and maximum."""
    middle = statistics.median(values)
    return f"{middle:.2f}{unit} ({min(values):.2f} to {max(values):.2f})"


def main() -> None:
    """Times all contenders and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    data = os.environ.get("SNAPSHARD_DATA")
    default = Path(data) / "sign_digits" if data else None
    parser.add_argument("--images", type=Path, default=default, required=default is None)
    parser.add_argument("--copies", type=int, default=10, help="of each image")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tfds-python", help="Python of an environment with TFDS")
    arguments = parser.parse_args()

    with tempfile.TemporaryDirectory(prefix="bench-", dir=".") as scratch:
        root = Path(scratch).resolve()
        images = root / "images"
        num_images = multiply(arguments.images, images, copies=arguments.copies)
        times: dict[str, list[dict[str, float]]] = {}
        for number in range(arguments.rounds):
            for name, command in contenders(arguments, images).items():
                out = root / f"{name}-{number}"
                full = [*command, str(out), *OPTIONS.get(name, [])]
                times.setdefault(name, []).append(time_once(full, num_images=num_images))
                shutil.rmtree(out, ignore_errors=True)
    print(f"{num_images:,} images, {arguments.rounds} rounds; ratio to snapshard, per round")
    print(f"{'':14}{'seconds':>24}{'ratio':>24}{'with imports':>24}{'ratio':>24}")
    own = times["snapshard"]
    for name, rounds in times.items():
        cells = []
        for kind in ("work", "whole"):
            cells.append(spread([one[kind] for one in rounds], " s"))
            cells.append(spread([a[kind] / b[kind] for a, b in zip(rounds, own, strict=True)]))
        print(f"{name:14}" + "".join(f"{cell:>24}" for cell in cells))


if __name__ == "__main__":
    main()
