"""Spark: embedded in the job server on this machine, or a cluster."""

from __future__ import annotations

import os
import re
import socket

from ..schemas.errors import RecipeError
from ..schemas.runner import Spark
from .job_server import check_jar, check_java, java_program, refuse_loopback
from .portable import PortableRunner

EMBEDDED = "local"
"""The master for the embedded engine, in the job server on this machine."""

_REACH_SECONDS = 5.0
# Packages that Spark's start scripts open (org.apache.spark.launcher.JavaModuleOptions).
_OPENED = (
    "java.lang",
    "java.lang.invoke",
    "java.lang.reflect",
    "java.io",
    "java.net",
    "java.nio",
    "java.util",
    "java.util.concurrent",
    "java.util.concurrent.atomic",
    "sun.nio.ch",
    "sun.nio.cs",
    "sun.security.action",
    "sun.util.calendar",
)


class SparkRunner(PortableRunner):
    """Runs jobs on Spark; embedded, its worker is this process."""

    name = "spark"

    def __init__(self, config: Spark) -> None:
        """Stores the configuration; starts nothing."""
        super().__init__(num_workers=config.workers, beam_options=config.beam_options)
        self._master = config.master
        self._jar = config.jar or os.environ.get("SNAPSHARD_SPARK_JAR", "")

    def check(self) -> None:
        """Checks for Java, the job server and the cluster.

        Raises:
            RecipeError: if one of them is missing.
        """
        check_java("Spark")
        check_jar(
            "Spark",
            self._jar,
            artifact="beam-runners-spark-3-job-server",
            naming="in SNAPSHARD_SPARK_JAR, or in a runner file",
        )
        if self._master == EMBEDDED:
            return
        self._check_cluster()
        if self.shares_memory:
            refuse_loopback("Spark", self._master)

    def engine_options(self) -> list[str]:
        """The Beam option that selects the runner."""
        return ["--runner=PortableRunner"]

    def server_command(self, port: int, folder: str) -> list[str]:
        """The job server's command line; without a cluster, it includes Spark itself."""
        embedded = self._master == EMBEDDED
        return [
            java_program(),
            f"-Djava.io.tmpdir={folder}",
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
            f"-Dspark.local.dir={folder}",
            f"-Dspark.default.parallelism={self._num_workers}",
            "-Dspark.ui.enabled=false",
            *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED),
            "-jar",
            self._jar,
            f"--spark-master-url={f'local[{self._num_workers}]' if embedded else self._master}",
            f"--artifacts-dir={folder}",
            f"--job-port={port}",
            "--artifact-port=0",
            "--expansion-port=0",
        ]

    def _check_cluster(self) -> None:
        """Tries the address of a standalone cluster; Spark itself resolves YARN and Kubernetes."""
        found = re.fullmatch(r"spark://([^:/,]+):(\d+)", self._master)
        if found is None:
            return
        try:
            address = (found[1], int(found[2]))
            socket.create_connection(address, timeout=_REACH_SECONDS).close()
        except (OSError, OverflowError) as error:
            raise RecipeError(
                f"No Spark cluster answers at {self._master}: {error}. Give the address of its "
                "master, such as --spark-master spark://host:7077."
            ) from None
