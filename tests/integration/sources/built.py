"""Builds a source as it is, verifies what came of it, and reads it back."""

from pathlib import Path
from typing import Any

import snapshard as ss
from snapshard.pipelines.inspect.verify import verify
from snapshard.schemas.progress import Silent


def build(folder: Path, source: Any, *, workers: int = 1, **settings: Any) -> ss.Snapshot:
    settings = {
        "splits": ss.Splits(train=0.8, validation=0.1, test=0.1, allow_empty=True)
    } | settings
    recipe = ss.Recipe(name="made", source=source, **settings)
    snapshot = ss.build(recipe, folder / "out", workers=workers)
    verify(snapshot, progress=Silent())
    return snapshot


def build_all(folder: Path, source: Any, **settings: Any) -> ss.Snapshot:
    """All records in one split, unless ``splits`` says otherwise."""
    return build(folder, source, **{"splits": ss.Splits(train=1.0), **settings})


def rows_of(lab: Any, snapshot: ss.Snapshot) -> dict[str, dict[str, Any]]:
    """Record id -> values, through the snapshot's reader."""
    return {record_id: values for record_id, _, values in lab.read_back(snapshot).rows()}


def plain_rows(lab: Any, snapshot: ss.Snapshot) -> dict[str, dict[str, Any]]:
    """Record id -> values of each stored example, arrays as lists."""
    return {
        record_id: {
            name: value.tolist() if hasattr(value, "tolist") else value
            for name, value in values.items()
        }
        for record_id, values in lab.stored_rows(snapshot).items()
    }
