"""Files with different columns, read together: what a file lacks is missing in its rows."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import snapshard as ss
from snapshard.schemas.errors import RecipeError, SchemaError

from .built import build_all

FIRST = [{"id": i, "old": i / 2, "kind": "ab"[i % 2], "who": {"age": i}} for i in range(5)]
SECOND = [
    {"kind": "c", "new": f"n{i}", "id": i, "list": [i, i], "who": {"age": i, "name": "x"}}
    for i in range(5, 9)
]
THIRD = [{"id": 9}]
FLAT = ("id", "old", "kind", "new")


def _csv(folder: Path, name: str, rows: list[dict[str, Any]]) -> None:
    names = [n for n in rows[0] if n in FLAT]
    lines = [",".join(names), *(",".join(str(row[n]) for n in names) for row in rows)]
    (folder / f"{name}.csv").write_text("\n".join(lines) + "\n")


def _parquet(folder: Path, name: str, rows: list[dict[str, Any]]) -> None:
    pq.write_table(pa.Table.from_pylist(rows), folder / f"{name}.parquet")


def _arrow(folder: Path, name: str, rows: list[dict[str, Any]]) -> None:
    table = pa.Table.from_pylist(rows)
    with pa.ipc.new_file(folder / f"{name}.arrow", table.schema) as writer:
        writer.write_table(table)


def _json(folder: Path, name: str, rows: list[dict[str, Any]]) -> None:
    (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


FORMATS: dict[str, tuple[Callable[..., None], Any, dict[str, Any]]] = {
    "Csv": (_csv, ss.Csv, {"columns": "union"}),
    "Parquet": (_parquet, ss.Parquet, {"columns": "union"}),
    "Arrow": (_arrow, ss.Arrow, {"columns": "union"}),
    "JsonLines": (_json, ss.JsonLines, {}),  # always
}


def _write(folder: Path, name: str) -> str:
    folder.mkdir(exist_ok=True)
    for part, rows in (("a", FIRST), ("b", SECOND), ("c", THIRD)):
        FORMATS[name][0](folder, part, rows)
    return str(folder)


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
def test_absent_columns_are_missing_values(lab: Any, tmp_path: Path, name: str) -> None:
    url = _write(tmp_path / "in", name)
    _, source, options = FORMATS[name]
    snapshot = build_all(tmp_path, source(url, **options))
    features = snapshot.manifest.features
    assert features["id"] == ss.Scalar("int64")
    for column in ("old", "kind", "new"):
        assert features[column].optional, column
    if name != "Csv":
        assert features["who.age"].optional
        assert features["who.name"].optional
        assert features["list"] == ss.Sequence(ss.Scalar("int64"), optional=True)
    rows = sorted(lab.rows_back(snapshot).values(), key=lambda row: int(row["id"]))
    assert [row["id"] for row in rows] == list(range(10))
    for row, wanted in zip(rows, [*FIRST, *SECOND, *THIRD], strict=True):
        np.testing.assert_equal(row["old"], wanted.get("old", np.nan))
        assert row["kind"] == wanted.get("kind", "").encode()
        assert row["new"] == wanted.get("new", "").encode()
        if name != "Csv":
            assert row["list"] == wanted.get("list", [])
            who: Any = wanted.get("who", {})
            assert (row["who.age"], row["who.name"]) == (
                who.get("age", 0),
                who.get("name", "").encode(),
            )
    assert build_all(tmp_path, source(url, **options)).cached


@pytest.mark.parametrize("name", ["Csv", "Parquet", "Arrow"])
def test_without_it_the_error_proposes_it(tmp_path: Path, name: str) -> None:
    url = _write(tmp_path / "in", name)
    with pytest.raises(SchemaError, match=r"b\.\w+ has different columns.*columns=\"union\""):
        build_all(tmp_path, FORMATS[name][1](url))
    for columns in ("all", ""):
        with pytest.raises(RecipeError, match="columns"):
            FORMATS[name][1](url, columns=columns)


@pytest.mark.parametrize("name", ["Csv", "Parquet"])
def test_a_label_is_the_class_of_all_files_and_required(tmp_path: Path, name: str) -> None:
    url = _write(tmp_path / "in", name)
    source = FORMATS[name][1](url, columns="union", label="kind")
    snapshot = build_all(tmp_path, source, max_rejects=1)
    assert snapshot.manifest.features["kind"] == ss.ClassLabel(("a", "b", "c"))
    assert snapshot.manifest.num_rejects == 1
    with pytest.raises(ss.SnapshardError, match=r"c\.\w+ .*'kind' has no value"):
        build_all(tmp_path / "again", source)


@pytest.mark.parametrize("name", ["Csv", "Parquet"])
def test_a_new_column_is_found_in_any_order_of_files(lab: Any, tmp_path: Path, name: str) -> None:
    write, source, options = FORMATS[name]
    (tmp_path / "in").mkdir()
    for part, rows in (("a", THIRD), ("b", [{"id": 1, "old": 0.5}]), ("c", [{"old": 1.5}])):
        write(tmp_path / "in", part, rows)
    snapshot = build_all(
        tmp_path, source(str(tmp_path / "in"), types={"old": "float64"}, **options)
    )
    found = sorted((row["id"], row["old"]) for row in lab.rows_back(snapshot).values())
    np.testing.assert_equal(found, [(0, 1.5), (1, 0.5), (9, np.nan)])
