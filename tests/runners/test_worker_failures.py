"""What worker processes say of their failures, and what is made of it where there is no room."""

import json
import os
from pathlib import Path

import pytest

from snapshard.runners.worker_main import record_failure
from snapshard.runners.worker_pool import WorkerPool
from snapshard.runners.worker_processes import WorkerFailedError, WorkerProcesses
from snapshard.schemas.errors import StorageError


@pytest.fixture
def workers(tmp_path: Path) -> WorkerProcesses:
    with WorkerPool() as pool:
        found = WorkerProcesses(pool, job_name="write")
    found._failures = str(tmp_path)
    return found


def test_errors_of_ours_come_back_as_themselves(workers: WorkerProcesses, tmp_path: Path) -> None:
    assert workers._recorded_failure() is None
    record_failure(StorageError("Cannot write a: no space is left there."), folder=str(tmp_path))
    record_failure(ValueError("later"), folder=str(tmp_path))
    found = workers._recorded_failure()
    assert isinstance(found, StorageError)
    assert str(found) == "Cannot write a: no space is left there."


def test_others_come_back_with_their_traceback(workers: WorkerProcesses, tmp_path: Path) -> None:
    record_failure(ValueError("a defect"), folder=str(tmp_path))
    found = workers._recorded_failure()
    assert isinstance(found, WorkerFailedError)
    assert "ValueError: a defect" in str(found)


def test_no_room_to_say_what_went_wrong(
    workers: WorkerProcesses, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, os.strerror(28))

    with monkeypatch.context() as patched:
        patched.setattr(json, "dump", full)
        record_failure(StorageError("lost"), folder=str(tmp_path))
    found = workers._recorded_failure()
    assert isinstance(found, StorageError)
    assert str(tmp_path) in str(found)
    assert "TMPDIR" in str(found)


def test_without_even_a_name_the_process_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class EndedError(Exception):
        pass

    def end(code: int) -> None:
        raise EndedError(code)

    monkeypatch.setattr(os, "_exit", end)
    with pytest.raises(EndedError, match="1"):
        record_failure(StorageError("lost"), folder=str(tmp_path / "absent"))
