"""Feature types of media: images, masks and sounds."""

from __future__ import annotations

from typing import Annotated, Literal

import pydantic

from .config import config_class
from .values import TensorForm
from .wire import ITEM_BYTES, WireColumn

_Positive = Annotated[int, pydantic.Field(ge=1)]


@config_class
class Image:
    """An image of ``uint8[height, width, channels]``, or of ``uint16``.

    ``dtype="uint16"`` keeps all bits of a PNG of 16 bits; files of other formats and depths are
    rejected then. Otherwise their upper 8 bits are used.

    ``storage="raw"`` stores the pixels (row-major, as ``tf.io.decode_raw`` reads them) and is
    fastest to train from. ``storage="encoded"`` stores the bytes of the file (JPEG, PNG, GIF, BMP),
    with the image's size and EXIF orientation in separate columns. A height or width of None
    varies between records; the Example then has ``<name>/height`` and ``<name>/width``.
    """

    height: int | None = None
    width: int | None = None
    channels: Literal[1, 3, 4] = 3
    storage: Literal["raw", "encoded"] = "raw"
    dtype: Literal["uint8", "uint16"] = "uint8"
    kind: Literal["image"] = "image"

    def wire_columns(self, name: str) -> tuple[WireColumn, ...]:
        """The stored columns of a feature of this type called ``name``."""
        pixels = WireColumn(name=name, kind="bytes")
        size = tuple(
            WireColumn(name=f"{name}/{part}", kind="int64") for part in ("height", "width")
        )
        if self.storage == "encoded":
            return (pixels, *size, WireColumn(name=f"{name}/orientation", kind="int64"))
        return (pixels,) if self.fixed_size else (pixels, *size)

    @property
    def pixel_bytes(self) -> int:
        """Size in bytes of the channels of a pixel."""
        return self.channels * ITEM_BYTES[self.dtype]

    @property
    def fixed_size(self) -> bool:
        """Whether every image has the same height and width."""
        return self.height is not None and self.width is not None


@config_class
class Mask(Image):
    """The class of each pixel of an image: ``uint8[height, width, 1]``.

    ``image`` names the image that the mask belongs to: steps that change its geometry change the
    mask in the same way, by nearest neighbour, and a mask of another size than its image is
    rejected. ``names`` are the classes of the indices 0, 1, 2 …; without them any index is valid.
    ``ignore`` is the index of pixels without a class, such as 255, and of padding; without it,
    padding is 0.

    A file of a mask is a PNG whose samples are the indices: of a palette, or grey with 1, 2, 4 or
    8 bits. ``storage="encoded"`` stores a grey PNG of 8 bits.
    """

    channels: Literal[1] = 1
    dtype: Literal["uint8"] = "uint8"
    image: str = "image"
    names: tuple[str, ...] | None = None
    ignore: Annotated[int, pydantic.Field(ge=0, le=255)] | None = None
    kind: Literal["mask"] = "mask"  # type: ignore[assignment]

    def __post_init__(self) -> None:
        """Checks the names."""
        if self.names is not None and not 0 < len(set(self.names)) == len(self.names) <= 256:
            raise ValueError(f"names: expected 1 to 256 unique names, found {len(self.names)}")

    @property
    def padding(self) -> int:
        """The index of pixels outside of the image."""
        return self.ignore or 0


@config_class
class Audio:
    """A sound: ``float32[samples]``, or ``float32[samples, channels]`` for several channels.

    Samples are in [-1, 1]. ``dtype="int16"`` stores them as 16-bit PCM in one byte string, which
    is lossless for 16-bit files; ``float32`` stores a list of floats. A ``rate`` (Hz) of None
    varies between records; the Example then has ``<name>/rate``. A file's bytes
    (``storage="encoded"``) exist only between a source and the step that decodes them.
    """

    rate: _Positive | None = None
    channels: _Positive = 1
    samples: _Positive | None = None
    """Samples per channel; None if it varies."""
    dtype: Literal["int16", "float32"] = "int16"
    storage: Literal["raw", "encoded"] = "raw"
    kind: Literal["audio"] = "audio"

    @property
    def form(self) -> TensorForm:
        """The stored tensor of samples."""
        shape = (self.samples,) if self.channels == 1 else (self.samples, self.channels)
        return TensorForm(dtype=self.dtype, shape=shape)

    def wire_columns(self, name: str) -> tuple[WireColumn, ...]:
        """The stored columns of a feature of this type called ``name``."""
        if self.storage == "encoded":
            return (WireColumn(name=name, kind="bytes"),)
        rate = (WireColumn(name=f"{name}/rate", kind="int64"),) if self.rate is None else ()
        return (*self.form.wire_columns(name), *rate)
