"""A unit of work becomes a run: read once, from what was listed, and every record accounted for."""

import dataclasses
import hashlib
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import snapshard as ss
from snapshard.pipelines.prepare.block_worker import PrepareConfig, RunMaker, StageKey
from snapshard.pipelines.prepare.run_files import run_rejects
from snapshard.pipelines.recipe.shipping import carry
from snapshard.pipelines.survey.stages import stage_features, stages_of
from snapshard.schemas.blocks import Block, FileRange, KeySpan
from snapshard.schemas.errors import SourceChangedError, StorageError
from snapshard.schemas.naming import Workspace
from snapshard.schemas.splits import KEY_SPACE
from snapshard.transforms.code.dependencies import read_dependencies
from snapshard.transforms.code.digest import CodeHashes
from snapshard.transforms.rejects import Dropped, iterate_rejects
from snapshard.transforms.runs.keys import text_keys
from snapshard.transforms.runs.partitions import GroupSplits, SplitEnds
from snapshard.transforms.runs.summary import read_summary, write_summary
from snapshard.transforms.storage.opened_source import open_source

SUMMARY = "5" * 32


class Project:
    """A CSV file of times, and what its runs are made with."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.file, self.workspace = folder / "t.csv", Workspace(str(folder / "work"))
        self.write("t,n\n3,0\n1,0\n,0\n2,0\n")
        features = {"t": ss.Scalar("int64", optional=True), "n": ss.Scalar("int64")}
        source = ss.Csv(str(self.file), types=features)
        self.recipe = ss.Recipe(name="made", source=source, **options)
        self.stages = stage_features(stages_of(self.recipe), features)
        self.config = PrepareConfig(
            staged=carry(self.recipe),
            folder=str(folder),
            workspace=self.workspace,
            features=self.stages[0],
            key=StageKey(digest="first"),
            dependencies=read_dependencies(self.recipe, CodeHashes.of(self.recipe)),
        )

    def write(self, text: str) -> None:
        self.file.write_text(text)

    def block(self) -> Block:
        """The file as it is now."""
        (found,) = open_source(str(self.file), ".").list()
        digest = hashlib.sha256(self.file.read_bytes()).hexdigest()
        part = FileRange(
            path=found.path, sha256=digest, start=0, stop=found.num_bytes, stamp=found.stamp
        )
        return Block((part,))


def test_a_run_that_exists_is_not_made_again(tmp_path: Path) -> None:
    project = Project(tmp_path, splits=ss.Splits(train=1.0))
    block = project.block()
    made = RunMaker(project.config).make(block)
    assert made.num_records == 4
    project.write("t,n\n7,7\n")
    again = RunMaker(project.config).make(block)
    assert again.entries == made.entries
    with pytest.raises(SourceChangedError):
        RunMaker(dataclasses.replace(project.config, key=StageKey(digest="other"))).make(block)


@pytest.mark.parametrize("lost", ["run_info", "run"])
def test_a_run_that_lost_a_file_is_made_again(tmp_path: Path, lost: str) -> None:
    project = Project(tmp_path, splits=ss.Splits(train=1.0))
    (entry,) = RunMaker(project.config).make(project.block()).entries
    path = Path(getattr(project.workspace, lost)(entry.run.run_id))
    content = path.read_bytes()
    path.unlink()
    (again,) = RunMaker(project.config).make(project.block()).entries
    assert again == entry
    assert path.read_bytes() == content


def test_records_of_python_functions_are_counted_some_at_a_time(tmp_path: Path) -> None:
    step = ss.records.map_python(lambda record: {"m": record["n"]}, {"m": ss.Scalar("int64")})
    project = Project(tmp_path, prepare=[step], splits=ss.Splits(train=1.0))
    project.write("t,n\n" + "1,2\n" * 2500)
    parts = [*RunMaker(project.config).records(project.block(), Dropped())]
    assert [part.num_rows for part in parts] == [1024, 1024, 452]


def test_a_source_that_changes_while_it_is_read_makes_no_run(tmp_path: Path) -> None:
    project = Project(tmp_path, splits=ss.Splits(train=1.0))
    records = RunMaker(project.config).records(project.block(), Dropped())
    assert next(records).num_rows == 4
    project.write("t,n\n4,0\n")
    with pytest.raises(SourceChangedError, match=r"t\.csv"):
        list(records)


def test_a_dependency_that_changes_meanwhile_makes_no_run(tmp_path: Path) -> None:
    words = tmp_path / "words.txt"
    words.write_text("one")
    project = Project(tmp_path, splits=ss.Splits(train=1.0), depends_on=[str(words)])
    records = RunMaker(project.config).records(project.block(), Dropped())
    next(records)
    other = tmp_path / "other"
    other.write_text("two")
    os.replace(other, words)
    with pytest.raises(StorageError, match=r"words\.txt"):
        list(records)


@pytest.mark.parametrize(
    ("splits", "ends", "reason"),
    [
        (ss.Splits.by_time("t", train=0.5, test=0.5), (3,), "no split"),
        (
            ss.Splits(train=0.5, test=0.5, group_by="t", assign="balanced"),
            GroupSplits.of(np.sort(text_keys([b"1", b"2", b"3", b"4"], 0)), [0, 0, 1, 1]),
            "no group",
        ),
    ],
)
def test_records_that_no_split_takes_are_rejects(
    tmp_path: Path, splits: ss.Splits, ends: SplitEnds, reason: str
) -> None:
    """Of a stage that reads the runs of the one before, here a record without a time."""
    project = Project(tmp_path, splits=splits)
    write_summary(RunMaker(project.config).make(project.block()), project.workspace, SUMMARY)
    assert read_summary(project.workspace, SUMMARY).num_records == 4
    config = dataclasses.replace(
        project.config,
        features=project.stages[1],
        key=StageKey(digest="second"),
        stage=1,
        previous_summary=SUMMARY,
        given=project.stages[0].outputs,
        ends=ends,
    )
    made = RunMaker(config).make(KeySpan(0, KEY_SPACE))
    (entry,) = made.entries
    assert made.num_records == 3
    assert entry.run.rejects_by_stage == {"split": 1}
    (reject,) = iterate_rejects(run_rejects(project.workspace, entry.run))
    assert (reject.record_id, reject.reason) == ("t.csv#12", reason)
    assert reject.payload == b'{"n": 0, "t": null}'
