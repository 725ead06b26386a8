"""A DoFn that works on several elements at once, in threads of its worker.

The embedded engine gives a worker one element after the other. What our steps do, decoding,
hashing, reading, writing, leaves Python's lock free for much of its time, so a second element
under way keeps the other cores busy without a second process and its imports.
"""

import collections
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import apache_beam as beam
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.windowed_value import WindowedValue


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
        self._under_way: collections.deque[Future[Any]] = collections.deque()

    def process(self, element: Any) -> Iterator[Any]:
        """Takes one element up; gives the oldest output where enough are under way."""
        if len(self._under_way) == self._num_threads:
            yield self._take()
        self._under_way.append(self._pool.submit(self.work, element))

    def finish_bundle(self) -> Iterator[WindowedValue]:
        """Gives the outputs that are still to come."""
        window = GlobalWindow()
        while self._under_way:
            yield WindowedValue(self._take(), window.max_timestamp(), [window])
        self._pool.shutdown()

    def _take(self) -> Any:
        try:
            return self._under_way.popleft().result()
        except BaseException:
            # The bundle fails: what waits need not begin.
            self._pool.shutdown(wait=True, cancel_futures=True)
            raise
