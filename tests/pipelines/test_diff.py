"""What changed between two snapshots: every record, in bounded memory, whatever the order."""

import tempfile
from pathlib import Path
from typing import Any

import fsspec
import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

import snapshard as ss
from snapshard.pipelines.inspect import diff_records
from snapshard.pipelines.inspect.diff import SnapshotDiff, diff
from snapshard.pipelines.snapshot import Snapshot
from snapshard.schemas.errors import DamagedSnapshotError
from snapshard.schemas.progress import Silent
from snapshard.transforms.examples import stored_records

from .stored_snapshots import Records, put_records

_RECORDS = st.dictionaries(
    st.sampled_from([f"a/{n}.jpg" for n in range(12)] + [f"t.csv#{n}" for n in range(12)]),
    st.tuples(st.sampled_from(["train", "test"]), st.sampled_from([b"", b"one", b"two" * 9])),
    max_size=24,
)


def compared(old: Snapshot, new: Snapshot, **options: Any) -> SnapshotDiff:
    return diff(old, new, progress=Silent(), **options)


def expected(old: Records, new: Records) -> dict[str, set[str]]:
    both = old.keys() & new.keys()
    return {
        "added": set(new.keys() - old.keys()),
        "removed": set(old.keys() - new.keys()),
        "changed": {i for i in both if old[i][1] != new[i][1]},
        "moved": {i for i in both if old[i][0] != new[i][0]},
    }


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches, and files on disk, of a few records: as if there were many."""
    monkeypatch.setattr(stored_records, "BATCH_ROWS", 3)
    monkeypatch.setattr(diff_records, "_PART_RECORDS", 2)


@settings(max_examples=25, deadline=None)
@given(old=_RECORDS, new=_RECORDS, seeds=st.tuples(st.just(0), st.integers(0, 1)))
@pytest.mark.usefixtures("small")
def test_any_two_snapshots(old: Records, new: Records, seeds: tuple[int, int]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        first = put_records(Path(folder) / "old", old, seed=seeds[0])
        second = put_records(Path(folder) / "new", new, seed=seeds[1], num_shards=3)
        found = compared(first, second, num_shown=100).records
    wanted = expected(old, new)
    assert {kind: set(ids) for kind, ids in found.first.items()} == wanted
    assert {kind: found.total(kind) for kind in wanted} == {k: len(v) for k, v in wanted.items()}
    assert (found.num_old, found.num_new) == (len(old), len(new))
    assert found.num_same == len(old.keys() & new.keys() - wanted["changed"] - wanted["moved"])
    assert sum(found.moves.values()) == len(wanted["moved"])
    for record_id, (before, after) in zip(found.first["moved"], found.moved_from, strict=True):
        assert (before, after) == (old[record_id][0], new[record_id][0])
    for kind, records in (("added", new), ("removed", old), ("changed", new), ("moved", new)):
        for split, counts in found.counts.items():
            assert counts[kind] == sum(records[i][0] == split for i in wanted[kind])


def test_the_first_ids_have_the_lowest_keys_and_stay(tmp_path: Path) -> None:
    records = {f"{n:03}.jpg": ("train", b"x") for n in range(200)}
    old = put_records(tmp_path / "old", {"000.jpg": ("train", b"x")})
    new = put_records(tmp_path / "new", records)
    few, many = (compared(old, new, num_shown=n).records.first["added"] for n in (3, 9))
    assert few == many[:3]
    assert compared(old, new, num_shown=0).records.first["added"] == ()


def test_shards_that_both_have_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = {f"{n:03}.jpg": ("train", b"x%d" % n) for n in range(40)}
    tests = {f"{n:03}.png": ("test", b"y") for n in range(4)}
    old = put_records(tmp_path / "old", {**records, **tests})
    new = put_records(tmp_path / "new", {**records, "new.png": ("test", b"y"), **tests})
    read = []
    whole = diff_records.read_shard

    def reading(folder: str, shard: Any, **options: Any) -> Any:
        read.append(shard.file)
        return whole(folder, shard, **options)

    monkeypatch.setattr(diff_records, "read_shard", reading)
    found = compared(old, new)
    assert (found.records.num_same, found.records.total("added")) == (44, 1)
    assert {name.split("-")[0] for name in read} == {"test"}


def test_ids_alone(tmp_path: Path) -> None:
    old = put_records(tmp_path / "old", {"a.jpg": ("train", b"1"), "b.jpg": ("train", b"1")})
    new = put_records(tmp_path / "new", {"a.jpg": ("train", b"2"), "c.jpg": ("train", b"1")})
    for shard in Path(new.path).glob("*.tfrecord"):
        shard.unlink()
    found = compared(old, new, contents=False)
    assert not found.contents
    assert {kind: found.records.total(kind) for kind in ("added", "removed", "changed")} == {
        "added": 1,
        "removed": 1,
        "changed": 0,
    }


def test_compression_changes_no_content(tmp_path: Path) -> None:
    records = {f"{n}.jpg": ("train", b"content %d" % n) for n in range(50)}
    old = put_records(tmp_path / "old", records)
    new = put_records(tmp_path / "new", records | {"7.jpg": ("train", b"")}, compression="gzip")
    found = compared(old, new)
    assert found.records.first["changed"] == ("7.jpg",)
    assert found.records.num_same == 49
    shard = next(Path(new.path).glob("*.gz"))
    shard.write_bytes(shard.read_bytes()[: shard.stat().st_size // 2])
    with pytest.raises(DamagedSnapshotError, match=r"GZIP|index"):
        compared(old, new)


def test_snapshots_on_a_store(tmp_path: Path) -> None:
    records = {f"{n}.jpg": ("train", b"content") for n in range(9)}
    old = put_records(tmp_path / "old", records)
    put_records(tmp_path / "new", records | {"9.jpg": ("test", b"")})
    store = fsspec.filesystem("memory")
    store.put(str(tmp_path / "new"), "/compared/new", recursive=True)
    new = Snapshot.open("memory://compared/new")
    assert compared(old, new).records.first["added"] == ("9.jpg",)
    store.rm("/compared", recursive=True)


def test_ids_that_occur_twice_are_paired(tmp_path: Path) -> None:
    """As they do not; but a comparison must not lose one if they did."""
    once = put_records(tmp_path / "old", {"a#1": ("train", b"1"), "b#1": ("train", b"2")})
    twice = put_records(
        tmp_path / "new", {"a#1": ("train", b"1"), "a#2": ("train", b"1"), "b#1": ("train", b"2")}
    )
    ids = diff_records._numbered(stored_records.pa.array([b"a", b"a", b"b"]))
    assert len(set(ids.to_pylist())) == 3
    assert compared(once, twice).records.total("added") == 1


def test_names_that_are_not_text(tmp_path: Path) -> None:
    """They lie by the keys of their bytes, and the index holds a printable form of them."""
    old = put_records(tmp_path / "old", {f"{n}.jpg": ("train", b"1") for n in range(30)})
    index = Path(old.path) / "index" / "train-00000-of-00002.tfrecord.parquet"
    ids = [f"caf\\xe9-{n}.jpg" for n in range(15)]
    stored_records.pq.write_table(stored_records.pa.table({"id": ids}), index)
    new = put_records(tmp_path / "new", {f"{n}.jpg": ("train", b"1") for n in range(20)})
    found = compared(old, new).records
    assert found.num_same + found.total("removed") == 30
    assert found.num_same + found.total("added") == 20
    assert set(found.first["removed"]) & set(ids)


class TestWhatElseDiffers:
    def test_features_classes_and_versions(self, tmp_path: Path) -> None:
        records = {"a.jpg": ("train", b"1")}
        shape = {"height": 8, "width": 8}
        old = put_records(
            tmp_path / "a",
            records,
            features={"label": ss.ClassLabel(("cat", "dog")), "image": ss.Image(**shape)},
        )
        new = put_records(
            tmp_path / "b",
            records,
            features={"label": ss.ClassLabel(("cat", "emu")), "x": ss.Scalar("int64")},
            versions={"numpy": "2.5"},
        )
        found = compared(old, new)
        assert sorted((c.part, c.thing, c.kind) for c in found.features) == [
            ("classes", "dog", "removed"),
            ("classes", "emu", "added"),
            ("features", "image", "removed"),
            ("features", "x", "added"),
        ]
        assert [(c.thing, c.old, c.new) for c in found.versions] == [("numpy", "2.4", "2.5")]
        assert any("build.json" in note for note in found.notes)

    def test_other_recipes_and_seeds_are_said(self, tmp_path: Path) -> None:
        records = {f"{n}.jpg": ("train", b"1") for n in range(9)}
        old = put_records(tmp_path / "a", records)
        new = put_records(tmp_path / "b", records, seed=5, name="another")
        found = compared(old, new)
        assert found.records.num_same == 9
        notes = " ".join(found.notes)
        assert "two recipes, 'made' and 'another'" in notes
        assert "seeds differ (0 and 5)" in notes
        assert [change.part for change in found.settings] == ["name", "seed"]

    def test_the_same_snapshot(self, tmp_path: Path) -> None:
        old = put_records(tmp_path / "a", {"a.jpg": ("train", b"1")})
        found = compared(old, Snapshot.open(old.path))
        assert found.same
        assert found.to_json()["same"] is True


@pytest.mark.parametrize(
    "damage", ["shard", "index", "no index", "offsets", "fewer offsets", "short"]
)
def test_damage_is_named(tmp_path: Path, damage: str) -> None:
    records = {f"{n}.jpg": ("train", b"content") for n in range(9)}
    old = put_records(tmp_path / "a", records, num_shards=1)
    new = put_records(tmp_path / "b", {"0.jpg": ("train", b"")}, num_shards=1)
    shard = Path(old.path) / "train-00000-of-00001.tfrecord"
    table = Path(old.path) / "index" / f"{shard.name}.parquet"
    offsets = Path(old.path) / "index" / f"{shard.name}.idx"
    if damage == "shard":
        shard.write_bytes(shard.read_bytes()[:-20])
    elif damage == "index":
        table.write_bytes(b"PAR1" + bytes(100))
    elif damage == "no index":
        stored_records.pq.write_table(stored_records.pa.table({"x": [1]}), table)
    elif damage == "offsets":
        offsets.write_bytes(offsets.read_bytes()[:-3])
    elif damage == "fewer offsets":
        offsets.write_bytes(offsets.read_bytes()[:-16])
    else:
        stored_records.pq.write_table(stored_records.pa.table({"id": ["0.jpg"]}), table)
    with pytest.raises(DamagedSnapshotError, match=shard.name):
        compared(old, new)


def test_what_is_not_the_name_of_a_shard_is_damage(tmp_path: Path) -> None:
    snapshot = put_records(tmp_path / "a", {"a.jpg": ("train", b"1")}, num_shards=1)
    (shard,) = snapshot.manifest.splits["train"].shards
    other = shard.model_copy(update={"file": "train.tfrecord"})
    with pytest.raises(DamagedSnapshotError, match=r"train\.tfrecord: not a valid name of a shard"):
        list(stored_records.read_shard(snapshot.path, other, split=0, seed=0))
