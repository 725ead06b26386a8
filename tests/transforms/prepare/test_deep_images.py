"""Images of 16 bits: all bits come back, through every step, and other files are rejected."""

import io
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image as Pillow

import snapshard as ss
from snapshard.schemas.errors import RecipeError
from snapshard.transforms.prepare.engine.program import StepRunner

Deep = npt.NDArray[np.uint16]

RNG = np.random.default_rng(0)


def noise(height: int, width: int, channels: int) -> Deep:
    return RNG.integers(0, 2**16, (height, width, channels), np.uint16)


def png(pixels: Deep) -> bytes:
    import tensorflow as tf

    return bytes(tf.io.encode_png(pixels).numpy())


def encoded(dtype: Any = "uint8") -> dict[str, Any]:
    return {"image": ss.Image(storage="encoded", dtype=dtype)}


@pytest.mark.slow
@pytest.mark.parametrize("declared", [True, False], ids=["declared", "in the step"])
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_all_bits_are_kept(kitchen: Any, channels: Any, declared: bool) -> None:
    pixels = noise(9, 7, channels)
    step = ss.images.decode("image", channels, dtype=None if declared else "uint16")
    features = encoded("uint16" if declared else "uint8")
    rows = [{"image": png(pixels)}]
    (row,), batch, runner = kitchen.cook([step], rows, features)
    assert not batch.rejects
    assert runner.features == {"image": ss.Image(channels=channels, dtype="uint16")}
    np.testing.assert_array_equal(row["image"], pixels)
    again = [step, ss.images.encode("image", "png")]
    (row,), _, _ = kitchen.cook(again, rows, features)
    assert row["image"] == rows[0]["image"]


def test_grey_pngs_of_pillow_are_read(kitchen: Any) -> None:
    pixels = noise(5, 6, 1)
    buffer = io.BytesIO()
    Pillow.fromarray(pixels[..., 0]).save(buffer, "PNG")
    step = ss.images.decode("image", 1)
    (row,), _, _ = kitchen.cook([step], [{"image": buffer.getvalue()}], encoded("uint16"))
    np.testing.assert_array_equal(row["image"], pixels)


def test_a_file_that_stays_encoded_keeps_its_bytes(kitchen: Any) -> None:
    rows = [{"image": png(noise(5, 6, 3))}]
    (row,), batch, runner = kitchen.cook([], rows, encoded("uint16"))
    assert not batch.rejects
    assert row["image"] == rows[0]["image"]
    assert runner.features["image"].dtype == "uint16"


def _saved(mode: str, kind: str) -> bytes:
    buffer = io.BytesIO()
    Pillow.new(mode, (6, 5)).save(buffer, kind)
    return buffer.getvalue()


@pytest.mark.slow
@pytest.mark.parametrize("steps", [[], [ss.images.decode("image")]], ids=["encoded", "raw"])
@pytest.mark.parametrize(
    ("mode", "kind"), [("RGB", "PNG"), ("P", "PNG"), ("L", "JPEG"), ("RGB", "GIF")]
)
def test_files_of_8_bits_are_rejected(kitchen: Any, mode: str, kind: str, steps: list[Any]) -> None:
    rows = [{"image": png(noise(5, 6, 3))}, {"image": _saved(mode, kind)}]
    values, batch, _ = kitchen.cook(steps, rows, encoded("uint16"))
    assert len(values) == 1
    (reject,) = batch.rejects
    assert reject.reason == "not 16 bits"
    assert "not a PNG of 16 bits" in reject.message


@pytest.mark.parametrize("content", [png(noise(5, 6, 3))[:60], png(noise(5, 6, 3))[:33]])
def test_truncated_files_are_rejected(kitchen: Any, content: bytes) -> None:
    step = ss.images.decode("image", dtype="uint16")
    values, batch, _ = kitchen.cook([step], [{"image": content}], encoded())
    assert not values
    assert batch.rejects[0].reason == "truncated image"


@pytest.mark.slow
def test_steps_keep_the_range(kitchen: Any) -> None:
    pixels = np.zeros((8, 12, 3), np.uint16)
    pixels[:, 6:] = 65_535
    decode = ss.images.decode("image", dtype="uint16")
    rows = [{"image": png(pixels)}]

    def after(*steps: Any) -> Any:
        (row,), batch, runner = kitchen.cook([decode, *steps], rows, encoded())
        assert not batch.rejects
        assert runner.features["image"].dtype == "uint16"
        return row["image"]

    resized = after(ss.images.resize("image", (4, 6)))
    assert (resized.min(), resized.max()) == (0, 65_535)
    np.testing.assert_array_equal(after(ss.images.center_crop("image", (2, 4))), pixels[3:5, 4:8])
    padded = after(ss.images.pad_or_crop("image", (10, 4)))
    np.testing.assert_array_equal(padded, np.pad(pixels[:, 4:8], [(1, 1), (0, 0), (0, 0)]))
    grey = after(ss.images.convert("image", "grayscale"))
    np.testing.assert_array_equal(grey, pixels[..., :1])
    brighter = after(lambda record: {"image": record["image"] // 2})
    np.testing.assert_array_equal(brighter, pixels // 2)


def test_jpeg_cannot_hold_16_bits() -> None:
    steps = [ss.images.decode("image", dtype="uint16"), ss.images.encode("image")]
    with pytest.raises(RecipeError, match="JPEG has 8 bits"):
        StepRunner(steps, encoded())
