"""What a source is, for fingerprints: its settings, and the code of the user's functions in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...schemas.recipe import ExtractedSource, Source
from .digest import code_digest
from .names import is_users_class


def functions_of(source: Source | ExtractedSource) -> tuple[Any, ...]:
    """The user's functions that a source calls, and the source itself if its class is his own."""
    found: tuple[Callable[..., Any], ...] = getattr(source, "functions", ())
    return (*found, source) if is_users_class(type(source)) else found


def source_settings(source: Source, *, folder: str, declared: bool = False) -> dict[str, object]:
    """The source as plain JSON: its class's name, its settings, and digests of its functions.

    Args:
        source: Of a recipe.
        folder: The recipe's.
        declared: Whether the recipe has a ``depends_on``.

    Raises:
        RecipeError: if a function refers to what cannot be told, as ``code_digest`` says.
    """
    described = {"type": type(source).__name__, **source.settings()}
    code = [
        code_digest(function, folder=folder, declared=declared) for function in functions_of(source)
    ]
    return {**described, "functions": code} if code else described
