"""Which split and shard a record belongs to. Plans cover all rows: tests/pipelines/test_plan."""

import dataclasses
import datetime
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import snapshard as ss
from snapshard import Splits
from snapshard.schemas.blocks import ShardPlan, SplitPlan
from snapshard.schemas.errors import RecipeError, StorageError
from snapshard.transforms.runs.files import wire_schema
from snapshard.transforms.runs.keys import NO_PARTITION, assign_partitions, text_keys
from snapshard.transforms.runs.partitions import (
    GroupSplits,
    check_rule,
    in_key_range,
    is_countable,
    partition_records,
    select_rows,
    time_ends,
)

SHARD = ShardPlan(
    split="train",
    index=0,
    num_shards=1,
    partition=1,
    start_key=10,
    stop_key=2**64,
    num_examples=0,
    num_bytes=0,
)
SPLIT = SplitPlan(name="train", shards=(SHARD,))
PARTITIONS = np.array([0, 1, 1, 1, 1], np.int16)
KEYS = np.array([50, 9, 10, 50, 2**64 - 1], np.uint64)


def test_partition_and_key_range_decide() -> None:
    found = select_rows(SPLIT, SHARD, partitions=PARTITIONS, keys=KEYS)
    assert found.tolist() == [False, False, True, True, True]
    ends_earlier = dataclasses.replace(SHARD, stop_key=2**64 - 1)
    found = select_rows(SPLIT, ends_earlier, partitions=PARTITIONS, keys=KEYS)
    assert found.tolist() == [False, False, True, True, False]


def test_a_stratum_has_its_own_range() -> None:
    split = dataclasses.replace(SPLIT, strata={"": (0, 2**64), "a": (11, 2**64), "none": (5, 5)})
    strata = pa.array(["", "", "a", "a", None])
    found = select_rows(split, SHARD, partitions=PARTITIONS, keys=KEYS, strata=strata)
    assert found.tolist() == [False, False, False, True, True]
    strata = pa.array([b"none", b"none", b"", b"none", b"a"]).dictionary_encode()
    found = select_rows(split, SHARD, partitions=PARTITIONS, keys=KEYS, strata=strata)
    assert found.tolist() == [False, False, True, False, True]


_key = st.integers(0, 9) | st.integers(2**64 - 9, 2**64 - 1)
_edge = _key | st.just(2**64)


@settings(max_examples=40)
@given(
    st.lists(st.tuples(_key, st.sampled_from("abc"))),
    st.fixed_dictionaries({name: st.tuples(_edge, _edge) for name in "abc"}),
    st.tuples(_edge, _edge),
)
def test_a_row_is_in_the_ranges_of_its_shard_and_of_its_stratum(
    rows: list[tuple[int, str]], ranges: dict[str, tuple[int, int]], of_shard: tuple[int, int]
) -> None:
    shard = dataclasses.replace(SHARD, start_key=of_shard[0], stop_key=of_shard[1])
    found = select_rows(
        SplitPlan(name="train", shards=(shard,), strata=ranges),
        shard,
        partitions=np.full(len(rows), 1, np.int16),
        keys=np.array([key for key, _ in rows], np.uint64),
        strata=pa.array([name for _, name in rows], pa.string()),
    )
    assert found.tolist() == [
        all(start <= key < stop for start, stop in (of_shard, ranges[name])) for key, name in rows
    ]


def test_strata_must_be_given_and_known() -> None:
    strata = pa.array(["a", "b", "a", "a", "b"])
    split = dataclasses.replace(SPLIT, strata={"a": (0, 2**64)})
    with pytest.raises(ValueError, match="strata are required"):
        select_rows(split, SHARD, partitions=PARTITIONS, keys=KEYS)
    with pytest.raises(StorageError, match="has no stratum 'b'"):
        select_rows(split, SHARD, partitions=PARTITIONS, keys=KEYS, strata=strata)
    # A limit leaves out all records above the ranges of the plan.
    split = dataclasses.replace(SPLIT, strata={"a": (0, int(KEYS[1]))})
    rows = select_rows(split, SHARD, partitions=PARTITIONS, keys=KEYS, strata=strata)
    assert not rows[[1, 4]].any()


@pytest.mark.parametrize(
    ("start", "stop", "expected"),
    [
        (0, 2**64, [True, True, True]),
        (0, 0, [False, False, False]),
        (0, 1, [True, False, False]),
        (1, 2**64 - 1, [False, True, False]),
        (2**64 - 1, 2**64, [False, False, True]),
        (2**64, 2**64, [False, False, False]),
    ],
)
def test_key_ranges_end_before_their_stop(start: int, stop: int, expected: list[bool]) -> None:
    keys = np.array([0, 7, 2**64 - 1], np.uint64)
    assert in_key_range(keys, start, stop).tolist() == expected


FEATURES: dict[str, Any] = {
    "label": ss.ClassLabel(("cat", "dog")),
    "number": ss.Scalar("int64", optional=True),
    "large": ss.Scalar("uint64"),
    "flag": ss.Scalar("bool"),
    "word": ss.Scalar("string", optional=True),
    "ratio": ss.Scalar("float32"),
    "time": ss.Timestamp("s"),
    "row": ss.Tensor("int64", (2,)),
    "image": ss.Image(2, 2),
}


@pytest.mark.parametrize("name", [*FEATURES, None])
def test_features_with_one_class_number_time_or_string_can_be_counted(name: str | None) -> None:
    feature = FEATURES[name] if name else None
    assert is_countable(feature) == (name not in ("ratio", "row", "image", None))


def partitions_of(
    splits: Splits, name: str, values: pa.Array, *, ends: Any = None
) -> tuple[list[int], str]:
    """The partitions of records with these values of a feature, and why one has none."""
    assert values.type == wire_schema({name: FEATURES[name]}).field(name).type
    found, why = partition_records(
        [f"{row}.csv" for row in range(len(values))],
        pa.record_batch({"other": pa.nulls(len(values)), name: values}),
        splits=splits,
        features=FEATURES,
        seed=5,
        ends=ends,
    )
    assert found.dtype == np.int16
    return found.tolist(), why


@pytest.mark.parametrize(
    ("name", "values", "train", "test"),
    [
        ("label", pa.array([0, 1, 0]), "cat", "dog"),
        ("number", pa.array([7, -1, 7]), "7", "-1"),
        (
            "large",
            pa.array([2**64 - 1, 3, 2**64 - 1], pa.uint64()).view(pa.int64()),
            str(2**64 - 1),
            "3",
        ),
        ("flag", pa.array([1, 0, 1]), "true", "FALSE"),
        ("flag", pa.array([1, 0, 1]), "1", "0"),
        ("word", pa.array([b"\xff", b"b", b"\xff"], pa.large_binary()), r"\xff", "b"),
        ("time", pa.array([0, 60, 0]), "0", "60"),
    ],
    ids=["class", "integer", "uint64", "bool", "bool as stored", "string", "time"],
)
def test_a_value_names_the_split(name: str, values: pa.Array, train: str, test: str) -> None:
    splits = Splits.by_column(name, train=train, test=(test, "another"))
    assert partitions_of(splits, name, values)[0] == [0, 1, 0]
    splits = Splits.by_column(name, train="another", test=test)
    found, why = partitions_of(splits, name, pa.concat_arrays([values, pa.nulls(1, values.type)]))
    assert found == [NO_PARTITION, 1, NO_PARTITION, NO_PARTITION]
    assert why == f"feature {name!r} names none of the splits: train: another; test: {test}"


def test_the_first_folder_that_names_a_split_decides_whatever_its_case() -> None:
    ids = [
        "Train/a.png",
        "TRAIN/test/b.png",
        "test/c.png",
        "train.png",
        "x/train/d.png",
        "x/y/d.png",
        "\udcff/e",  # a name that is not UTF-8
    ]
    found, why = partition_records(
        ids,
        pa.record_batch({"x": pa.nulls(len(ids))}),
        splits=Splits.by_folder(train="train", test=("Test", "\udcff")),
        features={},
        seed=0,
    )
    assert found.tolist() == [0, 0, 1, NO_PARTITION, 0, NO_PARTITION, 1]
    assert why == "none of its folders names a split: train: train; test: test, \udcff"


def test_the_text_of_a_group_decides_its_split() -> None:
    splits = Splits(train=0.5, test=0.5, group_by="label")
    expected = assign_partitions(pa.array(["dog", "cat", "dog"]), splits, seed=5).tolist()
    found, why = partitions_of(splits, "label", pa.array([1, 0, 1, None]))
    assert found == [*expected, NO_PARTITION]
    assert why == "feature 'label' is missing; group_by needs it"


def test_balanced_groups_wait_for_all_records() -> None:
    splits = Splits(train=0.5, test=0.5, group_by="word", assign="balanced")
    words = pa.array([b"a", b"b", b"a", None, b"c"], pa.large_binary())
    assert partitions_of(splits, "word", words) == ([0] * 5, "")
    key_a, key_b = text_keys([b"a", b"b"], 5)
    known = GroupSplits.of(np.sort(np.array([key_a, key_b])), [1, 0] if key_a < key_b else [0, 1])
    found, _ = partitions_of(splits, "word", words, ends=known)
    assert found == [1, 0, 1, NO_PARTITION, NO_PARTITION]
    nothing = GroupSplits.of(np.empty(0, np.uint64), [])
    assert partitions_of(splits, "word", words, ends=nothing)[0] == [NO_PARTITION] * 5


@settings(max_examples=50)
@given(
    st.lists(st.none() | st.integers(-5, 5)),
    st.lists(st.integers(-5, 5), min_size=1, max_size=3, unique=True).map(sorted),
)
def test_a_time_is_in_the_first_split_that_ends_after_it(
    times: list[int | None], ends: list[int]
) -> None:
    names = ["train", "validation", "test", "last"][: len(ends)]
    given_ends: dict[str, Any] = dict(zip([*names, "rest"], [*ends, None], strict=True))
    splits = Splits.by_time("number", **given_ends)
    check_rule(splits, FEATURES)
    assert time_ends(splits, FEATURES) == tuple(ends)
    values = pa.array(times, pa.int64())
    found, why = partitions_of(splits, "number", values, ends=tuple(ends))
    assert found == [
        NO_PARTITION if time is None else sum(end <= time for end in ends) for time in times
    ]
    assert why == "feature 'number' is missing; splits by time need it"
    # With fractions, the ends come from all records.
    fractions = Splits.by_time("number", train=0.5, test=0.5)
    assert time_ends(fractions, FEATURES) is None
    assert partitions_of(fractions, "number", values) == ([0] * len(times), "")


EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


@given(
    st.datetimes(datetime.datetime(1900, 1, 1), datetime.datetime(2100, 1, 1)),
    st.sampled_from([("s", 1), ("ms", 1000), ("us", 10**6), ("ns", 10**9)]),
)
def test_the_end_of_a_split_is_the_first_time_of_the_unit_not_before_it(
    end: datetime.datetime, unit: tuple[Any, int]
) -> None:
    splits = Splits.by_time("time", train=end, test=None)
    features = {"time": ss.Timestamp(unit[0])}
    check_rule(splits, features)
    (found,) = time_ends(splits, features) or ()
    elapsed = end.replace(tzinfo=datetime.UTC) - EPOCH
    seconds = Fraction(elapsed // datetime.timedelta(microseconds=1), 10**6)
    assert Fraction(found - 1, unit[1]) < seconds <= Fraction(found, unit[1])


@pytest.mark.parametrize(
    ("splits", "message"),
    [
        (
            Splits.by_column("x", train="a"),
            "by_column: there is no feature 'x', expected one of 'lab",
        ),
        (Splits.by_time("x", train=1, test=None), "by_time: there is no feature 'x'"),
        *(
            (
                Splits.by_column(name, train="a"),
                f"by_column: '{name}' is .* expected a class, an int",
            )
            for name in ("ratio", "row", "image")
        ),
        *(
            (
                Splits.by_time(name, train=0.5, test=0.5),
                f"by_time: '{name}' is .*, expected a time or an integer",
            )
            for name in ("label", "large", "flag", "word", "ratio", "row", "image")
        ),
        (
            Splits.by_column("flag", train="true", test="no"),
            "'flag' is a bool, but test='no' is neither \"true\" nor",
        ),
        (Splits.by_column("flag"), "'flag' is a bool, but train='train' is neither"),
        (Splits.by_column("flag", train="True", test="1"), "'1' belongs to both train and test"),
        (Splits.by_time("time", train=5, test=None), "'time' is a Timestamp, but 5 is not a date"),
        (
            Splits.by_time("number", train="2020-01-01", test=None),
            "'number' is not a Timestamp: expected integer ends, found '2020-01-01T00:00",
        ),
    ],
)
def test_a_rule_without_a_suitable_feature_is_refused(splits: Splits, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        check_rule(splits, FEATURES)


def test_a_time_of_uint64_is_refused() -> None:
    """Values from 2**63 on are stored as negative numbers, and would come before all others."""
    features = {"t": ss.Scalar("uint64")}
    with pytest.raises(RecipeError, match=r'Cast it: ss.tables.cast\("t", "int64"\)'):
        check_rule(Splits.by_time("t", train=0.5, test=0.5), features)


@pytest.mark.parametrize(
    "splits",
    [
        Splits(train=1.0),
        Splits.by_folder(),
        *(
            Splits.by_column(name, train="a")
            for name in ("label", "number", "large", "word", "time")
        ),
        Splits.by_column("flag", train=("True", "1"), test="false"),
        *(Splits.by_time(name, train=0.5, test=0.5) for name in ("number", "time")),
    ],
)
def test_a_rule_with_a_suitable_feature_is_accepted(splits: Splits) -> None:
    check_rule(splits, FEATURES)
