"""Folders of images with boxes, as people have them: what is recognized, and what is refused."""

import json
import re
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image as Pillow

import snapshard as ss
from snapshard.pipelines.inspect.suggest import describe_suggestion, suggest_recipe
from snapshard.pipelines.recipe.shipping import load_recipe_file
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
    place("train.txt", "".join(f"d/IMG_{n}.jpg\n" for n in range(NUM)))  # CVAT's list of all images
    assert suggest_recipe("d").source == recipe.source
    text = describe_suggestion("d")
    assert 'source=ss.ImageFolder("d", boxes="yolo", names="d/classes.txt"),' in text
    assert '"box_labels": ss.Sequence(ss.ClassLabel(("cat", "dog")))' in text


@pytest.mark.parametrize(
    ("layout", "lists", "name"),
    [
        ("images/{}.jpg images labels", ("train.txt", "val.txt"), "./images/{}.jpg"),
        ("data/{}.jpg data data", ("train_list.txt", "valid_list.txt"), "/mnt/x/data/{}.jpg"),
        ("JPEGImages/{}.jpg JPEGImages Annotations", ("sets/a.txt", "sets/b.txt"), "{}"),
        ("Images/{}.jpg Images Annotations", ("trainlist01.txt", "vallist01.txt"), "{}"),
    ],
)
def test_lists_of_the_images_of_splits(layout: str, lists: tuple[str, str], name: str) -> None:
    images, folder, labels = layout.split()
    write(images)
    boxes = "voc" if labels == "Annotations" else "yolo"
    end, content = (".xml", XML) if boxes == "voc" else (".txt", LABEL)
    texts(images.replace(folder, labels).replace(".jpg", end), content)
    numbers = range(NUM)
    if boxes == "yolo":
        place("classes.txt", "cat\ndog\n")
    else:
        for path in lists:
            place(f"A/{path}", "".join(f"{n}\n" for n in numbers[:5]))
        place("obj.data", f"classes = 2\ntrain = my/{lists[0]}\nvalid = my/{lists[1]}\n")
    place(lists[0], "".join(f"{name.format(n)}\n" for n in numbers[:7]))
    place(lists[1], "".join(f"{name.format(n)} 1\n" for n in numbers[7:]))
    union = f"{lists[0].rpartition('/')[0]}/trainval.txt".removeprefix("/")
    place(union, "".join(f"{n}\n" for n in numbers))
    recipe = suggest_recipe("d")
    names = "d/classes.txt" if boxes == "yolo" else None
    given: dict[str, Any] = {"train": f"d/{lists[0]}", "validation": f"d/{lists[1]}"}
    assert recipe.source == ss.ImageFolder("d", boxes=boxes, names=names, lists=given)  # type: ignore[arg-type]
    assert recipe.splits == ss.Splits.by_column("split", train="train", validation="validation")
    place(lists[1], "".join(f"{name.format(n)}\n" for n in numbers[7:9]))
    message, lines = refused()
    assert "list 9 of 10 files" in message
    assert "9.jpg" in message
    assert ["lists=" in line for line in lines] == [True, False]


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
        (
            {"train.txt": "x", "val.txt": "x"},
            ["and val.txt", "not name one"],
            "d/data.yaml",
        ),
        ({"train.txt": "1", "val.txt": "1\n2"}, ["1 files in common", "1.jpg"], "d/data.yaml"),
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
    assert (recipe.splits == ss.Splits.by_folder()) == by_folder


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
    rejects = ", max_rejects=2" if files.get("Annotations/{}.xml") == 8 else ""
    lines = [line.replace(", splits=ss.Splits(train=1.0)", "") for line in lines]
    assert f'source=ss.ImageFolder("d", boxes="voc"){rejects}' in lines
    if rejects:  # what --reading writes builds, too
        Path("recipe.py").write_text(describe_suggestion("d", reading=1))
        assert load_recipe_file("recipe.py").max_rejects == 2
    assert len(lines) == (2 if "labels/{}.txt" in files else 1)


def coco(*names: str, categories: Sequence[str] = ("ant", "zebra"), **changes: Any) -> str:
    """COCO's document of these images, each with a box of the last category."""
    ids = {name: 2 * number + 1 for number, name in enumerate(categories)}
    size = {"height": 8, "width": 16}
    return json.dumps(
        {
            "info": {"year": 2017},
            "images": [{"id": i, "file_name": name, **size} for i, name in enumerate(names)],
            "annotations": [
                {"image_id": i, "category_id": max(ids.values()), "bbox": [1, 1, 4, 4]}
                for i in range(len(names))
            ],
            "categories": [{"id": number, "name": name} for name, number in ids.items()],
            **changes,
        }
    )


def names(num: int = NUM, template: str = "{}.jpg") -> list[str]:
    return [template.format(number) for number in range(num)]


@pytest.mark.parametrize(
    ("folders", "documents", "splits"),
    [
        (
            ("train2017", "val2017"),
            ("annotations/instances_train2017.json", "annotations/instances_val2017.json"),
            ss.Splits.by_folder(train="train2017", validation="val2017"),
        ),
        (
            ("train2017", "test-dev2017"),
            ("annotations/instances_train2017.json", "annotations/instances_test-dev2017.json"),
            ss.Splits.by_folder(train="train2017", test="test-dev2017"),
        ),
        (
            ("train", "valid"),
            ("train/_annotations.coco.json", "valid/_annotations.coco.json"),
            ss.Splits.by_folder(),
        ),
        (
            ("data/images/train", "data/images/test"),
            ("data/annotations/instances_Train.json", "data/annotations/instances_Test.json"),
            ss.Splits.by_folder(),
        ),
        (
            ("a", "b"),
            ("train.json", "val.json"),
            ss.Splits.by_folder(train="a", validation="b"),
        ),
    ],
)
def test_documents_of_coco_for_each_folder(
    folders: tuple[str, str], documents: tuple[str, str], splits: ss.Splits
) -> None:
    """Names are bare, and those of one folder occur in the other, except where only that helps."""
    sizes = {folders[0]: NUM, folders[1]: NUM - 4}
    for (folder, num), document in zip(sizes.items(), documents, strict=True):
        template = "{}.jpg" if folder != "a" else "a{}.jpg"
        write(f"{folder}/{template}", num=num)
        place(document, coco(*names(num, template)))
    if "val2017" in folders:
        captions = json.loads(captions_of("0.jpg"))
        place("annotations/captions_val2017.json", json.dumps(captions))
        points = coco(*names(NUM - 4), categories=["person"])
        place("annotations/person_keypoints_val2017.json", points)
    recipe = suggest_recipe("d")
    tables = {folder: f"d/{path}" for folder, path in zip(folders, documents, strict=True)}
    assert recipe.source == ss.ImageFolder("d", table=tables)
    assert recipe.splits == splits
    text = describe_suggestion("d")
    assert '"box_labels": ss.Sequence(ss.ClassLabel(("ant", "zebra")))' in text
    assert f'"{folders[0]}": "d/{documents[0]}"' in text


def test_one_document_for_all_folders() -> None:
    write("train/{}.jpg", "test/t{}.jpg")
    place("result.json", coco(*names(), *names(template="t{}.jpg")))
    recipe = suggest_recipe("d")
    assert recipe.source == ss.ImageFolder("d", table="d/result.json")
    assert recipe.splits == ss.Splits.by_folder()


@pytest.mark.parametrize(
    ("documents", "words", "copied"),
    [
        ({"a.json": 8}, ["a.json has boxes of 8 of 10 images"], ["max_rejects=2"]),
        ({"a.json": 10, "b.json": 10}, ["several forms"], ["d/a.json", "d/b.json"]),
        (
            {"train.json": 6, "val.json": 4},
            ["train.json has boxes of 6", "val.json has boxes of 4"],
            ["max_rejects=4", "max_rejects=6"],
        ),
    ],
)
def test_what_is_unclear_in_coco_is_refused(
    documents: dict[str, int], words: list[str], copied: list[str]
) -> None:
    write("images/{}.jpg")
    for path, num in documents.items():
        start = 6 if path == "val.json" else 0
        place(path, coco(*names()[start : start + num]))
    message, lines = refused()
    assert all(word in message for word in words), message
    assert [word in line for word, line in zip(copied, lines, strict=True)] == [True] * len(copied)


def captions_of(*names: str, **changes: Any) -> str:
    """COCO's document of two captions for each image."""
    texts = [
        {"id": 90 - i - k, "image_id": i, "caption": f"{name} {k}"}
        for k in (1, 2)
        for i, name in enumerate(names)
    ]
    images = [{"id": i, "file_name": name} for i, name in enumerate(names)]
    return json.dumps({"info": {}, "images": images, "annotations": texts, **changes})


def test_captions() -> None:
    write("train2017/{}.jpg")
    write("val2017/{}.jpg", num=4)
    of_split = {"train2017": captions_of(*names()), "val2017": captions_of(*names(4))}
    for split, document in of_split.items():
        place(f"annotations/captions_{split}.json", document)
    recipe = suggest_recipe("d")
    tables = {split: f"d/annotations/captions_{split}.json" for split in of_split}
    assert recipe.source == ss.ImageFolder("d", table=tables)
    assert recipe.splits == ss.Splits.by_folder(train="train2017", validation="val2017")
    assert '"captions": ss.Sequence(ss.Scalar("string"))' in describe_suggestion("d")
    for split, num in (("train2017", NUM), ("val2017", 4)):
        place(f"annotations/instances_{split}.json", coco(*names(num)))
    boxes = {split: url.replace("captions", "instances") for split, url in tables.items()}
    assert suggest_recipe("d").source == ss.ImageFolder("d", table=boxes)


def test_captions_of_some_images() -> None:
    write("images/{}.jpg")
    place("captions.json", captions_of(*names(8)))
    message, (line,) = refused()
    assert "images with captions, but" in message
    assert "captions of 8 of 10 images" in message
    assert line.startswith('source=ss.ImageFolder("d/images", table="d/captions.json"), ')
    assert line.endswith("max_rejects=2")


def test_two_documents_for_a_folder_are_named() -> None:
    for split in ("train", "valid"):
        write(f"{split}/{{}}.jpg")
        place(f"{split}/_annotations.coco.json", coco(*names()))
    place("valid/other.json", coco(*names(), categories=["bee"]))
    message, _ = refused()
    assert "valid/_annotations.coco.json and valid/other.json have boxes of the images" in message


def test_folders_without_a_document_are_named() -> None:
    write("train/{}.jpg", "valid/{}.jpg", "test/{}.jpg")
    for split in ("train", "valid"):
        place(f"{split}/_annotations.coco.json", coco(*names()))
    message, (line,) = refused()
    assert "10 images are in no folder that has a file of boxes" in message
    assert "'test/0.jpg'" in message
    assert '"valid": "d/valid/_annotations.coco.json"' in line


def test_a_damaged_document_is_named() -> None:
    write("images/{}.jpg")
    place("instances.json", coco(*names())[:-9])
    with pytest.raises(DataError, match=r"instances\.json is not an instances file of COCO.*JSON"):
        suggest_recipe("d")


@pytest.mark.parametrize(
    "content",
    [
        {"info": {"year": 2020}, "licenses": []},
        {"images": ["0.jpg", "1.jpg"]},
        {"images": [{"id": 1, "file_name": "elsewhere.jpg"}], "annotations": []},
        {"categories": ["cat", "dog"]},
    ],
)
def test_other_documents_beside_class_folders(content: Any) -> None:
    write("cat/{}.jpg", "dog/{}.jpg")
    place("metadata.json", json.dumps(content))
    assert suggest_recipe("d").source == ss.ImageFolder("d")


ROWS = "filename,width,height,class,xmin,ymin,xmax,ymax\n"


def test_a_row_for_each_box() -> None:
    write("images/{}.jpg")
    place("labels.csv", ROWS + "".join(f"{n},16,8,cat,0,0,4,4\n" * 2 for n in names()))
    recipe = suggest_recipe("d")
    assert recipe.source == ss.ImageFolder("d/images", table="d/labels.csv", boxes="rows")
    assert 'boxes="rows"' in describe_suggestion("d")


def test_a_table_of_boxes_for_each_split() -> None:
    for split, label in (("train", "dog"), ("valid", "cat"), ("test", "cat")):
        write(f"{split}/{{}}.jpg")
        rows = "".join(f"{n},16,8,{label},0,0,4,4\n" for n in names())
        place(f"{split}/_annotations.csv", ROWS + rows)
    recipe = suggest_recipe("d")
    tables = {s: f"d/{s}/_annotations.csv" for s in ("test", "train", "valid")}
    assert recipe.source == ss.ImageFolder("d", table=tables, boxes="rows")
    assert 'ss.ClassLabel(("cat", "dog"))' in describe_suggestion("d")


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ("".join(f"{n},16,8,cat,0,0,4,4\n" for n in names(7)), ["labels.csv has boxes of 7 of 10"]),
        ("0.jpg,16\n", ["labels.csv", "Expected 8 columns, got 2"]),
    ],
)
def test_tables_of_boxes_that_do_not_fit_are_refused(table: str, words: list[str]) -> None:
    write("images/{}.jpg")
    place("labels.csv", ROWS + table)
    with pytest.raises(DataError) as caught:
        suggest_recipe("d")
    assert all(word in str(caught.value) for word in words)


def labelme(kind: str = "rectangle") -> str:
    shape = {"label": "cat", "shape_type": kind, "points": [[1, 1], [4, 4], [1, 4]]}
    return json.dumps({"shapes": [shape], "imageHeight": 8, "imageWidth": 16}).replace("{}", "")


@pytest.mark.parametrize("folder", ["", "images/"])
def test_labelme(folder: str) -> None:
    write(f"{folder}{{}}.jpg")
    for number in range(NUM):
        place(f"{folder}{number}.json", labelme())
    recipe = suggest_recipe("d")
    assert recipe.source == ss.ImageFolder("d", boxes="labelme")
    place(f"{folder}0.json", labelme("polygon"))
    message, (line,) = refused()
    assert "The shapes of LabelMe are polygons" in message
    assert line.startswith('source=ss.ImageFolder("d", boxes="labelme", polygons=True)')


def test_objects_beside_images_that_are_no_annotations() -> None:
    write("{}.jpg")
    for number in range(NUM):
        place(f"{number}.json", json.dumps({"caption": "a photo", "number": number}))
    try:
        source: Any = suggest_recipe("d").source
    except DataError:
        return
    assert getattr(source, "boxes", None) is None
