"""What changes the fingerprint of a recipe, what does not, and what ``why`` names as the cause.

One recipe of every kind of part, surveyed and never built: a fingerprint takes milliseconds.
"""

import dataclasses
import importlib.metadata
import json
import os
import textwrap
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image as PillowImage

from snapshard.pipelines.inspect.why import FingerprintFacts, input_changes, part_changes
from snapshard.pipelines.recipe.shipping import load_recipe_file
from snapshard.pipelines.survey.fingerprint_details import fingerprint_details, surveyed_inputs
from snapshard.pipelines.survey.survey import Survey, take_survey
from snapshard.schemas import fingerprint
from snapshard.schemas.fingerprint import canonical_json
from snapshard.schemas.naming import Workspace
from snapshard.schemas.progress import Silent

from ..listing import list_backwards

FILES = {
    "recipe.py": '''
        """A recipe with something of everything."""

        import snapshard as ss
        from beside.scales import scaled

        DARKER = 2
        UNUSED = 1


        def dimmed(image):
            """Dims."""
            return scaled(image) // DARKER


        class Dim:
            """A step of the user's own."""

            def settings(self):
                return {}

            def features(self, features):
                return features

            def apply(self, record):
                # A comment.
                return {**record, "image": dimmed(record["image"])}


        def preprocessing_fn(inputs):
            import tensorflow_transform as tft

            return {"image": inputs["image"], "words": tft.bucketize(inputs["words"], 4)}


        recipe = ss.Recipe(
            name="every_part",
            source=ss.ImageFolder("images", table="labels.csv"),
            prepare=[
                ss.images.decode("image"),
                ss.images.resize("image", (8, 8)),
                Dim(),
                ss.text.tokenize("note", "words.txt"),
                ss.text.tokenize("title", tokenizer="tokenizer.json"),
            ],
            preprocessing_fn=preprocessing_fn,
            splits=ss.Splits(train=0.8, test=0.2),
            shards=ss.Shards(num_shards=2),
            depends_on=["measured.json", {"revision": 7}],
        )
    ''',
    "beside/scales.py": """
        FACTOR = 3
        IGNORED = 4


        def scaled(image):
            return image * FACTOR
    """,
    "beside/__init__.py": "",
    "labels.csv": """
        file,label,note,title
        0.png,cat,one two,a
        1.png,dog,two one,b
        2.png,cat,two,c
    """,
    "words.txt": """
        one
        two
    """,
    "tokenizer.json": (
        '{"version": "1.0", "pre_tokenizer": {"type": "Whitespace"}, '
        '"model": {"type": "WordLevel", "unk_token": "?", "vocab": {"?": 0, "cat": 1}}}'
    ),
    "measured.json": "[1, 2]",
    "notes.txt": "nothing that the recipe reads",
}


def put_project(folder: Path) -> Path:
    for name, text in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text).lstrip())
    for number in range(3):
        put_image(folder / "images" / f"{number}.png", number)
    return folder


def put_image(path: Path, value: int) -> None:
    path.parent.mkdir(exist_ok=True)
    PillowImage.fromarray(np.full((4, 4, 3), value, np.uint8)).save(path)


def surveyed(folder: Path, name: str = "recipe.py") -> Survey:
    recipe = load_recipe_file(folder / name)
    return take_survey(recipe, workspace=Workspace(str(folder / "work")), progress=Silent())


def told(survey: Survey) -> FingerprintFacts:
    """As it would stand in ``build.json``."""
    return FingerprintFacts(
        parts=json.loads(canonical_json(survey.parts.to_json())),
        details=json.loads(canonical_json(fingerprint_details(survey))),
    )


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Survey:
    return surveyed(put_project(tmp_path_factory.mktemp("before")))


Change = Callable[[Path, pytest.MonkeyPatch], None]


def edit(name: str, old: str, new: str) -> Change:
    """Replaces a text in a file."""

    def change(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        del monkeypatch
        text = (folder / name).read_text()
        assert text.count(old) == 1, (old, text.count(old))
        (folder / name).write_text(text.replace(old, new))

    return change


def other_version(library: str) -> Change:
    def change(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        del folder
        version = importlib.metadata.version

        def another(name: str) -> str:
            return "99.0" if name == library else version(name)

        monkeypatch.setattr(importlib.metadata, "version", another)
        # Versions are read once per process.
        uncached = fingerprint.installed_version.__wrapped__
        monkeypatch.setattr(fingerprint, "installed_version", uncached)

    return change


def other_image(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    del monkeypatch
    put_image(folder / "images" / "1.png", 77)


def one_image_more(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    edit("labels.csv", "2.png,cat,two,c", "2.png,cat,two,c")(folder, monkeypatch)
    put_image(folder / "images" / "3.png", 3)


def one_image_less(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    del monkeypatch
    (folder / "images" / "2.png").unlink()


def renamed_image(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    del monkeypatch
    images = folder / "images"
    (images / "2.png").rename(images / "4.png")


FIRST = "step 1, Decode"
MUST_CHANGE = {
    # What is changed: (how, the part, the thing, and what it belongs to, that `why` names).
    "content of an input": (other_image, "inputs", "1.png", ""),
    "an input more": (one_image_more, "inputs", "3.png", ""),
    "an input less": (one_image_less, "inputs", "2.png", ""),
    "name of an input": (renamed_image, "inputs", "4.png", ""),
    "side file: a label": (edit("labels.csv", "dog", "cat"), "side files", "labels.csv", ""),
    "side file: vocabulary": (
        edit("words.txt", "one\n", "none\n"),
        "files of steps",
        "words.txt",
        "step 4, Tokenize",
    ),
    "side file: tokenizer": (
        edit("tokenizer.json", '"cat"', '"dog"'),
        "files of steps",
        "tokenizer.json",
        "step 5, TokenizeWith",
    ),
    "file that the recipe depends on": (
        edit("measured.json", "2", "3"),
        "depends_on",
        "measured.json",
        "",
    ),
    "value that the recipe depends on": (
        edit("recipe.py", '{"revision": 7}', '{"revision": 8}'),
        "depends_on",
        "value 2",
        "",
    ),
    "no dependency": (
        edit("recipe.py", 'depends_on=["measured.json", {"revision": 7}],', ""),
        "depends_on",
        "measured.json",
        "",
    ),
    "version of a library": (other_version("pyarrow"), "versions", "pyarrow", ""),
    "version of snapshard": (other_version("snapshard"), "versions", "snapshard", ""),
    "setting of a step": (
        edit("recipe.py", "(8, 8)", "(8, 16)"),
        "steps",
        "size",
        "step 2, Resize",
    ),
    "constant in a step": (
        edit("recipe.py", "DARKER = 2", "DARKER = 3"),
        "steps",
        "recipe.py: DARKER",
        "step 3, Dim",
    ),
    "code of a step": (
        edit(
            "recipe.py", '"image": dimmed(record["image"])', '"image": dimmed(record["image"]) + 1'
        ),
        "steps",
        "recipe.py: Dim",
        "step 3, Dim",
    ),
    "helper function of the recipe's module": (
        edit("recipe.py", "scaled(image) // DARKER", "scaled(image) / DARKER"),
        "steps",
        "recipe.py: dimmed",
        "step 3, Dim",
    ),
    "helper function beside": (
        edit("beside/scales.py", "image * FACTOR", "image + FACTOR"),
        "steps",
        "beside/scales.py: scaled",
        "step 3, Dim",
    ),
    "constant beside": (
        edit("beside/scales.py", "FACTOR = 3", "FACTOR = 5"),
        "steps",
        "beside/scales.py: FACTOR",
        "step 3, Dim",
    ),
    "preprocessing graph": (
        edit("recipe.py", '["words"], 4)', '["words"], 5)'),
        "preprocessing_fn",
        "recipe.py: preprocessing_fn",
        "",
    ),
    "a split's fraction": (
        edit("recipe.py", "train=0.8, test=0.2", "train=0.7, test=0.3"),
        "splits",
        "train",
        "",
    ),
    "a split's name": (edit("recipe.py", "test=0.2", "validation=0.2"), "splits", "test", ""),
    "order of splits": (
        edit("recipe.py", "train=0.8, test=0.2", "test=0.2, train=0.8"),
        "splits",
        "their order",
        "",
    ),
    "number of shards": (
        edit("recipe.py", "num_shards=2", "num_shards=3"),
        "shards",
        "num_shards",
        "",
    ),
    "the seed": (
        edit("recipe.py", 'name="every_part"', 'name="every_part", seed=1'),
        "seed",
        "",
        "",
    ),
    "a step more": (
        edit("recipe.py", "        Dim(),", "        Dim(),\n        Dim(),"),
        "steps",
        "step 4, Dim",
        "",
    ),
    "a step less": (edit("recipe.py", "        Dim(),\n", ""), "steps", "step 3, Dim", ""),
    "no preprocessing": (
        edit("recipe.py", "preprocessing_fn=preprocessing_fn,", ""),
        "preprocessing_fn",
        "",
        "",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "part", "thing", "where"), MUST_CHANGE.values(), ids=MUST_CHANGE
)
def test_what_must_change_it(
    before: Survey,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: Change,
    part: str,
    thing: str,
    where: str,
) -> None:
    folder = put_project(tmp_path / "project")
    change(folder, monkeypatch)
    after = surveyed(folder)
    assert after.fingerprint != before.fingerprint
    changes = part_changes(told(before), told(after))
    named = {(change.part, change.thing, change.where) for change in changes}
    if part == "inputs":
        assert ("inputs", "", "") in named
        files = (surveyed_inputs(found) for found in (before, after))
        found = input_changes(*files, num_shown=10)
        assert thing in {*found.added, *found.removed, *found.changed}
        # A label of the table that belongs to no image any more is no other input.
        assert {change.part for change in changes} <= {"inputs", "classes"}
    else:
        assert (part, thing, where) in named
        others = {change.part for change in changes} - {part}
        assert others <= {"classes", "analysis", "features"}, changes


def test_a_recipe_file_of_another_name_is_no_change_of_its_code(
    before: Survey, tmp_path: Path
) -> None:
    """The details of code name the file; where the code is the same, they are not compared."""
    folder = put_project(tmp_path / "project")
    text = (
        (folder / "recipe.py").read_text().replace('name="every_part"', 'name="every_part", seed=1')
    )
    (folder / "other.py").write_text(text)
    changes = part_changes(told(before), told(surveyed(folder, "other.py")))
    assert [(change.part, change.thing, change.old, change.new) for change in changes] == [
        ("seed", "", 0, 1)
    ]


def move_times(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    del monkeypatch
    for path in folder.rglob("*"):
        os.utime(path, (1_000_000_000, 1_000_000_000))


def other_order(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    del folder
    list_backwards(monkeypatch)


def many_cores(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The survey knows no workers; what it does know is how many threads may read."""
    del folder
    monkeypatch.setattr(os, "cpu_count", lambda: 64)


def hidden_files(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    del monkeypatch
    (folder / "images" / ".DS_Store").write_text("left behind")


def nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    del folder, monkeypatch


MUST_NOT_CHANGE: dict[str, Change] = {
    "path of the root": nothing,  # which differs in every one of these tests
    "times of the files": move_times,
    "another machine's order of listing": other_order,
    "number of cores": many_cores,
    "what the source skips": hidden_files,
    "a file that nothing reads": edit("notes.txt", "nothing", "something"),
    "comment": edit("recipe.py", "# A comment.", "# Another one."),
    "comment beside": edit("beside/scales.py", "FACTOR = 3", "FACTOR = 3  # times"),
    "docstring": edit("recipe.py", '"""Dims."""', '"""Makes it dark."""'),
    "module's docstring": edit("recipe.py", "something of everything", "it all"),
    "formatting": edit(
        "recipe.py",
        "return scaled(image) // DARKER",
        "return (\n        scaled(image)\n        // DARKER\n    )",
    ),
    "empty lines": edit("recipe.py", "DARKER = 2\n", "\n\n\nDARKER = 2\n"),
    "annotations": edit("recipe.py", "def dimmed(image):", "def dimmed(image: object) -> object:"),
    "how a constant is written": edit("recipe.py", "DARKER = 2", "DARKER = 1 + 1"),
    "unused constant": edit("recipe.py", "UNUSED = 1", "UNUSED = 2"),
    "unused constant beside": edit("beside/scales.py", "IGNORED = 4", "IGNORED = 5"),
    "allowed rejects": edit(
        "recipe.py", "recipe = ss.Recipe(", "recipe = ss.Recipe(max_rejects=1,"
    ),
}


@pytest.mark.parametrize("change", MUST_NOT_CHANGE.values(), ids=MUST_NOT_CHANGE)
def test_what_must_not_change_it(
    before: Survey, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Change
) -> None:
    folder = put_project(tmp_path / "another" / "place")
    change(folder, monkeypatch)
    after = surveyed(folder)
    assert after.parts == before.parts
    assert after.fingerprint == before.fingerprint
    assert told(after) == told(before)


def test_details_hold_no_values_and_do_not_count(before: Survey) -> None:
    """Digests of code and constants: what these hold may be nobody's business."""
    details = fingerprint_details(before)
    assert details["steps"][2]["code"].keys() == {
        "beside/scales.py: FACTOR",
        "beside/scales.py: scaled",
        "recipe.py: DARKER",
        "recipe.py: Dim",
        "recipe.py: dimmed",
    }
    assert "FACTOR = 3" not in json.dumps(details)
    assert dataclasses.asdict(before.parts).keys().isdisjoint({"details", "fingerprint_details"})
