"""Excel and HDF5: built, verified, and read back as the equal CSV and NumPy files."""

import datetime
import io
import os
import zipfile
from pathlib import Path
from typing import Any

import fsspec
import h5py
import numpy as np
import pytest

import snapshard as ss

from ...file_bytes import workbook
from .built import build, build_all

NUM = 40

DAY = datetime.datetime(2024, 1, 1, 6)
ROWS: list[list[Any]] = [
    ["n", "x", "text", "kind", "ok", "day"],
    *(
        [i, i / 8, f"é{i}" if i % 5 else None, "ab"[i % 2], i % 3 == 0, DAY.replace(day=1 + i % 28)]
        for i in range(NUM)
    ),
]
TYPES = {"x": "float64", "day": ss.Timestamp("us")}


def examples_of(lab: Any, snapshot: ss.Snapshot) -> list[str]:
    """The values of all examples, in one order."""
    return sorted(repr(sorted(row.items())) for row in lab.stored_rows(snapshot).values())


def written(value: Any) -> str:
    return value.isoformat() if isinstance(value, datetime.datetime) else str(value)


def as_csv(rows: list[list[Any]]) -> str:
    texts = {None: "", True: "true", False: "false"}
    return "".join(
        ",".join(texts[v] if v is None or isinstance(v, bool) else written(v) for v in row) + "\n"
        for row in rows
    )


@pytest.mark.parametrize(
    ("place", "workers"),
    [
        ("zip", 1),
        pytest.param("memory", 1, marks=pytest.mark.slow),
        pytest.param("memory", 2, marks=pytest.mark.slow),
    ],
)
def test_a_sheet_comes_back_equal(lab: Any, tmp_path: Path, place: str, workers: int) -> None:
    content = workbook({"t": ROWS})
    if place == "memory":
        url = "memory://test_sheets/t.xlsx"
        fsspec.filesystem("memory").pipe("/test_sheets/t.xlsx", content)
    else:
        url = f"zip://in/t.xlsx::{tmp_path}/a.zip"
        with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
            archive.writestr("in/t.xlsx", content)
    source = ss.Excel(url, label="kind")
    snapshot = build_all(tmp_path / "excel", source, workers=workers)
    (tmp_path / "t.csv").write_text(as_csv(ROWS))
    csv = ss.Csv(str(tmp_path / "t.csv"), label="kind", types=TYPES)
    expected = build_all(tmp_path / "csv", csv)
    assert snapshot.manifest.features == expected.manifest.features
    assert examples_of(lab, snapshot) == examples_of(lab, expected)
    assert sorted(lab.stored_rows(snapshot)) == sorted(f"sheet#{i + 2}" for i in range(NUM))
    assert build_all(tmp_path / "excel", source).cached


@pytest.mark.parametrize(
    ("place", "workers"),
    [
        ("memory", 1),
        pytest.param("zip", 1, marks=pytest.mark.slow),
        pytest.param("memory", 2, marks=pytest.mark.slow),
    ],
)
def test_datasets_come_back_equal(lab: Any, tmp_path: Path, place: str, workers: int) -> None:
    rng = np.random.default_rng(0)
    arrays = {
        "image": rng.integers(0, 256, (NUM, 8, 6, 3), np.uint8),
        "weights": rng.random((NUM, 3), np.float32),
        "label": rng.integers(0, 3, NUM, np.int32),
        "name": np.array([b"n%d" % (i % 3) for i in range(NUM)]),
        "record": np.array([(i, i / 2) for i in range(NUM)], [("a", "i4"), ("b", "f8")]),
    }
    stored = io.BytesIO()
    with h5py.File(stored, "w") as file:
        for name, values in arrays.items():
            file.create_dataset(f"in/{name}", data=values, chunks=True, compression="gzip")
        lists = file.create_dataset("in/items", (NUM,), h5py.vlen_dtype(np.int16))
        for number in range(NUM):
            lists[number] = np.arange(number % 4)
    if place == "memory":
        url = "memory://test_hdf5/t.h5"
        fsspec.filesystem("memory").pipe("/test_hdf5/t.h5", stored.getvalue())
    else:
        url = f"zip://t.h5::{tmp_path}/a.zip"
        with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
            archive.writestr("t.h5", stored.getvalue())
    settings: Any = {"label": "name", "types": {"image": ss.Image(8, 6, 3)}}
    source = ss.Hdf5(url, {name: f"in/{name}" for name in (*arrays, "items")}, **settings)
    snapshot = build_all(tmp_path / "hdf5", source, workers=workers)
    np.savez(tmp_path / "t.npz", **arrays)  # type: ignore[arg-type]
    expected = build_all(tmp_path / "npz", ss.Numpy(str(tmp_path / "t.npz"), **settings))
    features = {**snapshot.manifest.features}
    assert features.pop("items") == ss.Sequence(ss.Scalar("int16"))
    assert features == expected.manifest.features
    rows, others = lab.stored_rows(snapshot), lab.stored_rows(expected)
    for number in range(NUM):
        row = rows.pop(f"hdf5#{number}")
        assert row.pop("items").tolist() == list(range(number % 4))
        assert repr(row) == repr(others[f"t.npz#{number}"])
    assert not rows


@pytest.mark.slow  # worker processes
def test_extracted_sources_are_combined(lab: Any, tmp_path: Path) -> None:
    header, *rows = ROWS
    (tmp_path / "t.xlsx").write_bytes(
        workbook({"train": [header, *rows[:30]], "test": [header, *rows[30:]]})
    )
    (tmp_path / "t.csv").write_text(as_csv(ROWS))
    url = str(tmp_path / "t.xlsx")
    parts: dict[str, Any] = {split: ss.Excel(url, sheet=split) for split in ("train", "test")}
    parts["more"] = ss.Csv(str(tmp_path / "t.csv"), types=TYPES)
    recipe: dict[str, Any] = {
        "source": ss.Sources(**parts),
        "splits": ss.Splits.by_folder(train=("train", "more"), test="test"),
    }
    snapshot = build(tmp_path, workers=2, **recipe)
    num = {name: split.num_examples for name, split in snapshot.manifest.splits.items()}
    assert num == {"train": 30 + NUM, "test": 10}
    stored = lab.stored_rows(snapshot)
    for number, row in enumerate(rows):
        split = "train" if number < 30 else "test"
        place = number if number < 30 else number - 30
        assert stored[f"{split}/sheet#{place + 2}"]["n"] == row[0]
    assert build(tmp_path, **recipe).cached
    os.unlink(url)
    with pytest.raises(ss.SnapshardError, match=r"Source 'train': .*t\.xlsx"):
        build(tmp_path, **recipe)
