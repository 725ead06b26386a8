"""A Flex Template of Dataflow: one job, whose only element runs a whole build as jobs of its own.

The launcher of a template describes one job, which Dataflow then starts; it has minutes for that,
and may not wait for a job of its own. So a build, which is a chain of jobs, cannot run in the
launcher: it runs on the one machine of the job that the launcher describes, as it would on any
machine, and that job ends when, and as, the build does.
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
"""Options of the template's job that the build's jobs have too."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Parameter:
    """What whoever runs the template may say.

    Attributes:
        name: As it is given.
        label: Its heading in Google's console.
        meaning: What it says.
        regex: What its value matches, in full.
        required: Whether it has to be said.
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
        meaning="The recipe's file: a URL, with the modules that it imports beside it, or a path "
        "in the image.",
        regex=r".+\.py",
        required=True,
    ),
    _Parameter(
        name="out",
        label="Output root",
        meaning="Where the snapshot goes, and the work on the way to it.",
        regex=r"(gs|s3)://.+",
        required=True,
    ),
    _Parameter(
        name="limit",
        label="Records",
        meaning="Takes so many records, those with the lowest keys: for a dry run.",
        regex=r"[1-9][0-9]*",
    ),
    _Parameter(
        name="build_machine_type",
        label="Machine type of the build's jobs",
        meaning="Of the machines that prepare and write; by default Dataflow chooses.",
        regex=r"[a-z0-9]+-[-a-z0-9]+",
    ),
    _Parameter(
        name="build_workers",
        label="Workers of the build's jobs",
        meaning="Machines that a job begins with; by default Dataflow chooses.",
        regex=r"[1-9][0-9]*",
    ),
    _Parameter(
        name="build_max_workers",
        label="Most workers of the build's jobs",
        meaning="The most machines that Dataflow adds; by default its own limit.",
        regex=r"[1-9][0-9]*",
    ),
    _Parameter(
        name="build_options",
        label="Further options of the build's jobs",
        meaning="Options of Beam, separated by spaces, each as --name=value.",
        regex=r"--[a-z_]+(=\S+)?( --[a-z_]+(=\S+)?)*",
    ),
)
"""What the template takes beside what every Flex Template does."""


def container_spec(*, launcher: str, worker: str) -> dict[str, Any]:
    """The template itself: the JSON that ``gcloud dataflow flex-template run`` is given.

    Args:
        launcher: The image of the Dockerfile's stage of that name.
        worker: Likewise.

    Raises:
        RecipeError: if what is given names no image.
    """
    for image in (launcher, worker):
        if not image.strip("/") or any(character.isspace() for character in image):
            raise RecipeError(
                f"The image {image!r} cannot be one. Give it as the registry has it, as in "
                "us-central1-docker.pkg.dev/my-project-1234/images/snapshard:1"
            )
    return {
        "image": launcher,
        "sdkInfo": {"language": "PYTHON"},
        "metadata": {
            "name": "snapshard",
            "description": "Builds the snapshot of a recipe; a build that was cut short goes on.",
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
        # The one machine that runs the build, and the image of all.
        "defaultEnvironment": {"numWorkers": 1, "maxWorkers": 1, "sdkContainerImage": worker},
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Describes the template's job: what Google's launcher runs, with all that was said.

    The recipe is loaded, and the surroundings of the build's jobs are looked at, so that what is
    wrong with them ends the launch and not a job.

    Raises:
        SystemExit: if that is so, a parameter is missing, or an option is not what Beam takes.
    """
    from ..build import make_runner

    parser = argparse.ArgumentParser(allow_abbrev=False)
    for parameter in PARAMETERS:
        parser.add_argument(f"--{parameter.name}", required=parameter.required, default="")
    said, flags = parser.parse_known_args(arguments)
    options = PipelineOptions(
        [
            # The image has all: nothing is staged but the pipeline (see runners.dataflow).
            "--sdk_location=container",
            "--no_save_main_session",
            "--experiments=disable_logging_submission_environment",
            *flags,
        ],
        pickle_library="cloudpickle",
    )
    task = _Task(
        recipe=said.recipe,
        out=said.out,
        limit=int(said.limit) if said.limit else None,
        runner=Dataflow(
            machine_type=said.build_machine_type,
            workers=int(said.build_workers) if said.build_workers else None,
            max_workers=int(said.build_max_workers) if said.build_max_workers else None,
            beam_options=(*_inherited(options), *said.build_options.split()),
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
    # No wait: the launcher only describes.
    pipeline.run()


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Task:
    """A build to run.

    Attributes:
        recipe: URL or path of the recipe's file.
        out: Output root.
        limit: As ``ss.build`` takes it.
        runner: What the build's jobs run on.
    """

    recipe: str
    out: str
    limit: int | None
    runner: Dataflow


class _BuildFn(beam.DoFn):
    """Runs a build; where the machine is lost, another one goes on with it."""

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
    """The recipe, whose files are here meanwhile."""
    from ..recipe.shipping import load_recipe_file

    with tempfile.TemporaryDirectory(prefix=storage.SCRATCH) as folder:
        yield load_recipe_file(fetch_recipe(task.recipe, folder))


def fetch_recipe(url: str, folder: str) -> str:
    """Brings a recipe's file, and the modules beside it, into a local folder; gives its path.

    Of what lies beside it, files that end in ``.py`` come along; packages do not.

    Raises:
        RecipeError: if there is no such file.
        StorageError: if the store fails.
    """
    if storage.is_local(url):
        return storage.local_path(url)
    place, _, main_file = url.rpartition("/")
    names = [name for name in storage.list_names(place) if name.endswith(".py")]
    if main_file not in names:
        raise RecipeError(
            f"There is no {storage.redact(url)}. Copy the recipe's file there, with the modules "
            "that it imports."
        )
    for name in names:
        with open(os.path.join(folder, name), "wb") as file:
            file.write(storage.read_bytes(join(place, name)))
    return os.path.join(folder, main_file)


def _inherited(options: Any) -> Iterator[str]:
    """Those options of the template's job that the build's jobs have too, each as a flag."""
    said = options.get_all_options(drop_default=True)
    for name in _INHERITED:
        value = said.get(name)
        if name == "use_public_ips" and value is False:
            yield "--no_use_public_ips"
        elif value is True:
            yield f"--{name}"
        elif value:
            yield f"--{name}={value}"
