"""The statistics of a snapshot are those of its records, in each form in which it has them."""

import importlib
import json
import sys
import wave
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from tensorflow_metadata.proto.v0 import statistics_pb2

import snapshard as ss
from snapshard.pipelines.inspect.report.charts import Histogram
from snapshard.pipelines.inspect.report.evidence import gather
from snapshard.pipelines.inspect.report.facts import Limits
from snapshard.pipelines.inspect.report.facts import facts_of as facts_of_page
from snapshard.pipelines.inspect.report.findings import find_all
from snapshard.transforms.examples import statistics as measured

from ..transforms.prepare.image_files import png

NUM = 1500


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    gaps = rng.random(NUM) < 0.2
    return pd.DataFrame(
        {
            "price": rng.lognormal(3, 1, NUM).round(2),
            "rooms": pd.array([None if gap else k % 7 for k, gap in enumerate(gaps)], "Int64"),
            "city": rng.choice(["Ulm", "Köln", "Bonn"], NUM, p=[0.7, 0.2, 0.1]),
            "is_new": rng.random(NUM) < 0.25,
            "sold": pd.to_datetime(rng.integers(1, 10**9, NUM), unit="s", utc=True),
            "kind": rng.choice(["flat", "house"], NUM),
        }
    )


@pytest.fixture(scope="module")
def snapshot(table: pd.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> ss.Snapshot:
    folder = tmp_path_factory.mktemp("statistics")
    table.to_parquet(folder / "homes.parquet", index=False)
    features = {
        "price": ss.Scalar("float64"),
        "rooms": ss.Scalar("int32", optional=True),
        "city": ss.Text(),
        "is_new": ss.Scalar("bool"),
        "sold": ss.Timestamp("s"),
        "kind": ss.ClassLabel(("flat", "house", "hut")),
    }
    recipe = ss.Recipe(
        name="homes",
        source=ss.Parquet(str(folder / "homes.parquet")),
        features=features,
        label="kind",
        splits=ss.Splits(train=0.8, test=0.2),
    )
    return ss.build(recipe, folder / "out")


@pytest.fixture(scope="module")
def frames(snapshot: ss.Snapshot) -> dict[str, pd.DataFrame]:
    return {split: snapshot.to_pandas(split, NUM) for split in ("train", "test")}


def facts_of(snapshot: ss.Snapshot, split: str, name: str) -> dict[str, Any]:
    assert snapshot.statistics is not None
    facts: dict[str, Any] = snapshot.statistics["splits"][split]["features"][name]
    return facts


def captions_of(snapshot: ss.Snapshot, name: str) -> list[str]:
    page = facts_of_page(gather(snapshot), Limits())
    (charts,) = (facts.charts for facts in page.features if facts.name == name)
    return [chart.caption for chart in charts if isinstance(chart, Histogram)]


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize("name", ["price", "rooms", "is_new"])
def test_numbers(
    snapshot: ss.Snapshot, frames: dict[str, pd.DataFrame], split: str, name: str
) -> None:
    values = frames[split][name]
    known = values.dropna().astype("float64")
    facts = facts_of(snapshot, split, name)
    assert facts["num_missing"] == values.isna().sum()
    assert facts["num_zeros"] == (known == 0).sum()
    assert (facts["count"], facts["min"], facts["max"]) == (len(known), known.min(), known.max())
    assert facts["mean"] == pytest.approx(known.mean(), rel=1e-12)
    assert facts["deviation"] == pytest.approx(known.std(ddof=0), rel=1e-9)
    if name != "is_new":
        assert sum(facts["histogram"]["counts"]) == len(known)
        assert facts["quantiles"][5] == pytest.approx(known.median(), rel=0.05)


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize("name", ["city", "kind", "is_new", "rooms"])
def test_categories(
    snapshot: ss.Snapshot, frames: dict[str, pd.DataFrame], split: str, name: str
) -> None:
    counts = frames[split][name].value_counts()
    facts = facts_of(snapshot, split, name)
    assert dict(facts["top"]) == {key: num for key, num in counts.items() if num}
    assert facts["distinct"] == {"count": (counts > 0).sum(), "exact": True}


def test_classes(snapshot: ss.Snapshot, frames: dict[str, pd.DataFrame]) -> None:
    assert snapshot.statistics is not None
    by_class = snapshot.statistics["splits"]["train"]["classes"]
    prices = frames["train"].groupby("kind", observed=True)["price"].mean()
    assert {name: facts["price"]["mean"] for name, facts in by_class.items()} == pytest.approx(
        prices.to_dict()
    )
    bytes_ = frames["train"]["city"].map(lambda city: len(city.encode()))
    lengths = bytes_.groupby(frames["train"]["kind"], observed=True).mean()
    assert {name: facts["city"]["lengths"]["mean"] for name, facts in by_class.items()} == (
        pytest.approx(lengths.to_dict())
    )


def test_histograms_of_all_splits_have_the_same_edges(snapshot: ss.Snapshot) -> None:
    train, test = (facts_of(snapshot, split, "price")["histogram"] for split in ("train", "test"))
    assert train["edges"] == test["edges"]


def test_a_trainer_reads_them_without_tensorflow(snapshot: ss.Snapshot) -> None:
    found = snapshot.reader().STATISTICS
    assert found["train"]["price"] == facts_of(snapshot, "train", "price")


def test_a_reader_without_its_snapshot_says_what_is_missing(
    snapshot: ss.Snapshot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import shutil

    shutil.copytree(Path(snapshot.path, "reader"), tmp_path / "copied_reader")
    monkeypatch.syspath_prepend(str(tmp_path))
    reader = importlib.import_module("copied_reader")
    with pytest.raises(FileNotFoundError, match=r"Copy the snapshot's statistics\.json there"):
        _ = reader.STATISTICS
    del sys.modules["copied_reader"]


def test_as_a_table(snapshot: ss.Snapshot) -> None:
    assert snapshot.statistics is not None
    frame = snapshot.statistics.to_pandas()
    assert frame.loc[("train", "price"), "mean"] == facts_of(snapshot, "train", "price")["mean"]
    assert frame.loc[("test", "city"), "distinct.count"] == 3


def test_tools_of_tfx_read_them(snapshot: ss.Snapshot, frames: dict[str, pd.DataFrame]) -> None:
    content = Path(snapshot.path, "statistics.pb").read_bytes()
    parsed = statistics_pb2.DatasetFeatureStatisticsList.FromString(content)
    datasets = {dataset.name: dataset for dataset in parsed.datasets}
    assert {name: one.num_examples for name, one in datasets.items()} == {
        name: len(frame) for name, frame in frames.items()
    }
    features = {one.path.step[0]: one for one in datasets["train"].features}
    prices, rooms = frames["train"]["price"], frames["train"]["rooms"]
    numbers = features["price"].num_stats
    assert (numbers.min, numbers.max) == (prices.min(), prices.max())
    assert numbers.mean == pytest.approx(prices.mean())
    assert numbers.std_dev == pytest.approx(prices.std(ddof=0))
    assert sum(bin_.sample_count for bin_ in numbers.histograms[0].buckets) == len(prices)
    assert features["rooms"].num_stats.common_stats.num_missing == rooms.isna().sum()
    cities = frames["train"]["city"].value_counts().to_dict()
    found = {one.value: one.frequency for one in features["city"].string_stats.top_values}
    assert found == cities


def test_images_and_boxes(tmp_path: Path) -> None:
    for name, colour in (("red", (250, 0, 10)), ("blue", (0, 0, 200))):
        for k in range(10):
            path = tmp_path / "images" / name / f"{k}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (20 + k, 10), colour).save(path)
    recipe = ss.Recipe(
        name="colours",
        source=ss.ImageFolder(str(tmp_path / "images")),
        prepare=[ss.images.decode("image")],
        splits=ss.Splits(train=1.0),
    )
    snapshot = ss.build(recipe, tmp_path / "out")
    facts = facts_of(snapshot, "train", "image")
    widths = [20 + k for k in range(10)] * 2
    pixels = np.array(widths) * 10
    assert (facts["heights"]["min"], facts["heights"]["max"]) == (10, 10)
    assert (facts["widths"]["mean"], facts["widths"]["max"]) == (np.mean(widths), 29)
    assert facts["widths"]["histogram"]["counts"] == [2] * 10
    assert (
        facts["widths"]["quantiles"]
        == np.sort(widths)[np.round(np.arange(11) * 1.9).astype(int)].tolist()
    )
    assert snapshot.statistics is not None
    red = snapshot.statistics["splits"]["train"]["classes"]["red"]["image"]
    assert (red["channel_means"], red["brightness"]["mean"]) == ([250, 0, 10], 260 / 3)
    assert (red["widths"]["count"], red["widths"]["mean"]) == (10, np.mean(widths))
    assert captions_of(snapshot, "image") == ["width", "mean of an image's pixels"]
    assert pixels.sum() == facts["widths"]["count"] * facts["widths"]["mean"] * 10


@pytest.mark.parametrize("prepare", [[], [ss.images.decode("image")]], ids=["files", "pixels"])
@pytest.mark.parametrize("suffix", ["png", "jpg"])
def test_channels_of_images(tmp_path: Path, prepare: list[object], suffix: str) -> None:
    rng = np.random.default_rng(0)
    (tmp_path / "images").mkdir()
    pictures = []
    for number in range(20):
        size = (600, 520) if number == 0 else (16, 24)  # a JPEG of this size is decoded at 1/2
        blocks = rng.integers(0, 256, (size[1] // 8, size[0] // 8, 3), np.uint8)
        pictures.append(blocks.repeat(8, 0).repeat(8, 1))
        path = tmp_path / "images" / f"{number}.{suffix}"
        Image.fromarray(pictures[-1]).save(path, quality=100, subsampling=0)
    recipe = ss.Recipe(
        name="noise",
        source=ss.ImageFolder(str(tmp_path / "images"), label=None),
        prepare=prepare,
        splits=ss.Splits(train=1.0),
    )
    facts = facts_of(ss.build(recipe, tmp_path / "out"), "train", "image")
    pixels = np.concatenate([picture.reshape(-1, 3) for picture in pictures])
    assert facts["channel_means"] == pytest.approx(pixels.mean(axis=0), abs=0.5)
    assert facts["channel_deviations"] == pytest.approx(pixels.std(axis=0), abs=0.5)


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_channels_of_deep_grey_files(tmp_path: Path, channels: Any) -> None:
    """They are read as their high bytes, as ``decode`` does."""
    rng = np.random.default_rng(0)
    (tmp_path / "images").mkdir()
    for number in range(6):
        pixels = rng.integers(0, 65_536, (16, 16)).astype(np.uint16)
        Image.fromarray(pixels).save(tmp_path / "images" / f"{number}.{'png' if number else 'tif'}")
    found = []
    for name, prepare in (("files", []), ("pixels", [ss.images.decode("image", channels)])):
        recipe = ss.Recipe(
            name=name,
            source=ss.ImageFolder(str(tmp_path / "images"), label=None),
            prepare=prepare,
            splits=ss.Splits(train=1.0),
            features={"image": ss.Image(channels=channels, storage="encoded")}
            if not prepare
            else None,
        )
        found.append(facts_of(ss.build(recipe, tmp_path / "out"), "train", "image"))
    for key in ("channel_means", "channel_deviations"):
        assert found[0][key] == pytest.approx(found[1][key])


def test_few_large_images_are_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured, "_MEDIA_BYTES", 2 * 30 * 30 * 3)
    (tmp_path / "images").mkdir()
    for number in range(9):
        Image.new("L", (30, 30), number).save(tmp_path / "images" / f"{number}.png")
    recipe = ss.Recipe(
        name="greys",
        source=ss.ImageFolder(str(tmp_path / "images"), label=None),
        prepare=[ss.images.decode("image"), ss.images.resize("image", (30, 30))],
        splits=ss.Splits(train=1.0),
    )
    snapshot = ss.build(recipe, tmp_path / "out")
    first = [record.values["image"].mean() for record in snapshot.records("train", num=2)]
    means = facts_of(snapshot, "train", "image")["channel_means"]
    assert means == pytest.approx([np.mean(first)] * 3)


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("prepare", [[], [ss.images.decode("image"), ss.images.decode("mask")]])
def test_modes_of_files_and_shares_of_masks(
    tmp_path: Path, prepare: list[object], bits: int
) -> None:
    data = tmp_path / "data"
    for folder in ("images", "masks"):
        (data / folder).mkdir(parents=True)
    for number in range(6):
        mode, name = "L" if number < 2 else "RGB", f"{number}.png"
        Image.new(mode, (8, 4), number).save(data / "images" / name)
        mask = np.zeros((4, 8), np.uint8)
        mask[0, :number] = 2
        (data / "masks" / name).write_bytes(png(mask[..., None], colour=0, depth=bits))
    recipe = ss.Recipe(
        name="masks",
        source=ss.ImageFolder(str(data), masks="masks", images="images", label="mask"),
        prepare=prepare,
        splits=ss.Splits(train=1.0),
    )
    snapshot = ss.build(recipe, tmp_path / "out")
    expected = None if prepare else {"L": 2, "RGB": 4}
    assert facts_of(snapshot, "train", "image").get("modes") == expected
    shares = {"0": 1 - 15 / 192, "2": 15 / 192}
    assert facts_of(snapshot, "train", "mask")["shares"] == pytest.approx(shares)


def test_sounds_and_their_classes(tmp_path: Path) -> None:
    for number in range(6):
        rate, name = (8_000, "quiet") if number else (16_000, "loud")
        path = tmp_path / "sounds" / name / f"{number}.wav"
        path.parent.mkdir(parents=True, exist_ok=True)
        with wave.open(str(path), "wb") as file:
            file.setparams((1, 2, rate, 0, "NONE", ""))
            file.writeframes(np.full(50 + number, 512 if number else 8192, "<i2").tobytes())
    recipe = ss.Recipe(
        name="sounds",
        source=ss.AudioFolder(str(tmp_path / "sounds")),
        prepare=[ss.audio.decode("audio")],
        splits=ss.Splits(train=1.0),
    )
    snapshot = ss.build(recipe, tmp_path / "out")
    facts = facts_of(snapshot, "train", "audio")
    rates = facts["rates"]
    assert (rates["count"], rates["min"], rates["max"]) == (6, 8_000, 16_000)
    assert facts["levels"]["quantiles"][::10] == [2**-6, 2**-2]
    assert snapshot.statistics is not None
    quiet = snapshot.statistics["splits"]["train"]["classes"]["quiet"]["audio"]
    assert (quiet["rates"]["count"], quiet["rates"]["max"]) == (5, 8_000)
    assert (quiet["lengths"]["mean"], quiet["level"]) == (53, 2**-6)
    assert captions_of(snapshot, "audio") == ["length", "rate (Hz)", "root mean square of a sound"]


def test_classes_of_lists_are_counted(tmp_path: Path) -> None:
    """As those of boxes are; the report names the rarest, and such as never occur."""
    names = tuple(f"c{k:02}" for k in range(60))
    rows = [
        {"tags": [names[k] for k in range(58) if number % (k + 1) == 0]} for number in range(90)
    ]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    recipe = ss.Recipe(
        name="tags",
        source=ss.JsonLines(str(tmp_path / "t.jsonl")),
        features={"tags": ss.Sequence(ss.ClassLabel(names))},
        splits=ss.Splits(train=0.7, test=0.3),
    )
    snapshot = ss.build(recipe, tmp_path / "out")
    counted = Counter[str]()
    for split in ("train", "test"):
        counted.update(dict(facts_of(snapshot, split, "tags")["top"]))
    assert counted == Counter(name for row in rows for name in row["tags"])
    evidence = gather(snapshot)
    assert facts_of_page(evidence, Limits()).rarest == "c59 (0), c58 (0), c57 (2)"
    titles = {finding.title for finding in find_all(evidence)}
    assert {"Classes are not balanced", "Classes that a split lacks"} <= titles


def test_they_are_listed_in_the_manifest(snapshot: ss.Snapshot) -> None:
    assert {"statistics.json", "statistics.pb"} <= set(snapshot.manifest.files)
    text = Path(snapshot.path, "statistics.json").read_text()
    json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
