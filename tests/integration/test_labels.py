"""The label: any feature of the examples, by default the source's, under its last name."""

import ast
import json
import linecache
import re
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image as PillowImage

import snapshard as ss
from snapshard.pipelines.inspect.forecast import forecast
from snapshard.schemas.errors import RecipeError
from snapshard.schemas.progress import Silent

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "labels.md"
NUM = 60
Record = dict[str, Any]


def write_patients(folder: Path) -> None:
    """``patients.csv`` and the images that it names, as the page describes them."""
    (folder / "images").mkdir()
    lines = ["patient,age,image,diagnosis,died,findings"]
    for n in range(NUM):
        findings = ["cyst|mass", "", "mass", "cyst|edema|mass"][n % 4]
        lines.append(
            f"p{n:02},{40 + n % 30},p{n:02}.png,{'MB'[n % 2]},{int(n % 3 == 1)},{findings}"
        )
        pixels = np.full((4, 4, 3), n, np.uint8)
        PillowImage.fromarray(pixels).save(folder / "images" / f"p{n:02}.png")
    (folder / "patients.csv").write_text("\n".join(lines) + "\n")


@pytest.fixture
def patients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_patients(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def examples(page: Path) -> str:
    """The Python blocks of a page as one module, its other lines empty."""
    lines, is_code = [], False
    for line in page.read_text().splitlines():
        is_fence = line.startswith("```")
        lines.append(line if is_code and not is_fence else "")
        is_code = line == "```python" if is_fence else is_code
    return "\n".join(lines) + "\n"


def test_the_examples_of_the_page_run(patients: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = patients / "page.py"
    path.write_text(examples(PAGE))
    source = path.read_text()
    module = types.ModuleType("page")
    module.__file__ = str(path)
    linecache.checkcache(str(path))
    num_checked = 0

    def check(number: int, value: Any) -> None:
        nonlocal num_checked
        found = re.search(r"  # (.*)$", source.splitlines()[number - 1])
        if found is not None:
            start, dots, _ = found[1].partition("…")
            shown = " ".join(repr(value).split())
            assert (shown[: len(start)] if dots else shown) == start, f"{PAGE.name}:{number}"
            num_checked += 1

    class Checked(ast.NodeTransformer):
        def visit_Expr(self, node: ast.Expr) -> ast.AST:
            number = ast.Constant(node.end_lineno)
            call = ast.Call(ast.Name("__check__", ast.Load()), [number, node.value], [])
            return ast.copy_location(ast.Expr(call), node)

    module.__dict__["__check__"] = check
    tree = ast.fix_missing_locations(Checked().visit(ast.parse(source)))
    exec(compile(tree, str(path), "exec"), module.__dict__)
    num_comments = len(re.findall(r"^[^#\n]*\S  # ", source, flags=re.MULTILINE))
    assert num_checked == num_comments > 5


def csv(label: str | None = None) -> ss.Csv:
    types = {"diagnosis": "string"} if label is None else {}
    return ss.Csv(str(Path.cwd() / "patients.csv"), label=label, types=types)


def is_malignant(record: Record) -> Record:
    return {"age": record["age"], "y": tf.cast(record["diagnosis"] == "M", tf.int64)}


def under_another_name(record: Record) -> Record:
    return {"age": record["age"], "y": record["diagnosis"]}


def under_the_same_name(record: Record) -> Record:
    return {"age": record["age"], "diagnosis": tf.cast(record["diagnosis"] == 1, tf.int64)}


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


def used_twice(record: Record) -> Record:
    return {**is_malignant(record), "is_benign": record["diagnosis"] == "B"}


REQUEST: dict[str, Any] = {
    **{"age": [40, 41], "diagnosis": ["M", "B"], "died": [0, 0]},
    **{name: ["", ""] for name in ("patient", "image", "findings")},
    "findings_present": [True, True],
}
TOKENS = [ss.text.tokenize("diagnosis", ["M", "B"]), ss.records.rename({"diagnosis": "y"})]


@pytest.mark.parametrize(
    ("source", "steps", "is_input"),
    [
        ("diagnosis", [ss.records.rename({"diagnosis": "y"})], False),
        (None, [is_malignant], False),
        (None, [checked], False),
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
    assert ("diagnosis" in serving.inputs) == is_input
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
    assert kind("x", pattern="{speaker}_{n}.wav").label is None
    named = kind("x", pattern="{digit}_{n}.wav", label="digit")
    assert named.label == "digit"
    assert named.settings()["label"] == "digit"
    with pytest.raises(
        RecipeError, match=r"'z' is not a field of pattern=, which has 'digit', 'n'"
    ):
        kind("x", pattern="{digit}_{n}.wav", label="z")
    with pytest.raises(RecipeError, match="there is neither"):
        kind("x", label="digit")
