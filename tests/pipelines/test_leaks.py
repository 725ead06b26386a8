"""Contents in several splits are counted exactly, in memory or divided on disk."""

import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import CancelledError
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from snapshard.pipelines.plan import split_leakage as leaks
from snapshard.schemas.blocks import ShardPlan, SplitPlan
from snapshard.schemas.naming import Workspace
from snapshard.transforms.runs.files import STRATUM, keys_schema


@pytest.mark.parametrize("number", [0, 1, 50, 5_000])
def test_counts_of_contents_in_several_splits(tmp_path: Path, number: int) -> None:
    rng = np.random.default_rng(number)
    rows = np.zeros(number, leaks.ROW)
    # Spread over the high bits, which divide them.
    rows["content"] = rng.integers(0, 1 + number // 3, number).astype(np.uint64) << np.uint64(51)
    rows["split"] = rng.integers(0, 3, number)
    splits_of: dict[int, set[int]] = defaultdict(set)
    for content, split in rows.tolist():
        splits_of[content].add(split)
    expected = Counter(tuple(sorted(one)) for one in splits_of.values() if len(one) > 1)
    assert leaks.count_rows(rows) == expected
    halves = iter([rows[: number // 2], rows[number // 2 :]])
    divided = leaks._divide(halves, 7, str(tmp_path))
    counts = [leaks.count_rows(np.fromfile(path, leaks.ROW)) for path in divided]
    assert sum(counts, Counter()) == expected


@pytest.mark.parametrize("divided", [False, True])
@pytest.mark.parametrize("last", [1, 9, 10, 11, 20])
def test_a_search_is_stopped_between_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last: int, divided: bool
) -> None:
    """Of two key files of ten batches, so many are read."""
    stop, num_read = threading.Event(), 0
    row = dict.fromkeys(keys_schema().names, 0) | {STRATUM: None}
    batch = pa.RecordBatch.from_pylist([row], keys_schema())

    class Reader:
        def __init__(self, *_: Any) -> None:
            pass

        def scan(self) -> Iterator[pa.RecordBatch]:
            nonlocal num_read
            for _ in range(10):
                num_read += 1
                if num_read == last:
                    stop.set()
                yield batch

    monkeypatch.setattr(leaks, "RunReader", Reader)
    entry: Any = SimpleNamespace(run=SimpleNamespace(num_records=10, run_id="a" * 32), keys=())
    options: dict[str, Any] = {"workspace": Workspace(str(tmp_path)), "suffix": "plain"}
    if divided:
        options["max_records"] = 1
    with pytest.raises(CancelledError):
        leaks.find_leaks([entry, entry], _splits(), **options, stop=stop)
    assert num_read == last
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    assert leaks.find_leaks([entry, entry], _splits(), **options) == {}


def test_a_search_is_stopped_between_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stop, counted = threading.Event(), 0

    def count(_: Any) -> Counter[Any]:
        nonlocal counted
        counted += 1
        stop.set()
        return Counter()

    monkeypatch.setattr(leaks, "count_rows", count)
    monkeypatch.setattr(leaks, "read_rows", lambda *_, **__: iter(()))
    entry: Any = SimpleNamespace(run=SimpleNamespace(num_records=10))
    options: dict[str, Any] = {"workspace": Workspace(str(tmp_path)), "suffix": "plain"}
    with pytest.raises(CancelledError):
        leaks.find_leaks([entry], _splits(), **options, max_records=1, stop=stop)
    assert counted == 1


def _splits() -> list[SplitPlan]:
    return [
        SplitPlan(
            name=name,
            shards=(
                ShardPlan(
                    split=name,
                    index=0,
                    num_shards=1,
                    partition=0,
                    start_key=start,
                    stop_key=start + 2**62,
                    num_examples=0,
                    num_bytes=0,
                ),
            ),
        )
        for name, start in (("train", 0), ("test", 2**62))
    ]
