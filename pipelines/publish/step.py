"""The publish step: reader, schema, rejects, graph, and last the manifest, which is the commit.

A folder without a manifest is not a snapshot: a damaged snapshot is withdrawn by removing its
manifest, and the same build completes it again. ``latest.json`` names the last build's snapshot.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import logging
import os
import platform
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import CancelledError
from typing import Any

from ...schemas.blocks import ShardInfo, SplitPlan
from ...schemas.errors import DamagedSnapshotError, PlaceError, StorageError
from ...schemas.features import ClassLabel
from ...schemas.manifest import (
    FORMAT_VERSION,
    STARTED_FORMAT,
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
    CROISSANT,
    MANIFEST,
    REJECTS,
    SCHEMA,
    STATISTICS,
    STATISTICS_PB,
    OutputPaths,
    Workspace,
    join,
)
from ...schemas.progress import Progress
from ...schemas.splits import is_fold
from ...transforms import storage
from ...transforms.analysis.graph import PUBLISHED, TransformGraph, read_graph_file
from ...transforms.examples.metadata import schema_text
from ...transforms.examples.shards import ShardSettings, read_shard_infos, shard_name
from ...transforms.examples.sizing import length_boundaries, varying_lists
from ...transforms.examples.statistics import ExampleMeasures, SplitStatistics
from ...transforms.runs.partitions import most_frequent
from ...transforms.storage.artifacts import put_if_changed
from ..inspect.drift import drift_warnings
from ..inspect.pin import refuse_drift
from ..inspect.statistics import statistics_json, statistics_of, statistics_pb
from ..inspect.verify import check_snapshot
from ..plan.near_duplicates import NearDuplicates, find_near_duplicates
from ..plan.ranges import refuse_empty_splits
from ..plan.split_leakage import find_leaks
from ..plan.step import Plan
from ..prepare.rejects import forget_refused, gather_rejects, num_excluded, source_shown
from ..prepare.run_files import keys_suffix
from ..prepare.step import Prepared, raw_totals
from ..reader.emit import LATEST_READER_FILE, ReaderFacts, emit_reader
from ..snapshot import Snapshot, build_facts, read_latest
from ..survey.fingerprint_details import fingerprint_details, list_inputs
from ..survey.stages import label_of, times_of
from ..survey.survey import Survey
from ..write.step import Written
from .croissant import croissant
from .serving import put_serving
from .tfds import tfds_files


@dataclasses.dataclass(frozen=True, kw_only=True)
class Extras:
    """What a snapshot has in addition to its records: none of it needs the shards."""

    shared_contents: Mapping[str, int]
    """How many contents are in several splits."""
    near_duplicates: NearDuplicates
    """What resembles something in another split."""
    serving: ServingEntry | None
    """The manifest's entry of the serving model."""
    serving_files: Mapping[str, FileEntry]
    """The model's files, which are in place."""
    serving_inputs: Mapping[str, Mapping[str, Any]]
    """The model's inputs, by raw name."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class History:
    """How a build went, for ``build.json``."""

    started: float
    """When it began, in seconds since 1970."""
    runner: str
    seconds: Mapping[str, float]
    """How long each step took in this process."""
    damage_met: Sequence[str]
    written: Written | None
    """None if other processes ran the steps before, whose work is not reported here."""


def is_published(out: OutputPaths, fingerprint: str) -> bool:
    """Whether a snapshot is published."""
    return storage.exists(join(out.snapshot(fingerprint), MANIFEST))


def find_published(survey: Survey, out: OutputPaths, progress: Progress) -> Snapshot | None:
    """The snapshot of a survey if it is published; makes it the latest, unless it is a sample.

    Updates its metadata to the recipe's, puts back its description for catalogues if it was
    removed, and warns as :func:`publish` does.

    Raises:
        RecipeError: if it has a split without records, which the recipe does not allow.
    """
    if not is_published(out, survey.fingerprint):
        return None
    snapshot = Snapshot.open(out.snapshot(survey.fingerprint))
    if survey.limit is None:
        splits = snapshot.manifest.splits
        counts = {name: split.num_examples for name, split in splits.items()}
        refuse_empty_splits(survey.recipe.splits, counts)
        for warning in drift_warnings(snapshot, out):
            progress.warn(warning)
        point_latest(out, survey.fingerprint)
    facts = build_facts(snapshot.path)
    is_current = facts.get("metadata", {}) == survey.recipe.metadata
    if facts and not (is_current and storage.exists(join(snapshot.path, CROISSANT))):
        try:
            facts["metadata"] = survey.recipe.metadata
            _put_unlisted(snapshot.path, facts, snapshot.manifest)
        except StorageError as error:  # in a place that may only be read
            logging.getLogger(__name__).warning("The description was not updated: %s", error)
    forget_refused(Workspace(out.workspace))
    return dataclasses.replace(snapshot, cached=True)


def withdraw_damaged(folder: str, *, progress: Progress) -> None:
    """Checks a published snapshot, and removes its manifest if anything is damaged.

    What is left is an unfinished build, which the same build resumes. It finds damaged files by
    their hashes and replaces each in one atomic step, so that a reader that is iterating finds a
    file under every name at any time.

    Args:
        folder: The snapshot's folder, a local path or URL; nothing may be published there.
        progress: Receives how far the check is.

    Raises:
        StorageError: if a part of it cannot be read, or removed.
        PlaceError: if the path of a file is occupied by something else, which is not ours to
            remove.
    """
    if not storage.exists(join(folder, MANIFEST)):
        return
    report = check_snapshot(folder, progress=progress)
    if report.unreadable:
        raise StorageError("\n".join(report.lines()))
    damaged = [finding for finding in report.damages if finding.kind != "extra"]
    obstacles = [finding for finding in damaged if finding.kind == "not a file"]
    if obstacles:
        listed = "\n".join(f"  {join(folder, finding.file)}" for finding in obstacles[:20])
        paths = "1 path is" if len(obstacles) == 1 else f"{len(obstacles):,} paths are"
        raise PlaceError(
            f"In the snapshot, {paths} occupied by something that is not a file:\n{listed}\n"
            "Remove it if it is not needed, and build again."
        )
    if damaged:
        storage.remove_tree(join(folder, MANIFEST))


def make_extras(
    survey: Survey,
    prepared: Prepared,
    plan: Plan,
    settings: ShardSettings,
    *,
    stop: threading.Event | None = None,
) -> Extras:
    """Compares the splits, and puts the serving model into the snapshot's folder.

    Raises:
        CancelledError: soon after ``stop`` is set.
    """
    stop = stop or threading.Event()
    shared_contents = find_leaks(
        prepared.summary.entries,
        plan.splits,
        workspace=settings.workspace,
        suffix=keys_suffix(survey.recipe),
        stop=stop,
    )
    near_duplicates = find_near_duplicates(
        prepared.summary.table,
        plan.splits,
        features=settings.prepared,
        label=label_of(survey.recipe, settings.prepared),
        stratify_by=settings.stratify_by,
        workspace=settings.workspace,
        wanted=survey.recipe.near_duplicates,
        stop=stop,
    )
    if stop.is_set():
        raise CancelledError
    serving, files, inputs = put_serving(survey, settings)
    return Extras(
        shared_contents=shared_contents,
        near_duplicates=near_duplicates,
        serving=serving,
        serving_files=files,
        serving_inputs=inputs,
    )


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
        self.note(name, num_bytes=os.path.getsize(path), sha256=storage.sha256_of(path))
        storage.put_file(path, join(self._folder, name))

    def note(self, name: str, *, num_bytes: int, sha256: str) -> None:
        """Records a file that is in place."""
        self.files[name] = FileEntry(bytes=num_bytes, sha256=sha256)


def publish(
    survey: Survey,
    prepared: Prepared,
    plan: Plan,
    settings: ShardSettings,
    extras: Extras,
    *,
    out: OutputPaths,
    history: History,
    progress: Progress,
) -> Snapshot:
    """Completes a snapshot, whose shards and serving model are in place.

    It becomes the latest of its name, unless it is a sample: trainers follow ``latest.json``. What
    differs from the latest before is a warning, and what differs from the recipe's lock an error.

    Args:
        survey: The survey.
        prepared: What the shards were made from.
        plan: The splits and shards.
        settings: What the shards have in common.
        extras: What the snapshot has in addition to them.
        out: Where the snapshot is.
        history: How the build went.
        progress: Receives the warnings.

    Raises:
        DataError: if it differs from the recipe's lock.
        StorageError: if a file that the recipe depends on changed since the survey, a shard is
            missing, or a file cannot be written.
    """
    survey.held.check()
    facts = _build_facts(survey, prepared, plan, settings, extras, history=history)
    manifest, not_tfds = _put_files(survey, prepared, plan.splits, settings, extras)
    snapshot = Snapshot(settings.snapshot, manifest)
    refuse_drift(survey, snapshot)
    drift = [] if survey.limit is not None else [*drift_warnings(snapshot, out)]
    facts |= {"drift": drift, "not_tfds": not_tfds}
    _put_unlisted(settings.snapshot, facts, manifest)
    _check_files(settings.snapshot, manifest)
    storage.settle(settings.snapshot)
    storage.put_bytes(join(settings.snapshot, MANIFEST), manifest.to_bytes())
    if survey.limit is None:
        for warning in drift:
            progress.warn(warning)
        point_latest(out, survey.fingerprint)
    forget_refused(settings.workspace)
    return snapshot


def _build_facts(
    survey: Survey,
    prepared: Prepared,
    plan: Plan,
    settings: ShardSettings,
    extras: Extras,
    *,
    history: History,
) -> dict[str, object]:
    """The content of ``build.json``: what may differ between builds of one snapshot."""
    blocks: dict[str, object] = {"total": prepared.num_units}
    shards: dict[str, object] = {"total": sum(len(split.shards) for split in plan.splits)}
    if history.written is not None:
        blocks |= {"prepared": prepared.num_made}
        shards |= {"by": history.written.by, "written": history.written.num_shards}
    facts: dict[str, object] = {
        "blocks": blocks,
        "damage_met": history.damage_met,
        "fingerprint_details": fingerprint_details(survey),
        "fingerprint_parts": survey.parts.to_json(),
        "host": platform.node(),
        # Not in the manifest: skipped files are not inputs, and may vary under one fingerprint.
        "input": {
            "bytes": survey.inventory.num_bytes,
            "files": len(survey.inventory.files),
            "skipped": dict(survey.inventory.num_skipped),
            "source": source_shown(survey),
        },
        "metadata": survey.recipe.metadata,
        "near_duplicates": extras.near_duplicates.to_json(),
        "runner": history.runner,
        "seconds": {name: round(value, 3) for name, value in history.seconds.items()},
        "shards": shards,
        "started": time.strftime(STARTED_FORMAT, time.gmtime(history.started)),
        "work": {
            "blocks": list_inputs(survey, settings.workspace),
            "graph": settings.graph,
            "runs": [*(entry.run.run_id for entry in prepared.entries), *prepared.replaced],
            "summary": list(prepared.summary_names),
        },
    }
    if survey.excluded is not None:
        num_ids, num_records = len(survey.excluded.ids), num_excluded(survey, prepared)
        facts["excluded"] = {"ids": num_ids, "records": num_records}
    return facts


def _put_unlisted(folder: str, facts: Mapping[str, Any], manifest: Manifest) -> None:
    """Puts the files that the manifest does not list: they hold what may vary.

    ``build.json`` comes last: its metadata tell whether the other is up to date.
    """
    storage.put_bytes(join(folder, CROISSANT), croissant(manifest, facts["metadata"]))
    content = json.dumps(with_checksum(facts), indent=1, sort_keys=True)
    storage.put_bytes(join(folder, BUILD), content.encode())


def _put_files(
    survey: Survey,
    prepared: Prepared,
    plans: Sequence[SplitPlan],
    settings: ShardSettings,
    extras: Extras,
) -> tuple[Manifest, str]:
    """Puts all files in place that the manifest lists.

    Returns:
        The manifest, and why TensorFlow Datasets cannot read the snapshot; "" if it can.
    """
    publisher = Publisher(settings.snapshot)
    measures = ExampleMeasures(settings.final)
    measured = {plan.name: SplitStatistics(measures) for plan in plans}
    written = {plan.name: _written_shards(plan, settings, measured[plan.name]) for plan in plans}
    splits = {name: _split_entry(shards, publisher) for name, shards in written.items()}
    if settings.graph is not None:
        # In the layout that `tft.TFTransformOutput` expects in the snapshot's folder.
        graph = TransformGraph(settings.graph).info
        for name in graph.files:
            publisher.put(name, read_graph_file(settings.graph, graph, name))
        publisher.put(PUBLISHED, graph.to_bytes())
    publisher.files |= extras.serving_files
    with storage.scratch_folder(settings.workspace.root) as scratch:
        path = os.path.join(scratch, REJECTS)
        gather_rejects(prepared.entries, settings.workspace, path)
        publisher.put_file(REJECTS, path)
    publisher.put(SCHEMA, schema_text(settings.final))
    raw = raw_totals(survey, prepared, settings.workspace)
    statistics = statistics_of(settings.final, written, measured, label=settings.label, raw=raw)
    publisher.put(STATISTICS, statistics_json(statistics))
    raw_features = None if raw is None else raw.features
    pb = statistics_pb(statistics, settings.final, raw=raw_features)
    publisher.put(STATISTICS_PB, pb)
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
    times = times_of(survey.recipe, settings.final)
    image_facts = prepared.summary.image_facts()
    rotated = frozenset(name for name, facts in image_facts.items() if facts.rotated)
    formats = {name: frozenset(facts.formats) for name, facts in image_facts.items()}
    limit = None if survey.limit is None else survey.limit.num_records
    files = emit_reader(
        ReaderFacts(
            name=survey.recipe.name,
            fingerprint=survey.fingerprint,
            features=settings.final,
            label=settings.label,
            times=times,
            compression=settings.compression,
            num_examples=num_examples,
            limit=limit,
            shard_checksums={
                name: [shard.checksum for shard in shards] for name, shards in written.items()
            },
            record_bytes=encoded_bytes // total if total else 0,
            rotated_images=rotated,
            image_formats=formats,
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
            serving_inputs=extras.serving_inputs,
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
        limit=limit,
        excluded=None if survey.excluded is None else ExcludedEntry(**survey.excluded.to_json()),
        serving=extras.serving,
        shared_contents=dict(extras.shared_contents),
        num_missing=dict(sorted(num_missing.items())),
        seed=survey.recipe.seed,
        versions=survey.parts.versions,
        splits=splits,
        files={},
    )
    tfds, not_tfds = tfds_files(
        manifest, times=times, rotated_images=rotated, image_formats=formats
    )
    for name, content in tfds.items():
        publisher.put(name, content)
    return manifest.model_copy(update={"files": publisher.files}), not_tfds


def _check_files(folder: str, manifest: Manifest) -> None:
    """Checks again that all files are in place, because published files are not written again.

    Raises:
        StorageError: if a file is missing or has another size.
    """
    sizes = storage.sizes(folder)
    for name, entry in manifest.files.items():
        if sizes.get(name) != entry.bytes:
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


def _written_shards(
    plan: SplitPlan, settings: ShardSettings, measured: SplitStatistics
) -> list[ShardInfo]:
    """The facts of a split's shards, which must be in place; puts their statistics together."""
    names = [shard_name(shard, settings) for shard in plan.shards]
    shards = []
    for name, info in zip(names, read_shard_infos(settings, names), strict=True):
        if info is None:
            raise StorageError(
                f"{name} was written, but is missing now from {settings.snapshot}. "
                "Build again to resume."
            )
        measured.add(info.statistics)
        shards.append(dataclasses.replace(info, statistics={}))
    return shards


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
