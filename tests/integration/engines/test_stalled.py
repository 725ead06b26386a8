"""An engine's server is stopped while it runs a job: the build fails, and nothing of it stays."""

import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from snapshard.schemas.progress import BUILD_FOLDER
from snapshard.transforms.reaper import processes_of

from .flink_cluster import FlinkCluster

pytestmark = pytest.mark.engine

SECONDS = {"prism": 20, "flink": 45}
"""More than libraries and the engine take to load, in silence."""
RECIPE = """
import os
import signal
import sys
import threading

import snapshard as ss
from snapshard.transforms.reaper import processes_of


def stop_server():
    # Workers of a cluster have not the build's environment.
    for pid in processes_of("TEST_MARK={mark}"):
        with open(f"/proc/{pid}/cmdline") as file:
            command = file.read()
            if "server_guard" not in command and "--job" in command:
                os.kill(pid, signal.SIGSTOP)


def read(file):
    infers = "snapshard" in sys.argv[0] and threading.current_thread() is threading.main_thread()
    if not infers:
        stop_server()
    yield {"text": file.read().decode()}


recipe = ss.Recipe(name="slow", source=ss.Files("files", read), splits=ss.Splits(train=1.0))
"""
SCRIPT = """
import sys
from snapshard import cli
from snapshard.pipelines import watchdog

watchdog.MIN_JOB_S = {seconds}.0
sys.argv[0] = "snapshard"
cli.main()
"""


@pytest.mark.parametrize("engine", SECONDS)
def test_its_build_fails(engine: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    seconds, options, path = SECONDS[engine], [], os.environ["PATH"]
    beam_options: list[str] = []
    if engine == "flink":  # on a cluster, of which the job server alone runs below the build
        cluster: FlinkCluster = request.getfixturevalue("flink_cluster")
        jar: Path = request.getfixturevalue("flink_jar")
        options = ["--flink-jar", str(jar), "--flink-master", cluster.master]
        beam_options = ["--", *cluster.beam_options]
    else:
        program: Path = request.getfixturevalue("prism_program")
        path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
    (tmp_path / "files").mkdir()
    (tmp_path / "tmp").mkdir()
    (tmp_path / "files" / "one.txt").write_text("one")
    recipe, mark = tmp_path / "recipe.py", uuid.uuid4().hex
    recipe.write_text(RECIPE.replace("{mark}", mark))
    environment = {**os.environ, "PATH": path, "TMPDIR": str(tmp_path / "tmp"), "TEST_MARK": mark}
    environment.pop(BUILD_FOLDER, None)
    command = ["build", recipe, "--out", tmp_path / "out", "--runner", engine, *options]
    with subprocess.Popen(
        [
            *(sys.executable, "-c", SCRIPT.format(seconds=seconds)),
            *(*command, "--stall-timeout", "2", *beam_options),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    ) as process:
        try:
            _, told = process.communicate(timeout=200)
            ended = time.monotonic()
            while processes_of(f"TEST_MARK={mark}"):
                assert time.monotonic() - ended < 10
                time.sleep(0.05)
        finally:
            for pid in processes_of(f"TEST_MARK={mark}"):
                os.kill(pid, signal.SIGKILL)
    assert process.returncode == 1, told
    assert f"error: No progress for {seconds} s on the job 'prepare' on {engine}" in told
    assert "; stopped processes: " in told
    assert "Traceback" not in told
