"""``croissant.json`` describes the snapshot, as its metadata are now."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import snapshard as ss
from snapshard.pipelines.inspect.verify import check_snapshot
from snapshard.pipelines.publish.croissant import croissant
from snapshard.schemas.manifest import ShardEntry, SplitEntry
from snapshard.schemas.naming import CROISSANT
from snapshard.schemas.progress import Silent

from .test_reader_every_type import EVERY
from .test_tfds import manifest_of

PEERS = os.environ.get("SNAPSHARD_PEERS", sys.executable)
METADATA: dict[str, Any] = {
    "description": "Birds, “seen” from a window.",
    "version": "1.2.0",
    "license": "CC-BY-4.0",
    "citation": "@misc{birds}",
    "tags": ("birds", "images"),
}
READ = """
import json, sys, warnings
import mlcroissant
dataset = mlcroissant.Dataset(jsonld=sys.argv[1])
issues = dataset.metadata.issues.warnings
tables = [table.id for table in dataset.metadata.record_sets if table.data]
rows = {name: [dict(row) for row in dataset.records(name)] for name in tables}
print(json.dumps([sorted(map(str, issues)), rows], default=bytes.decode))
"""


def shard(name: str) -> ShardEntry:
    return ShardEntry(file=name, num_examples=1, num_bytes=9, sha256="0" * 64, label_counts={})


def described(features: dict[str, Any], metadata: Any, **changes: Any) -> Any:
    names = [f"train-{n:05d}-of-00002.tfrecord" for n in range(2)]
    shards = {
        "train": SplitEntry(num_examples=2, num_bytes=18, shards=[*map(shard, names)]),
        "test": SplitEntry(num_examples=0, num_bytes=0, shards=[]),
    }
    return json.loads(croissant(manifest_of(features, splits=shards, **changes), metadata))


def test_what_it_says() -> None:
    found = described({"label": ss.ClassLabel(("a", "b")), "x": ss.Scalar("float32")}, METADATA)
    assert (found["name"], found["identifier"]) == ("made", "0123456789abcdef")
    assert (found["license"], found["version"]) == ("CC-BY-4.0", "1.2.0")
    assert (found["citeAs"], found["keywords"]) == ("@misc{birds}", ["birds", "images"])
    first, second, files = found["distribution"]
    assert first["contentUrl"] == "train-00000-of-00002.tfrecord"
    assert (second["sha256"], second["contentSize"]) == ("0" * 64, "9 B")
    assert files["includes"] == "*.tfrecord"
    splits, classes, records = found["recordSet"]
    assert splits["data"] == [{"splits/name": "test"}, {"splits/name": "train"}]
    assert [row["classes-label/name"] for row in classes["data"]] == ["a", "b"]
    kinds = {field["name"]: field["dataType"] for field in records["field"]}
    assert kinds == {"split": "sc:Text", "label": "sc:Integer", "x": "sc:Float"}


def test_ids_are_unique_and_have_no_blanks() -> None:
    names = ("a b", "a-b", "a/b", "split", "ü")
    found = described(dict.fromkeys(names, ss.Scalar("bool")), {})
    ids = [field["@id"] for field in found["recordSet"][-1]["field"]]
    assert len({*ids}) == 6
    assert all(id_.isascii() and " " not in id_ for id_ in ids)


def test_a_cached_build_updates_it(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("x,y\n1,a\n2,b\n3,c\n")

    def build(**metadata: Any) -> Any:
        recipe = ss.Recipe(
            name="described", source=ss.Csv(str(tmp_path / "t.csv")), splits=ss.Splits(train=1.0),
            **metadata,
        )  # fmt: skip
        snapshot = ss.build(recipe, tmp_path / "out")
        assert check_snapshot(snapshot.path, progress=Silent()).exit_code == 0
        return snapshot, json.loads(Path(snapshot.path, CROISSANT).read_bytes())

    first, plain = build()
    assert "description" not in plain
    again, told = build(**METADATA)
    assert (first.path, again.cached) == (again.path, True)
    assert told == plain | {
        "description": METADATA["description"],
        "version": "1.2.0",
        "license": "CC-BY-4.0",
        "citeAs": "@misc{birds}",
        "keywords": ["birds", "images"],
    }


@pytest.mark.peers
@pytest.mark.parametrize(
    ("metadata", "num_warnings"), [(METADATA, 1), ({}, 4)], ids=["described", "plain"]
)
def test_mlcroissant_accepts_it(tmp_path: Path, metadata: Any, num_warnings: int) -> None:
    """What is missing is only recommended: a date of publication, and what nobody declared."""
    has = "from importlib.util import find_spec; print(bool(find_spec('mlcroissant')))"
    done = subprocess.run([PEERS, "-c", has], capture_output=True, text=True, check=True)
    if done.stdout.strip() != "True":
        pytest.skip("needs mlcroissant: make peers, or a Python that has it in SNAPSHARD_PEERS")
    path = tmp_path / CROISSANT
    path.write_text(json.dumps(described(EVERY, metadata)))
    done = subprocess.run(
        [PEERS, "-c", READ, str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    warnings, rows = json.loads(done.stdout.splitlines()[-1])
    assert len(warnings) == num_warnings
    assert all("is recommended, but does not exist" in text for text in warnings)
    assert rows["splits"] == [{"splits/name": "test"}, {"splits/name": "train"}]
    assert [row["classes-class/name"] for row in rows["classes-class"]] == ["a", "b", "c"]
