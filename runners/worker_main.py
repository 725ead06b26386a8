"""The main program of a worker process: runs Beam's harness for one job after another.

Run as ``python -m snapshard.runners.worker_main`` by :mod:`snapshard.runners.worker_pool`. Each
line of standard input is a job: where to connect, and where to record failures, because the engine
passes errors on only as text. A line of standard output reports that the job is over. The process
ends at the end of its input, and when the process that started it is gone.
"""

import contextlib
import functools
import json
import logging
import os
import shutil
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

from .worker_pool import DRIVER, FOLDER

_WATCH_SECONDS = 1.0


def record_failure(error: BaseException, *, folder: str) -> None:
    """Writes the class, message and traceback of an error to a file.

    File names sort by time, the earliest first. If there is no space for the content, a file that
    is not valid JSON shows that an error was raised; if no file can be made, the process ends.
    """
    from ..schemas.errors import SnapshardError
    from .direct import without_step

    own = without_step(error)
    kind = next((cls for cls in type(own).__mro__ if _of_this_package(cls)), type(own))
    record = {
        "class": kind.__name__ if isinstance(own, SnapshardError) else "",
        "message": str(own),
        "traceback": "".join(traceback.format_exception(own)),
    }
    name = f"{time.time_ns():020d}-{os.getpid()}.failure"
    partial = os.path.join(folder, f"{name}.partial")
    try:
        with contextlib.suppress(OSError), open(partial, "w", encoding="utf-8") as file:
            # On a full disk the file exists but is incomplete, which is enough to report it.
            json.dump(record, file)
        os.rename(partial, os.path.join(folder, f"{name}.json"))
    except OSError:
        # Not even a file name: only the end of the process can report the failure.
        os._exit(1)


def _of_this_package(cls: type) -> bool:
    return cls.__module__.partition(".")[0] == __name__.partition(".")[0]


def _end_with(parent: int, *, folder: str) -> None:
    """Ends this process, whatever it is doing, when its parent changes: the driver is gone.

    The driver may be gone before the first check, and may have left its folder behind.
    """
    while os.getppid() == parent:
        time.sleep(_WATCH_SECONDS)
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)


def _work(environment: dict[str, str], *, failures: str) -> None:
    """Connects to the driver and works on one job until the driver disconnects."""
    from apache_beam.runners.worker import sdk_worker_main

    class Harness(sdk_worker_main.SdkHarness):
        """Beam's harness; records what a task raises before Beam turns it into text."""

        def _execute(self, task: Callable[[], Any], request: Any) -> None:
            def watched() -> Any:
                try:
                    return task()
                except BaseException as error:
                    record_failure(error, folder=failures)
                    raise

            super()._execute(watched, request)

    original = sdk_worker_main.SdkHarness
    sdk_worker_main.SdkHarness = Harness
    try:
        _, harness, _ = sdk_worker_main.create_harness(environment)
    finally:
        sdk_worker_main.SdkHarness = original
    try:
        harness.run()
    except Exception as error:
        record_failure(error, folder=failures)
        raise


def main() -> None:
    """Works on jobs until there are no more."""
    watch = functools.partial(_end_with, int(os.environ[DRIVER]), folder=os.environ[FOLDER])
    threading.Thread(target=watch, daemon=True).start()
    # The process's last output is shown when it dies: keep it relevant.
    logging.getLogger("apache_beam").setLevel(logging.CRITICAL)
    # The channel to the driver must not receive what other code prints.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    # Before the first job: the driver is still loading, too.
    from apache_beam.runners.worker import sdk_worker_main  # noqa: F401

    for line in sys.stdin:
        job = json.loads(line)
        _work(job["environment"], failures=job["failures"])
        print("idle", file=answers, flush=True)


if __name__ == "__main__":
    main()
