"""Builds the snapshots of numbered records that benchmarks/read_mixing.py reads."""

import json
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
from read_snapshots import table

import snapshard as ss


def records(num: int) -> pa.Table:
    """Records of 12 kB, as images of 64×64 are."""
    content = np.random.default_rng(0).integers(0, 256, (num, 12_288), np.uint8)
    return pa.table({"content": [row.tobytes() for row in content]})


def classified(num: int) -> pa.Table:
    """The rows of benchmarks/read.py, whose label is one of two classes."""
    found = table(num)
    classes = np.where(found["label"].to_numpy() > 0, "yes", "no")
    return found.set_column(found.schema.get_field_index("label"), "label", pa.array(classes))


def main() -> None:
    """Usage: numbered_snapshot.py OUT ROWS SHARDS IMAGES GZIP; prints its folder as JSON."""
    out, num, shards, images, gzip = sys.argv[1:]
    found = records(int(num)) if images == "True" else classified(int(num))
    found = found.append_column("number", pa.array(np.arange(int(num))))
    recipe = ss.Recipe(
        name="numbered",
        source=ss.Table(found, label=None if images == "True" else "label"),
        splits=ss.Splits(train=1.0),
        shards=ss.Shards(num_shards=int(shards), compression="gzip" if gzip == "True" else "none"),
    )
    print(json.dumps(str(Path(ss.build(recipe, out).path).resolve())))


if __name__ == "__main__":
    main()
