"""COCO's instances files as tables of images: their content, and what is invalid in them."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest

from snapshard.schemas.errors import SchemaError
from snapshard.schemas.features import BoundingBoxes, ClassLabel, Features, Scalar, Sequence
from snapshard.transforms.sources.folders.annotations.coco import read_instances
from snapshard.transforms.sources.folders.side_tables import LabelTable, TableRows, UnlabelledError

NAME = "instances.json"
FEATURES: Features = {
    "image_id": Scalar("int64"),
    "boxes": BoundingBoxes(image="image", labels=("box_labels", "box_crowd")),
    "box_labels": Sequence(ClassLabel(("cat", "zebra", "dog"))),
    "box_crowd": Sequence(Scalar("bool")),
}


def image(number: int, name: str, **changes: Any) -> dict[str, Any]:
    return {"id": number, "file_name": name, "height": 50, "width": 100, "license": 1, **changes}


def box(number: int, bbox: Any, category: Any = 1, **changes: Any) -> dict[str, Any]:
    polygon = [[float(i) for i in range(8)]]
    return {
        "id": 7,
        "image_id": number,
        "category_id": category,
        "bbox": bbox,
        "segmentation": polygon,
        "area": 1.5,
        "iscrowd": 0,
        **changes,
    }


def document(**changes: Any) -> dict[str, Any]:
    """Ids are sparse and unordered; c.jpg has no boxes."""
    return {
        "info": {"year": 2017},
        "images": [image(30, "c.jpg"), image(9, "a.jpg"), image(20, "b.jpg")],
        "annotations": [
            box(20, [10, 5, 20, 10], 90),
            box(9, [0, 0, 100, 50], 2),
            box(20, [0.5, 0, 99.5, 50.0], 1, iscrowd=1),
        ],
        "categories": [
            {"id": 90, "name": "dog", "supercategory": "animal"},
            {"id": 1, "name": "cat"},
            {"id": 2, "name": "zebra"},
        ],
        **changes,
    }


def table_of(content: Any) -> LabelTable:
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    return LabelTable(name=NAME, data=data, image="image")


def read(content: Any, features: Features | None = None) -> TableRows:
    table = table_of(content)
    return table.read(table.features() if features is None else features)


def row(rows: TableRows, path: str) -> dict[str, Any]:
    return {name: values[0].as_py() for name, values in rows.take([rows.find([path])]).items()}


def test_boxes_and_classes_in_the_order_of_ids() -> None:
    table = table_of(document())
    assert table.features() == FEATURES
    rows = table.read(FEATURES)
    assert row(rows, "a.jpg") == {
        "image_id": 9,
        "boxes": [0, 0, 1, 1],
        "box_labels": [1],
        "box_crowd": [0],
    }
    assert row(rows, "c.jpg") == {"image_id": 30, "boxes": [], "box_labels": [], "box_crowd": []}
    two = row(rows, "b.jpg")
    assert (two["box_labels"], two["box_crowd"]) == ([2, 0], [0, 1])
    np.testing.assert_allclose(
        np.reshape(two["boxes"], (-1, 4)), [[0.1, 0.1, 0.3, 0.3], [0, 0.005, 1, 1]], rtol=1e-6
    )
    with pytest.raises(UnlabelledError, match=r"has no row for 'd\.jpg'"):
        rows.find(["d.jpg"])


def test_the_same_as_one_annotation_after_another() -> None:
    draw = random.Random(3)
    images = [
        image(draw.randrange(10**9), f"{i}.jpg", width=draw.randrange(9, 999)) for i in range(99)
    ]
    categories = [{"id": i, "name": f"class {i}"} for i in draw.sample(range(1000), 20)]
    boxes = []
    for _ in range(500):
        one = draw.choice(images)
        x, y = draw.uniform(0, one["width"] - 2), draw.uniform(0, 48)
        size = [draw.uniform(0.1, one["width"] - x), draw.uniform(0.1, 50 - y)]
        boxes.append(box(one["id"], [x, y, *size], draw.choice(categories)["id"]))
    table = table_of({"images": images, "annotations": boxes, "categories": categories})
    features = table.features()
    names = features["box_labels"].of.names  # type: ignore[attr-defined]
    assert list(names) == [c["name"] for c in sorted(categories, key=lambda c: int(c["id"]))]
    rows = table.read(features)
    for one in images:
        mine = [b for b in boxes if b["image_id"] == one["id"]]
        found = row(rows, one["file_name"])
        assert [names[label] for label in found["box_labels"]] == [
            f"class {b['category_id']}" for b in mine
        ]
        sides = [one["width"], one["height"]] * 2
        expected = [
            [y / sides[1], x / sides[0], (y + h) / sides[1], (x + w) / sides[0]]
            for x, y, w, h in (b["bbox"] for b in mine)
        ]
        np.testing.assert_allclose(
            np.reshape(found["boxes"], (-1, 4)), np.reshape(expected, (-1, 4)), atol=1e-6
        )


@pytest.mark.parametrize(
    ("annotation", "message"),
    [
        (box(9, [0, 0, 10, 10], 3), "category_id 3 is not a category"),
        (box(9, [0, 0, 10, 10], None), "category_id None is not a category"),
        (box(9, [0, 0, 10]), r"\[0.0, 0.0, 10.0\] must be four numbers"),
        (box(9, [0, 0, 10, None]), "must be four numbers"),
        (box(9, [0, 0, 10, float("nan")]), "must be four numbers"),
        (box(9, [0, float("-inf"), 10, 1]), "must be four numbers"),
        (box(9, None), "the box None must be four numbers"),
        (box(9, [5, 5, 0, 10]), "has no area"),
        (box(9, [5, 5, 10, -3]), "has no area"),
        (box(9, [100.5, 5, 0.2, 3]), "has no area"),
        (box(9, [50, 0, 52, 10]), r"is outside the image, whose height × width is 50×100"),
        (box(9, [-3, 0, 10, 10]), "is outside the image"),
        (box(9, [200, 200, 10, 10]), "is outside the image"),
    ],
)
def test_an_invalid_annotation_rejects_its_image(annotation: Any, message: str) -> None:
    rows = read(document(annotations=[*document()["annotations"], annotation]))
    with pytest.raises(UnlabelledError, match=r"annotations\[3\]: .*" + message) as caught:
        rows.find(["a.jpg"])
    assert caught.value.reason == "unfit row in the table"
    assert row(rows, "b.jpg")["box_labels"] == [2, 0]


def test_roundings_at_the_border_are_clipped() -> None:
    rows = read(document(annotations=[box(9, [-0.4, 40, 101, 10.9])]))
    np.testing.assert_allclose(row(rows, "a.jpg")["boxes"], [0.8, 0, 1, 1], rtol=1e-6)


def test_images_that_only_annotations_name_count_as_rows_without_a_file() -> None:
    lost = [box(5, [0, 0, 1, 1]), box(5, [0, 0, 1, 1]), box(6, [0, 0, 1, 1])]
    table = table_of(document(annotations=[*lost, box(9, [0, 0, 100, 50], 2)]))
    assert table.num_unused([("a.jpg",), ("b.jpg",)]) == 3  # 5, 6 and c.jpg
    assert row(table.read(table.features()), "a.jpg")["box_labels"] == [1]


def test_the_image_must_have_the_size_that_its_boxes_are_for() -> None:
    rows = read(document())
    rows.check_size(rows.find(["a.jpg"]), 50, 100)
    with pytest.raises(UnlabelledError, match=r"is 100×50 .* has 50×100: .* EXIF") as caught:
        rows.check_size(rows.find(["a.jpg"]), 100, 50)
    assert caught.value.reason == "not the size in the table"
    rows = read(document(images=[image(9, "a.jpg", height=None), image(20, "b.jpg", width=0)]))
    for path, size in {"a.jpg": "0×100", "b.jpg": "50×0"}.items():
        with pytest.raises(UnlabelledError, match=f"height × width is {size}"):
            rows.find([path])
    other = document(images=[image(9, "a.jpg"), image(20, "b.jpg"), image(30, "c.jpg", height=9)])
    digests = [read(content).digest([["c.jpg"]]) for content in (document(), other)]
    assert digests[0] != digests[1], "whether the image is rejected depends on the size"


def test_two_images_of_one_name_are_rejected() -> None:
    rows = read(document(images=[image(9, "a.jpg"), image(20, "./a.jpg")]))
    with pytest.raises(UnlabelledError, match=r"several rows for 'a\.jpg'"):
        rows.find(["a.jpg"])


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"annotations": []}, {"boxes": [], "box_labels": []}),
        ({"annotations": None}, {"boxes": [], "box_labels": []}),
        ({"annotations": [], "categories": []}, {"boxes": []}),
        ({"images": [image(9, "a.jpg")], "annotations": []}, {"boxes": [], "box_labels": []}),
    ],
)
def test_documents_without_annotations(changes: Any, expected: Any) -> None:
    rows = read(document(**changes))
    assert row(rows, "a.jpg") == {"image_id": 9, **expected}


def test_declared_classes_have_their_own_order_and_may_be_fewer() -> None:
    declared = {
        "boxes": BoundingBoxes(image="image", labels="box_labels"),
        "box_labels": Sequence(ClassLabel(("zebra", "bird"))),
    }
    rows = read(document(), declared)
    assert row(rows, "a.jpg") == {"boxes": [0, 0, 1, 1], "box_labels": [0]}
    assert row(rows, "c.jpg") == {"boxes": [], "box_labels": []}
    with pytest.raises(UnlabelledError, match="has the class 'dog', which is not declared"):
        rows.find(["b.jpg"])
    with pytest.raises(SchemaError, match=r"declares 'area', and the images of .* have only"):
        read(document(), {"area": Scalar("float32")})
    for name, wrong in {
        "image_id": Scalar("string"),
        "box_labels": Sequence(Scalar("int64")),
    }.items():
        with pytest.raises(SchemaError, match=f"declares '{name}' as .* Declare that"):
            read(document(), {name: wrong})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "Empty JSON file"),
        (b"{", "JSON parse error"),
        (b"[]", "changed from object to array"),
        (b'{"images": []} {"images": []}', "it has 2 JSON values"),
        (b"{}", 'it has no "images"'),
        (document(images=None), 'it has no "images"'),
        (document(images=[None]), r"images\[0\] is null"),
        (
            document(images=[image("a", "a.jpg")]),
            r"/images/\[\]/id\) changed from number to string",
        ),  # type: ignore[arg-type]
        (document(images=[{"file_name": "a.jpg"}]), r"images\[0\] has no id"),
        (document(images=[{"id": 1}]), r"images\[0\] has no file_name"),
        (document(images=[image(9, "a.jpg"), image(9, "b.jpg")]), "several images have the id 9"),
        (document(categories=[{"id": 1}]), r"categories\[0\] has no name"),
        (document(categories=[{"name": "cat"}]), r"categories\[0\] has no id"),
        (
            document(categories=[{"id": 1, "name": "cat"}, {"id": 2, "name": "cat"}]),
            'several categories have the name "cat"',
        ),
        (
            document(annotations=[{"image_id": 9, "keypoints": [1]}]),
            r'no annotation has a "bbox" \(key points',
        ),
        (document(images=[image(1, "a.jpg")], x=1).__repr__().encode(), "JSON parse error"),
        (b'{"images": [{"id": 1, "file_name": "\xff.jpg"}]}', "not valid UTF-8"),
    ],
)
def test_what_is_no_instances_file(content: Any, message: str) -> None:
    with pytest.raises(SchemaError, match=f"{NAME} is not an instances file of COCO.*{message}"):
        read(content)


def test_a_document_that_one_parse_cannot_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("snapshard.transforms.sources.folders.annotations.coco._MAX_BYTES", 10)
    with pytest.raises(SchemaError, match="Write JSON Lines instead"):
        read_instances(NAME, b'{"images": []}')


def caption(number: int, text: Any) -> dict[str, Any]:
    return {"id": 1, "image_id": number, "caption": text}


def test_captions_are_lists_of_texts() -> None:
    texts = [caption(9, "Ein Hund 🐕"), caption(20, "b"), caption(9, 'a "quote"')]
    content = json.dumps(document(annotations=texts), ensure_ascii=False).encode()
    table = LabelTable(name=NAME, data=content, image="image")
    features = table.features()
    assert features == {"image_id": Scalar("int64"), "captions": Sequence(Scalar("string"))}
    rows = table.read(features)
    taken = rows.take([rows.find([f"{name}.jpg"]) for name in "abc"])
    assert taken["image_id"].to_pylist() == [9, 20, 30]
    assert taken["captions"].to_pylist() == [
        ["Ein Hund 🐕".encode(), b'a "quote"'],
        [b"b"],
        [],
    ]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"annotations": [caption(9, None)]}, r"annotations\[0\] has no caption"),
        ({"annotations": [caption(7, "a")]}, r"annotations\[0\]: image_id 7 is not an image"),
        ({"images": [{"id": 9}]}, r"images\[0\] has no file_name"),
        ({"images": [image(9, "a.jpg"), image(9, "b.jpg")]}, "several images have the id 9"),
    ],
)
def test_what_is_no_file_of_captions(changes: dict[str, Any], message: str) -> None:
    content = json.dumps(document(**{"annotations": [caption(9, "a")], **changes})).encode()
    with pytest.raises(SchemaError, match=message):
        LabelTable(name=NAME, data=content, image="image").features()
