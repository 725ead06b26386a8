"""Resolves features: from those of a source, through the steps, to those of the examples.

There are three sets: the *raw* features that the source reads, the *prepared* ones in the runs
(after the prepare steps, as declared), and those of the examples (after a ``preprocessing_fn``,
with image sizes known from the data).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from ...schemas.blocks import ImageFacts
from ...schemas.errors import RecipeError, SchemaError
from ...schemas.features import (
    Audio,
    ClassLabel,
    Feature,
    Features,
    Image,
    Mask,
    Scalar,
    Sequence,
    Tensor,
    TensorForm,
    Timestamp,
    check_masks,
    flatten,
    frames_of,
    is_encoded,
    is_optional,
    mask_name,
    tensor_form,
    wire_columns,
    written,
)
from ...schemas.recipe import PrepareStep, Recipe
from ...transforms.prepare.engine.chain import output_features
from ...transforms.prepare.engine.user_functions import describe, names_read
from ...transforms.prepare.records import Filter, Rename
from ...transforms.prepare.tables import Missing
from ...transforms.runs.partitions import is_countable
from .inference_cache import Inferred
from .stages import stage_features, stages_of


@dataclasses.dataclass(frozen=True, kw_only=True)
class ResolvedFeatures:
    """The features before and after the prepare steps."""

    raw: dict[str, Feature]
    prepared: dict[str, Feature]
    structs: tuple[str, ...] = ()
    """Structs whose fields are among the prepared features, outer ones first."""
    undeclared: tuple[str, ...] = ()
    """Features that the examples would have, too, if the recipe declared none."""


def resolve_features(recipe: Recipe, inferred: Inferred) -> ResolvedFeatures:
    """Follows the features of a source's records through the steps, and checks declared ones.

    Raises:
        SchemaError: if the source does not have a declared feature.
        RecipeError: if the steps do not lead to the declared features, or ``stratify_by`` or
            ``group_by`` names none that can be divided by.
    """
    features = inferred.features
    declared = None if recipe.features is None else flatten(recipe.features)[0]
    if declared is None:
        raw = features
        given = prepared = _after_steps(recipe, raw)
    else:
        raw = _raw_features(recipe, features, declared)
        given = _after_steps(recipe, raw)
        prepared = _checked_against(given, declared)
        given = (
            given if recipe.prepare else dict(features)
        )  # a column that is not declared is not read
    seen = _refuse_unseen_gaps(recipe, raw, declared or {})
    _refuse_unseen_lists(recipe, prepared, seen)
    wire_columns(prepared)
    check_masks(prepared)
    _check_divisible(recipe, prepared)
    named = dict.fromkeys([*recipe.structs, *inferred.structs])
    kept = [name for name in named if any(leaf.startswith(f"{name}.") for leaf in prepared)]
    return ResolvedFeatures(
        raw=raw,
        prepared=prepared,
        structs=tuple(sorted(kept)),
        undeclared=tuple(name for name in given if name not in prepared),
    )


def _after_steps(recipe: Recipe, raw: Features) -> dict[str, Feature]:
    return stage_features(stages_of(recipe), raw)[-1].outputs


def _refuse_unseen_gaps(recipe: Recipe, raw: Features, declared: Features) -> set[str]:
    """Refuses functions that would mistake the fill of a missing value for a real value.

    A missing class is -1, a missing time NaT, a missing float NaN: a function can distinguish
    these. For other values it can if ``ss.tables.missing`` comes before it. If a feature is
    declared as required and no step fills it, a record without a value is rejected after the steps.

    Returns:
        The features after the steps for which a function can distinguish missing values.
    """
    stages = stages_of(recipe)
    features = stage_features(stages, raw)
    after = features[-1].outputs
    seen = {
        name
        for name, wanted in declared.items()
        if not is_optional(wanted) and name in after and is_optional(after[name])
    }
    for stage, between in zip(stages, features, strict=True):
        current: Features = between.inputs
        for step in stage.steps:
            if isinstance(step, Missing):
                seen.add(step.name)
            elif isinstance(step, Rename):
                seen = {step.names.get(name, name) for name in seen}
            elif isinstance(step, Filter) or not isinstance(step, PrepareStep):
                unseen = {
                    name
                    for name, feature in current.items()
                    if mask_name(name, feature) and name not in seen
                    if not isinstance(feature, ClassLabel | Timestamp)
                }
                for name in sorted(unseen & names_read(step, current) if unseen else ()):
                    where = f"prepare: {describe(step)}"
                    raise RecipeError(_say_unseen(where, name, current[name]))
            if step is not stage.steps[-1]:
                current = output_features([step], current)
    return seen


def _refuse_unseen_lists(recipe: Recipe, prepared: Features, seen: set[str]) -> None:
    """Refuses a ``preprocessing_fn`` that would mistake a missing list for an empty one.

    A missing single value has no entry in its sparse tensors; a missing list is an empty row of a
    ragged tensor. A feature that it returns unchanged stays missing.
    """
    unseen = {
        name
        for name, feature in prepared.items()
        if mask_name(name, feature) and name not in seen
        if (form := tensor_form(feature)) is not None and form.shape
    }
    if recipe.preprocessing_fn is None or not unseen:
        return
    # tensorflow-transform: seconds, and only for this
    from ...transforms.analysis.analyze import trace

    for name in sorted(unseen & trace(recipe.preprocessing_fn, prepared).read):
        raise RecipeError(_say_unseen("preprocessing_fn", name, prepared[name]))


def _say_unseen(where: str, name: str, feature: Feature) -> str:
    form = tensor_form(feature)
    assert form is not None
    stands = "an empty list" if form.shape else repr(form.fill)
    return (
        f"{where} reads {name!r}, which may be missing, and gets {stands} then, as if it "
        f"were a value. Before it, put one there (ss.tables.fill({written(name)}, …)), or let it "
        f"tell (ss.tables.missing({written(name)}, {written(f'{name}_missing')})). Or state what "
        f"a missing value reads as, by default= of the type of {name!r}."
    )


def _raw_features(recipe: Recipe, inferred: Features, declared: Features) -> dict[str, Feature]:
    if not recipe.prepare:
        return _with_declared(inferred, declared)
    raw = _before_steps(inferred, declared)
    return _converted(raw, _after_steps(recipe, raw), declared)


def _with_declared(inferred: Features, declared: Features) -> dict[str, Feature]:
    """Raw features of a source without steps: the declared ones."""
    missing = sorted(set(declared) - set(inferred))
    if missing:
        raise SchemaError(
            f"The source has no feature {', '.join(map(repr, missing))}; it has "
            f"{', '.join(map(repr, inferred))}. Correct features= in the recipe."
        )
    raw: dict[str, Feature] = {}
    for name, wanted in declared.items():
        actual = inferred[name]
        if not _can_be_read_as(actual, wanted):
            raise RecipeError(
                f"features= declares {name!r} as {written(wanted)}, and the source has "
                f"{written(actual)}, which it cannot read so. Declare that, or add steps."
            )
        if isinstance(actual, Audio) and isinstance(wanted, Audio) and is_encoded(actual):
            # Files are compared with the declaration before they are decoded.
            raw[name] = dataclasses.replace(wanted, storage="encoded")
        else:
            raw[name] = actual if isinstance(actual, Image) or is_encoded(actual) else wanted
            raw[name] = _as_declared(actual, wanted) or raw[name]
    return raw


def _can_be_read_as(found: Feature, wanted: Feature) -> bool:
    """Whether a source may try: bytes may contain anything, single values are not lists."""
    forms = tensor_form(found), tensor_form(wanted)
    if frames_of(found) is not None:
        return frames_of(wanted) is not None
    if forms[0] is None or forms[1] is None:
        holds_bytes = forms[0] is not None and (forms[0].dtype, forms[0].shape) == ("string", ())
        is_mask = isinstance(_as_declared(found, wanted), Mask)
        return holds_bytes or is_mask or type(found) is type(wanted)
    if isinstance(wanted, Audio) and wanted.rate is None and not isinstance(found, Audio):
        return False  # nothing but a sound file says its rate
    if (forms[0].dtype, forms[0].shape) == ("string", ()):
        return True
    return bool(forms[0].shape) == bool(forms[1].shape)


def _before_steps(inferred: Features, declared: Features) -> dict[str, Feature]:
    """Raw features with what no step may change: class names, what may be missing, its default.

    A declared type speaks of the steps' output, and so do limits.
    """

    def choose(name: str, found: Feature) -> Feature:
        wanted = declared.get(name)
        image = _as_declared(found, wanted)
        if image is not None:
            return image
        if wanted is None or type(wanted) is not type(found):
            return found
        if isinstance(wanted, ClassLabel):
            found = wanted
        if hasattr(wanted, "default") and _dtype_of(wanted) == _dtype_of(found):
            found = _with(found, default=wanted.default)
        if is_optional(wanted) or is_optional(inferred[name]):
            found = _with(found, optional=True)
        return found

    return {name: choose(name, feature) for name, feature in inferred.items()}


def _as_declared(found: Feature, wanted: Feature | None) -> Image | None:
    """An image that the source reads as the declared mask, or with all its bits; else None."""
    if not isinstance(wanted, Image) or not isinstance(found, Image):
        return None
    if not isinstance(wanted, Mask):
        deeper = wanted.dtype == "uint16" and found.storage == "encoded"
        return dataclasses.replace(found, dtype=wanted.dtype) if deeper else None
    if found.storage == "raw" and found.channels != 1:
        return None
    return dataclasses.replace(
        wanted, height=found.height, width=found.width, storage=found.storage
    )


def _dtype_of(feature: Feature) -> str | None:
    form = tensor_form(feature)
    return None if form is None else form.dtype


def _converted(raw: Features, prepared: Features, declared: Features) -> dict[str, Feature]:
    """Raw features, of the declared type where the steps leave a feature as it came.

    The source then converts, as it does without steps.
    """

    def choose(name: str, found: Feature) -> Feature:
        wanted = declared.get(name)
        if wanted is None or prepared.get(name) != found or _fits(found, wanted):
            return found
        if not _can_be_read_as(found, wanted):
            return found
        if is_optional(wanted) or (is_optional(found) and hasattr(wanted, "optional")):
            return _with(_bare(wanted), optional=True, default=getattr(wanted, "default", None))
        return _bare(wanted)

    return {name: choose(name, feature) for name, feature in raw.items()}


def _checked_against(prepared: Features, declared: Features) -> dict[str, Feature]:
    """The declared features, if they fit what the steps give."""
    for name, wanted in declared.items():
        actual = prepared.get(name)
        if actual is None:
            raise RecipeError(
                f"features= declares {name!r}, and the prepare steps give only "
                f"{', '.join(map(repr, prepared))}. Correct features= or prepare=."
            )
        if not _fits(actual, wanted):
            raise RecipeError(
                f"features= declares {name!r} as {written(wanted)}, and the prepare steps give "
                f"{written(actual)}. Correct one of them{_hint(name, actual, wanted)}."
            )
    return dict(declared)


def _hint(name: str, found: Feature, wanted: Feature) -> str:
    """How to get from one dtype to another."""
    forms = tensor_form(found), tensor_form(wanted)
    if isinstance(wanted, ClassLabel) and wanted.numbered:
        return ": steps give the index of a class, 0, 1, 2 …"
    if forms[0] is None or forms[1] is None or forms[0].dtype == forms[1].dtype:
        return ""
    return f", or add ss.tables.cast({written(name)}, {written(forms[1].dtype)}) to prepare="


def _fits(found: Feature, wanted: Feature) -> bool:
    """Whether prepared values are stored as a declaration says; validation checks the rest.

    Sizes of stored images are checked record by record; a file's bytes have no channels until a
    reader decodes them. Plain values may be declared to be more: texts, classes, times, boxes.
    """
    if isinstance(found, Image) and isinstance(wanted, Image):
        return (
            isinstance(found, Mask) == isinstance(wanted, Mask)
            and (found.storage, found.dtype) == (wanted.storage, wanted.dtype)
            and (found.channels == wanted.channels or found.storage == "encoded")
            and (
                not found.fixed_size or (found.height, found.width) == (wanted.height, wanted.width)
            )
        )
    frames = frames_of(found), frames_of(wanted)
    if frames[0] is not None and frames[1] is not None:
        return _fits(frames[0], frames[1])
    if _bare(found) == _bare(wanted):
        return True
    item = found.of if isinstance(found, Sequence) else found
    if not isinstance(item, Scalar | Tensor) or isinstance(wanted, Audio | Image):
        return False
    if isinstance(wanted, ClassLabel) and wanted.numbered:
        return False  # a source converts its values to indices, a step does not
    forms = tensor_form(found), tensor_form(wanted)
    return all(form is not None for form in forms) and len({_plain(form) for form in forms}) == 1


def _plain(form: TensorForm | None) -> object:
    return None if form is None else (form.dtype, form.shape)


def _bare(feature: Feature) -> Feature:
    """A feature without its limits, default, and whether it may be missing."""
    unset = {"min": None, "max": None, "values": None, "finite": False, "max_length": None}
    unset |= {"optional": False, "default": None}
    fields = {field.name for field in dataclasses.fields(feature)}
    changes: dict[str, Any] = {name: value for name, value in unset.items() if name in fields}
    if isinstance(feature, Tensor):
        changes["names"] = None
    if isinstance(feature, ClassLabel):
        del changes["values"]  # what its integers mean is no limit
    if isinstance(feature, Sequence):
        changes["of"] = _bare(feature.of)
    return _with(feature, **changes)


def _with(feature: Feature, **changes: Any) -> Feature:
    """A feature with other settings, which its type has."""
    changed: Feature = dataclasses.replace(feature, **changes)
    return changed


def _check_divisible(recipe: Recipe, features: Features) -> None:
    for setting in ("stratify_by", "group_by"):
        name = getattr(recipe.splits, setting)
        if name is None:
            continue
        feature = features.get(name)
        if feature is None:
            raise RecipeError(
                f"Splits: {setting}={name!r} names no feature; there are "
                f"{', '.join(map(repr, features))}."
            )
        if not is_countable(feature):
            raise RecipeError(
                f"Splits: {setting}={name!r} is {written(feature)}; expected a class, an integer, "
                "a bool, a time or a string."
            )


def with_image_facts(features: Features, facts: Mapping[str, ImageFacts]) -> dict[str, Feature]:
    """The features with the sizes that all stored images turned out to have."""

    def sized(name: str, feature: Feature) -> Feature:
        header, frame = facts.get(name), frames_of(feature)
        if header is None or header.height is None or header.width is None:
            return feature
        if frame is not None:
            sized = dataclasses.replace(frame, height=header.height, width=header.width)
            return _with(feature, of=sized)
        if not isinstance(feature, Image) or feature.storage == "raw":
            return feature
        return dataclasses.replace(feature, height=header.height, width=header.width)

    return {name: sized(name, feature) for name, feature in features.items()}
