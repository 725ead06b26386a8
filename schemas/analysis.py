"""What a recipe may say of its transform graph: what analyses it, where, or whose it takes."""

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
    """Checks what can be checked without reading anything.

    Raises:
        RecipeError: naming the argument, what was found and what is expected.
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
                "Recipe: transform_from= takes a graph that was analysed before, so there is "
                "nothing that analyze_on_runner= could run. Leave one of them out."
            )
        return
    if analyze_on_runner and preprocessing_fn is None:
        raise RecipeError(
            "Recipe: analyze_on_runner= says where a preprocessing_fn is analysed, and there is "
            "none. Leave it out."
        )
    if preprocessing_fn is not None and "train" not in split_names:
        raise RecipeError(
            "Recipe: preprocessing_fn is analysed on the split called 'train', and there "
            f"is none in {', '.join(split_names)}. Name one split train."
        )
