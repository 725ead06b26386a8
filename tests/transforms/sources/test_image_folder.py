"""Image folders: which files are records, what becomes of odd ones, and what is read."""

import os
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from snapshard.schemas.blocks import RawBatch, SourceFile
from snapshard.schemas.errors import DataError, RecipeError
from snapshard.schemas.features import ClassLabel, Features, Image
from snapshard.schemas.recipe import Source
from snapshard.transforms.prepare import images
from snapshard.transforms.prepare.engine.program import StepRunner
from snapshard.transforms.runs.files import wire_schema
from snapshard.transforms.sources.folders import files as media_files
from snapshard.transforms.sources.folders import images as image_folder
from snapshard.transforms.sources.folders.images import ImageFolder
from snapshard.transforms.storage.opened_source import OpenedSource, open_source

from ...file_bytes import write
from .conftest import make_block


def listed(*paths: str) -> list[SourceFile]:
    return [SourceFile(path=path, num_bytes=1, stamp="s") for path in paths]


def read_all(
    source: ImageFolder, opened: OpenedSource, *, features: Features | None = None
) -> list[RawBatch]:
    files = source.select(opened.list()).files
    block = make_block(files, opened)
    features = features or source.infer(files, opened)
    ordered = range(len(files))
    return list(source.read(block, features=features, opened=opened, ordered=ordered))


def test_it_is_a_source() -> None:
    source = ImageFolder("somewhere")
    assert isinstance(source, Source)
    assert (source.url, source.label, source.media, source.numbered) == (
        "somewhere",
        "label",
        True,
        False,
    )
    assert source == ImageFolder(url="somewhere")
    assert source.settings() == {"source": "image_folder", "max_pixels": 178_956_970}
    with pytest.raises(RecipeError, match="max_pixels"):
        ImageFolder("somewhere", max_pixels=0)
    with pytest.raises(RecipeError, match="files: unknown argument"):
        ImageFolder("somewhere", files="*.jpg")  # type: ignore[call-arg]


def test_what_nobody_means_is_skipped_and_counted() -> None:
    files = listed(
        "cat/1.jpg",
        "cat/deep/er/2.PNG",
        "cat/no extension",
        "dog/notes.doc.bak",
        "photos.zip",
        "dog/notes.TXT",
        "README.md",
        "licence/COPYING",
        "labels.csv",
        "dog/barks.wav",
        ".hidden",
        "cat/.DS_Store",
        "cat/._1.jpg",
        "cat/Thumbs.db",
        "dog/thumbs.DB",
        "dog/desktop.ini",
        ".git/objects/ab",
        "cat/.cache/3.jpg",
        "__MACOSX/cat/._1.jpg",
        "cat/__MACOSX/1.jpg",
    )
    selection = ImageFolder("x").select(files)
    assert [file.path for file in selection.files] == [file.path for file in files[:5]]
    assert selection.num_skipped == {
        ".DS_Store": 1,
        ".csv file": 1,
        ".txt file": 1,
        ".wav file": 1,
        "COPYING": 1,
        "README": 1,
        "Thumbs.db": 2,
        "__MACOSX": 2,
        "desktop.ini": 1,
        "hidden file": 2,
        "in a hidden folder": 2,
    }
    assert ImageFolder("x").select(tuple(files)) == selection


def test_classes_are_the_first_folders_that_hold_a_record() -> None:
    opened: Any = None
    files = listed("b/1.jpg", "a/x/y/2.jpg", "ä/3.jpg", "README.md", "C/4.jpg")
    assert ImageFolder("x").infer(files, opened) == {
        "image": Image(storage="encoded"),
        "label": ClassLabel(names=("C", "a", "b", "ä")),
    }


def test_a_folder_without_classes_is_refused() -> None:
    opened: Any = None
    with pytest.raises(DataError, match="none of the 2 files is in a class folder"):
        ImageFolder("x").infer(listed("1.jpg", "2.jpg"), opened)
    with pytest.raises(DataError, match="not valid UTF-8"):
        ImageFolder("x").infer(listed("caf\udce9/1.jpg"), opened)


def test_files_come_in_the_given_order_with_what_their_headers_say(
    pictures: Any, tmp_path: Path
) -> None:
    contents = {
        "cat/a.jpg": pictures.turned(pictures.pixels(24, 40), 6),
        "cat/b.png": pictures.encode(pictures.pixels(5, 6), "GIF"),
        "dog/sub/c": pictures.encode(pictures.pixels(7, 8), "PNG"),
    }
    write(tmp_path, contents)
    source = ImageFolder(str(tmp_path))
    opened = open_source(source.url, "/")
    files = source.select(opened.list()).files
    features = source.infer(files, opened)
    block = make_block(files, opened)
    (batch,) = source.read(block, features=features, opened=opened, ordered=[2, 0, 1])
    assert batch.ids == ["dog/sub/c", "cat/a.jpg", "cat/b.png"]
    assert batch.columns.schema.equals(wire_schema(features))
    assert batch.columns.to_pydict() == {
        "image": [contents[name] for name in batch.ids],
        "image/height": [7, 40, 5],
        "image/orientation": [1, 6, 1],
        "image/width": [8, 24, 6],
        "label": [1, 0, 0],
    }
    assert batch.rejects == ()
    (part,) = source.read(block, features=features, opened=opened, ordered=[1])
    assert part.ids == ["cat/b.png"]


def test_a_class_that_is_not_declared_is_rejected(pictures: Any, tmp_path: Path) -> None:
    content = pictures.encode(pictures.pixels())
    write(tmp_path, {"cat/1.jpg": content, "cow/2.jpg": content, "3.jpg": content})
    source = ImageFolder(str(tmp_path))
    opened = open_source(source.url, "/")
    (batch,) = read_all(source, opened, features=pictures.features)
    assert batch.ids == ["cat/1.jpg"]
    assert [(r.record_id, r.stage, r.reason, r.payload) for r in batch.rejects] == [
        ("3.jpg", "validate", "not in a class folder", content),
        ("cow/2.jpg", "validate", "class not declared", content),
    ]
    # Without the label, classes mean nothing.
    (batch,) = read_all(source, opened, features={"image": pictures.features["image"]})
    assert batch.ids == ["3.jpg", "cat/1.jpg", "cow/2.jpg"]


def test_batches_are_bounded(
    pictures: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = pictures.encode(pictures.pixels(20, 30), "PNG")
    write(tmp_path, {f"cat/{i:02}.png": content for i in range(10)})
    source = ImageFolder(str(tmp_path))
    opened = open_source(source.url, "/")

    def sizes() -> list[int]:
        batches = read_all(source, opened)
        assert [name for batch in batches for name in batch.ids] == [
            f"cat/{i:02}.png" for i in range(10)
        ]
        return [len(batch.ids) for batch in batches]

    assert sizes() == [10]
    monkeypatch.setattr(media_files, "BATCH_FILES", 4)
    assert sizes() == [4, 4, 2]
    monkeypatch.setattr(media_files, "BATCH_FILES", 100)
    monkeypatch.setattr(media_files, "BATCH_BYTES", 3 * len(content))
    assert sizes() == [3, 3, 3, 1]
    monkeypatch.setattr(media_files, "BATCH_BYTES", 1)
    assert sizes() == [1] * 10
    monkeypatch.setattr(media_files, "BATCH_BYTES", 1 << 30)
    monkeypatch.setattr(image_folder, "BATCH_PIXELS", 20 * 30 * 2)
    assert sizes() == [2] * 5


@pytest.mark.slow
def test_a_thousand_images_with_forty_odd_ones(pictures: Any, tmp_path: Path) -> None:
    """Every odd file is a reject with its reason, and what only looks odd works."""
    good = {
        f"{random.Random(i).choice(['cat', 'dog'])}/{i:04}.jpg": pictures.encode(
            pictures.pixels(20 + i % 3, 30, i)
        )
        for i in range(950)
    }
    pixels = pictures.pixels(24, 40)
    works = {
        "png.jpg": pictures.encode(pixels, "PNG"),
        "cmyk.jpg": pictures.encode(pixels, "JPEG", "CMYK"),
        "sixteen.png": pictures.encode(pixels[..., 0].astype("uint16") * 257, "PNG"),
        "grey.jpg": pictures.encode(pixels, "JPEG", "L"),
        "grey.png": pictures.encode(pixels, "PNG", "L"),
        "palette.png": pictures.encode(pixels, "PNG", "P"),
        "rotated.jpg": pictures.turned(pixels, 6),
        "animated.gif": pictures.encode(pixels, "GIF"),
        "bitmap.bmp": pictures.encode(pixels, "BMP"),
        "UPPER.JPEG": pictures.encode(pixels),
    }
    good |= {f"dog/{name}": content for name, content in works.items()}
    odd = pictures.odd()
    reasons = {f"cat/{kind}.jpg": reason for kind, (_, reason) in odd.items()}
    bad = {f"cat/{kind}.jpg": content for kind, (content, _) in odd.items()}
    bad |= {f"dog/again {kind}.jpg": content for kind, (content, _) in odd.items()}
    reasons |= {f"dog/again {kind}.jpg": reason for kind, (_, reason) in odd.items()}
    bad |= {"About": b"About these images.\n", "loose.jpg": works["png.jpg"]}
    reasons |= {"About": "not in a class folder", "loose.jpg": "not in a class folder"}
    write(tmp_path, good | bad)
    (tmp_path / "cat" / "folder.jpg").mkdir()
    (tmp_path / "cat" / "dangling.jpg").symlink_to(tmp_path / "nowhere")
    (tmp_path / "dog" / "loop").symlink_to(tmp_path / "dog")
    (tmp_path / "dog" / "self.jpg").symlink_to(tmp_path / "dog" / "self.jpg")
    reasons |= {
        "cat/folder.jpg": "empty folder, expected a file",
        "cat/dangling.jpg": "dangling symbolic link",
        "dog/loop": "symbolic link loop",
        "dog/self.jpg": "symbolic link loop",
    }
    if os.geteuid() != 0:
        (tmp_path / "cat" / "empty.jpg").chmod(0)
        reasons["cat/empty.jpg"] = "no permission to read"
    write(tmp_path, {"cat/Thumbs.db": b"x", "dog/.DS_Store": b"x"})
    assert len(good) + len(reasons) == 1000

    source = ImageFolder(str(tmp_path))
    opened = open_source(source.url, "/")
    selection = source.select(opened.list())
    assert sum(selection.num_skipped.values()) == 2
    features = source.infer(selection.files, opened)
    assert features["label"] == ClassLabel(names=("cat", "dog"))
    batches = read_all(source, opened)
    decode = [images.decode("image"), images.resize("image", (16, 16))]
    for steps in ([], decode):
        prepared = [StepRunner(steps, features).prepare(batch) for batch in batches]
        found = {r.record_id: r for batch in prepared for r in batch.rejects}
        assert {path: reject.reason for path, reject in found.items()} == reasons
        assert sorted(path for batch in prepared for path in batch.ids) == sorted(good)
        assert Counter(reject.stage for reject in found.values())["inventory"] >= 4
        assert all(reject.message for reject in found.values())


def test_an_image_bomb_is_rejected_before_it_is_decoded(pictures: Any, tmp_path: Path) -> None:
    write(tmp_path, {"cat/large.jpg": pictures.encode(pictures.pixels(40, 50))})
    opened = open_source(str(tmp_path), "/")
    (batch,) = read_all(ImageFolder(str(tmp_path), max_pixels=1999), opened)
    assert batch.ids == []
    assert [reject.reason for reject in batch.rejects] == ["too many pixels"]
    (batch,) = read_all(ImageFolder(str(tmp_path), max_pixels=2000), opened)
    assert batch.ids == ["cat/large.jpg"]


@pytest.mark.parametrize(
    ("arguments", "names", "alone"),
    [
        ({"pair": {"before": "before", "after": "after"}}, ("before/{}", "after/{}"), "before"),
        ({"pair": {"a": "{id}_A", "b": "{id}_B"}}, ("{}_A", "{}_B"), "a"),
        ({"images": "{id}", "masks": "{id}_mask"}, ("{}", "{}_mask"), "image"),
        ({"images": "{id}/image", "masks": "{id}/mask"}, ("{}/image", "{}/mask"), "image"),
        ({"images": "x/{id}", "masks": "y/{id}_seg"}, ("x/{}", "y/{}_seg"), "image"),
    ],
)
def test_records_of_two_files(
    pictures: Any, tmp_path: Path, arguments: Any, names: tuple[str, str], alone: str
) -> None:
    first, second = (f"{name}.png" for name in names)
    image, mask = (
        pictures.encode(pictures.pixels(5, 6), "PNG"),
        pictures.encode(pictures.pixels(5, 6)[..., 0], "PNG"),
    )
    contents = {first.format(n): image for n in "uvw"} | {second.format(n): mask for n in "uv"}
    write(tmp_path, contents)
    source = ImageFolder(str(tmp_path), **arguments)
    opened = open_source(source.url, "/")
    files = source.select(opened.list()).files
    features = source.infer(files, opened)
    assert tuple(features) == source.parts
    block = make_block(files, opened)
    ordered = list(range(len(files)))
    (batch,) = source.read(block, features=features, opened=opened, ordered=ordered)
    assert sorted(batch.ids) == [first.format(n) for n in "uv"]
    assert batch.columns.column(source.parts[0]).to_pylist() == [image] * 2
    assert batch.columns.column(source.parts[1]).to_pylist() == [mask] * 2
    (reject,) = batch.rejects
    assert (reject.record_id, reject.stage) == (first.format("w"), "validate")
    assert reject.reason.startswith(f"{alone} without a")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"masks": "masks", "images": "masks"}, "names of two folders"),
        ({"masks": "a/b"}, "names of two folders"),
        ({"masks": "{id}_mask", "images": "{name}"}, "the same fields"),
        ({"pair": {"a": "x"}}, "expected two names"),
        ({"pair": {"a": "x", "b": "y"}, "masks": "masks"}, "no masks="),
        ({"pair": {"a": "x", "b": "x"}}, "names of two folders"),
    ],
)
def test_parts_that_cannot_be_meant(arguments: Any, expected: str) -> None:
    with pytest.raises(RecipeError, match=expected):
        ImageFolder("x", **arguments)
