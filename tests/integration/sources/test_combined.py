"""Several sources in one snapshot: all of their records come back, under the sources' names."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image as PillowImage

import snapshard as ss
from snapshard.pipelines.inspect.diff import diff
from snapshard.pipelines.inspect.forecast import forecast
from snapshard.pipelines.inspect.rejects import RejectFilter, RejectsFile, export_payloads
from snapshard.pipelines.inspect.why import why
from snapshard.pipelines.recipe.shipping import load_recipe_file
from snapshard.pipelines.survey.survey import Survey
from snapshard.schemas.errors import (
    DataError,
    RecipeError,
    RejectsError,
    SchemaError,
    SourceChangedError,
    StepOrderError,
)
from snapshard.schemas.limits import Limits
from snapshard.schemas.progress import Silent
from snapshard.transforms.sources.combined import open_files, parts_of

from ...pipelines.read_records import num_to_prepare, read_blocks, read_records, survey_of
from .built import build_all

OLD = [{"id": i, "kind": "ab"[i % 2], "old": i / 2 + 0.25} for i in range(5)]
NEW = [{"id": i, "kind": "bc"[i % 2], "new": f"n{i}"} for i in range(5, 12)]


def _csv(folder: Path, rows: list[dict[str, Any]]) -> Any:
    lines = [",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]
    (folder / "t.csv").write_text("\n".join(lines) + "\n")
    return ss.Csv(str(folder), label="kind")


def _parquet(folder: Path, rows: list[dict[str, Any]]) -> Any:
    table = pa.Table.from_pylist(rows)
    if "old" in table.column_names:
        table = table.set_column(2, "old", table.column("old").cast(pa.float32()))
    pq.write_table(table, folder / "t.parquet")
    return ss.Parquet(str(folder), label="kind")


def _json(folder: Path, rows: list[dict[str, Any]]) -> Any:
    (folder / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return ss.JsonLines(str(folder), label="kind", types={"old": "float32"} if rows is OLD else {})


def _tfrecord(folder: Path, rows: list[dict[str, Any]]) -> Any:
    tf = pytest.importorskip("tensorflow")
    features = {name: ss.Scalar("string") for name in ("kind", "new") if name in rows[0]}
    features |= {"id": ss.Scalar("int64")}
    if "old" in rows[0]:
        features["old"] = ss.Scalar("float32")
    with tf.io.TFRecordWriter(str(folder / "t.tfrecord")) as writer:
        for row in rows:
            writer.write(ss.encode_example(row, features))
    return ss.TFRecords(str(folder), label="kind")


KINDS: dict[str, Callable[[Path, list[dict[str, Any]]], Any]] = {
    "Csv": _csv,
    "Parquet": _parquet,
    "JsonLines": _json,
    "TFRecords": _tfrecord,
}


def made(folder: Path, kind: str, rows: list[dict[str, Any]]) -> Any:
    folder.mkdir(parents=True, exist_ok=True)
    return KINDS[kind](folder, rows)


def ids_of(lab: Any, snapshot: ss.Snapshot) -> set[str]:
    return set(lab.rows_back(snapshot))


NUMBERS = {
    "int32": np.array([1, -2, 3], np.int32),
    "int64": np.array([1, 2**53 - 1, -5]),
    "float32": np.array([0.1, -2.5, 1e30], np.float32),
    "float64": np.array([0.1, -2.5, 1e300]),
}


def _numbers(folder: Path, kind: str, values: Any) -> Any:
    folder.mkdir()
    if kind == "Numpy":
        np.savez(folder / "t.npz", x=values)
        return ss.Numpy(str(folder))
    if kind == "Parquet":
        pq.write_table(pa.table({"x": values}), folder / "t.parquet")
        return ss.Parquet(str(folder))
    if kind == "Arrow":
        with pa.ipc.new_file(folder / "t.arrow", pa.schema([("x", pa.array(values).type)])) as file:
            file.write_table(pa.table({"x": values}))
        return ss.Arrow(str(folder))
    texts, types = [repr(value) for value in values.tolist()], {"x": values.dtype.name}
    if kind == "Csv":
        (folder / "t.csv").write_text("\n".join(["x", *texts]) + "\n")
        return ss.Csv(str(folder), types=types)
    (folder / "t.jsonl").write_text("".join(f'{{"x": {text}}}\n' for text in texts))
    return ss.JsonLines(str(folder), types=types)


@pytest.mark.slow  # 25 builds
@pytest.mark.parametrize("kind", ["Csv", "JsonLines", "Parquet", "Arrow", "Numpy"])
@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("int32", "int64", "int64"),
        ("int64", "float32", "float64"),
        ("float32", "float64", "float64"),
        ("int64", "float64", "float64"),
        ("int32", "float32", "float64"),
    ],
)
def test_numbers_have_the_type_that_holds_all(
    lab: Any, tmp_path: Path, kind: str, one: str, other: str, expected: str
) -> None:
    """Of every source of columns: it reads its own, narrower numbers as the common type."""
    source = ss.Sources(
        own=_numbers(tmp_path / "a", kind, NUMBERS[one]),
        wide=_numbers(tmp_path / "b", "Parquet", NUMBERS[other]),
    )
    snapshot = build_all(tmp_path, source)
    assert snapshot.manifest.features["x"] == ss.Scalar(expected)
    rows = lab.rows_back(snapshot)
    found = {
        part: sorted(row["x"] for key, row in rows.items() if key.startswith(part))
        for part in ("own", "wide")
    }
    assert found["own"] == sorted(NUMBERS[one].astype(expected).tolist())
    assert found["wide"] == sorted(NUMBERS[other].astype(expected).tolist())


def test_an_integer_that_the_common_type_cannot_hold_is_a_reject(tmp_path: Path) -> None:
    source = ss.Sources(
        own=_numbers(tmp_path / "a", "Parquet", np.array([1, 2**53 + 1])),
        wide=_numbers(tmp_path / "b", "Parquet", NUMBERS["float64"]),
    )
    with pytest.raises(RejectsError, match=r"own/t\.parquet"):
        build_all(tmp_path, source)


def test_inferred_floats_of_every_kind_are_combined(lab: Any, tmp_path: Path) -> None:
    """Where nothing is declared: Csv infers float32, and the others float64."""
    kinds = ("Csv", "JsonLines", "Parquet")
    parts = {kind: made(tmp_path / kind, kind, [{"kind": "a", "x": 0.5}]) for kind in kinds}
    snapshot = build_all(tmp_path, ss.Sources(**parts))
    assert snapshot.manifest.features["x"] == ss.Scalar("float64")
    assert [row["x"] for row in lab.rows_back(snapshot).values()] == [0.5] * 3


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("Csv", "Parquet"),
        ("JsonLines", "Csv"),
        ("TFRecords", "Csv"),
        ("Parquet", "JsonLines"),
        ("Csv", "Csv"),
    ],
)
def test_tables_of_every_kind_come_back_together(
    lab: Any, tmp_path: Path, old: str, new: str
) -> None:
    source = ss.Sources(old=made(tmp_path / "o", old, OLD), new=made(tmp_path / "n", new, NEW))
    snapshot = build_all(tmp_path, source)
    features = snapshot.manifest.features
    assert features["kind"] == ss.ClassLabel(("a", "b", "c"))
    assert features["id"] == ss.Scalar("int64")
    assert features["old"] == ss.Scalar("float32", optional=True)
    assert features["new"] == ss.Scalar("string", optional=True)
    assert snapshot.manifest.label == "kind"
    rows = lab.rows_back(snapshot)
    assert {name.partition("/")[0] for name in rows} == {"old", "new"}
    for record_id, row in rows.items():
        wanted = [*OLD, *NEW][int(row["id"])]
        assert record_id.startswith("old/t." if "old" in wanted else "new/t.")
        np.testing.assert_equal(row["old"], np.float32(wanted.get("old", np.nan)))
        assert row["new"] == wanted.get("new", "").encode()
        assert row["kind"] == "abc".index(wanted["kind"])
    assert len(rows) == len(OLD) + len(NEW)


def test_folders_of_images_come_back_together(lab: Any, tmp_path: Path) -> None:
    lab.make_images(tmp_path / "here", num=12, classes=2)
    lab.make_images(tmp_path / "there", num=9, classes=3)
    memory = fsspec.filesystem("memory")
    memory.put(str(tmp_path / "there"), "/combined/there", recursive=True)
    source = ss.Sources(
        here=ss.ImageFolder(str(tmp_path / "here")),
        there=ss.ImageFolder("memory://combined/there"),
    )
    try:
        together = build_all(tmp_path, source)
    finally:
        memory.rm("/combined", recursive=True)
    rows = lab.rows_back(together)
    assert len(rows) == 21
    assert len(together.manifest.features["label"].names) == 3
    for name in ("here", "there"):
        alone = build_all(tmp_path / f"of {name}", ss.ImageFolder(str(tmp_path / name)))
        names = alone.manifest.features["label"].names
        for record_id, row in lab.rows_back(alone).items():
            both = rows[f"{name}/{record_id}"]
            np.testing.assert_equal(both["image"], row["image"])
            labels = together.manifest.features["label"].names
            assert labels[int(both["label"])] == names[int(row["label"])]


def test_images_in_files_and_rows_come_back_together(lab: Any, tmp_path: Path) -> None:
    lab.make_images(tmp_path / "files", num=6, classes=2)
    files = sorted((tmp_path / "files").rglob("*.*"))
    rows = [{"image": file.read_bytes(), "label": file.parent.name} for file in files]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    source = ss.Sources(
        files=ss.ImageFolder(str(tmp_path / "files")),
        rows=ss.Parquet(
            str(tmp_path / "rows.parquet"),
            label="label",
            types={"image": ss.Image(storage="encoded")},
        ),
    )
    found = lab.rows_back(build_all(tmp_path, source))
    assert len(found) == 12
    for number, file in enumerate(files):
        path = file.relative_to(tmp_path / "files")
        one, other = found[f"files/{path}#0"], found[f"rows/rows.parquet#{number}"]
        np.testing.assert_equal(one["image"], other["image"])
        assert one["label"] == other["label"]


def surveyed(folder: Path, **sources: Any) -> Survey:
    splits = ss.Splits(train=0.5, test=0.5)
    return survey_of(ss.Recipe(name="made", source=ss.Sources(**sources), splits=splits), folder)


def test_another_source_changes_no_id_and_prepares_nothing_again(tmp_path: Path) -> None:
    one, other = made(tmp_path / "o", "Csv", OLD), made(tmp_path / "p", "Csv", OLD)
    alone = surveyed(tmp_path, m=one)
    both, turned = surveyed(tmp_path, z=other, m=one), surveyed(tmp_path, m=one, z=other)
    assert turned.fingerprint == both.fingerprint != alone.fingerprint
    assert len(both.inventory.blocks) == 2
    assert num_to_prepare(alone, both) == 1
    found = read_blocks(alone, tmp_path).records
    assert found.items() <= read_blocks(both, tmp_path).records.items()


def test_a_source_with_a_table_prepares_no_other_again(lab: Any, tmp_path: Path) -> None:
    lab.make_images(tmp_path / "a", num=20, classes=2)
    lab.make_images(tmp_path / "b", num=20, classes=2)
    lines = [f"{path.name},{path.parent.name}" for path in (tmp_path / "b").rglob("*.jpg")]
    (tmp_path / "b.csv").write_text("\n".join(["file,label", *lines]) + "\n")
    folder = ss.ImageFolder(str(tmp_path / "a"))
    table = ss.ImageFolder(str(tmp_path / "b"), table=str(tmp_path / "b.csv"))
    both = surveyed(tmp_path, a=folder, b=table)
    assert len(both.inventory.blocks) == 2
    assert num_to_prepare(surveyed(tmp_path, a=folder), both) == 1


def test_a_changed_file_prepares_one_block_of_its_source(lab: Any, tmp_path: Path) -> None:
    source = ss.Sources(old=made(tmp_path / "o", "Csv", OLD), new=made(tmp_path / "n", "Csv", NEW))
    before = build_all(tmp_path, source)
    made(tmp_path / "o", "Csv", [{**OLD[0], "old": 9.25}, *OLD[1:]])
    after = build_all(tmp_path, source)
    assert lab.build_facts(after)["blocks"] == {"total": 2, "prepared": 1}
    anew = build_all(tmp_path / "anew", source)
    assert lab.hashes(anew) == lab.hashes(after) != lab.hashes(before)
    changes = why(before, after).to_json()
    assert "old/t.csv" in json.dumps(changes)
    assert "new/t.csv" not in json.dumps(changes)
    found = diff(before, after, progress=Silent())
    assert (found.records.total("changed"), found.records.total("added")) == (1, 0)


@pytest.mark.slow
def test_the_same_from_two_workers_and_step_by_step(lab: Any, tmp_path: Path) -> None:
    made(tmp_path / "o", "Csv", OLD)
    made(tmp_path / "n", "Parquet", NEW)
    (tmp_path / "recipe.py").write_text(
        "import snapshard as ss\n\nrecipe = ss.Recipe(name='x', splits=ss.Splits(train=1.0), "
        "source=ss.Sources(old=ss.Csv('o', label='kind'), new=ss.Parquet('n', label='kind')))\n"
    )
    recipe = load_recipe_file(tmp_path / "recipe.py")
    once = ss.build(recipe, tmp_path / "once", workers=2)
    for step in ("inventory", "prepare", "analyze", "plan", "write", "publish"):
        report = ss.run_step(recipe, tmp_path / "steps", step)
    assert lab.hashes(report.path) == lab.hashes(once)
    (tmp_path / "o" / "t.csv").write_text("id,kind,old\n1,a,0.5\n")
    ss.run_step(recipe, tmp_path / "again", "inventory")
    (tmp_path / "o" / "t.csv").write_text("id,kind,old\n1,a,0.75\n")
    with pytest.raises(StepOrderError, match=r"^old/t\.csv of .* changed since the inventory"):
        ss.run_step(recipe, tmp_path / "again", "prepare")


@pytest.mark.slow
@pytest.mark.parametrize("limit", [1, 5, 100])
def test_a_limit_takes_the_records_with_the_lowest_keys(
    lab: Any, tmp_path: Path, limit: int
) -> None:
    lab.make_images(tmp_path / "a", num=7, classes=2)
    lab.make_images(tmp_path / "b", num=5, classes=2)
    images = ss.Sources(**{name: ss.ImageFolder(str(tmp_path / name)) for name in "ab"})
    tables = ss.Sources(o=made(tmp_path / "o", "Csv", OLD), n=made(tmp_path / "n", "Csv", NEW))
    for name, source in (("images", images), ("tables", tables)):
        recipe = ss.Recipe(name=name, source=source, splits=ss.Splits(train=1.0))
        every = lab.read_back(ss.build(recipe, tmp_path / "out")).ids
        some = lab.read_back(ss.build(recipe, tmp_path / "out", limit=limit)).ids
        assert some == every[:limit]


def test_splits_by_source(lab: Any, tmp_path: Path) -> None:
    source = ss.Sources(old=made(tmp_path / "o", "Csv", OLD), new=made(tmp_path / "n", "Csv", NEW))
    snapshot = build_all(tmp_path, source, splits=ss.Splits.by_folder(train="old", test="new"))
    split_of = {record_id: split for record_id, split, _ in lab.read_back(snapshot).rows()}
    for record_id, split in split_of.items():
        assert split == {"old": "train", "new": "test"}[record_id.partition("/")[0]]


def test_rejects_name_their_source_and_their_payloads_are_found(lab: Any, tmp_path: Path) -> None:
    for name in ("one", "two"):
        lab.make_images(tmp_path / name, num=6, classes=2)
    damaged = tmp_path / "two" / "class 0" / "large.jpg"
    damaged.write_bytes(b"no image" + bytes(2 << 20))
    source = ss.Sources(**{name: ss.ImageFolder(str(tmp_path / name)) for name in ("one", "two")})
    snapshot = build_all(tmp_path, source, max_rejects=1)
    (reject,) = lab.rejects(snapshot)
    assert reject["id"] == reject["source"] == "two/class 0/large.jpg"
    export = tmp_path / "export"
    report = export_payloads(RejectsFile.find(snapshot.path), RejectFilter(), str(export))
    assert report.num_fetched == report.num_files == 1
    (payload,) = (file for file in export.iterdir() if file.name != "index.jsonl")
    assert payload.read_bytes() == damaged.read_bytes()
    with pytest.raises(RejectsError, match=r"two/class 0/large\.jpg"):
        build_all(tmp_path / "refused", source, max_rejects=0)


def test_rejected_rows_have_their_place(tmp_path: Path) -> None:
    old, new = made(tmp_path / "o", "Csv", OLD), made(tmp_path / "n", "Csv", NEW)
    with (tmp_path / "n" / "t.csv").open("a") as file:
        file.write("13,a\n")
    read = read_blocks(surveyed(tmp_path, old=old, new=new), tmp_path)
    (reject,) = read.rejects.values()
    assert reject.source == "new/t.csv"
    assert reject.record_id == f"new/t.csv#{reject.position}"
    assert reject.payload == b"13,a"


@pytest.mark.parametrize("kind", ["Csv", "Parquet"])
def test_a_dry_run_counts_the_records_of_all_sources(tmp_path: Path, kind: str) -> None:
    old = made(tmp_path / "o", kind, OLD * 20)
    rows = [{"id": i, "kind": "ab"[i % 2], "new": f"n{i % 1000:05}"} for i in range(6000)]
    recipe = ss.Recipe(name="x", source=ss.Sources(old=old, new=made(tmp_path / "n", kind, rows)))
    found = forecast(recipe, progress=Silent())
    assert found.num_files == 2
    assert found.num_examples == pytest.approx(6100, rel=0.05)
    assert found.warnings == ()


def test_tables_of_labels_stay_with_their_source(lab: Any, tmp_path: Path) -> None:
    for name, classes in (("one", "ab"), ("two", "bc")):
        lab.make_images(tmp_path / name, num=8, classes=1)
        files = sorted(file.name for file in (tmp_path / name).rglob("*.jpg"))
        lines = [f"{file},{classes[at % 2]}" for at, file in enumerate(files)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["file,label", *lines]) + "\n")
    sources = {
        name: ss.ImageFolder(str(tmp_path / name), table=str(tmp_path / f"{name}.csv"))
        for name in ("one", "two")
    }
    snapshot = build_all(tmp_path, ss.Sources(**sources))
    assert snapshot.manifest.features["label"] == ss.ClassLabel(("a", "b", "c"))
    for record_id, row in lab.rows_back(snapshot).items():
        classes = {"one": "ab", "two": "bc"}[record_id.partition("/")[0]]
        number = int(Path(record_id).stem)
        assert "abc"[int(row["label"])] == classes[number % 2]
    before, table = surveyed(tmp_path, **sources), tmp_path / "one.csv"
    table.write_text(table.read_text().replace("0000.jpg,a", "0000.jpg,b"))
    after = surveyed(tmp_path, **sources)
    assert len(after.inventory.blocks) == 2
    assert num_to_prepare(before, after) == 1


def test_steps_and_the_model_for_serving(lab: Any, tmp_path: Path) -> None:
    source = ss.Sources(old=made(tmp_path / "o", "Csv", OLD), new=made(tmp_path / "n", "Csv", NEW))
    steps = [ss.tables.fill("old", -1.0), ss.tables.clip("id", max=8)]
    snapshot = build_all(tmp_path, source, prepare=steps)
    assert snapshot.manifest.features["old"] == ss.Scalar("float32")
    serving = snapshot.manifest.serving
    assert serving is not None
    assert serving.optional_inputs == ["new", "new_present", "old"]
    for record_id, row in lab.rows_back(snapshot).items():
        assert (row["old"] == -1.0) == record_id.startswith("new/")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ss.Sources(), "no sources given"),
        (lambda: ss.Sources(a="t.csv"), "a='t.csv' is not a source"),
        (lambda: ss.Sources(**{"a/b": ss.Csv("t.csv")}), "'a/b' is not a valid name"),
        (lambda: ss.Sources(a=ss.Sources(b=ss.Csv("t.csv"))), "'a' is itself ss.Sources"),
        (
            lambda: ss.Sources(a=ss.Csv("t", label="x"), b=ss.Csv("t", label="y")),
            "the label of 'a' is 'x', that of 'b' is 'y'",
        ),
        (lambda: ss.Recipe(name="x", source=[ss.Csv("t"), ss.Csv("u")]), "name them: ss.Sources"),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_be_combined_is_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        make()


def test_features_that_do_not_fit_name_both_sources(lab: Any, tmp_path: Path) -> None:
    texts = [{**row, "id": f"x{row['id']}"} for row in NEW]
    source = ss.Sources(o=made(tmp_path / "o", "Csv", OLD), n=made(tmp_path / "n", "Csv", texts))
    with pytest.raises(SchemaError, match=r"'id' is ss\.Scalar\(\"string\"\) in 'n', and .* 'o'"):
        build_all(tmp_path, source)
    lab.make_images(tmp_path / "i", num=3, classes=1)
    images = ss.ImageFolder(str(tmp_path / "i"))
    table = ss.Csv(str(tmp_path / "o"))
    with pytest.raises(SchemaError, match=r"'t' has no feature 'image', which is .* in 'i'"):
        build_all(tmp_path, ss.Sources(i=images, t=table))


def test_errors_name_the_source(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    good = made(tmp_path / "o", "Csv", OLD)
    with pytest.raises(DataError, match=r"Source 'e': Csv: .* holds no files"):
        build_all(tmp_path, ss.Sources(o=good, e=ss.Csv(str(tmp_path / "empty"))))
    with pytest.raises(RecipeError, match="Source 'e': Csv: types names 'no'"):
        build_all(tmp_path, ss.Sources(o=good, e=ss.Csv(good.url, types={"no": "int64"})))
    with pytest.raises(RecipeError, match="is inside the source"):
        build_all(tmp_path / "o", ss.Sources(o=ss.Csv(good.url), e=ss.Files(good.url, read=print)))


def test_excluded_records_of_each_source_are_left_out(lab: Any, tmp_path: Path) -> None:
    lab.make_images(tmp_path / "files", num=6, classes=2)
    files = sorted((tmp_path / "files").rglob("*.jpg"))
    rows = [{"image": file.read_bytes(), "label": file.parent.name} for file in files]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    folder = ss.ImageFolder(str(tmp_path / "files"))
    types = {"image": ss.Image(storage="encoded")}
    table = ss.Parquet(str(tmp_path / "rows.parquet"), label="label", types=types)
    for sources in ({"a": folder, "b": folder}, {"a": folder, "b": table}, {"a": table}):
        recipe = ss.Recipe(name="made", source=ss.Sources(**sources))
        every = read_records(recipe, tmp_path).records
        gone = [min(every), max(every)]
        (tmp_path / "ids.txt").write_text("\n".join([*gone, "c/other"]) + "\n")
        without = dataclasses.replace(recipe, exclude=str(tmp_path / "ids.txt"))
        found = read_records(without, tmp_path)
        assert found.num_excluded == 2
        assert found.records == {name: every[name] for name in every.keys() - {*gone}}


@pytest.mark.slow
def test_images_with_masks_come_back_together(lab: Any, tmp_path: Path) -> None:
    for shade, name in enumerate(("one", "two")):
        for kind in ("images", "masks"):
            (tmp_path / name / kind).mkdir(parents=True)
            for number in range(4):
                pixels = np.full((8, 8), 10 * shade + number, np.uint8)
                PillowImage.fromarray(pixels).save(tmp_path / name / kind / f"{number}.png")
    folders = {n: ss.ImageFolder(str(tmp_path / n), masks="masks") for n in ("one", "two")}
    steps = [ss.images.decode("image", channels=1), ss.images.decode("mask")]
    steps += [ss.images.resize(name, (8, 8)) for name in ("image", "mask")]
    found = lab.rows_back(build_all(tmp_path, ss.Sources(**folders), prepare=steps))
    assert sorted(found) == [f"{n}/images/{at}.png" for n in ("one", "two") for at in range(4)]
    for record_id, row in found.items():
        shade = 10 * record_id.startswith("two") + int(Path(record_id).stem)
        assert (np.unique(row["image"]), np.unique(row["mask"])) == ([shade], [shade])


def test_fields_of_structs_are_joined(lab: Any, tmp_path: Path) -> None:
    for name, who in (("a", {"age": 1}), ("b", {"age": 2, "name": "x"}), ("c", 3)):
        pq.write_table(pa.Table.from_pylist([{"id": 1, "who": who}]), tmp_path / f"{name}.parquet")
    tables = {name: ss.Parquet(str(tmp_path / f"{name}.parquet")) for name in "abc"}
    snapshot = build_all(tmp_path, ss.Sources(a=tables["a"], b=tables["b"]))
    assert snapshot.manifest.features["who.age"] == ss.Scalar("int64")
    assert snapshot.manifest.features["who.name"] == ss.Scalar("string", optional=True)
    found = lab.rows_back(snapshot)
    assert found["a/a.parquet#0"]["who.name"] == b""
    assert found["b/b.parquet#0"]["who.name"] == b"x"
    with pytest.raises(SchemaError, match="'who' is a struct in one source, and a value in"):
        build_all(tmp_path, ss.Sources(a=tables["a"], c=tables["c"]))


def test_a_block_proves_its_own_source_alone(tmp_path: Path) -> None:
    """With hundreds of sources, most of the time of a block was spent on the others."""
    for name in ("a", "b", "c"):
        (tmp_path / f"{name}.csv").write_text("x\n1\n")
    source = ss.Sources(**{name: ss.Csv(str(tmp_path / f"{name}.csv")) for name in ("a", "b", "c")})
    opened = open_files(source, str(tmp_path), Limits())
    proving = opened.proving([file for file in opened.list() if file.path.startswith("b/")])
    parts = {part.name: part.opened for part in parts_of(source, proving)}
    assert {name for name, part in parts.items() if part.proof is not None} == {"b"}
    assert proving.read("b/b.csv") == b"x\n1\n"
    (tmp_path / "b.csv").write_text("x\n2\n")
    with pytest.raises(SourceChangedError, match=r"b\.csv"):
        proving.check()


def _described(path: Path, names: list[str]) -> Path:
    """A table as the Hugging Face hub has them: numbers, and the names of classes."""
    spec = {"_type": "ClassLabel", "names": names}
    specs = {"label": spec, "labels": {"_type": "Sequence", "feature": spec}}
    table = pa.table({"label": [0, 1, None], "labels": [[0, 1], [], [1]], "name": [*names, "?"]})
    metadata = {"huggingface": json.dumps({"info": {"features": specs}})}
    pq.write_table(table.replace_schema_metadata(metadata), path)
    return path


def test_numbers_keep_the_names_that_their_own_file_gives(lab: Any, tmp_path: Path) -> None:
    lists = {"a": ["cat", "dog"], "b": ["bird", "cat"]}
    urls = {n: str(_described(tmp_path / f"{n}.parquet", names)) for n, names in lists.items()}
    snapshot = build_all(tmp_path, ss.Sources(**{n: ss.Parquet(url) for n, url in urls.items()}))
    names = ("bird", "cat", "dog")
    assert snapshot.manifest.features["label"] == ss.ClassLabel(names, optional=True)
    found = lab.stored_rows(snapshot)
    for source, own in lists.items():
        for row in range(2):
            record = found[f"{source}/{source}.parquet#{row}"]
            assert names[record["label"]] == record["name"].decode() == own[row]
        assert [names[i] for i in found[f"{source}/{source}.parquet#0"]["labels"]] == own
