"""Workers that have neither the recipe's folder nor the source's disk run every step."""

import contextlib
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

import snapshard as ss
from snapshard.pipelines.inspect.verify import verify
from snapshard.pipelines.operate.check_runner import check_runner
from snapshard.pipelines.recipe.shipping import load_recipe_file
from snapshard.runners.job_server import free_port
from snapshard.schemas.errors import RunnerError, StorageError
from snapshard.schemas.progress import Silent

from ..engines.conftest import prism_program
from .proxy import Proxy
from .test_stores import put
from .test_troubled_stores import KEY, SECRET, stored

__all__ = ["prism_program"]

# An analysis, and workers that load TensorFlow anew for each job.
pytestmark = [pytest.mark.engine, pytest.mark.slow]

RECIPE = """
import snapshard as ss
import tensorflow_transform as tft

from beside import is_wanted


def preprocess(inputs):
    return {"number": tft.scale_to_z_score(inputs["number"]), "word": inputs["word"]}


recipe = ss.Recipe(
    name="far",
    source=ss.Csv("SOURCE"),
    prepare=[ss.records.filter(is_wanted)],
    preprocessing_fn=preprocess,
    shards=ss.Shards(num_shards=2),
)
"""
BESIDE = """
def is_wanted(record):
    return record["number"] % 10 != 3
"""


@pytest.fixture
def far_pool(tmp_path: Path) -> Iterator[Callable[[Path], str]]:
    """Starts a pool of Beam's Python workers to which a folder is empty; gives its address."""
    pools: list[subprocess.Popen[bytes]] = []

    def start(hidden: Path) -> str:
        port = free_port()
        hide = f'mount -t tmpfs tmpfs "{hidden}" && cd / && exec "$@"'
        pool = [sys.executable, "-m", "apache_beam.runners.worker.worker_pool_main"]
        with (tmp_path / "pool.log").open("wb") as log:
            process = subprocess.Popen(
                ["unshare", "--mount", "sh", "-c", hide, "sh", *pool, f"--service_port={port}"],
                stdout=log,
                stderr=log,
                start_new_session=True,
                # The pool starts workers as a bare `python`.
                env=os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
            )
        pools.append(process)
        deadline = time.monotonic() + 200  # it loads Beam
        while True:
            if process.poll() is not None:
                told = (tmp_path / "pool.log").read_text()
                # The pool itself may fail, too, which is no reason to skip.
                assert re.match("(unshare|mount): ", told), told
                pytest.skip(f"no folder can be hidden here, as root can on Linux: {told}")
            with contextlib.suppress(OSError):
                socket.create_connection(("localhost", port), timeout=1).close()
                break
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert os.listdir(f"/proc/{process.pid}/root{hidden}") == []
        return f"localhost:{port}"

    yield start
    for pool in pools:
        with contextlib.suppress(psutil.NoSuchProcess):
            for worker in psutil.Process(pool.pid).children(recursive=True):
                worker.kill()
        pool.kill()
        pool.wait()


def test_every_step(
    s3: Proxy,
    prism_program: Path,
    far_pool: Callable[[Path], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Their credentials come from their environment, and are written nowhere."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    data, folder = tmp_path / "data", tmp_path / "recipe"
    data.mkdir()
    folder.mkdir()
    for number in range(2):
        rows = [f"{row},word {row % 7}" for row in range(100)]
        (data / f"{number}.csv").write_text("\n".join(["number,word", *rows]) + "\n")
    (folder / "beside.py").write_text(BESIDE)
    path = folder / "recipe.py"
    path.write_text(RECIPE.replace("SOURCE", put(data, "s3://bucket/data")))
    address = far_pool(tmp_path)
    s3.requests.clear()
    runner = ss.Prism(
        workers=2,
        binary=str(prism_program),
        beam_options=("--environment_type=EXTERNAL", f"--environment_config={address}"),
    )
    snapshot = ss.build(load_recipe_file(path), "s3://bucket/out", runner=runner)
    assert verify(snapshot, progress=Silent()).num_examples == 2 * 90
    fetched = {request.path.partition("?")[0] for request in s3.requests}
    assert any("/staged/" in path for path in fetched)
    content = stored("s3://bucket/out").values()
    assert not [one for one in content if KEY.encode() in one or SECRET.encode() in one]


@pytest.mark.parametrize("hidden", ["out", "data"])
def test_a_disk_that_workers_do_not_see(
    prism_program: Path, far_pool: Callable[[Path], str], tmp_path: Path, hidden: str
) -> None:
    """A network disk would do, so such a place is tried; what fails says that it may be this."""
    for name in ("out", "data"):
        (tmp_path / name).mkdir()
    (tmp_path / "data" / "0.csv").write_text("number\n1\n2\n")
    address = far_pool(tmp_path / hidden)
    runner = ss.Prism(
        binary=str(prism_program),
        beam_options=("--environment_type=EXTERNAL", f"--environment_config={address}"),
    )
    recipe = ss.Recipe(name="far", source=ss.Csv(str(tmp_path / "data")))
    with pytest.raises(StorageError) as raised:
        ss.build(recipe, tmp_path / "out", runner=runner)
    told = str(raised.value)
    assert told.startswith(f"Cannot read {tmp_path / hidden}/")
    assert "this storage is not visible to the worker of prism that needed it" in told
    assert not list((tmp_path / "out" / "far").glob("*/manifest.json"))
    if hidden == "out":
        with pytest.raises(RunnerError, match=r"Of 16 files .* only 0 are visible to this machine"):
            check_runner(runner, str(tmp_path / "out"))
