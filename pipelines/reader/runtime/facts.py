"""Facts of the snapshot: constants only.

This file is generated in a snapshot. This version describes a fictitious snapshot with a feature of
every kind, so that the package can be linted, type-checked and run in the form in which it ships.
"""

from __future__ import annotations

from typing import Any

FORMAT_VERSION = 1
NAME = "every_kind"
FINGERPRINT = "0000000000000000"
NUM_EXAMPLES: dict[str, int] = {"train": 80, "validation": 10, "test": 10}
LIMIT: int | None = None
SHARD_CHECKSUMS: dict[str, list[int | None]] = {"train": [], "validation": [], "test": []}
"""Of each shard, by split: the masked CRC32C of its first record; with GZIP its content's CRC32."""
LABEL: str | None = "label"
TIMES: list[str] = ["at.time"]
"""Features that say when a record was: no inputs of a model unless they are named."""
CLASS_NAMES: list[str] | None = ["left", "right"]
CLASS_SHARES: list[float] = [0.25, 0.75]
CLASS_WEIGHTS: list[float] = [2.0, 0.666667]
NUM_MISSING: dict[str, int] = {}
FEATURES: dict[str, dict[str, Any]] = {
    "at.boxes": {"kind": "bounding_boxes", "dtype": "float32", "shape": [None, 4]},
    "at.time": {"kind": "timestamp", "dtype": "int64", "unit": "s"},
    "depth": {
        "kind": "image",
        "height": 8,
        "width": 8,
        "channels": 1,
        "storage": "raw",
        "dtype": "uint16",
    },
    "image": {"kind": "image", "height": 8, "width": 8, "channels": 3, "storage": "raw"},
    "label": {"kind": "class_label", "dtype": "int64", "names": CLASS_NAMES},
    "mask": {"kind": "mask", "height": None, "width": None, "channels": 1, "storage": "encoded"},
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
IMAGE_FORMATS: dict[str, list[str]] = {"photo": ["jpeg", "png"]}
SIDES: dict[str, list[str]] = {
    "photo": ["photo/orientation"],
    "scan": ["scan/height", "scan/width"],
    "sound": ["sound/rate"],
}
STRUCTS: list[str] = ["at"]
LENGTHS: dict[str, list[int]] = {"at.boxes": [2, 4], "sound": [800, 1600], "words": [3, 9]}
LAYOUT: list[tuple[str, bytes, int]] = []
COMPRESSION = "none"
RECORD_BYTES = 20_000
SERVING_INPUTS: dict[str, dict[str, Any]] = {}
"""What the model for serving takes, by raw name; no value where no output needs the feature."""
