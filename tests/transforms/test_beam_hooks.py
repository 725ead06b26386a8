"""What is remembered of a DoFn is what Beam finds by looking; all our jobs have the hooks."""

import types
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.coders import VarIntCoder
from apache_beam.runners.worker import statesampler
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.userstate import CombiningValueStateSpec, TimerSpec, on_timer

from snapshard.transforms import beam_hooks

STATE = CombiningValueStateSpec("sum", VarIntCoder(), sum)
TIMER = TimerSpec("end", TimeDomain.WATERMARK)


class Plain(beam.DoFn):
    def process(self, element: int) -> Any:
        yield element


class Stateful(beam.DoFn):
    def process(
        self,
        element: int,
        state: Any = beam.DoFn.StateParam(STATE),  # noqa: B008 - as Beam has it
        timer: Any = beam.DoFn.TimerParam(TIMER),  # noqa: B008
    ) -> Any:
        yield element

    @on_timer(TIMER)
    def end(self) -> None:
        """Nothing is left to do."""


class OfItsOwn(Plain):
    """Its ``process`` is a method that was put into the object."""

    def __init__(self, kind: type[beam.DoFn]) -> None:
        self.process = types.MethodType(kind.process, self)  # type: ignore[method-assign]


@pytest.mark.parametrize(
    "dofn",
    [Plain(), Stateful(), OfItsOwn(Stateful), OfItsOwn(Plain), beam.core.CallableWrapperDoFn(len)],
)
def test_it_is_what_beam_finds(dofn: Any) -> None:
    first = beam_hooks.get_dofn_specs(dofn)
    assert first == beam_hooks.inspect_dofn(dofn)
    for found in first:
        found.clear()
    assert beam_hooks.get_dofn_specs(dofn) == beam_hooks.inspect_dofn(dofn), "nobody changes it"


def test_beam_uses_it() -> None:
    from apache_beam.transforms import userstate

    assert userstate.is_stateful_dofn(Stateful())
    assert not userstate.is_stateful_dofn(Plain())
    assert userstate.get_dofn_specs is beam_hooks.get_dofn_specs


def test_all_that_runs_beam_has_the_hooks() -> None:
    from snapshard.pipelines.prepare import job
    from snapshard.transforms.analysis import analyze

    for module in (job, analyze):
        assert vars(module)["beam_hooks"] is beam_hooks, "imported for its effect alone"
    assert statesampler.set_current_tracker is beam_hooks.set_noted_tracker
