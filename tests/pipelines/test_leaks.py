"""Contents in several splits are counted exactly, in memory or divided on disk."""

from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pytest

from snapshard.pipelines import leaks


@pytest.mark.parametrize("number", [0, 1, 50, 5_000])
def test_counts_of_contents_in_several_splits(tmp_path: Path, number: int) -> None:
    rng = np.random.default_rng(number)
    rows = np.zeros(number, leaks._ROW)
    # Spread over the high bits, which divide them.
    rows["content"] = rng.integers(0, 1 + number // 3, number).astype(np.uint64) << np.uint64(51)
    rows["split"] = rng.integers(0, 3, number)
    splits_of: dict[int, set[int]] = defaultdict(set)
    for content, split in rows.tolist():
        splits_of[content].add(split)
    expected = Counter(tuple(sorted(one)) for one in splits_of.values() if len(one) > 1)
    assert leaks._count(rows) == expected
    halves = iter([rows[: number // 2], rows[number // 2 :]])
    divided = leaks._divide(halves, 7, str(tmp_path))
    counts = [leaks._count(np.fromfile(path, leaks._ROW)) for path in divided]
    assert sum(counts, Counter()) == expected
