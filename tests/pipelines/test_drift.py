"""Drift: what differs is found and named, and what only sampling explains is not."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import snapshard as ss
from snapshard.pipelines.inspect.drift import (
    Profile,
    compare,
    drift,
    drift_of_splits,
    split_differences,
)
from snapshard.pipelines.recipe.lock import Lock, Thresholds
from snapshard.pipelines.snapshot import Snapshot
from snapshard.schemas.errors import DamagedSnapshotError, RecipeError
from snapshard.schemas.features import Features, features_to_json

from .made_snapshots import put_manifest, shard_entry
from .made_statistics import Columns, moments, statistics_of

FLOAT = ss.Scalar("float64", optional=True)
INT = ss.Scalar("int64")
TEXT = ss.Scalar("string")
BOOL = ss.Scalar("bool")
PETS = ss.ClassLabel(("cat", "dog"))


def profile(features: Features, label: str | None = None, **splits: Columns) -> Profile:
    statistics = statistics_of(features, splits) if splits else None
    return Profile(features_to_json(features), label, [], statistics)


def one(feature: Any, values: Any) -> Profile:
    return profile({"x": feature}, train={"x": list(values)})


def put_snapshot(folder: Path, features: Features, **splits: Columns) -> Snapshot:
    folder.mkdir()
    sizes = {name: len(next(iter(columns.values()))) for name, columns in splits.items()}
    shards = {
        name: [shard_entry(f"{name}-00000-of-00001.tfrecord", num_examples=size, num_bytes=0)]
        for name, size in sizes.items()
    }
    put_manifest(folder, features, shards, sizes=[])
    content = json.dumps(statistics_of(features, splits)).encode()
    (folder / "statistics.json").write_bytes(content)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"]["statistics.json"] = {
        "bytes": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
    }
    del manifest["checksum"]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return Snapshot.open(folder)


def _samplers() -> dict[str, tuple[Any, Any]]:
    """Features, and how to draw values of each."""

    def draw_texts(rng: Any, n: int) -> Any:
        return [f"word {int(k)}" for k in rng.zipf(1.3, n) % 500]

    def draw_gaps(rng: Any, n: int) -> Any:
        return [
            None if gap else value
            for gap, value in zip(rng.random(n) < 0.3, rng.random(n), strict=True)
        ]

    def draw_lists(rng: Any, n: int) -> Any:
        return [rng.lognormal(0, 1, k).tolist() for k in rng.integers(0, 9, n)]

    return {
        "normal": (FLOAT, lambda rng, n: rng.normal(5, 2, n).tolist()),
        "prices": (FLOAT, lambda rng, n: rng.lognormal(3, 2, n).tolist()),
        "heavy tails": (FLOAT, lambda rng, n: rng.standard_cauchy(n).tolist()),
        "half zeros": (
            FLOAT,
            lambda rng, n: (rng.exponential(9, n) * rng.integers(0, 2, n)).tolist(),
        ),
        "constant": (FLOAT, lambda rng, n: [7.5] * n),
        "two modes": (FLOAT, lambda rng, n: rng.normal(20 * rng.integers(0, 2, n), 1).tolist()),
        "gaps": (FLOAT, draw_gaps),
        "ages": (INT, lambda rng, n: rng.integers(0, 100, n).tolist()),
        "years": (INT, lambda rng, n: (2026 - rng.geometric(0.02, n)).tolist()),
        "ratings": (INT, lambda rng, n: rng.integers(1, 6, n).tolist()),
        "counts": (INT, lambda rng, n: rng.poisson(3, n).tolist()),
        "ids": (INT, lambda rng, n: rng.permutation(10**6)[:n].tolist()),
        "an atom": (
            INT,
            lambda rng, n: np.where(rng.random(n) < 0.7, 5, rng.integers(0, 99, n)).tolist(),
        ),
        "bools": (BOOL, lambda rng, n: (rng.random(n) < 0.2).tolist()),
        "texts": (TEXT, draw_texts),
        "unique texts": (TEXT, lambda rng, n: [f"{k:x}" for k in rng.integers(0, 10**9, n)]),
        "pets": (PETS, lambda rng, n: rng.choice(["cat", "dog"], n, p=[0.9, 0.1]).tolist()),
        "lists": (ss.Sequence(ss.Scalar("float32")), draw_lists),
    }


@pytest.mark.parametrize("size", [20, 150, 1000, 6000])
def test_two_halves_of_a_data_set_do_not_differ(size: int) -> None:
    samplers = _samplers()
    features = {name: feature for name, (feature, _) in samplers.items()}
    for seed in range(10):
        rng = np.random.default_rng(seed)
        halves = [
            profile(features, train={name: draw(rng, n) for name, (_, draw) in samplers.items()})
            for n in (size, 1 + size // (1 + seed % 4))
        ]
        assert compare(*halves) == [], seed


@pytest.mark.parametrize("sizes", [(80, 10), (800, 100), (4096, 512)])
def test_splits_of_one_data_set_do_not_differ(sizes: tuple[int, int]) -> None:
    samplers = _samplers()
    features = {name: feature for name, (feature, _) in samplers.items()}
    for seed in range(10):
        rng = np.random.default_rng(seed)
        splits = {
            split: {name: draw(rng, size) for name, (_, draw) in samplers.items()}
            for split, size in zip(("train", "test"), sizes, strict=True)
        }
        assert split_differences(profile(features, **splits), "train", ["test"]) == [], seed


def test_a_split_in_another_unit() -> None:
    for seed in range(10):
        rng = np.random.default_rng(seed)
        prices = {"train": rng.normal(50, 9, 4096), "test": rng.normal(50, 9, 512) * 1.09}
        columns = {split: {"x": values.tolist()} for split, values in prices.items()}
        found = split_differences(profile({"x": FLOAT}, **columns), "train", ["test"])
        assert [d.splits for d in found] == [("train", "test")], seed


def test_larger_samples_explain_less() -> None:
    rng = np.random.default_rng(0)
    for size, shift in ((50, 3.0), (300, 1.0), (5000, 0.6)):
        old, new = (rng.normal(mean, 1, size) for mean in (0, shift))
        assert [d.measure for d in compare(one(FLOAT, old), one(FLOAT, new))] == ["values"]
    for _ in range(20):
        prices = rng.lognormal(3, 1, (2, 50))
        assert compare(one(FLOAT, prices[0]), one(FLOAT, 10 * prices[1]))
    few = one(FLOAT, [1.0, 2.0, 3.0]), one(FLOAT, [10.0, 20.0, 30.0])
    assert compare(*few) == []


@pytest.mark.parametrize("share", [0.05, 0.1, 0.2, 0.5, 0.9])
@pytest.mark.parametrize("value", [0.0, -1.0, 5.0, 999.0])
def test_deciles_at_a_frequent_value_are_no_difference(value: float, share: float) -> None:
    """The share of zeros is 20 %: of one half the second decile is 0, of the other 0.01."""
    for seed in range(5):
        rng = np.random.default_rng(seed)
        halves = [np.where(rng.random(4000) < share, value, rng.normal(5, 1, 4000)) for _ in "ab"]
        assert compare(one(FLOAT, halves[0]), one(FLOAT, halves[1])) == []


def _normal(mean: float = 5.0, size: int = 1000) -> Any:
    return np.random.default_rng(1).normal(mean, 1, size).tolist()


DISTRIBUTIONS: list[Any] = [
    (
        "a price ten times higher",
        FLOAT,
        _normal(),
        [10 * v for v in _normal()],
        "values",
        "median 4.969 → 49.69, mean 4.946 → 49.46",
    ),
    (
        "another spread",
        FLOAT,
        _normal(),
        [4 * v - 15 for v in _normal()],
        "values",
        "median 4.969 → 4.878",
    ),
    ("another constant", FLOAT, [5.0] * 99, [50.0] * 99, "values", "median 5 → 50, mean 5 → 50"),
    (
        "outliers",
        FLOAT,
        _normal(),
        _normal(size=800) + _normal(9000, 200),
        "values",
        "mean 4.946 → 1,8",
    ),
    ("few values", INT, [1, 2, 3] * 300, [1, 2, 2] * 300, "values", "median 2 → 2, mean 2 → 1.667"),
    (
        "missing",
        FLOAT,
        _normal(),
        [None] * 90 + _normal(size=910),
        "missing",
        "share missing 0 → 0.09",
    ),
    (
        "NaN",
        FLOAT,
        _normal(),
        [float("nan")] * 90 + _normal(size=910),
        "not finite",
        "share not finite 0 → 0.09",
    ),
    (
        "classes",
        PETS,
        ["cat", "dog"] * 200,
        ["cat"] * 300 + ["dog"] * 100,
        "values",
        "cat: share 0.5 → 0.75",
    ),
    ("texts", TEXT, ["red", "blue"] * 200, ["rot", "blau"] * 200, "values", "red: share 0.5 → 0"),
    ("bools", BOOL, [True, False] * 200, [True] * 400, "values", "True: share 0.5 → 1"),
    ("items", ss.Sequence(INT), [[1, 2]] * 99, [[255, 2]] * 99, "values", "mean 1.5 → 128.5"),
    (
        "lengths",
        ss.Sequence(INT),
        [[1, 2], [1]] * 99,
        [[1, 2] * 20] * 99,
        "lengths",
        "mean of lengths 1.5 → 40",
    ),
]


@pytest.mark.parametrize(
    ("feature", "old", "new", "measure", "text"),
    [case[1:] for case in DISTRIBUTIONS],
    ids=[case[0] for case in DISTRIBUTIONS],
)
def test_distributions(feature: Any, old: Any, new: Any, measure: str, text: str) -> None:
    found = compare(one(feature, old), one(feature, new))
    assert [(d.feature, d.measure, d.splits) for d in found] == [("x", measure, ("train",))]
    (difference,) = found
    assert text in difference.text
    assert difference.distance is not None
    assert difference.limit is not None
    assert difference.distance > difference.limit
    json.dumps(difference.to_json(), allow_nan=False)
    lenient = Thresholds(categories=1, numbers=1, means=1e9, missing=1)
    assert compare(one(feature, old), one(feature, new), lambda name: lenient) == []


@pytest.mark.parametrize(
    ("aspect", "old", "new", "text"),
    [
        (
            "heights",
            moments([480] * 9 + [500] * 90),
            moments([96] * 99),
            "mean of heights 498.2 → 96",
        ),
        ("areas", moments([0.1, 0.2] * 50), moments([0.5, 0.6] * 50), "mean of areas 0.15 → 0.55"),
        ("shares", {"0": 0.9, "1": 0.1}, {"0": 0.5, "1": 0.5}, "shares of index 0 0.9 → 0.5"),
        ("channel_means", [120, 110, 100], [20, 20, 20], "brightness of channel 0 120 → 20"),
        ("level", 0.2, 0.01, "level in dB -13.98 → -40"),
    ],
)
def test_media(aspect: str, old: Any, new: Any, text: str) -> None:
    sides = [profile({"x": ss.Image(None, None, storage="encoded")}) for _ in "ab"]
    for side, value in zip(sides, (old, new), strict=True):
        train = {"num_examples": 99, "features": {"x": {"num_missing": 0, aspect: value}}}
        object.__setattr__(side, "statistics", {"splits": {"train": train}})
    assert [text in d.text for d in compare(*sides)] == [True]
    assert compare(sides[0], sides[0]) == []


def test_texts_that_are_not_among_the_most_frequent_may_have_been_next() -> None:
    rng = np.random.default_rng(0)
    words = [f"{k:03}" for k in range(100)]
    halves = [rng.choice(words, 4000).tolist() for _ in "ab"]
    old, new = (one(TEXT, half) for half in halves)
    assert _top(old) != _top(new)
    assert compare(old, new, lambda name: Thresholds(categories=0)) == []


def _top(side: Profile) -> set[str]:
    assert side.statistics is not None
    return {name for name, _ in side.statistics["splits"]["train"]["features"]["x"]["top"]}


SCHEMAS: list[Any] = [
    ("added", {}, {"x": FLOAT}, "added", "x: added: kind scalar"),
    ("removed", {"x": FLOAT}, {}, "removed", "x: removed: "),
    ("text", {"x": FLOAT}, {"x": TEXT}, "type", "x: dtype float64 → string"),
    ("times", {"x": INT}, {"x": ss.Timestamp("s")}, "type", "kind scalar → timestamp"),
    (
        "items",
        {"x": ss.Sequence(INT)},
        {"x": ss.Sequence(ss.Scalar("float64"))},
        "type",
        "x: of.dtype int64 → float64",
    ),
    (
        "optional",
        {"x": INT},
        {"x": ss.Scalar("int64", optional=True)},
        "settings",
        "x: optional False → True",
    ),
    (
        "first class",
        {"x": PETS},
        {"x": ss.ClassLabel(("ant", "cat", "dog"))},
        "classes",
        "x: classes (index) added ant (0); moved cat (0 → 1), dog (1 → 2)",
    ),
    (
        "last class",
        {"x": PETS},
        {"x": ss.ClassLabel(("cat", "dog", "owl"))},
        "classes",
        "x: classes (index) added owl (2)",
    ),
    (
        "no class",
        {"x": PETS},
        {"x": ss.ClassLabel(("dog",))},
        "classes",
        "x: classes (index) removed cat (0); moved dog (1 → 0)",
    ),
    (
        "boxes",
        {"x": ss.Sequence(PETS)},
        {"x": ss.Sequence(ss.ClassLabel(("dog", "cat")))},
        "classes",
        "x: classes (index) moved cat (0 → 1), dog (1 → 0)",
    ),
    (
        "many",
        {"x": ss.ClassLabel(tuple("bcdefgh"))},
        {"x": ss.ClassLabel(tuple("abcdefgh"))},
        "classes",
        "moved b (0 → 1), c (1 → 2), d (2 → 3) and 4 more",
    ),
]


@pytest.mark.parametrize(
    ("old", "new", "measure", "text"), [case[1:] for case in SCHEMAS], ids=[c[0] for c in SCHEMAS]
)
def test_schemas(old: Features, new: Features, measure: str, text: str) -> None:
    (difference,) = compare(profile(old), profile(new))
    assert (difference.measure, difference.splits, difference.distance) == (measure, (), None)
    assert text in f"{difference.feature}: {difference.text}"


def test_label_and_structs() -> None:
    old, new = profile({"x": INT}, label="x"), profile({"x": INT})
    object.__setattr__(new, "structs", ["s"])
    assert [d.text for d in compare(old, new)] == ["label x → none", "structs none → ['s']"]


def test_a_column_that_became_text_is_one_difference() -> None:
    numbers, texts = one(FLOAT, [1.5] * 99), one(TEXT, ["1,5"] * 99)
    assert [d.measure for d in compare(numbers, texts)] == ["type"]


def test_new_classes_are_a_difference_of_the_schema() -> None:
    old, new = (
        one(PETS, ["cat", "dog"] * 500),
        one(ss.ClassLabel(("ant", "cat", "dog")), ["ant", "cat", "dog"] * 500),
    )
    assert [d.measure for d in compare(old, new)] == ["classes"]
    fewer = one(ss.ClassLabel(("ant", "cat", "dog")), ["ant", "cat", "cat", "dog"] * 500)
    assert [d.text for d in compare(new, fewer)] == ["cat: share 0.3333 → 0.5"]
    assert [d.measure for d in compare(old, fewer)] == ["classes", "values"]


def test_times_go_on() -> None:
    old, new = (list(range(start, start + 500)) for start in (0, 10_000))
    assert compare(one(ss.Timestamp("s"), old), one(ss.Timestamp("s"), new)) == []


def test_splits_are_compared_by_name() -> None:
    features = {"x": FLOAT}
    calm, high = {"x": _normal()}, {"x": _normal(50)}
    old = profile(features, train=calm, test=calm, other=calm)
    found = compare(old, profile(features, train=calm, test=high, added=high))
    assert [d.splits for d in found] == [("test",)]
    assert compare(old, profile(features, train={"x": []}, test=calm)) == []


def test_the_splits_of_a_snapshot(tmp_path: Path) -> None:
    features = {"x": FLOAT, "y": INT, "part": INT}  # which part is what divides them
    columns = {"x": _normal(), "y": [1, 2] * 500, "part": [1] * 1000}
    skewed = {"x": _normal(9), "y": [1, 2] * 500, "part": [2] * 1000}
    snapshot = put_snapshot(tmp_path / "a", features, test=skewed, train=columns, other=columns)
    found = drift_of_splits(snapshot)
    assert [(d.feature, d.splits) for d in found.differences] == [("x", ("train", "test"))]
    assert "x, train → test: median 4.969 → 8.969" in "\n".join(found.lines())
    with pytest.raises(RecipeError, match="'train' only"):
        drift_of_splits(put_snapshot(tmp_path / "b", features, train=columns))


def test_two_snapshots(tmp_path: Path) -> None:
    columns = {"x": _normal(), "y": [1, 2] * 500}
    old = put_snapshot(tmp_path / "a", {"x": FLOAT, "y": INT}, train=columns, test=columns)
    changed = {"x": _normal(50)}
    new = put_snapshot(tmp_path / "b", {"x": FLOAT}, train=changed, test=changed)
    found = drift(old, new)
    lines = list(found.lines())
    assert lines[2].startswith("y: removed")
    assert lines[4].startswith("x, train (and test): median 4.969 → 49.97, mean ")
    assert len(lines) == 6  # each kind with what to do
    shown = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert shown["old"] == {"path": str(tmp_path / "a"), "fingerprint": "0123456789abcdef"}
    assert shown["drifted"]
    assert [d["splits"] for d in shown["differences"]] == [[], ["train"], ["test"]]
    same = drift(old, old)
    assert list(same.lines())[-1] == "no drift"


def test_a_snapshot_of_an_older_version(tmp_path: Path) -> None:
    columns = {"x": _normal()}
    old = put_snapshot(tmp_path / "a", {"x": FLOAT}, train=columns)
    new = put_snapshot(tmp_path / "b", {"x": FLOAT}, train={"x": _normal(50)})
    del old.manifest.files["statistics.json"]
    found = drift(old, new)
    assert (found.differences, len(found.notes)) == ((), 1)
    assert "built by an older version" in found.notes[0]
    with pytest.raises(RecipeError, match=r"built by an older version.*Build it again"):
        drift_of_splits(old)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff",
        b"[" * 100_000,
        b'{"splits": {}}',
        b'{"splits": {"train": {"num_examples": 9, "features": {"x": []}}}}',
    ],
)
def test_edited_statistics(tmp_path: Path, content: bytes) -> None:
    columns = {"x": _normal()}
    old = put_snapshot(tmp_path / "a", {"x": FLOAT}, train=columns)
    new = put_snapshot(tmp_path / "b", {"x": FLOAT}, train=columns)
    (tmp_path / "b" / "statistics.json").write_bytes(content)
    with pytest.raises(DamagedSnapshotError, match=r"statistics\.json is damaged"):
        drift(old, new)


def test_one_of_many_classes_is_compared_with_all_records() -> None:
    names = tuple(f"k{k:04}" for k in range(1000))
    labels = [name for name in names for _ in range(20)]
    sides = [one(ss.ClassLabel(names), part) for part in (labels, [*labels, *["k0500"] * 220])]
    for side, grown in zip(sides, (20, 240), strict=True):
        assert side.statistics is not None
        facts = side.statistics["splits"]["train"]["features"]["x"]
        counts = {**dict.fromkeys(names, 20), "k0500": grown}
        top = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))[:50]
        facts |= {"top": top, "top_of": sum(counts.values())}
    assert compare(*sides) == []


def test_other_names_of_splits_are_a_difference() -> None:
    values = {"x": [1, 2, 3] * 100}
    old = profile({"x": INT}, train=values, test=values)
    new = profile({"x": INT}, fit=values, check=values)
    assert [difference.measure for difference in compare(old, new)] == ["splits"]


def test_times_that_go_missing_are_a_difference() -> None:
    stamp = ss.Timestamp("s", optional=True)
    old, new = (
        one(stamp, [None] * gaps + [k * 10**6 for k in range(500 - gaps)]) for gaps in (1, 400)
    )
    assert [difference.measure for difference in compare(old, new)] == ["missing"]
    later = one(stamp, [None, *(10**9 + k * 10**6 for k in range(499))])
    assert compare(old, later) == []


def test_figures_that_overflow_are_not_compared() -> None:
    sides = [one(FLOAT, [k % 7.0 for k in range(900)]) for _ in range(2)]
    for side in sides:
        assert side.statistics is not None
        side.statistics["splits"]["train"]["features"]["x"] |= {"mean": None, "deviation": None}
    assert compare(*sides) == []


def test_a_lock_is_the_same_for_a_snapshot_that_was_built_with_it() -> None:
    facts: dict[str, Any] = {"classes": {}, "features": {}, "label": None, "structs": []}
    locks = [
        Lock(name="homes", snapshot=16 * digit, statistics={}, **facts) for digit in ("0", "1")
    ]
    assert locks[0].digest == locks[1].digest
