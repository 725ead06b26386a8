"""Object detection: from COCO's files and JSON Lines to padded batches."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image as PillowImage

import snapshard as ss
from snapshard.pipelines.inspect.suggest import suggest_recipe
from snapshard.pipelines.survey.survey import Survey

from ..pipelines.read_records import num_to_prepare, read_blocks, survey_of
from ..small_blocks import small_blocks
from .documented import run_examples

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "detection.md"
SIZE = (80, 120)
NUM = 40
CATEGORIES = {1: "person", 2: "bicycle", 18: "dog"}


def boxes_of(number: int) -> list[dict[str, Any]]:
    """Annotations of an image: none for every fifth."""
    return [
        {
            "image_id": number,
            "category_id": (1, 2, 18)[i % 3],
            "bbox": [10.0 * i, 8.0 * i, 12.5 + number, 20],
            "iscrowd": int(i == 2),
            "segmentation": [[0.5] * 8],
        }
        for i in range(number % 5)
    ]


def write_coco(folder: Path) -> dict[str, Any]:
    """``train2017`` and ``instances_train2017.json``, as the page describes them."""
    (folder / "train2017").mkdir()
    content: dict[str, Any] = {
        "info": {"year": 2017},
        "images": [],
        "annotations": [],
        "categories": [{"id": code, "name": name} for code, name in CATEGORIES.items()],
    }
    for number in range(NUM):
        name = f"{number:012}.jpg"
        pixels = np.random.default_rng(number).integers(0, 255, (*SIZE, 3), np.uint8)
        PillowImage.fromarray(pixels).save(folder / "train2017" / name)
        side = dict(zip(("height", "width"), SIZE, strict=True))
        content["images"].append({"id": number, "file_name": name, **side})
        content["annotations"] += boxes_of(number)
    write_table(folder, content)
    return content


def write_table(folder: Path, content: Any) -> None:
    (folder / "instances_train2017.json").write_text(json.dumps(content))


@pytest.fixture
def coco(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.chdir(tmp_path)
    write_records(tmp_path / "records")
    return write_coco(tmp_path)


def write_records(folder: Path) -> None:
    """TFRecords as the Object Detection API writes them; every third image has no boxes."""
    import tensorflow as tf

    folder.mkdir()
    with tf.io.TFRecordWriter(str(folder / "train.record-00000-of-00001")) as writer:
        for number in range(6):
            pixels = np.random.default_rng(number).integers(0, 255, (*SIZE, 3), np.uint8)
            floats = {
                f"image/object/bbox/{side}": [0.1 * at + 0.01 * number] * (number % 3)
                for at, side in enumerate(("xmin", "ymin", "xmax", "ymax"), start=1)
            }
            record: dict[str, Any] = {
                "image/encoded": tf.train.Feature(
                    bytes_list=tf.train.BytesList(value=[tf.io.encode_png(pixels).numpy()])
                ),
                "image/object/class/text": tf.train.Feature(
                    bytes_list=tf.train.BytesList(value=[b"person", b"dog"][: number % 3])
                ),
            }
            for name, values in floats.items():
                record[name] = tf.train.Feature(float_list=tf.train.FloatList(value=values))
            example = tf.train.Example(features=tf.train.Features(feature=record))
            writer.write(example.SerializeToString())
    (folder / "label_map.pbtxt").write_text("item { id: 1 name: 'person' }")


def build(folder: Path, **changes: Any) -> ss.Snapshot:
    table = folder / "instances_train2017.json"
    source = ss.ImageFolder(str(folder / "train2017"), table=str(table))
    settings: dict[str, Any] = {
        "prepare": [ss.images.decode("image")],
        "splits": ss.Splits(train=1.0),
        **changes,
    }
    return ss.build(ss.Recipe(name="coco", source=source, **settings), folder / "out")


@pytest.mark.slow
def test_the_examples_of_the_page_run(coco: Any, tmp_path: Path) -> None:
    assert run_examples(PAGE, tmp_path) == 14


@pytest.mark.slow
def test_records_of_the_object_detection_api(coco: Any, tmp_path: Path, lab: Any) -> None:
    assert suggest_recipe("records").source == ss.TFRecords("records", boxes="object_detection")
    heading = "TFRecords of the Object Detection API"
    assert run_examples(PAGE, tmp_path, heading=heading, variables={"ss": ss}) == 2
    rows = [*lab.stored_rows(ss.load("out/records")).values()]
    assert sorted(len(row["boxes"]) for row in rows) == [0, 0, 1, 1, 2, 2]
    for row in rows:
        assert [*row["box_labels"]] == [1, 0][: len(row["boxes"])]
        for box in row["boxes"]:
            np.testing.assert_allclose(np.diff(box), [-0.1, 0.3, -0.1], atol=1e-6)


@pytest.mark.slow
def test_coco_comes_back_equal(coco: Any, tmp_path: Path, lab: Any) -> None:
    snapshot = build(tmp_path)
    rows = lab.stored_rows(snapshot)
    assert len(rows) == NUM
    names = snapshot.reader().CLASS_NAMES
    assert names == [*CATEGORIES.values()]
    for number in range(NUM):
        row, annotations = rows[f"{number:012}.jpg"], boxes_of(number)
        assert row["image_id"] == number
        expected = [
            (y / SIZE[0], x / SIZE[1], (y + h) / SIZE[0], (x + w) / SIZE[1])
            for x, y, w, h in (one["bbox"] for one in annotations)
        ]
        np.testing.assert_allclose(row["boxes"], np.reshape(expected, (-1, 4)), atol=1e-6)
        found = [names[label] for label in row["box_labels"]]
        assert found == [CATEGORIES[one["category_id"]] for one in annotations]
        assert [*row["box_crowd"]] == [one["iscrowd"] for one in annotations]


@pytest.mark.slow
def test_faults_are_counted(coco: Any, tmp_path: Path, lab: Any) -> None:
    fingerprint = build(tmp_path).manifest.fingerprint
    for number, change in {0: {"height": 120, "width": 80}, 1: {"file_name": "lost.jpg"}}.items():
        coco["images"][number] |= change
    coco["annotations"] += [
        {"image_id": 2, "category_id": 7, "bbox": [0, 0, 1, 1]},
        {"image_id": 3, "category_id": 1, "bbox": [100, 0, 100, 1]},
        {"image_id": 999, "category_id": 1, "bbox": [0, 0, 1, 1]},
    ]
    write_table(tmp_path, coco)
    snapshot = build(tmp_path, max_rejects=4)
    assert snapshot.manifest.fingerprint != fingerprint
    rejects = {row["id"]: (row["reason"], row["message"]) for row in lab.rejects(snapshot)}
    reasons = {int(name[:12]): reason for name, (reason, _) in rejects.items()}
    assert reasons == {
        0: "not the size in the table",
        1: "no row in the table",
        2: "unfit row in the table",
        3: "unfit row in the table",
    }
    at = len(coco["annotations"])
    assert f"annotations[{at - 3}]: category_id 7" in rejects["000000000002.jpg"][1]
    assert f"annotations[{at - 2}]: the box [100.0, 0.0, 100.0" in rejects["000000000003.jpg"][1]
    skipped = lab.build_facts(snapshot)["input"]["skipped"]
    assert skipped == {"row of the table without a file": 2}


@pytest.mark.slow
@pytest.mark.parametrize("form", ["coco", "jsonl"])
def test_a_changed_annotation_prepares_its_block_again(
    coco: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    small_blocks(monkeypatch, 40_000)

    def surveyed(content: Any, work: Path = tmp_path) -> Survey:
        table = tmp_path / f"table.{'json' if form == 'coco' else form}"
        table.write_text(json.dumps(content) if form == "coco" else "\n".join(as_lines(content)))
        source = ss.ImageFolder(str(tmp_path / "train2017"), table=str(table))
        recipe = ss.Recipe(name="coco", source=source, prepare=[ss.images.decode("image")])
        return survey_of(recipe, work)

    first = surveyed(coco)
    assert len(first.inventory.blocks) > 4
    moved = json.loads(json.dumps(coco))
    moved["annotations"][7]["bbox"][0] += 1
    second, anew = surveyed(moved), surveyed(moved, tmp_path / "anew")
    assert len(second.inventory.blocks) == len(first.inventory.blocks)
    assert num_to_prepare(first, second) == 1
    assert second.inventory.blocks == anew.inventory.blocks
    before, after = (read_blocks(survey, tmp_path).records for survey in (first, anew))
    (changed,) = (name for name in before if before[name] != after[name])
    assert int(Path(changed).stem) == moved["annotations"][7]["image_id"]
    lost = json.loads(json.dumps(moved))
    lost["images"][3]["file_name"] = "gone.jpg"
    if form == "jsonl":
        del lost["images"][3]
    third = surveyed(lost)
    assert num_to_prepare(second, third) == 1
    # The order of images says nothing, nor do annotations of others.
    lost["images"].reverse()
    fourth = surveyed(lost)
    assert num_to_prepare(third, fourth) == 0
    (reject,) = read_blocks(fourth, tmp_path).rejects.values()
    assert (reject.record_id, reject.reason) == ("000000000003.jpg", "no row in the table")


def as_lines(content: Any) -> list[str]:
    """The lines of the same table as JSON Lines."""
    boxes: dict[int, list[Any]] = {image["id"]: [] for image in content["images"]}
    for one in content["annotations"]:
        x, y, w, h = one["bbox"]
        corners = [y / SIZE[0], x / SIZE[1], (y + h) / SIZE[0], (x + w) / SIZE[1]]
        if one["image_id"] in boxes:
            label = CATEGORIES[one["category_id"]]
            boxes[one["image_id"]].append({"bbox": corners, "label": label})
    return [
        json.dumps({"file": image["file_name"], "boxes": boxes[image["id"]]})
        for image in content["images"]
    ]


@pytest.mark.parametrize("beside", [True, False])
def test_init_finds_the_instances_of_a_folder(coco: Any, tmp_path: Path, beside: bool) -> None:
    table = tmp_path / "instances_train2017.json"
    if not beside:
        (tmp_path / "annotations").mkdir()
        table = table.rename(tmp_path / "annotations" / table.name)
    (tmp_path / "licences.json").write_text("[]")
    found = suggest_recipe(str(tmp_path / "train2017" if beside else tmp_path)).source
    assert isinstance(found, ss.ImageFolder)
    assert found.url == str(tmp_path / "train2017")
    assert found.side_urls == (str(table),)


def test_lists_of_classes_have_no_balance(coco: Any, tmp_path: Path) -> None:
    reader = build(tmp_path, label="box_labels").reader()
    assert reader.LABEL == "box_labels"
    assert [*CATEGORIES.values()] == reader.CLASS_NAMES
    assert reader.CLASS_WEIGHTS == reader.CLASS_SHARES == []
    with pytest.raises(ValueError, match=r"'box_labels', .* several values have no one class"):
        reader.dataset("train", 8, balance="uniform", image_size=SIZE)
    with pytest.raises(ss.SnapshardError, match=r"stratify_by='box_labels' is .* expected a class"):
        build(tmp_path, splits=ss.Splits(train=0.5, test=0.5, stratify_by="box_labels"))


@pytest.mark.parametrize("kind", [ss.AudioFolder, ss.ImageFolder])
def test_only_images_have_coco_tables(kind: Any) -> None:
    if kind is ss.ImageFolder:
        assert kind("x", table="a.json").side_urls == ("a.json",)
        return
    with pytest.raises(ss.SnapshardError, match=r"suffix \.csv, \.tsv, \.txt or \.jsonl"):
        kind("x", table="a.json")
