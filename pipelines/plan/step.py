"""The plan step: measures a sample, chooses the compression, and plans splits and shards.

The resulting plan is stored in the workspace, where a resumed build finds it.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import sys
from collections.abc import Callable, Sequence
from typing import Literal

from ...schemas.blocks import SplitPlan
from ...schemas.errors import DamagedWorkError, PlaceError
from ...schemas.features import Features
from ...schemas.fingerprint import digest
from ...schemas.naming import Workspace
from ...schemas.progress import Progress
from ...schemas.recipe import Recipe
from ...schemas.shards import Compression
from ...transforms import storage
from ...transforms.analysis.graph import TransformGraph, graph_info
from ...transforms.examples.shards import ShardSettings
from ...transforms.examples.sizing import SAMPLE_RUNS, lowest_records, measure_sample
from ...transforms.runs.key_histogram import BIN_BITS
from ...transforms.runs.summary import Summary, run_readers
from ...transforms.storage.artifacts import put_artifact, read_artifact
from ..inventory.sample import Limit
from ..prepare.run_files import keys_suffix
from ..prepare.split_ends import group_sizes
from ..survey.notices import sample_notices
from ..survey.survey import Survey
from .key_columns import key_columns_reader
from .ranges import empty_splits, plan_from_json, plan_splits, plan_to_json, refuse_empty_splits

GUNZIP_MB_PER_S = 130.0
"""MB/s of uncompressed examples that one core reads from a GZIP shard through TFRecordDataset.

Measured on two cores with TensorFlow 2.21, one thread, shards in the page cache (in parentheses
without GZIP): rows of 200 B, half of each compressible, 134 (212) at a ratio of 0.61; rows of
250 B of floats and repeated names 193 (246) at 0.33; raw 64×64 images of 12 kB 209 (1,419) at
0.75; JPEGs 362 (1,510). The slowest is used for all, because decompression takes time from the
trainer's own input pipeline.
"""

MIN_GAIN = 1.1
"""Minimum speedup of reading: less is within the uncertainty of the measurement."""

_NOTED_BYTES = 1 << 20


@dataclasses.dataclass(frozen=True)
class Plan:
    """The planned splits and shards, and their compression."""

    splits: tuple[SplitPlan, ...]
    compression: Compression
    gzip_ratio: float
    """GZIP bytes per uncompressed byte of a sample of the examples."""


def plan_with(
    recipe: Recipe,
    summary: Summary,
    *,
    features: Features,
    workspace: Workspace,
    size_ratio: float,
    limit: Limit | None = None,
    refuse_empty: bool = True,
) -> tuple[SplitPlan, ...]:
    """Plans splits and shards; ``size_ratio`` is stored bytes per prepared byte.

    Raises:
        PlaceError: if the runs contain other records than the summary counted.
        RecipeError: if a split would be empty, unless the recipe allows it, ``refuse_empty`` is
            False, or there is a ``limit``, as in a dry run.
    """
    reader = key_columns_reader(
        summary.entries,
        workspace=workspace,
        suffix=keys_suffix(recipe),
        bits=BIN_BITS if limit is not None else summary.histogram.bits,
    )
    try:
        plans = plan_splits(
            summary.histogram,
            splits=recipe.splits,
            shards=recipe.shards,
            size_ratio=size_ratio,
            read_keys=reader,
            limit=limit,
        )
    except PlaceError as error:
        raise PlaceError(f"{storage.redact(workspace.root)}: {error}") from None
    if limit is None and refuse_empty:
        _refuse_empty_splits(recipe, plans, summary, features=features, workspace=workspace)
    return plans


def _refuse_empty_splits(
    recipe: Recipe,
    plans: Sequence[SplitPlan],
    summary: Summary,
    *,
    features: Features,
    workspace: Workspace,
) -> None:
    splits, num_groups = recipe.splits, None
    counts = {plan.name: sum(shard.num_examples for shard in plan.shards) for plan in plans}
    if splits.allow_empty or not empty_splits(splits, counts):
        return
    # What follows reads the facts of all runs, and of all groups, but only for the error.
    if splits.group_by is not None:
        groups = group_sizes(summary.entries, splits=splits, features=features, workspace=workspace)
        num_groups = None if groups is None else len(groups)
    num_rejects = sum(entry.run.num_rejects for entry in summary.entries)
    refuse_empty_splits(splits, counts, num_groups=num_groups, num_rejects=num_rejects)


def contents_digest(summary: Summary, graph: str | None) -> str:
    """Digest of what a plan and its shards are made of: the contents of the runs and of the graph.

    Raises:
        DamagedWorkError: if the graph is missing or damaged.
    """
    return digest([summary.contents, None if graph is None else graph_info(graph).digest])


def make_plan(
    survey: Survey,
    summary: Summary,
    graph: str | None,
    *,
    workspace: Workspace,
    progress: Progress,
) -> Plan:
    """Makes sure that the workspace has the plan of a snapshot.

    Args:
        survey: The survey.
        summary: Of the final runs.
        graph: The transform graph's folder, if there is one.
        workspace: Destination of the plan.
        progress: Receives that the step begins and ends.

    Raises:
        PlaceError: if the runs contain other records than the summary counted.
        RecipeError: if a split would be empty, unless the recipe allows it.
        DamagedWorkError: if the graph is missing or damaged.
    """
    progress.start("plan", total=None, unit="shards")
    plan = find_plan(workspace, survey.fingerprint, contents_digest(summary, graph))
    reused = plan is not None
    if plan is None:
        plan = _plan(survey, summary, graph, workspace=workspace, warn=progress.warn)
    elif survey.limit is None:
        _refuse_empty_splits(
            survey.recipe,
            plan.splits,
            summary,
            features=survey.features.prepared,
            workspace=workspace,
        )
    num_shards = sum(len(split.shards) for split in plan.splits)
    note = f"{num_shards:,} shard" + ("" if num_shards == 1 else "s")
    note += f", {describe_compression(plan.compression, ratio=plan.gzip_ratio)}"
    counts = {split.name: len(split.shards) for split in plan.splits}
    if empty := empty_splits(survey.recipe.splits, counts):
        note += f", no record in {' and '.join(empty)}"
    progress.finish("plan", reused=reused, note=note)
    return plan


def _plan(
    survey: Survey,
    summary: Summary,
    graph: str | None,
    *,
    workspace: Workspace,
    warn: Callable[[str], None],
) -> Plan:
    """Plans splits and shards, and puts the plan into the workspace."""
    recipe = survey.recipe
    runs = summary.table.of_lowest_keys(SAMPLE_RUNS)
    sample = lowest_records(
        run_readers(runs, workspace, survey.features.prepared), range(len(recipe.splits.names))
    )
    for notice in sample_notices([sample], survey) if sample is not None else ():
        warn(notice)
    choose = functools.partial(
        choose_compression,
        recipe.shards.compression,
        read_mb_per_s=recipe.shards.read_mb_per_s,
    )
    sizes = measure_sample(
        sample,
        prepared=survey.features.prepared,
        apply_graph=None if graph is None else TransformGraph(graph).apply,
        # If no ratio would change the choice, it is only for the note: compressing is slow.
        gzip_bytes=None if choose(ratio=sys.float_info.min) == "gzip" else _NOTED_BYTES,
    )
    compression = choose(ratio=sizes.gzip_ratio)
    size_ratio = sizes.graph_ratio * (sizes.gzip_ratio if compression == "gzip" else 1.0)
    plans = plan_with(
        recipe,
        summary,
        features=survey.features.prepared,
        workspace=workspace,
        size_ratio=size_ratio,
        limit=survey.limit,
    )
    plan = Plan(plans, compression, sizes.gzip_ratio)
    value = {
        "compression": compression,
        "gzip_ratio": sizes.gzip_ratio,
        "splits": plan_to_json(plans),
    }
    url, content = workspace.plan(survey.fingerprint), json.dumps(value, sort_keys=True)
    what = _what(survey.fingerprint, contents_digest(summary, graph))
    put_artifact(url, content.encode(), what=what)
    return plan


def find_plan(workspace: Workspace, fingerprint: str, contents: str) -> Plan | None:
    """The plan that the workspace has of a snapshot of these contents.

    None if it is missing, damaged, or of other contents.
    """
    content = read_artifact(workspace.plan(fingerprint), what=_what(fingerprint, contents))
    if content is None:
        return None
    value = json.loads(content)
    return Plan(plan_from_json(value["splits"]), value["compression"], value["gzip_ratio"])


def plan_of(settings: ShardSettings) -> Plan:
    """The plan by which a snapshot's shards are written.

    Raises:
        DamagedWorkError: if it is missing or damaged.
    """
    workspace, fingerprint = settings.workspace, settings.fingerprint
    plan = find_plan(workspace, fingerprint, settings.contents)
    if plan is None:
        raise DamagedWorkError(
            f"{storage.redact(workspace.plan(fingerprint))} is missing or damaged. Start the build "
            "again to recreate it."
        )
    return plan


def _what(fingerprint: str, contents: str) -> str:
    return f"plan-5 {fingerprint} {contents}"


def choose_compression(
    setting: Literal["auto", "none", "gzip"], *, ratio: float, read_mb_per_s: float
) -> Compression:
    """Chooses the compression of shards.

    Uncompressed shards are read at the storage's speed; GZIP shards at the storage's speed divided
    by the ratio, but no faster than one core decompresses. "auto" chooses GZIP if that is at least
    1.1 times as fast: with storage of up to 118 MB/s, if the ratio is small enough. From the
    default of 200 MB/s (a local SSD, or an object store read in parallel) upwards, it never is.
    Nothing is timed and no storage is accessed, so the choice is the same everywhere.

    Args:
        setting: ``Shards.compression``.
        ratio: GZIP bytes per uncompressed byte of a sample of the examples; positive.
        read_mb_per_s: ``Shards.read_mb_per_s``.

    >>> choose_compression("auto", ratio=0.5, read_mb_per_s=200)
    'none'
    >>> choose_compression("auto", ratio=0.5, read_mb_per_s=50)
    'gzip'
    >>> choose_compression("auto", ratio=0.95, read_mb_per_s=50)
    'none'
    """
    if setting != "auto":
        return setting
    unpacked_mb_per_s = min(read_mb_per_s / ratio, GUNZIP_MB_PER_S)
    return "gzip" if unpacked_mb_per_s >= MIN_GAIN * read_mb_per_s else "none"


def describe_compression(compression: Compression, *, ratio: float) -> str:
    """What was chosen, and what GZIP saves, for people.

    >>> describe_compression("none", ratio=0.77), describe_compression("gzip", ratio=0.5)
    ('uncompressed (GZIP would save 23 %)', 'GZIP (saves 50 %)')
    """
    saved = f"{max(0.0, 1 - ratio):.0%}".replace("%", " %")
    if compression == "gzip":
        return f"GZIP (saves {saved})"
    return f"uncompressed (GZIP would save {saved})"
