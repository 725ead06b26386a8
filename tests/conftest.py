"""What all tests share: the shipped data, the full data sets where they are, quiet libraries."""

import os
from pathlib import Path

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
