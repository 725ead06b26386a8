"""Engines: their configuration, and the protocol by which ``pipelines.build`` runs a job.

A configuration says where jobs run. Every engine gives the same bytes, so none of it enters the
fingerprint.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol

import pydantic

from .config import config_class
from .shards import parse_size

PROCESS_BYTES = 512 << 20
"""Memory of a process before it works on anything."""
THREAD_BYTES = 256 << 20
"""Memory of a block or shard in progress: three times the 64 MiB that are sorted at once."""
STALL_TIMEOUT = 600.0
"""Default of ``stall_timeout``, in seconds."""


@config_class
class Direct:
    """Beam's embedded engine, on this machine.

    Args:
        workers: Number of worker processes; 1 means this process. No more are started than the
            machine has cores, or a job has blocks or shards. By default a build runs in this
            process, which keeps four cores busy; on machines with more, a job has a process for
            every four cores, if there are 512 MiB of data and 2 GiB of free memory for each. A
            recipe with functions that were not read from a file, and data in ``memory://``, stay
            in this process.
        memory: Memory that processes and threads are sized by, such as "2GiB"; at least 768 MiB.
            By default what this machine or its container has free. docs/scale.md says what it
            cannot bound.
        stall_timeout: Seconds without progress after which a build fails; 0 for no limit.
        beam_options: Additional Beam options, each as ``--name=value``.
    """

    workers: int | None = pydantic.Field(default=None, ge=1, strict=True)
    memory: str | int | None = None
    stall_timeout: float = pydantic.Field(default=STALL_TIMEOUT, ge=0, allow_inf_nan=False)
    beam_options: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Checks that the memory is a size, and enough for one thread."""
        try:
            given = self.memory_bytes
        except ValueError as error:
            raise ValueError(f"memory: {error}") from None
        if given is not None and given < PROCESS_BYTES + THREAD_BYTES:
            raise ValueError(
                f"memory={self.memory!r} is too small, expected at least 768MiB: 512 MiB for the "
                "process and its libraries, and 256 MiB for each thread"
            )

    @property
    def memory_bytes(self) -> int | None:
        """The memory in bytes, if it is given."""
        return None if self.memory is None else parse_size(self.memory)


@config_class
class Prism:
    """Prism, Beam's local engine: a Go program that runs next to this process, its worker.

    Args:
        workers: No effect: Prism decides how many elements are processed at once.
        binary: Path of the program; by default ``prism`` on the PATH or in ``~/go/bin``.
        stall_timeout: Seconds without progress after which a build fails; 0 for no limit.
        beam_options: Additional Beam options, each as ``--name=value``.
    """

    workers: int = pydantic.Field(default=1, ge=1, strict=True)
    binary: str = ""
    stall_timeout: float = pydantic.Field(default=STALL_TIMEOUT, ge=0, allow_inf_nan=False)
    beam_options: tuple[str, ...] = ()


@config_class
class Flink:
    """Apache Flink: embedded on this machine, or a cluster.

    The embedded engine's worker is this process. How the workers of a cluster run Python is set by
    the options: ``--environment_type=DOCKER`` with the image built from the Dockerfile, or
    ``EXTERNAL`` with the address of Beam's worker pools.

    Args:
        workers: Flink's parallelism: number of elements processed at once.
        master: ``host:port`` of a cluster's web address; "[local]" for the embedded engine.
        jar: Path of Beam's job server for Flink; by default the value of the environment variable
            ``SNAPSHARD_FLINK_JAR``.
        stall_timeout: Seconds without progress after which a build fails; 0 for no limit. Only
            for the embedded engine: a cluster is not watched.
        beam_options: Additional Beam options, each as ``--name=value``.
    """

    workers: int = pydantic.Field(default=1, ge=1, strict=True)
    master: str = "[local]"
    jar: str = ""
    stall_timeout: float = pydantic.Field(default=STALL_TIMEOUT, ge=0, allow_inf_nan=False)
    beam_options: tuple[str, ...] = ()


@config_class
class Spark:
    """Apache Spark: embedded on this machine, or a cluster.

    The embedded engine's worker is this process. How the workers of a cluster run Python is set by
    the options: ``--environment_type=DOCKER`` with the image built from the Dockerfile, or
    ``EXTERNAL`` with the address of Beam's worker pools.

    Args:
        workers: Number of partitions of a job, unless Spark's own settings override it; for the
            embedded engine, number of elements processed at once.
        master: Master URL of a cluster: ``spark://host:7077``, ``yarn``; "local" for the embedded
            engine.
        jar: Path of Beam's job server for Spark; by default the value of the environment variable
            ``SNAPSHARD_SPARK_JAR``.
        stall_timeout: Seconds without progress after which a build fails; 0 for no limit. Only
            for the embedded engine: a cluster is not watched.
        beam_options: Additional Beam options, each as ``--name=value``.
    """

    workers: int = pydantic.Field(default=1, ge=1, strict=True)
    master: str = "local"
    jar: str = ""
    stall_timeout: float = pydantic.Field(default=STALL_TIMEOUT, ge=0, allow_inf_nan=False)
    beam_options: tuple[str, ...] = ()


@config_class
class Dataflow:
    """Dataflow, Google's service: it starts and stops machines for each job.

    The same settings among ``beam_options`` (such as ``--project=…``) take precedence. Required
    settings must be given in one of the two places.

    Args:
        project: Id of the Google Cloud project; by default the value of ``GOOGLE_CLOUD_PROJECT``.
        region: Region of the machines; by default the value of ``CLOUDSDK_COMPUTE_REGION``.
        temp_location: A ``gs://`` folder for Dataflow's temporary files. Required.
        staging_location: A ``gs://`` folder for files sent to workers; by default
            ``temp_location``.
        image: Container image of the workers, built from the Dockerfile. Required, unless options
            install snapshard on the workers in another way.
        machine_type: Machine type of the workers; by default Dataflow chooses.
        workers: Initial number of machines; by default Dataflow chooses.
        max_workers: Maximum number of machines; by default Dataflow's limit.
        service_account: E-mail address of the account that workers run as; by default that of
            Compute Engine.
        beam_options: Additional Beam options, each as ``--name=value``.
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
"""The configurations that ``ss.build(…, runner=)`` accepts."""


@dataclasses.dataclass(frozen=True)
class JobSize:
    """How much work a job is."""

    num_items: int
    """The blocks or shards that it makes."""
    num_bytes: int
    """Their size, about."""


class JobRunner(Protocol):
    """Runs Beam jobs to completion; a context manager around the jobs of one build.

    Implementations are in ``runners/``.
    """

    @property
    def name(self) -> str:
        """The engine's name, as users write it: ``direct``, ``flink``."""

    def threads_per_worker(self, size: JobSize | None = None) -> int:
        """How many of a job's items a worker should process at once to use the machine's cores."""

    @property
    def shares_memory(self) -> bool:
        """Whether jobs run in this process and share its memory."""

    @property
    def sees_local_files(self) -> bool:
        """Whether workers may see this machine's disks, or network disks mounted on it."""

    def check(self) -> None:
        """Checks the engine's requirements.

        Raises:
            RecipeError: if something is missing; the message says what, and how to get it.
        """

    def start_workers(self, size: JobSize) -> None:
        """Starts the workers of a job of this size, if the engine has any to start."""

    def run(
        self, construct: Callable[[Any], object], *, job_name: str, size: JobSize | None = None
    ) -> None:
        """Runs the job that ``construct`` builds on the ``beam.Pipeline`` it is given.

        Args:
            construct: Applies the job's transforms.
            job_name: The job's name, for messages.
            size: How much work it is, if that is known: an engine of this machine starts workers
                by it.

        Raises:
            RunnerError: if the engine or a worker ended before the job was done.
        """

    def __enter__(self) -> JobRunner:
        """Enters the context of a build's jobs."""

    def __exit__(self, *_: object) -> None:
        """Ends all processes started for the jobs."""
