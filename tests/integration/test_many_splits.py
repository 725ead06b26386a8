"""A build may have more splits than a byte counts: folds, or one for each group."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image as PillowImage

import snapshard as ss

NUM = 200
SPLITS = ss.Splits(allow_empty=True, **{f"s{i:03}": 1 / NUM for i in range(NUM)})


def _table(folder: Path) -> Any:
    rows = [f"{i // 2}" for i in range(2_000)]  # each content twice: in two splits
    (folder / "t.csv").write_text("\n".join(["x", *rows, ""]))
    return ss.Csv(str(folder / "t.csv"))


def _images(folder: Path) -> Any:
    for i in range(300):
        path = folder / "images" / "kind" / f"{i:03}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        PillowImage.fromarray(np.full((8, 8, 3), i // 3, np.uint8)).save(path)
    return ss.ImageFolder(str(folder / "images"))


@pytest.mark.parametrize("source", [_table, _images])
def test_leaks_between_many_splits_are_counted(tmp_path: Path, source: Any) -> None:
    recipe = ss.Recipe(name="many", source=source(tmp_path), splits=SPLITS)
    manifest = ss.build(recipe, tmp_path / "out").manifest
    assert len(manifest.splits) == NUM
    names = {name for pair in manifest.shared_contents for name in pair.split(", ")}
    assert max(names) > "s128"
