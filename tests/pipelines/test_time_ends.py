"""Splits by time in fractions: their ends are those of the sorted times, found without sorting."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from snapshard.pipelines.prepare.run_files import RunFiles
from snapshard.pipelines.prepare.split_ends import end_before, find_time_ends
from snapshard.schemas.errors import DataError
from snapshard.schemas.features import Features, Scalar
from snapshard.schemas.naming import Workspace
from snapshard.schemas.splits import Splits
from snapshard.transforms.rejects import Dropped
from snapshard.transforms.runs import files as runs
from snapshard.transforms.runs.summary import Summary

TIMES = st.one_of(
    st.integers(-5, 5),
    st.integers(1_600_000_000_000, 1_700_000_000_000),
    st.sampled_from([-(2**63), 2**63 - 2]),
)


@given(st.lists(TIMES, min_size=1, max_size=40), st.integers(0, 40))
@example([1, 1, 1, 2], 2)
@example([1, 2, 2, 3], 2)
@example([0, 10**9, 10**9 + 1, 2 * 10**9], 2)
def test_about_so_many_times_are_before_an_end(times: list[int], rank: int) -> None:
    found = end_before(np.array(times, np.int64), rank)
    if rank >= len(times):
        assert found == max(times) + 1
        return
    # The time of that rank stays with those before it or with those after it.
    value = sorted(times)[rank]
    missed = {end: abs(sum(time < end for time in times) - rank) for end in (value, value + 1)}
    assert found == min(missed, key=lambda end: (missed[end], end))


FEATURES: Features = {"t": Scalar("int64", optional=True)}


def summary_of(workspace: Workspace, *parts: list[int | None]) -> Summary:
    """Runs of records of these times."""
    files = RunFiles(workspace, FEATURES, label=None, stratify_by=None, suffix="plain")
    made = []
    for number, times in enumerate(parts):
        rows = [
            {runs.PARTITION: 0, runs.KEY: key, runs.ID: b"", runs.NUM_BYTES: 1, "t": time}
            for key, time in enumerate(times)
        ]
        batch = pa.RecordBatch.from_pylist(rows, schema=files.schema)
        made.append(files.write(f"{number:032x}", [batch], dropped=Dropped(), in_order=True))
    return Summary.merge(made)


def test_ends_are_those_of_the_times_in_all_runs(tmp_path: Path) -> None:
    workspace = Workspace(str(tmp_path))
    summary = summary_of(workspace, [9, None, 1, 5, 3], [2, 8, None], [4, 6, 7, 0])
    splits = Splits.by_time("t", train=0.5, validation=0.2, test=0.3)
    found = find_time_ends(summary.entries, splits=splits, features=FEATURES, workspace=workspace)
    assert found == (5, 7)


def test_records_without_any_time_are_refused(tmp_path: Path) -> None:
    workspace = Workspace(str(tmp_path))
    summary = summary_of(workspace, [None, None])
    splits = Splits.by_time("t", train=0.5, test=0.5)
    with pytest.raises(DataError, match="no record has a value of 't'"):
        find_time_ends(summary.entries, splits=splits, features=FEATURES, workspace=workspace)
