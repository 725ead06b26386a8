"""A Dataflow Flex Template: one job, whose only element runs a complete build as separate jobs.

The launcher of a template describes one job, which Dataflow then starts; it has minutes for that,
and cannot wait for other jobs. So a build, which is a chain of jobs, cannot run in the launcher: it
runs on the one machine of the job that the launcher describes, as on any other machine, and that
job ends with the build and with its result.
"""

import argparse
import contextlib
import dataclasses
import logging
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from ...schemas.errors import RecipeError, SnapshardError
from ...schemas.naming import join
from ...schemas.recipe import Recipe
from ...schemas.runner import Dataflow
from ...transforms import storage
from ..engines import make_runner

_LOGGER = logging.getLogger(__name__)
_INHERITED = (
    "dataflow_endpoint",
    "dataflow_kms_key",
    "network",
    "no_auth",
    "project",
    "region",
    "sdk_container_image",
    "service_account_email",
    "staging_location",
    "subnetwork",
    "temp_location",
    "use_public_ips",
)
"""Options of the template's job that the build's jobs inherit."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Parameter:
    """A parameter of the template.

    Attributes:
        name: Name of the parameter.
        label: Its heading in Google's console.
        meaning: Its help text.
        regex: Pattern that its complete value must match.
        required: Whether it is required.
    """

    name: str
    label: str
    meaning: str
    regex: str
    required: bool = False


PARAMETERS = (
    _Parameter(
        name="recipe",
        label="Recipe",
        meaning="The recipe's file: a URL, with the modules that it imports in the same folder, or "
        "a path in the image.",
        regex=r".+\.py",
        required=True,
    ),
    _Parameter(
        name="out",
        label="Output root",
        meaning="Where the snapshot and the intermediate work are written.",
        regex=r"(gs|s3)://.+",
        required=True,
    ),
    _Parameter(
        name="limit",
        label="Records",
        meaning="Number of records to use, those with the lowest keys, for a dry run.",
        regex=r"[1-9][0-9]*",
    ),
    _Parameter(
        name="build_machine_type",
        label="Machine type of the build's jobs",
        meaning="Machine type for prepare and write; by default Dataflow chooses.",
        regex=r"[a-z0-9]+-[-a-z0-9]+",
    ),
    _Parameter(
        name="build_workers",
        label="Workers of the build's jobs",
        meaning="Initial number of machines of a job; by default Dataflow chooses.",
        regex=r"[1-9][0-9]*",
    ),
    _Parameter(
        name="build_max_workers",
        label="Maximum workers of the build's jobs",
        meaning="Maximum number of machines of a job; by default Dataflow's limit.",
        regex=r"[1-9][0-9]*",
    ),
    _Parameter(
        name="build_options",
        label="Additional options of the build's jobs",
        meaning="Beam options, separated by spaces, each as --name=value.",
        regex=r"--[a-z_]+(=\S+)?( --[a-z_]+(=\S+)?)*",
    ),
)
"""The template's parameters, in addition to those of every Flex Template."""


def container_spec(*, launcher: str, worker: str) -> dict[str, Any]:
    """The template: the JSON for ``gcloud dataflow flex-template run``.

    Args:
        launcher: Image of the Dockerfile's launcher stage.
        worker: Image of the Dockerfile's worker stage.

    Raises:
        RecipeError: if an image name is invalid.
    """
    for image in (launcher, worker):
        if not image.strip("/") or any(character.isspace() for character in image):
            raise RecipeError(
                f"Invalid image {image!r}: expected a name in a registry, such as "
                "us-central1-docker.pkg.dev/my-project-1234/images/snapshard:1"
            )
    return {
        "image": launcher,
        "sdkInfo": {"language": "PYTHON"},
        "metadata": {
            "name": "snapshard",
            "description": "Builds the snapshot of a recipe; resumes an interrupted build.",
            "parameters": [
                {
                    "name": parameter.name,
                    "label": parameter.label,
                    "helpText": parameter.meaning,
                    "isOptional": not parameter.required,
                    "regexes": [f"^{parameter.regex}$"],
                }
                for parameter in PARAMETERS
            ],
        },
        # One machine runs the build; all machines use the worker's image.
        "defaultEnvironment": {"numWorkers": 1, "maxWorkers": 1, "sdkContainerImage": worker},
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Describes the template's job; Google's launcher runs this with the given parameters.

    Loads the recipe and checks the requirements of the build's jobs: errors in them end the launch,
    not a job.

    Raises:
        SystemExit: if a check fails, a parameter is missing, or Beam does not accept an option.
    """
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for parameter in PARAMETERS:
        parser.add_argument(f"--{parameter.name}", required=parameter.required, default="")
    given, flags = parser.parse_known_args(arguments)
    options = PipelineOptions(
        [
            # The image contains everything: only the pipeline is staged (see runners.dataflow).
            "--sdk_location=container",
            "--no_save_main_session",
            "--experiments=disable_logging_submission_environment",
            *flags,
        ],
        pickle_library="cloudpickle",
    )
    task = _Task(
        recipe=given.recipe,
        out=given.out,
        limit=int(given.limit) if given.limit else None,
        runner=Dataflow(
            machine_type=given.build_machine_type,
            workers=int(given.build_workers) if given.build_workers else None,
            max_workers=int(given.build_max_workers) if given.build_max_workers else None,
            beam_options=(*_inherited(options), *given.build_options.split()),
        ),
    )
    try:
        make_runner(task.runner).check()
        with _recipe_of(task):
            pass
    except SnapshardError as error:
        sys.exit(f"error: {error}")
    pipeline = beam.Pipeline(options=options)
    _ = (
        pipeline
        | "Task" >> beam.Create([task], reshuffle=False)
        | "Build" >> beam.ParDo(_BuildFn())  # the snapshot's path
    )
    # No wait: the launcher only describes the job.
    pipeline.run()


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Task:
    """A build to run.

    Attributes:
        recipe: URL or path of the recipe's file.
        out: Output root.
        limit: As for ``ss.build``.
        runner: The engine of the build's jobs.
    """

    recipe: str
    out: str
    limit: int | None
    runner: Dataflow


class _BuildFn(beam.DoFn):
    """Runs a build; if the machine is lost, another one resumes it."""

    def process(self, task: _Task) -> Iterator[str]:
        from ..build import build

        with _recipe_of(task) as recipe:
            snapshot = build(recipe, task.out, limit=task.limit, runner=task.runner)
        _LOGGER.warning(
            "%s: %s", "already built" if snapshot.cached else "built", storage.redact(snapshot.path)
        )
        yield snapshot.path


@contextlib.contextmanager
def _recipe_of(task: _Task) -> Iterator[Recipe]:
    """Loads the recipe; its files are on this machine while the body runs."""
    from ..recipe.shipping import load_recipe_file

    with tempfile.TemporaryDirectory(prefix=storage.SCRATCH) as folder:
        yield load_recipe_file(fetch_recipe(task.recipe, folder))


def fetch_recipe(url: str, folder: str) -> str:
    """Copies a recipe's file and the modules in its folder to a local folder; returns its path.

    Copies all ``.py`` files in the recipe's folder, but no packages.

    Raises:
        RecipeError: if the file does not exist.
        StorageError: if the store fails.
    """
    if storage.is_local(url):
        return storage.local_path(url)
    place, _, main_file = url.rpartition("/")
    names = [name for name in storage.list_names(place) if name.endswith(".py")]
    if main_file not in names:
        raise RecipeError(
            f"{storage.redact(url)} does not exist. Copy the recipe's file there, with the modules "
            "that it imports."
        )
    for name in names:
        with open(os.path.join(folder, name), "wb") as file:
            file.write(storage.read_bytes(join(place, name)))
    return os.path.join(folder, main_file)


def _inherited(options: Any) -> Iterator[str]:
    """The options of the template's job that the build's jobs inherit, each as a flag."""
    given = options.get_all_options(drop_default=True)
    for name in _INHERITED:
        value = given.get(name)
        if name == "use_public_ips" and value is False:
            yield "--no_use_public_ips"
        elif value is True:
            yield f"--{name}"
        elif value:
            yield f"--{name}={value}"
