"""``preprocess``: what the build did to raw records, as a function of batches."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import tensorflow as tf  # type: ignore[import-untyped, unused-ignore]

from . import facts


def preprocess(root: str | os.PathLike[str] | None = None) -> Callable[..., dict[str, Any]]:
    """What was done to raw records, as a function of batches by name.

    Args:
        root: Folder or URL of the snapshot; None is the folder that holds this package.

    Returns:
        A function whose keyword arguments are the columns of raw records, each a batch; NaN, or a
        column that is left out, is missing. It gives the features by name.

    Raises:
        ValueError: if the snapshot has no such function, or TensorFlow cannot load it.
    """
    if not facts.HAS_SERVING:
        raise ValueError(
            f"{facts.NAME} has no preprocess(): some step cannot be exported. `snapshard inspect` "
            "names it."
        )
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    folder = here if root is None else os.fspath(root).rstrip("/")
    try:
        signature = tf.saved_model.load(f"{folder}/serving").signatures["serving_default"]
    except (RuntimeError, OSError, tf.errors.OpError) as error:  # no such operation, or folder
        raise ValueError(f"TensorFlow {tf.__version__} cannot load the model: {error}") from None
    specs = signature.structured_input_signature[1].items()
    none = {name: tf.zeros([0, *(n or 0 for n in x.shape[1:])], x.dtype) for name, x in specs}

    def processed(**inputs: Any) -> dict[str, Any]:
        found: dict[str, Any] = signature(**none | inputs)
        return found

    return processed
