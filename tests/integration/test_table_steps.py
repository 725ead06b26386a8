"""A table through steps on values, text and records: built, verified, read back, in workers too."""

import csv
from pathlib import Path
from typing import Any

import pytest

import snapshard as ss
from snapshard.pipelines.build import build as build_recipe
from snapshard.pipelines.inspect.verify import verify
from snapshard.pipelines.recipe.shipping import load_recipe_file
from snapshard.schemas.progress import Silent

RECIPE = """
import snapshard as ss

LIMIT = 40

def twice(record):
    if record["id"] == 13:
        raise ValueError("thirteen")
    return {"twice": 2 * record["age"] if record["age"] > LIMIT else None}

recipe = ss.Recipe(
    name="people",
    source=ss.Csv("people.csv", label="kind"),
    prepare=[
        ss.records.filter(lambda record: record["id"] % 5 > 0, batched=True),
        ss.tables.missing("age", "no_age"),
        ss.tables.fill("age", 0),
        ss.tables.parse_time("born", "%d.%m.%Y", unit="s"),
        ss.text.normalize("note"),
        ss.text.tokenize("note", "words.txt"),
        ss.records.map_python(
            twice, {"twice": ss.Scalar("int64", optional=True)}, inputs=["id", "age"]
        ),
        ss.tables.one_hot("kind"),
        ss.records.rename({"note": "tokens"}),
        ss.records.filter(lambda record: record["age"] < 90),
    ],
    splits=ss.Splits(train=0.5, test=0.5),
    max_rejects=1,
)
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    with (tmp_path / "people.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["id", "age", "born", "note", "kind"])
        for i in range(60):
            age = "" if i % 7 == 0 else 95 if i == 8 else 10 + i
            note = ["The Cat", "a dog", "the the"][i % 3]
            rows.writerow([i, age, f"{1 + i % 28}.02.1970", note, "ab"[i % 2]])
    (tmp_path / "words.txt").write_text("the\ncat\n")
    (tmp_path / "recipe.py").write_text(RECIPE)
    return tmp_path


def rows_of(snapshot: ss.Snapshot) -> dict[int, dict[str, Any]]:
    reader = snapshot.reader()
    found: dict[int, dict[str, Any]] = {}
    for split in snapshot.manifest.splits:
        for example in reader.dataset(split, 1, shuffle=False):
            record = {
                name: value.to_list()[0] if hasattr(value, "to_list") else value.numpy()[0]
                for name, value in example.items()
            }
            found[int(record["id"])] = record
    return found


@pytest.mark.slow
def test_built_verified_and_read_back(project: Path) -> None:
    snapshot = build_recipe(load_recipe_file(project / "recipe.py"), project / "out")
    verify(snapshot, progress=Silent())
    manifest = snapshot.manifest
    # Twelve by the first filter, one of 95 by the last.
    assert (manifest.num_filtered, manifest.num_rejects) == (13, 1)
    found = rows_of(snapshot)
    assert sorted(found) == [i for i in range(60) if i % 5 and i not in (8, 13)]
    for i, record in found.items():
        age = 0 if i % 7 == 0 else 10 + i
        assert (record["age"], bool(record["no_age"])) == (age, i % 7 == 0)
        assert record["born"] == (31 + i % 28) * 86_400
        assert record["tokens"] == [[0, 1], [2, 2], [0, 0]][i % 3]
        assert record["kind"].tolist() == [[1, 0], [0, 1]][i % 2]
        # What is missing comes back as the feature's default.
        assert record["twice"] == (2 * age if age > 40 else 0)
    assert manifest.features["twice"] == ss.Scalar("int64", optional=True)


@pytest.mark.slow  # two worker processes load TensorFlow each
def test_workers_have_the_vocabulary_of_the_start(project: Path) -> None:
    one = build_recipe(load_recipe_file(project / "recipe.py"), project / "one")
    two = build_recipe(load_recipe_file(project / "recipe.py"), project / "two", workers=2)
    assert one.manifest == two.manifest


@pytest.mark.slow
def test_the_fingerprint_follows_files_and_functions(project: Path) -> None:
    def fingerprint() -> str:
        recipe = load_recipe_file(project / "recipe.py")
        manifest = build_recipe(recipe, project / "out").manifest
        return manifest.fingerprint

    first = fingerprint()
    (project / "recipe.py").write_text("# A comment.\n" + RECIPE)
    assert fingerprint() == first
    (project / "words.txt").write_text("the\ndog\n")
    second = fingerprint()
    (project / "recipe.py").write_text(RECIPE.replace("LIMIT = 40", "LIMIT = 50"))
    assert len({first, second, fingerprint()}) == 3


def test_a_filter_that_leaves_nothing_publishes_nothing(project: Path) -> None:
    recipe = ss.Recipe(
        name="none",
        source=ss.Csv(str(project / "people.csv")),
        prepare=[ss.records.filter(lambda record: record["id"] > 1_000, batched=True)],
    )
    with pytest.raises(ss.SnapshardError, match="keep none of 60 records"):
        ss.build(recipe, project / "out")
