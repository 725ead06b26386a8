"""Airflow: a DAG with a task for each step of a build, run by snapshard's command line.

Airflow pins the packages in its environment, and snapshard those that affect its output, so each
needs a separate environment: a task starts the Python that snapshard is installed for. This module
needs only the standard library and Airflow 3: in Airflow's environment, ``pip install --no-deps
snapshard`` is enough for the file of the DAG.
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

from ...schemas.steps import IN_PARTS, STEPS

_NO_RETRY = frozenset({2, 3, 4, 5})
"""Exit codes after which a retry would fail again: refused, damaged or defective."""
_PYTHON_VARIABLES = ("PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV")
"""Environment variables that refer to Airflow's Python."""


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
    """A DAG that builds the snapshot of a recipe, with a task for each step.

    A failed task is retried and resumes from finished work. A finished task that is run again does
    nothing. Each returns the output of ``snapshard step … --json``.

    Args:
        recipe: The recipe's file, or raw data, as for ``snapshard build``: an absolute path on all
            of Airflow's workers, or a URL.
        out: The output root: an absolute path that the workers share, or a URL.
        dag_id: The DAG's name; by default ``snapshard_`` and the name of the recipe's file.
        python: The interpreter of the environment that snapshard is installed in.
        options: Additional options of ``snapshard step``, the same for all tasks:
            ``("--limit", "1000")``, ``("--runner", "flink", "--flink-master", "host:8081")``.
        parts: Number of mapped tasks that ``prepare`` and ``write`` are each divided into:
            Airflow's workers then share blocks and shards without a Beam cluster. With 1, each of
            these steps is one task, whose job the runner divides.
        retries: How often a failed task is retried. A refused recipe or refused data is not
            retried: the result would be the same.
        retry_delay: Delay before a retry.
        schedule: Airflow's schedule of the builds; None for manual runs only.
        dag_options: Additional arguments of ``airflow.sdk.DAG``: ``start_date``, ``tags``,
            ``default_args`` …

    Returns:
        An ``airflow.sdk.DAG``. Only one run at a time: a chain has one workspace.

    Raises:
        ValueError: if a path is relative, or ``parts`` is less than 1.
    """
    for name, path in (("recipe", recipe), ("out", out), ("python", python)):
        if not (os.path.isabs(path) or "://" in path or "{{" in path):
            raise ValueError(
                f"{name}={path!r} is relative, but Airflow's workers have different working "
                "folders. Give an absolute path or a URL."
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
    """The operator class of a step; defined on first use, since it needs Airflow."""
    from airflow.sdk import BaseOperator

    try:
        from airflow.sdk.exceptions import AirflowException, AirflowFailException
    except ImportError:  # Airflow 3.0
        from airflow.exceptions import AirflowException, AirflowFailException

    class SnapshardStep(BaseOperator):
        """Runs a step in a separate process; its output is in the task's log."""

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
            """Runs the step.

            Returns:
                Its JSON report.
            """
            arguments = [self.step, self.recipe, "--out", self.out, "--json"]
            if self.part is not None:
                arguments += ["--part", self.part]
            environment = {k: v for k, v in os.environ.items() if k not in _PYTHON_VARIABLES}
            self._process = subprocess.Popen(
                [*self.command, *arguments, *self.options],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=environment,
                text=True,
                errors="replace",
                # One signal then ends it and all processes that it starts.
                start_new_session=True,
            )
            if self._killed:
                self.on_kill()
            report, message = None, [""]
            for line in self._process.stdout or ():
                if line.startswith("{"):
                    report = line
                    continue
                self.log.info("%s", line.rstrip())
                # The last line, or an error of several lines.
                continues = message[0].startswith("error:") and not line.startswith("error:")
                message = [*message, line] if continues else [line]
            code = self._process.wait()
            if code != 0 or report is None:
                failed = AirflowFailException if code in _NO_RETRY else AirflowException
                error = "".join(message).strip()
                raise failed(f"snapshard step {self.step} ended with exit code {code}: {error}")
            self.log.info("%s", report.rstrip())
            return json.loads(report)

        def on_kill(self) -> None:
            """Ends the process and all that it started; if it has not started yet, when it does."""
            self._killed = True
            if self._process is not None and self._process.poll() is None:
                # It may just have ended.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGTERM)

    return SnapshardStep
