"""Where a workspace lies, while another build is told another place."""

from __future__ import annotations

from pathlib import Path

import pytest

import snapshard as ss
from snapshard.pipelines import build as builds
from snapshard.pipelines.workspace import choose_workspace, find_workspace, occupied
from snapshard.schemas.naming import OutputPaths


def _told(out: Path, place: Path) -> OutputPaths:
    """A build that was told a place has begun, and ended."""
    paths = choose_workspace(OutputPaths(str(out), "t"), place)
    with occupied(paths, named=True):
        pass
    return paths


def test_the_note_of_another_build_stands(tmp_path: Path) -> None:
    out = tmp_path / "out"
    before = choose_workspace(OutputPaths(str(out), "t"), None)
    told = _told(out, tmp_path / "fast")
    with occupied(before, named=False) as found:
        assert found == told
        assert find_workspace(found.folder).root == told.workspace
    # And the other way: it is put back meanwhile.
    before = choose_workspace(OutputPaths(str(out), "t"), None)
    told = _told(out, out)
    with occupied(before, named=False) as found:
        assert found == told
        assert find_workspace(found.folder).root == str(out / "t" / ".work")


@pytest.mark.parametrize("step", [None, "inventory"])
def test_a_build_works_where_it_is_by_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str | None
) -> None:
    (tmp_path / "t.csv").write_text("number\n1\n2\n")
    recipe = ss.Recipe(
        name="t", source=ss.Csv(str(tmp_path / "t.csv")), splits=ss.Splits(train=1.0)
    )
    out = tmp_path / "out"
    checked: list[str] = []

    def check(_: object, paths: OutputPaths, __: object) -> None:
        if not checked:
            _told(out, tmp_path / "fast")
        checked.append(paths.workspace)

    monkeypatch.setattr(builds, "refuse_memory_of_one_process", check)
    if step is None:
        ss.build(recipe, out)
    else:
        ss.run_step(recipe, out, step)
    (place,) = (tmp_path / "fast").iterdir()
    # Where it is by now is checked too.
    assert checked == [str(out / "t" / ".work"), str(place)]
    assert {path.name for path in place.iterdir()} > {"lock"}
    assert {path.name for path in (out / "t" / ".work").iterdir()} == {"lock", "elsewhere.json"}
