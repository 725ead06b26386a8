"""``batch_size=None``: single examples. They are read in batches, which are then taken apart."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import tensorflow as tf  # type: ignore[import-untyped, unused-ignore]

from .options import Options
from .order import deal, divided_pieces, is_dealt
from .pipeline import parsed, prefetch
from .plan import plan_reading, steps_of
from .shards import list_shards

_BATCH = 128
"""Examples parsed together: parsing a single one costs as much as parsing many."""
_REFUSED = {
    "drop_remainder": "there are no short batches",
    "pad": "examples are padded to the longest of their batch",
    "bucket": "it forms batches",
    "augment_batch": "it changes batches (augment= changes examples)",
}


def read_examples(arguments: Mapping[str, Any]) -> tf.data.Dataset:
    """The dataset of single examples for the arguments of ``dataset``.

    Raises:
        ValueError: as ``plan_reading``, or if an option needs batches.
    """
    options, num_skipped = _options_of(arguments)
    plan = plan_reading(options, num_skipped)
    examples = parsed(plan).unbatch()
    num = plan.num_batches
    if num:
        num = _num_examples(options)
    return prefetch(dataclasses.replace(plan, num_batches=num), examples)


def num_single(arguments: Mapping[str, Any]) -> int:
    """Examples per epoch: the steps of single examples; -2 if unknown.

    Raises:
        ValueError: as ``read_examples``, except for errors that only reading or tracing finds.
    """
    options, _ = _options_of(arguments)
    num = steps_of(options)
    return _num_examples(options) if num > 0 else num


def _options_of(arguments: Mapping[str, Any]) -> tuple[Options, int]:
    """The options of reading in batches, and how many examples of the first one were already read.

    With ``equal_steps``, batches have one example each: workers then have equally many examples.
    """
    for name, why in _REFUSED.items():
        if arguments.get(name) is not None and arguments[name] is not False:
            raise ValueError(
                f"batch_size=None and {name}= cannot be combined ({why}): leave one out."
            )
    size = 1 if arguments.get("equal_steps") is True else _BATCH
    options = Options(**{**arguments, "batch_size": size})
    if not options.read_so_far:
        return options, 0
    _, workers = options.part
    if not isinstance(options.start_step, int) or (size > 1 and workers > 1):
        raise ValueError(
            f"batch_size=None cannot resume at start_step={options.start_step!r} with "
            f"{workers} workers, which have different numbers of examples: pass batch_size=, and "
            "take its batches apart with unbatch()."
        )
    start, each = options.start_step, _num_examples(options)
    epochs, rest = divmod(start, each) if each else (0, 0)
    steps, num_skipped = divmod(rest, size)
    is_same_order = not options.shuffles or options.balance is not None
    if num_skipped and not is_same_order and not is_dealt(options):
        raise ValueError(
            f"batch_size=None cannot resume at start_step={start} where whole shards are read, "
            "since the rest of the epoch comes in a new order: pass batch_size=, and take its "
            "batches apart with unbatch()."
        )
    steps += epochs * steps_of(options)
    return dataclasses.replace(options, start_step=steps), num_skipped


def _num_examples(options: Options) -> int:
    """Examples per epoch of this worker."""
    worker, _ = options.part
    if options.equal_steps:
        return steps_of(options)
    if options.balance is not None:
        from .draw import share

        total = options.selection.num_examples
        full, _, rest = share(options, total, options.batch_size, options.part)
        return full * options.batch_size + rest
    shards = list_shards(options.split, options.root_folder)
    if is_dealt(options):
        return deal(options).num_records(worker)
    return sum(piece.take for piece in divided_pieces(options, shards))
