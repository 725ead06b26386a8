"""What all sources share elsewhere: the memory of this process is refused where others read it."""

from pathlib import Path

import fsspec
import pytest

import snapshard as ss

from ...transforms.sources.subjects import IN_FILES, Subject

PLACE = "memory://elsewhere"


@pytest.mark.slow
@pytest.mark.parametrize("subject", IN_FILES.values(), ids=IN_FILES)
@pytest.mark.parametrize("url", [PLACE, f"zip://*::{PLACE}/a.zip"])
def test_memory_is_refused_with_several_workers(tmp_path: Path, subject: Subject, url: str) -> None:
    fsspec.filesystem("memory").pipe("/elsewhere/a.zip", b"")
    recipe = ss.Recipe(name="made", source=subject.source(lambda _: url))
    with pytest.raises(ss.SnapshardError, match=r"memory.* no worker process can.*workers=1"):
        ss.build(recipe, tmp_path / "out", workers=2)
    assert not list((tmp_path / "out").glob("made/*/manifest.json"))
