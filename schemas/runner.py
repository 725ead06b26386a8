"""Engines: what a user says of one, and the protocol by which ``pipelines.build`` runs a job.

A config says where jobs run and nothing of what comes out: every engine gives the same bytes, so
none of it is part of a fingerprint.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol

import pydantic

from .config import config_class

STALL_TIMEOUT = 600.0
"""Seconds: the default of ``stall_timeout``."""


@config_class
class Direct:
    """Beam's embedded engine, on this machine.

    Args:
        workers: Worker processes; 1 is this process itself.
        stall_timeout: Seconds after which a build fails in which nothing advances; 0 for no limit.
        beam_options: Further options of Beam, each as ``--name=value``.
    """

    workers: int = pydantic.Field(default=1, ge=1, strict=True)
    stall_timeout: float = pydantic.Field(default=STALL_TIMEOUT, ge=0, allow_inf_nan=False)
    beam_options: tuple[str, ...] = ()


@config_class
class Prism:
    """Prism, Beam's own local engine: a Go program beside this process.

    Args:
        workers: Elements that are worked on at once.
        binary: The program; by default ``prism`` on the PATH or in ``~/go/bin``.
        stall_timeout: Seconds after which a build fails in which nothing advances; 0 for no limit.
        beam_options: Further options of Beam, each as ``--name=value``.
    """

    workers: int = pydantic.Field(default=1, ge=1, strict=True)
    binary: str = ""
    stall_timeout: float = pydantic.Field(default=STALL_TIMEOUT, ge=0, allow_inf_nan=False)
    beam_options: tuple[str, ...] = ()


@config_class
class Flink:
    """Apache Flink: embedded on this machine, or a cluster.

    Embedded, its worker is this process. The workers of a cluster run Python as the options
    say: ``--environment_type=DOCKER`` with the image of the Dockerfile, or ``EXTERNAL`` with the
    address of Beam's worker pools.

    Args:
        workers: Flink's parallelism: elements that are worked on at once.
        master: ``host:port`` of a cluster's web address; "[local]" for the embedded engine.
        jar: Beam's job server for Flink; by default the file that the environment variable
            ``SNAPSHARD_FLINK_JAR`` names.
        stall_timeout: Seconds after which a build fails in which nothing advances; 0 for no limit.
            Embedded alone: a cluster is not watched.
        beam_options: Further options of Beam, each as ``--name=value``.
    """

    workers: int = pydantic.Field(default=1, ge=1, strict=True)
    master: str = "[local]"
    jar: str = ""
    stall_timeout: float = pydantic.Field(default=STALL_TIMEOUT, ge=0, allow_inf_nan=False)
    beam_options: tuple[str, ...] = ()


@config_class
class Spark:
    """Apache Spark: embedded on this machine, or a cluster.

    Embedded, its worker is this process. The workers of a cluster run Python as the options
    say: ``--environment_type=DOCKER`` with the image of the Dockerfile, or ``EXTERNAL`` with the
    address of Beam's worker pools.

    Args:
        workers: Partitions of a job, where Spark is not told otherwise; embedded, elements that
            are worked on at once.
        master: Of a cluster, as Spark names it: ``spark://host:7077``, ``yarn``; "local" for the
            embedded engine.
        jar: Beam's job server for Spark; by default the file that the environment variable
            ``SNAPSHARD_SPARK_JAR`` names.
        stall_timeout: Seconds after which a build fails in which nothing advances; 0 for no limit.
            Embedded alone: a cluster is not watched.
        beam_options: Further options of Beam, each as ``--name=value``.
    """

    workers: int = pydantic.Field(default=1, ge=1, strict=True)
    master: str = "local"
    jar: str = ""
    stall_timeout: float = pydantic.Field(default=STALL_TIMEOUT, ge=0, allow_inf_nan=False)
    beam_options: tuple[str, ...] = ()


@config_class
class Dataflow:
    """Dataflow, Google's service: it starts machines for each job, and ends them.

    Beam's own options say the same, and win: ``--project=…`` among ``beam_options``. What is
    marked so has to be said, here or there.

    Args:
        project: Id of the Google Cloud project; by default what ``GOOGLE_CLOUD_PROJECT`` names.
        region: Where the machines are; by default what ``CLOUDSDK_COMPUTE_REGION`` names.
        temp_location: A ``gs://`` folder for Dataflow's own files. Has to be said.
        staging_location: Another one for what is sent to workers; by default ``temp_location``.
        image: The container of the workers: what the Dockerfile makes. Has to be said, unless
            options say how workers get snapshard otherwise.
        machine_type: Of the workers; by default Dataflow chooses.
        workers: Machines to begin with; by default Dataflow chooses.
        max_workers: The most machines that it may add; by default Dataflow's own limit.
        service_account: E-mail address of the account that workers run as; by default that of
            Compute Engine.
        beam_options: Further options of Beam, each as ``--name=value``.
    """

    project: str = ""
    region: str = ""
    temp_location: str = ""
    staging_location: str = ""
    image: str = ""
    machine_type: str = ""
    workers: int | None = pydantic.Field(default=None, ge=1, strict=True)
    max_workers: int | None = pydantic.Field(default=None, ge=1, strict=True)
    service_account: str = ""
    beam_options: tuple[str, ...] = ()


RunnerConfig = Direct | Prism | Flink | Spark | Dataflow
"""What ``ss.build(…, runner=)`` takes."""


class JobRunner(Protocol):
    """Runs Beam jobs to their end; a context manager around those of one build.

    Implementations live in ``runners/``.
    """

    @property
    def name(self) -> str:
        """What the user calls the engine: ``direct``, ``flink``."""

    @property
    def threads_per_worker(self) -> int:
        """How many elements a worker should work on at once, to use the machine's cores."""

    @property
    def shares_memory(self) -> bool:
        """Whether jobs run in this very process, so that they see what is in its memory."""

    @property
    def sees_local_files(self) -> bool:
        """Whether workers may see this machine's disks, or a network disk that it has."""

    def check(self) -> None:
        """Looks for what the engine needs.

        Raises:
            RecipeError: if something is missing: what, and how to get it.
        """

    def run(self, construct: Callable[[Any], object], *, job_name: str) -> None:
        """Runs the job that ``construct`` builds on the ``beam.Pipeline`` it is given.

        Raises:
            RunnerError: if the engine or a worker ended before the job did.
        """

    def __enter__(self) -> JobRunner:
        """Begins the jobs of a build."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Ends what was started for them."""
