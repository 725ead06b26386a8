"""Details of the parts of a fingerprint, kept in ``build.json`` to explain later what changed.

The parts hold a step, or all inputs, as one digest. The details are the digests of each step's
functions and constants, of the files that steps and sources need, and the names of the lists of
input files, which are in the workspace. None of this enters the fingerprint.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ...schemas.blocks import Block
from ...schemas.errors import SnapshardError
from ...schemas.fingerprint import canonical_json, digest
from ...schemas.naming import Workspace
from ...schemas.recipe import CrossStep, PrepareStep, Recipe, StepTraits
from ...transforms.code.digest import CodeHashes, functions_of
from ...transforms.code.user_code import is_users_class, library_name
from ...transforms.storage import redact
from ..inventory.step import read_descriptors, write_descriptors
from .survey import Survey

_SHOWN = 100
"""Settings whose JSON has more characters are kept as a digest."""

InputFile = tuple[str, str, str]
"""Path, hash of the content, and problem of one file of the source."""


def fingerprint_details(survey: Survey) -> dict[str, Any]:
    """The details of a surveyed recipe's fingerprint, as plain JSON.

    Raises:
        RecipeError: if a function refers to something that cannot be hashed.
    """
    recipe = survey.recipe
    source = [_function(function, survey.code) for function in functions_of(recipe.source)]
    inventory = survey.inventory
    details: dict[str, Any] = {
        "inputs": {"files": len(inventory.files), "bytes": inventory.num_bytes},
        "sides": {redact(url): sha256 for url, sha256 in survey.opened.sides.items()},
        "source": source,
        "steps": [_step(step, recipe, survey.code) for step in recipe.prepare],
    }
    if survey.dependencies.entries:
        details["depends_on"] = dict(survey.dependencies.entries)
    if recipe.preprocessing_fn is not None:
        details["preprocessing"] = _function(recipe.preprocessing_fn, survey.code)
    return details


def _function(function: Any, code: CodeHashes) -> dict[str, Any]:
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    return {"name": str(name), "code": code.parts(function)}


def _step(step: Any, recipe: Recipe, code: CodeHashes) -> dict[str, Any]:
    traits = StepTraits.of(step)
    files = {redact(url): hashlib.sha256(recipe.contents[url]).hexdigest() for url in traits.files}
    if isinstance(step, PrepareStep | CrossStep) and not is_users_class(type(step)):
        settings = {name: _short(value) for name, value in step.settings().items()}
        functions = [_function(function, code) for function in traits.functions]
        name = library_name(type(step)).rpartition(":")[2]
        described = {"name": name, "settings": settings, "functions": functions}
    else:
        described = _function(step, code)
    return {**described, "digest": code.step_digest(step)[:16], "files": files}


def _short(value: object) -> object:
    content = canonical_json(value)
    if len(content) <= _SHOWN:
        return value
    return f"sha256 {hashlib.sha256(content).hexdigest()[:16]}, {len(content):,} bytes of JSON"


def list_inputs(survey: Survey, workspace: Workspace) -> list[str]:
    """Makes sure that the workspace has the lists of input files; returns their names.

    Raises:
        StorageError: if one cannot be written.
    """
    urls = write_descriptors(survey.inventory.blocks, workspace)
    return [url.rpartition("/")[2].partition(".")[0] for url in urls]


def listed_inputs(workspace: Workspace, lists: Sequence[str]) -> Iterator[InputFile] | None:
    """The input files of a build, in the order of their paths; None if a list is missing.

    Args:
        workspace: Of the build.
        lists: Names of the descriptor files of its blocks, in order.
    """
    try:
        contents = [read_descriptors(workspace.blocks(name)) for name in lists]
    except SnapshardError:
        return None
    return _files(Block.from_line(line) for lines in contents for line in lines)


def _files(blocks: Iterable[Block]) -> Iterator[InputFile]:
    ranges = (part for block in blocks for part in block.ranges)
    for path, group in itertools.groupby(ranges, key=lambda part: part.path):
        parts = list(group)
        content = parts[0].sha256
        if len(parts) > 1:
            # Consecutive blocks of a large file, each of which may have its own content.
            content = digest([[part.start, part.stop, part.sha256] for part in parts])
        yield path, content, parts[0].problem


def surveyed_inputs(survey: Survey) -> Iterator[InputFile]:
    """The input files of a survey, in the order of their paths."""
    return _files(survey.inventory.blocks)
