"""Arrays named after splits, as in the .npz files of Keras: x_train, y_train, x_test, y_test."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import snapshard as ss
from snapshard.pipelines.inspect.suggest import describe_suggestion, suggest_recipe
from snapshard.pipelines.recipe.shipping import load_recipe_file
from snapshard.schemas.errors import RecipeError, SchemaError
from snapshard.transforms.sources.numpy import split_names

from .built import build_all

SIZES = {"train": 30, "test": 12}
RNG = np.random.default_rng(0)
ARRAYS = {
    f"{name}_{split}": RNG.integers(0, 256 if name == "x" else 10, (size, *shape), np.uint8)
    for split, size in SIZES.items()
    for name, shape in (("x", (4, 6)), ("y", ()))
}


def _saved(folder: Path, **arrays: Any) -> str:
    np.savez_compressed(folder / "mnist.npz", **(ARRAYS | arrays))
    return str(folder / "mnist.npz")


def test_each_split_comes_back_equal(tmp_path: Path) -> None:
    source = ss.Numpy(
        _saved(tmp_path), split_arrays=True, label="y", types={"x": ss.Image(4, 6, 1)}
    )
    splits = ss.Splits.by_folder(train="train", test="test")
    snapshot = build_all(tmp_path, source, splits=splits)
    assert snapshot.manifest.label == "y"
    for split, size in SIZES.items():
        found = []
        for batch in snapshot.reader().dataset(split, 8, shuffle=False, drop_remainder=False):
            rows = zip(batch["x"].numpy(), batch["y"].numpy(), strict=True)
            found += [(x.tobytes(), int(y)) for x, y in rows]
        wanted = zip(ARRAYS[f"x_{split}"], ARRAYS[f"y_{split}"], strict=True)
        assert sorted(found) == sorted((x.tobytes(), int(y)) for x, y in wanted)
        assert len(found) == size
    assert build_all(tmp_path, source, splits=splits).cached


def test_ids_name_the_split_and_the_row(lab: Any, tmp_path: Path) -> None:
    source = ss.Numpy(_saved(tmp_path), split_arrays=True)
    snapshot = build_all(tmp_path, source, splits=ss.Splits.by_folder())
    rows = lab.stored_rows(snapshot)
    assert rows.keys() == {f"train/mnist.npz#{row}" for row in range(30)} | {
        f"test/mnist.npz#{row}" for row in range(30, 42)
    }
    np.testing.assert_array_equal(rows["test/mnist.npz#31"]["x"], ARRAYS["x_test"][1])


def test_arrays_that_begin_with_their_split(tmp_path: Path) -> None:
    """As MedMNIST's do, whose labels are of shape (n, 1)."""
    arrays = {
        f"{split}_{name}": RNG.integers(0, 256 if name == "images" else 9, (size, *shape), np.uint8)
        for split, size in (("train", 30), ("val", 6), ("test", 12))
        for name, shape in (("images", (4, 6, 3)), ("labels", (1,)))
    }
    np.savez(tmp_path / "pathmnist.npz", **arrays)
    recipe = suggest_recipe(str(tmp_path / "pathmnist.npz"))
    assert recipe.source.label == "labels"
    snapshot = ss.build(recipe, tmp_path / "out", workers=1)
    found = {name: split.num_examples for name, split in snapshot.manifest.splits.items()}
    assert found == {"train": 30, "validation": 6, "test": 12}
    (batch,) = snapshot.reader().dataset("test", 12, shuffle=False)
    rows = zip(batch["images"].numpy(), batch["labels"].numpy(), strict=True)
    wanted = zip(arrays["test_images"], arrays["test_labels"], strict=True)
    assert sorted((x.tobytes(), int(y[0])) for x, y in rows) == sorted(
        (x.tobytes(), int(y[0])) for x, y in wanted
    )


def test_it_is_suggested(tmp_path: Path) -> None:
    url = _saved(tmp_path)
    recipe = suggest_recipe(url)
    assert recipe.source == ss.Numpy(url, split_arrays=True, label="y")
    assert recipe.splits == ss.Splits.by_folder(train="train", test="test")
    text = describe_suggestion(url)
    assert "split_arrays=True" in text
    assert 'splits=ss.Splits.by_folder(train="train", test="test")' in text
    snapshot = ss.build(recipe, tmp_path / "out", workers=1)
    found = {name: split.num_examples for name, split in snapshot.manifest.splits.items()}
    assert found == SIZES
    (tmp_path / "recipe.py").write_text(text)
    assert load_recipe_file(tmp_path / "recipe.py").splits == recipe.splits


@pytest.mark.parametrize(
    "arrays",
    [
        {"scale": np.zeros(3)},
        {"x_part": np.zeros(3)},
        {"_train": np.zeros(3)},
        {"val_loss": np.zeros(3)},
    ],
)
def test_other_arrays_are_not_taken_for_splits(tmp_path: Path, arrays: Any) -> None:
    url = _saved(tmp_path, **arrays)
    assert suggest_recipe(url).source == ss.Numpy(url)
    with pytest.raises(SchemaError, match="split_arrays=True expects"):
        build_all(tmp_path, ss.Numpy(url, split_arrays=True))
    assert not split_names([*ARRAYS, *arrays])


def test_a_row_that_does_not_fit_is_a_reject_of_its_split(tmp_path: Path) -> None:
    source = ss.Numpy(_saved(tmp_path), split_arrays=True, types={"y": ss.ClassLabel(tuple("abc"))})
    with pytest.raises(ss.SnapshardError, match=r"train/mnist\.npz#\d+"):
        build_all(tmp_path, source, splits=ss.Splits.by_folder())


def test_without_it_the_error_proposes_it(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match=r"split_arrays=True.*by_folder"):
        build_all(tmp_path, ss.Numpy(_saved(tmp_path)))


def test_arrays_must_belong_together(tmp_path: Path) -> None:
    for arrays, words in (
        ({"z_train": np.zeros(30)}, "has no array 'z' of 'test'"),
        ({"y_train": np.zeros(29)}, "'y': 29"),
        ({"x_test": np.zeros((12, 5, 6), np.uint8)}, "'test' differ from those of 'train'"),
    ):
        with pytest.raises(SchemaError, match=words):
            build_all(tmp_path, ss.Numpy(_saved(tmp_path, **arrays), split_arrays=True))
    np.save(tmp_path / "x.npy", np.zeros(3))
    with pytest.raises(SchemaError, match=r"not an \.npz"):
        build_all(tmp_path, ss.Numpy(str(tmp_path / "x.npy"), split_arrays=True))
    with pytest.raises(RecipeError, match="split_arrays"):
        ss.Numpy("x.npy", beside={"y": "y.npy"}, split_arrays=True)
