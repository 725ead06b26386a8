"""What a trainer calls: ``dataset``, ``steps``, ``files``."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec

import tensorflow as tf  # type: ignore[import-untyped, unused-ignore]

from .options import Options, Stages
from .pipeline import read
from .plan import plan_reading
from .shards import list_shards

_P = ParamSpec("_P")


def dataset(
    split: str,
    batch_size: int,
    *,
    shuffle: bool | int | None = None,
    seed: int | None = None,
    epochs: int | None = 1,
    drop_remainder: bool = False,
    deterministic: bool | None = None,
    columns: Sequence[str] | None = None,
    as_supervised: bool = False,
    image_size: tuple[int, int] | None = None,
    dtype: str | None = None,
    scale: float | None = None,
    root: str | os.PathLike[str] | None = None,
    shard: tuple[int, int] | None = None,
    input_context: tf.distribute.InputContext | None = None,
    equal_steps: bool = False,
    start_step: int | Stages = 0,
    balance: str | Mapping[str | int, float] | None = None,
    pad: bool = False,
    bucket: bool | str = False,
    windows: tuple[int, int] | None = None,
    pack: int | None = None,
    augment: Callable[[Any, Any], Any] | None = None,
    augment_batch: Callable[[Any, Any], Any] | None = None,
    cache: str | os.PathLike[str] | None = None,
    local_copy: str | os.PathLike[str] | tuple[str | os.PathLike[str], int | None] | None = None,
    service: str | dict[str, Any] | None = None,
    prefetch_to_device: str | None = None,
    options: tf.data.Options | None = None,
    debug: bool = False,
) -> tf.data.Dataset:
    """Batches of one split, prefetched, with their exact number as cardinality.

    An epoch gives every record once; its last batch may be short. A shard that is damaged or lacks
    records raises an error in mid-epoch.

    Args:
        split: One of ``NUM_EXAMPLES``.
        batch_size: Records in a batch.
        shuffle: A new order, and batches of new composition, in every epoch; None: for "train".
            True keeps up to 16 MiB of records, 16,384 at most; a number, so many records.
        seed: Fixes the shuffled order: the same in every process, and for 2, 3, 4, 6, 8, 12 or 24
            workers together; another one in every epoch and every pass (each epoch of ``fit``).
        epochs: How often to read the split; None is forever.
        drop_remainder: Leave out the short batch at the end of each epoch, so that shapes are
            static.
        deterministic: Whether the order is fixed; None: where there is a seed, or no shuffling.
        columns: Give these features only, and parse no others.
        as_supervised: Give (features, label) for Keras: a dict, or a tensor if it is only one.
        image_size: (height, width) to resize images to, antialiased; needed where they differ.
        dtype: Of the images, cast after batching: uint8, or with ``scale`` float32.
        scale: A factor for the images' values.
        root: Folder or URL (``gs://…``) of the snapshot; None is the folder that holds this
            package.
        shard: (index, count): one of ``count`` parts of all records, for as many workers.
        input_context: What ``tf.distribute`` gives a ``dataset_fn``, instead of ``shard``.
        equal_steps: As many batches for every worker, at the cost of less than a batch of each.
        start_step: Resume after so many steps with this seed and this batch of all workers; or a
            list of (steps, batch size, workers) for each stage of the interrupted epoch.
        balance: "uniform", or {class: weight}: the mix of classes in an epoch of as many records,
            exact to one; records of rare classes repeat, evenly. Reads each by its position: for
            local disks.
        pad: Give lists padded with zeros to the longest of the batch, not as ``tf.RaggedTensor``.
        bucket: Batches of similar length (of the feature named, if there are several), by sorting
            32 batches at a time; with ``pad``, they are padded to the next of ``LENGTHS``.
        windows: (length, step): cut lists into windows, each an example; their number is unknown.
        pack: Fill rows of this length with several lists, beside them <name>_segment_ids (from 1)
            and <name>_positions; a longer list is split. The number of batches is unknown.
        augment: ``augment(example, seed)`` changes each example, after the cache, on all cores;
            ``seed`` is int64[2], another for each record and epoch, for ``tf.image.stateless_*``.
        augment_batch: The same for a batch, with ``seeds`` int64[batch, 2], in one call.
        cache: "memory", or a local folder: keeps serialized records, before they are shuffled;
            "decoded": keeps the examples in memory, and every epoch is a permutation of them.
        local_copy: A fast local folder to copy shards to, ahead; (folder, bytes): a window of it.
        service: Address of a tf.data service that shares the work, or all arguments of
            ``tf.data.experimental.service.distribute``. Every record once ("distributed_epoch").
        prefetch_to_device: Device such as "/GPU:0" to copy batches to, ahead; hides the
            cardinality.
        options: More ``tf.data.Options``; they win over the reader's own.
        debug: Run all functions eagerly, for breakpoints and prints; slow.

    Returns:
        Dicts by feature name: images ``uint8[batch, height, width, channels]``, all others
        ``dtype[batch, *shape]``, as ``tf.RaggedTensor`` where a dimension is None. A missing value
        is the default in ``FEATURES``, or a list of length zero; ``<name>_present``, bool[batch],
        says where there is one, if nothing else does. Sounds are float32 in [-1, 1]; where rates
        differ, ``<name>/rate`` gives them in Hz. The fields of a struct are in a dict of their own.

    Raises:
        ValueError: if an option is invalid, or the snapshot under ``root`` cannot be read.
    """
    return read(plan_reading(Options(**locals())))


def _typed_like(function: Callable[_P, Any]) -> Callable[[Callable[..., int]], Callable[_P, int]]:
    """Gives a function the parameters of another one."""
    signature = inspect.signature(function).replace(return_annotation="int")

    def typed(counts: Callable[..., int]) -> Callable[_P, int]:
        vars(counts)["__signature__"] = signature
        return counts

    return typed


@_typed_like(dataset)
def steps(*args: Any, **kwargs: Any) -> int:
    """Batches in an epoch of ``dataset`` with these arguments: Keras's ``steps_per_epoch``.

    It is arithmetic: no function is traced and no shard is opened.

    Returns:
        Their number; -2 (``tf.data.UNKNOWN_CARDINALITY``) with ``windows=`` and ``pack=``.

    Raises:
        ValueError: as ``dataset``.
    """
    from .plan import steps_of

    try:
        asked = inspect.signature(dataset).bind(*args, **kwargs)
    except TypeError as error:
        raise TypeError(f"steps() {error}") from None
    return steps_of(Options(**asked.arguments))


def files(split: str, root: str | os.PathLike[str] | None = None) -> list[str]:
    """The paths or URLs of a split's shards, for a pipeline of your own; ``parse`` parses them.

    Raises:
        ValueError: if there is no such split, or the snapshot under ``root`` cannot be read.
    """
    options = Options(split, 1, root=root)
    return [shard.path for shard in list_shards(split, options.root_folder)]
