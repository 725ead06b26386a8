"""Spark: embedded in the job server on this machine, or a cluster."""

from __future__ import annotations

import re
import socket

from ..schemas.errors import RecipeError
from .portable import JavaRunner

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


class SparkRunner(JavaRunner):
    """Runs jobs on Spark; embedded, its worker is this process."""

    name = "spark"
    title = "Spark"
    embedded = "local"
    artifact = "beam-runners-spark-3-job-server"
    naming = "in SNAPSHARD_SPARK_JAR, or in a runner file"

    def engine_options(self) -> list[str]:
        """The Beam option that selects the runner."""
        return ["--runner=PortableRunner"]

    def _java_options(self, folder: str) -> list[str]:
        return [
            f"-Dspark.local.dir={folder}",
            f"-Dspark.default.parallelism={self._num_workers}",
            "-Dspark.ui.enabled=false",
            *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED),
        ]

    def _master_option(self) -> str:
        embedded = self._master == self.embedded
        master = f"local[{self._num_workers}]" if embedded else self._master
        return f"--spark-master-url={master}"

    def _check_cluster(self) -> None:
        """Tries the address of a standalone cluster; Spark itself resolves YARN and Kubernetes."""
        match = re.fullmatch(r"spark://([^:/,]+):(\d+)", self._master)
        if match is None:
            return
        try:
            address = (match[1], int(match[2]))
            socket.create_connection(address, timeout=_REACH_SECONDS).close()
        except (OSError, OverflowError) as error:
            raise RecipeError(
                f"No Spark cluster answers at {self._master}: {error}. Give the address of its "
                "master, such as --spark-master spark://host:7077."
            ) from None
