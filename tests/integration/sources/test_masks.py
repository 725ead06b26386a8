"""Masks: indices of classes come back unchanged, from every source, and follow their images."""

import io
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq
import pytest
from PIL import Image as Pillow

import snapshard as ss
from snapshard.pipelines.inspect.suggest import describe_suggestion
from snapshard.schemas.blocks import SourceFile
from snapshard.schemas.errors import DataError

from .built import build_all

RNG = np.random.default_rng(0)
NAMES = tuple(f"class{number}" for number in range(256))

Indices = npt.NDArray[np.uint8]


def png(indices: Indices, mode: str, bits: int = 8, **options: Any) -> bytes:
    if mode == "P":
        image = Pillow.fromarray(indices)
        image.putpalette(bytes(RNG.integers(0, 256, 3 * 2**bits, np.uint8)))
    else:
        image = Pillow.fromarray(indices.astype(bool) if mode == "1" else indices)
    buffer = io.BytesIO()
    image.save(buffer, "PNG", **({"bits": bits} if mode == "P" else {}), **options)
    return buffer.getvalue()


def jpeg(height: int, width: int) -> bytes:
    buffer = io.BytesIO()
    Pillow.fromarray(RNG.integers(0, 256, (height, width, 3), np.uint8)).save(buffer, "JPEG")
    return buffer.getvalue()


KINDS: dict[str, tuple[int, Callable[[Indices], bytes]]] = {
    "palette": (256, lambda indices: png(indices, "P")),
    "transparent palette": (256, lambda indices: png(indices, "P", transparency=bytes(range(256)))),
    "one transparent colour": (256, lambda indices: png(indices, "P", transparency=b"\0\1")),
    "palette of 4 bits": (16, lambda indices: png(indices, "P", bits=4)),
    "palette of 2 bits": (4, lambda indices: png(indices, "P", bits=2)),
    "palette of 1 bit": (2, lambda indices: png(indices, "P", bits=1)),
    "grey": (256, lambda indices: png(indices, "L")),
    "1 bit": (2, lambda indices: png(indices, "1")),
}


def pairs() -> dict[str, tuple[bytes, bytes, Indices]]:
    """Name -> image, mask, indices: a mask of each kind, of several sizes."""
    found = {}
    for number, (top, encode) in enumerate(KINDS.values()):
        height, width = 20 + number, 33 - number
        indices = RNG.integers(0, top, (height, width), np.uint8)
        found[f"n{number}"] = jpeg(height, width), encode(indices), indices
    return found


PAIRS = pairs()


def write(folder: Path, contents: dict[str, bytes]) -> Path:
    for name, content in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def in_folders(folder: Path) -> Any:
    images = {f"images/{name}.jpg": image for name, (image, _, _) in PAIRS.items()}
    masks = {f"masks/{name}.png": mask for name, (_, mask, _) in PAIRS.items()}
    return ss.ImageFolder(str(write(folder / "in", images | masks)), masks="masks")


def in_tar(folder: Path) -> Any:
    with tarfile.open(folder / "t.tar", "w") as tar:
        for name, (image, mask, _) in PAIRS.items():
            for part, content in {"jpg": image, "mask.png": mask, "txt": name.encode()}.items():
                member = tarfile.TarInfo(f"{name}.{part}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    return ss.WebDataset(str(folder / "t.tar"))


@pytest.mark.slow
def test_a_part_of_a_sample_is_declared_to_be_a_mask(lab: Any, tmp_path: Path) -> None:
    features = {"image": ss.Image(), "mask.image": ss.Mask(names=NAMES), "text": ss.Text()}
    steps = [ss.images.decode("image"), ss.images.decode("mask.image")]
    snapshot = build_all(
        tmp_path, in_tar(tmp_path), prepare=steps, features=features, max_rejects=0
    )
    assert snapshot.manifest.features["mask.image"] == ss.Mask(names=NAMES)
    rows = {row["text"]: row for row in lab.stored_rows(snapshot).values()}
    assert set(rows) == set(PAIRS)
    for key, row in rows.items():
        np.testing.assert_array_equal(row["mask.image"][..., 0], PAIRS[key][2])


def nearest(indices: Indices, height: int, width: int) -> Indices:
    """Samples at the centres of pixels."""
    rows = ((np.arange(height) + 0.5) * indices.shape[0] / height).astype(int)
    columns = ((np.arange(width) + 0.5) * indices.shape[1] / width).astype(int)
    return indices[rows][:, columns]


def _ids(snapshot: ss.Snapshot) -> list[str]:
    """Record ids, in stored order."""
    shards = snapshot.manifest.splits["train"].shards
    paths = [f"{snapshot.path}/index/{shard.file}.parquet" for shard in shards]
    return [one for path in paths for one in pq.read_table(path).column("id").to_pylist()]


@pytest.mark.slow
@pytest.mark.parametrize("storage", ["raw", "encoded"])
def test_the_reader_resizes_masks_by_nearest_neighbour(tmp_path: Path, storage: str) -> None:
    steps = [ss.images.decode("image"), ss.images.decode("mask")] if storage == "raw" else []
    snapshot = build_all(tmp_path, in_folders(tmp_path), prepare=steps, max_rejects=0)
    assert snapshot.manifest.label == "mask"
    reader = snapshot.reader()
    for size, pair in {(9, 7): True, (40, 50): ("image", "mask")}.items():
        options: dict[str, Any] = {"image_size": size, "as_supervised": pair, "scale": 1 / 255}
        images, masks = next(iter(reader.dataset("train", len(PAIRS), shuffle=False, **options)))
        assert (images.dtype.name, masks.dtype.name) == ("float32", "uint8")
        for record_id, found in zip(_ids(snapshot), masks.numpy(), strict=True):
            indices = PAIRS[Path(record_id).stem][2]
            np.testing.assert_array_equal(found[..., 0], nearest(indices, *size))


@pytest.mark.slow
def test_the_suggested_recipe_pairs_masks_and_serves_images(lab: Any, tmp_path: Path) -> None:
    in_folders(tmp_path)
    text = describe_suggestion(str(tmp_path / "in"))
    assert 'masks="masks"' in text
    assert '"mask": ss.Mask(height=256, width=256)' in text
    (tmp_path / "recipe.py").write_text(text)
    snapshot = lab.build(tmp_path / "recipe.py", tmp_path / "out")
    serving = snapshot.manifest.serving
    assert serving.inputs == ["image"]
    image, _, indices = PAIRS["n0"]
    served = snapshot.reader().preprocess()(image=[image])
    assert set(served) == {"image"}
    rows = lab.stored_rows(snapshot)
    np.testing.assert_array_equal(served["image"][0], rows["images/n0.jpg"]["image"])
    expected = np.pad(nearest(indices, 155, 256), [(50, 51), (0, 0)])
    np.testing.assert_array_equal(rows["images/n0.jpg"]["mask"][..., 0], expected)


@pytest.mark.parametrize("layout", ["{split}/{kind}/{name}", "{kind}/{split}/{name}"])
def test_masks_are_paired_at_any_depth(layout: str) -> None:
    paths = [
        layout.format(split=split, kind=kind, name=name)
        for split in ("train", "val")
        for kind, name in (("JPEGImages", "a.b.jpg"), ("SegmentationClass", "a.b.png"))
    ]
    files = [SourceFile(path=path, num_bytes=1, stamp="") for path in paths]
    source = ss.ImageFolder("voc", images="JPEGImages", masks="SegmentationClass")
    found = {file.path: (file.of, file.unpaired) for file in source.select(files).files}
    assert found == {paths[0]: ("", ""), paths[1]: (paths[0], "")} | {
        paths[2]: ("", ""),
        paths[3]: (paths[2], ""),
    }


@pytest.mark.slow
def test_files_without_a_partner_are_rejects(lab: Any, tmp_path: Path) -> None:
    image, mask = jpeg(4, 4), png(np.zeros((4, 4), np.uint8), "L")
    contents = {
        "images/a.jpg": image,
        "masks/a.png": mask,
        "images/alone.jpg": image,
        "masks/other.png": mask,
        "images/two.jpg": image,
        "images/two.jpeg": image,
        "masks/two.png": mask,
        "images/more.jpg": image,
        "masks/more.png": mask,
        "masks/more.bmp": mask,
        "images/text.jpg": image,
        "masks/text.png": b"no mask",
        "images/small.jpg": image,
        "masks/small.png": png(np.zeros((4, 5), np.uint8), "P"),
        "images/colour.jpg": image,
        "masks/colour.png": image,
        "masks/.hidden.png": mask,
        "readme.txt": b"pairs",
    }
    source = ss.ImageFolder(str(write(tmp_path / "in", contents)), masks="masks")
    snapshot = build_all(tmp_path, source, max_rejects=11)
    assert _ids(snapshot) == ["images/a.jpg"]
    assert {row["id"]: row["reason"] for row in lab.rejects(snapshot)} == {
        "images/alone.jpg": "image without a mask of its name in 'masks'",
        "masks/other.png": "mask without an image of its name in 'images'",
        "images/two.jpg": "several files of this name for one image",
        "images/two.jpeg": "several files of this name for one image",
        "masks/two.png": "mask with several files of its name in 'images'",
        "images/more.jpg": "image with several files of its name in 'masks'",
        "masks/more.png": "several files of this name for one mask",
        "masks/more.bmp": "several files of this name for one mask",
        "images/text.jpg": "text, not an image",
        "images/small.jpg": "wrong size",
        "images/colour.jpg": "not a mask",
    }
    for row in lab.rejects(snapshot):
        assert row["payload"] == (tmp_path / "in" / row["id"]).read_bytes()
    with pytest.raises(DataError, match="without a mask of its name"):
        build_all(tmp_path / "again", source, max_rejects=10)


@pytest.mark.slow
def test_a_changed_mask_is_read_again_and_a_limit_counts_pairs(lab: Any, tmp_path: Path) -> None:
    source = in_folders(tmp_path)
    recipe = ss.Recipe(name="made", source=source, splits=ss.Splits(train=1.0))
    limited = ss.build(recipe, tmp_path / "out", limit=3)
    assert len(_ids(limited)) == 3
    before = ss.build(recipe, tmp_path / "out")
    changed = np.full((20, 33), 7, np.uint8)
    (tmp_path / "in" / "masks" / "n0.png").write_bytes(png(changed, "L"))
    after = ss.build(recipe, tmp_path / "out")
    assert after.path != before.path
    found = lab.stored_rows(after)["images/n0.jpg"]["mask"]
    np.testing.assert_array_equal(np.asarray(Pillow.open(io.BytesIO(found))), changed)


@pytest.mark.slow
@pytest.mark.parametrize("origin", ["pattern", "table"])
def test_other_features_come_from_names_or_a_table(lab: Any, tmp_path: Path, origin: str) -> None:
    content = jpeg(4, 4), png(np.zeros((4, 4), np.uint8), "L")
    contents = {
        f"{kind}/{name}.{suffix}": one
        for name in ("ann_1", "ann_2", "bob_1")
        for kind, suffix, one in zip(("images", "masks"), ("jpg", "png"), content, strict=True)
    }
    folder = str(write(tmp_path / "in", contents))
    source = ss.ImageFolder(folder, masks="masks", pattern="{patient}_{n}.jpg")
    if origin == "table":
        rows = [f"images/{name}_{n}.jpg,{name}" for name, n in (("ann", 1), ("ann", 2), ("bob", 1))]
        (tmp_path / "labels.csv").write_text("\n".join(["file,patient", *rows]) + "\n")
        table = str(tmp_path / "labels.csv")
        source = ss.ImageFolder(folder, masks="masks", table=table)
    snapshot = build_all(tmp_path, source, max_rejects=0)
    found = {key: row["patient"] for key, row in lab.stored_rows(snapshot).items()}
    assert found == {
        "images/ann_1.jpg": b"ann",
        "images/ann_2.jpg": b"ann",
        "images/bob_1.jpg": b"bob",
    }
