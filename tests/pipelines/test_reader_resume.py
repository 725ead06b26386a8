"""An interrupted epoch is resumed: each record once, whatever stands between, at little cost."""

import itertools
import math
import shutil
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from snapshard.schemas.features import ClassLabel, Features, Scalar, Tensor

from .conftest import part
from .made_snapshots import put_index

WriteSnapshot = Callable[..., types.ModuleType]

LISTS: Features = {
    "label": ClassLabel(names=("a", "b")),
    "id": Scalar(dtype="int64"),
    "tokens": Tensor(dtype="int64", shape=(None,)),
}
NUM = 300
SHARDS = ((0, 70), (70, 150), (150, 220), (220, NUM))


def write(folder: Path, write_snapshot: WriteSnapshot, compression: str) -> types.ModuleType:
    rows = [{"id": i, "label": i % 2, "tokens": [i] * (i % 9)} for i in range(NUM)]
    shards = [rows[first:last] for first, last in SHARDS]
    return write_snapshot(folder, LISTS, {"train": shards}, compression=compression)


@pytest.fixture(scope="module")
def indexed(tmp_path_factory: pytest.TempPathFactory, write_snapshot: WriteSnapshot) -> Any:
    folder = tmp_path_factory.mktemp("indexed")
    reader = write(folder, write_snapshot, "none")
    put_index(folder, "none", [i % 2 for i in range(NUM)])
    return reader


def ids(dataset: Any) -> list[int]:
    return [int(i) for batch in dataset for i in batch["id"].numpy()]


# (each (steps, batch size, workers) before, workers after)
STAGES: list[Any] = [([(3, 10, 1)], 1), ([(2, 6, 2)], 3), ([(2, 6, 2), (1, 9, 1)], 2)]
RESUMED: list[dict[str, Any]] = [
    {},
    {"cache": "memory"},
    {"bucket": True},
    {"augment": True},
    {"bucket": True, "augment": True},
]


@pytest.mark.parametrize(
    ("compression", "options", "divided"),
    [  # each two of them together, but for some options with one of the stages
        pytest.param(name, options, STAGES[(i + j) % 3], id=f"{name}-{'+'.join(options)}")
        for i, options in enumerate(RESUMED)
        for j, name in enumerate(("none", "gzip"))
    ],
)
@pytest.mark.slow  # several datasets for each of many options
def test_every_record_comes_once(
    readers: Any, compression: str, options: Any, divided: Any
) -> None:
    reader, (stages, workers) = readers[compression], divided
    options = {"seed": 3, **options}
    if "augment" in options:
        options["augment"] = lambda example, seed: example
    before: list[int] = []
    for number, (steps, size, count) in enumerate(stages):
        for index in range(count):
            given = {"shard": (index, count), "start_step": stages[:number], **options}
            before += ids(reader.dataset("train", size, **given).take(steps))
    assert len(before) == sum(math.prod(stage) for stage in stages)
    after: list[int] = []
    for index in range(workers):
        given = {"shard": (index, workers), "start_step": stages, **options}
        after += ids(reader.dataset("train", 8, **given))
    assert sorted(before + after) == list(range(NUM))


def test_without_an_index_and_from_a_store_that_tensorflow_does_not_know(
    readers: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Places that the index does not tell are passed over to; nothing is refused."""
    reader = readers["none"]
    shards = part(reader, "shards")
    root = str(Path(str(reader.__file__)).parent.parent)
    listed = shards.list_shards("train", root)
    pieces = shards.cut(listed, shards.ends_of(listed), 10, 200)
    assert shards.locate(pieces, listed, root) == pieces

    def unknown(path: str, mode: str) -> Any:
        raise tf.errors.UnimplementedError(None, None, f"no file system for {path}")

    monkeypatch.setattr(tf.io.gfile, "GFile", unknown)
    far = [one._replace(path=one.path.replace(root, "odd://bucket")) for one in pieces]
    of_store = [one._replace(path=one.path.replace(root, "odd://bucket")) for one in listed]
    # Without copies, such a root is refused before its shards are looked at.
    assert shards.locate(far, of_store, "odd://bucket", may_be_missing=True) == far


def test_another_batch_costs_little(tmp_path: Path, write_snapshot: WriteSnapshot) -> None:
    """The places of what was read are found without reading: 107 to 144 µs a record before."""
    reader = write(tmp_path, write_snapshot, "none")
    total = 200_000
    shards = part(reader, "shards")
    rows = [shards.Shard(f"{tmp_path}/{i}", total // 4, 1) for i in range(4)]
    part(reader, "facts").NUM_EXAMPLES["train"] = total
    resume, options = part(reader, "resume"), part(reader, "options").Options("train", 96, seed=1)
    plan = part(reader, "pipeline").Plan(
        options=options,
        order=part(reader, "order").deal_records(options, rows),
        num_batches=1,
        open_records=lambda *piece: None,
        parse_batch=lambda batch: batch,
        read_epoch=part(reader, "pipeline").read_epoch,
        read_epochs=part(reader, "pipeline").read_epochs,
        shards=rows,
    )
    delivered = total // 96 // 2 * 96
    at = resume._Progress(delivered=delivered, options=options)
    spent = []
    for _ in range(2):  # other programs on the machine slow one down
        started = time.process_time()
        done = resume.mark_of(plan, at, total)
        spent.append(time.process_time() - started)
        assert done.sum() == delivered
    assert min(spent) < 40e-6 * delivered


def test_the_folder_may_be_copied_next_to_the_model(readers: Any, tmp_path: Path) -> None:
    folder = Path(str(readers["none"].__file__)).parent
    shutil.copytree(folder, tmp_path / "reader")
    from .conftest import load

    copied = load(tmp_path)
    assert sorted(ids(copied.dataset("train", 32, root=folder.parent))) == list(range(NUM))


# (epochs of a pass, passes before, steps of the next one)
PLACES = [(1, 0, 1), (1, 1, 0), (2, 1, 3)]
LATER: list[dict[str, Any]] = [
    {"seed": 3},
    {"seed": 3, "balance": "uniform"},
    {"seed": 3, "bucket": True},
    {"shuffle": False},
    {"seed": 3, "cache": "memory"},
    {"seed": 3, "shard": (0, 3), "equal_steps": True},
    {"seed": 3, "augment": lambda example, seed: example},
    {"seed": 3, "drop_remainder": True},
]


@pytest.mark.slow  # several datasets for each of many options
@pytest.mark.parametrize(
    ("size", "options", "place"),
    [  # each of them in two places
        pytest.param(size, options, PLACES[(i + j) % 3], id=f"{size}-{'+'.join(options)}")
        for i, options in enumerate(LATER)
        # These two need batches.
        for j, size in enumerate((16, 11 if {"bucket", "drop_remainder"} & {*options} else None))
    ],
)
def test_only_the_first_pass_begins_later(
    indexed: Any, size: int | None, options: dict[str, Any], place: tuple[int, int, int]
) -> None:
    """The cardinality is known if all passes are as long, as after complete epochs of ``fit``."""
    epochs, done, first = place
    given = {"epochs": epochs, **options}
    plain, each = indexed.dataset("train", size, **given), indexed.steps("train", size, **options)
    of_pass = epochs * each
    start = done * of_pass + first
    passes = [numbers_of(plain) for _ in range(done + 2)]
    rest = indexed.dataset("train", size, start_step=start, **given)
    found, expected = numbers_of(rest), passes[done][first:]
    if "bucket" in options:  # the rest of an epoch is bucketed again
        found, expected = (sorted(itertools.chain(*one)) for one in (found, expected))
    assert found == expected
    assert numbers_of(rest) == passes[done + 1]
    assert rest.cardinality() == (tf.data.UNKNOWN_CARDINALITY if first else of_pass)
    assert indexed.steps("train", size, start_step=start, **given) == each


def numbers_of(dataset: Any) -> list[Any]:
    """The numbers in each batch, or of each example."""
    return [one["id"].numpy().tolist() for one in dataset]
