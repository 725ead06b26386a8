"""What libraries say while they load stays off the terminal, and nothing else does."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from snapshard import startup_noise

NOISE = (
    "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR",
    "I0000 00:00:1795244383.977556   26434 port.cc:153] oneDNN custom operations are on.",
    "E0000 00:00:1795244383.977556   26434 cuda_dnn.cc:8579] Unable to register cuDNN factory",
    "2026-11-21 07:00:00.123456: I tensorflow/core/platform/cpu_feature_guard.cc:210] optimized",
    "To enable the following instructions: AVX2 FMA, rebuild TensorFlow.",
)
WORDS = (
    "F0000 00:00:1795244383.977556   26434 cpu_feature_guard.cc:16] needs AVX instructions",
    "Illegal instruction",
    "terminate called after throwing an instance of 'std::bad_alloc'",
    "INFO: I0000",
)

# Stands for TensorFlow: writes to descriptor 2 as C++ does, while it loads and looks for devices.
FAKE = """
import os, sys
os.write(2, {before!r}.encode())
print("python speaks", file=sys.stderr)
{then}
class config:
    def list_physical_devices():
        os.write(2, {after!r}.encode())
"""
HUSH = "from snapshard.startup_noise import tame_libraries; tame_libraries()\n"


def _import_fake(folder: Path, code: str, *, env: dict[str, str] | None = None, **fake: str) -> Any:
    source = FAKE.format(**{"before": "", "after": "", "then": "", **fake})
    (folder / "tensorflow.py").write_text(source)
    plain = {k: v for k, v in os.environ.items() if not k.startswith(("TF_", "CUDA_"))}
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**plain, "PYTHONPATH": str(folder), **(env or {})},
    )


@pytest.mark.parametrize("line", NOISE)
def test_noise(line: str) -> None:
    assert re.match(startup_noise.NOISE, line.encode())


@pytest.mark.parametrize("line", WORDS)
def test_words(line: str) -> None:
    assert not re.match(startup_noise.NOISE, line.encode())


def test_only_noise_is_kept_off(tmp_path: Path) -> None:
    before = "".join(f"{line}\n" for pair in zip(NOISE, WORDS, strict=False) for line in pair)
    done = _import_fake(
        tmp_path,
        HUSH + "import sys, os, tensorflow\n"
        "print('later', file=sys.stderr)\n"
        f"os.write(2, {(NOISE[0] + chr(10)).encode()!r})",
        before=before,
        after=f"{NOISE[1]}\nno line break",
    )
    assert done.returncode == 0
    lines = done.stderr.splitlines()
    # Python's words do not wait for the filter, so their place among the others is open.
    assert sorted(lines) == sorted([*WORDS, "python speaks", "no line breaklater", NOISE[0]])


@pytest.mark.parametrize("then", ["os.abort()", "raise ImportError('broken')"])
def test_last_words_come_through(tmp_path: Path, then: str) -> None:
    done = _import_fake(
        tmp_path, HUSH + "import tensorflow", before=f"{NOISE[0]}\n{WORDS[0]}\nAborted", then=then
    )
    assert done.returncode != 0
    assert WORDS[0] in done.stderr
    assert "Aborted" in done.stderr
    assert NOISE[0] not in done.stderr
    if "raise" in then:
        assert "ImportError: broken" in done.stderr


def test_looking_for_the_module_changes_nothing(tmp_path: Path) -> None:
    code = HUSH + (
        "import importlib.util, os\n"
        "assert importlib.util.find_spec('tensorflow') is not None\n"
        "import tensorflow\n"
        "assert 'exec_module' not in vars(tensorflow.__spec__.loader)"
    )
    done = _import_fake(tmp_path, code, before=f"{NOISE[0]}\n")
    assert done.returncode == 0, done.stderr
    assert done.stderr == "python speaks\n"


def test_beam_loads_without_its_extras(tmp_path: Path) -> None:
    """Whoever imports them later gets them."""
    (tmp_path / "boto3.py").touch()
    (tmp_path / "apache_beam.py").write_text(
        "try:\n    import boto3\nexcept ImportError:\n    boto3 = None\n"
    )
    code = HUSH + (
        "from snapshard.startup_noise import spare_extras\n"
        "spare_extras()\n"
        "import apache_beam, boto3\n"
        "assert apache_beam.boto3 is None"
    )
    done = _import_fake(tmp_path, code)
    assert done.returncode == 0, done.stderr


def test_beam_says_nothing_about_its_extras() -> None:
    code = "from snapshard.startup_noise import spare_extras\nspare_extras()\nimport apache_beam"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def test_builds_take_no_gpu(tmp_path: Path) -> None:
    code = HUSH + "import os; print(os.environ['CUDA_VISIBLE_DEVICES'])"
    done = _import_fake(tmp_path, code, env={"CUDA_VISIBLE_DEVICES": "0"})
    assert done.stdout == "-1\n"


def test_who_asks_for_logs_gets_them(tmp_path: Path) -> None:
    done = _import_fake(
        tmp_path,
        HUSH + "import tensorflow",
        before=f"{NOISE[0]}\n",
        env={"TF_CPP_MIN_LOG_LEVEL": "0"},
    )
    assert NOISE[0] in done.stderr


@pytest.mark.parametrize("own", [{}, {"MALLOC_ARENA_MAX": "7", "MIMALLOC_PURGE_DELAY": "20"}])
def test_freed_memory_is_given_back(own: dict[str, str], tmp_path: Path) -> None:
    """By 16 threads that each fill an arena, as the C library sees it; unless set otherwise."""
    code = f"""{HUSH}
import ctypes, os, threading, xml.etree.ElementTree as xml
libc, started = ctypes.CDLL(None), threading.Barrier(16)
libc.malloc.restype = ctypes.c_void_p
threads = [threading.Thread(target=lambda: (started.wait(), libc.malloc(100))) for _ in range(16)]
for thread in threads: thread.start()
for thread in threads: thread.join()
libc.fopen.restype = ctypes.c_void_p
file = ctypes.c_void_p(libc.fopen(b"arenas.xml", b"w"))
libc.malloc_info(0, file)
libc.fclose(file)
print(len(xml.parse("arenas.xml").findall("heap")), os.environ["MIMALLOC_PURGE_DELAY"])
"""
    plain = {k: v for k, v in os.environ.items() if not k.startswith(("MALLOC_", "MIMALLOC_"))}
    run = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env={**plain, **own},
        cwd=tmp_path,
    )
    assert run.stdout.split() == (["7", "20"] if own else ["2", "1"])
