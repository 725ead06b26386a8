"""The same recipe and the same data give the same bytes, wherever and however they are built."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ..small_blocks import small_blocks

TABLE_RECIPE = """
import snapshard as ss


def preprocessing_fn(inputs):
    import tensorflow as tf
    import tensorflow_transform as tft

    return {
        "size": tft.scale_to_z_score(inputs["size"]),
        "weight": tft.scale_to_0_1(inputs["weight"]),
        "weight_bucket": tft.bucketize(inputs["weight"], num_buckets=7),
        "town": tft.compute_and_apply_vocabulary(inputs["town"], vocab_filename="town"),
        "class": inputs["class"],
    }


recipe = ss.Recipe(
    name="table",
    source=ss.Csv("table", label="class"),
    preprocessing_fn=preprocessing_fn,
    splits=ss.Splits(train=0.8, test=0.2, stratify_by="class"),
    shards=ss.Shards(num_shards=3),
)
"""


def make_table(folder: Path) -> None:
    """Eight files, 1,600 rows: towns of equal frequency, missing sizes, weights of any scale."""
    rng = np.random.default_rng(0)
    towns = [f"town {i % 20}" for i in range(1600)]
    rng.shuffle(towns)
    folder.mkdir(parents=True)
    for part in range(8):
        lines = ["size,weight,town,class"]
        for row in range(part * 200, (part + 1) * 200):
            size = "" if rng.random() < 0.1 else repr(float(rng.normal(1e3, 7)))
            weight = repr(float(np.exp(rng.normal(0, 5))))
            lines.append(f"{size},{weight},{towns[row]},{rng.choice(['a', 'b', 'c'])}")
        (folder / f"part {part}.csv").write_text("\n".join(lines) + "\n")


@pytest.mark.slow  # two builds
@pytest.mark.parametrize(
    "rest",
    [
        'prepare=[ss.images.decode("image"), ss.images.resize("image", (8, 8))],',
        "prepare=[], shards=ss.Shards(num_shards=3),",
        'prepare=[ss.images.decode("image", channels=1)], shards=ss.Shards(compression="gzip"),'
        ' splits=ss.Splits(train=0.7, test=0.3, stratify_by="label"),',
    ],
    ids=["resized", "as they are", "grey, gzip, stratified"],
)
def test_images_elsewhere(
    lab: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rest: str
) -> None:
    """From another folder, in another order, with other times, and in blocks of another size."""
    first = lab.build(lab.image_project(tmp_path / "here", rest=rest), tmp_path / "out")
    there = tmp_path / "somewhere" / "else"
    lab.copy_shuffled(tmp_path / "here", there)
    small_blocks(monkeypatch, 30_000)
    second = lab.build(there / "recipe.py", tmp_path / "other place")
    assert lab.build_facts(second)["blocks"]["total"] > lab.build_facts(first)["blocks"]["total"]
    assert lab.hashes(first) == lab.hashes(second)
    assert len(lab.hashes(first)) >= 10


@pytest.mark.slow
def test_files_that_are_no_records_do_not_count(lab: Any, tmp_path: Path) -> None:
    first = lab.build(lab.image_project(tmp_path / "here", num=10), tmp_path / "out")
    lab.copy_shuffled(tmp_path / "here", tmp_path / "there")
    (tmp_path / "there" / "images" / "class 0" / "Thumbs.db").write_bytes(b"icons")
    second = lab.build(tmp_path / "there" / "recipe.py", tmp_path / "other")
    assert lab.build_facts(second)["input"]["skipped"] == {"Thumbs.db": 1}
    assert lab.hashes(first) == lab.hashes(second)


@pytest.mark.slow  # tensorflow-transform in a child process, twice, and worker processes
def test_table_with_preprocessing_fn(
    lab: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A z-score, buckets and a vocabulary with ties, of several files, by one worker and by two."""
    # The analysis reads run by run: of how blocks are cut, its last bits may speak.
    small_blocks(monkeypatch, 20_000)
    make_table(tmp_path / "here" / "table")
    (tmp_path / "here" / "recipe.py").write_text(TABLE_RECIPE)
    first = lab.build(tmp_path / "here" / "recipe.py", tmp_path / "out")
    assert lab.build_facts(first)["blocks"]["prepared"] > 2
    lab.copy_shuffled(tmp_path / "here", tmp_path / "there")
    second = lab.build(tmp_path / "there" / "recipe.py", tmp_path / "other", workers=2)
    assert lab.hashes(first) == lab.hashes(second)
    graph = {name for name in lab.hashes(first) if name.startswith("transform_fn/")}
    assert {"transform_fn/saved_model.pb", "transform_fn/assets/town"} <= graph
    assert "transform_fn/fingerprint.pb" not in graph


@pytest.mark.slow  # two builds by the command line
def test_shipped_examples_by_the_command_line(
    lab: Any, tmp_path: Path, examples: Path, shared: Callable[[str], Path], sign_digits: Any
) -> None:
    """In processes with hash seeds of their own, from a copy, the workers' processes too."""
    lab.copy_shuffled(examples, tmp_path / "examples")
    done = lab.run_cli(
        "build",
        tmp_path / "examples" / "sign_digits.py",
        "--out",
        "relative",
        "--workers",
        "2",
        "--json",
        cwd=tmp_path,
    )
    assert lab.build_facts(sign_digits)["blocks"]["prepared"] > 10
    assert lab.hashes(lab.last_json(done)["path"]) == lab.hashes(sign_digits)
