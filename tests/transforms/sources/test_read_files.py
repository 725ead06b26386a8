"""Reading many files: ahead, in order, and only what the inventory found."""

import hashlib
from pathlib import Path

import pytest

from snapshard.schemas.blocks import FileRange
from snapshard.schemas.errors import MissingFileError, StorageError
from snapshard.transforms import storage
from snapshard.transforms.storage.opened_source import open_source
from snapshard.transforms.storage.read_files import read_ahead


def part_of(path: str, content: bytes, problem: str = "") -> FileRange:
    sha256 = "" if problem else hashlib.sha256(content).hexdigest()
    return FileRange(path=path, sha256=sha256, start=0, stop=len(content), problem=problem)


def chunks_of(folder: Path) -> list[list[FileRange]]:
    """Five files in three chunks, one of them with a problem."""
    parts = []
    for number in range(5):
        content = b"x" * number
        if number == 3:
            parts.append(part_of("3", b"", "dangling symbolic link"))
            continue
        (folder / str(number)).write_bytes(content)
        parts.append(part_of(str(number), content))
    return [parts[:2], parts[2:4], parts[4:]]


@pytest.mark.parametrize("root", ["", "memory://read-ahead"], ids=["local", "memory"])
def test_files_come_in_order_with_their_contents(tmp_path: Path, root: str) -> None:
    chunks = chunks_of(tmp_path)
    opened = open_source(str(tmp_path), "/")
    if root:
        for path in tmp_path.iterdir():
            storage.put_bytes(f"{root}/{path.name}", path.read_bytes())
        opened = open_source(root, "/")
    found = list(read_ahead(opened, chunks))
    assert [[part for part, _ in chunk] for chunk in found] == chunks
    assert [data for chunk in found for _, data in chunk] == [b"", b"x", b"xx", b"", b"xxxx"]


def test_a_changed_file_fails_where_its_turn_comes(tmp_path: Path) -> None:
    chunks = chunks_of(tmp_path)
    (tmp_path / "2").write_bytes(b"yy")
    contents = read_ahead(open_source(str(tmp_path), "/"), chunks)
    assert len(next(contents)) == 2
    with pytest.raises(StorageError, match=r"2 changed while the build read it"):
        next(contents)


def test_a_longer_or_missing_file_fails(tmp_path: Path) -> None:
    chunks = chunks_of(tmp_path)
    opened = open_source(str(tmp_path), "/")
    (tmp_path / "1").write_bytes(b"longer")
    with pytest.raises(StorageError, match="changed while the build read it"):
        list(read_ahead(opened, chunks))
    (tmp_path / "1").unlink()
    with pytest.raises(MissingFileError, match="it does not exist"):
        list(read_ahead(opened, chunks))
