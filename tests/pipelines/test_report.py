"""The report: what it finds in data with planted faults, how it is rendered, written and served."""

import html.parser
import http.client
import random
import re
import shutil
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image as PillowImage

import snapshard as ss
from snapshard.pipelines.inspect.report import (
    charts,
    evidence,
    findings,
    odd_images,
    page,
    pictures,
)
from snapshard.pipelines.inspect.report.evidence import Evidence, Sample, gather
from snapshard.pipelines.inspect.report.facts import Limits, facts_of
from snapshard.pipelines.snapshot import Snapshot
from snapshard.schemas.errors import RecipeError
from snapshard.schemas.features import Features
from snapshard.schemas.manifest import Manifest, ShardEntry, SplitEntry
from snapshard.schemas.progress import Silent

Call = Callable[..., tuple[int, str, str]]
NUMS = {"train": 800, "validation": 100, "test": 100}


def made(
    features: Features,
    *,
    values: Mapping[str, list[Any]] | None = None,
    stats: Mapping[str, Mapping[str, Any]] | None = None,
    label: str | None = None,
    counts: Mapping[str, Mapping[str, int]] | None = None,
    **manifest: Any,
) -> Evidence:
    """Evidence made by hand: sampled values (all of train) and statistics by split."""
    splits = {}
    for name, num in NUMS.items():
        file = f"{name}-00000-of-00001.tfrecord"
        shard = ShardEntry(
            file=file, num_examples=num, num_bytes=9 * num, sha256="", label_counts={}
        )
        shard = shard.model_copy(update={"label_counts": dict((counts or {}).get(name, {}))})
        splits[name] = SplitEntry(num_examples=num, num_bytes=9 * num, shards=[shard])
    content = Manifest(
        format_version=1,
        name="made",
        fingerprint="0123456789abcdef",
        features=dict(features),
        label=label,
        compression="none",
        num_rejects=0,
        seed=0,
        versions={"snapshard": "1"},
        splits=splits,
        files={},
        **manifest,
    )
    num = len(next(iter((values or {}).values()), []))
    sample = Sample(ids=[f"r{k}" for k in range(num)], splits=["train"] * num, values=values or {})
    statistics = None
    if stats is not None:
        statistics = {
            "splits": {
                name: {"num_examples": NUMS[name], "features": one} for name, one in stats.items()
            }
        }
    return Evidence(
        snapshot=Snapshot("/data/made", content), build={}, statistics=statistics, sample=sample
    )


def numeric_stats(values: Any, edges: Any) -> dict[str, Any]:
    """The statistics of numbers, as a snapshot has them."""
    array = np.asarray(values, np.float64)
    return {
        "num_missing": 0,
        "count": len(array),
        "num_zeros": 0,
        "num_non_finite": 0,
        "min": float(array.min()),
        "max": float(array.max()),
        "mean": float(array.mean()),
        "deviation": float(array.std()),
        "distinct": {"count": len(np.unique(array)), "exact": True},
        "quantiles": np.quantile(array, np.linspace(0, 1, 11)).tolist(),
        "histogram": {
            "edges": np.asarray(edges).tolist(),
            "counts": np.histogram(array, edges)[0].tolist(),
        },
    }


def top_stats(values: list[str], most: int = 50) -> dict[str, Any]:
    names, counts = np.unique(values, return_counts=True)
    order = np.argsort(-counts)[:most]
    top = [[str(names[at]), int(counts[at])] for at in order]
    return {"num_missing": 0, "distinct": {"count": len(names)}, "top": top, "top_of": len(values)}


def rows_of(evidence: Evidence, look: Any) -> dict[str, tuple[str, ...]]:
    """The rows of a finding by their first cell; empty if nothing was found."""
    return {row[0]: row[1:] for finding in look(evidence) for row in finding.rows}


class _Elements(html.parser.HTMLParser):
    """Collects the elements of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def check_page(content: bytes) -> str:
    """Nothing runs or is loaded from elsewhere, pictures have texts, headings are in order."""
    assert len(content) <= page.MAX_BYTES
    elements = _Elements(content.decode())
    levels = [1]
    for tag, attributes in elements.found:
        assert tag not in ("script", "iframe", "object", "link", "form", "input")
        assert not any(name.startswith("on") for name in attributes)
        assert (attributes.get("href") or "#").startswith("#")
        assert (attributes.get("src") or "data:image/jpeg;base64,").startswith("data:image/jpeg")
        if tag == "img":
            assert attributes["alt"]
        if tag == "svg":
            assert attributes.get("aria-label") or attributes.get("aria-hidden")
        if tag in ("h1", "h2", "h3", "h4"):
            assert int(tag[1]) <= levels[-1] + 1
            levels.append(int(tag[1]))
    return elements.text


class TestFindings:
    def test_a_column_that_predicts_the_label(self) -> None:
        rng = np.random.default_rng(0)
        label = rng.integers(0, 3, 400).tolist()
        features: Features = {
            "label": ss.ClassLabel(("a", "b", "c")),
            "code": ss.Scalar("string"),
            "shifted": ss.Scalar("float32"),
            "id": ss.Scalar("string"),
            "noise": ss.Scalar("float32"),
            "gaps": ss.Scalar("float32", optional=True),
            "filled": ss.Scalar("string", optional=True),
        }
        values = {
            "label": label,
            "code": [b"xyz"[k : k + 1] for k in label],
            "shifted": [10.0 * k + rng.random() for k in label],
            "id": [f"r{k}".encode() for k in range(400)],
            "noise": rng.random(400).tolist(),
            "gaps": [None if k == 2 else float(k) for k in label],
            "filled": [f"{i}".encode() if k == 2 else None for i, k in enumerate(label)],
        }
        found = rows_of(made(features, values=values, label="label"), findings.leaks)
        assert found.pop("shifted")[0] >= "97"  # a bin may span two classes
        assert found == {name: ("100 %",) for name in ("code", "gaps")}

    def test_a_column_that_predicts_a_number(self) -> None:
        rng = np.random.default_rng(0)
        price = rng.random(200)
        values = {"price": price, "cents": price * 100, "size": price + rng.random(200)}
        features: Features = dict.fromkeys(values, ss.Scalar("float64"))
        features |= {"word": ss.Scalar("string"), "text": ss.Text(optional=True)}
        listed = {k: v.tolist() for k, v in values.items()}
        listed |= {"word": [b"no"] * 200, "text": [None, b"12"] * 100}
        evidence = made(features, values=listed, label="price")
        assert set(rows_of(evidence, findings.leaks)) == {"cents"}

    @pytest.mark.parametrize("seed", range(20))
    def test_random_halves_do_not_differ(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        features: Features = {"x": ss.Scalar("float32"), "word": ss.Scalar("string")}
        edges = np.linspace(-5, 5, 21)
        stats = {
            split: {
                "x": numeric_stats(rng.normal(size=num), edges),
                "word": top_stats([f"w{int(k)}" for k in rng.exponential(60, num)], most=20),
            }
            for split, num in NUMS.items()
        }
        assert not rows_of(made(features, stats=stats), findings.differing_splits)

    def test_a_split_that_is_quieter(self) -> None:
        sizes = {"count": 900, "min": 10, "max": 90, "mean": 50.0, "deviation": 20.0}
        stats = {
            split: {"sound": {"num_missing": 0, "lengths": sizes, "level": level}}
            for split, level in (("train", 0.06), ("validation", 0.06), ("test", 0.01))
        }
        found = rows_of(made({"sound": ss.Audio()}, stats=stats), findings.differing_splits)
        assert [row[0] for row in found.values()] == ["test"]
        assert "level in dB" in found["sound"][-1]

    def test_a_split_that_differs(self) -> None:
        rng = np.random.default_rng(0)
        edges = np.linspace(-5, 5, 21)
        stats: dict[str, dict[str, Any]] = {}
        for split, num in NUMS.items():
            shift = 1.5 if split == "test" else 0
            words = ["cat"] * (num // 2) + ["dog" if shift else "cow"] * (num - num // 2)
            gaps = {"num_missing": num // 2 if split == "validation" else 0, "count": num // 2}
            stats[split] = {
                "x": numeric_stats(rng.normal(size=num) + shift, edges),
                "word": top_stats(words),
                "gaps": gaps,
                "part": {**top_stats([split] * num), "distinct": {"count": 1}},
                "day": numeric_stats(rng.random(num) + 2 * list(NUMS).index(split), [0, 2, 4, 6]),
            }
        features: Features = {
            "x": ss.Scalar("float32"),
            "word": ss.Scalar("string"),
            "gaps": ss.Scalar("float32", optional=True),
            "part": ss.Scalar("string"),  # the column that divides the splits
            "day": ss.Timestamp("s"),  # in the order of which they are
        }
        found = rows_of(made(features, stats=stats), findings.differing_splits)
        assert {name: row[0] for name, row in found.items()} == {
            "x": "test",
            "word": "test",
            "gaps": "validation",
        }
        assert found["gaps"][1] == "share missing 0 → 0.5"

    def test_columns_that_add_nothing(self) -> None:
        values = {
            "x": [k * 7 % 50 for k in range(100)],
            "same": [k * 7 % 50 for k in range(100)],
            "ship": [b"RMS"] * 100,
            "half": [1.5, np.nan] * 50,
            "nan": [np.nan] * 100,
            "key": [f"k{k}".encode() for k in range(100)],
        }
        stats = {
            split: {
                "ship": top_stats(["RMS"] * num),
                "half": {"count": num // 2, "min": 1.5, "distinct": {"count": 1}}
                | {"num_non_finite": num // 2},
                "nan": {"count": 0, "distinct": {"count": 0}, "num_non_finite": num},
                "key": {"count": num, "distinct": {"count": num}, "lengths": {"mean": 4}},
            }
            for split, num in NUMS.items()
        }
        features: Features = {
            "x": ss.Scalar("int64"),
            "same": ss.Scalar("int64"),
            "ship": ss.Scalar("string"),
            "half": ss.Scalar("float32"),
            "nan": ss.Scalar("float32"),
            "key": ss.Scalar("string"),
        }
        found = rows_of(made(features, values=values, stats=stats), findings.useless_columns)
        assert found["same"] == ("equal to x in all 100 sampled records",)
        assert found["ship"] == ("always RMS",)
        assert found["half"] == ("always 1.5, or NaN or infinite",)
        assert found["nan"] == ("always NaN or infinite",)
        assert found["key"][0].startswith("nearly unique")
        assert set(found) == {"same", "ship", "half", "nan", "key"}

    def test_extreme_values(self) -> None:
        rng = np.random.default_rng(0)
        heights = rng.normal(170, 8, 800)
        heights[3] = 17_000
        stats = {"train": {"height": numeric_stats(heights, [0, 20_000])}}
        stats["train"]["price"] = numeric_stats(rng.lognormal(size=800), [0, 100])
        features: Features = dict.fromkeys(("height", "price"), ss.Scalar("float32"))
        found = rows_of(made(features, stats=stats), findings.extreme_values)
        assert list(found) == ["height"]
        assert found["height"][:2] == ("train", "max 17,000")

    def test_rare_classes_and_small_splits(self) -> None:
        counts = {
            "train": {"cat": 700, "dog": 90, "eel": 10},
            "validation": {"cat": 95, "dog": 5},
            "test": {"cat": 90, "dog": 10},
        }
        features: Features = {"label": ss.ClassLabel(("cat", "dog", "eel", "yak"))}
        evidence = made(features, label="label", counts=counts)
        assert list(rows_of(evidence, findings.imbalance))[:2] == ["yak", "eel"]
        absent = rows_of(evidence, findings.absent_classes)
        assert absent == {name: ("eel, yak",) for name in ("validation", "test")} | {
            "train": ("yak",)
        }
        facts = facts_of(evidence, Limits())
        assert facts.rarest == "yak (0), eel (10), dog (105)"
        assert [row[0] for row in facts.classes] == ["cat", "dog", "eel", "yak"]

    def test_equal_and_missing_values_of_the_manifest(self) -> None:
        features: Features = {"x": ss.Scalar("float32", optional=True)}
        evidence = made(features, shared_contents={"train, test": 3}, num_missing={"x": 250})
        assert rows_of(evidence, findings.shared_contents) == {"train, test": ("3",)}
        assert rows_of(evidence, findings.missing_values) == {"x": ("25 %", "250 of 1,000")}

    def test_images_of_another_class(self) -> None:
        rng = np.random.default_rng(0)
        images, classes = [], []
        for number in range(120):
            pixels = rng.integers(90, 110, (48, 48, 1)).astype(np.uint8)
            at = int(rng.integers(8, 32))
            kind = number % 3
            for width in range(8):
                if kind == 0:
                    pixels[at + width] = 250
                elif kind == 1:
                    pixels[:, at + width] = 250
                else:
                    pixels[range(40), range(width, 40 + width)] = 250
            images.append(pixels)
            classes.append("abc"[kind])
        classes[30], classes[31] = "b", "c"
        vectors = odd_images.edge_vectors(images, ss.Image(48, 48, channels=1))
        found, accuracy = odd_images.find_odd(vectors, classes)
        assert {(one.row, one.looks_like) for one in found} == {(30, "a"), (31, "b")}
        assert classes[found[0].neighbour] == found[0].looks_like
        assert accuracy > 0.9
        shuffled = random.Random(0).sample(classes, len(classes))
        assert odd_images.find_odd(vectors, shuffled)[0] == []

    def test_many_images_need_little_memory(self) -> None:
        images = np.random.default_rng(0).integers(0, 256, (50, 16, 16, 1), np.uint8)
        values = [images[number % 50] for number in range(3_000)]
        tracemalloc.start()
        vectors = odd_images.edge_vectors(values, ss.Image(16, 16, channels=1))
        odd_images.find_odd(vectors, [str(number % 2) for number in range(3_000)])
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 70e6  # the kernel of 3,000 images takes 36 MB, their vectors 12

    def test_sounds_of_another_class(self) -> None:
        rng = np.random.default_rng(0)
        sounds, classes = [], []
        for number in range(90):
            seconds = np.arange(4000 + int(rng.integers(2000))) / 8000
            tone = np.sin(2 * np.pi * (300 * 3 ** (number % 3) + rng.integers(60)) * seconds)
            sounds.append((0.3 * tone + 0.01 * rng.normal(size=len(tone))).astype(np.float32))
            classes.append(number % 3)
        classes[30], classes[31] = 1, 2
        features: Features = {
            "sound": ss.Audio(rate=8000),
            "label": ss.ClassLabel(("low", "middle", "high")),
        }
        counts = {"train": {"low": 30, "middle": 30, "high": 30}}
        values: dict[str, list[Any]] = {"sound": sounds, "label": classes}
        evidence = made(features, values=values, label="label", counts=counts)
        (found,) = findings.odd_images(evidence)
        assert found.title == "Sounds that may have the wrong label"
        assert {(row[0], row[-1]) for row in found.rows} == {("r30", "low"), ("r31", "middle")}
        text = check_page(page.render([evidence]))
        assert found.title in text
        assert f"exclude={found.ids}" in text


class TestPictures:
    def test_boxes_and_masks_are_drawn(self) -> None:
        features: Features = {
            "image": ss.Image(80, 80),
            "boxes": ss.BoundingBoxes(labels="kinds"),
            "kinds": ss.Sequence(ss.ClassLabel(("cat", "dog"))),
            "mask": ss.Mask(80, 80, names=("none", "road")),
        }
        mask = np.zeros((80, 80, 1), np.uint8)
        mask[40:] = 1
        record = {
            "image": None,
            "boxes": np.array([[0.1, 0.1, 0.3, 0.5], [0.1, 0.6, 0.3, 0.9]], np.float32),
            "kinds": np.array([1, 0]),
            "mask": mask,
        }
        image = PillowImage.new("RGB", (80, 80), "white")
        note = pictures.draw_annotations(image, "image", record, features)
        assert note == "1 dog, 2 cat, 1 road"
        pixels = np.asarray(image).astype(int)
        assert (pixels[60] != 255).any(axis=1).all()  # all of the mask
        assert (pixels[8, 10:38] != 255).any(axis=1).all()  # the upper edge of the first box
        assert (pixels[30:39, 20] == 255).all()

    @pytest.mark.parametrize("content", [b"", b"\xff\xd8\xff", b"GIF89a" + bytes(50)])
    def test_a_file_that_is_no_image(self, content: bytes) -> None:
        assert pictures.opened(content, 96) is None

    def test_sounds(self) -> None:
        tone = np.sin(np.arange(8_000) * 2 * np.pi * 1_000 / 8_000).astype(np.float32)
        shades = np.asarray(pictures.spectrogram(tone)).astype(int)
        assert shades.shape == (48, 150)
        # 1 kHz of 4 kHz: a quarter from below, dark on light.
        assert abs(int(shades.mean(axis=1).argmin()) - 36) <= 2
        numbers = pictures.waveform(tone).strip("Mz").replace("L", " ").split()
        heights = [float(number) for number in numbers[1::2]]
        assert (min(heights), max(heights)) == (1.0, 39.5)

    def test_a_matrix_of_floats(self) -> None:
        value = np.zeros((50, 10), np.float32)
        value[:, 0] = 5  # the lowest band: the bottom row
        image = pictures.thumbnail(value, ss.Tensor("float32", (None, 10)), 96)
        assert image is not None
        shades = np.asarray(image.convert("L"))
        assert shades.shape == (10, 50)
        assert (shades[-1] == 0).all()
        assert (shades[:-1] == 255).all()

    def test_an_album_that_is_full(self) -> None:
        album = pictures.Album(1_500)
        image = PillowImage.new("RGB", (20, 20))
        assert [album.uri(image) is None for _ in range(3)] == [False, True, True]


class TestCharts:
    def test_bars_of_a_histogram_are_its_shares(self) -> None:
        stats = {"histogram": {"edges": [0, 1, 2, 3, 900], "counts": [10, 0, 20, 5]}}
        chart = charts.histogram([("train", stats), ("none", {})])
        assert chart is not None
        assert [row.title for row in chart.rows] == ["train"]
        assert chart.rows[0].outline == "M0 28v-13h99V28zM200 28v-26h99V28zM300 28v-6.5h99V28z"
        assert [text for *_, text in chart.axis] == ["0", "2", "3 to 900"]

    def test_bars_are_in_proportion(self) -> None:
        chart = charts.bars([("a", {"x": 30, "y": 10}, 40), ("b", {"x": 20}, 20)], most=1)
        assert chart is not None
        assert [name for _, name in chart.names] == ["x"]
        assert [text for *_, text in chart.texts] == ["75 %", "100 %"]
        assert chart.num_hidden == 1
        chart = charts.bars([("a", {"9": 30, "10": 70}, 100)], most=9, order=float)
        assert chart is not None
        assert [name for _, name in chart.names] == ["9", "10"]

    @pytest.mark.parametrize(("days", "axis"), [(400, "1970-07-20"), (0.5, "1970-01-01T06:00:00")])
    def test_times_are_dates(self, days: float, axis: str) -> None:
        edges = np.linspace(0, days * 86_400, 21)
        stats = {s: {"t": numeric_stats(edges, edges)} for s in NUMS}
        evidence = made({"t": ss.Timestamp("s")}, stats=stats)
        (chart,) = facts_of(evidence, Limits()).features[0].charts
        assert isinstance(chart, charts.Histogram)
        assert [text for *_, text in chart.axis][1] == axis


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Snapshot:
    """A table with a leaked column, gaps and 14 bad rows, and names that are hostile."""
    folder = tmp_path_factory.mktemp("table")
    rng = np.random.default_rng(0)
    label = rng.integers(0, 3, 414)
    classes = ["<script>alert(1)</script>", "\u202egnp.exe \"'>", "שלום" * 75]
    frame = pd.DataFrame(
        {
            "label": [classes[k] for k in label],
            "<img src=x onerror=alert(2)>": label * 3,
            "age": [None if k % 4 == 0 else k % 80 for k in range(414)],
            "height": ["tall" if k % 30 == 7 else f"{k % 90}.5" for k in range(414)],
        }
    )
    frame.to_csv(folder / "people.csv", index=False)
    types = {
        "label": ss.ClassLabel(classes),
        "height": ss.Scalar("float32"),
        "age": ss.Scalar("float32", optional=True),
    }
    recipe = ss.Recipe(
        name="people",
        source=ss.Csv(str(folder / "people.csv"), label="label", types=types),
        splits=ss.Splits(train=0.8, test=0.2),
        max_rejects=14,
        description="<b>People</b> & others",
    )
    return ss.build(recipe, folder / "out")


class Recorder(Silent):
    """Keeps the warnings of a build."""

    def __init__(self) -> None:
        self.warnings: list[str] = []

    def warn(self, message: str) -> None:
        self.warnings.append(message)


def numbers_file(folder: Path) -> Path:
    (folder / "numbers.csv").write_text("x,y\n" + "".join(f"{k},{k * k}\n" for k in range(200)))
    return folder / "numbers.csv"


def numbers_recipe(folder: Path) -> ss.Recipe:
    return ss.Recipe(name="numbers", source=ss.Csv(str(numbers_file(folder))))


class TestPage:
    def test_what_a_stranger_looks_for(self, call: Call, table: Snapshot) -> None:
        code, printed, _ = call("report", table.path)
        place = Path(table.path) / "report.html"
        assert (code, printed.startswith(f"wrote {place}, ")) == (0, True)
        text = check_page(place.read_bytes())
        assert "14 × wrong type" in text
        assert "column 'height' is 'tall', expected float32" in text
        assert "A column alone predicts the label" in text
        missing = table.manifest.num_missing["age"]
        assert f"{missing} of 400" in text
        assert "<b>People</b> & others" in text  # as text, not as an element
        assert f"reader = ss.load('{table.path}').reader()" in text
        assert call("verify", table.path)[0] == 0

    def test_names_are_text(self, table: Snapshot) -> None:
        content = page.render([gather(table)])
        text = check_page(content)
        assert b"<script" not in content
        assert b"<img src=x" not in content
        assert "\u202e" not in text
        assert "\\u202egnp.exe" in text
        assert "<script>alert(1)</script>" in text
        assert f"{'שלום' * 30} …" in text  # 300 characters are cut

    def test_without_statistics_it_says_so(self) -> None:
        evidence = made({"x": ss.Scalar("float32", optional=True)}, num_missing={"x": 10})
        text = check_page(page.render([evidence]))
        assert "built by an older version" in text
        assert "1 % missing (10 of 1,000)" in text

    @pytest.mark.parametrize(
        "label", ["vector", "words", "moment", "flag", "price", "kind", "image"]
    )
    def test_every_kind_of_feature(self, label: str) -> None:
        num = 60
        rng = np.random.default_rng(0)
        features: Features = {
            "vector": ss.Tensor("float32", (3,)),
            "words": ss.Sequence(ss.Scalar("string"), optional=True),
            "moment": ss.Timestamp("s", optional=True),
            "flag": ss.Scalar("bool", optional=True),
            "price": ss.Scalar("float64", optional=True),
            "kind": ss.ClassLabel(("a", "b"), optional=True),
            "image": ss.Image(),
            "sound": ss.Audio(),
            "clip": ss.Sequence(ss.Image(storage="encoded")),
            "deep": ss.Image(8, 8, channels=1, dtype="uint16"),
        }
        sizes = [(int(a), int(b), 3) for a, b in rng.integers(1, 30, (num, 2))]
        values: dict[str, list[Any]] = {
            "vector": [*np.ones((num, 3), np.float32)],
            "words": [np.array([b"\xff\xfe", b"x"], object)] * num,
            "moment": [np.int64(2**62)] * num,
            "flag": [np.bool_(k % 2) for k in range(num)],
            "price": [np.float64("nan")] * num,
            "kind": [np.int64(k % 2) for k in range(num)],
            "image": [np.zeros(size, np.uint8) for size in sizes],
            "sound": [np.zeros(k % 3, np.float32) for k in range(num)],
            "clip": [np.array([b"no image"] * (k % 2), object) for k in range(num)],
            "deep": [np.full((8, 8, 1), 65_535, np.uint16)] * num,
        }
        for column in list(features)[1:6]:
            values[column][0] = None
        nothing = {"count": 0, "min": None, "max": None, "mean": None, "deviation": None}
        one = {name: {"num_missing": 1, **nothing} for name in features}
        stats = {split: one for split in NUMS}
        counts = {"train": {"a": 400, "b": 400}} if label == "kind" else None
        evidence = made(features, values=values, stats=stats, label=label, counts=counts)
        text = check_page(page.render([evidence]))
        assert "[1, 1, 1]" in text
        assert "missing" in text

    def test_records_that_cannot_be_read(self, table: Snapshot) -> None:
        gone = Snapshot("/nowhere/at/all", table.manifest)
        evidence = gather(gone)
        assert "could not be read" in evidence.sample.trouble
        assert "could not be read" in check_page(page.render([evidence]))

    def test_two_snapshots(self, call: Call, table: Snapshot, tmp_path: Path) -> None:
        code, _, errors = call("report", table.path, table.path)
        assert code == 2
        assert "name it with --output FILE" in errors
        code, _, _ = call("report", table.path, table.path, "-o", tmp_path / "both.html")
        text = check_page((tmp_path / "both.html").read_bytes())
        assert (code, text.count("14 × wrong type")) == (0, 2)
        assert "None: the same types, and distributions that differ by no more" in text

    def test_how_two_snapshots_differ(self) -> None:
        rng = np.random.default_rng(0)
        sides = []
        for factor, names in ((1, ("cat", "dog")), (100, ("ant", "cat", "dog"))):
            values = rng.lognormal(10, 1, 800) * factor
            edges = np.linspace(0, values.max(), 20)
            one = {"price": numeric_stats(values, edges), "kind": {"num_missing": 0}}
            stats = dict.fromkeys(NUMS, one)
            features: Features = {"price": ss.Scalar("float64"), "kind": ss.ClassLabel(names)}
            sides.append(made(features, stats=stats))
        text = check_page(page.render(sides))
        where = r"price, train \(and validation, test\)"
        assert re.search(where + r": median \d{2},\d{3} → \d,\d{3},\d{3}, mean .* allowed", text)
        assert "added ant (0); moved cat (0 → 1), dog (1 → 2)" in text
        assert "train again; or keep the old indexes" in text

    @pytest.mark.parametrize(("num", "most"), [(300, 2.0), (5_000, 10.0)])
    def test_many_features(self, num: int, most: float) -> None:
        rng = np.random.default_rng(0)
        edges = np.linspace(-5, 5, 21)
        one = {s: numeric_stats(rng.normal(size=n), edges) for s, n in NUMS.items()}
        names = [f"column_{k:04}_{'x' * 60}" for k in range(num)]
        stats = {split: dict.fromkeys(names, one[split]) for split in NUMS}
        evidence = made(dict.fromkeys(names, ss.Scalar("float32")), stats=stats)
        begun = time.process_time()
        content = page.render([evidence])
        assert time.process_time() - begun < most
        text = check_page(content)
        assert names[-1] in text
        assert content.count(b"<svg") >= 300
        assert ("Only 300 features have a chart" in text) == (num > 300)

    def test_a_page_that_is_too_long_shows_less(self) -> None:
        names = [f"{k}" + "<" * 200 for k in range(5_000)]  # each "<" is four characters
        evidence = made(dict.fromkeys(names, ss.Scalar("float32")))
        assert "and 2,500 more" in check_page(page.render([evidence]))


def test_open_serves_the_page_on_loopback_only_under_its_own_name(table: Snapshot) -> None:
    urls: list[str] = []
    ready = threading.Event()

    def started(url: str) -> None:
        urls.append(url)
        ready.set()

    arguments = {"port": 0, "started": started, "browser": False}
    threading.Thread(target=page.serve_page, args=(table,), kwargs=arguments, daemon=True).start()
    assert ready.wait(60)
    address = urls[0].removeprefix("http://").rstrip("/")
    answers = []
    for path, host in (("/", address), ("/", "evil.example:80"), ("/manifest.json", address)):
        connection = http.client.HTTPConnection(address, timeout=10)
        connection.request("GET", path, headers={"Host": host})
        answer = connection.getresponse()
        answers.append(answer.status)
        content = answer.read()
        connection.close()
        if answer.status == 200:
            check_page(content)
    assert answers == [200, 404, 404]
    assert address.startswith("127.0.0.1:")
    with pytest.raises(RecipeError, match="--port"):
        page.serve_page(table, port=70_000, started=started, browser=False)


class TestInABuild:
    def test_a_small_build_makes_it(self, table: Snapshot) -> None:
        assert "14 × wrong type" in check_page((Path(table.path) / "report.html").read_bytes())
        assert "report.html" not in table.manifest.files

    def test_one_that_would_take_long_does_not(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(evidence, "expected_seconds", lambda _: 0.31)
        monkeypatch.setattr(page, "write_report", None)
        snapshot = ss.build(numbers_recipe(tmp_path), tmp_path / "out")
        assert not (Path(snapshot.path) / "report.html").exists()

    def test_a_report_that_fails_fails_no_build(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*_: Any) -> None:
            raise ZeroDivisionError("odd data")

        monkeypatch.setattr(page, "write_report", fail)
        recorded = Recorder()
        snapshot = ss.build(numbers_recipe(tmp_path), tmp_path / "out", progress=recorded)
        assert recorded.warnings[-1] == "The report was not written: odd data"
        assert Snapshot.open(snapshot.path).manifest.num_rejects == 0

    def test_a_build_that_makes_none_loads_nothing_for_it(self, tmp_path: Path) -> None:
        names = ("jinja2", "snapshard.pipelines.inspect.report.page")
        code = (
            "import sys, snapshard as ss\n"
            "from snapshard.pipelines import build\n"
            "build._REPORT_S = build._REPORT_SHARE = 0\n"
            f"source = ss.Csv({str(numbers_file(tmp_path))!r})\n"
            f"ss.build(ss.Recipe(name='n', source=source), {str(tmp_path / 'out')!r})\n"
            f"print([name for name in {names} if name in sys.modules])"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert done.stdout.strip() == "[]", done.stderr


@pytest.fixture(scope="module")
def chromium() -> Callable[..., str]:
    """Runs Chromium on a page and returns what it prints."""
    path = shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("needs Chromium: apt-get install chromium")

    def run(file: Path, *options: str) -> str:
        always = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars")
        command = [path, *always, *options, file.as_uri()]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
        return done.stdout

    return run


@pytest.mark.slow
class TestInABrowser:
    @pytest.mark.parametrize("width", [1400, 400])
    def test_nothing_is_wider_than_the_screen(
        self, chromium: Callable[..., str], table: Snapshot, tmp_path: Path, width: int
    ) -> None:
        content = page.render([gather(table)]).decode()
        # The page allows no scripts: this copy does, and reports its width.
        content, num = re.subn("<meta http-equiv=.*?>", "", content)
        script = "<script>parent.postMessage(document.documentElement.scrollWidth, '*')</script>"
        (tmp_path / "report.html").write_text(content.replace("</body>", f"{script}</body>"))
        (tmp_path / "frame.html").write_text(
            "<script>onmessage = event => document.title = event.data</script>"
            f'<iframe src="report.html" style="border: 0; width: {width}px; height: 900px">'
        )
        shown = chromium(tmp_path / "frame.html", "--dump-dom", "--virtual-time-budget=5000")
        assert num == 1
        assert f"<title>{width}</title>" in shown

    @pytest.mark.parametrize(("scheme", "shade"), [("light", 255), ("dark", 30)])
    def test_light_and_dark(
        self,
        chromium: Callable[..., str],
        table: Snapshot,
        tmp_path: Path,
        scheme: str,
        shade: int,
    ) -> None:
        (tmp_path / "report.html").write_bytes(page.render([gather(table)]))
        picture = tmp_path / "shot.png"
        dark = ["--blink-settings=preferredColorScheme=0"] * (scheme == "dark")
        options = (f"--screenshot={picture}", "--window-size=1400,900", *dark)
        chromium(tmp_path / "report.html", *options)
        pixels = np.asarray(PillowImage.open(picture).convert("L")).astype(int)
        assert pixels.shape == (900, 1400)
        assert abs(int(pixels[3, 3]) - shade) <= 15
        assert pixels.std() > 5

    def test_print(self, chromium: Callable[..., str], table: Snapshot, tmp_path: Path) -> None:
        (tmp_path / "report.html").write_bytes(page.render([gather(table)]))
        chromium(tmp_path / "report.html", f"--print-to-pdf={tmp_path / 'page.pdf'}")
        assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")


def test_damaged_statistics_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x\n" + "".join(f"{k}\n" for k in range(50)))
    recipe = ss.Recipe(
        name="damaged", source=ss.Csv(str(tmp_path / "a.csv")), splits=ss.Splits(train=1.0)
    )
    snapshot = ss.build(recipe, tmp_path / "out")
    reader = snapshot.reader()
    place = Path(snapshot.path) / "statistics.json"
    place.write_text(place.read_text().replace('"mean": 24.5', '"mean": 1e30'))
    evidence = gather(ss.Snapshot.open(snapshot.path))
    assert evidence.statistics is None
    assert "is damaged (its SHA-256 is not that of the manifest)" in evidence.no_statistics
    with pytest.raises(ValueError, match=r"statistics\.json is damaged or was edited"):
        _ = reader.STATISTICS
