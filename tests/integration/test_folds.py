"""``Splits.k_fold``: builds for cross-validation, and what their readers give."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import snapshard as ss
from snapshard.schemas.errors import RecipeError

ROWS = [(i, f"g{i % 23}", "ab"[i % 5 == 0]) for i in range(230)]


def build(folder: Path, splits: ss.Splits, **options: Any) -> ss.Snapshot:
    lines = ["id,group,label", *(",".join(map(str, row)) for row in ROWS)]
    (folder / "table.csv").write_text("\n".join(lines))
    source = ss.Csv(str(folder / "table.csv"), label="label")
    recipe = ss.Recipe(name="made", source=source, splits=splits, **options)
    return ss.build(recipe, folder / "out")


def columns(dataset: Any) -> list[tuple[int, str]]:
    """The id and the group of each record."""
    found = []
    for batch in dataset:
        names = [name.decode() for name in batch["group"].numpy().tolist()]
        found += zip(batch["id"].numpy().tolist(), names, strict=True)
    return found


@pytest.mark.slow
def test_groups_stay_in_one_fold(tmp_path: Path) -> None:
    splits = ss.Splits.k_fold(4, test=0.2, group_by="group", assign="balanced")
    reader: Any = build(tmp_path, splits).reader()
    assert [*reader.NUM_EXAMPLES] == ["fold0", "fold1", "fold2", "fold3", "test"]
    tested = columns(reader.dataset("test", 16))
    seen: Counter[int] = Counter()
    for i in range(4):
        train, validation = reader.fold(i)
        trained = columns(reader.dataset(train, 16, seed=1))
        validated = columns(reader.dataset(validation, 16))
        for rows, split in ((trained, train), (validated, validation)):
            assert reader.steps(split, 16) == -(-len(rows) // 16)
        assert len(trained) + len(validated) + len(tested) == len(ROWS)
        groups = [{group for _, group in rows} for rows in (trained, validated, tested)]
        assert sum(map(len, groups)) == len(set.union(*groups))
        assert abs(len(validated) - 46) <= 10
        seen.update(number for number, _ in validated)
    assert {*seen.values()} == {1}
    assert {*seen} | {number for number, _ in tested} == {*range(len(ROWS))}


def test_folds_are_stratified(tmp_path: Path) -> None:
    snapshot = build(tmp_path, ss.Splits.k_fold(3, stratify_by="label"))
    reader: Any = snapshot.reader()
    for split in snapshot.manifest.splits.values():
        counts: Counter[str] = Counter()
        for shard in split.shards:
            counts.update(shard.label_counts)
        assert abs(counts["a"] - 184 / 3) < 1.01
        assert abs(counts["b"] - 46 / 3) < 1.01
    shares = reader.CLASS_SHARES  # of all folds
    assert shares == pytest.approx([0.8, 0.2])


def test_statistics_of_all_folds_would_leak(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"analysed once, .* adapt a layer .* in each round"):
        build(tmp_path, ss.Splits.k_fold(3, test=0.1), preprocessing_fn=dict)
