"""A dry run says what a build would read and make, and leaves no trace."""

import gzip
import json
import os
import tempfile
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from PIL import Image as PillowImage

import snapshard as ss
from snapshard.pipelines.inspect.forecast import Forecast, forecast
from snapshard.schemas.errors import DataError, RecipeError
from snapshard.schemas.progress import Silent


def _forecast(recipe: ss.Recipe) -> Forecast:
    return forecast(recipe, progress=Silent())


def _table(path: Path, num_rows: int, *, first: int = 0) -> None:
    lines = [f"{first + i:8},word {(first + i) % 7}" for i in range(num_rows)]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(["number,word", *lines]) + "\n")


@pytest.fixture
def picture(tmp_path: Path) -> Callable[..., None]:
    """Writes one image below ``images``."""

    def write(name: str, size: tuple[int, int] = (4, 6)) -> None:
        path = tmp_path / "images" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        PillowImage.fromarray(np.zeros((*size, 3), np.uint8)).save(path)

    return write


def _images(tmp_path: Path, **options: Any) -> ss.Recipe:
    return ss.Recipe(name="x", source=ss.ImageFolder(str(tmp_path / "images")), **options)


def test_small_table_is_counted_exactly(tmp_path: Path) -> None:
    _table(tmp_path / "t" / "a.csv", 70)
    _table(tmp_path / "t" / "b.csv", 30, first=70)
    (tmp_path / "t" / "README").write_text("not a table")
    found = _forecast(ss.Recipe(name="x", source=ss.Csv(str(tmp_path / "t"))))
    assert (found.num_files, found.num_examples) == (2, 100)
    assert found.input_bytes == sum(p.stat().st_size for p in tmp_path.rglob("*.csv"))
    assert found.num_skipped == {"not a .csv or .tsv file": 1}
    assert found.features == {"number": ss.Scalar("int64"), "word": ss.Scalar("string")}
    assert [(s.name, s.num_examples, s.num_shards) for s in found.splits] == [
        ("train", 78, 1),
        ("validation", 12, 1),
        ("test", 10, 1),
    ]
    assert found.output_bytes == pytest.approx(sum(s.num_bytes for s in found.splits), rel=0.01)
    (warning,) = found.warnings
    assert "100 sampled records has a value of its own of 'number'" in warning


def test_large_table_is_estimated(tmp_path: Path) -> None:
    _table(tmp_path / "t" / "a.csv", 3_000)
    # So many rows that the windows read do not reach the end.
    _table(tmp_path / "t" / "b.csv", 400_000, first=3_000)
    found = _forecast(ss.Recipe(name="x", source=ss.Csv(str(tmp_path / "t"))))
    assert found.num_examples == pytest.approx(403_000, rel=0.02)


ROWS = 60_000
FRAME = pa.table({"n": range(ROWS), "text": [f"text {i}" * (i % 9) for i in range(ROWS)]})


def _read_lines(file: Any) -> Iterator[dict[str, Any]]:
    for line in file.read().splitlines():
        yield {"n": int(line)}


def _write_csv(path: Path, opened: Any = open) -> None:
    with opened(path, "wb") as file:
        pyarrow.csv.write_csv(FRAME, file)


def _write_stream(path: Path) -> None:
    with pa.ipc.new_stream(path, FRAME.schema) as writer:
        writer.write_table(FRAME, max_chunksize=5_000)


ESTIMATED: dict[str, tuple[Any, Callable[[Path], object]]] = {
    "one group.parquet": (ss.Parquet, lambda path: pq.write_table(FRAME, path)),
    "groups.parquet": (ss.Parquet, lambda path: pq.write_table(FRAME, path, row_group_size=4_000)),
    "batches.feather": (ss.Arrow, lambda path: pa.feather.write_feather(FRAME, path, "lz4")),
    "stream.arrows": (ss.Arrow, _write_stream),
    "a.npy": (ss.Numpy, lambda path: np.save(path, np.zeros((ROWS, 3)))),
    "a.npz": (ss.Numpy, lambda path: np.savez(path, n=np.arange(ROWS), x=np.zeros(ROWS))),
    "a.csv": (ss.Csv, _write_csv),
    "a.csv.gz": (ss.Csv, lambda path: _write_csv(path, gzip.open)),
    "a.txt": (
        lambda url: ss.Files(url, _read_lines),
        lambda path: path.write_text("\n".join(map(str, range(ROWS)))),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ESTIMATED)
def test_rows_of_every_format_are_estimated(tmp_path: Path, name: str) -> None:
    """A sample of 10,000 rows is told from the whole in bytes, whatever the rows' ids hold."""
    make, write = ESTIMATED[name]
    write(tmp_path / name)
    found = _forecast(ss.Recipe(name="x", source=make(str(tmp_path / name))))
    assert found.num_examples == pytest.approx(ROWS, rel=0.2)


def test_a_limited_build_is_planned(tmp_path: Path, picture: Any) -> None:
    _table(tmp_path / "t.csv", 100)
    table = ss.Recipe(name="x", source=ss.Csv(str(tmp_path / "t.csv")))
    for limit, expected in ((30, 30), (200, 100)):
        found = forecast(table, progress=Silent(), limit=limit)
        assert (found.num_files, found.num_examples) == (1, expected)
        assert sum(split.num_examples for split in found.splits) == expected
    for index in range(20):
        picture(f"cat/{index}.png")
    images = forecast(_images(tmp_path), progress=Silent(), limit=5)
    assert (images.num_files, images.num_examples) == (5, 5)


def test_table_of_which_nothing_can_be_read(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,b\n1,x\n2,y\n")
    features = {"a": ss.Scalar("int64"), "b": ss.Scalar("int64")}
    recipe = ss.Recipe(name="x", source=ss.Csv(str(tmp_path / "t.csv")), features=features)
    found = _forecast(recipe)
    assert (found.num_examples, found.output_bytes) == (0, 0)
    assert [split.num_shards for split in found.splits] == [0, 0, 0]
    sampled, refused = found.warnings
    assert sampled.startswith("2 of 2 sampled records would be rejected:")
    assert "t.csv" in sampled
    assert refused == "a build will fail: about 2 rejects, but only 0 are allowed"


def test_images(tmp_path: Path, picture: Any) -> None:
    for index in range(30):
        picture(f"{'cat' if index % 3 else 'dog'}/{index}.png")
    (tmp_path / "images" / "cat" / ".hidden").touch()
    steps = [ss.images.decode("image"), ss.images.resize("image", (10, 10))]
    found = _forecast(_images(tmp_path, prepare=steps, shards=ss.Shards(num_shards=2)))
    labels = found.label_counts.values()
    assert sum(counts["cat"] for counts in labels) == 20
    assert sum(counts["dog"] for counts in labels) == 10
    assert found.num_skipped == {"hidden file": 1}
    assert found.num_examples == 30
    assert found.features["image"] == ss.Image(height=10, width=10)
    # Pixels, and what the wire format adds.
    assert 300 < found.example_bytes < 360
    assert [split.num_shards for split in found.splits] == [2, 2, 2]
    assert found.warnings == ("no 'dog' in test",)
    shown = json.loads(json.dumps(found.to_json()))
    assert shown["label_counts"] == found.label_counts


def test_warns_of_what_a_build_would_trip_over(tmp_path: Path, picture: Any) -> None:
    for index in range(5):
        picture(f"many/{index}.png", (4, 4 + index % 2))
    picture("few/1.png")
    (tmp_path / "images" / "many" / "text.png").write_text("no image")
    (tmp_path / "images" / "many" / "gone.png").symlink_to(tmp_path / "nowhere")
    forecasted = _forecast(_images(tmp_path))
    assert forecasted.num_examples == 6
    found = "\n".join(forecasted.warnings)
    assert "about 2 rejects, but only 0 are allowed" in found
    assert "1 file will become a reject: dangling symbolic link" in found
    assert "many/text.png" in found
    assert "no 'few' in " in found
    assert "images differ in size: pass image_size=" in found
    # The sample holds all records, of which each split gets one or more.
    assert "may be empty" not in found


def test_warns_of_a_single_class(tmp_path: Path, picture: Any) -> None:
    for index in range(20):
        picture(f"only/{index}.png")
    assert _forecast(_images(tmp_path)).warnings == ("feature 'label' has only the class 'only'",)


@pytest.mark.parametrize("free", [10**4, 10**9])
def test_says_whether_it_fits_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int
) -> None:
    _table(tmp_path / "t.csv", 1000)
    memory = types.SimpleNamespace(available=free)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    found = _forecast(ss.Recipe(name="x", source=ss.Csv(str(tmp_path / "t.csv"))))
    assert found.free_memory_bytes == free
    assert found.fits_memory == (free > 10**5)


def test_writes_nothing(tmp_path: Path, picture: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for index in range(10):
        picture(f"cat/{index}.png")
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))

    def listing() -> dict[str, tuple[int, int]]:
        found = {str(path): path.lstat() for path in [tmp_path, *tmp_path.rglob("*")]}
        return {
            name: (stat.st_ino, stat.st_mtime_ns if "temporary" not in name else 0)
            for name, stat in found.items()
        }

    before = listing()
    assert _forecast(_images(tmp_path)).num_examples == 10
    assert listing() == before
    assert not os.listdir(tmp_path / "temporary")


def test_rows_without_any_value_are_told(tmp_path: Path) -> None:
    rows = "".join(f"{k % 7};{k % 3}\n" for k in range(40))
    (tmp_path / "t.csv").write_text(f"x;y\n{rows}1;\n" + ";\n" * 5)
    recipe = ss.Recipe(name="x", source=ss.Csv(str(tmp_path / "t.csv"), delimiter=";"))
    (warning,) = _forecast(recipe).warnings
    assert warning.startswith("5 of 46 sampled records have no value")


@pytest.mark.parametrize(
    ("cells", "settings", "told"),
    [
        (["[degC]", *map(str, range(99))], {}, "99 of 100 sampled cells are numbers"),
        ([*(f"{k / 7}" for k in range(99)), "n.v."], {}, "such as 'n.v.'"),
        ([*map(str, range(99)), "n.v."], {"null_values": ("n.v.",)}, None),
        ([*map(str, range(99)), "n.v."], {"types": {"x": "string"}}, None),
        ([f"{k:05}" for k in range(100)], {}, None),
        ([*(str(10**17 + k) for k in range(99)), "none of these"], {}, None),
        ([*map(str, range(60)), *(f"a{k}" for k in range(40))], {}, None),
    ],
)
def test_texts_that_are_nearly_all_numbers(
    tmp_path: Path, cells: list[str], settings: dict[str, Any], told: str | None
) -> None:
    rows = "".join(f"{cell},{k % 3}\n" for k, cell in enumerate(cells))
    (tmp_path / "t.csv").write_text("x,y\n" + rows)
    recipe = ss.Recipe(name="x", source=ss.Csv(str(tmp_path / "t.csv"), **settings))
    found = [text for text in _forecast(recipe).warnings if "is text, although" in text]
    assert len(found) == (told is not None)
    assert told is None or told in found[0]


@pytest.mark.parametrize(
    "step",
    [
        ss.records.filter(lambda r: r["n"] < 0),
        ss.series.windows("n", size=6, time="t", max_gap=1),
    ],
    ids=["filter", "windows"],
)
def test_a_build_without_records_is_expected_to_fail(tmp_path: Path, step: Any) -> None:
    (tmp_path / "t.csv").write_text("t,n\n" + "".join(f"{2 * k},{k}\n" for k in range(50)))
    splits = ss.Splits(train=1.0) if step.kind == "records.filter" else None
    splits = splits or ss.Splits.by_time("t", train=0.7, test=0.3)
    recipe = ss.Recipe(
        name="x", source=ss.Csv(str(tmp_path / "t.csv")), prepare=[step], splits=splits
    )
    found = _forecast(recipe)
    assert found.num_examples == 0
    assert any("a build will fail: prepare= leaves none" in text for text in found.warnings)
    with pytest.raises(DataError, match="Nothing was published"):
        ss.build(recipe, tmp_path / "out")


def test_errors_are_those_of_a_build(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    with pytest.raises(DataError, match="holds no files"):
        _forecast(_images(tmp_path))
    _table(tmp_path / "t.csv", 10)
    splits = ss.Splits(train=1.0, stratify_by="colour")
    recipe = ss.Recipe(name="x", source=ss.Csv(str(tmp_path / "t.csv")), splits=splits)
    with pytest.raises(RecipeError, match="stratify_by='colour' names no feature"):
        _forecast(recipe)
