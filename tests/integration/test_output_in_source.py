"""Output that lies in the source's folder is never read as raw data."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import snapshard as ss
from snapshard.transforms.storage.opened_source import open_source

from .test_changing_sources import NUM_ROWS, _tfrecord


@pytest.mark.slow
@pytest.mark.parametrize("elsewhere", [False, True])
@pytest.mark.parametrize("glob", ["", "/**/*.tfrecord"])
@pytest.mark.parametrize("out", ["", "made/here"])
def test_a_build_does_not_read_its_own_records(
    tmp_path: Path, out: str, glob: str, elsewhere: bool
) -> None:
    raw = tmp_path / "raw"
    raw.mkdir()
    (raw / "t.tfrecord").write_bytes(_tfrecord(1))
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
    (tmp_path / "t.tfrecord").write_bytes(_tfrecord(1))
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
