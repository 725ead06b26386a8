"""Flink: embedded in the job server on this machine, or a cluster."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request

from ..schemas.errors import RecipeError
from ..schemas.runner import Flink
from .java import check_jar, check_java, java_program, refuse_loopback
from .portable import PortableRunner

EMBEDDED = "[local]"
"""The master that means: in the job server, on this machine."""

_REACH_SECONDS = 5.0


class FlinkRunner(PortableRunner):
    """Runs jobs on Flink; embedded, its worker is this process."""

    name = "flink"

    def __init__(self, config: Flink) -> None:
        """Takes where Flink and its job server lie; starts nothing."""
        super().__init__(num_workers=config.workers, beam_options=config.beam_options)
        self._master = config.master
        self._jar = config.jar or os.environ.get("SNAPSHARD_FLINK_JAR", "")

    def check(self) -> None:
        """Looks for Java, the job server and the cluster.

        Raises:
            RecipeError: if one of them is missing.
        """
        check_java("Flink")
        check_jar(
            "Flink",
            self._jar,
            artifact="beam-runners-flink-<version>-job-server",
            naming="with --flink-jar or in SNAPSHARD_FLINK_JAR",
        )
        if self._master == EMBEDDED:
            return
        self._check_cluster()
        if self.shares_memory:
            refuse_loopback("Flink", self._master)

    def engine_options(self) -> list[str]:
        """The runner and its parallelism."""
        return ["--runner=PortableRunner", f"--parallelism={self._num_workers}"]

    def server_command(self, port: int, folder: str) -> list[str]:
        """The job server, which holds Flink itself where there is no cluster."""
        return [
            java_program(),
            f"-Djava.io.tmpdir={folder}",
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
            "-jar",
            self._jar,
            f"--flink-master={self._master}",
            f"--artifacts-dir={folder}",
            f"--job-port={port}",
            "--artifact-port=0",
            "--expansion-port=0",
        ]

    def _check_cluster(self) -> None:
        url = self._master if "://" in self._master else f"http://{self._master}"
        try:
            with urllib.request.urlopen(f"{url}/overview", timeout=_REACH_SECONDS) as answer:
                overview = json.load(answer)
            slots = int(overview["slots-total"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RecipeError(
                f"No Flink cluster answers at {url}: {error}. Give the address of its web page, "
                "as in --flink-master host:8081."
            ) from None
        if slots < self._num_workers:
            raise RecipeError(
                f"Flink at {url} has {slots} task slots, and --workers {self._num_workers} asks "
                "for more. Add TaskManagers, or ask for fewer workers."
            )
