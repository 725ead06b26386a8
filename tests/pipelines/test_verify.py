"""Every kind of damage is found, and named: the file, and in a shard the record."""

import contextlib
import dataclasses
import functools
import http.server
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pytest

import snapshard as ss
from snapshard import cli
from snapshard.pipelines.inspect.verify import check_snapshot, raise_findings, verify
from snapshard.pipelines.inspect.verify_report import Finding, Report
from snapshard.schemas.errors import DamagedSnapshotError, StorageError
from snapshard.schemas.manifest import with_checksum
from snapshard.schemas.progress import Silent
from snapshard.transforms import storage
from snapshard.transforms.examples.encode import encode_examples

from .whole_snapshots import FINGERPRINT, edit_manifest, frame, list_file, whole_snapshot

TRAIN = tuple(f"train-{i:05d}-of-00002.tfrecord" for i in range(2))
IDX, TABLE, LABELS = (f"index/{TRAIN[0]}.{kind}" for kind in ("idx", "parquet", "labels"))
TABLE_1 = f"index/{TRAIN[1]}.parquet"
RECORDS = {TRAIN[0]: [b"a" * 40, b"b" * 50, b"c" * 60], TRAIN[1]: [b"d" * 40, b"e" * 50, b"f" * 60]}
FRAME_BYTES = 16
# Where the second record of a shard lies.
SECOND = FRAME_BYTES + 40
NOT_WRITTEN = "its content is not what was written (sha256 differs)"
OTHER_RECORDS = "all its records are intact, but are not those that were written"


def _write(folder: Path, **options: Any) -> Path:
    return whole_snapshot(folder, {"train": list(RECORDS.values())}, **options)


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    return _write(tmp_path / "made", labelled=True)


def _check(folder: Path | str) -> Report:
    return check_snapshot(folder, progress=Silent())


def _flip(path: Path, position: int, bit: int = 0) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1 << bit
    path.write_bytes(content)


def _cut(path: Path, num_bytes: int) -> None:
    path.write_bytes(path.read_bytes()[:-num_bytes])


def _add(path: Path, content: bytes) -> None:
    path.write_bytes(path.read_bytes() + content)


def _swap(first: Path, second: Path) -> None:
    kept = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(kept)


def _pairs(*pairs: tuple[int, int]) -> bytes:
    return b"".join(n.to_bytes(8, "little") for pair in pairs for n in pair)


def _moved_to(path: Path, place: Path) -> None:
    place.parent.mkdir(exist_ok=True)
    path.rename(place)
    path.symlink_to(place)


@dataclasses.dataclass(frozen=True)
class Expect:
    damage: Callable[[Path], object]
    found: tuple[str, ...]


DAMAGES = {
    "missing shard": Expect(lambda s: (s / TRAIN[1]).unlink(), (f"{TRAIN[1]}: is missing",)),
    "missing reader": Expect(
        lambda s: (s / "reader/facts.py").unlink(), ("reader/facts.py: is missing",)
    ),
    "missing folder": Expect(
        lambda s: shutil.rmtree(s / "index"), (f"{IDX}: is missing", f"{TABLE}: is missing")
    ),
    "extra file": Expect(
        lambda s: (s / "notes.txt").write_text("mine"), ("notes.txt: is not in the manifest",)
    ),
    "extra shard": Expect(
        lambda s: shutil.copy(s / TRAIN[0], s / "test-00000-of-00001.tfrecord"),
        ("test-00000-of-00001.tfrecord: is not in the manifest",),
    ),
    "byte flipped in a record": Expect(
        lambda s: _flip(s / TRAIN[0], SECOND + 20),
        (
            f"{TRAIN[0]}: {NOT_WRITTEN}",
            f"{TRAIN[0]}: record 1 (byte 56, id 'train/0/1.txt'): the checksum of the record is",
        ),
    ),
    "byte flipped in a length": Expect(
        lambda s: _flip(s / TRAIN[0], SECOND),
        (f"{TRAIN[0]}: record 1 (byte 56, id 'train/0/1.txt'): the checksum of its length",),
    ),
    "several records of a shard": Expect(
        lambda s: (
            _flip(s / TRAIN[0], 1),
            _flip(s / TRAIN[0], SECOND + 3),
            _flip(s / TRAIN[0], -1),
        ),
        (
            f"{TRAIN[0]}: record 0 (byte 0, id 'train/0/0.txt'): the checksum of its length",
            f"{TRAIN[0]}: record 1 (byte 56, id 'train/0/1.txt'): the checksum of its length",
            f"{TRAIN[0]}: record 2 (byte 122, id 'train/0/2.txt'): the checksum of the record",
        ),
    ),
    "a length, where the index is gone": Expect(
        lambda s: (_flip(s / TRAIN[0], SECOND), (s / IDX).unlink(), (s / TABLE).unlink()),
        (
            f"{TRAIN[0]}: record 1 (byte 56): the checksum of its length",
            f"{TRAIN[0]}: it holds 1 intact records, expected 3; record 2 is the first",
            f"{IDX}: is missing",
        ),
    ),
    "byte flipped in another file": Expect(
        lambda s: _flip(s / "rejects.parquet", 3), (f"rejects.parquet: {NOT_WRITTEN}",)
    ),
    "cut within a record": Expect(
        lambda s: _cut(s / TRAIN[1], 10),
        (
            f"{TRAIN[1]}: has 188 bytes, expected 198",
            f"{TRAIN[1]}: record 2 (byte 122, id 'train/1/2.txt'): the file ends 10 bytes before",
        ),
    ),
    "cut within a head": Expect(
        lambda s: _cut(s / TRAIN[1], 70),
        (f"{TRAIN[1]}: record 2 (byte 122, id 'train/1/2.txt'): the file ends 70 bytes before",),
    ),
    "cut between records": Expect(
        lambda s: _cut(s / TRAIN[1], FRAME_BYTES + 60),
        (
            f"{TRAIN[1]}: it holds 2 intact records, expected 3; record 2 (id 'train/1/2.txt') is "
            "the first missing one",
        ),
    ),
    "other records, and fewer": Expect(
        lambda s: (s / TRAIN[0]).write_bytes(b"".join(map(frame, [b"a" * 40, b"B" * 51]))),
        (f"{TRAIN[0]}: it holds 2 intact records, expected 3; from record 1 on, they are not",),
    ),
    "emptied": Expect(lambda s: (s / TRAIN[0]).write_bytes(b""), (TRAIN[0], "holds 0 intact rec")),
    "a whole record added": Expect(
        lambda s: _add(s / TRAIN[0], frame(b"more")), (TRAIN[0], "holds 4 intact records")
    ),
    "bytes added": Expect(
        lambda s: _add(s / TRAIN[0], b"more"),
        (f"{TRAIN[0]}: record 3 (byte 198): the file ends 4 bytes into the head of a frame",),
    ),
    "another record in its place": Expect(
        lambda s: (s / TRAIN[0]).write_bytes(
            b"".join(map(frame, [b"A" * 40, b"B" * 50, b"C" * 60]))
        ),
        (TRAIN[0], "all its records are intact, but are not those that were written"),
    ),
    "a record of another length in its place": Expect(
        lambda s: (s / TRAIN[0]).write_bytes(
            b"".join(map(frame, [b"a" * 40, b"B" * 51, b"c" * 60]))
        ),
        (
            f"{TRAIN[0]}: record 1 (byte 56, id 'train/0/1.txt'): is not what was written: it "
            "has 67 bytes, but the index states 66",
        ),
    ),
    "swapped shards": Expect(
        lambda s: _swap(s / TRAIN[0], s / TRAIN[1]),
        (f"{TRAIN[0]}: {OTHER_RECORDS}", f"{TRAIN[1]}: {OTHER_RECORDS}"),
    ),
    "a shard under another's name": Expect(
        lambda s: shutil.copy(s / TRAIN[0], s / TRAIN[1]),
        (f"{TRAIN[1]}: {OTHER_RECORDS}",),
    ),
    "swapped indexes": Expect(
        lambda s: _swap(s / TABLE, s / TABLE_1),
        (f"{TABLE}: {NOT_WRITTEN}", f"{TABLE_1}: {NOT_WRITTEN}"),
    ),
    "several at once": Expect(
        lambda s: (_flip(s / TRAIN[0], 70), (s / "schema.pbtxt").unlink()),
        (f"{TRAIN[0]}: its content", "schema.pbtxt: is missing"),
    ),
    "a folder in the place of a file": Expect(
        lambda s: ((s / "schema.pbtxt").unlink(), (s / "schema.pbtxt").mkdir()),
        ("schema.pbtxt: is missing: a folder occupies its path",),
    ),
    "a pipe in the place of a shard": Expect(
        lambda s: ((s / TRAIN[0]).unlink(), os.mkfifo(s / TRAIN[0])),
        (f"{TRAIN[0]}: is missing: a pipe occupies its path",),
    ),
    "a link to nothing": Expect(
        lambda s: ((s / TRAIN[0]).unlink(), (s / TRAIN[0]).symlink_to("nowhere")),
        (f"{TRAIN[0]}: is missing: a link to nowhere (nothing is there) occupies its path",),
    ),
    "a link that shows another": Expect(
        lambda s: ((s / TRAIN[0]).unlink(), (s / TRAIN[0]).symlink_to(s / TRAIN[1])),
        (f"{TRAIN[0]}: {OTHER_RECORDS}",),
    ),
    "an edited manifest": Expect(
        lambda s: edit_manifest(s, lambda m: m.update(seed=7)),
        ("manifest.json: was edited or is damaged: its checksum does not match its content",),
    ),
    "an edited manifest, and more": Expect(
        lambda s: (edit_manifest(s, lambda m: m.update(seed=7)), _flip(s / TRAIN[0], SECOND)),
        ("manifest.json: was edited", f"{TRAIN[0]}: record 1 (byte 56, id 'train/0/1.txt')"),
    ),
    "a manifest without a checksum": Expect(
        lambda s: edit_manifest(s, lambda m: m.pop("checksum")),
        ("manifest.json: has no checksum",),
    ),
    "a manifest that is none": Expect(
        lambda s: (s / "manifest.json").write_text("{}"),
        ("manifest.json: has format_version None", "Nothing else can be checked without it"),
    ),
    "a folder in the manifest's place": Expect(
        lambda s: ((s / "manifest.json").unlink(), (s / "manifest.json").mkdir()),
        ("manifest.json: is a folder, expected a file",),
    ),
    "a pipe in the manifest's place": Expect(
        lambda s: ((s / "manifest.json").unlink(), os.mkfifo(s / "manifest.json")),
        ("manifest.json: is a pipe, expected a file",),
    ),
    "a count in the manifest": Expect(
        lambda s: edit_manifest(
            s, lambda m: m["splits"]["train"].update(num_examples=7), honest=False
        ),
        ("manifest.json: num_examples of split 'train' is 7, but the sum of its shards is 6",),
    ),
    "a shard taken out of the manifest": Expect(
        lambda s: edit_manifest(s, lambda m: m["splits"]["train"]["shards"].pop(), honest=False),
        (
            f"manifest.json: lists {TRAIN[1]}, which is in no split",
            f"manifest.json: names shard 0 of 1 of split 'train' '{TRAIN[0]}'",
            "num_examples of split 'train' is 6, but the sum of its shards is 3",
        ),
    ),
    "an index taken out of the manifest": Expect(
        lambda s: edit_manifest(s, lambda m: m["files"].pop(IDX), honest=False),
        (f"manifest.json: does not list {IDX}", f"{IDX}: is not in the manifest"),
    ),
    "a shard's hash in the manifest": Expect(
        lambda s: edit_manifest(
            s,
            lambda m: m["splits"]["train"]["shards"][0].update(sha256="0" * 64),
            honest=False,
        ),
        (f"manifest.json: shard {TRAIN[0]} differs from its entry in files",),
    ),
    "classes of another number of records": Expect(
        lambda s: list_file(s, LABELS, bytes(8)),
        (
            f"manifest.json: {LABELS} has 8 bytes, expected 12 for 3 examples",
            f"{LABELS}: does not match its shard: it has entries for 2 records, but the shard",
        ),
    ),
    "offsets of another number of records": Expect(
        lambda s: list_file(s, IDX, bytes(64)),
        (
            f"manifest.json: {IDX} has 64 bytes, expected 48 for 3 examples",
            f"{IDX}: does not match its shard: it has entries for 4 records, but the shard has 3",
        ),
    ),
    "offsets that lie apart": Expect(
        lambda s: list_file(s, IDX, _pairs((0, 56), (57, 65), (122, 76))),
        (f"{IDX}: record 1: does not match its shard: it states the offset 57, but the records",),
    ),
    "lengths that none can have": Expect(
        lambda s: list_file(s, IDX, _pairs((0, 56), (56, 3), (59, 2**64 - 1))),
        (f"{IDX}: record 1: does not match its shard: it states a length of 3 bytes",),
    ),
    "offsets that end elsewhere": Expect(
        lambda s: list_file(s, IDX, _pairs((0, 56), (56, 66), (122, 77))),
        (f"{IDX}: does not match its shard: it states that the records end at byte 199, but the",),
    ),
    "stale offsets": Expect(
        lambda s: (s / IDX).write_bytes(_pairs((0, 56), (56, 60), (116, 82))),
        (
            f"{IDX}: {NOT_WRITTEN}",
            f"{IDX}: record 1 (byte 56, id 'train/0/1.txt'): does not match its shard: it states "
            "60 bytes, but the record has 66; 2 records are affected",
        ),
    ),
    "stale offsets of another length": Expect(
        lambda s: (s / IDX).write_bytes(_pairs((0, 56), (56, 66))),
        (
            f"{IDX}: has 32 bytes, expected 48",
            f"{IDX}: does not match its shard: it has entries for 2 records, but the shard has 3",
        ),
    ),
    "an offset where no record begins": Expect(
        lambda s: _flip(s / IDX, 16),
        (
            f"{IDX}: record 1 (byte 56, id 'train/0/1.txt'): does not match its shard: it states "
            "66 bytes from byte 57, where no record begins",
        ),
    ),
    "half a pair": Expect(
        lambda s: _cut(s / IDX, 3), (f"{IDX}: does not match its shard: it expected",)
    ),
    "offsets and shard": Expect(
        lambda s: (_flip(s / IDX, 16), _flip(s / TRAIN[0], SECOND + 20)),
        (
            f"{IDX}: record 1 (byte 56, id 'train/0/1.txt'): does not match its shard",
            f"{TRAIN[0]}: record 1 (byte 56, id 'train/0/1.txt'): the checksum of the record",
        ),
    ),
    "a table that is none": Expect(
        lambda s: (s / TABLE).write_bytes(b"PAR1" * 20),
        (f"{TABLE}: does not match its shard: it is not a Parquet file",),
    ),
    "classes that there are none of": Expect(
        lambda s: (s / LABELS).write_bytes(b"\0\0\0\0\5\0\0\0\0\0\0\0"),
        (
            f"{LABELS}: record 1 (id 'train/0/1.txt'): does not match its shard: it states the "
            "class 5",
        ),
    ),
    "other classes": Expect(
        lambda s: (s / LABELS).write_bytes(bytes(12)),
        (
            f"{LABELS}: does not match its shard: it has 3 records of 'no', but "
            "manifest.json states 2",
        ),
    ),
    "an edited facts.py": Expect(
        lambda s: _add(s / "reader/facts.py", b"# mine\n"),
        ("reader/facts.py: its constants, such as class names, are not what was written",),
    ),
    "a reader that is no Python": Expect(
        lambda s: (s / "reader/facts.py").write_text("def (:"),
        ("reader/facts.py: it is no longer Python",),
    ),
    "a reader with a NUL": Expect(
        lambda s: (s / "reader/facts.py").write_bytes(b"\0"),
        ("reader/facts.py: it is no longer Python",),
    ),
    "the reader of another snapshot": Expect(
        lambda s: (s / "reader/facts.py").write_text(f'FINGERPRINT = "{"f" * 16}"\n'),
        (f"reader/facts.py: it reads the snapshot {'f' * 16}, but this one is {FINGERPRINT}",),
    ),
    "another module in the reader's place": Expect(
        lambda s: shutil.copy(s / "reader/doctor.py", s / "reader/facts.py"),
        ("reader/facts.py: it reads no snapshot, but this one is 0123456789abcdef",),
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_found(snapshot: Path, damage: str) -> None:
    DAMAGES[damage].damage(snapshot)
    report = _check(snapshot)
    assert report.exit_code == 4
    lines = report.lines()
    assert lines[0].startswith(f"{snapshot} is damaged: ")
    for part in DAMAGES[damage].found:
        assert part in "\n".join(lines)
    # What is whole is not accused: of each file that is named, something was changed.
    assert len(report.damages) <= 6
    with pytest.raises(DamagedSnapshotError, match=" is damaged: "):
        raise_findings(report)


@pytest.mark.slow
@pytest.mark.parametrize("compress", [False, True])
def test_every_flipped_bit_of_a_shard_is_found(tmp_path: Path, compress: bool) -> None:
    folder = _write(tmp_path / "made", compress=compress)
    path = folder / (TRAIN[0] + (".gz" if compress else ""))
    content = path.read_bytes()
    for position in range(len(content)):
        path.write_bytes(content)
        _flip(path, position, position % 8)
        report = _check(folder)
        assert {finding.file for finding in report.damages} == {path.name}
        assert report.damages[0].kind == "content"
        # Each is laid to a record, but for what holds them together.
        assert len(report.damages) >= 2
        if not compress:
            expected = 0 if position < SECOND else 1 if position < 122 else 2
            assert [finding.record for finding in report.damages[1:]] == [expected]
    path.write_bytes(content)
    assert _check(folder).exit_code == 0


def test_every_truncation_is_found(snapshot: Path) -> None:
    path = snapshot / TRAIN[0]
    content = path.read_bytes()
    for num_bytes in range(0, len(content), 3):
        path.write_bytes(content[:num_bytes])
        report = _check(snapshot)
        assert report.damages[0].what == f"has {num_bytes} bytes, expected 198"
        assert len(report.damages) >= 2


def test_records_of_a_compressed_shard_are_named(tmp_path: Path) -> None:
    """A part of them: what the damage leaves of the stream is held against the checksums."""
    folder = tmp_path / "made"
    rows = [os.urandom(500) for _ in range(100)]
    whole_snapshot(folder, {"train": [rows]}, compress=True)
    path = folder / "train-00000-of-00001.tfrecord.gz"
    _flip(path, path.stat().st_size // 2)
    records = [finding for finding in _check(folder).damages if finding.record is not None]
    assert 45 <= (records[0].record or 0) <= 55
    assert records[0].record_id == f"train/0/{records[0].record}.txt"


def test_compressed_shard_that_breaks_off(tmp_path: Path) -> None:
    folder = _write(tmp_path / "made", compress=True)
    path = folder / f"{TRAIN[0]}.gz"
    _cut(path, 4)
    found = "\n".join(_check(folder).lines())
    assert f"{path.name}: after record 2: the GZIP stream is truncated" in found
    _add(path, b"1234567")
    assert "after record 2: the GZIP stream is damaged: " in "\n".join(_check(folder).lines())


def test_damages_are_all_told_and_shown_up_to_a_limit(tmp_path: Path) -> None:
    rows = [bytes([n % 256]) * 20 for n in range(1500)]
    folder = whole_snapshot(tmp_path / "made", {"train": [rows]})
    path = folder / "train-00000-of-00001.tfrecord"
    content = bytearray(path.read_bytes())
    content[::36] = b"\xff" * 1500
    path.write_bytes(content)
    report = _check(folder)
    assert len(report.damages) == 1 + 1000 + 1
    assert report.damages[-1].what == "500 more records are broken, all after those"
    shown = report.lines(10)
    assert shown[0].endswith("is damaged: 1,002 damages in 1 file")
    assert sum(path.name in line for line in shown) == 10
    assert "  … and 992 more (--lines 0 shows all, --json too)" in shown
    assert sum(path.name in line for line in report.lines(0)) == 1002
    value = json.loads(json.dumps(report.to_json()))
    assert value["num_damages"] == 1002 == len(value["damages"])
    assert value["damages"][3] == {
        "file": path.name,
        "kind": "record",
        "record": 2,
        "offset": 72,
        "record_id": "train/0/2.txt",
        "what": value["damages"][3]["what"],
    }


@pytest.mark.parametrize("name", [IDX, TABLE, LABELS, "reader/facts.py"])
def test_what_is_far_too_long_is_not_held_in_memory(
    snapshot: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (snapshot / name).open("r+b") as file:
        file.truncate(200 << 20)
    real, sizes = storage.read_bytes, []

    def noting(*args: Any) -> bytes:
        content = real(*args)
        sizes.append(len(content))
        return content

    monkeypatch.setattr(storage, "read_bytes", noting)
    report = _check(snapshot)
    assert [(finding.file, finding.kind) for finding in report.damages] == [(name, "length")]
    assert max(sizes) <= 16 << 20


def test_the_class_that_differs_is_named(tmp_path: Path) -> None:
    """Where as many records of each class are told as there are."""
    columns = {"label": pa.array([[0], [1], [0], [1]], pa.list_(pa.int64()))}
    rows = encode_examples(pa.record_batch(columns)).to_pylist()
    folder = whole_snapshot(tmp_path / "made", {"train": [rows]}, labelled=True)
    name = "index/train-00000-of-00001.tfrecord.labels"
    (folder / name).write_bytes(bytes([0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0]))
    assert [str(finding) for finding in _check(folder).damages] == [
        f"{name}: {NOT_WRITTEN}",
        f"{name}: record 1 (id 'train/0/1.txt'): does not match its shard: it states the "
        "class 'no', but the example has the class 'yes'",
    ]


def test_files_of_another_snapshot(tmp_path: Path) -> None:
    mine = _write(tmp_path / "name" / ("a" * 16), fingerprint="a" * 16)
    others = {"train": [[b"1" * 40, b"2" * 50, b"3" * 60], [b"4" * 9, b"5", b"6"]]}
    other = whole_snapshot(tmp_path / "name" / ("b" * 16), others, fingerprint="b" * 16)
    shutil.copy(other / TRAIN[0], mine / TRAIN[0])
    shutil.copy(other / f"index/{TRAIN[1]}.idx", mine / f"index/{TRAIN[1]}.idx")
    shutil.copy(other / "reader/facts.py", mine / "reader/facts.py")
    report = _check(mine)
    assert [(finding.file, finding.kind) for finding in report.damages] == [
        (f"index/{TRAIN[1]}.idx", "content"),
        (f"index/{TRAIN[1]}.idx", "index"),
        ("reader/facts.py", "foreign"),
        (TRAIN[0], "content"),
        (TRAIN[0], "record"),
    ]
    found = "\n".join(_check(mine).lines())
    assert "are not those that were written" in found
    assert (
        "reader/facts.py: it reads the snapshot bbbbbbbbbbbbbbbb, but this one is aaaaaaaaaaaaaaaa"
        in found
    )


def test_the_manifest_of_another_snapshot(tmp_path: Path) -> None:
    mine = _write(tmp_path / "name" / ("a" * 16), fingerprint="a" * 16)
    other = whole_snapshot(
        tmp_path / "name" / ("b" * 16), {"train": [[b"1"]]}, fingerprint="b" * 16
    )
    shutil.copy(other / "manifest.json", mine / "manifest.json")
    found = "\n".join(_check(mine).lines())
    assert "manifest.json: is that of bbbbbbbbbbbbbbbb, but is in the folder of aaaaaaaa" in found
    assert f"{TRAIN[0]}: is not in the manifest" in found
    assert "train-00000-of-00001.tfrecord: is missing" in found
    assert "reader/facts.py: it reads the snapshot aaaa" in found


def test_a_reader_of_the_older_form_that_a_repair_left(snapshot: Path) -> None:
    """It still reads the snapshot, whose data are the same."""
    for name in ("reader.py", "reader_tools.py"):
        (snapshot / name).write_text("x = 1\n")
    report = _check(snapshot)
    assert (report.exit_code, report.damages) == (0, [])
    assert [finding.file for finding in report.warnings] == ["reader.py", "reader_tools.py"]


@pytest.mark.parametrize(
    ("name", "change", "told"),
    [
        ("reader/doctor.py", lambda p: p.write_text(""), "was edited after it was written"),
        ("build.json", lambda p: p.unlink(), "is missing: what the snapshot was built from"),
        ("build.json", lambda p: p.write_text("{"), "is not JSON"),
        ("build.json", lambda p: p.write_bytes(b"\xff"), "is not JSON: 'utf-8' codec"),
        ("build.json", lambda p: p.write_text("[" * 100_000), "is not JSON: maximum recursion"),
        ("build.json", lambda p: p.write_text("[]"), "is not a JSON object"),
        (
            "build.json",
            lambda p: p.write_text(p.read_text().replace("made", "mine")),
            "was edited, or predates checksums: its checksum does not match",
        ),
        (
            "build.json",
            lambda p: p.write_text(json.dumps(with_checksum({"fingerprint_parts": {"a": 1}}))),
            "is of another snapshot: its fingerprint_parts do not give",
        ),
        ("build.json", lambda p: p.write_text("{}"), "predates checksums: it has none"),
        ("build.json", lambda p: (p.unlink(), p.mkdir()), "cannot be read: it is a folder"),
        (
            "manifest.json",
            lambda p: _moved_to(p, p.parents[1] / "elsewhere"),
            "is a link that leaves the snapshot: its target is",
        ),
        (
            "schema.pbtxt",
            lambda p: _moved_to(p, p.parents[1] / "elsewhere"),
            "is a link that leaves the snapshot: its target is",
        ),
    ],
)
def test_what_does_no_harm_is_a_warning(
    snapshot: Path, name: str, change: Callable[[Path], object], told: str
) -> None:
    change(snapshot / name)
    report = _check(snapshot)
    assert (report.exit_code, report.lines()) == (0, [])
    assert [finding.file for finding in report.warnings] == [name]
    assert told in str(report.warnings[0])
    assert report.to_json()["intact"] is True


def test_linked_folders_are_whole(snapshot: Path, tmp_path: Path) -> None:
    _moved_to(snapshot / "index", tmp_path / "elsewhere")
    report = _check(snapshot)
    assert report.exit_code == 0
    assert len(report.warnings) == 6
    link = tmp_path / "link"
    link.symlink_to(snapshot)
    assert _check(link).exit_code == 0


def test_what_cannot_be_read_is_not_called_damaged(
    snapshot: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = storage.read_bytes

    def refusing(url: str, *args: Any) -> bytes:
        if url.endswith((TRAIN[1], TABLE)):
            raise StorageError(f"Cannot read {url}: permission denied.")
        return real(url, *args)

    monkeypatch.setattr(storage, "read_bytes", refusing)
    report = _check(snapshot)
    assert report.exit_code == 1
    assert [finding.file for finding in report.unreadable] == [TABLE, TRAIN[1]]
    assert "could not be checked:" in report.lines()[0]
    with pytest.raises(StorageError, match="make it readable"):
        verify(ss.Snapshot.open(snapshot), progress=Silent())
    _flip(snapshot / "schema.pbtxt", 0)
    report = _check(snapshot)
    assert report.exit_code == 4
    assert len(report.unreadable) == 2, "and what is damaged beside it is told"


@contextlib.contextmanager
def _as_nobody() -> Iterator[None]:
    """Root may read everything: what is refused shows to others only."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_permissions() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        os.chmod(scratch, 0o755)
        folder = _write(Path(scratch) / "made")
        _check(folder)  # imports what it needs, which nobody may not be allowed to
        (folder / TRAIN[1]).chmod(0)
        (folder / "index").chmod(0)
        _flip(folder / TRAIN[0], 70)
        with _as_nobody():
            report = _check(folder)
        (folder / "index").chmod(0o700)
    assert report.exit_code == 4
    index = [f"index/{name}.{kind}" for name in TRAIN for kind in ("idx", "parquet")]
    assert [finding.file for finding in report.unreadable] == ["index", *index, TRAIN[1]]
    assert {finding.file for finding in report.damages} == {TRAIN[0]}
    assert report.damages[1].record == 1


def test_compressed_is_whole(tmp_path: Path) -> None:
    checked = verify(ss.Snapshot.open(_write(tmp_path / "made", compress=True)), progress=Silent())
    assert checked.num_examples == 6


def test_whole(snapshot: Path) -> None:
    report = _check(snapshot)
    assert (report.damages, report.warnings, report.unreadable) == ([], [], [])
    assert report.num_examples == 6
    assert report.num_files == 2 * 4 + 4
    sizes = [path.stat().st_size for path in snapshot.rglob("*") if path.is_file()]
    unlisted = [(snapshot / name).stat().st_size for name in ("manifest.json", "build.json")]
    assert report.num_bytes == sum(sizes) - sum(unlisted)


def test_by_url(snapshot: Path) -> None:
    store = fsspec.filesystem("memory")
    store.put(str(snapshot), "memory://verify/made", recursive=True)
    try:
        assert _check("memory://verify/made").exit_code == 0
        store.rm(f"memory://verify/made/{TRAIN[0]}")
        store.pipe_file("memory://verify/made/more", b"1")
        store.pipe_file(f"memory://verify/made/{TRAIN[1]}", b"1")
        found = [(finding.file, finding.kind) for finding in _check("memory://verify").damages]
    finally:
        store.rm("memory://verify", recursive=True)
    expected = [("more", "extra"), (TRAIN[0], "missing"), (TRAIN[1], "length")]
    assert found[:3] == expected


class _Handler(http.server.SimpleHTTPRequestHandler):
    """Serves a folder; knows no ranges, and its listings state no sizes."""

    def log_message(self, *_: object) -> None:
        pass


def test_at_a_web_server_without_ranges(snapshot: Path) -> None:
    handler = functools.partial(_Handler, directory=str(snapshot))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        assert _check(url).exit_code == 0
        _flip(snapshot / TRAIN[1], SECOND + 20)
        assert {finding.file for finding in _check(url).damages} == {TRAIN[1]}
        server.shutdown()


def test_what_is_told_is_safe_to_print() -> None:
    """Names may hold line breaks, and URLs credentials."""
    finding = Finding(file="a\nb\x1b", kind="extra", what="is not in the manifest")
    assert str(finding) == "'a\\nb\\x1b': is not in the manifest"
    report = Report(path="s3://key:secret@bucket/out/name/0", fingerprint=None, damages=[finding])
    for told in (*report.lines(), report.summary(), json.dumps(report.to_json())):
        assert "secret" not in told
    assert "--out s3://***@bucket/out" not in report.lines()[-1], "nothing of it needs a build"
    assert "remove s3://***@bucket/out/name/0/a" in report.lines()[-1]


def test_without_a_manifest(snapshot: Path) -> None:
    (snapshot / "manifest.json").unlink()
    report = _check(snapshot)
    assert report.exit_code == 4
    assert "has no manifest.json" in report.lines()[1]


def test_what_mends_it_is_told(tmp_path: Path) -> None:
    out = tmp_path / "an out"
    folder = _write(out / "made" / FINGERPRINT)
    _flip(folder / TRAIN[0], 3)
    (folder / "notes.txt").touch()
    told = "\n".join(_check(folder).repair_hints())
    assert f"snapshard build SOURCE --out '{out}' --repair" in told
    assert f"rm -r '{folder}/notes.txt'" in told


def test_traces_of_use_are_no_damage(snapshot: Path) -> None:
    (snapshot / "__pycache__").mkdir()
    (snapshot / "__pycache__" / "reader.cpython-311.pyc").write_bytes(b"made by an import")
    (snapshot / f".{'0' * 32}.tmp").write_bytes(b"left by a killed build")
    assert _check(snapshot).exit_code == 0


def test_progress_counts_files(snapshot: Path) -> None:
    told: list[Any] = []

    class Recorded(Silent):
        def start(self, step: str, *, total: int | None, unit: str) -> None:
            told.append((step, total, unit))

        def advance(self, step: str, *, done: int) -> None:
            told.append(done)

    check_snapshot(snapshot, progress=Recorded())
    assert told == [("verify", 12, "files"), *range(13)]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Runs the command line here: the exit code, what it prints, what it says of errors."""

    def called(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            cli.main([str(argument) for argument in arguments])
        printed, told = capsys.readouterr()
        return int(ended.value.code or 0), printed, told

    return called


def test_command_on_what_is_whole(snapshot: Path, call: Any) -> None:
    code, printed, _ = call("verify", snapshot)
    assert code == 0
    assert re.fullmatch(rf"intact: 12 files, [\d,]+ bytes, 6 examples in {snapshot}\n", printed)
    code, printed, _ = call("verify", snapshot, "--sample", "50%", "--seed", 3)
    assert code == 0
    assert "checked 3 of 6 records (seed 3), the entire content of 4 files" in printed
    assert json.loads(call("verify", snapshot, "--json")[1])["intact"] is True


def test_command_on_what_is_edited(snapshot: Path, call: Any) -> None:
    _add(snapshot / "reader/doctor.py", b"# mine\n")
    code, printed, told = call("verify", snapshot)
    assert code == 0
    assert printed.startswith("intact: ")
    assert "warning: reader/doctor.py: was edited after it was written" in told
    edit_manifest(snapshot, lambda manifest: manifest.update(seed=7))
    code, printed, told = call("verify", snapshot)
    assert (code, printed) == (4, "")
    assert "manifest.json: was edited or is damaged" in told
    code, printed, told = call("inspect", snapshot)
    assert (code, printed) == (4, "")
    assert "manifest.json was edited or is damaged" in told


def test_command_on_what_is_damaged(snapshot: Path, call: Any) -> None:
    for name in TRAIN:
        _flip(snapshot / name, SECOND + 20)
    code, printed, told = call("verify", snapshot, "--lines", 1)
    assert (code, printed) == (4, "")
    assert f"{snapshot} is damaged: 4 damages in 2 files" in told
    assert "… and 3 more (--lines 0 shows all, --json too)" in told
    code, printed, _ = call("verify", snapshot, "--json")
    value = json.loads(printed)
    assert (code, value["exit_code"], value["num_damages"]) == (4, 4, 4)
    assert [damage["kind"] for damage in value["damages"]] == ["content", "record"] * 2
    assert value["damages"][1]["record_id"] == "train/0/1.txt"
    assert call("verify", snapshot, "--sample", "100%")[0] == 4
    (snapshot / "manifest.json").unlink()
    code, printed, _ = call("verify", snapshot, "--json")
    assert (code, json.loads(printed)["damages"][0]["kind"]) == (4, "missing")


@pytest.mark.parametrize(
    "options",
    [("--sample", "2"), ("--sample", "1.5"), ("--absent", "nowhere")],
)
def test_command_with_wrong_options(tmp_path: Path, call: Any, options: tuple[str, ...]) -> None:
    code, printed, told = call("verify", tmp_path / "none", *options)
    assert (code, printed) == (2, "")
    assert "Traceback" not in told


@pytest.mark.slow
@pytest.mark.parametrize("command", ["verify", "inspect"])
def test_loads_neither_tensorflow_nor_beam(snapshot: Path, command: str) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "snapshard", command, str(snapshot)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert str(snapshot) in done.stdout
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "snapshard.pipelines.snapshot" in imported
    assert imported.isdisjoint({"tensorflow", "apache_beam", "tensorflow_transform", "tfx_bsl"})
