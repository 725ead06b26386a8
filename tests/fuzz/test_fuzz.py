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
NUM = int(os.environ.get("SNAPSHARD_FUZZ", "10000"))
"""So many mutations; more of them with other seeds: ``fuzz.py --num N --first SEED``."""


def _run(*arguments: str, timeout: float) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(FUZZ), *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
    )


@pytest.mark.slow  # 10,000 files are damaged and read: about two minutes
def test_no_mutation_goes_wrong() -> None:
    done = _run("--num", str(NUM), timeout=60 + NUM * 0.2)
    # Shown by `pytest -rP`, and kept with a failure.
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "| **all** | " in done.stdout


def test_a_few_of_the_quick_kinds() -> None:
    kinds = ("CSV", "JSON Lines", "NumPy, npz", "PNG")
    done = _run("--num", "120", *(part for kind in kinds for part in ("--kind", kind)), timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
