"""Sealed files: what was altered, cut off or swapped is as good as none."""

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapshard.schemas.errors import StorageError
from snapshard.transforms import storage
from snapshard.transforms.storage.artifacts import (
    is_lost,
    put_artifact,
    put_if_changed,
    read_artifact,
)

BODY = b'{"a": [1, 2]}\nsecond line\n'


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, bytes]:
    url = str(tmp_path_factory.mktemp("artifact") / "file")
    put_artifact(url, BODY, what="plan-1 ab")
    return url, Path(url).read_bytes()


@pytest.mark.parametrize("body", [b"", b"\n", b"\n\n\x00\xff", BODY])
def test_what_is_put_is_read(tmp_path: Path, body: bytes) -> None:
    url = str(tmp_path / "deep" / "file")
    put_artifact(url, body, what="plan-1 ab")
    assert read_artifact(url, what="plan-1 ab") == body


@given(place=st.integers(0, 10**6), bit=st.integers(0, 7))
def test_no_flipped_bit_passes(artifact: tuple[str, bytes], place: int, bit: int) -> None:
    url, content = artifact
    altered = bytearray(content)
    altered[place % len(content)] ^= 1 << bit
    Path(url).write_bytes(altered)
    assert read_artifact(url, what="plan-1 ab") is None


@given(length=st.integers(0, 10**6), more=st.binary(max_size=3))
def test_no_other_length_passes(artifact: tuple[str, bytes], length: int, more: bytes) -> None:
    url, content = artifact
    altered = content[: length % len(content)] + more
    Path(url).write_bytes(altered)
    assert read_artifact(url, what="plan-1 ab") is None or altered == content


def test_of_another_kind_or_name_is_none(tmp_path: Path) -> None:
    url = str(tmp_path / "file")
    put_artifact(url, BODY, what="plan-1 ab")
    for other in ("plan-2 ab", "plan-1 ac", "run-1 ab"):
        assert read_artifact(url, what=other) is None
    assert read_artifact(str(tmp_path / "missing"), what="plan-1 ab") is None
    assert read_artifact(str(tmp_path / "file" / "below"), what="plan-1 ab") is None
    assert read_artifact("memory://nowhere/at-all", what="plan-1 ab") is None


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES])
def test_a_bad_disk_is_a_loss_and_a_lack_of_permission_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def fail(*_: object) -> bytes:
        raise OSError(number, os.strerror(number))

    (tmp_path / "file").touch()
    monkeypatch.setattr(storage, "read_local", fail)
    if number == errno.EIO:
        assert read_artifact(str(tmp_path / "file"), what="x") is None
        return
    with pytest.raises(StorageError, match="permission denied") as raised:
        read_artifact(str(tmp_path / "file"), what="x")
    assert not is_lost(raised.value)


def test_a_file_named_by_its_content_is_put_where_it_is_not_whole(tmp_path: Path) -> None:
    path = tmp_path / "named"
    put_if_changed(str(path), BODY)
    first = path.stat().st_ino
    put_if_changed(str(path), BODY)
    assert path.stat().st_ino == first
    for damaged in (b"", BODY[:-1], BODY + b"x", BODY.replace(b"1", b"3")):
        path.write_bytes(damaged)
        put_if_changed(str(path), BODY)
        assert path.read_bytes() == BODY
