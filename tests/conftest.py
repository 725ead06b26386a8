"""What all tests share: the shipped data, the full data sets where they are, quiet libraries."""

import gc
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import hypothesis
import pytest

# Set before anything loads TensorFlow; worker processes inherit it.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
# Set before anything loads gcsfs: else it asks the internet what kind each bucket is, for a minute.
os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")

# A deadline per example measures the machine's load, not the code. A change is held to the same
# examples each time; those that explore are the runs at home, and `make torture`.
hypothesis.settings.register_profile(
    "snapshard", deadline=None, print_blob=True, derandomize=bool(os.environ.get("CI"))
)
hypothesis.settings.load_profile("snapshard")


# Imports and 13,000 collected tests leave nothing to free, yet took 40 % of collecting them.
gc.disable()


def pytest_collection_finish() -> None:
    """From here on garbage is collected again, of what the tests make."""
    gc.enable()
    gc.freeze()


class HasFileno(Protocol):
    """An open file."""

    def fileno(self) -> int:
        """Its descriptor."""


_FSYNC = os.fsync
_EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


@pytest.fixture(scope="session")
def examples() -> Path:
    """The folder of the shipped recipes; `data/sign_digits` and `data/penguins.csv` lie in it."""
    return _EXAMPLES


@pytest.fixture(scope="session")
def full_data() -> Path:
    """The folder of the full data sets: `sign_digits/`, `spoken_digits/`, `tabular/`."""
    folder = os.environ.get("SNAPSHARD_DATA")
    if not folder:
        pytest.skip("needs the full data sets: name their folder in SNAPSHARD_DATA")
    path = Path(folder)
    assert path.is_dir(), f"SNAPSHARD_DATA={folder} is not a folder"
    return path


@pytest.fixture
def call(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Runs the command line in this process: its code, output and error output."""
    from snapshard import cli, startup_noise

    monkeypatch.setattr(startup_noise, "tame_libraries", lambda: None)

    def run(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            cli.main([str(argument) for argument in arguments])
        written = capsys.readouterr()
        assert "Traceback" not in written.err
        assert isinstance(ended.value.code, int)
        return ended.value.code, written.out, written.err

    return run


@pytest.fixture(scope="session", autouse=True)
def _no_waiting_for_disks() -> Iterator[None]:
    """Half of a small build is fsync, which no test in this process can see the effect of.

    Which calls are made, and when, is tested by recording them; child processes make them.
    """

    def fsync(file: int | HasFileno) -> None:
        os.fstat(file if isinstance(file, int) else file.fileno())  # raises where fsync would

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "fsync", fsync)
        yield


@pytest.fixture
def real_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a test that sees whether pages of a file are on disk."""
    monkeypatch.setattr(os, "fsync", _FSYNC)
