"""Damage that a build meets in its workspace: it begins anew, and makes what is damaged again.

A file may be truncated or altered since a build left it. Small ones are sealed, and looked at
before anything relies on them; runs are too large for that, so that their damage shows only when
a step reads them. Then all steps are gone through again, as after a kill: they find done what is
done, and prepare reads every run that it would reuse, to find all damage at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from ..schemas.errors import DamagedWorkError

ATTEMPTS = 3
"""One more than is needed, unless builds that run at the same time meet the same damage."""

T = TypeVar("T")


def redoing_damage(build: Callable[[Sequence[str]], T]) -> T:
    """Builds, again where work of an earlier build turns out to be damaged.

    Args:
        build: Is given what earlier attempts met, in words; reads all that it reuses if there is
            any.

    Raises:
        DamagedWorkError: if the last attempt meets damage too.
    """
    met: list[str] = []
    while True:
        try:
            return build(met)
        except DamagedWorkError as error:
            met.append(str(error))
            if len(met) == ATTEMPTS:
                raise
