"""``python SNAPSHOT/reader``: prints what the snapshot contains, and how to read it."""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import Any

_HOW_TO = """\
import sys
sys.path.insert(0, {folder!r})
import reader

train = reader.dataset({split!r}, 128{supervised})  # a tf.data.Dataset
reader.steps({split!r}, 128)  # batches per epoch
help(reader.dataset)  # all options
help(reader.arrays)  # the same without TensorFlow, for NumPy, PyTorch and Grain
print(reader.diagnose({split!r}, 128, step_ms=50))  # does input limit training, and where?
"""


def _facts() -> Any:
    """The module ``facts`` of this folder, whatever the folder's name; loads no other."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "facts.py")
    spec = importlib.util.spec_from_file_location("facts", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main() -> None:
    """Prints facts and instructions."""
    facts = _facts()
    sample = "" if facts.LIMIT is None else f", a SAMPLE of {facts.LIMIT:,} records"
    print(f"{facts.NAME!r}, snapshot {facts.FINGERPRINT}{sample}")
    for split, num in facts.NUM_EXAMPLES.items():
        print(f"  {split!r}: {num:,} examples")
    for name, feature in facts.FEATURES.items():
        kind, shape = feature["kind"], feature.get("shape", "")
        note = " (the label)" if name == facts.LABEL else ""
        print(f"  {name!r}: {kind} {feature.get('dtype', 'uint8')} {shape}".rstrip() + note)
    folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    split = max(facts.NUM_EXAMPLES, key=facts.NUM_EXAMPLES.__getitem__)
    supervised = ", as_supervised=True" if facts.LABEL else ""
    print("\n" + _HOW_TO.format(folder=folder, split=split, supervised=supervised), end="")


if __name__ == "__main__":
    sys.dont_write_bytecode = True  # a snapshot holds only the files that its manifest lists
    main()
