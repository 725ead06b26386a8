"""Trains on a snapshot of images and profiles some steps, for TensorBoard's profiler.

Build a snapshot first: `snapshard build examples/sign_digits.py --out out`. Then run
`python examples/train_with_profile.py out/sign_digits/FINGERPRINT`, and view the result:
`pip install tensorboard tensorboard-plugin-profile`, `tensorboard --logdir logs`. In the profile's
"trace_viewer", a step that waits for input shows as a gap before `train_step`;
`reader.diagnose` says which stage of the reader it waits for. Under "text", the logs say which
snapshot the run was trained on.
"""

import argparse
import os
from pathlib import Path
from typing import Any

from demo import load_reader, make_model


def train(
    snapshot: Path, logs: Path, *, batch_size: int, epochs: int, steps: tuple[int, int]
) -> Any:
    """Trains a small network and profiles a range of steps; returns the history.

    Steps are counted from 1 over all epochs. The first few are not representative: they trace
    functions and fill buffers.
    """
    import keras
    import tensorflow as tf

    reader = load_reader(snapshot)
    with tf.summary.create_file_writer(str(logs)).as_default():
        tf.summary.text("snapshot", f"{reader.NAME} {reader.FINGERPRINT}", step=0)
    keras.utils.set_random_seed(0)
    model = make_model(len(reader.CLASS_NAMES))
    model.compile(
        optimizer=keras.optimizers.Adam(3e-3),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model.fit(
        # One long pass, so no epoch has to wait for buffers to fill.
        reader.dataset("train", batch_size, epochs=None, as_supervised=True),
        steps_per_epoch=reader.steps("train", batch_size),
        validation_data=reader.dataset("validation", batch_size, as_supervised=True),
        epochs=epochs,
        shuffle=False,  # the reader shuffles
        callbacks=[keras.callbacks.TensorBoard(str(logs), profile_batch=steps)],
        verbose=2,
    )


def main() -> None:
    """Trains, and prints the path of the profile."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("snapshot", type=Path, help="folder of a snapshot of images with labels")
    parser.add_argument("--logs", type=Path, default=Path("logs"), help="where TensorBoard looks")
    parser.add_argument("--batch-size", type=int, default=16, metavar="N")
    parser.add_argument("--epochs", type=int, default=3, metavar="N")
    parser.add_argument("--steps", type=int, nargs=2, default=(20, 30), metavar=("FIRST", "LAST"))
    arguments = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    train(
        arguments.snapshot,
        arguments.logs,
        batch_size=arguments.batch_size,
        epochs=arguments.epochs,
        steps=tuple(arguments.steps),
    )
    for profile in sorted(arguments.logs.glob("**/*.xplane.pb")):
        print(f"profile: {profile}")


if __name__ == "__main__":
    main()
