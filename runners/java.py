"""Requirements of job servers that are Java programs: Java itself, and their jars."""

from __future__ import annotations

import os
import re
import shutil
import subprocess

from ..schemas.errors import RecipeError

_MIN_JAVA = 11


def java_program() -> str:
    """The ``java`` of JAVA_HOME, otherwise that on the PATH."""
    home = os.environ.get("JAVA_HOME")
    if home:
        return os.path.join(home, "bin", "java")
    return shutil.which("java") or "java"


def check_java(engine: str) -> None:
    """Checks that Java is installed.

    Raises:
        RecipeError: if it is missing or too old.
    """
    try:
        output = subprocess.run(
            [java_program(), "-version"], capture_output=True, text=True, check=False, timeout=30
        ).stderr
    except (OSError, subprocess.TimeoutExpired):
        output = ""
    found = re.search(r'version "(\d+)', output)
    if found is None or int(found[1]) < _MIN_JAVA:
        raise RecipeError(
            f"{engine}'s job server needs Java {_MIN_JAVA} or newer; {java_program()} "
            f"{f'is version {found[1]}' if found else 'was not found'}. Install a JRE (apt install "
            "openjdk-17-jre-headless), or set JAVA_HOME."
        )


def check_jar(engine: str, jar: str, *, artifact: str, naming: str) -> None:
    """Checks that a job server's jar exists.

    Args:
        engine: The engine's display name.
        jar: Path of the jar; "" if none was given.
        artifact: Name of Beam's Maven artifact.
        naming: How users give the path.

    Raises:
        RecipeError: if it does not exist.
    """
    if not os.path.isfile(jar):
        problem = f"{jar} is not a file" if jar else "no path was given"
        raise RecipeError(
            f"The job server for {engine} was not found: {problem}. Get the jar {artifact} from "
            f"Maven Central (or build it: docs/engines.md), and give its path {naming}."
        )


def refuse_loopback(engine: str, master: str) -> None:
    """Refuses workers in this process for a cluster, which cannot reach them.

    Raises:
        RecipeError: always.
    """
    raise RecipeError(
        f"{engine} at {master} cannot reach workers inside this process. Specify how its "
        "workers run Python: --environment_type=DOCKER --environment_config=IMAGE (built from the "
        "Dockerfile), or --environment_type=EXTERNAL "
        "--environment_config=HOST:PORT of Beam's worker pools. See docs/engines.md."
    )
