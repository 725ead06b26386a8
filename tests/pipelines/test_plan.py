"""The planner, on random sets of records: nothing lost, nothing twice, all of it balanced."""

import dataclasses
import itertools
import json
import random
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from snapshard import Shards, Splits
from snapshard.pipelines.plan.key_columns import key_columns_reader
from snapshard.pipelines.plan.ranges import (
    plan_from_json,
    plan_splits,
    plan_to_json,
    refuse_empty_splits,
)
from snapshard.pipelines.plan.splits import shares
from snapshard.pipelines.prepare.sort_keys import BINS_PER_SHARD, bins_for
from snapshard.schemas.blocks import RunInfo, ShardPlan, SplitPlan
from snapshard.schemas.errors import RecipeError, StorageError
from snapshard.schemas.naming import Workspace
from snapshard.schemas.shards import parse_size
from snapshard.transforms.examples.tfrecord import FRAME_BYTES
from snapshard.transforms.runs.files import RunWriter, keys_schema
from snapshard.transforms.runs.key_histogram import KeyBins, KeyColumns, KeyHistogram, key_bins
from snapshard.transforms.runs.keys import record_keys
from snapshard.transforms.runs.partitions import select_rows
from snapshard.transforms.runs.summary import RunEntry

Plan = tuple[SplitPlan, ...]
Membership = tuple[SplitPlan, ShardPlan, npt.NDArray[np.bool_]]

THREE = {"train": 0.8, "validation": 0.1, "test": 0.1}


@dataclasses.dataclass
class Records:
    """Some records, and the read_keys of them, which notes what it was asked for."""

    columns: KeyColumns
    asked: list[list[tuple[int, int]]] = dataclasses.field(default_factory=list)
    bins: KeyBins = KeyBins()  # noqa: RUF009

    @property
    def histogram(self) -> KeyHistogram:
        c = self.columns
        return KeyHistogram.from_arrays(
            self.bins.partitions(c.partitions, c.keys),
            c.keys,
            num_bytes=c.num_bytes,
            strata=c.strata,
            bits=self.bins.bits,
        )

    def read_keys(self, pairs: Collection[tuple[int, int]]) -> KeyColumns:
        self.asked.append(list(pairs))
        c = self.columns
        bits = self.bins.bits
        cells = (c.partitions.astype(np.int64) << bits) + key_bins(c.keys, bits)
        wanted = [(partition << bits) + bin_ for partition, bin_ in pairs]
        rows = np.flatnonzero(np.isin(cells, wanted))[::-1]
        strata = None if c.strata is None else c.strata.take(pa.array(rows))
        return KeyColumns(c.partitions[rows], c.keys[rows], c.num_bytes[rows], strata)

    def plan(
        self,
        splits: Splits,
        shards: Shards | None = None,
        size_ratio: float = 1.0,
        **sizes: int,
    ) -> Plan:
        return plan_splits(
            self.histogram,
            splits=splits,
            shards=shards or Shards(),
            size_ratio=size_ratio,
            read_keys=self.read_keys,
            **sizes,
        )


def make_records(
    keys: Sequence[int],
    sizes: Any,
    *,
    partitions: Any = None,
    strata: list[bytes | None] | None = None,
) -> Records:
    n = len(keys)
    return Records(
        KeyColumns(
            np.zeros(n, np.int16) if partitions is None else np.array(partitions, np.int16),
            np.array(keys, np.uint64),
            np.array(sizes, np.int64),
            None if strata is None else pa.array(strata, pa.large_binary()),
        )
    )


def uniform_records(
    num_records: int,
    sizes: Callable[[np.random.Generator, int], Any],
    *,
    num_strata: int | None = None,
    num_partitions: int = 1,
) -> Records:
    keys = record_keys([f"record {i}" for i in range(num_records)], 0)
    rng = np.random.default_rng(0)
    strata = None
    if num_strata:
        strata = [f"class {i}" for i in rng.integers(0, num_strata, num_records)]
    partitions = rng.integers(0, num_partitions, num_records)
    return make_records(keys, sizes(rng, num_records), partitions=partitions, strata=strata)


Case = tuple[Records, Splits]

_any_key = st.one_of(
    st.integers(0, 2**64 - 1),
    st.sampled_from([0, 1, 2**52, 2**52 - 1, 2**63, int(Fraction("0.8") * 2**64), 2**64 - 1]),
    st.integers(5 << 52, (5 << 52) + 20),
)
_one_bin = st.integers(7 << 52, (8 << 52) - 1)
_keys = st.one_of(
    st.lists(_any_key, max_size=80),
    st.lists(_one_bin, max_size=80, unique=True),
    st.lists(st.integers(0, 2**64 - 1), max_size=200, unique=True),
)
_shards = st.one_of(
    st.builds(Shards),
    st.builds(Shards, num_shards=st.integers(1, 12)),
    st.builds(Shards, min_shards=st.integers(1, 12)),
    st.builds(Shards, num_examples=st.integers(1, 12)),
    st.builds(Shards, target_bytes=st.integers(1, 100_000)),
)
_hash_splits = st.sampled_from(
    [
        Splits(train=1.0),
        Splits(**THREE),
        Splits(a=0.5, b=0.5),
        Splits(a=0.3, b=0.3, c=0.1, d=0.3),
        Splits(tiny=1e-30, rest=1.0),
    ]
)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    keys = draw(_keys)
    sizes = draw(
        st.lists(
            st.one_of(st.integers(0, 100), st.sampled_from([1, 10, 10_000_000])),
            min_size=len(keys),
            max_size=len(keys),
        )
    )
    kind = draw(st.sampled_from(["hash", "group_by", "stratify_by"]))
    base = draw(_hash_splits)
    fractions = dict(base.fractions)
    if kind == "hash":
        return make_records(keys, sizes), base
    if kind == "group_by":
        index = st.integers(0, len(fractions) - 1)
        partitions = draw(st.lists(index, min_size=len(keys), max_size=len(keys)))
        return make_records(keys, sizes, partitions=partitions), Splits(**fractions, group_by="who")
    names = st.sampled_from([b"cat", b"dog", b"", b"\xff", "Käfer".encode(), None])
    strata = draw(st.lists(names, min_size=len(keys), max_size=len(keys)))
    return make_records(keys, sizes, strata=strata), Splits(**fractions, stratify_by="label")


def memberships(records: Records, plan: Plan) -> list[Membership]:
    """[(split, shard, rows)] by the rule that writing goes by."""
    c = records.columns
    return [
        (
            split,
            shard,
            select_rows(split, shard, partitions=c.partitions, keys=c.keys, strata=c.strata),
        )
        for split in plan
        for shard in split.shards
    ]


def assert_exact(records: Records, plan: Plan) -> None:
    """Every record is in one shard of one split, and the plan counts what is there."""
    times = np.zeros(len(records.columns.keys), int)
    for split, shard, rows in memberships(records, plan):
        times += rows
        assert shard.split == split.name
        assert 0 <= shard.start_key < shard.stop_key <= 2**64
        assert shard.num_examples == rows.sum() > 0
        assert shard.num_bytes == records.columns.num_bytes[rows].sum()
    assert (times == 1).all()
    for split in plan:
        assert [s.index for s in split.shards] == list(range(len(split.shards)))
        assert {s.num_shards for s in split.shards} <= {len(split.shards)}
        edges = [s.start_key for s in split.shards[1:]]
        assert edges == [s.stop_key for s in split.shards[:-1]]


@settings(max_examples=400)
@given(cases(), _shards)
def test_every_record_is_in_one_shard_of_one_split(case: Case, shards: Shards) -> None:
    records, splits = case
    plan = records.plan(splits, shards)
    assert [split.name for split in plan] == list(splits.names)
    assert_exact(records, plan)
    assert len(records.asked) <= 2
    for pairs in records.asked:
        assert len(set(pairs)) == len(pairs)


@settings(max_examples=200)
@given(cases(), st.integers(1, 12))
def test_shards_are_balanced(case: Case, num_shards: int) -> None:
    records, splits = case
    plan = records.plan(splits, Shards(num_shards=num_shards))
    c = records.columns
    weights = {split.name: [] for split in plan}
    largest = {}
    for split, _, rows in memberships(records, plan):
        sizes = c.num_bytes[rows] + FRAME_BYTES
        weights[split.name].append(sizes.sum())
        # What cannot be told apart cannot be cut apart: records of one key count as one.
        by_key = Counter()
        for key, size in zip(c.keys[rows].tolist(), sizes.tolist(), strict=True):
            by_key[key] += size
        largest[split.name] = max(largest.get(split.name, 0), *by_key.values())
    for name, shard_weights in weights.items():
        if shard_weights:
            least, most = min(shard_weights), max(shard_weights)
            assert most - least <= max(least / 100, largest[name])


@given(cases(), st.integers(1, 9))
def test_num_examples_is_met(case: Case, num_examples: int) -> None:
    records, splits = case
    plan = records.plan(splits, Shards(num_examples=num_examples))
    if len(set(records.columns.keys.tolist())) == len(records.columns.keys):
        for split in plan:
            counts = [shard.num_examples for shard in split.shards]
            assert all(count == num_examples for count in counts[:-1])
            assert all(0 < count <= num_examples for count in counts[-1:])


@given(cases())
def test_stratified_shares_are_within_one_record(case: Case) -> None:
    records, splits = case
    c = records.columns
    if splits.stratify_by is None or len(set(c.keys.tolist())) < len(c.keys):
        return
    plan = records.plan(splits)
    names = [value or b"" for value in c.strata.to_pylist()]
    for name, total in Counter(names).items():
        of_stratum = np.array([value == name for value in names])
        for split, (_, fraction) in zip(plan, splits.fractions, strict=True):
            rows = [rows for other, _, rows in memberships(records, plan) if other is split]
            found = sum(int((of_stratum & row).sum()) for row in rows)
            assert abs(found - fraction * total) <= 1


@given(
    st.lists(st.integers(0, 2**64 - 1), unique=True, min_size=1, max_size=60),
    st.integers(0, 59),
)
def test_added_records_move_no_other_between_hash_splits(
    keys: Sequence[int], num_first: int
) -> None:
    splits = Splits(**THREE)

    def split_of(keys: Sequence[int]) -> dict[int, str]:
        records = make_records(keys, [10] * len(keys))
        found = {}
        for split, _, rows in memberships(records, records.plan(splits)):
            found |= {int(key): split.name for key in records.columns.keys[rows]}
        return found

    first, every = split_of(keys[:num_first]), split_of(keys)
    assert all(every[key] == split for key, split in first.items())
    ranges = splits.key_ranges()
    assert every == {
        key: name for key in keys for name, start, stop in ranges if start <= key < stop
    }


@given(cases(), _shards, st.randoms(use_true_random=False))
def test_the_plan_depends_on_no_order(case: Case, shards: Shards, random: random.Random) -> None:
    records, splits = case
    order = list(range(len(records.columns.keys)))
    random.shuffle(order)
    c, rows = records.columns, np.array(order, np.int64)
    shuffled = Records(
        KeyColumns(
            c.partitions[rows],
            c.keys[rows],
            c.num_bytes[rows],
            None if c.strata is None else c.strata.take(pa.array(rows)),
        )
    )
    assert plan_to_json(shuffled.plan(splits, shards)) == plan_to_json(records.plan(splits, shards))


@given(cases(), _shards)
def test_json_keeps_a_plan(case: Case, shards: Shards) -> None:
    records, splits = case
    plan = records.plan(splits, shards)
    assert plan_from_json(json.loads(json.dumps(plan_to_json(plan)))) == plan


def test_no_records_are_splits_without_shards() -> None:
    plan = make_records([], []).plan(Splits(**THREE))
    assert [(split.name, split.shards) for split in plan] == [(name, ()) for name in THREE]


def test_small_batches_of_rows_give_the_same_plan() -> None:
    for splits, options in (
        (Splits(**THREE), {}),
        (Splits(**THREE, stratify_by="label"), {"num_strata": 7}),
        (Splits(**THREE, group_by="who"), {"num_partitions": 3}),
    ):
        records = uniform_records(20_000, lambda rng, n: rng.integers(1, 9, n), **options)
        shards = Shards(num_shards=5)
        expected = records.plan(splits, shards)
        num_asked = len(records.asked)
        assert num_asked <= 2
        assert records.plan(splits, shards, max_rows=10) == expected
        assert len(records.asked) > 2 * num_asked


def test_keys_are_read_of_the_cut_bins_alone() -> None:
    records = uniform_records(100_000, lambda rng, n: np.full(n, 2_000))
    plan = records.plan(Splits(**THREE), Shards(num_shards=8))
    assert_exact(records, plan)
    ends, cuts = records.asked
    assert ends == [(0, int(0.8 * 4096)), (0, int(0.9 * 4096))]
    assert len(cuts) <= 3 * 7
    for split in plan:
        counts = [shard.num_examples for shard in split.shards]
        assert max(counts) - min(counts) <= 1


def test_hash_splits_have_their_fixed_ranges_whatever_the_data() -> None:
    splits = Splits(**THREE)
    plan = uniform_records(50, lambda rng, n: np.full(n, 10)).plan(splits)
    found = [(s.name, s.shards[0].start_key, s.shards[-1].stop_key) for s in plan]
    assert tuple(found) == splits.key_ranges()


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ([5, 5, 5, 5, 9, 9], [4, 2]),  # 3 are wanted: 4 is nearer than 0
        ([5, 9, 9, 9, 9, 9], [1, 5]),  # 1 is nearer than 6
        ([5, 5, 9, 9, 12, 12], [4, 2]),  # 2 is as near as 4: the earlier split takes them
        ([7, 7, 7, 7, 7, 7], [6, 0]),
        ([2**53 + 7] * 6, [6, 0]),
    ],
)
def test_equal_keys_stay_together_on_the_nearer_side(keys: list[int], expected: list[int]) -> None:
    splits = Splits(a=0.5, b=0.5, stratify_by="label")
    plan = make_records(keys, [1] * 6, strata=[b"cat"] * 6).plan(splits)
    found = [sum(shard.num_examples for shard in split.shards) for split in plan]
    assert found == expected


def test_records_of_uneven_size_and_few_to_a_shard_are_levelled() -> None:
    # Five records to a bin, so that cuts must be made inside of bins.
    records = uniform_records(20_000, lambda rng, n: rng.normal(4_000, 400, n).astype(np.int64))
    (split,) = records.plan(Splits(train=1.0), Shards(num_shards=300))
    sizes = [shard.num_bytes + FRAME_BYTES * shard.num_examples for shard in split.shards]
    assert max(sizes) - min(sizes) <= records.columns.num_bytes.max() + FRAME_BYTES


@pytest.mark.slow  # a million records
def test_a_million_records_in_a_thousand_strata() -> None:
    records = uniform_records(1_000_000, lambda rng, n: rng.integers(1, 400, n), num_strata=1_000)
    splits = Splits(**THREE, stratify_by="label")
    plan = records.plan(splits, Shards(num_shards=40))
    assert_exact(records, plan)
    for split, fraction in zip(plan, THREE.values(), strict=True):
        sizes = [shard.num_bytes + FRAME_BYTES * shard.num_examples for shard in split.shards]
        assert max(sizes) - min(sizes) <= max(min(sizes) / 100, 399 + FRAME_BYTES)
        num_examples = sum(shard.num_examples for shard in split.shards)
        assert abs(num_examples - fraction * 1_000_000) < 100


def test_many_small_strata_leave_no_split_short() -> None:
    splits = Splits(**THREE)
    ends = [shares(4, splits=splits, stratum=f"class {i}") for i in range(1_000)]
    held = np.diff(np.array(ends), axis=1, prepend=0).sum(axis=0)
    assert np.abs(held - [3_200, 400, 400]).max() < 60


def test_the_ratio_of_sizes_decides_the_number_of_shards() -> None:
    records = uniform_records(1_000, lambda rng, n: np.full(n, 1_000_000))
    of_ratio = {
        ratio: len(records.plan(Splits(train=1.0), size_ratio=ratio)[0].shards)
        for ratio in (1.0, 0.5, 4.0)
    }
    assert of_ratio == {1.0: 16, 0.5: 16, 4.0: 27}


@pytest.mark.parametrize(
    ("shards", "num_shards"),
    [
        (Shards(), 16),
        (Shards(min_shards=4), 16),
        (Shards(min_shards=20), 20),
        (Shards(target_bytes="100MB"), 2),
        (Shards(target_bytes="150MB"), 2),
        (Shards(target_bytes="100MB", min_shards=4), 4),
    ],
)
def test_a_size_that_is_given_has_no_floor(shards: Shards, num_shards: int) -> None:
    assert shards.num_shards_of("train", num_examples=9_999, num_bytes=171_000_000) == num_shards
    default = Shards(min_shards=shards.min_shards)
    assert (shards.to_json() == default.to_json()) == (shards == default)


def test_runs_that_are_not_what_was_counted_are_refused() -> None:
    records = uniform_records(20_000, lambda rng, n: np.full(n, 10))
    histogram = records.histogram
    records.columns.num_bytes[:] = 11
    with pytest.raises(StorageError, match="other records than their summaries counted"):
        plan_splits(
            histogram,
            splits=Splits(train=1.0),
            shards=Shards(num_shards=3),
            size_ratio=1.0,
            read_keys=records.read_keys,
        )


def test_a_split_without_a_number_of_shards_is_refused() -> None:
    records = uniform_records(100, lambda rng, n: np.full(n, 10))
    with pytest.raises(RecipeError, match="no number for split 'test'"):
        records.plan(Splits(train=0.5, test=0.5), Shards(num_shards={"train": 2}))


@pytest.mark.parametrize(
    ("num_records", "message"),
    [
        ({"train": 1, "test": 0}, r"Splits: 'test' \(0\.25\) would be empty: there is 1 record\. "),
        ({"train": 2_000}, r"'test' \(0\.25\) would be empty: there are 2,000 records\. "),
        ({}, r"'train' \(0\.75\), 'test' \(0\.25\) would be empty: there are 0 records\. "),
    ],
)
def test_empty_splits_are_refused_unless_allowed(num_records: dict[str, int], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        refuse_empty_splits(Splits(train=0.75, test=0.25), num_records)
    refuse_empty_splits(Splits(train=0.75, test=0.25, allow_empty=True), num_records)
    refuse_empty_splits(Splits(train=0.75, test=0.25), {"train": 1, "test": 1})


@pytest.mark.parametrize("size", ["", "fast", "MB", "150 XB", "1e3", "-1", "1 2", "1.MB"])
def test_an_invalid_size_is_refused(size: str) -> None:
    with pytest.raises(ValueError, match=f"{size!r} is not a size; write a number of bytes"):
        parse_size(size)


@pytest.mark.parametrize("size", ["0", "0.5 B", 0.5, "8589934592GIB"])
def test_a_size_out_of_range_is_refused(size: Any) -> None:
    with pytest.raises(ValueError, match="not a size of 1 byte to 8 EiB"):
        parse_size(size)


def test_a_stratum_that_the_plan_does_not_know_is_refused() -> None:
    records = make_records([1, 2, 3], [1, 1, 1], strata=[b"a", b"a", b"b"])
    (split,) = records.plan(Splits(train=1.0, stratify_by="label"))
    c = records.columns
    with pytest.raises(StorageError, match="has no stratum b'c'"):
        select_rows(
            split,
            split.shards[0],
            partitions=c.partitions,
            keys=c.keys,
            strata=pa.array([b"a", b"c", b"b"]),
        )


def fine_case(case: Case, bits: int) -> Case:
    """The same records, counted by fine bins; stratified splits have none."""
    records, splits = case
    ends = () if splits.partitioned else [stop for _, _, stop in splits.key_ranges()][:-1]
    return dataclasses.replace(records, bins=KeyBins(bits, tuple(ends))), splits


@settings(max_examples=100)
@given(
    cases().filter(lambda case: case[1].stratify_by is None), _shards, st.sampled_from([13, 17, 24])
)
def test_fine_bins_lose_no_record_and_cut_the_same_splits(
    case: Case, shards: Shards, bits: int
) -> None:
    records, splits = fine_case(case, bits)
    plan = records.plan(splits, shards)
    assert_exact(records, plan)
    coarse = case[0].plan(splits, shards)
    held = [sum(shard.num_examples for shard in split.shards) for split in plan]
    assert held == [sum(shard.num_examples for shard in split.shards) for split in coarse]
    if shards.num_examples is not None:
        counts = [[shard.num_examples for shard in split.shards] for split in plan]
        assert counts == [[shard.num_examples for shard in split.shards] for split in coarse]


# fmt: off
_IN_ONE_BIN = [
    0, 10, 10, 88, 27, 0, 0, 27, 10, 28, 6, 10, 43, 69, 0, 10, 18, 87, 76, 0, 10, 28, 0, 19,
]
# fmt: on
"""Sizes whose cuts nearest to even give shards that differ by more than the largest record."""


@settings(max_examples=50)
@given(
    cases().filter(lambda case: case[1].stratify_by is None),
    st.integers(1, 12),
    st.sampled_from([13, 24]),
)
@example((make_records(range(24), _IN_ONE_BIN), Splits(train=1.0)), 8, 13)
def test_shards_of_fine_bins_are_balanced(case: Case, num_shards: int, bits: int) -> None:
    records, splits = fine_case(case, bits)
    for split in records.plan(splits, Shards(num_shards=num_shards)):
        weights = [s.num_bytes + FRAME_BYTES * s.num_examples for s in split.shards]
        if weights:
            c, by_key = records.columns, Counter()
            for key, size in zip(c.keys.tolist(), c.num_bytes.tolist(), strict=True):
                by_key[key] += size + FRAME_BYTES
            assert max(weights) - min(weights) <= max(min(weights) / 100, *by_key.values())


@pytest.mark.parametrize("splits", [Splits(**THREE), Splits(**THREE, group_by="who")])
def test_a_thousand_shards_of_ten_thousand_runs_need_no_key(splits: Splits) -> None:
    shards = Shards(num_shards={"train": 1000, "validation": 125, "test": 125})
    bins = bins_for(splits, shards, num_units=10_000)
    assert bins.bits == 18
    # Some 381 records in a bin, as they come: 10**8 records, in the sum that runs make.
    rng, parts = np.random.default_rng(0), []
    for partition in range(3 if splits.partitioned else 1):
        keys = np.arange(1 << bins.bits, dtype=np.uint64) << np.uint64(64 - bins.bits)
        keys += rng.integers(0, 1 << (64 - bins.bits), len(keys), np.uint64)
        counts = rng.poisson(381, len(keys)) + 1
        whole = KeyHistogram.from_arrays(
            bins.partitions(np.full(len(keys), partition, np.int16), keys),
            keys,
            num_bytes=counts * rng.integers(900, 1_100, len(keys)),
            bits=bins.bits,
        )
        parts.append(dataclasses.replace(whole, num_records=counts))
    histogram = KeyHistogram.merge(parts)

    def read_keys(pairs: Collection[tuple[int, int]]) -> KeyColumns:
        raise AssertionError(f"keys of {len(pairs)} bins are read")

    plan = plan_splits(histogram, splits=splits, shards=shards, size_ratio=1.0, read_keys=read_keys)
    assert [len(split.shards) for split in plan] == [1000, 125, 125]
    for split in plan:
        sizes = [shard.num_bytes + FRAME_BYTES * shard.num_examples for shard in split.shards]
        assert max(sizes) - min(sizes) <= min(sizes) / 100
        assert all(a.stop_key == b.start_key for a, b in itertools.pairwise(split.shards))
    held = sum(shard.num_examples for split in plan for shard in split.shards)
    assert held == histogram.num_records.sum()


def test_keys_of_fine_bins_are_read_where_they_are_too_coarse() -> None:
    records = uniform_records(100_000, lambda rng, n: np.full(n, 2_000))
    records = dataclasses.replace(records, bins=KeyBins(13))
    plan = records.plan(Splits(train=1.0), Shards(num_shards=200))
    assert_exact(records, plan)
    (cuts,) = records.asked
    assert len(cuts) <= 199
    counts = [shard.num_examples for shard in plan[0].shards]
    assert max(counts) - min(counts) <= 5


def test_more_keys_than_can_be_read_are_not() -> None:
    records = uniform_records(100_000, lambda rng, n: np.full(n, 2_000))
    records = dataclasses.replace(records, bins=KeyBins(13))
    (split,) = records.plan(Splits(train=1.0), Shards(num_shards=200), max_fine_rows=100)
    assert_exact(records, (split,))
    assert records.asked == []
    heaviest = np.bincount(key_bins(records.columns.keys, 13)).max()
    counts = [shard.num_examples for shard in split.shards]
    assert max(counts) - min(counts) <= heaviest
    with pytest.raises(RecipeError, match="Give num_shards or target_bytes, which need no keys"):
        records.plan(Splits(train=1.0), Shards(num_examples=500), max_fine_rows=100)


_numbers = st.integers(1, 100_000)


@given(
    st.integers(1_025, 2_000_000),
    _hash_splits
    | st.sampled_from(
        [
            Splits(tiny=1e-4, rest=0.9999),
            Splits(**THREE, group_by="who"),
            Splits.by_time("when", early=0.9, late=0.1),
        ]
    ),
    st.one_of(
        st.builds(Shards),
        st.builds(Shards, min_shards=_numbers),
        st.builds(Shards, num_shards=_numbers),
        st.builds(Shards, target_bytes=st.integers(10**6, 10**10)),
    ),
    st.none() | st.tuples(_numbers, _numbers, _numbers, _numbers),
)
@example(1_025, Splits(tiny=1e-4, rest=0.9999), Shards(), None)
def test_bins_are_as_many_as_shards_need_and_no_more(
    num_units: int, splits: Splits, shards: Shards, by_name: tuple[int, ...] | None
) -> None:
    if by_name is not None:
        shards = Shards(num_shards=dict(zip(splits.names, by_name, strict=False)))
    bins = bins_for(splits, shards, num_units=num_units)
    ranges = () if splits.partitioned else splits.key_ranges()
    assert bins.ends == tuple(stop for _, _, stop in ranges[:-1])

    def enough(bits: int) -> bool:
        """Whether the shards of every split have their bins, and those of the whole by size."""
        in_all, numbers = 1 << bits, shards.num_shards
        by_size = num_units * 64 * 2**20 / shards.max_bytes
        if numbers is None and in_all < BINS_PER_SHARD * by_size:
            return False
        for index, name in enumerate(splits.names):
            number = numbers if isinstance(numbers, int | None) else numbers[name]
            share = (ranges[index][2] - ranges[index][1]) / 2**64 if ranges else 1.0
            wanted = BINS_PER_SHARD * (number or shards.min_shards or 1)
            if in_all * max(share, 1e-9) < wanted:
                return False
        return True

    assert bins.bits == next((bits for bits in range(13, 24) if enough(bits)), 24)


@pytest.mark.parametrize("num_units", [1, 1024, 1025, 10**6])
def test_few_runs_and_stratified_splits_are_counted_in_coarse_bins(num_units: int) -> None:
    for splits in (Splits(**THREE), Splits(**THREE, group_by="who")):
        assert (bins_for(splits, Shards(), num_units=num_units) == KeyBins()) == (num_units <= 1024)
    stratified = Splits(**THREE, stratify_by="label")
    assert bins_for(stratified, Shards(), num_units=num_units) == KeyBins()


@pytest.mark.parametrize("bits", [12, 24])
@pytest.mark.parametrize("stratified", [False, True])
def test_key_files_are_read_by_bins(tmp_path: Path, bits: int, stratified: bool) -> None:
    workspace, entries, rows = Workspace(str(tmp_path)), [], []
    width = 1 << (64 - bits)
    # Of both partitions, the first and last key of the first, last and some adjacent bins.
    edges = [
        (partition, key)
        for partition in (0, 1)
        for bin_ in (0, 1, 2, 5, 6, (1 << bits) - 1)
        for key in (bin_ * width, (bin_ + 1) * width - 1)
    ]
    for run in (0, 1):
        run_id, held = f"{run:032x}", sorted(edges[run::2])
        columns = [
            pa.array([partition for partition, _ in held], pa.int16()),
            pa.array([key for _, key in held], pa.uint64()),
            pa.array(range(len(held)), pa.int64()),
            pa.array([f"{run}" if stratified else None for _ in held], pa.large_string()),
            pa.array([0] * len(held), pa.uint64()),
        ]
        path = Path(workspace.run_keys(run_id, "plain"))
        path.parent.mkdir(parents=True, exist_ok=True)
        batch = pa.RecordBatch.from_arrays(columns, schema=keys_schema())
        with RunWriter(str(path), keys_schema()) as writer:
            for start in range(0, len(held), 5):
                writer.write(batch.slice(start, 5))
        info = RunInfo(
            run_id=run_id,
            num_records=len(held),
            num_bytes=0,
            num_rejects=0,
            rejects_sha256="",
            batches=(),
        )
        entries.append(RunEntry(info, tuple(writer.batches)))
        rows += [
            (partition, key, size, f"{run}" if stratified else None)
            for size, (partition, key) in enumerate(held)
        ]
    read = key_columns_reader(entries, workspace=workspace, suffix="plain", bits=bits)
    last = (1 << bits) - 1
    for wanted in (
        [],
        [(0, 0)],
        [(1, 6), (0, 5), (0, 6)],
        [(0, 0), (0, 1), (1, 1), (1, 5), (0, last)],
        [(0, last), (1, 0)],
        [(0, 3), (1, 4)],
    ):
        found = read(wanted)
        strata = found.strata.to_pylist() if found.strata is not None else [None] * len(found.keys)
        assert sorted(
            zip(
                found.partitions.tolist(),
                found.keys.tolist(),
                found.num_bytes.tolist(),
                strata,
                strict=True,
            )
        ) == sorted(row for row in rows if (row[0], row[1] // width) in wanted)
        assert (found.strata is not None) == (stratified and len(found.keys) > 0)


def test_a_histogram_of_other_splits_is_refused() -> None:
    records = uniform_records(1_000, lambda rng, n: np.full(n, 10))
    splits = Splits(train=0.5, test=0.5)
    for ends in ((1 << 62,), (1 << 62, 1 << 63)):
        counted = dataclasses.replace(records, bins=KeyBins(13, ends))
        with pytest.raises(ValueError, match=r"not one of these splits|ends are not those of"):
            counted.plan(splits)
