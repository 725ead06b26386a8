"""Declared limits through a whole build: what does not fit is told by row, the rest is stored."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest

import snapshard as ss
from snapshard.schemas.errors import RejectsError

TABLE = """age,share,word,at
7,0.1,a,2024-01-01T00:00:00Z
300,0.2,a,2024-01-01T00:00:01Z
8,1.5,b,2024-01-01T00:00:02Z
9,0.123456789012345,b,2024-01-01T00:00:03Z
10,nan,a,2024-01-01T00:00:04Z
11,0.5,zzz,2024-01-01T00:00:05Z
"""


def test_rows_beyond_their_limits_are_rejected(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(TABLE)
    features: dict[str, ss.Scalar | ss.Timestamp] = {
        "age": ss.Scalar("int64", max=99),
        "share": ss.Scalar("float64", min=0, max=1, finite=True),
        "word": ss.Scalar("string", values=("a", "b")),
        "at": ss.Timestamp("s"),
    }
    source = ss.Csv(str(tmp_path / "t.csv"))
    with pytest.raises(RejectsError, match="out of limits"):
        ss.build(ss.Recipe(name="limits", source=source, features=features), str(tmp_path / "out"))
    recipe = ss.Recipe(
        name="limits",
        source=source,
        features=features,
        max_rejects=4,
        splits=ss.Splits(train=1.0),
    )
    snapshot = ss.build(recipe, str(tmp_path / "out"))
    rejects = pq.read_table(Path(snapshot.path) / "rejects.parquet").to_pylist()
    assert {(r["position"], r["reason"]) for r in rejects} == {
        (TABLE.index("300,"), "out of limits"),
        (TABLE.index("8,1.5"), "out of limits"),
        (TABLE.index("10,nan"), "missing value"),
        (TABLE.index("11,"), "not an allowed value"),
    }
    assert {r["source"] for r in rejects} == {"t.csv"}
    assert {r["stage"] for r in rejects} <= {"read", "validate"}
    import tensorflow as tf

    (shard,) = Path(snapshot.path).glob("train-*.tfrecord")
    found = [
        ss.parse_example(record, snapshot.manifest.features)
        for record in tf.data.TFRecordDataset(str(shard)).as_numpy_iterator()
    ]
    kept = {row["age"]: (row["share"], row["word"], row["at"]) for row in found}
    assert kept[7] == (0.1, b"a", 1704067200)
    assert kept[9] == (0.123456789012345, b"b", 1704067203)
