"""Exports a snapshot's preparation as a SavedModel for serving, as far as its steps allow it.

A step that runs Python or works across records cannot be exported. Everything after the last such
step can: the model's inputs are then the features after that step. Likewise, where columns are
stacked first, a request passes the vector: thousands of inputs would take a minute to export.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

from ...schemas.features import Feature, Features
from ...schemas.manifest import FileEntry, ServingEntry, file_entry
from ...schemas.naming import SERVING, join
from ...schemas.recipe import CrossStep, Recipe, StepTraits
from ...transforms import storage
from ...transforms.code.autograph_files import keep_autograph_files
from ...transforms.examples.shards import ShardSettings
from ...transforms.prepare.engine.chain import (
    Step,
    closing_steps,
    describe,
    output_features,
    with_files,
)
from ...transforms.prepare.tables import Stack
from ..survey.survey import Survey

_CROSS = "it looks across records"


@dataclasses.dataclass(frozen=True)
class ServingPlan:
    """The part of a recipe's preparation that can be exported."""

    steps: tuple[Step, ...]
    """The exported steps."""
    features: Features
    """Features of the records before these steps: the inputs of a request."""
    obstacles: tuple[str, ...]
    """The steps that cannot be exported, and why, as text."""


def put_serving(
    survey: Survey, settings: ShardSettings
) -> tuple[ServingEntry | None, dict[str, FileEntry], dict[str, dict[str, Any]]]:
    """Exports the preparation as a SavedModel into the snapshot's folder, unless it is empty.

    Returns:
        The manifest's entry for it, including the steps that it leaves out; its files; and its
        inputs by raw name, as in ``export_serving``.
    """
    if not survey.recipe.prepare and settings.graph is None:
        return None, {}, {}
    plan = plan_serving(survey.recipe, survey.features.raw)
    inputs: dict[str, dict[str, Any]] = {}
    files: dict[str, FileEntry] = {}
    if plan.steps or settings.graph is not None:
        with storage.scratch_folder(settings.workspace.root) as scratch:
            folder = os.path.join(scratch, SERVING)
            names, inputs = export_serving(
                plan,
                prepared=settings.prepared,
                final=settings.final,
                label=settings.label,
                graph=settings.graph,
                folder=folder,
            )
            for name in names:
                with open(os.path.join(folder, name), "rb") as file:
                    content = file.read()
                path = f"{SERVING}/{name}"
                storage.put_bytes(join(settings.snapshot, path), content)
                files[path] = file_entry(content)
    if not inputs and not plan.obstacles:
        return None, {}, {}
    entry = ServingEntry(
        inputs=sorted(facts["input"] for facts in inputs.values() if facts),
        optional_inputs=sorted(_optional(inputs)),
        left_out=list(plan.obstacles),
    )
    return entry, files, inputs


def _optional(inputs: Mapping[str, Mapping[str, Any]]) -> list[str]:
    return [facts["input"] for facts in inputs.values() if facts.get("optional")]


def plan_serving(recipe: Recipe, raw: Features) -> ServingPlan:
    """Finds the steps that can be exported: all those after the last one that cannot."""
    steps: list[Step] = []
    current: dict[str, Feature] = dict(raw)
    begins = current
    obstacles = []
    for step in recipe.prepare:
        if isinstance(step, CrossStep):
            after = dict(step.features(current))
            if after != current:
                obstacles.append(f"{step!r}: {_CROSS}")
                steps, begins = [], after
            current = after
            continue
        (ready,) = with_files([step], recipe)
        traits = StepTraits.of(ready)
        current = output_features([ready], current)
        if isinstance(ready, Stack) and not steps:
            begins = current
        elif traits.export_obstacle:
            obstacles.append(f"{describe(step)}: {traits.export_obstacle}")
            steps, begins = [], current
        elif not traits.filters:
            # The model answers every request: the caller decides which records to leave out.
            steps.append(ready)
    steps += [s for s in closing_steps(current) if not StepTraits.of(s).export_obstacle]
    return ServingPlan(tuple(steps), begins, tuple(obstacles))


def export_serving(
    plan: ServingPlan,
    *,
    prepared: Features,
    final: Features,
    label: str | None,
    graph: str | None,
    folder: str,
) -> tuple[list[str], dict[str, dict[str, Any]]]:
    """Writes the SavedModel: the same preparation gives the same bytes.

    Args:
        plan: The steps to export.
        prepared: The features after the steps.
        final: The features of the examples.
        label: The feature to predict, which requests do not have.
        graph: The transform graph's folder, or None.
        folder: Destination: a local folder, which must not exist; another one next to it is used
            as scratch.

    Returns:
        The files' names, relative to the folder, and the model's inputs, as in ``build_model``.
    """
    import tensorflow as tf

    from ...transforms.analysis.canonical_graph import canonicalize_serving
    from ...transforms.analysis.graph import load_for_serving
    from ...transforms.prepare.engine.serving import build_model
    from ...transforms.storage import walk

    kept: Mapping[str, str] = {}
    transform = None
    if graph is not None:
        transform, kept = load_for_serving(graph, scratch=f"{folder}-graph")
    with tf.device("/CPU:0"):
        model, inputs = build_model(
            plan.steps,
            plan.features,
            prepared,
            label=label,
            final=final,
            kept=kept,
            transform=transform,
        )
        keep_autograph_files()
        tf.saved_model.save(model, folder, signatures={"serving_default": model.signature})
    path = os.path.join(folder, "saved_model.pb")
    _make_optional(path, _optional(inputs))
    canonicalize_serving(path)
    os.remove(os.path.join(folder, "fingerprint.pb"))
    return sorted(walk(folder)), inputs


def _make_optional(path: str, names: list[str]) -> None:
    """Gives inputs of a SavedModel's signature an empty default value, which servers fill in."""
    from tensorflow.core.protobuf import saved_model_pb2

    with open(path, "rb") as file:
        model = saved_model_pb2.SavedModel.FromString(file.read())
    for graph in model.meta_graphs:
        signature = graph.signature_def["serving_default"]
        for name in names:
            info, default = signature.inputs[name], signature.defaults[name]
            default.dtype = info.dtype
            default.tensor_shape.CopyFrom(info.tensor_shape)
            for dim in default.tensor_shape.dim:
                dim.size = max(dim.size, 0)
    with open(path, "wb") as file:
        file.write(model.SerializeToString(deterministic=True))
