"""``InputWait``: a Keras callback that measures how long ``fit`` waits for its input."""

from __future__ import annotations

import time
from typing import Any

import tensorflow as tf  # type: ignore[import-untyped, unused-ignore]

from .waits import Epoch, Summary, summarize


class InputWait(tf.keras.callbacks.Callback):  # type: ignore[misc, unused-ignore]
    """Measures how long each step of a real ``fit`` waits for its batch.

        wait = reader.InputWait()
        model.fit(wait.watch(train), callbacks=[wait], epochs=3)
        print(*wait.summary().lines(), sep=" ")

    Each epoch's share of waiting time is in the logs and the history as ``input_wait``. If it is
    above 0.05, ``python -m reader doctor --step-ms …`` finds the stage of the input that causes it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.epochs: list[Epoch] = []
        self._waits: list[float] = []
        self._begun = 0.0
        self._tested = 0.0

    def watch(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        """Returns the same dataset, which records how long each batch takes to arrive.

        Pass the result to ``fit`` directly: after a ``prefetch``, which ``fit`` adds for
        ``class_weight=``, the recorded waits would be those of the prefetching.
        """

        def asked(_: Any) -> Any:
            return tf.timestamp()

        def given(asked: Any, batch: Any) -> Any:
            tf.numpy_function(self._note, [tf.timestamp() - asked], [])
            return batch

        convert = tf.autograph.experimental.do_not_convert
        # zip reads its inputs in this order: first the timestamp, then the batch.
        pairs = tf.data.Dataset.zip((tf.data.Dataset.counter().map(convert(asked)), dataset))
        options = tf.data.Options()
        options.experimental_optimization.inject_prefetch = False
        options.experimental_optimization.map_parallelization = False
        return pairs.map(convert(given)).with_options(options)

    def _note(self, seconds: Any) -> None:
        self._waits.append(1000 * float(seconds))

    def summary(self) -> Summary:
        """Summarizes the waits.

        Raises:
            ValueError: if no step was measured.
        """
        if not any(epoch.waits for epoch in self.epochs):
            raise ValueError(
                "InputWait measured no step: pass wait.watch(dataset) to fit, and wait as one of "
                "callbacks=."
            )
        return summarize(self.epochs)

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Starts an epoch; excludes what Keras requested before, to build the model."""
        self._waits.clear()
        self._begun, self._tested = time.perf_counter(), 0.0

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Excludes the validation within ``fit``."""
        self._tested -= time.perf_counter()

    def on_test_end(self, logs: dict[str, Any] | None = None) -> None:
        """See ``on_test_begin``."""
        self._tested += time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Ends an epoch, and adds its share of waiting time to the logs."""
        seconds = time.perf_counter() - self._begun - self._tested
        self.epochs.append(Epoch([*self._waits], seconds, is_complete=True))
        if logs is not None and self._waits:
            logs["input_wait"] = summarize(self.epochs[-1:]).share
