"""Files are added, changed and removed: what is prepared again, and that nothing tells it after."""

import collections
import dataclasses
import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import snapshard as ss
from snapshard.pipelines.inspect.diff import diff
from snapshard.pipelines.recipe.shipping import load_recipe_file
from snapshard.pipelines.survey.survey import Survey
from snapshard.schemas.blocks import Block
from snapshard.schemas.progress import Silent
from snapshard.transforms.examples.tfrecord import write_tfrecord
from snapshard.transforms.runs.files import PARTITION

from ..pipelines.read_records import num_to_prepare, read_blocks, survey_of
from ..small_blocks import small_blocks

BLOCK_BYTES = 16_000
NEAR = 8
"""So many of the files below are a block of the largest size."""

RECIPE = """
import snapshard as ss
{before}
recipe = ss.Recipe(name="made", source={source}, {rest})
"""


@pytest.fixture(autouse=True)
def blocks_in_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with large files, in little: blocks of 16 kB, places to cut every 8 kB."""
    half = BLOCK_BYTES // 2
    small_blocks(monkeypatch, BLOCK_BYTES, min_cut_bytes=half, chunk_bytes=half // 2)


def paths(blocks: set[Block]) -> set[str]:
    return {part.path for block in blocks for part in block.ranges}


class Table:
    """Rows of a table, written in one format or another."""

    def __init__(self, folder: Path, kind: str) -> None:
        folder.mkdir()
        self.folder, self.kind = folder, kind

    def put(self, name: str, rows: list[tuple[int, str]]) -> None:
        path = self.folder / f"{name}.{self.kind}"
        if self.kind == "csv":
            path.write_text("n,word\n" + "".join(f"{n},{word}\n" for n, word in rows))
        elif self.kind == "jsonl":
            lines = (json.dumps({"n": n, "word": word}) + "\n" for n, word in rows)
            path.write_text("".join(lines))
        elif self.kind == "parquet":
            table = pa.table({"n": [n for n, _ in rows], "word": [word for _, word in rows]})
            pq.write_table(table, path, row_group_size=100)
        else:
            examples = [example(n, word) for n, word in rows]
            write_tfrecord(str(path), [pa.array(examples, pa.large_binary())], compression="none")

    def remove(self, name: str) -> None:
        (self.folder / f"{name}.{self.kind}").unlink()


FEATURES = {"n": ss.Scalar("int64"), "word": ss.Text()}


@functools.cache
def example(n: int, word: str) -> bytes:
    return ss.encode_example({"n": n, "word": word}, FEATURES)


SOURCES = {
    "csv": 'ss.Csv("data")',
    "jsonl": 'ss.JsonLines("data")',
    "parquet": 'ss.Parquet("data")',
    "tfrecord": 'ss.TFRecords("data")',
}


def some_rows(seed: int, num: int) -> list[tuple[int, str]]:
    rng = np.random.default_rng(seed)
    return [(int(n), f"{'x' * int(n % 9)}{n}") for n in rng.integers(0, 10**6, num)]


def project(folder: Path, kind: str, rest: str = "", before: str = "") -> tuple[Table, Path]:
    table = Table(folder / "data", kind)
    recipe = folder / "recipe.py"
    recipe.write_text(RECIPE.format(source=SOURCES[kind], rest=rest, before=before))
    return table, recipe


def check_again(
    lab: Any,
    recipe: Path,
    tmp_path: Path,
    first: ss.Snapshot,
    *,
    touched: set[str],
    one_stage: bool = True,
) -> tuple[ss.Snapshot, int]:
    """Builds again, and from nothing; gives how many blocks the former had to prepare."""
    second = lab.build(recipe, tmp_path / "out")
    anew = lab.build(recipe, tmp_path / f"anew-{second.manifest.fingerprint}")
    assert not second.cached
    assert lab.hashes(second) == lab.hashes(anew)
    told, whole = lab.build_facts(second)["blocks"], lab.build_facts(anew)["blocks"]
    assert whole["prepared"] == whole["total"] == told["total"]
    old, new = lab.blocks(first), lab.blocks(second)
    check_near(old, new, touched)
    if one_stage:
        assert told["prepared"] == len(new - old)
    return second, told["prepared"]


@dataclasses.dataclass(frozen=True)
class Edited:
    """What an edit of a source changes, as its surveys and blocks tell."""

    num_blocks: int
    """Before the edit."""
    num_prepared: int
    """Blocks that have no run yet afterwards."""
    added: set[str]
    """Ids of records."""
    removed: set[str]
    changed: set[str]


def edit(recipe: Path, tmp_path: Path, change: Callable[[], object], touched: set[str]) -> Edited:
    """Surveys a source before and after an edit, and reads its blocks.

    The survey afterwards equals one in an empty workspace. A block that keeps its name keeps its
    records, so its run is what a build from nothing would make; records keep their splits.
    """

    def read(survey: Survey) -> dict[str, dict[str, dict[str, Any]]]:
        return {
            block.block_id: read_blocks(survey, tmp_path, [block]).records
            for block in survey.inventory.blocks
        }

    first = survey_of(load_recipe_file(recipe), tmp_path)
    before = read(first)
    change()
    second, anew = (
        survey_of(load_recipe_file(recipe), folder) for folder in (tmp_path, tmp_path / "anew")
    )
    assert first.fingerprint != second.fingerprint == anew.fingerprint
    assert second.inventory.blocks == anew.inventory.blocks
    assert second.stage_digests == anew.stage_digests
    after = read(anew)
    assert {name: before[name] for name in before.keys() & after.keys()} == {
        name: after[name] for name in before.keys() & after.keys()
    }
    check_near(set(first.inventory.blocks), set(second.inventory.blocks), touched)
    rows, others = (dict(collections.ChainMap(*read.values())) for read in (before, after))
    both = rows.keys() & others.keys()
    assert all(rows[name][PARTITION] == others[name][PARTITION] for name in both)
    return Edited(
        len(before),
        num_to_prepare(first, second),
        others.keys() - both,
        rows.keys() - both,
        {name for name in both if rows[name] != others[name]},
    )


def check_near(old: set[Block], new: set[Block], touched: set[str]) -> None:
    """What no block of a touched file's is, and no neighbour of one, is as it was."""
    names = sorted(paths(old | new), key=str.encode)
    near = {names.index(name) + step for name in touched for step in range(-NEAR, NEAR + 1)}
    assert paths(new - old) <= {names[place] for place in near if 0 <= place < len(names)}


OTHER_RECIPES = {
    "group_by": ('splits=ss.Splits(train=0.5, test=0.5, group_by="word"),', ""),
    "drop_duplicates": ('prepare=[ss.records.drop_duplicates("word")],', ""),
    "windows": (
        'prepare=[ss.series.windows("word", size=3, time="n")], max_rejects=0.9,'
        'splits=ss.Splits.by_time("n", train=0.8, test=0.2),',
        "",
    ),
    "preprocessing_fn": (
        "preprocessing_fn=preprocess, shards=ss.Shards(num_shards=2),",
        "def preprocess(inputs):\n"
        "    import tensorflow_transform as tft\n\n"
        '    return {"z": tft.scale_to_z_score(inputs["n"]), "word": inputs["word"]}\n',
    ),
}


def change_files(table: Table) -> set[str]:
    """Adds a file, changes one, removes one."""
    kind = table.kind
    table.put("07 new", some_rows(1, 60))
    table.put("20", some_rows(2, 80))
    table.remove("31")
    return {f"07 new.{kind}", f"20.{kind}", f"31.{kind}"}


def forty_files(table: Table) -> None:
    for number in range(40):
        table.put(f"{number:02}", some_rows(100 + number, 80))


@pytest.mark.parametrize(
    "kind",
    [kind if kind == "csv" else pytest.param(kind, marks=pytest.mark.slow) for kind in SOURCES],
)
def test_folders_of_files(tmp_path: Path, kind: str) -> None:
    table, recipe = project(tmp_path, kind)
    forty_files(table)
    touched = {f"07 new.{kind}", f"20.{kind}", f"31.{kind}"}
    found = edit(recipe, tmp_path, lambda: change_files(table), touched)
    assert found.num_blocks > 8
    assert 1 <= found.num_prepared <= 6
    # Whole files come and go.
    files = {record_id.partition("#")[0] for record_id in found.added | found.removed}
    assert files <= touched


@pytest.mark.slow  # three builds
def test_a_build_of_edited_files_equals_one_from_nothing(lab: Any, tmp_path: Path) -> None:
    table, recipe = project(tmp_path, "csv")
    forty_files(table)
    first = lab.build(recipe, tmp_path / "out")
    touched = change_files(table)
    second, num_prepared = check_again(lab, recipe, tmp_path, first, touched=touched)
    assert 1 <= num_prepared <= 6
    found = diff(first, second, progress=Silent()).records
    # Whole files come and go; a hash split moves nobody.
    assert found.total("moved") == 0
    assert found.total("added") == found.num_new - found.num_same - found.total("changed")
    assert found.num_same == 38 * 80


@pytest.mark.slow  # three builds each, two analyses of tensorflow-transform among them
@pytest.mark.parametrize(("rest", "before"), OTHER_RECIPES.values(), ids=OTHER_RECIPES)
def test_other_recipes(lab: Any, tmp_path: Path, rest: str, before: str) -> None:
    """Grouped splits, steps across records, a transform graph: the same bytes as from nothing."""
    table, recipe = project(tmp_path, "csv", rest=rest, before=before)
    for number in range(40):
        table.put(f"{number:02}", some_rows(100 + number % 30, 80))
    first = lab.build(recipe, tmp_path / "out")
    touched = change_files(table)
    one_stage = "prepare=" not in rest
    second, _ = check_again(lab, recipe, tmp_path, first, touched=touched, one_stage=one_stage)
    if "group_by" in rest:
        found = diff(first, second, progress=Silent(), num_shown=10**6).records
        # Who moves has got another group.
        assert set(found.first["moved"]) <= set(found.first["changed"])


LARGE = 9_000


def rows_appended(rows: list[Any]) -> None:
    rows.extend(some_rows(7, 20))


def rows_changed(rows: list[Any]) -> None:
    """In place, each as long as before."""
    for place in range(LARGE // 2, LARGE // 2 + 5):
        n, word = rows[place]
        rows[place] = n, word[::-1]


def row_inserted(rows: list[Any]) -> None:
    rows.insert(LARGE // 2, (1, "new"))


def row_removed(rows: list[Any]) -> None:
    del rows[LARGE // 2]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("csv", rows_appended),
        ("csv", rows_changed),
        ("csv", row_inserted),
        ("csv", row_removed),
        ("jsonl", rows_appended),
        ("jsonl", row_removed),
        ("tfrecord", rows_changed),
        ("tfrecord", row_inserted),
    ],
)
def test_a_large_file(tmp_path: Path, kind: str, change: Callable[[list[Any]], None]) -> None:
    """What lies before a change is prepared no more; what lies behind, only if its place moved."""
    table, recipe = project(tmp_path, kind)
    rows = some_rows(0, LARGE)
    table.put("large", rows)
    table.put("small", some_rows(1, 20))

    def change_rows() -> None:
        change(rows)
        table.put("large", rows)

    found = edit(recipe, tmp_path, change_rows, {f"large.{kind}"})
    assert found.num_blocks >= 4
    if change is rows_appended:
        assert found.num_prepared == 1
        assert (len(found.added), found.removed, found.changed) == (20, set(), set())
    elif change is rows_changed:
        assert found.num_prepared == 1
        assert 0 < len(found.changed) <= 5
        assert found.added == found.removed == set()
    else:
        half = found.num_blocks // 2
        assert half - 1 <= found.num_prepared <= half + 2


def test_another_header_prepares_all_of_a_large_file(tmp_path: Path) -> None:
    """Its columns change their places, and the bytes of most blocks do not change at all."""
    table, recipe = project(tmp_path, "csv")
    path = table.folder / "large.csv"
    text = "one,two\n" + "".join(f"{n},{n % 7}\n" for n in range(6_000))
    path.write_text(text)
    other = text.replace("one,two", "two,one")
    found = edit(recipe, tmp_path, lambda: path.write_text(other), {"large.csv"})
    assert found.num_prepared == found.num_blocks >= 3


@pytest.mark.slow  # two builds
@pytest.mark.parametrize("stratified", [False, True])
def test_who_moves_between_splits(lab: Any, tmp_path: Path, stratified: bool) -> None:
    """With fixed fractions nobody; to keep each label's share exact, records at the ends do."""
    by = ', stratify_by="word"' if stratified else ""
    table, recipe = project(tmp_path, "csv", rest=f"splits=ss.Splits(train=0.5, test=0.5{by}),")
    table.put("a", [(n, "ab"[n % 2]) for n in range(400)])
    first = lab.build(recipe, tmp_path / "out")
    table.put("b", [(n, "a") for n in range(150)])
    second = lab.build(recipe, tmp_path / "out")
    found = diff(first, second, progress=Silent()).records
    assert (found.total("added"), found.total("removed"), found.total("changed")) == (150, 0, 0)
    assert (found.total("moved") > 0) == stratified
    assert sum(found.moves.values()) == found.total("moved") < 60
