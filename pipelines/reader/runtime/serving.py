"""``preprocess``: the preparation that the build applied to raw records, as a function."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf  # type: ignore[import-untyped, unused-ignore]

from . import facts
from .frames import own_folder
from .targets import nested

_NEEDED = {name: fact for name, fact in facts.SERVING_INPUTS.items() if fact}
_KNOWN = {fact["input"]: fact for fact in _NEEDED.values()} | facts.SERVING_INPUTS
"""By the names that a request may use: raw ones, and those of the model where no raw one is."""
_REQUIRED = {fact["input"]: name for name, fact in _NEEDED.items() if "optional" not in fact}


def preprocess(root: str | os.PathLike[str] | None = None) -> Callable[..., dict[str, Any]]:
    """Loads the preparation of raw records, as a function of batches by name or of a list of rows.

    Args:
        root: Folder or URL of the snapshot; None is the folder that contains this package.

    Returns:
        A function that takes either the columns of raw records as keyword arguments, each a batch,
        or a list of rows (dicts) as its only argument, by the names that they have in the source. A
        missing value is NaN, an omitted batch or key, or None in a row. What no output needs may be
        left out. Returns batches of the features by name, as ``dataset`` does.

    Raises:
        ValueError: if the snapshot has no such function, or TensorFlow cannot load it.
    """
    if not facts.SERVING_INPUTS:
        raise ValueError(
            f"{facts.NAME} has no preprocess(): no step changes its raw records, or one cannot be "
            "exported, which `snapshard inspect` names then."
        )
    folder = own_folder() if root is None else os.fspath(root).rstrip("/")
    try:
        signature = tf.saved_model.load(f"{folder}/serving").signatures["serving_default"]
    except (RuntimeError, OSError, tf.errors.OpError) as error:  # missing op, or missing folder
        raise ValueError(f"TensorFlow {tf.__version__} cannot load the model: {error}") from None
    return _served(signature)


def _served(signature: Any) -> Callable[..., dict[str, Any]]:
    specs = signature.structured_input_signature[1]
    none = {k: tf.zeros([0, *(n or 0 for n in x.shape[1:])], x.dtype) for k, x in specs.items()}

    def served(rows: list[dict[str, Any]] | tuple[()] = (), /, **batches: Any) -> Any:
        _check_form(rows, batches)
        if not rows:
            given = _inputs(batches, specs)
            if batches:
                _check_complete(given)
            return nested(signature(**none | given))
        places: dict[Any, list[int]] = {}  # rows with the same inputs missing are batched together
        alike: dict[Any, list[dict[str, Any]]] = {}
        for place, row in enumerate(rows):
            given = _inputs(row, specs, of_rows=0)
            _check_complete(given, f" in row {place}")
            given = given or _empty_row_marks(specs)
            kind = tuple((k, *given[k].shape) for k in sorted(given))
            places.setdefault(kind, []).append(place)
            alike.setdefault(kind, []).append(given)
        stacked = [{k: tf.stack([x[k] for x in some]) for k in some[0]} for some in alike.values()]
        outputs = [signature(**none | batch) for batch in stacked]
        order = tf.argsort(list(itertools.chain.from_iterable(places.values())))
        gathered = {k: tf.gather(tf.concat([x[k] for x in outputs], 0), order) for k in outputs[0]}
        return nested(gathered)

    return served


def _check_form(rows: Any, batches: dict[str, Any]) -> None:
    """Raises ValueError unless a request is a list of rows, or batches by name."""
    is_list = isinstance(rows, list | tuple)
    others = {type(row).__name__ for row in rows if not isinstance(row, dict)} if is_list else ()
    if others or not is_list:
        kind = f"{type(rows).__name__}{' of ' if others else ''}{' and '.join(sorted(others))}"
        raise ValueError(
            f"A request cannot be a {kind}: pass a list of rows, [{{name: value}}], or batches by "
            "name, **{name: [value]}."
        )
    if rows and batches:
        raise ValueError("A request is either rows or batches by name, not both.")


def _check_complete(given: dict[str, Any], where: str = "") -> None:
    """Raises ValueError if inputs lack one that may not be missing."""
    missing = [repr(name) for key, name in _REQUIRED.items() if key not in given]
    if missing:
        raise ValueError(
            f"Missing inputs{where}: {', '.join(missing)}. Only optional features may be missing."
        )


def _inputs(values: dict[str, Any], specs: dict[str, Any], of_rows: int = 1) -> dict[str, Any]:
    """The model's inputs, of batches (with ``of_rows=0``, a row's values) by raw name, or theirs.

    Leaves out what no output needs, and what a row lacks.
    """
    names: dict[str, str] = {}
    made = {}
    for name, value in _fields(values):
        if not of_rows and value is None:
            continue
        if name not in _KNOWN:
            shown = ", ".join(map(repr, facts.SERVING_INPUTS))
            raise ValueError(f"There is no input {name!r}, only {shown}.")
        fact = _KNOWN[name]
        if not fact:
            continue
        key = fact["input"]
        if key in names:
            raise ValueError(f"{names[key]!r} and {name!r} are the same input: pass one of them.")
        names[key] = name
        if of_rows or not _is_missing(value, specs[key]):
            made[key] = _input(name, value, specs[key], fact["dtype"], of_rows)
    return made


def _fields(values: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The values by name; those in the dict of a struct as ``<struct>.<field>``."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _fields({f"{name}.{field}": one for field, one in value.items()})
        else:
            yield name, value


def _input(name: str, value: Any, spec: Any, raw_dtype: str, of_rows: int) -> tf.Tensor:
    """Converts a batch (with ``of_rows=0``, a row's value) to the model's input, without loss."""
    dtype, shape = spec.dtype, spec.shape[1 - of_rows :]
    if raw_dtype not in ("bool", "string") and _has_bools(value):
        raise ValueError(f"{name}={value!r} is not {dtype.name}{shape}: a bool is not a number.")
    try:
        with np.errstate(over="ignore", invalid="ignore"):  # refused below
            made = tf.convert_to_tensor(value, dtype)
    except (TypeError, ValueError) as error:
        texts = (isinstance(x, str | bytes) for x in np.ravel(np.asarray(value, object)))
        hint = " A class is passed as its index." if "int" in raw_dtype and any(texts) else ""
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


def _has_bools(value: Any) -> bool:
    """Whether a value is a bool, or has one in it, which converts to 0 or 1 without an error."""
    if isinstance(value, np.ndarray) and value.dtype == object:
        value = value.tolist()
    if isinstance(value, list | tuple):
        return any(map(_has_bools, value))
    return isinstance(value, bool) or getattr(value, "dtype", None) == np.bool_


def _is_missing(value: Any, spec: Any) -> bool:
    is_nan = isinstance(value, float | np.floating) and math.isnan(value)
    # Otherwise the model handles it.
    return is_nan and (not spec.dtype.is_floating or spec.shape.rank > 1)


def _empty_row_marks(specs: dict[str, Any]) -> dict[str, tf.Tensor]:
    """Inputs that mark a row without any value: the model counts rows by its inputs."""
    marks = {}
    for name in (name for name in specs if specs[name].shape.rank == 1):
        dtype = specs[name].dtype
        if dtype != tf.string:
            mark = float("nan") if dtype.is_floating else dtype == tf.int64 and dtype.min
            marks[name] = tf.constant(mark, dtype)
    if not marks:
        raise ValueError(f"A row has none of the inputs {', '.join(specs)}.")
    return marks
