"""Recipes whose snapshots are recorded: each kind of source, step, split and way to write."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.csv as arrow_csv
import pyarrow.parquet as pq
import tensorflow as tf

import snapshard as ss
from snapshard.pipelines.recipe.shipping import load_recipe_file

EXAMPLES = Path(__file__).parents[2] / "examples"
DATA = EXAMPLES / "data"
SPLITS = ss.Splits(train=0.8, validation=0.1, test=0.1)
TITANIC, PENGUINS = str(DATA / "titanic.csv"), str(DATA / "penguins.csv")

RECIPES: dict[str, Callable[[Path], ss.Recipe]] = {}
"""By name: a function of an empty folder, for the input that a recipe needs made."""
OPTIONS: dict[str, dict[str, Any]] = {
    "limit": {"limit": 50},
    "shuffle": {"write_by": "shuffle"},
}
"""What ``ss.build`` is given besides."""
FLOATS = {"images_decoded", "sounds", "bags_of_words", "preprocessing_fn"}
"""Recipes that compute with floats: other processors may round otherwise."""


def recorded(make: Callable[[Path], ss.Recipe]) -> Callable[[Path], ss.Recipe]:
    """Adds a recipe under the name of its function."""
    RECIPES[make.__name__] = make
    return make


def example(name: str) -> ss.Recipe:
    """A recipe of ``examples/``."""
    return load_recipe_file(EXAMPLES / f"{name}.py")


@recorded
def table(folder: Path) -> ss.Recipe:
    """Cells of every inferred type, and missing ones."""
    return ss.Recipe(name="g", source=ss.Csv(TITANIC, label="survived"), splits=SPLITS)


@recorded
def table_steps(folder: Path) -> ss.Recipe:
    """Steps on columns, a filter and a function of records; several shards, GZIP."""
    return ss.Recipe(
        name="g",
        source=ss.Csv(TITANIC, label="survived"),
        prepare=[
            ss.tables.missing("age", "no_age"),
            ss.tables.fill("age", 30.0),
            ss.tables.clip("fare", min=0.0, max=100.0),
            ss.tables.one_hot("pclass", 4),
            ss.records.filter(lambda record: record["sex"] == "male"),
            ss.records.drop(["deck", "who"]),
            ss.records.rename({"alone": "travels_alone"}),
        ],
        splits=SPLITS,
        shards=ss.Shards(num_shards={"train": 3, "validation": 1, "test": 2}, compression="gzip"),
    )


@recorded
def stratified(folder: Path) -> ss.Recipe:
    """A stratified split."""
    return ss.Recipe(
        name="g",
        source=ss.Csv(PENGUINS, label="species"),
        splits=ss.Splits(train=0.7, test=0.3, stratify_by="species"),
        shards=ss.Shards(num_shards=4),
    )


@recorded
def grouped(folder: Path) -> ss.Recipe:
    """A grouped split, without duplicates, in another order."""
    return ss.Recipe(
        name="g",
        source=ss.Csv(TITANIC, label="survived"),
        prepare=[ss.records.drop_duplicates()],
        splits=ss.Splits(train=0.6, test=0.4, group_by="parch"),
        seed=7,
    )


@recorded
def limit(folder: Path) -> ss.Recipe:
    """The records with the lowest keys."""
    return ss.Recipe(name="g", source=ss.Csv(PENGUINS, label="species"), splits=SPLITS)


@recorded
def shuffle(folder: Path) -> ss.Recipe:
    """Written by the runner's shuffle."""
    return ss.Recipe(
        name="g",
        source=ss.Csv(PENGUINS, label="species"),
        splits=SPLITS,
        shards=ss.Shards(num_shards=3),
    )


@recorded
def rejects(folder: Path) -> ss.Recipe:
    """Cells that are invalid, and records at which a function fails."""
    lines = [f"{n},{'x' if n % 50 == 7 else n * 0.5}" for n in range(400)]
    (folder / "rows.csv").write_text("\n".join(["a,b", *lines]) + "\n")

    def fails(record: dict[str, Any]) -> dict[str, Any]:
        if record["a"] % 90 == 11:
            raise ValueError("no record of this kind")
        return {"c": record["a"] * 2}

    return ss.Recipe(
        name="g",
        source=ss.Csv(str(folder / "rows.csv"), types={"a": "int64", "b": "float32"}),
        prepare=[ss.records.map_python(fails, {"c": ss.Scalar("int64")}, inputs=["a"])],
        splits=SPLITS,
        max_rejects=0.1,
    )


@recorded
def parquet(folder: Path) -> ss.Recipe:
    """Parquet, in row groups."""
    pq.write_table(arrow_csv.read_csv(TITANIC), folder / "rows.parquet", row_group_size=100)
    return ss.Recipe(
        name="g", source=ss.Parquet(str(folder / "rows.parquet"), label="survived"), splits=SPLITS
    )


@recorded
def tfrecords(folder: Path) -> ss.Recipe:
    """Examples of TFRecord files: a scalar, a vector and a list of any length."""
    features = {"a": ss.Scalar("int64"), "b": ss.Tensor("float32", (3,)), "c": ss.Text()}
    for part in range(2):
        with tf.io.TFRecordWriter(str(folder / f"{part}.tfrecord")) as file:
            for n in range(150 * part, 150 * part + 150):
                record = {"a": n, "b": [n / 3, n / 5, n / 7], "c": f"text {n % 11}"}
                file.write(ss.encode_example(record, features))
    return ss.Recipe(name="g", source=ss.TFRecords(str(folder)), splits=SPLITS)


@recorded
def splits_by_column(folder: Path) -> ss.Recipe:
    """Splits that a column names."""
    return ss.Recipe(
        name="g",
        source=ss.Csv(TITANIC, label="survived"),
        splits=ss.Splits.by_column("embark_town", train="Southampton", test=("Cherbourg",)),
        max_rejects=0.5,
    )


@recorded
def json_lines(folder: Path) -> ss.Recipe:
    """Nested values, lists of any length, strings of other scripts."""
    with open(folder / "rows.jsonl", "w") as file:
        for n in range(300):
            row = {
                "id": n,
                "tags": ["é", "日本", "b"][: n % 4],
                "at": {"x": n / 7, "name": f"n{n}"},
            }
            file.write(json.dumps(row if n % 5 else {"id": n, "at": row["at"]}) + "\n")
    return ss.Recipe(name="g", source=ss.JsonLines(str(folder / "rows.jsonl")), splits=SPLITS)


@recorded
def sql(folder: Path) -> ss.Recipe:
    """A query."""
    with sqlite3.connect(folder / "rows.db") as database:
        database.execute("create table rows (id integer primary key, name text, size real)")
        rows = [(n, f"n{n % 9}", n * n / 3) for n in range(300)]
        database.executemany("insert into rows values (?, ?, ?)", rows)
    database.close()
    return ss.Recipe(
        name="g",
        source=ss.Sql(f"sqlite:///{folder}/rows.db", "select * from rows", key="id", label="name"),
        splits=SPLITS,
    )


@recorded
def arrays(folder: Path) -> ss.Recipe:
    """An array of NumPy, and labels beside it."""
    np.save(folder / "x.npy", np.arange(300 * 6, dtype="<f4").reshape(300, 2, 3) / 7)
    np.save(folder / "y.npy", np.arange(300) % 4)
    return ss.Recipe(
        name="g",
        source=ss.Numpy(str(folder / "x.npy"), name="x", beside={"y": str(folder / "y.npy")}),
        splits=SPLITS,
    )


@recorded
def images_kept(folder: Path) -> ss.Recipe:
    """JPEG files as they are."""
    return ss.Recipe(
        name="g",
        source=ss.ImageFolder(str(DATA / "sign_digits")),
        splits=ss.Splits(train=0.8, test=0.2, stratify_by="label"),
        shards=ss.Shards(num_shards=2),
    )


@recorded
def images_decoded(folder: Path) -> ss.Recipe:
    """Pixels, resized and cropped."""
    return ss.Recipe(
        name="g",
        source=ss.ImageFolder(str(DATA / "sign_digits")),
        prepare=[
            ss.images.decode("image"),
            ss.images.resize("image", (20, 24)),
            ss.images.center_crop("image", (16, 16)),
        ],
        splits=SPLITS,
    )


@recorded
def sounds(folder: Path) -> ss.Recipe:
    """Spectrograms of WAV files, labelled by their names."""
    return example("spoken_digits")


@recorded
def windows(folder: Path) -> ss.Recipe:
    """Windows of a series, split by time."""
    return example("dowjones")


@recorded
def packed_text(folder: Path) -> ss.Recipe:
    """Paragraphs: normalized, tokenized, packed."""
    return example("text_packed")


@recorded
def bags_of_words(folder: Path) -> ss.Recipe:
    """A vocabulary and weights of words, learned from the train split."""
    return example("text_tfidf")


@recorded
def preprocessing_fn(folder: Path) -> ss.Recipe:
    """A full pass of tensorflow-transform over the train split."""
    return example("titanic")
