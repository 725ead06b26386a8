"""The lock file of a recipe: what its data was like when it was pinned, and must be like.

``snapshard pin recipe.py`` writes ``recipe.lock.json`` beside the recipe (``inspect/pin``). Builds
then keep its order of inferred classes, with new ones last, so that the indexes that models have
learned stay; a snapshot that differs otherwise is not published.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Container, Iterable
from typing import Annotated, Any, Literal

import pydantic

from ...schemas.errors import RecipeError
from ...schemas.features import ClassLabel, Feature, Features, Sequence, features_from_json
from ...schemas.fingerprint import canonical_json, digest
from ...schemas.recipe import Recipe

_STRICT = pydantic.ConfigDict(extra="forbid", frozen=True)
_Distance = Annotated[float, pydantic.Field(ge=0, allow_inf_nan=False)]


class Thresholds(pydantic.BaseModel):
    """The distances from which on a feature has drifted: ``inspect/drift`` explains them.

    Attributes:
        categories: Largest change of a category's share, of 1.
        numbers: Jensen-Shannon divergence of numbers, in bits.
        means: Change of a mean, in standard deviations.
        missing: Change of the share of missing values, or of NaN and infinity, of 1.
    """

    model_config = _STRICT

    categories: _Distance = 0.1
    numbers: _Distance = 0.05
    means: _Distance = 0.5
    missing: _Distance = 0.05


class Lock(pydantic.BaseModel):
    """The content of a lock file.

    Attributes:
        name: The recipe's name.
        snapshot: The fingerprint of the pinned snapshot.
        thresholds: For all features.
        feature_thresholds: Those of single features that have others.
        classes: The names of each raw feature's classes, in their order.
        features: The features of the examples.
        label: The feature to predict.
        structs: The structs.
        statistics: The pinned snapshot's, as far as they are compared.
    """

    model_config = _STRICT

    format_version: Literal[1] = 1
    name: str
    snapshot: str
    thresholds: Thresholds = Thresholds()
    feature_thresholds: dict[str, Thresholds] = {}
    classes: dict[str, list[str]]
    features: dict[str, dict[str, Any]]
    label: str | None
    structs: list[str]
    statistics: dict[str, Any]

    def thresholds_of(self, feature: str) -> Thresholds:
        """The thresholds of a feature: its own, and for others those of all."""
        own = self.feature_thresholds.get(feature)
        changes = {} if own is None else own.model_dump(exclude_unset=True)
        return self.thresholds.model_copy(update=changes)

    def in_order(self, features: Features, *, kept: Container[str]) -> dict[str, Feature]:
        """Inferred features, whose classes are in the order of the lock, new ones last.

        Args:
            features: The features of the source's records.
            kept: Those whose classes stay as they are.
        """
        changed = {
            name: _in_order(feature, self.classes[name])
            for name, feature in features.items()
            if name in self.classes and name not in kept and class_names(feature)
        }
        return {**features, **changed}

    @property
    def digest(self) -> str:
        """A hash of it, for the fingerprint: the same for a snapshot that was built with it."""
        return digest(self.model_dump(mode="json", exclude={"snapshot"}))


def class_names(feature: Feature) -> tuple[str, ...]:
    """The class names of a feature, or of its items; none if integers in the data order them."""
    item = feature.of if isinstance(feature, Sequence) else feature
    return item.names if isinstance(item, ClassLabel) and item.values is None else ()


def _in_order(feature: Feature, locked: Iterable[str]) -> Feature:
    names = tuple(dict.fromkeys([*locked, *class_names(feature)]))
    if isinstance(feature, Sequence) and isinstance(feature.of, ClassLabel):
        return dataclasses.replace(feature, of=dataclasses.replace(feature.of, names=names))
    return dataclasses.replace(feature, names=names) if isinstance(feature, ClassLabel) else feature


def lock_path(recipe_file: str) -> str:
    """The path of a recipe's lock file.

    >>> lock_path("recipes/homes.py")
    'recipes/homes.lock.json'
    """
    return f"{recipe_file.removesuffix('.py')}.lock.json"


def read_lock(recipe: Recipe) -> Lock | None:
    """The lock beside the file of a recipe; None if there is none.

    Raises:
        RecipeError: if it cannot be read, is invalid, or is another recipe's.
    """
    path = lock_path(recipe.file)
    if not recipe.file.endswith(".py") or not os.path.lexists(path):
        return None
    remedy = f"Correct it; or remove it, and pin again: snapshard pin {recipe.file} --out DIR."
    try:
        with open(path, encoding="utf-8") as file:
            content = json.load(file)
        canonical_json(content)  # refuses NaN
        lock = Lock.model_validate(content)
        features_from_json(lock.features)
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise RecipeError(f"{path} is invalid: {place}: {first['msg']}. {remedy}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise RecipeError(f"{path} cannot be read: {error}. {remedy}") from None
    if unknown := sorted({*lock.feature_thresholds} - {*lock.features}):
        raise RecipeError(
            f"{path} is invalid: feature_thresholds: there is no feature {unknown[0]!r}. {remedy}"
        )
    if lock.name != recipe.name:
        raise RecipeError(
            f"{path} pins {lock.name!r}, and the recipe's name is {recipe.name!r}. {remedy}"
        )
    return lock
