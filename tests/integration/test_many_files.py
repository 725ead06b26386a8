"""How much of a folder of small files is prepared again, with blocks of the usual size."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import snapshard as ss

PAGE = Path(__file__).resolve().parents[2] / "docs" / "incremental.md"
NUM, NUM_BYTES = 1_020, 24_000
SPREAD = [place * NUM // 55 for place in range(55)]
NEAR = range(100, 155)


def write(folder: Path, number: int, version: int) -> None:
    """A text of random letters, always of the same length."""
    letters = np.random.default_rng([number, version]).integers(97, 123, NUM_BYTES, np.uint8)
    letters[9::10] = 32
    (folder / f"{number:05}.txt").write_bytes(letters.tobytes())


@pytest.mark.slow
def test_changed_files_prepare_their_blocks_only(lab: Any, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    for number in range(NUM):
        write(data, number, 0)
    recipe = ss.Recipe(
        name="texts",
        source=ss.TextFiles(str(data), per="file"),
        splits=ss.Splits(train=1.0),
        near_duplicates=False,
    )
    before = ss.build(recipe, tmp_path / "out")
    assert lab.build_facts(before)["blocks"] == {"prepared": 120, "total": 120}
    text, shown = " ".join(PAGE.read_text().split()), []
    for version, changed in enumerate((SPREAD, NEAR), 1):
        for number in changed:
            write(data, number, version)
        after = ss.build(recipe, tmp_path / "out")
        assert sum(split.num_examples for split in after.manifest.splits.values()) == NUM
        new = lab.blocks(after) - lab.blocks(before)
        num_blocks = lab.build_facts(after)["blocks"]
        assert num_blocks == {"prepared": len(new), "total": 120}
        files = {int(part.path.removesuffix(".txt")) for block in new for part in block.ranges}
        assert files >= {*changed}
        shown.append((len(new), len(files)))
        before = after
    assert shown == [(55, 526), (8, 60)]
    said = re.search(r"55 changed.* (\d+) blocks.* (\d+) files.* (\d+) blocks.* (\d+) files", text)
    assert said is not None
    assert [*map(int, said.groups())] == [number for pair in shown for number in pair]
