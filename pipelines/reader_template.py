# [header]
"""The reader that every snapshot ships, kept as a module: ``emit.py`` turns it into ``reader.py``.

Emission replaces this header and the constants, and leaves out a section between ``# [if FACT]``
and its ``# [end]`` where the fact does not hold for the snapshot. As it stands, with every section,
it describes a made-up snapshot that has a feature of every kind, so that it lints, types and runs.
"""
# [end]

from __future__ import annotations

import functools
import importlib.util
import itertools
import json
import os
import types
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf  # type: ignore[import-untyped, unused-ignore]

# [constants]
FORMAT_VERSION = 1
NAME = "every_kind"
FINGERPRINT = "0000000000000000"
NUM_EXAMPLES: dict[str, int] = {"train": 80, "validation": 10, "test": 10}
LABEL: str | None = "label"
CLASS_NAMES: list[str] | None = ["left", "right"]
FEATURES: dict[str, dict[str, Any]] = {
    "at.boxes": {"kind": "bounding_boxes", "dtype": "float32", "shape": [None, 4]},
    "at.time": {"kind": "timestamp", "dtype": "int64", "unit": "s"},
    "image": {"kind": "image", "height": 8, "width": 8, "channels": 3, "storage": "raw"},
    "label": {"kind": "class_label", "dtype": "int64", "names": CLASS_NAMES},
    "photo": {"kind": "image", "height": None, "width": None, "channels": 3, "storage": "encoded"},
    "rooms": {
        "kind": "scalar",
        "dtype": "int64",
        "optional": True,
        "default": 0,
        "present": "rooms_present",
    },
    "scan": {"kind": "image", "height": None, "width": None, "channels": 1, "storage": "raw"},
    "sound": {"kind": "audio", "dtype": "int16", "shape": [None], "packed": True, "rate": None},
    "weight": {"kind": "scalar", "dtype": "float64", "packed": True, "default": float("nan")},
    "words": {
        "kind": "tensor",
        "dtype": "string",
        "shape": [None],
        "optional": True,
        "present": "words_present",
    },
}
SIDES: dict[str, list[str]] = {
    "photo": ["photo/orientation"],
    "scan": ["scan/height", "scan/width"],
    "sound": ["sound/rate"],
}
STRUCTS: list[str] = ["at"]
LAYOUT: list[tuple[str, bytes, int]] = []
COMPRESSION = "none"
RECORD_BYTES = 20_000
# [end]

_Range = tuple[str, int, int, int]  # path; records to skip there, to take; place of the first

_BUFFER_BYTES = 16 << 20  # memory of the default shuffle buffer (it pays to stay in the cache) …
_BUFFER_RECORDS = 16_384  # … which never holds more records than this
_OPEN_SHARDS = 16  # shards that a shuffled epoch draws on at a time
_WINDOWS = 1_024  # records that are shuffled within the open shards, all together, at most
_CHUNK = 32  # records that travel together from there on, at most
_READ_BYTES = 256 << 10  # one read from a shard …
_FETCH_BYTES = 4 << 20  # … and where each is a request to a store


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
    # [if image]
    image_size: tuple[int, int] | None = None,
    dtype: str | None = None,
    scale: float | None = None,
    # [end]
    root: str | os.PathLike[str] | None = None,
    shard: tuple[int, int] | None = None,
    input_context: tf.distribute.InputContext | None = None,
    equal_steps: bool = False,
    start_step: int | list[tuple[int, int, int]] = 0,
    # [if classes]
    balance: str | dict[str, float] | None = None,
    # [end]
    # [if lengths]
    pad: bool = False,
    bucket: bool | str = False,
    windows: tuple[int, int] | None = None,
    pack: int | None = None,
    # [end]
    augment: Callable[[Any, Any], Any] | None = None,
    augment_batch: Callable[[Any, Any], Any] | None = None,
    cache: str | None = None,
    local_copy: str | tuple[str, int] | None = None,
    service: str | dict[str, Any] | None = None,
    prefetch_to_device: str | None = None,
    options: tf.data.Options | None = None,
    debug: bool = False,
) -> tf.data.Dataset:
    """Batches of one split, prefetched, with their exact number as cardinality.

    An epoch gives every record once; its last batch may be short. A shard that is damaged or lacks
    records raises in mid-epoch. Options from ``shard`` on are in the files beside this one.

    Args:
        split: One of ``NUM_EXAMPLES``.
        batch_size: Records in a batch.
        shuffle: A new order, and batches of new composition, in every epoch; None: for "train".
            True keeps 16 MiB of records, or four batches, 16,384 at most; a number, so many.
        seed: Fixes the shuffled order: the same in every process, and of 2, 3, 4, 6, 8, 12 or 24
            workers together, another in every epoch and every pass (each epoch of ``fit``). Needs
            ``reader_streams.py``. Without one, shards may overtake each other, which is faster.
        epochs: How often to read the split; None is forever.
        drop_remainder: Leave out the short batch at each epoch's end, so that shapes are static.
        deterministic: A fixed order; None: where there is a seed, or no shuffling.
        columns: Give these features only, and parse no others.
        as_supervised: Give (features, label) for Keras: a dict, or a tensor if it is only one.
        # [if image]
        image_size: (height, width) to resize images to, antialiased; a must where they differ.
        dtype: Of the images, cast after batching: uint8, or with ``scale`` float32.
        scale: A factor for the images' values.
        # [end]
        root: Folder or URL (``gs://…``) of the snapshot; None is the folder of this file.
        shard: (index, count): one of ``count`` parts of all records, for as many workers.
        input_context: What ``tf.distribute`` gives a ``dataset_fn``, instead of ``shard``.
        equal_steps: As many batches for every worker, at the cost of less than a batch of each.
        start_step: Go on after so many steps with this seed and this batch of all workers; else a
            list of (steps, batch size, workers) for each stage of the epoch that was broken off.
        # [if classes]
        balance: "uniform", or {class: weight}: the mix of classes in an epoch of as many records,
            exact to one; rare ones repeat, evenly. Reads each by its place: for local disks.
        # [end]
        # [if lengths]
        pad: Give lists padded with zeros to the batch's longest, not as ``tf.RaggedTensor``.
        bucket: Batches of alike length (of the feature named, if there are several), by sorting 32
            batches at a time; with ``pad``, they are padded to the next of ``LENGTHS``.
        windows: (length, step): cut lists into windows, each an example; their number is unknown.
        pack: Fill rows of this length with several lists, beside them <name>_segment_ids (from 1)
            and <name>_positions; a longer list is parted. The number of batches is unknown.
        # [end]
        augment: ``augment(example, seed)`` changes each example, after the cache, on all cores;
            ``seed`` is int64[2], another for each record and epoch, for ``tf.image.stateless_*``.
        augment_batch: The same for a batch, with ``seeds`` int64[batch, 2], in one call.
        cache: "memory", or a local folder: keeps serialized records, before they are shuffled;
            "decoded": keeps the examples in memory. Every epoch is their permutation: 2 to 6 µs.
        local_copy: A fast local folder to copy shards to, ahead; (folder, bytes): a window of it.
        service: Address of a tf.data service that shares the work, or all arguments of
            ``tf.data.experimental.service.distribute``. Every record once ("distributed_epoch").
        prefetch_to_device: Device, as "/GPU:0", to copy batches to ahead; hides the cardinality.
        options: More ``tf.data.Options``; they win over the reader's own.
        debug: Run all functions eagerly, for breakpoints and prints; slow.

    Returns:
        Dicts by feature name: images ``uint8[batch, height, width, channels]``, all else
        ``dtype[batch, *shape]``, as ``tf.RaggedTensor`` where a dimension is None. Where there is
        no value: the default in ``FEATURES``, or a list of length zero.
        # [if masked]
        ``<name>_present``, bool[batch], says where there is one, if nothing else does.
        # [end]
        # [if audio]
        Sounds are float32 in [-1, 1]; where rates differ, ``<name>/rate`` gives each one's, in Hz.
        # [end]
        # [if struct]
        The fields of a struct stand in a dict of their own.
        # [end]

    Raises:
        ValueError: if an argument, or the snapshot under ``root``, is none that can be read.
    """
    asked = dict(locals())
    for name, value in [(name, asked[name]) for name in ("batch_size", "epochs", "seed")]:
        least, end = (-(2**63), 2**63) if name == "seed" else (1, 2**31)
        is_whole = hasattr(value, "__index__") and least <= value < end
        if not is_whole and (value is not None or name == "batch_size"):
            raise ValueError(f"{name}={value!r} must be a whole number, {least} to {end - 1}.")
    job = types.SimpleNamespace(**asked, reader=types.SimpleNamespace(**globals()))
    parsed = ("columns", "as_supervised", "image_size", "dtype", "scale")
    job.finish = _parser(**{name: asked[name] for name in parsed if name in asked})
    job.shards, job.root = _shards(split, root), _folder(root)
    firsts = itertools.accumulate((num for _, num in job.shards), initial=0)
    job.ranges = [(path, 0, num, next(firsts)) for path, num in job.shards]
    job.streams, job.num_open = _streams(job.ranges), _OPEN_SHARDS
    job.read, job.ahead = _records, functools.partial(tf.data.Dataset.take, count=-1)
    job.buffer, job.epoch = _buffer(split, shuffle, batch_size), functools.partial(_batches, job)
    job.last = functools.partial(tf.data.Dataset.prefetch, buffer_size=tf.data.AUTOTUNE)
    job.num_batches = (NUM_EXAMPLES[split] + (not drop_remainder) * (batch_size - 1)) // batch_size
    job.passes = lambda: _epoch_seeds(seed).take(epochs or -1).flat_map(job.epoch)
    rare = list(asked.values())[list(asked).index("shard") :]
    if shard is not None or any(value not in (None, False, 0) for value in rare):
        _beside("reader_options").change(job)
    elif job.buffer and seed is not None:
        _beside("reader_streams").streamed(job)
    if epochs is None and job.num_batches == 0:
        raise ValueError(f"epochs=None waits forever: {split} gives no batch of {batch_size}.")
    batches = job.passes().map(  # in order, so that no batch overtakes an epoch's last one
        job.finish, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True
    )
    if epochs is None:
        batches = batches.repeat()  # never comes to it, and makes the cardinality infinite
    elif job.num_batches is not None:
        batches = batches.apply(tf.data.experimental.assert_cardinality(epochs * job.num_batches))
    own = tf.data.Options()
    fixed = not job.buffer or seed is not None
    own.deterministic = fixed if deterministic is None else deterministic
    own.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return job.last(batches.with_options(own))


def steps(split: str, batch_size: int, **arguments: Any) -> int:
    """Batches in an epoch of ``dataset``: Keras's ``steps_per_epoch``; -2 where that is unknown."""
    # [if image]
    arguments.setdefault("image_size", (1, 1))  # must be given at times, and does not matter
    # [end]
    return int(dataset(split, batch_size, **arguments).cardinality())


# [if serving]
def preprocess(root: str | os.PathLike[str] | None = None) -> Any:
    """What was done to raw records: batches by name, or a list of rows; NaN, left out: missing."""
    try:
        signature = tf.saved_model.load(f"{_folder(root)}/serving").signatures["serving_default"]
    except (RuntimeError, OSError, tf.errors.OpError) as error:  # no such operation, or folder
        raise ValueError(f"TensorFlow {tf.__version__} cannot load the model: {error}") from None
    return _served(signature, f"{_folder(root)}/manifest.json")


def _served(signature: Any, manifest: str) -> Any:
    specs = signature.structured_input_signature[1]
    none = {k: tf.zeros([0, *(n or 0 for n in x.shape[1:])], x.dtype) for k, x in specs.items()}

    def served(rows: list[dict[str, Any]] | tuple[()] = (), /, **inputs: Any) -> Any:
        if not rows:
            return signature(**none | {k: _input(k, value, specs) for k, value in inputs.items()})
        places: dict[Any, list[int]] = {}  # of the rows that lack the same: they go together
        alike: dict[Any, list[dict[str, Any]]] = {}
        for place, row in enumerate(rows):
            given = {k: v for k, v in row.items() if not _is_missing(v, specs.get(k))}
            given = {k: _input(k, v, specs, of_rows=0) for k, v in given.items()}
            given = given or _nothing(manifest, specs)
            kind = tuple((k, *given[k].shape) for k in sorted(given))
            places.setdefault(kind, []).append(place)
            alike.setdefault(kind, []).append(given)
        stacked = [{k: tf.stack([x[k] for x in some]) for k in some[0]} for some in alike.values()]
        found = [signature(**none | batch) for batch in stacked]
        order = tf.argsort(list(itertools.chain.from_iterable(places.values())))
        return {k: tf.gather(tf.concat([x[k] for x in found], 0), order) for k in found[0]}

    return served


def _input(name: str, value: Any, specs: dict[str, Any], of_rows: int = 1) -> tf.Tensor:
    """What the model takes for a batch, or with ``of_rows=0`` for the value of a row; unchanged."""
    if name not in specs:
        raise ValueError(f"There is no input {name!r}, only {', '.join(specs)}.")
    dtype, shape = specs[name].dtype, specs[name].shape[1 - of_rows :]
    made = tf.convert_to_tensor(value, dtype)
    if 0 in made.shape and made.shape.rank < shape.rank:  # an empty list has no inner dimensions
        made = tf.zeros([*made.shape[:of_rows], *(n or 0 for n in shape[of_rows:])], dtype)
    fits = shape.is_compatible_with(made.shape)
    if (
        fits and dtype.is_integer and not tf.is_tensor(value)
    ):  # TensorFlow cuts off what is too large
        fits = (tf.get_static_value(made) == value).all()
    if not fits:
        raise ValueError(f"{name}={value!r} is not {dtype.name}{shape}.")
    return made


def _is_missing(value: Any, spec: Any) -> bool:
    if isinstance(value, float) and value != value and spec is not None:
        return not spec.dtype.is_floating or spec.shape.rank > 1  # else the model knows it
    return value is None


def _nothing(manifest: str, specs: dict[str, Any]) -> dict[str, tf.Tensor]:
    """What marks a row that gives nothing: the model counts rows by what it is given."""
    with tf.io.gfile.GFile(manifest) as file:
        optional = json.load(file)["serving"]["optional_inputs"]
    marks = {}
    for name in (name for name in optional if specs[name].shape.rank == 1):
        dtype = specs[name].dtype
        if dtype != tf.string:
            mark = float("nan") if dtype.is_floating else dtype == tf.int64 and dtype.min
            marks[name] = tf.constant(mark, dtype)
    if not marks:
        raise ValueError(f"A row gives none of the inputs {', '.join(specs)}.")
    return marks


# [end]
@functools.cache
def _beside(name: str) -> Any:
    """The module of this name that lies beside this file."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), f"{name}.py")
    if not os.path.exists(path):
        raise ValueError(f"There is no {path}, which is needed here: copy it from {NAME}.")
    spec: Any = importlib.util.spec_from_file_location(f"{name}_{FINGERPRINT}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    # [if values]
    if vars(module).get("FINGERPRINT", FINGERPRINT) != FINGERPRINT:
        raise ValueError(f"{path} is of another snapshot: copy it from {NAME} {FINGERPRINT}.")
    # [end]
    return module


def _epoch_seeds(seed: int | None) -> tf.data.Dataset:
    """One number for each epoch, which seeds all of its shuffling; a second pass draws new ones."""
    variant = tf.raw_ops.RandomDatasetV2(  # Dataset.random mixes in tf.random.set_seed's
        seed=tf.constant(seed or 0, tf.int64),
        seed2=tf.constant(seed is not None, tf.int64),  # two zeros stand for no seed
        seed_generator=tf.raw_ops.DummySeedGenerator(),
        output_types=[tf.int64],
        output_shapes=[[]],
        rerandomize_each_iteration=True,
    )
    return tf.data.experimental.from_variant(variant, tf.TensorSpec([], tf.int64))


def _shards(split: str, root: str | os.PathLike[str] | None) -> list[tuple[str, int]]:
    """The split's shards in stored order: (path, number of records)."""
    if split not in NUM_EXAMPLES:
        raise ValueError(f"{NAME} has no split {split!r}, only {', '.join(NUM_EXAMPLES)}.")
    path = f"{_folder(root)}/manifest.json"
    try:
        with tf.io.gfile.GFile(path, "rb") as file:
            content = file.read()
    except tf.errors.UnimplementedError:  # a protocol that TensorFlow does not know
        content = _beside("reader_copies").read_bytes(path)
    except tf.errors.OpError as error:
        content = error.message
    try:
        manifest = json.loads(content)
        found = (manifest["fingerprint"], manifest["format_version"])
    except (ValueError, LookupError, TypeError):
        raise ValueError(
            f"{path} is no manifest ({str(content)[:99]!r}): give {NAME} {FINGERPRINT} as root=."
        ) from None
    if found != (FINGERPRINT, FORMAT_VERSION):
        raise ValueError(
            f"{path} is of fingerprint {found[0]} (format {found[1]}), reader.py of {FINGERPRINT} "
            f"(format {FORMAT_VERSION}): use the reader.py that lies there, or give another root=."
        )
    shards = manifest["splits"][split]["shards"]
    return [(f"{_folder(root)}/{shard['file']}", shard["num_examples"]) for shard in shards]


def _folder(root: str | os.PathLike[str] | None) -> str:
    folder = os.path.dirname(os.path.abspath(__file__)) if root is None else os.fspath(root)
    return folder.rstrip("/")


def _buffer(split: str, shuffle: bool | int | None, batch_size: int) -> int:
    """How many records are shuffled; 0 for the stored order."""
    buffer = split == "train" if shuffle is None else shuffle
    if buffer is True:
        buffer = min(_BUFFER_RECORDS, max(_BUFFER_BYTES // RECORD_BYTES, 4 * batch_size))
    if not (hasattr(buffer, "__index__") and buffer >= 0):
        raise ValueError(f"shuffle={shuffle!r} must be True, False or a number of records.")
    return min(int(buffer), 2 * (NUM_EXAMPLES[split] + _WINDOWS))  # TensorFlow allocates it all


def _streams(ranges: list[_Range]) -> tf.data.Dataset:
    """The ranges as a dataset."""
    columns: Any = zip(*ranges, strict=True) if ranges else ((), (), (), ())
    dtypes = (tf.string, tf.int64, tf.int64, tf.int64)
    return tf.data.Dataset.from_tensor_slices(tuple(map(tf.constant, columns, dtypes)))


def _records(path: Any, skip: Any, take: Any, *_: Any, whole: bool = True) -> tf.data.Dataset:
    """The serialized examples of one range; fewer raise, as do more of a whole shard."""
    kind = "GZIP" if COMPRESSION == "gzip" else ""
    remote = tf.strings.regex_full_match(path, "[a-z0-9]+://.*")
    size = tf.where(remote, tf.constant(_FETCH_BYTES, tf.int64), _READ_BYTES)
    variant = tf.raw_ops.TFRecordDataset(filenames=path, compression_type=kind, buffer_size=size)
    records = tf.data.experimental.from_variant(variant, tf.TensorSpec([], tf.string))
    records = records if whole else records.skip(skip).take(take)  # two stages more for each
    return records.apply(tf.data.experimental.assert_cardinality(take))


def _batches(job: Any, seed: Any) -> tf.data.Dataset:
    """Batches of serialized examples, in an order and a composition that the seed decides.

    Records are shuffled within a window of each open shard. From there they travel in chunks of an
    eighth of a batch or less, cheaper than one by one, which the rest of the buffer shuffles.
    """
    options = {"batch_size": job.batch_size, "drop_remainder": job.drop_remainder}
    if not job.buffer:
        return job.ahead(job.streams).flat_map(job.read).batch(**options)
    num_open = max(1, min(job.num_open, len(job.ranges)))
    window = max(1, min(_WINDOWS, job.buffer // 2) // num_open)
    chunk = max(1, min(_CHUNK, job.batch_size // 8, window))

    def chunks(*stream: Any) -> tf.data.Dataset:
        return _shuffle(job.read(*stream), window, seed, 1 + stream[-1]).batch(chunk)

    mixed = job.ahead(_shuffle(job.streams, len(job.ranges), seed, -1)).interleave(
        chunks, cycle_length=num_open, block_length=1, num_parallel_calls=tf.data.AUTOTUNE
    )
    return _shuffle(mixed, (job.buffer - window * num_open) // chunk, seed, -2).rebatch(**options)


def _shuffle(elements: tf.data.Dataset, size: int, seed: Any, stream: Any) -> tf.data.Dataset:
    """``elements.shuffle(size)`` by two tensors, which fails after ``tf.random.set_seed(0)``."""
    spec = elements.element_spec
    if size <= 1:
        return elements
    variant = tf.raw_ops.ShuffleDataset(
        input_dataset=tf.data.experimental.to_variant(elements),
        buffer_size=tf.constant(size, tf.int64),
        seed=seed,
        seed2=tf.cast(stream, tf.int64),
        output_types=[part.dtype for part in tf.nest.flatten(spec)],
        output_shapes=[part.shape for part in tf.nest.flatten(spec)],
        reshuffle_each_iteration=False,
    )
    return tf.data.experimental.from_variant(variant, spec)


def _parser(
    *,
    as_supervised: bool = False,
    columns: Sequence[str] | None = None,
    # [if image]
    image_size: tuple[int, int] | None = None,
    dtype: str | None = None,
    scale: float | None = None,
    # [end]
) -> Callable[[Any], Any]:
    """The function that turns a batch of serialized examples into tensors."""
    # [if no_label]
    if as_supervised:
        raise ValueError(f"as_supervised=True needs a label, and {NAME} has none: take the dict.")
    # [end]
    # [if unlabelled]
    if as_supervised:
        raise ValueError(f"as_supervised=True: some examples have no {LABEL!r}. Take the dict.")
    # [end]
    wanted = {*(FEATURES if columns is None else columns), *([LABEL] if as_supervised else [])}
    if isinstance(columns, str) or not wanted or not wanted <= {*FEATURES}:
        raise ValueError(f"columns={columns!r} must be a list of some of {', '.join(FEATURES)}.")
    features = {name: feature for name, feature in FEATURES.items() if name in wanted}
    # [if image]
    sides = tf.nest.flatten(image_size)
    whole = [side for side in sides if hasattr(side, "__index__") and 0 < side < 2**16]
    if image_size is not None and (len(sides) != 2 or whole != sides):
        raise ValueError(f"image_size={image_size!r} must be (height, width), whole numbers.")
    sizes = {
        name: tuple(image_size or (feature["height"], feature["width"]))
        for name, feature in features.items()
        if feature["kind"] == "image"
    }
    # [if each]
    for name, size in sizes.items():
        if None in size:
            raise ValueError(f"The images of {name!r} differ in size: give image_size=(h, w).")
    # [end]
    kind = tf.as_dtype(dtype or ("uint8" if scale is None else "float32"))
    if scale is not None and not kind.is_floating:
        raise ValueError(f"scale={scale} needs a floating dtype, not {kind.name}.")
    # [end]

    def parse(serialized: Any) -> Any:
        # [if general]
        values = _parse(serialized, features)
        # [end]
        # [if layout]
        values = _cut(serialized, features)
        # [end]
        # [if pcm]
        for name, feature in features.items():
            if feature["kind"] == "audio" and feature["dtype"] == "int16":
                values[name] = tf.cast(values[name], tf.float32) / 32_768
        # [end]
        # [if image]
        for name, size in sizes.items():
            # [if fixed]
            if FEATURES[name]["storage"] == "raw" and FEATURES[name]["height"]:
                values[name] = _pixels(values[name], FEATURES[name], size)
            # [end]
            # [if each]
            if FEATURES[name]["storage"] == "encoded" or name in SIDES:
                parts = [values.pop(part) for part in (name, *SIDES.get(name, ()))]
                values[name] = _each_image(parts, FEATURES[name], size)
            # [end]
            values[name] = tf.cast(values[name], kind)
            if scale is not None:
                values[name] *= tf.cast(scale, kind)
        # [end]
        # [if masked_label]
        if as_supervised:  # no label is missing
            values.pop(FEATURES[str(LABEL)]["present"])
        # [end]
        # [if flat]
        if not as_supervised:
            return values
        label = values.pop(str(LABEL))
        return (next(iter(values.values())) if len(values) == 1 else values), label
        # [end]
        # [if struct]
        label = values.pop(str(LABEL)) if as_supervised else None
        if as_supervised and len(values) == 1:
            return values.popitem()[1], label
        nested = _nest(values)
        return (nested, label) if as_supervised else nested
        # [end]

    return parse


# [if general]
def _parse(serialized: Any, features: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """A batch of examples by ``tf.io.parse_example``; images as their bytes."""
    columns: dict[str, Any] = {}
    # [if masked]
    fills: dict[str, Any] = {}
    # [end]
    for name, feature in features.items():
        shape, dtype = feature.get("shape", []), feature.get("dtype", "string")
        stored = {"string": tf.string, "float32": tf.float32}.get(dtype, tf.int64)
        default = feature.get("default")
        # [if narrow_float]
        if dtype in ("float16", "bfloat16"):
            stored = tf.float32
        # [end]
        # [if bool]
        default = int(default) if isinstance(default, bool) else default
        # [end]
        # [if uint64_default]
        if dtype == "uint64" and default is not None and default >= 2**63:
            default -= 2**64  # the same bits
        # [end]
        # [if packed]
        if feature.get("packed"):
            shape, stored, default = [], tf.string, b"" if feature.get("optional") else None
        # [end]
        columns[name] = tf.io.FixedLenFeature(shape, stored, default)
        # [if ragged]
        if None in shape:
            columns[name] = tf.io.RaggedFeature(stored, row_splits_dtype=tf.int64)
        # [end]
        # [if masked]
        if "present" in feature and None not in shape:  # the length says if it is there
            columns[name] = tf.io.RaggedFeature(stored, row_splits_dtype=tf.int64)
            fills[feature["present"]] = (name, default)
        # [end]
        # [if shapes]
        if feature.get("shape", []).count(None) > 1:
            columns[f"{name}/shape"] = tf.io.FixedLenFeature([len(feature["shape"])], tf.int64)
        # [end]
        # [if sides]
        for side in SIDES.get(name, ()):
            columns[side] = tf.io.FixedLenFeature([], tf.int64)
        # [end]
    values: dict[str, Any] = tf.io.parse_example(serialized, columns)
    # [if masked]
    for mask, (name, fill) in fills.items():
        values[mask] = tf.ensure_shape(values[name].row_lengths() > 0, serialized.shape)
        values[name] = values[name].to_tensor(fill, shape=[serialized.shape[0], 1])[:, 0]
    # [end]
    # [if masked_lists]
    lists = {str(one.get("present", "")): name for name, one in features.items()}
    lists = {mask: name for mask, name in lists.items() if mask and mask not in fills}
    values |= _lists_present(serialized, lists) if lists else {}
    # [end]
    # [if tensor]
    for name, feature in features.items():
        if feature["kind"] != "image":
            values[name] = _tensor(values[name], feature, values.pop(f"{name}/shape", None))
    # [end]
    return values


# [if masked_lists]
def _lists_present(serialized: Any, lists: dict[str, str]) -> dict[str, Any]:
    """By mask, bool[batch]: whether a list is there. Parsing takes a missing one for empty."""
    part = functools.partial(tf.io.decode_proto, output_types=[tf.string])
    (features,) = part(serialized, "tensorflow.Example", ["features"]).values
    found = part(features[:, 0], "tensorflow.Features", ["feature"])
    (keys,) = part(found.values[0], "tensorflow.Features.FeatureEntry", ["key"]).values
    is_there = {mask: tf.reduce_any(keys == name, axis=[1, 2]) for mask, name in lists.items()}
    return {mask: tf.ensure_shape(one, serialized.shape) for mask, one in is_there.items()}


# [end]
# [if tensor]
def _tensor(value: Any, feature: dict[str, Any], sizes: Any) -> Any:
    """A batch of one feature as ``dtype[batch, *shape]``, from the list that it is stored in.

    ``sizes`` are the dimensions of each record's tensor where its length does not tell them.
    """
    # [if shape]
    shape = feature.get("shape", [])
    # [end]
    # [if dtype]
    dtype = tf.as_dtype(feature["dtype"])
    # [end]
    # [if packed_varying]
    if feature.get("packed") and None in shape:
        flat = tf.io.decode_raw(tf.strings.reduce_join(value), dtype)
        lengths = tf.cast(tf.strings.length(value) // dtype.size, tf.int64)
        value = tf.RaggedTensor.from_row_lengths(flat, lengths)
    # [end]
    # [if packed_default]
    if "default" in feature and feature.get("packed"):
        there = tf.io.decode_raw(value, dtype, fixed_length=dtype.size)[:, 0]
        return tf.where(value == b"", tf.cast(feature["default"], dtype), there)
    # [end]
    # [if packed_fixed]
    if feature.get("packed") and None not in shape:
        value = tf.reshape(tf.io.decode_raw(value, dtype), [value.shape[0] or -1, *shape])
    # [end]
    # [if uint64]
    if dtype == tf.uint64:
        value = tf.ragged.map_flat_values(tf.bitcast, value, dtype)
    # [end]
    # [if narrow]
    if value.dtype != dtype:
        value = tf.cast(value, dtype)
    # [end]
    # [if dimensions]
    if None in shape and len(shape) > 1:
        value = _ragged(value, shape, sizes)
    # [end]
    return value


# [end]
# [if dimensions]
def _ragged(value: Any, shape: list[int | None], sizes: Any) -> Any:
    """Lists ``[batch, None]`` as ``tf.RaggedTensor`` ``[batch, *shape]``, row-major."""
    if sizes is None:  # one dimension varies: the lists' lengths tell it
        rest = value.row_lengths() // tf.TensorShape([dim for dim in shape if dim]).num_elements()
        fixed = tf.ones_like(rest)
        sizes = tf.stack([fixed * dim if dim else rest for dim in shape], axis=1)
    last = max(axis for axis, dim in enumerate(shape) if dim is None)
    result = tf.reshape(value.flat_values, [-1, *shape[last + 1 :]])
    for axis in range(last, -1, -1):
        rows = tf.reduce_prod(sizes[:, :axis], axis=1)  # of this dimension, in each record
        if shape[axis] is None:
            lengths = tf.repeat(sizes[:, axis], rows) if axis else sizes[:, 0]
            result = tf.RaggedTensor.from_row_lengths(result, lengths)
        else:
            num = tf.reduce_sum(rows) if axis else sizes.shape[0]
            result = tf.RaggedTensor.from_uniform_row_length(result, shape[axis], nrows=num)
    return result


# [end]
# [end]
# [if struct]
def _nest(values: dict[str, Any]) -> dict[str, Any]:
    """The features by name, the fields of each struct in a dict."""
    for name in reversed(STRUCTS):  # inner ones first
        fields = [key for key in values if key.startswith(f"{name}.")]
        if fields:
            values[name] = {key[len(name) + 1 :]: values.pop(key) for key in fields}
    return values


# [end]
# [if layout]
def _cut(serialized: Any, features: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """A batch of examples by feature name, at less than the cost of ``tf.io.parse_example``.

    Each value of this snapshot is of one length, so it lies at the same place in every example,
    between the same bytes (names and lengths), which are compared.
    """
    length = sum(len(head) + size for _, head, size in LAYOUT)
    other = [f"an example is none of {NAME} {FINGERPRINT}"]
    fits = tf.debugging.Assert(tf.reduce_all(tf.strings.length(serialized) == length), other)
    with tf.control_dependencies([fits]):  # with fixed_length= it would fill all with zeros first
        content = tf.io.decode_raw(serialized, tf.uint8)
    content = tf.reshape(content, [serialized.shape[0] or -1, length])
    same, values, begin = [], {}, 0
    for name, head, size in LAYOUT:
        end = begin + len(head)
        same.append(tf.reduce_all(content[:, begin:end] == tf.constant(list(head), tf.uint8)))
        begin = end + size
        if name in features:
            values[name] = content[:, end:begin]
    with tf.control_dependencies([tf.debugging.Assert(tf.reduce_all(same), other)]):
        values = {name: tf.identity(value) for name, value in values.items()}
    # [if layout_numbers]
    for name, value in values.items():
        if FEATURES[name]["kind"] == "image":
            continue
        dtype, shape = tf.as_dtype(FEATURES[name]["dtype"]), FEATURES[name].get("shape", [])
        # [if layout_bytes]
        if dtype not in (tf.int64, tf.bool):  # one byte each
            value = tf.reshape(value, [-1, value.shape[1] // dtype.size, dtype.size])
            value = tf.bitcast(value, dtype)
        # [end]
        values[name] = tf.cast(tf.reshape(value, [serialized.shape[0] or -1, *shape]), dtype)
    # [end]
    return values


# [end]
# [if fixed]
def _pixels(pixels: Any, feature: dict[str, Any], size: tuple[int, int]) -> Any:
    """A batch of images that are stored as pixels of one size."""
    stored = (feature["height"], feature["width"])
    # [if general]
    pixels = tf.io.decode_raw(pixels, tf.uint8)
    # [end]
    images = tf.reshape(pixels, [pixels.shape[0] or -1, *stored, feature["channels"]])
    return images if size == stored else _resize(images, size)


# [end]
# [if each]
def _each_image(parts: list[Any], feature: dict[str, Any], size: tuple[int, int]) -> Any:
    """A batch of images that are decoded, or shaped, one by one: contents, and what is beside."""
    shape = [*size, feature["channels"]]

    def one(content: Any, *sides: Any) -> Any:
        # [if varying]
        if feature["storage"] == "raw":
            image = tf.reshape(tf.io.decode_raw(content, tf.uint8), [*sides, shape[2]])
        # [end]
        # [if encoded]
        if feature["storage"] == "encoded":
            image = _decode(content, shape[2])
        # [end]
        # [if rotated]
        if feature["storage"] == "encoded" and sides:
            image = _upright(image, sides[0])
        # [end]
        if size != (feature["height"], feature["width"]):
            same = tf.reduce_all(tf.shape(image)[:2] == size)
            image = tf.cond(same, lambda: image, lambda: _resize(image, size))
        return tf.ensure_shape(image, shape)

    specs = [tf.TensorSpec([], part.dtype) for part in parts]
    f = tf.function(one, autograph=False).get_concrete_function(*specs)
    (images,) = tf.raw_ops.MapDefun(  # costs 10 µs an image less than tf.map_fn
        arguments=parts, captured_inputs=[], output_types=[tf.uint8], output_shapes=[shape], f=f
    )
    return images


# [end]
# [if image]
def _resize(images: Any, size: tuple[int, int]) -> Any:
    """One image, or a batch, in another size."""
    return tf.saturate_cast(tf.round(tf.image.resize(images, size, antialias=True)), tf.uint8)


# [end]
# [if encoded]
def _decode(content: Any, channels: int) -> Any:
    """An image file's content as ``uint8[height, width, channels]``."""
    # [if all_jpeg]
    image = tf.io.decode_jpeg(content, min(channels, 3), dct_method="INTEGER_ACCURATE")
    # [if alpha]
    if channels == 4:
        image = tf.pad(image, [[0, 0], [0, 0], [0, 1]], constant_values=255)
    # [end]
    return image
    # [end]
    # [if any_format]
    is_jpeg = tf.strings.substr(content, 0, 3) == b"\xff\xd8\xff"

    jpeg = functools.partial(tf.io.decode_jpeg, content, channels=3, dct_method="INTEGER_ACCURATE")
    other = functools.partial(tf.io.decode_image, content, channels=3, expand_animations=False)
    # [if webp]
    is_riff = tf.strings.substr(content, 0, 4) == b"RIFF"
    is_webp = is_riff & (tf.strings.substr(content, 8, 4) == b"WEBP")

    def webp() -> Any:  # with the channels that the file has, whatever is asked for
        return tf.image.decode_webp(content)[0]

    # [end]
    def other_or_webp() -> Any:
        # [if webp]
        return tf.cond(is_webp, lambda: webp()[..., :3], other)
        # [end]
        # [if no_webp]
        return other()
        # [end]

    # [if grey]
    def luma(image: Any) -> Any:
        weighted = tf.cast(image, tf.int32) * tf.constant([19_595, 38_470, 7_471])
        total = tf.reduce_sum(weighted, axis=2, keepdims=True)
        return tf.cast((total + 0x8000) // 0x10000, tf.uint8)

    def grey_jpeg() -> Any:
        cmyk = tf.io.extract_jpeg_shape(content)[2] == 4
        return tf.cond(cmyk, lambda: luma(jpeg()), lambda: jpeg(channels=1))

    if channels == 1:
        return tf.cond(is_jpeg, grey_jpeg, lambda: luma(other_or_webp()))

    # [end]
    # [if alpha]
    def opaque(image: Any) -> Any:
        return tf.pad(image, [[0, 0], [0, 0], [0, 1]], constant_values=255)

    def png() -> Any:  # of less than 8 bits, TensorFlow makes up an alpha where there is none
        shallow = tf.reduce_any(tf.strings.substr(content, 24, 1) == [b"\1", b"\2", b"\4"])
        bare = tf.cond(
            shallow, lambda: tf.shape(tf.io.decode_png(content))[2] % 2 == 1, lambda: False
        )
        return tf.cond(bare, lambda: opaque(other()), lambda: other(channels=4))

    # [if webp]
    def transparent_webp() -> Any:
        return tf.cond(tf.shape(webp())[2] == 4, webp, lambda: opaque(webp()[..., :3]))

    # [end]
    def not_png() -> Any:
        # [if webp]
        return tf.cond(is_webp, transparent_webp, lambda: opaque(other()))
        # [end]
        # [if no_webp]
        return opaque(other())
        # [end]

    def transparent() -> Any:
        return tf.cond(tf.strings.substr(content, 0, 4) == b"\x89PNG", png, not_png)

    if channels == 4:
        return tf.cond(is_jpeg, lambda: opaque(jpeg()), transparent)
    # [end]
    return tf.cond(is_jpeg, jpeg, other_or_webp)
    # [end]


# [end]
# [if rotated]
def _upright(image: Any, orientation: Any) -> Any:
    """An image turned as its EXIF orientation, 1 to 8, says."""
    turned = tf.cond(orientation >= 5, lambda: tf.transpose(image, [1, 0, 2]), lambda: image)
    rows = tf.reduce_any(orientation == tf.constant([3, 4, 7, 8], tf.int64))
    columns = tf.reduce_any(orientation == tf.constant([2, 3, 6, 7], tf.int64))
    return tf.raw_ops.Reverse(tensor=turned, dims=tf.stack([rows, columns, False]))


# [end]
