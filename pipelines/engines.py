"""What a user says of the engine: its name and settings, or the file that a team keeps them in."""

from __future__ import annotations

import dataclasses
import os
import tomllib
from typing import Any

from ..schemas.errors import RecipeError
from ..schemas.runner import Dataflow, Direct, Flink, Prism, RunnerConfig, Spark

CONFIGS: dict[str, type[RunnerConfig]] = {
    "direct": Direct,
    "prism": Prism,
    "flink": Flink,
    "spark": Spark,
    "dataflow": Dataflow,
}
"""What each engine is told, by its name."""


def runner_config(name: str, **settings: Any) -> RunnerConfig:
    """What is said of an engine by its name, or by a TOML file.

    A file holds ``runner = "flink"`` and the fields of that engine's config.

    Args:
        name: ``direct``, ``prism``, ``flink``, ``spark``, ``dataflow``, or the path of a ``.toml``
            file.
        settings: Fields of the config; None is not said. They win over those of the file. With an
            engine's name before theirs (``flink_master``) they are that engine's alone.

    Raises:
        RecipeError: if there is no such engine, file, or field.
    """
    said = {key: value for key, value in settings.items() if value is not None}
    where = ""
    if name.endswith(".toml"):
        told = _read(name)
        where = f"{name}: "
        name = str(told.pop("runner", ""))
        said = told | said
    config = CONFIGS.get(name)
    if config is None:
        raise RecipeError(
            f"{where}runner {name!r}, expected one of {', '.join(CONFIGS)}, or a TOML file that "
            'names one, as in runner = "flink".'
        )
    said = {key.removeprefix(f"{name}_"): value for key, value in said.items()}
    known = [field.name for field in dataclasses.fields(config)]
    unknown = sorted(said.keys() - set(known))
    if unknown:
        raise RecipeError(
            f"{where}the runner {name} takes no {unknown[0]!r}; it takes {', '.join(known)}."
        )
    return config(**said)


def _read(path: str) -> dict[str, Any]:
    try:
        with open(os.path.expanduser(path), "rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise RecipeError(f"The runner file {path} cannot be read: {error.strerror}.") from None
    except ValueError as error:
        raise RecipeError(f"The runner file {path} is no TOML: {error}.") from None
