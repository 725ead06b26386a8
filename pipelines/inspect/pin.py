"""Pin: writes the lock file of a recipe, and holds builds to it."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from ...schemas.errors import DamagedSnapshotError, DataError, RecipeError
from ...schemas.features import features_from_json, features_to_json
from ...schemas.naming import MANIFEST, STATISTICS, OutputPaths, join
from ...transforms import storage
from ..recipe.lock import Lock, Thresholds, class_names, lock_path, read_lock
from ..recipe.shipping import load_recipe_file
from ..snapshot import Snapshot, build_facts, read_latest
from ..survey.survey import Survey
from .drift import SHOWN, Difference, Profile, compare, difference_lines, schema_differences

_NOT_COMPARED = ("brightness", "distinct", "levels", "max", "min", "num_zeros", "rates")
"""Figures that are not compared, and not in a lock."""
_MEANS_ALONE = ("areas", "heights", "lengths", "widths")
"""Figures of which a lock has only mean and deviation."""


def pin(recipe_file: str, out: str) -> str:
    """Writes the lock of a snapshot of a recipe beside the recipe; returns its path.

    Thresholds of a lock that is there are kept.

    Args:
        recipe_file: The recipe's Python file.
        out: The output root of its builds, whose latest snapshot is pinned; or the folder of the
            snapshot.

    Raises:
        RecipeError: if it is no recipe file, or there is no such snapshot.
        StorageError: if the lock cannot be written.
    """
    if not recipe_file.endswith(".py"):
        raise RecipeError(
            f"{recipe_file} is not a recipe file, beside which a lock could be. Write one, and "
            f"build it: snapshard init {shlex.quote(recipe_file)} -o recipe.py"
        )
    recipe = load_recipe_file(recipe_file)
    build = f"snapshard build {shlex.quote(recipe_file)} --out {shlex.quote(out)}"
    if storage.exists(join(out, MANIFEST)):
        snapshot = Snapshot.open(out)
        build = f"snapshard build {shlex.quote(recipe_file)} --out DIR"
    else:
        paths = OutputPaths(storage.absolute(out), recipe.name)
        if not storage.exists(paths.latest):
            raise RecipeError(f"{paths.latest} does not exist. Build the recipe first: {build}")
        snapshot = Snapshot.open(paths.snapshot(read_latest(paths.latest)))
    if snapshot.manifest.name != recipe.name:
        raise RecipeError(
            f"{out} is a snapshot of {snapshot.manifest.name!r}, and the recipe's name is "
            f"{recipe.name!r}. Name one of its own: snapshard list DIR shows them."
        )
    raw = build_facts(snapshot.path).get("fingerprint_parts", {}).get("prepare", {}).get("raw")
    profile = Profile.of(snapshot)
    if raw is None or profile.statistics is None:
        what = "its build.json is missing or damaged" if raw is None else f"no {STATISTICS}"
        raise RecipeError(f"{snapshot.path} cannot be pinned: {what}. Build it again: {build}")
    before = read_lock(recipe)
    kept = {} if before is None else before.model_dump(exclude_unset=True)
    names = {name: class_names(feature) for name, feature in features_from_json(raw).items()}
    lock = Lock(
        name=recipe.name,
        snapshot=snapshot.manifest.fingerprint,
        thresholds=kept.get("thresholds", Thresholds()),
        feature_thresholds={
            name: limits
            for name, limits in kept.get("feature_thresholds", {}).items()
            if name in profile.features
        },
        classes={name: list(classes) for name, classes in names.items() if classes},
        features=profile.features,
        label=profile.label,
        structs=profile.structs,
        statistics={"splits": _compared(profile.statistics["splits"])},
    )
    path = lock_path(recipe_file)
    storage.put_bytes(os.path.abspath(path), _content(lock))
    return path


def _compared(splits: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of splits that are compared."""
    return {
        name: {
            "num_examples": split["num_examples"],
            "features": {
                feature: {
                    key: {"mean": value["mean"], "deviation": value["deviation"]}
                    if key in _MEANS_ALONE
                    else value
                    for key, value in facts.items()
                    if key not in _NOT_COMPARED
                }
                for feature, facts in split["features"].items()
            },
        }
        for name, split in splits.items()
    }


def _content(lock: Lock) -> bytes:
    """The file: indented for people, apart from the statistics."""
    value = lock.model_dump(mode="json", exclude={"feature_thresholds", "statistics"})
    own = {
        name: one.model_dump(exclude_unset=True) for name, one in lock.feature_thresholds.items()
    }
    text = json.dumps({**value, "feature_thresholds": own}, indent=1, ensure_ascii=False)
    statistics = json.dumps(lock.statistics, ensure_ascii=False, sort_keys=True)
    return f'{text[:-2]},\n "statistics": {statistics}\n}}\n'.encode()


def refuse_schema(survey: Survey) -> None:
    """Refuses data whose features are not those of the lock, before any record is prepared.

    A ``preprocessing_fn`` makes others: they are compared at the end. So are sizes of images, which
    are not known before.

    Raises:
        DataError: if they differ in more than classes that come last.
    """
    recipe, lock = survey.recipe, survey.lock
    changes = recipe.preprocessing_fn is not None or recipe.transform_from is not None
    if lock is None or changes or survey.limit is not None:
        return
    features = features_to_json(survey.features.prepared)
    found = schema_differences(_pinned(lock), Profile(features, lock.label, lock.structs, None))
    _refuse([difference for difference in found if difference.measure != "settings"], survey)


def refuse_drift(survey: Survey, snapshot: Snapshot) -> None:
    """Refuses a snapshot that differs from the lock, before it is published; not a sample.

    Raises:
        DataError: if it differs in more than classes that come last.
    """
    lock = survey.lock
    if lock is None or survey.limit is not None:
        return
    try:
        found = compare(_pinned(lock), Profile.of(snapshot), lock.thresholds_of)
    except DamagedSnapshotError:
        recipe_file = survey.recipe.file
        raise RecipeError(
            f"{lock_path(recipe_file)} is invalid: its statistics were edited. Remove it, and pin "
            f"again: snapshard pin {shlex.quote(recipe_file)} --out DIR."
        ) from None
    _refuse(found, survey)


def _pinned(lock: Lock) -> Profile:
    features = features_to_json(features_from_json(lock.features))  # as this version writes them
    return Profile(features, lock.label, lock.structs, lock.statistics)


def _refuse(differences: Sequence[Difference], survey: Survey) -> None:
    found = [difference for difference in differences if not difference.appends_classes]
    if not found:
        return
    recipe_file, lines = survey.recipe.file, [line for _, line in difference_lines(found)]
    listed = "\n".join(f"  {line}" for line in lines[:SHOWN])
    more = f"\n  and {len(lines) - SHOWN:,} more" if len(lines) > SHOWN else ""
    allow = (
        "allow more by the file's thresholds; or "
        if all(difference.distance is not None for difference in found)
        else ""
    )
    raise DataError(
        f"The data differs from what {lock_path(recipe_file)} pins:\n{listed}{more}\n"
        "Nothing was published, and latest.json is as before. Correct the data. If it is right, "
        f"{allow}remove the file, build, and pin again: "
        f"snapshard pin {shlex.quote(recipe_file)} --out DIR."
    )
