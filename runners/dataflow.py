"""Dataflow: Google's service that runs Beam jobs on machines that it starts for them.

Before a job, its requirements are checked: first the options alone, then those that ask Google.
Each error says how to fix it.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

from ..schemas.errors import RecipeError, RunnerError, SnapshardError
from ..schemas.runner import Dataflow, JobSize
from .portable import defect_in, own_error, parsed_options, quiet

_LAST_CHARACTERS = 2000
_MAX_NAME = 63
_DONE = "DONE"

_PROJECT = re.compile(r"(?:[a-z][-a-z0-9.]*:)?[a-z][-a-z0-9]{4,28}[a-z0-9]")
_REGION = re.compile(r"[a-z]+-[a-z]+[0-9]+")
_FOLDER = re.compile(r"gs://([a-z0-9][-_.a-z0-9]{1,220}[a-z0-9])(?:/.*)?")
_ACCOUNT = re.compile(r"[^@\s]+@[^@\s]+\.gserviceaccount\.com")
_SECONDS = 20.0


class DataflowRunner:
    """Runs jobs on Dataflow; a context manager around a build's jobs that starts nothing itself.

    Implements :class:`snapshard.schemas.runner.JobRunner`.
    """

    name = "dataflow"
    shares_memory = False
    sees_local_files = False

    def __init__(self, config: Dataflow) -> None:
        """Stores the configuration; contacts no service."""
        self._config = config

    def threads_per_worker(self, size: JobSize | None = None) -> int:
        """One: Dataflow starts a worker process for each of a machine's cores."""
        del size
        return 1

    def start_workers(self, size: JobSize) -> None:
        """Does nothing: the service starts them."""

    def check(self) -> None:
        """Checks Dataflow's requirements, including credentials and the bucket of its files.

        Raises:
            RecipeError: if something is missing; the message says what, and how to get it.
        """
        with quiet():
            options = self.options("check")
            check_options(options)
            check_service(options)

    def run(
        self, construct: Callable[[Any], object], *, job_name: str, size: JobSize | None = None
    ) -> None:
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

    def __exit__(self, *_: object) -> None:
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


def check_options(options: Any) -> None:
    """Checks the options of a job.

    A missing project and region are taken from ``GOOGLE_CLOUD_PROJECT`` and
    ``CLOUDSDK_COMPUTE_REGION``, as in Google's own tools.

    Args:
        options: Beam's ``PipelineOptions``; missing values are filled in.

    Raises:
        RecipeError: if an option is missing or invalid.
    """
    _check_installed()
    from apache_beam.options import pipeline_options as beam_options

    cloud = options.view_as(beam_options.GoogleCloudOptions)
    workers = options.view_as(beam_options.WorkerOptions)
    cloud.project = cloud.project or os.environ.get("GOOGLE_CLOUD_PROJECT")
    cloud.region = cloud.region or os.environ.get("CLOUDSDK_COMPUTE_REGION")
    _check_value(
        "project",
        cloud.project,
        _PROJECT,
        "the id of a Google Cloud project, such as my-project-1234 (not its name or number)",
    )
    _check_value("region", cloud.region, _REGION, "the region of the machines, such as us-central1")
    _check_value(
        "temp_location",
        cloud.temp_location,
        _FOLDER,
        "a folder for Dataflow's temporary files, such as gs://my-bucket/dataflow, in a bucket of "
        "that region",
    )
    if cloud.staging_location:
        _check_value(
            "staging_location",
            cloud.staging_location,
            _FOLDER,
            "a folder, such as gs://my-bucket/x",
        )
    if cloud.service_account_email:
        _check_value(
            "service_account_email",
            cloud.service_account_email,
            _ACCOUNT,
            "the e-mail address of a service account, such as "
            "name@my-project-1234.iam.gserviceaccount.com",
        )
    least, most = workers.num_workers, workers.max_num_workers
    if least and most and least > most:
        raise RecipeError(
            f"Dataflow: the initial number of workers, {least}, is above the maximum, {most}. "
            "Raise max_workers (--max_num_workers), or use fewer workers (--workers)."
        )
    _check_packages(options.view_as(beam_options.SetupOptions), workers)
    if cloud.template_location or options.view_as(beam_options.TestOptions).dry_run:
        raise RecipeError(
            "Dataflow: a build is several jobs, each planned from the output of the one before, so "
            "a classic template (--template_location) or --dry_run cannot contain it. Use the Flex "
            "Template, which runs a complete build: see docs/dataflow.md."
        )


def check_service(options: Any) -> None:
    """Checks that there are valid Google credentials and that they give access to the buckets.

    Raises:
        RecipeError: if not.
    """
    from apache_beam.options.pipeline_options import GoogleCloudOptions

    cloud = options.view_as(GoogleCloudOptions)
    if not cloud.no_auth:
        _check_credentials(cloud.gcp_oauth_scopes)
    for folder in dict.fromkeys((cloud.temp_location, cloud.staging_location)):
        if folder:
            _check_bucket(folder, options)


def _check_installed() -> None:
    try:
        from apache_beam.runners.dataflow.internal import apiclient  # noqa: F401
        from google.cloud import storage  # type: ignore[import-untyped]  # noqa: F401
    except ImportError as error:
        raise RecipeError(
            f"Dataflow needs Google's client libraries, and {error.name} is not installed. Install "
            "them with: pip install 'apache-beam[gcp]'"
        ) from None


def _check_value(name: str, value: str | None, pattern: re.Pattern[str], meaning: str) -> None:
    if not value:
        raise RecipeError(
            f"Dataflow: missing {name}, expected {meaning}. Set it in the runner file "
            f'({_field(name)} = "…"), or after --: --{name}=…'
        )
    if pattern.fullmatch(value) is None:
        raise RecipeError(f"Dataflow: invalid {name} {value!r}, expected {meaning}.")


def _field(option: str) -> str:
    """The name of a Beam option in the configuration."""
    return {"service_account_email": "service_account"}.get(option, option)


def _check_packages(setup: Any, workers: Any) -> None:
    """Checks that workers will have snapshard."""
    packages = (setup.extra_packages, setup.setup_file, setup.requirements_file)
    if workers.sdk_container_image or any(packages):
        return
    raise RecipeError(
        "Dataflow: the workers would not have snapshard. Give the image built from the Dockerfile, "
        'in the runner file (image = "REGION-docker.pkg.dev/PROJECT/REPOSITORY/snapshard:TAG") or '
        "after --: --sdk_container_image=…; or let each worker install it when it starts: "
        "--extra_package=snapshard.whl (from python -m build)."
    )


def _check_credentials(scopes: list[str]) -> None:
    import google.auth
    import google.auth.exceptions
    import google.auth.transport.requests

    credentials: Any
    try:
        credentials, _ = google.auth.default(scopes=scopes)
        if not credentials.valid:
            credentials.refresh(google.auth.transport.requests.Request())
    except google.auth.exceptions.DefaultCredentialsError:
        raise RecipeError(
            "Dataflow: no Google credentials found. Log in with: gcloud auth application-default "
            "login; or set GOOGLE_APPLICATION_CREDENTIALS to a service account's key file."
        ) from None
    except google.auth.exceptions.TransportError as error:
        raise RecipeError(
            f"Dataflow: cannot reach Google to check the credentials: {error}."
        ) from None
    except google.auth.exceptions.GoogleAuthError as error:
        raise RecipeError(
            f"Dataflow: Google rejected the credentials: {error}. Log in again with: gcloud auth "
            "application-default login"
        ) from None


def _check_bucket(folder: str, options: Any) -> None:
    from apache_beam.io.gcp.gcsio import create_storage_client
    from apache_beam.options.pipeline_options import GoogleCloudOptions
    from google.api_core.exceptions import GoogleAPIError

    cloud = options.view_as(GoogleCloudOptions)
    match = _FOLDER.fullmatch(folder)
    bucket = match[1] if match else folder
    try:
        client = create_storage_client(options, not cloud.no_auth)
        there = client.bucket(bucket).exists(timeout=_SECONDS, retry=None)
    # OSError for the connection: requests.ConnectionError is one.
    except (GoogleAPIError, OSError) as error:
        raise RecipeError(f"Dataflow: cannot access the bucket of {folder}: {error}.") from None
    if not there:
        raise RecipeError(
            f"Dataflow: the bucket {bucket!r} does not exist, or these credentials have no access "
            f"to it. Create it with: gcloud storage buckets create gs://{bucket} "
            f"--location={cloud.region}"
        )
