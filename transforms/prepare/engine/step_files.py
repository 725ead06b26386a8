"""Reads and hashes files that steps need (vocabularies, tokenizers), and passes them to the steps.

Only their content enters the fingerprint, not their path. The recipe carries the contents to its
workers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import TypeVar

from ....schemas.errors import RecipeError
from ....schemas.recipe import Recipe
from ....schemas.step_traits import StepTraits
from ...code.digest import step_digest
from ...storage.opened_source import open_source

_Step = TypeVar("_Step")


def read_step_files(recipe: Recipe) -> dict[str, bytes]:
    """Reads the files of all steps and stores them in the recipe.

    Raises:
        RecipeError: if a file does not exist.
        StorageError: if a file cannot be read.
    """
    found: dict[str, bytes] = {}
    for step in recipe.prepare:
        for url in StepTraits.of(step).files:
            if url not in found:
                found[url] = _read(url, step, folder=recipe.folder)
    give_files(recipe, found)
    return found


def give_files(recipe: Recipe, contents: Mapping[str, bytes]) -> None:
    """Stores the contents of the steps' files in the recipe."""
    object.__setattr__(recipe, "contents", dict(contents))


def with_files(steps: Iterable[_Step], recipe: Recipe) -> tuple[_Step, ...]:
    """The steps to run, with their files loaded.

    Raises:
        RecipeError: if a file does not exist, or is not valid for its step.
        StorageError: if a file cannot be read.
    """
    made = []
    for step in steps:
        files = StepTraits.of(step).files
        if files and not recipe.contents.keys() >= set(files):
            read_step_files(recipe)
        made.append(
            step.with_files([recipe.contents[url] for url in files])  # type: ignore[attr-defined]
            if files
            else step
        )
    return tuple(made)


def digest_with_files(step: object, recipe: Recipe) -> str:
    """The sha256 (hex) of a step and the contents of its files.

    Raises:
        RecipeError: as ``step_digest``.
    """
    code = step_digest(step, folder=recipe.folder, declared=bool(recipe.depends_on))
    files = StepTraits.of(step).files
    if not files:
        return code
    contents = [hashlib.sha256(recipe.contents[url]).hexdigest() for url in files]
    return hashlib.sha256("\n".join([code, *contents]).encode()).hexdigest()


def _read(url: str, step: object, *, folder: str) -> bytes:
    try:
        opened = open_source(url, folder)
    except RecipeError:
        raise RecipeError(
            f"prepare: {step!r}: the file {url} does not exist. Correct the path; relative paths "
            "start at the recipe's folder."
        ) from None
    if not opened.single:
        raise RecipeError(f"prepare: {step!r}: {url} is a folder or a glob, expected one file.")
    return opened.read(opened.single)
