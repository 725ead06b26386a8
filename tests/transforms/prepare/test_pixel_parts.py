"""Batches are cut by what their images take once decoded; nothing is lost or moved."""

import pyarrow as pa
import pytest

from snapshard.schemas.blocks import RawBatch
from snapshard.schemas.errors import Reject
from snapshard.schemas.features import Features, Image, Scalar
from snapshard.transforms.media.image_codecs import parts_by_pixels
from snapshard.transforms.runs.files import wire_schema

FEATURES: Features = {"i": Image(storage="encoded"), "n": Scalar(dtype="int64")}


def batch_of(sides: list[int]) -> RawBatch:
    schema = wire_schema(FEATURES)
    columns = {"i": [b"x"] * len(sides), "n": list(range(len(sides)))}
    columns |= {f"i/{side}": list(sides) for side in ("height", "width")}
    columns["i/orientation"] = [1] * len(sides)
    arrays = [pa.array(columns[field.name], field.type) for field in schema]
    reject = Reject(record_id="r", stage="read", reason="a", message="b", source="r")
    return RawBatch(
        ids=[f"id{i}" for i in range(len(sides))],
        columns=pa.RecordBatch.from_arrays(arrays, schema=schema),
        rejects=(reject,),
        num_filtered=2,
    )


@pytest.mark.parametrize(
    ("sides", "lengths"),
    [
        ([], [0]),
        ([5, 5, 5], [3]),
        ([10, 1, 1], [1, 2]),
        ([1, 10, 1], [1, 1, 1]),
        ([20, 20], [1, 1]),
        ([7, 7, 7, 7], [2, 2]),
    ],
)
def test_parts(sides: list[int], lengths: list[int]) -> None:
    batch = batch_of(sides)
    parts = list(parts_by_pixels(batch, FEATURES, max_pixels=100))
    assert [len(part.ids) for part in parts] == lengths
    assert [name for part in parts for name in part.ids] == batch.ids
    assert pa.Table.from_batches([part.columns for part in parts]).to_pylist() == (
        batch.columns.to_pylist()
    )
    assert [len(part.rejects) for part in parts] == [1, *[0] * (len(parts) - 1)]
    assert sum(part.num_filtered for part in parts) == 2


def test_parts_of_few_rows() -> None:
    parts = parts_by_pixels(batch_of([1, 1, 1, 10, 1]), FEATURES, max_pixels=100, max_rows=2)
    assert [len(part.ids) for part in parts] == [2, 1, 1, 1]


def test_what_holds_no_images_stays_whole() -> None:
    columns = pa.RecordBatch.from_pydict({"n": [1, 2]}, schema=wire_schema({"n": FEATURES["n"]}))
    batch = RawBatch(ids=["a", "b"], columns=columns)
    assert list(parts_by_pixels(batch, {"n": FEATURES["n"]})) == [batch]
