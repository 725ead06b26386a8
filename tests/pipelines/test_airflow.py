"""The operator of a step, without Airflow: it is killed whenever Airflow says so."""

import logging
import subprocess
import sys
import types
from typing import Any

import pytest

from snapshard.pipelines.operate import airflow


class BaseOperator:
    """As much of Airflow's as the operator needs."""

    log = logging.getLogger("airflow")

    def __init__(self, *, task_id: str) -> None:
        self.task_id = task_id


@pytest.fixture
def operator(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The operator's class, made anew where Airflow seems to be installed."""
    exceptions = types.ModuleType("airflow.sdk.exceptions")
    given = {"AirflowException": RuntimeError, "AirflowFailException": PermissionError}
    vars(exceptions).update(given)
    sdk = types.ModuleType("airflow.sdk")
    vars(sdk)["BaseOperator"] = BaseOperator
    monkeypatch.setitem(sys.modules, "airflow", types.ModuleType("airflow"))
    monkeypatch.setitem(sys.modules, "airflow.sdk", sdk)
    monkeypatch.setitem(sys.modules, "airflow.sdk.exceptions", exceptions)
    return airflow._operator.__wrapped__()


@pytest.mark.parametrize("when", ["before", "as it starts", "after"])
def test_a_step_is_killed_at_any_time(
    operator: Any, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    task = operator(
        task_id="step",
        command=["/bin/sh", "-c", "echo begun; sleep 20 & sleep 20"],
        step="plan",
        recipe="/recipe",
        out="/out",
    )
    start = subprocess.Popen

    def start_and_kill(*arguments: Any, **options: Any) -> Any:
        process = start(*arguments, **options)
        task.on_kill()
        return process

    def kill(*_: object) -> None:
        task.on_kill()

    if when == "before":
        task.on_kill()
    elif when == "as it starts":
        monkeypatch.setattr(subprocess, "Popen", start_and_kill)
    else:
        monkeypatch.setattr(task.log, "info", kill)
    with pytest.raises(RuntimeError, match="ended with exit code -15"):
        task.execute({})
    task._process.stdout.close()
