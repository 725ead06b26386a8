"""Flink: embedded in the job server on this machine, or a cluster."""

from __future__ import annotations

import http.client
import json
import sys
import time
import urllib.request
import uuid
from typing import Any

from ..schemas.errors import RecipeError
from .portable import JavaRunner

_REACH_SECONDS = 5.0
_END_SECONDS = 20.0
_UNREACHED = (OSError, http.client.HTTPException, ValueError, KeyError, TypeError)
_OVER = {"FINISHED", "CANCELED", "FAILED"}


class FlinkRunner(JavaRunner):
    """Runs jobs on Flink; embedded, its worker is this process."""

    name = "flink"
    title = "Flink"
    embedded = "[local]"
    artifact = "beam-runners-flink-<version>-job-server"
    naming = "with --flink-jar or in SNAPSHARD_FLINK_JAR"

    def engine_options(self) -> list[str]:
        """The Beam options that select the runner and its parallelism."""
        return ["--runner=PortableRunner", f"--parallelism={self._num_workers}"]

    def engine_job_name(self, job_name: str) -> str:
        """A name that no other job of the cluster has."""
        return f"snapshard-{job_name}-{uuid.uuid4().hex[:8]}"

    def end_job(self, name: str) -> None:
        """Cancels a job on a cluster: a cancellation through its job server does not reach it."""
        if self._master == self.embedded:
            return
        deadline, problem = time.monotonic() + _END_SECONDS, f"not within {_END_SECONDS:.0f} s"
        try:
            while left := self._jobs_left(name):
                for job in left:
                    self._ask(f"jobs/{job}?mode=cancel", method="PATCH")
                if time.monotonic() > deadline:
                    break
                time.sleep(0.5)
            else:
                return
        except _UNREACHED as error:
            problem = str(error)
        print(
            f"The job {name!r} may still run at {self._url}: it could not be cancelled: {problem}.",
            file=sys.stderr,
            flush=True,
        )

    def _jobs_left(self, name: str) -> list[str]:
        """The ids of the unfinished jobs with this name."""
        jobs = self._ask("jobs/overview")["jobs"]
        return [job["jid"] for job in jobs if job["name"] == name and job["state"] not in _OVER]

    @property
    def _url(self) -> str:
        return self._master if "://" in self._master else f"http://{self._master}"

    def _ask(self, path: str, *, method: str = "GET") -> Any:
        """The JSON response of the cluster's REST API."""
        request = urllib.request.Request(f"{self._url}/{path}", method=method)
        with urllib.request.urlopen(request, timeout=_REACH_SECONDS) as answer:
            return json.load(answer)

    def _master_option(self) -> str:
        return f"--flink-master={self._master}"

    def _check_cluster(self) -> None:
        try:
            slots = int(self._ask("overview")["slots-total"])
        except _UNREACHED as error:
            raise RecipeError(
                f"No Flink cluster answers at {self._url}: {error}. Give the address of its web "
                "interface, such as --flink-master host:8081."
            ) from None
        if slots < self._num_workers:
            raise RecipeError(
                f"Flink at {self._url} has {slots} task slots, fewer than --workers "
                f"{self._num_workers}. Add TaskManagers, or use fewer workers."
            )
