"""Work on many items at once that fails because of some of them is done again in parts.

For example, one of 256 records fails: so does the batch, then one of its eight parts of 32 records,
one of 4, and the record alone. These are 21 calls for 548 records in all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

_T = TypeVar("_T")


def in_parts(
    work: Callable[[int, int], _T | Exception],
    num_items: int,
    *,
    parts: int = 2,
    smallest: int = 1,
) -> Iterator[tuple[int, int, _T | Exception]]:
    """Does work on all items, or on ranges of them if it fails: (start, stop, result), in order.

    Args:
        work: From the start and the stop of a range of items to a result, or to None or an
            exception if it fails.
        num_items: The number of items.
        parts: The number of parts into which a range that fails is divided.
        smallest: A range of so few items is not divided; it comes with its failure.
    """
    pending = [(0, num_items)] if num_items else []
    while pending:
        start, stop = pending.pop()
        result = work(start, stop)
        if (result is None or isinstance(result, Exception)) and stop - start > smallest:
            size = -(-(stop - start) // parts)
            pending += [(at, min(at + size, stop)) for at in range(start, stop, size)][::-1]
        else:
            yield start, stop, result


def in_batches(
    items: Iterable[_T],
    size_of: Callable[[_T], int],
    *,
    max_size: int,
    max_items: int | None = None,
) -> Iterator[list[_T]]:
    """Consecutive items in lists, each of which ends where its items reach a size or number.

    >>> list(in_batches("abcde", lambda letter: 1 + 9 * (letter == "b"), max_size=10, max_items=3))
    [['a', 'b'], ['c', 'd', 'e']]
    """
    batch: list[_T] = []
    size = 0
    for item in items:
        batch.append(item)
        size += size_of(item)
        if size >= max_size or len(batch) == max_items:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
