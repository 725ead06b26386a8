"""Masks: every kind of PNG decodes to its samples, and steps on an image change its mask alike."""

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image as Pillow

import snapshard as ss
from snapshard.schemas.errors import RecipeError
from snapshard.schemas.features import Features
from snapshard.transforms.prepare.engine.program import StepRunner
from snapshard.transforms.prepare.engine.validate import Validator

Indices = npt.NDArray[np.uint8]

RNG = np.random.default_rng(0)
DECODE = [ss.images.decode("image"), ss.images.decode("mask")]


def features(**settings: Any) -> Features:
    return {
        "image": ss.Image(storage="encoded"),
        "mask": ss.Mask(storage="encoded", **settings),
    }


def saved(image: Pillow.Image, kind: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def palette(indices: Indices, bits: int = 8, **options: Any) -> bytes:
    image = Pillow.fromarray(indices)
    image.putpalette(bytes(np.random.default_rng(1).integers(0, 256, 3 << bits, np.uint8)))
    return saved(image, bits=bits, **options)


def grey(indices: Indices) -> bytes:
    return saved(Pillow.fromarray(indices))


def picture(height: int, width: int) -> bytes:
    return saved(Pillow.fromarray(RNG.integers(0, 256, (height, width, 3), np.uint8)))


KINDS: dict[str, tuple[int, Callable[[Indices], bytes]]] = {
    "palette": (256, palette),
    "transparent palette": (256, lambda m: palette(m, transparency=bytes(range(256)))),
    "two transparent colours": (256, lambda m: palette(m, transparency=b"\1\0")),
    "palette of 4 bits": (16, lambda m: palette(m, bits=4)),
    "palette of 2 bits": (4, lambda m: palette(m, bits=2)),
    "palette of 1 bit": (2, lambda m: palette(m, bits=1)),
    "grey": (256, grey),
    "1 bit": (2, lambda m: saved(Pillow.fromarray(m.astype(bool)))),
}


@pytest.mark.slow
@pytest.mark.parametrize("storage", ["raw", "encoded"])
def test_samples_are_the_indices(kitchen: Any, storage: str) -> None:
    masks = {kind: RNG.integers(0, top, (13, 21), np.uint8) for kind, (top, _) in KINDS.items()}
    given = {kind: encode(masks[kind]) for kind, (_, encode) in KINDS.items()}
    steps = DECODE[1:] if storage == "raw" else []
    rows = [{"image": picture(13, 21), "mask": mask} for mask in given.values()]
    values, batch, runner = kitchen.cook(steps, rows, features())
    assert not batch.rejects
    assert isinstance(runner.features["mask"], ss.Mask)
    for kind, row in zip(KINDS, values, strict=True):
        found = row["mask"]
        if storage == "encoded":
            assert found[24:26] == b"\x08\x00", kind  # grey, 8 bits
            assert found == given[kind] or kind != "grey"
            found = np.asarray(Pillow.open(io.BytesIO(found)))[..., None]
        np.testing.assert_array_equal(found[..., 0], masks[kind], err_msg=kind)


FIX = "map each colour to the index of its class"
ZEROS = np.zeros((4, 6), np.uint8)
COLOURS = Pillow.new("RGB", (6, 4))
BAD: dict[str, tuple[bytes, str, str]] = {
    "colours": (saved(COLOURS), "not a mask", FIX),
    "colours with alpha": (saved(COLOURS.convert("RGBA")), "not a mask", FIX),
    "grey with alpha": (saved(COLOURS.convert("LA")), "not a mask", FIX),
    "grey of 16 bits": (saved(Pillow.new("I;16", (6, 4))), "not a mask", FIX),
    "JPEG": (saved(COLOURS.convert("L"), "JPEG"), "not a mask", FIX),
    "BMP": (saved(COLOURS.convert("L"), "BMP"), "not a mask", FIX),
    "GIF": (saved(COLOURS.convert("P"), "GIF"), "not a mask", FIX),
    "truncated": (palette(RNG.integers(0, 256, (4, 6), np.uint8))[:-40], "truncated image", ""),
    **{
        f"{size} bytes of a palette": (palette(ZEROS)[:size], "truncated image", "")
        for size in (33, 36, 41, 44, 60)
    },
    "a chunk of 4 GB": (
        palette(ZEROS)[:33] + b"\xff\xff\xff\xff" + palette(ZEROS)[37:],
        "damaged image",
        "",
    ),
    "wrong checksum": (
        palette(ZEROS)[:29] + b"\0\0\0\0" + palette(ZEROS)[33:],
        "damaged image",
        "",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("steps", [[], DECODE[1:]], ids=["encoded", "raw"])
def test_what_holds_no_indices_is_rejected(kitchen: Any, steps: list[Any]) -> None:
    contents = [grey(ZEROS), *(content for content, _, _ in BAD.values())]
    rows = [{"image": picture(4, 6), "mask": one} for one in contents]
    values, batch, _ = kitchen.cook(steps, rows, features())
    assert len(values) == 1
    rejects = {reject.record_id: reject for reject in batch.rejects}
    assert len(rejects) == len(batch.rejects) == len(BAD)
    for number, (name, (_, reason, text)) in enumerate(BAD.items(), 1):
        reject = rejects[f"t#{number}"]
        assert (reject.reason, text in reject.message) == (reason, True), name


def nearest(indices: Indices, height: int, width: int) -> Indices:
    """The samples at the centres of pixels."""
    rows = ((np.arange(height) + 0.5) * indices.shape[0] / height).astype(int)
    columns = ((np.arange(width) + 0.5) * indices.shape[1] / width).astype(int)
    return indices[rows][:, columns]


def padded(indices: Indices, *sides: tuple[int, int]) -> Indices:
    return np.pad(indices, sides, constant_values=255)


GEOMETRY: dict[str, tuple[Any, Callable[[Indices], Indices]]] = {
    "resized": (ss.images.resize("image", (12, 10)), lambda m: nearest(m, 12, 10)),
    "enlarged": (ss.images.resize("image", (50, 90)), lambda m: nearest(m, 50, 90)),
    "fitted": (
        ss.images.resize("image", (20, 20), keep_ratio=True),
        lambda m: padded(nearest(m, 12, 20), (4, 4), (0, 0)),
    ),
    "filled": (
        ss.images.resize("image", (12, 12), keep_ratio="crop"),
        lambda m: nearest(m[:, 8:32], 12, 12),
    ),
    "cropped": (ss.images.center_crop("image", (11, 20)), lambda m: m[6:17, 10:30]),
    "padded and cropped": (
        ss.images.pad_or_crop("image", (31, 21)),
        lambda m: padded(m[:, 9:30], (3, 4), (0, 0)),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", GEOMETRY)
def test_a_mask_follows_its_image(kitchen: Any, name: str) -> None:
    step, expected = GEOMETRY[name]
    shapes: Indices = np.zeros((24, 40), np.uint8)
    shapes[3:15, 13:31] = 1
    noise = RNG.integers(0, 255, (24, 40), np.uint8)
    drawn = np.stack([255 * shapes] * 3, axis=2)
    rows = [{"image": saved(Pillow.fromarray(drawn)), "mask": palette(m)} for m in (shapes, noise)]
    values, batch, runner = kitchen.cook([*DECODE, step], rows, features(ignore=255))
    assert not batch.rejects
    assert runner.features["mask"] == ss.Mask(*step.size, ignore=255)
    for row, mask in zip(values, (shapes, noise), strict=True):
        np.testing.assert_array_equal(row["mask"][..., 0], expected(mask))
    # The image shows the same shapes, up to half a pixel along their edges.
    found, white = values[0]["mask"][..., 0], values[0]["image"][..., 0]
    assert (white[found == 1] > 50).all()
    assert (white[found != 1] < 205).all()


def test_the_exif_orientation_of_an_image_does_not_turn_its_mask(kitchen: Any) -> None:
    exif = Pillow.Exif()
    exif[0x0112] = 6
    turned = saved(Pillow.new("RGB", (20, 10)), "JPEG", exif=exif)  # shown as 20 × 10
    upright, lying = np.ones((20, 10), np.uint8), np.ones((10, 20), np.uint8)
    rows = [{"image": turned, "mask": grey(mask)} for mask in (upright, lying)]
    values, batch, _ = kitchen.cook([*DECODE, ss.images.resize("image", (4, 4))], rows, features())
    assert len(values) == 1
    assert "the mask mask has another size than its image" in batch.rejects[0].message
    assert "[10 20] [20 10]" in batch.rejects[0].message
    runner = StepRunner([], features())
    checked = Validator(runner.features).validate(
        runner.prepare(kitchen.raw(rows, features())), numbered=True
    )
    assert checked.ids == ["t#0"]
    (reject,) = checked.rejects
    assert (reject.reason, "its image 'image' 20" in reject.message) == ("wrong size", True)


@pytest.mark.parametrize("storage", ["raw", "encoded"])
def test_indices_without_a_class_are_rejected(kitchen: Any, storage: str) -> None:
    declared = features(names=("a", "b", "c"), ignore=255)
    good, bad = np.full((4, 6), 2, np.uint8), np.full((4, 6), 2, np.uint8)
    good[0, 0], bad[0, 0] = 255, 3
    rows = [{"image": picture(4, 6), "mask": palette(mask)} for mask in (good, bad)]
    steps = DECODE[1:] if storage == "raw" else []
    runner = StepRunner(steps, declared)
    prepared = runner.prepare(kitchen.raw(rows, declared))
    checked = Validator(runner.features).validate(prepared, numbered=True)
    assert checked.ids == ["t#0"]
    (reject,) = checked.rejects
    assert "3" in reject.message
    assert "3 classes" in reject.message


def test_a_function_maps_indices_before_steps_that_follow(kitchen: Any) -> None:
    def halve(record: dict[str, Any]) -> dict[str, Any]:
        return {**record, "mask": record["mask"] // 2}

    indices = RNG.integers(0, 256, (8, 8), np.uint8)
    rows = [{"image": picture(8, 8), "mask": palette(indices)}]
    steps = [*DECODE, halve, ss.images.resize("image", (4, 4))]
    runner = StepRunner(steps, features())
    assert runner.features["mask"] == ss.Mask(4, 4)
    prepared = runner.prepare(kitchen.raw(rows, features()))
    found = np.frombuffer(prepared.columns.column("mask")[0].as_py(), np.uint8)
    np.testing.assert_array_equal(found.reshape(4, 4), nearest(indices // 2, 4, 4))


WRONG = {
    "still encoded": ([DECODE[0], ss.images.resize("image", (4, 4))], "'mask' is still encoded"),
    "lossy": ([DECODE[1], ss.images.encode("mask")], "JPEG is lossy"),
    "colours": ([DECODE[1], ss.images.convert("mask", "rgb")], "is a mask"),
}


@pytest.mark.parametrize("name", WRONG)
def test_steps_that_would_change_classes_are_refused(name: str) -> None:
    steps, message = WRONG[name]
    with pytest.raises(RecipeError, match=message):
        StepRunner(steps, features())


def test_renamed_images_keep_their_masks() -> None:
    steps = [ss.records.rename({"image": "photo"}), ss.images.decode("photo"), DECODE[1]]
    runner = StepRunner([*steps, ss.images.resize("photo", (3, 5))], features())
    assert runner.features == {"photo": ss.Image(3, 5), "mask": ss.Mask(3, 5, image="photo")}


@pytest.mark.parametrize("names", [(), ("a", "a"), tuple(map(str, range(257)))])
def test_names_are_unique_and_no_more_than_indices(names: tuple[str, ...]) -> None:
    with pytest.raises(RecipeError, match="1 to 256 unique names"):
        ss.Mask(names=names)
