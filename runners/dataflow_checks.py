"""Checks Dataflow's requirements before a job; each error says how to fix it.

First come the checks of the options alone, then those that ask Google.
"""

from __future__ import annotations

import os
import re
from typing import Any

from ..schemas.errors import RecipeError

_PROJECT = re.compile(r"(?:[a-z][-a-z0-9.]*:)?[a-z][-a-z0-9]{4,28}[a-z0-9]")
_REGION = re.compile(r"[a-z]+-[a-z]+[0-9]+")
_FOLDER = re.compile(r"gs://([a-z0-9][-_.a-z0-9]{1,220}[a-z0-9])(?:/.*)?")
_ACCOUNT = re.compile(r"[^@\s]+@[^@\s]+\.gserviceaccount\.com")
_SECONDS = 20.0


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
    found = _FOLDER.fullmatch(folder)
    bucket = found[1] if found else folder
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
