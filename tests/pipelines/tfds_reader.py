"""Reads a snapshot with TensorFlow Datasets and with its own reader, and compares each value.

``python tfds_reader.py FOLDER`` needs TensorFlow Datasets, and nothing of snapshard. It prints as
JSON how many records of each split are equal, the names of classes, and what ``as_supervised`` has.
"""

import json
import sys
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

JPEG_LEVELS = 4
"""TFDS decodes JPEG by another method than the snapshot's reader."""


def flat(values: Any, prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in values.items():
        found |= (
            flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
        )
    return found


def is_equal(found: Any, wanted: Any) -> bool:
    if isinstance(wanted, list):  # the frames of a clip
        return len(found) == len(wanted) and all(map(is_equal, found, wanted))
    found, wanted = np.asarray(found), np.asarray(wanted)
    if found.dtype == np.int16 and wanted.dtype == np.float32:  # a sound
        found = found.astype(np.float32) / 32_768
    if found.shape != wanted.shape or found.dtype.kind != wanted.dtype.kind:
        return False
    if found.dtype.kind in "OS":
        return bool((found == wanted).all())
    if found.dtype != wanted.dtype:
        return False
    if found.dtype == np.uint8 and found.ndim == 3:
        return bool(np.abs(found.astype(int) - wanted.astype(int)).max(initial=0) <= JPEG_LEVELS)
    return bool(np.array_equal(found, wanted, equal_nan=found.dtype.kind == "f"))


def main(folder: str) -> None:
    sys.path.insert(0, folder)
    from reader import arrays  # type: ignore[import-not-found]

    builder = tfds.builder_from_directory(folder)
    config = tfds.ReadConfig(interleave_cycle_length=1)
    facts: dict[str, Any] = {"equal": {}, "supervised": None}
    facts["classes"] = {
        name: feature.names
        for name, feature in builder.info.features.items()
        if isinstance(getattr(feature, "feature", feature), tfds.features.ClassLabel)
    }
    for split in builder.info.splits:
        own = arrays.Records(split, root=folder, decode=arrays.decode_image)
        if not len(own):  # TFDS refuses to read nothing
            facts["equal"][split] = builder.info.splits[split].num_examples
            continue
        records = [*builder.as_dataset(split=split, read_config=config).as_numpy_iterator()]
        assert len(records) == len(own) == builder.info.splits[split].num_examples
        for found, wanted in zip(records, map(flat, own), strict=True):
            masks = {name for name in wanted if name.endswith("_present")}
            assert set(found) == set(wanted) - masks
            for name in found:
                assert is_equal(found[name], wanted[name]), (split, name, found[name], wanted[name])
        facts["equal"][split] = len(records)
        if builder.info.supervised_keys is not None:
            given, label = next(iter(builder.as_dataset(split=split, as_supervised=True)))
            names = sorted(given) if isinstance(given, dict) else str(given.dtype.name)
            facts["supervised"] = [names, label.dtype.name]
    print(json.dumps(facts))


main(sys.argv[1])
