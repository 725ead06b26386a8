"""What a build does while it writes shards ends soon where the writing fails."""

import gc
import threading
from pathlib import Path
from typing import Any

import pytest

import snapshard as ss
from snapshard.pipelines import build as builds
from snapshard.pipelines.publish import step as publishing
from snapshard.schemas.errors import RunnerError


@pytest.mark.parametrize("error", [RunnerError("a worker died"), KeyboardInterrupt()])
def test_a_failed_write_is_told_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    begun, never = threading.Event(), threading.Event()
    told: list[object] = []

    def search(*_: object, stop: threading.Event = never, **__: object) -> dict[str, int]:
        begun.set()
        told.append(stop.wait(20))
        return {}

    def export(*_: object) -> Any:
        told.append("serving")
        return None, {}

    def write(*_: object, **__: object) -> Any:
        assert begun.wait(60)
        raise error

    monkeypatch.setattr(publishing, "find_leaks", search)
    monkeypatch.setattr(publishing, "put_serving", export)
    monkeypatch.setattr(builds, "write_shards", write)
    (tmp_path / "t.csv").write_text("number\n1\n2\n")
    recipe = ss.Recipe(
        name="t", source=ss.Csv(str(tmp_path / "t.csv")), splits=ss.Splits(train=1.0)
    )
    with pytest.raises(type(error)) as raised:
        ss.build(recipe, tmp_path / "out")
    assert raised.value is error
    # The search was told to stop, and had ended by then; nothing else began.
    assert told == [True]
    assert not list((tmp_path / "out" / "t" / ".work" / "scratch").iterdir())


def test_a_build_leaves_the_collector_as_it_found_it() -> None:
    before = gc.get_threshold()
    with builds.collecting_rarely():
        rare = gc.get_threshold()
        with builds.collecting_rarely():
            assert gc.get_threshold() == rare
        assert gc.get_threshold() == rare
    assert rare[0] > before[0]
    assert gc.get_threshold() == before
