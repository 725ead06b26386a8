"""A graph's files: a graph that was put in part, or damaged since, is none."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from snapshard.schemas.errors import DamagedWorkError
from snapshard.schemas.features import Scalar
from snapshard.transforms import storage
from snapshard.transforms.analysis.graph import (
    GraphInfo,
    GraphOutputs,
    TransformGraph,
    checked_graph,
    put_graph,
    read_graph_file,
    read_graph_info,
)

FEATURES = {"x": Scalar("float32")}
OUTPUTS = GraphOutputs(features=FEATURES, kept={})
FILES = ("metadata/schema.pbtxt", "transform_fn/assets/words", "transform_fn/saved_model.pb")


class KilledError(BaseException):
    """Ends a test's put where a kill would."""


def put(folder: Path) -> GraphInfo:
    """Makes a graph's files, and puts them."""
    for name in FILES:
        (folder / "made" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "made" / name).write_text(f"the content of {name}")
    made, url = str(folder / "made"), str(folder / "graph")
    return put_graph(made, url, inputs=FEATURES, outputs=OUTPUTS)


@pytest.mark.parametrize("number", range(len(FILES) + 1))
@pytest.mark.parametrize("after", [False, True])
def test_a_graph_that_was_put_in_part_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, after: bool
) -> None:
    """Killed before and after each put; then it is put again."""
    count = iter(range(100))

    def stopping(original: Callable[..., None]) -> Callable[..., None]:
        def put_one(*arguments: Any) -> None:
            here = next(count) == number
            if here and not after:
                raise KilledError
            original(*arguments)
            if here:
                raise KilledError

        return put_one

    with monkeypatch.context() as patch:
        patch.setattr(storage, "put_file", stopping(storage.put_file))
        patch.setattr(storage, "put_bytes", stopping(storage.put_bytes))
        with pytest.raises(KilledError):
            put(tmp_path)
    url = str(tmp_path / "graph")
    is_last = after and number == len(FILES)
    assert (checked_graph(url) is not None) == is_last
    assert put(tmp_path) == checked_graph(url)


@pytest.mark.parametrize("name", [*FILES, "graph.json"])
@pytest.mark.parametrize("damage", ["flip", "truncate", "remove"])
def test_a_damaged_graph_is_none(tmp_path: Path, name: str, damage: str) -> None:
    info = put(tmp_path)
    url, path = str(tmp_path / "graph"), tmp_path / "graph" / name
    assert checked_graph(url) == read_graph_info(url) == info
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    if damage == "remove":
        path.unlink()
    else:
        path.write_bytes(content if damage == "flip" else content[:-1])
    assert checked_graph(url) is None
    if name == "graph.json":
        with pytest.raises(DamagedWorkError, match="no transform graph"):
            TransformGraph(url)
    else:
        with pytest.raises(DamagedWorkError, match="missing or damaged"):
            read_graph_file(url, info, name)
