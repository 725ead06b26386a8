"""The quick look at stored images: it confirms nothing that the steps' graph refuses."""

import dataclasses
import random
import struct
import zlib
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from snapshard.schemas.features import ClassLabel, Image
from snapshard.transforms.media.image_codecs import decode_pixels
from snapshard.transforms.media.quick_check import confirmed
from snapshard.transforms.prepare.engine.program import StepRunner

ENCODED = {"image": Image(storage="encoded"), "label": ClassLabel(names=("cat", "dog"))}


@pytest.fixture(scope="module")
def runner() -> StepRunner:
    """The steps of images that are copied as they are."""
    return StepRunner([], ENCODED)


def stored(pictures: Any, *contents: bytes) -> pa.RecordBatch:
    return pictures.raw_batch(list(contents)).columns


def of_each_kind(pictures: Any) -> list[bytes]:
    pixels = pictures.pixels(23, 41)
    return [
        pictures.encode(pixels),
        pictures.encode(pixels, "JPEG", "L"),
        pictures.encode(pixels, "JPEG", "CMYK"),
        pictures.encode(pixels, "JPEG", "RGB", subsampling=2, progressive=True),
        *(pictures.turned(pixels, turn) for turn in range(1, 9)),
        *(pictures.encode(pixels, "PNG", mode) for mode in ("RGB", "RGBA", "L", "LA", "P", "1")),
        pictures.encode(pixels, "WEBP"),
        pictures.encode(pixels, "WEBP", lossless=True),
    ]


def test_it_confirms_the_usual_images(pictures: Any) -> None:
    assert confirmed(stored(pictures, *of_each_kind(pictures)), ["image"]).all()


def test_it_leaves_others_to_the_graph(pictures: Any) -> None:
    pixels = pictures.pixels()
    others = [
        pictures.encode(pixels, "GIF"),
        pictures.encode(pixels, "BMP"),
        pictures.encode(pictures.pixels(1, 1)),
    ]
    assert not confirmed(stored(pictures, *others), ["image"]).any()


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP"])
def test_it_confirms_no_other_size_than_the_header_states(pictures: Any, form: str) -> None:
    columns = stored(pictures, pictures.encode(pictures.pixels(24, 40), form))
    heights = columns.schema.get_field_index("image/height")
    wrong = columns.set_column(heights, columns.schema.field(heights), columns.column("label"))
    assert not confirmed(wrong, ["image"]).any()


def damaged(content: bytes, chance: random.Random) -> Iterator[bytes]:
    """Cut, with other bits, with bytes left out; a PNG also with checksums that are right."""
    place = chance.randrange(20, len(content))
    yield content[:place]
    yield content[: -chance.randrange(1, 12)]
    flipped = bytearray(content)
    flipped[place] ^= 1 << chance.randrange(8)
    yield bytes(flipped)
    yield content[:place] + content[place + chance.randrange(1, 8) :]
    yield content + b"more"
    if content.startswith(b"\x89PNG"):
        repaired, position = bytearray(flipped), 8
        while position + 12 <= len(repaired):
            stop = position + 8 + int.from_bytes(repaired[position : position + 4])
            repaired[stop : stop + 4] = struct.pack(">I", zlib.crc32(repaired[position + 4 : stop]))
            position = stop + 4
        yield bytes(repaired)


def test_it_confirms_nothing_that_the_graph_rejects(pictures: Any) -> None:
    chance = random.Random(1)
    contents = [content for content, _ in pictures.odd().values()]
    for content in [*of_each_kind(pictures), pictures.encode(pictures.noise())]:
        contents += [one for _ in range(8) for one in damaged(content, chance)]
    batches = []
    for content in contents:
        try:
            batches.append(pictures.raw_batch([content]))
        except ValueError:  # its header is refused
            continue
    columns = pa.concat_batches([batch.columns for batch in batches])
    sure = confirmed(columns, ["image"])
    assert 100 < sure.sum() < len(sure) - 100
    for content in columns.filter(pa.array(sure)).column("image").to_pylist():
        decode_pixels(content, 3)


def test_a_batch_comes_out_as_the_graph_gives_it(pictures: Any, runner: StepRunner) -> None:
    """Whatever was confirmed of it; rejects are only of what the graph refuses."""
    good = [*of_each_kind(pictures), pictures.encode(pictures.pixels(), "GIF")]
    whole = pictures.raw_batch([*good, pictures.encode(pictures.noise())])
    contents = whole.columns.column("image").to_pylist()
    contents[3] = contents[3][: len(contents[3]) // 2]
    position = whole.columns.schema.get_field_index("image")
    batch = dataclasses.replace(
        whole,
        columns=whole.columns.set_column(
            position, whole.columns.schema.field(position), pa.array(contents, pa.large_binary())
        ),
    )
    prepared = runner.prepare(batch)
    kept = [row for row in range(len(batch.ids)) if row != 3]
    assert prepared.ids == [batch.ids[row] for row in kept]
    assert [(reject.record_id, reject.reason) for reject in prepared.rejects] == [
        (batch.ids[3], "truncated image")
    ]
    assert prepared.columns.equals(
        batch.columns.take(pa.array(kept)).select(prepared.columns.schema.names)
    )
    assert prepared.columns.schema == runner.prepare(whole).columns.schema
