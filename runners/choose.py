"""Maps the configuration of an engine to its runner."""

from __future__ import annotations

from ..schemas.runner import Dataflow, Direct, Flink, JobRunner, Prism, RunnerConfig


def make_runner(config: RunnerConfig) -> JobRunner:
    """The runner for a configuration; nothing is started or checked yet."""
    if isinstance(config, Direct):
        from .direct import DirectRunner

        return DirectRunner(num_workers=config.workers, beam_options=config.beam_options)
    if isinstance(config, Prism):
        from .prism import PrismRunner

        return PrismRunner(config)
    if isinstance(config, Flink):
        from .flink import FlinkRunner

        return FlinkRunner(config)
    if isinstance(config, Dataflow):
        from .dataflow import DataflowRunner

        return DataflowRunner(config)
    from .spark import SparkRunner

    return SparkRunner(config)
