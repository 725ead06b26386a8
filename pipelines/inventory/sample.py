"""Limited builds: which files to read where each file is one record, so that its key is known.

``plan.sample`` says what a limit means, and applies it to all other sources.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from ...schemas.blocks import SourceFile
from ...schemas.splits import KEY_SPACE
from ...transforms.runs.keys import record_keys


@dataclasses.dataclass(frozen=True)
class Limit:
    """Restricts a build to the records with the lowest keys."""

    num_records: int
    stop: int | None = None
    """The first excluded key, if known before records are prepared."""


def lowest_files(
    files: Sequence[SourceFile], *, limit: int, seed: int
) -> tuple[tuple[SourceFile, ...], int]:
    """The files with the lowest keys, in their given order, and the first excluded key."""
    if limit >= len(files):
        return tuple(files), KEY_SPACE
    keys = record_keys([file.record_id for file in files], seed)
    stop = np.sort(keys)[limit]
    return tuple(files[row] for row in np.flatnonzero(keys < stop).tolist()), int(stop)
