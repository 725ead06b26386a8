"""Texts: lines, paragraphs and files; built, verified, read back equal, from anywhere."""

import gzip
from pathlib import Path
from typing import Any

import pytest

import snapshard as ss
from snapshard.pipelines.inspect.suggest import suggest_recipe
from snapshard.pipelines.inspect.verify import verify
from snapshard.pipelines.recognize.readings import UnclearError
from snapshard.schemas.progress import Silent

LINES = [f"Zeile {i}: é 中 {'x' * i}" for i in range(30)]
FILES = {
    "a.txt": "\n".join(LINES[:15]).encode() + b"\n",
    "d/b.txt": "\r\n\r\n".join(LINES[15:]).encode(),
}


def expected(per: str) -> dict[str, bytes]:
    """Record id -> text, told without the source's code."""
    found = {}
    for path, content in FILES.items():
        if per == "file":
            found[path] = content
            continue
        if per == "paragraph" and path == "a.txt":
            found[f"{path}#0"] = content.rstrip(b"\n")
            continue
        for line in LINES[:15] if path == "a.txt" else LINES[15:]:
            found[f"{path}#{content.index(line.encode())}"] = line.encode()
    return found


def rows_of(lab: Any, tmp_path: Path, source: Any) -> dict[str, bytes]:
    splits = ss.Splits(train=0.8, validation=0.1, test=0.1, allow_empty=True)
    recipe = ss.Recipe(name="made", source=source, splits=splits)
    snapshot = ss.build(recipe, tmp_path / "out")
    verify(snapshot, progress=Silent())
    held = lab.read_back(snapshot)
    return dict(zip(held.ids, held.values["text"].tolist(), strict=True))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for path, content in FILES.items():
        (tmp_path / "raw" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "raw" / path).write_bytes(content)
    return tmp_path / "raw"


@pytest.mark.slow
@pytest.mark.parametrize("per", ["line", "paragraph", "file"])
def test_texts_come_back_equal(lab: Any, tmp_path: Path, folder: Path, per: Any) -> None:
    assert rows_of(lab, tmp_path, ss.TextFiles(str(folder), per=per)) == expected(per)


def test_other_encodings_and_compression(lab: Any, tmp_path: Path) -> None:
    texts = [f"Zeile {i} ä" for i in range(5)]
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress("\n".join(texts).encode("latin-1")))
    source = ss.TextFiles(str(tmp_path / "a.txt.gz"), encoding="latin-1")
    found = rows_of(lab, tmp_path, source)
    assert list(found.values()) != []
    assert sorted(found.values()) == sorted(text.encode() for text in texts)


def test_texts_are_recognised(folder: Path) -> None:
    path = str(folder / "a.txt")
    assert suggest_recipe(path).source == ss.TextFiles(path)
    with pytest.raises(UnclearError, match="texts beside the folders") as caught:
        suggest_recipe(str(folder))
    assert ss.TextFiles(str(folder)) in [reading.source for reading in caught.value.readings]
