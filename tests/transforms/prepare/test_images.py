"""Image steps: every kind of image decodes to what Pillow sees, and bad ones are found."""

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image as Pillow
from PIL import ImageOps

from snapshard.schemas.blocks import RawBatch
from snapshard.schemas.errors import RecipeError
from snapshard.schemas.features import ClassLabel, Image, Mask
from snapshard.schemas.recipe import PrepareStep
from snapshard.transforms.prepare import images
from snapshard.transforms.prepare.engine.program import StepRunner

ENCODED = {"image": Image(storage="encoded"), "label": ClassLabel(names=("cat", "dog"))}
RAW = {"image": Image(), "label": ENCODED["label"]}
SCALED = images.decode("image", at_least=(9, 9))


def rows_of(batch: RawBatch, channels: int = 3, name: str = "image") -> list[Any]:
    """Decoded images of a prepared batch, with sizes stored beside them."""
    columns = batch.columns
    sizes = zip(
        columns.column(f"{name}/height").to_pylist(),
        columns.column(f"{name}/width").to_pylist(),
        strict=True,
    )
    return [
        np.frombuffer(content, np.uint8).reshape(height, width, channels)
        for content, (height, width) in zip(columns.column(name).to_pylist(), sizes, strict=True)
    ]


@pytest.fixture(scope="module")
def decoder() -> dict[int, StepRunner]:
    """Compiled decoders by number of channels."""
    return {
        channels: StepRunner([images.decode("image", channels)], ENCODED) for channels in (1, 3, 4)
    }


KINDS = [
    ("JPEG", "RGB", {}),
    ("JPEG", "RGB", {"subsampling": 2, "progressive": True}),
    ("JPEG", "L", {}),
    ("JPEG", "CMYK", {}),
    ("PNG", "RGB", {}),
    ("PNG", "RGBA", {}),
    ("PNG", "P", {}),
    ("PNG", "L", {}),
    ("PNG", "LA", {}),
    ("PNG", "1", {}),
    ("GIF", "RGB", {}),
    ("GIF", "L", {}),
    ("BMP", "RGB", {}),
    ("BMP", "RGBA", {}),
    ("BMP", "L", {}),
    ("WEBP", "RGB", {}),
    ("WEBP", "RGB", {"lossless": True}),
    ("WEBP", "RGBA", {"lossless": True}),
    ("WEBP", "L", {}),
]


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_every_kind_of_image_decodes_as_pillow_decodes_it(
    pictures: Any, decoder: dict[int, StepRunner], channels: int
) -> None:
    pixels = pictures.pixels(23, 41)
    contents = [pictures.encode(pixels, form, mode, **options) for form, mode, options in KINDS]
    batch = decoder[channels].prepare(pictures.raw_batch(contents))
    assert batch.rejects == ()
    assert len(batch.ids) == len(KINDS)
    for content, found, kind in zip(contents, rows_of(batch, channels), KINDS, strict=True):
        if channels == 4:
            alpha = pictures.decode(content, "RGBA")[..., 3:]
            # A BMP's fourth byte is padding.
            expected = np.dstack([pictures.decode(content), alpha])
        elif channels == 1:
            expected = pictures.decode(content, "L")[..., None]
            if kind[0] == "JPEG" and kind[1] == "RGB":
                picture = Pillow.open(io.BytesIO(content))
                picture.draft("L", picture.size)
                expected = np.asarray(picture)[..., None]
        else:
            expected = pictures.decode(content)
        assert found.shape == expected.shape, kind
        difference = np.abs(found.astype(int) - expected.astype(int)).max()
        assert difference <= 1, kind


def test_sixteen_bits_keep_their_upper_half(pictures: Any, decoder: dict[int, StepRunner]) -> None:
    shades = pictures.pixels()[..., 0]
    content = pictures.encode(shades.astype(np.uint16) * 256 + 77, "PNG")
    batch = pictures.raw_batch([content])
    for channels in (1, 3):
        (found,) = rows_of(decoder[channels].prepare(batch), channels)
        np.testing.assert_array_equal(found, np.repeat(shades[..., None], channels, axis=2))


def test_an_animation_gives_its_first_frame(pictures: Any, decoder: dict[int, StepRunner]) -> None:
    frames = [Pillow.fromarray(pictures.pixels(20, 30, seed)).quantize() for seed in range(3)]
    sink = io.BytesIO()
    frames[0].save(sink, "GIF", save_all=True, append_images=frames[1:])
    (found,) = rows_of(decoder[3].prepare(pictures.raw_batch([sink.getvalue()])))
    np.testing.assert_array_equal(found, np.asarray(frames[0].convert("RGB")))


def smooth(height: int, width: int) -> Any:
    """A picture without detail that a smaller one could not show."""
    rows, columns = np.mgrid[0:height, 0:width] / 40
    shades = [np.sin(rows + k) + np.cos(columns * (1 + k / 3)) for k in range(3)]
    return (np.stack(shades, 2) * 60 + 128).astype(np.uint8)


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("turn", [1, 6])
@pytest.mark.parametrize(
    ("size", "scale"),
    [((101, 1), 1), ((1, 152), 1), ((100, 151), 2), ((51, 1), 2), ((50, 76), 4), ((25, 38), 8)],
)
def test_a_jpeg_is_decoded_at_the_least_size_that_is_large_enough(
    pictures: Any, size: tuple[int, int], scale: int, channels: Any, turn: int
) -> None:
    upright = smooth(200, 301)
    stored = upright if turn == 1 else np.rot90(upright)  # which 6 turns back
    content = pictures.turned(np.ascontiguousarray(stored), turn)
    runner = StepRunner([images.decode("image", channels, at_least=size)], ENCODED)
    prepared = runner.prepare(pictures.raw_batch([content]))
    assert prepared.rejects == ()
    (found,) = rows_of(prepared, channels)
    wanted = tuple(-(-side // scale) for side in upright.shape[:2])
    assert found.shape == (*wanted, channels)
    full = Pillow.fromarray(upright).resize(wanted[::-1], Pillow.Resampling.BOX)
    expected = np.asarray(full.convert({1: "L", 3: "RGB", 4: "RGBA"}[channels]))
    difference = np.abs(found.astype(int) - expected.reshape(found.shape))
    assert difference.mean() < 2


def test_other_formats_and_small_images_are_decoded_in_full(pictures: Any) -> None:
    contents = [
        pictures.encode(pictures.pixels(48, 64), form) for form in ("PNG", "WEBP", "GIF", "BMP")
    ]
    contents.append(pictures.encode(pictures.pixels(14, 64), "JPEG"))
    scaled, full = (
        StepRunner([step], ENCODED).prepare(pictures.raw_batch(contents)).columns
        for step in (images.decode("image", at_least=(8, 8)), images.decode("image"))
    )
    assert scaled.equals(full)


def test_a_scaled_image_is_encoded_anew_and_a_whole_one_kept(pictures: Any) -> None:
    contents = [pictures.encode(pictures.pixels(*size), "JPEG") for size in ((64, 64), (30, 64))]
    steps = [images.decode("image", at_least=(16, 16)), images.encode("image")]
    columns = StepRunner(steps, ENCODED).prepare(pictures.raw_batch(contents)).columns
    stored = columns.column("image").to_pylist()
    assert stored[1] == contents[1]
    assert stored[0] != contents[0]
    assert pictures.decode(stored[0]).shape == (16, 16, 3)
    assert columns.column("image/height").to_pylist() == [16, 30]


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP"])
def test_every_orientation_is_applied(
    pictures: Any, decoder: dict[int, StepRunner], form: str
) -> None:
    contents = [pictures.turned(pictures.pixels(), turn, form) for turn in range(1, 9)]
    batch = decoder[3].prepare(pictures.raw_batch(contents))
    shown = [np.asarray(ImageOps.exif_transpose(Pillow.open(io.BytesIO(c)))) for c in contents]
    for found, expected in zip(rows_of(batch), shown, strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    "steps",
    [[images.decode("image")], [images.decode("image", at_least=(2, 2))], []],
    ids=["decode", "scaled", "check"],
)
def test_a_bad_image_becomes_a_reject_with_its_reason(pictures: Any, steps: list[Any]) -> None:
    odd = {
        kind: (content, reason)
        for kind, (content, reason) in pictures.odd().items()
        if reason in ("truncated image", "damaged image")
    }
    good = pictures.encode(pictures.noise())
    contents = [good, *(content for content, _ in odd.values()), good]
    prepared = StepRunner(steps, ENCODED).prepare(pictures.raw_batch(contents))
    assert prepared.ids == ["cat/0.jpg", f"cat/{len(contents) - 1}.jpg"]
    found = {reject.record_id: reject for reject in prepared.rejects}
    for i, (kind, (content, reason)) in enumerate(odd.items(), start=1):
        reject = found[f"cat/{i}.jpg"]
        assert (reject.stage, reject.reason, reject.payload) == ("prepare", reason, content), kind
        assert reject.source == reject.record_id
        assert reject.position is None


def test_an_image_of_another_size_than_its_header_states_is_rejected(pictures: Any) -> None:
    batch = pictures.raw_batch(
        [pictures.encode(pictures.pixels(24, 40), form) for form in ("PNG",)]
    )
    wrong = batch.columns.set_column(1, batch.columns.schema.field(1), batch.columns.column(3))
    prepared = StepRunner([], ENCODED).prepare(RawBatch(ids=batch.ids, columns=wrong))
    assert prepared.ids == []
    assert "not what its header states" in prepared.rejects[0].message


def test_an_undecoded_image_keeps_its_bytes_size_and_orientation(pictures: Any) -> None:
    contents = [
        pictures.turned(pictures.pixels(24, 40), 6),
        pictures.encode(pictures.pixels(9, 7), "GIF"),
        pictures.encode(pictures.pixels(9, 7), "JPEG", "CMYK"),
        pictures.encode(pictures.pixels(9, 7), "BMP"),
    ]
    runner = StepRunner([], ENCODED)
    prepared = runner.prepare(pictures.raw_batch(contents))
    assert runner.features == ENCODED
    assert prepared.rejects == ()
    assert prepared.columns.to_pydict() == {
        "image": contents,
        "image/height": [40, 9, 9, 9],
        "image/orientation": [6, 1, 1, 1],
        "image/width": [24, 7, 7, 7],
        "label": [0, 1, 0, 1],
    }


@pytest.mark.parametrize("size", [(12, 20), (64, 64), (24, 40), (1, 1)])
def test_a_resized_image_is_close_to_pillows(pictures: Any, size: tuple[int, int]) -> None:
    pixels = pictures.pixels(24, 40)
    content = pictures.encode(pixels, "PNG")
    runner = StepRunner([images.decode("image"), images.resize("image", size)], ENCODED)
    assert runner.features["image"] == Image(height=size[0], width=size[1])
    prepared = runner.prepare(pictures.raw_batch([content]))
    found = np.frombuffer(prepared.columns.column("image")[0].as_py(), np.uint8)
    found = found.reshape(*size, 3)
    # Pillow's bilinear filter widens when it shrinks, as antialias=True does.
    wanted = Pillow.fromarray(pixels).resize(size[::-1], Pillow.Resampling.BILINEAR)
    assert np.abs(found.astype(int) - np.asarray(wanted).astype(int)).max() <= 2
    if size == (24, 40):
        np.testing.assert_array_equal(found, pixels)


@pytest.mark.parametrize(
    ("given", "rows", "columns"),
    [
        ((24, 40), (6, 25), (0, 32)),
        ((40, 24), (0, 32), (6, 25)),
        ((300, 2), (0, 32), (15, 16)),
        ((1, 1), (0, 32), (0, 32)),
    ],
)
def test_a_ratio_is_kept_with_black_beside_the_image(
    pictures: Any, given: tuple[int, int], rows: tuple[int, int], columns: tuple[int, int]
) -> None:
    content = pictures.encode(np.full((*given, 3), 200, np.uint8), "PNG")
    steps = [images.decode("image"), images.resize("image", (32, 32), keep_ratio=True)]
    prepared = StepRunner(steps, ENCODED).prepare(pictures.raw_batch([content]))
    found = np.frombuffer(prepared.columns.column("image")[0].as_py(), np.uint8)
    expected = np.zeros((32, 32, 3), np.uint8)
    expected[slice(*rows), slice(*columns)] = 200
    np.testing.assert_array_equal(found.reshape(32, 32, 3), expected)


def test_decode_and_resize_take_other_features_along() -> None:
    features = images.decode("image", 1).features({**ENCODED, "mask": Image(storage="encoded")})
    assert features == {
        "image": Image(channels=1),
        "label": ENCODED["label"],
        "mask": Image(storage="encoded"),
    }
    resized = images.resize("image", (4, 5)).features(features)
    assert resized["image"] == Image(height=4, width=5, channels=1)


@pytest.mark.parametrize(
    ("step", "features", "message"),
    [
        (images.decode("picture"), ENCODED, "feature 'picture' does not exist.*'image'"),
        (images.decode("label"), ENCODED, "feature 'label' is a ClassLabel"),
        (images.decode("image"), RAW, "already decoded"),
        (images.resize("image", (2, 2)), ENCODED, r'still encoded.*ss.images.decode\("image"\)'),
        (SCALED, {"image": Image(storage="encoded", dtype="uint16")}, "16 bits.*Remove at_least"),
        (SCALED, {"image": Mask(image="photo", storage="encoded")}, "is a mask.*Remove at_least"),
        (
            SCALED,
            {**ENCODED, "mask": Mask(image="image", storage="encoded")},
            "the mask 'mask' must have its image's size. Remove at_least",
        ),
    ],
)
def test_a_step_that_cannot_work_says_why(
    step: PrepareStep, features: dict[str, Any], message: str
) -> None:
    with pytest.raises(RecipeError, match=message):
        step.features(features)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: images.decode("image", channels=2), "channels"),
        (lambda: images.decode("image", at_least=64), "at_least"),
        (lambda: images.decode("image", at_least=(0, 64)), r"at_least.*greater than or equal to 1"),
        (lambda: images.resize("image", (0, 5)), "greater than or equal to 1"),
        (lambda: images.resize("image", 64), "size"),
    ],
)
def test_an_unfit_argument_is_refused(call: Any, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        call()


@pytest.mark.parametrize(
    ("step", "text"),
    [
        (images.decode("image"), 'ss.images.decode("image")'),
        (images.decode("image", 1), 'ss.images.decode("image", channels=1)'),
        (images.decode("image", at_least=(9, 8)), 'ss.images.decode("image", at_least=(9, 8))'),
        (images.resize("image", (64, 32)), 'ss.images.resize("image", (64, 32))'),
        (
            images.resize('ima"ge', (64, 32), keep_ratio=True),
            "ss.images.resize('ima\"ge', (64, 32), keep_ratio=True)",
        ),
    ],
)
def test_a_step_shows_itself_as_it_is_written(step: PrepareStep, text: str) -> None:
    assert repr(step) == text
    assert isinstance(step, PrepareStep)
    namespace = type("ss", (), {"images": images})
    assert eval(text, {"ss": namespace}) == step


def test_settings_tell_all_that_shapes_the_output() -> None:
    assert images.decode("image", 1).settings() == {
        "step": "images.decode",
        "name": "image",
        "channels": 1,
    }
    assert images.decode("image", at_least=(2, 3)).settings()["at_least"] == [2, 3]
    assert images.resize("image", (2, 3)).settings() == {
        "step": "images.resize",
        "name": "image",
        "size": [2, 3],
        "keep_ratio": False,
    }


@pytest.mark.parametrize(
    ("size", "decoded"),
    [((40, 30), (40, 30)), ((40, 31), (None, None)), ((None, 30), (None, 30)), ((40, None), None)],
)
def test_sizes_known_beforehand_are_kept_where_no_file_can_be_scaled(
    size: Any, decoded: Any
) -> None:
    image = Image(height=size[0], width=size[1], storage="encoded")
    found = images.decode("image", at_least=(20, 16)).features({"image": image})["image"]
    assert isinstance(found, Image)
    assert (found.height, found.width) == (decoded or (None, None))
