"""Examples in docs/sources.md, docs/csv.md and docs/steps.md: what they make is built."""

import ast
import json
import re
import struct
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import soundfile
from PIL import Image as Pillow

import snapshard as ss
from snapshard.pipelines.inspect.suggest import suggest_recipe
from snapshard.schemas.errors import DataError

from ...file_bytes import workbook
from ..documented import run_examples

DOCS = Path(__file__).parents[3] / "docs"


def _orders(folder: Path) -> None:
    (folder / "raw").mkdir()
    order = {"id": 7, "cart": {"items": [1, 2]}, "to": "fr"}
    (folder / "raw" / "a.jsonl").write_text(json.dumps(order) + "\n")
    (folder / "days").mkdir()
    for day in ("01", "02"):
        days = pa.table({"amount": [1.5, 2.0], "country": ["fr", "de"]})
        pq.write_table(days, folder / "days" / f"{day}.parquet")


class _Frame:
    """As Polars' frames are, with strings as they have them."""

    def __init__(self, path: str) -> None:
        table = pq.read_table(path)
        types = {"amount": pa.float64(), "country": pa.string_view()}
        self._table = pa.table({name: table[name].cast(types[name]) for name in types})

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self._table.__arrow_c_stream__(requested_schema)


POLARS = types.SimpleNamespace(read_parquet=_Frame)


def _arrays(folder: Path) -> None:
    arrays = {f"x_{s}": np.zeros((3, 28, 28), np.uint8) for s in ("train", "test")}
    np.savez(folder / "mnist.npz", **arrays, y_train=np.zeros(3, int), y_test=np.zeros(3, int))


def _lists(folder: Path) -> None:
    (folder / "lists.csv").write_text('x,y\n1,"[1, 2]"\n2,[]\n')


def _sheets(folder: Path) -> None:
    rows = [["id", "zip", "returned"], *([i, "0123", "no"] for i in range(3))]
    (folder / "orders.xlsx").write_bytes(workbook({"2023": rows, "2024": rows}))


def _digits(folder: Path) -> None:
    with h5py.File(folder / "digits.h5", "w") as file:
        file["x_train"], file["y_train"] = np.zeros((3, 28, 28), np.uint8), [0, 1, 2]
        file["x_test"], file["y_test"] = np.zeros((2, 28, 28), np.uint8), [0, 1]


def _exports(folder: Path) -> None:
    (folder / "exports").mkdir()
    (folder / "exports" / "2024.csv").write_text("id,amount\n1,2.5\n")
    (folder / "exports" / "2025.csv").write_text("id,amount,currency\n2,3.5,EUR\n")


def _orders_of_two_shops(folder: Path) -> None:
    (folder / "shop").mkdir()
    lines = [f"{n},{n / 2},{'yes' if n % 3 else 'no'}" for n in range(40)]
    (folder / "shop" / "2024.csv").write_text("\n".join(["id,price,returned", *lines]) + "\n")
    (folder / "market").mkdir()
    columns = {"id": range(40), "returned": ["no", "yes"] * 20, "seller": ["a"] * 40}
    table = pa.table({name: list(values) for name, values in columns.items()})
    pq.write_table(table, folder / "market" / "part-0.parquet")


def _binary(folder: Path) -> None:
    (folder / "raw").mkdir()
    (folder / "raw" / "a.bin").write_bytes(struct.pack("<Bd", 1, 0.5))


def _depth(folder: Path) -> None:
    (folder / "depth").mkdir()
    for number in range(4):
        pixels = np.full((30, 40), 1000 * number, np.uint16)
        Pillow.fromarray(pixels).save(folder / "depth" / f"hall_{number}.png")


def _street(folder: Path) -> None:
    rng = np.random.default_rng(0)
    for kind, suffix, shape in (("images", "jpg", (30, 40, 3)), ("masks", "png", (30, 40))):
        (folder / "street" / kind).mkdir(parents=True)
        for number in range(4):
            pixels = rng.integers(0, 3, shape, np.uint8)
            Pillow.fromarray(pixels).save(folder / "street" / kind / f"{number}.{suffix}")


def _clips(folder: Path) -> None:
    rng = np.random.default_rng(0)
    for number in range(8):
        clip = folder / "clips" / ("run" if number % 2 else "walk") / f"clip_{number}"
        clip.mkdir(parents=True)
        for frame in range(1, 26):
            pixels = rng.integers(0, 256, (12, 16, 3), np.uint8)
            Pillow.fromarray(pixels).save(clip / f"{frame:04}.jpg")


def _nothing(folder: Path) -> None:
    del folder


EXAMPLES: list[tuple[str, str, Callable[[Path], None]]] = [
    ("sources.md", "Several sources", _orders_of_two_shops),
    ("sources.md", "Iterable", _orders),
    ("sources.md", "Images of 16 bits", _depth),
    ("sources.md", "Images with masks", _street),
    ("sources.md", "ClipFolder", _clips),
    ("sources.md", "Numpy", _arrays),
    ("sources.md", "Files", _binary),
    ("sources.md", "Excel", _sheets),
    ("sources.md", "Hdf5", _digits),
    ("csv.md", "Files with different columns", _exports),
    ("csv.md", "Types", _lists),
]


@pytest.mark.slow
@pytest.mark.parametrize(("document", "heading", "prepare"), EXAMPLES, ids=[e[1] for e in EXAMPLES])
def test_documented_sources_are_built(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    document: str,
    heading: str,
    prepare: Callable[[Path], None],
) -> None:
    import tensorflow as tf

    prepare(tmp_path)
    monkeypatch.chdir(tmp_path)
    _, _, rest = (DOCS / document).read_text().partition(f"\n## {heading}\n")
    section = rest.partition("\n## ")[0]
    text = "\n".join(re.findall(r"```python\n(.*?)```", section, flags=re.DOTALL))
    images, classes = np.zeros((4, 2, 2, 3), np.uint8), np.arange(4)
    names: dict[str, Any] = {"tf": tf, "images": images, "classes": classes, "pl": POLARS}
    # Paths are relative to the file of the recipe.
    path = tmp_path / "example.py"
    path.write_text(f"import glob, json, struct\nimport snapshard as ss\n{text}")
    made: list[ss.Recipe] = []
    for statement in ast.parse(path.read_text()).body:
        _run(ast.Module([statement], []), path, names)
        (target,) = statement.targets if isinstance(statement, ast.Assign) else (None,)
        if isinstance(target, ast.Name) and target.id == "source":
            of = "ss.Recipe(name='made', source=source, splits=ss.Splits(train=1.0))"
            _run(ast.parse(f"recipe = {of}"), path, names)
        if isinstance(target, ast.Name) and target.id in ("source", "recipe"):
            made.append(names["recipe"])
    assert made
    for number, recipe in enumerate(made):
        ss.build(recipe, tmp_path / f"out-{number}", workers=1)


def _run(module: ast.Module, path: Path, names: dict[str, Any]) -> None:
    exec(compile(module, str(path), "exec"), names)


RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, (12, 28, 28), np.uint8)


def _example(folder: Path, document: str, heading: str) -> dict[str, Any]:
    """Runs the examples of a section, with values as the page shows them; gives its variables."""
    import tensorflow as tf

    found: dict[str, Any] = {"np": np, "ss": ss, "tf": tf}
    assert run_examples(DOCS / document, folder, heading=heading, variables=found) > 0
    return found


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_a_folder_of_tiffs(here: Path, lab: Any) -> None:
    for number, pixels in enumerate(RNG.integers(0, 256, (6, 48, 64), np.uint8)):
        path = here / "scans" / ("blank", "written")[number % 2] / f"{number:04}.tif"
        path.parent.mkdir(parents=True, exist_ok=True)
        Pillow.fromarray(pixels).save(path, compression="tiff_lzw")
    found = _example(here, "sources.md", "TIFF")
    for record_id, row in lab.stored_rows(found["snapshot"]).items():
        pixels = np.asarray(Pillow.open(here / "scans" / record_id))
        np.testing.assert_array_equal(row["image"][..., 0], pixels)


@pytest.mark.slow
def test_a_record_for_each_row_of_a_table_of_images(here: Path, lab: Any) -> None:
    (here / "flickr" / "Images").mkdir(parents=True)
    lines = ["image,label,person"]
    for number in range(5):
        pixels = RNG.integers(0, 256, (6, 8, 3), np.uint8)
        Pillow.fromarray(pixels).save(here / "flickr" / "Images" / f"{number}.png")
        lines += [f"{number}.png,{'ab'[person % 2]},{person}" for person in range(4)]
    (here / "flickr" / "votes.csv").write_text("\n".join(lines))
    with pytest.raises(DataError, match="A record for each row"):
        suggest_recipe("flickr")
    _example(here, "sources.md", "A record for each row")
    stored = lab.stored_rows(ss.load("out/votes"))
    assert len({row["file"] for row in stored.values()}) == 5


def test_labels_of_matlab_beside_images(here: Path) -> None:
    scipy = pytest.importorskip("scipy.io")
    (here / "flowers" / "jpg").mkdir(parents=True)
    for number in range(1, 13):
        pixels = RNG.integers(0, 256, (6, 8, 3), np.uint8)
        Pillow.fromarray(pixels).save(here / "flowers" / "jpg" / f"image_{number:05}.jpg")
    numbers = {"trnid": [*range(1, 7)], "valid": [*range(7, 10)], "tstid": [*range(10, 13)]}
    scipy.savemat(here / "flowers" / "setid.mat", numbers)
    scipy.savemat(here / "flowers" / "imagelabels.mat", {"labels": [[1, 2] * 6]})
    with pytest.raises(DataError, match=r"imagelabels\.mat' \(MATLAB\), .*Labels in"):
        suggest_recipe("flowers")
    _example(here, "sources.md", "Labels in files of other formats")
    recipe = suggest_recipe("flowers")
    assert recipe.source == ss.ImageFolder("flowers/jpg", table="flowers/labels.csv")
    assert recipe.splits.names == ("train", "validation", "test")


@pytest.mark.slow
def test_columns_in_two_tables(here: Path, lab: Any) -> None:
    for part, num in (("train", 30), ("test", 10)):
        (here / f"X_{part}.csv").write_text(
            "\n".join(["a,b", *(f"{n},{n / 2}" for n in range(num))])
        )
        (here / f"y_{part}.csv").write_text("\n".join(["y", *("dog" for _ in range(num))]))
    with pytest.raises(DataError, match="Columns in two tables") as caught:
        suggest_recipe(".")
    parts = 'train=ss.Csv("X_train.csv"), test=ss.Csv("X_test.csv")'
    assert f"\n    source=ss.Sources({parts}), splits=ss.Splits.by_folder()" in str(caught.value)
    _example(here, "sources.md", "Columns in two tables")
    rows = lab.stored_rows(ss.load("out/joined")).values()
    assert sorted(row["b"] for row in rows if row["part"] == b"test") == [n / 2 for n in range(10)]


@pytest.mark.slow
def test_lines_of_two_texts(here: Path, lab: Any) -> None:
    for name in ("train.en", "train.de", "test.en", "test.de"):
        (here / name).write_text("".join(f"{name} {n}\n" for n in range(9)))
    with pytest.raises(DataError, match="Lines of two texts"):
        suggest_recipe(".")
    _example(here, "sources.md", "Lines of two texts")
    rows = lab.stored_rows(ss.load("out/pairs")).values()
    found = sorted((row["en"], row["de"]) for row in rows if row["part"] == b"test")
    assert found == [(b"test.en %d" % n, b"test.de %d" % n) for n in range(9)]


@pytest.mark.slow
def test_tables_joined_by_ids(here: Path) -> None:
    paths = [f"{n % 2:03}.Bird_{'ab'[n % 2]}/Bird_{n:04}.jpg" for n in range(12)]
    tables = {
        "images": paths,
        "image_class_labels": [n % 2 + 1 for n in range(12)],
        "train_test_split": [int(n % 3 > 0) for n in range(12)],
        "bounding_boxes": ["1.0 1.0 5.0 5.0"] * 12,
        "classes": ["000.Bird_a", "001.Bird_b"],
    }
    top = here / "CUB_200_2011"
    for path in paths:
        (top / "images" / path).parent.mkdir(parents=True, exist_ok=True)
        pixels = RNG.integers(0, 256, (6, 8, 3), np.uint8)
        Pillow.fromarray(pixels).save(top / "images" / path)
    for name, values in tables.items():
        (top / f"{name}.txt").write_text("".join(f"{n} {v}\n" for n, v in enumerate(values, 1)))
    with pytest.raises(DataError, match="gives them ids") as caught:
        suggest_recipe(".")
    message = str(caught.value)
    assert all(f"'CUB_200_2011/{name}.txt'" in message for name in [*tables][1:])
    assert 'source=ss.ImageFolder("./CUB_200_2011/images")' in message
    _example(here, "sources.md", "Tables joined by ids")


@pytest.mark.slow
def test_lists_of_the_files_of_splits(here: Path) -> None:
    names = [f"{'yes' if number % 2 else 'no'}/{number}.wav" for number in range(12)]
    for number, name in enumerate(names):
        (here / "commands" / name).parent.mkdir(parents=True, exist_ok=True)
        soundfile.write(here / "commands" / name, np.full(80, number / 100), 8000)
    (here / "commands" / "validation_list.txt").write_text("\n".join(names[:4]))
    (here / "commands" / "testing_list.txt").write_text("\n".join(names[4:6]))
    found = _example(here, "sources.md", "Lists of the files of splits")
    assert suggest_recipe("commands").source == found["recipe"].source


@pytest.mark.slow
def test_pixels_of_arrays_and_records(here: Path, lab: Any) -> None:
    import tensorflow as tf

    np.save(here / "pixels.npy", PIXELS)
    np.save(here / "digits.npy", np.arange(12) % 10)
    for part in range(2):
        with tf.io.TFRecordWriter(str(here / f"digits-{part}.tfrecord")) as writer:
            for number in range(6 * part, 6 * part + 6):
                raw = tf.train.BytesList(value=[PIXELS[number].tobytes()])
                y = tf.train.Int64List(value=[number])
                feature = {
                    "image_raw": tf.train.Feature(bytes_list=raw),
                    "y": tf.train.Feature(int64_list=y),
                }
                example = tf.train.Example(features=tf.train.Features(feature=feature))
                writer.write(example.SerializeToString())
    _example(here, "sources.md", "Arrays of pixels as images")
    for row_id, row in lab.stored_rows(ss.load("out/digits")).items():
        number = int(row_id.removeprefix("table#"))
        np.testing.assert_array_equal(row["x"][..., 0], PIXELS[number])
    for row in lab.stored_rows(ss.load("out/digits_of_records")).values():
        resized = tf.image.resize(PIXELS[row["y"]][..., None], (14, 14), antialias=True)
        np.testing.assert_allclose(row["image_raw"], resized, atol=1)


@pytest.mark.slow
def test_photographs_are_padded_or_cropped(here: Path, lab: Any) -> None:
    import tensorflow as tf

    for number, size in enumerate([(20, 90), (60, 30), (48, 64), (80, 100), (10, 10)]):
        (here / "photos" / "ab"[number % 2]).mkdir(parents=True, exist_ok=True)
        image = Pillow.fromarray(RNG.integers(0, 256, (*size, 3), np.uint8))
        image.save(here / "photos" / "ab"[number % 2] / f"{number}.png")
    found = _example(here, "steps.md", "Images")
    for record_id, row in lab.stored_rows(found["snapshot"]).items():
        pixels = np.asarray(Pillow.open(here / "photos" / record_id))
        np.testing.assert_array_equal(
            row["image"], tf.image.resize_with_crop_or_pad(pixels, 48, 64)
        )
