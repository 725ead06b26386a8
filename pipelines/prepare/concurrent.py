"""A DoFn that works on several elements at once, in threads of its worker.

The embedded engine gives a worker one element after the other. What our steps do, decoding,
hashing, reading, writing, leaves Python's lock free for much of its time, so a second element
under way keeps the other cores busy without a second process and its imports.
"""

import queue
import threading
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from typing import Any

import apache_beam as beam
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.windowed_value import WindowedValue

from ...transforms import beam_hooks  # noqa: F401 - reports what Beam does; makes it set up faster
from ...transforms.storage.failures import telling_os_errors

_INTERRUPTED_S = 2.0
"""Elements under way have so long to end where the bundle is interrupted."""


class ConcurrentDoFn(beam.DoFn):
    """Calls :meth:`work` on each element, on up to ``num_threads`` of them at once.

    Outputs come in the order of the elements, in the global window. What ``work`` raises fails
    the bundle, as in any DoFn.
    """

    def __init__(self, num_threads: int) -> None:
        self._num_threads = num_threads

    def work(self, element: Any) -> Any:
        """Turns one element into one output; called in several threads at once."""
        raise NotImplementedError

    def start_bundle(self) -> None:
        """Starts with nothing under way, whatever became of the bundle before."""
        self._waiting: queue.SimpleQueue[tuple[Future[Any], Any] | None] = queue.SimpleQueue()
        self._under_way: list[Future[Any]] = []
        self._threads: list[threading.Thread] = []

    def process(self, element: Any) -> None:
        """Takes one element up; it waits in a queue while all threads work."""
        future: Future[Any] = Future()
        self._under_way.append(future)
        self._waiting.put((future, element))
        if len(self._threads) < self._num_threads:
            # Not those of a pool: at its end Python would wait for one that is blocked for ever.
            thread = threading.Thread(target=self._serve, args=(self._waiting,), daemon=True)
            thread.start()
            self._threads.append(thread)

    def _serve(self, waiting: "queue.SimpleQueue[tuple[Future[Any], Any] | None]") -> None:
        """Works on what waits, until it is said that nothing more does."""
        while (taken := waiting.get()) is not None:
            future, element = taken
            if future.set_running_or_notify_cancel():
                try:
                    output = self._work(element)
                except BaseException as error:
                    future.set_exception(error)
                else:
                    future.set_result(output)

    def _work(self, element: Any) -> Any:
        # The engine passes on what an error says, not its number: told here, or never.
        with telling_os_errors("use", "a file of the worker"):
            return self.work(element)

    def finish_bundle(self) -> Iterator[WindowedValue]:
        """Gives the outputs, once all elements are done or the first one fails."""
        deadline = None
        try:
            done, _ = wait(self._under_way, return_when=FIRST_EXCEPTION)
            failed = [future for future in self._under_way if future in done and future.exception()]
            outputs = [future.result() for future in failed or self._under_way]
        except (KeyboardInterrupt, SystemExit):
            deadline = time.monotonic() + _INTERRUPTED_S
            raise
        finally:
            # Where the bundle fails, what has not begun need not begin.
            for future in self._under_way:
                future.cancel()
            for _ in self._threads:
                self._waiting.put(None)
            for thread in self._threads:
                thread.join(None if deadline is None else max(0.0, deadline - time.monotonic()))
        window = GlobalWindow()
        for output in outputs:
            yield WindowedValue(output, window.max_timestamp(), [window])
