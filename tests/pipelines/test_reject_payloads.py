"""Rejects completed with what their records held, or where it lies in the source."""

import contextlib
import gzip
import hashlib
import io
import json
import sqlite3
import tarfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import snapshard as ss
from snapshard.pipelines.prepare.block_worker import RejectPayloads
from snapshard.schemas.blocks import Block, FileRange, KeySpan, RawBatch
from snapshard.schemas.errors import PayloadPlace, Reject
from snapshard.transforms.runs.files import wire_schema
from snapshard.transforms.storage.opened_source import open_source

LONG = b"x" * 100_000
X = {"x": ss.Scalar("int64")}


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def read(source: Any, folder: Path, features: Any) -> dict[str, Reject]:
    """The completed rejects of all files of a source, by id."""
    opened = open_source(source.url, str(folder))
    files = source.select(opened.list()).files
    ranges = tuple(
        FileRange(
            path=file.path,
            sha256="" if file.problem else sha256(opened.read(file.path)),
            start=0,
            stop=file.num_bytes,
            problem=file.problem,
        )
        for file in files
    )
    block = Block(ranges)
    payloads = RejectPayloads(block, features=features, numbered=source.numbered, opened=opened)
    found = {}
    for batch in source.read(
        block, features=features, opened=opened, ordered=list(range(len(ranges)))
    ):
        found.update({one.record_id: one for one in payloads.complete(batch.rejects, batch)})
    return found


def test_a_text_among_numbers_of_sqlite_is_told_whole(tmp_path: Path) -> None:
    """Beside the row; the message is short."""
    long = "long " * 1000
    with contextlib.closing(sqlite3.connect(tmp_path / "t.db")) as database:
        database.execute("CREATE TABLE t (id, x)")
        database.executemany("INSERT INTO t VALUES (?, ?)", [(1, 1), (2, 2), (3, long)])
        database.commit()
    source = ss.Sql(f"sqlite:///{tmp_path}/t.db", "SELECT * FROM t", key="id")
    extracted = source.extract(str(tmp_path / "extracted"), base=".")
    (reject,) = read(extracted, tmp_path, X).values()
    assert reject.payload is not None
    assert long.encode() in reject.payload
    assert len(reject.message) < 500


def test_damaged_media_are_kept_or_their_files_told(tmp_path: Path) -> None:
    folder = tmp_path / "images" / "cat"
    folder.mkdir(parents=True)
    (folder / "short.jpg").write_bytes(b"no image")
    (folder / "long.jpg").write_bytes(LONG)
    (folder / "gone.jpg").symlink_to(tmp_path / "nowhere")
    features = {"image": ss.Image(storage="encoded"), "label": ss.ClassLabel(("cat",))}
    found = read(ss.ImageFolder(str(tmp_path / "images")), tmp_path, features)
    assert found["cat/short.jpg"].payload == b"no image"
    assert found["cat/long.jpg"].place == PayloadPlace(
        sha256=sha256(LONG), num_bytes=len(LONG), start=0, stop=len(LONG)
    )
    gone = found["cat/gone.jpg"]
    assert (gone.stage, gone.payload, gone.place) == ("inventory", None, None)


@pytest.mark.parametrize("compressed", [False, True])
def test_a_long_line_is_told_by_its_bytes_where_the_file_has_them(
    tmp_path: Path, compressed: bool
) -> None:
    lines = [b'{"x": 1}', b'{"x": "' + LONG + b'"}', b'{"x": 3}', b'{"x": "no"}']
    text = b"\n".join(lines) + b"\n"
    (tmp_path / "data").mkdir()
    name = "a.jsonl.gz" if compressed else "a.jsonl"
    (tmp_path / "data" / name).write_bytes(gzip.compress(text) if compressed else text)
    found = read(ss.JsonLines(str(tmp_path / "data")), tmp_path, {"x": ss.Scalar("int64")})
    long, short = found.values()
    assert short.payload == lines[3]
    place = long.place
    assert place is not None
    assert (place.sha256, place.num_bytes) == (sha256(lines[1]), len(lines[1]))
    assert (place.start, place.stop) == ((None, None) if compressed else (9, 9 + len(lines[1])))


def test_samples_keep_their_parts(tmp_path: Path) -> None:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w") as archive:
        parts = (("0.cls", b"1"), ("0.bin", b"\xff"), ("1.cls", b"one"), ("1.bin", LONG))
        for name, content in parts:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    (tmp_path / "a.tar").write_bytes(sink.getvalue())
    features = {"label": ss.Scalar("int64"), "bin": ss.Scalar("string")}
    found = read(ss.WebDataset(str(tmp_path)), tmp_path, features)
    unfit = found["a.tar#2048"]
    assert unfit.payload is not None
    assert json.loads(unfit.payload) == {
        "cls": "one",
        "bin": {"cut": len(LONG), "sha256": sha256(LONG)},
    }


@pytest.mark.parametrize("numbered", [False, True])
def test_a_record_refused_by_a_later_check_keeps_what_was_read(numbered: bool) -> None:
    features = {"image": ss.Image(storage="encoded"), "label": ss.Scalar("int64")}
    schema = wire_schema(features)
    row: dict[str, Any] = dict.fromkeys(schema.names, 1)
    rows = [{**row, "image": content, "label": 7} for content in (b"small", LONG)]
    ids = ["a#0", "a#9"] if numbered else ["a", "b"]
    batch = RawBatch(ids=ids, columns=pa.RecordBatch.from_pylist(rows, schema=schema))
    payloads = RejectPayloads(
        KeySpan(0, 1 << 64), features=features, numbered=numbered, opened=None
    )
    rejects = [
        Reject(record_id=one, stage="validate", reason="r", message="m", source="a") for one in ids
    ]
    small, long = payloads.complete(rejects, batch)
    assert (small.payload, small.payload_kind) == (b"small", "bytes")
    if numbered:
        # Several records a file: nothing says which of its bytes the image is.
        assert long.payload is not None
        values = json.loads(long.payload)
        assert values["label"] == 7
        assert values["image"] == {"cut": len(LONG), "sha256": sha256(LONG)}
    else:
        assert long.place is not None
        assert long.place.sha256 == sha256(LONG)


def test_a_range_that_cannot_be_read_any_more_is_not_told(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"other content")
    opened = open_source(str(tmp_path), str(tmp_path))
    part = FileRange(path="a.csv", sha256="0" * 64, start=0, stop=10)
    payloads = RejectPayloads(
        Block((part,)), features={"x": ss.Scalar("int64")}, numbered=True, opened=opened
    )
    place = PayloadPlace(sha256=sha256(LONG), num_bytes=len(LONG))
    empty = RawBatch(ids=[], columns=pa.RecordBatch.from_pylist([], schema=pa.schema([])))
    for source in ("a.csv", "gone.csv"):
        reject = Reject(
            record_id=f"{source}#3",
            stage="read",
            reason="r",
            message="m",
            source=source,
            position=3,
            place=place,
        )
        assert list(payloads.complete([reject], empty)) == [reject]
    (tmp_path / "a.csv").unlink()
    assert list(payloads.complete([reject], empty)) == [reject]
