"""Stages: a recipe's steps, divided at those that work across records.

A stage is a step across records (none in the first stage) and the steps on single records after
it. The first stage reads blocks of the source, later ones ranges of the stage before; all write
runs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from ...schemas.blocks import KeySpan, RawBatch
from ...schemas.config import config_class
from ...schemas.errors import RecipeError
from ...schemas.features import Feature, Features
from ...schemas.recipe import CrossStep, PrepareStep, Recipe, RecordFn, SortedRecords
from ...schemas.splits import KEY_SPACE, Splits
from ...transforms.prepare.engine.chain import output_features, stored_features, with_files
from ...transforms.prepare.records import Rename
from ...transforms.prepare.series import Windows
from ...transforms.prepare.tables import Stack
from ...transforms.runs.key_histogram import BIN_SHIFT, NUM_KEY_BINS, KeyHistogram
from ...transforms.runs.keys import order_by_key
from ...transforms.runs.partitions import check_rule

SPAN_BYTES = 64 << 20
"""Approximate size of a unit of work of a later stage."""

Step = PrepareStep | RecordFn


@dataclasses.dataclass(frozen=True)
class StageSteps:
    """The steps of a stage."""

    cross: CrossStep | None
    steps: tuple[Step, ...]


@dataclasses.dataclass(frozen=True)
class StageFeatures:
    """The features of a stage's records, after its step across records and after all steps."""

    inputs: dict[str, Feature]
    outputs: dict[str, Feature]


@config_class
class Repartition:
    """Changes no records: starts a stage in which the splits of all are known."""

    prefix_bytes = 0

    def settings(self) -> dict[str, object]:
        """Everything that affects the output, as plain JSON, for the fingerprint."""
        return {"step": "repartition"}

    def features(self, features: Features) -> Features:
        """The features, unchanged."""
        return features

    def check(self, splits: Splits) -> None:
        """Accepts any splits."""

    def order(
        self, ids: Sequence[str], columns: Any, *, features: Features, seed: int
    ) -> tuple[Any, Any]:
        """Sorts by the records' own keys."""
        del columns, features
        return order_by_key(ids, seed)

    def merge(self, records: Iterator[SortedRecords], *, features: Features) -> Iterator[RawBatch]:
        """Returns the records unchanged."""
        del features
        for part in records:
            yield RawBatch(ids=list(part.ids), columns=part.columns)


def stages_of(recipe: Recipe) -> tuple[StageSteps, ...]:
    """A recipe's stages, at least one; their steps have the files that they need.

    With splits by time in fractions, and with balanced groups, all records are needed before the
    split of any is known: if no step works across records, one is added that only assigns splits.
    """
    crosses: list[CrossStep | None] = [None]
    steps: list[list[Step]] = [[]]
    for step in recipe.prepare:
        if isinstance(step, CrossStep):
            crosses.append(step)
            steps.append([])
        else:
            steps[-1] += with_files([step], recipe)
    if len(crosses) == 1 and recipe.splits.decided_by_all:
        crosses.append(Repartition())
        steps.append([])
    return tuple(StageSteps(a, tuple(b)) for a, b in zip(crosses, steps, strict=True))


def changes_records(recipe: Recipe) -> bool:
    """Whether a step or a ``preprocessing_fn`` makes examples of what was read."""
    return bool(recipe.prepare or recipe.preprocessing_fn or recipe.transform_from)


def stage_features(
    stages: Sequence[StageSteps], raw: Features, *, prepared: Features | None = None
) -> tuple[StageFeatures, ...]:
    """The input and output features of each stage; the last outputs ``prepared``, if given.

    Raises:
        RecipeError: if a step cannot process its input features.
    """
    by_stage = []
    current = dict(raw)
    for stage in stages:
        inputs = current if stage.cross is None else dict(stage.cross.features(current))
        current = dict(output_features(stage.steps, inputs))
        by_stage.append(StageFeatures(inputs, current))
    outputs = stored_features(current) if prepared is None else dict(prepared)
    by_stage[-1] = StageFeatures(by_stage[-1].inputs, outputs)
    return tuple(by_stage)


def label_of(recipe: Recipe, features: Features) -> str | None:
    """The feature to predict among these features; None if it is not there.

    It is the one that the recipe names, else the last one that a step makes, else the source's.
    The latter two are followed through steps that rename features.

    Raises:
        RecipeError: if a step stacks the source's label, and the recipe names no other.
    """
    names = [recipe.source.label]
    for step in recipe.prepare:
        if isinstance(step, Rename):
            names = [None if name is None else step.names.get(name, name) for name in names]
        elif isinstance(step, Stack) and recipe.label is None and step.takes(names[-1]):
            raise RecipeError(
                f"prepare: {step!r} would stack the label, {names[-1]!r}. Name the other columns "
                "only, or another feature by Recipe(label=)."
            )
        names.insert(0, getattr(step, "label", None))
    # A function may make the source's label again, after a step that renamed it.
    names = [recipe.label, *names, recipe.source.label]
    return next((name for name in names if name in features), None)


def times_of(recipe: Recipe, features: Features) -> tuple[str, ...]:
    """Features that only say when a record was: no inputs of a model unless they are named.

    What a ``preprocessing_fn`` returns was named.
    """
    names: list[str] = []
    for step in recipe.prepare:
        if isinstance(step, Rename):
            names = [step.names.get(name, name) for name in names]
        elif isinstance(step, Windows) and step.time and step.time not in step.names:
            names.append(step.time)
    if recipe.preprocessing_fn is not None or recipe.transform_from is not None:
        return ()
    return tuple(name for name in names if name in features)


def check_label(recipe: Recipe, features: Iterable[str]) -> None:
    """Checks that the examples have the feature that the recipe names as its label.

    Raises:
        RecipeError: if they do not; the message lists their features.
    """
    names = sorted(features)
    if recipe.label is not None and recipe.label not in names:
        made = "preprocessing_fn returns" if recipe.preprocessing_fn else "the examples have"
        raise RecipeError(
            f"Recipe: label={recipe.label!r} is not a feature: {made} "
            f"{', '.join(map(repr, names))}. Name one of these, or make the feature in prepare= or "
            "preprocessing_fn."
        )


def check_stages(
    recipe: Recipe, stages: Sequence[StageSteps], features: Sequence[StageFeatures]
) -> None:
    """Checks that splits and steps are compatible.

    Raises:
        RecipeError: if a step across records would leak from one split into another, or cannot
            know the splits; or if the feature that decides the splits is missing.
    """
    splits = recipe.splits
    check_rule(splits, features[-1].outputs)
    of_rule = splits.rule.feature if splits.rule is not None else None
    strata = splits.stratify_by if splits.key_strata is None else None
    deciding = [name for name in (splits.group_by, strata, of_rule) if name is not None]
    for stage, before in zip(stages[1:], features, strict=False):
        assert stage.cross is not None
        stage.cross.check(splits)
        for name in deciding:
            if name in before.outputs:
                continue
            raise RecipeError(
                f"prepare: {stage.cross!r} comes before the feature {name!r}, which determines "
                "the splits, and must not mix records of different splits. Make the feature first."
            )


def plan_spans(histogram: KeyHistogram) -> tuple[KeySpan, ...]:
    """Divides all keys into ranges of about ``SPAN_BYTES``, at the edges of bins.

    There is at least one range, and a range has at least one bin, whatever its size.
    """
    size = np.zeros(NUM_KEY_BINS, np.int64)
    np.add.at(size, histogram.bin, histogram.num_bytes)
    starts, held = [0], 0
    for bin_, num_bytes in enumerate(size.tolist()):
        if held and held + num_bytes > SPAN_BYTES:
            starts.append(bin_ << BIN_SHIFT)
            held = 0
        held += num_bytes
    stops = [*starts[1:], KEY_SPACE]
    return tuple(KeySpan(start, stop) for start, stop in zip(starts, stops, strict=True))
