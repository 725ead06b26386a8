"""Tables in unusual forms, end to end: what is stored is what the files say."""

import datetime
import gzip
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

import snapshard as ss
from snapshard.schemas.errors import RejectsError

ROWS = [
    (i, f"né {i % 7}", 1234567890.5 + i, f"2026-11-{1 + i % 28:02d}T09:30:00Z", 2**63 + i)
    for i in range(200)
]


def _text(rows: list[tuple[Any, ...]]) -> bytes:
    lines = ["id\tname\tx\tat\tbig", *("\t".join(map(str, row)) for row in rows)]
    return ("\n".join(lines) + "\n").encode("latin-1")


def _stored(snapshot: ss.Snapshot) -> dict[int, tuple[Any, ...]]:
    found = {}
    for path in Path(snapshot.path).glob("train-*"):
        for record in tf.data.TFRecordDataset(str(path)):
            example = ss.parse_example(record.numpy(), snapshot.manifest.features)
            values = (example["x"], example["at"], example["big"])
            found[example["id"]] = (example["name"].decode(), *values)
    return found


def _recipe(folder: Path, **settings: Any) -> ss.Recipe:
    source = ss.Csv(
        str(folder / "data"),
        encoding="latin-1",
        types={"at": ss.Timestamp("s"), "big": "uint64"},
    )
    shards = ss.Shards(compression="none")
    return ss.Recipe(
        name="t", source=source, splits=ss.Splits(train=1.0), shards=shards, **settings
    )


def test_compressed_tsv_in_latin_1(tmp_path: Path) -> None:
    (tmp_path / "data" / "below").mkdir(parents=True)
    packed = gzip.compress(_text(ROWS[:100]), mtime=0)
    (tmp_path / "data" / "a.tsv.gz").write_bytes(packed)
    (tmp_path / "data" / "below" / "b.tsv").write_bytes(_text(ROWS[100:]))
    expected = {
        row[0]: (row[1], row[2], int(datetime.datetime.fromisoformat(row[3]).timestamp()), row[4])
        for row in ROWS
    }
    snapshot = ss.build(_recipe(tmp_path), tmp_path / "out")
    assert _stored(snapshot) == expected
    assert snapshot.manifest.features["x"] == ss.Scalar("float64")
    assert ss.build(_recipe(tmp_path), tmp_path / "out").cached

    # A download that broke off: its good rows are kept, the rest is one reject.
    (tmp_path / "data" / "a.tsv.gz").write_bytes(packed[: len(packed) // 2])
    with pytest.raises(RejectsError, match=r"a\.tsv\.gz: gzip data ends too early at byte"):
        ss.build(_recipe(tmp_path), tmp_path / "out")
    kept = _stored(ss.build(_recipe(tmp_path, max_rejects=1), tmp_path / "out"))
    assert 100 < len(kept) < 200
    assert kept.items() <= expected.items()
    assert set(kept) == {*range(len(kept) - 100), *range(100, 200)}
