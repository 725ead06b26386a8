"""Lookup tables and variables of TensorFlow to which users' functions refer.

A traced graph refers to them by handles alone, but whoever exports it must name their owners. They
are found by the walk that hashes a function, in what its names lead to and in the parts of that
(modules, layers, models). One that a function makes has no owner: a second trace makes another.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

from ....schemas.errors import RecipeError
from ....schemas.recipe import PrepareStep, RecordFn, StepTraits
from ...code.digest import CodeWalk
from ...code.user_code import is_users_class

Step = PrepareStep | RecordFn

_MADE_WHEN_CALLED = (
    "prepare: a function makes a lookup table or variable of TensorFlow when it is called, so each "
    "process and a model for serving would have another. Make it when the module is loaded, such "
    "as TABLE = tf.lookup.StaticHashTable(…) beside the function, or layer.build(…) for a layer "
    "with weights."
)


def runs_users_code(step: Step) -> bool:
    """Whether a step is the user's own, or calls functions of the user."""
    return bool(_functions_in(step))


def _functions_in(step: Step) -> tuple[Any, ...]:
    is_own = not isinstance(step, PrepareStep) or is_users_class(type(step))
    return (*StepTraits.of(step).functions, *([step] if is_own else ()))


@contextmanager
def refusing_variables() -> Iterator[None]:
    """Context in which a function that makes a variable when it is called is refused."""
    import tensorflow as tf

    def refuse(_: Any, **settings: Any) -> NoReturn:
        raise RecipeError(_MADE_WHEN_CALLED)

    with tf.variable_creator_scope(refuse):
        yield


def owners_of(graph: Any, steps: Iterable[Step], own: Iterable[Any]) -> list[Any]:
    """The owners of the tables and variables that a traced graph captures, in a fixed order.

    Args:
        graph: A ``FuncGraph`` of the steps.
        steps: Whose functions refer to the owners.
        own: What owns the tables of this package's own steps and of a transform graph.

    Raises:
        RecipeError: if something has no owner: a function made it when it was called.
    """
    wanted = {id(outer) for outer, _ in graph.captures if outer.dtype.name == "resource"}
    wanted -= {handle for owner in own for part in _parts(owner) for handle in _handles(part)}
    owners: dict[int, Any] = {}
    for candidate in _trackables(steps) if wanted else ():
        for handle in _handles(candidate):
            if handle in wanted:
                owners.setdefault(handle, candidate)
    if wanted - owners.keys():
        raise RecipeError(_MADE_WHEN_CALLED)
    return list(owners.values())


def _trackables(steps: Iterable[Step]) -> Iterator[Any]:
    """All that the users' functions in some steps refer to and TensorFlow can save."""
    for function in (function for step in steps for function in _functions_in(step)):
        walk = _TrackableWalk("", declared=True)
        walk.digest(function)
        for trackable in walk.trackables:
            yield from _parts(trackable)


def _parts(trackable: Any) -> list[Any]:
    """An object that TensorFlow can save, and what it holds."""
    import tensorflow as tf

    parts: list[Any] = tf.train.TrackableView(trackable).descendants()
    return parts


class _TrackableWalk(CodeWalk):
    """A walk that keeps the objects that TensorFlow can save."""

    def __init__(self, folder: str, *, declared: bool = False) -> None:
        import tensorflow as tf

        super().__init__(folder, declared=declared)
        self._kind = tf.__internal__.tracking.Trackable
        self.trackables: list[Any] = []

    def _refer(self, value: Any, where: str) -> Any:
        if isinstance(value, self._kind) and not isinstance(value, type):
            self.trackables.append(value)
        return super()._refer(value, where)


def _handles(owner: Any) -> Sequence[int]:
    handles = (getattr(owner, name, None) for name in ("resource_handle", "handle"))
    return [id(handle) for handle in handles if handle is not None]
