"""Inputs that the integration tests make, and builds that they share."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image as PillowImage

RECIPE = """
import snapshard as ss

recipe = ss.Recipe(
    name="made",
    source=ss.ImageFolder("images"),
    prepare=[ss.images.decode("image"), ss.images.resize("image", (8, 8))],
    {rest}
)
"""


def make_images(folder: Path, *, num: int, size: int = 16, classes: int = 3) -> None:
    """Writes ``num`` JPEGs of noise, in class folders of unequal sizes."""
    rng = np.random.default_rng(0)
    for index in range(num):
        label = min(int(rng.exponential(1.2)), classes - 1)
        path = folder / f"class {label}" / f"{index:04d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 256, (size, size, 3), np.uint8)
        PillowImage.fromarray(pixels).save(path, quality=90)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with a recipe, ``recipe.py``, of 60 small images."""
    make_images(tmp_path / "images", num=60)
    (tmp_path / "recipe.py").write_text(RECIPE.format(rest=""))
    return tmp_path


@pytest.fixture
def write_recipe(project: Path) -> Callable[[str], Path]:
    """Rewrites the project's recipe with other settings."""

    def write(rest: str) -> Path:
        path = project / "recipe.py"
        path.write_text(RECIPE.format(rest=rest))
        return path

    return write


def run_cli(*arguments: str, cwd: Path | None = None, user: int | None = None) -> Any:
    """Runs the command line; gives the finished process with its output as text."""
    return subprocess.run(
        [sys.executable, "-m", "snapshard", *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        user=user,
        timeout=300,
    )


def last_json(done: Any) -> dict[str, Any]:
    """The JSON object in the last line of standard output."""
    assert done.returncode == 0, done.stderr
    value = json.loads(done.stdout.splitlines()[-1])
    assert isinstance(value, dict)
    return value


def copy_shuffled(source: Path, target: Path) -> None:
    """Copies a tree in another order of creation, with other modification times."""
    paths = sorted(path for path in source.rglob("*") if path.is_file())
    for index in np.random.default_rng(1).permutation(len(paths)):
        path = target / paths[index].relative_to(source)
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(paths[index], path)
        os.utime(path, (1_000_000_000 + int(index), 1_000_000_000 + int(index)))


def listed_hashes(snapshot: Path) -> dict[str, str]:
    """sha256 of every file that the manifest lists, and of the manifest itself."""
    names = [*json.loads((snapshot / "manifest.json").read_text())["files"], "manifest.json"]
    return {name: hashlib.sha256((snapshot / name).read_bytes()).hexdigest() for name in names}
