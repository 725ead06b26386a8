"""What ``plan`` says of splits and labels is what ``build`` makes."""

import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import snapshard as ss
from snapshard.pipelines.inspect.forecast import forecast
from snapshard.schemas.progress import Silent

THREE = {"train": 0.6, "validation": 0.2, "test": 0.2}


def picture(path: Path, content: str = "") -> None:
    """Writes an image of random pixels, the same for the same content; by default its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    seed = zlib.crc32((content or str(path)).encode())
    pixels = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), np.uint8)
    Image.fromarray(pixels).save(path)


def class_folders(folder: Path, **counts: int) -> None:
    for name, num in counts.items():
        for index in range(num):
            picture(folder / name / f"{index}.png")


def split_folders(folder: Path) -> None:
    class_folders(folder / "train", cat=40, horse=20)
    class_folders(folder / "test", cat=25, horse=35)


def names(folder: Path) -> None:
    for index in range(90):
        picture(folder / f"{'cat' if index % 3 else 'horse'}-p{index // 5}-{index}.png")


def masks(folder: Path) -> None:
    for index in range(80):
        picture(folder / "images" / f"{index}.png")
        (folder / "masks").mkdir(exist_ok=True)
        pixels = np.full((4, 4), index % 2, np.uint8)
        Image.fromarray(pixels).save(folder / "masks" / f"{index}.png")


def label_table(folder: Path) -> None:
    lines = ["file,label,part"]
    for index in range(90):
        picture(folder / f"{index}.png")
        lines.append(f"{index}.png,{'cat' if index % 3 else 'horse'},{'ab'[index % 5 == 0]}")
    (folder.parent / "table.csv").write_text("\n".join(lines) + "\n")


def twins(folder: Path) -> None:
    for index in range(100):
        picture(folder / ("cat" if index < 50 else "horse") / f"{index}.png", f"{index % 50}")


def text_classes(folder: Path) -> None:
    for index in range(90):
        path = folder / ("neg" if index % 3 else "pos") / f"{index}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"text {index}")


def of_source(**options: Any) -> Callable[[Path], Any]:
    return lambda folder: ss.ImageFolder(str(folder), **options)


BY_NAME = of_source(pattern="{label}-{patient}-{n}.png")
BY_TABLE: Callable[[Path], Any] = lambda folder: ss.ImageFolder(  # noqa: E731
    str(folder), table=str(folder.parent / "table.csv")
)
LAYOUTS: dict[str, tuple[Callable[[Path], None], Callable[[Path], Any], ss.Splits]] = {
    "hash": (
        lambda folder: class_folders(folder, cat=60, horse=40),
        of_source(),
        ss.Splits(**THREE),
    ),
    "stratified": (
        lambda folder: class_folders(folder, cat=60, horse=40, rhino=2),
        of_source(),
        ss.Splits(**THREE, stratify_by="label"),
    ),
    "split folders": (split_folders, of_source(split_folders=True), ss.Splits.by_folder()),
    "a part of train": (
        split_folders,
        of_source(split_folders=True),
        ss.Splits.by_folder(train="train", validation=0.1, test="test", stratify_by="label"),
    ),
    "names": (names, BY_NAME, ss.Splits(**THREE, stratify_by="label")),
    "groups": (names, BY_NAME, ss.Splits(**THREE, group_by="patient")),
    "groups and classes": (
        names,
        BY_NAME,
        ss.Splits(**THREE, group_by="patient", stratify_by="label"),
    ),
    "masks": (masks, of_source(masks="masks", label="mask"), ss.Splits(**THREE)),
    "table": (label_table, BY_TABLE, ss.Splits.by_column("part", train="a", test="b")),
    "twins": (twins, of_source(), ss.Splits(**THREE)),
    "texts": (text_classes, lambda folder: ss.TextFolder(str(folder)), ss.Splits(**THREE)),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_more_files_than_are_sampled(tmp_path: Path, layout: str) -> None:
    write, source, splits = LAYOUTS[layout]
    (tmp_path / "data").mkdir()
    write(tmp_path / "data")
    recipe = ss.Recipe(name="x", source=source(tmp_path / "data"), splits=splits)
    planned = forecast(recipe, progress=Silent())
    assert planned.num_sampled < planned.num_examples
    built = ss.build(recipe, tmp_path / "out").manifest
    counts = {name: split.num_examples for name, split in built.splits.items()}
    assert {split.name: split.num_examples for split in planned.splits} == counts
    labels = {name: split.label_counts for name, split in built.splits.items() if split.shards}
    assert planned.label_counts == ({} if layout == "masks" else labels)
    assert planned.shared_contents == built.shared_contents
    assert bool(built.shared_contents) == (layout == "twins")


@pytest.mark.parametrize("where", ["folder", "sources", "column"])
def test_more_rows_than_are_sampled(tmp_path: Path, where: str) -> None:
    for name, num in (("train", 15_000), ("test", 5_000)):
        folder = tmp_path / "data" / name
        folder.mkdir(parents=True)
        part = name if where != "column" else "{}"
        rows = [f"{n:6},{part.format(('train', 'test')[n % 4 == 0])}" for n in range(num)]
        (folder / "t.csv").write_text("\n".join(["n,part", *rows]) + "\n")
    data = str(tmp_path / "data")
    source: Any = ss.Csv(data)
    if where == "sources":
        source = ss.Sources(train=ss.Csv(f"{data}/train"), test=ss.Csv(f"{data}/test"))
    splits = ss.Splits.by_column("part") if where == "column" else ss.Splits.by_folder()
    planned = forecast(ss.Recipe(name="x", source=source, splits=splits), progress=Silent())
    counts = {split.name: split.num_examples for split in planned.splits}
    assert counts["validation"] == 0
    assert counts["train"] == pytest.approx(15_000, rel=0.05)
    assert counts["test"] == pytest.approx(5_000, rel=0.1)


def test_classes_without_records_are_named(tmp_path: Path) -> None:
    class_folders(tmp_path / "data", cat=60, horse=40)
    label = ss.ClassLabel(names=("cat", "horse", "mule"))
    features = {"image": ss.Image(storage="encoded"), "label": label}
    source = ss.ImageFolder(str(tmp_path / "data"))
    recipe = ss.Recipe(name="x", source=source, features=features, splits=ss.Splits(train=1.0))
    assert "no record has the label 'mule'" in forecast(recipe, progress=Silent()).warnings


def test_rejects_are_shown_instead_of_empty_splits(tmp_path: Path) -> None:
    class_folders(tmp_path / "data", cat=6)
    for index in range(5):
        (tmp_path / "data" / "cat" / f"{index}.png").write_bytes(b"\x89PNG\r\n\x1a\nbroken")
    source = ss.ImageFolder(str(tmp_path / "data"))
    planned = forecast(ss.Recipe(name="x", source=source), progress=Silent())
    told = "\n".join(planned.warnings)
    assert "5 × read: truncated image" in told
    assert "about 5 rejects, but only 0 are allowed" in told
    with pytest.raises(ss.SnapshardError, match=r"would be empty(.|\n)*5 × read: truncated image"):
        forecast(ss.Recipe(name="x", source=source, max_rejects=0.9), progress=Silent())


def write_deep(path: Path) -> None:
    """A PNG or TIFF of 16 bits of grey."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(zlib.crc32(path.name.encode())).integers(0, 2**16, (4, 4))
    Image.fromarray(pixels.astype(np.uint16)).save(path)


class Warned(Silent):
    """Collects warnings."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    def warn(self, message: str) -> None:
        self.messages.append(message)


@pytest.mark.parametrize("suffix", ["png", "tif"])
def test_bits_that_are_dropped(tmp_path: Path, suffix: str) -> None:
    for index in range(6):
        write_deep(tmp_path / "data" / f"{index}.{suffix}")
        picture(tmp_path / "data" / f"{index}-small.png")
    source = ss.ImageFolder(str(tmp_path / "data"), label=None)
    recipe = ss.Recipe(name="x", source=source, splits=ss.Splits(train=1.0))
    planned, built = Warned(), Warned()
    forecast(recipe, progress=planned)
    ss.build(recipe, tmp_path / "out", progress=built)
    for warned in (planned, built):
        assert warned.messages == [
            "6 of 12 sampled images have 16 bits, of which the upper 8 are used, unless "
            'ss.images.decode("image", 1, dtype="uint16") keeps all.'
        ]


def test_ids_are_named_by_both(tmp_path: Path) -> None:
    text = "a long text that is the input of a model: number"
    lines = [f"{n},row {n},{text} {n},Go to {n}!,{n % 7},{n % 3}" for n in range(80)]
    (tmp_path / "t.csv").write_text("\n".join(["n,name,text,said,few,label", *lines]) + "\n")
    features: Any = {
        "n": ss.Scalar("int64"),
        "name": ss.Scalar("string"),
        "text": ss.Scalar("string"),
        "said": ss.Scalar("string"),
        "few": ss.Scalar("int64"),
        "label": ss.ClassLabel({0: "one", 1: "two", 2: "three"}),
    }
    source = ss.Csv(str(tmp_path / "t.csv"), label="label")
    recipe = ss.Recipe(name="x", source=source, features=features, splits=ss.Splits(train=1.0))
    warned = Warned()
    ss.build(recipe, tmp_path / "out", progress=warned)
    (notice,) = warned.messages
    assert "sampled records has a value of its own of 'n', 'name'." in notice
    assert 'ss.records.drop(["n", "name"])' in notice
    assert notice in forecast(recipe, progress=Silent()).warnings


def test_texts_of_files_are_no_ids(tmp_path: Path) -> None:
    for n in range(80):
        path = tmp_path / "data" / "ab"[n % 2] / f"{n}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"text {n}")
    source = ss.TextFolder(str(tmp_path / "data"))
    recipe = ss.Recipe(name="x", source=source, splits=ss.Splits(train=1.0))
    assert not forecast(recipe, progress=Silent()).warnings


def test_what_the_files_say_is_told_before_they_are_read(tmp_path: Path) -> None:
    class_folders(tmp_path / "data", cat=10)
    (tmp_path / "data" / "README.md").write_text("cats")
    (tmp_path / "data" / "cat" / "gone.png").symlink_to(tmp_path / "nowhere")
    source = ss.ImageFolder(str(tmp_path / "data"))
    recipe = ss.Recipe(name="x", source=source, splits=ss.Splits(train=1.0), max_rejects=1)
    warned = Warned()
    ss.build(recipe, tmp_path / "out", progress=warned)
    assert warned.messages[:2] == [
        "1 file will become a reject: dangling symbolic link",
        "feature 'label' has only the class 'cat'",
    ]
    assert set(warned.messages) <= set(forecast(recipe, progress=Silent()).warnings)


@pytest.mark.parametrize(("num_files", "fails"), [(300, False), (299, True)])
def test_budgets_are_fractions_of_all_files(tmp_path: Path, num_files: int, fails: bool) -> None:
    """A dry run allows what a build does, though it samples 64 files: here, 3 and 2 rejects."""
    class_folders(tmp_path / "data", cat=num_files)
    for index in range(3):
        (tmp_path / "data" / "cat" / f"{index}.png").unlink()
        (tmp_path / "data" / "cat" / f"{index}.png").symlink_to(tmp_path / "nowhere")
    source = ss.ImageFolder(str(tmp_path / "data"), label=None)
    recipe = ss.Recipe(name="x", source=source, splits=ss.Splits(train=1.0))
    told = "\n".join(forecast(recipe, progress=Silent()).warnings)
    assert ("about 3 rejects, but only 2 are allowed" in told) == fails
