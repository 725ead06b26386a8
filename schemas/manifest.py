"""``manifest.json``: lists and describes a snapshot's files; writing it is the commit.

It contains nothing that varies between two builds of the same inputs (times, hosts and rates are
in ``build.json``), so it is byte-identical itself. Reading it needs neither TensorFlow nor Beam.

Its ``checksum`` covers everything else in it and reveals edits. It is not a signature: whoever
edits the file can recompute it, but the files must still have the hashes that it lists.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import pydantic

from .errors import DamagedSnapshotError, SnapshardError
from .features import Feature, without_unset_names
from .naming import repair_command, stays_inside

FORMAT_VERSION = 1
MAX_LABELS = 1000
"""``label_counts`` has at most this many labels, the most frequent ones."""

STARTED_FORMAT = "%Y-%m-%dT%H:%M:%SZ"
"""How ``build.json`` writes when a build began, in UTC."""

_STRICT = pydantic.ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

_Count = Annotated[int, pydantic.Field(ge=0, lt=1 << 63)]


def _inside(name: str) -> str:
    if not stays_inside(name):
        raise ValueError(f"{name!r} is not the name of a file inside the snapshot")
    return name


_Name = Annotated[str, pydantic.AfterValidator(_inside)]
"""Name of a file relative to the snapshot's folder; never outside of it."""


def json_checksum(value: Mapping[str, object]) -> str:
    """The correct ``checksum``: the SHA-256, in hex, of a JSON object without its ``checksum``.

    Keys sorted, no spaces, non-ASCII characters escaped: it depends only on the values, not on
    their layout.

    >>> json_checksum({"b": 1, "a": "é"}) == json_checksum({"checksum": "", "a": "é", "b": 1})
    True
    """
    rest = {key: item for key, item in value.items() if key != "checksum"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def with_checksum(facts: Mapping[str, object]) -> dict[str, object]:
    """The facts of a build with a checksum, which reveals edits of ``build.json``."""
    value: dict[str, Any] = json.loads(json.dumps(facts))
    return {**value, "checksum": json_checksum(value)}


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

    @property
    def label_counts(self) -> dict[str, int]:
        """Examples by label, as in the shards."""
        counts: Counter[str] = Counter()
        for shard in self.shards:
            counts.update(shard.label_counts)
        return dict(sorted(counts.items()))


class ServingEntry(pydantic.BaseModel):
    """The SavedModel in ``serving/``, which prepares requests as the build prepared records."""

    model_config = _STRICT

    inputs: list[str]
    """Arguments of its signature; empty if nothing could be exported."""
    optional_inputs: list[str] = []
    """Arguments that a request may omit."""
    left_out: list[str]
    """Steps that the model does not contain, and why: the caller must perform them first."""


class ExcludedEntry(pydantic.BaseModel):
    """The list of records that the recipe excludes; their ids are not in the snapshot."""

    model_config = _STRICT

    num_ids: _Count
    """Ids in the list. Those that the source no longer has count too."""
    sha256: str
    """SHA-256, hex, of the sorted ids, each followed by a line feed."""


class Manifest(pydantic.BaseModel):
    """The snapshot's table of contents."""

    model_config = _STRICT

    format_version: Literal[1]
    name: str
    fingerprint: Annotated[str, pydantic.Field(pattern="^[0-9a-f]{16}$")]
    """16 hex digits: the content address of the snapshot, and its folder's name."""
    features: dict[str, Annotated[Feature, pydantic.Field(discriminator="kind")]]
    """The features of the examples."""
    structs: list[str] = []
    """Features ``<struct>.<field>`` are their fields, which the reader nests. Outer ones first."""
    label: str | None
    """The feature to predict: ``as_supervised`` returns it separately."""
    compression: Literal["none", "gzip"]
    num_rejects: _Count
    num_filtered: _Count = 0
    """Records that a step dropped on purpose."""
    limit: Annotated[int, pydantic.Field(gt=0)] | None = None
    """The snapshot is a sample of at most this many records; absent if it has all of them."""
    excluded: ExcludedEntry | None = None
    """Records that the recipe excludes; absent if it excludes none."""
    serving: ServingEntry | None = None
    """None if records are stored as they are."""
    shared_contents: dict[str, _Count] = {}
    """Number of equal contents in several splits, by the names of these: ``"train, test"``."""
    num_missing: dict[str, _Count] = {}
    """Examples without a value, by feature, for all features that may be missing."""
    seed: int
    versions: dict[str, str]
    """Versions of snapshard, Python and the libraries that affect the bytes."""
    splits: dict[str, SplitEntry]
    files: dict[_Name, FileEntry]
    """All files except this one, ``build.json`` and the report; by name relative to the folder."""

    def __repr__(self) -> str:
        splits = ", ".join(f"{name}: {split.num_examples}" for name, split in self.splits.items())
        names = list(self.features)
        features = ", ".join(names[:10]) + (f" and {len(names) - 10} more" if names[10:] else "")
        sample = "" if self.limit is None else f"SAMPLE of {self.limit} records; "
        return f"Manifest({self.name} {self.fingerprint}; {sample}{splits}; features {features})"

    __str__ = __repr__

    @pydantic.computed_field(repr=False)  # type: ignore[prop-decorator]
    @property
    def checksum(self) -> str:
        """The SHA-256, in hex, of the rest as JSON: keys sorted, no spaces, ASCII only."""
        return json_checksum(self._as_json(exclude={"checksum"}))

    def _as_json(self, *, exclude: set[str] | None = None) -> dict[str, Any]:
        value = self.model_dump(mode="json", exclude=exclude)
        for name in ("excluded", "limit"):
            if value[name] is None:
                del value[name]
        features: dict[str, Any] = value["features"]
        return value | {"features": {n: without_unset_names(f) for n, f in features.items()}}

    def to_bytes(self) -> bytes:
        """The file's content: JSON, keys sorted, UTF-8, with a trailing newline."""
        value = self._as_json()
        text = json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False)
        return (text + "\n").encode()

    @classmethod
    def from_bytes(cls, content: bytes, *, where: str) -> Manifest:
        """Reads a manifest, including old ones without a checksum.

        Raises:
            DamagedSnapshotError: if it is not a manifest, or was edited; ``where`` names it in the
                message.
        """
        manifest, checksum = read_manifest(content, where=where)
        if checksum == "wrong":
            raise DamagedSnapshotError(
                f"{where} was edited or is damaged: its checksum does not match its content. "
                "`snapshard verify` shows which parts of the snapshot are intact; building it "
                f"again with --repair repairs it: {repair_command(where.rpartition('/')[0])}."
            )
        return manifest


def read_manifest(
    content: bytes, *, where: str
) -> tuple[Manifest, Literal["right", "wrong", "missing"]]:
    """Reads a manifest and checks its checksum.

    Raises:
        DamagedSnapshotError: if it is not a manifest; ``where`` names it in the message.
    """
    command = repair_command(where.rpartition("/")[0])
    repair = f"Build again with --repair: {command}, where SOURCE is the recipe or data."
    try:
        value: Any = json.loads(content.decode(), object_pairs_hook=_without_duplicates)
    except (ValueError, RecursionError) as error:
        raise DamagedSnapshotError(f"{where} is not valid JSON: {error}. {repair}") from None
    if not isinstance(value, dict):
        raise DamagedSnapshotError(f"{where} is not a manifest: not a JSON object. {repair}")
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
        # From the features' own checks; from pydantic if a discriminator ("kind") is a list.
        trouble = str(error)
    raise DamagedSnapshotError(f"{where} is not a manifest: {trouble}. {repair}")


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Makes a JSON object; refuses duplicate names, of which readers may take either."""
    value = dict(pairs)
    if len(value) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        duplicate = next(name for name, count in counts.items() if count > 1)
        raise ValueError(f"duplicate name {duplicate!r} in an object")
    return value


def manifest_schema() -> str:
    """The JSON Schema of ``manifest.json``, the content of ``docs/manifest.schema.json``."""
    value = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **Manifest.model_json_schema(mode="serialization"),
    }
    return json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
