"""The doctor names the stage that binds, and recommends only what can be set; and ``InputWait``."""

import dataclasses
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from snapshard.pipelines.reader.runtime import doctor, facts
from snapshard.pipelines.reader.runtime import input_wait as waits
from snapshard.pipelines.reader.runtime.doctor import Measured, Stage, Timed
from snapshard.pipelines.reader.runtime.input_wait import InputWait
from snapshard.pipelines.reader.runtime.options import Options
from snapshard.pipelines.reader.runtime.shards import Shard
from snapshard.schemas.features import ClassLabel, Features, Image, Scalar

from .conftest import load

NUMBERS: Features = {"label": ClassLabel(names=("even", "odd")), "id": Scalar(dtype="int64")}
PROCESSORS = 4
SLOW = [1.0] + [9.0] * 30
"""Waits of an epoch, in ms, whose steps take 1 ms."""


def numbered(shards: int, each: int) -> list[list[dict[str, int]]]:
    return [[{"id": each * s + i, "label": i % 2} for i in range(each)] for s in range(shards)]


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory, write_snapshot: Any) -> Path:
    folder: Path = tmp_path_factory.mktemp("numbers")
    write_snapshot(folder, NUMBERS, {"train": numbered(4, 100)})
    return folder


def timed(cost: float, *, busy: float = 1.0, others: float = 0.0) -> Timed:
    """A round in which an example took so many µs, and so many processors worked."""
    return Timed(1_000, cost / 1_000, busy * cost / 1_000, others * cost / 1_000)


def epoch_of(found: list[float], *, step: float = 10.0, complete: bool = True) -> waits.Epoch:
    return waits.Epoch(found, (sum(found) + step * len(found)) / 1000, is_complete=complete)


def measured(
    costs: Mapping[str, float | Sequence[float]],
    *,
    options: Mapping[str, Any] | None = None,
    steps: Sequence[float] = SLOW,
    shards: Sequence[Shard] = (Shard("/none/train-0", 1_000, 10_000_000),),
    **load: float,
) -> Measured:
    """What is measured where an example takes so many µs, alike or by round, up to each stage."""
    rounds = {name: [cost] * 3 if isinstance(cost, float) else cost for name, cost in costs.items()}
    return Measured(
        options=Options(**{"split": "train", "batch_size": 128, "epochs": None, **(options or {})}),
        shards=shards,
        processors=PROCESSORS,
        stages=[
            Stage(name, [timed(cost, **load) for cost in each]) for name, each in rounds.items()
        ],
        waits=waits.summarize([epoch_of(list(steps), step=1.0)]),
        bytes_each=1_000.0,
    )


PIPELINE = {"frame": 10.0, "shuffle": 11.0, "batch": 12.0, "parse": 99.0}
FRAMES = {"frame": 90.0, "shuffle": 91.0, "batch": 92.0, "parse": 99.0}
CACHE = "cache=\"decoded\" saves the stage 'parse' from the second epoch on (2 MB at most, "


@dataclasses.dataclass
class Case:
    """Costs by stage -> the stage that binds, and the beginning of each line of advice."""

    costs: Mapping[str, float | Sequence[float]]
    stage: str | None
    advice: Sequence[str] = ()
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    load: Mapping[str, float] = dataclasses.field(default_factory=dict)
    doubt: str = ""


ENCODED = {"image": {"kind": "image", "storage": "encoded"}}
PLAIN = {"a": {"kind": "scalar"}, "b": {"kind": "scalar"}}
VERDICTS = {
    "parsing": Case(PIPELINE, "parse", [CACHE, "read fewer features"], facts={"FEATURES": PLAIN}),
    "decoding": Case(PIPELINE, "parse", [CACHE, "store pixels"], facts={"FEATURES": ENCODED}),
    "a cache is set": Case(
        PIPELINE, "parse", ["store pixels"], {"cache": "memory"}, {"FEATURES": ENCODED}
    ),
    "columns are set": Case(PIPELINE, "parse", [CACHE], {"columns": ["a"]}, {"FEATURES": PLAIN}),
    "a cache is impossible": Case(
        PIPELINE, "parse", [], {"start_step": 3, "seed": 1, "columns": ["a"]}, {"FEATURES": PLAIN}
    ),
    "frames": Case(FRAMES, "frame", ["reading records is the limit"]),
    "a slow store": Case(
        {"read": 80.0, **FRAMES},
        "read",
        ['cache="memory" saves', "storage is slow: keep a copy", "fewer bytes"],
        facts={"FEATURES": PLAIN},
    ),
    "a slow store, with copies": Case(
        {"read": 80.0, **FRAMES}, "read", [], {"local_copy": "/a"}, {"FEATURES": ENCODED}
    ),
    "decompressing": Case(
        {"decompress": 80.0, "batch": 81.0, "parse": 90.0},
        "decompress",
        ['cache="decoded" saves', "GZIP costs time here", "a shard is decompressed by one"],
        facts={"COMPRESSION": "gzip"},
    ),
    "shuffling": Case(
        {"frame": 10.0, "shuffle": 80.0, "batch": 81.0}, "shuffle", ["a smaller buffer"]
    ),
    "shuffling small batches": Case(
        {"frame": 10.0, "shuffle": 80.0, "batch": 81.0},
        "shuffle",
        ["larger batches, up to 64"],
        {"batch_size": 32},
    ),
    "batching": Case({"frame": 10.0, "batch": 80.0}, "batch", ["the overhead of each batch"]),
    "augmenting": Case(
        {**PIPELINE, "augment": 400.0},
        "augment",
        ["move what is the same", "augment a batch in one call"],
        {"augment": lambda example, seed: example},
    ),
    "augmenting batches": Case(
        {**PIPELINE, "augment": 400.0},
        "augment",
        ["move what is the same"],
        {"augment_batch": lambda batch, seeds: batch},
    ),
    "a small step back": Case(
        {"frame": 12.0, "batch": 10.0, "parse": 90.0}, "parse", [CACHE, "read fewer"]
    ),
    "not monotone": Case(
        {"frame": 50.0, "batch": 20.0, "parse": 90.0},
        None,
        ["measure again, for longer"],
        doubt="with 'batch' an example took 20.0 µs, and without it 50.0",
    ),
    "rounds that disagree": Case(
        {
            "read": [20, 60, 20],
            "frame": [80, 70, 30],
            "batch": [90, 75, 90],
            "parse": [120, 200, 95],
        },
        None,
        ["measure again, for longer"],
        doubt="three rounds named ",
    ),
    "other programs": Case(
        FRAMES, "frame", ["reading records", "other programs use 2.0 of 4"], load={"others": 2.0}
    ),
    "busy processors": Case(
        FRAMES,
        "frame",
        ["reading records", "3.6 of 4 processors are busy: do less per example, or read on other"],
        load={"busy": 3.6},
    ),
    "busy processors and a seed": Case(
        FRAMES, "frame", ["reading records", "3.6 of 4"], {"seed": 1}, load={"busy": 3.6}
    ),
}


@pytest.mark.parametrize("case", VERDICTS.values(), ids=VERDICTS)
def test_verdict(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    names = {"FEATURES": PLAIN, "COMPRESSION": "none", **case.facts}
    for name, value in names.items():
        monkeypatch.setattr(facts, name, value)
    found = doctor.conclude(measured(case.costs, options=case.options, **case.load), 1.0)
    assert found.is_bound
    assert found.stage == case.stage
    assert (found.doubt or "").startswith(case.doubt)
    assert (found.doubt is None) == (case.stage is not None)
    assert len(found.advice) == len(case.advice), found.advice
    for text, beginning in zip(found.advice, case.advice, strict=True):
        assert text.startswith(beginning)
    if case.options.get("seed"):
        assert "service=" not in str(found), "it cannot be combined with seed="
    assert all(f"   - {text}" in str(found) for text in found.advice)


def test_not_bound() -> None:
    """Neither if training does not wait, nor if the pipeline is fast enough for its steps."""
    calm = doctor.conclude(measured(PIPELINE, steps=[0.01] * 30), 1.0)
    fast = doctor.conclude(measured(PIPELINE), 60.0)
    for found in (calm, fast):
        assert not found.is_bound
        assert not found.advice
    assert "=> not bound by input" in str(calm)
    assert "=> the pipeline is fast enough" in str(fast), "it waits, but not for the pipeline"


@pytest.mark.parametrize(
    ("busy", "others", "by_processor_time"),
    [(0.9, 0.0, True), (0.4, 0.55, True), (0.4, 0.1, False), (0.05, 0.95, False)],
)
def test_costs_are_processor_time_where_processors_are_saturated(
    busy: float, others: float, by_processor_time: bool
) -> None:
    """A process that mostly waits is not slowed down by the programs that use the processors."""
    rates = {"busy": busy * PROCESSORS, "others": others * PROCESSORS}
    found = doctor.conclude(measured(PIPELINE, **rates), 1.0)
    assert ("it; processor time per example" in str(found)) is by_processor_time


def test_processor_time_finds_what_wall_time_hides() -> None:
    """Reading seems slow where all processors parse: the cause is the parsing."""
    both = measured({"read": 50.0, "parse": 60.0})
    stages = [
        Stage("read", [Timed(1_000, 0.050, 0.005, 0)] * 3),
        Stage("parse", [Timed(1_000, 0.060, 0.060 * PROCESSORS, 0)] * 3),
    ]
    assert doctor.conclude(dataclasses.replace(both, stages=stages), 1.0).stage == "parse"


@pytest.mark.parametrize(
    ("num", "megabytes", "num_examples", "advice"),
    [
        (16, 10, 10_000, None),  # as built from 160 MB
        (1, 5, 1_000, None),  # … and from 5 MB
        (16, 0.1, 1_000, None),
        (20, 150, 10_000_000, None),
        (400, 0.05, 4_000, 'costs time: build with Shards(num_shards={"train": 2})'),
        (2, 100, 10_000, 'few for 200 MB: build with Shards(num_shards={"train": 16})'),
        (16, 400, 10_000, 'few for 6,400 MB: build with Shards(num_shards={"train": 43})'),
    ],
)
def test_shards_are_judged_against_the_split(
    num: int, megabytes: float, num_examples: int, advice: str | None
) -> None:
    shards = [Shard(f"/none/{i}", num_examples // num, int(megabytes * 1e6)) for i in range(num)]
    notes = doctor.conclude(measured(PIPELINE, shards=shards), 1.0).notes
    assert [True] * bool(advice) == [str(advice) in note for note in notes], notes
    part = measured(PIPELINE, shards=shards, options={"split": "train[:10%]"})
    assert not doctor.conclude(part, 1.0).notes, "shards belong to splits, not to parts of them"


def test_a_slow_start_of_epochs_is_noted() -> None:
    (note,) = doctor.conclude(measured(PIPELINE, steps=[900.0, *SLOW]), 1.0).notes
    assert note.startswith("the first batch of an epoch takes 900 ms")


def slow_augment(example: Any, seed: Any) -> Any:
    values = tf.random.stateless_uniform([160, 160], seed)
    for _ in range(12):
        values = tf.linalg.matmul(values, values) / 160
    return {**example, "sum": tf.reduce_sum(values)}


class TestMeasured:
    """On real pipelines."""

    @pytest.mark.slow  # measures stages one by one
    def test_slow_augment(self, numbers: Path) -> None:
        for _ in range(3):  # follows the advice to measure again what is inconclusive
            found = load(numbers).diagnose(
                "train", 8, step_ms=0.5, seconds=0.6, augment=slow_augment
            )
            if found.doubt is None:
                break
        assert found.is_bound
        assert found.stage == "augment"

    @pytest.mark.slow  # measures stages one by one
    def test_slow_model(self, numbers: Path) -> None:
        found = load(numbers).diagnose("train", 8, step_ms=60, seconds=0.6)
        assert not found.is_bound

    @pytest.mark.slow  # measures stages one by one
    @pytest.mark.parametrize("compression", ["none", "gzip"])
    def test_decoding(self, tmp_path: Path, write_snapshot: Any, compression: str) -> None:
        pixels = np.random.default_rng(0).integers(0, 255, (160, 160, 3), np.uint8)
        image = tf.io.encode_jpeg(pixels).numpy()
        features: Features = {
            "image": Image(storage="encoded", height=160, width=160),
            "label": ClassLabel(names=("even", "odd")),
        }
        records = [[{"image": image, "label": i % 2} for i in range(80)] for _ in range(2)]
        reader = write_snapshot(tmp_path, features, {"train": records}, compression=compression)
        for _ in range(3):
            found = reader.diagnose("train", 8, step_ms=0.5, seconds=0.6)
            if found.doubt is None:
                break
        assert found.stage == "parse"
        assert found.advice[0].startswith('cache="decoded"')

    @pytest.mark.parametrize(
        ("options", "stages"),
        [
            ({}, ["frame", "shuffle", "batch", "parse"]),
            ({"shuffle": False}, ["frame", "batch", "parse"]),
            ({"cache": "decoded"}, ["frame"]),
            (
                {"augment_batch": lambda batch, seeds: batch},
                ["frame", "shuffle", "batch", "parse", "augment"],
            ),
        ],
        ids=["shuffled", "stored", "decoded", "augmented"],
    )
    def test_stages_are_those_of_the_pipeline(
        self, numbers: Path, options: dict[str, Any], stages: list[str]
    ) -> None:
        found = load(numbers).diagnose("train", 8, step_ms=0, seconds=0.01, **options)
        assert [line.split()[0] for line in found.summary[: len(stages)]] == stages
        assert found.summary[len(stages)].startswith("(each with the stages above it")

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"step_ms": -1}, "step_ms=-1 must be a number of milliseconds"),
            ({"step_ms": float("nan")}, "step_ms=nan must be"),
            ({"step_ms": 1, "shuffle": -3}, "shuffle=-3"),
            ({"step_ms": 1, "augment": lambda e, s: e["nix"]}, "augment= failed when called with"),
        ],
        ids=["negative", "nan", "option", "augment"],
    )
    def test_refusals(self, numbers: Path, arguments: dict[str, Any], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            load(numbers).diagnose("train", 8, **arguments)

    def test_a_split_without_records(self, tmp_path: Path, write_snapshot: Any) -> None:
        reader = write_snapshot(tmp_path, NUMBERS, {"train": [[{"id": 1, "label": 0}]], "test": []})
        with pytest.raises(ValueError, match="split='test' has no records to measure"):
            reader.diagnose("test", 8, step_ms=1)


class TestWaits:
    def test_share_leaves_out_the_very_first_batch(self) -> None:
        found = waits.summarize([epoch_of([900.0] + [10.0] * 9), epoch_of([110.0] + [10.0] * 9)])
        assert found.share == pytest.approx((90 + 110 + 90) / (90 + 110 + 90 + 200))
        assert (found.median, found.steps) == (10.0, 20)
        assert found.epoch_start == 505

    def test_an_epoch_that_broke_off(self) -> None:
        found = waits.summarize([epoch_of([500.0] + [10.0] * 9, complete=False)])
        assert found.share == pytest.approx(90 / 190)
        assert found.first_epoch is None

    def test_slow_first_epoch(self) -> None:
        slow, fast = [50.0] + [30.0] * 20, [50.0] + [1.0] * 20
        found = waits.summarize([epoch_of(slow), epoch_of(fast), epoch_of(fast)])
        assert found.first_epoch == pytest.approx(0.58 / 0.28)
        assert "first epoch waited longer" in " ".join(found.lines())
        assert waits.summarize([epoch_of(fast)] * 3).first_epoch == 0

    def test_periodic_stalls(self) -> None:
        found = [1.0] * 100
        for place in range(7, 100, 20):
            found[place] = 80.0
        assert waits.periodic_stalls(found) == waits.Stalls(20, 80.0)
        found[8] = 40.0  # it lasts for two steps
        assert waits.periodic_stalls(found) == waits.Stalls(20, 80.0)
        summary = waits.summarize([epoch_of([9.0, *found])])
        assert "Every 20 steps training stalls for 80 ms." in summary.lines()

    def test_the_largest_waits_are_looked_at_first_in_all_epochs(self) -> None:
        small = [12.0 if place % 7 in (1, 3) or place % 11 == 5 else 0.5 for place in range(110)]
        epochs = [list(small) for _ in range(2)]
        for steps in epochs:
            for place in range(20, 110, 26):
                steps[place] = 580.0 + place / 10
        summary = waits.summarize([epoch_of([9.0, *steps]) for steps in epochs])
        assert summary.stalls is not None
        assert summary.stalls.every == 26
        assert summary.stalls.milliseconds == pytest.approx(585, abs=5)
        assert waits.periodic_stalls(small) is None

    @pytest.mark.parametrize("places", [(), (5,), (5, 40), (3, 9, 60, 64, 95)])
    def test_stalls_without_a_rhythm(self, places: tuple[int, ...]) -> None:
        found = [1.0] * 100
        for place in places:
            found[place] = 80.0
        assert waits.periodic_stalls(found) is None

    def test_no_step(self) -> None:
        with pytest.raises(ValueError, match="no step"):
            waits.summarize([waits.Epoch()])


class TestInputWait:
    def fit(
        self, *, data_ms: float = 0, model_ms: float = 0, every: int = 1, epochs: int = 2
    ) -> tuple[InputWait, Any]:
        """A fit of 40 steps an epoch, whose steps take so long, and so does every n-th batch."""

        def slow_batch(number: Any) -> Any:
            time.sleep(data_ms / 1000 if number % every == every - 1 else 0)
            return np.float32(number)

        class SlowModel(tf.keras.Model):  # type: ignore[misc, unused-ignore]
            def __init__(self) -> None:
                super().__init__()
                self.dense = tf.keras.layers.Dense(1)

            def call(self, inputs: Any) -> Any:
                def nap(values: Any) -> Any:
                    time.sleep(model_ms / 1000)
                    return values

                found = tf.numpy_function(nap, [inputs], tf.float32)
                return self.dense(tf.ensure_shape(found, [1, 1]))

        def batch(number: Any) -> Any:
            value = tf.reshape(tf.numpy_function(slow_batch, [number], tf.float32), [1, 1])
            return value, value

        dataset = tf.data.Dataset.range(40).map(batch)
        model = SlowModel()
        model.compile(optimizer="sgd", loss="mse")
        wait = InputWait()
        history = model.fit(
            wait.watch(dataset),
            callbacks=[wait],
            epochs=epochs,
            shuffle=False,
            verbose=0,
            validation_data=dataset.take(2),
        )
        return wait, history.history

    @pytest.mark.slow
    def test_slow_data(self) -> None:
        wait, history = self.fit(data_ms=20)
        assert wait.summary().steps == 80
        assert [len(epoch.waits) for epoch in wait.epochs] == [40, 40]
        assert min(ms for epoch in wait.epochs for ms in epoch.waits) >= 20
        shares = [waits.summarize([epoch]).share for epoch in wait.epochs]
        assert history["input_wait"] == pytest.approx(shares)

    @pytest.mark.slow
    def test_slow_model(self) -> None:
        """The time of the model and of the validation is none of the waits."""
        wait, _ = self.fit(model_ms=20)
        for epoch in wait.epochs:
            assert epoch.seconds >= sum(epoch.waits) / 1000 + 40 * 0.02

    def test_periodic_stalls(self) -> None:
        wait, _ = self.fit(data_ms=100, every=10, epochs=1)
        (epoch,) = wait.epochs
        assert len(epoch.waits) == 40
        assert min(epoch.waits[9::10]) >= 100

    def test_what_is_watched_is_the_same_dataset(self) -> None:
        dataset = tf.data.Dataset.range(7).map(lambda i: ({"x": i}, i)).batch(2).prefetch(1)
        watched = InputWait().watch(dataset)
        assert watched.element_spec == dataset.element_spec
        assert watched.cardinality() == dataset.cardinality()
        for (x, y), (same_x, same_y) in zip(dataset, watched, strict=True):
            np.testing.assert_array_equal(x["x"], same_x["x"])
            np.testing.assert_array_equal(y, same_y)

    def test_without_a_watched_dataset(self) -> None:
        with pytest.raises(ValueError, match=r"pass wait\.watch\(dataset\) to fit"):
            InputWait().summary()

    def test_reader_exports_it(self, numbers: Path) -> None:
        assert load(numbers).InputWait().epochs == []
