"""Inputs that the integration tests make, builds that they share, and what snapshots hold."""

import csv
import dataclasses
import functools
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image as PillowImage

import snapshard as ss
from snapshard.pipelines.build import build as build_recipe
from snapshard.pipelines.inventory.step import read_descriptors
from snapshard.pipelines.recipe.shipping import load_recipe_file
from snapshard.schemas.blocks import Block

from .kill_projects import Projects, write_recipes
from .replay import Recorded

IMAGE_RECIPE = """
import snapshard as ss

recipe = ss.Recipe(
    name="made",
    source=ss.ImageFolder("images"),
    {rest}
)
"""

RESIZED = 'prepare=[ss.images.decode("image"), ss.images.resize("image", (8, 8))],'


@dataclasses.dataclass(frozen=True)
class Held:
    """What a snapshot holds, read back through its reader and its index."""

    values: dict[str, np.ndarray[Any, Any]]
    """Feature -> values of all splits, in stored order; strings are bytes."""
    ids: list[str]
    """Record ids beside them."""
    splits: list[str]
    """The split of each."""

    def rows(self) -> Iterator[tuple[str, str, dict[str, Any]]]:
        """(id, split, values by feature) of each example."""
        for row, (record_id, split) in enumerate(zip(self.ids, self.splits, strict=True)):
            yield record_id, split, {name: column[row] for name, column in self.values.items()}


class Lab:
    """Makes inputs, builds them, and looks at what came of it."""

    def make_images(self, folder: Path, *, num: int, size: int = 16, classes: int = 3) -> None:
        """Writes ``num`` JPEGs of noise, in class folders of unequal sizes."""
        rng = np.random.default_rng(0)
        for index in range(num):
            label = min(int(rng.exponential(1.2)), classes - 1)
            path = folder / f"class {label}" / f"{index:04d}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            pixels = rng.integers(0, 256, (size, size, 3), np.uint8)
            PillowImage.fromarray(pixels).save(path, quality=90)

    def image_project(self, folder: Path, *, num: int = 60, rest: str = RESIZED) -> Path:
        """A folder with ``images/`` and a recipe of them; gives the recipe's file."""
        self.make_images(folder / "images", num=num)
        return self.write_recipe(folder, rest)

    def write_recipe(self, folder: Path, rest: str = RESIZED) -> Path:
        """Writes the recipe of ``images/`` with these settings."""
        path = folder / "recipe.py"
        if "splits=" not in rest:
            rest += "\n    splits=ss.Splits(train=0.8, validation=0.1, test=0.1, allow_empty=True),"
        path.write_text(IMAGE_RECIPE.format(rest=rest))
        return path

    def copy_shuffled(self, source: Path, target: Path) -> None:
        """Copies a tree in another order of creation, with other modification times."""
        paths = sorted(path for path in source.rglob("*") if path.is_file())
        for index in np.random.default_rng(1).permutation(len(paths)):
            path = target / paths[index].relative_to(source)
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(paths[index], path)
            os.utime(path, (1_000_000_000 + int(index), 1_000_000_000 + int(index)))

    def build(self, recipe: Path, out: Path, *, workers: int = 1) -> ss.Snapshot:
        """Builds a recipe's file in this process, as the command line does."""
        return build_recipe(load_recipe_file(recipe), out, workers=workers)

    def run_cli(self, *arguments: str | Path, cwd: Path | None = None, prefix: Any = ()) -> Any:
        """Runs the command line; gives the finished process with its output as text."""
        return subprocess.run(
            [*prefix, sys.executable, "-m", "snapshard", *map(str, arguments)],
            capture_output=True,
            text=True,
            check=False,
            cwd=cwd,
            timeout=400,
        )

    def last_json(self, done: Any) -> dict[str, Any]:
        """The JSON object in the last line of standard output."""
        assert done.returncode == 0, done.stderr
        value = json.loads(done.stdout.splitlines()[-1])
        assert isinstance(value, dict)
        return value

    def build_facts(self, snapshot: ss.Snapshot) -> dict[str, Any]:
        """What ``build.json`` says."""
        value = json.loads((Path(snapshot.path) / "build.json").read_text())
        assert isinstance(value, dict)
        return value

    def blocks(self, snapshot: ss.Snapshot) -> set[Block]:
        """The blocks that a snapshot was made of, as the workspace lists them."""
        lists = Path(snapshot.path).parent / ".work" / "blocks"
        return {
            Block.from_line(line)
            for name in self.build_facts(snapshot)["work"]["blocks"]
            for line in read_descriptors(str(lists / f"{name}.jsonl"))
        }

    def hashes(self, snapshot: ss.Snapshot | str) -> dict[str, str]:
        """sha256 of every file that the manifest lists, computed anew, and of the manifest."""
        folder = Path(snapshot if isinstance(snapshot, str) else snapshot.path)
        listed = json.loads((folder / "manifest.json").read_text())["files"]
        found = {
            name: hashlib.sha256((folder / name).read_bytes()).hexdigest()
            for name in [*listed, "manifest.json"]
        }
        assert {name: entry["sha256"] for name, entry in listed.items()} == {
            name: digest for name, digest in found.items() if name != "manifest.json"
        }
        return found

    def listing(self, folder: Path) -> dict[str, tuple[int, int, int]]:
        """Inode, length and modification time of everything below a folder."""
        found = {}
        for path in folder.rglob("*"):
            stat = path.lstat()
            found[str(path.relative_to(folder))] = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
        return found

    def read_back(self, snapshot: ss.Snapshot, **options: Any) -> Held:
        """All splits through the snapshot's reader, in stored order, beside the index's ids."""
        reader = snapshot.reader()
        held = Held({}, [], [])
        columns: dict[str, list[Any]] = {}
        for split, entry in snapshot.manifest.splits.items():
            assert reader.NUM_EXAMPLES[split] == entry.num_examples
            num_read = 0
            for batch in reader.dataset(split, 64, shuffle=False, **options):
                for name, values in batch.items():
                    columns.setdefault(name, []).extend(values.numpy())
                num_read += int(values.shape[0])
            assert num_read == entry.num_examples == sum(s.num_examples for s in entry.shards)
            held.splits.extend([split] * num_read)
            for shard in entry.shards:
                held.ids.extend(self.index_ids(snapshot, shard.file))
        held.values.update({name: _together(values) for name, values in columns.items()})
        return held

    def rows_back(self, snapshot: ss.Snapshot, **options: Any) -> dict[str, dict[str, Any]]:
        """Record id -> plain values through the snapshot's reader, fields by their dotted names.

        Masks are held against what is given where they are False, and left out.
        """
        reader = snapshot.reader()
        masked = {n: f["present"] for n, f in reader.FEATURES.items() if "present" in f}
        rows: dict[str, dict[str, Any]] = {}
        for split, entry in snapshot.manifest.splits.items():
            ids = [i for shard in entry.shards for i in self.index_ids(snapshot, shard.file)]
            columns: dict[str, list[Any]] = {}
            for batch in reader.dataset(split, 7, shuffle=False, **options):
                for name, values in _dotted(batch):
                    plain = values.to_list() if hasattr(values, "to_list") else values.numpy()
                    columns.setdefault(name, []).extend(
                        value.tolist() if hasattr(value, "tolist") else value for value in plain
                    )
            for name, mask in masked.items():
                for value, there in zip(columns[name], columns.pop(mask), strict=True):
                    fill = reader.FEATURES[name].get("default", [])
                    fill = fill.encode() if isinstance(fill, str) else fill
                    assert there or value == fill, name
            for row, record_id in enumerate(ids):
                assert record_id not in rows
                rows[record_id] = {name: values[row] for name, values in columns.items()}
        return rows

    def stored_rows(self, snapshot: ss.Snapshot) -> dict[str, dict[str, Any]]:
        """Record id -> values of each stored example, images as their files."""
        import tensorflow as tf

        rows: dict[str, dict[str, Any]] = {}
        for split in snapshot.manifest.splits.values():
            for shard in split.shards:
                examples = tf.data.TFRecordDataset(f"{snapshot.path}/{shard.file}")
                ids = self.index_ids(snapshot, shard.file)
                for record_id, example in zip(ids, examples.as_numpy_iterator(), strict=True):
                    rows[record_id] = ss.parse_example(example, snapshot.manifest.features)
        return rows

    def csv_rows(self, path: Path) -> Iterator[tuple[str, dict[str, str]]]:
        """(record id, cells) of a table without quoted newlines, by the standard library."""
        offset = 0
        names: list[str] = []
        for line in path.read_bytes().splitlines(keepends=True):
            (cells,) = csv.reader([line.decode()])
            if names:
                yield f"{path.name}#{offset}", dict(zip(names, cells, strict=True))
            else:
                names = cells
            offset += len(line)

    def index_ids(self, snapshot: ss.Snapshot, shard: str) -> list[str]:
        """The record ids that a shard's index names."""
        table = pq.read_table(Path(snapshot.path) / "index" / f"{shard}.parquet")
        ids: list[str] = table.column("id").to_pylist()
        return ids

    def rejects(self, snapshot: ss.Snapshot) -> list[dict[str, Any]]:
        """The rows of ``rejects.parquet``."""
        rows: list[dict[str, Any]] = pq.read_table(
            Path(snapshot.path) / "rejects.parquet"
        ).to_pylist()
        return rows


def _together(values: list[Any]) -> np.ndarray[Any, Any]:
    """One array of all records' values; of objects where their shapes differ."""
    if len({np.shape(value) for value in values}) <= 1:
        return np.array(values)
    array = np.empty(len(values), object)
    for row, value in enumerate(values):
        array[row] = value
    return array


def _dotted(batch: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in batch.items():
        if isinstance(value, dict):
            yield from _dotted(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


@pytest.fixture(scope="session")
def lab() -> Lab:
    return Lab()


@pytest.fixture(scope="session")
def shared(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A folder of the session by name, for what several tests look at and none changes."""
    root = tmp_path_factory.mktemp("shared")

    def folder(name: str) -> Path:
        path = root / name
        path.mkdir(exist_ok=True)
        return path

    return folder


@pytest.fixture(scope="session")
def projects(shared: Callable[[str], Path]) -> Iterator[Projects]:
    """Recipes whose builds can be killed where a test wants it."""
    with Projects(shared("kills")) as made:
        yield made


@pytest.fixture(scope="session")
def recorded(shared: Callable[[str], Path]) -> Callable[[str], Recorded]:
    """The same recipes by name, and the logs of their builds, each recorded once."""
    folder = shared("recorded")
    recipes = write_recipes(folder / "recipes")
    return functools.cache(lambda name: Recorded.of(recipes[name], folder / name))


@pytest.fixture(scope="session")
def sign_digits(lab: Lab, shared: Callable[[str], Path], examples: Path) -> ss.Snapshot:
    """The snapshot of the shipped images."""
    return lab.build(examples / "sign_digits.py", shared("out"))


@pytest.fixture(scope="session")
def penguins(lab: Lab, shared: Callable[[str], Path], examples: Path) -> ss.Snapshot:
    """The snapshot of the shipped table, preprocessed: half a minute, most of it imports."""
    return lab.build(examples / "penguins.py", shared("out"))


@pytest.fixture
def recipe(lab: Lab, tmp_path: Path) -> Path:
    """A recipe of 60 small images, in a folder of its own."""
    return lab.image_project(tmp_path)
