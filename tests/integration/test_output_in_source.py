"""Output that lies in the source's folder is never read as raw data."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import snapshard as ss
from snapshard.transforms.storage.opened_source import open_source

from ..transforms.sources.subjects import tfrecord

NUM_ROWS = 40


@pytest.mark.slow
@pytest.mark.parametrize("elsewhere", [False, True])
@pytest.mark.parametrize("glob", ["", "/**/*.tfrecord"])
@pytest.mark.parametrize("out", ["", "made/here"])
def test_a_build_does_not_read_its_own_records(
    tmp_path: Path, out: str, glob: str, elsewhere: bool
) -> None:
    raw = tmp_path / "raw"
    raw.mkdir()
    (raw / "t.tfrecord").write_bytes(tfrecord(range(NUM_ROWS)))
    recipe = ss.Recipe(
        name="made", source=ss.TFRecords(f"{raw}{glob}"), splits=ss.Splits(train=1.0)
    )
    workspace = str(tmp_path / "work") if elsewhere else None
    for cached in (False, True):
        built = ss.build(recipe, raw / out, workers=1, workspace=workspace)
        assert built.manifest.splits["train"].num_examples == NUM_ROWS
        assert built.cached == cached


def test_output_is_no_raw_data_in_archives_either(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    for name in ("t.tfrecord", "out/x/.work/memo.json", "out/x/ab/t.tfrecord", "out/t.tfrecord"):
        (raw / name).parent.mkdir(parents=True, exist_ok=True)
        (raw / name).write_bytes(b"")
    archive = shutil.make_archive(str(tmp_path / "raw"), "zip", raw)
    for url in (str(raw), archive, f"zip://**/*.tfrecord::{archive}"):
        assert [file.path for file in open_source(url, ".").list()] == [
            "out/t.tfrecord",
            "t.tfrecord",
        ]


def test_published_records_may_be_read_on_purpose(tmp_path: Path) -> None:
    (tmp_path / "t.tfrecord").write_bytes(tfrecord(range(NUM_ROWS)))
    first = ss.Recipe(
        name="first", source=ss.TFRecords(str(tmp_path / "t.tfrecord")), splits=ss.Splits(train=1.0)
    )
    built = ss.build(first, tmp_path / "out", workers=1)
    second = ss.Recipe(
        name="second",
        source=ss.TFRecords(f"{built.path}/*.tfrecord"),
        splits=ss.Splits(train=1.0),
    )
    again = ss.build(second, tmp_path / "out", workers=1)
    assert again.manifest.splits["train"].num_examples == NUM_ROWS


@pytest.mark.slow
def test_output_among_the_data(lab: Any, tmp_path: Path) -> None:
    """Refused where the next build would read it; hidden folders are no data."""
    recipe = lab.image_project(tmp_path, num=5)
    for out in ("images", "images/out", "images/class 0/out"):
        with pytest.raises(ss.SnapshardError, match="inside the source"):
            lab.build(recipe, tmp_path / out)
    assert not list(tmp_path.rglob(".work"))
    assert not lab.build(recipe, tmp_path / "images" / ".out").cached
    assert lab.build(recipe, tmp_path / "images" / ".out").cached


def test_output_beside_a_table(lab: Any, tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text("a,b\n" + "".join(f"{i},{i * i}\n" for i in range(50)))
    for source in ("table.csv", "."):
        recipe = tmp_path / "recipe.py"
        recipe.write_text(
            f"import snapshard as ss\nrecipe = ss.Recipe(name='table', source=ss.Csv({source!r}))\n"
        )
        assert not lab.build(recipe, tmp_path / "out" / source).cached
        assert lab.build(recipe, tmp_path / "out" / source).cached
