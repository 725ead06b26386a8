"""Airflow runs a build as a DAG: one task fails once, one for good, and what is done is reused."""

import json
import os
import re
import subprocess
import sys
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
    dag_id="table",
    python={python!r},
    {parts}
    retries=1,
    retry_delay=datetime.timedelta(seconds=1),
)
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
    """An installation with one DAG, and a database in a file."""

    def __init__(self, python: Path, folder: Path, recipe: Path, *, parts: str = "") -> None:
        self._python = python
        self.folder = folder
        self.out = folder / "out"
        home, dags = folder / "home", folder / "dags"
        home.mkdir()
        dags.mkdir()
        # As `pip install --no-deps snapshard` does: without its libraries.
        (folder / "path").mkdir()
        (folder / "path/snapshard").symlink_to(ROOT)
        failing = folder / "python"
        failing.write_text(FAILING.format(folder=folder, python=sys.executable))
        failing.chmod(0o755)
        text = DAG.format(recipe=str(recipe), out=str(self.out), python=str(failing), parts=parts)
        (dags / "table.py").write_text(text)
        self._environment = {
            **os.environ,
            "AIRFLOW_HOME": str(home),
            "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db",
            "PYTHONPATH": str(folder / "path"),
        }
        self.run("db", "migrate")

    def run(self, *arguments: str) -> str:
        """What a command of Airflow prints."""
        done = subprocess.run(
            [str(self._python), "-m", "airflow", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            env=self._environment,
            timeout=300,
        )
        return done.stdout

    def test_dag(self) -> tuple[str, list[dict[str, Any]]]:
        """Runs the DAG; gives what was printed, and what its tasks told that succeeded."""
        printed = self.run("dags", "test", "table")
        return printed, [json.loads(told) for told in _TOLD.findall(printed)]


@pytest.mark.engine
@pytest.mark.slow  # Airflow starts three times, and snapshard for each task
def test_a_dag_fails_goes_on_and_reuses(airflow_python: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.py"
    recipe.write_text(RECIPE)
    (tmp_path / "rows.csv").write_text("\n".join(["number", *map(str, range(1000))]))
    installed = Airflow(airflow_python, tmp_path, recipe, parts="parts=2,")
    no_room = tmp_path / "no-room"
    no_room.touch()

    # One task fails once and is tried again; a later one fails, as often as it is tried.
    printed, told = installed.test_dag()
    names = [(one["step"], one["part"], one["reused"]) for one in told]
    assert sorted(names[1:3]) == [("prepare", "1/2", False), ("prepare", "2/2", True)], printed
    assert [name for name, _, _ in names] == [
        *("inventory", "prepare", "prepare", "prepare", "analyze", "plan")
    ], printed
    assert "the machine is gone" in printed
    assert printed.count("no room left") >= 2
    assert "state=failed" in printed
    assert not list((installed.out / "table").glob("*/manifest.json"))

    # Another run goes on from what is done.
    no_room.unlink()
    printed, told = installed.test_dag()
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
@pytest.mark.slow  # Airflow starts twice, and snapshard for each task
def test_a_dag_without_parts(airflow_python: Path, tmp_path: Path) -> None:
    """As the documents have it: a task for each step, none of them mapped."""
    recipe = tmp_path / "recipe.py"
    recipe.write_text(RECIPE)
    (tmp_path / "rows.csv").write_text("\n".join(["number", *map(str, range(1000))]))
    printed, told = Airflow(airflow_python, tmp_path, recipe).test_dag()
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
