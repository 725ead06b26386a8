"""What this package changes in Beam, in a process that imports this module.

It reports progress whenever an element passes from one Beam step to the next, because steps that
are not ours, such as those that merge the results of an analysis, report none.

It also looks up the state and timers of a DoFn only once per class, and the arguments of a function
only once. While a job is set up, Beam asks about eight times per step, and each time inspects the
signature of every method of the DoFn: a third of the set-up time of our small jobs, a sixth of an
analysis. And it parses the same flags only once for each kind of options: Beam asks for a view
about a hundred times per job, and each time makes a parser and parses the flags: a third of a small
build.

Import this module only where Beam runs.
"""

from __future__ import annotations

import copy
import functools
import os
import threading
import time
import types
import weakref
from collections.abc import Callable
from typing import Any

from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.worker import statesampler
from apache_beam.transforms import core, userstate

from .activity import advance

_LOOK_SECONDS = 1.0

_note_tracker = statesampler.set_current_tracker
_trackers: weakref.WeakSet[Any] = weakref.WeakSet()
_trackers_lock = threading.Lock()
_looking_in = 0
"""Id of the process whose thread polls; a fork has no such thread."""

_Specs = tuple[frozenset[Any], frozenset[Any]]

inspect_dofn: Callable[[Any], tuple[set[Any], set[Any]]] = userstate.get_dofn_specs
_known_specs: dict[type, _Specs] = {}

parse_view: Callable[[Any, type[PipelineOptions]], Any] = PipelineOptions.view_as
_views: weakref.WeakKeyDictionary[PipelineOptions, dict[type[PipelineOptions], Any]] = (
    weakref.WeakKeyDictionary()
)

_Arguments = tuple[list[str], list[Any]]
inspect_arguments: Callable[[Any], _Arguments] = core.get_function_args_defaults
_known_arguments: weakref.WeakKeyDictionary[Any, dict[bool, _Arguments]] = (
    weakref.WeakKeyDictionary()
)


def set_noted_tracker(tracker: Any) -> None:
    """Calls Beam's own function, and remembers the tracker."""
    global _looking_in
    _note_tracker(tracker)
    if tracker is not None:
        with _trackers_lock:
            _trackers.add(tracker)
            if _looking_in != os.getpid():
                _looking_in = os.getpid()
                threading.Thread(target=_look, name="look_at_beam", daemon=True).start()


def _look() -> None:
    counted = 0
    while True:
        time.sleep(_LOOK_SECONDS)
        with _trackers_lock:
            trackers = list(_trackers)
        count = sum(tracker.state_transition_count for tracker in trackers)
        if count != counted:
            counted = count
            advance()


statesampler.set_current_tracker = set_noted_tracker


def get_dofn_specs(dofn: Any) -> tuple[set[Any], set[Any]]:
    """The state and timer specs of a DoFn, as Beam's own function returns them."""
    if any(isinstance(value, types.MethodType) for value in vars(dofn).values()):
        return inspect_dofn(dofn)  # the instance has methods in addition to its class's
    kind = type(dofn)
    if kind not in _known_specs:
        specs = inspect_dofn(dofn)
        _known_specs[kind] = frozenset(specs[0]), frozenset(specs[1])
    states, timers = _known_specs[kind]
    return set(states), set(timers)


userstate.get_dofn_specs = get_dofn_specs


def view_as(options: PipelineOptions, kind: type[PipelineOptions]) -> Any:
    """The view of these options that Beam's own method returns, the same one each time.

    All views of options share their values: what is set through one is seen through all.
    """
    views = _views.setdefault(options, {})
    if kind not in views:
        flags = vars(options)["_flags"]
        # None stands for the flags of the running program.
        views[kind] = parse_view(options, kind) if flags is None else _view(options, kind, flags)
    return views[kind]


@functools.lru_cache(maxsize=256)
def _parsed(kind: Any, flags: tuple[str, ...]) -> PipelineOptions:
    return kind([*flags])


def _view(options: PipelineOptions, kind: Any, flags: list[str]) -> Any:
    parsed = vars(_parsed(kind, tuple(flags)))
    values = vars(options)["_all_options"]
    for name, value in vars(parsed["_visible_options"]).items():
        values.setdefault(name, copy.deepcopy(value))
    view = object.__new__(kind)
    vars(view).update(parsed, _flags=flags, _all_options=values)
    return view


PipelineOptions.view_as = view_as


def get_function_args_defaults(function: Any) -> _Arguments:
    """The names and defaults of a function's arguments, as Beam's own function returns them."""
    plain = getattr(function, "__func__", function)
    if not isinstance(plain, types.FunctionType):
        return inspect_arguments(function)
    known = _known_arguments.setdefault(plain, {})
    is_bound = plain is not function
    if is_bound not in known:
        known[is_bound] = inspect_arguments(function)
    names, defaults = known[is_bound]
    return [*names], [*defaults]


core.get_function_args_defaults = get_function_args_defaults
