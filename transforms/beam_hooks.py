"""What this package changes in Beam, in a process that imports this module.

It reports progress whenever an element passes from one Beam step to the next, because steps that
are not ours, such as those that merge the results of an analysis, report none.

It also looks up the state and timers of a DoFn only once per class. While a job is set up, Beam
asks about eight times per step, and each time inspects the signature of every method of the DoFn:
a third of the set-up time of our small jobs, a sixth of an analysis. And it parses each view of a
job's options only once: Beam asks for one about a hundred times per job, and each time makes a
parser and parses the flags: a third of a small build.

Import this module only where Beam runs.
"""

from __future__ import annotations

import os
import threading
import time
import types
import weakref
from collections.abc import Callable
from typing import Any

from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.worker import statesampler
from apache_beam.transforms import userstate

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
        views[kind] = parse_view(options, kind)
    return views[kind]


PipelineOptions.view_as = view_as
