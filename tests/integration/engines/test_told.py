"""What goes wrong in a worker of an engine is told in our words, once."""

import re
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.engine


def test_failure_in_a_worker(lab: Any, prism_program: Path, tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text("number\n1\n2\n")
    recipe = tmp_path / "recipe.py"
    recipe.write_text(
        'import snapshard as ss\nrecipe = ss.Recipe(name="t", source=ss.Csv("table.csv"))\n'
    )
    in_the_way = tmp_path / "out" / "t" / ".work" / "runs"
    in_the_way.parent.mkdir(parents=True)
    in_the_way.touch()
    team = tmp_path / "team.toml"
    team.write_text(f'runner = "prism"\nbinary = "{prism_program}"\n')
    done = lab.run_cli("build", recipe, "--out", tmp_path / "out", "--runner", team)
    assert done.returncode == 2
    assert done.stderr.count("error: ") == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"error: Cannot write {in_the_way}/")
    assert last.endswith("a part of the path is a file, expected a folder. Choose another place.")
    assert "Traceback" not in done.stderr


def test_check_of_an_engine(lab: Any, prism_program: Path, tmp_path: Path) -> None:
    team = tmp_path / "team.toml"
    team.write_text(f'runner = "prism"\nbinary = "{prism_program}"\n')
    out = tmp_path / "out"
    out.mkdir()
    done = lab.run_cli("check-runner", team, "--out", out)
    assert done.returncode == 0, done.stderr
    *workers, last = done.stdout.splitlines()
    assert workers
    assert all(re.fullmatch(r"worker: \S+, process \d+", line) for line in workers)
    assert re.fullmatch(rf"{team} can run builds: a small job took [\d.]+ s", last)
    assert not list(out.iterdir())
    out.rmdir()
    out.touch()
    done = lab.run_cli("check-runner", team, "--out", out)
    assert done.returncode == 2
    assert re.fullmatch(
        rf"error: On the worker \S+: Cannot write {out}/\S+: a part of the path is a file, .*\n",
        done.stderr,
    ), done.stderr
