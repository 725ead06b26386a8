"""Resize, crop, convert, encode against NumPy and Pillow, and the boxes that follow them."""

import functools
import io
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image as Pillow

import snapshard as ss
from snapshard.schemas.blocks import RawBatch
from snapshard.schemas.errors import RecipeError
from snapshard.schemas.features import (
    BoundingBoxes,
    ClassLabel,
    Feature,
    Image,
    Scalar,
    Sequence,
    wire_columns,
)
from snapshard.schemas.recipe import PrepareStep
from snapshard.transforms.prepare import images
from snapshard.transforms.prepare.engine.program import StepRunner
from snapshard.transforms.runs.files import arrow_type, wire_schema

LABELS = ("cat", "dog", "owl")
BOXED: dict[str, Feature] = {
    "image": Image(),
    "boxes": BoundingBoxes(image="image", labels="box_labels"),
    "box_labels": Sequence(ClassLabel(LABELS)),
    "other": BoundingBoxes(image="elsewhere"),
}


def raw_batch(features: dict[str, Feature], rows: list[dict[str, Any]]) -> RawBatch:
    schema = wire_schema(features)
    arrays = [
        pa.array([row[column.name] for row in rows], arrow_type(column))
        for column in wire_columns(features)
    ]
    return RawBatch(
        ids=[f"{i}.png" for i in range(len(rows))],
        columns=pa.RecordBatch.from_arrays(arrays, schema=schema),
    )


def pixels_row(pixels: Any) -> dict[str, Any]:
    height, width, _ = pixels.shape
    return {"image": pixels.tobytes(), "image/height": height, "image/width": width}


@functools.cache
def compiled(*steps: Any, channels: Any = 3, boxed: bool = False) -> StepRunner:
    """Compiling costs more than all that is run through it here."""
    return StepRunner(steps, BOXED if boxed else {"image": Image(channels=channels)})


def run(steps: list[Any], pixels: list[Any], channels: Any = 3) -> Any:
    runner = compiled(*steps, channels=channels)
    batch = raw_batch({"image": Image(channels=channels)}, list(map(pixels_row, pixels)))
    return runner, runner.prepare(batch)


def images_of(runner: StepRunner, batch: RawBatch) -> list[Any]:
    feature = runner.features["image"]
    assert isinstance(feature, Image)
    shape = (feature.height, feature.width, feature.channels)
    assert None not in shape
    contents = batch.columns.column("image").to_pylist()
    return [np.frombuffer(content, np.uint8).reshape(shape) for content in contents]


def noise(height: int, width: int, channels: int = 3, seed: int = 0) -> Any:
    return np.random.default_rng(seed).integers(0, 256, (height, width, channels), np.uint8)


SIDES = st.integers(1, 40)
TARGETS = st.sampled_from([(20, 11), (7, 24)])
SEVERAL = settings(max_examples=12, deadline=None)


@SEVERAL
@given(st.lists(st.tuples(SIDES, SIDES), min_size=1, max_size=8), TARGETS)
def test_filling_crops_the_middle_and_scales_it(
    sizes: list[tuple[int, int]], target: tuple[int, int]
) -> None:
    height, width = target
    given_images = [noise(h, w) for h, w in sizes]
    step = images.resize("image", (height, width), keep_ratio="crop")
    runner, prepared = run([step], given_images)
    crops = []
    for pixels in given_images:
        (top, rows, _), (left, columns, _) = windows("fill", pixels.shape, target)
        crops.append(pixels[top : top + rows, left : left + columns])
    stretched, expected = run([images.resize("image", target)], crops)
    for one, other in zip(images_of(runner, prepared), images_of(stretched, expected), strict=True):
        np.testing.assert_array_equal(one, other)


@SEVERAL
@given(st.lists(st.tuples(SIDES, SIDES), min_size=1, max_size=8), TARGETS)
def test_a_crop_is_the_middle_and_smaller_images_are_rejected(
    sizes: list[tuple[int, int]], target: tuple[int, int]
) -> None:
    height, width = target
    given_images = [noise(h, w, seed=i) for i, (h, w) in enumerate(sizes)]
    runner, prepared = run([images.center_crop("image", (height, width))], given_images)
    good = [p for p in given_images if p.shape[0] >= height and p.shape[1] >= width]
    assert len(prepared.rejects) == len(sizes) - len(good)
    assert all("smaller than the crop" in reject.message for reject in prepared.rejects)
    for pixels, found in zip(good, images_of(runner, prepared), strict=True):
        top, left = (pixels.shape[0] - height) // 2, (pixels.shape[1] - width) // 2
        np.testing.assert_array_equal(found, pixels[top : top + height, left : left + width])


def test_a_crop_of_images_known_to_be_smaller_is_refused() -> None:
    with pytest.raises(RecipeError, match=r"8×9.*smaller than the crop"):
        images.center_crop("image", (9, 9)).features({"image": Image(height=8, width=9)})


def test_without_antialias_single_pixels_count() -> None:
    pixels = np.zeros((64, 64, 3), np.uint8)
    pixels[7::16] = pixels[8::16] = 255
    darkest = []
    for antialias in (True, False):
        runner, prepared = run([images.resize("image", (4, 4), antialias=antialias)], [pixels])
        (found,) = images_of(runner, prepared)
        darkest.append(found.min())
    assert darkest[0] < 40
    assert darkest[1] == 255


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_conversion_of_colours(channels: int) -> None:
    pixels = noise(64, 64, channels)
    picture = Pillow.fromarray(pixels[..., :3] if channels > 1 else pixels[..., 0])
    for to, mode in (("grayscale", "L"), ("rgb", "RGB")):
        _, prepared = run([images.convert("image", to)], [pixels], channels)
        found = np.frombuffer(prepared.columns.column("image")[0].as_py(), np.uint8)
        np.testing.assert_array_equal(found, np.asarray(picture.convert(mode)).reshape(-1))


@SEVERAL
@given(st.sampled_from([1, 3, 4]), SIDES, SIDES)
def test_a_png_holds_the_pixels(channels: int, height: int, width: int) -> None:
    pixels = noise(height, width, channels)
    runner, prepared = run([images.encode("image", "png")], [pixels], channels)
    assert runner.features["image"] == Image(channels=channels, storage="encoded")
    row = prepared.columns.to_pylist()[0]
    assert (row["image/height"], row["image/width"], row["image/orientation"]) == (height, width, 1)
    found = np.asarray(Pillow.open(io.BytesIO(row["image"])))
    np.testing.assert_array_equal(found.reshape(pixels.shape), pixels)


@pytest.mark.parametrize("channels", [1, 3])
def test_a_jpeg_is_as_good_as_its_quality(pictures: Any, channels: int) -> None:
    pixels = pictures.pixels(48, 64)[..., :channels]
    sizes: list[int] = []
    errors: list[float] = []
    for quality in (30, 90, 100):
        _, prepared = run([images.encode("image", quality=quality)], [pixels], channels)
        _, again = run([images.encode("image", quality=quality)], [pixels], channels)
        content = prepared.columns.column("image")[0].as_py()
        assert content == again.columns.column("image")[0].as_py()
        found = np.asarray(Pillow.open(io.BytesIO(content))).reshape(pixels.shape)
        sizes.append(len(content))
        errors.append(np.abs(found.astype(int) - pixels.astype(int)).mean())
    assert sizes == sorted(sizes)
    assert errors == sorted(errors, reverse=True)
    assert errors[1] < 4


ENCODED = {"image": Image(storage="encoded")}


def encoded_batch(pictures: Any, contents: list[bytes]) -> RawBatch:
    batch = pictures.raw_batch(contents)
    names = wire_schema(ENCODED).names
    return RawBatch(ids=batch.ids, columns=batch.columns.select(names), rejects=())


def kept(pictures: Any, steps: list[Any], contents: list[bytes]) -> list[bool]:
    """Whether each image came out with the bytes that it came in with."""
    prepared = StepRunner(steps, ENCODED).prepare(encoded_batch(pictures, contents))
    assert prepared.rejects == ()
    found = prepared.columns.column("image").to_pylist()
    return [one == other for one, other in zip(found, contents, strict=True)]


@pytest.mark.slow
def test_what_does_not_change_keeps_its_bytes(pictures: Any) -> None:
    pixels = pictures.pixels(24, 40)
    contents = [
        pictures.encode(pixels),
        pictures.encode(pixels, "JPEG", "L"),
        pictures.encode(pixels, "JPEG", "CMYK"),
        pictures.encode(pixels[:, :20]),
        pictures.encode(pixels, "PNG"),
        pictures.encode(pixels, "WEBP"),
        pictures.turned(pixels, 3),
        pictures.encode(pixels, "PNG", "P"),
        pictures.encode(pixels, "PNG", "RGBA"),
    ]
    decode = images.decode("image")
    jpeg, png = images.encode("image"), images.encode("image", "png")
    size = images.resize("image", (24, 40))
    crop = images.center_crop("image", (24, 20))
    grey = images.convert("image", "grayscale")
    rgb = images.convert("image", "rgb")

    def which(*steps: Any) -> list[int]:
        found = kept(pictures, list(steps), contents)
        return [number for number, same in enumerate(found) if same]

    assert which(decode, jpeg) == [0, 3]
    assert which(decode, size, jpeg) == [0]
    assert which(decode, png) == [4]
    assert which(decode, size, crop, jpeg) == []
    assert which(decode, crop, jpeg) == [3]
    assert which(decode, grey, jpeg) == [1]
    # What was colour, is grey now, though three channels hold it.
    assert which(decode, grey, rgb, jpeg) == []
    assert which(decode, lambda record: {"image": record["image"][::-1]}, jpeg) == []
    assert which(decode, lambda record: dict(record), png) == []
    assert which(images.decode("image", 4), png) == [8]


def test_no_jpeg_has_transparency_and_no_png_a_quality() -> None:
    with pytest.raises(RecipeError, match=r"does not support transparency.*png"):
        images.encode("image").features({"image": Image(channels=4)})
    with pytest.raises(RecipeError, match="quality"):
        images.encode("image", "png", quality=50)
    with pytest.raises(RecipeError, match="still encoded"):
        images.encode("image").features(ENCODED)
    with pytest.raises(RecipeError, match="grayscale"):
        images.convert("image", "cmyk")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("step", "text"),
    [
        (images.center_crop("a", (1, 2)), 'ss.images.center_crop("a", (1, 2))'),
        (images.convert("a", "rgb"), 'ss.images.convert("a", "rgb")'),
        (images.encode("a"), 'ss.images.encode("a")'),
        (images.encode("a", quality=80), 'ss.images.encode("a", quality=80)'),
        (images.encode("a", "png"), 'ss.images.encode("a", format="png")'),
        (
            images.resize("a", (1, 2), keep_ratio="crop", antialias=False),
            'ss.images.resize("a", (1, 2), keep_ratio="crop", antialias=False)',
        ),
    ],
)
def test_a_step_shows_itself_as_it_is_written(step: PrepareStep, text: str) -> None:
    assert repr(step) == text
    assert isinstance(step, PrepareStep)
    namespace = type("ss", (), {"images": images})
    assert eval(text, {"ss": namespace}) == step
    assert step.settings()["name"] == "a"


# Boxes.

CORNER = st.integers(0, 16).map(lambda step: step / 16)
BOX = st.tuples(CORNER, CORNER, CORNER, CORNER).map(
    lambda c: (min(c[0], c[2]), min(c[1], c[3]), max(c[0], c[2]), max(c[1], c[3]))
)


def boxed_row(pixels: Any, boxes: list[Any], labels: list[int]) -> dict[str, Any]:
    flat = [corner for box in boxes for corner in box]
    return {**pixels_row(pixels), "boxes": flat, "box_labels": labels, "other": [0, 0, 1, 1]}


def run_boxed(steps: list[Any], rows: list[Any]) -> list[Any]:
    prepared = compiled(*steps, boxed=True).prepare(raw_batch(BOXED, rows))
    assert prepared.rejects == ()
    found = prepared.columns.to_pylist()
    assert all(row["other"] == [0, 0, 1, 1] for row in found)
    return [
        (np.array(row["boxes"], np.float32).reshape(-1, 4).tolist(), row["box_labels"])
        for row in found
    ]


@SEVERAL
@given(
    st.lists(st.tuples(SIDES, SIDES, st.lists(BOX, max_size=4)), min_size=1, max_size=4),
    st.sampled_from(["stretch", "pad", "fill", "crop"]),
)
def test_boxes_follow_the_geometry(pictures: list[Any], mode: str) -> None:
    target = (20, 11)
    if mode == "crop":
        pictures = [(h + 20, w + 11, boxes) for h, w, boxes in pictures]
    step: Any = {
        "stretch": images.resize("image", target),
        "pad": images.resize("image", target, keep_ratio=True),
        "fill": images.resize("image", target, keep_ratio="crop"),
        "crop": images.center_crop("image", target),
    }[mode]
    rows = [
        boxed_row(noise(h, w), boxes, [i % 3 for i in range(len(boxes))])
        for h, w, boxes in pictures
    ]
    for (h, w, boxes), found in zip(pictures, run_boxed([step], rows), strict=True):
        if mode == "stretch":
            assert found == ([list(box) for box in boxes], [i % 3 for i in range(len(boxes))])
            continue
        axes = windows(mode, (h, w), target)
        expected, labels = [], []
        for number, box in enumerate(boxes):
            ends = [
                min(max((corner * side - start) / length, 0), 1)
                for corner, (start, length, side) in zip(box, axes * 2, strict=True)
            ]
            if ends[2] - ends[0] > 1e-5 and ends[3] - ends[1] > 1e-5:
                expected.append(ends)
                labels.append(number % 3)
        assert found[1] == labels
        np.testing.assert_allclose(
            np.reshape(found[0], (-1, 4)), np.reshape(expected, (-1, 4)), atol=1e-5
        )


def windows(
    mode: str, size: tuple[int, ...], target: tuple[int, int]
) -> list[tuple[int, int, int]]:
    """What part of a picture a step shows: (start, length, side) of each axis."""
    shares = [wanted / side for wanted, side in zip(target, size, strict=False)]
    found = []
    for wanted, side in zip(target, size, strict=False):
        if mode == "crop":
            found.append(((side - wanted) // 2, wanted, side))
        elif mode == "fill":
            # Halves go to the even number, as the step rounds them.
            part = min(max(round(wanted / max(shares)), 1), side)
            found.append(((side - part) // 2, part, side))
        else:
            fitted = min(max(round(side * min(shares)), 1), wanted)
            found.append((-((wanted - fitted) // 2), wanted, fitted))
    return found


def test_a_box_that_is_cropped_away_takes_its_label_along() -> None:
    given_boxes = [(0, 0, 0.2, 1), (0.4, 0.4, 0.6, 0.6), (0.5, 0, 1, 1)]
    rows = [boxed_row(noise(40, 40), given_boxes, [0, 1, 2])]
    ((boxes, labels),) = run_boxed([images.center_crop("image", (20, 20))], rows)
    assert labels == [1, 2]
    np.testing.assert_allclose(boxes, [[0.3, 0.3, 0.7, 0.7], [0.5, 0, 1, 1]], atol=1e-6)


def test_what_is_renamed_is_followed_by_its_new_name() -> None:
    rename = ss.records.rename({"image": "photo", "boxes": "frames", "box_labels": "kinds"})
    runner = StepRunner([rename, images.center_crop("photo", (20, 20))], BOXED)
    boxes = [(0, 0, 0.2, 1), (0.4, 0.4, 0.6, 0.6)]
    prepared = runner.prepare(raw_batch(BOXED, [boxed_row(noise(40, 40), boxes, [0, 1])]))
    (row,) = prepared.columns.to_pylist()
    np.testing.assert_allclose(row["frames"], [0.3, 0.3, 0.7, 0.7], atol=1e-6)
    assert row["kinds"] == [1]


def test_one_label_too_few_is_a_reject() -> None:
    rows = [boxed_row(noise(40, 40), [(0, 0, 0.2, 1), (0.4, 0.4, 0.6, 0.6)], [0])]
    runner = compiled(images.center_crop("image", (20, 20)), boxed=True)
    (reject,) = runner.prepare(raw_batch(BOXED, rows)).rejects
    assert "one label for each box" in reject.message


def test_all_values_of_a_box_follow_it() -> None:
    several = BoundingBoxes(image="image", labels=("box_labels", "scores", "absent"))
    features = {**BOXED, "boxes": several, "scores": Sequence(Scalar("float32"))}
    boxes = [(0, 0, 0.2, 1), (0.4, 0.4, 0.6, 0.6), (0.9, 0.9, 1, 1), (0.5, 0, 1, 1)]
    row = boxed_row(noise(40, 40), boxes, [0, 1, 2, 0]) | {"scores": [0.0, 0.25, 0.5, 0.75]}
    runner = StepRunner([images.center_crop("image", (20, 20))], features)
    columns = runner.prepare(raw_batch(features, [row])).columns
    assert columns.column("box_labels")[0].as_py() == [1, 0]
    assert columns.column("scores")[0].as_py() == [0.25, 0.75]


def test_boxes_without_labels_follow_too() -> None:
    features = {name: BOXED[name] for name in ("image", "boxes")}
    runner = StepRunner([images.resize("image", (20, 10), keep_ratio=True)], features)
    row = {**pixels_row(noise(10, 10)), "boxes": [0, 0, 1, 1]}
    prepared = runner.prepare(raw_batch(features, [row]))
    assert prepared.columns.column("boxes")[0].as_py() == [0.25, 0, 0.75, 1]


def test_an_age_is_no_image() -> None:
    with pytest.raises(RecipeError, match="'age' is a Scalar"):
        images.convert("age", "rgb").features({"age": Scalar("int64")})
