"""The entry points for trainers: ``dataset``, ``steps`` and ``files``."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec

import tensorflow as tf  # type: ignore[import-untyped, unused-ignore]

from .options import Options, Padding, ReadSoFar
from .pipeline import read
from .plan import plan_reading
from .shards import list_shards
from .splits import Split
from .targets import Supervised

_P = ParamSpec("_P")


def dataset(
    split: Split,
    batch_size: int | None,
    *,
    shuffle: bool | int | None = None,
    seed: int | None = None,
    epochs: int | None = 1,
    drop_remainder: bool = False,
    deterministic: bool | None = None,
    columns: Sequence[str] | None = None,
    as_supervised: Supervised = False,
    masks: bool | None = None,
    expand_scalars: bool = False,
    with_id: bool = False,
    image_size: tuple[int, int] | None = None,
    dtype: str | None = None,
    scale: float | None = None,
    decode: bool = True,
    root: str | os.PathLike[str] | None = None,
    shard: tuple[int, int] | None = None,
    input_context: tf.distribute.InputContext | None = None,
    equal_steps: bool = False,
    start_step: int | ReadSoFar = 0,
    balance: str | Mapping[str | int, float] | None = None,
    pad: Padding = False,
    bucket: bool | str = False,
    windows: tuple[int, int] | None = None,
    pack: int | None = None,
    augment: Callable[[Any, Any], Any] | None = None,
    augment_batch: Callable[[Any, Any], Any] | None = None,
    cache: str | None = None,
    local_copy: str | os.PathLike[str] | tuple[str | os.PathLike[str], int | None] | None = None,
    service: str | dict[str, Any] | None = None,
    parallelism: int | None = None,
    prefetch: int | None = None,
    options: tf.data.Options | None = None,
) -> tf.data.Dataset:
    """Returns one split as a dataset of batches, prefetched, with exact cardinality.

    Each epoch yields every record once; its last batch may be short. A damaged or truncated shard
    raises an error in mid-epoch.

    Args:
        split: One of ``NUM_EXAMPLES``; a part of one, such as "train[:10%]", "train[10%:]",
            "train[:1000]" or "train[-500:]"; or a list of these, such as ``fold(0).train``.
        batch_size: Records per batch; None gives single examples.
        shuffle: Whether each epoch has a new order and newly composed batches; None: only for
            "train", its parts, and lists of folds. True buffers up to 16 MiB of records (at most
            16,384), or all of a small split (64 MiB and 30,720 records; 65,536 without a seed, by
            one worker, on a local disk); an integer sets the number of records.
        seed: Fixes the shuffled order: the same in every process, and for 2, 3, 4, 6, 8, 12 or 24
            workers together; a different one in every epoch and every pass (each epoch of ``fit``).
        epochs: How many times to read the split; None repeats forever.
        drop_remainder: Drop the short batch at the end of each epoch, for static shapes.
        deterministic: Whether the order is fixed; None: with a seed, or without shuffling.
        columns: What to parse and yield: features, structs, and of a feature its mask
            (``<name>_present``), its rate (``<name>/rate``), or the length of a list
            (``<name>_length``). None is all features, masks and rates.
        as_supervised: Yield (inputs, targets), as Keras expects them. True: the target is the
            label, the inputs are all other features, except the time of windows, unless
            ``columns`` names it; a name: the target is that feature. Inputs are then a dict, or a
            tensor if there is only one. (inputs, targets) names both, and (inputs, targets,
            weights) the weight of each example: a name, as in ``columns``, yields a tensor, a tuple
            of names a dict, as in (("image", "age"), "label"). Nothing else enters the inputs.
        masks: True adds the masks of missing values for all features that may lack one; of inputs,
            not of targets. False leaves them out, None too unless all features are read as a dict.
        expand_scalars: Yield scalars as [batch, 1], which ``adapt`` of Keras's layers needs;
            those of inputs, not of targets and weights.
        with_id: Add the id of each record, a string: as "record_id" to the dict, or as the last of
            (inputs, targets, id). Needs pyarrow and the snapshot's index.
        image_size: (height, width) to resize images to, antialiased, and masks, by nearest
            neighbour; required if sizes differ.
        dtype: Dtype of the images, cast after batching, which must hold all their values; default
            as stored, or float32 with ``scale``. Masks stay uint8.
        scale: Factor to multiply image values by, but not those of masks.
        decode: False yields encoded images, masks and the frames of clips as the content of their
            files, for an ``augment`` that crops before it resizes. ``<name>/orientation``, if some
            image has one, is the EXIF orientation.
        root: Folder or URL (``gs://…``) of the snapshot; None is the folder that contains this
            package.
        shard: (index, count): read only part ``index`` of ``count`` parts, one for each worker.
        input_context: The context that ``tf.distribute`` passes to a ``dataset_fn``; replaces
            ``shard``.
        equal_steps: Give every worker the same number of batches; each skips less than one batch.
        start_step: Resume after this number of steps with the same seed and the same global batch
            size; or a list of (steps, batch size, workers), one for each configuration with which
            the interrupted epoch was read. That shortens only the first pass; the cardinality is
            that of a complete one. With ``bucket``, the records that are left form other batches.
            In ``fit``, use the callback ``Resume`` instead.
        balance: "uniform", or {class: weight}: the mix of classes in an epoch of the same length,
            exact to one record; rare classes are repeated, evenly. Reads each record by its
            position: for local disks.
        pad: Pad lists to the longest of the batch, instead of returning ``tf.RaggedTensor``. True
            pads with zeros; a number, such as -1 (which is not a class), is the padding itself;
            {feature: number} pads the named lists with their numbers and all others with zeros.
            Strings are always padded with "", bools with False.
        bucket: Batch examples of similar length (of the named feature, if there are several), by
            sorting 32 batches at a time; with ``pad``, pad to the next of ``LENGTHS``.
        windows: (length, step): cut lists into windows, each an example; a shorter list gives none,
            and no window at all is an error. The number of batches is unknown.
        pack: Fill rows of this length with several lists, and add <name>_segments (from 1) and
            <name>_positions; longer lists are split. The number of batches is unknown.
        augment: ``augment(example, seed)`` is mapped over the examples, after the cache, on all
            cores; ``seed`` is int64[2], different for each record and epoch, for
            ``tf.image.stateless_*``.
        augment_batch: The same for a whole batch in one call, with ``seeds`` int64[batch, 2].
        cache: What to keep in memory: "memory" keeps serialized records, before shuffling;
            "decoded" keeps parsed examples, and every epoch is a permutation of them.
        local_copy: Fast local folder to copy shards to, ahead of reading; (folder, bytes) refuses
            a split of more bytes.
        service: Address of a tf.data service that shares the work, or all arguments of
            ``tf.data.experimental.service.distribute``. Every record once ("distributed_epoch").
            ``ShardingPolicy.FILE`` and ``DATA`` need a dispatcher that knows all its workers.
        parallelism: Number of batches parsed, and of streams read, at a time; None lets tf.data
            decide.
        prefetch: Number of batches kept ready; None lets tf.data decide, 0 prepares each batch when
            it is requested.
        options: Additional ``tf.data.Options``, which override the reader's own.

    Returns:
        Dicts by feature name: images are ``uint8[batch, height, width, channels]``, or uint16 as
        declared, all others ``dtype[batch, *shape]``, as ``tf.RaggedTensor`` where a dimension is
        None. A missing value is the default in ``FEATURES``, or an empty list. Where that is
        ambiguous, the mask ``<name>_present``, bool[batch], says whether there is a value. Sounds
        are float32 in [-1, 1]; where rates differ, ``<name>/rate`` gives them in Hz. The fields of
        a struct are in a nested dict.

    Raises:
        ValueError: if an option is invalid, or the snapshot under ``root`` cannot be read.
    """
    arguments = locals()
    if batch_size is None:
        from .single import read_examples

        return read_examples(arguments)
    return read(plan_reading(Options(**arguments)))


def _typed_like(function: Callable[_P, Any]) -> Callable[[Callable[..., int]], Callable[_P, int]]:
    """Decorator that copies the signature of ``function``, with the return type int."""
    signature = inspect.signature(function).replace(return_annotation="int")

    def typed(counts: Callable[..., int]) -> Callable[_P, int]:
        vars(counts)["__signature__"] = signature
        return counts

    return typed


@_typed_like(dataset)
def steps(*args: Any, **kwargs: Any) -> int:
    """Batches per epoch of ``dataset`` with the same arguments: Keras's ``steps_per_epoch``.

    Computed by arithmetic: no function is traced and no shard is opened. ``start_step`` changes
    nothing: it shortens only the first epoch.

    Returns:
        The number of batches; -2 (``tf.data.UNKNOWN_CARDINALITY``) with ``windows=`` or ``pack=``.

    Raises:
        ValueError: as ``dataset``.
    """
    from .plan import steps_of

    try:
        asked = inspect.signature(dataset).bind(*args, **kwargs)
    except TypeError as error:
        raise TypeError(f"steps() {error}") from None
    if asked.arguments["batch_size"] is None:
        from .single import num_single

        return num_single(asked.arguments)
    return steps_of(Options(**asked.arguments))


def files(split: Split, root: str | os.PathLike[str] | None = None) -> list[str]:
    """Paths or URLs of a split's shards, for a custom pipeline; parse its batches with ``parse``.

    Args:
        split: As in ``dataset``; a part of a split must consist of complete shards.
        root: As in ``dataset``.

    Raises:
        ValueError: if there is no such split, it is a part that also cuts shards, or the snapshot
            under ``root`` cannot be read.
    """
    shards = list_shards(split, Options(split, 1, root=root).root_folder)
    for shard in shards:
        if shard.num_others:
            raise ValueError(
                f"files({split!r}): {shard.path} also holds {shard.num_others:,} other records. "
                "Use dataset(), which reads parts of shards."
            )
    return [shard.path for shard in shards]
