"""A missing extra is one line with the command that installs it; exit code 2."""

import importlib.util
import re
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from snapshard.cli import main
from snapshard.schemas.errors import RecipeError
from snapshard.transforms import storage

WAV = b"RIFF\x26\0\0\0WAVEfmt \x10\0\0\0\1\0\1\0\x40\x1f\0\0\x80\x3e\0\0\2\0\x10\0data\2\0\0\0\1\0"
SOURCES: dict[str, tuple[str, str, str]] = {
    "sql": ("adbc_driver_sqlite", "ss.Sql('t.db', 'SELECT 1', key='n')", ""),
    "excel": ("python_calamine", "ss.Excel('t.xlsx')", ""),
    "hdf5": ("h5py", "ss.Hdf5('t.h5')", ""),
    "audio": ("soundfile", "ss.AudioFolder('s')", "ss.audio.decode('audio')"),
    "text": ("tokenizers", "ss.Csv('t.csv')", "ss.text.tokenize('s', tokenizer='t.json')"),
}


@pytest.mark.parametrize("extra", SOURCES)
def test_a_missing_extra(
    extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    module, source, step = SOURCES[extra]
    find: Callable[..., Any] = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *more: None if name == module else find(name, *more),
    )
    for name in [name for name in sys.modules if name.partition(".")[0] == module]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.chdir(tmp_path)
    Path("s/a").mkdir(parents=True)
    Path("s/a/0.wav").write_bytes(WAV)
    Path("t.csv").write_text("s\nx\n")
    Path("t.db").write_bytes(b"")
    Path("t.json").write_text("{}")
    Path("recipe.py").write_text(
        f"import snapshard as ss\nrecipe = ss.Recipe(name='t', source={source}, prepare=[{step}])\n"
    )
    with pytest.raises(SystemExit) as ended:
        main(["build", "recipe.py", "--out", "out"])
    assert ended.value.code == 2
    (line,) = re.findall("^error: .*", capfd.readouterr().err, re.MULTILINE)
    assert f'pip install "snapshard[{extra}]"' in line


def test_a_protocol_whose_library_is_missing() -> None:
    with pytest.raises(RecipeError, match=r"Run: pip install ossfs$"):
        storage.filesystem("oss://bucket/a.csv")


def test_all_extras_are_tried() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    assert set(extras) == {*SOURCES, "s3", "test", "dev"}
