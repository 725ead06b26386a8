"""What is remembered of a DoFn is what Beam finds by looking."""

import types
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.coders import VarIntCoder
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.userstate import CombiningValueStateSpec, TimerSpec, on_timer

from snapshard.transforms import dofn_specs

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
    first = dofn_specs.get_dofn_specs(dofn)
    assert first == dofn_specs._inspect(dofn)
    for found in first:
        found.clear()
    assert dofn_specs.get_dofn_specs(dofn) == dofn_specs._inspect(dofn), "nobody changes it"


def test_beam_uses_it() -> None:
    from apache_beam.transforms import userstate

    assert userstate.is_stateful_dofn(Stateful())
    assert not userstate.is_stateful_dofn(Plain())
    assert userstate.get_dofn_specs is dofn_specs.get_dofn_specs
