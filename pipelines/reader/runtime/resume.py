"""Resumes an interrupted epoch: ``start_step=``, and ``Resume`` for Keras's ``fit``.

As long as the records were dealt in the same way (the same global batch size, and numbers of
workers that divide the streams), the same order continues, by arithmetic. Otherwise the order of
the records already read is found by running the same shuffles on positions alone, 1 to 2 µs each,
and the rest is divided again.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
import os
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf  # type: ignore[import-untyped, unused-ignore]

from . import facts
from .augment import number_records
from .options import Options
from .order import (
    ByShard,
    Order,
    deal,
    deal_records,
    divided_pieces,
    is_dealt,
    plan_order,
)
from .pipeline import (
    Plan,
    epoch_seeds,
    interleave_records,
    read_each,
    read_epoch,
    unconverted,
)
from .shards import Piece, cut, ends_of, locate

_EPOCHS, _PASSES = 1_000_000, 10_000
"""Maximum number of epochs of a pass, and of passes, to resume after: takes about a second."""
_AT_ONCE = 1 << 16
"""Positions processed together."""

Places = npt.NDArray[np.int64]
Done = npt.NDArray[np.bool_]


@dataclasses.dataclass
class _Progress:
    """How far an epoch came: by arithmetic as long as possible, else record by record."""

    number: int = 0
    """Number of epochs before this one."""
    delivered: int = 0
    """Records of it that all workers have read, dealt according to ``options``."""
    options: Options | None = None
    done: Done | None = None
    """bool[total]: the records already read, if the order has changed since."""


def resume(plan: Plan, num_skipped: int = 0) -> Plan:
    """Reads the rest of the interrupted epoch first, then all later epochs.

    Later passes are complete.

    Args:
        plan: Of complete epochs.
        num_skipped: Examples to leave out of the first batch.

    Raises:
        ValueError: if there were too many epochs before to draw their seeds again.
    """
    if plan.rest_of_epoch is not None:
        number, first, num_batches = plan.rest_of_epoch(plan.options.read_so_far)
        rest_plan = dataclasses.replace(plan, first=first)
    else:
        progress = _progress(plan)
        number = progress.number
        rest_plan, num_batches = _rest(plan, progress)

    def rest(seed: Any) -> tf.data.Dataset:  # through all stages, as other epochs
        batches = plan.read_epoch(rest_plan, seed)
        return _skip(batches, num_skipped) if num_skipped else batches

    def read_epochs(plan: Plan) -> tf.data.Dataset:
        return _resumed(plan, number, rest, num_batches)

    is_complete = num_batches == plan.num_batches and not num_skipped
    begins_later = not is_complete or number % (plan.options.epochs or 1) > 0
    return dataclasses.replace(plan, read_epochs=read_epochs, begins_later=begins_later)


def _skip(batches: tf.data.Dataset, num: int) -> tf.data.Dataset:
    """Leaves out the first examples of the first batch."""

    def cut(number: Any, batch: Any) -> Any:
        start = tf.where(number == 0, num, 0)
        # A scalar is the seed of the epoch.
        return tf.nest.map_structure(lambda part: part[start:] if part.shape.rank else part, batch)

    return batches.enumerate().map(unconverted(cut))


def _progress(plan: Plan) -> _Progress:
    """How far the parts of the epoch that were read, each (steps, batch size, workers), came."""
    options = plan.options
    at = _Progress()
    total = options.selection.num_examples
    for steps, size, workers in (*options.read_so_far, (0, options.batch_size, options.part[1])):
        now = dataclasses.replace(
            options, batch_size=size, shard=(0, workers), input_context=None, start_step=0
        )
        if at.delivered and not _is_same_order(plan, at, now):
            at.done = mark_of(plan, at, total)
            at.delivered = 0
        while steps and steps >= (most := _most_batches(plan, now, at)):
            is_fresh = not at.delivered and at.done is None
            if is_fresh and not most:
                steps = 0  # no worker has a batch
                break
            # All epochs after the first have the same number of steps.
            num = steps // most if is_fresh else 1
            at = _Progress(at.number + num)
            steps -= num * most
        if steps and at.done is None and is_dealt(now) and not now.bucket:
            at.delivered, at.options = at.delivered + steps * size * workers, now
        elif steps:
            _, seed = _seeds(options, at.number)
            before = np.zeros(total, bool) if at.done is None else at.done
            at.done = before.copy()
            for worker in range(workers):
                part = dataclasses.replace(now, shard=(worker, workers))
                at.done[_places(plan, part, before, steps, seed)] = True
    return at


def _is_same_order(plan: Plan, at: _Progress, now: Options) -> bool:
    """Whether dealing continues with the same streams and the same chunks."""
    if at.options is None or not is_dealt(now):
        return False
    first, second = deal(at.options), deal(now)
    fields = ("num_streams", "chunk", "length")
    is_same = all(getattr(first, name) == getattr(second, name) for name in fields)
    return is_same and at.delivered % (second.chunk * now.part[1]) == 0  # whole chunks of each


def _most_batches(plan: Plan, now: Options, at: _Progress) -> int:
    """Remaining batches of an epoch for the worker that has the most (equal_steps: the fewest)."""
    workers = now.part[1]
    nums = [_num_batches(plan, now, (i, workers), at) for i in range(workers)]
    return min(nums) if now.equal_steps else max(nums)


def _num_batches(plan: Plan, now: Options, part: tuple[int, int], at: _Progress) -> int:
    """Remaining batches of an epoch for one worker."""
    worker, workers = part
    if at.done is not None:
        left = int((~at.done).sum())
        num = left * (worker + 1) // workers - left * worker // workers
    elif is_dealt(now):
        num = deal(now).num_records(worker) - at.delivered // workers
    else:
        pieces = divided_pieces(dataclasses.replace(now, shard=part), plan.shards)
        num = sum(piece.take for piece in pieces)
    return num // now.batch_size if now.drop_remainder else -(-num // now.batch_size)


def mark_of(plan: Plan, at: _Progress, total: int) -> Done:
    """Marks the records that all workers have read of a dealt epoch."""
    assert at.options is not None
    done = np.zeros(total, bool)
    workers = at.options.part[1]
    _, seed = _seeds(plan.options, at.number)
    for worker in range(workers):
        options = dataclasses.replace(at.options, shard=(worker, workers))
        blind = _blind(plan, options, deal_records(options, plan.shards), None)
        places = _flat(unconverted(interleave_records)(blind, seed))
        done[_first(places, at.delivered // workers)] = True
    return done


def _places(plan: Plan, now: Options, done: Done, steps: int, seed: Any) -> Places:
    """The positions of the records that a worker read in ``steps`` steps of an epoch."""
    order: Order
    if is_dealt(now) and not done.any():
        order, is_left = deal_records(now, plan.shards), None
    else:
        pieces, is_left = _left(plan, now, done)
        order = ByShard(pieces, buffer=now.buffer, batch_size=now.batch_size)
    blind = _blind(plan, now, order, is_left)
    if now.bucket:  # the order depends on lengths, so records must be read
        reading = dataclasses.replace(
            plan, options=now, order=order, open_records=plan.open_uncached or plan.open_records
        )
        reading = reading if plan.is_numbered else number_records(reading)
        reading = dataclasses.replace(
            reading, open_records=_filtered(reading.open_records, is_left)
        )
        batches = unconverted(plan.read_epoch)(reading, seed).take(steps)
        numbered = (batch[0] if now.augments else batch for batch in batches.as_numpy_iterator())
        return np.concatenate([np.empty(0, np.int64), *(places for _, places in numbered)])
    places = _flat(unconverted(read_epoch)(blind, seed))
    return _first(places, steps * now.batch_size)


def _blind(plan: Plan, options: Options, order: Order, is_left: Done | None) -> Plan:
    """A plan that yields positions instead of records, and opens no file."""
    return dataclasses.replace(
        plan,
        options=options,
        order=order,
        open_records=_filtered(_only_places, is_left),
        ahead=lambda plan, pieces: pieces,
    )


def _only_places(path: Any, offset: Any, skip: Any, take: Any, place: Any, *_: Any) -> Any:
    """Yields the positions of a piece's records instead of the records."""
    return tf.data.Dataset.range(place, place + take)


def _flat(batches: tf.data.Dataset) -> Iterator[Places]:
    parts: Iterator[Places] = batches.rebatch(_AT_ONCE).as_numpy_iterator()
    return parts


def _first(parts: Iterator[Places], num: int) -> Places:
    """The first ``num`` of numbers that come in parts."""
    taken, left = [np.empty(0, np.int64)], num
    while left > 0 and (part := next(parts, None)) is not None:
        taken.append(part[:left])
        left -= len(taken[-1])
    return np.concatenate(taken)


def _left(plan: Plan, now: Options, done: Done) -> tuple[list[Piece], Done | None]:
    """One worker's pieces of the remaining records, and a mask of the records that remain."""
    if not done.any():
        return divided_pieces(now, plan.shards), None
    worker, workers = now.part
    todo = np.flatnonzero(~done)
    todo = todo[len(todo) * worker // workers : len(todo) * (worker + 1) // workers]
    pieces: list[Piece] = []
    ends = ends_of(plan.shards)
    for start, end in itertools.pairwise([0, *ends]):
        mine = todo[np.searchsorted(todo, start) : np.searchsorted(todo, end)]
        if len(mine):
            pieces += cut(plan.shards, ends, int(mine[0]), int(mine[-1]) + 1)
    is_left = np.zeros(len(done), bool)
    is_left[todo] = True
    return pieces, is_left


def _filtered(open_records: Any, is_left: Done | None) -> Any:
    """Wraps ``open_records`` to drop the records that are already done."""
    if is_left is None:
        return open_records
    flags = tf.constant(is_left)

    def open_left(*piece: Any) -> tf.data.Dataset:
        place, take = piece[4], piece[3]
        places = tf.data.Dataset.range(place, place + take)
        records = tf.data.Dataset.zip((open_records(*piece), places))
        records = records.filter(lambda record, place: tf.gather(flags, place))
        return records.map(lambda record, place: record)

    return open_left


def _rest(plan: Plan, at: _Progress) -> tuple[Plan, int]:
    """The plan for the rest of the epoch for this worker, and its number of batches."""
    options, total = plan.options, plan.options.selection.num_examples
    workers = range(options.part[1]) if options.equal_steps else [options.part[0]]
    num = min(_num_batches(plan, options, (i, options.part[1]), at) for i in workers)
    uncached = plan.open_uncached or plan.open_records
    if at.done is None and is_dealt(options):
        order: Order = plan_order(options, plan.shards, delivered=at.delivered)
        _, seed = _seeds(options, at.number)
        streams = [order.stream(row, seed) for row in order.streams(seed)]
        again = sum(int(tf.reduce_sum(delivered)) for _, delivered in streams)
        _log(at.delivered, total, sum(len(numbers) for numbers, _ in streams), again)
        return dataclasses.replace(plan, order=order, open_records=uncached), num
    done = np.zeros(total, bool) if at.done is None else at.done
    pieces, is_left = _left(plan, options, done)
    has_copies = options.local_copy is not None
    pieces = locate(pieces, plan.shards, options.root_folder, may_be_missing=has_copies)
    order = ByShard(pieces, buffer=options.buffer, batch_size=options.batch_size)
    opened = sum(piece.skip + piece.take for piece in pieces)
    again = 0 if is_left is None else opened - int(is_left.sum())
    _log(int(done.sum()), total, len(pieces), again)
    return (
        dataclasses.replace(plan, order=order, open_records=_filtered(uncached, is_left)),
        num,
    )


def _resumed(plan: Plan, number: int, rest: Any, num_batches: int) -> tf.data.Dataset:
    """The rest of epoch ``number``, then all later epochs.

    Epochs are known by their number within a pass: their seeds have 32 bits and repeat. The first
    pass is known by the two numbers that are drawn for it.
    """
    seeds, _ = _seeds(plan.options, number)
    start = number % (plan.options.epochs or _EPOCHS)
    passes, same = (epoch_seeds(plan.options.seed or 0).batch(2) for _ in range(2))
    first_pass = same.take(1).get_single_element()

    def epochs_of(drawn: Any) -> tf.data.Dataset:
        is_first = tf.reduce_all(drawn == first_pass)
        before = tf.where(is_first, tf.constant(start, tf.int64), 0)
        are_resumed = tf.data.Dataset.from_tensors(is_first)
        are_resumed = are_resumed.concatenate(tf.data.Dataset.from_tensors(False).repeat())
        return tf.data.Dataset.zip((are_resumed, seeds.skip(before)))

    def read(is_resumed: Any, epoch_seed: Any) -> tf.data.Dataset:
        others = plan.read_epoch(plan, epoch_seed)
        variant = tf.cond(
            is_resumed,
            lambda: tf.data.experimental.to_variant(rest(epoch_seed).take(num_batches)),
            lambda: tf.data.experimental.to_variant(plan.read_epoch(plan, epoch_seed)),
        )
        return tf.data.experimental.from_variant(variant, others.element_spec)

    epochs = read_each(passes, 1, epochs_of)
    return epochs.flat_map(unconverted(read))


def _seeds(options: Options, number: int) -> tuple[Any, Any]:
    """The seeds of the pass that contains epoch ``number``, and the seed of this epoch.

    The dataset of seeds is advanced past the earlier passes: its next iteration is that pass.
    """
    passes, inner = (0, number) if options.epochs is None else divmod(number, options.epochs)
    if inner >= _EPOCHS or passes >= _PASSES:
        raise ValueError(
            f"start_step={options.start_step!r} is behind {number:,} epochs, in pass "
            f"{passes + 1:,}. Finding it means drawing all earlier seeds, which is limited to "
            f"{_EPOCHS:,} epochs and {_PASSES:,} passes. Start again with another seed=."
        )
    seeds, same = (epoch_seeds(options.seed or 0) for _ in range(2))
    for _ in range(passes):
        next(iter(seeds)), next(iter(same))
    return seeds.take(options.epochs or -1), same.skip(inner).take(1).get_single_element()


def _log(num_done: int, total: int, num_opened: int, again: int) -> None:
    """Logs the cost of resuming: records that are read again and skipped."""
    logging.getLogger(facts.NAME).info(
        "%d of %d records are done: opening %d pieces and skipping %d records (about %d bytes) in "
        "them without decoding.",
        *(num_done, total, num_opened, again, again * facts.RECORD_BYTES),
    )


_PLACE = "place/.ATTRIBUTES/VARIABLE_VALUE"
"""Key of the position in a checkpoint."""


class Resume(tf.keras.callbacks.Callback):  # type: ignore[misc, unused-ignore]
    """Resumes an interrupted ``fit`` where it was last saved, also in the middle of an epoch.

        train = reader.dataset("train", 128, as_supervised=True)
        model.fit(train, epochs=10, callbacks=[reader.Resume("checkpoints/run1")])

    The same program, started again, continues the epoch with exactly the batches that would have
    come; each epoch has every record once, also without a seed. Replaces Keras's
    ``BackupAndRestore``. The folder holds the last state: the model and its optimizers, the
    metrics, and the iterator with the batches prepared ahead. It remains when ``fit`` has ended:
    the same program then restores the trained model, and continues if ``epochs`` is larger.

    The steps already done of the interrupted epoch pass again without training, so that Keras and
    other callbacks count as before; the last of them restores the state.

    Args:
        folder: Folder or URL, of its own for each training and process.
        seconds: How often to save within an epoch; 0 saves after every step. The first step and the
            end of each epoch are always saved.
    """

    def __init__(self, folder: str | os.PathLike[str], *, seconds: float = 300.0) -> None:
        super().__init__()
        self.folder, self.seconds = os.fspath(folder), seconds
        self._saved: str | None = None
        """The checkpoint to restore; None once it is."""
        self._resumed = self._place = self._written = [0, 0]
        """Epoch, and number of its steps that are done: in ``_saved``; now; when last saved."""
        self._begun: int | None = None
        """Number of the step that Keras is about to ask for."""
        self._due = 0.0
        self._iterator: Any = None
        self._checkpoint: Any = None
        self._position = tf.Variable([0, 0, 0], dtype=tf.int64)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Begins at the epoch that was interrupted.

        Raises:
            ValueError: if the folder holds another training, or one of more epochs, or the model is
                of Keras 2.
        """
        if not hasattr(self.model, "metrics_variables"):
            raise ValueError(
                "Resume needs Keras 3, and this model is of Keras 2 (tf_keras), which tf.keras is "
                "with TF_USE_LEGACY_KERAS=1; importing tensorflow_transform sets it too. Build the "
                "model with `import keras`, or use Keras 2's BackupAndRestore."
            )
        steps = self.params["steps"] or -1  # known before the first epoch, or not at all
        self._saved = tf.train.latest_checkpoint(self.folder)
        if self._saved is not None:
            saved = tf.train.load_checkpoint(self._saved)
            if not saved.has_tensor(_PLACE):
                raise ValueError(f"{self._saved} was not written by Resume. Pass another folder.")
            *self._resumed, of_epoch = saved.get_tensor(_PLACE).tolist()
            epoch, epochs = self._resumed[0], self.params["epochs"]
            if of_epoch != steps or epoch >= epochs:
                raise ValueError(
                    f"{self.folder} holds a training that has come to epoch {epoch + 1} with "
                    f"{_known(of_epoch)} steps in each; this one has {epochs:,} epochs with "
                    f"{_known(steps)} steps. Pass the same arguments as before (epochs= may be "
                    "larger), or another folder."
                )
            self.model._initial_epoch = epoch  # as BackupAndRestore does
        self._place, self._steps, self._due = self._resumed, steps, 0.0
        self._checkpoint, self._written = None, [0, 0]
        self._train, self.model.train_function = self.model.train_function, self._step

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Leaves the model as it was."""
        self.model.train_function, self.model._initial_epoch = self._train, None

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Notes the number of the epoch."""
        self._place = [epoch, 0]

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Notes the number of the step."""
        self._begun = batch

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Saves the state if it is time to."""
        self._place[1] = batch + 1
        if time.monotonic() >= self._due:
            self._save()

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Saves the state before validation, which resets the metrics."""
        self._save()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Saves the state where there is no validation."""
        self._save()

    def _step(self, iterator: Any) -> Any:
        """Replaces ``train_function``: the steps that were done before pass without training."""
        begun, self._begun = self._begun, None
        if begun is None:  # another call of ``fit``, after an error in this one
            return self._train(iterator)
        has_position = isinstance(iterator, tf.data.Iterator)
        if not has_position:
            raise ValueError(
                f"Resume cannot save the position of a {type(iterator).__name__}: it needs "
                "TensorFlow as Keras's backend, and no tf.distribute strategy of several devices."
            )
        self._iterator = iterator
        if self._saved is None:
            return self._train(iterator)
        if begun + self.model.steps_per_execution < self._resumed[1]:
            return {}
        self._train(iterator)  # layers, optimizers and metrics make variables when first used
        try:
            self._state().restore(self._saved).assert_consumed()
        except (AssertionError, ValueError, tf.errors.OpError) as error:
            raise ValueError(
                f"{self.folder} holds the state of another model or dataset. Pass the same "
                f"arguments as before, or another folder. ({error})"
            ) from None
        self._saved, self._written = None, self._resumed
        return self.model.get_metrics_result()

    def _save(self) -> None:
        """Saves the state, unless it is saved, or yet to be restored."""
        if self._saved is not None or self._place == self._written:
            return
        state = self._state()
        self._position.assign([*self._place, self._steps])
        try:
            tf.train.CheckpointManager(state, self.folder, max_to_keep=1).save()
        except tf.errors.OpError as error:
            raise ValueError(
                f"Resume cannot save to {self.folder}: {error.message}\nA position cannot be saved "
                "with service=. If a function draws random numbers (is stateful), take them from "
                "the seed of augment=, or let a resumed run draw others: set "
                "experimental_external_state_policy of tf.data.Options to IGNORE, and pass it as "
                "options=."
            ) from None
        self._written, self._due = [*self._place], time.monotonic() + self.seconds

    def _state(self) -> tf.train.Checkpoint:
        if self._checkpoint is None:
            # TensorFlow finds optimizers in the model, but no metrics and seeds of layers.
            others = [*self.model.variables, *self.model.metrics_variables]
            self._checkpoint = tf.train.Checkpoint(
                model=self.model, others=[one.value for one in others], place=self._position
            )
        self._checkpoint.iterator = self._iterator
        return self._checkpoint


def _known(steps: int) -> str:
    return f"{steps:,}" if steps >= 0 else "an unknown number of"
