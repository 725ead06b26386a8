"""Lookup tables and variables of TensorFlow to which users' functions refer.

A traced graph refers to them by handles alone, but whoever exports it must name their owners. They
are found by the walk that hashes a function, in what its names lead to and in the parts of that
(modules, layers, models). One that a function makes has no owner: a second trace makes another.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
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


def owners_of(graph: Any, steps: Iterable[Step], tables: Iterable[Any]) -> list[Any]:
    """The owners of the tables and variables from outside that a traced graph captures, in order.

    Args:
        graph: A ``FuncGraph`` of the steps.
        steps: Whose functions refer to the owners.
        tables: Those that this package's own steps made, which are left out.
    """
    captured = _captured(graph, tables)
    owners: dict[int, Any] = {}
    for candidate in _trackables(steps) if captured else ():
        for handle in captured & _handles(candidate):
            owners.setdefault(handle, candidate)
    return list(owners.values())


def refuse_unowned(graph: Any, steps: Iterable[Step], tables: Iterable[Any]) -> None:
    """Refuses a graph that captures what has no owner: a function made it when it was called.

    Raises:
        RecipeError: saying where to make it.
    """
    owned = (_handles(owner) for owner in owners_of(graph, steps, tables))
    if _captured(graph, tables).difference(*owned):
        raise RecipeError(_MADE_WHEN_CALLED)


def _captured(graph: Any, tables: Iterable[Any]) -> set[int]:
    """The identities of the handles that a graph captures, except those of some tables."""
    captured = {id(outer) for outer, _ in graph.captures if outer.dtype.name == "resource"}
    return captured.difference(*map(_handles, tables))


def _trackables(steps: Iterable[Step]) -> Iterator[Any]:
    """All that the users' functions in some steps refer to and TensorFlow can save."""
    import tensorflow as tf

    for function in (function for step in steps for function in _functions_in(step)):
        walk = _TrackableWalk("", declared=True)
        walk.digest(function)
        for trackable in walk.trackables:
            # A model of Keras 2 holds dictionaries that TensorFlow does not save.
            with suppress(ValueError):
                yield from tf.train.TrackableView(trackable).descendants()


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


def _handles(owner: Any) -> set[int]:
    handles = (getattr(owner, name, None) for name in ("resource_handle", "handle"))
    return {id(handle) for handle in handles if handle is not None}
