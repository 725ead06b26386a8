"""A snapshot is a folder of TensorFlow Datasets, or says why it is not."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image as PillowImage

import snapshard as ss
from snapshard.pipelines.publish.tfds import tfds_files
from snapshard.pipelines.snapshot import build_facts
from snapshard.schemas.manifest import FORMAT_VERSION, Manifest, SplitEntry
from snapshard.schemas.nested import flatten

from .numpy_snapshots import numpy_snapshot
from .test_reader_every_type import any_record

DATA = Path(__file__).parents[2] / "examples" / "data"
PEERS = os.environ.get("SNAPSHARD_PEERS", sys.executable)
CLASSES = ss.ClassLabel(("a", " ü\n", ""))


def readable() -> dict[str, Any]:
    """Each type that TFDS can read, in each form."""
    made: dict[str, Any] = {}
    for dtype in (
        "bool",
        "string",
        *(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)),
    ):
        made[f"{dtype} one"] = ss.Scalar(dtype)
        made[f"{dtype} list"] = ss.Sequence(ss.Scalar(dtype))
        made[f"{dtype} (2, 3)"] = ss.Tensor(dtype, (2, 3))
        made[f"{dtype} (2, None)"] = ss.Tensor(dtype, (2, None))
    for dtype in ("float16", "float32", "float64"):
        made[f"{dtype} one"] = ss.Scalar(dtype)
        made[f"{dtype} (None, 2)"] = ss.Tensor(dtype, (None, 2))
    return made | {
        "float32 maybe": ss.Sequence(ss.Scalar("float32"), optional=True),
        "boxes": ss.BoundingBoxes(),
        "class": CLASSES,
        "../class": CLASSES,
        "classes": ss.Sequence(CLASSES),
        "image": ss.Image(2, 3),
        "mask": ss.Mask(2, 3, ignore=255),
        "depth": ss.Image(2, 3, 1, dtype="uint16"),
        "mono": ss.Audio(8000),
        "stereo": ss.Audio(channels=2),
        "exact": ss.Audio(8000, samples=3, channels=2, dtype="float32"),
        "at": ss.Timestamp("ns"),
        "text": ss.Text(),
        "texts": ss.Sequence(ss.Text()),
        "in.a struct": ss.Scalar("int32"),
    }


READABLE = readable()


def manifest_of(features: dict[str, Any], **changes: Any) -> Manifest:
    flat, structs = flatten(features)
    facts: dict[str, Any] = {
        "format_version": FORMAT_VERSION,
        "name": "made",
        "fingerprint": "0123456789abcdef",
        "features": flat,
        "structs": list(structs),
        "label": None,
        "compression": "none",
        "num_rejects": 0,
        "seed": 0,
        "versions": {},
        "splits": {"train": SplitEntry(num_examples=0, num_bytes=0, shards=[])},
        "files": {},
    }
    return Manifest(**facts | changes)


@pytest.mark.parametrize(
    ("feature", "changes", "reason"),
    [
        (ss.Scalar("int64"), {"compression": "gzip"}, "its shards are compressed (gzip)"),
        (ss.Scalar("float32", optional=True), {"num_missing": {"x": 1}}, "'x' is missing in some"),
        (ss.Scalar("float32", optional=True), {"num_missing": {"x": 0}}, ""),
        (ss.Sequence(ss.Text(), optional=True), {"num_missing": {"x": 1}}, ""),
        (ss.Tensor("int8", (None,), optional=True), {"num_missing": {"x": 1}}, "is missing"),
        (ss.Scalar("bfloat16"), {}, "'x' is bfloat16"),
        (ss.Tensor("int64", (None, None)), {}, "several dimensions that vary"),
        (ss.Image(), {}, "pixels of images of several sizes"),
        (ss.Image(storage="encoded"), {}, "a format that TFDS does not decode alike: unknown"),
    ],
)
def test_what_tfds_cannot_read_has_no_files(feature: Any, changes: Any, reason: str) -> None:
    files, found = tfds_files(manifest_of({"x": feature}, **changes))
    assert reason in found
    assert bool(files) == (not reason) == (not found)


@pytest.mark.parametrize("formats", [{"gif"}, {"jpeg", "webp"}, {"cmyk"}, {"bmp"}])
def test_formats_that_tfds_decodes_otherwise(formats: set[str]) -> None:
    manifest = manifest_of({"x": ss.Image(storage="encoded")})
    files, found = tfds_files(manifest, image_formats={"x": frozenset(formats)})
    assert not files
    assert " and ".join(sorted(formats - {"jpeg"})) in found


def test_images_that_stand_on_their_side() -> None:
    image = {"x": ss.Image(storage="encoded")}
    files, found = tfds_files(
        manifest_of(image), rotated_images=["x"], image_formats={"x": frozenset({"jpeg"})}
    )
    assert (files, found) == ({}, "feature 'x' has images with an EXIF orientation")


def made_of_types(folder: Path) -> ss.Snapshot:
    """Three shards of random values, and an empty split."""
    flat, _ = flatten(READABLE)
    records = [any_record(flat, np.random.default_rng(n)) for n in range(30)]
    shards = {"train": [records[:8], records[8:20]], "validation": [records[20:]], "test": [[]]}
    numpy_snapshot(folder, READABLE, shards)
    made = ss.Snapshot.open(folder)
    files, found = tfds_files(made.manifest)
    assert found == ""
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return made


def titanic(folder: Path) -> ss.Recipe:
    """Text, classes, numbers and gaps that are filled."""
    return ss.Recipe(
        name="titanic",
        source=ss.Csv(str(DATA / "titanic.csv"), label="survived"),
        prepare=[ss.tables.fill("age", 30.0), ss.records.drop(["deck", "embark_town", "embarked"])],
        splits=ss.Splits(train=0.8, test=0.2),
        shards=ss.Shards(compression="none"),
    )


def files_of_images(folder: Path) -> ss.Recipe:
    """JPEG and PNG files as they are, with masks."""
    rng = np.random.default_rng(0)
    for number in range(12):
        path = folder / "in" / f"{number}.{('png', 'jpg')[number % 3 == 0]}"
        path.parent.mkdir(parents=True, exist_ok=True)
        size = (20 + number, 30)
        pixels = PillowImage.fromarray(rng.integers(0, 255, (*size, 3), np.uint8))
        pixels.resize((30, 20 + number)).save(path)
        mask = PillowImage.fromarray(rng.integers(0, 3, size, np.uint8))
        mask.save(path.with_name(f"{number}_mask.png"))
    return ss.Recipe(
        name="files",
        source=ss.ImageFolder(str(folder / "in"), images="{id}", masks="{id}_mask"),
        splits=ss.Splits(train=0.5, test=0.5),
    )


def read_by_tfds(snapshot: ss.Snapshot) -> Any:
    found = "from importlib.util import find_spec; print(bool(find_spec('tensorflow_datasets')))"
    done = subprocess.run([PEERS, "-c", found], capture_output=True, text=True, check=True)
    if done.stdout.strip() != "True":
        pytest.skip("needs tensorflow-datasets: make peers, or a Python with it in SNAPSHARD_PEERS")
    script = Path(__file__).with_name("tfds_reader.py")
    done = subprocess.run(
        [PEERS, str(script), snapshot.path], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def assert_read_alike(snapshot: ss.Snapshot) -> Any:
    found = read_by_tfds(snapshot)
    splits = snapshot.manifest.splits
    assert found["equal"] == {name: split.num_examples for name, split in splits.items()}
    features = {name: getattr(f, "of", f) for name, f in snapshot.manifest.features.items()}
    labels = {name: f.names for name, f in features.items() if isinstance(f, ss.ClassLabel)}
    assert found["classes"] == {name: list(names) for name, names in labels.items()}
    return found["supervised"]


@pytest.mark.peers
def test_tfds_reads_each_value_of_each_type(tmp_path: Path) -> None:
    assert assert_read_alike(made_of_types(tmp_path / "every type")) is None


@pytest.mark.peers
@pytest.mark.parametrize("recipe", [titanic, files_of_images])
def test_tfds_reads_what_was_built(recipe: Any, tmp_path: Path) -> None:
    snapshot = ss.build(recipe(tmp_path), tmp_path / "out")
    assert build_facts(snapshot.path)["not_tfds"] == ""
    given, label = assert_read_alike(snapshot)
    label_kinds = {"titanic": "int64", "files": "uint8"}
    assert label == label_kinds[snapshot.manifest.name]
    assert given
