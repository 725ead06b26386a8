"""Recipes of tiny sources to kill builds of: between them they put every kind of file there is."""

import random
import sqlite3
from pathlib import Path

import numpy as np
from PIL import Image as PillowImage

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
