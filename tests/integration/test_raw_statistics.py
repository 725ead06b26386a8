"""Where steps change records, statistics also say what was read: before any step, whole."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from tensorflow_metadata.proto.v0 import statistics_pb2

import snapshard as ss
from snapshard.pipelines.inspect.report.evidence import gather
from snapshard.pipelines.inspect.report.page import render
from snapshard.schemas.naming import Workspace

NUM = 3000


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    ages = rng.normal(40, 12, NUM).round(1)
    ages[rng.random(NUM) < 0.3] = np.nan
    rooms = rng.integers(0, 5, NUM)
    return pd.DataFrame(
        {
            "age": ages,
            "rooms": pd.array([None if k % 9 == 0 else v for k, v in enumerate(rooms)], "Int64"),
            "city": rng.choice(["Ulm", "Köln", "Bonn"], NUM, p=[0.7, 0.2, 0.1]),
            "street": [f"street {number % 400}" for number in range(NUM)],
            "serial": np.arange(NUM, dtype=np.uint64) + np.uint64(2**63),
            "is_new": rng.random(NUM) < 0.25,
            "vector": list(rng.normal(size=(NUM, 3))),
            "kind": rng.choice(["flat", "house"], NUM),
        }
    )


def recipe_of(folder: Path, *, prepare: list[Any] | None = None, **options: Any) -> ss.Recipe:
    steps = [
        ss.tables.fill("age", -1.0),
        ss.tables.fill("rooms", 9),
        ss.records.filter(lambda record: record["rooms"] < 4, batched=True),
    ]
    return ss.Recipe(
        name="homes",
        source=ss.Parquet(str(folder / "*.parquet")),
        label="kind",
        prepare=steps if prepare is None else prepare,
        splits=ss.Splits(train=0.8, test=0.2),
        **options,
    )


@pytest.fixture(scope="module")
def folder(table: pd.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("raw")
    for number, start in enumerate(range(0, NUM, 1000)):
        part = table.iloc[start : start + 1000]
        part.to_parquet(folder / f"{number}.parquet", index=False)
    return folder


@pytest.fixture(scope="module")
def snapshot(folder: Path) -> ss.Snapshot:
    return ss.build(recipe_of(folder), folder / "out")


@pytest.fixture(scope="module")
def raw(snapshot: ss.Snapshot) -> dict[str, Any]:
    assert snapshot.statistics is not None
    found: dict[str, Any] = snapshot.statistics["raw"]
    return found


@pytest.mark.parametrize("name", ["age", "rooms", "serial", "is_new"])
def test_numbers_are_those_of_the_table(
    raw: dict[str, Any], table: pd.DataFrame, name: str
) -> None:
    assert raw["num_records"] == NUM
    facts, known = raw["features"][name], table[name].dropna()
    assert facts["num_missing"] == NUM - len(known)
    assert facts["count"] == len(known)
    assert (facts["min"], facts["max"]) == (known.min(), known.max())
    assert facts["mean"] == pytest.approx(known.astype(float).mean())
    floats = known.astype(float)
    assert facts["deviation"] == pytest.approx((floats - floats.min()).std(ddof=0))
    assert facts["num_zeros"] == (known == 0).sum()
    distinct = facts["distinct"]["count"]
    assert distinct == pytest.approx(known.nunique(), rel=0.2)
    if name != "is_new":
        assert sum(facts["histogram"]["counts"]) == len(known)
        expected = np.quantile(floats, np.linspace(0, 1, 11), method="closest_observation")
        assert facts["quantiles"] == pytest.approx(expected, abs=0.01 * np.ptp(floats))


@pytest.mark.parametrize("name", ["rooms", "city", "is_new", "kind"])
def test_values_of_columns_with_few_are_counted(
    raw: dict[str, Any], table: pd.DataFrame, name: str
) -> None:
    facts = raw["features"][name]
    counts = {value: int(num) for value, num in table[name].value_counts().items()}
    assert dict(map(tuple, facts["top"])) == counts
    assert facts["top_of"] == sum(counts.values())


@pytest.mark.parametrize("name", ["age", "street", "serial", "vector"])
def test_values_of_others_are_not(raw: dict[str, Any], name: str) -> None:
    assert "top" not in raw["features"][name]


def test_lists_and_texts(raw: dict[str, Any], table: pd.DataFrame) -> None:
    vectors = np.concatenate(table["vector"].tolist())
    assert raw["features"]["vector"]["count"] == 3 * NUM
    assert raw["features"]["vector"]["mean"] == pytest.approx(vectors.mean())
    assert raw["features"]["street"]["lengths"]["max"] == len("street 399")


@pytest.mark.parametrize("workers", [1, 2])
def test_they_do_not_depend_on_workers(
    snapshot: ss.Snapshot, folder: Path, tmp_path: Path, workers: int
) -> None:
    again = ss.build(recipe_of(folder), tmp_path, workers=workers)
    for name in ("statistics.json", "statistics.pb"):
        assert Path(again.path, name).read_bytes() == Path(snapshot.path, name).read_bytes()


def test_excluded_records_are_in_no_figure(folder: Path, tmp_path: Path) -> None:
    excluded = [f"{number}.parquet#{row}" for number in range(3) for row in range(0, 1000, 2)]
    (tmp_path / "ids.txt").write_text("\n".join(excluded))
    recipe = recipe_of(folder, exclude=str(tmp_path / "ids.txt"))
    statistics = ss.build(recipe, tmp_path / "out").statistics
    assert statistics is not None
    assert statistics["raw"]["num_records"] == NUM // 2
    assert statistics["raw"]["features"]["serial"]["min"] == 2**63 + 1


def test_as_a_table(snapshot: ss.Snapshot, raw: dict[str, Any]) -> None:
    assert snapshot.statistics is not None
    frame = snapshot.statistics.to_pandas()
    assert frame.loc[("(raw)", "age"), "num_missing"] == raw["features"]["age"]["num_missing"]


def test_tools_of_tfx_read_them(snapshot: ss.Snapshot, table: pd.DataFrame) -> None:
    content = Path(snapshot.path, "statistics.pb").read_bytes()
    parsed = statistics_pb2.DatasetFeatureStatisticsList.FromString(content)
    datasets = {dataset.name: dataset for dataset in parsed.datasets}
    assert list(datasets) == ["train", "test", "(raw)"]
    assert datasets["(raw)"].num_examples == NUM
    features = {one.path.step[0]: one for one in datasets["(raw)"].features}
    age = features["age"].num_stats
    assert age.common_stats.num_missing == table["age"].isna().sum()
    assert age.mean == pytest.approx(table["age"].mean())
    found = {one.value: one.frequency for one in features["city"].string_stats.top_values}
    assert found == table["city"].value_counts().to_dict()


def test_the_report_shows_them(snapshot: ss.Snapshot, table: pd.DataFrame) -> None:
    page = render([gather(snapshot)]).decode()
    missing = table["age"].isna().sum()
    assert "Raw columns" in page
    rows = page.partition("Raw columns</h2>")[2].partition("</section>")[0]
    assert rows.count("<svg viewBox") == 6  # not of streets, each of which is rare, and of vectors
    assert f"({missing:,} of {NUM:,})" in page


def test_a_missing_fact_is_made_again(folder: Path, tmp_path: Path, snapshot: ss.Snapshot) -> None:
    first = ss.build(recipe_of(folder), tmp_path)
    workspace = Workspace(str(tmp_path / "homes" / ".work"))
    infos = [*Path(workspace.root).rglob("runs/**/*.json")]
    for info in infos:
        info.unlink()
    Path(first.path, "manifest.json").unlink()
    again = ss.build(recipe_of(folder), tmp_path)
    expected = Path(snapshot.path, "statistics.json").read_bytes()
    assert infos
    assert Path(again.path, "statistics.json").read_bytes() == expected


def test_without_steps_nothing_is_measured_twice(folder: Path, tmp_path: Path) -> None:
    snapshot = ss.build(recipe_of(folder, prepare=[]), tmp_path)
    assert snapshot.statistics is not None
    assert "raw" not in snapshot.statistics
    assert "Raw columns" not in render([gather(snapshot)]).decode()


def scaled(inputs: dict[str, Any]) -> dict[str, Any]:
    import tensorflow_transform as tft

    return {"age": tft.scale_to_z_score(inputs["age"]), "city": inputs["city"]}


def test_before_a_preprocessing_fn(folder: Path, tmp_path: Path, raw: dict[str, Any]) -> None:
    table = pd.read_parquet(folder / "0.parquet").dropna()[["age", "city"]]
    table.to_parquet(tmp_path / "known.parquet", index=False)
    recipe = ss.Recipe(
        name="scaled",
        source=ss.Parquet(str(tmp_path / "known.parquet")),
        preprocessing_fn=scaled,
        splits=ss.Splits(train=0.8, test=0.2),
    )
    plain = ss.Recipe(name="scaled", source=recipe.source, splits=recipe.splits)
    ss.build(plain, tmp_path / "out")  # its runs lack the figures
    statistics = ss.build(recipe, tmp_path / "out").statistics
    assert statistics is not None
    age = statistics["raw"]["features"]["age"]
    assert age["mean"] == pytest.approx(table["age"].mean())
    assert statistics["splits"]["train"]["features"]["age"]["mean"] == pytest.approx(0, abs=1e-6)


def images(folder: Path) -> Iterator[tuple[int, int]]:
    for number in range(12):
        size = (20 + number, 40 - number)
        path = folder / f"{number}.png"
        path.parent.mkdir(exist_ok=True)
        Image.new("RGB", size, (number, 0, 0)).save(path)
        yield size


def test_sizes_of_images_before_they_are_resized(tmp_path: Path) -> None:
    sizes = [*images(tmp_path / "images")]
    recipe = ss.Recipe(
        name="greys",
        source=ss.ImageFolder(str(tmp_path / "images"), label=None),
        prepare=[ss.images.decode("image"), ss.images.resize("image", (8, 8))],
        splits=ss.Splits(train=1.0),
    )
    statistics = ss.build(recipe, tmp_path / "out").statistics
    assert statistics is not None
    facts = statistics["raw"]["features"]["image"]
    widths, heights = zip(*sizes, strict=True)
    assert (facts["widths"]["min"], facts["widths"]["max"]) == (min(widths), max(widths))
    assert facts["heights"]["mean"] == pytest.approx(np.mean(heights))


def test_columns_before_windows(tmp_path: Path) -> None:
    rows = 200
    table = pd.DataFrame({"t": range(rows), "load": np.arange(rows, dtype=float)})
    table.to_csv(tmp_path / "load.csv", index=False)
    recipe = ss.Recipe(
        name="load",
        source=ss.Csv(str(tmp_path / "load.csv")),
        prepare=[ss.series.windows("load", size=10, time="t")],
        splits=ss.Splits(train=1.0),
    )
    statistics = ss.build(recipe, tmp_path / "out").statistics
    assert statistics is not None
    assert statistics["raw"]["num_records"] == rows
    assert statistics["raw"]["features"]["load"]["max"] == rows - 1
    json.dumps(statistics, allow_nan=False)
