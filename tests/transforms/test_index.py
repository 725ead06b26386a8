"""The index files of a shard."""

import array
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapshard.schemas.naming import ShardName
from snapshard.transforms.examples.encode import encode_examples
from snapshard.transforms.examples.index import (
    class_codes,
    class_codes_from_bytes,
    index_bytes,
    index_from_bytes,
    index_sizes,
    labels_bytes,
    write_index_table,
)
from snapshard.transforms.examples.tfrecord import write_tfrecord

UINT64 = st.integers(0, 2**64 - 1)


@given(st.lists(st.tuples(UINT64, UINT64)))
def test_pairs_come_back(pairs: list[tuple[int, int]]) -> None:
    offsets = np.array([offset for offset, _ in pairs], np.uint64)
    lengths = np.array([length for _, length in pairs], np.uint64)
    content = index_bytes(offsets, lengths)
    assert content == b"".join(n.to_bytes(8, "little") for pair in pairs for n in pair)
    found = index_from_bytes(content)
    assert [part.tolist() for part in found] == [offsets.tolist(), lengths.tolist()]
    assert found[0].dtype == found[1].dtype == np.uint64


@pytest.mark.parametrize("size", [1, 8, 15, 17, 24])
def test_half_a_pair_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match=f"found {size} bytes"):
        index_from_bytes(bytes(size))


def test_the_standard_library_reads_one_record(tmp_path: Path) -> None:
    examples = encode_examples(pa.record_batch({"x": pa.array([[n] * n for n in range(5)])}))
    shard, pairs_file = tmp_path / "shard", tmp_path / "shard.idx"
    written = write_tfrecord(str(shard), [examples], compression="none")
    pairs_file.write_bytes(index_bytes(written.offsets, written.lengths))
    pairs = array.array("Q", pairs_file.read_bytes())
    offset, length = pairs[2 * 3], pairs[2 * 3 + 1]
    with shard.open("rb") as file:
        file.seek(offset)
        assert file.read(length)[12:-4] == examples[3].as_py()


CLASSES = st.lists(st.none() | st.integers(0, 2**31 - 1))


@given(st.lists(CLASSES))
def test_classes_come_back(batches: list[list[int | None]]) -> None:
    content = labels_bytes([class_codes(pa.array(batch, pa.int64())) for batch in batches])
    expected = [-1 if code is None else code for batch in batches for code in batch]
    assert content == b"".join(code.to_bytes(4, "little", signed=True) for code in expected)
    found = class_codes_from_bytes(content)
    assert (found.tolist(), found.dtype) == (expected, np.int32)


@pytest.mark.parametrize("size", [1, 3, 5, 6])
def test_a_part_of_a_class_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match=f"classes of 4 bytes, found {size} bytes"):
        class_codes_from_bytes(bytes(size))


def test_lengths_follow_from_the_number_of_records() -> None:
    name = ShardName(split="train", index=1, num_shards=2, compression="gzip")
    assert index_sizes(name, 3) == {
        "index/train-00001-of-00002.tfrecord.gz.idx": len(index_bytes(*np.ones((2, 3), np.uint64))),
        "index/train-00001-of-00002.tfrecord.gz.labels": len(labels_bytes([np.ones(3, np.int32)])),
    }


def ids(texts: list[str]) -> pa.Array:
    return pa.array(texts, pa.large_string())


def test_numbered_ids_are_cut_at_their_last_hash(tmp_path: Path) -> None:
    path = tmp_path / "table.parquet"
    texts = ["a.csv#0", "b/c#1.csv#17", "odd\nname#9223372036854775807", "#5"]
    write_index_table(str(path), [ids(texts[:1]), ids(texts[1:])], numbered=True)
    table = pq.read_table(path)
    assert table.column_names == ["id", "source", "position"]
    assert table.column("id").to_pylist() == texts
    assert table.column("source").to_pylist() == ["a.csv", "b/c#1.csv", "odd\nname", ""]
    assert table.column("position").to_pylist() == [0, 17, 2**63 - 1, 5]


def test_files_that_are_records_have_no_position(tmp_path: Path) -> None:
    path = tmp_path / "table.parquet"
    write_index_table(str(path), [ids(["a/1.jpg", "a/2#3.jpg"])], numbered=False)
    table = pq.read_table(path)
    assert table.column("source").to_pylist() == ["a/1.jpg", "a/2#3.jpg"]
    assert table.column("position").to_pylist() == [None, None]


def test_an_id_without_its_position_is_refused(tmp_path: Path) -> None:
    for text in ("a.csv", "a.csv#", "a.csv#x"):
        with pytest.raises(ValueError, match=f"id '{text}' has no position"):
            write_index_table(str(tmp_path / "t"), [ids(["a#1", text])], numbered=True)


def test_a_shard_without_records_has_a_table(tmp_path: Path) -> None:
    path = tmp_path / "table.parquet"
    write_index_table(str(path), [], numbered=True)
    table = pq.read_table(path)
    assert table.num_rows == 0
    assert table.column_names == ["id", "source", "position"]


def test_how_ids_are_cut_into_arrays_changes_no_byte(tmp_path: Path) -> None:
    texts = [f"file-{n % 7}.csv#{n * 31}" for n in range(1_050)]
    contents = set()
    for cut in (1, 7, 99, 100, 101, 350, 2000):
        path = tmp_path / f"{cut}.parquet"
        parts = [ids(texts[start : start + cut]) for start in range(0, len(texts), cut)]
        write_index_table(str(path), parts, numbered=True, group_rows=100)
        contents.add(path.read_bytes())
        assert pq.read_table(path).column("id").to_pylist() == texts
        groups = pq.ParquetFile(path).metadata
        assert [groups.row_group(n).num_rows for n in range(11)] == [100] * 10 + [50]
    assert len(contents) == 1
