"""Images with boxes of every format come back equal, with their classes and splits."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image as Pillow

import snapshard as ss
from snapshard.pipelines.inspect.forecast import forecast
from snapshard.pipelines.inspect.suggest import suggest_recipe
from snapshard.schemas.progress import Silent

HEIGHT, WIDTH = 40, 80
NUM = {"train": 12, "val": 6}
CLASSES = ("cat", "dog")

Boxes = list[tuple[int, list[float]]]


def boxes_of(split: str, number: int) -> Boxes:
    """Classes, and ymin, xmin, ymax, xmax in pixels; no two images have the same."""
    left = 2 * number + (split == "val")
    return [(i % 2, [8 * i, left, 8 * i + 6, left + 9]) for i in range(1 + number % 3)]


def yolo(name: str, boxes: Boxes) -> dict[str, str]:
    lines = [
        f"{label} {(x0 + x1) / 2 / WIDTH} {(y0 + y1) / 2 / HEIGHT} "
        f"{(x1 - x0) / WIDTH} {(y1 - y0) / HEIGHT}"
        for label, (y0, x0, y1, x1) in boxes
    ]
    return {f"{name}.txt": "\n".join(lines), "data.yaml": "names: [cat, dog]"}


def voc(name: str, boxes: Boxes) -> dict[str, str]:
    objects = "".join(
        f"<object><name>{CLASSES[label]}</name><bndbox><xmin>{x0}</xmin><ymin>{y0}</ymin>"
        f"<xmax>{x1}</xmax><ymax>{y1}</ymax></bndbox></object>"
        for label, (y0, x0, y1, x1) in boxes
    )
    size = f"<size><width>{WIDTH}</width><height>{HEIGHT}</height></size>"
    return {f"{name}.xml": f"<annotation>{size}{objects}</annotation>"}


def labelme(name: str, boxes: Boxes) -> dict[str, str]:
    shapes = [
        {"label": CLASSES[label], "shape_type": "rectangle", "points": [[x0, y1], [x1, y0]]}
        for label, (y0, x0, y1, x1) in boxes
    ]
    size = {"imageHeight": HEIGHT, "imageWidth": WIDTH}
    return {f"{name}.json": json.dumps({"shapes": shapes, **size})}


def rows(name: str, boxes: Boxes) -> dict[str, str]:
    split, _, bare = name.partition("/")
    table = "".join(
        f"{bare}.png,{WIDTH},{HEIGHT},{CLASSES[label]},{x0},{y0},{x1},{y1}\n"
        for label, (y0, x0, y1, x1) in boxes
    )
    return {f"{split}/boxes.csv": table}


FORMATS: dict[str, Callable[[str, Boxes], dict[str, str]]] = {
    "yolo": yolo,
    "voc": voc,
    "labelme": labelme,
    "rows": rows,
}


def write(folder: Path, make: Callable[[str, Boxes], dict[str, str]]) -> None:
    header = "filename,width,height,class,xmin,ymin,xmax,ymax\n"
    for split, num in NUM.items():
        (folder / split).mkdir(parents=True)
        for number in range(num):
            pixels = np.random.default_rng([number, num]).integers(0, 255, (HEIGHT, WIDTH, 3))
            Pillow.fromarray(pixels.astype(np.uint8)).save(folder / split / f"{number}.png")
            for path, text in make(f"{split}/{number}", boxes_of(split, number)).items():
                if path.endswith(".csv"):
                    earlier = (folder / path).read_text() if number else header
                    text = earlier + text
                (folder / path).write_text(text)


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
def test_boxes_come_back_equal(tmp_path: Path, lab: Any, name: str) -> None:
    write(tmp_path / "d", FORMATS[name])
    recipe = suggest_recipe(str(tmp_path / "d"))
    planned = forecast(recipe, progress=Silent())
    assert planned.label_counts == {}
    snapshot = ss.build(recipe, tmp_path / "out")
    reader = snapshot.reader()
    assert [*CLASSES] == reader.CLASS_NAMES
    assert reader.NUM_EXAMPLES == {"train": 12, "validation": 6, "test": 0}
    stored = lab.stored_rows(snapshot)
    assert len(stored) == sum(NUM.values())
    for split, num in NUM.items():
        for number in range(num):
            row, expected = stored[f"{split}/{number}.png"], boxes_of(split, number)
            sides = [box for _, box in expected] / np.array([HEIGHT, WIDTH] * 2)
            np.testing.assert_allclose(row["boxes"], sides, atol=1e-6)
            assert [*row["box_labels"]] == [label for label, _ in expected]


@pytest.mark.slow
def test_lists_say_the_splits_of_images_with_boxes(tmp_path: Path, lab: Any) -> None:
    write(tmp_path / "d", voc)
    for split, folder in (("train", "a"), ("val", "b")):
        (tmp_path / "d" / split).rename(tmp_path / "d" / folder)
    names = [f"a/{number}" for number in range(12)] + [f"b/{number}" for number in range(6)]
    lists = {"train": names[::2], "val": names[1::2]}
    for name, listed in lists.items():
        (tmp_path / "d" / f"{name}.txt").write_text("\n".join(listed))
    snapshot = ss.build(suggest_recipe(str(tmp_path / "d")), tmp_path / "out")
    assert snapshot.reader().NUM_EXAMPLES == {"train": 9, "validation": 9}
    stored = lab.stored_rows(snapshot)
    for number, split in ((0, 0), (1, 1)):
        assert {stored[f"{name}.png"]["split"] for name in names[number::2]} == {split}
    # One image moves to the other list, and one is in none: it is no record.
    (tmp_path / "d" / "train.txt").write_text("\n".join([*names[2::2], names[1]]))
    (tmp_path / "d" / "val.txt").write_text("\n".join(names[3::2]))
    source = ss.ImageFolder(
        str(tmp_path / "d"),
        boxes="voc",
        lists={split: str(tmp_path / "d" / f"{split}.txt") for split in NUM},
    )
    splits = ss.Splits.by_column("split", train="train", validation="val")
    moved = ss.build(ss.Recipe(name="d", source=source, splits=splits), tmp_path / "out")
    stored = lab.stored_rows(moved)
    assert moved.reader().NUM_EXAMPLES == {"train": 9, "validation": 8}
    assert f"{names[0]}.png" not in stored
    assert stored[f"{names[1]}.png"]["split"] == 0
