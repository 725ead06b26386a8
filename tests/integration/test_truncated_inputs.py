"""Inputs whose end is missing: the message says so, names the file or member, and what to do."""

import bz2
import gzip
import io
import lzma
import random
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf
import zstandard

import snapshard as ss
from snapshard.pipelines.inspect.suggest import suggest_recipe
from snapshard.schemas.errors import DataError

_DRAWN = random.Random(1)
ROWS = b"a,b\n" + b"".join(b"%d,%d\n" % (_DRAWN.randrange(10**9), i) for i in range(3000))
LINES = b"".join(b'{"a": %d}\n' % _DRAWN.randrange(10**9) for _ in range(3000))
TABLE = pa.table({"a": range(3000), "b": [0.5] * 3000})


def tar(names: list[str], mode: str = "w:") -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode=mode) as archive:  # type: ignore[call-overload]
        for name in names:
            member = tarfile.TarInfo(name)
            member.size = len(ROWS)
            archive.addfile(member, io.BytesIO(ROWS))
    return file.getvalue()


def zipped(names: list[str]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in names:
            archive.writestr(name, ROWS)
    return file.getvalue()


def parquet() -> bytes:
    file = io.BytesIO()
    pq.write_table(TABLE, file)
    return file.getvalue()


def arrow() -> bytes:
    file = io.BytesIO()
    with pa.ipc.new_file(file, TABLE.schema) as writer:
        writer.write_table(TABLE)
    return file.getvalue()


def arrays() -> bytes:
    file = io.BytesIO()
    np.savez(file, a=np.arange(3000), b=np.arange(3000))
    return file.getvalue()


def array() -> bytes:
    file = io.BytesIO()
    np.save(file, np.arange(3000))
    return file.getvalue()


def tfrecords(folder: Path) -> bytes:
    path = folder / "written"
    value = tf.train.Feature(bytes_list=tf.train.BytesList(value=[b"x" * 100]))
    record = tf.train.Example(features=tf.train.Features(feature={"a": value}))
    with tf.io.TFRecordWriter(str(path)) as writer:
        for _ in range(30):
            writer.write(record.SerializeToString())
    return path.read_bytes()


@pytest.mark.parametrize(
    ("name", "content", "share", "said"),
    [
        ("a.tar", tar(["x.csv"]), 0.3, r"cannot be read after 'x\.csv': .*unexpected end of data"),
        ("a.tar", tar(["x.csv"]), 0.015, r"cannot be read after 'x\.csv': .*unexpected end of da"),
        ("a.tar", tar(["w.csv", "x.csv"]), 0.7, r"cannot be read after 'x\.csv': .*end of data"),
        (
            "a.tar.gz",
            tar(["x.csv"], "w:gz"),
            0.5,
            r"after 'x\.csv': .* data ends too early at byte",
        ),
        (
            "a.zip",
            zipped(["x.csv"]),
            0.5,
            r"a\.zip is a truncated zip .* bytes of 'x\.csv'",
        ),
        ("a.zip", zipped(["w.csv", "x.csv"]), 0.7, r"truncated zip .*bytes of 'x\.csv'"),
        ("a.zip", zipped(["x.csv"]), 0.998, r"truncated zip archive: .* before its table of c"),
        ("a.csv.gz", gzip.compress(ROWS), 0.5, r"gzip data ends too early at byte [\d,]+ of"),
        ("a.csv.gz", gzip.compress(ROWS), 0.001, r"a\.csv\.gz cannot be read: gzip data ends too"),
        ("a.csv.bz2", bz2.compress(ROWS), 0.5, r"a\.csv\.bz2 cannot be read: bzip2 data ends too"),
        ("a.csv.xz", lzma.compress(ROWS), 0.5, r"xz data ends too early at byte [\d,]+ of the"),
        ("a.csv.zst", zstandard.compress(ROWS), 0.5, r"zst cannot be read: zstd data ends too"),
        ("a.jsonl.gz", gzip.compress(LINES), 0.5, r"gzip data ends too early at byte [\d,]+ of"),
        ("a.jsonl.bz2", bz2.compress(LINES), 0.5, r"bz2 cannot be read: bzip2 data ends too early"),
        ("a.parquet", parquet(), 0.5, r"a\.parquet: truncated: it begins as Parquet files do"),
        ("a.arrow", arrow(), 0.5, r"a\.arrow: truncated: it begins as Arrow files do"),
        ("a.npy", array(), 0.5, r"a\.npy .*it holds [\d,]+ rows\): [\d,]+ rows are lost"),
        ("a.npz", arrays(), 0.4, r"a\.npz: it is a truncated zip archive: it ends at"),
        (
            "a.tfrecord",
            None,
            0.49,
            r"a\.tfrecord byte .*truncated: the file has [\d,]+ of its",
        ),
    ],
)
@pytest.mark.slow  # builds
def test_messages_say_what_is_missing(
    name: str, content: bytes | None, share: float, said: str, tmp_path: Path
) -> None:
    content = tfrecords(tmp_path) if content is None else content
    path = tmp_path / "data" / name
    path.parent.mkdir()
    path.write_bytes(content[: int(len(content) * share)])

    def build() -> None:
        lines = "jsonl" in name
        recipe = ss.Recipe(name="lines", source=ss.JsonLines(str(path)))
        ss.build(recipe if lines else suggest_recipe(str(path)), tmp_path / "out")

    with pytest.raises(DataError, match=said) as raised:
        build()
    message = str(raised.value)
    assert "Put the data there" not in message
    assert any(fix in message for fix in (" again", "anew")), message
