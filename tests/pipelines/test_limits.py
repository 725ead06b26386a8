"""Limits: exactly the records with the lowest keys, whatever the splits; no other files read."""

import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import snapshard as ss
from snapshard.pipelines.inventory.sample import Limit, lowest_files
from snapshard.pipelines.plan.ranges import plan_splits
from snapshard.schemas.blocks import SourceFile
from snapshard.schemas.errors import RecipeError
from snapshard.schemas.splits import KEY_SPACE, Splits
from snapshard.transforms.runs.keys import record_keys

from .test_plan import make_records

KINDS = ("hash", "stratified", "grouped")


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_the_lowest_keys_are_planned_and_no_others(data: Any) -> None:
    num = data.draw(st.integers(1, 60), label="num")
    close = data.draw(st.booleans(), label="close")
    seed = data.draw(st.integers(0, 99), label="seed")
    rng = random.Random(seed)
    top = 1 << 50 if close else KEY_SPACE
    keys = rng.sample(range(top), num) if close else [rng.randrange(top) for _ in range(num)]
    kind = data.draw(st.sampled_from(KINDS), label="kind")
    splits = {
        "hash": Splits(train=0.5, test=0.5),
        "stratified": Splits(train=0.5, test=0.5, stratify_by="s"),
        "grouped": Splits(train=0.5, test=0.5, group_by="g"),
    }[kind]
    strata = [rng.choice([b"a", b"b", b"c"]) for _ in keys] if kind == "stratified" else None
    partitions = [rng.randrange(2) for _ in keys] if kind == "grouped" else None
    records = make_records(keys, [10] * num, partitions=partitions, strata=strata)
    limit = data.draw(st.integers(1, num + 2), label="limit")
    plans = plan_splits(
        records.histogram,
        splits=splits,
        shards=ss.Shards(num_shards=2),
        size_ratio=1.0,
        read_keys=records.read_keys,
        limit=Limit(limit),
    )
    lowest = sorted(keys)[:limit]
    assert sum(shard.num_examples for plan in plans for shard in plan.shards) == len(lowest)
    held = []
    for row, key in enumerate(keys):
        stratum = strata[row].decode() if strata else ""
        for plan in plans:
            ranges = plan.strata[stratum] if plan.strata and stratum in plan.strata else None
            for shard in plan.shards:
                inside = shard.start_key <= key < shard.stop_key
                inside &= partitions is None or shard.partition == partitions[row]
                if plan.strata is not None:
                    inside &= ranges is not None and ranges[0] <= key < ranges[1]
                held += [key] if inside else []
    assert sorted(held) == lowest


def test_fractions_divide_the_sample() -> None:
    keys = record_keys([f"r{i}" for i in range(20_000)], 0).tolist()
    records = make_records(keys, [10] * len(keys))
    plans = plan_splits(
        records.histogram,
        splits=Splits(train=0.8, test=0.2),
        shards=ss.Shards(),
        size_ratio=1.0,
        read_keys=records.read_keys,
        limit=Limit(1000),
    )
    train, test = (sum(shard.num_examples for shard in plan.shards) for plan in plans)
    assert train + test == 1000
    assert 150 < test < 250


def test_files_with_the_lowest_keys() -> None:
    files = [SourceFile(path=f"a/{i}.jpg", num_bytes=1, stamp="") for i in range(50)]
    keys = record_keys([file.path for file in files], 3)
    found, stop = lowest_files(files, limit=7, seed=3)
    assert {file.path for file in found} == {files[i].path for i in np.argsort(keys)[:7]}
    assert stop == np.sort(keys)[7]
    assert lowest_files(files, limit=50, seed=3) == (tuple(files), KEY_SPACE)


def build(recipe: ss.Recipe, out: Path, limit: int | None) -> tuple[ss.Snapshot, set[str]]:
    snapshot = ss.build(recipe, out, limit=limit)
    import pyarrow.parquet as pq

    ids: set[str] = set()
    for split in snapshot.manifest.splits.values():
        for shard in split.shards:
            table = pq.read_table(Path(snapshot.path) / "index" / f"{shard.file}.parquet")
            ids.update(table.column("id").to_pylist())
    return snapshot, ids


def test_a_table_with_a_limit(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("n\n" + "".join(f"{i}\n" for i in range(300)))
    recipe = ss.Recipe(name="t", source=ss.Csv(str(tmp_path / "t.csv")))
    whole, all_ids = build(recipe, tmp_path / "out", None)
    snapshot, ids = build(recipe, tmp_path / "out", 20)
    lowest = sorted(all_ids, key=lambda name: int(record_keys([name], 0)[0]))[:20]
    assert ids == set(lowest)
    assert snapshot.manifest.fingerprint != whole.manifest.fingerprint
    assert set(snapshot.manifest.splits) == set(whole.manifest.splits)
    # Nothing was prepared again, and the same limit is the same snapshot.
    facts = (Path(snapshot.path) / "build.json").read_text()
    assert '"prepared": 0' in facts
    assert ss.build(recipe, tmp_path / "out", limit=20).cached
    more, _ = build(recipe, tmp_path / "out", 1000)
    assert sum(split.num_examples for split in more.manifest.splits.values()) == 300


@pytest.mark.parametrize("write_by", ["ranges", "shuffle"])
@pytest.mark.parametrize("limit", [3, 10, 40, 61])
def test_a_limit_may_leave_out_a_stratum(tmp_path: Path, limit: int, write_by: Any) -> None:
    """Rare classes are missing in small samples, though not in the runs."""
    rows = [f"{i},{'cat' if i % 2 else 'dog'}" for i in range(60)] + ["61,eel", "62,eel"]
    (tmp_path / "t.csv").write_text("\n".join(["x,y", *rows, ""]))
    recipe = ss.Recipe(
        name="t",
        source=ss.Csv(str(tmp_path / "t.csv"), label="y"),
        splits=ss.Splits(train=0.8, test=0.2, stratify_by="y"),
    )
    snapshot = ss.build(recipe, tmp_path / "out", limit=limit, write_by=write_by)
    splits = snapshot.manifest.splits
    assert sum(split.num_examples for split in splits.values()) == limit


@pytest.mark.slow
def test_files_with_a_limit_are_the_only_ones_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from PIL import Image

    paths = []
    for i in range(40):
        path = tmp_path / "images" / f"class{i % 3}" / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4), (i, 0, 0)).save(path)
        paths.append(f"class{i % 3}/{i}.png")
    recipe = ss.Recipe(
        name="i",
        source=ss.ImageFolder(str(tmp_path / "images")),
        prepare=[ss.images.decode("image")],
        splits=ss.Splits(train=0.5, test=0.5),
    )
    lowest = sorted(paths, key=lambda name: int(record_keys([name], 0)[0]))[:10]
    snapshot, ids = build(recipe, tmp_path / "out", 10)
    assert ids == set(lowest)
    assert all(split.num_examples for split in snapshot.manifest.splits.values())
    label = snapshot.manifest.features["label"]
    assert label.names == ("class0", "class1", "class2")  # type: ignore[union-attr]
    # A file that is not taken may change; one that is taken may not.
    other = next(name for name in paths if name not in ids)
    Image.new("RGB", (4, 4)).save(tmp_path / "images" / other)
    os.utime(tmp_path / "images" / other, (1, 1))
    assert ss.build(recipe, tmp_path / "out", limit=10).cached
    Image.new("RGB", (4, 4)).save(tmp_path / "images" / lowest[0])
    assert not ss.build(recipe, tmp_path / "out", limit=10).cached


@pytest.mark.parametrize("limit", [0, -1, True, 1.5, "7"])
def test_a_limit_is_a_number_of_records(tmp_path: Path, limit: Any) -> None:
    (tmp_path / "t.csv").write_text("n\n1\n")
    recipe = ss.Recipe(name="t", source=ss.Csv(str(tmp_path / "t.csv")))
    with pytest.raises(RecipeError, match="limit="):
        ss.build(recipe, tmp_path / "out", limit=limit)
