"""TFRecord files: what is written reads back, and no damage stays unseen."""

import functools
import gzip
import struct
import zlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from snapshard.schemas.errors import DamagedSnapshotError, StorageError
from snapshard.schemas.shards import Compression
from snapshard.transforms.examples.tfrecord import frame_trouble, scan_tfrecord, write_tfrecord

RECORDS = [bytes([number]) * (number * 7 % 20) for number in range(6)]
COMPRESSIONS: list[Compression] = ["none", "gzip"]


def chunks(records: list[bytes], size: int = 4) -> list[pa.LargeBinaryArray]:
    return [
        pa.array(records[start : start + size], pa.large_binary())
        for start in range(0, len(records), size)
    ]


def scan(path: Path, compression: Compression) -> int:
    found = scan_tfrecord(str(path), compression)
    found.check(str(path))
    return found.num_records


def count_or_none(path: Path, compression: Compression) -> int | None:
    """The number of records; None where damage was found."""
    try:
        return scan(path, compression)
    except DamagedSnapshotError:
        return None


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("num_records", [0, 1, 6, 2500])
def test_what_is_written_reads_back(
    tmp_path: Path, compression: Compression, num_records: int
) -> None:
    path = tmp_path / "shard"
    records = [bytes([number % 251]) * (number * 7 % 50) for number in range(num_records)]
    written = write_tfrecord(str(path), chunks(records, 1500), compression=compression)
    read = tf.data.TFRecordDataset(str(path), "GZIP" if compression == "gzip" else "")
    assert list(read.as_numpy_iterator()) == records
    assert written.num_examples == num_records == scan(path, compression)
    assert written.num_bytes == path.stat().st_size
    assert written.offsets.dtype == written.lengths.dtype == np.uint64
    frames = list(zip(written.offsets.tolist(), written.lengths.tolist(), strict=True))
    found = scan_tfrecord(str(path), compression).frames
    assert list(zip(*(values.tolist() for values in found), strict=True)) == frames
    plain = gzip.decompress(path.read_bytes()) if compression == "gzip" else path.read_bytes()
    assert [plain[offset + 12 : offset + length - 4] for offset, length in frames] == records
    assert sum(written.lengths.tolist()) == len(plain)
    of_first = plain[: frames[0][1]][-4:] if frames else b""
    of_all = zlib.crc32(plain).to_bytes(4, "little")
    stored = of_all if compression == "gzip" else of_first
    assert written.checksum == (int.from_bytes(stored, "little") if frames else None)


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_equal_examples_give_equal_bytes(tmp_path: Path, compression: Compression) -> None:
    first, second = tmp_path / "first", tmp_path / "folder" / "second"
    second.parent.mkdir()
    write_tfrecord(str(first), chunks(RECORDS, 1), compression=compression)
    write_tfrecord(str(second), chunks(RECORDS, 5), compression=compression)
    assert first.read_bytes() == second.read_bytes()


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_truncation_at_any_byte_is_detected(tmp_path: Path, compression: Compression) -> None:
    path = tmp_path / "shard"
    written = write_tfrecord(str(path), chunks(RECORDS), compression=compression)
    content = path.read_bytes()
    ends = [0, *(written.offsets + written.lengths).tolist()] if compression == "none" else []
    for size in range(len(content)):
        path.write_bytes(content[:size])
        found = count_or_none(path, compression)
        # Between two records an uncompressed file is whole: only the number tells.
        assert found == (ends.index(size) if size in ends else None), size
    path.write_bytes(content)
    assert scan(path, compression) == len(RECORDS)


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_a_flipped_bit_in_any_byte_is_detected(tmp_path: Path, compression: Compression) -> None:
    path = tmp_path / "shard"
    write_tfrecord(str(path), chunks(RECORDS), compression=compression)
    content = path.read_bytes()
    # A GZIP header's time, flags of the compressor and system say nothing about the content.
    harmless = range(4, 10) if compression == "gzip" else range(0)
    for place in range(len(content)):
        damaged = bytearray(content)
        damaged[place] ^= 1 << place % 8
        path.write_bytes(damaged)
        found = count_or_none(path, compression)
        assert found == (len(RECORDS) if place in harmless else None), place


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("extra", [b"\0", b"garbage", b"\0" * 12, b"x" * 100])
def test_bytes_after_the_last_record_are_detected(
    tmp_path: Path,
    compression: Compression,
    extra: bytes,
) -> None:
    path = tmp_path / "shard"
    write_tfrecord(str(path), chunks(RECORDS), compression=compression)
    path.write_bytes(path.read_bytes() + extra)
    assert count_or_none(path, compression) is None


@settings(max_examples=50)
@given(st.data())
def test_a_changed_record_never_counts_as_intact(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    compression = data.draw(st.sampled_from(COMPRESSIONS))
    path = tmp_path_factory.mktemp("fuzz") / "shard"
    written = write_tfrecord(str(path), chunks(RECORDS), compression=compression)
    frames = list(zip(written.offsets.tolist(), written.lengths.tolist(), strict=True))
    content = bytearray(path.read_bytes())
    # Less than a frame, which could go or come unseen.
    start = data.draw(st.integers(0, len(content)))
    stop = data.draw(st.integers(start, min(len(content), start + 15)))
    content[start:stop] = data.draw(st.binary(max_size=15))
    path.write_bytes(content)
    scanned = scan_tfrecord(str(path), compression)
    found = list(zip(*(values.tolist() for values in scanned.frames), strict=True))
    intact = scanned.broken[0].number if scanned.broken else len(found)
    assert found[:intact] == frames[:intact]


def test_damage_is_reported_with_its_record_and_byte(tmp_path: Path) -> None:
    path = tmp_path / "train-00000-of-00001.tfrecord"
    written = write_tfrecord(str(path), chunks(RECORDS), compression="none")
    content = bytearray(path.read_bytes())
    offset = int(written.offsets[3])
    content[offset + 12] ^= 1
    path.write_bytes(content)
    with pytest.raises(
        DamagedSnapshotError,
        match=rf"train-00000-of-00001.tfrecord is damaged at record 3, byte {offset}: the "
        r"checksum of the record is 0x[0-9a-f]{8}, expected 0x[0-9a-f]{8}",
    ):
        scan(path, "none")
    content[offset] ^= 1
    path.write_bytes(content)
    with pytest.raises(DamagedSnapshotError, match=rf"record 3, byte {offset}: .* its length"):
        scan(path, "none")


# Where to damage a frame: its length, the checksum of that, the record, the checksum of that.
PLACES = st.sampled_from([0, 8, 12, -4])


@settings(max_examples=30)
@given(
    st.dictionaries(st.integers(0, 5), PLACES),
    st.sampled_from(COMPRESSIONS),
    st.sampled_from([1 << 20, 40, 7]),
)
def test_an_index_finds_the_records_between_damaged_ones(
    tmp_path_factory: pytest.TempPathFactory,
    damage: dict[int, int],
    compression: Compression,
    read_bytes: int,
) -> None:
    path = tmp_path_factory.getbasetemp() / "indexed"
    records = [b"a", b"bc", bytes(20), b"def", bytes(100), b"last"]
    written = write_tfrecord(str(path), chunks(records), compression="none")
    content = bytearray(path.read_bytes())
    ends = (written.offsets + written.lengths).tolist()
    for number, place in damage.items():
        content[int(written.offsets[number]) + place if place >= 0 else ends[number] + place] ^= 4
    path.write_bytes(gzip.compress(content) if compression == "gzip" else content)
    scanned = functools.partial(scan_tfrecord, str(path), compression, read_bytes=read_bytes)
    found, without = scanned(known=(written.offsets, written.lengths)), scanned()
    assert [(one.number, one.offset) for one in found.broken] == [
        (number, int(written.offsets[number])) for number in sorted(damage)
    ]
    assert (found.num_broken, found.num_intact) == (len(damage), len(records) - len(damage))
    assert [part.tolist() for part in found.frames] == [
        written.offsets.tolist(),
        written.lengths.tolist(),
    ]
    assert (found.complete, found.ending, found.num_bytes) == (True, None, len(content))
    # Without an index, a damaged length is where the scan ends.
    last = min(
        (number for number, place in damage.items() if place in (0, 8)), default=len(records)
    )
    assert [one.number for one in without.broken] == sorted(n for n in damage if n <= last)
    assert without.complete == (last == len(records))


def test_broken_records_are_counted_beyond_those_listed(tmp_path: Path) -> None:
    path = tmp_path / "shard"
    write_tfrecord(str(path), chunks([b"abcd"] * 5), compression="none")
    path.write_bytes(path.read_bytes().replace(b"abcd", b"abce"))
    found = scan_tfrecord(str(path), "none", max_broken=2)
    assert [one.number for one in found.broken] == [0, 1]
    assert (found.num_broken, found.num_intact, found.num_records) == (5, 0, 5)


def test_little_is_read_beyond_the_end_that_the_index_gives(tmp_path: Path) -> None:
    path = tmp_path / "shard"
    written = write_tfrecord(str(path), chunks(RECORDS), compression="none")
    content = path.read_bytes()
    for times, ending in ((2, None), (9, "far more follows than was written")):
        path.write_bytes(content * times)
        found = scan_tfrecord(
            str(path),
            "none",
            known=(written.offsets, written.lengths),
            read_bytes=64,
            max_beyond_bytes=200,
        )
        assert (found.ending, found.complete) == (ending, ending is None)
        assert found.num_bytes <= len(content) + 300
    with pytest.raises(DamagedSnapshotError, match="far more follows than was written"):
        found.check(str(path))


@pytest.mark.parametrize(
    ("size", "message"),
    [
        (16, "record 1, byte 16: the GZIP stream is truncated"),
        (20, r"record 1, byte 16: .* 4 bytes into the head of a frame \(the GZIP stream is trunc"),
        (30, r"record 1, byte 16: .* 9 bytes before the record does \(the GZIP stream is trunc"),
    ],
)
def test_a_truncated_gzip_stream_is_named(tmp_path: Path, size: int, message: str) -> None:
    path = tmp_path / "shard"
    write_tfrecord(str(path), chunks(RECORDS), compression="none")
    stream = zlib.compressobj(wbits=31)
    content = stream.compress(path.read_bytes()[:size]) + stream.flush(zlib.Z_SYNC_FLUSH)
    path.write_bytes(content)
    with pytest.raises(DamagedSnapshotError, match=message):
        scan(path, "gzip")


@pytest.mark.parametrize("size", [0, 1, 11, 12, 30])
def test_the_trouble_of_a_frame_is_told(tmp_path: Path, size: int) -> None:
    path = tmp_path / "shard"
    write_tfrecord(str(path), chunks([bytes(range(size))]), compression="none")
    frame = path.read_bytes()
    assert frame_trouble(frame, len(frame)) is None
    for place in range(len(frame)):
        missing = f"the file ends {len(frame) - place} bytes before the record does"
        assert frame_trouble(frame[:place], len(frame)) == missing
        damaged = bytearray(frame)
        damaged[place] ^= 1 << place % 8
        what = "its length" if place < 12 else "the record"
        assert f"the checksum of {what} is" in (frame_trouble(bytes(damaged), len(frame)) or "")
    stated = f"it has {size} bytes, expected {size + 1}"
    assert frame_trouble(frame + b"\0", len(frame) + 1) == stated


def test_records_longer_than_a_read_are_scanned(tmp_path: Path) -> None:
    path = tmp_path / "shard"
    records = [bytes(range(256)) * 3, b"", b"x", bytes(1000), b"y" * 77]
    for compression in COMPRESSIONS:
        written = write_tfrecord(str(path), chunks(records), compression=compression)
        for read_bytes in (1, 7, 64, 1000):
            _, lengths = scan_tfrecord(str(path), compression, read_bytes=read_bytes).frames
            assert lengths.tolist() == [len(record) + 16 for record in records]
            assert scan(path, compression) == written.num_examples


def test_the_checksum_is_that_of_the_format(tmp_path: Path) -> None:
    # The test vector of RFC 3720, B.4: 32 bytes of zeros; masked as TensorFlow does.
    crc = 0x8A9136AA
    masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
    path = tmp_path / "shard"
    write_tfrecord(str(path), chunks([bytes(32)]), compression="none")
    assert path.read_bytes()[-4:] == struct.pack("<I", masked)
    assert scan(path, "none") == 1


def test_what_cannot_be_written_or_read_says_so(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="Cannot write"):
        write_tfrecord(str(tmp_path / "missing" / "shard"), chunks(RECORDS), compression="none")
    with pytest.raises(StorageError, match="no space left"):
        write_tfrecord("/dev/full", chunks([bytes(10_000)]), compression="none")
    with pytest.raises(StorageError):
        scan(tmp_path / "missing", "none")
