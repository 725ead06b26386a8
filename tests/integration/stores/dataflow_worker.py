"""Runs a staged job, given the URL of its pipeline, in this process: what a worker is to Dataflow.

The container that the pipeline names is taken to be this environment.
"""

import sys
import time
import traceback
from typing import Any

import gcsfs
from apache_beam.internal import pickler
from apache_beam.internal.gcp import auth
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.portability import python_urns
from apache_beam.portability.api import beam_runner_api_pb2
from apache_beam.runners.dataflow import dataflow_runner
from apache_beam.runners.portability.fn_api_runner import FnApiRunner


class QuickClock:
    """The module ``time``, for what polls every few seconds."""

    def __getattr__(self, name: str) -> Any:
        """What else it has."""
        return getattr(time, name)

    def sleep(self, seconds: float) -> None:
        """Sleeps, but not long."""
        time.sleep(min(seconds, 0.2))


def run(url: str) -> None:
    """Runs it to its end."""
    # For jobs that this one starts: Beam asks for credentials, which are not there, for long, and
    # looks every five seconds whether they have ended.
    auth._Credentials._credentials_init = True
    dataflow_runner.time = QuickClock()
    content = gcsfs.GCSFileSystem(token="anon").cat_file(url)
    pipeline = beam_runner_api_pb2.Pipeline.FromString(content)
    for environment in pipeline.components.environments.values():
        assert environment.urn == "beam:env:docker:v1", environment.urn
        environment.urn, environment.payload = python_urns.EMBEDDED_PYTHON, b""
    pickler.set_library("cloudpickle")
    FnApiRunner().run_via_runner_api(pipeline, PipelineOptions([])).wait_until_finish()


if __name__ == "__main__":
    try:
        run(sys.argv[1])
    except Exception:
        print(traceback.format_exc())
        sys.exit(1)
