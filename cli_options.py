"""Arguments and options that several commands share, and their conversion to objects."""

from __future__ import annotations

import ast
import itertools
import math
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from .schemas.recipe import Recipe
    from .schemas.runner import RunnerConfig


def _check_form(form: str) -> str:
    if form not in ("text", "json"):
        raise typer.BadParameter(f"expected text or json, found {form!r}")
    return form


Source = Annotated[
    str,
    typer.Argument(
        help="A recipe file (.py), or raw data: a folder of images, sounds or text, or tables "
        "(CSV, Parquet, JSON Lines, NumPy, TFRecord …); a path, glob or URL.",
        metavar="SOURCE",
        show_default=False,
    ),
]
Limit = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Use only N records, those with the lowest keys: a sample, which never becomes the "
        "latest.",
        metavar="N",
        show_default=False,
    ),
]
Revision = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="Replaces the recipe's revision=. Another number retries rejected records after an "
        "outage, such as a service that did not answer: only blocks with rejects are prepared "
        "again.",
        metavar="N",
        show_default=False,
    ),
]
Runner = Annotated[
    str,
    typer.Option(
        help="Where the jobs run: direct, prism, flink, spark, dataflow, or a TOML file with an "
        "engine and its settings. Does not change the output.",
        metavar="ENGINE",
    ),
]
Workspace = Annotated[
    str | None,
    typer.Option(
        help="Folder or URL where finished work is kept for later builds. By default in --out, or "
        "where earlier builds into --out kept it. Give --out itself to return to the default.",
        metavar="DIR",
        show_default=False,
    ),
]
OutputFolder = Annotated[
    str,
    typer.Argument(help="An output root, or the folder of all snapshots of a name.", metavar="DIR"),
]
Quiet = Annotated[
    bool,
    typer.Option("--quiet", "-q", help="Show only warnings, errors and the last line."),
]
LogFormat = Annotated[
    str,
    typer.Option(
        help="Form of progress, warnings and errors of snapshard on standard error: text, or json, "
        "one object per line.",
        metavar="FORMAT",
        callback=_check_form,
    ),
]
FlinkMaster = Annotated[
    str | None,
    typer.Option(
        help="Web address of a Flink cluster, host:port. By default Flink runs on this machine.",
        metavar="HOST:PORT",
        show_default=False,
    ),
]
FlinkJar = Annotated[
    str | None,
    typer.Option(
        help="Jar of Beam's job server for Flink. By default the value of SNAPSHARD_FLINK_JAR.",
        metavar="FILE",
        show_default=False,
    ),
]
SparkMaster = Annotated[
    str | None,
    typer.Option(
        help="Master of a Spark cluster, spark://host:7077. By default Spark runs on this machine.",
        metavar="URL",
        show_default=False,
    ),
]
StallTimeout = Annotated[
    float | None,
    typer.Option(
        min=0,
        help="Fail the build after this many seconds without progress; 0 means never. "
        "(default: 600)",
        metavar="SECONDS",
        show_default=False,
    ),
]
Memory = Annotated[
    str | None,
    typer.Option(
        help="Memory that processes and threads are sized by, such as 2GiB (direct; at least "
        "768MiB). By default what the machine or its container has free.",
        metavar="SIZE",
        show_default=False,
    ),
]
BEAM_OPTIONS = {"allow_extra_args": True}
"""Options after ``--`` are passed to Beam."""
SnapshotPath = Annotated[
    str,
    typer.Argument(
        help="Folder of a snapshot, or of several snapshots: then the latest is used.",
        metavar="SNAPSHOT",
    ),
]

Split = Annotated[
    str | None,
    typer.Option(
        help="A split, or for show a part of one, such as 'train[-10:]'; by default 'train', or "
        "the largest if 'train' has no examples.",
        metavar="SPLIT",
        show_default=False,
    ),
]


def engine_of(name: str, beam_options: list[str], **settings: str | float | None) -> RunnerConfig:
    """The engine configuration for the command line's arguments.

    Raises:
        typer.BadParameter: if an extra argument is not an option of Beam.
        RecipeError: if the engine or one of its settings is invalid.
    """
    from .pipelines.engines import runner_config

    for option in beam_options:
        if not option.startswith("--"):
            raise typer.BadParameter(
                f"Got unexpected extra argument ({option}). Put Beam options after --, each as "
                "--name=value."
            )
    return runner_config(name, **settings, beam_options=tuple(beam_options) or None)


def check_options(
    context: typer.Context,
    *,
    requires: Mapping[str, str] = MappingProxyType({}),
    excludes: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> None:
    """Refuses options that would have no effect.

    Args:
        context: Of the command.
        requires: Option -> the option without which it has no effect.
        excludes: Option -> the options that have no effect with it.

    Raises:
        typer.BadParameter: naming both options.
    """
    names = {
        option: parameter.name for parameter in context.command.params for option in parameter.opts
    }

    def is_given(option: str) -> bool:
        source = context.get_parameter_source(names[option])
        return source is not None and source.name == "COMMANDLINE"

    for option, others in excludes.items():
        for other in others:
            if is_given(option) and is_given(other):
                raise typer.BadParameter(f"excludes {other}.", param_hint=option)
    for option, other in requires.items():
        if is_given(option) and not is_given(other):
            raise typer.BadParameter(f"requires {other}.", param_hint=option)


def recipe_of(source: str, *, revision: int | None = None) -> Recipe:
    """Loads a recipe file, or suggests a recipe for raw data and prints it."""
    from .pipelines.recipe.shipping import load_recipe_file, revised

    if source.endswith(".py"):
        return revised(load_recipe_file(source), revision)
    from . import terminal
    from .pipelines.inspect.suggest import describe_inferred, suggest

    recipe, notes = suggest(source)
    terminal.show_note(describe_inferred(recipe, notes, source))
    return revised(recipe, revision)


def reader_options(given: Sequence[str]) -> dict[str, Any]:
    """Options of the reader's ``dataset`` from NAME=VALUE; a value that is no literal is a string.

    Raises:
        typer.BadParameter: if one is malformed, or is set by the command itself.
    """
    options = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not (equals and name.isidentifier()):
            raise typer.BadParameter(
                f"Invalid value {text!r}: expected NAME=VALUE, such as seed=1.",
                param_hint="--option",
            )
        if name in ("split", "batch_size", "epochs", "root"):
            raise typer.BadParameter(f"{name}= cannot be set here.", param_hint="--option")
        try:
            options[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            options[name] = value
    return options


def json_option(text: str) -> Any:
    """The option ``--json``, under which an error is an object on standard output, too."""
    return typer.Option("--json", help=text)


def asked_forms(arguments: Sequence[str]) -> tuple[bool, bool]:
    """Whether ``--json`` and ``--log-format json`` are among the arguments, valid or not."""
    own = [*itertools.takewhile(lambda argument: argument != "--", arguments)]
    pairs = [*itertools.pairwise(own), *(argument.split("=", 1) for argument in own)]
    return "--json" in own, any([*pair] == ["--log-format", "json"] for pair in pairs)


def age_of(text: str | None) -> float | None:
    """The seconds of an age such as "30d", "12h" or "90m"; None from None.

    Raises:
        typer.BadParameter: if it is no such age.
    """
    if text is None:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([dhm])", text.strip())
    if match is None:
        raise typer.BadParameter(
            f"expected days, hours or minutes, such as 30d, 12h or 90m, found {text!r}",
            param_hint="--older-than",
        )
    return float(match[1]) * {"d": 86_400, "h": 3_600, "m": 60}[match[2]]


def rates_of(text: str | None) -> list[float]:
    """Rates above 0 from "10,100"; none from None.

    Raises:
        typer.BadParameter: if one is no such number.
    """
    try:
        rates = [] if text is None else [float(part) for part in text.split(",")]
    except ValueError:
        rates = [0.0]
    if not all(0 < rate < math.inf for rate in rates):
        raise typer.BadParameter(
            f"Invalid value {text!r}: expected numbers above 0, such as 10,100.",
            param_hint="--mb-per-s",
        )
    return rates
