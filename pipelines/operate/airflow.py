"""Airflow: a DAG with a task for each step of a build, run by snapshard's command line.

Airflow pins all that is installed beside it, and snapshard what shapes its bytes, so each has an
environment of its own: a task starts the Python that snapshard is installed for. This module takes
the standard library and Airflow 3: beside Airflow, ``pip install --no-deps snapshard`` is enough,
which is for the file of the DAG.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from ..steps import IN_PARTS, STEPS

_IN_VAIN = frozenset({2, 3, 4, 5})
"""Exit codes after which another try would end alike: what is refused, damaged or defective."""
_OTHERS_PYTHON = ("PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV")
"""Variables that speak of Airflow's own Python."""


def dag(
    recipe: str,
    out: str,
    *,
    dag_id: str | None = None,
    python: str = sys.executable,
    options: Sequence[str] = (),
    parts: int = 1,
    retries: int = 2,
    retry_delay: datetime.timedelta = datetime.timedelta(minutes=1),
    schedule: Any = None,
    **dag_options: Any,
) -> Any:
    """A DAG that builds the snapshot of a recipe, a task for each step.

    A task that fails is tried again and goes on from what is done. One that is run again finds
    what it did, and does nothing. Each returns what ``snapshard step … --json`` tells.

    Args:
        recipe: The recipe's file, or raw data, as ``snapshard build`` takes it: an absolute path
            on all of Airflow's workers, or a URL.
        out: The output root: an absolute path that they share, or a URL.
        dag_id: The DAG's name; by default ``snapshard_`` and the name of the recipe's file.
        python: The interpreter of the environment that snapshard is installed in.
        options: Further options of ``snapshard step``, alike for all: ``("--limit", "1000")``,
            ``("--runner", "flink", "--flink-master", "host:8081")``.
        parts: Into so many tasks, mapped, the steps ``prepare`` and ``write`` are divided: for
            Airflow's workers to share blocks and shards, where no Beam cluster does. With 1 they
            are a task each, whose job the runner divides.
        retries: How often a task that failed is tried again. A refused recipe or refused data are
            not: nothing would change.
        retry_delay: How long after.
        schedule: When to build, as Airflow's; None for when it is asked.
        dag_options: Further arguments of ``airflow.sdk.DAG``: ``start_date``, ``tags``,
            ``default_args`` …

    Returns:
        An ``airflow.sdk.DAG``. One run of it at a time: a chain has one workspace.

    Raises:
        ValueError: if a path is relative, or ``parts`` is none.
    """
    for name, path in (("recipe", recipe), ("out", out), ("python", python)):
        if not (os.path.isabs(path) or "://" in path or "{{" in path):
            raise ValueError(
                f"{name}={path!r} is relative, and each of Airflow's workers has a folder of its "
                "own. Give an absolute path or a URL."
            )
    if parts < 1:
        raise ValueError(f"parts={parts}, expected 1 or more.")
    from airflow.sdk import DAG

    step = _operator()
    stem = re.sub(r"\W", "_", os.path.basename(recipe.rstrip("/")).removesuffix(".py"))
    settings: dict[str, Any] = {"max_active_runs": 1, "catchup": False, **dag_options}
    with DAG(dag_id or f"snapshard_{stem}", schedule=schedule, **settings) as made:
        given = {
            "command": [python, "-m", "snapshard", "step"],
            "recipe": recipe,
            "out": out,
            "options": list(options),
            "retries": retries,
            "retry_delay": retry_delay,
        }
        divided = [f"{number}/{parts}" for number in range(1, parts + 1)]
        before = None
        for name in STEPS:
            tasks = []
            if parts > 1 and name in IN_PARTS:
                task_id = f"{name}_part"
                tasks.append(step.partial(task_id=task_id, step=name, **given).expand(part=divided))
            if parts == 1 or name != "write":
                tasks.append(step(task_id=name, step=name, **given))
            for task in tasks:
                if before is not None:
                    before >> task
                before = task
    return made


@functools.cache
def _operator() -> Any:
    """The operator of a step: a class of Airflow's, which is there only where Airflow is."""
    from airflow.sdk import BaseOperator

    try:
        from airflow.sdk.exceptions import AirflowException, AirflowFailException
    except ImportError:  # Airflow 3.0
        from airflow.exceptions import AirflowException, AirflowFailException

    class SnapshardStep(BaseOperator):
        """Runs a step in a process of its own; its output is in the task's log."""

        template_fields = ("recipe", "out", "options")

        def __init__(
            self,
            *,
            command: Sequence[str],
            step: str,
            recipe: str,
            out: str,
            options: Sequence[str] = (),
            part: str | None = None,
            **task_options: Any,
        ) -> None:
            super().__init__(**task_options)
            self.command = command
            self.step = step
            self.recipe = recipe
            self.out = out
            self.options = options
            self.part = part
            self._process: subprocess.Popen[str] | None = None
            self._killed = False

        def execute(self, context: Any) -> Any:
            """Runs it.

            Returns:
                What it tells, as JSON.
            """
            arguments = [self.step, self.recipe, "--out", self.out, "--json"]
            if self.part is not None:
                arguments += ["--part", self.part]
            environment = {k: v for k, v in os.environ.items() if k not in _OTHERS_PYTHON}
            self._process = subprocess.Popen(
                [*self.command, *arguments, *self.options],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=environment,
                text=True,
                errors="replace",
                # With all that it starts, it can be ended as one.
                start_new_session=True,
            )
            if self._killed:
                self.on_kill()
            told, words = None, [""]
            for line in self._process.stdout or ():
                if line.startswith("{"):
                    told = line
                    continue
                self.log.info("%s", line.rstrip())
                # The last line, or an error of several.
                going_on = words[0].startswith("error:") and not line.startswith("error:")
                words = [*words, line] if going_on else [line]
            code = self._process.wait()
            if code != 0 or told is None:
                failed = AirflowFailException if code in _IN_VAIN else AirflowException
                error = "".join(words).strip()
                raise failed(f"snapshard step {self.step} ended with exit code {code}: {error}")
            self.log.info("%s", told.rstrip())
            return json.loads(told)

        def on_kill(self) -> None:
            """Ends the process, and all that it started; one that has yet to start, as it does."""
            self._killed = True
            if self._process is not None and self._process.poll() is None:
                # It may end by itself just now.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGTERM)

    return SnapshardStep
