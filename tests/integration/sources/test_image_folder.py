"""Folders, archives and WebDatasets of images: built, verified, read back equal to the source."""

import gzip
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from PIL import Image as Pillow

import snapshard as ss
from snapshard.schemas.errors import DataError

from ...file_bytes import tar_of, write, zip_of
from .built import build_all, rows_of

SIZE = (6, 9)
CLASSES = ("cat", "dog", "owl")
DECODED = [ss.images.decode("image"), ss.images.resize("image", SIZE)]


def pixels(seed: int, size: tuple[int, int] = SIZE) -> Any:
    return np.random.default_rng(seed).integers(0, 256, (*size, 3), np.uint8)


def encode(image: Any, form: str = "PNG", **options: Any) -> bytes:
    sink = io.BytesIO()
    Pillow.fromarray(image).save(sink, form, **options)
    return sink.getvalue()


def decoded(content: bytes) -> Any:
    return np.asarray(Pillow.open(io.BytesIO(content)).convert("RGB"))


def contents(num: int = 12) -> dict[str, bytes]:
    return {f"{CLASSES[i % 3]}/{i}.png": encode(pixels(i)) for i in range(num)}


def _local(folder: Path, files: dict[str, bytes]) -> str:
    write(folder / "images", files)
    return str(folder / "images")


def _memory(folder: Path, files: dict[str, bytes]) -> str:
    memory = fsspec.filesystem("memory")
    if memory.exists("/test_image_folder"):
        memory.rm("/test_image_folder", recursive=True)
    for name, content in files.items():
        memory.pipe(f"/test_image_folder/{name}", content)
    return "memory://test_image_folder"


def _packed(name: str, pack: Callable[[dict[str, bytes]], bytes]) -> Any:
    def put(folder: Path, files: dict[str, bytes]) -> str:
        (folder / name).write_bytes(pack(files))
        return str(folder / name)

    return put


PLACES = {
    "local": _local,
    "memory": _memory,
    "zip": _packed("photos.zip", zip_of),
    "tar": _packed("photos.tar", tar_of),
    "tar.gz": _packed("photos.tar.gz", lambda files: gzip.compress(tar_of(files))),
}


@pytest.mark.slow  # a build for each place
@pytest.mark.parametrize("place", PLACES)
def test_class_folders_come_back_equal_from_anywhere(lab: Any, tmp_path: Path, place: str) -> None:
    files = contents()
    source = ss.ImageFolder(PLACES[place](tmp_path, files))
    snapshot = build_all(tmp_path, source, prepare=DECODED)
    rows = rows_of(lab, snapshot)
    assert rows.keys() == files.keys()
    assert list(CLASSES) == snapshot.reader().CLASS_NAMES
    for name, row in rows.items():
        np.testing.assert_array_equal(row["image"], decoded(files[name]))
        assert CLASSES[row["label"]] == name.partition("/")[0]


@pytest.mark.slow
def test_every_format_and_orientation_comes_back_equal(lab: Any, tmp_path: Path) -> None:
    exif = Pillow.Exif()
    exif[0x0112] = 6
    files = {
        "cat/0.jpg": encode(pixels(0), "JPEG"),
        "cat/1.png": encode(pixels(1)),
        "cat/2.gif": encode(pixels(2), "GIF"),
        "cat/3.bmp": encode(pixels(3), "BMP"),
        "cat/4.webp": encode(pixels(4), "WEBP", lossless=True),
        "dog/5.webp": encode(pixels(5), "WEBP"),
        "dog/6.jpg": encode(pixels(6, SIZE[::-1]), "JPEG", exif=exif),
        "dog/7.png": encode(pixels(7, SIZE[::-1]), exif=exif),
        "dog/8.webp": encode(pixels(8, SIZE[::-1]), "WEBP", lossless=True, exif=exif),
    }
    source = ss.ImageFolder(_local(tmp_path, files))
    # Decoded once and for all, and as files that the reader decodes.
    for steps in (DECODED, []):
        found = rows_of(lab, build_all(tmp_path, source, prepare=steps))
        assert found.keys() == files.keys()
        for name, content in files.items():
            expected = decoded(content)
            if name[4] in "678":
                expected = np.rot90(expected, -1)
            difference = np.abs(found[name]["image"].astype(int) - expected)
            assert difference.max() <= (1 if name.endswith((".jpg", "5.webp")) else 0), name


@pytest.mark.slow
def test_fields_of_file_names_and_folders_of_splits(lab: Any, tmp_path: Path) -> None:
    files = {
        f"{split}/{CLASSES[i % 3]}_cam{i % 2}_{i:03}.png": encode(pixels(i))
        for i, split in enumerate(["Train"] * 6 + ["val"] * 3 + ["TEST"] * 3)
    }
    write(tmp_path / "images", files)
    source = ss.ImageFolder(
        str(tmp_path / "images"), pattern="{label}_{camera}_{n}.png", split_folders=True
    )
    snapshot = build_all(
        tmp_path,
        source,
        prepare=DECODED,
        splits=ss.Splits.by_folder(),
    )
    held = lab.read_back(snapshot)
    seen = {}
    for record_id, split, row in held.rows():
        seen[record_id] = split
        number = int(row["n"])
        np.testing.assert_array_equal(row["image"], pixels(number))
        assert (CLASSES[row["label"]], row["camera"]) == (
            CLASSES[number % 3],
            f"cam{number % 2}".encode(),
        )
    words = {"Train": "train", "val": "validation", "TEST": "test"}
    assert seen == {name: words[name.partition("/")[0]] for name in files}


@pytest.mark.slow
def test_a_table_with_boxes(lab: Any, tmp_path: Path) -> None:
    files = {f"{i}.png": encode(pixels(i, (20, 10))) for i in range(5)}
    lines = [
        {
            "file": name,
            "label": CLASSES[i % 2],
            "weight": i / 4,
            "boxes": [{"bbox": [0.25, 0, 0.5, 1], "label": "nose"}] * i
            + [{"bbox": [0, 0, 0.125, 1], "label": "ear"}],
        }
        for i, name in enumerate(files)
    ]
    write(tmp_path / "images", {**files, "lost.png": files["0.png"]})
    table = tmp_path / "images" / "boxes.jsonl"
    rows_beside = [*lines, {"file": "gone.png", "label": "cat", "weight": 0.5}]
    table.write_bytes(b"".join(json.dumps(line).encode() + b"\n" for line in rows_beside))
    source = ss.ImageFolder(str(tmp_path / "images"), table=str(table))
    steps = [ss.images.decode("image"), ss.images.center_crop("image", (10, 10))]
    snapshot = build_all(tmp_path, source, prepare=steps, max_rejects=1)
    (reject,) = lab.rejects(snapshot)
    assert (reject["id"], reject["reason"]) == ("lost.png", "no row in the table")
    skipped = lab.build_facts(snapshot)["input"]["skipped"]
    assert skipped == {"label table": 1, "row of the table without a file": 1}
    rows = lab.stored_rows(snapshot)
    assert rows.keys() == files.keys()
    for i, name in enumerate(files):
        row = rows[name]
        np.testing.assert_array_equal(row["image"], pixels(i, (20, 10))[5:15])
        assert (CLASSES[row["label"]], row["weight"]) == (CLASSES[i % 2], i / 4)
        # The ear lies above the crop; the nose's box is in the crop's own shares.
        np.testing.assert_array_equal(row["boxes"], np.tile(np.float32([0, 0, 0.5, 1]), (i, 1)))
        np.testing.assert_array_equal(row["box_labels"], [1] * i)
    digests = [build_all(tmp_path, source, prepare=steps, max_rejects=1).manifest.fingerprint]
    table.write_bytes(table.read_bytes().replace(b"nose", b"NOSE"))
    digests.append(build_all(tmp_path, source, prepare=steps, max_rejects=1).manifest.fingerprint)
    assert digests[0] == snapshot.manifest.fingerprint != digests[1]


@pytest.mark.slow
def test_re_encoded_images_keep_their_bytes_where_nothing_changes(lab: Any, tmp_path: Path) -> None:
    files = {
        "cat/same.jpg": encode(pixels(0), "JPEG"),
        "cat/large.jpg": encode(pixels(1, (60, 90)), "JPEG", quality=95),
        "dog/other.png": encode(pixels(2)),
    }
    write(tmp_path / "images", files)
    steps = [
        ss.images.decode("image"),
        ss.images.resize("image", SIZE),
        ss.images.encode("image", quality=95),
    ]
    snapshot = build_all(tmp_path, ss.ImageFolder(str(tmp_path / "images")), prepare=steps)
    rows = rows_of(lab, snapshot)
    np.testing.assert_array_equal(rows["cat/same.jpg"]["image"], decoded(files["cat/same.jpg"]))
    assert {row["image"].shape for row in rows.values()} == {(*SIZE, 3)}
    stored = b"".join(path.read_bytes() for path in Path(snapshot.path).glob("*.tfrecord"))
    assert files["cat/same.jpg"] in stored
    assert files["cat/large.jpg"] not in stored


@pytest.mark.slow
@pytest.mark.parametrize("place", ["local", "memory", "zip"])
def test_a_web_dataset_comes_back_equal(lab: Any, tmp_path: Path, place: str) -> None:
    num = 20
    shards: list[dict[str, bytes]] = [{}, {}]
    for i in range(num):
        shards[i % 2] |= {
            f"{i:04}.png": encode(pixels(i)),
            f"{i:04}.cls": CLASSES[i % 3].encode(),
            f"{i:04}.json": json.dumps({"n": i, "at": {"x": i / 8}}).encode(),
            f"{i:04}.txt": f"text é{i}".encode(),
        }
    packed = {f"s-{number}.tar": tar_of(files) for number, files in enumerate(shards)}
    if place == "local":
        write(tmp_path / "shards", packed)
        source = ss.WebDataset(str(tmp_path / "shards" / "s-{0..1}.tar"))
    elif place == "zip":
        (tmp_path / "shards.zip").write_bytes(zip_of(packed))
        source = ss.WebDataset(f"zip://s-{{0..1}}.tar::{tmp_path}/shards.zip")
    else:
        for name, content in packed.items():
            fsspec.filesystem("memory").pipe(f"/test_web_dataset/{name}", content)
        source = ss.WebDataset("memory://test_web_dataset/s-{0..1}.tar")
    snapshot = build_all(tmp_path, source, prepare=DECODED)
    rows = sorted(rows_of(lab, snapshot).values(), key=lambda row: int(row["json.n"]))
    assert [int(row["json.n"]) for row in rows] == list(range(num))
    for i, row in enumerate(rows):
        np.testing.assert_array_equal(row["image"], pixels(i))
        assert (CLASSES[row["label"]], row["text"], row["json.at.x"]) == (
            CLASSES[i % 3],
            f"text é{i}".encode(),
            i / 8,
        )


def test_a_damaged_tar_of_samples_is_refused_whatever_the_budget(tmp_path: Path) -> None:
    files = {f"{i}.{part}": c for i in range(8) for part, c in (("png", encode(pixels(i))),)}
    data = tar_of(files)
    (tmp_path / "a.tar").write_bytes(data[: len(data) // 2])
    source = ss.WebDataset(str(tmp_path / "a.tar"))
    with pytest.raises(DataError, match=r"a\.tar: the tar cannot be read from byte [\d,]+ on"):
        build_all(tmp_path, source, prepare=[ss.images.decode("image")], max_rejects=2)


def test_class_folders_called_like_splits_are_refused(tmp_path: Path) -> None:
    files = {f"{split}/{name}": c for split in ("train", "test") for name, c in contents(3).items()}
    write(tmp_path / "images", files)
    with pytest.raises(ss.SnapshardError, match="split_folders=True"):
        build_all(tmp_path, ss.ImageFolder(str(tmp_path / "images")))
