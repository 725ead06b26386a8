"""Both ways of writing, range reads of runs and the engine's shuffle, give the same bytes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import snapshard as ss
from snapshard.pipelines.write import strategy
from snapshard.schemas.blocks import ShardPlan
from snapshard.schemas.errors import RecipeError
from snapshard.transforms.examples import shards, shuffled
from snapshard.transforms.examples.shards import ShardWriter
from snapshard.transforms.runs import files

from ..small_blocks import small_blocks

SPLITS = {
    "hash": ss.Splits(train=0.7, validation=0.2, test=0.1),
    "stratified": ss.Splits(train=0.6, test=0.4, stratify_by="label"),
    "grouped": ss.Splits(train=0.6, test=0.4, group_by="word"),
}


@pytest.fixture(autouse=True)
def several_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run for each file; a task of the shuffle for two of them."""
    small_blocks(monkeypatch, 1)
    monkeypatch.setattr(strategy, "MAX_GROUP", 2)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four files, of which one has rows of 200 kB: some records fill a chunk by themselves."""
    folder = tmp_path_factory.mktemp("table")
    rng = np.random.default_rng(3)
    for number in range(4):
        rows = [
            f"{rng.normal():.5f},w{rng.integers(40)},{'ab'[int(rng.random() < 0.3)]},"
            + "x" * int(rng.integers(300_000) if number == 3 and row < 20 else rng.integers(9))
            for row in range(300)
        ]
        (folder / f"{number}.csv").write_text("\n".join(["number,word,label,text", *rows]) + "\n")
    return folder


def recipe(table: Path, splits: str = "hash", **rest: Any) -> ss.Recipe:
    return ss.Recipe(
        name="table",
        source=ss.Csv(str(table), label="label"),
        splits=SPLITS[splits],
        shards=ss.Shards(num_shards=3),
        **rest,
    )


@pytest.mark.parametrize("splits", sorted(SPLITS))
def test_equal_bytes(
    lab: Any, table: Path, tmp_path: Path, splits: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "_MIN_GROUPS", 1)  # the shards of a split are written together
    # With a limit, there are records that no shard takes.
    limit = 500 if splits == "hash" else None
    by_ranges = ss.build(recipe(table, splits), tmp_path / "ranges", limit=limit)
    # A shard of these does not fit: it is sorted in parts.
    monkeypatch.setattr(shuffled.sort_chunks, "__kwdefaults__", {"sort_bytes": 200_000})
    by_shuffle = ss.build(
        recipe(table, splits), tmp_path / "shuffle", limit=limit, write_by="shuffle"
    )
    assert lab.hashes(by_shuffle) == lab.hashes(by_ranges)
    assert len(lab.build_facts(by_ranges)["work"]["runs"]) >= 4
    assert lab.build_facts(by_ranges)["shards"]["by"] == "ranges"
    assert lab.build_facts(by_shuffle)["shards"]["by"] == "shuffle"
    assert list((tmp_path / "shuffle/table/.work/scratch").iterdir()) == []


def test_what_a_graph_computes_does_not_depend_on_how_records_come(
    lab: Any, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TensorFlow computes several values of a batch at once, and the last ones differently."""

    def preprocessing_fn(inputs: dict[str, Any]) -> dict[str, Any]:
        import tensorflow as tf

        value = inputs["number"]
        return {"exp": tf.exp(value), "tanh": tf.tanh(value), "text": inputs["text"]}

    made = recipe(table, preprocessing_fn=preprocessing_fn)
    at_once = ss.build(made, tmp_path / "at once")
    # As from more and larger runs, or another engine.
    monkeypatch.setitem(files.merge_range.__kwdefaults__, "max_bytes", 9_000)
    monkeypatch.setattr(files, "_SLICE_BYTES", 0)
    in_parts = ss.build(made, tmp_path / "in parts")
    assert lab.hashes(in_parts) == lab.hashes(at_once)
    monkeypatch.setattr(shuffled, "MERGE_BYTES", 7_000)
    by_shuffle = ss.build(made, tmp_path / "shuffle", write_by="shuffle")
    assert lab.hashes(by_shuffle) == lab.hashes(at_once)
    monkeypatch.setattr(shards, "_GRAPH_BYTES", 9_000)
    assert lab.hashes(ss.build(made, tmp_path / "in batches")) != lab.hashes(at_once)


def test_only_missing_shards_are_shuffled(
    lab: Any, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever way the others were written; a shard that was torn is written again."""
    whole = ss.build(recipe(table), tmp_path, write_by="ranges")
    before = lab.hashes(whole)
    path = Path(whole.path)
    (path / "manifest.json").unlink()
    gone, torn = sorted(path.glob("train-*.tfrecord"))[:2]
    gone.unlink()
    torn.write_bytes(torn.read_bytes()[:-1])
    written: list[str] = []
    write = ShardWriter._write

    def noted(self: Any, name: Any, *rest: Any) -> Any:
        written.append(str(name))
        return write(self, name, *rest)

    monkeypatch.setattr(ShardWriter, "_write", noted)
    again = ss.build(recipe(table), tmp_path, write_by="shuffle")
    assert sorted(written) == [gone.name, torn.name]
    assert lab.hashes(again) == before
    assert lab.build_facts(again)["shards"] == {"by": "shuffle", "total": 9, "written": 2}


def test_small_shards_are_written_together() -> None:
    """Consecutive ones of a split, up to a size; and at least 64 groups."""

    def plan(split: str, number: int, num_bytes: int = 1000) -> ShardPlan:
        return ShardPlan(
            split=split,
            index=number,
            num_shards=number + 1,
            partition=0,
            start_key=number,
            stop_key=number + 1,
            num_examples=1,
            num_bytes=num_bytes,
        )

    few = [plan("train", number) for number in range(64)]
    assert len(shards.group_shards(range(64), few)) == 64
    many = [plan("train" if number < 200 else "test", number) for number in range(256)]
    assert shards.group_shards(range(256), many)[:2] == [(0, 4), (4, 8)]
    some = [n for n in range(256) if n not in (2, 9)]
    groups = shards.group_shards(some, many)
    assert groups[:5] == [(0, 2), (3, 7), (7, 9), (10, 14), (14, 18)]
    assert [n for first, stop in groups for n in range(first, stop)] == some
    assert not [1 for first, stop in groups if first < 200 < stop]
    large = [plan("train", number, 20 << 20) for number in range(256)]
    assert len(shards.group_shards(range(256), large)) == 256


def test_a_bundle_that_runs_twice_leaves_no_trace(
    lab: Any, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine may run an element again after all of it was done."""
    from snapshard.pipelines.write import job

    process = job._WriteGroupedFn.process

    def twice(self: Any, element: Any) -> Any:
        number, chunks = element
        assert list(process(self, (number, list(chunks)))) == list(process(self, element))
        yield "again"

    by_ranges = ss.build(recipe(table), tmp_path / "ranges")
    monkeypatch.setattr(job._WriteGroupedFn, "process", twice)
    by_shuffle = ss.build(recipe(table), tmp_path / "shuffle", write_by="shuffle")
    assert lab.hashes(by_shuffle) == lab.hashes(by_ranges)


def test_images(lab: Any, tmp_path: Path) -> None:
    lab.make_images(tmp_path / "images", num=9)

    def images() -> ss.Recipe:
        return ss.Recipe(
            name="images",
            source=ss.ImageFolder(str(tmp_path / "images")),
            splits=ss.Splits(train=1.0),
            shards=ss.Shards(num_shards=2, compression="none"),
        )

    by_ranges = ss.build(images(), tmp_path / "ranges")
    by_shuffle = ss.build(images(), tmp_path / "shuffle", write_by="shuffle")
    assert lab.hashes(by_shuffle) == lab.hashes(by_ranges)


def test_a_shard_too_large_for_a_worker_is_refused(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(strategy, "MAX_SHARD_BYTES", 1000)
    with pytest.raises(RecipeError, match=r"train-0000\d-of-00003\.tfrecord would contain"):
        ss.build(recipe(table), tmp_path, write_by="shuffle")


def test_another_word_is_refused(lab: Any, table: Path, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="write_by='sort', expected one of"):
        ss.build(recipe(table), tmp_path, write_by="sort")  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []
