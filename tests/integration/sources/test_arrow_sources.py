"""Parquet, Arrow, Feather and JSON Lines: built, verified, and read back equal to the source."""

import datetime
import decimal
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from PIL import Image as PillowImage

import snapshard as ss

from .built import build_all

NUM = 30
EPOCH = datetime.datetime(2020, 1, 1)
ROWS: list[dict[str, Any]] = [
    {
        "n": i - 5,
        "big": 2**64 - 1 - i,
        "small": i % 7,
        "x": i / 7,
        "y": float(np.float32(i / 3)),
        "yes": i % 2 == 0,
        "name": f"é{i}",
        "raw": bytes([i, 255]),
        "maybe": None if i % 4 == 1 else i * 10,
        "kind": ("cat", "dog")[i % 2],
        "code": "ab"[i % 2],
        "at": EPOCH + datetime.timedelta(hours=i),
        "day": (EPOCH + datetime.timedelta(days=i)).date(),
        "price": decimal.Decimal(i) / 4,
        "ids": list(range(i % 4)),
        "words": [f"w{k}" for k in range(i % 3)],
        "vector": [i * 0.5, 1.0, 2.0],
        "grid": [[i + k + m for m in range(2)] for k in range(1 + i % 3)],
        "who": {"age": i, "at": {"city": f"c{i % 3}"}},
        "items": [{"p": 0.5 * k, "q": k} for k in range(i % 3)],
    }
    for i in range(NUM)
]
SCHEMA = pa.schema(
    {
        "n": pa.int16(),
        "big": pa.uint64(),
        "small": pa.uint8(),
        "x": pa.float64(),
        "y": pa.float32(),
        "yes": pa.bool_(),
        "name": pa.string(),
        "raw": pa.binary(),
        "maybe": pa.int32(),
        "kind": pa.string(),
        "code": pa.dictionary(pa.int8(), pa.string()),
        "at": pa.timestamp("ms", "Europe/Berlin"),
        "day": pa.date32(),
        "price": pa.decimal128(10, 2),
        "ids": pa.list_(pa.int64()),
        "words": pa.list_(pa.string()),
        "vector": pa.list_(pa.float32(), 3),
        "grid": pa.list_(pa.list_(pa.int8())),
        "who": pa.struct([("age", pa.int8()), ("at", pa.struct([("city", pa.large_string())]))]),
        "items": pa.list_(pa.struct([("p", pa.float64()), ("q", pa.int16())])),
    }
)
TABLE = pa.Table.from_pylist(ROWS, schema=SCHEMA)


def _parquet(path: Path) -> None:
    pq.write_table(TABLE, path, row_group_size=8)


def _arrow(path: Path) -> None:
    with pa.ipc.new_file(path, SCHEMA) as writer:
        for batch in TABLE.to_batches(max_chunksize=8):
            writer.write_batch(batch)


def _stream(path: Path) -> None:
    with pa.ipc.new_stream(path, SCHEMA) as writer:
        for batch in TABLE.to_batches(max_chunksize=8):
            writer.write_batch(batch)


def _feather(path: Path) -> None:
    pa.feather.write_feather(TABLE, path, compression="zstd")


FORMATS: dict[str, tuple[Callable[..., Any], Callable[[Path], None]]] = {
    "t.parquet": (ss.Parquet, _parquet),
    "t.arrow": (ss.Arrow, _arrow),
    "t.arrows": (ss.Arrow, _stream),
    "t.feather": (ss.Arrow, _feather),
}


def expected_of(row: dict[str, Any]) -> dict[str, Any]:
    milliseconds = (row["at"] - EPOCH) // datetime.timedelta(milliseconds=1) + 1577836800000
    values = {
        **row,
        "name": row["name"].encode(),
        "kind": ("cat", "dog").index(row["kind"]),
        "code": row["code"].encode(),
        "at": milliseconds,
        "maybe": row["maybe"] or 0,
        "day": (row["day"] - EPOCH.date()).days * 86400 + 1577836800,
        "price": float(row["price"]),
        "words": [word.encode() for word in row["words"]],
        "who.age": row["who"]["age"],
        "who.at.city": row["who"]["at"]["city"].encode(),
        "items.p": [item["p"] for item in row["items"]],
        "items.q": [item["q"] for item in row["items"]],
    }
    return {name: value for name, value in values.items() if name not in ("who", "items")}


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
def test_arrow_files_come_back_equal(lab: Any, tmp_path: Path, name: str) -> None:
    make, write = FORMATS[name]
    write(tmp_path / name)
    rows = lab.rows_back(build_all(tmp_path, make(str(tmp_path / name), label="kind")))
    assert rows == {f"{name}#{i}": expected_of(row) for i, row in enumerate(ROWS)}


JSON_NAMES = (
    "n",
    "big",
    "x",
    "yes",
    "name",
    "maybe",
    "kind",
    "ids",
    "words",
    "grid",
    "who",
    "items",
)


@pytest.mark.slow
def test_json_lines_come_back_equal(lab: Any, tmp_path: Path) -> None:
    rows = [{name: row[name] for name in JSON_NAMES} for row in ROWS]
    lines = [json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in rows]
    (tmp_path / "t.jsonl").write_bytes(b"".join(lines))
    source = ss.JsonLines(str(tmp_path / "t.jsonl"), label="kind")
    found = lab.rows_back(build_all(tmp_path, source))
    offsets = np.cumsum([0, *map(len, lines)]).tolist()
    expected = {
        f"t.jsonl#{offset}": {
            name: value
            for name, value in expected_of(row).items()
            if name.partition(".")[0] in JSON_NAMES
        }
        for offset, row in zip(offsets, ROWS, strict=False)
    }
    assert found == expected


def test_rows_that_do_not_fit_are_rejects_of_the_build(lab: Any, tmp_path: Path) -> None:
    good = b'{"a": 1}\n'
    (tmp_path / "t.jsonl").write_bytes(good * 9 + b'{"a": "x"}\n' + good)
    source = ss.JsonLines(str(tmp_path / "t.jsonl"), types={"a": "int64"})
    with pytest.raises(ss.SnapshardError, match=r"t\.jsonl#81: t\.jsonl byte 81: 'a' is 'x'"):
        build_all(tmp_path, source)
    snapshot = build_all(tmp_path, source, max_rejects=1)
    (reject,) = lab.rejects(snapshot)
    assert (reject["id"], reject["position"]) == ("t.jsonl#81", 81)
    assert len(lab.rows_back(snapshot)) == 10


def test_images_in_parquet_come_back_equal(lab: Any, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    contents = []
    for size in (8, 12, 16, 20):
        sink = io.BytesIO()
        PillowImage.fromarray(rng.integers(0, 256, (size, 10, 3), np.uint8)).save(sink, "PNG")
        contents.append(sink.getvalue())
    pq.write_table(pa.table({"image": contents, "n": range(4)}), tmp_path / "t.parquet")
    source = ss.Parquet(str(tmp_path / "t.parquet"), types={"image": ss.Image(storage="encoded")})
    rows = lab.stored_rows(build_all(tmp_path, source))
    assert rows == {
        f"t.parquet#{i}": {"image": content, "n": i} for i, content in enumerate(contents)
    }
