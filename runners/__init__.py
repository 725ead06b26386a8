"""Where the jobs run: one module for each engine.

A runner implements the protocol in `schemas.runner` and hides the details of its engine. Imports
only `schemas`; only `pipelines.engines` imports a runner, by `make_runner`.
"""

from ..schemas.runner import Dataflow, Direct, Flink, JobRunner, Prism, RunnerConfig


def make_runner(config: RunnerConfig) -> JobRunner:
    """The runner for a configuration; nothing is started or checked yet."""
    if isinstance(config, Direct):
        from .direct import DirectRunner

        return DirectRunner(
            num_workers=config.workers,
            memory=config.memory_bytes,
            beam_options=config.beam_options,
        )
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
