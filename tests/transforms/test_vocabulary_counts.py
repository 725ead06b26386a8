"""Counting tokens by batches gives what tensorflow-transform's own count gives."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
from tensorflow_transform import analyzer_nodes
from tensorflow_transform.beam import common

from snapshard.transforms.analysis.analyze import CountTokens, _CountTokensFn

BATCHES = [[b"b", b"a", b"b"], [], [b"", b"b"], [b"c", b"a"]]


@pytest.mark.parametrize("max_tokens", [1, 2, 100])
def test_each_token_is_counted_once(max_tokens: int) -> None:
    counter = _CountTokensFn(max_tokens)
    counter.start_bundle()
    pairs: list[tuple[Any, int]] = []
    for batch in BATCHES:
        pairs += counter.process((np.array(batch, dtype=object),))
    pairs += [given.value for given in counter.finish_bundle()]
    found: Counter[bytes] = Counter()
    for token, count in pairs:
        found[token] += count
    assert found == Counter(token for batch in BATCHES for token in batch)


def test_it_takes_the_place_of_the_count_by_tokens() -> None:
    registered = common._PTRANSFORM_BY_OPERATION_DEF_SUBCLASS
    assert registered[analyzer_nodes.VocabularyAccumulate].get_ptransform(None)[0] is CountTokens
