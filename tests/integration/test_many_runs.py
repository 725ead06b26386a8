"""A build of more runs than one summary holds: the numbers are lowered, all else is as it is."""

import hashlib
from pathlib import Path

import pytest

import snapshard as ss
from snapshard.pipelines.prepare import sort_keys
from snapshard.transforms.runs import summary

from ..small_blocks import small_blocks


def write_tables(folder: Path, *, num_files: int, num_rows: int) -> None:
    folder.mkdir()
    for file in range(num_files):
        rows = (f"{file * num_rows + row},{row % 7},{row % 5}\n" for row in range(num_rows))
        (folder / f"{file:03d}.csv").write_text("a,b,c\n" + "".join(rows))


def shards_of(snapshot: ss.Snapshot) -> dict[str, str]:
    files = sorted(Path(snapshot.path).glob("*.tfrecord"))
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


# The slow ones: three builds each.
@pytest.mark.parametrize(
    "splits",
    [
        ss.Splits(train=0.8, test=0.2),
        pytest.param(ss.Splits(train=0.8, test=0.2, stratify_by="b"), marks=pytest.mark.slow),
        pytest.param(ss.Splits(train=0.8, test=0.2, group_by="c"), marks=pytest.mark.slow),
    ],
    ids=["hash", "stratified", "grouped"],
)
def test_summaries_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, splits: ss.Splits
) -> None:
    small_blocks(monkeypatch, 8192)
    write_tables(tmp_path / "tables", num_files=24, num_rows=50)
    recipe = ss.Recipe(
        name="t",
        source=ss.Csv(f"{tmp_path}/tables/*.csv"),
        splits=splits,
        shards=ss.Shards(num_shards=3),
    )
    plain = ss.build(recipe, tmp_path / "plain")
    monkeypatch.setattr(summary, "PART_RUNS", 3)
    monkeypatch.setattr(sort_keys, "COARSE_RUNS", 3)
    parted = ss.build(recipe, tmp_path / "parted")
    summaries = list((tmp_path / "parted/t/.work/summaries").iterdir())
    assert len(summaries) == 3 * 8
    # So few records to a bin that cuts are put at the same ones as without fine bins.
    assert shards_of(parted) == shards_of(plain)
    # A damaged part is made anew, from the runs that are there.
    damaged = next(file for file in summaries if file.name.endswith(".0003.batches"))
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"x")
    for file in Path(parted.path).glob("*.json"):
        file.unlink()
    for file in (tmp_path / "parted/t/.work/shards").rglob("*.json"):
        file.unlink()
    assert shards_of(ss.build(recipe, tmp_path / "parted")) == shards_of(plain)


@pytest.mark.slow  # four builds
def test_a_limit_and_exact_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_blocks(monkeypatch, 8192)
    write_tables(tmp_path / "tables", num_files=24, num_rows=50)
    recipe = ss.Recipe(
        name="t",
        source=ss.Csv(f"{tmp_path}/tables/*.csv"),
        splits=ss.Splits(train=0.8, test=0.2),
        shards=ss.Shards(num_examples=100),
    )
    plain = [ss.build(recipe, tmp_path / "plain", limit=limit) for limit in (None, 500)]
    monkeypatch.setattr(summary, "PART_RUNS", 3)
    monkeypatch.setattr(sort_keys, "COARSE_RUNS", 3)
    parted = [ss.build(recipe, tmp_path / "parted", limit=limit) for limit in (None, 500)]
    assert [*map(shards_of, parted)] == [*map(shards_of, plain)]
