"""The label: any feature of the examples, by default the source's, under its last name."""

import contextlib
import dataclasses
import json
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import soundfile
import tensorflow as tf
from PIL import Image as PillowImage

import snapshard as ss
from snapshard.pipelines.inspect.forecast import forecast
from snapshard.schemas.errors import RecipeError
from snapshard.schemas.progress import Silent

from .documented import run_examples

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "labels.md"
NUM = 60
Record = dict[str, Any]


def write_patients(folder: Path) -> None:
    """``patients.csv``, the images that it names, and sounds, as the page describes them."""
    (folder / "images").mkdir()
    (folder / "sounds").mkdir()
    sounds = ["file,word,speaker"]
    lines = ["patient,age,image,diagnosis,died,findings"]
    for n in range(NUM):
        findings = ["cyst|mass", "", "mass", "cyst|edema|mass"][n % 4]
        lines.append(
            f"p{n:02},{40 + n % 30},p{n:02}.png,{'MB'[n % 2]},{int(n % 3 == 1)},{findings}"
        )
        pixels = np.full((4, 4, 3), n, np.uint8)
        PillowImage.fromarray(pixels).save(folder / "images" / f"p{n:02}.png")
        soundfile.write(folder / "sounds" / f"{n:02}.wav", np.full(50, n / 100), 8000)
        sounds.append(f"{n:02}.wav,{('yes', 'no')[n % 3 == 0]},{('anna', 'ben')[n % 2]}")
    (folder / "sounds.csv").write_text("\n".join(sounds) + "\n")
    (folder / "patients.csv").write_text("\n".join(lines) + "\n")


@pytest.fixture
def patients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_patients(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_the_examples_of_the_page_run(patients: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_examples(PAGE, patients) > 5


def csv(label: str | None = None) -> ss.Csv:
    types = {"diagnosis": "string"} if label is None else {}
    url = str(Path.cwd() / "patients.csv")
    return ss.Csv(url, label=label, types=types, null_values=["NA"])


def is_malignant(record: Record) -> Record:
    return {"age": record["age"], "y": tf.cast(record["diagnosis"] == "M", tf.int64)}


def under_another_name(record: Record) -> Record:
    return {"age": record["age"], "y": record["diagnosis"]}


def under_the_same_name(record: Record) -> Record:
    return {"age": record["age"], "diagnosis": tf.cast(record["diagnosis"] == 1, tf.int64)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "steps", "label", "expected"),
    [
        ("diagnosis", [], None, "diagnosis"),
        ("diagnosis", [], "died", "died"),
        (None, [], "died", "died"),
        (None, [], None, None),
        ("diagnosis", [ss.records.rename({"diagnosis": "y"})], None, "y"),
        (
            "diagnosis",
            [ss.records.rename({"diagnosis": "x"}), ss.records.rename({"x": "y"})],
            None,
            "y",
        ),
        # Exchanged names: the label goes with its values.
        (
            "diagnosis",
            [ss.records.rename({"diagnosis": "died", "died": "diagnosis"})],
            None,
            "died",
        ),
        ("diagnosis", [ss.records.rename({"diagnosis": "y"}), ss.records.drop(["y"])], None, None),
        ("diagnosis", [under_the_same_name], None, "diagnosis"),
        ("diagnosis", [under_another_name], None, None),
        ("diagnosis", [under_another_name], "y", "y"),
        (None, [is_malignant], "y", "y"),
        ("died", [is_malignant], "y", "y"),
    ],
)
def test_which_feature_is_the_label(
    patients: Path, source: str | None, steps: list[Any], label: str | None, expected: str | None
) -> None:
    del patients
    recipe = ss.Recipe(name="x", source=csv(source), prepare=steps, label=label)
    found = forecast(recipe, progress=Silent())
    assert found.label == expected
    lost = [warning for warning in found.warnings if "they have no label" in warning]
    assert bool(lost) == (expected is None and source is not None)


def test_the_label_after_a_rename_is_counted_and_can_be_balanced(patients: Path) -> None:
    steps = [ss.records.rename({"diagnosis": "y"})]
    recipe = ss.Recipe(name="x", source=csv("diagnosis"), prepare=steps)
    snapshot = ss.build(recipe, patients / "out")
    assert snapshot.manifest.label == "y"
    counts = [shard.label_counts for shard in snapshot.manifest.splits["train"].shards]
    assert {*counts[0]} == {"B", "M"}
    reader = snapshot.reader()
    assert reader.CLASS_NAMES == ["B", "M"]
    _, labels = next(
        iter(reader.dataset("train", 20, balance="uniform", seed=1, as_supervised=True))
    )
    assert sorted(np.bincount(labels.numpy())) == [10, 10]


@pytest.mark.parametrize(
    ("label", "message"),
    [
        ("z", r"label='z' is not a feature: the examples have 'age', 'diagnosis', 'died'"),
        ("", "label='' is not the name of a feature"),
        (3, "label=3 is not the name of a feature"),
    ],
)
def test_other_names_are_refused(patients: Path, label: Any, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        ss.build(ss.Recipe(name="x", source=csv(), label=label), patients / "out")


@pytest.mark.slow
def test_another_label_is_another_snapshot_of_the_same_runs(patients: Path) -> None:
    """Contents are compared without the label: what another build found out is not used."""
    found = {}
    for label in (None, "age", "died"):
        recipe = ss.Recipe(name="x", source=csv(), label=label)
        snapshot = ss.build(recipe, patients / "out")
        build = json.loads((Path(snapshot.path) / "build.json").read_text())
        found[label] = (snapshot.manifest.fingerprint, tuple(build["work"]["runs"]))
        alone = ss.build(recipe, patients / f"out-{label}")
        assert alone.manifest.to_bytes() == snapshot.manifest.to_bytes()
    assert len({fingerprint for fingerprint, _ in found.values()}) == 3
    assert len({runs for _, runs in found.values()}) == 1


def checked(record: Record) -> Record:
    """A function whose checks of the label would fail for any placeholder."""
    diagnosis, age = record["diagnosis"], record["age"]
    tf.debugging.assert_greater(tf.strings.length(diagnosis), 0)
    tf.debugging.assert_less(age, tf.constant(100, tf.int64), message="too old")
    is_known = tf.debugging.Assert((diagnosis == "M") | (diagnosis == "B"), ["unknown"])
    with tf.control_dependencies([is_known]):
        y = tf.cast(diagnosis == "M", tf.int64)
    return {"age": 2 * age, "y": y}


ONE = tf.constant(1, tf.int64)


def captures(record: Record) -> Record:
    """A function that refers to a tensor outside of it, for the label and for an input."""
    y = tf.cast(record["diagnosis"] == "M", tf.int64) * ONE
    return {"age": record["age"] * ONE, "y": y}


def used_twice(record: Record) -> Record:
    return {**is_malignant(record), "is_benign": record["diagnosis"] == "B"}


REQUEST: dict[str, Any] = {
    **{"age": [40, 41], "diagnosis": ["M", "B"], "died": [0, 0]},
    **{name: ["", ""] for name in ("patient", "image", "findings")},
}
TOKENS = [ss.text.tokenize("diagnosis", ["M", "B"]), ss.records.rename({"diagnosis": "y"})]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "steps", "is_input"),
    [
        ("diagnosis", [ss.records.rename({"diagnosis": "y"})], False),
        (None, [is_malignant], False),
        (None, [checked], False),
        (None, [captures], False),
        (None, TOKENS, False),
        (None, [used_twice], True),
        (None, [lambda record: {**record, **is_malignant(record)}], True),
    ],
)
def test_what_only_the_label_needs_is_not_served(
    patients: Path, source: str | None, steps: list[Any], is_input: bool
) -> None:
    select = ss.records.select(["age", "diagnosis"])
    recipe = ss.Recipe(name="x", source=csv(source), prepare=[select, *steps], label="y")
    snapshot = ss.build(recipe, patients / "out")
    serving = snapshot.manifest.serving
    assert serving is not None
    assert serving.inputs == ["age", *(["diagnosis"] if is_input else [])]
    preprocess = snapshot.reader().preprocess()
    request = {name: REQUEST[name] for name in serving.inputs}
    served = preprocess(**request)
    assert set(served) == {*snapshot.manifest.features} - {"y"}
    assert served["age"].numpy().tolist() == ([80, 82] if steps == [checked] else [40, 41])
    if steps == [checked]:  # checks of what is served remain
        with pytest.raises(tf.errors.InvalidArgumentError, match="too old"):
            preprocess(**request | {"age": [200, 1]})


def with_vocabulary(inputs: Record) -> Record:
    import tensorflow_transform as tft

    return {
        "age": tft.scale_to_0_1(inputs["age"]),
        "y": tft.compute_and_apply_vocabulary(inputs["diagnosis"]),
    }


def with_vocabulary_twice(inputs: Record) -> Record:
    import tensorflow_transform as tft

    is_benign = tf.cast(inputs["diagnosis"] == "B", tf.int64)
    y = tft.compute_and_apply_vocabulary(inputs["diagnosis"])
    return {"age": inputs["age"], "is_benign": is_benign, "y": y}


@pytest.mark.slow  # analyses
@pytest.mark.parametrize(
    ("function", "is_input"), [(with_vocabulary, False), (with_vocabulary_twice, True)]
)
def test_a_label_that_a_preprocessing_fn_makes(
    patients: Path, function: Any, is_input: bool
) -> None:
    settings: dict[str, Any] = {"source": csv(), "preprocessing_fn": function}
    snapshot = ss.build(ss.Recipe(name="x", label="y", **settings), patients / "out")
    assert snapshot.manifest.label == "y"
    serving = snapshot.manifest.serving
    assert serving is not None
    assert ("diagnosis" in serving.inputs) == is_input
    served = snapshot.reader().preprocess()(**{name: REQUEST[name] for name in serving.inputs})
    assert set(served) == {*snapshot.manifest.features} - {"y"}
    # The graph of another snapshot has the same outputs.
    again = ss.Recipe(name="z", source=csv(), transform_from=snapshot.path, label="y")
    assert ss.build(again, patients / "out").manifest.label == "y"
    message = r"label='diagnosis' is not a feature: preprocessing_fn returns 'age'"
    with pytest.raises(RecipeError, match=message):
        ss.build(ss.Recipe(name="x", label="diagnosis", **settings), patients / "out")


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_a_column_of_a_table_of_images(patients: Path, suffix: str) -> None:
    table = f"patients.{suffix}"
    if suffix == "jsonl":
        head, *rows = [line.split(",") for line in (patients / "patients.csv").read_text().split()]
        lines = [json.dumps(dict(zip(head, row, strict=True))) for row in rows]
        (patients / table).write_text("\n".join(lines))
    folder, table = str(patients / "images"), str(patients / table)
    source = ss.ImageFolder(folder, table=table, label="diagnosis")
    assert source.label == "diagnosis"
    snapshot = ss.build(ss.Recipe(name="x", source=source), patients / "out")
    assert snapshot.manifest.label == "diagnosis"
    assert snapshot.manifest.features["diagnosis"] == ss.ClassLabel(("B", "M"))
    (pixels, labels) = next(
        iter(snapshot.reader().dataset("train", 8, columns=["image"], as_supervised=True))
    )
    assert np.array_equal(labels.numpy(), 1 - pixels.numpy()[:, 0, 0, 0] % 2)
    with pytest.raises(RecipeError, match=r"label='z' is not a column .* 'diagnosis', 'died'"):
        ss.build(
            ss.Recipe(name="x", source=ss.ImageFolder(folder, table=table, label="z")),
            patients / "out",
        )


@pytest.mark.parametrize("kind", [ss.ImageFolder, ss.AudioFolder])
def test_labels_of_files(kind: Any) -> None:
    assert kind("x").label == "label"
    assert kind("x") == kind("x", label="label")
    assert kind("x").settings() == kind("x", label="label").settings()
    assert "label" not in repr(kind("x"))
    assert kind("x", label=None).settings() != kind("x").settings()
    named = kind("x", pattern="{digit}_{n}.wav", label="digit")
    assert named.label == "digit"
    assert named.settings()["label"] == "digit"
    with pytest.raises(
        RecipeError, match=r"'z' is not a field of pattern=, which has 'digit', 'n'"
    ):
        kind("x", pattern="{digit}_{n}.wav", label="z")
    with pytest.raises(RecipeError, match="there is neither"):
        kind("x", label="digit")


DIED = ss.ClassLabel({0: "lived", 1: "died"})
SIGNS = ss.ClassLabel({-1: "no", 1: "yes"})


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet", "table", "sql", "tfrecord", "images"])
def test_integers_are_classes_in_every_source(tmp_path: Path, kind: str) -> None:
    """Other values are rejects, missing ones are missing; what is stored is the index."""
    types = {"y": SIGNS, "m": dataclasses.replace(DIED, optional=True)}
    rows = [{"n": n, "y": [-1, 1][n % 2], "m": None if n % 5 == 0 else n % 2} for n in range(40)]
    rows += [{"n": 40, "y": 0, "m": 0}, {"n": 41, "y": 1, "m": 2}]
    table = pa.Table.from_pylist(rows)
    source: Any
    if kind == "csv":
        cells = [[row["n"], f"{row['y']}.0", "" if row["m"] is None else row["m"]] for row in rows]
        text = "".join(f"{n},{y},{m}\n" for n, y, m in cells)
        (tmp_path / "t.csv").write_text("n,y,m\n" + text)
        source = ss.Csv(str(tmp_path / "t.csv"), label="y", types=types)
    elif kind == "jsonl":
        (tmp_path / "t.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
        source = ss.JsonLines(str(tmp_path / "t.jsonl"), label="y", types=types)
    elif kind == "parquet":
        floats = table.set_column(2, "m", table["m"].cast(pa.float64()))
        pq.write_table(floats, tmp_path / "t.parquet")
        source = ss.Parquet(str(tmp_path / "t.parquet"), label="y", types=types)
    elif kind == "table":
        source = ss.Table(table, label="y", types=types)
    elif kind == "sql":
        with contextlib.closing(sqlite3.connect(tmp_path / "t.db")) as database:
            database.execute("create table t (n integer, y integer, m integer)")
            database.executemany("insert into t values (:n, :y, :m)", rows)
            database.commit()
        source = ss.Sql(
            f"sqlite:///{tmp_path}/t.db", "select * from t", key="n", label="y", types=types
        )
    elif kind == "tfrecord":
        (tmp_path / "in").mkdir()
        features = {"n": ss.Scalar("int64"), "y": ss.Scalar("int64")}
        features["m"] = ss.Scalar("int64", optional=True)
        with tf.io.TFRecordWriter(str(tmp_path / "in" / "t.tfrecord")) as writer:
            for row in rows:
                writer.write(ss.encode_example(row, features))
        source = ss.TFRecords(str(tmp_path / "in"), label="y", types=types)
    else:
        (tmp_path / "images").mkdir()
        for n in range(42):
            pixels = np.full((4, 4, 3), n, np.uint8)
            PillowImage.fromarray(pixels).save(tmp_path / "images" / f"{n}.png")
        lines = [json.dumps({"file": f"{row['n']}.png", **row}) for row in rows]
        (tmp_path / "t.jsonl").write_text("\n".join(lines))
        source = ss.ImageFolder(
            str(tmp_path / "images"), table=str(tmp_path / "t.jsonl"), label="y"
        )
    features = {"n": ss.Scalar("int64"), **types} if kind == "images" else None
    recipe = ss.Recipe(
        name="x",
        source=source,
        features=features,
        splits=ss.Splits(train=1.0),
        max_rejects=2,
    )
    snapshot = ss.build(recipe, tmp_path / "out")
    assert snapshot.manifest.num_rejects == 2
    assert snapshot.manifest.label == "y"
    assert snapshot.manifest.features["y"] == SIGNS
    reader = snapshot.reader()
    assert reader.CLASS_NAMES == ["no", "yes"]
    assert reader.CLASS_WEIGHTS == [1.0, 1.0]
    (batch,) = reader.dataset("train", 64)
    found = {
        n: (y, m if there else None)
        for n, y, m, there in zip(
            *(batch[name].numpy().tolist() for name in ("n", "y", "m", "m_present")), strict=True
        )
    }
    assert found == {n: (n % 2, None if n % 5 == 0 else n % 2) for n in range(40)}
    (pair,) = reader.dataset("train", 40, balance={"yes": 3, "no": 1}, seed=1, as_supervised=True)
    assert pair[1].numpy().sum() == 30


def test_a_computed_class(patients: Path) -> None:
    features = {"age": ss.Scalar("int64"), "y": ss.ClassLabel({0: "benign", 1: "malignant"})}
    settings: dict[str, Any] = {"source": csv(), "prepare": [is_malignant], "label": "y"}
    snapshot = ss.build(ss.Recipe(name="x", features=features, **settings), patients / "out")
    assert snapshot.reader().CLASS_NAMES == ["benign", "malignant"]
    features["y"] = ss.ClassLabel({1: "benign", 2: "malignant"})
    with pytest.raises(RecipeError, match="steps give the index of a class, 0, 1, 2"):
        ss.build(ss.Recipe(name="x", features=features, **settings), patients / "out")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "steps", "message"),
    [
        (None, [], r"patients has none: name a class in the recipe, ss.Recipe\(label="),
        ("died", [], r"'died', int64: declare its classes .* ss.ClassLabel\({0: "),
        ("findings", [ss.tables.multi_hot("findings")], "several values have no one class"),
    ],
)
def test_balance_says_how_to_declare_a_class(
    patients: Path, source: str | None, steps: list[Any], message: str
) -> None:
    recipe = ss.Recipe(name="patients", source=csv(source), prepare=steps)
    reader = ss.build(recipe, patients / "out").reader()
    with pytest.raises(ValueError, match=message):
        reader.dataset("train", 8, balance="uniform")


@pytest.mark.slow
def test_several_classes_are_targets_with_names(patients: Path) -> None:
    step = ss.tables.multi_hot("findings", ["mass", "cyst", "edema"])
    source = ss.Csv(str(patients / "patients.csv"), types={"findings": ss.Text(optional=True)})
    recipe = ss.Recipe(
        name="x", source=source, prepare=[step], label="findings", splits=ss.Splits(train=1.0)
    )
    snapshot = ss.build(recipe, patients / "out")
    assert ss.Snapshot.open(snapshot.path).manifest.features["findings"] == ss.Tensor(
        "float32", (3,), names=("mass", "cyst", "edema")
    )
    reader = snapshot.reader()
    assert reader.CLASS_NAMES == reader.FEATURES["findings"]["names"] == ["mass", "cyst", "edema"]
    assert reader.CLASS_WEIGHTS == []
    wanted = [[1, 1, 0], [0, 0, 0], [1, 0, 0], [1, 1, 1]]
    (pair,) = reader.dataset("train", NUM, as_supervised=("patient", "findings"))
    for patient, hot in zip(*(one.numpy().tolist() for one in pair), strict=True):
        assert hot == wanted[int(patient[1:]) % 4]
    serving = snapshot.manifest.serving
    assert serving is not None
    assert not {name for name in serving.inputs if name.startswith("findings")}
    # The same vectors where the classes are found in the data, but for their order.
    found = ss.Recipe(
        name="y",
        source=csv("findings"),
        prepare=[ss.tables.multi_hot("findings")],
        splits=ss.Splits(train=1.0),
    )
    reader = ss.build(found, patients / "out").reader()
    assert reader.CLASS_NAMES == ["cyst", "edema", "mass"]
    (pair,) = reader.dataset("train", NUM, as_supervised=("patient", "findings"))
    for patient, (cyst, edema, mass) in zip(*(one.numpy().tolist() for one in pair), strict=True):
        assert [mass, cyst, edema] == wanted[int(patient[1:]) % 4]
