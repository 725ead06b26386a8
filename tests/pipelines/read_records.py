"""Reads a recipe's records as a build does: surveys the source, then reads block by block.

Without the engine, shards and a manifest: what tests ask of surveys and of workers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import snapshard as ss
from snapshard.pipelines.prepare.block_worker import RejectPayloads, RunMaker, SourceReader
from snapshard.pipelines.prepare.step import first_config
from snapshard.pipelines.recipe.shipping import carry
from snapshard.pipelines.survey.survey import Survey, take_survey
from snapshard.schemas.blocks import Block
from snapshard.schemas.naming import Workspace
from snapshard.schemas.progress import Silent
from snapshard.transforms.rejects import Dropped, Reject
from snapshard.transforms.runs.files import ID


@dataclasses.dataclass(frozen=True)
class ReadRecords:
    """What the runs of a recipe's first stage hold."""

    fingerprint: str
    records: dict[str, dict[str, Any]]
    """Record id -> its split, key and columns."""
    rejects: dict[str, Reject]
    num_excluded: int


def survey_of(recipe: ss.Recipe, folder: Path, *, limit: int | None = None) -> Survey:
    """The survey of a recipe, with a workspace in this folder."""
    return take_survey(recipe, workspace=_workspace(folder), progress=Silent(), limit=limit)


def num_to_prepare(before: Survey, after: Survey) -> int:
    """How many blocks have no run yet, where those of another survey have theirs."""
    same = before.stage_digests == after.stage_digests
    known = {block.block_id for block in before.inventory.blocks} if same else set()
    return sum(block.block_id not in known for block in after.inventory.blocks)


def read_blocks(survey: Survey, folder: Path, blocks: Iterable[Block] | None = None) -> ReadRecords:
    """Prepares the first stage of blocks of a survey, by default of all."""
    config = first_config(survey, carry(survey.recipe), _workspace(folder))
    maker, dropped = RunMaker(config), Dropped()
    records = {}
    for block in survey.inventory.blocks if blocks is None else blocks:
        for batch in maker.records(block, dropped):
            for record in batch.to_pylist():
                records[record[ID].decode("utf-8", "surrogateescape")] = record
    return ReadRecords(
        survey.fingerprint,
        records,
        {reject.record_id: reject for reject in dropped.rejects},
        survey.num_files_excluded + dropped.num_excluded,
    )


def read_raw(survey: Survey, folder: Path) -> ReadRecords:
    """Reads the blocks of a survey as its source gives them, without steps, keys and validation."""
    config = first_config(survey, carry(survey.recipe), _workspace(folder))
    reader, features = SourceReader(survey.recipe, config), config.features.inputs
    records: dict[str, dict[str, Any]] = {}
    rejects: dict[str, Reject] = {}
    for block in survey.inventory.blocks:
        payloads = RejectPayloads(
            block,
            features=features,
            numbered=survey.recipe.files.numbered,
            opened=reader.opened,
        )
        for batch in reader.read(block):
            batch.columns.validate(full=True)
            found = [reject.record_id for reject in batch.rejects] + batch.ids
            assert len(set(found) - records.keys() - rejects.keys()) == len(found)
            records |= zip(batch.ids, batch.columns.to_pylist(), strict=True)
            rejects |= {one.record_id: one for one in payloads.complete(batch.rejects, batch)}
    return ReadRecords(survey.fingerprint, records, rejects, survey.num_files_excluded)


def read_records(recipe: ss.Recipe, folder: Path) -> ReadRecords:
    """Surveys a recipe's source, then reads it."""
    return read_blocks(survey_of(recipe, folder), folder)


def _workspace(folder: Path) -> Workspace:
    return Workspace(str(folder / "work"))
