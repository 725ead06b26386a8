"""Engines and stores that the tests run on: got once, into a folder outside the tree.

``python installed.py`` gets what the tools at hand can get, and says what is missing; ``python
installed.py smoke`` leaves out what no test marked ``smoke`` needs;
tests that need a missing one skip with that word. With ``SNAPSHARD_NEED_ENGINES`` set it is an
error instead. ``SNAPSHARD_ENGINES`` names the folder; by default ``~/.cache/snapshard/engines``.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path

FLINK_VERSION = "1.19.3"
FAKE_GCS_VERSION = "1.56.1"
AIRFLOW_VERSION = "3.3.2"
_RUNNERS = Path(__file__).parents[3] / "runners"


class MissingEngineError(Exception):
    """An engine is not there and cannot be got: why, and how to get it."""


def folder() -> Path:
    """Where engines are kept."""
    named = os.environ.get("SNAPSHARD_ENGINES")
    return Path(named) if named else Path.home() / ".cache" / "snapshard" / "engines"


def prism() -> Path:
    """Prism's program, of the version of Beam that is installed."""
    beam = version("apache-beam")
    place = folder() / f"prism-{beam}"
    package = f"github.com/apache/beam/sdks/v2/go/cmd/prism@v{beam}"

    def get(target: Path) -> None:
        _run("go", "install", package, GOBIN=str(target))

    return _got(place, get, needs="go", command=f"go install {package}") / "prism"


def flink_job_server() -> Path:
    """Beam's job server for Flink, a jar with Flink inside."""
    return _job_server("flink")


def spark_job_server() -> Path:
    """Beam's job server for Spark, a jar with Spark inside."""
    return _job_server("spark")


def flink_libraries() -> Path:
    """The folder of Flink's own jars, to start a cluster from."""
    _need("java", command="apt install openjdk-17-jre-headless")
    place = folder() / f"flink-{FLINK_VERSION}"
    package = f"apache-flink-libraries=={FLINK_VERSION}"

    def get(target: Path) -> None:
        options = ["install", "--quiet", "--no-deps", "--target", str(target), package]
        if shutil.which("uv"):
            _run("uv", "pip", *options, "--python", sys.executable)
        else:
            _run(sys.executable, "-m", "pip", *options)

    return _got(place, get, needs=sys.executable, command=f"pip install {package}") / "pyflink/lib"


def fake_gcs_server() -> Path:
    """A stand-in for Google Cloud Storage."""
    place = folder() / f"fake-gcs-server-{FAKE_GCS_VERSION}"
    package = f"github.com/fsouza/fake-gcs-server@v{FAKE_GCS_VERSION}"

    def get(target: Path) -> None:
        _run("go", "install", package, GOBIN=str(target))

    return _got(place, get, needs="go", command=f"go install {package}") / "fake-gcs-server"


def airflow() -> Path:
    """The Python of an environment of Airflow's own, and nothing beside it."""
    place = folder() / f"airflow-{AIRFLOW_VERSION}"
    package = f"apache-airflow=={AIRFLOW_VERSION}"

    def get(target: Path) -> None:
        python = str(target / "bin/python")
        if shutil.which("uv"):
            _run("uv", "venv", "--quiet", "--python", sys.executable, str(target))
            _run("uv", "pip", "install", "--quiet", "--python", python, package)
        else:
            _run(sys.executable, "-m", "venv", str(target))
            _run(python, "-m", "pip", "install", "--quiet", package)

    return _got(place, get, needs=sys.executable, command=f"pip install {package}") / "bin/python"


SMOKE: tuple[Callable[[], Path], ...] = (
    flink_job_server,
    prism,
    fake_gcs_server,
    spark_job_server,
)
ENGINES = (*SMOKE[:-1], flink_libraries, airflow, SMOKE[-1])
"""Got two at a time; Maven, whose folder of downloads bears but one at work, begins and ends."""

_MAVEN = threading.Lock()


def _job_server(engine: str) -> Path:
    _need("java", command="apt install openjdk-17-jre-headless")
    pom = _RUNNERS / f"{engine}-job-server-pom.xml"
    text = pom.read_text()
    versions = [text.partition(f"<{n}>")[2].partition(f"</{n}>")[0] for n in ("beam", engine)]
    place = folder() / f"{engine}-job-server-{'-'.join(versions)}"

    def get(target: Path) -> None:
        target.mkdir(parents=True)
        shutil.copy(pom, target / "pom.xml")
        with _MAVEN:
            _run("mvn", "-B", "-q", "-f", str(target / "pom.xml"), "package")

    made = _got(place, get, needs="mvn", command=f"mvn -f {pom} package")
    return made / "target" / f"beam-{engine}-job-server-1.jar"


def _got(place: Path, get: Callable[[Path], None], *, needs: str, command: str) -> Path:
    """A folder that ``get`` fills, whole or not at all, in one process at a time."""
    if place.is_dir():
        return place
    _need(needs, command=command)
    place.parent.mkdir(parents=True, exist_ok=True)
    partial = place.with_name(f".{place.name}.partial")
    with place.with_name(f".{place.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if place.is_dir():
            return place
        try:
            shutil.rmtree(partial, ignore_errors=True)
            get(partial)
            partial.rename(place)
        except (OSError, subprocess.CalledProcessError) as error:
            output = getattr(error, "output", None) or str(error)
            raise MissingEngineError(f"{place.name} is not available: {output[-1000:]}") from None
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return place


def _need(program: str, *, command: str) -> None:
    if shutil.which(program) is None:
        raise MissingEngineError(f"{program} is not installed, as is needed for: {command}")


def _run(*command: str, **environment: str) -> None:
    subprocess.run(
        command,
        check=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | environment,
    )


def main() -> int:
    """Gets what can be got; the exit code is 1 where one is missing and all are needed."""
    missing = 0
    with ThreadPoolExecutor(2) as pool:
        engines = SMOKE if sys.argv[1:] == ["smoke"] else ENGINES
        pending = {engine.__name__: pool.submit(engine) for engine in engines}
    for name, place in pending.items():
        try:
            print(f"{name}: {place.result()}")
        except MissingEngineError as error:
            missing += 1
            print(f"{name}: {error}", file=sys.stderr)
    return 1 if missing and os.environ.get("SNAPSHARD_NEED_ENGINES") else 0


if __name__ == "__main__":
    sys.exit(main())
