"""Public tables from end to end: built, verified, read back, and held against the CSV.

Those that the examples ship are in ``test_examples``.
"""

import csv
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import snapshard as ss
from snapshard.pipelines.inspect.verify import verify
from snapshard.schemas.progress import Silent

pytestmark = [
    pytest.mark.full_data,
    pytest.mark.slow,  # tensorflow-transform in a child process, and 15,000 rows
]

MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)

TAXI = """
import snapshard as ss

FLOATS = ("fare", "trip_miles", "trip_seconds")
WORDS = ("payment_type", "company")


def preprocessing_fn(inputs):
    import tensorflow as tf
    import tensorflow_transform as tft

    outputs = {}
    for name in FLOATS:
        outputs[name] = tft.scale_to_z_score(tf.cast(inputs[name], tf.float32))
    for name in WORDS:
        outputs[name] = tft.compute_and_apply_vocabulary(
            inputs[name], top_k=20, num_oov_buckets=1, vocab_filename=name)
    outputs["latitude"] = tft.bucketize(inputs["pickup_latitude"], num_buckets=10)
    outputs["no_latitude"] = inputs["no_latitude"]
    outputs["tipped"] = tf.cast(inputs["tips"] > 0.2 * inputs["fare"], tf.int64)
    outputs["at"] = inputs["trip_start_timestamp"]
    return outputs


recipe = ss.Recipe(
    name="taxi",
    source=ss.Csv(TABLE),
    prepare=[
        ss.tables.missing("pickup_latitude", "no_latitude"),
        ss.tables.fill("pickup_latitude", 41.9),
        ss.tables.fill("company", "none"),
        ss.tables.fill("trip_seconds", 0),
        ss.tables.cast("pickup_latitude", "float32"),
    ],
    preprocessing_fn=preprocessing_fn,
    splits=ss.Splits(train=0.8, validation=0.1, test=0.1, group_by="company"),
    shards=ss.Shards(num_shards=6),
)
"""


def test_flights(lab: Any, full_data: Path, tmp_path: Path) -> None:
    """Years of passengers, month by month; the time is made of two columns."""
    table = full_data / "tabular" / "flights.csv"
    recipe = ss.Recipe(
        name="flights",
        source=ss.Csv(str(table), types={"month": ss.ClassLabel(MONTHS)}),
        prepare=[
            ss.records.map(
                lambda record: {
                    "month_number": record["year"] * 12 + record["month"],
                    "passengers": record["passengers"],
                },
                batched=True,
            ),
            ss.series.windows(
                "passengers",
                size=24,
                target="passengers",
                horizon=12,
                shift=6,
                time="month_number",
                max_gap=1,
            ),
        ],
        splits=ss.Splits.by_time("month_number", train=1957 * 12, test=None),
    )
    snapshot = ss.build(recipe, tmp_path / "out")
    verify(snapshot, progress=Silent())
    with table.open(newline="") as file:
        rows = [
            (int(row["year"]) * 12 + MONTHS.index(row["month"]), int(row["passengers"]))
            for row in csv.DictReader(file)
        ]
    parts = {
        "train": [row for row in rows if row[0] < 1957 * 12],
        "test": [row for row in rows if row[0] >= 1957 * 12],
    }
    wanted: dict[str, list[Any]] = {
        split: [
            (part[first + 23][0], [row[1] for row in part[first : first + 36]])
            for first in range(0, len(part) - 35, 6)
        ]
        for split, part in parts.items()
    }
    found: dict[str, list[Any]] = defaultdict(list)
    for _, split, row in lab.read_back(snapshot).rows():
        values = [*row["passengers"].tolist(), *row["target"].tolist()]
        found[split].append((int(row["month_number"]), values))
    assert {split: sorted(windows) for split, windows in found.items()} == wanted


def test_chicago_taxi(lab: Any, full_data: Path, tmp_path: Path) -> None:
    """15,000 trips: missing values filled, what tensorflow-transform learns of train applied."""
    table = full_data / "tabular" / "chicago_taxi.csv"
    (tmp_path / "recipe.py").write_text(TAXI.replace("TABLE", repr(str(table))))
    snapshot = lab.build(tmp_path / "recipe.py", tmp_path / "out")
    verify(snapshot, progress=Silent())
    rows = dict(lab.csv_rows(table))
    held = lab.read_back(snapshot)
    assert sorted(held.ids) == sorted(rows)
    assert snapshot.manifest.num_rejects == 0
    cells = [rows[id_] for id_ in held.ids]
    splits = np.array(held.splits)
    train = splits == "train"
    for name in ("fare", "trip_miles", "trip_seconds"):
        values = np.array([float(row[name] or 0) for row in cells])
        wanted = (values - values[train].mean()) / values[train].std()
        np.testing.assert_allclose(held.values[name], wanted, rtol=1e-3, atol=1e-3)
    for name in ("payment_type", "company"):
        words = np.array([row[name] or "none" for row in cells])
        asset = Path(snapshot.path) / "transform_fn" / "assets" / name
        vocabulary = asset.read_text().splitlines()
        known, counts = np.unique(words[train], return_counts=True)
        ranked = sorted(zip(counts.tolist(), known.tolist(), strict=True), reverse=True)
        assert vocabulary == [word for _, word in ranked[:20]]
        numbers = {word: number for number, word in enumerate(vocabulary)}
        wanted_numbers = [numbers.get(word, len(vocabulary)) for word in words.tolist()]
        assert held.values[name].tolist() == wanted_numbers
    assert held.values["no_latitude"].tolist() == [not row["pickup_latitude"] for row in cells]
    latitudes = np.array([np.float32(row["pickup_latitude"] or 41.9) for row in cells])
    buckets = held.values["latitude"]
    assert (np.diff(buckets[np.argsort(latitudes, kind="stable")]) >= 0).all()
    tipped = [np.float32(row["tips"]) > np.float32(0.2) * np.float32(row["fare"]) for row in cells]
    assert np.array_equal(held.values["tipped"], np.array(tipped))
    assert held.values["at"].tolist() == [int(row["trip_start_timestamp"]) for row in cells]
    company: dict[str, set[str]] = defaultdict(set)
    for row, split in zip(cells, splits.tolist(), strict=True):
        company[row["company"]].add(split)
    assert all(len(found) == 1 for found in company.values())
