"""Airflow runs a build as a DAG: one task fails once, one for good, and what is done is reused."""

import itertools
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from snapshard.pipelines.build import build
from snapshard.pipelines.operate.airflow import dag
from snapshard.pipelines.recipe.shipping import load_recipe_file
from snapshard.schemas.steps import STEPS

ROOT = Path(__file__).parents[3]
RECIPE = """
import snapshard as ss

recipe = ss.Recipe(name="table", source=ss.Csv("rows.csv"), shards=ss.Shards(num_shards=2))
"""
DAG = """
import datetime

from snapshard.pipelines.operate.airflow import dag

made = dag(
    {recipe!r},
    {out!r},
    dag_id={dag_id!r},
    python={python!r},
    {parts}
    retries=1,
    retry_delay=datetime.timedelta(seconds=1),
)
"""
# Its command line; that one process runs all commands saves 10 s for each.
COMMANDS = """
import sys
from airflow.__main__ import main

for line in sys.stdin:
    sys.argv = ["airflow", *line.split()]
    try:
        main()
    except SystemExit:
        pass
    print("ended:", line, flush=True)
"""
FAILING = """#!/bin/sh
# The first part of prepare fails once; write does as long as a file says so.
case "$*" in
*"step prepare "*"--part 1/2"*)
    if mkdir {folder}/failed-once 2>/dev/null; then echo "the machine is gone" >&2; exit 1; fi ;;
*"step write "*)
    if test -e {folder}/no-room; then echo "no room left" >&2; exit 1; fi ;;
esac
exec {python} "$@"
"""
_TOLD = re.compile(r'(\{"num_\w+": .*?\}) +\[airflow\.task')


class Airflow:
    """An installation, and a database in a file."""

    def __init__(self, python: Path, folder: Path) -> None:
        """Starts its process."""
        self._dags = folder / "dags"
        for name in ("state", "dags", "path"):
            (folder / name).mkdir()
        # As `pip install --no-deps snapshard` does: without its libraries.
        (folder / "path/snapshard").symlink_to(ROOT)
        self._process = subprocess.Popen(
            [str(python), "-c", COMMANDS],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={
                **os.environ,
                "AIRFLOW_HOME": f"{folder}/state",
                "AIRFLOW__CORE__DAGS_FOLDER": str(self._dags),
                "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
                "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{folder}/state/airflow.db",
                "PYTHONPATH": f"{folder}/path",
            },
        )

    def run(self, command: str) -> str:
        """What a command of Airflow prints."""
        assert self._process.stdin
        assert self._process.stdout
        print(command, file=self._process.stdin, flush=True)
        hangs = threading.Timer(300, self._process.kill)
        hangs.start()
        end = f"ended: {command}\n"
        printed = "".join(itertools.takewhile(lambda line: line != end, self._process.stdout))
        hangs.cancel()
        return printed

    def add_dag(self, dag_id: str, recipe: Path, *, python: Path | str, parts: str = "") -> Path:
        """Writes a DAG; gives the folder that it builds into."""
        out = recipe.with_name("out")
        told = {"recipe": str(recipe), "out": str(out), "python": str(python)}
        (self._dags / f"{dag_id}.py").write_text(DAG.format(dag_id=dag_id, parts=parts, **told))
        return out

    def test_dag(self, dag_id: str) -> tuple[str, list[dict[str, Any]]]:
        """Runs a DAG; gives what was printed, and what its tasks told that succeeded."""
        printed = self.run(f"dags test {dag_id}")
        return printed, [json.loads(told) for told in _TOLD.findall(printed)]

    def close(self) -> None:
        """Ends its process."""
        self._process.communicate(timeout=60)


@pytest.fixture(scope="module")
def installed(airflow_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Airflow]:
    found = Airflow(airflow_python, tmp_path_factory.mktemp("airflow"))
    found.run("db migrate")
    yield found
    found.close()


@pytest.mark.engine
@pytest.mark.slow  # two runs of a DAG, which start snapshard for each task
def test_a_dag_fails_goes_on_and_reuses(installed: Airflow, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.py"
    recipe.write_text(RECIPE)
    (tmp_path / "rows.csv").write_text("\n".join(["number", *map(str, range(1000))]))
    failing, no_room = tmp_path / "python", tmp_path / "no-room"
    failing.write_text(FAILING.format(folder=tmp_path, python=sys.executable))
    failing.chmod(0o755)
    no_room.touch()
    out = installed.add_dag("parts", recipe, python=failing, parts="parts=2,")

    # One task fails once and is tried again; a later one fails, as often as it is tried.
    printed, told = installed.test_dag("parts")
    names = [(one["step"], one["part"], one["reused"]) for one in told]
    assert sorted(names[1:3]) == [("prepare", "1/2", False), ("prepare", "2/2", True)], printed
    assert [name for name, _, _ in names] == [
        *("inventory", "prepare", "prepare", "prepare", "analyze", "plan")
    ], printed
    assert "the machine is gone" in printed
    assert printed.count("no room left") >= 2
    assert "state=failed" in printed
    assert not list((out / "table").glob("*/manifest.json"))

    # Another run goes on from what is done.
    no_room.unlink()
    printed, told = installed.test_dag("parts")
    assert "state=success" in printed
    assert [(one["step"], one["reused"]) for one in told] == [
        ("inventory", True),
        ("prepare", True),
        ("prepare", True),
        ("prepare", True),
        ("analyze", True),
        ("plan", True),
        ("write", False),
        ("write", False),
        ("verify", False),
        ("publish", False),
    ], printed
    expected = build(load_recipe_file(recipe), tmp_path / "built")
    made = Path(told[-1]["path"], "manifest.json").read_bytes()
    assert made == Path(expected.path, "manifest.json").read_bytes()


@pytest.mark.engine
@pytest.mark.slow  # snapshard starts for each task
def test_a_dag_without_parts(installed: Airflow, tmp_path: Path) -> None:
    """As the documents have it: a task for each step, none of them mapped."""
    recipe = tmp_path / "recipe.py"
    recipe.write_text(RECIPE)
    (tmp_path / "rows.csv").write_text("\n".join(["number", *map(str, range(1000))]))
    installed.add_dag("whole", recipe, python=sys.executable)
    printed, told = installed.test_dag("whole")
    assert "state=success" in printed
    assert [(one["step"], one["part"]) for one in told] == [(step, None) for step in STEPS], printed
    # The recipe has nothing to analyze.
    assert [one["step"] for one in told if one["reused"]] == ["analyze"]
    expected = build(load_recipe_file(recipe), tmp_path / "built")
    made = Path(told[-1]["path"], "manifest.json").read_bytes()
    assert made == Path(expected.path, "manifest.json").read_bytes()


TASKS = r"""
import threading
import time

from airflow.sdk.exceptions import AirflowException

from snapshard.pipelines.operate.airflow import _operator


def run(script, stop=False):
    task = _operator()(
        task_id="step", command=["/bin/sh", "-c", script], step="plan", recipe="/recipe", out="/out"
    )

    def kill():
        while task._process is None:
            time.sleep(0.01)
        task.on_kill()

    if stop:
        threading.Thread(target=kill).start()
    try:
        print("told", task.execute({}))
    except AirflowException as error:
        print(type(error).__name__, " ".join(str(error).split()))


for code in range(5):
    run(f"echo note; echo error: why,; echo and more; exit {code}")
run("echo '{\"step\": 1}'; echo note")
started = time.monotonic()
run("sleep 60 & sleep 60", stop=True)
assert time.monotonic() - started < 30
"""


@pytest.mark.engine
def test_exit_codes_decide_about_another_try(airflow_python: Path, tmp_path: Path) -> None:
    (tmp_path / "snapshard").symlink_to(ROOT)
    done = subprocess.run(
        [str(airflow_python), "-c", TASKS],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "AIRFLOW_HOME": str(tmp_path), "PYTHONPATH": str(tmp_path)},
        timeout=120,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith(("told", "Airflow"))]
    ended = "snapshard step plan ended with exit code"
    assert lines == [
        f"AirflowException {ended} 0: error: why, and more",
        f"AirflowException {ended} 1: error: why, and more",
        *(f"AirflowFailException {ended} {code}: error: why, and more" for code in (2, 3, 4)),
        "told {'step': 1}",
        f"AirflowException {ended} -15:",
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("recipe.py", "/out"), "recipe='recipe.py' is relative"),
        (("/recipe.py", "out"), "out='out' is relative"),
    ],
)
def test_relative_paths_are_refused(arguments: tuple[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dag(*arguments)
