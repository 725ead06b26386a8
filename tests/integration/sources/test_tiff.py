"""Folders of TIFFs, from files through the reader: no sample is lost."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image as Pillow

import snapshard as ss
from snapshard.pipelines.inspect.suggest import describe_suggestion

from ...file_bytes import write
from .built import build_all

RNG = np.random.default_rng(0)
NUM, HEIGHT, WIDTH = 6, 8, 10
PIXELS: dict[str, Any] = {
    "L": RNG.integers(0, 256, (NUM, HEIGHT, WIDTH), np.uint8),
    "RGB": RNG.integers(0, 256, (NUM, HEIGHT, WIDTH, 3), np.uint8),
    "RGBA": RNG.integers(0, 256, (NUM, HEIGHT, WIDTH, 4), np.uint8),
    "I;16": RNG.integers(0, 2**16, (NUM, HEIGHT, WIDTH), np.uint16),
    "1": RNG.integers(0, 2, (NUM, HEIGHT, WIDTH), np.uint8) == 1,
}
CHANNELS = {"RGB": 3, "RGBA": 4}


def tiff(pixels: Any, palette: bool = False, **options: Any) -> bytes:
    image = Pillow.fromarray(pixels)
    if palette:
        image.putpalette(bytes(RNG.integers(0, 256, 768, np.uint8)))
    sink = io.BytesIO()
    image.save(sink, "TIFF", compression="tiff_lzw", **options)
    return sink.getvalue()


@pytest.mark.slow
@pytest.mark.parametrize("storage", ["raw", "encoded"])
@pytest.mark.parametrize("mode", PIXELS)
def test_pixels_come_back(lab: Any, tmp_path: Path, mode: str, storage: Any) -> None:
    all_pixels, channels = PIXELS[mode], CHANNELS.get(mode, 1)
    dtype = "uint16" if mode == "I;16" else "uint8"
    # Stored turned by half, as a scanner does that notes the orientation instead.
    files = {
        f"{'ab'[number % 2]}/{number}.tif": tiff(pixels[::-1, ::-1], tiffinfo={274: 3})
        for number, pixels in enumerate(all_pixels)
    }
    write(tmp_path / "in", files)
    steps = [ss.images.decode("image", channels, dtype=dtype)] if storage == "raw" else []
    feature = ss.Image(HEIGHT, WIDTH, channels=channels, storage=storage, dtype=dtype)
    snapshot = build_all(
        tmp_path,
        ss.ImageFolder(str(tmp_path / "in")),
        prepare=steps,
        features={"image": feature, "label": ss.ClassLabel(("a", "b"))},
        max_rejects=0,
    )
    expected = all_pixels.astype(np.uint8) * 255 if mode == "1" else all_pixels
    held = lab.read_back(snapshot)
    found = held.values["image"].reshape(expected.shape)
    order = [int(Path(one).stem) for one in held.ids]
    np.testing.assert_array_equal(found, expected[order])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["palette", "grey", "two classes"])
def test_masks_keep_their_indices(lab: Any, tmp_path: Path, kind: str) -> None:
    indices = PIXELS["1"] if kind == "two classes" else PIXELS["L"]
    files = {}
    for number in range(NUM):
        files[f"images/{number}.tiff"] = tiff(PIXELS["RGB"][number])
        files[f"masks/{number}.tif"] = tiff(indices[number], palette=kind == "palette")
    write(tmp_path / "in", files)
    text = describe_suggestion(str(tmp_path / "in"))
    assert 'masks="masks"' in text
    snapshot = build_all(
        tmp_path,
        ss.ImageFolder(str(tmp_path / "in"), masks="masks"),
        prepare=[ss.images.decode("image"), ss.images.decode("mask")],
        max_rejects=0,
    )
    for record_id, row in lab.stored_rows(snapshot).items():
        number = int(Path(record_id).stem)
        np.testing.assert_array_equal(row["mask"][..., 0], indices[number])
        np.testing.assert_array_equal(row["image"], PIXELS["RGB"][number])


def test_init_recognizes_tiffs_and_rejects_keep_the_file(lab: Any, tmp_path: Path) -> None:
    pages = {"save_all": True, "append_images": [Pillow.fromarray(PIXELS["L"][0])]}
    files = {
        f"{'ab'[number % 2]}/{number}.TIF": tiff(pixels)
        for number, pixels in enumerate(PIXELS["I;16"])
    }
    files |= {"a/pages.tif": tiff(PIXELS["L"][0], **pages), "a/eight.tif": tiff(PIXELS["L"][0])}
    long = tiff(RNG.integers(0, 256, (300, 400), np.uint8))
    files |= {"b/long.tif": long, "b/long-pages.tif": long[:-9]}
    write(tmp_path / "in", files)
    assert "ImageFolder" in describe_suggestion(str(tmp_path / "in"))
    write(tmp_path / "sizes", files | {"a/small.tif": tiff(PIXELS["I;16"][0, :4, :5])})
    assert "height=8, width=10" in describe_suggestion(str(tmp_path / "sizes"))
    snapshot = build_all(
        tmp_path,
        ss.ImageFolder(str(tmp_path / "in")),
        prepare=[ss.images.decode("image", 1, dtype="uint16")],
        max_rejects=4,
    )
    rejects = {row["id"]: row for row in lab.rejects(snapshot)}
    assert {name: row["reason"] for name, row in rejects.items()} == {
        "a/pages.tif": "unsupported image format",
        "a/eight.tif": "not 16 bits",
        "b/long.tif": "not 16 bits",
        "b/long-pages.tif": "truncated image",
    }
    assert "several images" in rejects["a/pages.tif"]["message"]
    assert rejects["a/pages.tif"]["payload"] == files["a/pages.tif"]
    # What a step rejects is the PNG, which is nowhere in the source; else it is the file.
    assert rejects["b/long.tif"]["payload_start"] is None
    place = rejects["b/long-pages.tif"]
    assert (place["payload_start"], place["payload_stop"]) == (0, len(long) - 9)
