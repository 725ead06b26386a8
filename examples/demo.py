"""Builds the snapshot of the shipped images and trains a small Keras model from it (`make demo`).

The two halves share nothing but a folder: the command line builds the snapshot, and the trainer
imports the snapshot's `reader` package, which needs TensorFlow but not snapshard.
"""

import argparse
import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).resolve().parent


def build_snapshot(out: Path) -> Path:
    """Runs `snapshard build` on the recipe next to this file; returns the snapshot's folder."""
    command = ["-m", "snapshard", "build", str(EXAMPLES / "sign_digits.py"), "--out", str(out)]
    print(f"$ snapshard {' '.join(command[2:])}", flush=True)
    done = subprocess.run(
        [sys.executable, *command, "--json"], stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode != 0:
        sys.exit(done.returncode)
    report = json.loads(done.stdout.splitlines()[-1])
    return Path(report["path"])


def print_files(snapshot: Path) -> None:
    """Prints the snapshot's files with their sizes."""
    print(f"\nThe snapshot is in {snapshot}")
    for path in sorted(snapshot.iterdir()):
        if path.is_dir():
            num_files = sum(1 for inner in path.rglob("*") if inner.is_file())
            print(f"  {path.name + '/':<36} {num_files:>9,} files")
        else:
            print(f"  {path.name:<36} {path.stat().st_size:>9,} bytes")


def load_reader(snapshot: Path) -> Any:
    """Imports the package `reader` that the build wrote into the snapshot."""
    sys.path.insert(0, str(snapshot))
    return importlib.import_module("reader")


def make_model(num_classes: int) -> Any:
    """A small convolutional network on `uint8[64, 64, 3]`."""
    import keras
    from keras import layers

    def convolve(filters: int, size: int, strides: int = 1) -> list[Any]:
        return [
            layers.Conv2D(filters, size, strides=strides, padding="same", use_bias=False),
            # With so few steps per epoch, the averages must adapt quickly.
            layers.BatchNormalization(momentum=0.8),
            layers.ReLU(),
            layers.MaxPooling2D(),
        ]

    return keras.Sequential(
        [
            layers.Input((64, 64, 3), dtype="uint8"),
            layers.Rescaling(1 / 127.5, offset=-1),
            *convolve(16, 5, strides=2),
            *convolve(32, 3),
            *convolve(64, 3),
            layers.Flatten(),
            layers.Dropout(0.4),
            layers.Dense(num_classes),
        ]
    )


def train(reader: Any, *, epochs: int) -> float:
    """Trains a small network with the reader; returns its accuracy on the test split."""
    import keras

    keras.utils.set_random_seed(0)
    model = make_model(len(reader.CLASS_NAMES))
    model.compile(
        optimizer=keras.optimizers.Adam(3e-3),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    model.fit(
        reader.dataset("train", 16, seed=0, as_supervised=True),
        validation_data=reader.dataset("validation", 32, as_supervised=True),
        epochs=epochs,
        shuffle=False,  # the reader shuffles
        verbose=2,
    )
    _, accuracy = model.evaluate(reader.dataset("test", 32, as_supervised=True), verbose=0)
    return float(accuracy)


def main() -> None:
    """Builds the snapshot, shows its files, and trains."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=EXAMPLES.parent / "out")
    parser.add_argument("--epochs", type=int, default=10)
    arguments = parser.parse_args()

    snapshot = build_snapshot(arguments.out)
    print_files(snapshot)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    reader = load_reader(snapshot)
    print(
        f"\nTraining on {reader.NUM_EXAMPLES['train']} images of {len(reader.CLASS_NAMES)} classes"
    )
    accuracy = train(reader, epochs=arguments.epochs)
    print(f"\nTest accuracy: {accuracy:.1%} of {reader.NUM_EXAMPLES['test']} images")


if __name__ == "__main__":
    main()
