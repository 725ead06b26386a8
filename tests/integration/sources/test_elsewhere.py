"""What all sources share elsewhere: the memory of this process is refused where others read it."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

import snapshard as ss

PLACE = "memory://elsewhere"


def _read(file: Any) -> Iterator[dict[str, Any]]:
    yield {"n": len(file.read())}


SOURCES: dict[str, Callable[[str], Any]] = {
    "ImageFolder": ss.ImageFolder,
    "AudioFolder": ss.AudioFolder,
    "ClipFolder": ss.ClipFolder,
    "TextFolder": ss.TextFolder,
    "ArrayFolder": ss.ArrayFolder,
    "WebDataset": ss.WebDataset,
    "Csv": ss.Csv,
    "JsonLines": ss.JsonLines,
    "Parquet": ss.Parquet,
    "Arrow": ss.Arrow,
    "Numpy": ss.Numpy,
    "TFRecords": ss.TFRecords,
    "TextFiles": ss.TextFiles,
    "HuggingFace": ss.HuggingFace,
    "Files": lambda url: ss.Files(url, _read),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.parametrize("url", [PLACE, f"zip://*::{PLACE}/a.zip"])
def test_memory_is_refused_with_several_workers(tmp_path: Path, name: str, url: str) -> None:
    fsspec.filesystem("memory").pipe("/elsewhere/a.zip", b"")
    recipe = ss.Recipe(name="made", source=SOURCES[name](url))
    with pytest.raises(ss.SnapshardError, match=r"memory.* no worker process can.*workers=1"):
        ss.build(recipe, tmp_path / "out", workers=2)
    assert not list((tmp_path / "out").glob("made/*/manifest.json"))
