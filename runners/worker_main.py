"""The main program of a worker process: Beam's harness, tied to the process that started it.

Run as ``python -m snapshard.runners.worker_main`` by :mod:`snapshard.runners.worker_processes`,
which says by environment variables where to connect. What goes wrong is also written into a
file, since the engine passes errors on as text only.
"""

import json
import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

PARENT = "SNAPSHARD_WORKER_PARENT"
"""Environment variable: process id of the driver; the worker ends with it."""
FAILURES = "SNAPSHARD_WORKER_FAILURES"
"""Environment variable: the folder to write failures into."""

_WATCH_SECONDS = 1.0


def record_failure(error: BaseException, *, folder: str) -> None:
    """Writes an error down: its class, its message, its traceback.

    Written whole or not at all, named so that the earliest sorts first.
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
    with open(partial, "w", encoding="utf-8") as file:
        json.dump(record, file)
    os.rename(partial, os.path.join(folder, f"{name}.json"))


def _of_this_package(cls: type) -> bool:
    return cls.__module__.partition(".")[0] == __name__.partition(".")[0]


def _end_with(parent: int) -> None:
    """Ends this process as soon as its parent is another one: the driver is gone."""
    while os.getppid() == parent:
        time.sleep(_WATCH_SECONDS)
    os._exit(1)


def main() -> None:
    """Connects to the driver and works until it hangs up."""
    parent, folder = int(os.environ[PARENT]), os.environ[FAILURES]
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()

    # What the process writes is shown as its last words when it dies: keep it to what matters.
    logging.getLogger("apache_beam").setLevel(logging.CRITICAL)

    from apache_beam.runners.worker import sdk_worker_main

    class Harness(sdk_worker_main.SdkHarness):
        """Beam's harness; writes down what a task raises before Beam turns it into text."""

        def _execute(self, task: Callable[[], Any], request: Any) -> None:
            def watched() -> Any:
                try:
                    return task()
                except BaseException as error:
                    record_failure(error, folder=folder)
                    raise

            super()._execute(watched, request)

    sdk_worker_main.SdkHarness = Harness
    try:
        sdk_worker_main.main(sys.argv)
    except Exception as error:
        record_failure(error, folder=folder)
        raise


if __name__ == "__main__":
    main()
