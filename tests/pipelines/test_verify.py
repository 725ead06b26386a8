"""Every kind of damage is found, and named: the file, and in a shard the record."""

import dataclasses
import gzip
import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import google_crc32c
import pytest

import snapshard as ss
from snapshard.pipelines.verify import verify
from snapshard.schemas.errors import DamagedSnapshotError
from snapshard.schemas.manifest import (
    FileEntry,
    Manifest,
    ShardEntry,
    SplitEntry,
    json_checksum,
)
from snapshard.schemas.progress import Silent

TRAIN = tuple(f"train-{i:05d}-of-00002.tfrecord" for i in range(2))
RECORDS = {TRAIN[0]: [b"a" * 40, b"b" * 50, b"c" * 60], TRAIN[1]: [b"d" * 40, b"e" * 50, b"f" * 60]}
FRAME_BYTES = 16


def _masked(content: bytes) -> bytes:
    crc = google_crc32c.value(content)
    return (((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF).to_bytes(4, "little")


def _frame(record: bytes) -> bytes:
    head = len(record).to_bytes(8, "little")
    return head + _masked(head) + record + _masked(record)


def _entry(content: bytes) -> FileEntry:
    return FileEntry(bytes=len(content), sha256=hashlib.sha256(content).hexdigest())


def _write(folder: Path, *, compress: bool = False) -> Path:
    contents = {}
    shards = []
    for name, records in RECORDS.items():
        content = b"".join(map(_frame, records))
        name += ".gz" if compress else ""
        contents[name] = gzip.compress(content, mtime=0) if compress else content
        entry = _entry(contents[name])
        shards.append(
            ShardEntry(
                file=name,
                num_examples=len(records),
                num_bytes=entry.bytes,
                sha256=entry.sha256,
                label_counts={},
            )
        )
    contents |= {"reader.py": b"NAME = 'made'\n", "index/x.idx": bytes(64), "schema.pbtxt": b"s"}
    manifest = Manifest(
        format_version=1,
        name="made",
        fingerprint="0" * 16,
        features={"x": ss.Scalar("int64")},
        label=None,
        compression="gzip" if compress else "none",
        num_rejects=0,
        seed=0,
        versions={},
        splits={
            "train": SplitEntry(
                num_examples=sum(shard.num_examples for shard in shards),
                num_bytes=sum(shard.num_bytes for shard in shards),
                shards=shards,
            )
        },
        files={name: _entry(content) for name, content in contents.items()},
    )
    for name, content in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    (folder / "manifest.json").write_bytes(manifest.to_bytes())
    (folder / "build.json").write_text("{}")
    return folder


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    return _write(tmp_path / "made")


def _verify(folder: Path) -> Any:
    return verify(ss.Snapshot.open(folder), progress=Silent())


def _flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


def _cut(path: Path, num_bytes: int) -> None:
    path.write_bytes(path.read_bytes()[:-num_bytes])


def _add(path: Path, content: bytes) -> None:
    path.write_bytes(path.read_bytes() + content)


def _swap(first: Path, second: Path) -> None:
    kept = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(kept)


def _edit_manifest(folder: Path, edit: Callable[[Any], None]) -> None:
    value = json.loads((folder / "manifest.json").read_text())
    edit(value)
    value["checksum"] = json_checksum(value)
    (folder / "manifest.json").write_text(json.dumps(value))


def _list_file(folder: Path, name: str, content: bytes) -> None:
    """Adds a file that lies there as the manifest says."""
    (folder / name).write_bytes(content)
    entry = _entry(content).model_dump()
    _edit_manifest(folder, lambda manifest: manifest["files"].update({name: entry}))


@dataclasses.dataclass(frozen=True)
class Expect:
    damage: Callable[[Path], object]
    found: tuple[str, ...]


# Where the second record of a shard lies.
SECOND = FRAME_BYTES + 40
DAMAGES = {
    "missing shard": Expect(lambda s: (s / TRAIN[1]).unlink(), (f"{TRAIN[1]}: is missing",)),
    "missing reader": Expect(lambda s: (s / "reader.py").unlink(), ("reader.py: is missing",)),
    "missing folder": Expect(lambda s: shutil.rmtree(s / "index"), ("index/x.idx: is missing",)),
    "extra file": Expect(
        lambda s: (s / "notes.txt").write_text("mine"), ("notes.txt: is not in the manifest",)
    ),
    "extra shard": Expect(
        lambda s: shutil.copy(s / TRAIN[0], s / "test-00000-of-00001.tfrecord"),
        ("test-00000-of-00001.tfrecord: is not in the manifest",),
    ),
    "byte flipped in a record": Expect(
        lambda s: _flip(s / TRAIN[0], SECOND + 20),
        (f"{TRAIN[0]}: its content is not what was written", "at record 1, byte 56", "checksum"),
    ),
    "byte flipped in a length": Expect(
        lambda s: _flip(s / TRAIN[0], SECOND), (TRAIN[0], "at record 1, byte 56", "its length")
    ),
    "byte flipped in another file": Expect(
        lambda s: _flip(s / "index/x.idx", 3), ("index/x.idx: its content is not what was",)
    ),
    "cut within a record": Expect(
        lambda s: _cut(s / TRAIN[1], 10),
        (f"{TRAIN[1]}: has 188 bytes, expected 198", "record 2", "ends"),
    ),
    "cut between records": Expect(
        lambda s: _cut(s / TRAIN[1], FRAME_BYTES + 60),
        (TRAIN[1], "it holds 2 whole records, expected 3"),
    ),
    "emptied": Expect(lambda s: (s / TRAIN[0]).write_bytes(b""), (TRAIN[0], "holds 0 whole rec")),
    "a whole record added": Expect(
        lambda s: _add(s / TRAIN[0], _frame(b"more")), (TRAIN[0], "holds 4 whole records")
    ),
    "bytes added": Expect(lambda s: _add(s / TRAIN[0], b"more"), (TRAIN[0], "damaged at record 3")),
    "another record in its place": Expect(
        lambda s: (s / TRAIN[0]).write_bytes(
            b"".join(map(_frame, [b"A" * 40, b"B" * 50, b"C" * 60]))
        ),
        (TRAIN[0], "all its records are whole, but they are not the ones that were written"),
    ),
    "swapped shards": Expect(
        lambda s: _swap(s / TRAIN[0], s / TRAIN[1]),
        (f"{TRAIN[0]}: holds what belongs into {TRAIN[1]}", f"{TRAIN[1]}: holds what belongs"),
    ),
    "several at once": Expect(
        lambda s: (_flip(s / TRAIN[0], 70), (s / "schema.pbtxt").unlink()),
        (f"{TRAIN[0]}: its content", "schema.pbtxt: is missing"),
    ),
    "a folder in the place of a file": Expect(
        lambda s: ((s / "schema.pbtxt").unlink(), (s / "schema.pbtxt").mkdir()),
        ("schema.pbtxt: is missing",),
    ),
    "a count in the manifest": Expect(
        lambda s: _edit_manifest(s, lambda m: m["splits"]["train"].update(num_examples=7)),
        ("manifest.json: num_examples of split 'train' is 7, its shards' sum 6",),
    ),
    "classes of another number of records": Expect(
        lambda s: _list_file(s, f"index/{TRAIN[0]}.labels", bytes(8)),
        (f"manifest.json: index/{TRAIN[0]}.labels has 8 bytes, expected 12 for 3 examples",),
    ),
    "offsets of another number of records": Expect(
        lambda s: _list_file(s, f"index/{TRAIN[1]}.idx", bytes(64)),
        (f"manifest.json: index/{TRAIN[1]}.idx has 64 bytes, expected 48 for 3 examples",),
    ),
    "a shard's hash in the manifest": Expect(
        lambda s: _edit_manifest(
            s, lambda m: m["splits"]["train"]["shards"][0].update(sha256="0" * 64)
        ),
        (f"manifest.json: shard {TRAIN[0]} differs from its entry in files",),
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_found(snapshot: Path, damage: str) -> None:
    DAMAGES[damage].damage(snapshot)
    with pytest.raises(DamagedSnapshotError) as caught:
        _verify(snapshot)
    message = str(caught.value)
    assert message.startswith(f"{snapshot} is damaged:")
    for part in DAMAGES[damage].found:
        assert part in message


def test_compressed_record_is_named(tmp_path: Path) -> None:
    folder = _write(tmp_path / "made", compress=True)
    assert _verify(folder).num_examples == 6
    name = f"{TRAIN[0]}.gz"
    _cut(folder / name, 12)
    with pytest.raises(DamagedSnapshotError, match=rf"{name}: has .* record .*breaks off"):
        _verify(folder)


def test_whole(snapshot: Path) -> None:
    checked = _verify(snapshot)
    assert checked.num_examples == 6
    assert checked.num_files == 5
    assert checked.num_bytes == 2 * 198 + 14 + 64 + 1


def test_traces_of_use_are_no_damage(snapshot: Path) -> None:
    (snapshot / "__pycache__").mkdir()
    (snapshot / "__pycache__" / "reader.cpython-311.pyc").write_bytes(b"made by an import")
    (snapshot / f".{'0' * 32}.tmp").write_bytes(b"left by a killed build")
    _verify(snapshot)


def test_progress_counts_files(snapshot: Path) -> None:
    told: list[Any] = []

    class Recorded(Silent):
        def start(self, step: str, *, total: int | None, unit: str) -> None:
            told.append((step, total, unit))

        def advance(self, step: str, *, done: int) -> None:
            told.append(done)

    verify(ss.Snapshot.open(snapshot), progress=Recorded())
    assert told == [("verify", 5, "files"), 0, 1, 2, 3, 4, 5]


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
