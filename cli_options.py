"""What commands have in common: arguments and options, and what is made of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from .schemas.recipe import Recipe
    from .schemas.runner import RunnerConfig

Source = Annotated[
    str,
    typer.Argument(
        help="A recipe file (.py), or raw data itself: a folder of class folders of images, a "
        "CSV file or a folder of them; a path, a glob or a URL.",
        metavar="SOURCE",
        show_default=False,
    ),
]
Limit = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Take so many records, those with the lowest keys: for a dry run.",
        metavar="N",
        show_default=False,
    ),
]
Revision = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="Replaces the recipe's revision=. Another number prepares the blocks that hold "
        "rejects again and reuses everything else: for causes outside of the recipe and the data, "
        "such as a service that did not answer.",
        metavar="N",
        show_default=False,
    ),
]
Runner = Annotated[
    str,
    typer.Option(
        help="Where the jobs run: direct, prism, flink, spark, dataflow, or a TOML file that names "
        "one with its settings. Changes no byte.",
        metavar="ENGINE",
    ),
]
Workspace = Annotated[
    str | None,
    typer.Option(
        help="Where work is kept for builds to come, a folder or URL: by default in --out, or "
        "where earlier builds of it put it. --out itself puts it back.",
        metavar="DIR",
        show_default=False,
    ),
]
FlinkMaster = Annotated[
    str | None,
    typer.Option(
        help="A Flink cluster's web address, host:port; without it Flink runs on this machine.",
        metavar="HOST:PORT",
        show_default=False,
    ),
]
FlinkJar = Annotated[
    str | None,
    typer.Option(
        help="Beam's job server for Flink; by default what SNAPSHARD_FLINK_JAR names.",
        metavar="FILE",
        show_default=False,
    ),
]
SparkMaster = Annotated[
    str | None,
    typer.Option(
        help="A Spark cluster's master, spark://host:7077; without it Spark runs on this machine.",
        metavar="URL",
        show_default=False,
    ),
]
StallTimeout = Annotated[
    float | None,
    typer.Option(
        min=0,
        help="Fail where nothing advances for so many seconds; 0 never does. [default: 600]",
        metavar="SECONDS",
        show_default=False,
    ),
]
BEAM_OPTIONS = {"allow_extra_args": True}
"""What follows ``--`` goes to Beam."""
SnapshotPath = Annotated[
    str,
    typer.Argument(
        help="A snapshot's folder, or one that holds snapshots: then the latest.",
        metavar="SNAPSHOT",
    ),
]


def engine_of(name: str, beam_options: list[str], **settings: str | float | None) -> RunnerConfig:
    """What the arguments say of the engine."""
    from .pipelines.engines import runner_config

    for option in beam_options:
        if not option.startswith("--"):
            raise typer.BadParameter(
                f"Got unexpected extra argument ({option}). Options of Beam follow --, each as "
                "--name=value."
            )
    return runner_config(name, **settings, beam_options=tuple(beam_options) or None)


def recipe_of(source: str, *, revision: int | None = None) -> Recipe:
    """The recipe in a file, or the one that raw data suggests, shown; with another revision."""
    from .pipelines.recipe.shipping import load_recipe_file, revised

    if source.endswith(".py"):
        return revised(load_recipe_file(source), revision)
    from . import terminal
    from .pipelines.recipe.suggest import recipe_text, suggest_recipe

    recipe = suggest_recipe(source)
    terminal.show_note(recipe_text(recipe))
    return revised(recipe, revision)
