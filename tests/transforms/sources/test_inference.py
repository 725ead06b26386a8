"""Inferring the steps for a folder of images from their sizes."""

from pathlib import Path
from typing import Any

import pytest

from snapshard.schemas.blocks import SourceFile
from snapshard.transforms.prepare import images
from snapshard.transforms.sources.folders import images as image_folder
from snapshard.transforms.sources.folders.images import ImageFolder, infer_image_steps, read_sizes
from snapshard.transforms.storage.opened_source import OpenedSource, open_source


def make_folder(
    pictures: Any, root: Path, sizes: list[tuple[int, int]]
) -> tuple[tuple[SourceFile, ...], OpenedSource]:
    (root / "cat").mkdir(exist_ok=True)
    for i, size in enumerate(sizes):
        content = pictures.encode(pictures.pixels(*size), "PNG" if i % 2 else "JPEG")
        (root / "cat" / f"{i}.jpg").write_bytes(content)
    opened = open_source(str(root), "/")
    return ImageFolder(str(root)).select(opened.list()).files, opened


@pytest.mark.parametrize(
    ("sizes", "steps"),
    [
        ([(20, 30)] * 5, []),
        (
            [(20, 30)] * 3 + [(10, 10), (9, 9)],
            [images.decode("image"), images.resize("image", (20, 30))],
        ),
        (
            [(20, 30)] * 2 + [(10, 10)] * 2,
            [images.decode("image"), images.resize("image", (256, 256), keep_ratio=True)],
        ),
    ],
)
def test_the_steps_follow_the_sizes(
    pictures: Any, tmp_path: Path, sizes: list[tuple[int, int]], steps: list[Any]
) -> None:
    files, opened = make_folder(pictures, tmp_path, sizes)
    assert infer_image_steps(ImageFolder("x"), files, opened) == steps
    assert infer_image_steps(ImageFolder("x"), files[::-1], opened) == steps


def test_sizes_are_those_of_the_pictures_as_shown(pictures: Any, tmp_path: Path) -> None:
    files, opened = make_folder(pictures, tmp_path, [(30, 20)] * 2)
    (tmp_path / "cat" / "2.jpg").write_bytes(pictures.turned(pictures.pixels(20, 30), 8))
    files = ImageFolder("x").select(opened.list()).files
    assert read_sizes(files, opened) == [(30, 20)] * 3
    assert infer_image_steps(ImageFolder("x"), files, opened) == []


def test_what_cannot_be_read_does_not_count(pictures: Any, tmp_path: Path) -> None:
    make_folder(pictures, tmp_path, [(20, 30)] * 2)
    for kind, (content, _) in pictures.odd().items():
        if not kind.startswith(("cut", "zeroed", "damaged")):
            (tmp_path / "cat" / f"{kind}.jpg").write_bytes(content)
    (tmp_path / "cat" / "dangling.jpg").symlink_to(tmp_path / "nowhere")
    opened = open_source(str(tmp_path), "/")
    files = ImageFolder("x").select(opened.list()).files
    vanished = SourceFile(path="cat/vanished.jpg", num_bytes=5, stamp="")
    assert infer_image_steps(ImageFolder("x"), [*files, vanished], opened) == []
    assert infer_image_steps(ImageFolder("x"), [vanished], opened) == []


def test_a_size_behind_long_metadata_is_found(pictures: Any, tmp_path: Path) -> None:
    content = pictures.encode(pictures.pixels(20, 30), icc_profile=bytes(200_000))
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "1.jpg").write_bytes(content)
    (tmp_path / "cat" / "2.jpg").write_bytes(content[:100_000])
    opened = open_source(str(tmp_path), "/")
    assert read_sizes(opened.list(), opened) == [(20, 30)]


def test_of_very_many_files_a_fixed_sample_is_looked_at(
    pictures: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, opened = make_folder(pictures, tmp_path, [(10 + i, 30) for i in range(12)])
    monkeypatch.setattr(image_folder, "MAX_HEADERS", 5)
    found = read_sizes(files, opened)
    assert len(set(found)) == 5
    assert read_sizes(files[::-1], opened) == found


def test_the_full_set_has_a_few_odd_ones(full_data: Path) -> None:
    opened = open_source(str(full_data / "sign_digits"), "/")
    files = ImageFolder("x").select(opened.list()).files
    assert infer_image_steps(ImageFolder("x"), files, opened) == [
        images.decode("image"),
        images.resize("image", (100, 100)),
    ]
