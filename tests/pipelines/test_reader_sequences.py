"""Lists of varying length: batches of alike length, padding, and what both keep as it was."""

import itertools
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import tensorflow as tf

from snapshard.schemas.features import (
    Audio,
    ClassLabel,
    Features,
    Scalar,
    Sequence,
    Struct,
    Tensor,
    Text,
    flatten,
)
from snapshard.transforms.prepare.engine.rows import encode_example

WriteSnapshot = Callable[..., types.ModuleType]

FEATURES: Features = {
    "id": Scalar(dtype="int64"),
    "label": ClassLabel(names=("short", "long")),
    "words": Sequence(Scalar(dtype="int64")),
}
SIZES = (70, 61, 75, 66, 68)
TOTAL = sum(SIZES)
BATCH = 8
BOUNDARIES = [4, 9, 17, 40]


def length_of(number: int) -> int:
    return (number * number * 7) % 41


def record(number: int) -> dict[str, Any]:
    length = length_of(number)
    return {
        "id": number,
        "label": int(length > 20),
        "words": [number * 100 + i for i in range(length)],
    }


@pytest.fixture(scope="module")
def reader(
    tmp_path_factory: pytest.TempPathFactory, write_snapshot: WriteSnapshot
) -> types.ModuleType:
    numbers = iter(range(TOTAL))
    shards = [[record(next(numbers)) for _ in range(size)] for size in SIZES]
    folder = tmp_path_factory.mktemp("sequences")
    return write_snapshot(
        folder,
        FEATURES,
        {"train": shards, "test": [[record(i) for i in range(20)]]},
        lengths={"words": BOUNDARIES},
    )


def ids(dataset: Any) -> list[list[int]]:
    return [batch["id"].numpy().tolist() for batch in dataset]


def flat(batches: list[list[int]]) -> list[int]:
    return list(itertools.chain.from_iterable(batches))


def padding(batches: list[list[int]]) -> float:
    """Zeros for each value, where each batch is padded to its longest."""
    lengths = [[length_of(i) for i in batch] for batch in batches]
    return sum(max(one) * len(one) for one in lengths) / sum(map(sum, lengths)) - 1


@pytest.fixture(scope="module")
def whole(reader: types.ModuleType) -> list[list[int]]:
    """Two epochs from the first step on."""
    return ids(reader.dataset("train", BATCH, seed=3, epochs=2, bucket=True))


class TestBucket:
    @pytest.mark.slow
    def test_alike_lengths_come_together_and_every_record_once(
        self, reader: types.ModuleType
    ) -> None:
        plain = ids(reader.dataset("train", BATCH, seed=1))
        dataset = reader.dataset("train", BATCH, seed=1, bucket=True)
        found, again = ids(dataset), ids(dataset)
        assert sorted(flat(found)) == sorted(flat(again)) == list(range(TOTAL))
        assert list(map(len, found)) == list(map(len, plain)), "one short batch, at the end"
        assert int(dataset.cardinality()) == len(found) == -(-TOTAL // BATCH)
        assert padding(found) < 0.2 * padding(plain)
        assert {frozenset(batch) for batch in found} != {frozenset(batch) for batch in again}

    def test_batches_do_not_come_by_length(self, reader: types.ModuleType) -> None:
        longest = [max(map(length_of, b)) for b in ids(reader.dataset("train", BATCH, bucket=True))]
        rises = sum(a <= b for a, b in itertools.pairwise(longest))
        assert 0.2 < rises / len(longest) < 0.8

    def test_one_order_for_a_seed(self, reader: types.ModuleType) -> None:
        one, other = (ids(reader.dataset("train", BATCH, seed=5, bucket="words")) for _ in range(2))
        assert one == other

    def test_without_shuffling_the_order_is_fixed(self, reader: types.ModuleType) -> None:
        one, other = (ids(reader.dataset("test", BATCH, bucket=True)) for _ in range(2))
        assert one == other
        assert sorted(flat(one)) == list(range(20))

    @pytest.mark.slow
    @pytest.mark.parametrize("drop", [False, True])
    def test_as_many_steps_for_each_worker(self, reader: types.ModuleType, drop: bool) -> None:
        options = {"bucket": True, "equal_steps": True, "drop_remainder": drop, "seed": 1}
        parts = [reader.dataset("train", BATCH, shard=(i, 3), **options) for i in range(3)]
        found = [ids(part) for part in parts]
        (num,) = {len(part) for part in found}
        assert {int(part.cardinality()) for part in parts} == {num}
        together = [i for part in found for batch in part for i in batch]
        assert len(together) == len(set(together))
        assert TOTAL - len(together) < BATCH * 3

    @pytest.mark.slow
    @pytest.mark.parametrize("step", [1, 17, 43, 50])
    def test_goes_on_after_a_step(
        self, reader: types.ModuleType, whole: list[list[int]], step: int
    ) -> None:
        options = {"seed": 3, "epochs": 2, "bucket": True}
        rest = ids(reader.dataset("train", BATCH, start_step=step, **options))
        read = [i for batch in whole[:step] for i in batch]
        assert sorted(read + flat(rest)) == sorted(2 * list(range(TOTAL)))
        per_epoch = -(-TOTAL // BATCH)
        if step < per_epoch:
            assert rest[-per_epoch:] == whole[-per_epoch:], "later epochs as if nothing happened"

    def test_what_it_is_to_go_by_must_vary(self, reader: types.ModuleType) -> None:
        with pytest.raises(ValueError, match="bucket='id' must be one of words"):
            reader.dataset("train", BATCH, bucket="id")


class TestPad:
    def test_to_the_longest_of_a_batch(self, reader: types.ModuleType) -> None:
        for batch in reader.dataset("train", BATCH, seed=1, pad=True):
            lengths = [length_of(int(i)) for i in batch["id"].numpy()]
            assert batch["words"].shape == (len(lengths), max(lengths))
            rows, numbers = batch["words"].numpy(), batch["id"].numpy()
            for row, number, length in zip(rows, numbers, lengths, strict=True):
                assert row.tolist()[:length] == record(int(number))["words"]
                assert not row[length:].any()

    def test_with_bucket_to_one_of_few_lengths(self, reader: types.ModuleType) -> None:
        widths = set()
        for batch in reader.dataset("train", BATCH, seed=1, pad=True, bucket=True):
            longest = max(length_of(int(i)) for i in batch["id"].numpy())
            widths.add(batch["words"].shape[1])
            assert batch["words"].shape[1] == min(end for end in BOUNDARIES if end >= longest)
        assert widths <= {*BOUNDARIES}

    def test_what_is_longer_than_the_sample_is_kept_whole(
        self, tmp_path: Path, write_snapshot: WriteSnapshot
    ) -> None:
        records = [[record(i) for i in range(40)]]
        reader = write_snapshot(tmp_path, FEATURES, {"train": records}, lengths={"words": [3]})
        for batch in reader.dataset("train", BATCH, pad=True, bucket=True):
            longest = max(length_of(int(i)) for i in batch["id"].numpy())
            assert batch["words"].shape[1] == max(3, longest)

    def test_supervised_for_keras(self, reader: types.ModuleType) -> None:
        dataset = reader.dataset(
            "train", BATCH, columns=["words"], as_supervised=True, pad=True, bucket=True
        )
        words, label = dataset.element_spec
        assert words == tf.TensorSpec([None, None], tf.int64)
        assert label == tf.TensorSpec([None], tf.int64)
        assert {words.shape[1] for words, _ in dataset} <= {*BOUNDARIES}

    @pytest.mark.slow
    def test_every_kind_of_list(self, tmp_path: Path, write_snapshot: WriteSnapshot) -> None:
        features: Features = {
            "id": Scalar(dtype="int64"),
            "points": Tensor(dtype="float32", shape=(None, 2)),
            "packed": Tensor(dtype="float64", shape=(None,)),
            "texts": Sequence(Text()),
        }
        records = [
            {
                "id": i,
                "points": [float(j) for j in range(2 * i)],
                "packed": np.arange(i, dtype=np.float64),
                "texts": [f"{i}.{j}".encode() for j in range(i)],
            }
            for i in range(5)
        ]
        reader = write_snapshot(tmp_path, features, {"train": [records]}, label=None)
        (batch,) = reader.dataset("train", 5, shuffle=False, pad=True)
        assert batch["points"].shape == (5, 4, 2)
        assert batch["packed"].shape == batch["texts"].shape == (5, 4)
        np.testing.assert_array_equal(batch["points"][3].numpy().ravel(), [*range(6), 0, 0])
        np.testing.assert_array_equal(batch["packed"][2], [0, 1, 0, 0])
        assert batch["texts"][1].numpy().tolist() == [b"1.0", b"", b"", b""]
        with pytest.raises(
            ValueError, match="bucket=True needs one list: name one of packed, points, texts"
        ):
            reader.dataset("train", 5, bucket=True)
        for name in ("points", "packed", "texts"):
            found = ids(reader.dataset("train", 2, seed=1, bucket=name, pad=True))
            assert sorted(flat(found)) == list(range(5))

    @pytest.mark.slow
    @pytest.mark.parametrize("bucket", [False, "words"])
    @pytest.mark.parametrize("as_supervised", [False, ("words", "tags")])
    def test_with_numbers_that_are_no_values(
        self, tmp_path: Path, write_snapshot: WriteSnapshot, bucket: Any, as_supervised: Any
    ) -> None:
        features: Features = {
            "words": Sequence(Scalar(dtype="int64")),
            "tags": Sequence(ClassLabel(names=("noun", "verb"))),
            "scores": Sequence(Scalar(dtype="float32")),
            "flags": Sequence(Scalar(dtype="bool")),
            "texts": Sequence(Text()),
        }
        records = [
            {
                "words": [7] * n,
                "tags": [0] * n,
                "scores": [0.5] * n,
                "flags": [1] * n,
                "texts": [b"a"] * n,
            }
            for n in (0, 3, 1)
        ]
        told = {"label": None, "lengths": {"words": [3], "tags": [3]}}
        reader = write_snapshot(tmp_path, features, {"train": [records]}, **told)
        options = {"shuffle": False, "bucket": bucket, "as_supervised": as_supervised}
        order = [0, 2, 1] if bucket else [0, 1, 2]

        def read(pad: Any) -> dict[str, list[Any]]:
            (batch,) = reader.dataset("train", 3, pad=pad, **options)
            found = dict(zip(as_supervised, batch, strict=True)) if as_supervised else batch
            return {
                name: value.numpy()[np.argsort(order)].tolist() for name, value in found.items()
            }

        def padded(value: Any, fill: Any) -> list[list[Any]]:
            return [[value] * n + [fill] * (3 - n) for n in (0, 3, 1)]

        zeros = {
            "words": padded(7, 0),
            "tags": padded(0, 0),
            "scores": padded(0.5, 0),
            "flags": padded(True, False),
            "texts": padded(b"a", b""),
        }
        numbers = {"words": padded(7, -1), "tags": padded(0, -1), "scores": padded(0.5, -1)}
        kept = set(as_supervised or features)

        def some(values: dict[str, Any]) -> dict[str, Any]:
            return {name: value for name, value in values.items() if name in kept}

        assert read(True) == read(0) == some(zeros)
        assert read(-1) == some(zeros | numbers)
        assert read({"tags": -100}) == some(zeros | {"tags": padded(0, -100)})

    def test_refuses_what_a_list_cannot_hold(
        self, tmp_path: Path, write_snapshot: WriteSnapshot
    ) -> None:
        features: Features = {
            "id": Scalar(dtype="int64"),
            "bytes": Sequence(Scalar(dtype="uint8")),
            "halves": Sequence(Scalar(dtype="float16")),
            "tags": Sequence(ClassLabel(names=("noun", "verb"))),
            "texts": Sequence(Text()),
        }
        values = {
            "id": 1,
            "bytes": np.uint8([1]),
            "halves": np.float16([0.5]),
            "tags": [1],
            "texts": [b"a"],
        }
        reader = write_snapshot(tmp_path, features, {"train": [[values]]}, label=None)
        for pad, message in {
            "-1": r"pad='-1' must be True \(zeros\), a number, or {feature: number}",
            -1: r"pad: 'bytes' is uint8, which cannot hold -1. Choose .* pad={feature: number}",
            0.5: "pad: 'bytes' is uint8, which cannot hold 0.5",
        }.items():
            for call in (reader.dataset, reader.steps):
                with pytest.raises(ValueError, match=message):
                    call("train", 1, pad=pad)
        with pytest.raises(ValueError, match="'halves' is float16, which cannot hold 1000000"):
            reader.dataset("train", 1, pad={"halves": 1e6})
        for pad in ({"halves": float("inf")}, {"halves": float("nan")}, {"bytes": 255.0}):
            assert len([*reader.dataset("train", 1, pad=pad)]) == 1
        for name in ("id", "texts", "missing"):
            with pytest.raises(ValueError, match=f"{name!r} is not a list .* bytes, halves, tags"):
                reader.dataset("train", 1, pad={name: 1})
        with pytest.raises(ValueError, match="must be True"):
            reader.dataset("train", 1, pad={"tags": True})
        (batch,) = reader.dataset("train", 1, pad=-1, columns=["tags", "texts"])
        assert batch["tags"].numpy().tolist() == [[1]]
        with pytest.raises(ValueError, match="batch_size=None and pad= cannot be combined"):
            reader.dataset("train", None, pad=0)

    def test_another_padding_is_proposed_where_zero_is_a_value(
        self,
        tmp_path: Path,
        write_snapshot: WriteSnapshot,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        declared = {
            "audio": Audio(rate=8000, channels=1, samples=None),
            "bytes": Sequence(Scalar(dtype="uint8")),
            "classes": Sequence(ClassLabel(names=("noun", "verb"))),
            "mel": Tensor("float32", (None, 2)),
            "steps": Sequence(Scalar(dtype="int16")),
            "tokens": Sequence(Scalar(dtype="int64")),
        }
        values = {
            "audio": np.float32([0, 0.5]),
            "bytes": np.uint8([0, 3]),
            "classes": [0, 1],
            "mel": np.float32([[-13.8155, 2], [-4, 3]]),
            "steps": np.int16([-7, 7]),
            "tokens": [1, 2],
        }
        features, _ = flatten(declared)
        records = [encode_example(values, declared)]
        reader = write_snapshot(tmp_path, features, {"train": [records]}, label=None)
        proposed = {
            "bytes": "(0 to 3): ask for bytes_length.",
            "classes": "(0 to 1): pad it with -1, pad={'classes': -1}, or ask for classes_length.",
            "mel": "(-13.8155 to 3): pad it with -13.8155, pad={'mel': -13.8155}, or ask for",
            "steps": "(-7 to 7): pad it with -8, pad={'steps': -8}, or ask for steps_length.",
        }

        def told(**options: Any) -> dict[str, str]:
            caplog.clear()
            reader.dataset("train", 1, **options)
            texts = (text for text in caplog.messages if " is padded" in text)
            return {text.split(" is padded")[0]: text for text in texts}

        found = told(pad=True)
        assert found.keys() == proposed.keys()
        assert all(proposed[name] in text for name, text in found.items())
        assert not told(pad={"bytes": 9, "classes": -1, "mel": -13.8155, "steps": -8})
        assert not told(pad=9)
        columns = [part for name in declared for part in (name, f"{name}_length")]
        assert not told(pad=True, columns=columns)
        (batch,) = reader.dataset("train", 1, pad=True, columns=columns)
        assert {batch[f"{name}_length"].numpy().tolist()[0] for name in declared} == {2}

    @pytest.mark.parametrize("bucket", [False, "x"])
    def test_what_is_empty_keeps_its_dimensions(
        self, tmp_path: Path, write_snapshot: WriteSnapshot, bucket: bool | str
    ) -> None:
        features: Features = {"x": Tensor(dtype="float32", shape=(None, 2, None))}
        records = [{"x": [], "x/shape": [0, 2, 0]}, {"x": [1.0, 2.0], "x/shape": [1, 2, 1]}]
        reader = write_snapshot(
            tmp_path, features, {"train": [records]}, label=None, lengths={"x": [3]}
        )
        dataset = reader.dataset("train", 1, shuffle=False, pad=True, bucket=bucket)
        shapes = sorted(batch["x"].shape.as_list() for batch in dataset)
        assert shapes == ([[1, 3, 2, 0], [1, 3, 2, 1]] if bucket else [[1, 0, 2, 0], [1, 1, 2, 1]])

    def test_from_decoded_examples(self, reader: types.ModuleType) -> None:
        seen = []
        for batch in reader.dataset("train", BATCH, seed=1, pad=True, cache="decoded"):
            lengths = [length_of(int(i)) for i in batch["id"].numpy()]
            assert batch["words"].shape == (len(lengths), max(lengths))
            for row, number, length in zip(batch["words"], batch["id"], lengths, strict=True):
                assert row.numpy().tolist()[:length] == record(int(number))["words"]
            seen += batch["id"].numpy().tolist()
        assert sorted(seen) == list(range(TOTAL))

    def test_augmented_after_it(self, reader: types.ModuleType) -> None:
        def cut(example: Any, seed: Any) -> Any:
            return {"words": example["words"][:1] + tf.cast(seed[0] * 0, tf.int64)}

        dataset = reader.dataset("train", BATCH, seed=1, pad=True, bucket=True, augment=cut)
        assert {batch["words"].shape[1] for batch in dataset} == {1}


SERIES: Features = {
    "id": Scalar(dtype="int64"),
    "label": ClassLabel(names=("a", "b")),
    "time": Sequence(Scalar(dtype="int64")),
    "values": Tensor(dtype="float32", shape=(None, 2)),
}


@pytest.fixture(scope="module")
def series(
    tmp_path_factory: pytest.TempPathFactory, write_snapshot: WriteSnapshot
) -> types.ModuleType:
    records = [
        {
            "id": i,
            "label": i % 2,
            "time": list(range(1000 * i, 1000 * i + i)),
            "values": [float(j) for j in range(2 * i)],
        }
        for i in range(30)
    ]
    folder = tmp_path_factory.mktemp("series")
    return write_snapshot(folder, SERIES, {"train": [records[:15], records[15:]]})


class TestWindows:
    @pytest.mark.slow
    @pytest.mark.parametrize(("length", "step"), [(5, 1), (4, 3), (7, 7), (29, 1)])
    def test_each_once_with_the_rest_of_its_record(
        self, series: types.ModuleType, length: int, step: int
    ) -> None:
        expected = [(i, begin) for i in range(30) for begin in range(0, i - length + 1, step)]
        dataset = series.dataset("train", 8, windows=(length, step), seed=1, epochs=2)
        found = []
        for batch in dataset:
            assert batch["time"].shape[1] == batch["values"].shape[1] == length
            for i, label, time, values in zip(
                batch["id"].numpy(),
                batch["label"].numpy(),
                batch["time"].numpy(),
                batch["values"].numpy(),
                strict=True,
            ):
                begin = int(time[0]) - 1000 * int(i)
                assert label == i % 2
                assert time.tolist() == list(range(time[0], time[0] + length))
                assert values.ravel().tolist() == list(range(2 * begin, 2 * (begin + length)))
                found.append((int(i), begin))
        num = len(expected)
        assert sorted(found[:num]) == sorted(found[num:]) == expected
        assert num == 1 or found[:num] != found[num:], "another order in each epoch"

    @pytest.mark.slow
    def test_full_batches_but_for_the_last(self, series: types.ModuleType) -> None:
        sizes = [len(b["id"]) for b in series.dataset("train", 8, windows=(5, 1), epochs=2)]
        total = sum(i - 4 for i in range(5, 30))
        assert sizes == 2 * [*[8] * (total // 8), total % 8]
        (pair, *_) = series.dataset(
            "train",
            8,
            windows=(5, 1),
            columns=["values"],
            as_supervised=True,
            shuffle=False,
            drop_remainder=True,
        )
        assert pair[0].shape == (8, 5, 2)
        assert pair[1].shape == (8,)

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            (
                {"windows": (30, 1)},
                r"\(30, 1\) gives no batch: no list .* has 30 values",
            ),
            ({"windows": (30, 1), "epochs": None}, "gives no batch"),
            ({"windows": (30, 1), "epochs": 2, "seed": 1, "shard": (1, 2)}, "gives no batch"),
            ({"split": "train[:2]", "windows": (3, 1)}, r"no list read from train\[:2\] has 3"),
            ({"windows": (29, 1), "drop_remainder": True}, "less than 8 windows"),
        ],
    )
    def test_no_window_is_an_error(
        self, series: types.ModuleType, options: dict[str, Any], words: str
    ) -> None:
        dataset = series.dataset(**{"split": "train", "batch_size": 8, **options})
        with pytest.raises(tf.errors.InvalidArgumentError, match=words):
            list(dataset)

    def test_lists_of_different_lengths_are_an_error(
        self, tmp_path: Path, write_snapshot: WriteSnapshot
    ) -> None:
        records = [{"id": 1, "label": 0, "time": [1, 2, 3], "values": [1.0, 2.0]}]
        reader = write_snapshot(tmp_path, SERIES, {"train": [records]})
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"windows=\(2, 1\) .*columns="):
            list(reader.dataset("train", 8, windows=(2, 1)))
        (batch,) = reader.dataset("train", 8, windows=(2, 1), columns=["time"], shuffle=False)
        assert batch["time"].numpy().tolist() == [[1, 2], [2, 3]]

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"windows": (0, 1)}, "must be 1 or more"),
            ({"windows": (3, 0)}, "must be 1 or more"),
            ({"windows": (3, 1), "columns": ["id"]}, "needs lists"),
            ({"windows": (3, 1), "bucket": "time"}, "cannot be combined"),
            ({"windows": (3, 1), "start_step": 1, "seed": 1}, "cannot be combined"),
        ],
    )
    def test_what_cannot_be_cut(
        self, series: types.ModuleType, options: dict[str, Any], words: str
    ) -> None:
        with pytest.raises(ValueError, match=words):
            series.dataset("train", 8, **options)


def segments(batches: list[Any], name: str = "words") -> list[list[list[int]]]:
    """The lists in each row, cut out by their segments; all else of it is checked to be padding."""
    rows = []
    for batch in batches:
        columns = [batch[key].numpy() for key in (name, f"{name}_segments", f"{name}_positions")]
        for values, numbers, positions in zip(*columns, strict=True):
            count = int(numbers.max())
            found = [values[numbers == number].tolist() for number in range(1, count + 1)]
            lengths = [*map(len, found)]
            wanted = [number for number, n in enumerate(lengths, 1) for _ in range(n)]
            rest = [0] * (len(values) - len(wanted))
            assert numbers.tolist() == wanted + rest, "segments follow each other"
            assert positions.tolist() == [i for n in lengths for i in range(n)] + rest
            assert values[len(wanted) :].tolist() == rest
            rows.append(found)
    return rows


NOT_EMPTY = [i for i in range(TOTAL) if length_of(i)]


class TestPack:
    ALONE: ClassVar[dict[str, Any]] = {"columns": ["words"], "seed": 1}
    LISTS: ClassVar[list[list[int]]] = sorted(record(i)["words"] for i in NOT_EMPTY)

    @pytest.mark.slow
    @pytest.mark.parametrize("options", [{}, {"seed": None}, {"shuffle": False, "seed": None}])
    def test_every_list_once_in_full_rows(
        self, reader: types.ModuleType, options: dict[str, Any]
    ) -> None:
        dataset = reader.dataset("train", BATCH, pack=64, **self.ALONE | options)
        assert int(dataset.cardinality()) == tf.data.UNKNOWN_CARDINALITY
        assert dataset.element_spec["words"].shape.as_list() == [None, 64]
        assert dataset.element_spec["words_segments"].dtype == tf.int32
        batches = [*dataset]
        rows = segments(batches)
        assert sorted(flat(rows)) == self.LISTS, "no list is cut, mixed or lost"
        assert [len(batch["words"]) for batch in batches[:-1]] == [BATCH] * (len(batches) - 1)
        filled = sum(map(len, flat(rows))) / (64 * len(rows))
        assert filled > 0.97

    @pytest.mark.slow
    def test_another_composition_in_every_epoch_and_one_for_a_seed(
        self, reader: types.ModuleType
    ) -> None:
        dataset = reader.dataset("train", BATCH, pack=64, epochs=2, **self.ALONE)
        rows = segments([*dataset])
        assert sorted(flat(rows)) == sorted([*self.LISTS, *self.LISTS])
        half = len(segments([*reader.dataset("train", BATCH, pack=64, **self.ALONE)]))
        first, second = ({str(row) for row in part} for part in (rows[:half], rows[half:]))
        assert len(first & second) < len(first) / 2
        again = reader.dataset("train", BATCH, pack=64, epochs=2, **self.ALONE)
        assert segments([*again]) == rows

    @pytest.mark.slow
    def test_longer_lists_are_parted(self, reader: types.ModuleType) -> None:
        rows = segments([*reader.dataset("train", BATCH, pack=16, **self.ALONE)])
        wanted = [words[i : i + 16] for words in self.LISTS for i in range(0, len(words), 16)]
        assert sorted(flat(rows)) == sorted(wanted)

    @pytest.mark.slow
    def test_workers_share_the_lists(self, reader: types.ModuleType) -> None:
        found, count = [], 3
        for index in range(count):
            part = reader.dataset("train", BATCH, pack=64, shard=(index, count), **self.ALONE)
            found += flat(segments([*part]))
        assert sorted(found) == self.LISTS

    @pytest.mark.slow
    def test_drops_no_more_than_the_last_rows(self, reader: types.ModuleType) -> None:
        options = {"pack": 64, "drop_remainder": True, **self.ALONE}
        dropped = [*reader.dataset("train", BATCH, **options)]
        assert {len(batch["words"]) for batch in dropped} == {BATCH}
        rows = segments([*reader.dataset("train", BATCH, pack=64, **self.ALONE)])
        assert segments(dropped) == rows[: len(rows) // BATCH * BATCH]

    @pytest.mark.slow
    def test_without_end(self, reader: types.ModuleType) -> None:
        dataset = reader.dataset("train", BATCH, pack=64, epochs=None, **self.ALONE)
        assert int(dataset.cardinality()) == tf.data.INFINITE_CARDINALITY
        assert len([*dataset.take(100)]) == 100

    @pytest.mark.slow
    def test_several_lists_of_a_record_share_a_segment(
        self, tmp_path: Path, write_snapshot: WriteSnapshot
    ) -> None:
        names = {"inputs": "int64", "targets": "float32"}
        features: Features = {
            name: Tensor(dtype=dtype, shape=(None,)) for name, dtype in names.items()
        }
        records = [
            {"inputs": [i] * (i % 7), "targets": [float(i)] * (i * 5 % 11)} for i in range(200)
        ]
        reader = write_snapshot(tmp_path, features, {"train": [records]}, label=None)
        batches = [*reader.dataset("train", 4, pack=16, seed=2)]
        found = []
        for batch in batches:
            for row in range(len(batch["inputs"])):
                columns = {key: value[row].numpy() for key, value in batch.items()}
                count = max(columns[f"{name}_segments"].max() for name in names)
                for number in range(1, count + 1):
                    parts = [columns[n][columns[f"{n}_segments"] == number] for n in names]
                    assert len({float(value) for part in parts for value in part}) == 1
                    found.append([part.tolist() for part in parts])
        wanted = [[*one.values()] for one in records if any(one.values())]
        assert sorted(found) == sorted(wanted)
        with pytest.raises(tf.errors.InvalidArgumentError, match="pack=9 is less than the longest"):
            [*reader.dataset("train", 4, pack=9)]

    @pytest.mark.slow
    def test_sounds_and_fields_of_a_struct(
        self, tmp_path: Path, write_snapshot: WriteSnapshot
    ) -> None:
        features, structs = flatten(
            {"s": Struct({"tokens": Tensor(dtype="uint8", shape=(None,))}), "sound": Audio()}
        )
        records = [
            {"s.tokens": np.arange(i, dtype=np.uint8), "sound": np.ones(i, np.int16)}
            | {"sound/rate": 8000}
            for i in range(9)
        ]
        reader = write_snapshot(
            tmp_path, features, {"train": [records]}, label=None, structs=tuple(structs)
        )
        batches = [*reader.dataset("train", 4, pack=8, shuffle=False)]
        assert sorted(flat(segments(batches, "s.tokens"))) == [[*range(i)] for i in range(1, 9)]
        for batch in batches:
            assert batch["sound"].dtype == tf.float32
            same = batch["sound_segments"] == batch["s.tokens_segments"]
            assert tf.reduce_all(same)

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({"columns": ["id"]}, r"not id: pass columns=\['words'\]"),
            ({}, r"pack=8 packs only lists of numbers, not id, label: pass columns=\['words'\]"),
            ({"as_supervised": True}, "labels cannot be packed"),
            ({"pack": -1}, "pack=-1 must be the length of a row"),
            ({"pack": True}, "pack=True must be"),
            ({"pack": 8.0}, "pack=8.0 must be"),
            ({"windows": (2, 1)}, "pack= and windows= cannot be combined"),
            ({"equal_steps": True}, "pack= and equal_steps= cannot be combined"),
            ({"start_step": 3, "seed": 1}, "pack= and start_step= cannot be combined"),
            ({"bucket": True}, "pack= and bucket= cannot be combined"),
            ({"cache": "decoded"}, "cache= and pack= cannot be combined"),
            ({"service": "grpc://x"}, "service= and pack= cannot be combined"),
        ],
    )
    def test_what_it_cannot_do(
        self, reader: types.ModuleType, options: dict[str, Any], said: str
    ) -> None:
        with pytest.raises(ValueError, match=said):
            reader.dataset("train", BATCH, **{"pack": 8} | options)


def test_ragged_without_either(reader: types.ModuleType) -> None:
    batch = next(iter(reader.dataset("train", BATCH)))
    assert isinstance(batch["words"], tf.RaggedTensor)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"bucket": True}, "bucket=True needs lists, and made has none"),
        ({"bucket": "id"}, "bucket='id' needs lists, and made has none"),
        ({"windows": (2, 1)}, "windows= needs lists"),
        ({"pack": 8}, "pack=8 needs lists of numbers, and made has none"),
    ],
)
def test_snapshots_without_lists(
    tmp_path: Path, write_snapshot: WriteSnapshot, options: dict[str, Any], said: str
) -> None:
    reader = write_snapshot(tmp_path, {"id": Scalar("int64")}, {"train": [[{"id": 1}]]}, label=None)
    with pytest.raises(ValueError, match=said):
        reader.dataset("train", 1, **options)
    assert ids(reader.dataset("train", 1, pad=True)) == [[1]], "there is nothing to pad"
