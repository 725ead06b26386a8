"""Damage that a build meets: again, with all that is reused read, and not for ever."""

from collections.abc import Sequence

import pytest

from snapshard.pipelines.recovery import ATTEMPTS, redoing_damage
from snapshard.schemas.errors import DamagedWorkError, StorageError


def test_a_build_that_meets_damage_is_told_of_it_when_it_begins_again() -> None:
    told: list[list[str]] = []

    def build(met: Sequence[str]) -> str:
        told.append(list(met))
        if len(told) == 1:
            raise DamagedWorkError("run 7 is damaged")
        return "done"

    assert redoing_damage(build) == "done"
    assert told == [[], ["run 7 is damaged"]]


@pytest.mark.parametrize(("error", "attempts"), [(DamagedWorkError, ATTEMPTS), (StorageError, 1)])
def test_what_does_not_pass_is_raised(error: type[StorageError], attempts: int) -> None:
    begun = []

    def build(met: object) -> None:
        begun.append(met)
        raise error("still")

    with pytest.raises(error, match="still"):
        redoing_damage(build)
    assert len(begun) == attempts
