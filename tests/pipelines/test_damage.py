"""Damage that a build meets: it is dropped and the steps run again, but not forever."""

from typing import Any

import pytest

import snapshard as ss
from snapshard.pipelines import build_steps
from snapshard.pipelines.build_steps import ATTEMPTS, BuildSteps
from snapshard.runners import make_runner
from snapshard.schemas.errors import DamagedWorkError, StorageError
from snapshard.schemas.progress import Silent
from snapshard.schemas.runner import Direct


@pytest.fixture
def dropped(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The builds of which damaged runs were dropped."""
    builds: list[object] = []
    monkeypatch.setattr(build_steps, "drop_damaged_runs", lambda found, _: builds.append(found))
    return builds


@pytest.fixture
def steps(tmp_path: Any) -> Any:
    recipe = ss.Recipe(name="t", source=ss.Csv(str(tmp_path)), splits=ss.Splits(train=1.0))
    with make_runner(Direct()) as runner:
        yield BuildSteps(recipe, str(tmp_path / "out"), runner=runner, progress=Silent())


def test_damaged_runs_are_dropped_before_the_steps_run_again(
    steps: BuildSteps, dropped: list[object]
) -> None:
    found: Any = object()
    seen: list[int] = []

    def run() -> str:
        seen.append(len(dropped))
        if len(seen) == 1:
            raise DamagedWorkError("run 7 is damaged")
        return "done"

    assert steps.dropping_damage(found, run) == "done"
    assert (seen, dropped) == ([0, 1], [found])


@pytest.mark.parametrize(("error", "attempts"), [(DamagedWorkError, ATTEMPTS), (StorageError, 1)])
def test_what_remains_is_raised(
    steps: BuildSteps, dropped: list[object], error: type[StorageError], attempts: int
) -> None:
    found: Any = object()
    begun = []

    def run() -> None:
        begun.append(len(dropped))
        raise error("still")

    with pytest.raises(error, match="still"):
        steps.dropping_damage(found, run)
    assert len(begun) == attempts
