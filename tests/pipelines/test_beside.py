"""Files beside others: archives, a table for each image, texts and arrays side by side."""

import io
import json
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from PIL import Image as Pillow

import snapshard as ss
from snapshard.pipelines.inspect.suggest import suggest_recipe
from snapshard.pipelines.recognize.readings import UnclearError

ROWS = "n,label\n" + "1,a\n2,b\n" * 9
LINES = "one\ntwo\n" * 9
ENDS = ("png", "cls")


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def image() -> bytes:
    stored = io.BytesIO()
    Pillow.new("RGB", (4, 2)).save(stored, "PNG")
    return stored.getvalue()


def array(*shape: int, dtype: str = "float32") -> bytes:
    stored = io.BytesIO()
    np.save(stored, np.zeros(shape, dtype))
    return stored.getvalue()


def zipped(files: Mapping[str, bytes | str]) -> bytes:
    stored = io.BytesIO()
    with zipfile.ZipFile(stored, "w") as archive:
        for path, content in files.items():
            archive.writestr(path, content)
    return stored.getvalue()


def tarred(files: Mapping[str, bytes], mode: Literal["w", "w:gz"] = "w:gz") -> bytes:
    stored = io.BytesIO()
    with tarfile.open(fileobj=stored, mode=mode) as archive:
        for path, content in files.items():
            member = tarfile.TarInfo(path)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return stored.getvalue()


def write(files: Mapping[str, bytes | str]) -> None:
    for path, content in files.items():
        file = Path("d", path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content if isinstance(content, bytes) else content.encode())


PLAIN = {f"images/{n}.png": image() for n in range(4)}
CLASSES = {f"{name}/{n}.png": image() for name in ("cat", "dog") for n in range(4)}


@pytest.mark.parametrize(
    ("files", "seen", "lines"),
    [
        (
            {"a.zip": zipped(CLASSES)},
            r"holds archives \(a.zip\)",
            ['ss.ImageFolder("d/a.zip")'],
        ),
        (
            {
                "images.tar.gz": tarred(PLAIN),
                "labels.csv": "n,label\n" + "".join(f"{n},{'ab'[n % 2]}\n" for n in range(4)),
            },
            r"holds archives \(images.tar.gz\)",
            [
                'ss.ImageFolder("tar://images::d/images.tar.gz", table="d/labels.csv")',
                'ss.Csv("d")',
            ],
        ),
        (
            {f"{n}.png": image() for n in range(4)} | {f"{n}.json": "{}" for n in range(4)},
            "4 images .* and 4 tables",
            ['ss.ImageFolder("d", label=None)', 'ss.JsonLines("d")'],
        ),
        (
            PLAIN | {f"depth/{n}.npy": array(2, 2) for n in range(5)},
            "4 images .* and 5 tables",
            ['ss.ImageFolder("d/images", label=None)', 'ss.Numpy("d")'],
        ),
        (
            {f"{name}/{n}.json": json.dumps({"n": n}) for name in ("a", "b") for n in range(4)},
            "8 files with one JSON object each, in 2 folders",
            ['ss.JsonLines("d")'],
        ),
        (
            {f"{split}.{side}.txt": LINES for split in ("train", "test") for side in ("de", "en")},
            r"texts side by side \(de, en\)",
            [
                f'ss.Sources(train=ss.TextFiles("d/train.{side}.txt"), '
                f'test=ss.TextFiles("d/test.{side}.txt"))'
                for side in ("de", "en")
            ],
        ),
        (
            {f"{split}.{side}": LINES for split in ("train", "val") for side in ("de", "en")},
            r"texts side by side \(de, en\)",
            [
                f'ss.Sources(train=ss.TextFiles("d/train.{side}"), '
                f'validation=ss.TextFiles("d/val.{side}"))'
                for side in ("de", "en")
            ],
        ),
        (
            {
                f"{split}/{side}_{split}.txt": text
                for split in ("train", "test")
                for side, text in {"X": " 1.5  2.5\n" * 9, "y": "1\n" * 9, "who": "7\n" * 9}.items()
            }
            | {"labels.txt": "1 WALKING\n2 SITTING\n"},
            "columns of the same records",
            [
                'ss.Sources(train=ss.Csv("d/train/X_train.txt", delimiter="whitespace", '
                'header=False), test=ss.Csv("d/test/X_test.txt", delimiter="whitespace", '
                "header=False))"
            ],
        ),
        (
            {"a.npy": array(20, 4), "b.npy": array(30, 4)},
            "2 arrays",
            ['ss.Numpy("d/a.npy")', 'ss.Numpy("d/b.npy")', 'ss.Numpy("d")'],
        ),
        (
            {"a.npy": array(20, 4), "b.npy": array(20, 4)},
            "2 arrays",
            [
                'ss.Numpy("d/a.npy", name="a", beside={"b": "d/b.npy"})',
                'ss.Numpy("d/a.npy")',
                'ss.Numpy("d/b.npy")',
                'ss.Numpy("d")',
            ],
        ),
        (
            {f"{c}/{s}-0.csv": ROWS for c in ("one", "two") for s in ("train", "test")},
            "no pattern of names tells the files of a split",
            [
                'ss.Sources(train=ss.Csv("d/one/train-0.csv"), test=ss.Csv("d/one/test-0.csv"))',
                'ss.Sources(train=ss.Csv("d/two/train-0.csv"), test=ss.Csv("d/two/test-0.csv"))',
                'ss.Csv("d")',
            ],
        ),
    ],
)
def test_what_is_unclear(files: Mapping[str, bytes | str], seen: str, lines: list[str]) -> None:
    write(files)
    with pytest.raises(UnclearError, match=seen) as raised:
        suggest_recipe("d")
    found = [reading.line() for reading in raised.value.readings]
    assert [line.partition(", splits=")[0] for line in found] == [f"source={s}" for s in lines]


@pytest.mark.parametrize(
    ("files", "source"),
    [
        ({"images.zip": zipped(CLASSES)} | CLASSES, ss.ImageFolder("d")),
        ({"t.zip": zipped({"data/t.csv": ROWS}), "t.csv": ROWS}, ss.Csv("d")),
        (
            {"X.npy": array(20, 4), "y.npy": array(20, dtype="int64")},
            ss.Numpy("d/X.npy", name="X", label="y", beside={"y": "d/y.npy"}),
        ),
        ({"part1.npy": array(20, 4), "part2.npy": array(30, 4)}, ss.Numpy("d")),
        (
            {f"p{n}_{split}.txt": LINES for n in range(2) for split in ("train", "test")},
            ss.Sources(train=ss.TextFiles("d/p*_train.txt"), test=ss.TextFiles("d/p*_test.txt")),
        ),
    ],
)
def test_what_is_clear(files: Mapping[str, bytes | str], source: object) -> None:
    write(files)
    assert suggest_recipe("d").source == source


def test_an_archive_with_one_folder() -> None:
    write({"a.zip": zipped(PLAIN)})
    assert suggest_recipe("d/a.zip").source == ss.ImageFolder("zip://images::d/a.zip", label=None)


@pytest.mark.parametrize("names", [["a.tar"], ["train.tar", "test.tar"]])
def test_tars_of_class_folders_are_no_samples(names: list[str]) -> None:
    """They were read without their classes."""
    classes = {f"{'ab'[n % 2]}/{n}.png": image() for n in range(6)}
    write({name: tarred(classes, "w") for name in names})
    with pytest.raises(UnclearError, match="holds archives") as refused:
        suggest_recipe("d")
    lines = [reading.line() for reading in refused.value.readings]
    assert lines == [f'source=ss.ImageFolder("d/{name}")' for name in sorted(names)]


def test_tars_of_samples_in_folders() -> None:
    members = {f"{n}/{n}.{end}": image() for n in range(4) for end in ENDS}
    write({"a.tar": tarred(members, "w")})
    assert suggest_recipe("d").source == ss.WebDataset("d")


def test_tars_of_samples_beside_what_was_counted_of_them() -> None:
    samples = {f"{n}.{end}": image() if end == "png" else b"7" for n in range(4) for end in ENDS}
    for number in range(2):
        stats = {f"0000{number}_stats.json": json.dumps({"successes": 4})}
        write({f"0000{number}.tar": tarred(samples, "w"), **stats})
    with pytest.raises(UnclearError, match="holds archives") as refused:
        suggest_recipe("d")
    first, second, *_ = (reading.line() for reading in refused.value.readings)
    assert first.startswith('source=ss.WebDataset("d")')
    assert second.startswith('source=ss.WebDataset("d/00000.tar")')
