"""Checks whether an engine can run builds: its requirements, then a small job on its workers.

Workers report through the output root, like runs and shards: so the job also shows that every
worker can access it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import socket
import time
import uuid
from typing import Any

from ...schemas.errors import RecipeError, RunnerError, SnapshardError, StorageError
from ...schemas.fingerprint import library_versions
from ...schemas.naming import join
from ...schemas.runner import JobRunner, RunnerConfig
from ...transforms import storage
from ..engines import make_runner
from ..recipe.shipping import refuse_unfit_python

_NUM_ELEMENTS = 16


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunnerReport:
    """The result of a small job on an engine.

    Attributes:
        seconds: Duration of the job, including the start of its workers.
        workers: ``host, process`` of each worker that took part.
    """

    seconds: float
    workers: tuple[str, ...]


def check_runner(config: RunnerConfig, out: str | None = None) -> RunnerReport:
    """Checks an engine's requirements, runs a small job, and checks its workers' libraries.

    Args:
        config: The engine.
        out: Output root of later builds; None for a temporary folder, which workers on other
            machines cannot access.

    Raises:
        RecipeError: if a requirement of the engine is missing.
        RunnerError: if the job fails, or a worker has another Python or other libraries.
        StorageError: if a worker cannot access the output root.
    """
    refuse_unfit_python()
    runner = make_runner(config)
    runner.check()
    if not runner.sees_local_files and (out is None or storage.is_local(out)):
        raise RecipeError(
            f"The workers of {runner.name} cannot access {out or 'folders of this machine'}. Give "
            "an output root that they can access: --out gs://bucket/folder"
        )
    with storage.temporary_folder() as local:
        folder = join(local if out is None else storage.absolute(out), f".check-{uuid.uuid4().hex}")
        try:
            report = _run(runner, folder)
        except BaseException:
            # Report the worker's error, not that the folder cannot be removed either.
            with contextlib.suppress(StorageError):
                storage.remove_tree(folder)
            raise
        storage.remove_tree(folder)
        return report


def _run(runner: JobRunner, folder: str) -> RunnerReport:
    started = time.monotonic()
    with runner:
        runner.run(lambda pipeline: _probe(pipeline, folder), job_name="check")
    seconds = time.monotonic() - started
    urls = [_place(element, folder) for element in range(_NUM_ELEMENTS)]
    # By name, since the listings of some stores lag behind uploads.
    reports = [json.loads(storage.read_bytes(url)) for url in urls if storage.exists(url)]
    if len(reports) != _NUM_ELEMENTS:
        raise RunnerError(
            f"Of {_NUM_ELEMENTS} files that workers wrote to {storage.redact(folder)}, only "
            f"{len(reports)} are visible to this machine. Choose an output root that this machine "
            "and every worker can access: an object store, or a network filesystem that is mounted "
            "everywhere."
        )
    here = library_versions()
    for worker in reports:
        there = worker["versions"]
        for name in sorted({*here, *there}):
            expected, found = here.get(name, "unset"), there.get(name, "unset")
            if found != expected:
                raise RunnerError(
                    f"The worker {worker['worker']} has {name} {found}, but "
                    f"this machine has {expected}: a snapshot's bytes would depend on where it was "
                    "built. Give workers the environment of this machine (see the Dockerfile)."
                )
    return RunnerReport(
        seconds=seconds, workers=tuple(sorted({worker["worker"] for worker in reports}))
    )


def _probe(pipeline: Any, folder: str) -> Any:
    import apache_beam as beam

    return (
        pipeline
        | "Elements" >> beam.Create(range(_NUM_ELEMENTS), reshuffle=False)
        | "Spread" >> beam.Reshuffle()
        | "Report" >> beam.Map(_report, folder)
    )


def _place(element: int, folder: str) -> str:
    return join(folder, f"{element:02}.json")


def _report(element: int, folder: str) -> None:
    """Writes the facts of the worker that processes an element."""
    try:
        storage.put_bytes(_place(element, folder), json.dumps(_facts()).encode())
    except SnapshardError as error:
        raise type(error)(f"On the worker {socket.gethostname()}: {error}") from None


def _facts() -> dict[str, Any]:
    return {
        "worker": f"{socket.gethostname()}, process {os.getpid()}",
        "versions": library_versions(),
    }
