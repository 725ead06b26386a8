"""Recipes of tiny sources to kill builds of: between them they put every kind of file there is."""

import dataclasses
import random
import sqlite3
from pathlib import Path

import numpy as np
from PIL import Image as PillowImage

from .faults import look
from .killed_builds import Builds, Ended, Stop

LIBRARIES = {
    "table": (),
    "query": (),
    "images": ("tensorflow",),
    "graph": ("tensorflow", "tensorflow_transform"),
}
"""What a build of each recipe is to find loaded."""

TABLE = """
import snapshard as ss

recipe = ss.Recipe(
    name="table",
    source=ss.Csv("tables", label="label"),
    features={
        "a": ss.Scalar("int64", optional=True),
        "b": ss.Scalar("float32"),
        "label": ss.ClassLabel(("x", "y", "z")),
    },
    splits=ss.Splits(train=0.7, test=0.3, stratify_by="label"),
    shards=ss.Shards(num_shards=1),
    max_rejects=9,
)
"""

QUERY = """
import snapshard as ss

recipe = ss.Recipe(
    name="query",
    source=ss.Sql("rows.db", "select * from r", key="k"),
    prepare=[ss.records.drop_duplicates("a", "b")],
    shards=ss.Shards(num_shards=1),
)
"""

IMAGES = """
import snapshard as ss

recipe = ss.Recipe(
    name="images",
    source=ss.ImageFolder("images"),
    prepare=[ss.images.decode("image"), ss.images.resize("image", (8, 8))],
    shards=ss.Shards(num_shards=1),
)
"""

GRAPH = """
import snapshard as ss


def preprocessing_fn(inputs):
    import tensorflow_transform as tft

    return {
        "b": tft.scale_to_z_score(inputs["b"]),
        "word": tft.compute_and_apply_vocabulary(inputs["word"], vocab_filename="words"),
    }


recipe = ss.Recipe(
    name="graph",
    source=ss.Csv("words"),
    preprocessing_fn=preprocessing_fn,
    shards=ss.Shards(num_shards=1),
)
"""


def write_recipes(folder: Path) -> dict[str, Path]:
    """Writes the recipes and their sources; gives the recipes' files by name."""
    rng = random.Random(1)
    (folder / "tables").mkdir(parents=True)
    for number in range(4):
        rows = [
            f"{rng.randrange(1000) if rng.random() > 0.1 else ''},{rng.random():.4f},{'xyz'[i % 3]}"
            for i in range(1500)
        ]
        rows[700] = "7,no number,x"
        (folder / "tables" / f"{number}.csv").write_text("\n".join(["a,b,label", *rows, ""]))
    (folder / "words").mkdir()
    for number in range(2):
        rows = [f"{rng.random():.4f},word{rng.randrange(30)}" for _ in range(2500)]
        (folder / "words" / f"{number}.csv").write_text("\n".join(["b,word", *rows, ""]))
    database = sqlite3.connect(folder / "rows.db")
    with database:
        database.execute("create table r (k integer primary key, a integer, b text)")
        rows_of = [(k, rng.randrange(50), f"t{rng.randrange(40)}") for k in range(2000)]
        database.executemany("insert into r values (?, ?, ?)", rows_of)
    database.close()
    noise = np.random.default_rng(0)
    for number in range(60):
        path = folder / "images" / f"class {number % 3}" / f"{number:02d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        PillowImage.fromarray(noise.integers(0, 256, (24, 24, 3), np.uint8)).save(path)
    texts = {"table": TABLE, "query": QUERY, "images": IMAGES, "graph": GRAPH}
    for name, text in texts.items():
        (folder / f"{name}.py").write_text(text)
    return {name: folder / f"{name}.py" for name in texts}


@dataclasses.dataclass(frozen=True)
class Project:
    """A recipe, and what a build of it does and gives when nothing disturbs it."""

    builds: Builds
    recipe: Path
    names: tuple[str, ...]
    """Of what it puts, in order."""
    published: dict[str, str]
    """What a reader finds in the end, as :func:`look` gives it."""
    seconds: float

    def kill(self, out: Path, stop: Stop, *, workers: int = 1) -> Ended:
        """Kills a build where it puts a file."""
        ended = self.builds.build(self.recipe, out, stop=stop, workers=workers)
        assert ended.killed, f"{stop} was not reached: {ended}"
        assert stop.name in ended.begun
        self.check(out)
        return ended

    def kill_after(
        self, out: Path, seconds: float | None = None, *, stop: Stop | None = None
    ) -> Ended:
        """Kills a build after a time, or some time after a stop, unless it has ended by then."""
        ended = self.builds.build(self.recipe, out, seconds=seconds, stop=stop)
        assert ended.killed or ended.code == 0, ended.stderr
        self.check(out)
        return ended

    def check(self, out: Path) -> None:
        """Checks that a reader of what a build has left sees nothing, or the snapshot."""
        assert look(out / self.recipe.stem) in ({}, self.published)

    def go_on(self, out: Path, *, workers: int = 1) -> Ended:
        """Builds to the end, and compares."""
        ended = self.builds.build(self.recipe, out, workers=workers)
        assert ended.code == 0, ended.stderr
        assert look(out / self.recipe.stem) == self.published
        return ended


class Projects:
    """The projects of the recipes, each built once, in a folder; a context manager."""

    def __init__(self, folder: Path) -> None:
        """Writes the recipes."""
        self._folder = folder
        self._recipes = write_recipes(folder / "recipes")
        self._builds: dict[tuple[str, ...], Builds] = {}
        self._projects: dict[str, Project] = {}

    def __enter__(self) -> "Projects":
        """The projects themselves."""
        return self

    def __exit__(self, *_: object) -> None:
        """Ends the processes that build."""
        for builds in self._builds.values():
            builds.close()

    def __getitem__(self, name: str) -> Project:
        """The project of a recipe."""
        if name not in self._projects:
            self._projects[name] = self._make(name)
        return self._projects[name]

    def _make(self, name: str) -> Project:
        libraries = LIBRARIES[name]
        if libraries not in self._builds:
            folder = self._folder / f"notes-{len(self._builds)}"
            folder.mkdir()
            self._builds[libraries] = Builds(folder, *libraries)
        builds, out = self._builds[libraries], self._folder / f"{name}-undisturbed"
        ended = builds.build(self._recipes[name], out, one_by_one=True)
        assert ended.code == 0, ended.stderr
        return Project(builds, self._recipes[name], ended.done, look(out / name), ended.seconds)
