"""Image headers: sizes and orientations as Pillow reads them, and a reason for all else."""

import contextlib
import io
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from PIL import Image as Pillow
from PIL import ImageOps

from snapshard.transforms.media.image_header import (
    ImageHeader,
    UnreadableImageError,
    diagnose,
    read_header,
)

FORMS = [
    ("JPEG", "RGB", {}, "jpeg", 3),
    ("JPEG", "L", {}, "jpeg", 1),
    ("JPEG", "CMYK", {}, "jpeg", 3),
    ("JPEG", "RGB", {"progressive": True, "subsampling": 2}, "jpeg", 3),
    ("JPEG", "RGB", {"comment": b"x" * 60_000, "icc_profile": b"y" * 90_000}, "jpeg", 3),
    ("PNG", "RGB", {}, "png", 3),
    ("PNG", "RGBA", {}, "png", 4),
    ("PNG", "P", {}, "png", 3),
    ("PNG", "LA", {}, "png", 1),
    ("PNG", "1", {}, "png", 1),
    ("PNG", "I;16", {}, "png", 1),
    ("GIF", "RGB", {}, "gif", 3),
    ("BMP", "RGB", {}, "bmp", 3),
    ("BMP", "RGBA", {}, "bmp", 3),
    ("BMP", "L", {}, "bmp", 1),
    ("WEBP", "RGB", {}, "webp", 3),
    ("WEBP", "RGBA", {}, "webp", 3),
    ("WEBP", "RGB", {"lossless": True}, "webp", 3),
    ("WEBP", "RGBA", {"lossless": True}, "webp", 3),
    ("WEBP", "RGB", {"icc_profile": b"y" * 90_001}, "webp", 3),
]


@pytest.mark.parametrize(
    ("form", "mode", "options", "expected", "channels"),
    FORMS,
    ids=[f"{form}-{mode}-{i}" for i, (form, mode, *_) in enumerate(FORMS)],
)
def test_a_header_tells_format_size_and_channels(
    pictures: Any, form: str, mode: str, options: dict[str, Any], expected: str, channels: int
) -> None:
    pixels = pictures.pixels(24, 40)
    if mode == "I;16":
        pixels, mode = pixels[..., 0].astype("uint16") * 257, ""
    content = pictures.encode(pixels, form, mode, **options)
    assert read_header(content) == ImageHeader(expected, 24, 40, channels, 1)


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("orientation", range(10))
def test_the_orientation_is_read_and_applied_to_the_size(
    pictures: Any, form: str, orientation: int
) -> None:
    content = pictures.turned(pictures.pixels(24, 40), orientation, form)
    header = read_header(content)
    shown = ImageOps.exif_transpose(Pillow.open(io.BytesIO(content)))
    assert (header.width, header.height) == shown.size
    assert header.orientation == (orientation if 1 <= orientation <= 8 else 1)


def test_a_big_endian_and_a_senseless_exif_block(pictures: Any) -> None:
    content = pictures.turned(pictures.pixels(24, 40), 6)
    start = content.index(b"Exif\0\0") + 6
    assert content[start : start + 2] in (b"II", b"MM")
    mangled = content[:start] + b"??" + content[start + 2 :]
    assert read_header(mangled).orientation == 1
    big = (
        b"\xff\xe1"
        + (2 + 6 + 26).to_bytes(2, "big")
        + b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x08\0\0\0\0\0\0"
    )
    plain = pictures.encode(pictures.pixels(24, 40))
    header = read_header(plain[:2] + big + plain[2:])
    assert (header.height, header.width, header.orientation) == (40, 24, 8)


@pytest.mark.parametrize(
    "kind",
    [
        "empty",
        "text",
        "zeros",
        "junk",
        "animated_webp",
        "big_tiff",
        "palette_bmp",
        "cut_jpeg_header",
    ],
)
def test_what_is_no_image_is_told_apart(pictures: Any, kind: str) -> None:
    content, reason = pictures.odd()[kind]
    with pytest.raises(UnreadableImageError) as caught:
        read_header(content)
    assert caught.value.reason == reason
    assert str(caught.value)


def test_transparency_of_a_webp_is_told(pictures: Any) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (9, 8, 4), np.uint8)
    for options in ({"lossless": True}, {"quality": 50}, {"exif": b"Exif\0\0"}):
        content = pictures.encode(pixels, "WEBP", **options)
        assert read_header(content) == ImageHeader("webp", 9, 8, 4, 1)


@pytest.mark.parametrize("options", [{"lossless": True}, {}, {"exif": b"Exif\0\0II*\0" + bytes(9)}])
def test_a_webp_cut_anywhere_is_whole_or_says_so(pictures: Any, options: dict[str, Any]) -> None:
    content = pictures.encode(pictures.pixels(), "WEBP", **options)
    for stop in range(12, len(content)):
        try:
            header = read_header(content[:stop])
        except UnreadableImageError as error:
            found = error.reason
        else:
            assert (header.height, header.width) == (24, 40)
            found = diagnose(content[:stop])
        assert found == "truncated image"
    assert diagnose(content) == "damaged image"


def test_a_long_text_whose_character_is_cut_is_text() -> None:
    with pytest.raises(UnreadableImageError) as caught:
        read_header(b"a" * 1023 + "ä".encode() * 1000)
    assert caught.value.reason == "text, not an image"


def test_an_image_bomb_is_refused_by_its_header(pictures: Any) -> None:
    content = bytearray(pictures.encode(pictures.pixels(), "PNG"))
    content[16:24] = (60_000).to_bytes(4, "big") * 2
    with pytest.raises(UnreadableImageError, match="60000×60000") as caught:
        read_header(bytes(content))
    assert caught.value.reason == "too many pixels"
    small = pictures.encode(pictures.pixels(24, 40))
    assert read_header(small, max_pixels=24 * 40)
    with pytest.raises(UnreadableImageError, match="more than 959"):
        read_header(small, max_pixels=24 * 40 - 1)


@pytest.mark.parametrize(
    "kind",
    ["cut_jpeg", "cut_jpeg_end", "cut_progressive", "cut_png", "damaged_png", "cut_bmp"],
)
def test_a_bad_image_with_a_good_header_is_diagnosed(pictures: Any, kind: str) -> None:
    content, reason = pictures.odd()[kind]
    read_header(content)
    assert diagnose(content) == reason


def test_a_thumbnail_does_not_hide_that_the_end_is_missing(pictures: Any) -> None:
    thumbnail = pictures.encode(pictures.pixels(8, 8))
    plain = pictures.encode(pictures.noise())
    segment = b"\xff\xe2" + (2 + len(thumbnail)).to_bytes(2, "big") + thumbnail
    content = plain[:2] + segment + plain[2:]
    assert diagnose(content[:-200]) == "truncated image"
    assert read_header(content).height == 64


@given(
    start=st.sampled_from([b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF89a", b"BM", b""]),
    rest=st.binary(max_size=200),
)
def test_any_bytes_give_a_header_or_a_reason(start: bytes, rest: bytes) -> None:
    try:
        header = read_header(start + rest)
    except UnreadableImageError:
        pass
    else:
        assert header.height > 0
        assert header.width > 0
        assert 1 <= header.orientation <= 8


@given(data=st.data())
def test_a_mutated_image_gives_a_header_or_a_reason(pictures: Any, data: st.DataObject) -> None:
    form = data.draw(st.sampled_from(["JPEG", "PNG", "GIF", "BMP"]))
    content = bytearray(pictures.encode(pictures.pixels(8, 9), form))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(content)))
    with contextlib.suppress(UnreadableImageError):
        read_header(bytes(content[:cut]))
    assert diagnose(bytes(content[:cut])) in ("truncated image", "damaged image")
