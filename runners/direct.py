"""The direct runner: Beam's embedded engine, in this process or in several worker processes.

``--runner=DirectRunner`` selects a switching runner that may download another engine, so the
embedded engine is used explicitly (docs/decisions/0003-direct-runner.md).
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import math
import os
from collections.abc import Callable, Sequence
from typing import Any

from ..schemas.errors import RecipeError, SnapshardError
from ..schemas.runner import PROCESS_BYTES, THREAD_BYTES, JobSize
from .portable import new_pipeline, parsed_options, quiet
from .worker_pool import WorkerPool

_MAX_WORKERS = 1024
_WORKERS = ("--direct_num_workers", "--direct_running_mode")
_CORES = 4
"""Cores that the threads of one process can keep busy: Python runs one of them at a time."""
_BYTES = 512 << 20
"""The part of a job for which it is worth starting a process, which loads for seconds."""
_LIMITS = "/sys/fs/cgroup"
_MEMORY = 2 << 30
"""Memory of a worker process with TensorFlow, in bytes, with room for its threads' blocks."""


def num_cores() -> int:
    """The cores that this process may use, of the machine or of its container."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    older = [*_limit("cpu/cpu.cfs_quota_us"), *_limit("cpu/cpu.cfs_period_us")]
    quota, period = _limit("cpu.max") or older or ["max", ""]
    if quota in ("max", "-1"):
        return cores or 1
    return max(1, min(cores or 1, math.ceil(int(quota) / int(period))))


def free_memory() -> int:
    """Bytes of memory that are available, at most the limit of the container."""
    import psutil

    limits = [*_limit("memory.max"), *_limit("memory/memory.limit_in_bytes")]
    available: int = psutil.virtual_memory().available
    return min([available, *(int(limit) for limit in limits if limit != "max")])


def _limit(name: str) -> list[str]:
    """The words of the file in which Linux states a limit of this container; none without it."""
    with contextlib.suppress(OSError), open(os.path.join(_LIMITS, name)) as file:
        return file.read().split()
    return []


@dataclasses.dataclass(eq=False)
class DirectRunner:
    """Runs jobs on this machine: in this process, or with ``num_workers`` worker processes.

    Implements :class:`snapshard.schemas.runner.JobRunner`. The engine keeps shuffled data in
    memory and does not recover: a worker process that dies ends the job within seconds. As a
    context manager it keeps its worker processes between jobs.

    Without ``num_workers``, a job runs in this process, whose threads keep four cores busy. On
    machines with more, it has a worker process for every four cores, if there are 512 MiB of data
    and 2 GiB of memory for each process. Threads have 256 MiB each. ``memory`` is what the machine
    has free, unless it is given; a number of workers that is given is reduced only by a given one.
    """

    num_workers: int | None = None
    memory: int | None = None
    beam_options: tuple[str, ...] = ()
    _pool: WorkerPool | None = dataclasses.field(init=False, repr=False, default=None)

    def __post_init__(self) -> None:
        """Checks the number, and reduces it to that of the machine's cores, if that is over two.

        Raises:
            RecipeError: if it is not a positive integer, or no machine has so many cores.
        """
        cores = num_cores()
        self._memory = free_memory() if self.memory is None else self.memory
        if self.num_workers is None:
            self._most = max(1, min(cores // _CORES, self._memory // _MEMORY))
            return
        if isinstance(self.num_workers, bool) or not isinstance(self.num_workers, int):
            raise RecipeError(f"workers={self.num_workers!r} is not an integer.")
        if self.num_workers < 1:
            raise RecipeError(f"workers={self.num_workers}, expected at least 1.")
        if self.num_workers > _MAX_WORKERS:
            raise RecipeError(
                f"workers={self.num_workers:,}, expected at most {_MAX_WORKERS:,}: a process for "
                f"each core of this machine, which has {cores}."
            )
        self._most = min(self.num_workers, max(2, cores))
        if self.memory is not None:
            self._most = max(1, min(self._most, self.memory // _MEMORY))

    @property
    def name(self) -> str:
        """The engine's name, as users write it."""
        return "direct"

    def num_processes(self, size: JobSize | None = None) -> int:
        """Number of worker processes of a job of this size."""
        if self.num_workers is not None:
            return min(self._most, size.num_items if size and size.num_items else self._most)
        if size is None:
            return 1
        return max(1, min(self._most, size.num_items, size.num_bytes // _BYTES))

    def threads_per_worker(self, size: JobSize | None = None) -> int:
        """The machine's cores divided by the workers, four at most, as far as memory suffices."""
        num = self.num_processes(size)
        num_fitting = (self._memory // num - PROCESS_BYTES) // THREAD_BYTES
        return max(1, min(_CORES, num_cores() // num, num_fitting))

    @property
    def shares_memory(self) -> bool:
        """Whether the only worker is this process."""
        return self._most == 1

    @property
    def sees_local_files(self) -> bool:
        """Always true: workers are processes on this machine."""
        return True

    def start_workers(self, size: JobSize) -> None:
        """Starts the processes of a job of this size, which load while it is described."""
        if self._pool is not None and not self._runs_here(size):
            self._pool.start(self.num_processes(size))

    def _runs_here(self, size: JobSize | None) -> bool:
        # A single worker that was asked for beside others is a process of its own.
        return self._most == 1 or (self.num_workers is None and self.num_processes(size) == 1)

    def check(self) -> None:
        """Checks the Beam options; the engine needs nothing beyond snapshard's dependencies.

        Raises:
            RecipeError: if Beam has no such option, does not accept its value, or it would change
                the workers.
        """
        for option in self.beam_options:
            if option.partition("=")[0] in _WORKERS:
                raise RecipeError(
                    f"{option}: the workers of direct are snapshard's own processes. Set their "
                    "number with --workers (workers=)."
                )
        if self.beam_options:
            _check_known(self.beam_options)

    def run(
        self, construct: Callable[[Any], object], *, job_name: str, size: JobSize | None = None
    ) -> None:
        """Runs the job that ``construct`` builds on the ``beam.Pipeline`` it is given.

        A :class:`SnapshardError` raised by a DoFn is raised here with its class and message.

        Raises:
            RunnerError: if a worker process ended before the job did.
        """
        with quiet():
            if self._runs_here(size):
                self._run_in_this_process(construct, job_name=job_name)
            else:
                self._run_in_processes(construct, job_name, self.num_processes(size))

    def __enter__(self) -> DirectRunner:
        """Starts keeping worker processes between jobs."""
        self._pool = WorkerPool()
        return self

    def __exit__(self, *error: object) -> None:
        """Ends the worker processes."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.__exit__(*error)

    def _run_in_processes(
        self, construct: Callable[[Any], object], job_name: str, num_processes: int
    ) -> None:
        from .worker_processes import WorkerProcesses

        with (
            contextlib.nullcontext(self._pool) if self._pool is not None else WorkerPool() as pool,
            WorkerProcesses(pool, job_name=job_name) as workers,
        ):
            self._run(construct, job_name, num_processes, environment=workers.environment)

    def _run_in_this_process(self, construct: Callable[[Any], object], *, job_name: str) -> None:
        try:
            self._run(construct, job_name, 1, environment=None)
        except BaseException as error:
            own = without_step(error)
            # Neither a SnapshardError nor Ctrl-C is a defect of the running step.
            if isinstance(own, SnapshardError) or not isinstance(own, Exception):
                raise own from own.__cause__
            raise

    def _run(
        self,
        construct: Callable[[Any], object],
        job_name: str,
        num_workers: int,
        *,
        environment: Any,
    ) -> None:
        from apache_beam.options.pipeline_options import PipelineOptions
        from apache_beam.runners.portability.fn_api_runner import FnApiRunner

        options = PipelineOptions(
            list(self.beam_options),
            job_name=job_name,
            direct_num_workers=num_workers,
            pickle_library="cloudpickle",
        )
        engine = FnApiRunner(default_environment=environment)
        pipeline = new_pipeline(runner=engine, options=options)
        construct(pipeline)
        pipeline.run().wait_until_finish()


def without_step(error: BaseException) -> BaseException:
    """The original error, if Beam raised a copy of it that names the step.

    Beam's copy appends "[while running …]" to the message, or is a RuntimeError if the class
    cannot be copied; the original error is its context.
    """
    while getattr(error, "_tagged_with_step", False) and error.__context__ is not None:
        error = error.__context__
    return error


def _check_known(beam_options: Sequence[str]) -> None:
    """Raises RecipeError if Beam does not accept an option, or would ignore it.

    Other engines have options of their own, which Beam passes on to them.
    """
    unknown: list[str] = []

    def collect(parser: Any) -> None:
        unknown.extend(parser.parse_known_args(list(beam_options))[1])

    options = parsed_options(beam_options, given=beam_options)
    with quiet():
        known = options.get_all_options(add_extra_args_fn=collect)
    for option in unknown:
        name = option.partition("=")[0]
        alike = difflib.get_close_matches(name[2:].replace("-", "_"), known, n=1)
        hint = f"Did you mean --{alike[0]}?" if alike else "Correct its name, or leave it out."
        raise RecipeError(f"Beam has no option {name}. {hint}")
