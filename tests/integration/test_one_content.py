"""What is lost between two attempts and made again with other bits never mixes with the rest.

A function that reads the environment stands for what no fingerprint covers: an analysis on an
engine, whose last bits differ from run to run, or a library that was replaced in place.
"""

import shutil
from pathlib import Path

import numpy as np
import pytest

import snapshard as ss
from snapshard.pipelines import build as builds
from snapshard.pipelines.recipe.shipping import load_recipe_file
from snapshard.schemas.errors import StorageError

ROWS = 400
HEAD = """\
import os

import snapshard as ss

def factor():
    return float(os.environ.get("FACTOR", "1"))

"""
GRAPH = (
    HEAD
    + """\
def scaled(inputs):
    import tensorflow_transform as tft

    return {"x": inputs["x"] * factor() + 0.0 * tft.max(inputs["x"])}

recipe = ss.Recipe(
    name="rows",
    source=ss.Csv("rows.csv", types={"x": "float32"}),
    preprocessing_fn=scaled,
    splits=ss.Splits(train=1.0),
    shards=ss.Shards(num_shards=4),
)
"""
)
RUNS = (
    HEAD
    + """\
def scaled(record):
    return {"x": record["x"] * factor()}

recipe = ss.Recipe(
    name="rows",
    source=ss.Csv("rows.csv", types={"x": "float32"}),
    prepare=[ss.records.map_python(scaled, {"x": ss.Scalar("float32")})],
    splits=ss.Splits(train=1.0),
    shards=ss.Shards(num_shards=4),
)
"""
)
STAGES = RUNS.replace(
    "prepare=[", 'prepare=[ss.records.map_python(scaled, {"x": ss.Scalar("float32")}), '
).replace(
    'ss.records.map_python(scaled, {"x": ss.Scalar("float32")})],',
    "ss.records.drop_duplicates()],",
)


@pytest.mark.slow  # builds twice
@pytest.mark.parametrize(
    ("text", "lost", "stopped_at"),
    [
        pytest.param(GRAPH, "graphs", "publish", id="graph, with its shards written"),
        pytest.param(RUNS, "runs", "write_shards", id="runs, no shard written"),
        pytest.param(RUNS, "runs", "publish", id="runs, with their shards written"),
        pytest.param(STAGES, "runs", "write_shards", id="runs of two stages, no shard written"),
        pytest.param(STAGES, "runs", "publish", id="runs of two stages, with their shards written"),
    ],
)
def test_a_snapshot_is_of_one_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, lost: str, stopped_at: str
) -> None:
    (tmp_path / "rows.csv").write_text("x\n" + "".join(f"{n}\n" for n in range(1, ROWS + 1)))
    (tmp_path / "recipe.py").write_text(text)
    recipe = load_recipe_file(str(tmp_path / "recipe.py"))
    assert isinstance(recipe, ss.Recipe)
    out = tmp_path / "out"

    def stop(*_: object, **__: object) -> None:
        raise StorageError("stopped")

    with monkeypatch.context() as patched:
        patched.setattr(builds, stopped_at, stop)
        with pytest.raises(StorageError, match="stopped"):
            ss.build(recipe, out)
    folder = out / "rows" / ".work" / lost
    if lost == "runs":  # of the first stage alone, as far as that can be said by time
        newest = sorted(folder.rglob("*.arrow"), key=lambda path: path.stat().st_mtime_ns)[0]
        for path in folder.rglob(f"{newest.stem}*"):
            path.unlink()
    else:
        shutil.rmtree(folder)
    monkeypatch.setenv("FACTOR", "3")
    snapshot = ss.build(recipe, out)
    reader = snapshot.reader()
    values = np.sort([float(record["x"]) for record in reader.arrays.Records("train")])
    assert values.tolist() == [3.0 * n for n in range(1, ROWS + 1)]
