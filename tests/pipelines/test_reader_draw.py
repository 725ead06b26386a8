"""Which record stands where in a balanced epoch: the arithmetic, without any file."""

import collections
import itertools
import math
import types
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snapshard.pipelines.reader.runtime.draw import Draw, num_batches, permuted, share, went

SEED = np.int64(-81)


def orders(size: int, keys: Any) -> Any:
    """One permutation of 0 … size - 1 in each row."""
    numbers = np.tile(np.arange(size), len(keys))
    sizes = np.full(len(numbers), size, np.uint64)
    return permuted(numbers, np.repeat(keys, size), sizes).reshape(-1, size).astype(int)


@given(sizes=st.lists(st.integers(1, 700), min_size=1, max_size=20), key=st.integers(0, 2**64 - 1))
def test_permutations_of_all_sizes_at_once(sizes: list[int], key: int) -> None:
    numbers = np.concatenate([np.arange(size) for size in sizes])
    found = permuted(
        numbers, np.full(len(numbers), key, np.uint64), np.repeat(sizes, sizes).astype(np.uint64)
    )
    for size, part in zip(sizes, np.split(found, np.cumsum(sizes)[:-1]), strict=True):
        assert sorted(part.tolist()) == list(range(size))


def test_a_number_beyond_32_bits() -> None:
    size = np.full(1_000, 3 << 40, np.uint64)
    numbers = np.arange(1_000) << 30
    found = permuted(numbers, np.full(1_000, 5, np.uint64), size)
    assert len(set(found.tolist())) == 1_000
    assert found.max() < size[0]
    assert found.max() > size[0] // 2


@pytest.mark.parametrize("size", [2, 3, 4])
def test_few_come_in_all_orders_alike(size: int) -> None:
    seen = collections.Counter(map(tuple, orders(size, np.arange(12_000, dtype=np.uint64))))
    expected = 12_000 / math.factorial(size)
    assert len(seen) == math.factorial(size)
    assert all(abs(num - expected) < 5 * math.sqrt(expected) for num in seen.values())


@pytest.mark.parametrize("size", [65, 100, 257])
def test_many_come_to_any_place(size: int) -> None:
    # Keys that follow each other, as epochs' seeds may.
    found = orders(size, np.arange(3_000, dtype=np.uint64))
    table = np.zeros((size, size))
    np.add.at(table, (np.tile(np.arange(size), len(found)), found.reshape(-1)), 1)
    expected = len(found) / size
    chi = ((table - expected) ** 2 / expected).sum() / (size - 1) ** 2
    assert 0.9 < chi < 1.1
    neighbours = np.abs(np.diff(found, axis=1)) == 1
    assert 0.9 < neighbours.mean() / (2 / size) < 1.1


def draw_of(codes: list[int], weights: dict[int, float]) -> Draw:
    return Draw.of(np.array(codes, np.int32), weights)


@settings(max_examples=60)
@given(data=st.data())
def test_shares_are_exact_and_records_take_turns(data: st.DataObject) -> None:
    codes = data.draw(st.lists(st.integers(-1, 4), min_size=1, max_size=300))
    there = sorted({code for code in codes if code >= 0})
    if not there:
        return
    weights = {code: data.draw(st.integers(0, 20)) / 7 for code in there}
    weights[there[0]] += 1
    draw = draw_of(codes, weights)
    found = draw(SEED, np.arange(len(codes)))
    records = found % len(codes)
    times = collections.Counter(records.tolist())
    total = sum(weights.values())
    for code, weight in weights.items():
        ours = [record for record, own in enumerate(codes) if own == code]
        num = sum(times[record] for record in ours)
        assert abs(num - len(codes) * weight / total) < 1
        each = [times[record] for record in ours]
        assert max(each) - min(each) <= 1, "none comes twice more than another"
        for record in ours:
            turns = found[records == record] // len(codes)
            assert sorted(turns.tolist()) == list(range(times[record]))
    assert sum(times.values()) == len(codes)
    assert all(codes[record] in weights for record in times)


def test_an_order_hangs_on_the_seed_alone() -> None:
    draw = draw_of([0] * 90 + [1] * 10, {0: 1.0, 1: 1.0})
    places = np.arange(100)
    whole = draw(SEED, places)
    np.testing.assert_array_equal(draw(SEED, places[37:61]), whole[37:61])
    for other in (SEED + 1, SEED + 2**33, np.int64(0), np.int64(-(2**63))):
        assert (draw(other, places) != whole).mean() > 0.8
    rare = [draw(np.int64(seed), places) % 100 for seed in range(50)]
    assert len({tuple(one[one >= 90]) for one in rare}) == 50


def test_over_many_epochs_all_of_a_common_class_come() -> None:
    draw = draw_of([0] * 300 + [1] * 3, {0: 1.0, 1: 9.0})
    seen = collections.Counter(
        number
        for seed in range(200)
        for number in (draw(np.int64(seed), np.arange(303)) % 303).tolist()
    )
    common = [seen[record] for record in range(300)]
    assert sum(common) == 200 * 30
    assert min(common) > 0
    assert max(common) < 50, "about 20 times each"


def test_more_classes_than_examples_of_them() -> None:
    draw = draw_of([0] * 7 + [1, 2, 3], {0: 0.97, 1: 0.01, 2: 0.01, 3: 0.01})
    records = draw(SEED, np.arange(10)) % 10
    assert sorted(records.tolist()).count(0) >= 1
    assert len(records) == 10


def run(*, drop: bool, equal: bool) -> Any:
    return types.SimpleNamespace(drop_remainder=drop, equal_steps=equal)


def places_of(job: Any, first: int, left: int, size: int, count: int) -> list[list[list[int]]]:
    """For each worker, the places of each of its batches."""
    found = []
    for index in range(count):
        full, start, rest = share(job, left, size, (index, count))
        starts = [first + (step * count + index) * size for step in range(full)]
        batches = [list(range(start, start + size)) for start in starts]
        if rest:
            batches.append(list(range(first + start, first + start + rest)))
        assert len(batches) == num_batches(job, left, size, (index, count))
        found.append(batches)
    return found


@given(
    left=st.integers(0, 200),
    size=st.integers(1, 20),
    count=st.integers(1, 9),
    drop=st.booleans(),
    equal=st.booleans(),
)
def test_workers_share_an_epoch(left: int, size: int, count: int, drop: bool, equal: bool) -> None:
    parts = places_of(run(drop=drop, equal=equal), 0, left, size, count)
    places = [place for part in parts for batch in part for place in batch]
    assert len(places) == len(set(places))
    assert set(places) <= set(range(left))
    if drop:
        assert all(len(batch) == size for part in parts for batch in part)
    if equal:
        assert len({len(part) for part in parts}) == 1
    if not (drop or equal):
        assert len(places) == left
    elif drop and not equal:
        assert left - len(places) < size
    else:
        assert left - len(places) < (size * count if drop else count)
    for step in itertools.zip_longest(*parts):
        now = sorted(place for batch in step if batch for place in batch)
        assert now == list(range(now[0], now[0] + len(now))), "a step is one range"


@given(data=st.data())
def test_what_was_read_and_what_is_left_are_an_epoch(data: st.DataObject) -> None:
    num = data.draw(st.integers(1, 150))
    stage = st.tuples(st.integers(0, 40), st.integers(1, 12), st.integers(1, 5))
    stages = data.draw(st.lists(stage, min_size=1, max_size=4))
    job = run(drop=False, equal=False)
    over, first, read = 0, 0, list[int]()
    for steps, size, count in stages:  # step by step
        for _ in range(steps):
            batches = [part[0] for part in places_of(job, first, num - first, size, count) if part]
            read += [place for batch in batches for place in batch]
            first += sum(map(len, batches))
            if first == num:
                over, first = over + 1, 0
    assert went(job, num, stages) == (over, first)
    size, count = data.draw(st.integers(1, 12)), data.draw(st.integers(1, 5))
    left = places_of(job, first, num - first, size, count)
    read += [place for part in left for batch in part for place in batch]
    assert collections.Counter(read) == dict.fromkeys(range(num), over + 1)


def test_steps_that_leave_examples_out() -> None:
    job = run(drop=True, equal=True)
    assert went(job, 100, [(9, 10, 1)]) == (0, 90)
    assert went(job, 100, [(10, 10, 1)]) == (1, 0)
    assert went(job, 100, [(3, 10, 3)]) == (1, 0), "10 are less than a step of three workers"
    assert went(job, 100, [(3, 30, 1), (4, 30, 1)]) == (2, 30)
    assert went(job, 100, [(1, 60, 1), (1, 60, 1)]) == (2, 0), "40 give no batch of 60"
    assert went(job, 5, [(7, 10, 1)]) == (0, 0), "no epoch has a batch"
