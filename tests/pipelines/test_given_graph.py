"""What ``transform_from`` names: found where it lies, by content; refused where it cannot fit."""

import hashlib
import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import snapshard as ss
from snapshard.pipelines.survey import external_graph as given_graph
from snapshard.pipelines.survey.external_graph import GivenGraph, find_graph
from snapshard.schemas.errors import DamagedSnapshotError, RecipeError
from snapshard.schemas.features import ClassLabel, Features, Scalar
from snapshard.schemas.naming import Workspace
from snapshard.transforms.analysis.graph import (
    PUBLISHED,
    GraphInfo,
    GraphOutputs,
    checked_graph,
    put_graph,
    read_graph_info,
)

FEATURES: Features = {"x": Scalar("float32"), "y": ClassLabel(("no", "yes"))}
OUTPUTS = GraphOutputs(features=FEATURES, kept={})


def put(url: Path, *, words: str = "words", code: str = "c0de") -> GraphInfo:
    """A graph, as far as files go."""
    made = url.parent / "made"
    (made / "transform_fn").mkdir(parents=True)
    (made / "transform_fn/saved_model.pb").write_text(words)
    info = put_graph(str(made), str(url), inputs=FEATURES, outputs=OUTPUTS, code=code)
    shutil.rmtree(made)
    return info


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """The workspace of a build that got as far as its analysis."""
    put(tmp_path / "out/name/.work/graphs/0123456789abcdef")
    return tmp_path / "out/name/.work"


def publish(folder: Path, graph: Path, monkeypatch: pytest.MonkeyPatch, **files: bytes) -> None:
    """A snapshot with a graph's files, as far as a look at them goes."""
    info = read_graph_info(str(graph))
    assert info is not None
    contents = {name: (graph / name).read_bytes() for name in info.files}
    contents |= {PUBLISHED: info.to_bytes()} | files
    for name, content in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)

    listed = {
        name: SimpleNamespace(sha256=hashlib.sha256(content).hexdigest())
        for name, content in contents.items()
        if content
    }
    opened = SimpleNamespace(path=str(folder), manifest=SimpleNamespace(files=listed))
    (folder / "manifest.json").write_text("{}")
    monkeypatch.setattr(given_graph.Snapshot, "open", lambda _: opened)


@pytest.mark.parametrize("place", [".", "..", "graphs/0123456789abcdef"])
def test_found_in_a_workspace(workspace: Path, place: str) -> None:
    """By the workspace, the folder of the name that it lies in, or the graph's own."""
    given = find_graph(place, folder=str(workspace))
    assert given.info == read_graph_info(str(workspace / "graphs/0123456789abcdef"))


def test_found_in_a_snapshot(
    workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = workspace / "graphs/0123456789abcdef"
    publish(tmp_path / "snapshot", graph, monkeypatch)
    given = find_graph("snapshot", folder=str(tmp_path))
    assert given.digest == find_graph(str(graph), folder="elsewhere").digest
    shutil.rmtree(workspace)
    url = given.put(Workspace(str(tmp_path / "work")))
    assert checked_graph(url) == given.info
    # It lies there: what it came from is not needed any more.
    shutil.rmtree(tmp_path / "snapshot")
    assert given.put(Workspace(str(tmp_path / "work"))) == url


def test_content_counts(tmp_path: Path) -> None:
    digests = set()
    for index, words in enumerate(["words", "other", "words"]):
        put(tmp_path / str(index), words=words)
        digests.add(find_graph(str(index), folder=str(tmp_path)).digest)
    assert len(digests) == 2


def test_nothing_there(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for name in ("empty", "missing"):
        with pytest.raises(RecipeError, match=f"transform_from='{name}': "):
            find_graph(name, folder=str(tmp_path))


def test_several_there(workspace: Path) -> None:
    put(workspace / "graphs/fedcba9876543210", words="others")
    with pytest.raises(RecipeError, match=r"several transform graphs. Name one of .*0123.*fedc"):
        find_graph("..", folder=str(workspace))


def test_a_snapshot_without(
    workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = workspace / "graphs/0123456789abcdef"
    publish(tmp_path / "old", graph, monkeypatch, **{PUBLISHED: b""})
    with pytest.raises(RecipeError, match=r"transform_from='old': .*no transform graph"):
        find_graph("old", folder=str(tmp_path))


def test_an_altered_snapshot(
    workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = workspace / "graphs/0123456789abcdef"
    folder = tmp_path / "snapshot"
    publish(folder, graph, monkeypatch)
    (folder / "transform_fn/saved_model.pb").write_text("evil")
    with pytest.raises(DamagedSnapshotError, match=r"saved_model\.pb is missing or damaged"):
        find_graph("snapshot", folder=str(tmp_path)).put(Workspace(str(tmp_path / "work")))
    (folder / PUBLISHED).write_bytes(b"{}")
    with pytest.raises(DamagedSnapshotError, match="differs from the manifest"):
        find_graph("snapshot", folder=str(tmp_path))


def test_a_name_that_leads_out(
    workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names from a snapshot never become paths outside of the workspace."""
    graph = workspace / "graphs/0123456789abcdef"
    info: Any = read_graph_info(str(graph))
    value = json.loads(info.to_bytes())
    value["files"]["../../evil"] = "00"
    content = json.dumps(value).encode()
    publish(tmp_path / "snapshot", graph, monkeypatch, **{PUBLISHED: content})
    with pytest.raises(DamagedSnapshotError, match=r"invalid file name '\.\./\.\./evil'"):
        find_graph("snapshot", folder=str(tmp_path))


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    info = put(tmp_path / "graph")
    given = GivenGraph(name="graph", url=str(tmp_path / "graph"), info=info)
    given.check_fits({**FEATURES, "more": Scalar("string")}, code=None)
    given.check_fits(FEATURES, code="c0de")
    with pytest.raises(RecipeError, match=r"expects the feature 'y'.* no such feature"):
        given.check_fits({"x": FEATURES["x"]}, code=None)
    classes = ClassLabel(("no", "maybe", "yes"))
    with pytest.raises(RecipeError, match=r"'y' as ss.ClassLabel\(\(\"no\", \"yes\"\)\), but"):
        given.check_fits({**FEATURES, "y": classes}, code=None)
    with pytest.raises(RecipeError, match="another preprocessing_fn than the recipe's"):
        given.check_fits(FEATURES, code="other")


def test_recipes_say_so_at_once() -> None:
    def recipe(**rest: Any) -> ss.Recipe:
        return ss.Recipe(name="r", source=ss.Csv("a.csv"), **rest)

    assert recipe(transform_from="out").preprocessing_fn is None
    # Nothing is analysed, so no split needs to be called train.
    recipe(transform_from="out", preprocessing_fn=dict, splits=ss.Splits(a=1.0))
    with pytest.raises(RecipeError, match="transform_from=7, expected the path"):
        recipe(transform_from=7)
    with pytest.raises(RecipeError, match="so analyze_on_runner= has nothing to run"):
        recipe(transform_from="out", analyze_on_runner=True)
    with pytest.raises(RecipeError, match="needs a preprocessing_fn, and the recipe has none"):
        recipe(analyze_on_runner=True)
    with pytest.raises(RecipeError, match="analyze_on_runner='yes', expected a bool"):
        recipe(analyze_on_runner="yes", preprocessing_fn=dict)
