"""``preprocess``: the preparation that the build applied to raw records, as a function."""

from __future__ import annotations

import itertools
import json
import math
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf  # type: ignore[import-untyped, unused-ignore]

from . import facts
from .frames import own_folder


def preprocess(root: str | os.PathLike[str] | None = None) -> Callable[..., dict[str, Any]]:
    """Loads the preparation of raw records, as a function of batches by name or of a list of rows.

    Args:
        root: Folder or URL of the snapshot; None is the folder that contains this package.

    Returns:
        A function that takes either the columns of raw records as keyword arguments, each a batch,
        or a list of rows (dicts) as its only argument. A missing value is NaN, an omitted batch or
        key, or None in a row. Returns batches of the features by name.

    Raises:
        ValueError: if the snapshot has no such function, or TensorFlow cannot load it.
    """
    if not facts.HAS_SERVING:
        raise ValueError(
            f"{facts.NAME} has no preprocess(): some step cannot be exported. `snapshard inspect` "
            "names it."
        )
    folder = own_folder() if root is None else os.fspath(root).rstrip("/")
    try:
        signature = tf.saved_model.load(f"{folder}/serving").signatures["serving_default"]
    except (RuntimeError, OSError, tf.errors.OpError) as error:  # missing op, or missing folder
        raise ValueError(f"TensorFlow {tf.__version__} cannot load the model: {error}") from None
    return _served(signature, f"{folder}/manifest.json")


def _served(signature: Any, manifest: str) -> Callable[..., dict[str, Any]]:
    specs = signature.structured_input_signature[1]
    none = {k: tf.zeros([0, *(n or 0 for n in x.shape[1:])], x.dtype) for k, x in specs.items()}

    def served(rows: list[dict[str, Any]] | tuple[()] = (), /, **inputs: Any) -> Any:
        if not rows:
            return signature(**none | {k: _input(k, value, specs) for k, value in inputs.items()})
        places: dict[Any, list[int]] = {}  # rows with the same inputs missing are batched together
        alike: dict[Any, list[dict[str, Any]]] = {}
        for place, row in enumerate(rows):
            given = {k: v for k, v in row.items() if not _is_missing(v, specs.get(k))}
            given = {k: _input(k, v, specs, of_rows=0) for k, v in given.items()}
            given = given or _empty_row_marks(manifest, specs)
            kind = tuple((k, *given[k].shape) for k in sorted(given))
            places.setdefault(kind, []).append(place)
            alike.setdefault(kind, []).append(given)
        stacked = [{k: tf.stack([x[k] for x in some]) for k in some[0]} for some in alike.values()]
        outputs = [signature(**none | batch) for batch in stacked]
        order = tf.argsort(list(itertools.chain.from_iterable(places.values())))
        return {k: tf.gather(tf.concat([x[k] for x in outputs], 0), order) for k in outputs[0]}

    return served


def _input(name: str, value: Any, specs: dict[str, Any], of_rows: int = 1) -> tf.Tensor:
    """Converts a batch (with ``of_rows=0``, a row's value) to the model's input, without loss."""
    if name not in specs:
        raise ValueError(f"There is no input {name!r}, only {', '.join(specs)}.")
    dtype, shape = specs[name].dtype, specs[name].shape[1 - of_rows :]
    try:
        with np.errstate(over="ignore", invalid="ignore"):  # refused below
            made = tf.convert_to_tensor(value, dtype)
    except (TypeError, ValueError) as error:
        texts = (isinstance(x, str | bytes) for x in np.ravel(np.asarray(value, object)))
        hint = " A class is passed as its index." if dtype.is_integer and any(texts) else ""
        raise ValueError(f"{name}={value!r} is not {dtype.name}{shape}.{hint}") from error
    if 0 in made.shape and made.shape.rank < shape.rank:  # an empty list has no inner dimensions
        made = tf.zeros([*made.shape[:of_rows], *(n or 0 for n in shape[of_rows:])], dtype)
    fits = shape.is_compatible_with(made.shape)
    if not fits or not (tf.is_tensor(value) or dtype == tf.string or _is_exact(made, value)):
        raise ValueError(f"{name}={value!r} is not {dtype.name}{shape}.")
    return made


def _is_exact(made: tf.Tensor, value: Any) -> bool:
    """Whether a conversion kept all values: TensorFlow truncates those that are too large.

    Fractions may be rounded to the nearest float, as in a build; integers must be exact.
    """
    given, held = np.asarray(value), tf.get_static_value(made)
    if held is None or not given.size:
        return True
    if made.dtype.is_floating:
        held = np.asarray(held, np.float64)
        if given.dtype.kind == "f":
            return bool((np.isfinite(held) == np.isfinite(given)).all())
        given, held = given.astype(object), held.astype(object)  # Python compares exactly
    return bool(np.all(held == given))


def _is_missing(value: Any, spec: Any) -> bool:
    if isinstance(value, float) and math.isnan(value) and spec is not None:
        return not spec.dtype.is_floating or spec.shape.rank > 1  # otherwise the model handles it
    return value is None


def _empty_row_marks(manifest: str, specs: dict[str, Any]) -> dict[str, tf.Tensor]:
    """Inputs that mark a row without any value: the model counts rows by its inputs."""
    with tf.io.gfile.GFile(manifest) as file:
        optional = json.load(file)["serving"]["optional_inputs"]
    marks = {}
    for name in (name for name in optional if specs[name].shape.rank == 1):
        dtype = specs[name].dtype
        if dtype != tf.string:
            mark = float("nan") if dtype.is_floating else dtype == tf.int64 and dtype.min
            marks[name] = tf.constant(mark, dtype)
    if not marks:
        raise ValueError(f"A row has none of the inputs {', '.join(specs)}.")
    return marks
