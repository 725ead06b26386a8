"""Formats are told by content, and CMYK where it matters."""

import io
import json

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from snapshard.schemas.blocks import ImageFacts, RunInfo
from snapshard.transforms.media.image_header import found_formats, jpeg_components

FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WEBP")


def image(file_format: str, mode: str = "RGB") -> bytes:
    content = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 256, (9, 7, 3), np.uint8)
    Image.fromarray(pixels).convert(mode).save(content, file_format)
    return content.getvalue()


IMAGES = {name.lower(): image(name) for name in FORMATS}


def formats_of(*contents: bytes, channels: int = 3) -> tuple[str, ...]:
    return found_formats(pa.array(contents, pa.large_binary()), channels=channels)


@given(st.lists(st.sampled_from(list(IMAGES))))
def test_all_that_occur_are_named(names: list[str]) -> None:
    assert formats_of(*(IMAGES[name] for name in names)) == tuple(sorted(set(names)))


@pytest.mark.parametrize(("mode", "components"), [("L", 1), ("RGB", 3), ("CMYK", 4)])
def test_components_of_a_jpeg(mode: str, components: int) -> None:
    content = image("JPEG", mode)
    assert jpeg_components(content) == components
    found = {jpeg_components(content[:end]) for end in range(len(content))}
    assert found == {0, components}, "where the file ends too soon, nothing is told"


def test_components_behind_other_segments() -> None:
    comment = b"\xff\xfe" + (2 + 300).to_bytes(2, "big") + b"\xff\xc0" * 150
    content = image("JPEG", "CMYK")
    assert jpeg_components(content[:2] + comment + content[2:]) == 4


@pytest.mark.parametrize("content", [b"", b"\xff\xd8\xff", b"\xff\xd8\xff\xda\0\2", b"\xff\xd8"])
def test_no_components(content: bytes) -> None:
    assert jpeg_components(content) == 0


def test_cmyk_is_told_of_grey_features() -> None:
    cmyk = image("JPEG", "CMYK")
    assert formats_of(IMAGES["jpeg"], cmyk, channels=1) == ("cmyk", "jpeg")
    assert formats_of(IMAGES["jpeg"], IMAGES["png"], channels=1) == ("jpeg", "png")
    # TensorFlow makes colours of it by itself.
    assert formats_of(cmyk, channels=3) == ("jpeg",)


def test_facts_add_up_and_come_back() -> None:
    first = ImageFacts(8, 9, False, ("jpeg",))
    second = ImageFacts(8, 7, True, ("jpeg", "png"))
    both = ImageFacts(8, None, True, ("jpeg", "png"))
    assert first.merge(second) == second.merge(first) == both
    info = RunInfo(
        run_id="0" * 32,
        num_records=1,
        num_bytes=2,
        num_rejects=0,
        rejects_sha256="",
        batches=(),
        image_facts={"image": both},
    )
    assert RunInfo.from_json(json.loads(json.dumps(info.to_json()))) == info
