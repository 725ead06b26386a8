"""Each option of the reader on snapshots that were built: what it does, seen in records."""

import collections
import csv
import hashlib
import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import tensorflow as tf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image as PillowImage

import snapshard as ss

pytestmark = pytest.mark.slow  # every option on four snapshots that are built for it

SHIPPED = Path(__file__).parents[2] / "examples" / "data" / "sign_digits"
BATCH = 8


def photographs(folder: Path) -> Any:
    """Of three classes and many sizes."""
    rng = np.random.default_rng(0)
    for number, digit in enumerate("012"):
        target = folder / "photographs" / digit
        target.mkdir(parents=True)
        for index, path in enumerate(sorted((SHIPPED / digit).iterdir())[: 8 + 10 * number]):
            width, height = rng.integers(20, 60, 2).tolist()
            PillowImage.open(path).resize((width, height)).save(target / f"{index}.jpg")
    return ss.ImageFolder(str(folder / "photographs"))


def table(folder: Path) -> Any:
    rng = np.random.default_rng(1)
    kinds = ["common"] * 6 + ["some"] * 3 + ["rare"]
    with open(folder / "rows.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["length", "width", "label"])
        for index in range(135):
            writer.writerow([round(float(rng.normal()), 6), index, kinds[index % 10]])
    return ss.Csv(str(folder / "rows.csv"), label="label")


def sequences(folder: Path) -> Any:
    rng = np.random.default_rng(2)
    rows = [
        {
            "tokens": rng.integers(1, 1000, int(rng.integers(0, 25))).tolist(),
            "label": "abc"[min(index % 5, 2)],
            "number": index,
        }
        for index in range(150)
    ]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return ss.JsonLines(str(folder / "rows.jsonl"), label="label")


def sounds(folder: Path) -> Any:
    rng = np.random.default_rng(3)
    for index in range(60):
        path = folder / "sounds" / ("no" if index % 4 else "yes") / f"{index}.wav"
        path.parent.mkdir(parents=True, exist_ok=True)
        samples = rng.integers(1, 2**15, int(rng.integers(5, 40))).astype(np.int16)
        soundfile.write(path, samples, 8000)
    return ss.AudioFolder(str(folder / "sounds"))


SOURCES: dict[str, Callable[[Path], Any]] = {
    "photographs": photographs,
    "table": table,
    "sequences": sequences,
    "sounds": sounds,
}
LISTS = {"sequences": "tokens", "sounds": "audio"}


class Kind:
    """A snapshot of one kind of data, and its reader; records are known by what is in them."""

    def __init__(self, name: str, snapshot: ss.Snapshot) -> None:
        self.name, self.path = name, Path(snapshot.path)
        self.reader = snapshot.reader()
        self.num = self.reader.NUM_EXAMPLES["train"]
        self.classes = {self.key(one): one["label"] for one in self.records(shuffle=False)}
        self.stored = list(self.classes)
        self.all = sorted(self.stored)
        assert len(self.all) == self.num

    def dataset(self, batch_size: int = BATCH, **options: Any) -> Any:
        if self.name == "photographs":
            options = {"image_size": (12, 10), **options}
        return self.reader.dataset("train", batch_size, **options)

    def steps(self, batch_size: int = BATCH, **options: Any) -> int:
        return int(self.reader.steps("train", batch_size, **options))

    def records(self, batch_size: int = BATCH, **options: Any) -> Iterator[dict[str, Any]]:
        for batch in self.dataset(batch_size, **options):
            yield from rows(batch)

    def key(self, record: dict[str, Any]) -> str:
        """What a record is known by: its values, without padding (no value is zero at an end)."""
        parts = []
        for name in sorted({*self.reader.FEATURES} - {"label"}):
            value = np.asarray(record[name])
            value = np.trim_zeros(value, "b") if name == LISTS.get(self.name) else value
            parts.append(value.tobytes())
        return hashlib.sha256(b"|".join(parts)).hexdigest()

    def keys(self, batch_size: int = BATCH, **options: Any) -> list[str]:
        return [self.key(one) for one in self.records(batch_size, **options)]

    def batches(self, batch_size: int = BATCH, **options: Any) -> list[list[str]]:
        batches = self.dataset(batch_size, **options)
        return [[self.key(one) for one in rows(batch)] for batch in batches]


def rows(batch: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The records of a batch, with NumPy's values."""
    columns = {}
    for name, value in batch.items():
        if isinstance(value, tf.RaggedTensor):
            ends = value.row_splits.numpy()[1:-1]
            columns[name] = np.split(value.flat_values.numpy(), ends)
        else:
            columns[name] = value.numpy()
    for values in zip(*columns.values(), strict=True):
        yield dict(zip(columns, values, strict=True))


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Kind]:
    made = {}
    for name, make in SOURCES.items():
        folder = tmp_path_factory.mktemp(name)
        recipe = ss.Recipe(
            name=name,
            source=make(folder),
            splits=ss.Splits(train=0.85, test=0.15),
            shards=ss.Shards(num_shards=5, compression="gzip" if name == "table" else "none"),
        )
        made[name] = Kind(name, ss.build(recipe, folder / "out"))
    return made


@pytest.fixture(params=SOURCES)
def kind(request: pytest.FixtureRequest, kinds: dict[str, Kind]) -> Kind:
    return kinds[request.param]


@pytest.fixture(params=["sequences", "table"])
def some(request: pytest.FixtureRequest, kinds: dict[str, Kind]) -> Kind:
    """For what is done with records before they are parsed: without and with compression."""
    return kinds[request.param]


@pytest.fixture(params=LISTS)
def lists(request: pytest.FixtureRequest, kinds: dict[str, Kind]) -> Kind:
    return kinds[request.param]


class TestOrder:
    def test_a_seed_gives_one_order_and_another_in_each_epoch(self, some: Kind) -> None:
        found = some.keys(seed=7, epochs=3)
        epochs = [found[i * some.num : (i + 1) * some.num] for i in range(3)]
        assert all(sorted(epoch) == some.all for epoch in epochs)
        assert len({tuple(epoch) for epoch in [*epochs, some.stored]}) == 4
        assert some.keys(seed=7, epochs=3) == found
        assert some.keys(seed=8) != epochs[0]

    def test_without_a_seed_every_record_once(self, some: Kind) -> None:
        for options in ({}, {"deterministic": True}, {"deterministic": False, "seed": 1}):
            found = some.keys(**options)
            assert sorted(found) == some.all
            assert found != some.stored

    def test_stored_order_and_a_buffer_of_few(self, some: Kind) -> None:
        assert some.keys(shuffle=False) == some.stored
        few = some.keys(shuffle=4, seed=1)
        assert sorted(few) == some.all
        assert few != some.stored

    def test_forever(self, some: Kind) -> None:
        dataset = some.dataset(epochs=None, seed=7)
        assert dataset.cardinality() == tf.data.INFINITE_CARDINALITY
        found = [some.key(one) for batch in dataset.take(2 * some.steps()) for one in rows(batch)]
        assert found == some.keys(seed=7, epochs=2)

    def test_without_the_short_batch(self, some: Kind) -> None:
        whole = some.num // BATCH
        assert some.num % BATCH
        found = some.batches(drop_remainder=True, epochs=2, seed=3)
        assert [len(batch) for batch in found] == [BATCH] * 2 * whole
        assert some.steps(drop_remainder=True) == whole
        assert found[:whole] == some.batches(seed=3)[:whole]


class TestWorkers:
    @pytest.mark.parametrize("count", [2, 7])
    def test_each_record_has_one_worker(self, some: Kind, count: int) -> None:
        found = []
        for index in range(count):
            dataset = some.dataset(shard=(index, count), seed=1)
            part = [some.key(one) for batch in dataset for one in rows(batch)]
            assert dataset.cardinality() == -(-len(part) // BATCH)
            found += part
        assert sorted(found) == some.all

    def test_an_equal_number_of_steps(self, some: Kind) -> None:
        options = {"equal_steps": True, "seed": 1}
        parts = [some.batches(4, shard=(index, 3), **options) for index in range(3)]
        (num,) = {len(part) for part in parts}
        assert num == some.steps(4, shard=(0, 3), **options)
        found = [key for part in parts for batch in part for key in batch]
        assert len({*found}) == len(found) > some.num - 3 * 4

    def test_goes_on_with_other_workers(self, some: Kind) -> None:
        two = [some.batches(4, shard=(index, 2), seed=5)[:2] for index in range(2)]
        before = [key for part in two for batch in part for key in batch]
        found = []
        for index in range(3):
            options = {"shard": (index, 3), "seed": 5, "start_step": [(2, 4, 2)]}
            found.append(some.keys(6, **options))
        assert len(before) == 16
        assert sorted(before + [key for part in found for key in part]) == some.all

    def test_goes_on_after_an_epoch(self, some: Kind) -> None:
        num = some.steps()
        whole = some.batches(seed=5, epochs=3)
        rest = some.batches(seed=5, epochs=3, start_step=num + 1)
        assert rest[-num:] == whole[-num:]
        left = [key for batch in rest[:-num] for key in batch]
        assert sorted(left + whole[num]) == some.all


class TestCopies:
    def test_a_cache_gives_each_once(self, some: Kind) -> None:
        found = some.keys(seed=2, epochs=2, cache="memory")
        assert sorted(found[: some.num]) == sorted(found[some.num :]) == some.all
        assert found[: some.num] != found[some.num :]

    def test_examples_kept_decoded(self, kind: Kind) -> None:
        found = kind.keys(seed=2, epochs=2, cache="decoded")
        assert sorted(found[: kind.num]) == sorted(found[kind.num :]) == kind.all
        assert found[: kind.num] != found[kind.num :]
        assert kind.keys(shuffle=False, cache="decoded") == kind.stored

    def test_local_copies_give_the_order_of_a_cache(self, some: Kind, tmp_path: Path) -> None:
        kept = some.keys(seed=2, epochs=2, cache="memory")
        assert some.keys(seed=2, epochs=2, local_copy=str(tmp_path)) == kept
        shards = sorted(path.name for path in some.path.glob("train-*"))
        assert len(shards) == 5
        assert sorted(path.name for path in tmp_path.glob("*/train-*")) == shards


class TestValues:
    def test_columns(self, kind: Kind) -> None:
        (whole,) = kind.dataset(shuffle=False).take(1)
        for name in kind.reader.FEATURES:
            (batch,) = kind.dataset(columns=[name], shuffle=False).take(1)
            assert set(batch) == {name}
            assert_same(batch[name], whole[name])

    def test_supervised(self, kind: Kind) -> None:
        pairs = [*kind.dataset(as_supervised=True, shuffle=False)]
        dicts = [*kind.dataset(shuffle=False)]
        assert len(pairs) == len(dicts)
        for (features, label), whole in zip(pairs, dicts, strict=True):
            assert_same(label, whole.pop("label"))
            if len(whole) == 1:
                features = {next(iter(whole)): features}
            assert set(features) == set(whole)
            for name, value in features.items():
                assert_same(value, whole[name])

    def test_augmented_alike_wherever_it_is_read(self, kind: Kind) -> None:
        def draw(example: Any, seed: Any) -> Any:
            return {**example, "drawn": tf.random.stateless_uniform([], seed)}

        def draws(**options: Any) -> list[tuple[str, float]]:
            return [(kind.key(one), float(one["drawn"])) for one in kind.records(**options)]

        found = draws(seed=4, augment=draw, epochs=2)
        first, second = dict(found[: kind.num]), dict(found[kind.num :])
        assert sorted(first) == kind.all == sorted(second)
        assert len({*first.values(), *second.values()}) == 2 * kind.num
        for index in range(2):
            assert dict(draws(seed=4, augment=draw, shard=(index, 2))).items() <= first.items()
        assert dict(draws(seed=4, augment=draw, cache="memory")) == first

    def test_augmented_by_batches(self, kind: Kind) -> None:
        def draw(batch: Any, seeds: Any) -> Any:
            return {**batch, "seed": seeds}

        found = [*kind.records(seed=4, augment_batch=draw, epochs=2)]
        seeds = {tuple(one["seed"].tolist()) for one in found}
        assert len(seeds) == 2 * kind.num
        assert sorted(map(kind.key, found)) == sorted(2 * kind.all)

    def test_options_of_the_user(self, some: Kind) -> None:
        options = tf.data.Options()
        options.threading.private_threadpool_size = 3
        dataset = some.dataset(options=options, seed=1)
        assert dataset.options().threading.private_threadpool_size == 3
        assert dataset.options().deterministic
        assert [some.key(one) for batch in dataset for one in rows(batch)] == some.keys(seed=1)


def assert_same(one: Any, other: Any) -> None:
    """Equal to the bit, ragged or dense."""
    assert type(one) is type(other)
    assert one.dtype == other.dtype
    assert np.array_equal(
        np.concatenate([np.ravel(row) for row in one.numpy()]),
        np.concatenate([np.ravel(row) for row in other.numpy()]),
    )


class TestImages:
    def test_dtype_and_scale(self, kinds: dict[str, Kind]) -> None:
        kind = kinds["photographs"]
        (plain,) = kind.dataset(64, shuffle=False)
        assert plain["image"].dtype == tf.uint8
        assert plain["image"].shape == [kind.num, 12, 10, 3]
        pixels = plain["image"].numpy()
        for options, dtype, factor in (
            ({"scale": 1 / 255}, np.float32, 1 / 255),
            ({"dtype": "float16"}, np.float16, 1),
            ({"dtype": "float64", "scale": 0.5}, np.float64, 0.5),
            ({"dtype": "int32"}, np.int32, 1),
        ):
            (found,) = kind.dataset(64, shuffle=False, **options)
            assert found["image"].dtype == dtype
            assert found["image"].numpy() == pytest.approx(pixels * factor, rel=1e-6)

    def test_sizes(self, kinds: dict[str, Kind]) -> None:
        kind = kinds["photographs"]
        with pytest.raises(ValueError, match=r"differ in size: pass image_size=\(h, w\)"):
            kind.dataset(image_size=None)
        (whole,) = kind.dataset(64, shuffle=False, image_size=(24, 20))
        assert whole["image"].shape == [kind.num, 24, 20, 3]
        (small,) = kind.dataset(64, shuffle=False)
        blocks = whole["image"].numpy().reshape(kind.num, 12, 2, 10, 2, 3).mean(axis=(2, 4))
        assert np.abs(blocks - small["image"].numpy()).mean() < 12


class TestBalance:
    def test_uniform(self, some: Kind) -> None:
        found = [*some.records(balance="uniform", seed=1)]
        counts = collections.Counter(int(one["label"]) for one in found)
        assert len(found) == some.num
        assert len(counts) == len(some.reader.CLASS_NAMES)
        assert max(counts.values()) - min(counts.values()) <= 1
        assert_turns(some, found)

    def test_weights(self, some: Kind) -> None:
        one, other = some.reader.CLASS_NAMES[:2]
        found = [*some.records(balance={one: 3, other: 1}, seed=1)]
        counts = collections.Counter(int(record["label"]) for record in found)
        assert sorted(counts) == [0, 1]
        assert counts[0] == pytest.approx(some.num * 3 / 4, abs=1)
        assert_turns(some, found)

    def test_workers_share_it(self, some: Kind) -> None:
        whole = collections.Counter(some.keys(balance="uniform", seed=1))
        parts = [some.keys(balance="uniform", seed=1, shard=(i, 3)) for i in range(3)]
        assert collections.Counter(itertools.chain(*parts)) == whole

    def test_goes_on_with_other_workers(self, some: Kind) -> None:
        options: dict[str, Any] = {"balance": "uniform", "seed": 1}
        before = [some.keys(4, shard=(i, 2), **options)[:8] for i in range(2)]
        options["start_step"] = [(2, 4, 2)]
        after = [some.keys(6, shard=(i, 3), **options) for i in range(3)]
        del options["start_step"]
        whole = collections.Counter(some.keys(**options))
        assert collections.Counter(itertools.chain(*before, *after)) == whole


def assert_turns(kind: Kind, found: list[dict[str, Any]]) -> None:
    """No record of a class comes twice more than another."""
    times = collections.Counter(map(kind.key, found))
    for label in {int(one["label"]) for one in found}:
        mine = [times[key] for key in kind.stored if kind.classes[key] == label]
        assert max(mine) - min(mine) <= 1


class TestLists:
    def test_padded_to_the_longest(self, lists: Kind) -> None:
        name = LISTS[lists.name]
        padded = [*lists.dataset(pad=True, shuffle=False)]
        ragged = [*lists.dataset(shuffle=False)]
        for dense, loose in zip(padded, ragged, strict=True):
            assert isinstance(dense[name], tf.Tensor)
            assert np.array_equal(dense[name], loose[name].to_tensor())

    @pytest.mark.parametrize("pad", [True, False])
    def test_batches_of_alike_length(self, lists: Kind, pad: bool) -> None:
        name = LISTS[lists.name]

        def area(**options: Any) -> int:
            batches = [batch[name] for batch in lists.dataset(pad=True, **options)]
            return sum(batch.shape[0] * batch.shape[1] for batch in batches)

        found = lists.batches(pad=pad, bucket=True, seed=1, epochs=2)
        assert len(found) == 2 * lists.steps(bucket=True)
        assert sorted(itertools.chain(*found)) == sorted(2 * lists.all)
        if pad:
            assert found == lists.batches(pad=pad, bucket=name, seed=1, epochs=2)
            assert area(bucket=True, seed=1) < area(seed=1)
            widths = {batch[name].shape[1] for batch in lists.dataset(pad=True, bucket=True)}
            assert widths <= {*lists.reader.LENGTHS[name]}

    @pytest.mark.parametrize("drop", [True, False])
    def test_windows(self, lists: Kind, drop: bool) -> None:
        name, (length, step) = LISTS[lists.name], (6, 4)
        expected = collections.Counter(
            (int(record["label"]), *record[name][begin : begin + length].tolist())
            for record in lists.records(shuffle=False)
            for begin in range(0, len(record[name]) - length + 1, step)
        )
        options = {"columns": [name, "label"], "windows": (length, step), "seed": 1}
        batches = [*lists.dataset(drop_remainder=drop, **options)]
        found = collections.Counter(
            (int(one["label"]), *one[name].tolist()) for batch in batches for one in rows(batch)
        )
        num = expected.total()
        assert [len(batch["label"]) for batch in batches][:-1] == [BATCH] * (len(batches) - 1)
        assert len(batches) == (num // BATCH if drop else -(-num // BATCH))
        assert found <= expected
        assert drop or found == expected


def test_packed(kinds: dict[str, Kind]) -> None:
    """Every list of tokens once, whole, in rows of one length."""
    kind = kinds["sequences"]
    wanted = sorted(r["tokens"].tolist() for r in kind.records(shuffle=False) if len(r["tokens"]))
    found = []
    for batch in kind.dataset(pack=64, columns=["tokens"], seed=1):
        assert batch["tokens"].shape[1] == 64
        for row, segments in zip(
            batch["tokens"].numpy(), batch["tokens_segments"].numpy(), strict=True
        ):
            found += [row[segments == n].tolist() for n in range(1, segments.max() + 1)]
    assert sorted(found) == wanted


class TestTogether:
    @settings(
        max_examples=10,
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )
    @given(data=st.data())
    def test_every_record_once_in_as_many_batches_as_told(
        self, kinds: dict[str, Kind], tmp_path_factory: pytest.TempPathFactory, data: Any
    ) -> None:
        kind = kinds["sequences"]
        options: dict[str, Any] = {
            "seed": data.draw(st.none() | st.integers(-(2**63), 2**63 - 1)),
            "shuffle": data.draw(st.sampled_from([None, True, False, 1, 7, 10**9])),
            "drop_remainder": data.draw(st.booleans()),
            "deterministic": data.draw(st.sampled_from([None, True, False])),
            "pad": data.draw(st.booleans()),
            "bucket": data.draw(st.sampled_from([False, True, "tokens"])),
            "equal_steps": data.draw(st.booleans()),
            "balance": data.draw(st.sampled_from([None, "uniform", {"a": 1, "c": 2}])),
        }
        if options["balance"]:  # workers that draw seeds of their own share no epoch
            options["seed"] = data.draw(st.integers(-(2**63), 2**63 - 1))
            options["shuffle"] = options["shuffle"] or None
        copies = ["none", "folder"] + ["memory"] * (not options["balance"])
        copy = data.draw(st.sampled_from(copies))
        options["cache"] = "memory" if copy == "memory" else None
        folder = str(tmp_path_factory.mktemp("copies"))
        options["local_copy"] = folder if copy == "folder" else None
        augment = data.draw(st.sampled_from([None, "augment", "augment_batch"]))
        if augment:
            options[augment] = lambda batch, seed: {**batch, "seed": seed}
        batch_size = data.draw(st.sampled_from([1, 5, 8, 40, 200]))
        count, epochs = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 2))
        found: list[list[list[str]]] = []
        if options["drop_remainder"] and batch_size > kind.num:
            with pytest.raises(ValueError, match=r"130 records, and shard=.* gets no batch of 200"):
                kind.dataset(batch_size, epochs=epochs, **options, shard=(0, count))
            return
        for index in range(count):
            given_ = {**options, "shard": (index, count)}
            dataset = kind.dataset(batch_size, epochs=epochs, **given_)
            batches = [[kind.key(one) for one in rows(batch)] for batch in dataset]
            assert len(batches) == dataset.cardinality()
            assert len(batches) == epochs * kind.steps(batch_size, **given_)
            found.append(batches)
        if options["equal_steps"]:
            assert len({len(batches) for batches in found}) == 1
        sizes = [[len(batch) for batch in batches] for batches in found]
        assert max(itertools.chain([0], *sizes)) <= batch_size
        if options["drop_remainder"]:
            assert {*itertools.chain(*sizes)} <= {batch_size}
        for epoch in range(epochs):
            read = collections.Counter[str]()
            for batches in found:
                num = len(batches) // epochs
                read.update(itertools.chain(*batches[epoch * num : (epoch + 1) * num]))
            left = kind.num - read.total()
            if options["equal_steps"] or options["drop_remainder"]:
                assert 0 <= left <= 2 * count * batch_size
            else:
                assert left == 0
            if options["balance"] is None:
                assert max(read.values(), default=1) == 1
                assert {*read} <= {*kind.all}
            elif left == 0:
                wanted = {0: 1, 1: 1, 2: 1} if options["balance"] == "uniform" else {0: 1, 2: 2}
                counts = collections.Counter(int(kind.classes[key]) for key in read.elements())
                total = sum(wanted.values())
                assert counts == {
                    label: pytest.approx(kind.num * weight / total, abs=1)
                    for label, weight in wanted.items()
                }
