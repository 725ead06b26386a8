"""Counts a vocabulary's tokens before they enter the engine, in place of tensorflow-transform.

It sends every token through the engine by itself, which takes most of the time of an analysis of
words. Counts are whole numbers, so their sums are the same however they are grouped.

A module about Beam: importing it replaces the count in this process.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any, Union

import apache_beam as beam
import numpy as np
from apache_beam.transforms.window import GlobalWindow
from apache_beam.typehints import KV, Tuple
from apache_beam.utils.windowed_value import WindowedValue
from tensorflow_transform import analyzer_nodes
from tensorflow_transform.beam import analyzer_impls, common

MAX_TOKENS = 1 << 18
"""About so many distinct tokens are held at once."""

_Token = Union[bytes, int]  # noqa: UP007 - Beam's coders know this form


@common.register_ptransform(analyzer_nodes.VocabularyAccumulate)
@beam.typehints.with_input_types(Tuple[np.ndarray, ...])
@beam.typehints.with_output_types(KV[_Token, Any])
class CountTokens(analyzer_impls._VocabularyAccumulateImpl):
    """Counts tokens by batches, where they are ordered by frequency; else as its base does.

    Input: tuples of one array of tokens. Output: (token, count), a token several times.
    """

    def expand(self, inputs: Any) -> Any:
        """Wires the steps."""
        if self._vocab_ordering_type != analyzer_impls._VocabOrderingType.FREQUENCY:
            return super().expand(inputs)
        (batches,) = inputs
        count = beam.ParDo(_CountTokensFn()).with_output_types(KV[_Token, int])
        return batches | "CountTokens" >> count  # (token, count)


class _CountTokensFn(beam.DoFn):
    """Counts tokens in batches of arrays; a count is given when a bundle ends."""

    def start_bundle(self) -> None:
        self._counts: Counter[Any] = Counter()

    def process(self, batch: Any) -> Iterator[tuple[Any, int]]:
        (tokens,) = batch
        self._counts.update(tokens.tolist())
        if len(self._counts) > MAX_TOKENS:
            yield from self._counts.items()
            self._counts.clear()

    def finish_bundle(self) -> Iterator[WindowedValue]:
        window = GlobalWindow()
        for pair in self._counts.items():
            yield WindowedValue(pair, window.max_timestamp(), [window])
