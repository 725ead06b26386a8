"""Dropping duplicates: of equal contents the lowest id stays, in whatever order they come."""

from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import snapshard as ss
from snapshard.schemas.errors import RecipeError
from snapshard.schemas.features import Features
from snapshard.schemas.recipe import SortedRecords
from snapshard.transforms.prepare.records import drop_duplicates
from snapshard.transforms.runs.files import wire_schema

FEATURES: Features = {
    "a": ss.Scalar("int64", optional=True),
    "b": ss.Scalar("string"),
    "label": ss.ClassLabel(("no", "yes")),
}
_ROW = st.tuples(
    st.one_of(st.none(), st.integers(0, 2)), st.sampled_from([b"", b"x"]), st.integers(0, 1)
)


@settings(max_examples=100, deadline=None)
@given(
    rows=st.lists(_ROW, max_size=40),
    names=st.sampled_from([(), ("a", "b"), ("b",)]),
    cuts=st.lists(st.integers(0, 40), max_size=4),
    order=st.randoms(use_true_random=False),
)
def test_the_lowest_id_of_each_content_stays(
    sorted_parts: Callable[..., Iterator[SortedRecords]],
    rows: list[tuple[int | None, bytes, int]],
    names: tuple[str, ...],
    cuts: list[int],
    order: object,
) -> None:
    ids = [f"f#{index:02d}" for index in range(len(rows))]
    order.shuffle(ids)  # type: ignore[attr-defined]
    schema = wire_schema(FEATURES)
    values = zip(*rows, strict=True) if rows else ([], [], [])
    columns = pa.RecordBatch.from_arrays(
        [pa.array(list(v), f.type) for v, f in zip(values, schema, strict=True)], schema=schema
    )
    step = drop_duplicates(*names)
    parts = sorted_parts(step, ids, columns, features=FEATURES, splits=[0] * len(ids), cuts=cuts)
    compared = [sorted(FEATURES).index(name) for name in (names or FEATURES)]
    expected: dict[tuple[object, ...], str] = {}
    for record_id, row in sorted(zip(ids, rows, strict=True)):
        expected.setdefault(tuple(row[i] for i in compared), record_id)
    found, num_filtered = [], 0
    for batch in step.merge(parts, features=FEATURES):
        found += batch.ids
        num_filtered += batch.num_filtered
        assert batch.columns.num_rows == len(batch.ids)
    assert sorted(found) == sorted(expected.values())
    assert num_filtered == len(rows) - len(found)


def test_a_name_that_is_no_feature() -> None:
    with pytest.raises(RecipeError, match="no feature 'c'"):
        drop_duplicates("c").features(FEATURES)


def test_it_reads_as_it_is_written() -> None:
    assert repr(drop_duplicates("a")) == 'ss.records.drop_duplicates("a")'
