"""Damage of any kind is told or harmless: never accepted in silence, never a traceback or a hang.

``fuzz.py`` does it, in a process without what other tests have loaded; see there for how one
mutation is tried again, and more of them.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

FUZZ = Path(__file__).with_name("fuzz.py")
NUM = int(os.environ.get("SNAPSHARD_FUZZ", "1000"))
"""So many mutations: of every kind of file 13 or more, of every kind of damage about 100 or more.

They are the same each time. Others: ``make fuzz``, in CI one day of each rotation.
"""


def _run(*arguments: str, timeout: float) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(FUZZ), *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
    )


@pytest.mark.slow  # 1,000 files are damaged and read
def test_no_mutation_goes_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    done = _run("--num", str(NUM), timeout=120 + NUM * 0.4)
    with capsys.disabled():
        print(f"\n{done.stdout}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "| **all** | " in done.stdout


@pytest.mark.slow  # 17 processes of the command line
def test_no_mutation_goes_wrong_through_the_command_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    done = _run("--commands", "11", timeout=2500)  # each kind of file once
    with capsys.disabled():
        print(f"\n{done.stdout}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "11 through the command line" in done.stdout


@pytest.mark.slow  # waits for what hangs
def test_a_wrong_mutation_is_told_with_the_command_that_tries_it_again() -> None:
    program = (
        "import sys; sys.path.insert(0, sys.argv.pop(1))\n"
        "import fuzz, harness, os, signal, time\n"
        "harness.LIMIT_S = harness.START_S = 4.0\n"
        "WAYS = (b'error', b'crash', b'exit', b'hang', b'memory', b'good')\n"
        "class Target:\n"
        "    def mutate(self, rng): return rng.choice(WAYS)\n"
        "    def try_out(self, content):\n"
        "        if content == b'error': raise KeyError('lost')\n"
        "        if content == b'crash': os.kill(os.getpid(), signal.SIGSEGV)\n"
        "        if content == b'exit': os._exit(7)\n"
        "        if content == b'hang': time.sleep(60)\n"
        "        if content == b'memory': len(b'x' * (500 << 20))\n"
        "        return harness.DETECTED, 'told'\n"
        "harness._EXIT_S = 2.0\n"
        "fuzz.KINDS['made'] = harness.Kind('made', lambda folder: Target())\n"
        "sys.exit(fuzz.run(['made'], 8, first=0, ways=True, jobs=1))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(FUZZ.parent)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 1, done.stderr
    for words in (
        "KeyError",
        "ends the process by SIGSEGV",
        "ends the process with code 7",
        "takes more than 4 s",
        "MiB of memory",
    ):
        assert words in done.stdout
    assert 'python tests/fuzz/fuzz.py "made:' in done.stdout
