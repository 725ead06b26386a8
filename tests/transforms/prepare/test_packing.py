"""Packing: every sequence once, whole, in one row of its own split."""

from collections import defaultdict
from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import snapshard as ss
from snapshard.schemas.errors import RecipeError
from snapshard.schemas.features import Feature, tensor_form
from snapshard.schemas.recipe import SortedRecords
from snapshard.transforms.examples.dtypes import dense_values
from snapshard.transforms.prepare.text import pack
from snapshard.transforms.runs.files import wire_schema

_SEQUENCES = st.lists(
    st.tuples(st.lists(st.integers(0, 2**15 - 1), max_size=12), st.integers(0, 1)), max_size=80
)


@settings(max_examples=100, deadline=None)
@given(
    given_=_SEQUENCES,
    length=st.integers(1, 10),
    feature=st.sampled_from(
        [
            ss.Sequence(ss.Scalar("int64")),
            ss.Tensor("uint16", (None,)),
            ss.Sequence(ss.Scalar("int32"), optional=True),
        ]
    ),
    cuts=st.lists(st.integers(0, 80), max_size=4),
)
def test_every_sequence_lies_whole_in_one_row(
    sorted_parts: Callable[..., Iterator[SortedRecords]],
    given_: list[tuple[list[int], int]],
    length: int,
    feature: Feature,
    cuts: list[int],
) -> None:
    features = {"tokens": feature}
    step = pack("tokens", length)
    schema = wire_schema(features)
    packed = feature.wire_columns("tokens")[0].packed
    values = [np.array(v, packed).tobytes() if packed else v for v, _ in given_]
    columns = pa.RecordBatch.from_arrays([pa.array(values, schema.types[0])], schema=schema)
    ids = [f"f#{index}" for index in range(len(given_))]
    splits = [split for _, split in given_]
    parts = sorted_parts(step, ids, columns, features=features, splits=splits, cuts=cuts)
    after = step.features(features)
    found: dict[int, list[tuple[int, ...]]] = defaultdict(list)
    num_filtered = 0
    seen = set()
    for batch in step.merge(parts, features=features):
        num_filtered += batch.num_filtered
        tokens, segments, positions = (
            dense_values(batch.columns.column(name), tensor_form(after[name]))  # type: ignore[arg-type]
            for name in ("tokens", "tokens_segments", "tokens_positions")
        )
        for row, record_id in enumerate(batch.ids):
            assert record_id not in seen
            seen.add(record_id)
            split = splits[int(record_id[2:])]
            used = int((segments[row] > 0).sum())
            assert not segments[row, used:].any()
            assert not tokens[row, used:].any()
            first = tokens[row][segments[row] == 1].tolist()
            assert first == given_[int(record_id[2:])][0][:length]
            for number in range(1, int(segments[row].max()) + 1):
                held = segments[row] == number
                assert positions[row][held].tolist() == list(range(int(held.sum())))
                found[split].append(tuple(tokens[row][held].tolist()))
    expected: dict[int, list[tuple[int, ...]]] = defaultdict(list)
    for sequence, split in given_:
        if sequence:
            expected[split].append(tuple(sequence[:length]))
    assert {k: sorted(v) for k, v in found.items()} == {k: sorted(v) for k, v in expected.items()}
    assert num_filtered == sum(not sequence for sequence, _ in given_)


def test_rows_are_nearly_full(sorted_parts: Callable[..., Iterator[SortedRecords]]) -> None:
    lengths = np.random.default_rng(0).integers(5, 200, 3000)
    features = {"tokens": ss.Sequence(ss.Scalar("int64"))}
    column = pa.array([np.ones(n, np.int64) for n in lengths], pa.large_list(pa.int64()))
    columns = pa.RecordBatch.from_arrays([column], schema=wire_schema(features))
    step = pack("tokens", 512)
    ids = [f"f#{index}" for index in range(3000)]
    parts = sorted_parts(step, ids, columns, features=features, splits=[0] * 3000, cuts=[])
    rows = sum(len(batch.ids) for batch in step.merge(parts, features=features))
    assert lengths.sum() / (rows * 512) > 0.97


def test_what_cannot_be_packed() -> None:
    for features in ({"tokens": ss.Scalar("int64")}, {"tokens": ss.Sequence(ss.Text())}, {}):
        with pytest.raises(RecipeError, match="sequence of numbers"):
            pack("tokens", 8).features(features)
    with pytest.raises(RecipeError, match="stratify_by"):
        pack("tokens", 8).check(ss.Splits(train=0.5, test=0.5, stratify_by="label"))
    with pytest.raises(RecipeError, match="length"):
        pack("tokens", 0)


def test_it_reads_as_it_is_written() -> None:
    assert repr(pack("tokens", 8)) == 'ss.text.pack("tokens", 8)'
