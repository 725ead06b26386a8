"""Steps across records through whole builds: windows, packing, duplicates, splits by time."""

import csv
import datetime
import itertools
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import snapshard as ss

DAY = 86_400


def _write_series(folder: Path, *, num_files: int) -> list[tuple[str, int, float]]:
    """Rows (station, time in s, value) over several files, in no order; two gaps."""
    rng = np.random.default_rng(0)
    rows = [
        (station, day * DAY, float(np.float32(rng.normal())))
        for station in ("north", "south")
        for day in range(60)
        if day not in (20, 41)
    ]
    folder.mkdir(parents=True)
    order = rng.permutation(len(rows))
    for number, part in enumerate(np.array_split(order, num_files)):
        with open(folder / f"{number}.csv", "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["station", "time", "value"])
            writer.writerows(rows[index] for index in part)
    return rows


def _expected(rows: list[tuple[str, int, float]], end: int) -> dict[str, list[Any]]:
    """Split -> sorted windows of 5 → 2 that lie whole in it."""
    found: dict[str, list[Any]] = defaultdict(list)
    for station in ("north", "south"):
        series = sorted(row for row in rows if row[0] == station)
        for window in (series[i : i + 7] for i in range(len(series) - 6)):
            times = [row[1] for row in window]
            if any(b - a > DAY for a, b in itertools.pairwise(times)):
                continue
            splits = {"train" if time < end else "test" for time in times}
            if len(splits) == 1:
                values = [row[2] for row in window]
                found[splits.pop()].append((station, times[4], values[:5], values[5:]))
    return {split: sorted(windows) for split, windows in found.items()}


def _held(snapshot: ss.Snapshot, lab: Any) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = defaultdict(list)
    for _, split, row in lab.read_back(snapshot).rows():
        window = (
            row["station"].decode(),
            int(row["time"]),
            row["value"].tolist(),
            row["target"].tolist(),
        )
        found[split].append(window)
    return {split: sorted(windows) for split, windows in found.items()}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("splits", "end"),
    [
        (ss.Splits.by_time("time", train=40 * DAY, test=None), 40 * DAY),
        (ss.Splits.by_time("time", train=0.75, test=0.25), 45 * DAY),
    ],
    ids=["ends", "fractions"],
)
def test_windows_never_cross_a_gap_a_group_or_a_split(
    tmp_path: Path, lab: Any, splits: ss.Splits, end: int
) -> None:
    rows = _write_series(tmp_path / "three", num_files=3)
    step = ss.series.windows(
        "value", size=5, target="value", horizon=2, time="time", group="station", max_gap=DAY
    )
    snapshots = []
    for folder in ("three", "one"):
        if folder == "one":
            _write_series(tmp_path / "one", num_files=1)
        recipe = ss.Recipe(
            name=folder,
            source=ss.Csv(str(tmp_path / folder), types={"station": "string"}),
            prepare=[step],
            splits=splits,
        )
        snapshots.append(ss.build(recipe, tmp_path / "out"))
    held = [_held(snapshot, lab) for snapshot in snapshots]
    assert held[0] == held[1] == _expected(rows, end)
    assert snapshots[0].manifest.label == "target"


def test_splits_by_time_without_other_steps(tmp_path: Path, lab: Any) -> None:
    with open(tmp_path / "t.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["when", "x"])
        start = datetime.date(2020, 1, 1)
        for day in range(100):
            writer.writerow([start + datetime.timedelta(days=day * 7 % 100), day])
    source = ss.Csv(str(tmp_path / "t.csv"), types={"when": ss.Timestamp("s")})
    for splits in (
        ss.Splits.by_time("when", train=0.8, test=0.2),
        ss.Splits.by_time("when", train="2020-03-21", test=None),
    ):
        recipe = ss.Recipe(name="t", source=source, splits=splits)
        snapshot = ss.build(recipe, tmp_path / "out")
        times: dict[str, list[int]] = defaultdict(list)
        for _, split, row in lab.read_back(snapshot).rows():
            times[split].append(int(row["when"]))
        assert (len(times["train"]), len(times["test"])) == (80, 20)
        assert max(times["train"]) < min(times["test"])


def test_duplicates_go_wherever_they_lie(tmp_path: Path, lab: Any) -> None:
    for name, values in (("a", [1, 2, 3, 3]), ("b", [3, 4, 1]), ("c", [5])):
        text = "x,y\n" + "".join(f"{value},{value % 2}\n" for value in values)
        (tmp_path / "in").mkdir(exist_ok=True)
        (tmp_path / "in" / f"{name}.csv").write_text(text)
    recipe = ss.Recipe(
        name="t",
        source=ss.Csv(str(tmp_path / "in")),
        prepare=[ss.records.drop_duplicates()],
        splits=ss.Splits(train=0.5, test=0.5),
    )
    snapshot = ss.build(recipe, tmp_path / "out")
    held = lab.read_back(snapshot)
    found = dict(zip(held.ids, held.values["x"].tolist(), strict=True))
    assert sorted(found.values()) == [1, 2, 3, 4, 5]
    assert {key.partition("#")[0] for key, value in found.items() if value in (1, 3)} == {"a.csv"}


def test_packed_rows_hold_one_split_each(tmp_path: Path, lab: Any) -> None:
    import tensorflow as tf

    lengths = np.random.default_rng(0).integers(1, 9, 200)
    lines = [" ".join([f"w{index}"] * length) for index, length in enumerate(lengths)]
    (tmp_path / "t.csv").write_text("text\n" + "\n".join(lines) + "\n")

    def tokenize(record: dict[str, Any]) -> dict[str, Any]:
        words = tf.strings.split(record["text"])
        return {"tokens": tf.strings.to_number(tf.strings.substr(words, 1, -1), tf.int64) + 1}

    recipe = ss.Recipe(
        name="t",
        source=ss.Csv(str(tmp_path / "t.csv"), types={"text": "string"}),
        prepare=[tokenize, ss.text.pack("tokens", 16)],
        splits=ss.Splits(train=0.5, test=0.5),
    )
    held = lab.read_back(ss.build(recipe, tmp_path / "out"))
    split_of: dict[int, str] = {}
    counts: dict[int, int] = defaultdict(int)
    for _, split, row in held.rows():
        for token in row["tokens"][row["tokens_segments"] > 0].tolist():
            counts[token - 1] += 1
            assert split_of.setdefault(token, split) == split
    assert counts == dict(enumerate(lengths.tolist()))
    assert set(split_of.values()) == {"train", "test"}


@pytest.mark.slow
def test_equal_contents_in_several_splits_are_counted(tmp_path: Path) -> None:
    rows = [f"{index % 150},{index % 2},{'ab'[index % 2]}" for index in range(300)]
    (tmp_path / "t.csv").write_text("x,label,why\n" + "\n".join(rows) + "\n")
    source = ss.Csv(str(tmp_path / "t.csv"), label="label")
    leaky = ss.build(
        ss.Recipe(name="a", source=source, splits=ss.Splits(train=0.5, test=0.5)),
        tmp_path / "out",
    )
    split_of: dict[int, set[str]] = defaultdict(set)
    for split in ("train", "test"):
        for batch in leaky.reader().dataset(split, 64):
            for value in batch["x"].numpy().tolist():
                split_of[value].add(split)
    shared = sum(len(splits) == 2 for splits in split_of.values())
    assert shared > 30
    assert leaky.manifest.shared_contents == {"train, test": shared}
    for recipe in (
        ss.Recipe(name="b", source=source, splits=ss.Splits(train=0.5, test=0.5, group_by="x")),
        ss.Recipe(name="c", source=source, prepare=[ss.records.drop_duplicates("x")]),
        ss.Recipe(name="d", source=source, splits=ss.Splits(train=1.0)),
    ):
        assert ss.build(recipe, tmp_path / "out").manifest.shared_contents == {}
