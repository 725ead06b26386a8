"""Forecast: what a build would read and write.

A dry run: an inventory, and a sample that is prepared in memory. Nothing is written.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import psutil
import pyarrow as pa

from ...schemas.blocks import Block, FileRange, ImageFacts, KeySpan
from ...schemas.errors import RecipeError, Reject
from ...schemas.features import Features, features_to_json, is_optional
from ...schemas.naming import Workspace
from ...schemas.progress import Progress
from ...schemas.recipe import NumbersRecords, Recipe
from ...schemas.reject_budgets import TOTAL, Exceeded, exceeded_budgets
from ...schemas.splits import KEY_SPACE
from ...schemas.visible import human_bytes, human_count
from ...transforms import storage
from ...transforms.examples.sizing import SAMPLE_BYTES, SAMPLE_RECORDS, sizes_of
from ...transforms.examples.tfrecord import FRAME_BYTES
from ...transforms.rejects import Dropped, describe_rejects
from ...transforms.runs.files import ID, NUM_BYTES, wire_schema
from ...transforms.runs.keys import record_keys
from ...transforms.runs.summary import write_summary
from ...transforms.sources.combined import SourcePart, part_of, parts_of, without_prefix
from ...transforms.storage.decompress import MAGIC_BYTES, compressed_offset, compression_of
from ...transforms.storage.opened_source import path_bytes
from ..analyze.step import check_function
from ..display import escaped, features_html, table_html
from ..plan.ranges import empty_splits
from ..plan.step import choose_compression, describe_compression
from ..prepare.block_worker import PrepareConfig, RunMaker
from ..prepare.run_files import RunFiles, merge_image_facts
from ..prepare.split_ends import find_split_ends
from ..prepare.step import first_config, next_config
from ..recipe.shipping import carry, refuse_unfit_python
from ..survey.notices import sample_notices, survey_notices
from ..survey.stages import label_of
from ..survey.survey import Survey, take_survey
from .pin import refuse_schema
from .split_counts import Counted, count_by_labels, count_exactly, estimate_counts

_SAMPLE_FILES = 64
_SAMPLE_ROWS = 10_000


@dataclasses.dataclass(frozen=True)
class SplitForecast:
    """One split of the build; numbers are estimates."""

    name: str
    num_examples: int
    num_bytes: int
    num_shards: int


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Forecast:
    """What a build would read and write; sizes before a ``preprocessing_fn`` and compression.

    Attributes:
        features: Features of the prepared records.
        label: The one to predict, if any.
        undeclared: Features that are left out because ``features=`` does not declare them.
        num_files: Number of files with records.
        input_bytes: Total size of these files.
        num_skipped: Number of files without records, by reason.
        label_counts: Records of each label by split; empty if unknown, and without a label that
            can be counted.
        sampled_labels: Sampled records of each label, if ``label_counts`` is empty.
        shared_contents: Equal contents in several splits, by the names of these, as in a manifest;
            empty if unknown.
        num_examples: An estimate, as are the next two.
        example_bytes: Mean bytes of an example in a shard, with its framing.
        compression: How shards would be stored, and what GZIP saves; empty if unknown.
        splits: The splits.
        outputs: Names of the features that the ``preprocessing_fn`` returns.
        num_missing: Sampled records that lack a value, by optional feature.
        num_sampled: Number of sampled records.
        free_memory_bytes: Free memory of this machine now.
        warnings: Problems of the build, or of its snapshot.
    """

    features: Features
    label: str | None
    undeclared: tuple[str, ...]
    num_files: int
    input_bytes: int
    num_skipped: Mapping[str, int]
    label_counts: Mapping[str, Mapping[str, int]]
    sampled_labels: Mapping[str, int]
    shared_contents: Mapping[str, int]
    num_examples: int
    example_bytes: float
    compression: str
    splits: tuple[SplitForecast, ...]
    outputs: tuple[str, ...]
    num_missing: Mapping[str, int]
    num_sampled: int
    free_memory_bytes: int
    warnings: tuple[str, ...]

    def to_json(self) -> dict[str, object]:
        """As plain JSON."""
        return {
            **dataclasses.asdict(dataclasses.replace(self, features={}, label_counts={})),
            "label_counts": {split: dict(counts) for split, counts in self.label_counts.items()},
            "features": features_to_json(self.features),
            "output_bytes": self.output_bytes,
            "fits_memory": self.fits_memory,
        }

    def __repr__(self) -> str:
        splits = ", ".join(f"{split.name} {split.num_examples:,}" for split in self.splits)
        return (
            f"about {human_count(self.num_examples, 'examples')} ({splits}), "
            f"{human_bytes(self.output_bytes)} before compression; "
            f"{human_count(len(self.warnings), 'warnings')}"
        )

    def _repr_html_(self) -> str:
        splits = [
            [
                escaped(split.name),
                f"{split.num_examples:,}",
                f"{split.num_shards:,}",
                human_bytes(split.num_bytes),
            ]
            for split in self.splits
        ]
        parts = [
            f"<p>reads {human_count(self.num_files, 'files')}, {human_bytes(self.input_bytes)}; "
            "numbers are estimates</p>",
            table_html(["split", "examples", "shards", "size"], splits),
            features_html(self.features, self.label, self.num_missing, self.num_sampled),
            *(f"<p>warning: {escaped(warning)}</p>" for warning in self.warnings),
        ]
        return "".join(parts)

    @property
    def output_bytes(self) -> int:
        """Bytes of all shards together."""
        return round(self.num_examples * self.example_bytes)

    @property
    def fits_memory(self) -> bool:
        """Whether all examples would fit into free memory, as a cache."""
        return self.output_bytes < self.free_memory_bytes


def forecast(recipe: Recipe, *, progress: Progress, limit: int | None = None) -> Forecast:
    """Surveys a source and prepares a sample of it in memory.

    Args:
        recipe: The recipe of the build.
        progress: Receives the progress of the steps.
        limit: The limit of the build.

    Raises:
        RecipeError: if the recipe does not fit the source, or its ``preprocessing_fn`` fails
            without data.
        DataError: if the source is empty, its features cannot be inferred, or its schema is not
            that of the recipe's lock.
    """
    refuse_unfit_python()
    with storage.temporary_folder() as scratch:
        workspace = Workspace(scratch)
        survey = take_survey(
            recipe, workspace=workspace, progress=progress, write=False, limit=limit
        )
        refuse_schema(survey)
        progress.start("sample", total=None, unit="records")
        sample = _sample(survey, workspace)
        outputs = check_function(survey)
        progress.finish("sample", reused=False, note=f"{sample.num_records:,} records")
        num_examples = sample.num_all if limit is None else min(sample.num_all, limit)
        counted = _count(survey, sample, workspace, num_examples=num_examples)
    counts = counted.splits
    return Forecast(
        features=survey.features.prepared,
        label=label_of(survey.recipe, survey.features.prepared),
        undeclared=survey.features.undeclared,
        num_files=len(survey.inventory.files),
        input_bytes=survey.inventory.num_bytes,
        num_skipped=survey.inventory.num_skipped,
        label_counts=counted.labels,
        shared_contents=counted.shared,
        sampled_labels={} if counted.labels else counted.sampled,
        num_examples=num_examples,
        example_bytes=sample.record_bytes,
        compression=_compression(recipe, sample),
        splits=_split_forecasts(recipe, counts, example_bytes=sample.record_bytes),
        outputs=outputs,
        num_missing=sample.num_missing,
        num_sampled=sample.num_records,
        free_memory_bytes=psutil.virtual_memory().available,
        warnings=tuple(_warnings(survey, sample, counted)),
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Sample:
    """Prepared records, and how many others they represent."""

    num_records: int
    record_bytes: float
    gzip_ratio: float
    rejects: list[Reject]
    """Rejects of the sample; those of the inventory are known for all files."""
    scale: float
    """How many records each sampled one represents."""
    batches: Sequence[pa.RecordBatch]
    """The prepared records, in the form of runs."""
    is_all: bool
    """Whether the source has no other records."""
    densities: Mapping[str, float]
    """Of tables: records per byte of the files of each source, by the prefix of their paths."""
    num_filtered: int
    image_facts: Mapping[str, ImageFacts]
    num_missing: Mapping[str, int]
    warnings: Sequence[str]
    """What dividing the records tells, if the sample contains all."""

    @property
    def num_all(self) -> int:
        """Estimated number of examples."""
        return round(self.num_records * self.scale)


def _sample(survey: Survey, workspace: Workspace) -> _Sample:
    """Prepares the records of a few files, or the first rows of a block, through all stages."""
    recipe, inventory = survey.recipe, survey.inventory
    config = first_config(survey, carry(recipe), workspace)
    dropped = Dropped()
    read = [_read_rows(survey, config, block, dropped) for block in _sample_blocks(survey)]
    batches = [records for rows in read for records in rows.batches]
    is_enough = any(rows.is_enough for rows in read)
    num_records = sum(map(len, batches))
    if recipe.files.numbered:
        scale = inventory.num_bytes / max(1, sum(rows.num_read for rows in read))
        if num_records:
            scale = sum(rows.num_records * rows.scale for rows in read) / num_records
    else:
        readable = sum(not file.problem and not file.of for file in inventory.files)
        num_rejects = sum(reject.stage != "inventory" for reject in dropped.rejects)
        scale = readable / max(1, num_records + dropped.num_filtered + num_rejects)
    warnings: list[str] = []
    for _ in survey.stages[1:]:
        config, batches = _next_stage(survey, config, batches, dropped, warnings.append)
    facts: dict[str, ImageFacts] = {}
    for records in batches:
        merge_image_facts(facts, records, survey.features.prepared)
    sizes = [records.column(NUM_BYTES).to_numpy() for records in batches if len(records)]
    num_records = sum(map(len, sizes))
    is_all = scale == 1 and not is_enough
    return _Sample(
        warnings=warnings if is_all else [],
        batches=batches,
        is_all=is_all,
        densities={rows.prefix: rows.density for rows in read},
        num_filtered=dropped.num_filtered,
        num_records=num_records,
        record_bytes=FRAME_BYTES + float(np.concatenate(sizes).mean()) if sizes else 0.0,
        gzip_ratio=_gzip_ratio(batches, survey.features.prepared),
        rejects=[reject for reject in dropped.rejects if reject.stage != "inventory"],
        scale=scale,
        image_facts=facts,
        num_missing={
            name: sum(records.column(name).null_count for records in batches)
            for name, feature in survey.features.prepared.items()
            if is_optional(feature)
        },
    )


def _gzip_ratio(batches: Sequence[pa.RecordBatch], prepared: Features) -> float:
    """GZIP bytes per byte of the first sampled records."""
    for records in filter(len, batches):
        room = max(1, SAMPLE_BYTES * len(records) // max(1, records.nbytes))
        columns = records.select(wire_schema(prepared).names).slice(0, min(room, SAMPLE_RECORDS))
        return sizes_of(columns, prepared=0).gzip_ratio
    return 1.0


def _compression(recipe: Recipe, sample: _Sample) -> str:
    """Unknown where a ``preprocessing_fn`` changes what is stored."""
    if recipe.preprocessing_fn or recipe.transform_from or not sample.num_records:
        return ""
    shards, ratio = recipe.shards, sample.gzip_ratio
    chosen = choose_compression(shards.compression, ratio=ratio, read_mb_per_s=shards.read_mb_per_s)
    return describe_compression(chosen, ratio=ratio)


@dataclasses.dataclass(frozen=True)
class _Rows:
    """The sampled records of one source."""

    batches: list[pa.RecordBatch]
    num_read: int
    """How many bytes of the source hold them."""
    is_enough: bool
    """Whether its block has more records."""
    scale: float
    """How many records of the source each of them represents."""
    prefix: str
    num_bytes: int
    """The size of the source's files, whose paths have this prefix."""

    @property
    def num_records(self) -> int:
        return sum(map(len, self.batches))

    @property
    def density(self) -> float:
        """Records per byte of the source."""
        return self.num_records * self.scale / max(1, self.num_bytes)


def _read_rows(survey: Survey, config: PrepareConfig, block: Block, dropped: Dropped) -> _Rows:
    """Prepares the records of a block; of rows, the first ones."""
    batches: list[pa.RecordBatch] = []
    num_read, num_behind, num_rejects = block.num_bytes, 0, 0
    is_enough = False
    for records in RunMaker(config).records(block, dropped):
        if is_enough:
            num_behind += len(records)
            continue
        batches.append(records)
        num_rejects = len(dropped.rejects)
        if survey.recipe.files.numbered and sum(map(len, batches)) >= _SAMPLE_ROWS:
            is_enough = True
            before = _bytes_before(records.column(ID)[-1].as_py(), block, survey)
            if before is not None:
                num_read = before
                break
    if is_enough:
        # Rejects after the sample do not belong to it.
        del dropped.rejects[num_rejects:]
    prefix = _part_of(survey, block).prefix
    files = (file for file in survey.inventory.files if file.path.startswith(prefix))
    num_bytes = sum(file.num_bytes for file in files)
    num_records = sum(map(len, batches))
    scale = num_bytes / max(1, num_read) * (1 + num_behind / max(1, num_records))
    return _Rows(batches, num_read, is_enough, scale, prefix, num_bytes)


def _sample_blocks(survey: Survey) -> list[Block]:
    """What to sample: the files with the lowest keys, or the first block of rows of each source."""
    blocks = survey.inventory.blocks
    first = {_part_of(survey, block).prefix: block for block in reversed(blocks)}
    if survey.recipe.files.numbered:
        return list(first.values())
    ranges = [part for block in blocks for part in block.ranges if not part.of]
    keys = record_keys([part.path for part in ranges], survey.recipe.seed)
    lowest = [ranges[index] for index in np.argsort(keys)[:_SAMPLE_FILES]]
    records = {part.path for part in lowest}
    partners = [part for block in blocks for part in block.ranges if part.of in records]
    wanted = [*lowest, *partners]
    chosen = (
        dataclasses.replace(block, ranges=tuple(r for r in wanted if r.path.startswith(prefix)))
        for prefix, block in first.items()
    )
    return [block for block in chosen if block.ranges]


def _part_of(survey: Survey, block: Block) -> SourcePart:
    """The source that a block belongs to."""
    return part_of(parts_of(survey.recipe.files, survey.opened), block.ranges[0].path)


def _bytes_before(record_id: bytes, block: Block, survey: Survey) -> int | None:
    """The number of bytes of a block before a record; None if unknown.

    The id of the record may have a prefix.
    """
    text, _, position = record_id.rpartition(b"#")
    num_bytes = 0
    for part in block.ranges:
        if text.endswith(path_bytes(part.path)):
            offset = _source_offset(int(position), part, survey)
            return None if offset is None else num_bytes + max(0, offset - part.start)
        num_bytes += part.stop - part.start
    return None


def _source_offset(position: int, part: FileRange, survey: Survey) -> int | None:
    """Where a record is in its file, in bytes of the stored file; None if unknown."""
    own = _part_of(survey, Block((part,)))
    source, opened = own.source, own.opened
    (file,) = (file for file in survey.inventory.files if file.path == part.path)
    (file,) = without_prefix([file], own.prefix)
    if isinstance(source, NumbersRecords):
        return source.offset_of(file, position + 1, opened)
    # The position is an offset in the uncompressed content.
    compression = compression_of(opened.read(file.path, 0, MAGIC_BYTES))
    if not compression:
        return position
    return compressed_offset(functools.partial(opened.read, file.path), compression, position)


def _next_stage(
    survey: Survey,
    config: PrepareConfig,
    batches: list[pa.RecordBatch],
    dropped: Dropped,
    warn: Callable[[str], None],
) -> tuple[PrepareConfig, list[pa.RecordBatch]]:
    """Runs a step across records on the sample, as a build would on all records."""
    workspace = config.workspace
    files = RunFiles(
        workspace, config.features.outputs, label=None, stratify_by=None, suffix="plain"
    )
    run_id = f"{config.stage:032x}"
    summary = files.write(run_id, batches, dropped=Dropped(), in_order=False)
    write_summary(summary, workspace, run_id)
    ends = config.ends
    if ends is None and summary.num_records:
        ends = find_split_ends(
            summary.entries,
            recipe=survey.recipe,
            features=config.features.outputs,
            workspace=workspace,
            warn=warn,
        )
    following = next_config(survey, config, previous_summary=run_id, contents="", ends=ends)
    made = RunMaker(following).records(KeySpan(0, KEY_SPACE), dropped)
    return following, list(made)


def _count(survey: Survey, sample: _Sample, workspace: Workspace, *, num_examples: int) -> Counted:
    """The records of each split and label: exactly where what is known suffices, or estimated."""
    if sample.is_all and sample.num_records:
        # A build would fail for the rejects before it looks at splits.
        refuse = not _exceeded(survey, sample)
        try:
            return count_exactly(survey, sample.batches, workspace=workspace, refuse=refuse)
        except RecipeError as error:
            if not sample.rejects:
                raise
            rejected = human_count(len(sample.rejects), "records")
            reasons = describe_rejects(sample.rejects)
            raise RecipeError(f"{error}\nRejected: {rejected}\n{reasons}") from None
    kept = sample.num_records / max(
        1, sample.num_records + sample.num_filtered + len(sample.rejects)
    )
    counted = count_by_labels(survey, sample.batches, workspace=workspace, kept=kept)
    if counted is None:
        counted = estimate_counts(
            survey, sample.batches, num_examples=num_examples, densities=sample.densities
        )
    return counted


def _split_forecasts(
    recipe: Recipe, counts: Mapping[str, int], *, example_bytes: float
) -> tuple[SplitForecast, ...]:
    forecasts = []
    for name, examples in counts.items():
        size = round(examples * example_bytes)
        shards = recipe.shards.num_shards_of(name, num_examples=examples, num_bytes=size)
        forecasts.append(SplitForecast(name, examples, size, shards))
    return tuple(forecasts)


def _exceeded(survey: Survey, sample: _Sample) -> Sequence[Exceeded]:
    """The budgets that the rejects of a build would exceed."""
    stages = Counter({"inventory": sum(bool(file.problem) for file in survey.inventory.files)})
    for stage, number in Counter(reject.stage for reject in sample.rejects).items():
        stages[stage] += round(number * sample.scale)
    # Rounded once: of files that are records, this is their exact number, as a build counts them.
    sampled = sample.num_records + len(sample.rejects) + sample.num_filtered
    num_records = round(sampled * sample.scale) + stages["inventory"]
    return exceeded_budgets(stages, survey.recipe.reject_budgets(num_records))


def _warnings(survey: Survey, sample: _Sample, counted: Counted) -> Iterator[str]:
    yield from survey_notices(survey)
    if not (sample.num_records or sample.rejects):
        yield (
            f"a build {'will' if sample.is_all else 'may'} fail: prepare= leaves none of the "
            f"sampled records ({sample.num_filtered:,} dropped by filters)"
        )
    if sample.rejects:
        yield (
            f"{len(sample.rejects):,} of {sample.num_records + len(sample.rejects):,} sampled "
            f"records would be rejected:\n{describe_rejects(sample.rejects)}"
        )
    for one in _exceeded(survey, sample):
        where = "rejects" if one.stage == TOTAL else f"rejects of the stage {one.stage}"
        verb = "will" if sample.is_all else "may"
        yield (
            f"a build {verb} fail: about {one.num_rejects:,} {where}, but only {one.allowed:,} are "
            "allowed"
        )
    yield from sample_notices(sample.batches, survey)
    for name, known in sample.image_facts.items():
        if known.height is None or known.width is None:
            yield (
                f"feature {name!r}: images differ in size: pass image_size= to the reader, or "
                "resize them once, in prepare="
            )
    yield from sample.warnings
    splits = survey.recipe.splits
    counts = counted.splits
    yield from counted.warnings
    if counted.is_exact:
        if empty := empty_splits(splits, counts):
            yield f"these splits will be empty: {', '.join(empty)}"
    elif small := [name for name, _ in splits.fractions if counts[name] < 2 and sample.num_records]:
        failing = "" if splits.allow_empty else ", which fails the build"
        yield f"these splits may be empty{failing}: {', '.join(small)}"
