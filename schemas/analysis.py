"""Validates a recipe's settings of the transform graph: its analysis, or an existing graph."""

from __future__ import annotations

from collections.abc import Sequence

from .errors import RecipeError


def check_analysis(
    preprocessing_fn: object,
    *,
    analyze_on_runner: object,
    transform_from: object,
    split_names: Sequence[str],
) -> None:
    """Checks the arguments; reads nothing.

    Raises:
        RecipeError: if one is invalid; the message names it, its value and what is expected.
    """
    if preprocessing_fn is not None and not callable(preprocessing_fn):
        raise RecipeError(f"Recipe: preprocessing_fn={preprocessing_fn!r} is not a function.")
    if not isinstance(analyze_on_runner, bool):
        raise RecipeError(f"Recipe: analyze_on_runner={analyze_on_runner!r}, expected a bool.")
    if transform_from is not None:
        if not isinstance(transform_from, str) or not transform_from:
            raise RecipeError(
                f"Recipe: transform_from={transform_from!r}, expected the path or URL of a "
                "snapshot, or of a transform graph in a workspace."
            )
        if analyze_on_runner:
            raise RecipeError(
                "Recipe: transform_from= reuses a graph that was already analysed, so "
                "analyze_on_runner= has nothing to run. Leave one of them out."
            )
        return
    if analyze_on_runner and preprocessing_fn is None:
        raise RecipeError(
            "Recipe: analyze_on_runner= needs a preprocessing_fn, and the recipe has none. Leave "
            "it out."
        )
    if preprocessing_fn is not None and "train" not in split_names:
        raise RecipeError(
            "Recipe: preprocessing_fn is analysed on the split called 'train', which is not among "
            f"the splits {', '.join(split_names)}. Name one split train."
        )
