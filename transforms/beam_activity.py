"""Reports that Beam advances in this process: whenever an element passed from one step to the next.

Steps that are not ours, such as those that merge what an analysis found, report nothing by
themselves. Beam counts these passages for metrics; a thread looks once a second whether there
were any.

A module about Beam: importing it replaces a function in this process.
"""

import os
import threading
import time
import weakref
from typing import Any

from apache_beam.runners.worker import statesampler

from .activity import advance

_SECONDS = 1.0

_note = statesampler.set_current_tracker
_trackers: "weakref.WeakSet[Any]" = weakref.WeakSet()
_lock = threading.Lock()
_looking_in = 0
"""The process whose thread looks; a fork has none."""


def _set_current_tracker(tracker: Any) -> None:
    """What Beam's own function does; remembers the tracker."""
    global _looking_in
    _note(tracker)
    if tracker is not None:
        with _lock:
            _trackers.add(tracker)
            if _looking_in != os.getpid():
                _looking_in = os.getpid()
                threading.Thread(target=_look, name="look_at_beam", daemon=True).start()


def _look() -> None:
    counted = 0
    while True:
        time.sleep(_SECONDS)
        with _lock:
            trackers = list(_trackers)
        count = sum(tracker.state_transition_count for tracker in trackers)
        if count != counted:
            counted = count
            advance()


statesampler.set_current_tracker = _set_current_tracker
