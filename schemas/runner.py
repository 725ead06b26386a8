"""The protocol of an engine: how ``pipelines.build`` runs a Beam job, whichever it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol


class JobRunner(Protocol):
    """Runs Beam jobs to their end. Implementations live in ``runners/``."""

    @property
    def name(self) -> str:
        """What the user calls the engine: ``direct``, ``flink``."""

    @property
    def threads_per_worker(self) -> int:
        """How many elements a worker should work on at once, to use the machine's cores."""

    @property
    def shares_memory(self) -> bool:
        """Whether jobs run in this very process, so that they see what is in its memory."""

    def run(self, construct: Callable[[Any], object], *, job_name: str) -> None:
        """Runs the job that ``construct`` builds on the ``beam.Pipeline`` it is given.

        Raises:
            RunnerError: if the engine or a worker ended before the job did.
        """
