"""Images and sounds whose files' bytes stand in a table."""

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from snapshard.schemas.errors import SchemaError
from snapshard.schemas.features import Audio, Image, Scalar
from snapshard.transforms.sources.arrow.parquet import Parquet

from .subjects import wav


def test_images_in_a_column(reading: Any, pictures: Any) -> None:
    jpeg = pictures.encode(pictures.pixels(24, 40))
    turned = pictures.turned(pictures.pixels(16, 8), 6)
    table = pa.table(
        {"n": [0, 1, 2, 3, None, 5], "image": [jpeg, b"no image", turned, None, jpeg, jpeg]}
    )
    pq.write_table(table, reading.folder / "t.parquet")
    source = Parquet(
        str(reading.folder / "t.parquet"), types={"image": Image(storage="encoded"), "n": "int64"}
    )
    features = {"image": Image(storage="encoded"), "n": Scalar("int64")}
    got = reading.read(source, features=features)
    assert list(got.rows) == [f"t.parquet#{row}" for row in (0, 2, 5)]
    assert got.column("image") == [jpeg, turned, jpeg]
    assert got.column("image/height") == [24, 8, 24]
    assert got.column("image/width") == [40, 16, 40]
    assert got.column("image/orientation") == [1, 6, 1]
    reasons = {reject.position: reject.reason for reject in got.rejects}
    assert reasons == {1: "text, not an image", 3: "missing value", 4: "missing value"}
    assert "t.parquet row 1: column 'image' holds 8 bytes" in got.rejected["t.parquet#1"]
    assert reading.read(source).features["image"] == Image(storage="encoded")


def test_sounds_in_a_column(reading: Any) -> None:
    sound = wav(1)
    pq.write_table(pa.table({"sound": [sound, b"RIFF", None]}), reading.folder / "t.parquet")
    source = Parquet(str(reading.folder / "t.parquet"), types={"sound": Audio(storage="encoded")})
    got = reading.read(source)
    assert got.column("sound") == [sound]
    assert [(reject.position, reject.stage) for reject in got.rejects] == [
        (1, "read"),
        (2, "validate"),
    ]


def test_a_column_of_numbers_is_no_image(reading: Any) -> None:
    pq.write_table(pa.table({"x": [1]}), reading.folder / "t.parquet")
    source = Parquet(str(reading.folder / "t.parquet"), types={"x": Image(storage="encoded")})
    with pytest.raises(SchemaError, match="'x' is int64, which Image cannot store"):
        reading.read(source)
