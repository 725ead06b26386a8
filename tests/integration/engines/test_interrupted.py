"""A build on a cluster is ended by a scheduler: its job does not go on there."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from .flink_cluster import FlinkCluster

pytestmark = pytest.mark.engine

RECIPE = """
import sys
import time

import snapshard as ss


def read(file):
    if "apache_beam" in " ".join(sys.orig_argv):  # a worker of the cluster
        with open("{begun}", "w"):
            pass
        time.sleep(300)
    yield {"text": file.read().decode()}


recipe = ss.Recipe(name="slow", source=ss.Files("files", read))
"""


def test_its_job_ends(flink_cluster: FlinkCluster, flink_jar: Path, tmp_path: Path) -> None:
    """By SIGTERM, which does what Ctrl-C does."""
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "one.txt").write_text("one")
    recipe, begun = tmp_path / "recipe.py", tmp_path / "begun"
    recipe.write_text(RECIPE.replace("{begun}", str(begun)))
    with subprocess.Popen(
        [
            *(sys.executable, "-m", "snapshard", "build", recipe, "--out", tmp_path / "out"),
            *("--runner", "flink", "--flink-master", flink_cluster.master),
            *("--flink-jar", flink_jar, "--", *flink_cluster.beam_options),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            deadline = time.monotonic() + 200
            while not begun.exists():
                assert process.poll() is None, process.communicate()
                assert time.monotonic() < deadline
                time.sleep(0.1)
            below = psutil.Process(process.pid).children(recursive=True)
            job = flink_cluster.running_job()
            process.send_signal(signal.SIGTERM)
            _, told = process.communicate(timeout=60)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 130, told
    assert "interrupted" in told
    assert not psutil.wait_procs(below, timeout=10)[1]
    deadline = time.monotonic() + 60
    while (state := flink_cluster.overview(f"jobs/{job}")["state"]) != "CANCELED":
        assert time.monotonic() < deadline, state
        time.sleep(0.5)
