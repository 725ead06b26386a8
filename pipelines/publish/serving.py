"""Exporting a snapshot's preparation for serving: which steps can be, and the SavedModel of them.

A step that runs Python, or that looks across records, cannot be exported. What comes after the last
such step can: the model then begins with the features that are there by then.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping

from ...schemas.features import Feature, Features
from ...schemas.manifest import FileEntry, ServingEntry, file_entry
from ...schemas.naming import SERVING, join
from ...schemas.recipe import CrossStep, Recipe
from ...schemas.step_traits import StepTraits
from ...transforms import storage
from ...transforms.analysis.autograph_files import keep_autograph_files
from ...transforms.examples.shards import ShardSettings
from ...transforms.prepare.engine.chain import Step, closing_steps, describe, output_features
from ...transforms.prepare.engine.step_files import with_files
from ..inventory.survey import Survey

_CROSS = "it looks across records"


@dataclasses.dataclass(frozen=True)
class ServingPlan:
    """What of a recipe's preparation can be exported."""

    steps: tuple[Step, ...]
    """Those that the model holds."""
    features: Features
    """Of the records before them: what a request gives."""
    obstacles: tuple[str, ...]
    """The steps that it does not hold, and why, in words."""


def put_serving(
    survey: Survey, settings: ShardSettings
) -> tuple[ServingEntry | None, dict[str, FileEntry]]:
    """Exports the preparation as a SavedModel into the snapshot's folder, where it does anything.

    Returns:
        What the manifest says of it, what it leaves out included, and its files.
    """
    if not survey.recipe.prepare and settings.graph is None:
        return None, {}
    plan = plan_serving(survey.recipe, survey.features.raw)
    inputs: dict[str, bool] = {}
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
        return None, {}
    entry = ServingEntry(
        inputs=sorted(inputs),
        optional_inputs=sorted(name for name, optional in inputs.items() if optional),
        left_out=list(plan.obstacles),
    )
    return entry, files


def plan_serving(recipe: Recipe, raw: Features) -> ServingPlan:
    """Finds what can be exported: everything after the last step that cannot be."""
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
        if traits.export_obstacle:
            obstacles.append(f"{describe(step)}: {traits.export_obstacle}")
            steps, begins = [], current
        elif not traits.filters:
            # A request is always answered: what a build leaves out is for the caller to tell.
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
) -> tuple[list[str], dict[str, bool]]:
    """Writes the SavedModel: the same preparation gives the same bytes.

    Args:
        plan: What to export.
        prepared: The features after the steps.
        final: The features that the examples hold.
        label: The feature to predict, which requests do not have.
        graph: The transform graph's folder, or None.
        folder: Where to: a local folder, which must not exist; one beside it is scratch.

    Returns:
        The files' names, relative to the folder, and the model's inputs: whether each may be left
        out of a request.
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
    _let_leave_out(path, [name for name, optional in inputs.items() if optional])
    canonicalize_serving(path)
    os.remove(os.path.join(folder, "fingerprint.pb"))
    return sorted(walk(folder)), inputs


def _let_leave_out(path: str, names: list[str]) -> None:
    """Gives inputs of a SavedModel's signature a default of length zero, which servers fill in."""
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
