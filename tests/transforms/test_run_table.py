"""Runs as columns, and summaries in parts: what is read is what was written."""

from pathlib import Path

import numpy as np
import pytest

from snapshard.schemas.blocks import BatchInfo, ImageFacts, RunInfo
from snapshard.schemas.errors import DamagedWorkError
from snapshard.schemas.naming import Workspace
from snapshard.transforms.runs import summary as summaries
from snapshard.transforms.runs.key_histogram import KeyHistogram
from snapshard.transforms.runs.summary import (
    RunEntry,
    Summary,
    find_summary,
    name_summary,
    num_parts,
    read_summary,
    remove_summary,
    write_summary,
)

DIGEST = "a" * 32


def batches(number: int, key: int) -> tuple[BatchInfo, ...]:
    return tuple(
        BatchInfo(offset=8 * i, num_bytes=8, num_records=1, partition=0, key=key + i, checksum=i)
        for i in range(number)
    )


def entry(number: int) -> RunEntry:
    first = (number * 7919) % 1000 << 50
    return RunEntry(
        RunInfo(
            run_id=f"{number * 2654435761 % 2**32:08x}{number:024x}",
            num_records=number % 4,
            num_bytes=number,
            num_rejects=number % 3,
            rejects_sha256="f" * 64 if number % 3 else "",
            batches=batches(number % 4, first),
            image_facts={"image": ImageFacts(number % 2, 8, False, ("jpeg",))},
            rejects_by_stage={"read": number % 3} if number % 3 else {},
        ),
        batches(number % 2, first),
    )


def summary_of(number: int, bits: int = 14) -> Summary:
    rng = np.random.default_rng(number)
    keys = rng.integers(0, 2**64, 1000, np.uint64)
    histogram = KeyHistogram.from_arrays(
        (keys >> np.uint64(63)).astype(np.int16), keys, num_bytes=keys % np.uint64(100), bits=bits
    )
    entries = sorted(map(entry, range(number)), key=lambda one: one.run.run_id)
    return Summary(histogram, tuple(entries))


def plain(entries: object) -> list[RunEntry]:
    return sorted(
        (
            RunEntry(
                RunInfo(**{**one.run.__dict__, "batches": tuple(one.run.batches)}), tuple(one.keys)
            )
            for one in entries  # type: ignore[attr-defined]
        ),
        key=lambda one: one.run.run_id,
    )


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    monkeypatch.setattr(summaries, "PART_RUNS", 10)
    return Workspace(str(tmp_path))


@pytest.mark.parametrize(("number", "bits"), [(0, 12), (10, 12), (75, 12), (75, 14)])
def test_a_summary_is_read_as_it_was_written(workspace: Workspace, number: int, bits: int) -> None:
    whole, name = summary_of(number, bits), name_summary(DIGEST, number)
    assert num_parts(name) == {0: 1, 10: 1, 75: 8}[number]
    assert find_summary(workspace, name) is None
    parts = dict(whole.parts(num_parts(name)))
    for part in range(num_parts(name)):
        write_summary(parts.get(part, Summary(KeyHistogram.empty(), ())), workspace, name, part)
    found = read_summary(workspace, name)
    assert found.histogram.to_bytes() == whole.histogram.to_bytes()
    assert plain(found.entries) == plain(whole.entries)
    assert found.image_facts() == whole.image_facts()
    table = found.table
    assert len(table) == number
    assert table.total("num_rejects") == sum(n % 3 for n in range(number))
    assert sorted(table.run_ids()) == [one.run.run_id for one in whole.entries]
    every = list(table)
    assert plain(table[index] for index in range(-number, 0)) == plain(every)
    assert plain(table[3:9]) == plain(every[3:9])
    with_records = [one for one in whole.entries if one.run.num_records]
    lowest = sorted(with_records, key=lambda one: one.run.batches[0].key)[:5]
    assert plain(table.of_lowest_keys(5)) == plain(lowest)
    remove_summary(workspace, name)
    assert not list(Path(workspace.root, "summaries").iterdir())


@pytest.mark.parametrize("kind", ["arrow", "runs", "batches"])
@pytest.mark.parametrize("gone", [False, True])
def test_a_summary_that_lacks_a_part_is_none(workspace: Workspace, kind: str, gone: bool) -> None:
    whole, name = summary_of(30), name_summary(DIGEST, 30)
    for part, piece in whole.parts(num_parts(name)):
        write_summary(piece, workspace, name, part)
    url = Path(workspace.summary(name, kind, 2))
    content = url.read_bytes()
    url.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    if gone:
        url.unlink()
    found = find_summary(workspace, name)
    if kind == "batches" and not gone:
        assert found is not None
        with pytest.raises(DamagedWorkError, match="Start the build again"):
            [list(one.run.batches) for one in found.entries]
        found = find_summary(workspace, name)
    assert found is None


def test_a_million_runs_have_256_parts_of_4000() -> None:
    assert [num_parts(name_summary(DIGEST, n)) for n in (1, 4096, 4097, 8193, 10**6)] == [
        1,
        1,
        2,
        4,
        256,
    ]


def test_a_summary_of_one_part_is_named_by_its_digest() -> None:
    assert [name_summary(DIGEST, number) for number in (0, 1, 4096)] == [DIGEST] * 3
    assert name_summary(DIGEST, 4097) == DIGEST + "01"
