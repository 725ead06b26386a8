"""Job servers that are Java programs: the Java they run on, and the jar that each of them is."""

from __future__ import annotations

import os
import re
import shutil
import subprocess

from ..schemas.errors import RecipeError

_MIN_JAVA = 11


def java_program() -> str:
    """The ``java`` of JAVA_HOME, or else of the PATH."""
    home = os.environ.get("JAVA_HOME")
    if home:
        return os.path.join(home, "bin", "java")
    return shutil.which("java") or "java"


def check_java(engine: str) -> None:
    """Looks for Java.

    Raises:
        RecipeError: if it is not there, or too old.
    """
    try:
        told = subprocess.run(
            [java_program(), "-version"], capture_output=True, text=True, check=False, timeout=30
        ).stderr
    except (OSError, subprocess.TimeoutExpired):
        told = ""
    found = re.search(r'version "(\d+)', told)
    if found is None or int(found[1]) < _MIN_JAVA:
        raise RecipeError(
            f"{engine}'s job server needs Java {_MIN_JAVA} or newer; {java_program()} is "
            f"{f'version {found[1]}' if found else 'not there'}. Install a JRE (apt install "
            "openjdk-17-jre-headless), or name one in JAVA_HOME."
        )


def check_jar(engine: str, jar: str, *, artifact: str, naming: str) -> None:
    """Looks for a job server's jar.

    Args:
        engine: As it is called.
        jar: Its path; "" where none was named.
        artifact: What Beam publishes it as.
        naming: How a user names it.

    Raises:
        RecipeError: if it is not there.
    """
    if not os.path.isfile(jar):
        where = f"{jar} and not a file" if jar else "not named"
        raise RecipeError(
            f"The job server for {engine} is {where}. Get the jar {artifact} from Maven Central "
            f"(or make it: docs/engines.md), and name it {naming}."
        )


def refuse_loopback(engine: str, master: str) -> None:
    """Says that a cluster needs workers that it can reach.

    Raises:
        RecipeError: always.
    """
    raise RecipeError(
        f"{engine} at {master} cannot reach workers inside this process. Say how its "
        "workers run Python: --environment_type=DOCKER --environment_config=IMAGE (the "
        "Dockerfile makes one), or --environment_type=EXTERNAL "
        "--environment_config=HOST:PORT of Beam's worker pools. See docs/engines.md."
    )
