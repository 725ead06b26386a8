"""Images of every kind, made by Pillow, and raw batches of them."""

import io
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image as Pillow

from snapshard.schemas.blocks import RawBatch
from snapshard.schemas.features import ClassLabel, Features, Image
from snapshard.transforms.prepare.image_header import UnreadableImageError, read_header
from snapshard.transforms.runs import wire_schema


class Pictures:
    """Makes images, and reads them back without TensorFlow."""

    def __init__(self) -> None:
        self.features: Features = {
            "image": Image(storage="encoded"),
            "label": ClassLabel(names=("cat", "dog")),
        }

    def pixels(self, height: int = 24, width: int = 40, seed: int = 0) -> Any:
        """A smooth picture without symmetry: uint8[height, width, 3]."""
        rng = np.random.default_rng(seed)
        coarse = Pillow.fromarray(rng.integers(0, 256, (5, 7, 3), np.uint8))
        return np.asarray(coarse.resize((width, height), Pillow.Resampling.BICUBIC))

    def encode(self, pixels: Any, form: str = "JPEG", mode: str = "", **options: Any) -> bytes:
        picture = Pillow.fromarray(pixels)
        if mode:
            picture = picture.convert(mode)
        if form == "JPEG":
            options = {"quality": 95, "subsampling": 0, **options}
        sink = io.BytesIO()
        picture.save(sink, form, **options)
        return sink.getvalue()

    def decode(self, content: bytes, mode: str = "RGB") -> Any:
        return np.asarray(Pillow.open(io.BytesIO(content)).convert(mode))

    def turned(self, pixels: Any, orientation: int, form: str = "JPEG") -> bytes:
        """The pixels as they are, with an EXIF orientation."""
        exif = Pillow.Exif()
        exif[0x010F] = "a maker"
        exif[0x0112] = orientation
        return self.encode(pixels, form, exif=exif)

    def noise(self, height: int = 64, width: int = 64) -> Any:
        return np.random.default_rng(1).integers(0, 256, (height, width, 3), np.uint8)

    def odd(self) -> dict[str, tuple[bytes, str]]:
        """Files that are no images, with the reason that each is rejected for."""
        jpeg = self.encode(self.noise())
        progressive = self.encode(self.noise(), progressive=True)
        png = self.encode(self.noise(), "PNG")
        gif = self.encode(self.noise(), "GIF")
        bmp = self.encode(self.noise(), "BMP")
        webp = self.encode(self.noise(), "WEBP")
        half = len(png) // 2
        return {
            "empty": (b"", "empty file"),
            "text": (b"See also: grey cats, of which there are many.\n", "text, not an image"),
            "zeros": (bytes(5000), "zero-filled file"),
            "junk": (bytes(range(256)), "not an image"),
            "animated_webp": (
                self.encode(
                    self.noise(), "WEBP", save_all=True, append_images=[Pillow.new("RGB", (64, 64))]
                ),
                "unsupported image format",
            ),
            "tiff": (self.encode(self.noise(), "TIFF"), "unsupported image format"),
            "palette_bmp": (
                self.encode(self.noise(), "BMP", "P"),
                "unsupported image format",
            ),
            "cut_jpeg_header": (jpeg[:100], "truncated image"),
            "cut_jpeg": (jpeg[: len(jpeg) // 2], "truncated image"),
            "cut_jpeg_end": (jpeg[:-1], "truncated image"),
            "cut_progressive": (progressive[: len(progressive) // 2], "truncated image"),
            "zeroed_jpeg": (jpeg[: len(jpeg) // 2] + bytes(len(jpeg) // 2), "truncated image"),
            "cut_png": (png[:half], "truncated image"),
            "damaged_png": (png[:half] + bytes(40) + png[half + 40 :], "damaged image"),
            "cut_gif": (gif[: len(gif) // 2], "truncated image"),
            "cut_bmp": (bmp[: len(bmp) // 2], "truncated image"),
            "cut_webp": (webp[: len(webp) // 2], "truncated image"),
        }

    def raw_batch(self, contents: list[bytes]) -> RawBatch:
        """Images as their source gives them; a bad header passes for one of 64×64 pixels."""
        headers = []
        for content in contents:
            try:
                header = read_header(content)
            except UnreadableImageError:
                headers.append((64, 64, 1))
            else:
                headers.append((header.height, header.width, header.orientation))
        columns = {
            "image": pa.array(contents, pa.large_binary()),
            "image/height": pa.array([header[0] for header in headers], pa.int64()),
            "image/width": pa.array([header[1] for header in headers], pa.int64()),
            "image/orientation": pa.array([header[2] for header in headers], pa.int64()),
            "label": pa.array([i % 2 for i in range(len(contents))], pa.int64()),
        }
        schema = wire_schema(self.features)
        arrays = [columns[name] for name in schema.names]
        return RawBatch(
            ids=[f"cat/{i}.jpg" for i in range(len(contents))],
            columns=pa.RecordBatch.from_arrays(arrays, schema=schema),
        )


@pytest.fixture(scope="session")
def pictures() -> Pictures:
    return Pictures()
