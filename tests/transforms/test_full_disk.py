"""Writers that meet a full disk: they fail, and leave no file open, which would keep its space."""

import contextlib
import os
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest

from snapshard.schemas.errors import Reject, StorageError
from snapshard.schemas.features import Scalar
from snapshard.transforms.examples.tfrecord import write_tfrecord
from snapshard.transforms.rejects import write_rejects
from snapshard.transforms.runs import files as runs
from snapshard.transforms.runs.files import RunWriter

FULL = "/dev/full"

pytestmark = pytest.mark.skipif(
    not (os.path.exists(FULL) and os.path.isdir("/proc/self/fd")), reason="needs Linux"
)


def write_run(path: str) -> None:
    numbers = np.arange(10)
    columns = [
        pa.array(np.zeros(10, np.int16)),
        pa.array(numbers.astype(np.uint64)),
        pa.array([b"id"] * 10, pa.large_binary()),
        pa.array(numbers),
        pa.array(numbers),
    ]
    schema = runs.run_schema({"x": Scalar("int64")})
    records = pa.RecordBatch.from_arrays(columns, schema=schema)
    with RunWriter(path, records.schema) as writer:
        writer.write(records)


def write_some_rejects(path: str) -> None:
    reject = Reject(record_id="a", stage="read", reason="r", message="m", source="a", position=1)
    write_rejects([reject], path)


def write_examples(path: str) -> None:
    write_tfrecord(path, [pa.array([b"example"], pa.large_binary())], compression="none")


def write_gzip_examples(path: str) -> None:
    write_tfrecord(path, [pa.array([b"example"], pa.large_binary())], compression="gzip")


@pytest.mark.parametrize(
    "write", [write_run, write_some_rejects, write_examples, write_gzip_examples]
)
def test_no_file_is_left_open(write: Callable[[str], None]) -> None:
    before = num_open()
    with pytest.raises((OSError, StorageError), match=r"(?i)no space left") as raised:
        write(FULL)
    # A notebook keeps the error, and all that its frames hold.
    assert num_open() == before, raised.value


def num_open() -> int:
    """How many descriptors of this process lead there."""
    links = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the listing's own
            links.append(os.readlink(f"/proc/self/fd/{name}"))
    return links.count(FULL)
