"""Forecast: what a build would read and make, from an inventory and a prepared sample.

A dry run: it reads, and writes nothing.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Mapping

import numpy as np
import psutil

from ..schemas.blocks import Block
from ..schemas.errors import Reject
from ..schemas.features import ClassLabel, Features
from ..schemas.naming import Workspace
from ..schemas.progress import Progress
from ..schemas.recipe import Recipe
from ..transforms.keys import record_keys
from ..transforms.rejects import describe_rejects
from ..transforms.runs import NUM_BYTES
from .block_runs import BlockPreparer, PrepareConfig
from .staging import carry
from .survey import Survey, survey

_SAMPLE_FILES = 64


@dataclasses.dataclass(frozen=True)
class SplitForecast:
    """One split to come; numbers are estimates."""

    name: str
    num_examples: int
    num_bytes: int
    num_shards: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Forecast:
    """What a build would read and make; sizes before a ``preprocessing_fn`` and compression."""

    features: Features
    num_files: int
    input_bytes: int
    num_skipped: Mapping[str, int]
    num_examples: int
    example_bytes: float
    splits: tuple[SplitForecast, ...]
    fits_memory: bool
    warnings: tuple[str, ...]

    @property
    def output_bytes(self) -> int:
        """Encoded bytes of all examples together."""
        return round(self.num_examples * self.example_bytes)

    @property
    def memory_note(self) -> str:
        """Whether all examples would fit into memory, as a clause."""
        free = psutil.virtual_memory().available
        verdict = "fits" if self.fits_memory else "does not fit"
        return f"which {verdict} the {free / 1e9:.1f} GB of memory that are free (for a cache)"


def forecast(recipe: Recipe, *, progress: Progress) -> Forecast:
    """Surveys a source and prepares a sample of it in memory.

    Raises:
        RecipeError: if the recipe does not fit the source.
        DataError: if the source is empty or its features cannot be told.
    """
    with tempfile.TemporaryDirectory(prefix="snapshard-") as scratch:
        workspace = Workspace(scratch)
        found = survey(recipe, workspace=workspace, progress=progress, write=False)
        config = PrepareConfig(
            staged=carry(recipe),
            folder=recipe.folder,
            workspace=workspace,
            raw=found.features.raw,
            prepared=found.features.prepared,
            prepare_digest=found.prepare_digest,
        )
        rejects: list[Reject] = []
        block = _sample_block(found)
        records = next(BlockPreparer(config).records(block, rejects=rejects, facts={}), None)
    num_sampled, example_bytes = 0, 0.0
    num_examples = 0 if recipe.source.numbered else len(found.inventory.files)
    if records is not None and records.num_rows:
        num_sampled = records.num_rows
        example_bytes = float(np.mean(records.column(NUM_BYTES).to_numpy()))
        if recipe.source.numbered:
            last = int(records.column("snapshard/id")[num_sampled - 1].as_py().rpartition(b"#")[2])
            start = block.ranges[0].start
            num_examples = round(found.inventory.num_bytes * num_sampled / max(1, last - start))
    return Forecast(
        features=found.features.prepared,
        num_files=len(found.inventory.files),
        input_bytes=found.inventory.num_bytes,
        num_skipped=found.inventory.num_skipped,
        num_examples=num_examples,
        example_bytes=example_bytes,
        splits=_splits(recipe, num_examples=num_examples, example_bytes=example_bytes),
        fits_memory=num_examples * example_bytes < psutil.virtual_memory().available,
        warnings=tuple(_warnings(found, rejects, num_sampled=num_sampled)),
    )


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


def _warnings(found: Survey, rejects: list[Reject], *, num_sampled: int) -> list[str]:
    warnings = []
    problems = sum(bool(file.problem) for file in found.inventory.files)
    if problems:
        warnings.append(f"{problems:,} files cannot be read and will be rejects")
    if rejects:
        warnings.append(
            f"{len(rejects):,} of {num_sampled + len(rejects):,} sampled records would be "
            f"rejected:\n{describe_rejects(rejects)}"
        )
    for name, feature in found.features.prepared.items():
        if isinstance(feature, ClassLabel) and len(feature.names) < 2:
            warnings.append(f"feature {name!r} has only the class {', '.join(feature.names)}")
    small = [name for name, share in found.recipe.splits.fractions if share * num_sampled < 1]
    if num_sampled and small:
        warnings.append(f"splits {', '.join(small)} may be empty")
    return warnings
