"""Resolving features: from what a source holds, through the steps, to what is stored.

Three sets matter: the *raw* features that the source reads, the *prepared* ones that lie in
runs (after the prepare steps, as declared), and what the examples hold in the end (after a
``preprocessing_fn``, with image sizes known from the data).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from ..schemas.blocks import ImageFacts, SourceFile
from ..schemas.errors import RecipeError, SchemaError
from ..schemas.features import ClassLabel, Feature, Features, Image, Scalar, flatten, wire_columns
from ..schemas.recipe import OpenSource, Recipe
from ..transforms.strata import is_countable
from .findings import infer_features
from .stages import stage_features, stages_of


@dataclasses.dataclass(frozen=True, kw_only=True)
class ResolvedFeatures:
    """The features before and after the prepare steps."""

    raw: dict[str, Feature]
    prepared: dict[str, Feature]
    structs: tuple[str, ...] = ()
    """Structs whose fields are among the prepared features, outer ones first."""


def resolve_features(
    recipe: Recipe, *, files: Sequence[SourceFile], opened: OpenSource
) -> ResolvedFeatures:
    """Infers the features of a source's records and holds declared ones against them.

    Raises:
        SchemaError: if the source does not have a declared feature.
        RecipeError: if the steps do not lead to the declared features, or ``stratify_by`` or
            ``group_by`` names none that can be divided by.
    """
    inferred, structs = infer_features(recipe.source, files, opened)
    declared = None if recipe.features is None else flatten(recipe.features)[0]
    if declared is None:
        raw = inferred
        prepared = _after_steps(recipe, raw)
    else:
        raw = _with_declared(inferred, declared, has_steps=bool(recipe.prepare))
        prepared = _hold_against(_after_steps(recipe, raw), declared)
    wire_columns(prepared)
    _check_divisible(recipe, prepared)
    named = dict.fromkeys([*recipe.structs, *structs])
    kept = [name for name in named if any(leaf.startswith(f"{name}.") for leaf in prepared)]
    return ResolvedFeatures(raw=raw, prepared=prepared, structs=tuple(sorted(kept)))


def _after_steps(recipe: Recipe, raw: Features) -> dict[str, Feature]:
    return stage_features(stages_of(recipe), raw)[-1].outputs


def _with_declared(
    inferred: Features, declared: Features, *, has_steps: bool
) -> dict[str, Feature]:
    """Raw features with the declared types in place of the inferred ones.

    Where steps follow, a declared type speaks of their output: only what no step may change,
    the class names and what may be missing, is taken over to the input.
    """
    if not has_steps:
        missing = sorted(set(declared) - set(inferred))
        if missing:
            raise SchemaError(
                f"The source has no feature {', '.join(map(repr, missing))}; it has "
                f"{', '.join(map(repr, inferred))}. Mend features= in the recipe."
            )
        return {
            name: inferred[name] if isinstance(inferred[name], Image) else feature
            for name, feature in declared.items()
        }

    def choose(name: str, feature: Feature) -> Feature:
        wanted = declared.get(name)
        if isinstance(feature, ClassLabel) and isinstance(wanted, ClassLabel):
            return wanted
        if isinstance(feature, Scalar) and isinstance(wanted, Scalar):
            return wanted if wanted.dtype == feature.dtype else feature
        return feature

    return {name: choose(name, feature) for name, feature in inferred.items()}


def _hold_against(prepared: Features, declared: Features) -> dict[str, Feature]:
    """The declared features, if that is what the steps give."""
    for name, wanted in declared.items():
        found = prepared.get(name)
        if found is None:
            raise RecipeError(
                f"features= declares {name!r}, and the prepare steps give only "
                f"{', '.join(map(repr, prepared))}. Mend features= or prepare=."
            )
        # Sizes of stored images are checked record by record; a file's bytes have no channels
        # until a reader decodes them.
        fits = (
            isinstance(found, Image)
            and isinstance(wanted, Image)
            and found.storage == wanted.storage
            and (found.channels == wanted.channels or found.storage == "encoded")
            and (
                not found.fixed_size or (found.height, found.width) == (wanted.height, wanted.width)
            )
        )
        if not fits and found != wanted:
            raise RecipeError(
                f"features= declares {name!r} as {wanted}, and the prepare steps give {found}. "
                "Mend one of them."
            )
    return dict(declared)


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
                f"Splits: {setting}={name!r} is {feature}; expected a class, an integer, a bool, "
                "a time or a string."
            )


def with_image_facts(features: Features, facts: Mapping[str, ImageFacts]) -> dict[str, Feature]:
    """The features with the sizes that all stored images turned out to have."""

    def sized(name: str, feature: Feature) -> Feature:
        found = facts.get(name)
        if not isinstance(feature, Image) or feature.storage == "raw" or found is None:
            return feature
        if found.height is None or found.width is None:
            return feature
        return dataclasses.replace(feature, height=found.height, width=found.width)

    return {name: sized(name, feature) for name, feature in features.items()}
