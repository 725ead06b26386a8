"""What a recipe accepts, what it refuses and how, and where relative sources count from."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import snapshard as ss


def _recipe(**arguments: Any) -> ss.Recipe:
    return ss.Recipe(**{"name": "r", "source": ss.ImageFolder("images"), **arguments})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "a/b"}, "name='a/b' is not a valid folder name"),
        ({"name": ""}, "is not a valid folder name"),
        ({"source": "images"}, "source='images' is not a source"),
        ({"prepare": ["resize"]}, "prepare contains 'resize'"),
        ({"prepare": [ss.images.decode]}, "prepare contains <class .*Decode'>, expected a step"),
        ({"prepare": ss.images.decode("image")}, "is not a list of steps"),
        ({"features": ["image"]}, r"features=\['image'\] is not a dict"),
        ({"features": {"image": 3}}, "declares 'image' as 3"),
        ({"features": {1: ss.Image()}}, "declares 1 as"),
        ({"splits": {"train": 1.0}}, r"splits=.*, expected ss\.Splits"),
        ({"shards": 3}, r"shards=3, expected ss\.Shards"),
        ({"preprocessing_fn": "f"}, "is not a function"),
        (
            {"preprocessing_fn": dict, "splits": ss.Splits(all=1.0)},
            "not among the splits all. Name one",
        ),
        ({"seed": 0.5}, "seed=0.5 is not an integer"),
        ({"seed": True}, "seed=True is not an integer"),
        ({"max_rejects": -1}, "max_rejects=-1"),
        ({"max_rejects": "1%"}, "max_rejects='1%'"),
        ({"max_rejects": float("nan")}, "max_rejects=nan"),
    ],
)
def test_refuses_with_the_argument_and_the_fix(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ss.SnapshardError, match=message) as raised:
        _recipe(**arguments)
    assert raised.value.exit_code == 2


@pytest.mark.parametrize(
    ("source", "max_rejects", "num_records", "budget"),
    [
        (ss.ImageFolder("images"), None, 1000, 10),
        (ss.ImageFolder("images"), None, 99, 0),
        (ss.Csv("t.csv"), None, 1000, 0),
        (ss.Csv("t.csv"), 0.5, 3, 1),
        (ss.Csv("t.csv"), 7, 3, 7),
        (ss.Csv("t.csv"), 1, 1000, 1),
    ],
)
def test_reject_budget(
    source: Any, max_rejects: float | None, num_records: int, budget: int
) -> None:
    recipe = _recipe(source=source, max_rejects=max_rejects)
    assert recipe.reject_budgets(num_records) == {"total": budget}


def test_folder_is_that_of_the_file_that_makes_the_recipe() -> None:
    # This file lies in the package's folder in an editable install, and is not of the package.
    assert _recipe().folder == str(Path(__file__).parent)


def test_folder_without_a_file_is_the_current_one(tmp_path: Path) -> None:
    code = "import snapshard as ss; print(ss.Recipe(name='r', source=ss.Csv('t.csv')).folder)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert Path(done.stdout.strip()) == tmp_path.resolve()


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (ss.Csv("a.csv"), "Csv(url='a.csv')"),
        (ss.Csv("a.csv", label="x"), "Csv(url='a.csv', label='x')"),
        (ss.Shards(), "Shards()"),
        (ss.Scalar("int64", min=0), "Scalar(min=0, dtype='int64')"),
        (ss.ClassLabel([str(n) for n in range(99)]), "ClassLabel(names=('0', '1', '2', '3', "),
        (ss.Splits(train=0.5, test=0.5), "Splits(train=0.5, test=0.5)"),
        (
            ss.Splits(train=0.5, test=0.5, group_by="a", assign="balanced"),
            'Splits(train=0.5, test=0.5, group_by="a", assign="balanced")',
        ),
        (ss.Splits.by_folder(), "Splits.by_folder()"),
        (ss.Splits.by_folder(train="a"), 'Splits.by_folder(train="a")'),
        (
            ss.Splits.by_column("part", train="a", test=("b", "c")),
            'Splits.by_column("part", train="a", test=("b", "c"))',
        ),
        (ss.Splits.by_time("t", train=3, test=None), 'Splits.by_time("t", train=3, test=None)'),
        (
            _recipe(prepare=[ss.images.decode("image")], seed=7),
            "Recipe(name='r', source=ImageFolder(url='images'), "
            """prepare=(ss.images.decode("image"),), seed=7)""",
        ),
    ],
)
def test_what_users_write_is_shown_without_defaults(value: object, shown: str) -> None:
    assert repr(value).startswith(shown)


def test_a_recipe_of_many_features_is_shown_in_short() -> None:
    features = {f"feature {n}": ss.Scalar("int64") for n in range(5000)}
    assert len(repr(_recipe(features=features))) < 600
