"""Damage that a build meets: it is dropped and the steps run again, but not forever."""

from typing import Any

import pytest

import snapshard as ss
from snapshard.pipelines import build as builds
from snapshard.pipelines.build import ATTEMPTS, Build
from snapshard.runners import make_runner
from snapshard.schemas.errors import DamagedWorkError, StorageError
from snapshard.schemas.naming import OutputPaths
from snapshard.schemas.progress import Silent
from snapshard.schemas.runner import Direct


@pytest.fixture
def dropped(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The surveys of which damaged runs were dropped."""
    surveys: list[object] = []
    monkeypatch.setattr(builds, "drop_damaged_runs", lambda survey, _: surveys.append(survey))
    return surveys


@pytest.fixture
def started(tmp_path: Any) -> Any:
    recipe = ss.Recipe(name="t", source=ss.Csv(str(tmp_path)), splits=ss.Splits(train=1.0))
    with make_runner(Direct()) as runner:
        out = OutputPaths(str(tmp_path / "out"), "t")
        yield Build(recipe=recipe, out=out, runner=runner, progress=Silent())


def test_damaged_runs_are_dropped_before_the_steps_run_again(
    started: Build, dropped: list[object]
) -> None:
    survey: Any = object()
    seen: list[int] = []

    def run() -> str:
        seen.append(len(dropped))
        if len(seen) == 1:
            raise DamagedWorkError("run 7 is damaged")
        return "done"

    assert started.dropping_damage(survey, run) == "done"
    assert (seen, dropped) == ([0, 1], [survey])


@pytest.mark.parametrize(("error", "attempts"), [(DamagedWorkError, ATTEMPTS), (StorageError, 1)])
def test_what_remains_is_raised(
    started: Build, dropped: list[object], error: type[StorageError], attempts: int
) -> None:
    survey: Any = object()
    begun = []

    def run() -> None:
        begun.append(len(dropped))
        raise error("still")

    with pytest.raises(error, match="still"):
        started.dropping_damage(survey, run)
    assert len(begun) == attempts
