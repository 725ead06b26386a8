"""Builds step by step: what each leaves, what is refused, and that the result is a build's."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import snapshard as ss
from snapshard.pipelines import build as builds
from snapshard.pipelines.build import build, run_step
from snapshard.pipelines.operate.gc import collect_garbage
from snapshard.pipelines.prepare.block_worker import SourceReader
from snapshard.pipelines.recipe.shipping import load_recipe_file
from snapshard.schemas.errors import (
    DamagedSnapshotError,
    DamagedWorkError,
    RecipeError,
    RejectsError,
    SourceChangedError,
    StepOrderError,
)
from snapshard.schemas.steps import STEPS, StepReport

from ..small_blocks import small_blocks

RECIPE = """
import snapshard as ss

recipe = ss.Recipe(
    name="made",
    source={source},
    shards=ss.Shards(num_shards={{"train": 3, "validation": 1, "test": 1}}),
    {rest}
)
"""
PREPROCESS = """
import tensorflow_transform as tft


def preprocess(inputs):
    return {"number": tft.scale_to_z_score(inputs["number"]), "label": inputs["label"]}

"""
FAILS = """
import os


def fails(record):
    if record["number"] % 1000 == 7 and os.path.exists({flag!r}):
        raise MemoryError
    return {{"twice": 2 * record["number"]}}

"""
CSV = 'ss.Csv("data", label="label")'


class Project:
    """A table in several files, its recipe, and a chain of steps that builds it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.out = folder / "out"
        (folder / "data").mkdir()
        for number in range(4):
            self.add_file(number)
        self.describe()

    def add_file(self, number: int) -> None:
        rows = [f"{number * 1000 + row},{row % 2}" for row in range(50)]
        (self.folder / "data" / f"{number}.csv").write_text("\n".join(["number,label", *rows]))

    def describe(self, source: str = CSV, rest: str = "") -> None:
        (self.folder / "recipe.py").write_text(RECIPE.format(source=source, rest=rest))

    @property
    def recipe(self) -> ss.Recipe:
        return load_recipe_file(self.folder / "recipe.py")

    def step(self, name: str, **options: Any) -> StepReport:
        return run_step(self.recipe, self.out, name, **options)

    def steps(self, *names: str, **options: Any) -> list[StepReport]:
        return [self.step(name, **options) for name in names]

    def built(self, **options: Any) -> bytes:
        """The manifest that a build in one process makes elsewhere."""
        snapshot = build(self.recipe, self.folder / "elsewhere", **options)
        return Path(snapshot.path, "manifest.json").read_bytes()


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


@pytest.fixture
def in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each file is a block."""
    small_blocks(monkeypatch, 1)


def manifest(report: StepReport) -> bytes:
    return Path(report.path, "manifest.json").read_bytes()


@pytest.mark.slow
def test_steps_one_by_one_make_what_a_build_makes(project: Project) -> None:
    for number, name in enumerate(STEPS):
        report = project.step(name)
        assert (report.step, report.published) == (name, name == "publish")
        again = project.step(name)
        assert again.fingerprint == report.fingerprint
        # Verify looks again as long as there is something to lose.
        assert again.reused == (name != "verify"), name
        # Verify leaves nothing that publish needs, nor does analyze without an analysis.
        needed = [step for step in STEPS[number + 1 :] if step not in ("analyze", "verify")]
        for other in STEPS[STEPS.index(needed[0]) + 1 :] if needed else ():
            with pytest.raises(StepOrderError, match=f"{other} needs the result of {needed[0]}, "):
                project.step(other)
    assert manifest(report) == project.built()
    assert [again.reused and again.published for again in project.steps(*STEPS)] == [True] * 7
    facts = json.loads(Path(report.path, "build.json").read_bytes())
    # What other processes did is in the steps' reports.
    assert (facts["blocks"], facts["shards"]) == ({"total": 1}, {"total": 5})


@pytest.mark.slow  # several builds
def test_options_belong_to_a_chain_of_their_own(project: Project) -> None:
    project.steps(*STEPS[:4], limit=60)
    with pytest.raises(StepOrderError, match="prepare needs the result of inventory"):
        project.step("prepare")
    *_, report = project.steps(*STEPS[4:], limit=60)
    assert manifest(report) == project.built(limit=60)
    assert not project.step("inventory").published


@pytest.mark.slow  # several builds
def test_a_chain_keeps_to_what_its_inventory_saw(project: Project) -> None:
    expected = project.built()
    project.step("inventory")
    project.add_file(4)
    *_, report = project.steps(*STEPS[1:])
    assert manifest(report) == expected
    # The next chain sees it.
    first, second, *_, last = project.steps(*STEPS)
    assert first.facts["num_files"] == 5
    assert (first.reused, second.reused, last.published) == (False, False, True)
    assert last.fingerprint != report.fingerprint
    assert json.loads((project.out / "made/latest.json").read_bytes()) == {
        "fingerprint": last.fingerprint
    }


@pytest.mark.slow
def test_a_file_that_changed_begins_anew(project: Project) -> None:
    path = project.folder / "data/2.csv"
    project.step("inventory")
    path.write_text(path.read_text().replace("2001,1", "9001,1"))
    for part in (None, "1/2"):
        with pytest.raises(StepOrderError, match=r"2\.csv of .* changed since the inventory"):
            project.step("prepare", part=part)
    *_, report = project.steps(*STEPS)
    assert manifest(report) == project.built()


@pytest.mark.slow
def test_a_file_that_changes_while_a_step_reads_it_begins_anew(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = project.folder / "data/2.csv"
    content = path.read_text()
    project.step("inventory")
    read = SourceReader.read

    def changed(self: SourceReader, block: Any) -> Iterator[Any]:
        path.write_text(content.replace("2001,1", "9001,1"))
        yield from read(self, block)

    with monkeypatch.context() as patched:
        patched.setattr(SourceReader, "read", changed)
        with pytest.raises(SourceChangedError, match=r"2\.csv changed while the build read it"):
            project.step("prepare")
    with pytest.raises(StepOrderError, match=r"2\.csv of .* changed since the inventory"):
        project.step("prepare")
    *_, report = project.steps(*STEPS)
    assert manifest(report) == project.built()


@pytest.mark.slow
@pytest.mark.parametrize("becomes", ["changed", "removed"])
def test_what_is_prepared_stays_whatever_becomes_of_the_source(
    project: Project, becomes: str
) -> None:
    expected = project.built()
    path = project.folder / "data/2.csv"
    project.steps(*STEPS[:2])
    if becomes == "removed":
        shutil.rmtree(path.parent)
    for number, name in enumerate(STEPS[2:]):
        if becomes == "changed":
            path.write_text(path.read_text().replace(f"200{number},", f"900{number},"))
        report = project.step(name)
    assert manifest(report) == expected


def test_a_file_that_was_only_touched_goes_on(project: Project) -> None:
    report = project.step("inventory")
    os.utime(project.folder / "data/2.csv", (1, 1))
    with pytest.raises(StepOrderError, match="changed since the inventory"):
        project.step("prepare")
    assert project.step("inventory").fingerprint == report.fingerprint
    assert project.step("prepare").facts["num_records"] == 200


@pytest.mark.slow
def test_a_recipe_that_changed_begins_anew(project: Project) -> None:
    project.steps(*STEPS[:4])
    project.describe(rest="splits=ss.Splits(train=0.5, validation=0.25, test=0.25),")
    for name in STEPS[1:]:
        with pytest.raises(StepOrderError, match=r"that differ: .*splits\.fractions"):
            project.step(name)
    prepared = project.steps("inventory", "prepare")[1]
    # Splits decide nothing about a run.
    assert prepared.facts["num_made"] == 0
    *_, report = project.steps(*STEPS[2:])
    assert manifest(report) == project.built()


@pytest.mark.slow
@pytest.mark.usefixtures("in_blocks")
def test_parts_in_any_order_make_what_a_build_makes(project: Project) -> None:
    num_blocks = project.step("inventory").facts["num_blocks"]
    made = [project.step("prepare", part=f"{number}/3") for number in (3, 1, 2)]
    assert [report.facts["num_made"] for report in made] == [1, 2, 1]
    assert num_blocks == 4
    assert project.step("prepare", part="1/3").reused
    with pytest.raises(StepOrderError, match="analyze needs the result of prepare"):
        project.step("analyze")
    whole = project.step("prepare")
    assert whole.facts["num_made"] == 0
    project.steps("analyze", "plan")
    project.step("write", part="2/2")
    with pytest.raises(StepOrderError, match="verify needs the result of write"):
        project.step("verify")
    project.step("write", part="1/2")
    *_, report = project.steps("verify", "publish")
    assert manifest(report) == project.built()


def test_parts_are_refused_where_there_are_none(project: Project) -> None:
    with pytest.raises(RecipeError, match="plan cannot run in parts, only prepare and write can"):
        project.step("plan", part="1/2")
    with pytest.raises(RecipeError, match="no step 'build'"):
        project.step("build")


@pytest.mark.slow  # several builds
def test_verify_sends_a_damaged_shard_back_to_write(project: Project) -> None:
    *_, written = project.steps(*STEPS[:5])
    shard = sorted(Path(written.path).glob("train-*.tfrecord"))[1]
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)
    with pytest.raises(DamagedSnapshotError, match=rf"1 of 5 shards .*{shard.name}.* step write"):
        project.step("verify")
    with pytest.raises(StepOrderError, match="verify needs the result of write"):
        project.step("verify")
    again, *_, report = project.steps(*STEPS[STEPS.index("write") :])
    assert again.facts["num_written"] == 1
    assert manifest(report) == project.built()


@pytest.mark.slow  # several builds
def test_a_shard_that_goes_after_verify_is_missed(project: Project) -> None:
    *_, verified = project.steps(*STEPS[:6])
    next(Path(verified.path).glob("test-*.tfrecord")).unlink()
    with pytest.raises(StepOrderError, match="publish needs the result of write"):
        project.step("publish")
    *_, report = project.steps(*STEPS[STEPS.index("write") :])
    assert manifest(report) == project.built()


@pytest.mark.slow  # several builds
def test_damaged_work_sends_the_chain_back_to_prepare(project: Project) -> None:
    project.steps(*STEPS[:4])
    (run,) = (project.out / "made/.work/runs").glob("*/*.arrow")
    content = bytearray(run.read_bytes())
    content[len(content) // 2] ^= 1
    run.write_bytes(content)
    with pytest.raises(DamagedWorkError, match="Run the steps again, starting with prepare"):
        project.step("write")
    with pytest.raises(StepOrderError, match="write needs the result of prepare"):
        project.step("write")
    prepared, *_, report = project.steps(*STEPS[1:])
    assert prepared.facts["num_made"] == 1
    assert manifest(report) == project.built()


@pytest.mark.slow  # several builds
@pytest.mark.parametrize(
    ("room", "needed", "step"),
    [
        ("plans", "plan", "write"),
        ("summaries", "prepare", "plan"),
        ("inventories", "inventory", "plan"),
        ("references", "inventory", "plan"),
    ],
)
def test_lost_work_names_the_step_that_makes_it(
    project: Project, room: str, needed: str, step: str
) -> None:
    project.steps(*STEPS[:4])
    for path in (project.out / "made/.work" / room).rglob("*"):
        if path.is_file():
            path.unlink()
    with pytest.raises(StepOrderError, match=f"{step} needs the result of {needed}"):
        project.step(step)
    *_, report = project.steps(*STEPS[STEPS.index(needed) :])
    assert manifest(report) == project.built()


def test_refused_rejects_refuse_each_later_step(project: Project) -> None:
    bad = project.folder / "data/0.csv"
    bad.write_text(bad.read_text() + "\nno number,1")
    project.describe(CSV.replace('label="label"', 'label="label", types={"number": "int64"}'))
    project.step("inventory")
    for _ in range(2):
        with pytest.raises(RejectsError, match="1 of 201 records"):
            project.step("prepare")
        for step in STEPS[2:]:
            with pytest.raises(RejectsError, match="1 of 201 records"):
                project.step(step)


@pytest.mark.parametrize("part", [None, "1/1"])
def test_another_inventory_meanwhile_mixes_nothing(
    project: Project, monkeypatch: pytest.MonkeyPatch, part: str | None
) -> None:
    stage = builds.stage
    project.step("inventory")

    def stage_late(*arguments: Any) -> Any:
        monkeypatch.setattr(builds, "stage", stage)
        project.add_file(4)
        assert project.step("inventory").facts["num_files"] == 5
        return stage(*arguments)

    monkeypatch.setattr(builds, "stage", stage_late)
    project.step("prepare", part=part)
    with pytest.raises(StepOrderError, match="analyze needs the result of prepare"):
        project.step("analyze")
    assert project.step("prepare").facts["num_records"] == 250


@pytest.mark.slow  # loads TensorFlow
def test_a_chain_with_an_analysis_makes_what_a_build_makes(project: Project) -> None:
    text = RECIPE.format(source=CSV, rest="preprocessing_fn=preprocess,")
    (project.folder / "recipe.py").write_text(f"{PREPROCESS}{text}")
    project.steps(*STEPS[:4])
    # A graph without its note is none.
    (graph,) = (project.out / "made/.work/graphs").iterdir()
    for path in graph.rglob("*.json"):
        path.unlink()
    with pytest.raises(StepOrderError, match="write needs the result of analyze"):
        project.step("write")
    *_, report = project.steps(*STEPS[2:])
    assert manifest(report) == project.built()


@pytest.mark.slow  # several builds
@pytest.mark.usefixtures("in_blocks")
def test_parts_share_the_first_of_several_stages(project: Project) -> None:
    (project.folder / "data/4.csv").write_text((project.folder / "data/0.csv").read_text())
    project.describe(rest="prepare=[ss.records.drop_duplicates()],")
    project.step("inventory")
    for number in (1, 2):
        project.step("prepare", part=f"{number}/2")
    whole = project.step("prepare")
    assert (whole.facts["num_blocks"], whole.facts["num_made"]) == (6, 1)
    *_, report = project.steps(*STEPS[2:])
    assert manifest(report) == project.built()


@pytest.mark.slow  # several builds
def test_a_revision_belongs_to_a_chain_as_to_a_build(project: Project) -> None:
    flag = project.folder / "out-of-memory"
    project.describe(
        rest="prepare=[ss.records.map_python(fails, {'twice': ss.Scalar('int64')})],max_rejects=10,"
    )
    path = project.folder / "recipe.py"
    path.write_text(FAILS.format(flag=str(flag)) + path.read_text())
    flag.touch()
    first = build(project.recipe, project.out)
    assert first.manifest.num_rejects == 4
    flag.unlink()
    path.write_text(path.read_text().replace("max_rejects=10,", "max_rejects=10, revision=1,"))
    again = build(project.recipe, project.out)
    assert again.manifest.num_rejects == 0
    assert again.path != first.path
    for report in project.steps(*STEPS):
        assert (report.published, report.path) == (True, again.path)
    expected = Path(again.path, "manifest.json").read_bytes()
    Path(again.path, "manifest.json").unlink()
    *_, report = project.steps(*STEPS)
    assert (report.path, manifest(report)) == (again.path, expected)


@pytest.mark.slow  # several builds
def test_a_build_and_a_chain_go_on_from_each_other(project: Project) -> None:
    project.steps(*STEPS[:5])
    snapshot = build(project.recipe, project.out)
    facts = json.loads(Path(snapshot.path, "build.json").read_bytes())
    assert (facts["blocks"]["prepared"], facts["shards"]["written"]) == (0, 0)
    report = project.step("publish")
    assert (report.reused, report.published, report.path) == (True, True, snapshot.path)


@pytest.mark.slow  # several builds
@pytest.mark.parametrize("among", ["{}", 'ss.Sources(db={}, table=ss.Csv("t.csv", label="label"))'])
def test_a_query_runs_once_in_a_chain(project: Project, among: str) -> None:
    database = project.folder / "data.db"
    connection = sqlite3.connect(database)
    connection.execute("create table t (id integer primary key, number integer, label text)")
    rows = [(row, row * 3, f"class {row % 2}") for row in range(100)]
    connection.executemany("insert into t values (?, ?, ?)", rows)
    connection.commit()
    connection.close()
    query = (
        'ss.Sql("data.db", "select * from t", key="id", label="label", '
        'types={"number": "int32", "label": ss.ClassLabel(("class 0", "class 1"))})'
    )
    (project.folder / "t.csv").write_text("number,label\n" + "1,class 0\n" * 20)
    project.describe(among.format(query))
    expected = project.built()
    project.step("inventory")
    database.unlink()
    *_, report = project.steps(*STEPS[1:])
    assert manifest(report) == expected


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Lets so many hours pass, for garbage collection."""

    def let_pass(hours: float) -> None:
        now = time.time
        monkeypatch.setattr(time, "time", lambda: now() + hours * 3600)

    return let_pass


@pytest.mark.parametrize("num_steps", [1, 2, pytest.param(5, marks=pytest.mark.slow)])
def test_garbage_collection_leaves_a_chain_under_way_alone(
    project: Project, later: Callable[[float], None], num_steps: int
) -> None:
    project.steps(*STEPS[:num_steps])
    later(7 * 24 - 1)
    report = collect_garbage(os.fspath(project.out))
    assert (report.busy, report.paths) == ((str(project.out / "made"),), ())
    later(2)
    assert collect_garbage(os.fspath(project.out)).paths
    with pytest.raises(StepOrderError, match=f"{STEPS[num_steps]} needs the result of inventory"):
        project.step(STEPS[num_steps])


@pytest.mark.slow  # several builds
def test_garbage_collection_keeps_the_inventory_of_a_published_snapshot(project: Project) -> None:
    project.steps(*STEPS)
    collect_garbage(os.fspath(project.out))
    assert project.step("prepare").published
    # Another chain that is under way keeps it out again.
    project.add_file(4)
    project.step("inventory")
    assert collect_garbage(os.fspath(project.out)).busy


@pytest.mark.slow
def test_the_command_line_says_what_was_done(project: Project, lab: Any) -> None:
    recipe, out = project.folder / "recipe.py", project.out
    missing = lab.run_cli("step", "plan", recipe, "--out", out, "--json")
    assert missing.returncode == 2
    assert "Run `snapshard step inventory` first" in missing.stderr
    first = lab.last_json(lab.run_cli("step", "inventory", recipe, "--out", out, "--json"))
    assert first["num_files"] == 4
    assert (first["reused"], first["published"], first["part"]) == (False, False, None)
    again = project.step("inventory").line()
    assert again == "inventory: nothing to do: 4 files, 1 block"
