"""Inputs whose end is missing: the message says so, names the file or member, and what to do."""

import bz2
import gzip
import lzma
import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf
import zstandard

import snapshard as ss
from snapshard.pipelines.inspect.suggest import suggest_recipe
from snapshard.schemas.errors import DataError

from ..file_bytes import ipc, npy, npz, parquet, tar_of, zip_of

_DRAWN = random.Random(1)
ROWS = b"a,b\n" + b"".join(b"%d,%d\n" % (_DRAWN.randrange(10**9), i) for i in range(3000))
ONE = {"x.csv": ROWS}
TWO = {"w.csv": ROWS, "x.csv": ROWS}
LINES = b"".join(b'{"a": %d}\n' % _DRAWN.randrange(10**9) for _ in range(3000))
TABLE = pa.table({"a": range(3000), "b": [0.5] * 3000})


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
        ("a.tar", tar_of(ONE), 0.3, r"cannot be read after 'x\.csv': .*unexpected end of data"),
        ("a.tar", tar_of(ONE), 0.015, r"cannot be read after 'x\.csv': .*unexpected end of da"),
        ("a.tar", tar_of(TWO), 0.7, r"cannot be read after 'x\.csv': .*end of data"),
        (
            "a.tar.gz",
            tar_of(ONE, mode="w:gz"),
            0.5,
            r"after 'x\.csv': .* data ends too early at byte",
        ),
        ("a.zip", zip_of(ONE), 0.5, r"a\.zip is a truncated zip .* bytes of 'x\.csv'"),
        ("a.zip", zip_of(TWO), 0.7, r"truncated zip .*bytes of 'x\.csv'"),
        ("a.zip", zip_of(ONE), 0.998, r"truncated zip archive: .* before its table of c"),
        ("a.csv.gz", gzip.compress(ROWS), 0.5, r"gzip data ends too early at byte [\d,]+ of"),
        ("a.csv.gz", gzip.compress(ROWS), 0.001, r"a\.csv\.gz cannot be read: gzip data ends too"),
        ("a.csv.bz2", bz2.compress(ROWS), 0.5, r"a\.csv\.bz2 cannot be read: bzip2 data ends too"),
        ("a.csv.xz", lzma.compress(ROWS), 0.5, r"xz data ends too early at byte [\d,]+ of the"),
        ("a.csv.zst", zstandard.compress(ROWS), 0.5, r"zst cannot be read: zstd data ends too"),
        ("a.jsonl.gz", gzip.compress(LINES), 0.5, r"gzip data ends too early at byte [\d,]+ of"),
        ("a.jsonl.bz2", bz2.compress(LINES), 0.5, r"bz2 cannot be read: bzip2 data ends too early"),
        ("a.parquet", parquet(TABLE), 0.5, r"a\.parquet: truncated: it begins as Parquet files do"),
        ("a.arrow", ipc(TABLE), 0.5, r"a\.arrow: truncated: it begins as Arrow files do"),
        (
            "a.npy",
            npy(np.arange(3000)),
            0.5,
            r"a\.npy .*it holds [\d,]+ rows\): [\d,]+ rows are lost",
        ),
        (
            "a.npz",
            npz(a=np.arange(3000), b=np.arange(3000)),
            0.4,
            r"a\.npz: it is a truncated zip archive: it ends at",
        ),
        ("a.tfrecord", None, 0.49, r"a\.tfrecord byte .*truncated: the file has [\d,]+ of its"),
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
