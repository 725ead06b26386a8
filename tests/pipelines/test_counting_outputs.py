"""The bar of a Beam job: it moves with the outputs, and never stands in the job's way."""

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from snapshard.pipelines import watchdog
from snapshard.pipelines.watchdog import counting_outputs
from snapshard.schemas.errors import DataError, StorageError
from snapshard.schemas.progress import BUILD_HERE, Counted
from snapshard.transforms import activity, storage


class Recorded:
    """Progress that keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.counted = Counted()

    def start(self, step: str, *, total: int | None, unit: str) -> None:
        self.told.append((step, total, unit))

    def advance(self, step: str, *, done: int) -> None:
        self.told.append(done)

    def count(self, step: str, counted: Counted) -> None:
        self.counted = counted

    def warn(self, message: str) -> None:
        self.told.append(("warn", message))

    def finish(self, step: str, *, reused: bool, note: str = "") -> None:
        raise AssertionError("the step's own business")


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "SECONDS_BETWEEN_LOOKS", 0.01)


def _wait_until(reached: Any) -> None:
    end = time.monotonic() + 20
    while not reached():
        assert time.monotonic() < end
        time.sleep(0.01)


def _counters() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("count_")]


def test_advances_with_the_outputs(tmp_path: Path) -> None:
    outputs = [str(tmp_path / folder / name) for folder in ("a", "b") for name in ("1", "2")]
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "1").touch()
    progress = Recorded()
    with counting_outputs(progress, "prepare", outputs=outputs, unit="blocks"):
        # What is reused is told at once.
        assert progress.told[:2] == [("prepare", 4, "blocks"), 1]
        (tmp_path / "a" / "other").touch()
        (tmp_path / "a" / "2").touch()
        _wait_until(lambda: 2 in progress.told)
        (tmp_path / "b").mkdir()
        (tmp_path / "b" / "1").touch()
        _wait_until(lambda: 3 in progress.told)
        # What was seen once counts, even if it is moved on.
        (tmp_path / "a" / "1").unlink()
        told = len(progress.told)
        _wait_until(lambda: len(progress.told) > told)
        assert progress.told[-1] == 3
    assert progress.told[-1] == 4
    assert not _counters()


@pytest.mark.parametrize("error", [DataError("refused"), KeyboardInterrupt(), ZeroDivisionError()])
def test_error_of_the_job_passes_unchanged(tmp_path: Path, error: BaseException) -> None:
    progress = Recorded()

    def job() -> None:
        with counting_outputs(progress, "write", outputs=[str(tmp_path / "x")], unit="shards"):
            raise error

    with pytest.raises(type(error)) as caught:
        job()
    assert caught.value is error
    assert progress.told[-1] == 0
    assert not _counters()


def test_trouble_in_looking_is_left_to_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = threading.Event()

    def fail(url: str) -> list[str]:
        if threading.current_thread() is not threading.main_thread():
            looked.set()
        raise StorageError(f"Cannot list {url}: no answer.")

    monkeypatch.setattr(storage, "list_names", fail)
    progress = Recorded()
    with counting_outputs(progress, "write", outputs=[str(tmp_path / "x")], unit="shards"):
        assert looked.wait(20)
    assert progress.told[-1] == 1


def test_nothing_to_wait_for() -> None:
    progress = Recorded()
    with counting_outputs(progress, "write", outputs=[], unit="shards"):
        pass
    assert progress.told[0] == ("write", 0, "shards")
    assert set(progress.told[1:]) == {0}


def test_records_of_unfinished_outputs_are_counted(tmp_path: Path) -> None:
    recorded = Recorded()
    with activity.reported_in(str(tmp_path)):
        activity.count(Counted(records=5))  # of the step before
        token = BUILD_HERE.set(str(tmp_path))
        try:
            with watchdog.counting_outputs(
                recorded, "prepare", outputs=[str(tmp_path / "run")], unit="blocks"
            ):
                activity.count(Counted(records=100, num_bytes=4000))
                activity.count(Counted(rejects=2))
                _wait_until(lambda: recorded.counted == Counted(100, 2, 4000))
        finally:
            BUILD_HERE.reset(token)
