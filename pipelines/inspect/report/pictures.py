"""Records as pictures: thumbnails with boxes and masks, waveforms, spectrograms, as data URIs."""

from __future__ import annotations

import collections
import dataclasses
import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from ....schemas.features import (
    Audio,
    BoundingBoxes,
    ClassLabel,
    Feature,
    Features,
    Mask,
    Tensor,
    frames_of,
)
from ....schemas.features import Sequence as SequenceFeature
from ...display import data_uri, first_image, upright
from .evidence import Evidence, is_picture

MAX_SIDE = 160
_SIDE = 96
_MAX_PIXELS = 40_000_000
"""A file of more pixels is not decoded."""
_FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF")
_COLORS = ("#e6194b", "#3cb44b", "#4363d8", "#f58231", "#911eb4", "#42d4f4", "#f032e6", "#bfef45")
_MAX_SHEETS = 100
"""Classes that have a contact sheet."""
_PICTURES = 300
"""Pictures on all sheets of a feature, unless each class would have fewer than 2 …"""
_MAX_PER_CLASS = 32
"""… and how many a class may have."""
_SOUNDS = 60
_MAX_SAMPLES = 1 << 20
_COLUMNS, _BANDS = 150, 48


@dataclasses.dataclass(frozen=True, kw_only=True)
class Picture:
    """One record's picture."""

    uri: str
    width: int
    height: int
    caption: str
    note: str = ""
    """What is drawn on it."""
    wave: str = ""
    """The outline of a sound's waveform; the picture is its spectrogram."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sheet:
    """Pictures of the records of one class; the title is None for all records."""

    title: str | None
    num_examples: int
    pictures: Sequence[Picture]


class Album:
    """Encodes pictures as data URIs, up to a total length."""

    def __init__(self, max_bytes: int) -> None:
        self.num_left = max_bytes

    def uri(self, image: Image.Image) -> str | None:
        """The picture's URI; None if the album is full."""
        uri = data_uri(image)
        if len(uri) > self.num_left:
            return None
        self.num_left -= len(uri)
        return uri


def opened(content: bytes, side: int) -> Image.Image | None:
    """A file's image as RGB, upright, at most ``side`` wide and high; None if it is not one."""
    try:
        with Image.open(io.BytesIO(content), formats=_FORMATS) as image:
            if image.width * image.height > _MAX_PIXELS:
                return None
            image.draft("RGB", (2 * side, 2 * side))  # a JPEG is decoded at 1/2, 1/4 or 1/8
            small = upright(image).convert("RGB")
            small.thumbnail((side, side))
            return small
    except Exception:  # whatever a damaged file makes Pillow raise
        return None


def is_shown(feature: Feature) -> bool:
    """Whether records are shown by a picture of this feature: images, clips, sounds, maps."""
    known = is_picture(feature) or is_heard(feature)
    return known or frames_of(feature) is not None or _is_map(feature)


def is_heard(feature: Feature) -> bool:
    """Whether it is a sound whose samples are stored."""
    return isinstance(feature, Audio) and feature.storage == "raw"


def first_looked_at(features: Features) -> str | None:
    """The first feature of images, or else of sounds; None if there is none."""
    sounds = (name for name, feature in features.items() if is_heard(feature))
    return first_image(features) or next(sounds, None)


def _is_map(feature: Feature) -> bool:
    """Whether it is a matrix of floats to look at, such as a spectrogram: [time, band]."""
    if not isinstance(feature, Tensor) or not feature.dtype.startswith("float"):
        return False
    return len(feature.shape) == 2 and all(dim is None or dim >= 8 for dim in feature.shape)


def thumbnail(value: Any, feature: Feature, side: int) -> Image.Image | None:
    """An image, the middle frame of a clip, or a sound's spectrogram; None if it has none."""
    if _is_map(feature):
        return _map_picture(value, side)
    if frames_of(feature) is not None:
        value = value[len(value) // 2] if len(value) else None
    if value is None:
        return None
    if isinstance(feature, Audio):
        return spectrogram(_mono(value))
    if isinstance(value, bytes):
        return opened(value, side)
    pixels = value
    if pixels.dtype == np.uint16:
        pixels = (pixels >> 8).astype(np.uint8)
    if not pixels.size:
        return None
    # Far larger pictures are thinned out first: enough for a thumbnail.
    step = max(1, max(pixels.shape[:2]) // (4 * side))
    pixels = pixels[::step, ::step]
    image = Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels).convert("RGB")
    image.thumbnail((side, side))
    return image


def _map_picture(value: Any, side: int) -> Image.Image | None:
    """A matrix of floats in shades, large ones dark, the second dimension upwards."""
    if not value.size:
        return None
    known = np.nan_to_num(np.asarray(value, np.float32))
    low, high = np.quantile(known, (0.01, 0.99)).tolist()
    shades = 255 - 255 * ((known - low) / max(high - low, 1e-9)).clip(0, 1)
    image = Image.fromarray(shades.T[::-1].astype(np.uint8)).convert("RGB")
    image.thumbnail((side, side))
    return image


def sheets(evidence: Evidence, album: Album, feature: str) -> list[Sheet]:
    """A contact sheet for each class, or one of all records, of an image or a sound."""
    kind, sample = evidence.features[feature], evidence.sample
    groups = _groups(evidence)
    shown = list(groups.items())[:_MAX_SHEETS]
    total = _SOUNDS if isinstance(kind, Audio) else _PICTURES
    per_class = min(_MAX_PER_CLASS, max(2, total // max(1, len(shown))))
    pictures: dict[str | None, list[Picture]] = {title: [] for title, _ in shown}
    for place in range(per_class):
        for title, rows in shown:
            if place < len(rows):
                row = rows[place]
                picture = _drawn(evidence, album, feature, row)
                if picture is not None:
                    pictures[title].append(picture)
    counts = evidence.label_counts()
    numbers = {
        name: sum(one[name] for one in counts.values()) for name in next(iter(counts.values()), ())
    }
    return [
        Sheet(
            title=title,
            num_examples=len(sample) if title is None else numbers.get(title, 0),
            pictures=found,
        )
        for title, found in pictures.items()
        if found
    ]


def class_of(evidence: Evidence, row: int) -> str | None:
    """The class of a sampled record; None if it has none."""
    label = evidence.features.get(evidence.label or "")
    value = None if label is None else evidence.sample.values[str(evidence.label)][row]
    if value is None:
        return None
    if isinstance(label, ClassLabel):
        return label.names[int(value)] if 0 <= int(value) < len(label.names) else None
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _groups(evidence: Evidence) -> dict[str | None, list[int]]:
    """The sampled records of each class, in the classes' order; of all, without classes."""
    counts = evidence.label_counts()
    # All splits in turn, each as often as it has records.
    splits = evidence.sample.splits
    nums = collections.Counter(splits)
    seen: collections.Counter[str] = collections.Counter()
    places = []
    for row, split in enumerate(splits):
        places.append((seen[split] / nums[split], row))
        seen[split] += 1
    rows = [row for _, row in sorted(places)]
    if not counts:
        return {None: rows}
    groups: dict[str | None, list[int]] = {name: [] for name in next(iter(counts.values()))}
    for row in rows:
        groups.setdefault(class_of(evidence, row), []).append(row)
    return {name: found for name, found in groups.items() if found and name is not None}


def _drawn(evidence: Evidence, album: Album, feature: str, row: int) -> Picture | None:
    kind, sample = evidence.features[feature], evidence.sample
    value = sample.values[feature][row]
    caption = f"{sample.splits[row]} · {tail(sample.ids[row])}"
    if value is None:
        return None
    if isinstance(kind, Audio):
        return _sound(kind, value, sample.rates.get(feature, {}), row, album, caption)
    others = evidence.features.values()
    annotated = any(getattr(other, "image", None) == feature for other in others)
    image = thumbnail(value, kind, MAX_SIDE if annotated else _SIDE)
    if image is None:
        return None
    record = {name: values[row] for name, values in sample.values.items()}
    note = draw_annotations(image, feature, record, evidence.features)
    uri = album.uri(image)
    if uri is None:
        return None
    return Picture(uri=uri, width=image.width, height=image.height, caption=caption, note=note)


def picture_of(evidence: Evidence, album: Album, feature: str, row: int) -> Picture | None:
    """A sampled record's image, with its class in the caption."""
    found = _drawn(evidence, album, feature, row)
    return (
        found if found is None else dataclasses.replace(found, note=class_of(evidence, row) or "")
    )


def draw_annotations(
    image: Image.Image, name: str, record: Mapping[str, Any], features: Features
) -> str:
    """Draws the masks and boxes of an image onto its thumbnail; returns what they are."""
    notes: list[str] = []
    for other, feature in features.items():
        value = record[other]
        if getattr(feature, "image", None) != name or value is None:
            continue
        if isinstance(feature, Mask):
            notes += _draw_mask(image, value, feature)
        elif isinstance(feature, BoundingBoxes):
            labels = _box_labels(feature, record, features, len(value))
            notes += _draw_boxes(image, value, labels)
    return ", ".join(notes)


def _draw_mask(image: Image.Image, value: Any, feature: Mask) -> list[str]:
    if isinstance(value, bytes):
        with Image.open(io.BytesIO(value), formats=("PNG",)) as file:
            if file.width * file.height > _MAX_PIXELS:
                return []
            small = file.resize(image.size, Image.Resampling.NEAREST)
        indices = np.array(small)
    else:
        step = max(1, max(value.shape[:2]) // (4 * MAX_SIDE))
        whole = Image.fromarray(np.ascontiguousarray(value[::step, ::step, 0]))
        indices = np.array(whole.resize(image.size, Image.Resampling.NEAREST))
    notes = []
    for index in np.unique(indices).tolist():
        if index == 0 or index == feature.ignore:
            continue
        color = _COLORS[index % len(_COLORS)]
        own = indices == index
        cover = Image.fromarray((own * 120).astype(np.uint8))
        image.paste(color, (0, 0, *image.size), cover)
        named = feature.names is not None and index < len(feature.names)
        where = np.argwhere(own)
        top, left = where[len(where) // 2].tolist()
        _write(image, left, top, str(index))
        notes.append(f"{index} {feature.names[index]}" if named and feature.names else str(index))
    return notes


def _box_labels(
    feature: BoundingBoxes, record: Mapping[str, Any], features: Features, num: int
) -> list[str]:
    """The name of each box."""
    for name in feature.per_box:
        labels, values = features.get(name), record.get(name)
        if isinstance(labels, SequenceFeature) and values is not None and len(values) == num:
            if isinstance(labels.of, ClassLabel):
                names = labels.of.names
                return [names[int(v)] if 0 <= v < len(names) else str(v) for v in values]
            return [v.decode(errors="replace") if isinstance(v, bytes) else str(v) for v in values]
    return [""] * num


def _draw_boxes(image: Image.Image, boxes: Any, labels: Sequence[str]) -> list[str]:
    draw = ImageDraw.Draw(image)
    wide, high = image.width - 1, image.height - 1
    notes = []
    for number, (box, label) in enumerate(zip(boxes[:30], labels, strict=False), start=1):
        top, left, bottom, right = np.clip(np.nan_to_num(box), 0, 1).tolist()
        corners = sorted((left * wide, right * wide)), sorted((top * high, bottom * high))
        shape = (corners[0][0], corners[1][0], corners[0][1], corners[1][1])
        draw.rectangle(shape, outline="black", width=3)
        draw.rectangle(shape, outline=_COLORS[(number - 1) % len(_COLORS)], width=1)
        if len(boxes) > 1:
            _write(image, shape[0] + 2, shape[1] + 1, str(number))
        notes.append(f"{number} {label}".strip() if len(boxes) > 1 else label)
    return notes


def _write(image: Image.Image, left: float, top: float, text: str) -> None:
    """Writes on any background."""
    place = min(left, image.width - 8), min(max(top, 0), image.height - 11)
    ImageDraw.Draw(image).text(place, text, fill="white", stroke_width=1, stroke_fill="black")


def _sound(
    feature: Audio, samples: Any, rates: Any, row: int, album: Album, caption: str
) -> Picture | None:
    rate = feature.rate or (rates[row] if len(rates) else 0)
    num = len(samples)
    mono = _mono(samples)
    if not mono.size:
        return None
    uri = album.uri(spectrogram(mono))
    if uri is None:
        return None
    seconds = f"{num / rate:.2f} s at {rate:,} Hz" if rate else f"{num:,} samples"
    level = 20 * np.log10(max(float(np.sqrt(np.mean(np.square(mono)))), 1e-6))
    cut = "" if num <= _MAX_SAMPLES else f", the first {_MAX_SAMPLES:,} samples are drawn"
    note = f"{seconds}, level {level:.0f} dB{cut}"
    return Picture(
        uri=uri, width=_COLUMNS, height=_BANDS, caption=caption, note=note, wave=waveform(mono)
    )


def _mono(samples: Any) -> npt.NDArray[np.float32]:
    """The first samples of a sound, the mean of its channels."""
    mono = np.asarray(samples[:_MAX_SAMPLES], np.float32)
    return np.nan_to_num(mono if mono.ndim == 1 else mono.mean(axis=1))


def waveform(samples: npt.NDArray[np.float32]) -> str:
    """The outline of a waveform, 150 wide and 40 high: the extremes of each column."""
    ends = np.linspace(0, len(samples), min(_COLUMNS, len(samples)) + 1).astype(int)[:-1]
    highest = np.maximum.reduceat(samples, ends).clip(-1, 1)
    lowest = np.minimum.reduceat(samples, ends).clip(-1, 1)
    step = _COLUMNS / len(ends)
    upper = [f"{at * step:.0f} {20 - 19 * float(y):.1f}" for at, y in enumerate(highest)]
    lower = [f"{at * step:.0f} {20.5 - 19 * float(y):.1f}" for at, y in enumerate(lowest)]
    return f"M{'L'.join([*upper, *reversed(lower)])}z"


def spectrogram(samples: npt.NDArray[np.float32]) -> Image.Image:
    """The magnitudes of frequencies over time, in dB, low ones at the bottom."""
    length = 256
    padded = np.pad(samples, (0, max(0, length - len(samples))))
    starts = np.linspace(0, len(padded) - length, _COLUMNS).astype(int)
    frames = padded[starts[:, None] + np.arange(length)] * np.hanning(length)
    power = np.abs(np.fft.rfft(frames))[:, 1:]
    bands = power.reshape(_COLUMNS, -1, 2).max(axis=2)
    decibels = 20 * np.log10(np.maximum(bands, 1e-6))
    shades = (decibels - decibels.max() + 70).clip(0, 70) / 70 * 255
    image = Image.fromarray(255 - shades.T[::-1].astype(np.uint8))
    return image.resize((_COLUMNS, _BANDS))


def tail(text: str, limit: int = 40) -> str:
    """The end of a text that is longer than the limit: ids differ there."""
    return text if len(text) <= limit else f"…{text[-limit:]}"
