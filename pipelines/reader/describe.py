"""A snapshot's features as plain data, which ``emit`` writes into ``facts.py``."""

from __future__ import annotations

import math
from collections.abc import Mapping

from ...schemas.features import (
    ClassLabel,
    Feature,
    Features,
    Image,
    Sequence,
    TensorForm,
    WireColumn,
    features_to_json,
    frames_of,
    mask_name,
    side_columns,
    tensor_form,
    wire_columns,
)
from ...schemas.wire import ITEM_BYTES
from ...transforms.examples.varint import varint

_EXTRA = ("of", "names", "unit", "rate", "channels", "image", "labels")
"""Settings of a feature that ``FEATURES`` holds in addition to its dtype and shape."""
_MAX_LAYOUT = 8
"""Maximum number of fixed-length features to slice out of examples instead of parsing them."""
_INT64 = b"\x1a"


def _sorted(features: Features) -> list[tuple[str, Feature]]:
    return sorted(features.items(), key=lambda item: item[0].encode())


def _column(name: str, feature: Feature) -> tuple[WireColumn, TensorForm]:
    """The column of a feature's values, and their form as a tensor.

    Raises:
        ValueError: for a sound that is not decoded; no snapshot holds one.
    """
    form = tensor_form(feature)
    if form is None:
        raise ValueError(f"feature {name!r} is not a tensor: {feature!r}")
    return form.wire_columns(name)[0], form


def describe(features: Features) -> dict[str, dict[str, object]]:
    """Builds ``FEATURES``: each feature's kind, dtype, shape and settings, by name."""
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
    settings = _json(name, feature)
    if isinstance(feature, Sequence):
        of = settings["of"]
        assert isinstance(of, dict)
        settings = {**of, "of": of["kind"]}
        if frames_of(feature) is not None:
            facts |= {"height": of["height"], "width": of["width"]}
    return facts | {key: settings[key] for key in _EXTRA if key in settings}


def _json(name: str, feature: Feature) -> dict[str, object]:
    value = features_to_json({name: feature})[name]
    assert isinstance(value, dict)
    return value


def formats_of(
    features: Features, image_formats: Mapping[str, frozenset[str]]
) -> dict[str, list[str]]:
    """The file formats of encoded images, sorted, by feature name, where they are known."""
    return {
        name: sorted(image_formats[name])
        for name, feature in _sorted(features)
        if (frames_of(feature) is not None or _is_encoded_image(feature))
        and image_formats.get(name)
    }


def _is_encoded_image(feature: Feature) -> bool:
    return isinstance(feature, Image) and feature.storage == "encoded"


def sides_of(features: Features, rotated_images: frozenset[str]) -> dict[str, list[str]]:
    """The columns that a reader needs in addition to a feature's own, by feature name."""
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
    """The byte layout that all examples share if every value has a fixed length; else empty.

    Fixed lengths: raw images of one size, bools and classes (at most 128 of them; one byte each),
    and float32 and packed values of a fixed shape. All other bytes of an example (lengths and
    names) are then the same in every example. With many features, parsing is just as fast.

    Returns:
        In the order of the example: a feature's name, the bytes before its value, and the length
        of the value in bytes.
    """
    columns = wire_columns(features)
    sizes = {column.name: _fixed_bytes(column.name, features) for column in columns}
    if len(sizes) > _MAX_LAYOUT or None in sizes.values():
        return []
    heads = {}
    for name, size in sizes.items():
        assert size is not None
        head = b"\x0a" + varint(size)  # the list's value
        head = _tag(features[name]) + varint(len(head) + size) + head  # its list
        head = b"\x12" + varint(len(head) + size) + head  # the map entry's value
        head = b"\x0a" + varint(len(name.encode())) + name.encode() + head  # and its key
        heads[name] = b"\x0a" + varint(len(head) + size) + head  # the entry
    if not heads:
        return []
    first = next(iter(heads))
    total = sum(len(head) + (sizes[name] or 0) for name, head in heads.items())
    heads[first] = b"\x0a" + varint(total) + heads[first]
    return [(name, head, sizes[name] or 0) for name, head in heads.items()]


def _fixed_bytes(name: str, features: Features) -> int | None:
    """Bytes that a column's values take in each example; None if this varies."""
    feature = features.get(name)
    if feature is None:
        return None  # a side column of a feature whose size varies
    if isinstance(feature, Image):
        fixed = feature.storage == "raw" and feature.fixed_size
        return (feature.height or 0) * (feature.width or 0) * feature.pixel_bytes if fixed else None
    column, form = _column(name, feature)
    if form.optional or None in form.shape:
        return None
    num = math.prod(dim or 0 for dim in form.shape)
    if column.packed or form.dtype == "float32":
        return num * ITEM_BYTES[form.dtype]
    one_byte = isinstance(feature, ClassLabel) and len(feature.names) <= 128
    return num if one_byte or form.dtype == "bool" else None


def _tag(feature: Feature) -> bytes:
    """The tag of a feature's list in an Example, which encodes its kind."""
    column = feature.wire_columns("")[0]
    return {"bytes": b"\x0a", "float32": b"\x12", "int64": _INT64}[column.kind]
