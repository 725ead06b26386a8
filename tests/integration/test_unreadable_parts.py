"""A part of a source that cannot be read is a reject or a refusal, whatever its name.

A file, link or member that cannot be read is one reject. A folder that cannot be listed and an
archive that is damaged are refused: it is unknown how many records they hold.
"""

import gzip
import io
import json
import struct
import wave
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pyarrow as pa
import pytest
from PIL import Image as PillowImage

import snapshard as ss
from snapshard.schemas.errors import DataError, RejectsError

from ..file_bytes import ipc, npy, parquet, tar_of

NUM_FILES = 12


def _csv(number: int) -> bytes:
    return f"a,b\n{number},{number * 10}\n".encode()


def _table(number: int) -> pa.Table:
    return pa.table({"a": [number], "b": [number * 10]})


def _png(number: int) -> bytes:
    file = io.BytesIO()
    PillowImage.new("RGB", (8, 8), (number * 20, 0, 0)).save(file, "PNG")
    return file.getvalue()


def _wav(number: int) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(8_000)
        sound.writeframes(np.full(80, number, np.int16).tobytes())
    return file.getvalue()


def _tfrecord(number: int) -> bytes:
    # One int64 feature "a": Features { feature { key: "a" value { int64_list { value: … } } } }
    example = bytes([0x0A, 0x0C, 0x0A, 0x0A, 0x0A, 1, 97, 0x12, 5, 0x1A, 3, 0x0A, 1, number])
    length = struct.pack("<Q", len(example))
    return length + _masked(length) + example + _masked(example)


def _masked(data: bytes) -> bytes:
    checksum = google_crc32c.value(data)
    rotated = (((checksum >> 15) | (checksum << 17)) + 0xA282EAD8) & 0xFFFFFFFF
    return struct.pack("<I", rotated)


def _rows(file: Any) -> Any:
    with file.open() as opened:
        yield {"content": opened.read()}


Source = Callable[[str], Any]
SOURCES: dict[str, tuple[Source, Callable[[int], bytes], str]] = {
    "csv": (ss.Csv, _csv, "{}.csv"),
    "json": (ss.JsonLines, lambda n: json.dumps({"a": n}).encode() + b"\n", "{}.jsonl"),
    "parquet": (ss.Parquet, lambda n: parquet(_table(n)), "{}.parquet"),
    "arrow": (ss.Arrow, lambda n: ipc(_table(n)), "{}.arrow"),
    "tfrecord": (ss.TFRecords, _tfrecord, "{}.tfrecord"),
    "text": (ss.TextFiles, lambda n: f"line {n}\n".encode(), "{}.txt"),
    "images": (ss.ImageFolder, _png, "kind/{}.png"),
    "sounds": (ss.AudioFolder, _wav, "kind/{}.wav"),
    "clips": (ss.ClipFolder, _png, "kind/clip {}/0.png"),
    "numpy": (ss.Numpy, lambda n: npy(np.array([n])), "{}.npy"),
    "samples": (ss.WebDataset, lambda n: tar_of({"s.png": _png(n)}), "{}.tar"),
    "files": (lambda url: ss.Files(url, _rows), _csv, "{}.any"),
}


FOLDERS = [kind for kind in SOURCES if kind != "samples"]
"""Those to which an archive is a folder; to WebDataset a tar is a file of samples."""


def _recipe(source: Any, *, max_rejects: int = 0) -> ss.Recipe:
    prepare = []
    if isinstance(source, ss.AudioFolder):
        prepare = [ss.audio.decode("audio", rate=8_000)]
    return ss.Recipe(
        name="parts",
        source=source,
        prepare=prepare,
        splits=ss.Splits(train=1.0),
        max_rejects=max_rejects,
    )


def _files(kind: str) -> dict[str, bytes]:
    _, content, name = SOURCES[kind]
    return {name.format(f"{number:02}"): content(number) for number in range(NUM_FILES)}


def _put(folder: Path, files: Mapping[str, bytes]) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


@pytest.mark.parametrize("kind", SOURCES)
def test_what_cannot_be_read_is_a_reject_whatever_its_name(tmp_path: Path, kind: str) -> None:
    """A link may lead to a folder of records: its name says nothing."""
    source, _, _ = SOURCES[kind]
    raw = _put(tmp_path / "raw", _files(kind))
    _put(tmp_path / "elsewhere", _files(kind))
    (raw / "more").symlink_to(tmp_path / "elsewhere")
    (raw / "gone").symlink_to("nowhere")
    (raw / ".#lock").symlink_to("user@host")  # of an editor: hidden files are no records
    with pytest.raises(RejectsError, match=r"2 of 14"):
        ss.build(_recipe(source(str(raw))), tmp_path / "out")
    snapshot = ss.build(_recipe(source(str(raw)), max_rejects=2), tmp_path / "out")
    assert snapshot.manifest.num_rejects == 2
    assert snapshot.manifest.splits["train"].num_examples == NUM_FILES


def _flipped(content: bytes) -> bytes:
    """A bit of the header of a later member."""
    at = content.index(b"ustar", len(content) // 2) - 150
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


def _cut(content: bytes) -> bytes:
    """Ends before the header of a later member."""
    return content[: content.index(b"ustar", len(content) // 2) - 257]


DAMAGES: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "a flipped bit": ("a.tar", _flipped),
    "cut between members": ("a.tar", _cut),
    "two in one": ("a.tar", lambda content: content + content),
    "gzip that ends early": ("a.tar.gz", lambda c: gzip.compress(c, mtime=0)[:-20]),
    "garbage behind gzip": ("a.tar.gz", lambda c: gzip.compress(c, mtime=0) + b"garbage"),
}


@pytest.mark.parametrize("kind", SOURCES)
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_archive_is_refused(tmp_path: Path, kind: str, damage: str) -> None:
    name, change = DAMAGES[damage]
    path = tmp_path / name
    path.write_bytes(change(tar_of(_files(kind))))
    source, _, _ = SOURCES[kind]
    with pytest.raises(
        DataError, match=r"the (archive|tar) cannot be read .*: copy or create it again"
    ):
        ss.build(_recipe(source(str(path)), max_rejects=5), tmp_path / "out")


@pytest.mark.parametrize("kind", SOURCES)
def test_an_intact_archive_is_read(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(tar_of(_files(kind)))
    source, _, _ = SOURCES[kind]
    snapshot = ss.build(_recipe(source(str(path))), tmp_path / "out")
    assert snapshot.manifest.splits["train"].num_examples == NUM_FILES


@pytest.mark.parametrize("kind", FOLDERS)
def test_members_that_later_ones_replace_are_counted(tmp_path: Path, kind: str) -> None:
    files = _files(kind)
    whole = tar_of(files)
    first = next(iter(files))
    appended = whole[: len(whole.rstrip(b"\0")) // 512 * 512 + 512] + tar_of({first: files[first]})
    (tmp_path / "a.tar").write_bytes(appended)
    source, _, _ = SOURCES[kind]
    snapshot = ss.build(_recipe(source(str(tmp_path / "a.tar"))), tmp_path / "out")
    assert snapshot.manifest.splits["train"].num_examples == NUM_FILES
    facts = json.loads((Path(snapshot.path) / "build.json").read_text())
    assert facts["input"]["skipped"] == {"replaced by a later member of the same name": 1}
