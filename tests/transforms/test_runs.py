"""Runs: what is written comes back by key range, merged in order, whatever the batches."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snapshard.schemas.errors import DamagedWorkError
from snapshard.schemas.features import ClassLabel, Features, Scalar, Tensor
from snapshard.transforms import storage
from snapshard.transforms.runs import files as runs
from snapshard.transforms.runs.files import KeyRange, RunReader, RunWriter

FEATURES: Features = {"x": Scalar("int64"), "y": Tensor("float32", (2,))}
SCHEMA = runs.run_schema(FEATURES)
KEYS = st.one_of(st.sampled_from([0, 1, 7, 2**63, 2**64 - 1]), st.integers(0, 2**64 - 1))
Row = tuple[int, int, bytes]
ROWS = st.lists(st.tuples(st.integers(0, 2), KEYS, st.binary(max_size=3)), max_size=40)


def records(rows: list[Row]) -> pa.RecordBatch:
    n = len(rows)
    pairs = np.arange(2 * n, dtype=np.float32)
    return pa.RecordBatch.from_arrays(
        [
            pa.array([row[0] for row in rows], pa.int16()),
            pa.array([row[1] for row in rows], pa.uint64()),
            pa.array([row[2] for row in rows], pa.large_binary()),
            pa.array([1] * n, pa.int64()),
            pa.array(range(n), pa.int64()),
            pa.FixedSizeListArray.from_arrays(pa.array(pairs), 2),
        ],
        schema=SCHEMA,
    )


def rows_of(batches: list[pa.RecordBatch]) -> list[Row]:
    columns = (runs.PARTITION, runs.KEY, runs.ID)
    return [
        row
        for batch in batches
        for row in zip(*(batch.column(name).to_pylist() for name in columns), strict=True)
    ]


@pytest.fixture(scope="module")
def write_run(tmp_path_factory: pytest.TempPathFactory) -> Callable[[list[Row], int], RunReader]:
    folder = tmp_path_factory.mktemp("runs")
    count = iter(range(10**9))

    def write(rows: list[Row], batch_rows: int) -> RunReader:
        path = str(folder / f"{next(count)}.arrow")
        ordered = runs.sort_records(records(rows))
        with RunWriter(path, SCHEMA) as writer:
            for start in range(0, ordered.num_rows, batch_rows):
                writer.write(ordered.slice(start, batch_rows))
        assert writer.num_bytes == Path(path).stat().st_size
        assert sum(batch.num_records for batch in writer.batches) == len(rows)
        return RunReader(path, writer.batches, SCHEMA)

    return write


@given(rows=ROWS)
def test_sorting_is_by_partition_key_id(rows: list[Row]) -> None:
    assert rows_of([runs.sort_records(records(rows))]) == sorted(rows)


@settings(deadline=None)
@given(
    blocks=st.lists(ROWS, min_size=1, max_size=4),
    batch_rows=st.integers(1, 9),
    partition=st.integers(0, 2),
    ends=st.tuples(KEYS, KEYS | st.just(2**64)),
    max_bytes=st.sampled_from([1, 200, 10**9]),
)
def test_merging_a_key_range_gives_all_its_records_in_order(
    write_run: Callable[[list[Row], int], RunReader],
    blocks: list[list[Row]],
    batch_rows: int,
    partition: int,
    ends: tuple[int, int],
    max_bytes: int,
) -> None:
    readers = [write_run(rows, batch_rows) for rows in blocks]
    start, stop = min(ends), max(ends)
    keys = KeyRange(partition, start, stop)
    merged = rows_of(list(runs.merge_range(readers, keys, max_bytes=max_bytes)))
    expected = sorted(
        row for rows in blocks for row in rows if row[0] == partition and start <= row[1] < stop
    )
    assert merged == expected


@settings(deadline=None)
@given(
    rows=ROWS,
    batch_rows=st.integers(1, 9),
    cuts=st.sets(st.tuples(st.integers(0, 2), KEYS), max_size=12),
)
def test_several_ranges_are_read_at_once(
    write_run: Callable[[list[Row], int], RunReader],
    rows: list[Row],
    batch_rows: int,
    cuts: set[tuple[int, int]],
) -> None:
    ranges = [
        KeyRange(partition, start, stop)
        for partition in range(3)
        for ends in [[*sorted(key for of, key in cuts if of == partition), 2**64]]
        for start, stop in zip(ends[::2], ends[1::2], strict=False)
    ]
    reader = write_run(rows, batch_rows)
    read = rows_of(list(reader.read_all(runs.KeyRanges(ranges))))
    assert read == sorted(
        row
        for row in rows
        if any(row[0] == keys.partition and keys.start <= row[1] < keys.stop for keys in ranges)
    )


def test_a_range_is_merged_in_parts_of_about_as_many_bytes_as_are_given(
    write_run: Callable[[list[Row], int], RunReader], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the batches of all runs begin at about the same keys."""
    monkeypatch.setattr(runs, "_SLICE_BYTES", 0)
    step = 2**64 // 90
    readers = [
        write_run([(0, key * step + run, b"id") for key in range(90)], 3) for run in range(3)
    ]
    keys = KeyRange(0, 0, 2**64)
    size = sum(batch.num_bytes for reader in readers for batch in reader.batches)
    for num_parts in (10, 45):
        parts = runs.split_range(readers, keys, max_bytes=size // num_parts)
        assert num_parts <= len(parts) <= num_parts + 1
        assert [part.start for part in parts] == [0, *(part.stop for part in parts[:-1])]
        assert parts[-1].stop == keys.stop
        merged = list(runs.merge_range(readers, keys, max_bytes=size // num_parts))
        assert len(merged) == len(parts)
        assert max(batch.num_rows for batch in merged) <= 270 / num_parts + 3
    assert runs.split_range(readers, keys, max_bytes=size) == [keys]


def test_data_in_many_runs_is_not_read_again_and_again(
    write_run: Callable[[list[Row], int], RunReader], monkeypatch: pytest.MonkeyPatch
) -> None:
    readers = [
        write_run([(0, (key * 600 + run) * 2**50, b"id") for key in range(24)], 8)
        for run in range(60)
    ]
    size = sum(batch.num_bytes for reader in readers for batch in reader.batches)
    fetched = 0
    fetch = RunReader._fetch

    def counting(self: RunReader, batches: Any) -> Any:
        nonlocal fetched
        fetched += sum(batch.num_bytes for batch in batches)
        return fetch(self, batches)

    monkeypatch.setattr(RunReader, "_fetch", counting)
    monkeypatch.setattr(runs, "_SLICE_BYTES", size // 60 // 6)  # half a batch
    merged = list(runs.merge_range(readers, KeyRange(0, 0, 2**64), max_bytes=size // 100))
    assert sum(batch.num_rows for batch in merged) == 60 * 24
    assert len(merged) <= 7
    assert fetched < 4 * size


def test_records_that_are_read_keep_nothing_else_in_memory(
    write_run: Callable[[list[Row], int], RunReader],
) -> None:
    reader = write_run([(0, key, bytes(10_000)) for key in range(50)], 50)
    (few,) = reader.read(KeyRange(0, 10, 12))
    held = sum(buffer.size for column in few.columns for buffer in column.buffers() if buffer)
    assert few.num_rows == 2
    assert held < 2 * 11_000


def test_scanning_gives_the_whole_run(
    write_run: Callable[[list[Row], int], RunReader],
) -> None:
    rows = [(0, key, b"") for key in range(10)]
    assert rows_of(list(write_run(rows, 3).scan())) == rows


@settings(max_examples=60)
@given(place=st.integers(0, 10**6), bit=st.integers(0, 7), cut=st.booleans())
def test_no_altered_batch_is_given(
    write_run: Callable[[list[Row], int], RunReader], place: int, bit: int, cut: bool
) -> None:
    """A flipped bit or a lost end in what is read, by scanning or by range; and a lost file."""
    rows = [(0, key, b"x" * (key % 3)) for key in range(30)]
    reader = write_run(rows, 7)
    path = Path(reader.url)
    content = bytearray(path.read_bytes())
    first, last = reader.batches[0], reader.batches[-1]
    start, stop = first.offset, last.offset + last.num_bytes
    place = start + place % (stop - start)
    content[place] ^= 1 << bit
    path.write_bytes(content[:place] if cut else content)
    whole = KeyRange(0, 0, 1 << 64)
    for read in (lambda: list(reader.scan()), lambda: reader.read(whole)):
        with pytest.raises(DamagedWorkError, match=re.escape(path.name)):
            read()
    path.unlink()
    with pytest.raises(DamagedWorkError, match="does not exist"):
        reader.read(whole)


def test_a_run_that_is_not_sorted_is_refused(tmp_path: Path) -> None:
    with RunWriter(str(tmp_path / "run.arrow"), SCHEMA) as writer:
        writer.write(records([(0, 5, b"")]))
        with pytest.raises(ValueError, match="out of order"):
            writer.write(records([(0, 4, b"")]))


def test_a_slice_is_one_request_and_a_scan_has_few(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    features = {"image": Tensor("string", (1,)), "label": ClassLabel(("a", "b"))}
    schema = runs.run_schema(features)
    rows = 1_000
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array(np.zeros(rows, np.int16)),
            pa.array(np.arange(rows, dtype=np.uint64)),
            pa.array([b"id"] * rows, pa.large_binary()),
            pa.array(np.zeros(rows, np.int64)),
            pa.array([bytes(10_000)] * rows, pa.large_binary()),
            pa.array(np.zeros(rows, np.int64)),
        ],
        schema=schema,
    )
    path = str(tmp_path / "run.arrow")
    with RunWriter(path, schema) as writer:
        writer.write(batch)
    assert all(info.num_bytes < 1.1 * runs.BATCH_BYTES for info in writer.batches)
    assert len(writer.batches) == 39
    requests = []

    def read_bytes(url: str, start: int, stop: int) -> bytes:
        requests.append((start, stop))
        return Path(url).read_bytes()[start:stop]

    monkeypatch.setattr(storage, "read_bytes", read_bytes)
    reader = RunReader(path, writer.batches, schema)
    found = reader.read(KeyRange(0, 350, 420))
    assert sum(part.num_rows for part in found) == 70
    assert len(requests) == 1
    assert requests[0][1] - requests[0][0] < 700_000 + 2.2 * runs.BATCH_BYTES
    requests.clear()
    assert sum(batch.num_rows for batch in reader.scan()) == rows
    assert len(requests) == 10


def test_batches_of_many_columns_are_larger(tmp_path: Path) -> None:
    """A batch describes each column, in about as many bytes as eight numbers have."""
    schema = runs.run_schema({f"x{number}": Scalar("float32") for number in range(2_000)})
    zeros = {pa.large_binary(): b""}
    columns = [pa.array([zeros.get(kind, 0)] * 512, kind) for kind in schema.types]
    with RunWriter(str(tmp_path / "run.arrow"), schema) as writer:
        writer.write(pa.RecordBatch.from_arrays(columns, schema=schema))
    assert writer.num_bytes < 1.3 * 512 * 2_000 * 4


def test_slices_of_runs_on_a_store_are_larger(
    write_run: Callable[[list[Row], int], RunReader], monkeypatch: pytest.MonkeyPatch
) -> None:
    local = write_run([(0, key * 2**54, b"id") for key in range(1_000)], 10)
    with fsspec.open("memory://test_runs/run.arrow", "wb") as file:
        file.write(Path(local.url).read_bytes())
    on_store = RunReader("memory://test_runs/run.arrow", local.batches, SCHEMA)
    monkeypatch.setattr(runs, "_SLICE_BYTES", 4_000)
    monkeypatch.setattr(runs, "_SLICE_BYTES_OF_STORE", 1 << 20)
    of_local, of_store = (
        list(runs.merge_range([reader], KeyRange(0, 0, 2**64), max_bytes=1))
        for reader in (local, on_store)
    )
    assert len(of_local) > 5
    assert len(of_store) == 1
    assert rows_of(of_local) == rows_of(of_store)


@pytest.mark.parametrize("distance", [0, 1, 100])
def test_keys_that_lie_close_together_are_merged_in_parts(
    write_run: Callable[[list[Row], int], RunReader], monkeypatch: pytest.MonkeyPatch, distance: int
) -> None:
    """As those of a series: a batch may have a single key, or fewer than float64 distinguishes."""
    monkeypatch.setattr(runs, "_SLICE_BYTES", 0)
    first = 2**63 + 12_345
    rows: list[Row] = [(0, first + n // 24, b"%04d" % n) for n in range(960)]
    if distance:
        keys = [group * 2**50 + n // 12 * distance for group in range(4) for n in range(240)]
        rows = [(0, first + key, b"%04d" % n) for n, key in enumerate(keys)]
    reader = write_run(rows, 6)
    size = sum(batch.num_bytes for batch in reader.batches)
    merged = list(runs.merge_range([reader], KeyRange(0, 0, 2**64), max_bytes=size // 20))
    assert sum(batch.num_rows for batch in merged) == len(rows)
    assert max(batch.num_rows for batch in merged) <= 3 * len(rows) / 20
