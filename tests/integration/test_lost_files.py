"""A snapshot that lost a file, or a part of one: each command says so, and that it is damaged."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import snapshard as ss


def _built(folder: Path, **fractions: float) -> Path:
    rows = {"x": [float(i) for i in range(60)], "label": ["cat", "dog"] * 30}
    source, splits = ss.Table(rows, label="label"), ss.Splits(**fractions)
    return Path(ss.build(ss.Recipe(name="lost", source=source, splits=splits), str(folder)).path)


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _built(tmp_path_factory.mktemp("lost"), train=0.8, test=0.2)


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _built(tmp_path_factory.mktemp("other"), train=0.7, test=0.3)


def _lose(file: Path) -> None:
    file.unlink()


def _halve(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 32 * 16])


SHOW, CLASS = ("show", "--records", 1), ("show", "--class", "dog", "--records", 1)
PARQUET = ("export", "--to", "parquet")


@pytest.mark.parametrize(
    ("pattern", "lose", "commands"),
    [
        ("reader/facts.py", _lose, [SHOW]),
        ("reader/facts.py", _halve, [SHOW]),
        ("reader/__init__.py", _halve, [SHOW]),
        ("reader/parsing.py", _lose, [SHOW]),
        ("index/train-*.idx", _lose, [SHOW, ("diff",)]),
        ("index/train-*.idx", _halve, [SHOW]),
        ("index/train-*.labels", _lose, [CLASS]),
        ("index/train-*.labels", _halve, [CLASS]),
        ("index/train-*.parquet", _lose, [SHOW, PARQUET, ("diff",)]),
        ("train-*.tfrecord", _lose, [SHOW, PARQUET]),
        ("statistics.json", _lose, [("drift",)]),
        ("rejects.parquet", _lose, [("rejects",)]),
    ],
    ids=lambda value: value.__name__ if callable(value) else None,
)
def test_it_is_damage(
    intact: Path,
    other: Path,
    tmp_path: Path,
    call: Any,
    pattern: str,
    lose: Callable[[Path], None],
    commands: list[tuple[Any, ...]],
) -> None:
    folder = tmp_path / "lost" / intact.name
    shutil.copytree(intact, folder)
    (file,) = folder.glob(pattern)
    lose(file)
    for command, *options in commands:
        others = {"diff": [other], "drift": [other], "export": ["-o", tmp_path / "exported"]}
        code, printed, told = call(command, folder, *others.get(command, []), *options)
        assert code == 4, f"{command}: {printed}{told}"
        assert file.name in told, command
        assert "snapshard verify" in told, command


@pytest.mark.parametrize("pattern", ["reader/facts.py", "index/train-*.idx"])
def test_its_report_says_so(intact: Path, tmp_path: Path, call: Any, pattern: str) -> None:
    folder = tmp_path / intact.name
    shutil.copytree(intact, folder)
    (file,) = folder.glob(pattern)
    _halve(file)
    code, _, told = call("report", folder)
    assert code == 0, told
    assert "warning: the page is incomplete: Its records could not be read: " in told
    assert "records could not be read: " in (folder / "report.html").read_text()
