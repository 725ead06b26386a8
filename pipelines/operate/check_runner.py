"""Looks whether an engine can run builds: its surroundings, then a small job that tells of workers.

What a worker finds out travels through the output root, as runs and shards do: so the job shows,
too, that every worker reaches it.
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
from ..build import make_runner
from ..recipe.shipping import refuse_optimized_python

_NUM_ELEMENTS = 16


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunnerReport:
    """What a small job on an engine showed.

    Attributes:
        seconds: How long the job took, its workers' start included.
        workers: ``host, process`` of each worker that took part.
    """

    seconds: float
    workers: tuple[str, ...]


def check_runner(config: RunnerConfig, out: str | None = None) -> RunnerReport:
    """Checks an engine's surroundings, runs a small job on it, and holds its workers against here.

    Args:
        config: The engine.
        out: An output root that builds will have; None for a temporary folder, which workers on
            other machines cannot reach.

    Raises:
        RecipeError: if something that the engine needs is missing.
        RunnerError: if the job fails, or a worker has another Python or other libraries.
        StorageError: if a worker does not reach the output root.
    """
    refuse_optimized_python()
    runner = make_runner(config)
    runner.check()
    if not runner.sees_local_files and (out is None or storage.is_local(out)):
        raise RecipeError(
            f"The workers of {runner.name} do not see {out or 'a folder of this machine'}. Say "
            "where builds will be put, and the small job with them: --out gs://bucket/folder"
        )
    with storage.temporary_folder() as local:
        folder = join(local if out is None else storage.absolute(out), f".check-{uuid.uuid4().hex}")
        try:
            report = _run(runner, folder)
        except BaseException:
            # What a worker met there is told, not that nothing can be removed either.
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
    # By name, since the listings of some stores lag behind what was put.
    found = [json.loads(storage.read_bytes(url)) for url in urls if storage.exists(url)]
    if len(found) != _NUM_ELEMENTS:
        raise RunnerError(
            f"Of {_NUM_ELEMENTS} files that workers wrote into {storage.redact(folder)}, "
            f"{len(found)} are seen from here. Choose an output root that this machine and every "
            "worker reach: an object store, or a network filesystem that is mounted everywhere."
        )
    here = _facts()
    for worker in found:
        for name, expected in here["versions"].items():
            if worker["versions"][name] != expected:
                raise RunnerError(
                    f"The worker {worker['worker']} has {name} {worker['versions'][name]}, and "
                    f"{expected} is here: a snapshot's bytes would depend on where it was made. "
                    "Give workers the environment of this machine (see the Dockerfile)."
                )
    return RunnerReport(
        seconds=seconds, workers=tuple(sorted({worker["worker"] for worker in found}))
    )


def _probe(pipeline: Any, folder: str) -> Any:
    import apache_beam as beam

    return (
        pipeline
        | "Elements" >> beam.Create(range(_NUM_ELEMENTS), reshuffle=False)
        | "Spread" >> beam.Reshuffle()
        | "Tell" >> beam.Map(_tell, folder)
    )


def _place(element: int, folder: str) -> str:
    return join(folder, f"{element:02}.json")


def _tell(element: int, folder: str) -> None:
    """What one element does, on a worker."""
    try:
        storage.put_bytes(_place(element, folder), json.dumps(_facts()).encode())
    except SnapshardError as error:
        raise type(error)(f"On the worker {socket.gethostname()}: {error}") from None


def _facts() -> dict[str, Any]:
    return {
        "worker": f"{socket.gethostname()}, process {os.getpid()}",
        "versions": library_versions(),
    }
