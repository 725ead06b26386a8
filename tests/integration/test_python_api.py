"""Building from Python, and what a Snapshot gives; the manifest against its JSON Schema."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import snapshard as ss
from snapshard.schemas.manifest import manifest_schema

SCHEMA = Path(__file__).resolve().parents[2] / "docs" / "manifest.schema.json"

# A script that builds, as people write it: the step is its own, and it has no main guard.
SCRIPT = """
import json
import sys

import snapshard as ss

LEVELS = 4


def posterise(record):
    return {**record, "image": record["image"] // LEVELS * LEVELS}


recipe = ss.Recipe(
    name="scripted",
    source=ss.ImageFolder("images"),
    prepare=[ss.images.decode("image"), ss.images.resize("image", (8, 8)), posterise],
    splits=ss.Splits(train=0.8, validation=0.1, test=0.1, allow_empty=True),
)

if __name__ == "__main__":
    snapshot = ss.build(recipe, sys.argv[1], workers=2)
    batch = next(iter(snapshot.reader().dataset("train", 4)))
    print(json.dumps({
        "path": snapshot.path,
        "cached": snapshot.cached,
        "num_examples": snapshot.manifest.splits["train"].num_examples,
        "shape": batch["image"].shape.as_list(),
        "levels": bool((batch["image"].numpy() % LEVELS == 0).all()),
    }))
"""


class TestBuild:
    @pytest.mark.slow
    def test_in_a_process_of_the_users(self, lab: Any, tmp_path: Path) -> None:
        lab.make_images(tmp_path / "images", num=30)
        recipe = ss.Recipe(
            name="direct",
            source=ss.ImageFolder(str(tmp_path / "images")),
            prepare=[ss.images.decode("image"), ss.images.resize("image", (8, 8))],
            splits=ss.Splits(train=1.0),
        )
        snapshot = ss.build(recipe, tmp_path / "out")
        assert isinstance(snapshot, ss.Snapshot)
        assert Path(snapshot.path).parent == tmp_path / "out" / "direct"
        assert Path(snapshot.path).name == snapshot.manifest.fingerprint
        assert not snapshot.cached
        assert ss.build(recipe, str(tmp_path / "out")).cached
        reader = snapshot.reader()
        assert snapshot.manifest.fingerprint == reader.FINGERPRINT
        assert reader.CLASS_NAMES == ["class 0", "class 1", "class 2"]
        assert {
            name: split.num_examples for name, split in snapshot.manifest.splits.items()
        } == reader.NUM_EXAMPLES
        images, labels = next(iter(reader.dataset("train", 4, as_supervised=True)))
        assert images.shape == (4, 8, 8, 3)
        assert labels.shape == (4,)
        assert len(lab.read_back(snapshot).ids) == 30

    @pytest.mark.slow
    def test_is_the_command_lines(self, lab: Any, recipe: Path, tmp_path: Path) -> None:
        """What Python builds and what the recipe's file builds is the same snapshot."""
        from_file = lab.build(recipe, tmp_path / "out")
        made = ss.Recipe(
            name="made",
            source=ss.ImageFolder(str(tmp_path / "images")),
            prepare=[ss.images.decode("image"), ss.images.resize("image", (8, 8))],
        )
        from_python = ss.build(made, tmp_path / "other")
        assert lab.hashes(from_python) == lab.hashes(from_file)

    @pytest.mark.slow  # processes that load TensorFlow
    def test_in_a_script(self, lab: Any, tmp_path: Path) -> None:
        lab.make_images(tmp_path / "images", num=30)
        (tmp_path / "script.py").write_text(SCRIPT)
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        done = subprocess.run(
            [sys.executable, tmp_path / "script.py", tmp_path / "out"],
            capture_output=True,
            text=True,
            check=False,
            cwd=elsewhere,
            timeout=300,
        )
        found = lab.last_json(done)
        assert found.pop("path").startswith(str(tmp_path / "out" / "scripted"))
        assert found == {
            "cached": False,
            "num_examples": ss.Snapshot.open(str(tmp_path / "out" / "scripted"))
            .manifest.splits["train"]
            .num_examples,
            "shape": [4, 8, 8, 3],
            "levels": True,
        }

    def test_errors_are_snapshards(self, tmp_path: Path) -> None:
        recipe = ss.Recipe(name="none", source=ss.ImageFolder(str(tmp_path / "not there")))
        with pytest.raises(ss.SnapshardError, match="not there"):
            ss.build(recipe, tmp_path / "out")
        (tmp_path / "empty").mkdir()
        recipe = ss.Recipe(name="none", source=ss.ImageFolder(str(tmp_path / "empty")))
        with pytest.raises(ss.SnapshardError, match="empty"):
            ss.build(recipe, tmp_path / "out")


class TestManifestSchema:
    def test_file_is_the_models(self) -> None:
        wanted = manifest_schema()
        assert SCHEMA.read_text(encoding="utf-8") == wanted, (
            "The manifest's model changed. Write its schema anew:\n  python -c 'from "
            'snapshard.schemas.manifest import manifest_schema; print(manifest_schema(), end="")\''
            " > docs/manifest.schema.json"
        )

    def test_schema_is_one(self) -> None:
        jsonschema.Draft202012Validator.check_schema(json.loads(manifest_schema()))

    @pytest.mark.parametrize(
        "change",
        [
            {"format_version": 2},
            {"fingerprint": "a path/../up"},
            {"compression": "zip"},
            {"surprise": 1},
            {"splits": {"train": {"num_examples": 1}}},
            {"features": {"image": {"kind": "sound"}}},
        ],
    )
    def test_what_does_not_fit(self, sign_digits: ss.Snapshot, change: dict[str, Any]) -> None:
        manifest = json.loads((Path(sign_digits.path) / "manifest.json").read_text())
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(manifest | change, json.loads(SCHEMA.read_text()))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"recipe": "folder"}, "is a path, expected an ss.Recipe"),
        ({"recipe": Path("folder")}, "`snapshard init folder` prints the recipe"),
        ({"recipe": Path("my/r.py")}, "`from r import recipe`"),
        ({"recipe": "my/r.py"}, "`snapshard build my/r.py --out DIR` builds it"),
        ({"recipe": None}, "recipe=None, expected an ss.Recipe"),
        ({"out": None}, "out=None, expected a folder or URL"),
        ({"out": ""}, "out is empty, expected a folder or URL"),
        ({"workspace": 3}, "workspace=3, expected a folder or URL"),
        ({"runner": None}, "runner=None, expected"),
        ({"limit": "3"}, "limit='3', expected a number of records"),
    ],
)
def test_mistaken_arguments_are_named(tmp_path: Path, arguments: dict[str, Any], said: str) -> None:
    recipe = ss.Recipe(name="x", source=ss.Csv("t.csv"))
    given = {"recipe": recipe, "out": tmp_path / "out"} | arguments
    with pytest.raises(ss.SnapshardError, match=re.escape(said)) as raised:
        ss.build(**given)
    assert raised.value.exit_code == 2
    with pytest.raises(ss.SnapshardError, match=re.escape(said)):
        ss.run_step(**given, step="inventory")


def test_a_list_of_sources_is_refused() -> None:
    with pytest.raises(ss.SnapshardError, match="give a folder or a glob"):
        ss.Recipe(name="x", source=["a.csv", "b.csv"])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (["a", "b"], "give a folder or a glob"),
        (Path("a"), "Write the string 'a'"),
        (3, "Give a path"),
    ],
)
@pytest.mark.parametrize("kind", [ss.Csv, ss.ImageFolder, ss.JsonLines, ss.Parquet, ss.TFRecords])
def test_what_is_not_one_path_is_refused(kind: Any, found: Any, said: str) -> None:
    with pytest.raises(ss.SnapshardError, match=re.escape(said)):
        kind(found)


def test_windows_that_no_row_fills_are_told(tmp_path: Path) -> None:
    rows = "".join(f"{i},{'' if i % 3 == 0 else i}\n" for i in range(30))
    (tmp_path / "t.csv").write_text(f"when,x\n{rows}")
    recipe = ss.Recipe(
        name="x",
        source=ss.Csv(str(tmp_path / "t.csv")),
        prepare=[ss.series.windows("x", size=4, time="when")],
        splits=ss.Splits.by_time("when", train=1.0),
    )
    with pytest.raises(ss.SnapshardError, match=r"series.windows.*produced no record") as raised:
        ss.build(recipe, tmp_path / "out")
    assert "missing value" in str(raised.value)
