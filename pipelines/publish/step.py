"""The publish step: reader, schema, rejects, graph, and last the manifest, which is the commit.

A folder without a manifest is not a snapshot. ``latest.json`` names the last build's snapshot.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence

from ...schemas.blocks import ShardInfo, SplitPlan
from ...schemas.errors import DamagedSnapshotError, StorageError
from ...schemas.features import ClassLabel
from ...schemas.manifest import (
    FORMAT_VERSION,
    ExcludedEntry,
    FileEntry,
    Manifest,
    ServingEntry,
    ShardEntry,
    SplitEntry,
    file_entry,
    with_checksum,
)
from ...schemas.naming import (
    BUILD,
    MANIFEST,
    REJECTS,
    SCHEMA,
    OutputPaths,
    join,
)
from ...schemas.splits import is_fold
from ...transforms import storage
from ...transforms.analysis.graph import PUBLISHED, TransformGraph, read_graph_file
from ...transforms.examples.metadata import schema_text
from ...transforms.examples.shards import ShardSettings, read_shard_infos, shard_name
from ...transforms.examples.sizing import length_boundaries, varying_lists
from ...transforms.runs.partitions import most_frequent
from ...transforms.storage.artifacts import put_if_changed
from ..inventory.survey import Survey
from ..prepare.rejects import gather_rejects
from ..prepare.step import Prepared
from ..reader.emit import LATEST_READER_FILE, ReaderFacts, emit_reader
from ..snapshot import Snapshot, read_latest


class Publisher:
    """Puts the files of one snapshot in place and records their sizes and hashes."""

    def __init__(self, folder: str) -> None:
        """Stores the snapshot's folder, which already contains the shards."""
        self._folder = folder
        self.files: dict[str, FileEntry] = {}

    def put(self, name: str, content: bytes) -> None:
        """Writes a file and records its size and hash."""
        storage.put_bytes(join(self._folder, name), content)
        self.files[name] = file_entry(content)

    def put_file(self, name: str, path: str) -> None:
        """Moves a local file to its place and records its size and hash."""
        with open(path, "rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        self.note(name, num_bytes=os.path.getsize(path), sha256=sha256)
        storage.put_file(path, join(self._folder, name))

    def note(self, name: str, *, num_bytes: int, sha256: str) -> None:
        """Records a file that is in place."""
        self.files[name] = FileEntry(bytes=num_bytes, sha256=sha256)


def publish(
    survey: Survey,
    settings: ShardSettings,
    *,
    plans: Sequence[SplitPlan],
    prepared: Prepared,
    serving: tuple[ServingEntry | None, Mapping[str, FileEntry]],
    shared_contents: Mapping[str, int],
    build_facts: Mapping[str, object],
) -> Snapshot:
    """Completes a snapshot whose shards and serving model are in place.

    Raises:
        StorageError: if a shard is missing, or a file cannot be written.
    """
    publisher = Publisher(settings.snapshot)
    serving_entry, serving_files = serving
    written = {plan.name: _written_shards(plan, settings) for plan in plans}
    splits = {name: _split_entry(shards, publisher) for name, shards in written.items()}
    if settings.graph is not None:
        # In the layout that `tft.TFTransformOutput` expects in the snapshot's folder.
        graph = TransformGraph(settings.graph).info
        for name in graph.files:
            publisher.put(name, read_graph_file(settings.graph, graph, name))
        publisher.put(PUBLISHED, graph.to_bytes())
    publisher.files |= serving_files
    with storage.scratch_folder(settings.workspace.root) as scratch:
        path = os.path.join(scratch, REJECTS)
        gather_rejects(prepared.entries, settings.workspace, path)
        publisher.put_file(REJECTS, path)
    publisher.put(SCHEMA, schema_text(settings.final))
    num_missing = Counter[str]()
    for shard in itertools.chain.from_iterable(written.values()):
        num_missing.update(shard.num_missing)
    num_examples = {name: entry.num_examples for name, entry in splits.items()}
    total = sum(num_examples.values())
    encoded_bytes = sum(shard.num_bytes for plan in plans for shard in plan.shards)
    structs = [
        name
        for name in survey.features.structs
        if any(feature.startswith(f"{name}.") for feature in settings.final)
    ]
    trained_on = [shard for name in _splits_to_train_on(num_examples) for shard in written[name]]
    image_facts = prepared.summary.image_facts()
    files = emit_reader(
        ReaderFacts(
            name=survey.recipe.name,
            fingerprint=survey.fingerprint,
            features=settings.final,
            label=settings.label,
            compression=settings.compression,
            num_examples=num_examples,
            shard_checksums={
                name: [shard.checksum for shard in shards] for name, shards in written.items()
            },
            record_bytes=encoded_bytes // total if total else 0,
            rotated_images=frozenset(name for name, facts in image_facts.items() if facts.rotated),
            image_formats={name: frozenset(facts.formats) for name, facts in image_facts.items()},
            class_counts=_class_counts(trained_on, settings),
            lengths={
                name: length_boundaries(
                    n for shard in trained_on for n in shard.lengths.get(name, ())
                )
                for name in varying_lists(settings.final)
            },
            num_missing=dict(sorted(num_missing.items())),
            version=survey.parts.versions["snapshard"],
            structs=tuple(structs),
            serving=bool(serving_files),
        )
    )
    for name, text in files.items():
        publisher.put(name, text.encode())
    manifest = Manifest(
        format_version=FORMAT_VERSION,
        name=survey.recipe.name,
        fingerprint=survey.fingerprint,
        features=settings.final,
        structs=structs,
        label=settings.label,
        compression=settings.compression,
        num_rejects=prepared.num_rejects,
        num_filtered=prepared.num_filtered,
        excluded=None if survey.excluded is None else ExcludedEntry(**survey.excluded.to_json()),
        serving=serving_entry,
        shared_contents=dict(shared_contents),
        num_missing=dict(sorted(num_missing.items())),
        seed=survey.recipe.seed,
        versions=survey.parts.versions,
        splits=splits,
        files=publisher.files,
    )
    facts = json.dumps(with_checksum(build_facts), indent=1, sort_keys=True)
    storage.put_bytes(join(settings.snapshot, BUILD), facts.encode())
    _check_files(settings.snapshot, manifest)
    storage.settle(settings.snapshot)
    storage.put_bytes(join(settings.snapshot, MANIFEST), manifest.to_bytes())
    return Snapshot(settings.snapshot, manifest)


def _check_files(folder: str, manifest: Manifest) -> None:
    """Checks again that all files are in place, because published files are not written again.

    Raises:
        StorageError: if a file is missing or has another size.
    """
    found = storage.sizes(folder)
    for name, entry in manifest.files.items():
        if found.get(name) != entry.bytes:
            url = join(folder, name)
            num_bytes = storage.size_of(url)
            if num_bytes == entry.bytes:
                continue
            now = "is missing now" if num_bytes is None else f"has {num_bytes:,} bytes now"
            raise StorageError(
                f"{storage.redact(url)} was written with {entry.bytes:,} bytes, but {now}. "
                "Nothing was published. Find out what else writes there, and build again to "
                "resume from finished work."
            )


def _written_shards(plan: SplitPlan, settings: ShardSettings) -> list[ShardInfo]:
    """The facts of a split's shards, which must be in place."""
    names = [shard_name(shard, settings) for shard in plan.shards]
    found = []
    for name, info in zip(names, read_shard_infos(settings, names), strict=True):
        if info is None:
            raise StorageError(
                f"{name} was written, but is missing now from {settings.snapshot}. "
                "Build again to resume."
            )
        found.append(info)
    return found


def _splits_to_train_on(num_examples: Mapping[str, int]) -> list[str]:
    """The splits with the classes and lengths that the reader contains.

    These are train, or all folds, or else the largest split.
    """
    if "train" in num_examples:
        return ["train"]
    largest = max(num_examples, key=num_examples.__getitem__)
    return [name for name in num_examples if is_fold(name)] or [largest]


def _class_counts(shards: Sequence[ShardInfo], settings: ShardSettings) -> list[int]:
    """Number of examples of each class in some shards; empty if the label is not a class."""
    label = settings.final[settings.label] if settings.label is not None else None
    if not isinstance(label, ClassLabel):
        return []
    counts: Counter[str] = Counter()
    for shard in shards:
        counts.update(shard.label_counts)
    return [counts[name] for name in label.names]


def _split_entry(written: Sequence[ShardInfo], publisher: Publisher) -> SplitEntry:
    shards = []
    for info in written:
        publisher.note(info.file, num_bytes=info.num_bytes, sha256=info.sha256)
        for name, (num_bytes, sha256) in info.index_files.items():
            publisher.note(name, num_bytes=num_bytes, sha256=sha256)
        shards.append(
            ShardEntry(
                file=info.file,
                num_examples=info.num_examples,
                num_bytes=info.num_bytes,
                sha256=info.sha256,
                label_counts=most_frequent(info.label_counts),
            )
        )
    return SplitEntry(
        num_examples=sum(shard.num_examples for shard in shards),
        num_bytes=sum(shard.num_bytes for shard in shards),
        shards=shards,
    )


def point_latest(out: OutputPaths, fingerprint: str) -> None:
    """Makes ``latest.json`` name a snapshot, and ``reader.py`` beside it import its reader.

    Writes nothing that is there already.
    """
    put_if_changed(out.latest_reader, LATEST_READER_FILE.read_bytes())
    try:
        if storage.exists(out.latest) and read_latest(out.latest) == fingerprint:
            return
    except DamagedSnapshotError:
        # A damaged file is replaced below.
        pass
    storage.put_bytes(out.latest, json.dumps({"fingerprint": fingerprint}).encode() + b"\n")
