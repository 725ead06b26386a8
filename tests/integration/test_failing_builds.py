"""Builds that fail: what they leave and say."""

import json
from pathlib import Path
from typing import Any

import pytest

from .faults import run_here

FAILING_STEPS = {
    "raises": ("raise RuntimeError('no such luck')", "no such luck"),
    "unknown name": ("return record | {'image': undefined}", "undefined"),
    "no dict": ("return 3", "dict"),
    "unknown feature": ("return {'image': record['pixels']}", "pixels"),
}


@pytest.mark.parametrize("kind", FAILING_STEPS)
def test_step_that_fails(
    lab: Any, recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    body, word = FAILING_STEPS[kind]
    text = recipe.read_text().replace("(8, 8))", "(8, 8)), step")
    recipe.write_text(f"def step(record):\n    {body}\n\n\n{text}")
    ended = run_here(capsys, "build", recipe, "--out", tmp_path / "out", "--json")
    assert ended.code == 2, ended.stderr
    assert json.loads(ended.stdout)["error"]["exit_code"] == 2
    assert "error:" in ended.stderr
    assert word in ended.stderr
    assert "Traceback" not in ended.stderr
    assert not list(tmp_path.rglob("manifest.json"))


@pytest.mark.slow
def test_step_that_fails_on_a_record(lab: Any, recipe: Path, tmp_path: Path) -> None:
    """What a step refuses is a reject; the others go on."""
    recipe.write_text(
        "def step(record):\n"
        "    import tensorflow as tf\n\n"
        "    mean = tf.reduce_mean(tf.cast(record['image'], tf.float32))\n"
        "    tf.debugging.assert_less(mean, 128.0, 'too bright')\n"
        "    return record\n\n\n"
        + recipe.read_text().replace("(8, 8))]", "(8, 8)), step], max_rejects=0.9")
    )
    snapshot = lab.build(recipe, tmp_path / "out")
    rejects = lab.rejects(snapshot)
    assert 0 < len(rejects) < 60
    assert all("too bright" in row["message"] for row in rejects)
    held = lab.read_back(snapshot)
    assert len({*held.ids, *(row["id"] for row in rejects)}) == 60
    assert held.values["image"].mean(axis=(1, 2, 3)).max() < 128


@pytest.mark.parametrize(
    ("recipe_text", "code", "word"),
    [
        (
            "import snapshard as ss\n"
            "recipe = ss.Recipe(name='a b', source=ss.ImageFolder('images'))",
            2,
            "name=",
        ),
        ("recipe = 3", 2, "recipe"),
        ("import nowhere_to_be_found", 2, "nowhere_to_be_found"),
        ("recipe = (", 2, "line 1"),
        (
            "import snapshard as ss\n"
            "recipe = ss.Recipe(name='x', source=ss.ImageFolder('not there'))",
            2,
            "not there",
        ),
        (
            "import snapshard as ss\n"
            "recipe = ss.Recipe(name='x', source=ss.ImageFolder('images'),\n"
            "    splits=ss.Splits(train=1.0, stratify_by='nothing'))",
            2,
            "nothing",
        ),
        (
            "import snapshard as ss\n"
            "recipe = ss.Recipe(name='x', source=ss.ImageFolder('images'),\n"
            "    prepare=[ss.images.resize('image', (8, 8))])",
            2,
            "decode",
        ),
        (
            "import snapshard as ss\n"
            "recipe = ss.Recipe(name='x', source=ss.ImageFolder('images'),\n"
            "    features={'image': ss.Image(storage='encoded'), 'age': ss.Scalar('int64')})",
            3,
            "age",
        ),
        (
            "import snapshard as ss\nrecipe = ss.Recipe(name='x', source=ss.ImageFolder('empty'))",
            3,
            "empty",
        ),
    ],
    ids=["name", "no recipe", "import", "syntax", "source", "split", "step", "schema", "empty"],
)
def test_what_a_user_can_cause(
    lab: Any,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    recipe_text: str,
    code: int,
    word: str,
) -> None:
    lab.make_images(tmp_path / "images", num=3)
    (tmp_path / "empty").mkdir()
    (tmp_path / "recipe.py").write_text(recipe_text)
    ended = run_here(capsys, "build", tmp_path / "recipe.py", "--out", tmp_path / "out", "--json")
    assert ended.code == code, ended.stderr
    assert json.loads(ended.stdout)["error"]["exit_code"] == code
    assert ended.stderr.startswith("error:") or "\nerror:" in ended.stderr
    assert word in ended.stderr
    assert "Traceback" not in ended.stderr
    assert not list(tmp_path.rglob("manifest.json"))


@pytest.mark.slow
def test_preprocessing_fn_that_fails(
    examples: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "data").symlink_to(examples / "data")
    text = (examples / "penguins.py").read_text()
    assert 'inputs["island"]' in text
    recipe = tmp_path / "penguins.py"
    recipe.write_text(text.replace('inputs["island"]', 'inputs["isle"]'))
    ended = run_here(capsys, "build", recipe, "--out", tmp_path / "out", "--json")
    assert ended.code == 2, ended.stderr
    assert json.loads(ended.stdout)["error"]["exit_code"] == 2
    assert "isle" in ended.stderr
    assert "penguins.py line" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert not list((tmp_path / "out").rglob("manifest.json"))
