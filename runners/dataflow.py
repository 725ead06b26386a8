"""Dataflow: Google's service that runs Beam jobs on machines that it starts for them."""

from __future__ import annotations

import contextlib
import re
import signal
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

from ..schemas.errors import RunnerError, SnapshardError
from ..schemas.runner import Dataflow
from .dataflow_checks import check_options, check_service
from .portable import defect_in, own_error, parsed_options
from .quiet import quiet

_LAST_CHARACTERS = 2000
_MAX_NAME = 63
_DONE = "DONE"


class DataflowRunner:
    """Runs jobs on Dataflow; a context manager around a build's jobs that starts nothing itself.

    Implements :class:`snapshard.schemas.runner.JobRunner`.
    """

    name = "dataflow"
    threads_per_worker = 1
    """One: Dataflow starts a worker process for each of a machine's cores."""
    shares_memory = False
    sees_local_files = False

    def __init__(self, config: Dataflow) -> None:
        """Stores the configuration; contacts no service."""
        self._config = config

    def check(self) -> None:
        """Checks Dataflow's requirements, including credentials and the bucket of its files.

        Raises:
            RecipeError: if something is missing; the message says what, and how to get it.
        """
        with quiet():
            options = self.options("check")
            check_options(options)
            check_service(options)

    def run(self, construct: Callable[[Any], object], *, job_name: str) -> None:
        """Runs the job that ``construct`` builds on the ``beam.Pipeline`` it is given.

        On an interrupt (Ctrl-C, SIGTERM) it cancels the job, which would otherwise keep running
        and cost money. With ``--template_location`` the job is only described and its files are
        uploaded; nothing runs. A :class:`SnapshardError` raised by a DoFn is raised here with its
        class and message.

        Raises:
            RunnerError: if Dataflow did not accept the job, or the job failed.
        """
        import apache_beam as beam

        with quiet():
            options = self.options(job_name)
            try:
                pipeline = beam.Pipeline(options=options)
                construct(pipeline)
                with _ended_as_interrupted():
                    result = pipeline.run()
            except SnapshardError:
                raise
            except KeyboardInterrupt:
                # The service may have accepted it, with its response still on the way.
                _notify(
                    f"Dataflow may have accepted the job {job_name!r}, which then keeps running "
                    f"and costs money. If it is listed, stop it: {_console(options)}"
                )
                raise
            except Exception as error:
                raise RunnerError(
                    f"Dataflow did not accept the job {job_name!r}: {_shortened(str(error))}"
                ) from None
            if result.has_job:
                self._wait(result, pipeline.runner, job_name=job_name)

    def options(self, job_name: str) -> Any:
        """Beam's options for a job: the configuration, then the user's, which take precedence.

        Raises:
            RecipeError: if Beam does not accept one of the user's options.
        """
        from apache_beam.options.pipeline_options import GoogleCloudOptions

        config = self._config
        configured = {
            "project": config.project,
            "region": config.region,
            "temp_location": config.temp_location,
            "staging_location": config.staging_location,
            "sdk_container_image": config.image,
            "machine_type": config.machine_type,
            "num_workers": config.workers,
            "max_num_workers": config.max_workers,
            "service_account_email": config.service_account,
        }
        flags = [
            "--runner=DataflowRunner",
            # The image contains Beam and everything else that workers need.
            "--sdk_location=container",
            # Beam would send the content of __main__, even a notebook's data; recipes are shipped
            # separately.
            "--no_save_main_session",
            "--experiments=disable_logging_submission_environment",
            f"--labels=snapshard_step={job_name}",
            *(f"--{name}={value}" for name, value in configured.items() if value),
            *config.beam_options,
        ]
        options = parsed_options(flags, given=config.beam_options)
        cloud = options.view_as(GoogleCloudOptions)
        cloud.job_name = _unique_name(cloud.job_name or "snapshard", job_name)
        return options

    def __enter__(self) -> DataflowRunner:
        """Does nothing: each job has machines of its own."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Does nothing."""

    def _wait(self, result: Any, runner: Any, *, job_name: str) -> None:
        """Waits for the job's end."""
        url = _console(result._options, job_id=result.job_id())
        _notify(f"The job {job_name!r} runs on Dataflow: {url}")
        try:
            with _ended_as_interrupted():
                # Beam's own wait does this in a thread, which loses what is raised there.
                runner.poll_for_job_completion(runner, result, None)
        except KeyboardInterrupt:
            with contextlib.suppress(Exception):
                result.cancel()
                _notify(f"The job {job_name!r} is being cancelled: {url}")
                raise
            _notify(f"The job {job_name!r} could not be cancelled and keeps costing money: {url}")
            raise
        except Exception as error:
            raise RunnerError(
                f"The connection to the job {job_name!r} was lost; it may still run: {url}. "
                "Finished work is kept. When the job has ended, run the same build again to "
                f"resume. Cause: {_shortened(str(error))}"
            ) from None
        state = str(result.state)
        if state != _DONE:
            reported = str(getattr(runner, "last_error_msg", None) or "nothing.")
            raise (
                own_error(reported)
                or defect_in(reported)
                or RunnerError(
                    f"The job {job_name!r} ended as {state} on Dataflow: {url}. Finished work is "
                    "kept. Run the same build again to resume. Dataflow reported: "
                    f"{_shortened(reported)}"
                )
            )


@contextlib.contextmanager
def _ended_as_interrupted() -> Iterator[None]:
    """Treats SIGTERM, by which schedulers end a task, like Ctrl-C, unless it is handled already."""
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    ):
        yield
        return
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _console(options: Any, *, job_id: str = "") -> str:
    """URL of a job, or of all jobs of the project, in Google's console."""
    from apache_beam.options.pipeline_options import GoogleCloudOptions

    cloud = options.view_as(GoogleCloudOptions)
    job = f"/{cloud.region}/{job_id}" if job_id else ""
    return f"https://console.cloud.google.com/dataflow/jobs{job}?project={cloud.project}"


def _notify(text: str) -> None:
    """Prints immediately what costs money; a log message might not be shown."""
    print(text, file=sys.stderr, flush=True)


def _unique_name(prefix: str, job_name: str) -> str:
    """A job name that no other running job has, which Dataflow requires."""
    stamp = f"-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{uuid.uuid4().hex[:6]}"
    plain = re.sub("[^-a-z0-9]+", "-", f"{prefix}-{job_name}".lower())
    return plain[: _MAX_NAME - len(stamp)] + stamp


def _shortened(text: str) -> str:
    return text.strip()[-_LAST_CHARACTERS:]
