"""Reads one snapshot of training data: ``dataset(split, batch_size)`` gives a ``tf.data.Dataset``.

    import reader

    train = reader.dataset("train", 128, as_supervised=True)
    model.fit(train, validation_data=reader.dataset("validation", 128, as_supervised=True))

``pipeline.py`` is the place to start: list shards → interleave → shuffle → batch → parse →
prefetch. ``facts.py`` describes the snapshot's content, ``STATISTICS`` its values. ``arrays``
reads without TensorFlow (NumPy, PyTorch, Grain).

Written by snapshard; do not edit. The only dependency is TensorFlow. Import the package from the
snapshot's folder, or copy it next to the model and pass ``root=``.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
from typing import TYPE_CHECKING, Any

from .facts import (
    CLASS_NAMES,
    CLASS_SHARES,
    CLASS_WEIGHTS,
    FEATURES,
    FINGERPRINT,
    LABEL,
    LENGTHS,
    LIMIT,
    NAME,
    NUM_EXAMPLES,
)

if TYPE_CHECKING:
    STATISTICS: dict[str, dict[str, dict[str, Any]]]

    from . import arrays
    from .api import dataset, files, steps
    from .doctor import diagnose
    from .input_wait import InputWait
    from .parsing import parse
    from .resume import Resume
    from .serving import preprocess
    from .splits import fold

__all__ = [
    "CLASS_NAMES",
    "CLASS_SHARES",
    "CLASS_WEIGHTS",
    "FEATURES",
    "FINGERPRINT",
    "LABEL",
    "LENGTHS",
    "LIMIT",
    "NAME",
    "NUM_EXAMPLES",
    "STATISTICS",
    "InputWait",
    "Resume",
    "arrays",
    "dataset",
    "diagnose",
    "files",
    "fold",
    "parse",
    "preprocess",
    "steps",
]

_LAZY = {
    "dataset": "api",
    "files": "api",
    "steps": "api",
    "InputWait": "input_wait",
    "diagnose": "doctor",
    "parse": "parsing",
    "Resume": "resume",
    "preprocess": "serving",
    "fold": "splits",
}
"""Imported on first use, to keep ``arrays`` from loading TensorFlow."""


def __getattr__(name: str) -> Any:
    if name == "arrays":
        return importlib.import_module(".arrays", __name__)
    if name == "STATISTICS":
        globals()[name] = _statistics()
        return globals()[name]
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_LAZY[name]}", __name__), name)


def _statistics() -> dict[str, dict[str, dict[str, Any]]]:
    """Facts of each feature by split, such as ``STATISTICS["train"]["age"]["mean"]``.

    From ``statistics.json``, which stands beside this folder.
    """
    folder = os.path.dirname(os.path.dirname(__file__))
    path, manifest = (os.path.join(folder, name) for name in ("statistics.json", "manifest.json"))
    if not os.path.isfile(path):
        raise FileNotFoundError(
            f"{path} is missing. Copy the snapshot's statistics.json there, beside the folder of "
            "its reader."
        )
    with open(path, "rb") as file:
        content = file.read()
    try:
        splits = json.loads(content)["splits"]
        found = {split: facts["features"] for split, facts in splits.items()}
        entry = None
        if os.path.isfile(manifest):
            with open(manifest, encoding="utf-8") as file:
                entry = json.load(file)["files"].get("statistics.json")
        is_whole = entry is None or hashlib.sha256(content).hexdigest() == entry["sha256"]
    except (AttributeError, LookupError, TypeError, ValueError):
        is_whole = False
    if not is_whole:
        raise ValueError(
            f"{path} is damaged or was edited. Copy it again from the snapshot, or repair that: "
            "snapshard build … --repair."
        )
    return found


def __dir__() -> list[str]:
    return __all__
