"""The main program of a worker process: Beam's harness, for one job after the other.

Run as ``python -m snapshard.runners.worker_main`` by :mod:`snapshard.runners.worker_pool`. Each
line of standard input is a job: where to connect, and where to write down what goes wrong, since
the engine passes errors on as text only. A line of standard output says that the job is over.
The process ends when its input does, and when the process that started it is gone.
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
    """Writes an error down: its class, its message, its traceback.

    Named so that the earliest sorts first. Where there is no room for it, a file that is no JSON
    says that something was raised; where there can be no file, the process ends.
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
            # On a full disk there is a file, and no room in it: that alone says enough.
            json.dump(record, file)
        os.rename(partial, os.path.join(folder, f"{name}.json"))
    except OSError:
        # Not even a name: the end of the process is what can be seen.
        os._exit(1)


def _of_this_package(cls: type) -> bool:
    return cls.__module__.partition(".")[0] == __name__.partition(".")[0]


def _end_with(parent: int, *, folder: str) -> None:
    """Ends this process, whatever it is at, when its parent is another one: the driver is gone.

    It may be gone before this process looks for the first time, and has left its folder.
    """
    while os.getppid() == parent:
        time.sleep(_WATCH_SECONDS)
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)


def _work(environment: dict[str, str], *, failures: str) -> None:
    """Connects to the driver and works on one job, until the driver hangs up."""
    from apache_beam.runners.worker import sdk_worker_main

    class Harness(sdk_worker_main.SdkHarness):
        """Beam's harness; writes down what a task raises before Beam turns it into text."""

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
    # What the process writes is shown as its last words when it dies: keep it to what matters.
    logging.getLogger("apache_beam").setLevel(logging.CRITICAL)
    # The way back to the driver must not be written on by whoever prints.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    for line in sys.stdin:
        job = json.loads(line)
        _work(job["environment"], failures=job["failures"])
        print("idle", file=answers, flush=True)


if __name__ == "__main__":
    main()
