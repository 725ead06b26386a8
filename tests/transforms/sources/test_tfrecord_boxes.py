"""TFRecords of the TensorFlow Object Detection API: their boxes, classes and faults."""

import io
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from PIL import Image as PillowImage

import snapshard as ss
from snapshard.pipelines.inspect.suggest import describe_suggestion, suggest_recipe
from snapshard.schemas.errors import RecipeError, SchemaError
from snapshard.transforms.sources.tfrecord.source import TFRecords

from .test_tfrecord_files import example, framed

OBJECTS = "object_detection"
BOX = (0.1, 0.2, 0.5, 0.75)
"""ymin, xmin, ymax, xmax."""
IMAGE = ss.Image(storage="encoded")


def picture(height: int = 10, width: int = 20, *, orientation: int = 1) -> bytes:
    stored = io.BytesIO()
    exif = PillowImage.Exif()
    exif[0x0112] = orientation
    PillowImage.new("RGB", (width, height)).save(stored, "JPEG", exif=exif)
    return stored.getvalue()


def record(boxes: Sequence[Sequence[float]] = (), image: bytes | None = None, **more: Any) -> bytes:
    """An Example of the API; ``more`` are other features, with _ for /."""
    sides = {
        f"image/object/bbox/{side}": [float(box[at]) for box in boxes]
        for at, side in enumerate(("ymin", "xmin", "ymax", "xmax"))
    }
    others = {f"image/{name.replace('__', '/')}": values for name, values in more.items()}
    image = picture() if image is None else image
    return example(**{"image/encoded": image, **sides, **others})


def labelled(boxes: Sequence[Sequence[float]], *texts: bytes, **more: Any) -> bytes:
    return record(boxes, object__class__text=[*texts], **more)


def test_boxes_and_classes(reading: Any) -> None:
    records = [
        labelled([BOX, (0, 0, 1, 1)], b"dog", b"cat", object__class__label=[2, 1], height=10),
        labelled([], filename=b"none.jpg"),
        record(),
        labelled([BOX], b"dog", object__is_crowd=[1], object__difficult=[0], object__area=[3.0]),
    ]
    url = reading.write("d/train.record", framed(records))
    source = suggest_recipe(url).source
    assert source == TFRecords(url, boxes=OBJECTS)
    got = reading.read(source)
    assert not got.rejects
    assert got.features == {
        "image": IMAGE,
        "boxes": ss.BoundingBoxes(
            image="image", labels=("box_labels", "box_crowd", "box_difficult")
        ),
        "box_labels": ss.Sequence(ss.ClassLabel(("cat", "dog"))),
        "box_crowd": ss.Sequence(ss.Scalar("bool")),
        "box_difficult": ss.Sequence(ss.Scalar("bool")),
        "image/filename": ss.Scalar("string", optional=True),
    }
    expected = [[*BOX, 0, 0, 1, 1], [], [], [*BOX]]
    for boxes, sides in zip(got.column("boxes"), expected, strict=True):
        np.testing.assert_allclose(boxes, sides, rtol=1e-6)
    assert got.column("box_labels") == [[1, 0], [], [], [1]]
    assert got.column("box_crowd") == [[0, 0], [], [], [1]]
    assert got.column("box_difficult") == [[0, 0], [], [], [0]]
    assert got.column("image") == [picture()] * 4


def test_classes_are_numbers_without_texts(reading: Any) -> None:
    records = [
        record([BOX], object__class__label=[10]),
        record([BOX, BOX], object__class__label=[2, 10]),
    ]
    url = reading.write("t.tfrecord", framed(records))
    got = reading.read(TFRecords(url, boxes=OBJECTS))
    assert got.features["box_labels"] == ss.Sequence(ss.ClassLabel({2: "2", 10: "10"}))
    assert got.column("box_labels") == [[1], [0, 1]]
    assert '"box_labels": ss.Sequence(ss.ClassLabel({2: "2", 10: "10"}))' in describe_suggestion(
        url
    )


def test_declared_numbers_of_classes_come_before_texts(reading: Any) -> None:
    records = [
        labelled([BOX], b"dog", object__class__label=[7]),
        labelled([BOX], b"cat", object__class__label=[9]),
        labelled([BOX], b"cow", object__class__label=[3]),
    ]
    url = reading.write("t.tfrecord", framed(records))
    source = TFRecords(url, boxes=OBJECTS)
    features = {
        **reading.read(source).features,
        "box_labels": ss.Sequence(ss.ClassLabel({7: "dog", 9: "cat"})),
    }
    got = reading.read(source, features=features)
    assert got.column("box_labels") == [[0], [1]]
    (message,) = got.rejected.values()
    assert "the class '3', which is not declared" in message


def test_boxes_without_classes(reading: Any) -> None:
    url = reading.write("t.tfrecord", framed([record([BOX])]))
    got = reading.read(TFRecords(url, boxes=OBJECTS))
    assert list(got.features) == ["image", "boxes"]
    assert not got.rejects
    only = reading.read(TFRecords(url, boxes=OBJECTS), features={"boxes": got.features["boxes"]})
    assert only.column("boxes") == got.column("boxes")


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (record([(0.5, 0.2, 0.5, 0.75)], object__class__text=[b"a"]), "has no area"),
        (record([(10, 20, 50, 75)], object__class__text=[b"a"]), "is outside the image"),
        (record([(float("nan"), 0, 1, 1)], object__class__text=[b"a"]), "expected numbers"),
        (record([BOX, BOX], object__class__text=[b"a"]), "has 2 values and .*text' has 1"),
        (record([BOX], object__class__label=[1]), "has 1 values and .*text' has 0"),
        (record([BOX], object__class__text=[b"\xff"]), "expected UTF-8"),
        (labelled([BOX], b"a", height=20, width=10), r"is 10×20 .* annotations are for 20×10"),
        (
            labelled([BOX], b"a", height=10, width=20, image=picture(orientation=6)),
            r"is 20×10 .* annotations are for 10×20",
        ),
        (record([BOX], object__class__text=[b"a"], object__is_crowd=[0, 1]), "is_crowd' has 2"),
        (
            example(
                **{
                    "image/encoded": picture(),
                    "image/object/class/text": [b"a"],
                    "image/object/bbox/xmin": [0.5],
                    "image/object/bbox/ymin": [0.5, 0.6],
                    "image/object/bbox/ymax": [0.7],
                    "image/object/bbox/xmax": [0.7],
                }
            ),
            "has 2 values and 'image/object/bbox/xmin' has 1",
        ),
    ],
)
def test_a_bad_box_is_a_reject(reading: Any, bad: bytes, why: str) -> None:
    records = [labelled([BOX], b"a"), bad, labelled([], height=10)]
    url = reading.write("t.tfrecord", framed(records))
    got = reading.read(TFRecords(url, boxes=OBJECTS))
    (reject,) = got.rejects
    assert reject.record_id == f"t.tfrecord#{len(framed(records[:1]))}"
    assert reject.reason == "invalid annotation"
    assert re.search(why, reject.message), reject.message
    assert got.column("box_labels") == [[0], []]


def test_an_unreadable_image_is_named_first(reading: Any) -> None:
    records = [labelled([BOX], b"a"), labelled([(0, 0, 0, 0)], b"a", image=b"none")]
    got = reading.read(TFRecords(reading.write("t.tfrecord", framed(records)), boxes=OBJECTS))
    (reject,) = got.rejects
    assert reject.reason == "not such a record"
    assert "feature 'image'" in reject.message


@pytest.mark.parametrize(("bad_boxes", "boxes"), [("drop", 1), ("clip", 2)])
def test_bad_boxes_are_mended(reading: Any, bad_boxes: Any, boxes: int) -> None:
    records = [labelled([BOX, (-0.5, 0, 0.5, 1), (0, 0, 0, 0)], b"a", b"b", b"c")]
    url = reading.write("t.tfrecord", framed(records))
    got = reading.read(TFRecords(url, boxes=OBJECTS, bad_boxes=bad_boxes))
    assert got.column("num_bad_boxes") == [2]
    assert got.column("box_labels") == [[0, 1][:boxes]]


def test_what_has_no_boxes_is_refused(reading: Any) -> None:
    url = reading.write("t.tfrecord", framed([example(**{"image/encoded": picture()})]))
    with pytest.raises(SchemaError, match="no record has 'image/object/bbox/ymin'"):
        reading.read(TFRecords(url, boxes=OBJECTS))
    with pytest.raises(RecipeError, match="bad_boxes= is for boxes="):
        TFRecords(url, bad_boxes="drop")


def test_features_of_the_same_name(reading: Any) -> None:
    content = record([BOX])
    url = reading.write("t.tfrecord", framed([content + example(image=[1])]))
    with pytest.raises(SchemaError, match="'image' is a feature of its own"):
        reading.read(TFRecords(url, boxes=OBJECTS))
    assert suggest_recipe(url).source == TFRecords(url, types={"image/encoded": IMAGE})
