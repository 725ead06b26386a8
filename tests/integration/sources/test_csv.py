"""CSV: every type that a cell can have; built, verified, read back equal."""

import csv
import datetime
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import snapshard as ss
from snapshard.pipelines.inspect.verify import verify
from snapshard.schemas.progress import Silent

NUM = 30
INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
EPOCH = datetime.datetime(1970, 1, 1)


def _rows() -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    rows = []
    for row in range(NUM):
        values: dict[str, Any] = {
            dtype: int(rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, dtype=dtype))
            for dtype in INTEGERS
        }
        values |= {
            "float16": float(np.float16(rng.normal())),
            "float32": float(np.float32(rng.normal())),
            "float64": float(rng.normal()),
            "bool": bool(row % 2),
            "string": f'a "quoted", é\nline {row}',
            "maybe": None if row % 4 == 1 else row,
            "note": f"text {row}",
            "kind": ("cat", "dog", "owl")[row % 3],
            "at": EPOCH + datetime.timedelta(milliseconds=1500 * row),
        }
        rows.append(values)
    return rows


ROWS = _rows()
TYPES: dict[str, Any] = {
    **{dtype: dtype for dtype in (*INTEGERS, "float16", "float32", "float64")},
    "note": ss.Text(),
    "at": ss.Timestamp("ms"),
}


def _content() -> bytes:
    sink = io.StringIO(newline="")
    writer = csv.DictWriter(sink, list(ROWS[0]), lineterminator="\n")
    writer.writeheader()
    for row in ROWS:
        writer.writerow({**row, "at": row["at"].isoformat()})
    return sink.getvalue().encode()


@pytest.mark.slow
def test_cells_of_every_type_come_back_equal(lab: Any, tmp_path: Path) -> None:
    content = _content()
    (tmp_path / "t.csv").write_bytes(content)
    source = ss.Csv(str(tmp_path / "t.csv"), label="kind", types=TYPES)
    recipe = ss.Recipe(name="made", source=source, splits=ss.Splits(train=0.8, test=0.2))
    snapshot = ss.build(recipe, tmp_path / "out", workers=1)
    verify(snapshot, progress=Silent())
    assert snapshot.manifest.features["kind"] == ss.ClassLabel(("cat", "dog", "owl"))
    found = sorted(lab.rows_back(snapshot).items(), key=lambda item: int(item[0].split("#")[1]))
    assert len(found) == NUM
    for (record_id, row), wanted in zip(found, ROWS, strict=True):
        assert content[int(record_id.partition("#")[2]) :].startswith(str(wanted["int8"]).encode())
        assert row == {
            **wanted,
            "string": wanted["string"].encode(),
            "maybe": wanted["maybe"] or 0,
            "note": wanted["note"].encode(),
            "kind": ("cat", "dog", "owl").index(wanted["kind"]),
            "at": (wanted["at"] - EPOCH) // datetime.timedelta(milliseconds=1),
        }
