"""The quick look at batches of JPEGs: it says yes to no batch that the steps' graph refuses."""

from typing import Any

import pytest

from snapshard.schemas.features import ClassLabel, Image
from snapshard.transforms.media.image_codecs import JpegCheck
from snapshard.transforms.prepare.engine.program import StepRunner

ENCODED = {"image": Image(storage="encoded"), "label": ClassLabel(names=("cat", "dog"))}


@pytest.fixture(scope="module")
def check() -> JpegCheck:
    """A compiled check of ``image``."""
    return JpegCheck(["image"])


@pytest.fixture(scope="module")
def runner() -> StepRunner:
    """The steps of images that are copied as they are."""
    return StepRunner([], ENCODED)


def test_it_passes_every_kind_of_jpeg(pictures: Any, check: JpegCheck) -> None:
    pixels = pictures.pixels(23, 41)
    contents = [
        pictures.encode(pixels),
        pictures.encode(pixels, "JPEG", "L"),
        pictures.encode(pixels, "JPEG", "CMYK"),
        pictures.encode(pixels, "JPEG", "RGB", subsampling=2, progressive=True),
        pictures.encode(pictures.pixels(1, 1)),
        *(pictures.turned(pixels, turn) for turn in range(1, 9)),
    ]
    assert check.passes(pictures.raw_batch(contents).columns)


def test_it_passes_no_other_format(pictures: Any, check: JpegCheck) -> None:
    for form in ("PNG", "GIF", "BMP"):
        contents = [pictures.encode(pictures.pixels(), name) for name in ("JPEG", form)]
        assert not check.passes(pictures.raw_batch(contents).columns), form


def test_it_passes_no_other_size_than_the_header_states(pictures: Any, check: JpegCheck) -> None:
    columns = pictures.raw_batch([pictures.encode(pictures.pixels(24, 40))]).columns
    heights = columns.schema.get_field_index("image/height")
    wrong = columns.set_column(heights, columns.schema.field(heights), columns.column("label"))
    assert not check.passes(wrong)


def test_it_passes_nothing_that_the_graph_rejects(
    pictures: Any, check: JpegCheck, runner: StepRunner
) -> None:
    whole = pictures.encode(pictures.noise())
    kept = range(len(whole) * 3 // 4, len(whole), 97)
    contents = [*(content for content, _ in pictures.odd().values()), *(whole[:n] for n in kept)]
    for content in contents:
        if content[:3] != b"\xff\xd8\xff":
            continue
        try:
            batch = pictures.raw_batch([content])
        except ValueError:
            continue
        assert check.passes(batch.columns) == (not runner.prepare(batch).rejects)


def test_a_batch_that_it_passes_comes_out_as_the_graph_gives_it(
    pictures: Any, runner: StepRunner
) -> None:
    batch = pictures.raw_batch([pictures.turned(pictures.pixels(), turn) for turn in (1, 6, 8)])
    jpegs = runner.prepare(batch)
    png = pictures.raw_batch([pictures.encode(pictures.pixels(), "PNG")])
    assert jpegs.ids == batch.ids
    assert jpegs.columns.schema == runner.prepare(png).columns.schema
    assert jpegs.columns.select(batch.columns.schema.names).equals(batch.columns)
