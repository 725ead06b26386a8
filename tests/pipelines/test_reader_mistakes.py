"""What a snapshot's reader says of options that cannot be: at once, by name, without a hang."""

import inspect
import itertools
import re
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from snapshard.schemas.features import ClassLabel, Features, Image, Scalar, Tensor

from .made_snapshots import put_index

WriteSnapshot = Callable[..., types.ModuleType]

LISTS: Features = {
    "label": ClassLabel(names=("even", "odd")),
    "id": Scalar(dtype="int64"),
    "tokens": Tensor(dtype="int64", shape=(None,)),
}
NUM = 30


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory, write_snapshot: WriteSnapshot) -> Any:
    records = [{"id": i, "label": i % 2, "tokens": [i + 1] * (i % 7)} for i in range(NUM)]
    shards = [records[:9], records[9:17], records[17:]]
    folder = tmp_path_factory.mktemp("lists")
    return write_snapshot(folder, LISTS, {"train": shards, "none": []})


def ids(dataset: Any) -> list[int]:
    return [int(i) for batch in dataset for i in batch["id"].numpy()]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"balance": "uniform", "shard": (0, 2)}, "balance= with several workers needs seed="),
        ({"batch_size": 2.5}, "batch_size=2.5 must be an integer from 1 to"),
        ({"batch_size": "8"}, "batch_size='8' must be an integer"),
        ({"batch_size": 2**63}, "must be an integer from 1 to 2147483647"),
        ({"epochs": 1.5}, "epochs=1.5 must be an integer"),
        ({"epochs": 0}, "epochs=0 must be an integer"),
        ({"seed": 2**63}, "seed=9223372036854775808 must be an integer"),
        ({"seed": np.uint64(2**63)}, "must be an integer"),
        ({"seed": "a"}, "seed='a' must be an integer"),
        ({"shuffle": "yes"}, "shuffle='yes' must be True, False or a number"),
        ({"shuffle": float("inf")}, "shuffle=inf must be"),
        ({"shuffle": -1}, "shuffle=-1 must be"),
        ({"columns": []}, r"columns=\[\] must be a list of some of id, label, tokens"),
        ({"columns": ()}, r"columns=\(\) must be a list of some of id, label, tokens"),
        ({"columns": 3}, "columns=3 must be a list"),
        ({"columns": [["id"]]}, r"columns=\[\['id'\]\] must be a list"),
        ({"columns": ["id", "nope"]}, r"columns=\['id', 'nope'\] must be a list of some of id"),
        ({"columns": "id"}, "columns='id' must be a list"),
        ({"shard": 0}, r"shard=0 must be \(index, count\)"),
        ({"shard": (0,)}, r"shard=\(0,\) must be"),
        ({"shard": (0.0, 2)}, "must be .index, count"),
        ({"shard": "01"}, "must be .index, count"),
        ({"windows": 3}, r"windows=3 must be \(length, step\)"),
        ({"windows": (2.5, 1)}, "must be .length, step"),
        ({"windows": (2**70, 1)}, "must be .length, step"),
        (
            {"windows": (3, 1), "augment_batch": id},
            "windows= and augment_batch= cannot be combined",
        ),
        ({"start_step": -1, "seed": 1}, "start_step=-1 must be a number of steps"),
        ({"start_step": (3, 8, 1), "seed": 1}, "must be a number of steps, or a list of"),
        ({"start_step": [(3, 0, 1)], "seed": 1}, "must be a number of steps, or a list of"),
        ({"start_step": [(3, 8, 0)], "seed": 1}, "must be a number of steps, or a list of"),
        ({"start_step": 1.5, "seed": 1}, "must be a number of steps"),
        ({"bucket": "nope"}, "bucket='nope' must be one of tokens"),
        ({"augment": "flip"}, "augment='flip' must be a function"),
        ({"augment_batch": True}, "augment_batch=True must be a function"),
        ({"cache": 1}, r'cache=1 must be "memory" or "decoded"'),
        ({"cache": ""}, "cache='' must be "),
        ({"cache": "/a/folder"}, "cache='/a/folder' must be .memory. or .decoded.*local_copy="),
        ({"local_copy": True}, "local_copy=True must be the name of a folder"),
        ({"local_copy": ("x", "10MB")}, "must be .folder, bytes"),
        ({"local_copy": ("x",)}, "must be the name of a folder"),
        ({"input_context": True}, "input_context=True must be a tf.distribute"),
        ({"batch_size": True}, "batch_size=True must be an integer"),
        ({"as_supervised": "nope"}, r"as_supervised='nope' must be True \(the label\), a target"),
        ({"as_supervised": 1}, "as_supervised=1 must be True"),
        ({"as_supervised": None}, "as_supervised=None must be True"),
        ({"as_supervised": ("id",)}, r"must be .* \(input, target\), or \(\(inputs, …\), \(targ"),
        ({"as_supervised": ("id", "nope")}, "the names are id, "),
        ({"as_supervised": ("id", "label", "tokens", "id")}, "must be True"),
        ({"as_supervised": ("id", ())}, "must be True"),
        ({"as_supervised": ("id", "label", "nope")}, "may have weights as a third"),
        ({"decode": 0}, "decode=0 must be True or False"),
        ({"decode": False, "scale": 0.5}, r"decode= and scale= cannot be combined \(images come"),
        ({"decode": False, "expand_scalars": True}, "decode= and expand_scalars= cannot be"),
        ({"masks": "yes"}, "masks='yes' must be True, False or None"),
        ({"expand_scalars": 1}, "expand_scalars=1 must be True or False"),
        ({"as_supervised": (("id", "id"), "label")}, "must be True"),
        ({"as_supervised": (("id", ("label",)), "label")}, "must be True"),
        ({"as_supervised": {"id": "label"}}, "must be True"),
        ({"as_supervised": ("id", "label"), "columns": ["id"]}, "columns= and as_supervised="),
        ({"as_supervised": "id", "columns": ["id"]}, "leaves no features beside the target"),
        ({"as_supervised": ("id", "label"), "windows": (2, 1)}, "windows= needs lists"),
        ({"as_supervised": True, "columns": ["label"]}, "leaves no features beside the label"),
        ({"drop_remainder": 1}, "drop_remainder=1 must be True or False"),
        ({"balance": "uniform", "shuffle": False}, "balance= always shuffles"),
        ({"balance": "uniform", "shuffle": 0}, "balance= always shuffles"),
        ({"balance": "even"}, 'balance=.even. must be "uniform" or {class: weight}'),
        ({"balance": {"nope": 1}}, "there is no class 'nope', only 'even', 'odd'"),
        ({"balance": {1: 1}}, r"there is no class '1', only .* \(class 1 is 'odd': give its name"),
        ({"balance": {"odd": -1}}, "the weight of 'odd' is -1, expected 0 or more"),
        ({"windows": (2, 1), "columns": ["id"]}, "windows= needs lists"),
        ({"pack": 9}, r"pack=9 packs only lists of numbers, not id, label: pass columns="),
        ({"dtype": "floaty"}, "image_size=, dtype= and scale= apply to images, but"),
        ({"scale": "1/255"}, "scale='1/255' must be a number"),
        ({"scale": True}, "scale=True must be a number"),
        ({"scale": float("nan")}, "scale=nan must be a number"),
        ({"scale": [1.0]}, r"scale=\[1.0\] must be a number"),
        ({"root": 3}, "root=3 must be the folder or URL"),
        ({"root": ""}, "root='' must be the folder or URL"),
        ({"service": 3}, "service=3 must be an address"),
        ({"service": ("grpc://a:1",)}, "service=.* must be an address"),
        ({"service": {"processing_mode": "dynamic"}}, 'with the address as its "service"'),
        ({"augment": lambda one, seed: None}, "augment= must return the changed example"),
        ({"augment_batch": lambda batch, seeds: None}, "augment_batch= must return the changed"),
        (
            {"augment_batch": lambda batch, seeds: {**batch, "id": None}},
            "augment_batch= must return the changed",
        ),
        ({"options": {}}, r"options=\{\} must be tf.data.Options"),
    ],
)
def test_what_cannot_be(reader: types.ModuleType, options: dict[str, Any], words: str) -> None:
    options = {"batch_size": 8, **options}
    with pytest.raises(ValueError, match=words):
        reader.dataset("train", **options)
    if words.startswith("augment") and callable(
        options.get("augment", options.get("augment_batch"))
    ):
        return  # found by tracing it
    if options.get("cache") == "/proc/nope":
        return  # found by writing there
    with pytest.raises(ValueError, match=words):
        reader.steps("train", **options)


def test_a_file_is_no_folder(reader: types.ModuleType, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"local_copy=.*file' cannot be written"):
        reader.dataset("train", 8, local_copy=str(tmp_path / "file"))


@pytest.mark.slow  # some datasets
@pytest.mark.parametrize(
    "options",
    [
        {"epochs": 2, "shuffle": 9, "parallelism": 2, "prefetch": 1, "shard": (1, 2)},
        {"start_step": 1, "prefetch": 0, "pad": -1},
        {"start_step": 1, "batch_size": None},
        {"start_step": [(1, 8, 1)]},
        {"windows": (2, 1), "columns": ["tokens", "id"]},
    ],
    ids=str,
)
def test_numpys_integers_are_integers(reader: types.ModuleType, options: dict[str, Any]) -> None:
    def numpys(value: Any) -> Any:
        if isinstance(value, tuple | list):
            return type(value)(map(numpys, value))
        return np.int32(value) if isinstance(value, int) else value

    given = {"batch_size": 8, "seed": 1, **options}
    others = {name: numpys(value) for name, value in given.items()}
    one, other = (reader.dataset("train", **each) for each in (given, others))
    assert other.element_spec == one.element_spec
    for batch, same in zip(one, other, strict=True):
        flat = (tf.nest.flatten(each, expand_composites=True) for each in (batch, same))
        for value, other_value in zip(*flat, strict=True):
            np.testing.assert_array_equal(value, other_value)
    assert reader.steps("train", **others) == reader.steps("train", **given)


def test_numpys_integers_of_rows(reader: types.ModuleType) -> None:
    found = reader.dataset("train", 2, pack=np.int64(9), columns=["tokens"])
    assert found.element_spec["tokens"].shape[1] == 9


@pytest.mark.parametrize(
    "value", [np.array([8, 8]), np.array(8.0), np.float64(8), np.True_, "8", [8]], ids=repr
)
@pytest.mark.parametrize("name", ["batch_size", "epochs", "seed", "prefetch", "shuffle", "pack"])
def test_what_is_not_an_integer(reader: types.ModuleType, name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{name}=.* must be"):
        reader.dataset("train", **{"batch_size": 8, name: value})


@pytest.mark.parametrize("num", [10**9, 2**63])
def test_a_buffer_of_more_than_there_is(reader: types.ModuleType, num: int) -> None:
    found = ids(reader.dataset("train", 4, shuffle=num, seed=1))
    assert sorted(found) == list(range(NUM))
    assert ids(reader.dataset("train", 4, shuffle=5000, seed=1)) == found


class TestNothingToRead:
    """Endless datasets would look for their first batch forever; ``fit`` would learn nothing."""

    @pytest.mark.parametrize(
        "options",
        [
            {"drop_remainder": True, "start_step": 1, "seed": 1},
            {"shard": (98, 99)},
            {"shard": (98, 99), "windows": (2, 1), "columns": ["tokens"]},
        ],
    )
    def test_is_refused(self, reader: types.ModuleType, options: dict[str, Any]) -> None:
        with pytest.raises(
            ValueError, match=r"epochs=None would wait forever: .*no batch of 999. Use"
        ):
            reader.dataset("train", 999, epochs=None, **options)

    @pytest.mark.parametrize(
        ("read", "words"),
        [
            (
                lambda made: made.dataset("train", 999, drop_remainder=True),
                "(0, 1) gets no batch of 999. Use a smaller batch_size or drop_remainder=False",
            ),
            (
                lambda made: made.steps("train", 999, drop_remainder=True, shard=(1, 2)),
                "(1, 2) gets no batch of 999. Use a smaller batch_size or fewer workers or drop_",
            ),
            (
                lambda made: made.dataset("train", 8, shard=(3, 400), equal_steps=True),
                "(3, 400) gets no batch of 8. Use fewer workers or equal_steps=False",
            ),
            (
                lambda made: made.dataset("train", None, shard=(3, 400), equal_steps=True),
                "(3, 400) gets no batch of 1. Use fewer workers or equal_steps=False",
            ),
            (
                lambda made: made.arrays.Stream("train", shard=(3, 400), equal_steps=True),
                "(3, 400) gets no record. Use fewer workers or equal_steps=False",
            ),
        ],
        ids=["batches", "steps", "workers", "single", "arrays"],
    )
    def test_options_that_leave_out_every_record(
        self, reader: types.ModuleType, read: Any, words: str
    ) -> None:
        told = re.escape(f"split='train' has {NUM} records, and shard={words}")
        with pytest.raises(ValueError, match=told):
            read(reader)

    @pytest.mark.parametrize("split", ["none"])
    @pytest.mark.parametrize("options", [{"windows": (2, 1)}, {"start_step": 3, "seed": 1}])
    def test_of_no_record(
        self, reader: types.ModuleType, split: str, options: dict[str, Any]
    ) -> None:
        with pytest.raises(ValueError, match="epochs=None would wait forever"):
            reader.dataset(split, 8, epochs=None, **options)

    @pytest.mark.parametrize("options", [{"windows": (9, 1)}, {"windows": (2, 1)}])
    def test_windows_that_make_no_batch(self, reader: types.ModuleType, options: Any) -> None:
        dataset = reader.dataset("train", 999, epochs=None, drop_remainder=True, **options)
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"windows=\(., 1\) gives no"):
            next(iter(dataset))

    def test_windows_that_make_some(self, reader: types.ModuleType) -> None:
        options = {"windows": (4, 1), "seed": 1, "drop_remainder": True}
        endless = reader.dataset("train", 4, epochs=None, **options)
        assert endless.element_spec["tokens"].shape == [4, 4]
        found = [batch["id"].numpy().tolist() for batch in endless.take(12)]
        twice = reader.dataset("train", 4, epochs=2, **options)
        assert found == [batch["id"].numpy().tolist() for batch in twice][:12]


@pytest.mark.parametrize(
    ("step", "epochs"), [(10**12, None), (2**62, None), (10**7, 1), (10**12, 1000)]
)
def test_a_step_too_far_away(reader: types.ModuleType, step: int, epochs: int | None) -> None:
    with pytest.raises(ValueError, match=r"is behind .* epochs, in pass .*another seed="):
        reader.dataset("train", 8, seed=1, start_step=step, epochs=epochs)


@pytest.mark.slow
def test_a_step_behind_many_epochs(reader: types.ModuleType) -> None:
    far = reader.dataset("train", 8, seed=1, start_step=2_000_002, epochs=None)
    assert len({int(i) for batch in far.take(2) for i in batch["id"].numpy()}) == NUM - 16


def test_dropping_the_remainder_drops_no_windows_but_the_last(reader: types.ModuleType) -> None:
    num = sum(max(0, i % 7 - 2) for i in range(NUM))
    batches = [*reader.dataset("train", 8, windows=(3, 1), drop_remainder=True)]
    assert len(batches) == num // 8
    assert {len(batch["id"]) for batch in batches} == {8}


class TestAugmentedLists:
    @pytest.mark.parametrize("cut", [None, 2])
    def test_stay_lists(self, reader: types.ModuleType, cut: int | None) -> None:
        def augment(example: Any, seed: Any) -> Any:
            return {**example, "tokens": example["tokens"][:cut]}

        found = {}
        for batch in reader.dataset("train", 8, augment=augment):
            assert isinstance(batch["tokens"], tf.RaggedTensor)
            found.update(zip(batch["id"].numpy().tolist(), batch["tokens"].to_list(), strict=True))
        assert found == {i: ([i + 1] * (i % 7))[:cut] for i in range(NUM)}

    def test_for_keras_as_they_are(self, reader: types.ModuleType) -> None:
        def augment(pair: Any, seed: Any) -> Any:
            return pair

        for (features, label), (plain, other) in itertools.zip_longest(
            reader.dataset("train", 8, augment=augment, as_supervised=True, shuffle=False),
            reader.dataset("train", 8, as_supervised=True, shuffle=False),
        ):
            assert features["tokens"].to_list() == plain["tokens"].to_list()
            assert label.numpy().tolist() == other.numpy().tolist()


@pytest.mark.parametrize(
    ("stored", "dtype"),
    [("uint8", "int8"), ("uint16", "uint8"), ("uint16", "int16"), ("uint16", "float16")],
)
def test_a_dtype_too_small_for_the_pixels(
    tmp_path: Path, write_snapshot: WriteSnapshot, stored: Any, dtype: str
) -> None:
    features = {"image": Image(height=1, width=2, channels=1, dtype=stored), "n": Scalar("int64")}
    pixels = np.array([0, np.iinfo(stored).max], stored)
    records = [{"image": pixels.tobytes(), "n": 1}]
    reader = write_snapshot(tmp_path, features, {"train": [records]}, label=None)
    with pytest.raises(ValueError, match=f"dtype='{dtype}' cannot hold the pixels of 'image', .*"):
        reader.dataset("train", 1, dtype=dtype)
    assert len([*reader.dataset("train", 1, dtype=dtype, columns=["n"])]) == 1
    (batch,) = reader.dataset("train", 1, dtype="float16", scale=1 / int(pixels[1]))
    assert batch["image"].dtype == tf.float16
    assert batch["image"].numpy().ravel().tolist() == [0, 1]


def test_a_scale_of_whole_numbers(tmp_path: Path, write_snapshot: WriteSnapshot) -> None:
    features = {"image": Image(height=2, width=2)}
    records = [{"image": bytes(range(12))}]
    reader = write_snapshot(tmp_path, features, {"train": [records]}, label=None)
    with pytest.raises(ValueError, match=r"scale=0.5 needs a floating-point dtype, found uint8"):
        reader.dataset("train", 1, scale=0.5, dtype="uint8")
    with pytest.raises(ValueError, match="dtype='flot32' must name a type such as"):
        reader.dataset("train", 1, dtype="flot32")


@pytest.fixture(scope="module")
def pixels(tmp_path_factory: pytest.TempPathFactory, write_snapshot: WriteSnapshot) -> Any:
    features = {"image": Image(height=2, width=2)}
    records = [{"image": bytes(range(12))}]
    return write_snapshot(
        tmp_path_factory.mktemp("pixels"), features, {"train": [records]}, label=None
    )


@pytest.mark.parametrize(
    "size",
    [8, 0, (), (8,), (8, 8, 3), (8, -1), (0, 8), (8.0, 8), "88", ("8", "8"), 2**70, {"a": 1}],
)
def test_a_size_that_no_image_has(pixels: types.ModuleType, size: Any) -> None:
    with pytest.raises(ValueError, match=r"image_size=.* must be \(height, width\), two integers"):
        pixels.dataset("train", 1, image_size=size)


@pytest.mark.parametrize("dtype", ["floaty", "", "string", "bool", 3.5, "complex64", True, 1])
def test_a_type_that_no_image_has(pixels: types.ModuleType, dtype: Any) -> None:
    with pytest.raises(ValueError, match=r"dtype=.* must"):
        pixels.dataset("train", 1, dtype=dtype)


def test_a_size_as_a_list_or_of_numpys_numbers(pixels: types.ModuleType) -> None:
    for size in ([3, 4], (np.int64(3), np.int32(4))):
        (batch,) = pixels.dataset("train", 1, image_size=size)
        assert batch["image"].shape == (1, 3, 4, 3)


def write(folder: Path, write_snapshot: WriteSnapshot, compression: str) -> types.ModuleType:
    rows = [{"id": i, "label": i % 2, "tokens": [1] * (i % 4)} for i in range(NUM)]
    shards = {"train": [rows[:7], rows[7:18], rows[18:]]}
    reader = write_snapshot(folder, LISTS, shards, compression=compression)
    put_index(folder, compression, [i % 2 for i in range(NUM)])
    return reader


@pytest.mark.parametrize("options", [{}, {"epochs": 2}, {"seed": 1, "start_step": 1}])
def test_a_service_whose_workers_would_read_everything(
    reader: types.ModuleType, options: dict[str, Any]
) -> None:
    service = tf.data.experimental.service
    dispatcher = service.DispatchServer()
    config = service.WorkerConfig(dispatcher_address=dispatcher.target.partition("://")[2])
    workers = [service.WorkerServer(config) for _ in range(2)]
    dataset = reader.dataset("train", 8, **options)
    shared = dataset.apply(service.distribute("distributed_epoch", dispatcher.target))
    # A worker that failed is asked once more, and ends: too early, says TensorFlow. Its client
    # knows the last error alone, which is rarely that one.
    errors = (tf.errors.InvalidArgumentError, tf.errors.FailedPreconditionError)
    with pytest.raises(errors, match=r"apply no distribute|but contained only"):
        list(shared)
    del workers


class TestSteps:
    """``steps`` is arithmetic: it runs nothing of the user's, and has the types of ``dataset``."""

    @pytest.mark.parametrize(
        "options",
        [
            {},
            {"seed": 1},
            {"shuffle": False},
            {"bucket": True},
            {"bucket": "tokens", "seed": 1, "pad": True},
            {"cache": "memory"},
            {"cache": "decoded"},
            {"balance": "uniform", "seed": 1},
            {"augment": lambda example, seed: example},
            {"as_supervised": True, "columns": ["id"]},
        ],
    )
    @pytest.mark.slow  # 60 datasets
    def test_are_the_cardinality(self, readers: Any, options: Any) -> None:
        """For all numbers of records, batches and workers: drawn, the same in every run."""
        random = np.random.default_rng(len(str(options)))
        for index in range(6):
            reader = readers[str(random.choice(["none", "gzip"]))]
            count = int(random.integers(1, 5))
            given = {
                "batch_size": int(random.choice([1, 2, 3, 5, 7, 8, 24, 40])),
                "shard": (int(random.integers(count)), count),
                "equal_steps": bool(index & 1),
                "drop_remainder": bool(index & 2),
                **options,
            }
            try:
                dataset = reader.dataset("train", **given)
            except ValueError:
                with pytest.raises(ValueError, match="gets no batch of"):
                    reader.steps("train", **given)
                assert given["drop_remainder"] or given["equal_steps"]
                continue
            cardinality = int(dataset.cardinality())
            assert reader.steps("train", **given) == cardinality == len([*dataset]), given

    def test_nothing_is_traced_and_no_shard_is_opened(
        self, tmp_path: Path, write_snapshot: WriteSnapshot
    ) -> None:
        def never(example: Any, seed: Any) -> Any:
            raise AssertionError("it was called")

        other = write_snapshot(tmp_path, LISTS, {"train": [[]]})
        for shard in tmp_path.glob("*.tfrecord"):
            shard.unlink()
        assert other.steps("train", 8, augment=never, cache="memory", seed=1) == 0

    def test_it_costs_little(self, reader: types.ModuleType) -> None:
        """Processor time, since other processes take turns: 0.2 ms on an idle machine."""
        options = {"augment": lambda example, seed: example, "seed": 1, "shard": (0, 2)}
        reader.steps("train", 8, **options)
        begun = time.process_time()
        reader.steps("train", 8, **options)
        assert time.process_time() - begun < 0.05

    def test_the_number_is_unknown_where_windows_are_cut(self, reader: types.ModuleType) -> None:
        assert reader.steps("train", 8, windows=(2, 1)) == tf.data.UNKNOWN_CARDINALITY

    def test_options_are_checked(self, reader: types.ModuleType) -> None:
        with pytest.raises(ValueError, match="no split 'trian'"):
            reader.steps("trian", 8)
        with pytest.raises(ValueError, match="batch_size=0 must be"):
            reader.steps("train", 0)
        with pytest.raises(TypeError, match="buffer"):
            reader.steps("train", 8, buffer=3)

    def test_are_typed_like_dataset(self, reader: types.ModuleType) -> None:
        one, other = inspect.signature(reader.dataset), inspect.signature(reader.steps)
        assert one.parameters == other.parameters
        assert other.return_annotation == "int"
