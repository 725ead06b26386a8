"""Hashes of contents: equal for equal records, wherever they lie; different for others."""

from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

import snapshard as ss
from snapshard.schemas.features import Features
from snapshard.transforms.examples.contents import content_digests, content_hashes
from snapshard.transforms.runs.files import wire_schema

FEATURES: Features = {
    "list": ss.Sequence(ss.Scalar("int64"), optional=True),
    "number": ss.Scalar("float32", optional=True),
    "text": ss.Scalar("string", optional=True),
    "vector": ss.Tensor("float32", (2,)),
    "words": ss.Sequence(ss.Text()),
}
_ROW = st.tuples(
    st.one_of(st.none(), st.lists(st.integers(0, 1), max_size=2)),
    st.one_of(st.none(), st.sampled_from([0.0, 1.0])),
    st.one_of(st.none(), st.sampled_from([b"", b"x", b"y" * 100])),
    st.lists(st.sampled_from([0.0, 1.0]), min_size=2, max_size=2),
    st.lists(st.sampled_from([b"", b"a", b"ab"]), max_size=2),
)


def _batch(rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    schema = wire_schema(FEATURES)
    columns = zip(*rows, strict=True) if rows else ([] for _ in schema)
    arrays = [pa.array(list(c), f.type) for c, f in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


@settings(max_examples=200, deadline=None)
@given(rows=st.lists(_ROW, max_size=30), skip=st.integers(0, 5))
def test_hashes_are_equal_where_rows_are(rows: list[tuple[Any, ...]], skip: int) -> None:
    batch = _batch(rows)
    hashes = content_hashes(batch).tolist()
    digests = [bytes(d) for d in content_digests(batch, FEATURES, names=tuple(FEATURES))]
    texts = [repr(row) for row in rows]
    for i, text in enumerate(texts):
        for j, other in enumerate(texts):
            assert (text == other) == (hashes[i] == hashes[j]) == (digests[i] == digests[j])
    assert content_hashes(batch.slice(skip)).tolist() == hashes[skip:]
