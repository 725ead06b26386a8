"""Forecast: what a build would read and make, from an inventory and a prepared sample.

A dry run: it reads, and writes nothing.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt
import psutil

from ..schemas.blocks import Block, ImageFacts
from ..schemas.errors import Reject
from ..schemas.features import ClassLabel, Features
from ..schemas.naming import Workspace
from ..schemas.progress import Progress
from ..schemas.recipe import Recipe
from ..transforms.keys import record_keys
from ..transforms.rejects import describe_rejects
from ..transforms.runs import ID, NUM_BYTES
from ..transforms.sources.image_folder import ImageFolder
from ..transforms.tfrecord import FRAME_BYTES
from .block_runs import BlockPreparer, PrepareConfig
from .staging import carry
from .survey import Survey, survey

_SAMPLE_FILES = 64
_SAMPLE_ROWS = 10_000


@dataclasses.dataclass(frozen=True)
class SplitForecast:
    """One split to come; numbers are estimates."""

    name: str
    num_examples: int
    num_bytes: int
    num_shards: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Forecast:
    """What a build would read and make; sizes before a ``preprocessing_fn`` and compression.

    Attributes:
        features: The prepared records' features.
        num_files: How many files hold records.
        input_bytes: Of all these files.
        num_skipped: How many files are no records' files, by reason.
        class_counts: Files by class, where folders name the classes.
        num_examples: An estimate, as are the next two.
        example_bytes: Mean bytes of an example in a shard, its framing included.
        splits: What becomes of each split.
        free_memory_bytes: What this machine has free now.
        warnings: What a build would trip over, or its user.
    """

    features: Features
    num_files: int
    input_bytes: int
    num_skipped: Mapping[str, int]
    class_counts: Mapping[str, int]
    num_examples: int
    example_bytes: float
    splits: tuple[SplitForecast, ...]
    free_memory_bytes: int
    warnings: tuple[str, ...]

    @property
    def output_bytes(self) -> int:
        """Bytes of all shards together."""
        return round(self.num_examples * self.example_bytes)

    @property
    def fits_memory(self) -> bool:
        """Whether all examples would fit into the memory that is free, as a cache."""
        return self.output_bytes < self.free_memory_bytes


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Sample:
    """Prepared records, and how many more like them there are."""

    num_records: int
    record_bytes: float
    rejects: list[Reject]
    """Those of records that could be read: what the inventory rejects is known of all files."""
    scale: float
    """How many records each of the sample stands for."""
    image_facts: Mapping[str, ImageFacts]

    @property
    def num_all(self) -> int:
        """Examples to come."""
        return round(self.num_records * self.scale)


def forecast(recipe: Recipe, *, progress: Progress) -> Forecast:
    """Surveys a source and prepares a sample of it in memory.

    Raises:
        RecipeError: if the recipe does not fit the source.
        DataError: if the source is empty or its features cannot be told.
    """
    with tempfile.TemporaryDirectory(prefix="snapshard-") as scratch:
        workspace = Workspace(scratch)
        found = survey(recipe, workspace=workspace, progress=progress, write=False)
        progress.start("sample", total=None, unit="records")
        sample = _sample(found, workspace)
        progress.finish("sample", reused=False, note=f"{sample.num_records:,} records")
    return Forecast(
        features=found.features.prepared,
        num_files=len(found.inventory.files),
        input_bytes=found.inventory.num_bytes,
        num_skipped=found.inventory.num_skipped,
        class_counts=_class_counts(found),
        num_examples=sample.num_all,
        example_bytes=sample.record_bytes,
        splits=_splits(recipe, num_examples=sample.num_all, example_bytes=sample.record_bytes),
        free_memory_bytes=psutil.virtual_memory().available,
        warnings=tuple(_warnings(found, sample)),
    )


def _sample(found: Survey, workspace: Workspace) -> _Sample:
    """Prepares the records of a few files, or the first rows of a block."""
    recipe, inventory = found.recipe, found.inventory
    config = PrepareConfig(
        staged=carry(recipe),
        folder=recipe.folder,
        workspace=workspace,
        raw=found.features.raw,
        prepared=found.features.prepared,
        prepare_digest=found.prepare_digest,
    )
    rejects: list[Reject] = []
    facts: dict[str, ImageFacts] = {}
    block = _sample_block(found)
    sizes: list[npt.NDArray[np.int64]] = []
    num_read = block.num_bytes
    for records in BlockPreparer(config).records(block, rejects=rejects, facts=facts):
        sizes.append(records.column(NUM_BYTES).to_numpy())
        if recipe.source.numbered and sum(map(len, sizes)) >= _SAMPLE_ROWS:
            last = records.column(ID)[-1].as_py().decode("utf-8", "surrogateescape")
            num_read = _bytes_before(last, block)
            break
    rejects = [reject for reject in rejects if reject.stage != "inventory"]
    num_records = sum(map(len, sizes))
    if recipe.source.numbered:
        scale = inventory.num_bytes / max(1, num_read)
    else:
        readable = sum(not file.problem for file in inventory.files)
        scale = readable / max(1, num_records + len(rejects))
    return _Sample(
        num_records=num_records,
        record_bytes=FRAME_BYTES + float(np.concatenate(sizes).mean()) if num_records else 0.0,
        rejects=rejects,
        scale=scale,
        image_facts=facts,
    )


def _bytes_before(record_id: str, block: Block) -> int:
    """How much of a block lies before a record."""
    path, _, position = record_id.rpartition("#")
    num_bytes = 0
    for part in block.ranges:
        if part.path == path:
            return num_bytes + int(position) - part.start
        num_bytes += part.stop - part.start
    return num_bytes


def _sample_block(found: Survey) -> Block:
    """The block to sample: the files with the lowest keys, or the first block of rows."""
    blocks = found.inventory.blocks
    if found.recipe.source.numbered:
        return blocks[0]
    ranges = [part for block in blocks for part in block.ranges]
    keys = record_keys([part.path for part in ranges], found.recipe.seed)
    lowest = np.argsort(keys)[:_SAMPLE_FILES]
    return Block(tuple(ranges[index] for index in lowest))


def _splits(
    recipe: Recipe, *, num_examples: int, example_bytes: float
) -> tuple[SplitForecast, ...]:
    forecasts = []
    for name, fraction in recipe.splits.fractions:
        examples = round(num_examples * fraction)
        size = round(examples * example_bytes)
        shards = recipe.shards.num_shards_of(name, num_examples=examples, num_bytes=size)
        forecasts.append(SplitForecast(name, examples, size, shards))
    return tuple(forecasts)


def _class_counts(found: Survey) -> dict[str, int]:
    if not isinstance(found.recipe.source, ImageFolder):
        return {}
    folders = (file.path.partition("/") for file in found.inventory.files)
    return dict(sorted(Counter(name for name, _, below in folders if below).items()))


def _warnings(found: Survey, sample: _Sample) -> Iterator[str]:
    problems = Counter(file.problem for file in found.inventory.files if file.problem)
    for problem, number in problems.most_common():
        yield f"{number:,} of the files will be rejects: {problem}"
    if sample.rejects:
        yield (
            f"{len(sample.rejects):,} of {sample.num_records + len(sample.rejects):,} sampled "
            f"records would be rejected:\n{describe_rejects(sample.rejects)}"
        )
    num_rejects = problems.total() + round(len(sample.rejects) * sample.scale)
    allowed = found.recipe.reject_budget(sample.num_all + num_rejects)
    if num_rejects > allowed:
        yield (
            f"a build will refuse this: about {num_rejects:,} rejects, and {allowed:,} are allowed"
        )
    for name, feature in found.features.prepared.items():
        if isinstance(feature, ClassLabel) and len(feature.names) < 2:
            yield f"feature {name!r} has only the class {', '.join(map(repr, feature.names))}"
    for name, known in sample.image_facts.items():
        if known.height is None or known.width is None:
            yield (
                f"feature {name!r}: images differ in size, so the reader needs image_size=; or "
                "resize them once, in prepare="
            )
    splits = found.recipe.splits.fractions
    scarce = [name for name, number in _class_counts(found).items() if number < len(splits)]
    if scarce:
        listed = ", ".join(map(repr, scarce[:10])) + (" …" if len(scarce) > 10 else "")
        yield f"classes with fewer files than there are splits: {listed}"
    small = [name for name, share in splits if share * sample.num_all < 1]
    if sample.num_all and small:
        yield f"these splits may be empty: {', '.join(small)}"
