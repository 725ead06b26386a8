"""Croissant: ``croissant.json``, the description of a snapshot by which data catalogues find it.

JSON-LD of Croissant 1.0 (mlcommons.org/croissant): the metadata that the recipe declares, the
shards with their hashes, the classes, and a field for each feature. It is a function of the
manifest and of the metadata. These are not part of the fingerprint, so the manifest does not list
it: like ``build.json``, it is written again where they change.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from ...schemas.features import (
    Audio,
    BoundingBoxes,
    ClassLabel,
    Feature,
    Image,
    Sequence,
    Timestamp,
    frames_of,
    tensor_form,
)
from ...schemas.manifest import Manifest
from ...schemas.wire import FLOATS

_CR = "http://mlcommons.org/croissant/"
_TERMS = (
    *("citeAs", "column", "equivalentProperty", "extract", "field", "fileProperty", "fileObject"),
    *("fileSet", "format", "includes", "isLiveDataset", "jsonPath", "key", "md5", "parentField"),
    *("path", "recordSet", "references", "regex", "repeated", "replace", "samplingRate"),
    *("separator", "source", "subField", "transform"),
)
_CONTEXT: dict[str, Any] = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "conformsTo": "dct:conformsTo",
    "cr": _CR,
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "dct": "http://purl.org/dc/terms/",
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "rai": f"{_CR}RAI/",
    "sc": "https://schema.org/",
    **{term: f"cr:{term}" for term in _TERMS},
}
_FORMAT = "https://www.tensorflow.org/tutorials/load_data/tfrecord"
"""TFRecord has no media type: Croissant takes the address of what describes the format."""
_NAMES = {"citation": "citeAs", "tags": "keywords"}
"""The recipe's metadata that Croissant calls something else."""
_SHARDS, _RECORDS = "shards", "examples"


def croissant(manifest: Manifest, metadata: Mapping[str, Any]) -> bytes:
    """The file's content.

    Args:
        manifest: The snapshot's manifest.
        metadata: What the recipe declares: description, version, license, citation, tags.
    """
    shards = [shard for _, split in sorted(manifest.splits.items()) for shard in split.shards]
    suffix = ".tfrecord.gz" if manifest.compression == "gzip" else ".tfrecord"
    files = [
        {
            "@type": "cr:FileObject",
            "@id": shard.file,
            "name": shard.file,
            "contentUrl": shard.file,
            "contentSize": f"{shard.num_bytes} B",
            "encodingFormat": _FORMAT,
            "sha256": shard.sha256,
        }
        for shard in shards
    ]
    file_set = {
        "@type": "cr:FileSet",
        "@id": _SHARDS,
        "name": _SHARDS,
        "encodingFormat": _FORMAT,
        "includes": f"*{suffix}",
    }
    splits = [{"splits/name": name} for name in sorted(manifest.splits)]
    fields = [_split_field()]
    classes = []
    for name, feature in sorted(manifest.features.items()):
        fields.append(_field(name, feature, taken={field["@id"] for field in fields}))
        of = feature.of if isinstance(feature, Sequence) else feature
        if isinstance(of, ClassLabel):
            classes.append(_classes(fields[-1], of))
    content = {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": f"{_CR}1.0",
        "name": manifest.name,
        "identifier": manifest.fingerprint,
        **{_NAMES.get(name, name): value for name, value in metadata.items()},
        "distribution": [*files, file_set],
        "recordSet": [
            _record_set("splits", ["name"], splits) | {"dataType": "cr:Split"},
            *classes,
            {"@type": "cr:RecordSet", "@id": _RECORDS, "name": _RECORDS, "field": fields},
        ],
    }
    return (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode()


def _record_set(name: str, columns: list[str], data: list[dict[str, Any]]) -> dict[str, Any]:
    """A table whose rows are in the file; its first column is its key."""
    fields = [
        {
            "@type": "cr:Field",
            "@id": f"{name}/{column}",
            "name": column,
            "dataType": "sc:Integer" if column == "index" else "sc:Text",
        }
        for column in columns
    ]
    key = {"@id": f"{name}/{columns[0]}"}
    found = {"@type": "cr:RecordSet", "@id": name, "name": name, "key": key}
    return {**found, "field": fields, "data": data}


def _split_field() -> dict[str, Any]:
    """The split of an example, which the name of its shard begins with."""
    return {
        "@type": "cr:Field",
        "@id": f"{_RECORDS}/split",
        "name": "split",
        "dataType": "sc:Text",
        "references": {"field": {"@id": "splits/name"}},
        "source": {
            "fileSet": {"@id": _SHARDS},
            "extract": {"fileProperty": "filename"},
            "transform": {"regex": r"^([A-Za-z0-9_]+)-\d+-of-"},
        },
    }


def _field(name: str, feature: Feature, *, taken: set[str]) -> dict[str, Any]:
    """A feature; its id has no blanks, which Croissant's own reader refuses."""
    base = f"{_RECORDS}/{re.sub(r'[^A-Za-z0-9_.-]', '-', name)}"
    own = next(i for i in (base + "-" * n for n in range(len(taken) + 1)) if i not in taken)
    is_list = isinstance(feature, BoundingBoxes) or frames_of(feature) is not None
    form = None if isinstance(feature, Audio | Image) else tensor_form(feature)
    field: dict[str, Any] = {
        "@type": "cr:Field",
        "@id": own,
        "name": name,
        "dataType": _data_type(feature),
        "source": {"fileSet": {"@id": _SHARDS}, "extract": {"column": name}},
    }
    if is_list or (form is not None and form.shape):
        field["repeated"] = True
    return field


def _classes(field: dict[str, Any], label: ClassLabel) -> dict[str, Any]:
    """The names of a feature's classes, to whose indices the field refers from now on."""
    name = f"classes-{field['@id'].rpartition('/')[2]}"
    rows = [{f"{name}/index": n, f"{name}/name": text} for n, text in enumerate(label.names)]
    field["references"] = {"field": {"@id": f"{name}/index"}}
    return _record_set(name, ["index", "name"], rows)


def _data_type(feature: Feature) -> str:
    of = feature.of if isinstance(feature, Sequence) else feature
    if isinstance(of, Image):
        return "sc:ImageObject"
    if isinstance(of, Audio):
        return "sc:AudioObject"
    if isinstance(of, BoundingBoxes):
        return "cr:BoundingBox"
    if isinstance(of, Timestamp):
        return "sc:DateTime"
    dtype = of.form.dtype
    if dtype in FLOATS:
        return "sc:Float"
    return {"string": "sc:Text", "bool": "sc:Boolean"}.get(dtype, "sc:Integer")
