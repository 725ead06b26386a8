"""The rule by which rows belong to shards. That plans cover all rows: tests/pipelines/test_plan."""

import dataclasses

import numpy as np
import pyarrow as pa
import pytest

from snapshard.schemas.blocks import ShardPlan, SplitPlan
from snapshard.schemas.errors import StorageError
from snapshard.transforms.runs.partitions import in_key_range, select_rows

SHARD = ShardPlan(
    split="train",
    index=0,
    num_shards=1,
    partition=1,
    start_key=10,
    stop_key=2**64,
    num_examples=0,
    num_bytes=0,
)
SPLIT = SplitPlan(name="train", shards=(SHARD,))
PARTITIONS = np.array([0, 1, 1, 1, 1], np.int16)
KEYS = np.array([50, 9, 10, 50, 2**64 - 1], np.uint64)


def test_partition_and_key_range_decide() -> None:
    found = select_rows(SPLIT, SHARD, partitions=PARTITIONS, keys=KEYS)
    assert found.tolist() == [False, False, True, True, True]
    ends_earlier = dataclasses.replace(SHARD, stop_key=2**64 - 1)
    found = select_rows(SPLIT, ends_earlier, partitions=PARTITIONS, keys=KEYS)
    assert found.tolist() == [False, False, True, True, False]


def test_a_stratum_has_its_own_range() -> None:
    split = dataclasses.replace(SPLIT, strata={"": (0, 2**64), "a": (11, 2**64), "none": (5, 5)})
    strata = pa.array(["", "", "a", "a", None])
    found = select_rows(split, SHARD, partitions=PARTITIONS, keys=KEYS, strata=strata)
    assert found.tolist() == [False, False, False, True, True]
    strata = pa.array([b"none", b"none", b"", b"none", b"a"]).dictionary_encode()
    found = select_rows(split, SHARD, partitions=PARTITIONS, keys=KEYS, strata=strata)
    assert found.tolist() == [False, False, True, False, True]


def test_strata_must_be_given_and_known() -> None:
    split = dataclasses.replace(SPLIT, strata={"a": (0, 5)})
    with pytest.raises(ValueError, match="strata are required"):
        select_rows(split, SHARD, partitions=PARTITIONS, keys=KEYS)
    with pytest.raises(StorageError, match="has no stratum 'b'"):
        select_rows(
            split,
            SHARD,
            partitions=PARTITIONS,
            keys=KEYS,
            strata=pa.array(["a", "b", "a", "a", "b"]),
        )


@pytest.mark.parametrize(
    ("start", "stop", "expected"),
    [
        (0, 2**64, [True, True, True]),
        (0, 0, [False, False, False]),
        (0, 1, [True, False, False]),
        (1, 2**64 - 1, [False, True, False]),
        (2**64 - 1, 2**64, [False, False, True]),
        (2**64, 2**64, [False, False, False]),
    ],
)
def test_key_ranges_end_before_their_stop(start: int, stop: int, expected: list[bool]) -> None:
    keys = np.array([0, 7, 2**64 - 1], np.uint64)
    assert in_key_range(keys, start, stop).tolist() == expected
