"""How records and snapshots are shown: values as text and pixels, HTML for notebooks."""

from __future__ import annotations

import base64
import dataclasses
import html
import io
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..schemas.features import (
    Audio,
    ClassLabel,
    Feature,
    Features,
    Image,
    Mask,
    Timestamp,
    frames_of,
)
from ..schemas.features import Sequence as SequenceFeature
from ..schemas.manifest import Manifest
from ..schemas.visible import visible
from .records import Record, value_of

if TYPE_CHECKING:
    import PIL.Image

_MAX_TEXT = 200
"""Characters that are shown of one value."""
_MAX_SHORT = 10_000
"""Values of an array whose digits are shortened, at most."""
_MAX_SIDE = 96
"""Height and width of thumbnails in pixels, at most."""
_MAX_FEATURES = 100
"""Features that a notebook shows of a snapshot, at most."""


def describe(record: Record, features: Features) -> dict[str, str]:
    """Each feature's value as one line of text."""
    return {
        name: _text(value_of(record, name, feature), feature) for name, feature in features.items()
    }


def plain_values(record: Record, features: Features) -> dict[str, Any]:
    """Each feature's value as JSON has it; images, clips and sounds are described."""
    return {
        name: _text(value, feature)
        if isinstance(feature, Image | Audio) or frames_of(feature) is not None
        else plain(feature, _short_floats(value))
        for name, feature in features.items()
        for value in [value_of(record, name, feature)]
    }


def _readable(value: bytes) -> str:
    return value.decode(errors="backslashreplace")


def _replaced(value: bytes) -> str:
    return value.decode(errors="replace")


def plain(
    feature: Feature,
    value: Any,
    *,
    text: Callable[[bytes], str | None] = _readable,
    floats: bool = False,
) -> Any:
    """A value as JSON has it: times as ISO 8601, classes by name, null for NaN and infinity.

    Args:
        feature: Its type.
        value: The value; None if it is missing.
        text: Decodes a string.
        floats: Keeps NaN and infinity.
    """
    item = feature.of if isinstance(feature, SequenceFeature) else feature

    def one(value: Any) -> Any:
        if isinstance(value, list):
            return [one(each) for each in value]
        if value is None:
            return None
        if isinstance(item, ClassLabel):
            return item.names[value] if 0 <= value < len(item.names) else value
        if isinstance(item, Timestamp):
            return f"{np.datetime64(value, item.unit)}Z"
        if isinstance(value, bytes):
            return text(value)
        is_null = isinstance(value, float) and not (floats or math.isfinite(value))
        return None if is_null else value

    return one(value.tolist() if isinstance(value, np.ndarray | np.generic) else value)


def first_image(features: Features) -> str | None:
    """The name of the first feature of images; None if there is none."""
    for name, feature in features.items():
        if isinstance(feature, Image) and not isinstance(feature, Mask):
            return name
    return None


def as_pixels(value: Any, feature: Feature) -> npt.NDArray[np.uint8]:
    """An image as uint8[height, width] or [height, width, channels], turned upright.

    Args:
        value: Pixels, or the content of a file.
        feature: Its feature.
    """
    if isinstance(value, bytes):
        from PIL import Image as Pillow

        with Pillow.open(io.BytesIO(value)) as file:
            channels = feature.channels if isinstance(feature, Image) else 3
            value = np.asarray(upright(file).convert({1: "L", 3: "RGB", 4: "RGBA"}[channels]))
    pixels: npt.NDArray[Any] = value[..., 0] if value.ndim == 3 and value.shape[2] == 1 else value
    # As bright as in the file.
    return (pixels >> 8).astype(np.uint8) if pixels.dtype == np.uint16 else pixels


def upright(file: PIL.Image.Image) -> PIL.Image.Image:
    """The image of an open file, turned by its EXIF orientation, of 8 bits."""
    from PIL import ImageOps

    from ..transforms.media.small_image import of_8_bits

    return of_8_bits(ImageOps.exif_transpose(file))


def data_uri(image: PIL.Image.Image) -> str:
    """An image as a JPEG in a URI, for HTML."""
    content = io.BytesIO()
    image.save(content, "JPEG", quality=78)
    return f"data:image/jpeg;base64,{base64.b64encode(content.getvalue()).decode()}"


def _text(value: Any, feature: Feature) -> str:
    """One value as a line of text."""
    if value is None:
        return "missing"
    if isinstance(feature, Image):
        return _image_text(value, as_pixels(value, feature) if isinstance(value, bytes) else value)
    if frames_of(feature) is not None:
        return f"{len(value):,} images"
    if isinstance(feature, Audio):
        array = np.asarray(value)
        return f"{array.dtype.name}{list(array.shape)}, mean {array.mean():.3g}"
    if isinstance(feature, ClassLabel) and 0 <= value < len(feature.names):
        name = visible(feature.names[value])
        return name if name == str(value) else f"{value} = {name}"
    known = plain(feature, _short_floats(value), text=_replaced, floats=True)
    text = known if isinstance(feature, Timestamp) else visible(repr(known))
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]} …"


def _short_floats(value: Any) -> Any:
    """Floats of 32 bits or fewer as the shortest float64 that is the same: 0.1, not 0.10000000149.

    Others, and large arrays, are unchanged.
    """
    dtype = getattr(value, "dtype", None)
    if dtype is None or dtype.kind != "f" or dtype.itemsize > 4 or value.size > _MAX_SHORT:
        return value
    return np.array([float(str(one)) for one in np.ravel(value)]).reshape(np.shape(value))


def _image_text(value: Any, pixels: npt.NDArray[Any]) -> str:
    """An image as text: of a file, its length, too."""
    shape = [*pixels.shape, 1][:3]
    text = f"{pixels.dtype.name}{shape}, mean {pixels.mean():.3g}"
    return f"{len(value):,} bytes, {text}" if isinstance(value, bytes) else text


@dataclasses.dataclass(frozen=True, repr=False)
class Shown:
    """Records to look at: a table with thumbnails in a notebook, otherwise text."""

    records: Sequence[Record]
    features: Features

    def __repr__(self) -> str:
        lines = []
        for record in self.records:
            lines.append(f"record {visible(record.record_id)}")
            described = describe(record, self.features)
            lines += [f"  {visible(name)}: {text}" for name, text in described.items()]
        return "\n".join(lines) or "no records"

    def _repr_html_(self) -> str:
        columns = ["record", *self.features]
        rows = []
        for record in self.records:
            cells = [escaped(record.record_id)]
            for name, feature in self.features.items():
                value = value_of(record, name, feature)
                if isinstance(feature, Image) and not isinstance(feature, Mask):
                    pixels = as_pixels(value, feature)
                    cells.append(_thumbnail(pixels, alt=_image_text(value, pixels)))
                else:
                    cells.append(escaped(_text(value, feature)))
            rows.append(cells)
        return table_html(columns, rows)


def snapshot_html(path: str, manifest: Manifest) -> str:
    """A snapshot in a notebook: its splits and features.

    Args:
        path: Its folder.
        manifest: What it holds.
    """
    total = sum(split.num_examples for split in manifest.splits.values())
    splits = [
        [escaped(name), f"{split.num_examples:,}", f"{len(split.shards):,}"]
        for name, split in manifest.splits.items()
    ]
    sample = "" if manifest.limit is None else f", a SAMPLE of {manifest.limit:,} records"
    parts = [
        f"<p><b>{escaped(manifest.name)}</b> {manifest.fingerprint}{sample}<br>",
        f"<code>{escaped(path)}</code></p>",
        table_html(["split", "examples", "shards"], splits),
        features_html(manifest.features, manifest.label, manifest.num_missing, total),
    ]
    return "".join(parts)


def features_html(
    features: Features, label: str | None, num_missing: Mapping[str, int], total: int
) -> str:
    """A table of features, with the share of ``total`` records that lack a value."""
    rows = [
        [
            escaped(name) + (" (label)" if name == label else ""),
            escaped(type(feature).__name__),
            f"{num_missing[name] / total:.1%}" if num_missing.get(name) else "",
        ]
        for name, feature in [*features.items()][:_MAX_FEATURES]
    ]
    table = table_html(["feature", "type", "missing"], rows)
    more = len(features) - len(rows)
    return f"{table}<p>and {more:,} more features</p>" if more else table


def table_html(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; cells are HTML, columns are text."""
    return "".join(_parts_of_table(columns, rows))


def _parts_of_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield "<table><thead><tr>"
    yield from (f'<th scope="col">{escaped(column)}</th>' for column in columns)
    yield "</tr></thead><tbody>"
    for cells in rows:
        yield f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"
    yield "</tbody></table>"


def escaped(text: str) -> str:
    """A text for HTML, with what is not visible escaped."""
    return html.escape(visible(text))


def _thumbnail(pixels: npt.NDArray[np.uint8], *, alt: str) -> str:
    from PIL import Image as Pillow

    image = Pillow.fromarray(pixels).convert("RGB")
    image.thumbnail((_MAX_SIDE, _MAX_SIDE))
    return f'<img alt="{escaped(alt)}" src="{data_uri(image)}">'
