"""What shards measure: the same figures however records are batched, and those of NumPy."""

import json
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import snapshard as ss
from snapshard.pipelines.inspect.statistics import statistics_of, statistics_pb
from snapshard.schemas.features import Feature, Features
from snapshard.transforms.examples.statistics import (
    NUM_HASHES,
    ExampleMeasures,
    RawStatistics,
    RawTotals,
    ShardStatistics,
    SplitStatistics,
    Tally,
    estimate_distinct,
    exact_sums,
)
from snapshard.transforms.runs.files import arrow_type

FEATURES: Features = {
    "amount": ss.Scalar("float32", optional=True),
    "exact": ss.Scalar("float64"),
    "id": ss.Scalar("uint64"),
    "name": ss.Text(optional=True),
    "sizes": ss.Sequence(ss.Scalar("float32")),
}
NUM = 30_000


@pytest.fixture(scope="module")
def columns() -> pa.RecordBatch:
    rng = np.random.default_rng(0)
    amounts = rng.normal(1000, 3, NUM).astype(np.float32)
    amounts[::1000] = np.nan
    gaps = rng.random(NUM) < 0.1
    exact = rng.lognormal(size=NUM)
    ids = (np.arange(NUM, dtype=np.uint64) * np.uint64(2**49)).view(np.int64)
    lists = [rng.random(k % 4).astype(np.float32) for k in range(NUM)]
    names = [None if gap else b"name %d" % (k % 300) for k, gap in enumerate(gaps)]
    return pa.record_batch(
        {
            "amount": pa.array(amounts, pa.float32(), mask=gaps),
            "exact": pa.array([value.tobytes() for value in exact], pa.large_binary()),
            "id": pa.array(ids),
            "name": pa.array(names, pa.large_binary()),
            "sizes": pa.array(lists, pa.large_list(pa.float32())),
        }
    )


def measured(columns: pa.RecordBatch, ends: list[int], *, num_shards: int = 1) -> dict[str, Any]:
    shard = ShardStatistics(ExampleMeasures(FEATURES), num_shards=num_shards)
    for start, stop in zip([0, *ends], [*ends, columns.num_rows], strict=True):
        shard.add(columns.slice(start, stop - start))
    return shard.to_json()


def merged(features: Features, shards: list[dict[str, Any]]) -> SplitStatistics:
    split = SplitStatistics(ExampleMeasures(features))
    for shard in shards:
        split.add(shard)
    return split


@pytest.fixture(scope="module")
def split(columns: pa.RecordBatch) -> SplitStatistics:
    halves = [columns.slice(0, 17_001), columns.slice(17_001)]
    shards = [measured(half, [], num_shards=2) for half in halves]
    return merged(FEATURES, shards)


@pytest.mark.parametrize("ends", [[1], [4095, 4096, 4097], list(range(100, NUM, 100)), [0, NUM]])
def test_figures_do_not_depend_on_batches(columns: pa.RecordBatch, ends: list[int]) -> None:
    assert measured(columns, ends) == measured(columns, [])


@pytest.mark.parametrize("name", ["amount", "exact", "id", "sizes"])
def test_exact_figures_are_those_of_all_values(
    columns: pa.RecordBatch, split: SplitStatistics, name: str
) -> None:
    column = columns.column(name).drop_null()
    if name == "exact":
        values = np.frombuffer(b"".join(column.to_pylist()))
    elif name == "id":
        values = column.to_numpy().view(np.uint64)
    else:
        values = (column.flatten() if name == "sizes" else column).to_numpy()
    finite = values[np.isfinite(values)]
    found = split.numbers[name, "values"]
    assert (found.count, found.num_non_finite) == (len(finite), len(values) - len(finite))
    assert (found.min, found.max) == (finite.min(), finite.max())
    assert found.mean == pytest.approx(finite.astype(np.float64).mean(), rel=1e-14)
    assert found.deviation == pytest.approx(finite.astype(np.float64).std(), rel=1e-9)
    assert found.num_zeros == (finite == 0).sum()


def test_lengths_are_counted_without_missing_values(
    columns: pa.RecordBatch, split: SplitStatistics
) -> None:
    names = [len(name) for name in columns.column("name").to_pylist() if name is not None]
    found = split.numbers["name", "lengths"]
    assert (found.count, found.max) == (len(names), max(names))
    assert found.mean == pytest.approx(np.mean(names))
    lists = split.numbers["sizes", "lengths"]
    assert (lists.count, lists.min, lists.max, lists.mean) == (NUM, 0, 3, 1.5)


@pytest.mark.parametrize(("name", "distinct"), [("name", 300), ("id", NUM), ("exact", NUM)])
def test_many_distinct_values_are_estimated(
    split: SplitStatistics, name: str, distinct: int
) -> None:
    count, is_exact = estimate_distinct(split.hashes[name])
    assert (abs(count / distinct - 1) < 0.2, is_exact) == (True, False)


def test_few_distinct_values_are_counted_exactly() -> None:
    features = {"x": ss.Scalar("float32")}
    values = np.tile(np.arange(NUM_HASHES - 1, dtype=np.float32), 20)
    shard = ShardStatistics(ExampleMeasures(features), num_shards=1)
    shard.add(pa.record_batch({"x": pa.array([*values, -0.0, 0.0], pa.float32())}))
    split = merged(features, [shard.to_json()])
    assert estimate_distinct(split.hashes["x"]) == (NUM_HASHES - 1, True)


def test_the_sample_is_the_first_records_of_each_shard(
    columns: pa.RecordBatch, split: SplitStatistics
) -> None:
    amounts = columns.column("amount").to_numpy(zero_copy_only=False)
    first = np.concatenate([amounts[:2048], amounts[17_001 : 17_001 + 2048]])
    assert split.num_sampled == len(first)
    assert np.array_equal(
        split.sampled["amount", "values"], first.astype(np.float64), equal_nan=True
    )
    assert split.texts["name"][0] == "name 0"


@pytest.mark.parametrize("value", [0.1, 1e300, -3.0])
def test_equal_numbers_do_not_deviate(value: float) -> None:
    features = {"x": ss.Scalar("float64")}
    cells = [np.float64(value).tobytes()] * 5000
    shard = ShardStatistics(ExampleMeasures(features), num_shards=1)
    shard.add(pa.record_batch({"x": pa.array(cells, pa.large_binary())}))
    found = merged(features, [shard.to_json()]).numbers["x", "values"]
    assert (found.mean, found.deviation) == (value, 0.0)


def test_a_split_without_shards_has_no_values() -> None:
    split = merged(FEATURES, [])
    assert (split.num_sampled, split.numbers["id", "values"].count) == (0, 0)
    shards: dict[str, list[Any]] = {"train": [], "test": []}
    measured = dict.fromkeys(shards, split)
    facts = statistics_of(FEATURES, shards, measured, label=None)["splits"]["train"]
    assert facts["features"]["id"]["distinct"] == {"count": 0, "exact": True}
    assert facts["features"]["name"]["top"] == []
    assert facts["features"]["amount"]["mean"] is None


def facts_of(feature: Feature, values: list[Any]) -> dict[str, Any]:
    """The figures of one feature of one shard, from wire values."""
    kind = arrow_type(feature.wire_columns("x")[0])
    shard = ShardStatistics(ExampleMeasures({"x": feature}), num_shards=1)
    shard.add(pa.record_batch({"x": pa.array(values, kind)}))
    split = merged({"x": feature}, [shard.to_json()])
    statistics = statistics_of({"x": feature}, {"train": []}, {"train": split}, label=None)
    facts: dict[str, Any] = statistics["splits"]["train"]["features"]["x"]
    return facts


def test_figures_that_overflow_are_null() -> None:
    huge = [np.float64(value).tobytes() for value in (-1.797e308, *range(50), -1.797e308)]
    facts = facts_of(ss.Scalar("float64"), huge)
    assert facts["deviation"] is None
    assert facts["mean"] == pytest.approx(-1.797e308 / 26)
    assert (facts["min"], facts["max"], facts["count"]) == (-1.797e308, 49.0, 52)


def test_infinity_is_not_a_distinct_value() -> None:
    facts = facts_of(ss.Scalar("float32"), [1.0, 2.0, math.inf, -math.inf, math.nan])
    assert (facts["distinct"]["count"], facts["num_non_finite"]) == (2, 3)


def test_integers_that_a_float_rounds_have_no_frequent_values() -> None:
    facts = facts_of(ss.Scalar("int64"), [2**60 + k % 5 for k in range(500)])
    assert facts["distinct"] == {"count": 5, "exact": True}
    assert "top" not in facts


def test_bytes_that_are_not_text_stay_apart() -> None:
    facts = facts_of(ss.Scalar("string"), [bytes([200 + k % 2]) for k in range(10)])
    assert facts["top"] == [["\\xc8", 5], ["\\xc9", 5]]


@pytest.mark.parametrize(
    "make",
    [
        lambda rng: rng.normal(size=300),
        lambda rng: rng.normal(1.7e9, 1e3, 300),
        lambda rng: rng.lognormal(0, 200, 300) * rng.choice([-1, 1], 300),
        lambda rng: rng.integers(-9, 9, 300),
        lambda rng: rng.integers(0, 255, 300).astype(np.uint8),
        lambda _: np.array([5e-324, 1.7e308, -1.7e308, 0.0, -0.0, np.nan, np.inf]),
        lambda _: np.zeros(3),
    ],
    ids=["normal", "times", "many sizes", "integers", "bytes", "extremes", "zeros"],
)
def test_sums_are_exact(make: Any) -> None:
    rows = np.stack([make(np.random.default_rng(seed)) for seed in range(3)])
    for row, (total, squares) in zip(rows, exact_sums(rows), strict=True):
        numbers = [Fraction(float(number)) for number in row if np.isfinite(number)]
        assert total == sum(numbers)
        assert squares == sum(number * number for number in numbers)


@pytest.mark.parametrize(
    "make",
    [
        lambda rng: rng.normal(size=9_000),
        lambda rng: rng.normal(1.7e9, 1e6, 9_000).round(),
        lambda rng: rng.lognormal(0, 30, 9_000) * rng.choice([-1, 1], 9_000),
        lambda rng: rng.integers(-200, 200, 9_000) / 8,
        lambda rng: np.append(rng.normal(size=900), [5e-324, 1.7e308, -1.7e308, -0.0, np.nan]),
    ],
    ids=["normal", "times", "many sizes", "few", "extremes"],
)
def test_numbers_are_counted_in_buckets(make: Any) -> None:
    numbers = make(np.random.default_rng(0))
    tally, parts = Tally(), Tally()
    tally.add(numbers)
    for part in np.array_split(numbers[::-1], 7):
        more = Tally()
        more.add(part)
        parts.merge(Tally(*json.loads(json.dumps(more.to_json()))))
    assert tally.to_json() == parts.to_json()
    known = np.sort(numbers[np.isfinite(numbers)])
    assert tally.counts.sum() == len(known)
    spans = tally.spans(known[0], known[-1])
    if len(np.unique(known)) <= 512:
        assert np.array_equal(np.repeat(spans[:, 0], tally.counts), known)
    else:
        assert 256 < len(tally.buckets) <= 512
        inside = np.searchsorted(known, spans[1:-1, 1]) - np.searchsorted(known, spans[1:-1, 0])
        assert np.array_equal(inside, tally.counts[1:-1])


def test_raw_histograms_are_interpolated_inside_buckets() -> None:
    features: Features = {"x": ss.Scalar("int64")}
    numbers = np.random.default_rng(0).integers(0, 10_000, 200_000)
    run, totals = RawStatistics(ExampleMeasures(features, sampled=False)), RawTotals(features)
    run.add(pa.RecordBatch.from_arrays([pa.array(numbers)], names=["x"]))
    totals.add(json.loads(json.dumps(run.to_json())))
    facts = statistics_of(features, {}, {}, label=None, raw=totals)["raw"]["features"]["x"]
    counts, edges = np.histogram(numbers, 20)
    assert facts["histogram"]["edges"] == pytest.approx(edges)
    assert facts["histogram"]["counts"] == pytest.approx(counts, rel=0.05)
    assert sum(facts["histogram"]["counts"]) == len(numbers)
    assert facts["quantiles"][::10] == [numbers.min(), numbers.max()]
    assert facts["quantiles"] == pytest.approx(np.quantile(numbers, np.linspace(0, 1, 11)), abs=30)


def test_raw_figures_do_not_depend_on_runs_and_batches() -> None:
    rng = np.random.default_rng(0)
    features: Features = {"x": ss.Scalar("float32"), "n": ss.Scalar("int64", optional=True)}
    numbers = np.append(rng.lognormal(0, 5, 40_000), [0.0, -0.0]).astype(np.float32)
    table = pa.RecordBatch.from_arrays(
        [pa.array(numbers), pa.array([None if n % 7 == 0 else n % 5 for n in range(len(numbers))])],
        names=["x", "n"],
    )
    found = []
    for ends in ([len(table)], [7, 20_000, len(table)], [*range(500, 40_000, 999), len(table)]):
        totals, start = RawTotals(features), 0
        for stop in ends:
            run = RawStatistics(ExampleMeasures(features, sampled=False))
            for first in range(start, stop, 3_001):
                run.add(table.slice(first, min(3_001, stop - first)))
            totals.add(json.loads(json.dumps(run.to_json())))
            start = stop
        facts = statistics_of(features, {}, {}, label=None, raw=totals)["raw"]
        found.append(json.dumps(facts, sort_keys=True))
    assert found[0] == found[1] == found[2]


def test_raw_columns_of_very_wide_tables_have_no_means() -> None:
    features: Features = {f"x{number}": ss.Scalar("float32") for number in range(501)}
    values = pa.array([1.0, 2.0], pa.float32())
    texts = pa.array([b"one", b"four"], pa.large_binary())
    run = RawStatistics(ExampleMeasures({**features, "text": ss.Text()}, sampled=False))
    names = [*features, "text"]
    run.add(pa.RecordBatch.from_arrays([values] * 501 + [texts], names=names))
    features = {**features, "text": ss.Text()}
    totals = RawTotals(features)
    for _ in range(2):
        totals.add(run.to_json())
    statistics = statistics_of(features, {}, {}, label=None, raw=totals)
    assert statistics_pb(statistics, {}, raw=features)
    facts = statistics["raw"]["features"]["x7"]
    assert (facts["count"], facts["min"], facts["max"]) == (4, 1, 2)
    assert facts["mean"] is facts["deviation"] is None
