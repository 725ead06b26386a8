"""Builds warn of what differs from the latest snapshot; a lock refuses it and keeps indexes."""

import json
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import snapshard as ss
from snapshard import cli
from snapshard.pipelines.build import run_step
from snapshard.pipelines.inspect.pin import pin
from snapshard.pipelines.inspect.report.evidence import gather
from snapshard.pipelines.inspect.report.findings import drifted
from snapshard.pipelines.recipe.shipping import load_recipe_file
from snapshard.schemas.errors import DataError, RecipeError
from snapshard.schemas.progress import Silent

NUM = 600


class Warnings(Silent):
    def __init__(self) -> None:
        self.texts: list[str] = []

    def warn(self, message: str) -> None:
        self.texts.append(message)

    @property
    def drift(self) -> list[str]:
        return [text for text in self.texts if text.startswith("drift since ")]


def write_homes(
    folder: Path,
    *,
    scale: float = 1,
    classes: Sequence[str] = ("cat", "dog"),
    seed: int = 0,
    decimal: str = ".",
) -> None:
    rng = np.random.default_rng(seed)
    prices = [f"{price:.2f}".replace(".", decimal) for price in scale * rng.lognormal(3, 1, NUM)]
    labels = rng.choice(list(classes), NUM)
    rows = [f'"{price}",{label}\n' for price, label in zip(prices, labels, strict=True)]
    (folder / "homes.csv").write_text("price,label\n" + "".join(rows))


@pytest.fixture
def recipe_file(tmp_path: Path) -> Path:
    write_homes(tmp_path)
    path = tmp_path / "recipe.py"
    path.write_text(
        "import snapshard as ss\n"
        'recipe = ss.Recipe(name="homes", source=ss.Csv("homes.csv", label="label"), '
        "splits=ss.Splits(train=1.0))\n"
    )
    return path


def build(recipe_file: Path, **options: Any) -> tuple[ss.Snapshot, list[str]]:
    warnings = Warnings()
    recipe = load_recipe_file(recipe_file)
    built = ss.build(recipe, recipe_file.parent / "out", progress=warnings, **options)
    return built, warnings.drift


def latest(recipe_file: Path) -> str:
    name = recipe_file.parent / "out" / "homes" / "latest.json"
    return str(json.loads(name.read_bytes())["fingerprint"])


CHANGES: list[tuple[dict[str, Any], str]] = [
    ({"scale": 10}, "price, train: median "),
    ({"decimal": ","}, "price: dtype float32 → string"),
    (
        {"classes": ("ant", "cat", "dog")},
        "label: classes (index) added ant (0); moved cat (0 → 1), dog (1 → 2)",
    ),
]


@pytest.mark.parametrize(("change", "text"), CHANGES)
def test_a_build_warns(recipe_file: Path, change: dict[str, Any], text: str) -> None:
    first, warnings = build(recipe_file)
    assert warnings == []
    write_homes(recipe_file.parent, seed=1)
    same, warnings = build(recipe_file)
    assert warnings == []
    write_homes(recipe_file.parent, **change)
    # A sample does not become the latest, and is not compared with it.
    assert build(recipe_file, limit=300)[1] == []
    other, warnings = build(recipe_file)
    assert warnings[0].startswith(f"drift since {same.manifest.fingerprint}: {text}")
    assert latest(recipe_file) == other.manifest.fingerprint
    assert build(recipe_file)[1] == []
    (finding,) = drifted(gather(other))
    assert [row[0] for row in finding.rows] == warnings
    assert not [*drifted(gather(first))]
    # The first becomes the latest again.
    write_homes(recipe_file.parent)
    again, warnings = build(recipe_file)
    assert again.cached
    assert again.manifest == first.manifest
    assert warnings[0].startswith(f"drift since {other.manifest.fingerprint}: ")


def test_steps_warn(recipe_file: Path) -> None:
    build(recipe_file)
    write_homes(recipe_file.parent, scale=10)
    warnings = Warnings()
    recipe = load_recipe_file(recipe_file)
    for step in ("inventory", "prepare", "analyze", "plan", "write", "publish"):
        run_step(recipe, recipe_file.parent / "out", step, progress=warnings)
    assert len(warnings.drift) == 1


@pytest.mark.parametrize("damage", ["latest", "manifest", "statistics", "old"])
def test_a_damaged_latest_snapshot_is_no_reason_to_fail(recipe_file: Path, damage: str) -> None:
    first, _ = build(recipe_file)
    write_homes(recipe_file.parent, scale=10)
    path = Path(first.path)
    if damage == "latest":
        (path.parent / "latest.json").write_text("{")
    elif damage == "manifest":
        (path / "manifest.json").unlink()
    elif damage == "statistics":
        (path / "statistics.json").write_text('{"splits": {"train": []}}')
    else:
        del first.manifest.files["statistics.json"]
        (path / "manifest.json").write_bytes(first.manifest.to_bytes())
    second, warnings = build(recipe_file)
    assert latest(recipe_file) == second.manifest.fingerprint
    if damage == "old":
        assert warnings == []
        return
    (warning,) = warnings
    assert warning.startswith("drift since the latest snapshot is not known: ")
    (finding,) = drifted(gather(second))
    assert finding.title == "The data could not be compared with the snapshot before"


def test_many_differences_are_counted(recipe_file: Path) -> None:
    rows = "".join(f"{i % 7}" + f",{i}" * 20 + "\n" for i in range(300))
    header = ",".join(["label", *(f"x{k}" for k in range(20))])
    (recipe_file.parent / "homes.csv").write_text(f"{header}\n{rows}")
    old, _ = build(recipe_file)
    (recipe_file.parent / "homes.csv").write_text("label\n" + "1\n" * 300)
    new, warnings = build(recipe_file)
    assert len(warnings) == 9
    assert warnings[8].endswith(f" more differences: snapshard drift {old.path} {new.path}")


def test_a_pinned_recipe(recipe_file: Path) -> None:
    first, _ = build(recipe_file)
    path = pin(str(recipe_file), str(recipe_file.parent / "out"))
    assert path == str(recipe_file).replace(".py", ".lock.json")
    pinned, _ = build(recipe_file)
    assert pinned.manifest.fingerprint != first.manifest.fingerprint  # the lock is a part of it
    assert pinned.manifest.splits == first.manifest.splits
    # New classes come last, whatever sorts first.
    write_homes(recipe_file.parent, classes=("ant", "cat", "dog"), seed=1)
    grown, warnings = build(recipe_file)
    assert grown.manifest.features["label"] == ss.ClassLabel(("cat", "dog", "ant"))
    assert ": label: classes (index) added ant (2). " in warnings[0]
    counts = grown.manifest.splits["train"].label_counts
    text = (recipe_file.parent / "homes.csv").read_text()
    assert counts == {name: text.count(f",{name}\n") for name in ("ant", "cat", "dog")}
    assert _codes(grown) == {name: counts[name] for name in ("cat", "dog", "ant")}
    write_homes(recipe_file.parent, classes=("dog", "cat", "cow"))
    assert build(recipe_file)[0].manifest.features["label"] == ss.ClassLabel(("cat", "dog", "cow"))


def _codes(snapshot: ss.Snapshot) -> dict[str, int]:
    """The number of records of each class, in the order of indexes."""
    names = snapshot.manifest.features["label"].names  # type: ignore[union-attr]
    counts = snapshot.to_pandas("train").label.cat.codes.value_counts()
    return {name: int(counts[code]) for code, name in enumerate(names)}


def test_the_snapshot_before_is_pinned(recipe_file: Path) -> None:
    """As the warning advises: the build that it comes from has moved ``latest.json`` on."""
    first, _ = build(recipe_file)
    write_homes(recipe_file.parent, classes=("ant", "cat", "dog"))
    _, warnings = build(recipe_file)
    assert "pin the snapshot before (snapshard pin RECIPE --out ITS_FOLDER)" in warnings[0]
    pin(str(recipe_file), first.path)
    built, _ = build(recipe_file)
    assert built.manifest.features["label"] == ss.ClassLabel(("cat", "dog", "ant"))
    recipe_file.write_text(recipe_file.read_text().replace('"homes"', '"others"'))
    (recipe_file.parent / "recipe.lock.json").unlink()
    with pytest.raises(RecipeError, match="is a snapshot of 'homes', and the recipe's name is 'ot"):
        pin(str(recipe_file), first.path)


@pytest.mark.parametrize("change", [{"scale": 10}, {"decimal": ","}])
def test_a_lock_refuses_other_data(recipe_file: Path, change: dict[str, Any]) -> None:
    build(recipe_file)
    pin(str(recipe_file), str(recipe_file.parent / "out"))
    pinned, _ = build(recipe_file)
    write_homes(recipe_file.parent, **change)
    for _ in range(2):
        with pytest.raises(DataError, match=r"recipe\.lock\.json pins:\n  price") as refused:
            build(recipe_file)
        assert "pin again" in str(refused.value)
        # No threshold allows another type.
        assert ("allow more by the file's thresholds" in str(refused.value)) == ("scale" in change)
        assert latest(recipe_file) == pinned.manifest.fingerprint
    out = recipe_file.parent / "out" / "homes"
    assert len([*out.glob("*/manifest.json")]) == 2
    # What is refused can be looked at in a sample.
    assert build(recipe_file, limit=300)[0].manifest.limit == 300
    (recipe_file.parent / "recipe.lock.json").unlink()
    assert build(recipe_file)[1] != []


def test_other_schemas_are_refused_before_records_are_prepared(recipe_file: Path) -> None:
    build(recipe_file)
    pin(str(recipe_file), str(recipe_file.parent / "out"))
    write_homes(recipe_file.parent, decimal=",")
    recipe = load_recipe_file(recipe_file)
    with pytest.raises(DataError, match="price: dtype float32 → string"):
        run_step(recipe, recipe_file.parent / "out", "inventory")
    with pytest.raises(DataError, match="price: dtype float32 → string"):
        ss.plan(recipe)


def test_thresholds_are_edited_in_the_lock_and_kept(recipe_file: Path) -> None:
    build(recipe_file)
    out = str(recipe_file.parent / "out")
    path = Path(pin(str(recipe_file), out))
    write_homes(recipe_file.parent, scale=10)
    lock = json.loads(path.read_text())
    lock["feature_thresholds"] = {"price": {"numbers": 1}}
    lock["thresholds"]["means"] = 0.7
    path.write_text(json.dumps(lock))
    built, _ = build(recipe_file)
    pin(str(recipe_file), out)
    again = json.loads(path.read_text())
    assert again["snapshot"] == built.manifest.fingerprint
    assert again["feature_thresholds"] == {"price": {"numbers": 1}}
    assert again["thresholds"] == lock["thresholds"]


def _folders(folder: Path, classes: Sequence[str]) -> Any:
    shutil.rmtree(folder / "images", ignore_errors=True)
    rng = np.random.default_rng(0)
    for number in range(60):
        path = folder / "images" / classes[number % len(classes)] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 255, (4, 4, 3), np.uint8)).save(path)
    return 'ss.ImageFolder("images")'


def _strings(folder: Path, classes: Sequence[str]) -> Any:
    labels = [classes[number % len(classes)] for number in range(60)]
    table = pa.table({"x": np.arange(60), "label": pa.array(labels).dictionary_encode()})
    pq.write_table(table, folder / "t.parquet")
    return 'ss.Parquet("t.parquet", label="label")'


def _hugging_face(folder: Path, classes: Sequence[str]) -> Any:
    """Integers, and the names of these in the file's metadata."""
    names = sorted({*classes})
    labels = [names.index(classes[number % len(classes)]) for number in range(60)]
    features = {"label": {"_type": "ClassLabel", "names": names}}
    described = json.dumps({"info": {"features": features}})
    table = pa.table({"x": np.arange(60), "label": labels})
    table = table.replace_schema_metadata({"huggingface": described})
    pq.write_table(table, folder / "t.parquet")
    return 'ss.Parquet("t.parquet", label="label")'


def _in_memory(folder: Path, classes: Sequence[str]) -> Any:
    _hugging_face(folder, classes)
    return f'ss.Table(__import__("pyarrow.parquet").parquet.read_table("{folder}/t.parquet"))'


def _pin(folder: Path, source: str) -> Path:
    path = folder / "recipe.py"
    path.write_text(
        "import snapshard as ss\n"
        f'recipe = ss.Recipe(name="homes", source={source}, splits=ss.Splits(train=1.0), '
        f'depends_on=["t.parquet"] if {"Table" in source} else [])\n'
    )
    build(path)
    pin(str(path), str(folder / "out"))
    return path


@pytest.mark.parametrize("write", [_folders, _strings])
def test_class_indexes_stay(tmp_path: Path, write: Callable[..., str]) -> None:
    path = _pin(tmp_path, write(tmp_path, ["cat", "dog"]))
    write(tmp_path, ["dog", "ant", "cat", "dog"])
    snapshot, _ = build(path)
    assert [*_codes(snapshot).items()] == [("cat", 15), ("dog", 30), ("ant", 15)]


@pytest.mark.parametrize("write", [_hugging_face, _in_memory])
def test_numbers_that_files_name_are_not_reordered(
    tmp_path: Path, write: Callable[..., str]
) -> None:
    path = _pin(tmp_path, write(tmp_path, ["cat", "dog"]))
    write(tmp_path, ["dog", "owl", "cat", "dog"])
    assert [*_codes(build(path)[0]).items()] == [("cat", 15), ("dog", 30), ("owl", 15)]
    write(tmp_path, ["dog", "ant", "cat", "dog"])
    with pytest.raises(DataError, match=r"added ant \(0\); moved cat \(0 → 1\), dog"):
        build(path)


def test_pin_refuses(recipe_file: Path, capsys: Any) -> None:
    out = str(recipe_file.parent / "out")
    with pytest.raises(RecipeError, match=r"snapshard init homes\.csv -o recipe\.py"):
        pin("homes.csv", out)
    with pytest.raises(RecipeError, match=r"latest\.json does not exist.*snapshard build"):
        pin(str(recipe_file), out)
    snapshot, _ = build(recipe_file)
    (Path(snapshot.path) / "build.json").unlink()
    with pytest.raises(RecipeError, match=r"build\.json is missing or damaged. Build it again"):
        pin(str(recipe_file), out)
    with pytest.raises(SystemExit) as ended:
        cli.main(["pin", str(recipe_file), "--out", str(recipe_file.parent / "nowhere")])
    assert ended.value.code == 2
    assert "Build the recipe first" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "cannot be read"),
        ("{}", "is invalid: name: Field required"),
        ("[]", "is invalid"),
        ('{"name": "other"}', "is invalid"),
        ('{"name": NaN}', "cannot be read: Out of range float"),
    ],
)
def test_an_invalid_lock_is_refused(recipe_file: Path, content: str, message: str) -> None:
    (recipe_file.parent / "recipe.lock.json").write_text(content)
    with pytest.raises(RecipeError, match=rf"recipe\.lock\.json {message}.*Correct it; or remove"):
        build(recipe_file)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("feature_thresholds", {"prize": {}}, "is invalid: feature_thresholds: there is no fea"),
        ("thresholds", {"number": 0.1}, "is invalid: thresholds.number: Extra inputs"),
        ("thresholds", {"numbers": -1}, "is invalid: thresholds.numbers: Input should be greater"),
        ("features", {"x": {"kind": "class_label", "names": ["a", "a"]}}, "is invalid: x"),
        ("features", {"x": {"kind": "none"}}, "is invalid: x: "),
        ("statistics", {"splits": {"train": {}}}, "is invalid: its statistics were edited"),
    ],
)
def test_an_edited_lock_is_refused(recipe_file: Path, key: str, value: Any, message: str) -> None:
    build(recipe_file)
    path = Path(pin(str(recipe_file), str(recipe_file.parent / "out")))
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))
    with pytest.raises(RecipeError, match=r"recipe\.lock\.json ?" + re.escape(message)):
        build(recipe_file)


def test_a_lock_of_another_recipe_is_refused(recipe_file: Path) -> None:
    build(recipe_file)
    pin(str(recipe_file), str(recipe_file.parent / "out"))
    recipe_file.write_text(recipe_file.read_text().replace('"homes",', '"houses",'))
    with pytest.raises(RecipeError, match="pins 'homes', and the recipe's name is 'houses'"):
        build(recipe_file)


def test_the_command(recipe_file: Path, capsys: Any) -> None:
    old, _ = build(recipe_file)
    write_homes(recipe_file.parent, scale=10)
    new, _ = build(recipe_file)

    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            cli.main(["drift", *arguments])
        return (ended.value.code, *capsys.readouterr())  # type: ignore[return-value]

    code, printed, _ = run(old.path, new.path)
    assert code == 3
    assert "price, train: median " in printed
    code, printed, _ = run(old.path, new.path, "--json")
    shown = json.loads(printed)
    assert (code, shown["drifted"]) == (3, True)
    assert shown["differences"][0]["feature"] == "price"
    assert run(old.path, old.path)[0] == 0
    code, printed, errors = run(old.path, "--json")
    assert code == 2
    assert json.loads(printed)["error"]["class"] == "RecipeError"
    assert "in the split 'train' only" in errors
