"""Parts of a zip's members: the same bytes in whatever order, and none decompressed twice."""

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from snapshard.transforms.storage import read_remote, zip_members
from snapshard.transforms.storage.opened_source import open_source

NAMES = tuple("abcdef")
CONTENTS = {
    name: np.random.default_rng(number).integers(0, 9, 3000 + number, np.uint8).tobytes()
    for number, name in enumerate(NAMES)
}


def opened(folder: Path, contents: dict[str, bytes]) -> Any:
    with zipfile.ZipFile(folder / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in contents.items():
            archive.writestr(name, content)
    return open_source("a.zip", str(folder)).filesystem


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return opened(tmp_path_factory.mktemp("zip"), CONTENTS)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    parts=st.lists(
        st.tuples(st.sampled_from(NAMES), st.integers(0, 3100), st.integers(0, 3100)), max_size=20
    )
)
def test_parts_in_any_order_are_slices(archive: Any, parts: list[tuple[str, int, int]]) -> None:
    for name, start, stop in parts:
        assert read_remote(archive, name, start, stop) == CONTENTS[name][start:stop]


def test_parts_one_after_the_other_open_a_member_once(tmp_path: Path) -> None:
    archive = opened(tmp_path, CONTENTS)
    calls = []
    open_member = archive.open

    def counted(path: str, mode: str) -> Any:
        calls.append(path)
        return open_member(path, mode)

    archive.open = counted
    # Two beside each other, as arrays of two files are read.
    for start in range(0, 3000, 100):
        for name in "ab":
            part = zip_members.read_part(archive, name, start, start + 100)
            assert part == CONTENTS[name][start : start + 100]
    assert calls == ["a", "b"]


def test_an_archive_that_was_replaced_is_read_anew(tmp_path: Path) -> None:
    first = opened(tmp_path, {"a": b"x" * 500})
    assert read_remote(first, "a", 0, 3) == b"xxx"
    second = opened(tmp_path, {"a": b"y" * 500})
    assert read_remote(second, "a", 3, 6) == b"yyy"


def test_what_is_not_there_or_damaged_is_told_each_time(tmp_path: Path) -> None:
    archive = opened(tmp_path, CONTENTS)
    for _ in range(2):
        with pytest.raises(FileNotFoundError):
            read_remote(archive, "z", 0, 3)
    path = tmp_path / "a.zip"
    content = bytearray(path.read_bytes())
    content[600] ^= 0xFF
    path.write_bytes(bytes(content))
    damaged = open_source("a.zip", str(tmp_path)).filesystem
    for _ in range(2):
        with pytest.raises(Exception, match=r"CRC|invalid|decompressing|as long as"):
            read_remote(damaged, "a", 0, 3001)
    assert read_remote(damaged, "b", 0, 3) == CONTENTS["b"][:3]
