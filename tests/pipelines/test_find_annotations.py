"""Folders of images with boxes, as people have them: what is recognized, and what is refused."""

import re
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image as Pillow

import snapshard as ss
from snapshard.pipelines.inspect.suggest import describe_suggestion, suggest_recipe
from snapshard.schemas.errors import DataError

LABEL = "1 0.5 0.5 0.25 0.5\n"
YAML = "train: ../train/images\nval: ../valid/images\nnc: 2\nnames: ['cat', 'dog']\n"
NUM = 10


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(*templates: str, num: int = NUM, **texts: str) -> None:
    """Images at the paths of templates below ``d``."""
    for template in templates:
        for number in range(num):
            place(template.format(number), None)


def place(path: str, content: str | None) -> None:
    """A file below ``d``; None is an image of its own."""
    target = Path("d") / path
    target.parent.mkdir(parents=True, exist_ok=True)
    if content is None:
        rng = np.random.default_rng(zlib.crc32(path.encode()))
        Pillow.fromarray(rng.integers(0, 255, (8, 16, 3), np.uint8)).save(target)
    else:
        target.write_text(content, encoding="utf-8")


def texts(template: str, content: str, num: int = NUM) -> None:
    for number in range(num):
        place(template.format(number), content.format(number))


def refused() -> tuple[str, list[str]]:
    """The message of a refusal, and its lines to copy, each of which must be a recipe."""
    with pytest.raises(DataError) as caught:
        suggest_recipe("d")
    lines = re.findall(r"^ *(source=.*)$", str(caught.value), re.MULTILINE)
    assert lines
    for line in lines:
        recipe = eval(f"ss.Recipe(name='copied', {line})", {"ss": ss})
        recipe.source.select(())
    return str(caught.value), lines


@pytest.mark.parametrize(
    ("images", "labels", "splits"),
    [
        (["{s}/images/{{}}.jpg"], "{s}/labels/{{}}.txt", ("train", "valid")),
        (["images/{s}/{{}}.jpg"], "labels/{s}/{{}}.txt", ("train2017", "val2017")),
        (["data/{s}/{{}}.png"], "data/{s}/{{}}.txt", ("obj_train_data", "obj_valid_data")),
    ],
)
def test_yolo_with_splits(images: list[str], labels: str, splits: tuple[str, str]) -> None:
    for split in splits:
        write(*(template.format(s=split) for template in images))
        texts(labels.format(s=split), LABEL)
    place("data.yaml", "names: {0: cat, 1: dog}")
    place("README.roboflow.txt", "text")
    recipe = suggest_recipe("d")
    assert recipe.source == ss.ImageFolder("d", boxes="yolo", names="d/data.yaml")
    assert recipe.prepare == ()
    named = ss.Splits.by_folder(train=splits[0], validation=splits[1])
    assert recipe.splits == (ss.Splits.by_folder() if splits == ("train", "valid") else named)


def test_yolo_in_one_folder_with_its_classes() -> None:
    write("IMG_{}.jpg")
    texts("IMG_{}.txt", LABEL)
    place("classes.txt", "cat\ndog\n")
    recipe = suggest_recipe("d")
    assert recipe.source == ss.ImageFolder("d", boxes="yolo", names="d/classes.txt")
    assert recipe.splits.rule is None
    place("train.txt", "d/IMG_0.jpg\n")  # CVAT's list of all images
    assert suggest_recipe("d").source == recipe.source
    text = describe_suggestion("d")
    assert 'source=ss.ImageFolder("d", boxes="yolo", names="d/classes.txt"),' in text
    assert '"box_labels": ss.Sequence(ss.ClassLabel(("cat", "dog")))' in text


def test_folders_of_splits_that_only_a_yaml_names() -> None:
    for part in ("a", "b"):
        write(f"images/{part}/{{}}.jpg")
        texts(f"labels/{part}/{{}}.txt", LABEL)
    place("d.yaml", "path: d\ntrain: images/a\nval: images/b\nnames: [cat, dog]\n")
    assert suggest_recipe("d").splits == ss.Splits.by_folder(train="a", validation="b")


def test_texts_beside_images_that_are_no_labels() -> None:
    write("{}.jpg")
    texts("{}.txt", "a photo of {}")
    try:
        source: Any = suggest_recipe("d").source
    except DataError:
        return
    assert getattr(source, "boxes", None) is None


@pytest.mark.parametrize(
    ("changes", "words", "copied"),
    [
        ({"labels/{}.txt": 8}, ["8 of 10 images", "images/8.jpg"], 'names="d/data.yaml"'),
        ({"labels/{}.txt": 14}, ["4 of 14 .txt files", "labels/10.txt"], 'names="d/data.yaml"'),
        ({"data.yaml": None}, ["No data.yaml"], 'names=("0", "1")'),
        ({"data.yaml": "names: [cat]"}, ["the class 1, which data.yaml does not"], "data.yaml"),
        ({"b.yaml": "names: [dog, cat]"}, ["b.yaml and data.yaml"], 'names="d/b.yaml"'),
        ({"label": "0 0 0 1 1 0 1"}, ["polygons"], "polygons=True"),
        ({"train.txt": "x", "val.txt": "x"}, ["train.txt and val.txt"], 'names="d/data.yaml"'),
    ],
)
def test_what_is_unclear_in_yolo_is_refused(
    changes: dict[str, Any], words: list[str], copied: str
) -> None:
    write("images/{}.jpg")
    files = {"data.yaml": YAML.splitlines()[-1], **changes}
    texts("labels/{}.txt", files.pop("label", LABEL), num=files.pop("labels/{}.txt", NUM))
    for path, content in files.items():
        if content is not None:
            place(path, content)
    message, lines = refused()
    assert all(word in message for word in words), message
    assert copied in lines[0]


XML = (
    "<annotation><size><width>16</width><height>8</height></size><object><name>cat</name>"
    "<bndbox><xmin>1</xmin><ymin>1</ymin><xmax>6</xmax><ymax>4</ymax></bndbox></object></annotation>"
)


@pytest.mark.parametrize(
    ("image", "annotation", "by_folder"),
    [
        ("VOC2012/JPEGImages/{}.jpg", "VOC2012/Annotations/{}.xml", False),
        ("images/{}.png", "annotations/xmls/{}.xml", False),
        ("train/{}.jpg", "train/{}.xml", True),
    ],
)
def test_pascal_voc(image: str, annotation: str, by_folder: bool) -> None:
    for split in ("train", "test"):
        write(image.replace("train", split))
        texts(annotation.replace("train", split), XML)
    write("VOC2012/SegmentationClass/{}.png" if "VOC" in image else image, num=4)  # masks
    recipe = suggest_recipe("d")
    assert recipe.source == ss.ImageFolder("d", boxes="voc")
    assert recipe.splits == (
        ss.Splits.by_folder() if by_folder else ss.Splits(train=0.8, validation=0.1, test=0.1)
    )


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"Annotations/{}.xml": 8}, ["8 of 10 images", "are rejects", "JPEGImages/8.jpg"]),
        ({"test/{}.jpg": 20}, ["10 images are in folders without .xml", "test/10.jpg"]),
        ({"labels/{}.txt": NUM, "classes.txt": 1}, ["several forms"]),
        ({"ImageSets/Main/train.txt": 1, "ImageSets/Main/val.txt": 1}, ["train.txt and ImageSets"]),
    ],
)
def test_what_is_unclear_in_pascal_voc_is_refused(files: dict[str, int], words: list[str]) -> None:
    write("JPEGImages/{}.jpg")
    for template, num in {"Annotations/{}.xml": NUM, **files}.items():
        if template.endswith(".jpg"):
            write(template, num=num)
        else:
            texts(template, {"xml": XML, "txt": LABEL}[template[-3:]], num=num)
    if "classes.txt" in files:
        place("classes.txt", "cat\ndog\n")
    message, lines = refused()
    assert all(word in message for word in words), message
    assert 'source=ss.ImageFolder("d", boxes="voc")' in lines
    assert len(lines) == (2 if "labels/{}.txt" in files else 1)
