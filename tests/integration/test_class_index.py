"""``index/<shard>.labels``: the class of each record, as the records themselves have it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import snapshard as ss


def stored(snapshot: ss.Snapshot) -> list[int]:
    """What the files say, all splits and shards in their order."""
    codes = []
    for split in snapshot.manifest.splits.values():
        for shard in split.shards:
            name = f"index/{shard.file}.labels"
            content = (Path(snapshot.path) / name).read_bytes()
            assert snapshot.manifest.files[name].bytes == len(content) == 4 * shard.num_examples
            codes.extend(np.frombuffer(content, "<i4").tolist())
    return codes


def write_table(folder: Path, features: str, *, shards: str) -> Path:
    rows = [f"{i},{('', 'b', 'a', 'c')[i * i % 7 % 4]}\n" for i in range(90)]
    (folder / "table.csv").write_text("x,y\n" + "".join(rows))
    path = folder / "recipe.py"
    path.write_text(
        "import snapshard as ss\n"
        'recipe = ss.Recipe(name="made", source=ss.Csv("table.csv", label="y"),\n'
        f"    features={features}, shards=ss.Shards({shards}))\n"
    )
    return path


def test_images(lab: Any, sign_digits: ss.Snapshot) -> None:
    assert stored(sign_digits) == lab.read_back(sign_digits).values["label"].tolist()


@pytest.mark.slow  # worker processes that load TensorFlow
def test_several_shards_by_two_workers(lab: Any, recipe: Path, tmp_path: Path) -> None:
    text = recipe.read_text().replace("prepare=", "shards=ss.Shards(num_shards=3), prepare=")
    recipe.write_text(text)
    snapshot = lab.build(recipe, tmp_path / "one")
    assert stored(snapshot) == lab.read_back(snapshot).values["label"].tolist()
    hashes = lab.hashes(snapshot)
    assert sum(name.endswith(".labels") for name in hashes) > 3
    assert lab.hashes(lab.build(recipe, tmp_path / "two", workers=2)) == hashes


def test_optional_classes_and_gzip(lab: Any, tmp_path: Path) -> None:
    features = '{"x": ss.Scalar("int64"), "y": ss.ClassLabel(("c", "a", "b"), optional=True)}'
    recipe = write_table(tmp_path, features, shards='compression="gzip"')
    snapshot = lab.build(recipe, tmp_path / "out")
    codes = stored(snapshot)
    assert codes == lab.read_back(snapshot).values["y"].tolist()
    assert {-1, 1, 2} <= set(codes)
    reader = snapshot.reader()
    train = codes[: reader.NUM_EXAMPLES["train"]]
    assert [name.endswith(".gz.labels") for name in snapshot.manifest.files].count(True) == 3
    assert sum(train[i] == -1 for i in range(len(train))) > 0


def test_none_where_the_label_is_no_class(lab: Any, tmp_path: Path) -> None:
    features = '{"x": ss.Scalar("int64"), "y": ss.Scalar("string", optional=True)}'
    snapshot = lab.build(write_table(tmp_path, features, shards=""), tmp_path / "out")
    assert snapshot.manifest.label == "y"
    assert not [name for name in snapshot.manifest.files if name.endswith(".labels")]


@pytest.mark.slow
def test_a_shard_without_its_classes_is_written_again(
    lab: Any, recipe: Path, tmp_path: Path
) -> None:
    snapshot = lab.build(recipe, tmp_path / "out")
    hashes, folder = lab.hashes(snapshot), Path(snapshot.path)
    (lost,) = (folder / "index").glob("test-*.labels")
    lost.unlink()
    (folder / "manifest.json").unlink()
    again = lab.build(recipe, tmp_path / "out")
    assert lab.build_facts(again)["shards"]["written"] == 1
    assert lab.hashes(again) == hashes
