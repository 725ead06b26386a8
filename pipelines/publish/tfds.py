"""TensorFlow Datasets: the files by which ``tfds.builder_from_directory`` reads a snapshot.

``dataset_info.json`` names the splits and the lengths of their shards, ``features.json`` the
features. They are messages of TFDS as JSON (``tensorflow_datasets/core/proto``), written as text:
nothing of TFDS is imported. TFDS parses the same examples as the snapshot's own reader, so a
snapshot that it could not read, or would read with other values, has none of these files.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from ...schemas.features import (
    Audio,
    BoundingBoxes,
    ClassLabel,
    Feature,
    Image,
    Mask,
    Text,
    Timestamp,
    frames_of,
    is_encoded,
    item_class,
    tensor_form,
)
from ...schemas.manifest import Manifest
from ...schemas.naming import TFDS_FEATURES, TFDS_INFO

_MODULES = {
    "Audio": "audio_feature",
    "BBoxFeature": "bounding_boxes",
    "ClassLabel": "class_label_feature",
    "FeaturesDict": "features_dict",
    "Image": "image_feature",
    "Sequence": "sequence_feature",
    "Tensor": "tensor_feature",
    "Text": "text_feature",
}
_TEMPLATE = "{SPLIT}-{SHARD_X_OF_Y}.{FILEFORMAT}"
_VERSION = "1.0.0"
"""TFDS demands one; ``manifest.json`` has the fingerprint, which tells snapshots apart."""
_FORMATS = {1: {"jpeg", "png"}, 3: {"jpeg", "png"}, 4: {"png"}}
"""Formats of images that TFDS decodes to a number of channels."""


class _NoCounterpartError(Exception):
    """TFDS has no feature that reads the examples of this one."""


def tfds_files(
    manifest: Manifest,
    *,
    times: Iterable[str] = (),
    rotated_images: Iterable[str] = (),
    image_formats: Mapping[str, frozenset[str]] | None = None,
) -> tuple[dict[str, bytes], str]:
    """The files by name in the snapshot, or none and the reason why TFDS cannot read it.

    Args:
        manifest: The snapshot's manifest; its ``files`` are not used.
        times: Features that say when a record was, which are no inputs of a model.
        rotated_images: Encoded images some of which have an EXIF orientation: TFDS ignores it.
        image_formats: The file formats of encoded images, by feature.
    """
    if manifest.compression != "none":
        return {}, f"its shards are compressed ({manifest.compression})"
    features = dict(sorted(manifest.features.items()))
    content: dict[str, Any] = {}
    for name, feature in features.items():
        formats = (image_formats or {}).get(name, frozenset())
        if manifest.num_missing.get(name) and not _is_plain_list(feature):
            return {}, f"feature {name!r} is missing in some examples"
        if name in rotated_images and is_encoded(feature):
            return {}, f"feature {name!r} has images with an EXIF orientation"
        try:
            content[name] = _counterpart(feature, formats)
        except _NoCounterpartError as error:
            return {}, f"feature {name!r} {error}"
        if isinstance(feature, Audio) and feature.rate is None:
            content[f"{name}/rate"] = _tensor("int64", ())
    root = _feature("FeaturesDict", "featuresDict", {"features": content})
    return {TFDS_INFO: _json(_info(manifest, set(times))), TFDS_FEATURES: _json(root)}, ""


def _json(value: object) -> bytes:
    return (json.dumps(value, indent=1, sort_keys=True) + "\n").encode()


def _info(manifest: Manifest, times: set[str]) -> dict[str, object]:
    info: dict[str, object] = {
        "fileFormat": "tfrecord",
        "name": manifest.name,
        "splits": [
            {
                "filepathTemplate": _TEMPLATE,
                "name": name,
                "numBytes": split.num_bytes,
                "shardLengths": [shard.num_examples for shard in split.shards],
            }
            for name, split in sorted(manifest.splits.items())
        ],
        "version": _VERSION,
    }
    label = manifest.label
    inputs = [name for name in sorted(manifest.features) if name != label and name not in times]
    if label is not None and inputs:
        keys = {name: {"featureKey": name} for name in inputs}
        given = keys[inputs[0]] if len(inputs) == 1 else {"dict": {"dict": keys}}
        info["supervisedKeys"] = {"tuple": {"items": [given, {"featureKey": label}]}}
    return info


def _is_plain_list(feature: Feature) -> bool:
    """Whether a missing value is an empty list, to TFDS as to the snapshot's reader."""
    form = tensor_form(feature)
    return form is not None and form.shape[:1] == (None,) and not _column(feature).packed


def _column(feature: Feature) -> Any:
    return feature.wire_columns("")[0]


def _counterpart(feature: Feature, formats: frozenset[str]) -> dict[str, Any]:
    """The feature of TFDS that reads a feature's column.

    Raises:
        _NoCounterpartError: if there is none.
    """
    frames = frames_of(feature)
    if frames is not None:
        return _list_of(_encoded(frames, formats))
    if isinstance(feature, Image):
        return _encoded(feature, formats) if feature.storage == "encoded" else _pixels(feature)
    form = tensor_form(feature)
    if form is None:
        raise _NoCounterpartError("is an encoded sound")
    if isinstance(feature, Audio):
        audio = {**_shaped(form.dtype, form.shape), "encoding": _encoding(feature)}
        rate = {} if feature.rate is None else {"sampleRate": feature.rate}
        return _feature("Audio", "audio", {**audio, **rate})
    if isinstance(feature, BoundingBoxes):
        return _list_of(_feature("BBoxFeature", "boundingBox", {"bboxFormat": "REL_YXYX"}))
    if (items := item_class(feature)) is not None:
        return _list_of(_classes(items))
    if isinstance(feature, ClassLabel):
        return _classes(feature)
    if isinstance(feature, Text):
        return _feature("Text", "text", {})
    if form.dtype == "bfloat16":
        raise _NoCounterpartError("is bfloat16")
    if form.shape.count(None) > 1:
        raise _NoCounterpartError("has several dimensions that vary")
    unit = getattr(feature, "unit", None)
    since = " since 1970-01-01T00:00:00 UTC" if isinstance(feature, Timestamp) else ""
    described = {} if unit is None else {"description": f"in {unit}{since}"}
    return _tensor(form.dtype, form.shape, _encoding(feature)) | described


def _classes(label: ClassLabel) -> dict[str, Any]:
    # Otherwise TFDS looks for the names in a file named by the feature.
    names = json.dumps({"names": label.names})
    return _feature("ClassLabel", "jsonFeature", {"json": names})


def _encoded(image: Image, formats: frozenset[str]) -> dict[str, Any]:
    """An image as the bytes of its file, which TFDS decodes."""
    is_mask = isinstance(image, Mask)
    unread = formats - _FORMATS[image.channels]
    if unread or not (formats or is_mask):
        found = " and ".join(sorted(unread)) or "unknown"
        raise _NoCounterpartError(f"has files of a format that TFDS does not decode alike: {found}")
    shaped = _shaped(image.dtype, (image.height, image.width, image.channels))
    return _feature("Image", "image", {**shaped, **({"useColormap": True} if is_mask else {})})


def _pixels(image: Image) -> dict[str, Any]:
    if not image.fixed_size:
        raise _NoCounterpartError("has pixels of images of several sizes")
    return _tensor(image.dtype, (image.height, image.width, image.channels), "bytes")


def _encoding(feature: Feature) -> str:
    return "bytes" if _column(feature).packed else "none"


def _tensor(dtype: str, shape: tuple[int | None, ...], encoding: str = "none") -> dict[str, Any]:
    return _feature("Tensor", "tensor", {**_shaped(dtype, shape), "encoding": encoding})


def _shaped(dtype: str, shape: tuple[int | None, ...]) -> dict[str, Any]:
    return {"dtype": dtype, "shape": {"dimensions": [-1 if dim is None else dim for dim in shape]}}


def _list_of(feature: dict[str, Any]) -> dict[str, Any]:
    return _feature("Sequence", "sequence", {"feature": feature, "length": -1})


def _feature(kind: str, field: str, content: dict[str, Any]) -> dict[str, Any]:
    name = f"tensorflow_datasets.core.features.{_MODULES[kind]}.{kind}"
    return {"pythonClassName": name, field: content}
