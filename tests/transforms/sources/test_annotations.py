"""Boxes of images from files beside them: what is read, what is rejected, and what belongs."""

import dataclasses
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image as Pillow

from snapshard.schemas.blocks import Block, FileRange, RawBatch
from snapshard.schemas.errors import DataError, RecipeError, SchemaError
from snapshard.schemas.features import BoundingBoxes, ClassLabel, Features, Scalar, Sequence
from snapshard.transforms.sources.folders.annotations.model import (
    ImageBoxes,
    InvalidAnnotationError,
)
from snapshard.transforms.sources.folders.annotations.yolo import read_labels, read_names
from snapshard.transforms.sources.folders.images import ImageFolder
from snapshard.transforms.storage.opened_source import open_source

from .conftest import make_block

HEIGHT, WIDTH = 8, 16


def picture(**options: Any) -> bytes:
    buffer = io.BytesIO()
    Pillow.fromarray(np.zeros((HEIGHT, WIDTH, 3), np.uint8)).save(buffer, "JPEG", **options)
    return buffer.getvalue()


def write(root: Path, contents: dict[str, str | bytes | None]) -> str:
    """Files with these contents; None is an image."""
    for name, content in contents.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        data = picture() if content is None else content
        path.write_bytes(data.encode() if isinstance(data, str) else data)
    return str(root)


def read(source: ImageFolder, features: Features | None = None) -> tuple[Features, RawBatch]:
    """The features and the records of a small folder."""
    opened = open_source(source.url, "/")
    files = source.select(opened.list()).files
    features = features or source.infer(files, opened)
    block = make_block(files, opened)
    (batch,) = source.read(block, features=features, opened=opened, ordered=range(len(files)))
    return features, batch


def boxes_of(batch: RawBatch) -> dict[str, tuple[list[list[float]], list[int]]]:
    """Id -> boxes and labels."""
    rows = batch.columns.select(["boxes", "box_labels"]).to_pylist()
    return {
        record_id: (np.reshape(row["boxes"], (-1, 4)).tolist(), row["box_labels"])
        for record_id, row in zip(batch.ids, rows, strict=True)
    }


def labelled(names: tuple[str, ...]) -> Features:
    return {
        "boxes": BoundingBoxes(image="image", labels="box_labels"),
        "box_labels": Sequence(ClassLabel(names)),
    }


YAML = "names:\n  0: cat\n  1: dog\n"


@pytest.mark.parametrize(
    ("image", "label"),
    [
        ("train/images/a.jpg", "train/labels/a.txt"),
        ("images/train/a.jpg", "labels/train/a.txt"),
        ("d/a.jpg", "d/a.txt"),
        ("a.v1.rf.jpg", "a.v1.rf.txt"),
        ("train.jpg", "train.txt"),  # as lists are called
    ],
)
def test_labels_of_yolo_belong_to_images(tmp_path: Path, image: str, label: str) -> None:
    url = write(
        tmp_path,
        {
            image: None,
            label: "1 0.5 0.5 0.25 0.5\n\n0 0.25 0.25 0.5 0.5\r\n",
            image.replace(".jpg", "-empty.jpg"): None,
            label.replace(".txt", "-empty.txt"): "",
            image.replace(".jpg", "-bare.jpg"): None,
            "data.yaml": YAML,
            "README.dataset.txt": "cats and dogs",
            "labels.cache": "x",
        },
    )
    features, batch = read(ImageFolder(url, boxes="yolo", names=f"{url}/data.yaml"))
    assert {n: f for n, f in features.items() if n != "image"} == labelled(("cat", "dog"))
    assert boxes_of(batch) == {
        image: ([[0.25, 0.375, 0.75, 0.625], [0, 0, 0.5, 0.5]], [1, 0]),
        image.replace(".jpg", "-empty.jpg"): ([], []),
        image.replace(".jpg", "-bare.jpg"): ([], []),
    }
    assert batch.rejects == ()


@pytest.mark.parametrize(
    ("label", "message"),
    [
        ("0 0.5 0.5 0.25", "line 1 has 4 numbers, expected 5"),
        ("0 0.5 0.5 0.25 0.5 0.9", "line 1 has 6 numbers"),
        ("\n2 0.5 0.5 0.25 0.5", "line 2 has the class 2, and there are names for 0, 1"),
        ("0.5 0.5 0.5 0.25 0.5", "has the class 0.5"),
        ("cat 0.5 0.5 0.25 0.5", "line 1 is not a line of numbers"),
        ("0 nan 0.5 0.25 0.5", "line 1 is not a line of numbers"),
        ("0 0.5 0.5 0 0.5", "has no area"),
        ("0 8 4 8 4", "is outside the image, whose height × width is 8×16"),
        ("0 0 0 0 1 1 1", "line 1 is a polygon of 3 points, expected a box. polygons=True reads"),
        (b"\xff\xfe", "is not a line of numbers"),
    ],
)
def test_an_invalid_label_rejects_its_image(tmp_path: Path, label: Any, message: str) -> None:
    good = "0 0.5 0.5 1.1 1"  # beyond the border by less than a pixel
    url = write(tmp_path, {"a.jpg": None, "a.txt": label, "b.jpg": None, "b.txt": good})
    _, batch = read(ImageFolder(url, boxes="yolo", names=("cat", "dog")))
    assert boxes_of(batch) == {"b.jpg": ([[0, 0, 1, 1]], [0])}
    (reject,) = batch.rejects
    assert (reject.record_id, reject.reason) == ("a.jpg", "invalid annotation")
    assert reject.message.startswith("a.txt: ")
    assert message in reject.message


def test_polygons_are_read_as_boxes_where_that_is_asked_for() -> None:
    label = b"0 0.5 0.1 0.9 0.5 0.5 0.9 0.1 0.5\n1 0.5 0.5 0.5 0.5"
    boxes = read_labels(label, {0: "a", 1: "b"}, polygons=True)
    assert boxes.corners == [(0.1, 0.1, 0.9, 0.9), (0.25, 0.25, 0.75, 0.75)]


def test_files_without_a_partner(tmp_path: Path) -> None:
    label = "0 0.5 0.5 0.25 0.5"
    url = write(
        tmp_path,
        {
            **{"images/a.jpg": None, "images/b.jpg": None, "images/b.png": None},
            **{"labels/a.txt": label, "labels/b.txt": label, "labels/lost.txt": label},
            **{"labels/classes.txt": "cat", "notes/about.txt": "text"},
        },
    )
    source = ImageFolder(url, boxes="yolo", names=("cat",))
    selection = source.select(open_source(url, "/").list())
    assert selection.num_skipped == {".txt file without an image": 2}
    _, batch = read(source)
    assert batch.ids == ["images/a.jpg"]
    assert {reject.record_id: reject.reason for reject in batch.rejects} == {
        "images/b.jpg": "several images for one .txt file",
        "images/b.png": "several images for one .txt file",
        "labels/lost.txt": ".txt file without an image of its name",
    }


def voc(*objects: str, size: str = f"<width>{WIDTH}</width><height>{HEIGHT}</height>") -> str:
    """An annotation of Pascal VOC with these objects, each a name and ymin, xmin, ymax, xmax."""
    made = []
    for text in objects:
        name, *sides = text.split()
        names = ("ymin", "xmin", "ymax", "xmax")
        box = "".join(f"<{n}>{side}</{n}>" for n, side in zip(names, sides, strict=False))
        made.append(
            f"<object><name>{name.strip('!')}</name><difficult>{int('!' in name)}</difficult>"
            f"<part><name>head</name><bndbox><xmin>9</xmin></bndbox></part><bndbox>{box}</bndbox>"
            "</object>"
        )
    return f"<annotation><size>{size}</size>{''.join(made)}</annotation>"


def test_annotations_of_pascal_voc(tmp_path: Path) -> None:
    url = write(
        tmp_path,
        {
            **{
                "JPEGImages/a.jpg": None,
                "Annotations/a.xml": voc("dog 2 4 6 12.0", "cat! 0 0 8 16"),
            },
            **{"JPEGImages/b.jpg": None, "Annotations/b.xml": voc(size="<width>0</width>")},
            **{"JPEGImages/c.jpg": None, "SegmentationClass/a.png": None, "other/d.jpg": None},
        },
    )
    source = ImageFolder(url, boxes="voc")
    skipped = source.select(open_source(url, "/").list()).num_skipped
    assert skipped == {"image in a folder without .xml files": 2}
    features, batch = read(source)
    assert {name: feature for name, feature in features.items() if name != "image"} == {
        "boxes": BoundingBoxes(image="image", labels=("box_labels", "box_difficult")),
        "box_labels": Sequence(ClassLabel(("cat", "dog"))),
        "box_difficult": Sequence(Scalar("bool")),
    }
    assert boxes_of(batch) == {
        "JPEGImages/a.jpg": ([[0.25, 0.25, 0.75, 0.75], [0, 0, 1, 1]], [1, 0]),
        "JPEGImages/b.jpg": ([], []),
    }
    assert batch.columns["box_difficult"].to_pylist() == [[0, 1], []]
    (reject,) = batch.rejects
    assert reject.reason == "image without a .xml file of its name"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (voc("cat 0 0 4"), "object 1 has no xmax in a <bndbox>"),
        (voc("cat 0 0 4 4", "cat 0 0 4 x"), "object 2: its <bndbox> is"),
        (voc("cat 0 0 4 4", "! 0 0 4 4"), "object 2 has no name"),
        (voc("cat 0 4 4 4"), "object 1: the box (0, 4, 4, 4) of ymin, xmin, ymax, xmax in pixels"),
        (voc("cat 0 0 4 4", size="<width>8</width><height>16</height>"), "are for 16×8"),
        (voc("cat 0 0 4 4", size="<width>x</width>"), "its size is"),
        ("<html></html>", "its root is <html>"),
        ("<annotation><object>", "it is not valid XML"),
        ("", "it is not valid XML"),
        ("<annotation>" * 40, "more than 32 levels deep"),
        ('<!DOCTYPE a [<!ENTITY b "c">]><annotation>&b;</annotation>', "it declares entities"),
    ],
)
def test_an_invalid_annotation_rejects_its_image(
    tmp_path: Path, content: str, message: str
) -> None:
    good = {"b.jpg": None, "b.xml": voc("cat 0 0 4 4")}
    url = write(tmp_path, {"a.jpg": None, "a.xml": content, **good})
    _, batch = read(ImageFolder(url, boxes="voc"))
    assert batch.ids == ["b.jpg"]
    (reject,) = batch.rejects
    assert (reject.record_id, reject.reason) == ("a.jpg", "invalid annotation")
    assert message in reject.message


def labelme(*shapes: tuple[str, str, Any], **changes: Any) -> str:
    """An annotation of LabelMe with these shapes, each a label, its type and its points."""
    made = [
        {"label": label, "shape_type": kind, "points": points, "group_id": None}
        for label, kind, points in shapes
    ]
    size = {"imageHeight": HEIGHT, "imageWidth": WIDTH, "imageData": "x" * 99}
    return json.dumps({"version": "5.0", "flags": {}, "shapes": made, **size, **changes})


RECTANGLE = ("dog", "rectangle", [[12.0, 6], [4, 2]])
TRIANGLE = ("cat", "polygon", [[0, 0], [16, 4], [8, 8]])


def test_annotations_of_labelme(tmp_path: Path) -> None:
    bare = labelme(RECTANGLE, imageHeight=None)
    url = write(
        tmp_path,
        {
            **{"images/a.jpg": None, "json/a.json": labelme(RECTANGLE, TRIANGLE)},
            **{"images/b.jpg": None, "json/b.json": bare, "json/export.json": "{}"},
        },
    )
    features, batch = read(ImageFolder(url, boxes="labelme", polygons=True))
    assert features["box_labels"] == Sequence(ClassLabel(("cat", "dog")))
    box = [0.25, 0.25, 0.75, 0.75]
    assert boxes_of(batch) == {
        "images/a.jpg": ([box, [0, 0, 1, 1]], [1, 0]),
        "images/b.jpg": ([box], [1]),
    }
    assert [reject.reason for reject in batch.rejects] == [
        ".json file without an image of its name"
    ]
    _, batch = read(ImageFolder(url, boxes="labelme"))
    assert batch.ids == ["images/b.jpg"]
    assert "shapes[1] is a polygon, expected a rectangle. polygons=True" in batch.rejects[0].message


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "it is not valid JSON"),
        ("[" * 100_000, "it is not valid JSON"),
        ("[]", 'it has no list "shapes"'),
        ('{"shapes": {}}', 'it has no list "shapes"'),
        ('{"shapes": [1]}', "shapes[0] has no label"),
        (labelme(("", "rectangle", [])), "shapes[0] has no label"),
        (labelme(("cat", "circle", [[1, 1], [2, 2]])), "shapes[0] is a circle"),
        (labelme(("cat", "rectangle", [[1, 1]])), "shapes[0]: its points are not pairs"),
        (labelme(("cat", "rectangle", [[1, "x"], [2, 2]])), "its points are not pairs"),
        (labelme(("cat", "rectangle", [[1, float("nan")], [2, 2]])), "its points are not pairs"),
        (labelme(("cat", "rectangle", 5)), "its points are not pairs"),
        (labelme(("cat", "rectangle", [[10**400, 1], [2, 2]])), "its points are not pairs"),
        (labelme(RECTANGLE, imageHeight=99), "are for 99×16"),
        (labelme(("cat", "rectangle", [[1, 1], [1, 2]])), "shapes[0]: the box (1, 1, 2, 1)"),
    ],
)
def test_an_invalid_annotation_of_labelme(tmp_path: Path, content: str, message: str) -> None:
    good = {"b.jpg": None, "b.json": labelme(RECTANGLE)}
    url = write(tmp_path, {"a.jpg": None, "a.json": content, **good})
    _, batch = read(ImageFolder(url, boxes="labelme"))
    assert batch.ids == ["b.jpg"]
    assert message in batch.rejects[0].message


def test_declared_classes_have_their_own_order(tmp_path: Path) -> None:
    label = "0 0.5 0.5 0.5 0.5\n1 0.5 0.5 0.5 0.5"
    url = write(tmp_path, {"a.jpg": None, "a.txt": label, "b.jpg": None, "b.txt": label[:18]})
    source = ImageFolder(url, boxes="yolo", names=("cat", "dog"))
    features, _ = read(source)
    _, batch = read(source, {**features, **labelled(("dog", "cat"))})
    assert boxes_of(batch)["a.jpg"][1] == [1, 0]
    _, batch = read(source, {**features, **labelled(("cat",))})
    assert boxes_of(batch) == {"b.jpg": ([[0.25, 0.25, 0.75, 0.75]], [0])}
    assert "has the class 'dog', which is not declared" in batch.rejects[0].message
    with pytest.raises(SchemaError, match=r"declares 'box_labels' as .* Declare that"):
        read(source, {**features, "box_labels": Sequence(Scalar("int64"))})


def test_a_block_counts_by_labels_and_names(tmp_path: Path) -> None:
    url = write(tmp_path, {"a.jpg": None, "a.txt": "0 0.5 0.5 0.5 0.5", "n.names": "cat\ndog\n"})
    source = ImageFolder(url, boxes="yolo", names=f"{url}/n.names")
    opened = open_source(url, "/")
    files = source.select(opened.list()).files
    assert [(file.path, file.of) for file in files] == [("a.jpg", ""), ("a.txt", "a.jpg")]
    block = Block((FileRange(path="a.jpg", sha256="", start=0, stop=1),))
    digests = {source.rows_digest(block, features={}, opened=opened)}
    write(tmp_path, {"n.names": "dog\ncat\n"})
    digests.add(source.rows_digest(block, features={}, opened=open_source(url, "/")))
    assert len(digests) == 2
    tuples = [ImageFolder(url, boxes="yolo", names=names) for names in (("cat",), ("dog",))]
    assert tuples[0].settings() != tuples[1].settings()


@pytest.mark.parametrize(
    ("name", "content", "names"),
    [
        ("data.yaml", "nc: 2\nnames: ['no', dog]\n", {0: "no", 1: "dog"}),
        ("data.yaml", "names: [no, 1]", {0: "no", 1: "1"}),
        ("data.yml", "names: {7: cat, 3: dog}\nnc: 9", {3: "dog", 7: "cat"}),
        ("obj.names", "\ufeffcat\n big dog \n\n", {0: "cat", 1: "big dog"}),
    ],
)
def test_names_of_classes(name: str, content: str, names: dict[int, str]) -> None:
    assert read_names(name, content.encode()) == names


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("data.yaml", "nc: 3\nnames: [cat, dog]", "has nc: 3, and 2 names"),
        ("data.yaml", "names: [cat, cat]", "the class 'cat' twice"),
        ("data.yaml", "names: cat", "has no names of classes"),
        ("data.yaml", "names: {a: cat}", "has no names of classes"),
        ("data.yaml", "names: [[cat]]", "has no names of classes"),
        ("data.yaml", "[cat]", "not a YAML file of settings"),
        ("data.yaml", "a: &a [x]\nnames: [*a, *a]", "it has an alias"),
        ("data.yaml", "a: " + "[" * 30 + "]" * 30, "nested more than 20 levels"),
        ("data.yaml", "names: [cat", "not such a YAML file"),
        ("data.yaml", "a: !!python/object/apply:os.getcwd []", "has no names of classes"),
        ("data.yaml", "#" * (1 << 20) + "\n", "bytes, more than"),
        ("c.txt", "cat\n\ndog", "a name of a class is missing"),
        ("c.txt", "", "a name of a class is missing"),
        ("c.txt", b"\xff", "not a UTF-8 text"),
    ],
)
def test_what_names_no_classes(name: str, content: Any, message: str) -> None:
    data = content if isinstance(content, bytes) else content.encode()
    with pytest.raises(DataError, match=message):
        read_names(name, data)


def test_mistakes_in_recipes_are_explained(tmp_path: Path) -> None:
    for settings, message in [
        ({"boxes": "yolo", "masks": "masks"}, "mutually exclusive"),
        ({"names": ("cat",)}, 'names= is for boxes="yolo"'),
        ({"polygons": True}, "polygons= is for"),
        ({"boxes": "coco"}, "boxes: expected 'yolo'"),
    ]:
        with pytest.raises(RecipeError, match=message):
            ImageFolder("x", **settings)  # type: ignore[arg-type]
    url = write(tmp_path, {"a.jpg": None, "a.txt": "0 0.5 0.5 0.5 0.5", "b.jpg": None})
    with pytest.raises(DataError, match=r'Name these: names="data.yaml"'):
        read(ImageFolder(url, boxes="yolo"))
    (tmp_path / "a.txt").write_text("a cat")
    with pytest.raises(DataError, match=r"none of the 1 .txt files .* is valid .* a.txt: line 1"):
        read(ImageFolder(url, boxes="yolo", names=("cat",)))


def test_pixels_are_of_the_upright_image() -> None:
    boxes = ImageBoxes(
        corners=[(0, 0, 4, 4)], labels=["cat"], places=["object 1"], in_pixels=True, size=(8, 16)
    )
    assert boxes.fitted(8, 16, is_rotated=True).boxes.tolist() == [[0, 0, 0.5, 0.25]]
    with pytest.raises(InvalidAnnotationError, match=r"is 16×8 .* are for 8×16"):
        boxes.fitted(16, 8, is_rotated=False)
    unsized = dataclasses.replace(boxes, size=None)
    assert unsized.fitted(8, 16, is_rotated=False).boxes.tolist() == [[0, 0, 0.5, 0.25]]
    with pytest.raises(InvalidAnnotationError, match="save the image upright"):
        unsized.fitted(8, 16, is_rotated=True)


HEADER = "filename,width,height,class,xmin,ymin,xmax,ymax\n"


def read_rows_of(root: Path, table: str, *, name: str = "boxes.csv") -> tuple[Features, RawBatch]:
    """The boxes of a.jpg and b.jpg, of 8 × 16 pixels, in a table."""
    url = write(root, {"a.jpg": None, "b.jpg": None, name: table})
    return read(ImageFolder(url, boxes="rows", table=f"{url}/{name}"))


@pytest.mark.parametrize(
    ("name", "table"),
    [
        ("t.csv", HEADER + "b.jpg,16,8,2,0,0,4,4\n./a.jpg,16,8,10,4,2,12.0,6\n"),
        ("t.csv", HEADER.replace(",", ";") + "b.jpg;16;8; 2;0;0;4;4\na.jpg;16;8;10;4;2;12;6\n"),
        (
            "t.tsv",
            "\tImage Name\tX1\tY1\tX2\tY2\tlabel\n0\tb\t0\t0\t4\t4\t2\n1\ta\t4\t2\t12\t6\t10\n",
        ),
        (
            "t.csv",
            "ImageID,Source,LabelName,Confidence,XMin,XMax,YMin,YMax,IsGroupOf\n"
            "b,x,2,1,0,0.25,0,0.5,0\na,x,10,1,0.25,0.75,0.25,0.75,1\n",
        ),
    ],
)
def test_a_row_for_each_box(tmp_path: Path, name: str, table: str) -> None:
    features, batch = read_rows_of(tmp_path, table, name=name)
    assert features["box_labels"] == Sequence(ClassLabel(("2", "10")))
    assert boxes_of(batch) == {
        "a.jpg": ([[0.25, 0.25, 0.75, 0.75]], [1]),
        "b.jpg": ([[0, 0, 0.5, 0.25]], [0]),
    }
    assert ("box_crowd" in features) == ("IsGroupOf" in table)


def test_rows_of_several_boxes_of_none_and_without_classes(tmp_path: Path) -> None:
    table = "path,xmin,ymin,xmax,ymax\na.jpg,0,0,4,4\nb.jpg,,,,\na.jpg,8,4,16,8\n"
    features, batch = read_rows_of(tmp_path, table)
    assert "box_labels" not in features
    found = [np.reshape(row, (-1, 4)).tolist() for row in batch.columns["boxes"].to_pylist()]
    assert found == [[[0, 0, 0.5, 0.25], [0.5, 0.5, 1, 1]], []]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("a.jpg,16,8,cat,0,0,x,4", "row 2: the box (0, 0, 4, x) of ymin, xmin, ymax, xmax must be"),
        ("a.jpg,16,8,cat,0,0,,4", "must be four numbers"),
        (
            "a.jpg,16,8,,0,0,4,4",
            "row 2: the box (0, 0, 4, 4) of ymin, xmin, ymax, xmax has no",
        ),
        ("a.jpg,16,8,cat,4,0,4,4", "has no area"),
        ("a.jpg,16,8,cat,0,0,4,99", "is outside the image"),
        (
            "a.jpg,8,16,cat,0,0,4,4",
            "is 8×16 (height × width, upright), and boxes.csv has",
        ),
        ("a.jpg,0,8,cat,0,0,4,4", "width or height is missing"),
        ("a.jpg,16,8,cat,0,0,4,4\na.jpg,9,8,cat,0,0,4,4", "differs between its rows"),
    ],
)
def test_an_invalid_row_rejects_its_image(tmp_path: Path, row: str, message: str) -> None:
    _, batch = read_rows_of(tmp_path, f"{HEADER}b.jpg,16,8,cat,0,0,16,8\n{row}\n")
    assert boxes_of(batch) == {"b.jpg": ([[0, 0, 1, 1]], [0])}
    assert message in batch.rejects[0].message


def test_pixels_of_images_whose_size_only_they_have(tmp_path: Path) -> None:
    rows = "b.jpg,0,0,4,99,cat\na.jpg,0,0,8,8,dog\n"
    _, batch = read_rows_of(tmp_path, f"image,xmin,ymin,xmax,ymax,class\n{rows}")
    assert boxes_of(batch) == {"a.jpg": ([[0, 0, 1, 0.5]], [1])}
    assert "(0, 0, 99, 4) of ymin, xmin, ymax, xmax in pixels is" in batch.rejects[0].message


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (
            "file,label\na.jpg,cat\n",
            "does not have a box in each row: expected the columns file",
        ),
        (HEADER + "a.jpg,1\n", "Expected 8 columns, got 2"),
        ("", "does not have a box in each row"),
    ],
)
def test_tables_that_are_not_of_boxes(tmp_path: Path, table: str, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        read_rows_of(tmp_path, table)
    with pytest.raises(RecipeError, match='boxes="rows" is for a table= with a box in each row'):
        ImageFolder("x", boxes="rows", table="t.json")


def coco(categories: dict[int, str], *names: str, **changes: Any) -> str:
    """A document of COCO, in which each image has a box of the last category."""
    size = {"height": HEIGHT, "width": WIDTH}
    boxes = [
        {"image_id": i, "category_id": [*categories][-1], "bbox": [0, 0, 4, 4], **changes}
        for i in range(len(names))
    ]
    return json.dumps(
        {
            "images": [{"id": i, "file_name": name, **size} for i, name in enumerate(names)],
            "annotations": boxes,
            "categories": [{"id": i, "name": name} for i, name in categories.items()],
        }
    )


def test_a_document_for_each_folder(tmp_path: Path) -> None:
    """Names and ids are those of a document; categories are united by their names."""
    url = write(
        tmp_path,
        {
            **{"train/a.jpg": None, "val/a.jpg": None, "val/lost.jpg": None, "other/a.jpg": None},
            "train/x.json": coco({1: "cat", 2: "dog"}, "a.jpg"),
            "val.json": coco({7: "ant", 1: "dog"}, "a.jpg", "gone.jpg", iscrowd=1),
        },
    )
    tables = {"train": f"{url}/train/x.json", "val": f"{url}/val.json"}
    source = ImageFolder(url, table=tables)
    assert source.side_urls == tuple(tables.values())
    assert source.settings()["table"] == {"train": "x.json", "val": "val.json"}
    opened = open_source(url, "/")
    selection = source.select(opened.list())
    assert selection.num_skipped == {"in no folder that has a table": 1, "label table": 2}
    assert source.num_unused_rows(selection.files, opened) == 1
    features, batch = read(source)
    assert features["box_labels"] == Sequence(ClassLabel(("cat", "dog", "ant")))
    assert features["boxes"] == BoundingBoxes(image="image", labels=("box_labels", "box_crowd"))
    box = [[0, 0, 0.5, 0.25]]
    assert boxes_of(batch) == {"train/a.jpg": (box, [1]), "val/a.jpg": (box, [1])}
    assert batch.columns["box_crowd"].to_pylist() == [[0], [1]]
    (reject,) = batch.rejects
    assert (reject.record_id, reject.reason) == ("val/lost.jpg", "no row in the table")
    part = FileRange(path="val/a.jpg", sha256="", start=0, stop=1)
    besides = {name: feature for name, feature in features.items() if name != "image"}
    digest = source.rows_digest(Block((part,)), features=besides, opened=opened)
    write(tmp_path, {"val.json": coco({7: "ant", 1: "dog"}, "a.jpg")})
    changed = source.rows_digest(Block((part,)), features=besides, opened=open_source(url, "/"))
    assert digest != changed


def test_tables_of_folders_must_fit_together(tmp_path: Path) -> None:
    files = {"a/1.jpg": None, "b/1.jpg": None}
    url = write(
        tmp_path,
        {
            **files,
            "x.csv": "file,label,size\n1.jpg,cat,1\n",
            "y.csv": "file,label,size\n1.jpg,bee,2\n",
            "z.csv": "file,label,size\n1.jpg,bee,large\n",
            "w.csv": "file,label\n1.jpg,bee\n",
        },
    )

    def source_of(one: str, other: str) -> ImageFolder:
        return ImageFolder(url, table={"a": f"{url}/{one}.csv", "b": f"{url}/{other}.csv"})

    features, batch = read(source_of("x", "y"))
    assert features["label"] == ClassLabel(("bee", "cat"))
    assert batch.columns["label"].to_pylist() == [1, 0]
    with pytest.raises(SchemaError, match=r"'size' is .* in x.csv of a and .* in z.csv of b"):
        read(source_of("x", "z"))
    with pytest.raises(SchemaError, match=r"w.csv of b lacks the column 'size' of x.csv of a"):
        read(source_of("x", "w"))
    for tables, message in [({}, "a table for each folder"), ({"a": "x.xml"}, "suffix .csv")]:
        with pytest.raises(RecipeError, match=message):
            ImageFolder("d", table=tables)


BAD = [[0, 0, 4, 4], [-8, 0, 4, 4], [9, 99, 12, 104], [2, 2, 2, 2]]
"""Boxes in pixels: a good one, one that begins beyond the image, one outside, one without area."""


def in_every_format(root: Path) -> list[ImageFolder]:
    """Sources of a.jpg with these boxes, and of b.jpg without boxes."""
    objects = [" ".join(["cat", *map(str, box)]) for box in BAD]
    lines = "".join(
        f"0 {(x0 + x1) / 2 / WIDTH} {(y0 + y1) / 2 / HEIGHT} {(x1 - x0) / WIDTH} "
        f"{(y1 - y0) / HEIGHT}\n"
        for y0, x0, y1, x1 in BAD
    )
    table = "".join(f"a.jpg,16,8,cat,{x0},{y0},{x1},{y1}\n" for y0, x0, y1, x1 in BAD)
    document = json.loads(coco({1: "cat"}, "a.jpg", "b.jpg"))
    document["annotations"] = [
        {"image_id": 0, "category_id": 1, "bbox": [x0, y0, x1 - x0, y1 - y0]}
        for y0, x0, y1, x1 in BAD
    ]
    url = write(
        root,
        {
            **{"a.jpg": None, "a.xml": voc(*objects), "a.txt": lines},
            **{"b.jpg": None, "b.xml": voc(), "b.txt": ""},
            "t.csv": HEADER + table + "b.jpg,16,8,,,,,\n",
            "t.json": json.dumps(document),
        },
    )
    return [
        ImageFolder(url, boxes="yolo", names=("cat",)),
        ImageFolder(url, boxes="voc"),
        ImageFolder(url, boxes="rows", table=f"{url}/t.csv"),
        ImageFolder(f"{url}/*.jpg", table=f"{url}/t.json"),
    ]


@pytest.mark.parametrize(
    ("bad_boxes", "expected"),
    [
        ("reject", None),
        ("drop", [[0, 0, 0.5, 0.25]]),
        ("clip", [[0, 0, 0.5, 0.25], [0, 0, 0.5, 0.25]]),
    ],
)
def test_a_bad_box_need_not_cost_an_image(tmp_path: Path, bad_boxes: Any, expected: Any) -> None:
    for source in in_every_format(tmp_path):
        mending = dataclasses.replace(source, bad_boxes=bad_boxes)
        features, batch = read(mending)
        assert ("num_bad_boxes" in features) == (bad_boxes != "reject")
        if expected is None:
            assert batch.ids == ["b.jpg"]
            continue
        assert boxes_of(batch) == {"a.jpg": (expected, [0] * len(expected)), "b.jpg": ([], [])}
        assert batch.columns["num_bad_boxes"].to_pylist() == [3, 0]
        assert batch.rejects == ()
        assert mending.settings() != source.settings()


def test_bad_boxes_need_a_format_and_sizes(tmp_path: Path) -> None:
    for table in (None, "t.jsonl", "t.csv"):
        with pytest.raises(RecipeError, match=r"bad_boxes= is for boxes= or for COCO's"):
            ImageFolder("x", table=table, bad_boxes="drop")
    url = write(tmp_path, {"a.jpg": None, "t.csv": "file,xmin,ymin,xmax,ymax\na.jpg,0,0,4,4\n"})
    with pytest.raises(SchemaError, match="no columns width and height: add them"):
        read(ImageFolder(url, boxes="rows", table=f"{url}/t.csv", bad_boxes="drop"))
