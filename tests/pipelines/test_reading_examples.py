"""The examples of docs/reading.md run, and do what the text beside them says."""

import re
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf

from snapshard.schemas.features import ClassLabel, Features, Image, Tensor
from snapshard.transforms.examples.index import write_index_table

from ..integration.documented import code_blocks, run_examples
from .made_snapshots import list_files

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "reading.md"
FEATURES: Features = {"label": ClassLabel(names=("a", "b")), "x": Tensor("float32", (3,))}
PICTURES: Features = {"image": Image(4, 4), "label": ClassLabel(names=("a", "b"))}


def run(heading: str, reader: types.ModuleType) -> dict[str, Any]:
    """Runs the Python blocks of a section in order; returns their variables."""
    blocks = code_blocks(DOCUMENT, heading)
    assert blocks
    variables: dict[str, Any] = {"reader": reader, "tf": tf}
    exec("\n".join(blocks), variables)
    return variables


def records(num: int) -> list[dict[str, Any]]:
    return [{"label": i % 2, "x": [float(i % 7), 1.0, float(i)]} for i in range(num)]


def positions(dataset: Any) -> list[int]:
    """The number of each record in its split."""
    return [int(x[2]) for batch in dataset for x in batch["x"].numpy()]


@pytest.fixture(scope="module")
def reader(
    tmp_path_factory: pytest.TempPathFactory, write_snapshot: Callable[..., types.ModuleType]
) -> types.ModuleType:
    made = {"train": [records(2_000)[:900], records(2_000)[900:]], "validation": [records(300)]}
    folder = tmp_path_factory.mktemp("examples")
    reader = write_snapshot(folder, FEATURES, made)
    (folder / "index").mkdir()
    for split, shards in made.items():
        for path, shard in zip(sorted(folder.glob(f"{split}-*")), shards, strict=True):
            ids = pa.array([f"{split}/{one['x'][2]:g}" for one in shard], pa.large_string())
            write_index_table(f"{folder}/index/{path.name}.parquet", [ids], numbered=False)
    list_files(folder)
    return reader


@pytest.fixture(scope="module")
def folds(
    tmp_path_factory: pytest.TempPathFactory, write_snapshot: Callable[..., types.ModuleType]
) -> types.ModuleType:
    made = {f"fold{i}": [records(250)[50 * i : 50 * i + 50]] for i in range(5)}
    made["test"] = [records(30)]
    return write_snapshot(tmp_path_factory.mktemp("folds"), FEATURES, made)


@pytest.mark.slow
def test_parts_of_splits(reader: types.ModuleType) -> None:
    found = run("Parts of splits", reader)
    tenth, rest = positions(found["a_tenth"]), positions(found["the_rest"])
    assert sorted(tenth) == [*range(200)]
    assert sorted(rest) == [*range(200, 2_000)]
    assert positions(found["held_out"]) == [*range(1_500, 2_000)]
    assert sorted(positions(found["everything"])) == sorted([*range(2_000), *range(300)])
    for share, dataset in zip((1, 10, 50), found["learning_curve"], strict=True):
        epoch = dataset.unbatch().take(20 * share)
        assert sorted(int(one["x"][2]) for one in epoch) == [*range(20 * share)]


@pytest.mark.slow
def test_cross_validation(folds: types.ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    found = run("Cross-validation", folds)
    assert len(found["accuracy"]) == 5
    assert re.fullmatch(r"\d+\.\d%\n", capsys.readouterr().out)
    assert found["train"] == ["fold0", "fold1", "fold2", "fold3"]
    assert found["validation"] == "fold4"


def test_batches(
    tmp_path: Path,
    write_snapshot: Callable[..., types.ModuleType],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    pixels = np.arange(300 * 48, dtype=np.uint8).reshape(300, 48)
    made = [{"image": pixels[i], "label": i % 2} for i in range(300)]
    reader = write_snapshot(tmp_path / "pictures", PICTURES, {"train": [made]})
    found: dict[str, Any] = {"reader": reader, "tf": tf}
    run_examples(DOCUMENT, tmp_path, heading="Batches", block=0, variables=found)
    flipped, plain = found["train"], reader.dataset("train", 128, as_supervised=True, seed=1)
    num_flipped = 0
    for (images, _), (before, _) in zip(flipped, plain, strict=True):
        for image, one in zip(images.numpy(), before.numpy(), strict=True):
            is_flipped = not np.array_equal(image, one)
            np.testing.assert_array_equal(image, one[:, ::-1] if is_flipped else one)
            num_flipped += is_flipped
    assert 100 < num_flipped < 200
    run_examples(DOCUMENT, tmp_path, heading="Batches", block=1, variables=found)
    # The form for dicts, then the one for pairs.
    assert capsys.readouterr().out == code_blocks(DOCUMENT, "Batches", "")[0]
    run_examples(DOCUMENT, tmp_path, heading="Batches", block=2, variables=found)
    given, usual = found["train"], reader.dataset("train", 128, seed=1)
    for batch, expected in zip(given, usual, strict=True):
        for name in PICTURES:
            np.testing.assert_array_equal(batch[name], expected[name])


def test_single_examples(reader: types.ModuleType) -> None:
    found = run("Single examples", reader)
    assert found["example"]["label"].shape == ()
    batches = [x.shape[0] for x, _ in found["own_batches"]]
    assert batches == [64] * 31 + [16]


def test_ids(reader: types.ModuleType) -> None:
    found = run("Which record is it?", reader)
    expected = [i for i in range(300) if (i % 7 > 2.5) != i % 2]
    assert found["wrong"] == [f"validation/{i}".encode() for i in expected]
    numbers = found["batch"]["x"].numpy()[:, 2].tolist()
    assert found["batch"]["record_id"].numpy().tolist() == [b"train/%d" % i for i in numbers]


def test_filter(reader: types.ModuleType) -> None:
    found = run("Leaving out examples", reader)
    expected = [*range(1, 2_000, 2)]
    assert sorted(positions(found["some"])) == expected
    assert found["some"].cardinality() == tf.data.UNKNOWN_CARDINALITY
    sizes = [batch["label"].shape[0] for batch in found["some"]]
    assert {*sizes[:-1]} == {128}
