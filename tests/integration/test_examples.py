"""The shipped recipes, built, and what comes of them computed anew from the data beside them."""

import datetime
import math
import re
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import snapshard as ss
from snapshard.pipelines.inspect.verify import verify
from snapshard.pipelines.recipe.shipping import load_recipe_file
from snapshard.schemas.progress import Silent

RECIPES = sorted(
    path.name
    for path in (Path(__file__).resolve().parents[2] / "examples").glob("*.py")
    if path.name not in ("demo.py", "train_with_profile.py")
)


def paragraphs(examples: Path) -> list[list[str]]:
    """The words of each paragraph of the shipped text."""
    text = (examples / "data" / "alice.txt").read_text().lower()
    return [re.findall("[a-z]+", paragraph) for paragraph in text.split("\n\n")]


@pytest.mark.parametrize("name", RECIPES)
def test_recipe_and_data_are_listed(examples: Path, name: str) -> None:
    listed = (examples / "README.md").read_text()
    assert f"`{name}`" in listed
    recipe = load_recipe_file(examples / name)
    assert isinstance(recipe.source.settings(), dict)
    data = Path(str(recipe.files.url)).name
    assert f"`data/{data}" in listed


def test_dowjones_in_windows(lab: Any, tmp_path: Path, examples: Path) -> None:
    snapshot = lab.build(examples / "dowjones.py", tmp_path)
    verify(snapshot, progress=Silent())
    assert_windows(lab, snapshot, examples / "data" / "dowjones.csv")


@pytest.mark.full_data
@pytest.mark.parametrize(
    "name",
    [
        "dowjones",
        pytest.param("titanic", marks=pytest.mark.slow),  # tensorflow-transform, as below
    ],
)
def test_with_the_full_table(
    lab: Any, full_data: Path, examples: Path, tmp_path: Path, name: str
) -> None:
    table = full_data / "tabular" / f"{name}.csv"
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / f"{name}.csv").symlink_to(table)
    (tmp_path / f"{name}.py").write_text((examples / f"{name}.py").read_text())
    snapshot = lab.build(tmp_path / f"{name}.py", tmp_path / "out")
    verify(snapshot, progress=Silent())
    {"dowjones": assert_windows, "titanic": assert_titanic}[name](lab, snapshot, table)


def assert_windows(lab: Any, snapshot: ss.Snapshot, table: Path) -> None:
    """Windows of 12 → 3 months, each from one of the parts that follow each other in time."""
    rows = [(row["Date"], np.float32(row["Price"])) for _, row in lab.csv_rows(table)]
    edges = [0, *(len(rows) * tenths // 10 for tenths in (8, 9, 10))]
    wanted: dict[str, list[Any]] = defaultdict(list)
    for split, start, stop in zip(snapshot.manifest.splits, edges, edges[1:], strict=False):
        for first in range(start, stop - 14):
            window = rows[first : first + 15]
            last = datetime.datetime.fromisoformat(window[11][0]).replace(tzinfo=datetime.UTC)
            values = [value for _, value in window]
            wanted[split].append((int(last.timestamp()), values[:12], values[12:]))
    found: dict[str, list[Any]] = defaultdict(list)
    for _, split, row in lab.read_back(snapshot).rows():
        window = (int(row["Date"]), row["Price"].tolist(), row["target"].tolist())
        found[split].append(window)
    assert {split: sorted(windows) for split, windows in found.items()} == wanted
    assert snapshot.manifest.label == "target"
    inputs, _ = snapshot.reader().dataset("train", 8, as_supervised=True).element_spec
    assert inputs.shape.as_list() == [None, 12]  # the time is no input


def test_text_packed_into_rows(lab: Any, tmp_path: Path, examples: Path) -> None:
    snapshot = lab.build(examples / "text_packed.py", tmp_path)
    verify(snapshot, progress=Silent())
    vocabulary = (examples / "data" / "alice_words.txt").read_text().split()
    numbers = {word: number for number, word in enumerate(vocabulary)}
    wanted = Counter(
        tuple(numbers.get(word, 1) for word in words[:128]) for words in paragraphs(examples)
    )
    found: Counter[tuple[int, ...]] = Counter()
    for _, _, row in lab.read_back(snapshot).rows():
        segments = row["text_segments"]
        assert not row["text"][segments == 0].any()
        for segment in range(1, int(segments.max()) + 1):
            held = segments == segment
            assert row["text_positions"][held].tolist() == list(range(held.sum()))
            found[tuple(row["text"][held].tolist())] += 1
    assert found == wanted


@pytest.mark.slow  # tensorflow-transform in a child process
def test_titanic_is_analyzed_on_train(lab: Any, tmp_path: Path, examples: Path) -> None:
    snapshot = lab.build(examples / "titanic.py", tmp_path)
    verify(snapshot, progress=Silent())
    assert_titanic(lab, snapshot, examples / "data" / "titanic.csv")


def assert_titanic(lab: Any, snapshot: ss.Snapshot, table: Path) -> None:
    """z-scores, vocabularies, buckets and principal components, from the train split alone."""
    rows = dict(lab.csv_rows(table))
    held = lab.read_back(snapshot)
    assert sorted(held.ids) == sorted(rows)
    ids = np.array(held.ids)
    train = np.array(held.splits) == "train"
    scaled = []
    for name in ("age", "fare", "sibsp", "parch"):
        cells = np.array([float(rows[id_][name] or "nan") for id_ in ids])
        known = cells[train & ~np.isnan(cells)]
        wanted = np.nan_to_num((cells - known.mean()) / known.std(), nan=0.0)
        np.testing.assert_allclose(held.values[name], wanted, atol=1e-4)
        scaled.append(wanted)
    assert held.values["no_age"].tolist() == [not rows[id_]["age"] for id_ in ids]
    for name in ("sex", "embark_town", "deck", "who"):
        words = np.array([rows[id_][name] or "unknown" for id_ in ids])
        counts = Counter(words[train].tolist())
        vocabulary = sorted(counts, key=lambda word: (counts[word], word), reverse=True)
        assert held.values[name].tolist() == [
            vocabulary.index(word) if word in vocabulary else -1 for word in words.tolist()
        ]
    buckets = held.values["fare_bucket"]
    fares = np.array([float(rows[id_]["fare"]) for id_ in ids])
    assert sorted(set(buckets.tolist())) == [0, 1, 2, 3, 4]
    assert (np.diff(buckets[np.argsort(fares, kind="stable")]) >= 0).all()
    assert np.bincount(buckets[train]).min() > 0.15 * train.sum()
    numbers = np.stack(scaled, axis=1)
    _, directions = np.linalg.eigh(np.cov(numbers[train].T))
    wanted = numbers @ directions[:, ::-1][:, :2]
    # A direction's sign is anyone's choice.
    np.testing.assert_allclose(np.abs(held.values["components"]), np.abs(wanted), atol=1e-2)
    names = snapshot.reader().CLASS_NAMES
    survived = held.values["survived"].tolist()
    said = [names[value] if names else str(value) for value in survived]
    assert said == [rows[id_]["survived"] for id_ in ids]


@pytest.mark.slow  # tensorflow-transform in a child process
def test_tfidf_of_paragraphs(lab: Any, tmp_path: Path, examples: Path) -> None:
    snapshot = lab.build(examples / "text_tfidf.py", tmp_path)
    verify(snapshot, progress=Silent())
    held = lab.read_back(snapshot)
    raw = (examples / "data" / "alice.txt").read_text()
    texts = {
        f"alice.txt#{len(raw[: found.start()].encode())}": re.findall("[a-z]+", found[0].lower())
        for found in re.finditer(r"(?:.+\n)+", raw)
    }
    assert sorted(held.ids) == sorted(texts)
    train = [
        texts[id_] for id_, split in zip(held.ids, held.splits, strict=True) if split == "train"
    ]
    vocabulary = (Path(snapshot.path) / "transform_fn" / "assets" / "words").read_text().split()
    assert len(vocabulary) == 100

    def number(word: str) -> int:
        return vocabulary.index(word) if word in vocabulary else 100

    frequencies: Counter[int] = Counter()
    for words in train:
        frequencies.update({number(word) for word in words})
    for id_, _, row in held.rows():
        counts = Counter(number(word) for word in texts[id_])
        found = dict(zip(row["words"].tolist(), row["weights"].tolist(), strict=True))
        assert sorted(found) == sorted(counts)
        for word, weight in found.items():
            # As tft.tfidf smooths: 1 + log((documents + 1) / (documents with the word + 1)).
            telling = 1 + math.log((len(train) + 1) / (frequencies[word] + 1))
            assert weight == pytest.approx(counts[word] / len(texts[id_]) * telling, rel=1e-4)
