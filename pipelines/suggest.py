"""Suggesting a recipe: what raw data looks like, as a Recipe and as the text of its file."""

from __future__ import annotations

import dataclasses
import re

from ..schemas.errors import RecipeError
from ..schemas.features import Features
from ..schemas.recipe import PrepareStep, Recipe, Source
from ..transforms.opened_source import open_source
from ..transforms.sources.csv import Csv
from ..transforms.sources.image_folder import ImageFolder
from ..transforms.sources.inference import infer_image_steps

_TABLES = (".csv", ".tsv")


def suggest_recipe(url: str) -> Recipe:
    """Suggests a recipe for raw data: a folder of class folders of images, or CSV.

    Images of one size are copied as they are, of several sizes resized to the size that most
    have, or to 256×256 with the ratio kept where none is the rule.

    Raises:
        RecipeError: if there is nothing, or nothing that is known.
    """
    opened = open_source(url, ".")
    paths = [file.path for file in opened.list()]
    source: Source
    if any(path.lower().endswith(_TABLES) for path in paths):
        tabs = all(path.lower().endswith(".tsv") for path in paths if "." in path)
        source = Csv(url, delimiter="\t") if tabs else Csv(url)
        steps: tuple[PrepareStep, ...] = ()
    elif any("/" in path for path in paths):
        source = ImageFolder(url)
        steps = tuple(infer_image_steps(source.select(opened.list()).files, opened))
    else:
        raise RecipeError(
            f"{opened.shown} holds neither CSV files nor class folders of images. Write a recipe "
            "file that says what it is."
        )
    recipe = Recipe(name=_name_of(url), source=source, prepare=steps)
    object.__setattr__(recipe, "folder", ".")
    return recipe


def _name_of(url: str) -> str:
    last = url.partition("::")[0].rstrip("/").rpartition("/")[2]
    name = re.sub(r"[^A-Za-z0-9_-]+", "_", last.rpartition(".")[0] or last).strip("_-")
    return name or "dataset"


def recipe_text(recipe: Recipe, features: Features | None = None) -> str:
    """The text of a recipe file that makes an equal recipe of built-in parts.

    With ``features`` they are declared, so that the next build enforces them.
    """
    steps = ", ".join(
        f"ss.images.{_call(step, type(step).__name__.lower())}" for step in recipe.prepare
    )
    fractions = ", ".join(f"{name}={share}" for name, share in recipe.splits.fractions)
    declared = "None"
    if features is not None:
        lines = (
            f"        {name!r}: ss.{_call(f, type(f).__name__)},\n" for name, f in features.items()
        )
        declared = "{\n" + "".join(lines) + "    }"
    return f'''"""Build it with `snapshard build THIS_FILE --out DIR`."""

import snapshard as ss

recipe = ss.Recipe(
    name={recipe.name!r},
    source=ss.{_call(recipe.source, type(recipe.source).__name__)},
    prepare=[{steps}],
    splits=ss.Splits({fractions}),
    features={declared},
)
'''


def _call(value: object, name: str) -> str:
    """The call that makes a configuration object; what has its default is left out.

    >>> from ..schemas.features import Scalar
    >>> _call(Scalar("float32", optional=True), "Scalar")
    "Scalar('float32', optional=True)"
    """
    arguments = []
    for field in dataclasses.fields(value):  # type: ignore[arg-type]
        found = getattr(value, field.name)
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            arguments.append(repr(found))
        elif found != field.default:
            arguments.append(f"{field.name}={found!r}")
    return f"{name}({', '.join(arguments)})"
