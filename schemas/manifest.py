"""``manifest.json``: the list and description of a snapshot's files; its arrival is the commit.

It holds nothing that varies between two builds of the same inputs (times, hosts, rates lie in
``build.json``), so it is itself byte-identical. It reads without TensorFlow or Beam.
"""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, Any, Literal

import pydantic

from .errors import DamagedSnapshotError
from .features import Feature

FORMAT_VERSION = 1
MAX_LABELS = 1000
"""``label_counts`` keeps the most frequent labels, so many."""

_STRICT = pydantic.ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

_Count = Annotated[int, pydantic.Field(ge=0)]


class FileEntry(pydantic.BaseModel):
    """One file of the snapshot."""

    model_config = _STRICT

    bytes: _Count
    sha256: str


def file_entry(content: bytes) -> FileEntry:
    """The entry of a file with this content."""
    return FileEntry(bytes=len(content), sha256=hashlib.sha256(content).hexdigest())


class ShardEntry(pydantic.BaseModel):
    """One shard: a TFRecord file of one split."""

    model_config = _STRICT

    file: str
    num_examples: _Count
    num_bytes: _Count
    """Length of the file (compressed, if it is)."""
    sha256: str
    label_counts: dict[str, _Count]
    """Examples by label, the 1,000 most frequent; empty without a label of few values."""


class SplitEntry(pydantic.BaseModel):
    """One split and its shards, in the order of their key ranges."""

    model_config = _STRICT

    num_examples: _Count
    num_bytes: _Count
    """Sum of the shards' lengths."""
    shards: list[ShardEntry]


class ServingEntry(pydantic.BaseModel):
    """The SavedModel in ``serving/``, which prepares requests as the build did records."""

    model_config = _STRICT

    inputs: list[str]
    """Arguments of its signature; none where nothing could be exported."""
    left_out: list[str]
    """Steps that the model does not hold, and why: the caller does them first."""


class Manifest(pydantic.BaseModel):
    """The snapshot's table of contents."""

    model_config = _STRICT

    format_version: Literal[1]
    name: str
    fingerprint: Annotated[str, pydantic.Field(pattern="^[0-9a-f]{16}$")]
    """16 hex digits: the content address of the snapshot, and its folder's name."""
    features: dict[str, Annotated[Feature, pydantic.Field(discriminator="kind")]]
    """What the examples hold."""
    structs: list[str] = []
    """Features ``<struct>.<field>`` are their fields, which the reader nests. Outer ones first."""
    label: str | None
    """The feature to predict: ``as_supervised`` gives it apart."""
    compression: Literal["none", "gzip"]
    num_rejects: _Count
    num_filtered: _Count = 0
    """Records that a step dropped on purpose."""
    serving: ServingEntry | None = None
    """None where records are stored as they are."""
    shared_contents: dict[str, _Count] = {}
    """How many equal contents stand in several splits, by the names of these: ``"train, test"``."""
    seed: int
    versions: dict[str, str]
    """Of snapshard, Python and the libraries that shape the bytes."""
    splits: dict[str, SplitEntry]
    files: dict[str, FileEntry]
    """Every file but this one, ``build.json`` and the report; by name relative to the folder."""

    def to_bytes(self) -> bytes:
        """The file's content: JSON, keys sorted, UTF-8, a newline at the end."""
        value = self.model_dump(mode="json")
        text = json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False)
        return (text + "\n").encode()

    @classmethod
    def from_bytes(cls, content: bytes, *, where: str) -> Manifest:
        """Reads a manifest.

        Raises:
            DamagedSnapshotError: if it is not one; ``where`` names it in the message.
        """
        try:
            value: Any = json.loads(content)
        except ValueError as error:
            raise DamagedSnapshotError(f"{where} is not JSON: {error}. Build again.") from None
        if isinstance(value, dict) and value.get("format_version") != FORMAT_VERSION:
            raise DamagedSnapshotError(
                f"{where} has format_version {value.get('format_version')!r}, expected "
                f"{FORMAT_VERSION}. Read it with the snapshard version that wrote it."
            )
        try:
            return cls.model_validate(value)
        except pydantic.ValidationError as error:
            first = error.errors(include_url=False)[0]
            place = ".".join(str(part) for part in first["loc"])
            raise DamagedSnapshotError(
                f"{where} is not a manifest: {place}: {first['msg']}. Build again."
            ) from None


def manifest_schema() -> str:
    """The JSON Schema of ``manifest.json``, as it stands in ``docs/manifest.schema.json``."""
    value = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **Manifest.model_json_schema(mode="serialization"),
    }
    return json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
