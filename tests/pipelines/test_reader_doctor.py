"""The doctor names the cause that a test injects, and recommends only what can be set."""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from snapshard.pipelines.reader.runtime import doctor, timing, waits
from snapshard.pipelines.reader.runtime.console import Output
from snapshard.pipelines.reader.runtime.input_wait import InputWait
from snapshard.pipelines.reader.runtime.timing import Timed
from snapshard.schemas.features import ClassLabel, Features, Image, Scalar, Text

from .conftest import load, part
from .test_reader_tools import complete

NUMBERS: Features = {"label": ClassLabel(names=("even", "odd")), "id": Scalar(dtype="int64")}
Examine = Callable[..., dict[str, Any]]


def numbered(shards: int, each: int) -> list[list[dict[str, int]]]:
    return [[{"id": each * s + i, "label": i % 2} for i in range(each)] for s in range(shards)]


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory, write_snapshot: Any) -> Path:
    folder: Path = tmp_path_factory.mktemp("numbers")
    write_snapshot(folder, NUMBERS, {"train": numbered(4, 100)})
    complete(folder)
    return folder


@pytest.fixture
def examine(capfd: pytest.CaptureFixture[str]) -> Examine:
    """Runs the doctor, and gives what it found."""

    def call(
        folder: Path, *arguments: str, by_processor_time: bool = False, tries: int = 3
    ) -> dict[str, Any]:
        """``by_processor_time`` attributes costs so, which other programs change less.

        Follows the doctor's advice to measure again what was inconclusive, if there are ``tries``.
        """
        capfd.readouterr()
        reader = load(folder)
        if by_processor_time:
            basis = ("processor time", lambda timed: timed.cpu_each)
            vars(part(reader, "doctor"))["cost_basis"] = lambda whole: basis
        base = ("doctor", "--json", "--seconds", "0.6", "--batch-size", "8")
        for _ in range(tries):
            code = part(reader, "tools").main((*base, *arguments))
            printed, errors = capfd.readouterr()
            assert code == 0, errors
            found: dict[str, Any] = json.loads(printed)
            if found.get("inconclusive") is None:
                break
        for key in ("symptoms", "checklist"):
            names = "symptom" if key == "symptoms" else "item"
            found[key] = {row[names]: row for row in found[key]}
        return found

    return call


@pytest.mark.slow  # measures stages one by one
class TestInjected:
    def test_slow_augment(self, examine: Examine, numbers: Path, tmp_path: Path) -> None:
        path = tmp_path / "mine.py"
        path.write_text(
            "import tensorflow as tf\n"
            "def slow(example, seed):\n"
            "    found = tf.random.stateless_uniform([160, 160], seed)\n"
            "    for _ in range(12):\n"
            "        found = tf.linalg.matmul(found, found) / 160\n"
            "    return {**example, 'sum': tf.reduce_sum(found)}\n"
        )
        found = examine(
            numbers, "--step-ms", "0.5", "--augment", f"{path}:slow", by_processor_time=True
        )
        assert found["bound_by_input"]
        assert (found["slowest_stage"], found["inconclusive"]) == ("augment", None)
        assert found["advice"][0].startswith("augment binds: ")
        assert found["symptoms"]["starved accelerator"]["seen"] == "yes"

    def test_slow_model(self, examine: Examine, numbers: Path) -> None:
        found = examine(numbers, "--step-ms", "60")
        assert not found["bound_by_input"]
        assert "advice" not in found
        assert found["train"]["steps"] >= 20

    def test_slow_store(self, examine: Examine, numbers: Path, tmp_path: Path) -> None:
        # A batch takes so long that waiting for a processor does not count.
        slow = ("--step-ms", "1", "--mb-per-s", "0.02", "--batch-size", "64")
        found = examine(numbers, *slow)
        assert found["bound_by_input"]
        assert (found["slowest_stage"], found["inconclusive"]) == ("read", None)
        assert found["reads_served_by"] == "storage"
        assert found["attributed_by"] == "wall time"
        advice = " ".join(found["advice"])
        assert 'cache="memory"' in advice
        assert "local_copy=" in advice
        found = examine(numbers, *slow, "--option", f"local_copy={tmp_path}")
        advice = " ".join(found.get("advice", []))
        assert "cache=" not in advice, "local_copy= cannot be combined with it"
        assert "local_copy=" not in advice, "it is set already"

    def test_never_storage_where_the_page_cache_serves(
        self, examine: Examine, numbers: Path
    ) -> None:
        found = examine(numbers, "--step-ms", "0")
        assert found["reads_served_by"] == "page cache"
        assert found["slowest_stage"] != "read"
        (read, *_) = found["stages"]
        assert read["µs added"] == 0

    def test_decoding(self, examine: Examine, tmp_path: Path, write_snapshot: Any) -> None:
        pixels = np.random.default_rng(0).integers(0, 255, (160, 160, 3), np.uint8)
        image = tf.io.encode_jpeg(pixels).numpy()
        features: Features = {
            "image": Image(storage="encoded", height=160, width=160),
            "label": ClassLabel(names=("even", "odd")),
        }
        write_snapshot(
            tmp_path,
            features,
            {"train": [[{"image": image, "label": i % 2} for i in range(80)] for _ in range(2)]},
        )
        complete(tmp_path)
        found = examine(tmp_path, "--step-ms", "0.5", by_processor_time=True)
        assert (found["slowest_stage"], found["inconclusive"]) == ("decode", None)
        assert 'cache="decoded"' in found["advice"][0]
        assert "ss.images.decode" in found["advice"][1]
        assert 'cache="decoded"' in found["checklist"]["cache"]["measured"]
        found = examine(
            tmp_path, "--step-ms", "0.5", "--option", "cache=decoded", by_processor_time=True
        )
        assert "cache=" not in " ".join(found.get("advice", [])), "it is set already"

    def test_tiny_shards(self, examine: Examine, tmp_path: Path, write_snapshot: Any) -> None:
        write_snapshot(tmp_path, NUMBERS, {"train": numbered(80, 5)})
        complete(tmp_path)
        found = examine(tmp_path, "--step-ms", "1", "--seconds", "0.1", tries=1)
        shards = found["checklist"]["shards that suit the split"]
        assert shards[""] == "ADVICE"
        assert 'Shards(num_shards={"train": 1})' in shards["measured"]

    def test_too_few_shards(self, examine: Examine, tmp_path: Path, write_snapshot: Any) -> None:
        words = np.random.default_rng(0).integers(97, 123, 60_000).astype(np.uint8).tobytes()
        records = [{"text": words[i:] + words[:i]} for i in range(0, 60_000, 750)]
        features: Features = {"text": Text()}
        write_snapshot(tmp_path, features, {"train": [records]}, label=None, compression="gzip")
        complete(tmp_path)
        found = examine(tmp_path, "--step-ms", "0", by_processor_time=True)
        assert (found["slowest_stage"], found["inconclusive"]) == ("decompress", None)
        advice = " ".join(found["advice"])
        assert "there are only 1: build with Shards(min_shards=" in advice
        assert 'Shards(compression="none")' in advice


def timed(cost: float, *, busy: float = 1.0, others: float = 0.0) -> Timed:
    """A round in which an example took so many µs."""
    return Timed(1_000, cost / 1_000, busy * cost / 1_000, others * cost / 1_000)


def staged(**costs: list[float]) -> list[doctor.Stage]:
    return [doctor.Stage(name, "", list(map(timed, rounds))) for name, rounds in costs.items()]


class TestAttribution:
    def of(self, stages: list[doctor.Stage]) -> tuple[str, str | None]:
        doctor.attribute(stages, lambda one: one.wall_each)
        doubt = doctor.doubt_of(stages, lambda one: one.wall_each)
        return max(stages, key=lambda stage: stage.added).name, doubt

    def test_the_stage_that_adds_most(self) -> None:
        stages = staged(
            read=[9, 10, 11], frame=[11, 12, 12], decode=[90, 99, 110], augment=[100] * 3
        )
        assert self.of(stages) == ("decode", None)
        assert [stage.added for stage in stages] == pytest.approx([10, 2, 87, 1])

    def test_rates_that_are_not_monotone_are_inconclusive(self) -> None:
        name, doubt = self.of(staged(read=[50] * 3, frame=[20] * 3, decode=[90] * 3))
        assert (name, doubt) == (
            "read",
            "with 'frame' an example took 20.0 µs, and without it 50.0",
        )

    def test_a_small_step_back_is_not(self) -> None:
        stages = staged(read=[12] * 3, frame=[10] * 3, decode=[90] * 3)
        assert self.of(stages) == ("decode", None)

    def test_rounds_that_disagree_are_inconclusive(self) -> None:
        stages = staged(
            read=[20, 60, 20], frame=[80, 70, 30], decode=[90, 75, 90], augment=[120, 200, 95]
        )
        _, doubt = self.of(stages)
        assert doubt is not None
        assert doubt.startswith("three rounds named ")

    @pytest.mark.parametrize(
        ("busy", "others", "by"),
        [
            (0.9, 0.0, "processor time"),
            (0.4, 0.55, "processor time"),
            (0.4, 0.1, "wall time"),
            (0.05, 0.95, "wall time"),  # it waits, whatever the others do
        ],
    )
    def test_by_processor_time_where_processors_are_saturated(
        self, busy: float, others: float, by: str
    ) -> None:
        number = doctor.num_processors()
        rounds = [timed(10, busy=busy * number, others=others * number)] * 3
        assert doctor.cost_basis(doctor.Stage("whole", "", rounds))[0] == by

    def test_processor_time_finds_what_wall_time_hides(self) -> None:
        """Reading seems slow where both processors decode: the cause is the decoding."""
        read = Timed(1_000, 0.050, 0.005, 0)
        decode = Timed(1_000, 0.060, 0.110, 0)
        stages = [doctor.Stage("read", "", [read] * 3), doctor.Stage("decode", "", [decode] * 3)]
        _, cost = doctor.cost_basis(
            doctor.Stage("whole", "", [Timed(1, 1, 0.9 * doctor.num_processors(), 0)])
        )
        doctor.attribute(stages, cost)
        assert max(stages, key=lambda stage: stage.added).name == "decode"


def source_of(num: int, megabytes: float, *, num_examples: int = 10_000_000) -> Any:
    sizes = [int(megabytes * 1e6)] * num
    return SimpleNamespace(
        shard_bytes=sizes, split="train", num_examples=num_examples, is_remote=False
    )


@pytest.mark.parametrize(
    ("num", "megabytes", "num_examples", "advice"),
    [
        (16, 10, 10_000, None),  # what the build makes of 160 MB
        (1, 5, 1_000, None),  # … and of 5 MB
        (16, 0.1, 1_000, None),
        (20, 150, 10_000_000, None),
        (400, 0.05, 4_000, 'build with Shards(num_shards={"train": 2})'),
        (2, 100, 10_000, 'too few for this much data: build with Shards(num_shards={"train": 16})'),
        (
            16,
            400,
            10_000,
            'too few for this much data: build with Shards(num_shards={"train": 43})',
        ),
    ],
)
def test_shards_are_judged_against_the_split(
    num: int, megabytes: float, num_examples: int, advice: str | None
) -> None:
    found = doctor.judge_shards(source_of(num, megabytes, num_examples=num_examples)).advice
    assert (found is None) == (advice is None), found
    assert (advice or "") in (found or "")


@pytest.mark.parametrize(
    ("options", "batch_size", "advice"),
    [
        ({"shuffle": 50_000}, 128, "a smaller buffer than shuffle=50000"),
        ({}, 32, "larger batches, up to 64:"),
        ({"shuffle": True}, 128, "a smaller buffer: shuffle=1000"),
    ],
)
def test_less_shuffling(options: dict[str, Any], batch_size: int, advice: str) -> None:
    """Batches above 64 records are not shuffled in larger chunks."""
    source: Any = SimpleNamespace(options=options, batch_size=batch_size)
    (found,) = doctor.less_shuffling(source)
    assert found.startswith(advice)


def epoch_of(found: list[float], *, step: float = 10.0, complete: bool = True) -> waits.Epoch:
    return waits.Epoch(found, (sum(found) + step * len(found)) / 1000, is_complete=complete)


def source_with(options: dict[str, Any], **attributes: Any) -> timing.Input:
    """An input of the package's own facts, which reads nothing."""
    source = timing.Input.__new__(timing.Input)
    vars(source).update(
        snapshot=SimpleNamespace(root="/none", gzip=False),
        split="train",
        batch_size=8,
        num_examples=80,
        bytes_each=1e6,
        options=options,
        **attributes,
    )
    return source


@pytest.mark.parametrize(
    ("options", "is_possible"),
    [
        ({}, True),
        ({"as_supervised": True}, True),
        ({"seed": 1}, False),
        ({"cache": "memory"}, False),
        ({"with_id": True}, False),
        ({"service": "grpc://here:1"}, False),
    ],
    ids=str,
)
def test_other_machines_only_where_they_can_read(
    options: dict[str, Any], is_possible: bool
) -> None:
    busy = doctor.Stage("whole", "", [timed(10, busy=float(doctor.num_processors()))] * 3)
    (found,) = doctor.advice_on_processors(source_with(options), busy)
    assert "do less per example" in found
    assert ("reader serve" in found) is is_possible


class TestSymptoms:
    def seen(
        self,
        symptom: str,
        epochs: list[waits.Epoch],
        *,
        options: dict[str, Any] | None = None,
        sizes: tuple[int, ...] = (8,),
        mb_per_s: float = 1e6,
        spread: float = 1.0,
    ) -> tuple[str, str]:
        """Whether a symptom is reported for these waits, and the cause."""
        measured = doctor.Measured(staged(read=[1_000.0] * 3), "wall time", False, mb_per_s, None)
        trained = doctor.Trained(waits.summarize(epochs), 1.0, sizes, 1.0, spread, 100.0, 0.0)
        out = Output(as_json=True)
        source = source_with(options or {})
        source.num_examples = 72 + sizes[0]
        doctor.report_symptoms(source, measured, trained, 10.0, out)
        (row,) = (row for row in out.facts["symptoms"] if row["symptom"] == symptom)
        return row["seen"], row["where it comes from"]

    def test_slow_first_epoch(self) -> None:
        fast, slow = epoch_of([1.0] * 21), epoch_of([1.0] + [30.0] * 20)
        name = "slow first epoch"
        assert self.seen(name, [slow, fast, fast])[0] == "yes"
        assert self.seen(name, [fast] * 3)[0] == "no"
        assert self.seen(name, [fast])[0] == "not reached"
        # 800 examples/s of 1 MB: storage served 100 MB/s, and the page cache what came after.
        assert self.seen(name, [fast] * 3, mb_per_s=100)[0] == "yes"

    def test_periodic_stalls(self) -> None:
        found = [1.0] * 100
        assert self.seen("periodic stalls", [epoch_of(found)])[0] == "no"
        for place in range(7, 100, 20):
            found[place] = 80.0
        assert self.seen("periodic stalls", [epoch_of(found)])[0] == "yes"

    @pytest.mark.parametrize(
        ("given", "seen", "cause"),
        [
            ({}, "no", ""),
            ({"spread": 1.6}, "yes", "bucket=True makes batches of similar length"),
            ({"spread": 1.6, "options": {"cache": "decoded"}}, "yes", "of very unequal length"),
            ({"sizes": (5, 8)}, "yes", "has 5 examples (drop_remainder=True drops it)"),
            ({"epochs": [epoch_of([1.0] * 90 + [50.0] * 10)]}, "yes", "very unequal cost"),
        ],
        ids=["even", "spread", "no bucket", "short", "waits"],
    )
    def test_uneven_batches(self, given: dict[str, Any], seen: str, cause: str) -> None:
        given = {"epochs": [epoch_of([1.0] * 100)], **given}
        found, comes_from = self.seen("uneven batches", **given)
        assert found == seen
        assert cause in comes_from
        assert ("bucket=" in comes_from) is ("bucket=" in cause)


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


def test_arguments_have_no_others() -> None:
    """``--mb-per-s`` of the doctor is one number, above 0."""
    from snapshard.pipelines.reader.runtime.tools import _rate

    assert _rate("2.5") == 2.5
    for text in ("0", "1,2", "x"):
        with pytest.raises(argparse.ArgumentTypeError):
            _rate(text)
