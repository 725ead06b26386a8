"""The options of ``dataset`` as one frozen object, validated on construction."""

from __future__ import annotations

import dataclasses
import functools
import math
import numbers
import operator
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import tensorflow as tf  # type: ignore[import-untyped, unused-ignore]

from . import facts
from .frames import own_folder
from .splits import Selection, Split, select
from .targets import Asked, Supervised, ask

BUFFER_BYTES = 16 << 20
"""Memory of the default shuffle buffer. A larger one does not fit into the processor's cache."""
BUFFER_RECORDS = 16_384
"""Maximum number of records in the default shuffle buffer."""

Padding: TypeAlias = "bool | float | Mapping[str, float]"
"""What ``pad`` takes: True (zeros), a number for all lists, or numbers by feature."""
ReadSoFar = list[tuple[int, int, int]]
"""(steps, batch size, workers): the parts of an interrupted epoch that were already read."""


@dataclasses.dataclass(frozen=True)
class Options:
    """The arguments of ``dataset``; see its docstring.

    Raises:
        ValueError: if an option is invalid, or two options cannot be combined.
    """

    split: Split
    batch_size: int
    _: dataclasses.KW_ONLY
    # What a batch contains: changes parse_batch.
    columns: Sequence[str] | None = None
    as_supervised: Supervised = False
    masks: bool | None = None
    expand_scalars: bool = False
    image_size: tuple[int, int] | None = None
    dtype: str | None = None
    scale: float | None = None
    decode: bool = True
    pad: Padding = False
    with_id: bool = False
    # Which records come when: changes interleave_records, shuffle_records and batch_records.
    shuffle: bool | int | None = None
    seed: int | None = None
    epochs: int | None = 1
    drop_remainder: bool = False
    deterministic: bool | None = None
    balance: str | Mapping[str | int, float] | None = None
    bucket: bool | str = False
    windows: tuple[int, int] | None = None
    pack: int | None = None
    # Which part of the split this worker reads: changes list_shards.
    shard: tuple[int, int] | None = None
    input_context: tf.distribute.InputContext | None = None
    equal_steps: bool = False
    start_step: int | ReadSoFar = 0
    # Where records come from: changes open_records.
    root: str | os.PathLike[str] | None = None
    cache: str | None = None
    local_copy: str | os.PathLike[str] | tuple[str | os.PathLike[str], int | None] | None = None
    service: str | dict[str, Any] | None = None
    # What is applied to batches: follows parse_batch.
    augment: Callable[[Any, Any], Any] | None = None
    augment_batch: Callable[[Any, Any], Any] | None = None
    # How much is done at a time: changes all stages.
    parallelism: int | None = None
    prefetch: int | None = None
    options: tf.data.Options | None = None

    def __post_init__(self) -> None:
        for name in _INTEGERS:
            object.__setattr__(self, name, _with_plain_integers(getattr(self, name)))
        assert self.selection  # raises if the split is invalid
        _check_integer("batch_size", self.batch_size, least=1, end=2**31)
        if self.epochs is not None:
            _check_integer("epochs", self.epochs, least=1, end=2**31)
        if self.seed is not None:
            _check_integer("seed", self.seed, least=-(2**63), end=2**63)
        for name in ("decode", "drop_remainder", "equal_steps", "expand_scalars", "with_id"):
            if type(getattr(self, name)) is not bool:
                raise ValueError(f"{name}={getattr(self, name)!r} must be True or False.")
        for name, least in (("parallelism", 1), ("prefetch", 0)):
            if getattr(self, name) is not None:
                _check_integer(name, getattr(self, name), least=least, end=2**31)
        if self.scale is not None and not (_is_number(self.scale) and math.isfinite(self.scale)):
            raise ValueError(f"scale={self.scale!r} must be a number such as 1 / 255.")
        assert self.asked  # raises if a name does not exist
        _check_padding(self.pad)
        _check_buffer(self.shuffle)
        _check_parts(self)
        _check_start(self.start_step)
        _check_places(self)
        _check_functions(self)
        _check_together(self)

    @functools.cached_property
    def selection(self) -> Selection:
        """The records that ``split`` names."""
        return select(self.split)

    @functools.cached_property
    def asked(self) -> Asked:
        """What a batch has, by name."""
        return ask(self.columns, self.as_supervised, self.masks)

    @property
    def read_so_far(self) -> ReadSoFar:
        """``start_step`` as a list; empty at the start of the first epoch."""
        if isinstance(self.start_step, int):
            steps = self.start_step
            return [(steps, self.batch_size, self.part[1])] if steps else []
        return list(self.start_step)

    @property
    def part(self) -> tuple[int, int]:
        """(index, count) of this worker among all of them."""
        if self.input_context is not None:
            context = self.input_context
            return (context.input_pipeline_id, context.num_input_pipelines)
        return (0, 1) if self.shard is None else (self.shard[0], self.shard[1])

    @property
    def shuffles(self) -> bool:
        """Whether each epoch has its own order."""
        return self.selection.is_training if self.shuffle is None else bool(self.shuffle)

    @property
    def buffer(self) -> int:
        """Number of records in the shuffle buffer; 0 for stored order."""
        if not self.shuffles:
            return 0
        if self.shuffle is None or self.shuffle is True:
            most = max(BUFFER_BYTES // facts.RECORD_BYTES, 4 * self.batch_size)
            return min(BUFFER_RECORDS, most)
        # TensorFlow allocates the whole buffer up front.
        return min(self.shuffle, 2 * self.selection.num_examples + 1_024)

    @property
    def augments(self) -> bool:
        """Whether a function changes examples or batches."""
        return self.augment is not None or self.augment_batch is not None

    @property
    def is_numbered(self) -> bool:
        """Whether each record is paired with its position in the stored order."""
        return self.augments or self.with_id

    @property
    def pads(self) -> bool:
        """Whether lists are padded, with zeros or another number."""
        return self.pad is not False

    @property
    def num_parallel_calls(self) -> int:
        """Calls of a stage that run at the same time; -1 lets tf.data decide."""
        return int(tf.data.AUTOTUNE) if self.parallelism is None else self.parallelism

    @property
    def is_deterministic(self) -> bool:
        """Whether the order of records is fixed."""
        if self.deterministic is not None:
            return self.deterministic
        return not self.shuffles or self.seed is not None

    @property
    def is_local(self) -> bool:
        """Whether shards are read where they are, on a local disk."""
        return self.local_copy is None and "://" not in self.root_folder

    @functools.cached_property
    def root_folder(self) -> str:
        """Folder or URL of the snapshot; by default the folder that contains this package."""
        if self.root is not None:
            return os.fspath(self.root).rstrip("/")
        return own_folder()


_INTEGERS = (
    *("batch_size", "seed", "epochs", "shuffle", "parallelism", "prefetch"),
    *("pack", "windows", "shard", "start_step", "image_size", "local_copy"),
)
"""Options that are or contain integers."""


def _with_plain_integers(value: Any) -> Any:
    """Python's integers instead of NumPy's, also within tuples and lists."""
    if isinstance(value, tuple | list):
        plain = map(_with_plain_integers, value)
        return list(plain) if isinstance(value, list) else tuple(plain)
    try:
        return value if isinstance(value, bool) else operator.index(value)
    except TypeError:  # not an integer
        return value


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _check_integer(name: str, value: Any, *, least: int, end: int) -> None:
    if not _is_integer(value) or not least <= value < end:
        raise ValueError(f"{name}={value!r} must be an integer from {least} to {end - 1}.")


def _check_padding(pad: Any) -> None:
    values = pad.values() if isinstance(pad, Mapping) else [pad]
    if not isinstance(pad, bool) and not all(map(_is_number, values)):
        raise ValueError(f"pad={pad!r} must be True (zeros), a number, or {{feature: number}}.")


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _check_buffer(shuffle: Any) -> None:
    if shuffle is not None and not (isinstance(shuffle, int) and shuffle >= 0):
        raise ValueError(f"shuffle={shuffle!r} must be True, False or a number of records.")


def _check_parts(options: Options) -> None:
    context = options.input_context
    if context is not None and not isinstance(context, tf.distribute.InputContext):
        raise ValueError(
            f"input_context={context!r} must be a tf.distribute.InputContext, which tf.distribute "
            "passes to a dataset_fn."
        )
    for name, form in {"shard": "(index, count)", "windows": "(length, step)"}.items():
        value = getattr(options, name)
        if value is not None and not _are_integers(value, 2):
            raise ValueError(f"{name}={value!r} must be {form}.")
    index, count = options.part
    if not 0 <= index < count:
        raise ValueError(f"shard=({index}, {count}) must be (index, count), 0 <= index < count.")
    if options.windows is not None and min(options.windows) < 1:
        raise ValueError(f"windows={options.windows}: length and step must be 1 or more.")
    pack = options.pack
    if pack is not None and not (_are_integers([pack], 1) and pack >= 1):
        raise ValueError(f"pack={pack!r} must be the length of a row, an integer of 1 or more.")


def _check_start(start: Any) -> None:
    if isinstance(start, int):
        is_valid = _is_integer(start) and start >= 0
    else:
        is_valid = isinstance(start, list | tuple) and all(
            _are_integers(position, 3) and position[0] >= 0 and min(position[1:]) >= 1
            for position in start
        )
    if not is_valid:
        raise ValueError(
            f"start_step={start!r} must be a number of steps, or a list of (steps, batch size, "
            "workers)."
        )


def _check_places(options: Options) -> None:
    root, service = options.root, options.service
    if root is not None and not (isinstance(root, str | os.PathLike) and os.fspath(root)):
        raise ValueError(f"root={root!r} must be the folder or URL of the snapshot.")
    is_service = isinstance(service, str) or (
        isinstance(service, Mapping) and isinstance(service.get("service"), str)
    )
    if service is not None and not is_service:
        raise ValueError(
            f'service={service!r} must be an address such as "grpc://host:port", or a dict of the '
            "arguments of tf.data.experimental.service.distribute, with the address as its "
            '"service".'
        )
    if options.cache not in (None, "memory", "decoded"):
        raise ValueError(
            f'cache={options.cache!r} must be "memory" or "decoded". For copies on a local disk, '
            "use local_copy=."
        )
    copy = options.local_copy
    folder = copy[0] if isinstance(copy, list | tuple) and len(copy) == 2 else copy
    if folder is not None and not (isinstance(folder, str | os.PathLike) and os.fspath(folder)):
        raise ValueError(f"local_copy={copy!r} must be the name of a folder.")
    if folder is not None and "://" in os.fspath(folder):
        raise ValueError(f"local_copy={copy!r} must be a folder on a local disk.")
    if isinstance(copy, list | tuple) and not (copy[1] is None or _is_integer(copy[1])):
        raise ValueError(f"local_copy={copy!r} must be (folder, bytes).")


def _check_functions(options: Options) -> None:
    for name in ("augment", "augment_batch"):
        value = getattr(options, name)
        if value is not None and not callable(value):
            raise ValueError(f"{name}={value!r} must be a function.")
    if options.options is not None and not isinstance(options.options, tf.data.Options):
        raise ValueError(f"options={options.options!r} must be tf.data.Options().")


_EXCLUDE: dict[tuple[str, str], str] = {
    ("cache", "local_copy"): "both keep a copy; the folder of local_copy also serves later runs",
    ("cache", "balance"): "records are read by position, and no file is read twice",
    ("augment", "augment_batch"): "one can do the work of both",
    ("shard", "input_context"): "both divide the work",
    ("pack", "windows"): "windows fill rows without packing",
    ("pack", "as_supervised"): "labels cannot be packed",
    **{
        ("decode", name): "images come as files"
        for name in ("image_size", "dtype", "scale", "expand_scalars")
    },
    ("pack", "with_id"): "a row holds several records",
    ("service", "with_id"): "its workers do not report which records they read",
    **{("service", name): "the service divides the work" for name in ("shard", "input_context")},
    ("service", "equal_steps"): "the service divides the work",
    **{
        ("service", name): "which worker reads what is not deterministic"
        for name in ("seed", "start_step")
    },
    **{
        ("service", name): "its workers cannot run this option"
        for name in ("cache", "local_copy", "balance", "bucket", "windows", "pack")
    },
    **{
        (one, name): f"{what} have one length, and are cut last"
        for one, what in {"windows": "windows", "pack": "rows"}.items()
        for name in ("pad", "bucket", "start_step", "equal_steps", "augment", "augment_batch")
    },
}
_EXCLUDE_DECODED = ("bucket", "windows", "pack", "start_step")
"""Options that ``cache="decoded"`` cannot be combined with: decoded examples are shuffled as a
whole."""


def _check_together(options: Options) -> None:
    given = {
        field.name
        for field in dataclasses.fields(options)
        if (value := getattr(options, field.name))
        or (field.name == "seed" and value is not None)
        or (field.name == "pad" and value is not False)
    }
    given ^= {"decode"}  # given if False
    exclude = dict(_EXCLUDE)
    if options.cache == "decoded":
        why = "decoded examples are shuffled as a whole"
        exclude |= {("cache", name): why for name in _EXCLUDE_DECODED}
    for (one, other), why in exclude.items():
        if one in given and other in given:
            raise ValueError(f"{one}= and {other}= cannot be combined ({why}): leave one out.")
    if options.balance is not None and options.shuffle is not None and not options.shuffle:
        raise ValueError("balance= always shuffles: leave out shuffle=False.")
    if "start_step" in given and options.seed is None and (options.shuffles or options.balance):
        raise ValueError("start_step= resumes the order of a seed: pass the same seed= as before.")
    if options.balance is not None and options.bucket and "start_step" in given:
        raise ValueError(
            "balance=, bucket= and start_step= cannot be combined (which records have come "
            "depends on their lengths, and balance= does not read them again): leave one out."
        )
    if options.balance is not None and options.seed is None and options.part[1] > 1:
        raise ValueError(
            "balance= with several workers needs seed=: without one, each worker draws its own "
            "epoch."
        )


def _are_integers(value: Any, num: int) -> bool:
    return (
        isinstance(value, list | tuple)
        and len(value) == num
        and all(_is_integer(number) and abs(number) < 2**31 for number in value)
    )
