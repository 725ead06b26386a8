"""Engines: their configuration, from a name and settings or from a TOML file shared by a team.

Only this module imports a runner.
"""

from __future__ import annotations

import dataclasses
import os
import tomllib
from typing import Any

from ..runners import make_runner as make_runner
from ..schemas.errors import RecipeError
from ..schemas.runner import Dataflow, Direct, Flink, JobRunner, Prism, RunnerConfig, Spark

CONFIGS: dict[str, type[RunnerConfig]] = {
    "direct": Direct,
    "prism": Prism,
    "flink": Flink,
    "spark": Spark,
    "dataflow": Dataflow,
}
"""Configuration class of each engine, by name."""


def runner_config(name: str, **settings: Any) -> RunnerConfig:
    """The configuration of an engine, from its name or from a TOML file.

    A file contains ``runner = "flink"`` and the fields of that engine's configuration.

    Args:
        name: ``direct``, ``prism``, ``flink``, ``spark``, ``dataflow``, or the path of a ``.toml``
            file.
        settings: Fields of the configuration; None means not set. They override those of the file.
            With an engine's name as prefix (``flink_master``) they apply only to that engine.

    Raises:
        RecipeError: if the engine, file or field does not exist, or a value is invalid.
    """
    given = {key: value for key, value in settings.items() if value is not None}
    where = ""
    if name.endswith(".toml"):
        stored = _read(name)
        where = f"{name}: "
        name = str(stored.pop("runner", ""))
        given = stored | given
    config = CONFIGS.get(name)
    if config is None:
        problem = f"unknown runner {name!r}" if name else "no runner given"
        raise RecipeError(
            f"{where}{problem}, expected one of {', '.join(CONFIGS)}, or a TOML file that names "
            'one, such as runner = "flink".'
        )
    given = {key.removeprefix(f"{name}_"): value for key, value in given.items()}
    known = [field.name for field in dataclasses.fields(config)]
    unknown = sorted(given.keys() - set(known))
    if unknown:
        raise RecipeError(
            f"{where}the runner {name} has no setting {unknown[0]!r}, expected one of "
            f"{', '.join(known)}."
        )
    try:
        return config(**given)
    except RecipeError as error:
        raise RecipeError(f"{where}{error}") from None


def runs_here(runner: JobRunner) -> bool:
    """Whether all workers run on this machine."""
    return runner.shares_memory or runner.name in ("direct", "prism")


def _read(path: str) -> dict[str, Any]:
    try:
        with open(os.path.expanduser(path), "rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise RecipeError(f"The runner file {path} cannot be read: {error.strerror}.") from None
    except ValueError as error:
        raise RecipeError(f"The runner file {path} is not valid TOML: {error}.") from None
