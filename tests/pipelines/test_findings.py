"""What a source found out is kept between builds, by content, and never wrong."""

from pathlib import Path
from typing import Any

import pytest

import snapshard as ss
from snapshard.pipelines.survey.inference_cache import Findings
from snapshard.pipelines.survey.survey import take_survey
from snapshard.schemas.errors import SchemaError
from snapshard.schemas.naming import Workspace
from snapshard.schemas.progress import Silent
from snapshard.transforms.sources.csv.types import ColumnTypes
from snapshard.transforms.storage.opened_source import open_source


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files whose cells were looked at, one entry a window."""
    looked: list[str] = []
    add = ColumnTypes.add

    def note(self: ColumnTypes, table: Any, rows: Any) -> None:
        looked.append(table.path)
        add(self, table, rows)

    monkeypatch.setattr(ColumnTypes, "add", note)
    return looked


def _features(folder: Path, source: ss.Csv, *, write: bool = True) -> dict[str, Any]:
    recipe = ss.Recipe(name="t", source=source)
    object.__setattr__(recipe, "folder", str(folder))
    workspace = Workspace(str(folder / "work"))
    return take_survey(recipe, workspace=workspace, progress=Silent(), write=write).features.raw


def test_only_what_changed_is_looked_at(tmp_path: Path, typed: list[str]) -> None:
    data = tmp_path / "data"
    data.mkdir()
    for name in "abc":
        # Smaller ones are read together.
        (data / f"{name}.csv").write_text("z,y\n" + "1,x\n" * 20_000)
    first = _features(tmp_path, ss.Csv("data"))
    assert typed == ["a.csv"]  # the others hold the same bytes
    assert list(first) == ["z", "y"]
    assert _features(tmp_path, ss.Csv("data")) == first
    assert len(typed) == 1
    (data / "d.csv").write_text("y,z\n" + "7,1.5\n" * 20_000)
    changed = _features(tmp_path, ss.Csv("data"))
    assert typed == ["a.csv", "d.csv"]
    assert changed == {"z": ss.Scalar("float32"), "y": ss.Scalar("string")}
    assert list(changed) == list(first)


def test_other_settings_look_again(tmp_path: Path, typed: list[str]) -> None:
    (tmp_path / "a.csv").write_text("z,y\n1,-\n2,3\n")
    assert _features(tmp_path, ss.Csv("a.csv"))["y"] == ss.Scalar("string")
    found = _features(tmp_path, ss.Csv("a.csv", null_values=("-",)))
    assert found["y"] == ss.Scalar("int64", optional=True)
    found = _features(tmp_path, ss.Csv("a.csv", types={"y": "string"}))
    assert found["y"] == ss.Scalar("string")
    assert len(typed) == 3
    # Each is kept.
    assert _features(tmp_path, ss.Csv("a.csv"))["y"] == ss.Scalar("string")
    assert len(typed) == 3


def test_a_damaged_or_missing_file_only_costs_time(tmp_path: Path, typed: list[str]) -> None:
    (tmp_path / "a.csv").write_text("z,y\n1,-\n2,3\n")
    first = _features(tmp_path, ss.Csv("a.csv"))
    kept = tmp_path / "work" / "findings.json"
    content = kept.read_bytes()
    for damaged in (content[:-1], content[:40], b"", content.replace(b"int64", b"int32")):
        kept.write_bytes(damaged)
        assert _features(tmp_path, ss.Csv("a.csv")) == first
        assert kept.read_bytes() == content
    assert len(typed) == 5


def test_a_dry_run_writes_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("z,y\n1,-\n")
    _features(tmp_path, ss.Csv("a.csv"), write=False)
    assert not (tmp_path / "work").exists()


def test_errors_are_not_kept(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("z,y\n1\n")
    for _ in range(2):
        with pytest.raises(SchemaError, match="No row has as many"):
            _features(tmp_path, ss.Csv("a.csv"))


def test_the_last_few_settings_are_kept(tmp_path: Path) -> None:
    url = str(tmp_path / "findings.json")
    opened = open_source(str(tmp_path), ".")
    sources = [ss.Csv("x", delimiter=mark) for mark in ",;|/:"]
    for source in sources:
        findings = Findings(url, source.settings())
        remembering = findings.opened(opened)
        assert remembering.remembered("content", "what", lambda: [1]) == [1]
        findings.write()

    def fail() -> Any:
        raise AssertionError

    for source in sources[1:]:
        assert Findings(url, source.settings()).opened(opened).remembered(
            "content", "what", fail
        ) == [1]
    with pytest.raises(AssertionError):
        Findings(url, sources[0].settings()).opened(opened).remembered("content", "what", fail)
