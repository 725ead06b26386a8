"""Random images against Pillow: the same pixels, or a reject with its reason. Never others."""

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from PIL import Image as Pillow

from snapshard.schemas.blocks import RawBatch
from snapshard.schemas.features import ClassLabel, Image
from snapshard.transforms.media.image_header import UnreadableImageError, read_header
from snapshard.transforms.prepare import images
from snapshard.transforms.prepare.engine.program import StepRunner

from .image_files import arithmetic, gif, png, shown_by_pillow, twelve_bits, with_adobe

ENCODED = {"image": Image(storage="encoded"), "label": ClassLabel(names=("cat", "dog"))}
UNSUPPORTED = "unsupported image format"
TOLERANCE = 1
"""Levels of 255, of JPEGs and lossy WebPs; all other formats are exact."""
Rng = np.random.Generator


@pytest.fixture(scope="module")
def decoder() -> dict[int, StepRunner]:
    return {
        channels: StepRunner([images.decode("image", channels)], ENCODED) for channels in (1, 3, 4)
    }


def pixels(rng: Rng, channels: int) -> Any:
    """Noise, or a smooth picture: uint8[1 to 40, 1 to 40, channels]."""
    height, width = (int(side) for side in rng.integers(1, 41, 2))
    if rng.random() < 0.5:
        return rng.integers(0, 256, (height, width, channels), np.uint8)
    coarse = rng.integers(0, 256, (3, 4, channels), np.uint8)
    planes = [Pillow.fromarray(coarse[..., i]) for i in range(channels)]
    smooth = [plane.resize((width, height), Pillow.Resampling.BICUBIC) for plane in planes]
    return np.stack([np.asarray(plane) for plane in smooth], axis=2)


def saved(picture: Any, form: str, **options: Any) -> bytes:
    sink = io.BytesIO()
    picture.save(sink, form, **options)
    return sink.getvalue()


def with_orientation(rng: Rng) -> dict[str, Any]:
    if rng.random() < 0.6:
        return {}
    exif = Pillow.Exif()
    exif[0x0112] = int(rng.integers(1, 9))
    return {"exif": exif}


def a_png(rng: Rng) -> bytes:
    colour = int(rng.choice([0, 2, 3, 4, 6]))
    depth = int(rng.choice({0: [1, 2, 4, 8, 16], 3: [1, 2, 4, 8]}.get(colour, [8, 16])))
    channels = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[colour]
    height, width = (int(side) for side in rng.integers(1, 41, 2))
    samples = rng.integers(0, 1 << depth, (height, width, channels))
    more: dict[str, Any] = {}
    if colour == 3:
        more["palette"] = rng.bytes(3 << depth)
        if rng.random() < 0.5:
            more["transparency"] = rng.bytes(int(rng.integers(1, (1 << depth) + 1)))
    elif colour in (0, 2) and depth == 8 and rng.random() < 0.5:
        more["transparency"] = samples[0, 0].astype(">u2").tobytes()
    if rng.random() < 0.3:
        more["orientation"] = int(rng.integers(1, 9))
    return png(samples, colour=colour, depth=depth, interlaced=rng.random() < 0.5, **more)


def a_jpeg(rng: Rng) -> bytes:
    mode = str(rng.choice(["L", "RGB", "CMYK"]))
    picture = Pillow.fromarray(pixels(rng, 4), "CMYK" if mode == "CMYK" else "RGBA")
    if mode != "CMYK":
        picture = picture.convert(mode)
    content = saved(
        picture,
        "JPEG",
        quality=int(rng.integers(20, 101)),
        progressive=bool(rng.integers(2)),
        subsampling=int(rng.integers(3)),
        restart_marker_blocks=int(rng.integers(4)),
        **with_orientation(rng),
    )
    return with_adobe(content, 2) if mode == "CMYK" and rng.random() < 0.5 else content


def a_gif(rng: Rng) -> bytes:
    picture = Pillow.fromarray(pixels(rng, 3)).quantize(int(rng.integers(2, 256)))
    return saved(picture, "GIF", interlace=int(rng.integers(2)))


def a_bmp(rng: Rng) -> bytes:
    return saved(
        Pillow.fromarray(pixels(rng, 4)).convert(str(rng.choice(["L", "RGB", "RGBA"]))), "BMP"
    )


def a_webp(rng: Rng) -> bytes:
    picture = Pillow.fromarray(pixels(rng, 4)).convert(str(rng.choice(["RGB", "RGBA"])))
    lossless, quality = bool(rng.integers(2)), int(rng.integers(0, 101))
    turned = with_orientation(rng)
    return saved(picture, "WEBP", lossless=lossless, exact=True, quality=quality, **turned)


MAKERS: dict[str, Callable[[Rng], bytes]] = {
    "PNG": a_png,
    "JPEG": a_jpeg,
    "GIF": a_gif,
    "BMP": a_bmp,
    "WebP": a_webp,
}


def decoded(
    pictures: Any, decoder: StepRunner, contents: list[bytes], channels: int
) -> tuple[dict[int, Any], dict[int, str]]:
    """What each image decodes to, and why each other one is rejected, by number."""
    batch = pictures.raw_batch(contents)
    done: RawBatch = decoder.prepare(batch)
    numbers = {record_id: number for number, record_id in enumerate(batch.ids)}
    height, width = (
        done.columns.column(f"image/{side}").to_pylist() for side in ("height", "width")
    )
    found = {
        numbers[record_id]: np.frombuffer(content, np.uint8).reshape(*shape, channels)
        for record_id, content, *shape in zip(
            done.ids, done.columns.column("image").to_pylist(), height, width, strict=True
        )
    }
    return found, {numbers[reject.record_id]: reject.reason for reject in done.rejects}


def compare(
    pictures: Any, decoder: dict[int, StepRunner], form: str, *, seed: int, num: int
) -> None:
    rng = np.random.default_rng([seed, *form.encode()])
    contents = [MAKERS[form](rng) for _ in range(num)]
    for content in contents:
        read_header(content)
    for channels in (1, 3, 4):
        found, rejected = decoded(pictures, decoder[channels], contents, channels)
        assert not rejected
        for number, content in enumerate(contents):
            shown = shown_by_pillow(content, channels)
            if form == "BMP" and channels == 4:
                shown = np.dstack([shown[..., :3], np.full_like(shown[..., 3], 255)])
            assert found[number].shape == shown.shape, (seed, number, channels)
            difference = np.abs(found[number].astype(int) - shown.astype(int)).max()
            assert difference <= (TOLERANCE if form in ("JPEG", "WebP") else 0), (
                seed,
                number,
                channels,
                difference,
                content[:64],
            )


@pytest.mark.parametrize("form", MAKERS)
def test_random_images_have_the_pixels_that_pillow_shows(
    pictures: Any, decoder: dict[int, StepRunner], form: str
) -> None:
    compare(pictures, decoder, form, seed=0, num=60)


@pytest.mark.slow
@pytest.mark.parametrize("form", MAKERS)
def test_thousands_of_random_images(
    pictures: Any, decoder: dict[int, StepRunner], form: str
) -> None:
    """Decodes 1,000 images of each format three times."""
    for seed in range(1, 6):
        compare(pictures, decoder, form, seed=seed, num=200)


def test_arithmetic_coding(pictures: Any, decoder: dict[int, StepRunner]) -> None:
    contents = list(arithmetic().values())
    for channels in (1, 3, 4):
        found, rejected = decoded(pictures, decoder[channels], contents, channels)
        assert not rejected
        for number, content in enumerate(contents):
            shown = shown_by_pillow(content, channels).astype(int)
            assert np.abs(found[number] - shown).max() <= TOLERANCE


FULL = np.arange(20, 32, dtype=np.uint8).reshape(3, 4)
UNSUPPORTED_FILES: dict[str, Callable[[], bytes]] = {
    "a JPEG of 12 bits": lambda: twelve_bits()["colours"],
    "a grey JPEG of 12 bits": lambda: twelve_bits()["grey"],
    "CMYK of unknown sense": lambda: with_adobe(saved(Pillow.new("CMYK", (9, 9)), "JPEG"), None),
    "a frame within its canvas": lambda: gif((4, 3), [(1, 1, FULL[:2, :2])]),
    "a frame in the corner of its canvas": lambda: gif((8, 6), [(0, 0, FULL)]),
    "a frame that leaves its canvas": lambda: gif((4, 3), [(1, 1, FULL)]),
    "a first frame that is smaller": lambda: gif((4, 3), [(0, 0, FULL[:2]), (0, 0, FULL)]),
    "a second frame beyond the canvas": lambda: gif((2, 2), [(0, 0, FULL[:2, :2]), (0, 0, FULL)]),
    "a BMP with a palette": lambda: saved(Pillow.new("P", (9, 9)), "BMP"),
    "a BMP of one bit": lambda: saved(Pillow.new("1", (9, 9)), "BMP"),
}


@pytest.mark.parametrize("name", UNSUPPORTED_FILES)
def test_what_would_decode_to_other_pixels_is_a_reject(name: str) -> None:
    with pytest.raises(UnreadableImageError) as caught:
        read_header(UNSUPPORTED_FILES[name]())
    assert caught.value.reason == UNSUPPORTED


def test_frames_that_fill_their_canvas(pictures: Any, decoder: dict[int, StepRunner]) -> None:
    small = (1, 1, FULL[:2, :2])
    contents = [gif((4, 3), [(0, 0, FULL)]), gif((4, 3), [(0, 0, FULL), small])]
    contents.append(gif((1, 1), [(0, 0, FULL)]))  # a canvas that is too small counts as its frame
    for channels in (1, 3, 4):
        found, rejected = decoded(pictures, decoder[channels], contents, channels)
        assert not rejected
        for number, content in enumerate(contents):
            np.testing.assert_array_equal(found[number], shown_by_pillow(content, channels))


def test_transparent_gifs_are_black_there_or_rejects(
    pictures: Any, decoder: dict[int, StepRunner]
) -> None:
    """TensorFlow paints what is transparent black, and gives no alpha."""
    content = gif((4, 3), [(0, 0, FULL)], transparent=25)
    for channels in (1, 3):
        found, _ = decoded(pictures, decoder[channels], [content], channels)
        shown = shown_by_pillow(content, channels).copy()
        shown[FULL == 25] = 0
        np.testing.assert_array_equal(found[0], shown)
    found, rejected = decoded(pictures, decoder[4], [content], 4)
    assert (found, rejected) == ({}, {0: UNSUPPORTED})
    # Where no pixel is transparent, nothing is lost: but that is not known before it is decoded.
    unused = gif((4, 3), [(0, 0, FULL)], transparent=200)
    assert decoded(pictures, decoder[4], [unused], 4)[1] == {0: UNSUPPORTED}
