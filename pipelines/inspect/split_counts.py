"""How many records of each label every split would get, before anything is built.

Splits are found by the code that plans them. What it needs is known exactly if the sample has all
records, or if the labels of files are in their paths or in a table. Otherwise the numbers are
estimates: from the fractions, the sizes of files in the folders of splits, or the sample.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...schemas.blocks import RawBatch, SplitPlan
from ...schemas.errors import SnapshardError
from ...schemas.features import Features, Scalar
from ...schemas.naming import Workspace
from ...schemas.recipe import CrossStep
from ...transforms.rejects import Dropped
from ...transforms.runs.files import ID, KEY, PARTITION, wire_schema
from ...transforms.runs.keys import NO_PARTITION
from ...transforms.runs.partitions import (
    SplitEnds,
    count_labels,
    describe_lacking,
    is_countable,
    named_partitions,
    strata_of,
    time_ends,
)
from ...transforms.runs.summary import Summary
from ...transforms.sources.combined import SourcePart, parts_of, without_prefix
from ...transforms.sources.folders.files import LabelledFolder
from ...transforms.storage.opened_source import path_bytes
from ..plan.split_leakage import ROW, count_rows, find_leaks, split_of_rows
from ..plan.step import plan_with
from ..prepare.run_files import RunFiles, keys_suffix
from ..prepare.sort_keys import RecordKeys
from ..prepare.split_ends import find_split_ends
from ..survey.stages import label_of, stages_of
from ..survey.survey import Survey

_MAX_FILES = 1_000_000
"""Up to this many files, all labels are read: seconds, and 1 GB."""
_NO_LABEL = {"record": Scalar("int64")}
"""The feature of records of which no feature is needed: a run must have one."""

Counts = Mapping[str, int]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Counted:
    """What is known of splits and labels."""

    splits: Counts
    """Records of each split."""
    is_exact: bool = False
    """Whether these are all records that a build would have."""
    labels: Mapping[str, Counts] = dataclasses.field(default_factory=dict)
    """Records of each label by split; empty if unknown."""
    sampled: Counts = dataclasses.field(default_factory=dict)
    """Sampled records of each label."""
    shared: Counts = dataclasses.field(default_factory=dict)
    """Contents in several splits, by their names, as in the manifest."""
    warnings: tuple[str, ...] = ()


def count_exactly(
    survey: Survey, batches: Sequence[pa.RecordBatch], *, workspace: Workspace, refuse: bool
) -> Counted:
    """Counts all prepared records.

    Args:
        survey: The survey.
        batches: The records, in the form of runs.
        workspace: A place for a run.
        refuse: Whether to fail for empty splits.

    Raises:
        RecipeError: if a split would be empty, as in a build.
    """
    features = survey.features.prepared
    divided = _divide(survey, batches, features=features, workspace=workspace, refuse=refuse)
    shared = find_leaks(
        divided.summary.entries,
        divided.plans,
        workspace=workspace,
        suffix=keys_suffix(survey.recipe),
    )
    return _counted(survey, batches, divided, shared=shared)


def count_by_labels(
    survey: Survey, sampled: Sequence[pa.RecordBatch], *, workspace: Workspace, kept: float
) -> Counted | None:
    """Counts all files that are records, by labels that their paths or a table say.

    Args:
        survey: The survey.
        sampled: Prepared records of some files, in the form of runs.
        workspace: A place for runs.
        kept: The fraction of the sampled files that became records.

    Returns:
        None if the sampled records have other labels, or splits depend on more.
    """
    recipe, prepared = survey.recipe, survey.features.prepared
    splits, label = recipe.splits, label_of(recipe, prepared)
    rule = splits.rule
    of_rule = rule.feature if rule is not None else None
    named = (splits.stratify_by, splits.group_by, of_rule)
    needed = [name for name in named if name is not None]
    if label is not None and is_countable(prepared[label]):
        needed.append(label)
    features = {name: prepared[name] for name in dict.fromkeys(needed)}
    across = any(isinstance(step, CrossStep) for step in recipe.prepare)
    few = len(survey.inventory.files) <= _MAX_FILES
    parts = parts_of(recipe.files, survey.opened)
    if across or not few or not all(isinstance(part.source, LabelledFolder) for part in parts):
        return None
    if any(survey.features.raw.get(name) != feature for name, feature in features.items()):
        return None
    try:
        read = [_read_labels(survey, part, features) for part in parts]
    except SnapshardError:
        return None
    read = [raw for raw in read if raw.ids]
    if not read or not _agree(read, sampled, features):
        return None
    stored = features or _NO_LABEL
    warnings: list[str] = []
    batches = _keyed(survey, read, stored, workspace, warnings=warnings)
    divided = _divide(survey, batches, features=stored, workspace=workspace, refuse=False)
    others = prepared.keys() - features.keys()
    shared = _shared(survey, batches, divided) if len(others) == 1 and kept == 1 else {}
    counted = _counted(survey, batches, divided, shared=shared)
    counted = dataclasses.replace(counted, warnings=(*warnings, *counted.warnings))
    if kept == 1:
        return counted
    return dataclasses.replace(
        counted,
        is_exact=False,
        splits=_scaled(counted.splits, kept),
        labels={split: _scaled(counts, kept) for split, counts in counted.labels.items()},
    )


def estimate_counts(
    survey: Survey,
    sampled: Sequence[pa.RecordBatch],
    *,
    num_examples: int,
    densities: Mapping[str, float],
) -> Counted:
    """Estimates splits by fractions, by the sizes of files in their folders, or by the sample.

    Args:
        survey: The survey.
        sampled: Prepared records, in the form of runs.
        num_examples: About how many there will be.
        densities: Of tables: records per byte of the files of each source, by the prefix of their
            paths.
    """
    splits, features = survey.recipe.splits, survey.features.prepared
    rule = splits.rule
    shares = dict(splits.fractions)
    if rule is not None and (rule.by != "time" or rule.ends):
        shares = _shares_of_rule(survey, sampled, densities)
        if (of_train := splits.of_train) is not None:
            train = shares[of_train.names[0]]
            shares |= {name: train * fraction for name, fraction in of_train.fractions}
    label = label_of(survey.recipe, features)
    found: Counter[str] = Counter()
    if label is not None and is_countable(features[label]):
        for batch in sampled:
            found += count_labels(batch.column(label), features[label])
    numbers = {name: round(num_examples * shares.get(name, 0)) for name in splits.names}
    return Counted(splits=numbers, sampled=found)


def _shares_of_rule(
    survey: Survey, sampled: Sequence[pa.RecordBatch], densities: Mapping[str, float]
) -> dict[str, float]:
    """The share of each split of all records; of those that take some of train, 0."""
    splits = survey.recipe.splits
    weights = np.zeros(len(splits.names))
    if splits.rule is not None and splits.rule.by == "folder":
        files = [file for file in survey.inventory.files if not file.of]
        ids = [file.record_id for file in files]
        nothing = pa.RecordBatch.from_pylist([])
        found, _ = named_partitions(ids, nothing, splits=splits, features={})
        for file, split in zip(files, found.tolist(), strict=True):
            if split != NO_PARTITION:
                density = next(
                    (d for prefix, d in densities.items() if file.path.startswith(prefix)), 0.0
                )
                weights[split] += file.num_bytes * density if survey.recipe.files.numbered else 1
    else:
        for batch in sampled:
            weights += np.bincount(batch.column(PARTITION).to_numpy(), minlength=len(weights))
    shares = weights / max(weights.sum(), 1e-300)
    if splits.of_train is not None:  # the sample may have divided train
        names = splits.of_train.names
        indices = [splits.names.index(name) for name in names]
        shares[indices] = [shares[indices].sum(), *[0.0] * (len(names) - 1)]
    return dict(zip(splits.names, shares.tolist(), strict=True))


@dataclasses.dataclass(frozen=True, eq=False)
class _Divided:
    """Records in their splits."""

    summary: Summary
    plans: Sequence[SplitPlan]
    """Those that have records."""
    split_of: Sequence[npt.NDArray[np.int16]]
    """For each batch, each record's number into the plans; -1 where a limit excludes it."""


def _divide(
    survey: Survey,
    batches: Sequence[pa.RecordBatch],
    *,
    features: Features,
    workspace: Workspace,
    refuse: bool,
) -> _Divided:
    recipe = survey.recipe
    strata = recipe.splits.key_strata
    files = RunFiles(
        workspace,
        features,
        label=label_of(recipe, features),
        stratify_by=strata,
        suffix=keys_suffix(recipe),
    )
    summary = files.write("f" * 32, batches, dropped=Dropped(), in_order=False)
    planned = plan_with(
        recipe,
        summary,
        features=features,
        workspace=workspace,
        size_ratio=1.0,
        limit=survey.limit,
        refuse_empty=refuse,
    )
    plans = [plan for plan in planned if plan.shards]
    split_of = [
        split_of_rows(
            plans,
            partitions=batch.column(PARTITION).to_numpy(),
            keys=batch.column(KEY).to_numpy(),
            strata=strata_of(batch, features, strata),
        )
        for batch in batches
    ]
    return _Divided(summary, plans, split_of)


def _counted(
    survey: Survey,
    batches: Sequence[pa.RecordBatch],
    divided: _Divided,
    *,
    shared: Counts,
) -> Counted:
    prepared = survey.features.prepared
    name = label_of(survey.recipe, prepared)
    feature = None if name is None else prepared[name]
    sizes = dict.fromkeys(survey.recipe.splits.names, 0)
    labels: dict[str, Counter[str]] = {plan.name: Counter() for plan in divided.plans}
    for batch, split_of in zip(batches, divided.split_of, strict=True):
        for index, plan in enumerate(divided.plans):
            inside = split_of == index
            sizes[plan.name] += int(inside.sum())
            if name is not None and is_countable(feature):
                held = batch.column(name).filter(pa.array(inside))
                labels[plan.name] += count_labels(held, prepared[name])
    if not any(labels.values()):
        labels = {}
    warning = describe_lacking(labels, feature, name or "")
    return Counted(
        splits=sizes,
        is_exact=True,
        labels=labels,
        shared=shared,
        warnings=(warning,) if warning else (),
    )


def _read_labels(survey: Survey, part: SourcePart, features: Features) -> RawBatch:
    """The ids and labels of the records of a source, as those of the recipe."""
    source = part.source
    assert isinstance(source, LabelledFolder)
    files = [
        file
        for file in without_prefix(survey.inventory.files, part.prefix)
        if not file.problem and not file.unpaired
    ]
    ids, columns = source.read_labels(files, features=features, opened=part.opened)
    if not features:
        columns = {"record": pa.array(np.zeros(len(ids), np.int64))}
    return RawBatch(
        ids=[f"{part.prefix}{record_id}{part.suffix}" for record_id in ids],
        columns=pa.RecordBatch.from_pydict(dict(columns)),
    )


def _agree(read: Sequence[RawBatch], sampled: Sequence[pa.RecordBatch], features: Features) -> bool:
    """Whether the sampled records have the labels that were read, and no others."""
    row_of = {path_bytes(i): (b, row) for b in read for row, i in enumerate(b.ids)}
    names = wire_schema(features).names
    for batch in sampled:
        rows = [row_of.get(record_id) for record_id in batch.column(ID).to_pylist()]
        for name in names:
            values = batch.column(name).to_pylist()
            for at, value in zip(rows, values, strict=True):
                if at is None or at[0].columns.column(name)[at[1]].as_py() != value:
                    return False
        if None in rows:
            return False
    return True


def _keyed(
    survey: Survey,
    read: Sequence[RawBatch],
    features: Features,
    workspace: Workspace,
    *,
    warnings: list[str],
) -> list[pa.RecordBatch]:
    """The records in the form of runs, with their splits where these are partitions."""
    recipe = survey.recipe
    ends: SplitEnds | None = time_ends(recipe.splits, features)
    if recipe.splits.decided_by_all:
        following = stages_of(recipe)[1].cross
        first = RecordKeys(recipe, features, following=following, ends=None)
        files = RunFiles(workspace, features, label=None, stratify_by=None, suffix="plain")
        batches = (first.add(raw, rejects=[]) for raw in read)
        summary = files.write("e" * 32, batches, dropped=Dropped(), in_order=False)
        ends = find_split_ends(
            summary.entries,
            recipe=recipe,
            features=features,
            workspace=workspace,
            warn=warnings.append,
        )
    keys = RecordKeys(recipe, features, following=None, ends=ends)
    return [keys.add(raw, rejects=[]) for raw in read]


def _shared(survey: Survey, batches: Sequence[pa.RecordBatch], divided: _Divided) -> Counts:
    """The number of files of equal content in several splits, by the names of these."""
    contents = {
        path_bytes(file.record_id): int(file.sha256[:16], 16)
        for file in survey.inventory.files
        if not file.of and file.sha256
    }
    parts = []
    for batch, split_of in zip(batches, divided.split_of, strict=True):
        rows = np.zeros(len(batch), ROW)
        found = [contents.get(record_id) for record_id in batch.column(ID).to_pylist()]
        if None in found:
            return {}
        rows["content"], rows["split"] = found, split_of
        parts.append(rows[split_of >= 0])
    counts = count_rows(np.concatenate(parts))
    names = [plan.name for plan in divided.plans]
    return {
        ", ".join(names[split] for split in splits): number
        for splits, number in sorted(counts.items())
    }


def _scaled(counts: Counts, factor: float) -> dict[str, int]:
    return {name: round(number * factor) for name, number in counts.items()}
