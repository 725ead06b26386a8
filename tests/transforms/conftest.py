"""Images of every kind, made by Pillow, sounds made by libsndfile, and raw batches of them."""

import io
import struct
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import soundfile
from PIL import Image as Pillow

from snapshard.schemas.blocks import RawBatch
from snapshard.schemas.features import Audio, ClassLabel, Features, Image
from snapshard.transforms.media.image_header import UnreadableImageError, read_header
from snapshard.transforms.runs.files import wire_schema


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
            "big_tiff": (b"II+\0" + bytes(100), "unsupported image format"),
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


class Sounds:
    """Makes sound files, and reads them back without TensorFlow."""

    def noise(self, samples: int = 400, channels: int = 1, seed: int = 0) -> Any:
        """Noise at a fifth of full scale: float32[samples, channels]."""
        noise = np.random.default_rng(seed).standard_normal((samples, channels))
        return np.clip(noise * 0.2, -0.99, 0.99).astype(np.float32)

    def tone(self, hertz: float, rate: int, samples: int) -> Any:
        """A sine at half of full scale: float32[samples]."""
        return (0.5 * np.sin(2 * np.pi * hertz / rate * np.arange(samples))).astype(np.float32)

    def encode(
        self, samples: Any, rate: int = 8000, form: str = "WAV", subtype: str = "PCM_16"
    ) -> bytes:
        sink = io.BytesIO()
        soundfile.write(sink, samples, rate, format=form, subtype=subtype)
        return sink.getvalue()

    def wav(
        self,
        samples: Any,
        rate: int = 8000,
        *,
        data_size: int | None = None,
        before: bytes = b"",
        behind: bytes = b"",
        form: bytes | None = None,
    ) -> bytes:
        """A 16-bit WAV file, by hand: ``samples`` are int16[samples, channels]."""
        content = np.ascontiguousarray(samples, "<i2").tobytes()
        channels = samples.shape[1]
        if form is None:
            form = struct.pack("<HHIIHH", 1, channels, rate, rate * channels * 2, channels * 2, 16)
        size = len(content) if data_size is None else data_size
        body = self.chunk(b"fmt ", form) + before + b"data" + struct.pack("<I", size) + content
        body += b"\0" * (len(content) % 2) + behind
        return b"RIFF" + struct.pack("<I", 4 + len(body)) + b"WAVE" + body

    def chunk(self, name: bytes, content: bytes) -> bytes:
        """A RIFF chunk, padded to an even length."""
        return name + struct.pack("<I", len(content)) + content + b"\0" * (len(content) % 2)

    def decoded(self, data: bytes) -> Any:
        """float32[samples, channels], as libsndfile reads it."""
        with soundfile.SoundFile(io.BytesIO(data)) as file:
            return file.read(dtype="float32", always_2d=True)

    def batch(self, contents: list[bytes], **audio: Any) -> tuple[Features, RawBatch]:
        """Raw records of encoded sounds, and their features."""
        features: Features = {"audio": Audio(storage="encoded", **audio)}
        columns = pa.record_batch({"audio": pa.array(contents, pa.large_binary())})
        ids = [f"sound{i}" for i in range(len(contents))]
        return features, RawBatch(ids=ids, columns=columns)


@pytest.fixture(scope="session")
def sounds() -> Sounds:
    return Sounds()
