"""What a second build does again: nothing where nothing changed, and as little as can be else."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import snapshard as ss
from snapshard.cli import main
from snapshard.pipelines.recipe.shipping import load_recipe_file

from ..pipelines.read_records import num_to_prepare, survey_of
from ..small_blocks import small_blocks

pytestmark = pytest.mark.slow  # a build for each change

RESIZED = 'prepare=[ss.images.decode("image"), ss.images.resize("image", (8, 8))],'

OWN_STEP = '''
"""A recipe with a step of its own."""

import helper
import snapshard as ss

DARKER = 2


def darken(record):
    """Darkens."""
    # A comment.
    return {**record, "image": record["image"] // DARKER + helper.OFFSET}


def unused():
    return 1


recipe = ss.Recipe(
    name="made",
    source=ss.ImageFolder("images"),
    prepare=[ss.images.decode("image"), ss.images.resize("image", (8, 8)), darken],
    shards=ss.Shards(num_shards=2),
    splits=ss.Splits(train=0.8, validation=0.1, test=0.1, allow_empty=True),
)
'''

BUCKETS = """
import snapshard as ss


def preprocess(inputs):
    import tensorflow_transform as tft

    return {{"bucket": tft.bucketize(inputs["n"], num_buckets={num_buckets})}}


recipe = ss.Recipe(name="made", source=ss.Csv("rows.csv"), preprocessing_fn=preprocess)
"""

HELPER = '''
"""Beside the recipe."""

import tensorflow as tf

OFFSET = tf.constant(3, tf.uint8)
'''


@pytest.fixture
def many_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of about ten small images."""
    small_blocks(monkeypatch, 50_000)


@pytest.fixture(scope="class")
def own_step(lab: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ss.Snapshot]:
    """A folder of code, and what was built of it there."""
    folder = tmp_path_factory.mktemp("own_step")
    lab.make_images(folder / "images", num=40)
    (folder / "helper.py").write_text(HELPER)
    (folder / "recipe.py").write_text(OWN_STEP)
    return folder, lab.build(folder / "recipe.py", folder / "out")


@pytest.fixture
def change_code(own_step: tuple[Path, ss.Snapshot]) -> Iterator[Callable[[str, str, str], None]]:
    """Replaces text in a file of that folder, until the test is over."""
    folder, _ = own_step

    def change(file: str, old: str, new: str) -> None:
        text = (folder / file).read_text()
        assert old in text
        (folder / file).write_text(text.replace(old, new))

    yield change
    (folder / "helper.py").write_text(HELPER)
    (folder / "recipe.py").write_text(OWN_STEP)


class TestNothingChanged:
    def test_cached_and_nothing_is_written(self, lab: Any, recipe: Path, tmp_path: Path) -> None:
        out = tmp_path / "out"
        first = lab.build(recipe, out)
        before = lab.listing(out)
        second = lab.build(recipe, out)
        assert second.cached
        assert not first.cached
        assert second.path == first.path
        assert second.manifest == first.manifest
        assert lab.listing(out) == before

    def test_command_line_says_so(
        self, lab: Any, sign_digits: ss.Snapshot, examples: Path, shared: Callable[[str], Path]
    ) -> None:
        before = lab.listing(shared("out") / "sign_digits")
        done = lab.run_cli("build", examples / "sign_digits.py", "--out", shared("out"), "--json")
        assert lab.last_json(done) == {
            "path": sign_digits.path,
            "fingerprint": sign_digits.manifest.fingerprint,
            "cached": True,
            "num_filtered": 0,
            "num_missing": {},
            "num_rejects": 0,
            "shared_contents": {},
            "splits": {
                "train": {"num_examples": 240},
                "validation": {"num_examples": 30},
                "test": {"num_examples": 30},
            },
        }
        assert lab.listing(shared("out") / "sign_digits") == before

    def test_with_other_times(self, lab: Any, recipe: Path, tmp_path: Path) -> None:
        first = lab.build(recipe, tmp_path / "out")
        for path in (tmp_path / "images").rglob("*.jpg"):
            os.utime(path, (1_000_000_000, 1_000_000_000))
        second = lab.build(recipe, tmp_path / "out")
        assert second.cached
        assert second.path == first.path

    def test_latest_follows(self, lab: Any, recipe: Path, tmp_path: Path) -> None:
        """The pointer names the last build's snapshot, a cached one's too."""
        out = tmp_path / "out"
        first = lab.build(recipe, out)
        lab.write_recipe(tmp_path, "prepare=[], seed=1,")
        second = lab.build(recipe, out)
        assert ss.Snapshot.open(str(out / "made")).path == second.path != first.path
        lab.write_recipe(tmp_path)
        assert lab.build(recipe, out).cached
        assert ss.Snapshot.open(str(out / "made")).path == first.path


@pytest.mark.parametrize("first", ["all", "sample"])
def test_a_sample_never_becomes_the_latest(
    lab: Any, recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], first: str
) -> None:
    out = tmp_path / "out"
    sample = ss.build(load_recipe_file(str(recipe)), out, limit=7) if first == "sample" else None
    assert not (out / "made" / "latest.json").exists()
    assert not (out / "made" / "reader.py").exists()
    whole = lab.build(recipe, out)
    for cached in (first == "sample", True):
        with pytest.raises(SystemExit) as ended:
            main(["build", str(recipe), "--out", str(out), "--limit", "7"])
        told = capsys.readouterr().out
        assert ended.value.code == 0
        assert "splits of a SAMPLE of 7 records (--limit)" in told
        assert f"{'already built' if cached else 'built'}, a SAMPLE: latest.json does not" in told
        assert ss.Snapshot.open(out / "made").path == whole.path
    manifests = map(ss.Snapshot.open, {path.parent for path in out.glob("made/*/manifest.json")})
    limits = {snapshot.path: snapshot.manifest.limit for snapshot in manifests}
    sample = sample or next(ss.Snapshot.open(path) for path, limit in limits.items() if limit)
    assert limits == {whole.path: None, sample.path: 7}
    assert sample.reader().LIMIT == 7
    facts = subprocess.run(
        [sys.executable, f"{sample.path}/reader"], capture_output=True, text=True, check=True
    )
    assert "a SAMPLE of 7 records" in facts.stdout


def test_order_of_splits_counts(lab: Any, tmp_path: Path) -> None:
    """It decides which half of the keys is whose."""
    splits = "splits=ss.Splits(train=0.5, test=0.5),"
    first = lab.build(lab.image_project(tmp_path, rest=RESIZED + splits), tmp_path / "out")
    lab.write_recipe(tmp_path, RESIZED + "splits=ss.Splits(test=0.5, train=0.5),")
    second = lab.build(tmp_path / "recipe.py", tmp_path / "out")
    assert not second.cached
    of_first = dict(zip(lab.read_back(first).ids, lab.read_back(first).splits, strict=True))
    of_second = dict(zip(lab.read_back(second).ids, lab.read_back(second).splits, strict=True))
    assert of_first.keys() == of_second.keys()
    assert all(of_first[record_id] != of_second[record_id] for record_id in of_first)


class TestRecipeCode:
    @pytest.mark.parametrize(
        ("old", "new"),
        [
            ("# A comment.", "# Another comment."),
            ('"""Darkens."""', '"""Makes images darker."""'),
            ("return {**record, ", "return {\n        **record,\n        "),
            ("return 1", "return 2"),
            ('"""A recipe with a step of its own."""', '"""Changed."""'),
        ],
        ids=["comment", "docstring", "format", "unused function", "module docstring"],
    )
    def test_what_changes_nothing(
        self, lab: Any, own_step: Any, change_code: Any, old: str, new: str
    ) -> None:
        folder, first = own_step
        change_code("recipe.py", old, new)
        second = lab.build(folder / "recipe.py", folder / "out")
        assert second.cached
        assert second.path == first.path

    @pytest.mark.parametrize(
        ("file", "old", "new"),
        [
            ("recipe.py", "DARKER = 2", "DARKER = 3"),
            ("recipe.py", "// DARKER", "// DARKER // 1"),
            ("helper.py", "constant(3", "constant(4"),
        ],
        ids=["constant", "code", "helper's constant"],
    )
    def test_what_changes_all(
        self, lab: Any, own_step: Any, change_code: Any, file: str, old: str, new: str
    ) -> None:
        folder, first = own_step
        change_code(file, old, new)
        second = lab.build(folder / "recipe.py", folder / "out")
        assert not second.cached
        assert second.path != first.path
        blocks = lab.build_facts(second)["blocks"]
        assert blocks["prepared"] == blocks["total"]
        before, after = lab.read_back(first), lab.read_back(second)
        assert before.ids == after.ids
        same = (before.values["image"] == after.values["image"]).all()
        assert same == ("// 1" in new)


class TestRunsAreReused:
    @pytest.mark.parametrize(
        "change",
        [
            "shards=ss.Shards(num_shards=3),",
            'shards=ss.Shards(compression="gzip"),',
            "splits=ss.Splits(train=0.5, test=0.5),",
            'splits=ss.Splits(train=0.5, test=0.5, stratify_by="label"),',
            "max_rejects=3,",
        ],
    )
    def test_by_other_shards_and_splits(
        self, lab: Any, shared: Callable[[str], Path], change: str
    ) -> None:
        folder = shared("reused")
        if not (folder / "images").exists():
            lab.build(lab.image_project(folder, rest=RESIZED), folder / "out")
        runs = folder / "out" / "made" / ".work" / "runs"
        before = {k: v for k, v in lab.listing(runs).items() if ".by-" not in k and "." in k}
        snapshot = lab.build(lab.write_recipe(folder, RESIZED + change), folder / "out")
        after = {k: v for k, v in lab.listing(runs).items() if ".by-" not in k and "." in k}
        assert before == after
        if not snapshot.cached:  # max_rejects alone shapes no byte
            assert lab.build_facts(snapshot)["blocks"]["prepared"] == 0
        lab.hashes(snapshot)
        held = lab.read_back(snapshot)
        assert len(set(held.ids)) == 60

    @pytest.mark.usefixtures("many_blocks")
    def test_one_more_file(self, lab: Any, tmp_path: Path) -> None:
        recipe = lab.image_project(tmp_path, num=300)
        first = lab.build(recipe, tmp_path / "out")
        blocks = lab.build_facts(first)["blocks"]
        assert blocks["total"] == blocks["prepared"] > 15
        picture = sorted((tmp_path / "images" / "class 1").iterdir())[5]
        picture.with_name("new.jpg").write_bytes(picture.read_bytes())
        second = lab.build(recipe, tmp_path / "out")
        facts = lab.build_facts(second)["blocks"]
        assert 1 <= facts["prepared"] <= 3 < facts["total"]
        anew = lab.build(recipe, tmp_path / "other")
        assert lab.build_facts(anew)["blocks"]["prepared"] == facts["total"]
        assert lab.hashes(second) == lab.hashes(anew)
        # By fixed fractions no record moves to another split.
        before = dict(zip(lab.read_back(first).ids, lab.read_back(first).splits, strict=True))
        after = dict(zip(lab.read_back(second).ids, lab.read_back(second).splits, strict=True))
        assert {record_id: after[record_id] for record_id in before} == before
        assert after.keys() - before.keys() == {"class 1/new.jpg"}

    @pytest.mark.usefixtures("many_blocks")
    def test_a_changed_and_a_removed_file(self, lab: Any, tmp_path: Path) -> None:
        recipe = load_recipe_file(lab.image_project(tmp_path, num=300))
        first = survey_of(recipe, tmp_path)
        pictures = sorted((tmp_path / "images" / "class 0").iterdir())
        pictures[3].write_bytes(pictures[70].read_bytes())
        pictures[50].unlink()
        second = survey_of(recipe, tmp_path)
        assert 1 <= num_to_prepare(first, second) <= 6
        assert second.inventory.blocks == survey_of(recipe, tmp_path / "anew").inventory.blocks

    def test_by_another_preprocessing_fn(self, lab: Any, tmp_path: Path) -> None:
        (tmp_path / "rows.csv").write_text("n\n" + "".join(f"{n}\n" for n in range(60)))
        recipe = tmp_path / "recipe.py"
        for num_buckets in (4, 3):
            recipe.write_text(BUCKETS.format(num_buckets=num_buckets))
            snapshot = lab.build(recipe, tmp_path / "out")
            buckets = set(lab.read_back(snapshot).values["bucket"].tolist())
            assert buckets == set(range(num_buckets))
        assert lab.build_facts(snapshot)["blocks"]["prepared"] == 0
