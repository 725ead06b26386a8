"""Single examples, record ids, filters, and what the errors of functions say."""

import importlib
import shutil
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf

from snapshard.schemas.features import ClassLabel, Features, Scalar, Tensor
from snapshard.transforms.examples.index import write_index_table

from .conftest import part
from .made_snapshots import list_files, put_index

WriteSnapshot = Callable[..., types.ModuleType]

FEATURES: Features = {
    "label": ClassLabel(names=("even", "odd")),
    "number": Scalar(dtype="int64"),
    "tokens": Tensor("int64", (None,)),
}
SIZES = (150, 0, 131, 49)
NUM = sum(SIZES)


def write(folder: Path, write_snapshot: WriteSnapshot, compression: str) -> types.ModuleType:
    numbers = iter(range(NUM))
    shards = [[next(numbers) for _ in range(size)] for size in SIZES]
    records = [
        [{"number": i, "label": i % 2, "tokens": [i] * (i % 5)} for i in shard] for shard in shards
    ]
    reader = write_snapshot(folder, FEATURES, {"train": records}, compression=compression)
    put_index(folder, compression, [i % 2 for i in range(NUM)])
    for path, shard in zip(sorted(folder.glob("train-*")), shards, strict=True):
        ids = pa.array([f"r{i}.jpg" for i in shard], pa.large_string())
        write_index_table(f"{folder}/index/{path.name}.parquet", [ids], numbered=False)
    list_files(folder)
    return reader


@pytest.fixture
def own(tmp_path: Path, write_snapshot: WriteSnapshot) -> types.ModuleType:
    """A snapshot that a test may damage."""
    return write(tmp_path / "own", write_snapshot, "none")


@pytest.fixture
def plain(readers: dict[str, types.ModuleType]) -> types.ModuleType:
    """A snapshot that no test changes."""
    return readers["none"]


def named(value: Any) -> str | None:
    """The name of a test with these options."""
    return "-".join(value) or "plain" if isinstance(value, dict) else None


def each_with_one_reader(*options: dict[str, Any]) -> pytest.MarkDecorator:
    """Cases: every other one of ``options`` without compression, then the others with it."""
    cases = [
        pytest.param(compression, one, id=f"{compression}-{named(one)}")
        for first, compression in enumerate(("none", "gzip"))
        for one in options[first::2]
    ]
    return pytest.mark.parametrize(("reader", "options"), cases, indirect=["reader"])


def identity(example: Any, seed: Any) -> Any:
    return example


def batched(dataset: Any, name: str = "number") -> list[Any]:
    return [value for batch in dataset for value in batch[name].numpy().tolist()]


class TestSingle:
    @pytest.mark.slow
    @each_with_one_reader(
        {"shuffle": False},
        {"epochs": 2},
        {"seed": 1, "augment": identity},
        {"balance": "uniform", "seed": 1},
        {"cache": "decoded"},
        {"shard": (1, 3), "seed": 1},
    )
    def test_every_example_comes_with_known_cardinality(
        self, reader: types.ModuleType, options: dict[str, Any]
    ) -> None:
        dataset = reader.dataset("train", None, **options)
        found = [int(one["number"]) for one in dataset]
        assert len(found) == dataset.cardinality()
        assert len(found) == reader.steps("train", None, **options) * options.get("epochs", 1)
        in_batches = reader.dataset("train", 128, **options)
        if "seed" in options or options.get("shuffle") is False:
            assert found == batched(in_batches)
        else:
            assert sorted(found) == sorted(batched(in_batches))

    def test_examples_have_no_batch_dimension(self, reader: types.ModuleType) -> None:
        for one in reader.dataset("train[3:6]", None, shuffle=False):
            number = int(one["number"])
            assert one["label"].shape == ()
            assert one["tokens"].numpy().tolist() == [number] * (number % 5)
        features, label = next(iter(reader.dataset("train", None, as_supervised=True)))
        assert int(features["number"]) % 2 == int(label)
        assert reader.dataset("train", None, epochs=None).cardinality() == -1

    @pytest.mark.slow
    @pytest.mark.parametrize("shuffle", [True, False])
    def test_workers_have_equally_many(self, reader: types.ModuleType, shuffle: bool) -> None:
        options = {"equal_steps": True, "seed": 1, "shuffle": shuffle}
        seen = []
        for index in range(4):
            dataset = reader.dataset("train", None, shard=(index, 4), **options)
            found = [int(one["number"]) for one in dataset]
            assert len(found) == dataset.cardinality() == NUM // 4
            assert reader.steps("train", None, shard=(index, 4), **options) == NUM // 4
            seen += found
        assert len({*seen}) == len(seen)

    @pytest.mark.slow
    def test_resumes_at_an_example(self, plain: types.ModuleType) -> None:
        options: dict[str, Any]
        for options, starts in (
            ({"seed": 1}, (1, NUM - 1, NUM + 200)),
            ({"shuffle": False}, (128, NUM)),
            ({"seed": 1, "balance": "uniform"}, (128, NUM + 200)),
        ):
            given = {"epochs": 2, **options}
            whole = [int(one["number"]) for one in plain.dataset("train", None, **given)]
            for start in starts:
                rest = plain.dataset("train", None, start_step=start, **given)
                assert [int(one["number"]) for one in rest] == whole[start:]

    def test_windows(self, reader: types.ModuleType) -> None:
        dataset = reader.dataset("train", None, columns=["tokens"], windows=(2, 2))
        assert dataset.cardinality() == -2
        assert reader.steps("train", None, columns=["tokens"], windows=(2, 2)) == -2
        found = [one["tokens"].numpy().tolist() for one in dataset]
        expected = [[i, i] for i in range(NUM) for _ in range(i % 5 // 2)]
        assert sorted(found) == expected

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"drop_remainder": True}, "batch_size=None and drop_remainder= cannot be combined"),
            ({"pad": True}, "batch_size=None and pad= cannot be combined"),
            ({"bucket": True}, "batch_size=None and bucket= cannot be combined"),
            ({"augment_batch": identity}, "batch_size=None and augment_batch= cannot be combined"),
            ({"seed": 1, "start_step": 3, "shard": (0, 2)}, "cannot resume .* with 2 workers"),
            ({"seed": 1, "start_step": [(1, 8, 1)]}, "cannot resume"),
            ({"start_step": -1}, "start_step=-1 must be"),
        ],
        ids=named,
    )
    def test_what_needs_batches(
        self, reader: types.ModuleType, options: dict[str, Any], message: str
    ) -> None:
        for make in (reader.dataset, reader.steps):
            with pytest.raises(ValueError, match=message):
                make("train", None, **options)

    def test_an_order_that_cannot_be_continued(
        self, tmp_path: Path, write_snapshot: WriteSnapshot
    ) -> None:
        packed = write(tmp_path / "packed", write_snapshot, "gzip")
        with pytest.raises(ValueError, match="where whole shards are read"):
            packed.dataset("train", None, seed=1, start_step=3)


class TestIds:
    @pytest.mark.slow
    @each_with_one_reader(
        {"shuffle": False},
        {"shuffle": True, "epochs": 2},
        {"seed": 1, "augment": identity},
        {"balance": "uniform", "seed": 1, "start_step": 5},
        {"cache": "decoded"},
        {"cache": "memory", "augment_batch": identity},
        {"bucket": True, "pad": True},
        {"bucket": True, "seed": 1, "start_step": 5},
        {"bucket": True, "seed": 1, "start_step": 5, "augment": identity},
        {"seed": 1, "start_step": [(5, 4, 2)]},
        {"shard": (1, 3), "equal_steps": True},
    )
    def test_each_example_has_its_own(
        self, reader: types.ModuleType, options: dict[str, Any]
    ) -> None:
        num = 0
        for batch in reader.dataset(["train[200:]", "train[:180]"], 16, with_id=True, **options):
            ids = batch["record_id"].numpy().tolist()
            assert ids == [b"r%d.jpg" % i for i in batch["number"].numpy().tolist()]
            num += len(ids)
        assert num > 80

    @pytest.mark.slow
    def test_forms(self, reader: types.ModuleType) -> None:
        features, label, ids = next(
            iter(reader.dataset("train", 8, as_supervised=True, with_id=True))
        )
        numbers = features["number"].numpy()
        assert ids.numpy().tolist() == [b"r%d.jpg" % i for i in numbers]
        assert label.numpy().tolist() == (numbers % 2).tolist()
        one = next(iter(reader.dataset("train", None, with_id=True)))
        assert one["record_id"].numpy() == b"r%d.jpg" % int(one["number"])
        windows = reader.dataset("train", 8, columns=["tokens"], windows=(2, 1), with_id=True)
        for window in windows:
            expected = [b"r%d.jpg" % i for i in window["tokens"].numpy()[:, 0].tolist()]
            assert window["record_id"].numpy().tolist() == expected

    def test_where_they_are_impossible(self, reader: types.ModuleType) -> None:
        for options, message in (
            ({"pack": 9, "columns": ["tokens"]}, "pack= and with_id= cannot be combined"),
            ({"service": "grpc://x:1"}, "service= and with_id= cannot be combined"),
            ({"with_id": 1}, "with_id=1 must be True or False"),
        ):
            with pytest.raises(ValueError, match=message):
                reader.dataset("train", 8, **{"with_id": True, **options})

    def test_without_the_index(self, own: types.ModuleType) -> None:
        folder = Path(str(own.__file__)).parent.parent
        path = folder / "index" / "train-00002-of-00004.tfrecord.parquet"
        content = path.read_bytes()
        path.write_bytes(content[:-1] + b"?")
        with pytest.raises(ValueError, match="parquet is not the file that the manifest lists"):
            own.dataset("train", 8, with_id=True)
        own.dataset("train[:150]", 8, with_id=True)
        shutil.rmtree(folder / "index")
        with pytest.raises(ValueError, match=r"There is no .*parquet, which holds the ids"):
            own.dataset("train", 8, with_id=True)

    def test_without_pyarrow(self, own: types.ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
        imported = importlib.import_module

        def without(name: str, package: str | None = None) -> Any:
            if name.startswith("pyarrow"):
                raise ImportError(name)
            return imported(name, package)

        monkeypatch.setattr(part(own, "record_ids").importlib, "import_module", without)
        with pytest.raises(ValueError, match="pyarrow is needed: pip install pyarrow"):
            own.dataset("train", 8, with_id=True)

    def test_a_feature_of_that_name(self, tmp_path: Path, write_snapshot: WriteSnapshot) -> None:
        features: Features = {"record_id": Scalar("int64"), "label": ClassLabel(names=("a",))}
        records = [{"record_id": 3, "label": 0}]
        other = write_snapshot(tmp_path, features, {"train": [records]})
        for make in (other.dataset, other.steps):
            with pytest.raises(ValueError, match="has a feature of that name"):
                make("train", 1, with_id=True)


class TestCallsOfTfDataThatFollow:
    """As docs/reading.md shows them."""

    def test_leaving_out_examples(self, reader: types.ModuleType) -> None:
        examples = reader.dataset("train", None, seed=1, epochs=2)
        some = examples.filter(lambda example: example["label"] == 1).batch(16).prefetch(2)
        batches = [batch["number"].numpy().tolist() for batch in some]
        assert {len(batch) for batch in batches[:-1]} == {16}
        found = [number for batch in batches for number in batch]
        assert sorted(found) == sorted([*range(1, NUM, 2)] * 2)

    def test_mixing_datasets(self, reader: types.ModuleType) -> None:
        odd, even = (
            reader.dataset("train", None, epochs=None, seed=1, balance={name: 1})
            for name in ("odd", "even")
        )
        both = tf.data.Dataset.sample_from_datasets([odd, even], [0.75, 0.25], seed=1)
        labels = np.concatenate([batch["label"] for batch in both.batch(128).take(10)])
        assert (labels == 1).mean() == pytest.approx(0.75, abs=0.05)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "function"),
    [
        ({}, lambda image, label: (image, label)),
        ({}, lambda image, label: (tf.image.flip_left_right(image), label)),
        ({}, lambda pair, seed: (pair[0], pair[1])),
        ({}, lambda image: image),
        ({"as_supervised": True}, lambda image, label: (image, label)),
        ({"as_supervised": True}, lambda example, seed: {**example, "number": 3}),
        ({"as_supervised": True}, lambda example, seed: example["number"]),
        ({}, lambda image, mask: (image, mask)),
        ({}, lambda example, seed: example["number"]),
        ({}, lambda example, seed: [example["number"], seed[..., 0]]),
        ({"as_supervised": True}, lambda image, mask: (image, mask)),
        ({"as_supervised": True}, lambda example, seed: example[0]),
        ({"as_supervised": True}, lambda example, seed: [example[0]["number"], example[1]]),
        ({"as_supervised": True}, lambda example, seed: (*example, seed)),
    ],
    ids=range(14),
)
@pytest.mark.parametrize("name", ["augment", "augment_batch"])
@pytest.mark.parametrize("reader", ["none"], indirect=True)
def test_errors_of_functions_show_both_forms(
    reader: types.ModuleType, name: str, options: dict[str, Any], function: Any
) -> None:
    with pytest.raises(
        ValueError, match=f"{name}= (takes image, label|failed|must return)"
    ) as raised:
        reader.dataset("train", 8, **{name: function}, **options)
    one = "example, seed" if name == "augment" else "batch, seeds"
    for line in (f"def {name}({one}):\n", f"def {name}({one}):  # as_supervised=True\n"):
        assert line in str(raised.value)
    assert "image = " in str(raised.value)
    assert "image, label = " in str(raised.value)


class TestResults:
    """What ``augment=`` and ``augment_batch=`` may return."""

    @pytest.mark.parametrize("name", ["augment", "augment_batch"])
    @pytest.mark.parametrize(
        ("options", "function"),
        [
            ({}, lambda one, seed: {"number": one["number"], "seed": seed}),
            ({"as_supervised": True}, lambda one, seed: ((one[0]["number"], one[1]), one[1])),
            ({"as_supervised": True}, lambda one, seed: (one[0]["number"], seed)),
            ({"as_supervised": True}, lambda one, seed: (*one, tf.ones_like(one[1]))),
            ({}, lambda one, seed: ({"number": one["number"]}, one["number"])),
            ({}, lambda one, seed: (one, tf.one_hot(one["number"] % 2, 2))),
        ],
        ids=["other names", "a tuple of inputs", "another label", "weights", "a pair", "one-hot"],
    )
    def test_other_values(
        self, plain: types.ModuleType, name: str, options: dict[str, Any], function: Any
    ) -> None:
        dataset = plain.dataset("train", 8, **{name: function}, **options)
        assert {one.shape[0] for one in tf.nest.flatten(next(iter(dataset)))} == {8}

    def test_a_list_is_a_tensor_of_each_example(self, plain: types.ModuleType) -> None:
        """As in ``Dataset.map``; in a batch it was [2, batch]."""
        dataset = plain.dataset(
            "train", 8, augment=lambda one, seed: {"both": [one["number"], -one["number"]]}
        )
        both = next(iter(dataset))["both"].numpy()
        assert both.shape == (8, 2)
        assert (both[:, 0] == -both[:, 1]).all()

    def test_one_value_for_a_batch(self, plain: types.ModuleType) -> None:
        with pytest.raises(ValueError, match=r"augment_batch= must return .* found a scalar"):
            plain.dataset(
                "train", 8, augment_batch=lambda batch, _: {"mean": tf.reduce_mean(batch["number"])}
            )


class TestHowMuchAtATime:
    @pytest.mark.slow
    def test_numbers_give_the_same_batches(self, plain: types.ModuleType) -> None:
        expected = batched(plain.dataset("train", 16, seed=1))
        for parallelism, prefetch in ((1, 0), (3, 2), (64, None), (None, 0)):
            options = {"parallelism": parallelism, "prefetch": prefetch}
            dataset = plain.dataset("train", 16, seed=1, **options)
            assert dataset.cardinality() == plain.steps("train", 16, seed=1, **options)
            assert batched(dataset) == expected
            last = type(dataset).__name__
            assert ("Prefetch" in last) is (prefetch != 0)

    @pytest.mark.parametrize(
        "options",
        [{"parallelism": 0}, {"parallelism": True}, {"prefetch": -1}, {"prefetch": 1.5}],
        ids=str,
    )
    def test_invalid(self, plain: types.ModuleType, options: dict[str, Any]) -> None:
        for make in (plain.dataset, plain.steps):
            with pytest.raises(ValueError, match=r"must be an integer from [01]"):
                make("train", 8, **options)
