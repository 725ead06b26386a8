"""The histogram of keys: exact, mergeable in any order, equal bytes for equal contents."""

import random
from collections import defaultdict

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snapshard.transforms.runs.key_histogram import KeyHistogram, key_bins, stratum_codes

Row = tuple[int, int, int, bytes | None]
Cells = dict[tuple[int, str, int], tuple[int, int, int]]

_rows = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.one_of(st.integers(0, 2**64 - 1), st.sampled_from([0, 2**52 - 1, 2**52, 2**64 - 1])),
        st.integers(0, 10**9),
        st.sampled_from([b"cat", b"dog", b"", b"\xff", "Käfer".encode(), None]),
    ),
    max_size=60,
)


def make(rows: list[Row], *, stratified: bool = True, bits: int = 12) -> KeyHistogram:
    partitions, keys, sizes, strata = zip(*rows, strict=True) if rows else ((), (), (), ())
    return KeyHistogram.from_arrays(
        np.array(partitions, np.int16),
        np.array(keys, np.uint64),
        num_bytes=np.array(sizes, np.int64),
        strata=pa.array(strata, pa.large_binary()) if stratified else None,
        bits=bits,
    )


def cells(histogram: KeyHistogram) -> Cells:
    """{(partition, stratum, bin): (records, bytes, largest)}."""
    columns = (
        histogram.partition,
        [histogram.strata[i] for i in histogram.stratum],
        histogram.bin,
        histogram.num_records,
        histogram.num_bytes,
        histogram.max_bytes,
    )
    return {tuple(row[:3]): tuple(row[3:]) for row in zip(*columns, strict=True)}


@given(_rows, st.booleans())
def test_counts_are_exact(rows: list[Row], stratified: bool) -> None:
    expected = defaultdict(list)
    for partition, key, size, stratum in rows:
        name = (stratum or b"").decode("utf-8", "surrogateescape") if stratified else ""
        expected[partition, name, key >> 52].append(size)
    histogram = make(rows, stratified=stratified)
    assert cells(histogram) == {
        cell: (len(sizes), sum(sizes), max(sizes)) for cell, sizes in expected.items()
    }
    assert histogram.num_records.sum() == len(rows)
    assert histogram.num_bytes.sum() == sum(size for _, _, size, _ in rows)


@pytest.mark.slow
@given(_rows, st.randoms(use_true_random=False))
def test_merging_in_any_order_gives_the_same_bytes(rows: list[Row], random: random.Random) -> None:
    whole = make(rows).to_bytes()
    shuffled = random.sample(rows, len(rows))
    cuts = sorted(random.sample(range(len(rows) + 1), min(3, len(rows))))
    parts = [make(shuffled[a:b]) for a, b in zip([0, *cuts], [*cuts, len(rows)], strict=True)]
    assert KeyHistogram.merge(parts).to_bytes() == whole
    nested = KeyHistogram.empty()
    for part in reversed(parts):
        nested = KeyHistogram.merge([KeyHistogram.empty(), part, nested])
    assert nested.to_bytes() == whole


@given(_rows, st.booleans())
def test_bytes_keep_it(rows: list[Row], stratified: bool) -> None:
    histogram = make(rows, stratified=stratified)
    read = KeyHistogram.from_bytes(histogram.to_bytes())
    assert cells(read) == cells(histogram)
    assert read.strata == histogram.strata
    assert read.to_bytes() == histogram.to_bytes()
    assert KeyHistogram.merge([read, histogram]).num_records.sum() == 2 * len(rows)


def test_a_merge_of_more_than_may_wait_is_the_same() -> None:
    rng = np.random.default_rng(0)
    parts = [
        make([(0, int(key), 7, b"a") for key in rng.integers(0, 2**64, 50, np.uint64)])
        for _ in range(40)
    ]
    expected = KeyHistogram.merge(parts).to_bytes()
    assert KeyHistogram.merge(iter(parts), max_pending=60).to_bytes() == expected


def test_nothing_merged_is_empty() -> None:
    assert KeyHistogram.merge([]).to_bytes() == KeyHistogram.empty().to_bytes()
    assert not len(KeyHistogram.empty().num_records)


def test_histograms_of_other_bins_are_not_merged() -> None:
    rows: list[Row] = [(0, 1 << 60, 7, None)]
    with pytest.raises(ValueError, match=r"different numbers of bins: 2 to the \[12, 13\]"):
        KeyHistogram.merge([make(rows), make(rows, bits=13)])
    # One without records has no bins that could differ.
    merged = KeyHistogram.merge([make(rows, bits=13), KeyHistogram.empty()])
    assert merged.to_bytes() == make(rows, bits=13).to_bytes()


@given(_rows, st.booleans(), st.sampled_from([12, 13, 24]), st.sampled_from([1, 2, 8, 64]))
@settings(max_examples=20)
def test_parts_are_those_of_equal_key_ranges(
    rows: list[Row], stratified: bool, bits: int, num_parts: int
) -> None:
    whole = make(rows, stratified=stratified, bits=bits)
    parts = whole.parts(num_parts)
    assert len(parts) == num_parts
    for number in {0, num_parts - 1, *(row[1] * num_parts >> 64 for row in rows)}:
        inside = [row for row in rows if row[1] * num_parts >> 64 == number]
        assert cells(parts[number]) == cells(make(inside, stratified=stratified, bits=bits))
        assert parts[number].bits == bits
    if rows:
        assert KeyHistogram.merge(parts).to_bytes() == whole.to_bytes()
    if not stratified:
        assert KeyHistogram.joined(parts).to_bytes() == whole.to_bytes()


@given(_rows, st.booleans(), st.sampled_from([12, 13, 24]))
@settings(max_examples=30)
def test_coarse_bins_count_the_same_records(rows: list[Row], stratified: bool, bits: int) -> None:
    fine = make(rows, stratified=stratified, bits=bits)
    coarse = make(rows, stratified=stratified)
    assert fine.coarse(partitioned=True).to_bytes() == coarse.to_bytes()
    of_one = make([(0, *row[1:]) for row in rows], stratified=stratified)
    assert fine.coarse(partitioned=False).to_bytes() == of_one.to_bytes()


@given(st.lists(st.integers(0, 2**64 - 1)), st.integers(1, 24))
def test_a_bin_is_the_top_bits_of_the_key(keys: list[int], bits: int) -> None:
    found = key_bins(np.array(keys, np.uint64), bits)
    assert (found.dtype, found.tolist()) == (np.int32, [key >> 64 - bits for key in keys])


@pytest.mark.parametrize("arrow_type", [pa.string(), pa.large_string(), pa.binary()])
@pytest.mark.parametrize("encoded", [False, True])
def test_stratum_codes_of_every_text_type(arrow_type: pa.DataType, encoded: bool) -> None:
    strata = pa.array(["b", None, "x", "", "b"], arrow_type)
    strata = strata.dictionary_encode() if encoded else strata
    assert stratum_codes(strata, ["", "a", "b"]).tolist() == [2, 0, -1, 0, 2]
    assert stratum_codes(strata, ["b"]).tolist() == [0, -1, -1, -1, 0]


def test_a_thousand_strata_take_no_more_than_their_entries() -> None:
    rng = np.random.default_rng(0)
    n = 200_000
    names = pa.array([f"class {i}" for i in range(1_000)])
    strata = pa.DictionaryArray.from_arrays(pa.array(rng.integers(0, 1_000, n)), names)
    histogram = KeyHistogram.from_arrays(
        np.zeros(n, np.int16),
        rng.integers(0, 2**64, n, np.uint64),
        num_bytes=np.ones(n, np.int64),
        strata=strata,
    )
    assert len(histogram.to_bytes()) < 40 * n
