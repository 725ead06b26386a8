"""TIFF images become PNGs of the same pixels; those that cannot are rejects that say why."""

import dataclasses
import io
import struct
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image as Pillow

from snapshard.schemas.features import Image
from snapshard.transforms.media.image_header import UnreadableImageError, read_header
from snapshard.transforms.media.tiff import is_converted, read_any_header, readable_image
from snapshard.transforms.sources.arrow.rows import MediaCells
from snapshard.transforms.sources.python_values import media_lists
from snapshard.transforms.sources.tfrecord.columns import image_columns

Pixels = npt.NDArray[Any]
RNG = np.random.default_rng(0)
SIZE = HEIGHT, WIDTH = 21, 13
GREY = RNG.integers(0, 256, SIZE, np.uint8)
PIXELS: dict[str, Pixels] = {
    "1": GREY > 127,
    "L": GREY,
    "P": GREY,
    "I;16": RNG.integers(0, 2**16, SIZE, np.uint16),
    "RGB": RNG.integers(0, 256, (*SIZE, 3), np.uint8),
    "RGBA": RNG.integers(0, 256, (*SIZE, 4), np.uint8),
}
KINDS = {"1": (1, 1, 0), "L": (8, 1, 0), "P": (8, 3, 3), "I;16": (16, 1, 0)}
KINDS |= {"RGB": (8, 3, 2), "RGBA": (8, 4, 6)}
"""Bits and channels of the PNG, and its type of colour."""
COMPRESSIONS = [None, "tiff_lzw", "tiff_adobe_deflate", "tiff_deflate", "packbits"]


def picture(mode: str) -> Any:
    image = Pillow.fromarray(PIXELS[mode])
    if mode == "P":
        image.putpalette(bytes(RNG.integers(0, 256, 768, np.uint8)))
    return image


def saved(image: Any, form: str = "TIFF", **options: Any) -> bytes:
    sink = io.BytesIO()
    image.save(sink, form, **options)
    return sink.getvalue()


def samples(png: bytes) -> Pixels:
    return np.asarray(Pillow.open(io.BytesIO(png), formats=["PNG"]))


def upright(pixels: Pixels, orientation: int) -> Pixels:
    turned = pixels.swapaxes(0, 1) if orientation >= 5 else pixels
    turned = turned[:, ::-1] if orientation in (2, 3, 6, 7) else turned
    return turned[::-1] if orientation in (3, 4, 7, 8) else turned


@dataclasses.dataclass
class Tiff:
    """A TIFF of one strip, written tag by tag: number -> type and values."""

    pixels: bytes
    order: str = "<"
    following: int = 0
    tags: dict[int, tuple[int, list[int]]] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, pixels: Pixels, order: str = "<", **options: Any) -> "Tiff":
        height, width, *channels = pixels.shape
        bits = [8 * pixels.itemsize] * (channels[0] if channels else 1)
        content = pixels.astype(pixels.dtype.newbyteorder(order)).tobytes()
        one = cls(content, order, **options)
        one.tags = {256: (3, [width]), 257: (3, [height]), 258: (3, bits), 259: (3, [1])}
        one.tags |= {262: (3, [2 if channels else 1]), 273: (4, [8]), 277: (3, [len(bits)])}
        one.tags |= {278: (3, [height]), 279: (4, [len(content)])}
        return one

    def put(self, tag: int, *values: int, kind: int = 3) -> "Tiff":
        self.tags[tag] = kind, list(values)
        return self

    def without(self, *tags: int) -> "Tiff":
        for tag in tags:
            del self.tags[tag]
        return self

    def content(self) -> bytes:
        start = 8 + len(self.pixels) + len(self.pixels) % 2
        later = start + 2 + 12 * len(self.tags) + 4
        entries, values = b"", b""
        for tag, (kind, numbers) in sorted(self.tags.items()):
            form = {1: "B", 3: "H", 4: "I", 11: "I"}[kind]
            packed = struct.pack(f"{self.order}{len(numbers)}{form}", *numbers)
            place = packed.ljust(4, b"\0")
            if len(packed) > 4:
                place = struct.pack(self.order + "I", later + len(values))
                values += packed
            entries += struct.pack(self.order + "HHI", tag, kind, len(numbers)) + place
        head = (b"II*\0" if self.order == "<" else b"MM\0*") + struct.pack(self.order + "I", start)
        directory = struct.pack(self.order + "H", len(self.tags)) + entries
        tail = struct.pack(self.order + "I", self.following) + values
        return (head + self.pixels).ljust(start, b"\0") + directory + tail


@pytest.mark.parametrize("mode", PIXELS)
@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("orientation", range(1, 9))
def test_no_sample_changes(mode: str, compression: str | None, orientation: int) -> None:
    content = saved(picture(mode), compression=compression, tiffinfo={274: orientation})
    png, header = readable_image(content)
    expected = upright(PIXELS[mode], orientation)
    np.testing.assert_array_equal(samples(png), expected)
    bits, channels, colour = KINDS[mode]
    assert (png[24], png[25]) == (bits, colour)
    assert header == ("png", *expected.shape[:2], channels, 1, 0)
    assert read_any_header(content) == ("tiff", *expected.shape[:2], channels, orientation, 0)
    assert readable_image(content) == (png, header)
    assert is_converted(png)
    assert not is_converted(content)


def tiles(pixels: Pixels, side: int = 16) -> bytes:
    """An uncompressed TIFF of square tiles."""
    height, width = pixels.shape[:2]
    padded = np.pad(pixels, [(0, -height % side), (0, -width % side)])
    places = [(y, x) for y in range(0, height, side) for x in range(0, width, side)]
    parts = [padded[y : y + side, x : x + side].tobytes() for y, x in places]
    one = Tiff.of(pixels).without(273, 278, 279)
    one.pixels = b"".join(parts)
    one.put(322, side).put(323, side).put(325, *map(len, parts), kind=4)
    return one.put(324, *(8 + side**2 * k for k in range(len(parts))), kind=4).content()


VARIANTS: dict[str, tuple[bytes, Pixels]] = {
    "big-endian": (Tiff.of(PIXELS["RGB"], ">").content(), PIXELS["RGB"]),
    "16 bits, big-endian": (Tiff.of(PIXELS["I;16"], ">").content(), PIXELS["I;16"]),
    "16 bits, LZW, differences": (
        saved(picture("I;16"), compression="tiff_lzw", tiffinfo={317: 2}),
        PIXELS["I;16"],
    ),
    "RGB, Deflate, differences": (
        saved(picture("RGB"), compression="tiff_adobe_deflate", tiffinfo={317: 2}),
        PIXELS["RGB"],
    ),
    "strips of a row": (
        saved(picture("L"), compression="tiff_lzw", tiffinfo={278: 1}),
        PIXELS["L"],
    ),
    "tiles": (tiles(GREY), GREY),
    "one number of bits for all": (Tiff.of(PIXELS["RGB"]).put(258, 8).content(), PIXELS["RGB"]),
    "an orientation that is none": (Tiff.of(GREY).put(274, 9).content(), GREY),
    "metadata": (
        saved(picture("L"), dpi=(300, 300), icc_profile=b"x" * 99, description="d"),
        GREY,
    ),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_variants_keep_their_samples(name: str) -> None:
    content, expected = VARIANTS[name]
    png, header = readable_image(content)
    np.testing.assert_array_equal(samples(png), expected)
    assert (header.height, header.width) == expected.shape[:2]


PLAIN = Tiff.of(GREY).content()
UNSUPPORTED = "unsupported image format"
BAD: dict[str, tuple[bytes, str]] = {
    "several pages": (
        saved(picture("L"), save_all=True, append_images=[picture("L")]),
        UNSUPPORTED,
    ),
    "pages in a loop": (Tiff.of(GREY, following=8).content(), UNSUPPORTED),
    "a preview": (Tiff.of(GREY).put(254, 1, kind=4).content(), UNSUPPORTED),
    "images below it": (Tiff.of(GREY).put(330, 8, kind=4).content(), UNSUPPORTED),
    "float": (saved(picture("L").convert("F")), UNSUPPORTED),
    "32 bits": (saved(picture("L").convert("I")), UNSUPPORTED),
    "signed 16 bits": (Tiff.of(PIXELS["I;16"]).put(339, 2).content(), UNSUPPORTED),
    "16 bits of RGB": (Tiff.of(PIXELS["RGB"].astype(np.uint16)).content(), UNSUPPORTED),
    "CMYK": (saved(picture("RGB").convert("CMYK")), UNSUPPORTED),
    "LAB": (saved(picture("RGB").convert("LAB")), UNSUPPORTED),
    "grey with alpha": (saved(picture("L").convert("LA")), UNSUPPORTED),
    "premultiplied alpha": (Tiff.of(PIXELS["RGBA"]).put(338, 1).content(), UNSUPPORTED),
    "a fourth channel without a meaning": (Tiff.of(PIXELS["RGBA"]).content(), UNSUPPORTED),
    "0 is white": (Tiff.of(GREY).put(262, 0).content(), UNSUPPORTED),
    "JPEG": (saved(picture("RGB"), compression="jpeg"), UNSUPPORTED),
    "planes": (Tiff.of(PIXELS["RGB"]).put(284, 2).content(), UNSUPPORTED),
    "reversed bits": (Tiff.of(GREY).put(266, 2).content(), UNSUPPORTED),
    "no kind of pixels": (Tiff.of(GREY).without(262).content(), UNSUPPORTED),
    "no samples": (Tiff.of(GREY).put(277).content(), UNSUPPORTED),
    "no size": (Tiff.of(GREY).put(256, 0).content(), "damaged image"),
    "no strips": (Tiff.of(GREY).without(273).content(), "damaged image"),
    "strips of no rows": (Tiff.of(GREY).put(278, 0).content(), "damaged image"),
    "too few strips": (Tiff.of(GREY).put(278, 1).content(), "damaged image"),
    "a size in floats": (Tiff.of(GREY).put(256, 1, kind=11).content(), "damaged image"),
    "a short palette": (
        Tiff.of(GREY).put(262, 3).put(320, *range(9)).content(),
        "damaged image",
    ),
    "strips that overlap": (
        Tiff.of(GREY).put(278, 1).put(273, *[8] * 21).put(279, *[200] * 21).content(),
        "damaged image",
    ),
    "LZW of noise": (Tiff.of(GREY).put(259, 5).content(), "damaged image"),
    "Deflate of noise": (Tiff.of(GREY).put(259, 8).content(), "damaged image"),
    "a strip beyond the end": (Tiff.of(GREY).put(279, 9999).content(), "truncated image"),
    "a directory beyond the end": (PLAIN[:4] + b"\xff" * 4 + PLAIN[8:], "truncated image"),
    "a bomb": (Tiff.of(GREY).put(256, 60_000).put(257, 60_000).content(), "too many pixels"),
    "a bomb of one tile": (
        Tiff.of(GREY)
        .without(273, 278, 279)
        .put(322, 60_000)
        .put(323, 60_000)
        .put(324, 8)
        .put(325, len(GREY.tobytes()))
        .content(),
        "too many pixels",
    ),
    "a million strips": (
        Tiff.of(GREY).put(273, *[8] * (1 << 20), kind=4).content(),
        "too costly to decode",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_kept_is_refused(name: str) -> None:
    content, reason = BAD[name]
    with pytest.raises(UnreadableImageError) as caught:
        readable_image(content)
    assert caught.value.reason == reason, caught.value
    if reason == UNSUPPORTED:
        assert "Save it as" in str(caught.value)


def test_a_limit_on_pixels_holds_before_decoding() -> None:
    with pytest.raises(UnreadableImageError, match="13×21 pixels, more than 272") as caught:
        readable_image(PLAIN, max_pixels=272)
    assert caught.value.reason == "too many pixels"
    assert readable_image(PLAIN, max_pixels=273)


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_a_file_cut_at_every_byte_is_truncated(compression: str | None) -> None:
    content = saved(picture("L"), compression=compression)
    for stop in range(8, len(content)):
        try:
            png, _ = readable_image(content[:stop])
        except UnreadableImageError as error:
            assert error.reason == "truncated image"  # noqa: PT017
        else:
            # Only metadata follow the pixels and the tags that are kept.
            np.testing.assert_array_equal(samples(png), GREY)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(COMPRESSIONS), st.sampled_from(sorted(PIXELS)), st.data())
def test_any_damage_is_an_image_or_refused(
    compression: str | None, mode: str, data: st.DataObject
) -> None:
    content = bytearray(saved(picture(mode), compression=compression))
    start = int.from_bytes(content[4:8], "little")
    places = st.integers(0, len(content) - 1) | st.integers(start, len(content) - 1)
    for _ in range(data.draw(st.integers(1, 6))):
        content[data.draw(places)] = data.draw(st.integers(0, 255))
    try:
        png, header = readable_image(bytes(content), max_pixels=1 << 20)
    except UnreadableImageError:
        return
    if png != bytes(content):
        assert samples(png).shape[:2] == (header.height, header.width)


def test_metadata_cannot_exhaust_memory() -> None:
    one = Tiff.of(GREY)
    content = bytearray(one.content())
    # 60,000 tags, each of which claims all of the file.
    extra = b"".join(struct.pack("<HHII", 1000 + k, 1, 1 << 20, 0) for k in range(60_000))
    start = int.from_bytes(content[4:8], "little")
    num = int.from_bytes(content[start : start + 2], "little")
    entries = content[start + 2 : start + 2 + 12 * num]
    content[4:8] = struct.pack("<I", len(content))
    content += struct.pack("<H", num + 60_000) + entries + extra + bytes(4)
    content += bytes(2 << 20)
    png, _ = readable_image(bytes(content))
    np.testing.assert_array_equal(samples(png), GREY)


@pytest.mark.parametrize("reader", ["media_lists", "MediaCells", "image_columns"])
def test_columns_hold_the_png(reader: str) -> None:
    """An image in a column of a table or of TFRecords, and in a sample of a tar."""
    jpeg = saved(picture("RGB"), "JPEG")
    contents = pa.array([jpeg, PLAIN, b"II*\0", None], pa.large_binary())
    feature = Image(storage="encoded")
    png = readable_image(PLAIN)[0]
    if reader == "media_lists":
        lists = media_lists("x", feature, PLAIN)
        assert (lists["x"], lists["x/height"], lists["x/width"]) == ([png], [21], [13])
    elif reader == "MediaCells":
        column = MediaCells("x", feature, contents)
        assert column.bad.tolist() == [False, False, True, True]
        assert column.describe(2)[0] == "truncated image"
        column.drop(column.bad.copy())
        assert dict(column.wire())["x"].to_pylist() == [jpeg, png]
    else:
        columns, problems = image_columns("x", contents)
        assert set(problems) == {2, 3}
        assert columns["x"].to_pylist() == [jpeg, png, b"II*\0", b""]
        assert columns["x/height"].to_pylist() == [21, 21, 0, 0]


def test_only_tiffs_are_converted(tmp_path: Path) -> None:
    jpeg = saved(picture("RGB"), "JPEG")
    content, header = readable_image(jpeg)
    assert content is jpeg
    assert header == read_header(jpeg)
