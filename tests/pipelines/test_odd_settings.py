"""Settings that no build can use are refused as settings, before anything is read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import snapshard as ss
from snapshard.pipelines.inspect.forecast import forecast
from snapshard.schemas.errors import RecipeError
from snapshard.schemas.progress import Silent


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        (lambda: {"splits": ss.Splits(train=1.0, stratify_by=["a"])}, "stratify_by"),  # type: ignore[arg-type]
        (lambda: {"splits": ss.Splits(train=1.0, group_by=["a"])}, "group_by"),  # type: ignore[arg-type]
        (lambda: {"splits": ss.Splits.by_column(None, train="a")}, "by_column"),  # type: ignore[arg-type]
        (lambda: {"splits": ss.Splits.by_time([], train=1.0)}, "by_time"),  # type: ignore[arg-type]
        (lambda: {"splits": ss.Splits.by_column("a", train=5)}, "by_column: train=5"),  # type: ignore[arg-type]
        (lambda: {"shards": ss.Shards(read_mb_per_s=float("nan"))}, "read_mb_per_s"),
        (lambda: {"shards": ss.Shards(read_mb_per_s=float("inf"))}, "read_mb_per_s.*finite"),
        (lambda: {"shards": ss.Shards(target_bytes="9" * 400)}, "8 EiB"),
        (lambda: {"features": {}}, "features="),
        (lambda: {"prepare": [ss.images.check("a")]}, "'a' is a Scalar"),
        (lambda: {"prepare": [ss.images.check("typo")]}, "'typo' does not exist"),
        (lambda: {"prepare": [ss.text.truncate("t", 2**40)]}, "length"),
    ],
)
def test_odd_settings_are_refused(
    tmp_path: Path, settings: Callable[[], dict[str, Any]], names: str
) -> None:
    (tmp_path / "t.csv").write_text("a,t\n1,x\n2,y\n")
    with pytest.raises(RecipeError, match=names):
        forecast(
            ss.Recipe(name="odd", source=ss.Csv(str(tmp_path / "t.csv")), **settings()),
            progress=Silent(),
        )
