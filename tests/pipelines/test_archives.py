"""What is recognized in a folder is recognized in a zip or tar of it, too."""

import json
import re
import shutil
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image as Pillow

import snapshard as ss
from snapshard.pipelines.inspect.suggest import describe_suggestion, suggest_recipe
from snapshard.pipelines.recipe.shipping import load_recipe_file
from snapshard.pipelines.recognize.readings import source_text
from snapshard.schemas.errors import DataError
from snapshard.transforms.storage.opened_source import path_below, url_below

R = range(10)
VOC = (
    "<annotation><size><width>16</width><height>8</height></size><object><name>cat</name>"
    "<bndbox><xmin>1</xmin><ymin>1</ymin><xmax>6</xmax><ymax>4</ymax></bndbox></object></annotation>"
)
ROWS = "filename,width,height,class,xmin,ymin,xmax,ymax\n"


def coco(num: int, **annotation: Any) -> str:
    images = [{"id": i, "file_name": f"{i}.jpg", "height": 8, "width": 16} for i in range(num)]
    annotations = [{"id": i, "image_id": i, "category_id": 1, **annotation} for i in range(num)]
    categories = [{"id": 1, "name": "ant"}]
    return json.dumps({"images": images, "annotations": annotations, "categories": categories})


def table(template: str) -> str:
    return "".join(template.format(i, label="ab"[i % 2]) for i in R)


LAYOUTS: dict[str, tuple[list[str], dict[str, str]]] = {
    "classes below two folders": ([f"x/y/{c}/{i}.jpg" for c in "ab" for i in R], {}),
    "splits": ([f"x/{s}/{c}/{i}.jpg" for s in ("train", "test") for c in "ab" for i in R], {}),
    "one folder": ([f"images/{i}.jpg" for i in R], {}),
    "names": ([f"all/{c}_{i}.jpg" for c in ("cat", "big_dog") for i in R], {}),
    "masks": ([f"{part}/{i}.png" for part in ("images", "masks") for i in R], {}),
    "table": (
        [f"images/{i}.jpg" for i in R],
        {"labels.csv": "file,label\n" + table("{},{label}\n")},
    ),
    "captions": (
        [f"Images/{i}.jpg" for i in R],
        {"captions.csv": "image,caption\n" + table("{0},one {0}\n{0},two {0}\n")},
    ),
    "lists": (
        [f"images/{c}/{i}.jpg" for c in "ab" for i in R],
        {"meta/train.txt": table("a/{}\n"), "meta/test.txt": table("b/{}\n")},
    ),
    "yolo": (
        [f"{s}/images/{i}.jpg" for s in ("train", "valid") for i in R],
        {f"{s}/labels/{i}.txt": "0 .5 .5 .2 .2\n" for s in ("train", "valid") for i in R}
        | {"data.yaml": "names: [cat]\n"},
    ),
    "voc": (
        [f"VOC/JPEGImages/{i}.jpg" for i in R],
        {f"VOC/Annotations/{i}.xml": VOC for i in R}
        | {"VOC/ImageSets/Main/val.txt": "7\n8\n", "VOC/ImageSets/Main/test.txt": "9\n"},
    ),
    "coco": (
        [f"{s}2017/{i}.jpg" for s, num in (("train", 10), ("val", 4)) for i in range(num)],
        {
            f"annotations/instances_{s}2017.json": coco(num, bbox=[1, 1, 4, 4])
            for s, num in (("train", 10), ("val", 4))
        },
    ),
    "texts of coco": (
        [f"images/{i}.jpg" for i in R],
        {"captions_train.json": coco(10, caption="an ant")},
    ),
    "rows": (
        [f"images/{i}.jpg" for i in R],
        {"boxes.csv": ROWS + table("{}.jpg,16,8,a,1,1,4,4\n")},
    ),
    "unclear": ([f"{c}/{d}/{i}.jpg" for c in "ab" for d in "xy" for i in R], {}),
    "incomplete": ([f"images/{i}.jpg" for i in R], {"labels.csv": "file,label\n1,a\n2,b\n3,a\n"}),
}


def write(name: str, kind: str) -> None:
    images, texts = LAYOUTS[name]
    for path in images:
        target = Path("d", path)
        target.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(zlib.crc32(path.encode())).integers(0, 255, (8, 16, 3))
        Pillow.fromarray(pixels.astype(np.uint8)).save(target)
    for path, text in texts.items():
        target = Path("d", path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    shutil.make_archive("d", kind, "d")


def said(url: str) -> list[str]:
    """The recognized source, or those of a refusal."""
    try:
        recipe = suggest_recipe(url)
    except DataError as error:
        return re.findall(r"source=.*", str(error))
    return [f"{source_text(recipe.source)} {recipe.splits}"]


@pytest.mark.parametrize("kind", ["zip", "tar"])
@pytest.mark.parametrize("name", LAYOUTS)
def test_archives_are_read_as_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, kind: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write(name, kind)
    in_folder = [
        re.sub(
            r'"d(?:/([^"]*))?"', lambda found: f'"{url_below(f"d.{kind}", found[1] or "")}"', text
        )
        for text in said("d")
    ]
    assert said(f"d.{kind}") == in_folder


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kind"), [("coco", "zip"), ("lists", "tar")])
def test_a_recipe_of_files_in_an_archive_builds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, kind: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write(name, kind)
    shutil.rmtree("d")
    Path("recipes").mkdir()
    Path("recipes/r.py").write_text(describe_suggestion(f"d.{kind}", folder="recipes"))
    snapshot = ss.build(load_recipe_file("recipes/r.py"), "out")
    counts = {split: num for split, num in snapshot.reader().NUM_EXAMPLES.items() if num}
    assert counts in ({"train": 10, "validation": 4}, {"train": 10, "test": 10})


@pytest.mark.parametrize(
    "root", ["d", "d/", "/", "d.zip", "zip://::d.zip", "zip://x::d.zip", "tar://a::s3://b/d.tgz"]
)
def test_urls_below_others(root: str) -> None:
    assert url_below(root, "") == root
    assert path_below(root, root) == ""
    assert path_below(url_below(root, "q/r.csv"), root) == "q/r.csv"
    assert path_below("other/q", root) is None or root == "/"
