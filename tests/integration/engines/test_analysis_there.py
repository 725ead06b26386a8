"""The analysis on an engine, and beside it: what is equal to the bit, and what to 1e-6."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import snapshard as ss
from snapshard.pipelines.inspect.why import why
from snapshard.pipelines.recipe.shipping import load_recipe_file
from snapshard.transforms.analysis.graph import TransformGraph
from snapshard.transforms.runs.files import wire_schema

from ...small_blocks import small_blocks

pytestmark = pytest.mark.slow  # each analysis loads TensorFlow and sets up a job of many steps

RECIPE = """
import snapshard as ss
import tensorflow as tf
import tensorflow_transform as tft
from words import NUM_QUANTILES


def preprocess(inputs):
    number = inputs["number"]
    zeros = tf.zeros_like(number)
    quantiles = tft.quantiles(number, NUM_QUANTILES, 0.0001)
    return {{
        "min": zeros + tft.min(number),
        "max": zeros + tft.max(number),
        "count": tf.zeros_like(inputs["label"]) + tft.size(number),
        "total": tf.zeros_like(inputs["label"]) + tft.sum(inputs["label"]),
        "mean": zeros + tft.mean(number),
        "var": zeros + tft.var(number),
        "z": tft.scale_to_z_score(number),
        "quantiles": tf.tile(quantiles, [tf.shape(number)[0], 1]),
        "word": tft.compute_and_apply_vocabulary(inputs["word"]),
        "label": inputs["label"],
    }}


recipe = ss.Recipe(
    name="table",
    source=ss.Csv("table", label="label"),
    preprocessing_fn=preprocess,
    shards=ss.Shards(num_shards=2),
    {rest}
)
"""
EXACT = ("min", "max", "count", "total", "word")
CLOSE = ("mean", "var", "quantiles")
"""Quantiles, as far as their sketch holds all values: few records, and a small epsilon."""


@pytest.fixture(autouse=True)
def several_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    small_blocks(monkeypatch, 1)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four files, each of more rows than one batch of an analysis has, which is 4,096."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "table").mkdir()
    rng = np.random.default_rng(5)
    for number in range(4):
        rows = [
            f"{value:.5f},word {word},{'no' if value < 1000 else 'yes'}"
            for value, word in zip(
                rng.normal(1000, 30, 4500), rng.integers(0, 300, 4500), strict=True
            )
        ]
        text = "\n".join(["number,word,label", *rows])
        (folder / "table" / f"{number}.csv").write_text(text + "\n")
    (folder / "words.py").write_text("NUM_QUANTILES = 10\n")
    return folder


def build(project: Path, out: Path, rest: str = "", **how: Any) -> ss.Snapshot:
    path = project / f"recipe_{out.name}.py"
    path.write_text(RECIPE.format(rest=rest))
    snapshot = ss.build(load_recipe_file(path), out, **how)
    assert not snapshot.cached
    return snapshot


@pytest.fixture(scope="module")
def embedded(project: Path, tmp_path_factory: pytest.TempPathFactory) -> ss.Snapshot:
    """Of an analysis in one process beside the build."""
    with pytest.MonkeyPatch.context() as patch:
        small_blocks(patch, 1)
        return build(project, tmp_path_factory.mktemp("embedded") / "out")


def numbers(lab: Any, snapshot: ss.Snapshot) -> dict[str, Any]:
    """What the graph of a build makes of one record for each word, by name."""
    graph = TransformGraph(lab.build_facts(snapshot)["work"]["graph"])
    rows = 300
    batch = pa.RecordBatch.from_pydict(
        {
            "label": [0] * rows,
            "number": [number.tobytes() for number in np.linspace(900, 1100, rows)],
            "word": [b"word %d" % number for number in range(rows)],
        },
        schema=wire_schema(graph.info.inputs),
    )
    columns = graph.apply(batch)
    return {name: np.array(columns.column(name).to_pylist()) for name in columns.schema.names}


def check_same_but_last_bits(lab: Any, snapshot: ss.Snapshot, embedded: ss.Snapshot) -> None:
    assert len(lab.build_facts(embedded)["work"]["runs"]) >= 4
    found, expected = numbers(lab, snapshot), numbers(lab, embedded)
    assert expected["count"][0] == snapshot.manifest.splits["train"].num_examples
    for name in EXACT:
        np.testing.assert_array_equal(found[name], expected[name], err_msg=name)
    for name in CLOSE:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-6, err_msg=name)
    # What is computed with them has their error, in its own unit.
    unit = expected["mean"][0] / np.sqrt(expected["var"][0])
    np.testing.assert_allclose(found["z"], expected["z"], rtol=1e-6, atol=1e-6 * unit)
    (vocabulary,) = {
        (
            Path(one.path) / "transform_fn/assets/vocab_compute_and_apply_vocabulary_vocabulary"
        ).read_bytes()
        for one in (snapshot, embedded)
    }
    assert vocabulary.count(b"\n") == 300


def beside(embedded: ss.Snapshot, out: Path) -> Path:
    """An output root with the same prepared records."""
    shutil.copytree(Path(embedded.path).parent, out / "table")
    return out


def test_direct_with_workers(
    lab: Any, project: Path, embedded: ss.Snapshot, tmp_path: Path
) -> None:
    """In worker processes, which have the recipe's code from the workspace alone."""
    out = beside(embedded, tmp_path / "direct")
    snapshot = build(project, out, "analyze_on_runner=True,", workers=2)
    assert lab.build_facts(snapshot)["blocks"]["prepared"] == 0
    check_same_but_last_bits(lab, snapshot, embedded)
    assert str(tmp_path).encode() not in b"".join(
        path.read_bytes() for path in Path(snapshot.path).glob("transform_fn/**/*.pb")
    )
    # The graph is pinned: what is built again, by whatever engine, has the same bytes.
    before = lab.hashes(snapshot)
    shutil.rmtree(snapshot.path)
    shutil.rmtree(out / "table/.work/shards")
    assert lab.hashes(build(project, out, "analyze_on_runner=True,")) == before
    assert list((out / "table/.work/scratch").iterdir()) == []
    (change, *_) = why(embedded, snapshot).changes
    assert (change.part, change.thing, change.new) == ("analysis", "engine", "the runner")


@pytest.mark.engine
def test_embedded_flink(
    lab: Any, project: Path, embedded: ss.Snapshot, flink_jar: Path, tmp_path: Path
) -> None:
    out = beside(embedded, tmp_path / "flink")
    runner = ss.Flink(workers=2, jar=str(flink_jar))
    snapshot = build(project, out, "analyze_on_runner=True,", runner=runner)
    check_same_but_last_bits(lab, snapshot, embedded)


def test_transform_from_another_build(
    lab: Any, project: Path, embedded: ss.Snapshot, tmp_path: Path
) -> None:
    """Equal to the bit, but for the fingerprint, which the reader and the manifest name."""
    given = build(project, tmp_path / "given", f"transform_from={embedded.path!r},")
    found, expected = lab.hashes(given), lab.hashes(embedded)
    assert found.keys() == expected.keys()
    assert {name for name in found if found[name] != expected[name]} == {
        "reader/facts.py",
        "manifest.json",
    }
    texts = [
        (Path(one.path) / "reader" / "facts.py").read_text().replace(one.manifest.fingerprint, "")
        for one in (given, embedded)
    ]
    assert texts[0] == texts[1]
    # Neither the place of the graph nor the function that does not run counts.
    url = lab.build_facts(given)["work"]["graph"]
    recipe = load_recipe_file(project / "recipe_given.py")
    path = project / "recipe_again.py"
    rest = f"transform_from={url!r},"
    path.write_text(RECIPE.format(rest=rest).replace("preprocessing_fn=preprocess,", ""))
    assert recipe.preprocessing_fn is not None
    assert ss.build(load_recipe_file(path), tmp_path / "given").cached
    (change,) = (c for c in why(embedded, given).changes if c.thing == "transform_from")
    assert (change.part, change.kind) == ("analysis", "added")
    content = json.loads((Path(given.path) / "metadata/graph.json").read_text())
    assert set(content["files"]) < set(found)
