"""What of a snapshot's features its reader has to know: plain data that ``emit`` writes out."""

from __future__ import annotations

import math
from collections.abc import Mapping

from ..schemas.features import (
    Audio,
    ClassLabel,
    Feature,
    Features,
    Image,
    Sequence,
    TensorForm,
    WireColumn,
    features_to_json,
    mask_name,
    side_columns,
    tensor_form,
    wire_columns,
)
from ..schemas.wire import ITEM_BYTES
from ..transforms.lengths import varying_lists

_TOLD = ("of", "names", "unit", "rate", "channels", "image", "labels")
"""What of a feature is told in ``FEATURES`` beside its tensor."""
_MAX_LAYOUT = 8
"""Features of fixed length that are cut out of examples instead of parsed, at most."""
_INT64 = b"\x1a"
_FORMATS = frozenset({"jpeg", "cmyk", "png", "gif", "bmp", "webp"})
"""What an encoded image may be: its file's format, and among JPEGs those of four components."""


def sections(
    features: Features,
    *,
    label: str | None,
    rotated_images: frozenset[str],
    image_formats: Mapping[str, frozenset[str]],
    structs: tuple[str, ...],
) -> dict[str, bool]:
    """Which sections of the template a snapshot can use.

    Args:
        features: Of the examples.
        label: The feature to predict.
        rotated_images: Names of encoded images that may have to be turned.
        image_formats: What encoded images are, by name; any format where that is not known.
        structs: Names of structs.
    """
    layout = layout_of(features)
    images = _image_facts([f for f in features.values() if isinstance(f, Image)])
    return {
        "layout": bool(layout),
        "general": not layout,
        "no_label": label is None,
        "struct": bool(structs),
        "flat": not structs,
        **images,
        **_format_facts(features, image_formats),
        "classes": label is not None and isinstance(features[label], ClassLabel),
        "lengths": bool(varying_lists(features)),
        "sides": images["each"] or bool(sides_of(features, rotated_images)),
        **_tensor_facts(features),
        "rotated": bool(rotated_images),
        "layout_numbers": bool(layout) and bool(_tensors(features)),
        "masked": any(mask_name(name, feature) for name, feature in features.items()),
        "masked_lists": any(
            mask_name(name, feature) and _is_plain_list(name, feature)
            for name, feature in features.items()
        ),
        "masked_label": label is not None and mask_name(label, features[label]) is not None,
        "layout_bytes": any(_tag(features[name]) != _INT64 for name in _tensors(features)),
    }


def _image_facts(images: list[Image]) -> dict[str, bool]:
    encoded = [image for image in images if image.storage == "encoded"]
    varying = any(image.storage == "raw" and not image.fixed_size for image in images)
    return {
        "image": bool(images),
        "no_image": not images,
        "fixed": any(image.storage == "raw" and image.fixed_size for image in images),
        "varying": varying,
        "encoded": bool(encoded),
        "each": bool(encoded) or varying,
        "grey": any(image.channels == 1 for image in encoded),
        "alpha": any(image.channels == 4 for image in encoded),
    }


def _format_facts(
    features: Features, image_formats: Mapping[str, frozenset[str]]
) -> dict[str, bool]:
    """What an encoded image may be: TensorFlow decodes each format by another operation."""
    found = {
        (image.channels, image_format)
        for name, image in features.items()
        if isinstance(image, Image) and image.storage == "encoded"
        for image_format in image_formats.get(name) or _FORMATS
    }
    formats = {image_format for _, image_format in found} - {"cmyk"}
    all_jpeg = formats == {"jpeg"} and (1, "cmyk") not in found
    return {
        "all_jpeg": all_jpeg,
        "any_format": not all_jpeg,
        "webp": "webp" in formats,
        "no_webp": "webp" not in formats,
    }


def _tensor_facts(features: Features) -> dict[str, bool]:
    found = [_column(name, features[name]) for name in _tensors(features)]
    packed = [form for column, form in found if column.packed]
    plain = [form for column, form in found if not column.packed]
    defaults = [(column, form) for column, form in found if form.optional and not form.shape]
    narrow = any(form.dtype not in {"int64", "uint64", "float32", "string"} for form in plain)
    dimensions = any(None in form.shape and len(form.shape) > 1 for _, form in found)
    packed_varying = any(None in form.shape for form in packed)
    packed_fixed = any(None not in f.shape and (f.shape or not f.optional) for f in packed)
    uint64 = any(form.dtype == "uint64" for form in plain)
    return {
        "audio": any(isinstance(feature, Audio) for feature in features.values()),
        "pcm": any(isinstance(f, Audio) and f.dtype == "int16" for f in features.values()),
        "packed": bool(packed),
        "packed_varying": packed_varying,
        "packed_fixed": packed_fixed,
        "packed_default": any(column.packed for column, _ in defaults),
        "ragged": any(None in form.shape for form in plain),
        "dimensions": dimensions,
        "shapes": any(form.shape.count(None) > 1 for _, form in found),
        "shape": packed_varying or packed_fixed or dimensions,
        "dtype": bool(packed) or narrow or uint64,
        "uint64": uint64,
        "uint64_default": any(form.dtype == "uint64" for _, form in defaults),
        "narrow": narrow,
        "narrow_float": any(form.dtype in {"float16", "bfloat16"} for form in plain),
        "bool": any(form.dtype == "bool" for _, form in defaults),
        "tensor": bool(packed) or dimensions or narrow or uint64,
    }


def _is_plain_list(name: str, feature: Feature) -> bool:
    """Whether a tensor's values are the items of its list, which may be empty."""
    column, form = _column(name, feature)
    return bool(form.shape) and column.packed is None


def _tensors(features: Features) -> list[str]:
    return [name for name, feature in _sorted(features) if not isinstance(feature, Image)]


def _sorted(features: Features) -> list[tuple[str, Feature]]:
    return sorted(features.items(), key=lambda item: item[0].encode())


def _column(name: str, feature: Feature) -> tuple[WireColumn, TensorForm]:
    """The column of a feature's values, and what they are as a tensor.

    Raises:
        ValueError: for a sound that is not decoded, which no snapshot holds.
    """
    form = tensor_form(feature)
    if form is None:
        raise ValueError(f"feature {name!r} is no tensor: {feature!r}")
    return form.wire_columns(name)[0], form


def describe(features: Features) -> dict[str, dict[str, object]]:
    """``FEATURES``: what a reader, and whoever reads it, has to know of each feature."""
    return {name: _described(name, feature) for name, feature in _sorted(features)}


def _described(name: str, feature: Feature) -> dict[str, object]:
    if isinstance(feature, Image):
        return dict(_json(name, feature))
    column, form = _column(name, feature)
    facts: dict[str, object] = {"kind": feature.kind, "dtype": form.dtype}
    if form.shape:
        facts["shape"] = list(form.shape)
    if column.packed:
        facts["packed"] = True
    if form.optional:
        facts |= {"optional": True} | ({} if form.shape else {"default": form.fill})
    mask = mask_name(name, feature)
    if mask is not None:
        facts["present"] = mask
    said = _json(name, feature)
    if isinstance(feature, Sequence):
        of = said["of"]
        assert isinstance(of, dict)
        said = {**of, "of": of["kind"]}
    return facts | {key: said[key] for key in _TOLD if key in said}


def _json(name: str, feature: Feature) -> dict[str, object]:
    value = features_to_json({name: feature})[name]
    assert isinstance(value, dict)
    return value


def sides_of(features: Features, rotated_images: frozenset[str]) -> dict[str, list[str]]:
    """The columns that a reader needs beside a feature's own, by the feature's name."""
    sides = {}
    for name, feature in _sorted(features):
        if isinstance(feature, Image):
            if feature.storage == "raw" and not feature.fixed_size:
                sides[name] = [f"{name}/height", f"{name}/width"]
            elif feature.storage == "encoded" and name in rotated_images:
                sides[name] = [f"{name}/orientation"]
        elif side_columns(name, feature):
            sides[name] = list(side_columns(name, feature))
    return sides


def layout_of(features: Features) -> list[tuple[str, bytes, int]]:
    """How every example is laid out, where each value is of one length; else nothing.

    That is so for raw images of one size, for classes of which there are at most 128 and bools
    (one byte each), and for float32 and packed values of one shape. All but the values is then the
    same bytes in every example: lengths and names. Of many features, parsing is as fast.

    Returns:
        In the order of the example: a feature's name, the bytes before its value, and the value's
        length.
    """
    columns = wire_columns(features)
    sizes = {column.name: _fixed_bytes(column.name, features) for column in columns}
    if len(sizes) > _MAX_LAYOUT or None in sizes.values():
        return []
    heads = {}
    for name, size in sizes.items():
        assert size is not None
        head = b"\x0a" + _varint(size)  # the list's value
        head = _tag(features[name]) + _varint(len(head) + size) + head  # its list
        head = b"\x12" + _varint(len(head) + size) + head  # the map entry's value
        head = b"\x0a" + _varint(len(name.encode())) + name.encode() + head  # and its key
        heads[name] = b"\x0a" + _varint(len(head) + size) + head  # the entry
    if not heads:
        return []
    first = next(iter(heads))
    total = sum(len(head) + (sizes[name] or 0) for name, head in heads.items())
    heads[first] = b"\x0a" + _varint(total) + heads[first]
    return [(name, head, sizes[name] or 0) for name, head in heads.items()]


def _fixed_bytes(name: str, features: Features) -> int | None:
    """Bytes that a column's values take in each example; None where they differ."""
    feature = features.get(name)
    if feature is None:
        return None  # it stands beside a feature whose size varies
    if isinstance(feature, Image):
        fixed = feature.storage == "raw" and feature.fixed_size
        return (feature.height or 0) * (feature.width or 0) * feature.channels if fixed else None
    column, form = _column(name, feature)
    if form.optional or None in form.shape:
        return None
    num = math.prod(dim or 0 for dim in form.shape)
    if column.packed or form.dtype == "float32":
        return num * ITEM_BYTES[form.dtype]
    one_byte = isinstance(feature, ClassLabel) and len(feature.names) <= 128
    return num if one_byte or form.dtype == "bool" else None


def _tag(feature: Feature) -> bytes:
    """What an Example writes before a feature's list: its kind."""
    column = feature.wire_columns("")[0]
    return {"bytes": b"\x0a", "float32": b"\x12", "int64": _INT64}[column.kind]


def _varint(value: int) -> bytes:
    """A number in protobuf's variable-length form."""
    digits = bytearray()
    while value >= 128:
        digits.append(value & 127 | 128)
        value >>= 7
    return bytes([*digits, value])
