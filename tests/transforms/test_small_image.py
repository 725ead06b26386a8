"""JPEGs are decoded by simplejpeg as Pillow would decode them, for figures and sketches."""

import io

import numpy as np
import PIL.Image
import pytest

from snapshard.transforms.media.small_image import small_image


@pytest.mark.parametrize("size", [(33, 20), (130, 517), (1100, 1030)], ids=str)
@pytest.mark.parametrize("mode", ["L", "RGB"])
@pytest.mark.parametrize(
    ("stored", "options"),
    [
        ("L", {}),
        ("RGB", {"subsampling": 0}),
        ("RGB", {"subsampling": 1, "progressive": True}),
        ("RGB", {"subsampling": 2, "quality": 30}),
        ("RGB", {"keep_rgb": True}),
        ("CMYK", {}),
    ],
    ids=str,
)
def test_pixels_are_those_of_pillow(
    size: tuple[int, int], mode: str, stored: str, options: dict[str, int]
) -> None:
    rng = np.random.default_rng(0)
    blocks = PIL.Image.fromarray(rng.integers(0, 256, (9, 9, 3), np.uint8))
    content = io.BytesIO()
    blocks.resize(size).convert(stored).save(content, "JPEG", **options)
    expected = PIL.Image.open(content)
    expected.draft(mode, (64, 64))
    found, _ = small_image(content.getvalue(), mode=mode, side=64, max_pixels=1 << 25)
    assert np.array_equal(np.asarray(found), np.asarray(expected.convert(mode)))


def test_a_damaged_file_is_pillows_to_judge() -> None:
    content = io.BytesIO()
    PIL.Image.new("RGB", (90, 90), (9, 99, 200)).save(content, "JPEG")
    with pytest.raises(OSError, match="truncated"):
        small_image(content.getvalue()[:-40], mode="L", side=64, max_pixels=1 << 25)
