"""Builds the snapshots that benchmarks/read.py reads: one of each kind, as named.

All have 16 shards, so that the contenders draw on as many files in each kind, except those of
first_batch.py.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import snapshard as ss

WORDS = (
    "the of and to in a is that for it as was with be by on not he his but at are this have from "
    "or had an they which one you were all her she there would their we him been has when who "
    "will more no if out so said what up its about into than them can only other new some could"
)


def table(num_rows: int) -> pa.Table:
    """Ten float32, nine int64 of one to nine digits, two words and a label; nothing is missing."""
    rng = np.random.default_rng(0)
    columns: dict[str, Any] = {
        f"x{i}": rng.normal(i, 1 + i, num_rows).astype(np.float32) for i in range(10)
    }
    columns |= {f"n{i}": rng.integers(0, 10 ** (i + 1), num_rows) for i in range(9)}
    for i in range(2):
        names = np.array([f"word {number}" for number in range(10 ** (i + 1))])
        columns[f"w{i}"] = rng.choice(names, num_rows)
    columns["label"] = rng.integers(0, 2, num_rows)
    return pa.table(columns)


def lines(num_rows: int) -> pa.Table:
    """Lines of 5 to 25 common words, the common ones more often, each with one of four labels."""
    rng = np.random.default_rng(1)
    known = np.array(WORDS.split())
    weights = 1 / np.arange(1, len(known) + 1)
    ends = np.cumsum(rng.integers(5, 26, num_rows))
    words = rng.choice(known, ends[-1], p=weights / weights.sum())
    text = [" ".join(part) for part in np.split(words, ends[:-1])]
    labels = rng.choice(np.array(["business", "science", "sports", "world"]), num_rows)
    return pa.table({"text": text, "label": labels})


def recipe(kind: str, images: str, num_rows: int) -> ss.Recipe:
    """The recipe of one kind: raw, jpeg, table or text, and behind it "gzip" or "split".

    With "split", it has the default splits and shards, like a user's first recipe.
    """
    form, _, behind = kind.partition(" ")
    prepare: list[Any] = []
    source: Any = ss.ImageFolder(images)
    if form == "raw":
        prepare = [ss.images.decode("image"), ss.images.resize("image", (64, 64))]
    elif form == "table":
        source = ss.Table(table(num_rows), label="label")
    elif form == "text":
        source = ss.Table(lines(num_rows), label="label")
    name = kind.replace(" ", "-")
    if behind == "split":
        return ss.Recipe(name=name, source=source, prepare=prepare)
    return ss.Recipe(
        name=name,
        source=source,
        prepare=prepare,
        splits=ss.Splits(train=1.0),
        shards=ss.Shards(num_shards=16, compression="gzip" if behind else "none"),
    )


def main() -> None:
    """Usage: read_snapshots.py IMAGES OUT ROWS KIND …; prints kind -> folder as JSON."""
    images, out, num_rows, *kinds = sys.argv[1:]
    found = {}
    for kind in kinds:
        snapshot = ss.build(recipe(kind, images, int(num_rows)), out)
        found[kind] = str(Path(snapshot.path).resolve())
    print(json.dumps(found))


if __name__ == "__main__":
    main()
