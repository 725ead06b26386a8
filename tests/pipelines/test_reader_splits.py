"""Parts of splits and lists of splits: which records come, how often, in every mode."""

import itertools
import json
import types
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from snapshard.pipelines.reader.runtime import facts as fictitious
from snapshard.pipelines.reader.runtime.splits import select
from snapshard.schemas.features import ClassLabel, Features, Scalar
from snapshard.transforms.examples.index import index_bytes, labels_bytes

from .conftest import part
from .made_snapshots import list_files, put_hashes

WriteSnapshot = Callable[..., types.ModuleType]

FEATURES: Features = {"label": ClassLabel(names=("even", "odd")), "id": Scalar(dtype="int64")}
SIZES = {"train": (40, 37, 0, 41, 38, 40, 44, 37), "validation": (30, 31), "test": (9,)}
NUM = {name: sum(sizes) for name, sizes in SIZES.items()}
FIRST = {"train": 0, "validation": 1_000, "test": 2_000}
"""The id of each split's first record; the others follow in stored order."""


def write(folder: Path, write_snapshot: WriteSnapshot, compression: str) -> types.ModuleType:
    splits = {}
    for name, sizes in SIZES.items():
        numbers = iter(range(FIRST[name], FIRST[name] + 1_000))
        splits[name] = [
            [{"id": i, "label": i % 2} for i in itertools.islice(numbers, size)] for size in sizes
        ]
    reader = write_snapshot(folder, FEATURES, splits, compression=compression)
    (folder / "index").mkdir()
    for path in folder.glob("*.tfrecord*"):
        kind = "GZIP" if compression == "gzip" else ""
        records = [*tf.data.TFRecordDataset(str(path), kind).as_numpy_iterator()]
        lengths = np.array([len(one) + 16 for one in records], np.uint64)
        content = index_bytes(np.cumsum(lengths) - lengths, lengths)
        (folder / "index" / f"{path.name}.idx").write_bytes(content)
        parsed = [tf.train.Example.FromString(one) for one in records]
        codes = [one.features.feature["label"].int64_list.value[0] for one in parsed]
        labels = labels_bytes([np.array(codes, np.int32)])
        (folder / "index" / f"{path.name}.labels").write_bytes(labels)
    list_files(folder)
    put_hashes(folder)
    return reader


@pytest.fixture
def own(tmp_path: Path, write_snapshot: WriteSnapshot) -> types.ModuleType:
    """A snapshot that a test may damage."""
    return write(tmp_path / "own", write_snapshot, "none")


def folder_of(reader: types.ModuleType) -> Path:
    return Path(str(reader.__file__)).parent.parent


def ids(dataset: Any) -> list[int]:
    return [int(i) for batch in dataset for i in batch["id"].numpy()]


def of(name: str, start: int = 0, stop: int | None = None) -> list[int]:
    """The ids of a range of a split."""
    return [*range(FIRST[name], FIRST[name] + NUM[name])][start:stop]


SPLITS: list[tuple[Any, list[int]]] = [
    ("train", of("train")),
    ("train[:]", of("train")),
    ("train[:10%]", of("train", 0, 27)),
    ("train[10%:]", of("train", 27)),
    ("train[ -10% : ]", of("train", 249)),
    ("train[33%:66%]", of("train", 91, 182)),
    ("train[12.5%:50%]", of("train", 34, 138)),
    ("train[:100]", of("train", 0, 100)),
    ("train[-50:]", of("train", -50)),
    ("train[77:78]", of("train", 77, 78)),
    ("validation[5:-5]", of("validation", 5, -5)),
    (["train", "validation"], of("train") + of("validation")),
    ("validation+test", of("validation") + of("test")),
    (("validation[50%:]", "train[:50%]"), of("validation", 30) + of("train", 0, 138)),
    (["train[:50]", "train[60:90]"], of("train", 0, 50) + of("train", 60, 90)),
    (["train[60:90]", "train[:50]"], of("train", 60, 90) + of("train", 0, 50)),
    (["train[:50]", "train[50:]"], of("train")),
]


EACH = pytest.mark.parametrize(("split", "expected"), SPLITS, ids=[str(one) for one, _ in SPLITS])


@EACH
def test_stored_order(reader: types.ModuleType, split: Any, expected: list[int]) -> None:
    dataset = reader.dataset(split, 16, shuffle=False)
    num = reader.steps(split, 16, shuffle=False)
    assert dataset.cardinality() == num == -(-len(expected) // 16)
    assert ids(dataset) == expected


MODES: dict[str, dict[str, Any]] = {
    "shuffled": {"shuffle": True},
    "seeded": {"shuffle": True, "seed": 1},
    "buffer": {"shuffle": 50},
    "two epochs": {"shuffle": True, "epochs": 2},
    "short batch dropped": {"shuffle": True, "drop_remainder": True},
    "augmented": {"shuffle": True, "seed": 1, "augment": lambda example, seed: example},
    "cache": {"shuffle": True, "cache": "memory", "epochs": 2},
    "cache in stored order": {"shuffle": False, "cache": "memory", "epochs": 2},
    "decoded": {"shuffle": True, "cache": "decoded", "epochs": 2},
    "decoded in stored order": {"shuffle": False, "cache": "decoded", "epochs": 2},
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("reader", "options", "split", "expected"),
    [
        # Each mode with each of two splits, and with each compression.
        pytest.param(
            compression, MODES[name], *SPLITS[(3, 13)[(i + j) % 2]], id=f"{compression}-{name}"
        )
        for j, compression in enumerate(("none", "gzip"))
        for i, name in enumerate(MODES)
    ],
    indirect=["reader"],
)
def test_modes(
    reader: types.ModuleType, options: dict[str, Any], split: Any, expected: list[int]
) -> None:
    dataset = reader.dataset(split, 16, **options)
    num = dataset.cardinality().numpy()
    assert num == reader.steps(split, 16, **options) * options.get("epochs", 1)
    found = ids(dataset)
    if options.get("drop_remainder"):
        assert len(found) == num * 16 == len(expected) // 16 * 16
        assert len({*found}) == len(found)
        assert {*found} <= {*expected}
        return
    assert sorted(found) == sorted(expected * options.get("epochs", 1))
    if options["shuffle"] and len(expected) > 50:
        assert found[: len(expected)] != expected


@pytest.mark.slow
@pytest.mark.parametrize(("shuffle", "count"), [(False, 2), (True, 3), (True, 2), ("equal", 5)])
def test_workers_share_a_part(reader: types.ModuleType, count: int, shuffle: bool | str) -> None:
    split, equal = ["train[:30]", "validation[7:]"], shuffle == "equal"
    options = {"shuffle": bool(shuffle), "seed": 1, "equal_steps": equal}
    found, nums = [], []
    for index in range(count):
        dataset = reader.dataset(split, 8, shard=(index, count), **options)
        assert dataset.cardinality() == reader.steps(split, 8, shard=(index, count), **options)
        nums.append(int(dataset.cardinality()))
        found += ids(dataset)
    expected = ids(reader.dataset(split, 8, shuffle=False))
    assert len({*found}) == len(found)
    assert {*found} <= {*expected}
    assert len(set(nums)) == 1 if equal else sorted(found) == sorted(expected)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"shuffle": True, "seed": 1}, {"shuffle": False}], ids=str)
def test_resumes(reader: types.ModuleType, options: dict[str, Any]) -> None:
    split = ["validation", "train[100:250]"]
    whole = ids(reader.dataset(split, 8, epochs=2, **options))
    rest = ids(reader.dataset(split, 8, epochs=2, start_step=7, **options))
    is_by_shard = options["shuffle"] and part(reader, "facts").COMPRESSION == "gzip"
    assert sorted(rest) == sorted(whole[56:]) if is_by_shard else rest == whole[56:]
    other = ids(reader.dataset(split, 4, start_step=[(7, 8, 1)], **options))
    assert sorted(other) == sorted({*whole} - {*whole[:56]})


def test_balance(reader: types.ModuleType) -> None:
    split = ["train[:30]", "validation[7:]"]
    expected = ids(reader.dataset(split, 8, shuffle=False))
    options: dict[str, Any] = {"balance": {"odd": 1}, "seed": 1}
    dataset = reader.dataset(split, 8, **options)
    assert dataset.cardinality() == reader.steps(split, 8, **options)
    found = ids(dataset)
    assert len(found) == len(expected)
    assert {*found} == {i for i in expected if i % 2}
    rest = ids(reader.dataset(split, 8, start_step=3, **options))
    assert rest == found[24:]


@pytest.mark.slow
def test_a_folder_of_copies_serves_all_parts(own: types.ModuleType, tmp_path: Path) -> None:
    for kept in range(2):
        for number, (split, expected) in enumerate(SPLITS[2:16:6]):
            options = {"local_copy": tmp_path, "shuffle": bool((number + kept) % 2)}
            assert sorted(ids(own.dataset(split, 16, **options))) == sorted(expected), kept


def test_a_part_copies_only_what_it_needs(own: types.ModuleType, tmp_path: Path) -> None:
    sizes = [path.stat().st_size for path in folder_of(own).glob("train-*.tfrecord")]
    limit = 2 * max(sizes)
    dataset = own.dataset("train[:60]", 16, local_copy=(tmp_path, limit), balance="uniform")
    assert {i % 2 for i in ids(dataset)} == {0, 1}
    with pytest.raises(ValueError, match="Allow as many"):
        own.dataset("train", 16, local_copy=(tmp_path, limit), balance="uniform")


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"shuffle": False}, {"shuffle": True}, {"seed": 1}], ids=str)
def test_only_touched_shards_are_opened(own: types.ModuleType, options: dict[str, Any]) -> None:
    for path in folder_of(own).glob("*.tfrecord"):
        if "-00003-" not in path.name and "-00004-" not in path.name:
            path.unlink()
    assert sorted(ids(own.dataset("train[80:150]", 8, **options))) == of("train", 80, 150)
    assert len(ids(own.dataset("train[80:150]", 8, balance="uniform"))) == 70
    records = part(own, "arrays").Records("train[80:150]")
    assert [int(record["id"]) for record in records] == of("train", 80, 150)


def test_without_an_index(own: types.ModuleType) -> None:
    for path in (folder_of(own) / "index").iterdir():
        path.unlink()
    for shuffle in (False, True):
        found = ids(own.dataset("train[50:-50]", 8, shuffle=shuffle))
        assert sorted(found) == of("train", 50, -50)


def test_files(reader: types.ModuleType) -> None:
    train, validation = reader.files("train"), reader.files("validation")
    assert reader.files(["train", "validation"]) == train + validation
    assert reader.files("train[:77]") == train[:2]
    with pytest.raises(ValueError, match=r"holds 17 other records\. Use dataset"):
        reader.files("train[:60]")


@EACH
def test_arrays(reader: types.ModuleType, split: Any, expected: list[int]) -> None:
    arrays = part(reader, "arrays")
    records = arrays.Records(split)
    assert len(records) == len(expected)
    assert [int(record["id"]) for record in records] == expected
    numbers = [len(expected) - 1, 0, len(expected) // 2]
    found = [int(one["id"]) for one in records.__getitems__(numbers)]
    assert found == [expected[number] for number in numbers]
    stream = arrays.Stream(split, seed=1)
    assert len(stream) == len(expected)
    passed = iter(stream)
    first = [int(record["id"]) for record in itertools.islice(passed, len(expected) // 2)]
    state = json.loads(json.dumps(stream.state_dict()))
    again = arrays.Stream(split, seed=1)
    again.load_state_dict(state)
    assert sorted(first + [int(record["id"]) for record in again]) == sorted(expected)
    halves = [arrays.Records(split, shard=(index, 2)) for index in range(2)]
    assert [int(record["id"]) for half in halves for record in half] == expected


def test_what_is_shuffled_by_default(reader: types.ModuleType) -> None:
    for split, is_shuffled in {
        "train": True,
        "train[:50%]": True,
        "validation": False,
        "validation[:50%]": False,
        "validation+test": False,
        "validation+train": True,
    }.items():
        assert part(reader, "options").Options(split, 1).shuffles is is_shuffled
        stream = part(reader, "arrays").Stream(split)
        assert bool(stream._options["shuffle"]) is is_shuffled


@pytest.mark.parametrize(
    ("split", "message"),
    [
        ("nix", "has no split 'nix', only train, validation, test."),
        ("nix[:10%]", "has no split 'nix', only"),
        ("", "'' is not a split"),
        ("train[", r"'train\[' is not a split"),
        ("train[5]", "is not a split"),
        ("train[::2]", "is not a split|is not a part"),
        ("train[:a]", "'a' is neither a number of records nor a percentage"),
        ("train[:1.5]", "'1.5' is neither"),
        ("train[:10 %]", "'10 %' is neither"),
        ("train[:10%][:5%]", "is not a split"),
        ("train[:278]", "'train\\[:278\\]' is out of range: 278 is beyond 277 records"),
        ("train[-278:]", "out of range: -278 is beyond"),
        ("train[:101%]", "out of range: 101% is beyond 100 %"),
        ("train[50%:50%]", "is empty: it begins at record 138 and ends before record 138 of 277"),
        ("train[60:50]", "is empty"),
        ("test[:1%]", "is empty"),
        ([], r"split=\[\] is not a split"),
        (None, "split=None is not a split"),
        (["train", 3], "is not a split"),
        (["train[:60%]", "train[50%:]"], "names record 138 of 'train' twice: .* must not overlap"),
        (["validation", "validation"], "twice"),
    ],
    ids=str,
)
def test_invalid_splits(reader: types.ModuleType, split: Any, message: str) -> None:
    for make in (
        lambda: reader.dataset(split, 8),
        lambda: reader.steps(split, 8),
        lambda: reader.files(split),
        lambda: part(reader, "arrays").Records(split),
        lambda: part(reader, "arrays").Stream(split),
    ):
        with pytest.raises(ValueError, match=message) as raised:
            make()
        if "twice" not in message:
            for form in ('"train[:10%]"', '"train[10%:]"', '"train[:1000]"', '"train[-500:]"'):
                assert form in str(raised.value)


@given(
    num=st.integers(0, 10**12),
    percent=st.integers(0, 10_000).map(lambda hundredths: Fraction(hundredths, 100)),
)
def test_complements_partition_exactly(num: int, percent: Fraction) -> None:
    counts = {"train": num}
    written = f"{float(percent):g}%"
    assert Fraction(written.rstrip("%")) == percent
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fictitious, "NUM_EXAMPLES", counts)
        cut = int(num * percent / 100)
        found = []
        for text, size in ((f"train[:{written}]", cut), (f"train[{written}:]", num - cut)):
            if not size:
                with pytest.raises(ValueError, match="is empty"):
                    select(text)
                continue
            (one,) = select(text).parts
            assert one.stop - one.start == select(text).num_examples == size
            found.append(one)
        if len(found) == 2:
            assert (found[0].start, found[0].stop) == (0, found[1].start)
            assert found[1].stop == num
            (whole,) = select([f"train[:{written}]", f"train[{written}:]"]).parts
            assert whole == ("train", 0, num)


def test_whole_splits_are_read_as_before(own: types.ModuleType) -> None:
    """An order by seed does not depend on how a split is written."""
    for options in ({"seed": 1}, {"seed": 1, "balance": "uniform"}, {"shuffle": False}):
        whole = ids(own.dataset("train", 16, **options))
        assert ids(own.dataset(["train[:30%]", "train[30%:]"], 16, **options)) == whole


@pytest.fixture(scope="module")
def folds(
    tmp_path_factory: pytest.TempPathFactory, write_snapshot: WriteSnapshot
) -> types.ModuleType:
    """Eleven folds, since fold10 must come after fold2, and a test split."""
    splits: dict[str, Any] = {
        f"fold{i}": [[{"id": 100 * i + j, "label": 0} for j in range(5 + i)]] for i in range(11)
    }
    splits["test"] = [[{"id": 5_000, "label": 1}]]
    return write_snapshot(tmp_path_factory.mktemp("folds"), FEATURES, splits)


def test_each_record_is_validated_on_once(folds: types.ModuleType) -> None:
    everything = sorted(100 * i + j for i in range(11) for j in range(5 + i))
    validated = []
    for i in (0, 2, 10):
        train, validation = folds.fold(i)
        assert validation == f"fold{i}"
        assert train == [f"fold{other}" for other in range(11) if other != i]
        dataset = folds.dataset(train, 8)
        assert dataset.cardinality() == folds.steps(train, 8) == -(-(110 - 5 - i) // 8)
        validated = ids(folds.dataset(validation, 8))
        assert validated == [100 * i + j for j in range(5 + i)]
        trained = ids(dataset)
        assert trained != sorted(trained)
        assert sorted(trained + validated) == everything
    assert sorted(itertools.chain(*(folds.fold(i).validation for i in range(11)))) == sorted(
        "".join(f"fold{i}" for i in range(11))
    )


@pytest.mark.parametrize("index", [11, -1, 1.5, True, "0x", None])
def test_there_is_no_such_fold(folds: types.ModuleType, index: Any) -> None:
    with pytest.raises(ValueError, match=r"the folds are fold0, fold1, .*fold10\."):
        folds.fold(index)


def test_no_folds(reader: types.ModuleType) -> None:
    with pytest.raises(ValueError, match=r"no folds, only train, validation, test\. .*k_fold\(5\)"):
        reader.fold(0)


def test_the_training_fold_of_two_is_shuffled(folds: types.ModuleType) -> None:
    options = part(folds, "options").Options
    assert options(["fold1"], 1).shuffles
    assert not options("fold1", 1).shuffles
    assert not options(["fold1", "test"], 1).shuffles
