"""``manifest.json``: the list and description of a snapshot's files; its arrival is the commit.

It holds nothing that varies between two builds of the same inputs (times, hosts, rates lie in
``build.json``), so it is itself byte-identical. It reads without TensorFlow or Beam.

Its ``checksum`` is that of everything else in it, so that an edit shows. It is no signature: who
edits the file can reckon it anew, and then the files must still have the hashes that it tells.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import pydantic

from .errors import DamagedSnapshotError, SnapshardError
from .features import Feature
from .naming import stays_inside

FORMAT_VERSION = 1
MAX_LABELS = 1000
"""``label_counts`` keeps the most frequent labels, so many."""

_MEND = "Build again with --repair."
_STRICT = pydantic.ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

_Count = Annotated[int, pydantic.Field(ge=0, lt=1 << 63)]


def _inside(name: str) -> str:
    if not stays_inside(name):
        raise ValueError(f"{name!r} is not the name of a file inside the snapshot")
    return name


_Name = Annotated[str, pydantic.AfterValidator(_inside)]
"""Of a file, relative to the snapshot's folder. None leads out of it."""


def json_checksum(value: Mapping[str, object]) -> str:
    """The sha256, in hex, of a JSON object but for its ``checksum``: what ``checksum`` must be.

    Keys sorted, no spaces, everything beyond ASCII as escapes, so that it depends on the values
    alone and not on how they are laid out.

    >>> json_checksum({"b": 1, "a": "é"}) == json_checksum({"checksum": "", "a": "é", "b": 1})
    True
    """
    rest = {key: item for key, item in value.items() if key != "checksum"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


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

    file: _Name
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
    optional_inputs: list[str] = []
    """Those that a request may leave out."""
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
    num_missing: dict[str, _Count] = {}
    """Examples that lack a value, by feature; of all that may be missing."""
    seed: int
    versions: dict[str, str]
    """Of snapshard, Python and the libraries that shape the bytes."""
    splits: dict[str, SplitEntry]
    files: dict[_Name, FileEntry]
    """Every file but this one, ``build.json`` and the report; by name relative to the folder."""

    @pydantic.computed_field(repr=False)  # type: ignore[prop-decorator]
    @property
    def checksum(self) -> str:
        """The sha256 of the rest as JSON with keys sorted, no spaces, and only ASCII."""
        return json_checksum(self.model_dump(mode="json", exclude={"checksum"}))

    def to_bytes(self) -> bytes:
        """The file's content: JSON, keys sorted, UTF-8, a newline at the end."""
        value = self.model_dump(mode="json")
        text = json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False)
        return (text + "\n").encode()

    @classmethod
    def from_bytes(cls, content: bytes, *, where: str) -> Manifest:
        """Reads a manifest; one from before there were checksums too.

        Raises:
            DamagedSnapshotError: if it is not one, or was edited; ``where`` names it in the
                message.
        """
        manifest, checksum = read_manifest(content, where=where)
        if checksum == "wrong":
            raise DamagedSnapshotError(
                f"{where} was edited or is damaged: its checksum is not that of its content. "
                "`snapshard verify` says what of the snapshot is as it was, and building it again "
                "with --repair mends it."
            )
        return manifest


def read_manifest(
    content: bytes, *, where: str
) -> tuple[Manifest, Literal["right", "wrong", "missing"]]:
    """Reads a manifest, and tells whether its own checksum is right.

    Raises:
        DamagedSnapshotError: if it is not one; ``where`` names it in the message.
    """
    try:
        value: Any = json.loads(content.decode(), object_pairs_hook=_without_doubles)
    except (ValueError, RecursionError) as error:
        raise DamagedSnapshotError(f"{where} is not JSON: {error}. {_MEND}") from None
    if not isinstance(value, dict):
        raise DamagedSnapshotError(f"{where} is not a manifest: it holds no JSON object. {_MEND}")
    if value.get("format_version") != FORMAT_VERSION:
        raise DamagedSnapshotError(
            f"{where} has format_version {value.get('format_version')!r}, expected "
            f"{FORMAT_VERSION}. Read it with the snapshard version that wrote it."
        )
    state: Literal["right", "wrong", "missing"] = "missing"
    if "checksum" in value:
        state = "right" if value["checksum"] == json_checksum(value) else "wrong"
    try:
        rest = {key: item for key, item in value.items() if key != "checksum"}
        return Manifest.model_validate(rest), state
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        trouble = f"{place}: {first['msg']}"
    except (SnapshardError, TypeError) as error:
        # What features' own checks say; and pydantic, where what tells them apart is a list.
        trouble = str(error)
    raise DamagedSnapshotError(f"{where} is not a manifest: {trouble}. {_MEND}")


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; of two values with one name, readers would take either."""
    value = dict(pairs)
    if len(value) < len(pairs):
        names = [name for name, _ in pairs]
        double = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{double!r} stands twice in one object")
    return value


def manifest_schema() -> str:
    """The JSON Schema of ``manifest.json``, as it stands in ``docs/manifest.schema.json``."""
    value = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **Manifest.model_json_schema(mode="serialization"),
    }
    return json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
