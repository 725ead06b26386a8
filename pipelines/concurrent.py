"""A DoFn that works on several elements at once, in threads of its worker.

The embedded engine gives a worker one element after the other. What our steps do, decoding,
hashing, reading, writing, leaves Python's lock free for much of its time, so a second element
under way keeps the other cores busy without a second process and its imports.
"""

from collections.abc import Iterator
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from typing import Any

import apache_beam as beam
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.windowed_value import WindowedValue

from ..transforms import dofn_specs  # noqa: F401 - replaces a look-up of Beam
from ..transforms.storage_failures import telling_os_errors


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
        self._pool = ThreadPoolExecutor(self._num_threads)
        self._under_way: list[Future[Any]] = []

    def process(self, element: Any) -> None:
        """Takes one element up; it waits in the pool's queue while all threads work."""
        self._under_way.append(self._pool.submit(self._work, element))

    def _work(self, element: Any) -> Any:
        # The engine passes on what an error says, not its number: told here, or never.
        with telling_os_errors("use", "a file of the worker"):
            return self.work(element)

    def finish_bundle(self) -> Iterator[WindowedValue]:
        """Gives the outputs, once all elements are done or the first one fails."""
        try:
            done, _ = wait(self._under_way, return_when=FIRST_EXCEPTION)
            failed = [future for future in self._under_way if future in done and future.exception()]
            outputs = [future.result() for future in failed or self._under_way]
        finally:
            # Where the bundle fails, what has not begun need not begin.
            self._pool.shutdown(cancel_futures=True)
        window = GlobalWindow()
        for output in outputs:
            yield WindowedValue(output, window.max_timestamp(), [window])
