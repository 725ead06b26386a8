"""What is remembered of a DoFn is what Beam finds by looking; all our jobs have the hooks."""

import pickle
import types
import weakref
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.coders import VarIntCoder
from apache_beam.options.pipeline_options import (
    GoogleCloudOptions,
    PipelineOptions,
    StandardOptions,
    TypeOptions,
)
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


def test_views_of_options_are_those_that_beam_parses() -> None:
    flags = ["--runner=Direct", "--no_pipeline_type_check", "--labels=a=1"]
    ours, own = (PipelineOptions(flags, job_name="j") for _ in range(2))
    for kind in (TypeOptions, StandardOptions, GoogleCloudOptions):
        view = ours.view_as(kind)
        assert ours.view_as(kind) is view
        assert type(view) is kind
        assert view.get_all_options() == beam_hooks.parse_view(own, kind).get_all_options()
    assert not ours.view_as(TypeOptions).pipeline_type_check


def test_options_of_the_same_flags_share_no_values() -> None:
    first, second = (PipelineOptions(["--labels=a=1"]) for _ in range(2))
    first.view_as(GoogleCloudOptions).labels.append("b=2")
    first.view_as(StandardOptions).streaming = True
    assert second.view_as(GoogleCloudOptions).labels == ["a=1"]
    assert not second.view_as(StandardOptions).streaming
    assert PipelineOptions(["--labels=c=3"]).view_as(GoogleCloudOptions).labels == ["c=3"]


@pytest.mark.parametrize(
    "function",
    [Stateful.process, Stateful().process, len, lambda a, b=1: a],
    ids=["method", "bound", "of C", "lambda"],
)
def test_arguments_of_functions_are_those_that_beam_finds(function: Any) -> None:
    for _ in range(2):
        found = beam.core.get_function_args_defaults(function)
        assert found == beam_hooks.inspect_arguments(function)
        for values in found:
            values.clear()


def test_what_is_set_through_one_view_is_seen_through_all() -> None:
    options = PipelineOptions([], job_name="j")
    before = options.view_as(StandardOptions)
    options.view_as(StandardOptions).streaming = True
    options.view_as(GoogleCloudOptions).labels = ["a=1"]
    assert before.streaming
    assert options.view_as(TypeOptions).view_as(GoogleCloudOptions).labels == ["a=1"]
    assert options.get_all_options()["streaming"]
    copied = pickle.loads(pickle.dumps(options))
    copied.view_as(StandardOptions).streaming = False
    assert before.streaming, "a copy has views and values of its own"


def test_views_live_no_longer_than_the_options() -> None:
    options = PipelineOptions([])
    options.view_as(TypeOptions)
    gone = weakref.ref(options)
    del options
    assert gone() is None


def test_all_that_runs_beam_has_the_hooks() -> None:
    from snapshard.pipelines.prepare import job
    from snapshard.transforms.analysis import analyze

    for module in (job, analyze):
        assert vars(module)["beam_hooks"] is beam_hooks, "imported for its effect alone"
    assert statesampler.set_current_tracker is beam_hooks.set_noted_tracker
