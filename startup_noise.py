"""Keeps libraries' startup messages off the terminal, and drops nothing else.

TensorFlow's C++ code writes to file descriptor 2 before any setting can silence it: that no GPU
was found, that oneDNN is on, and that logging is not set up yet. While TensorFlow is imported and
looks for devices, that descriptor therefore leads to a small process that passes on every line
except those. A separate process also passes on the last output before a crash. Python's own output
is not redirected.

:func:`spare_extras` keeps clients of clouds out of Beam's import.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.abc
import importlib.machinery
import io
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any

NOISE = (
    rb"WARNING: All log messages before absl::InitializeLog\(\)"
    # Information, warnings and errors; fatal errors are passed on.
    rb"|[IWE]\d{4} \d\d:\d\d:\d+\.\d+ +\d+ [\w./-]+:\d+\] "
    rb"|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: [IWE] "
    rb"|To enable the following instructions: "
)
"""Matches the beginning of a line of noise."""

_FILTER = """
import os, re
noise = re.compile({noise!r})
held = b""
while chunk := os.read(0, 1 << 16):
    *lines, held = (held + chunk).split(b"\\n")
    for line in lines:
        if not noise.match(line):
            os.write(2, line + b"\\n")
if held and not noise.match(held):
    os.write(2, held)
"""


_CHATTY = (
    *("adlfs", "aiobotocore", "aiohttp", "asyncio", "azure", "botocore", "fsspec", "gcsfs"),
    *("google", "paramiko", "s3fs", "urllib3"),
)
"""Loggers of stores' clients. Failures that they log are also raised as errors, without the
credentials of URLs."""
_EXTRAS = (
    *("apache_beam.io.gcp.bigquery", "apitools", "boto3", "google.cloud.dataflow"),
    "google.cloud.storage",
)
"""What Beam imports if it can, of its extras "gcp" and "aws"."""
_M_ARENA_MAX, _NUM_ARENAS = -8, "2"


def tame_libraries() -> None:
    """Makes TensorFlow load silently and use no GPU in this process, and silences other libraries.

    A build decodes and encodes on the CPU; a GPU that it occupied would be missing for a model
    that trains at the same time. ``TF_CPP_MIN_LOG_LEVEL=0`` shows all of TensorFlow's output.
    Memory that is freed goes back to the system.
    """
    _return_memory()
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    for name in _CHATTY:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    if os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3") != "0":
        _load_by("tensorflow", _quietly)


def _return_memory() -> None:
    """Makes allocators give back what is freed, in this process and its workers.

    Arrow's allocator waits 1 ms instead of 10, and the C library has two arenas instead of up to
    eight per core. Otherwise a sixth of a build's peak would be memory that nothing uses.
    """
    os.environ.setdefault("MIMALLOC_PURGE_DELAY", "1")  # in ms; read when Arrow is loaded
    if os.environ.setdefault("MALLOC_ARENA_MAX", _NUM_ARENAS) == _NUM_ARENAS:
        # The C library of this process has read the environment already, that of a worker will.
        with contextlib.suppress(OSError, AttributeError):  # another C library
            ctypes.CDLL(None).mallopt(_M_ARENA_MAX, int(_NUM_ARENAS))


def spare_extras() -> None:
    """Makes Beam load as if it were installed without its extras, which take a quarter of the time.

    For a process of the command line's own whose engine is the embedded one, which needs none.
    """
    _load_by("apache_beam", _without_extras)


@contextlib.contextmanager
def without_noise() -> Iterator[None]:
    """Filters file descriptor 2 while the body runs; Python's own output bypasses the filter."""
    sys.stderr.flush()
    # Never closed: another thread, such as that of a progress bar, may be about to write to it.
    kept = os.dup(2)
    python, past = sys.stderr, None
    if _descriptor(python) == 2:
        past = open(  # noqa: SIM115
            kept,
            "w",
            encoding=python.encoding,
            errors=python.errors,
            buffering=1,
            closefd=False,
        )
        sys.stderr = past
    filtering = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _FILTER.format(noise=NOISE)],
        stdin=subprocess.PIPE,
        stderr=kept,
        # Ctrl-C is for the filtered process; the filter ends with it.
        start_new_session=True,
    )
    pipe = filtering.stdin
    assert pipe is not None
    os.dup2(pipe.fileno(), 2)
    pipe.close()
    try:
        yield
    finally:
        os.dup2(kept, 2)
        filtering.wait()
        if past is not None:
            past.flush()
            if sys.stderr is past:
                sys.stderr = python


def _descriptor(stream: Any) -> int | None:
    try:
        descriptor: int = stream.fileno()
    except (AttributeError, OSError, io.UnsupportedOperation):
        return None
    return descriptor


_Load = Callable[[ModuleType], None]


def _load_by(name: str, how: Callable[[_Load, ModuleType], None]) -> None:
    """Makes a module load by a function of its own way to load and the module."""
    finders = (finder for finder in sys.meta_path if isinstance(finder, _Finder))
    if name not in sys.modules and all(finder.name != name for finder in finders):
        sys.meta_path.insert(0, _Finder(name, how))


class _Finder(importlib.abc.MetaPathFinder):
    """Finds one module through the other finders, and makes it load in another way."""

    def __init__(self, name: str, how: Callable[[_Load, ModuleType], None]) -> None:
        self.name, self._how = name, how

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.name:
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        specs = (finder.find_spec(fullname, path, target) for finder in others)
        spec = next(filter(None, specs), None)
        if spec is not None and spec.loader is not None:
            self._change(spec.loader)
        return spec

    def _change(self, loader: Any) -> None:
        """Changes how a loader loads its next module; then the loader is as before."""
        load = loader.exec_module

        def load_once(module: ModuleType) -> None:
            del loader.exec_module
            self._how(load, module)

        loader.exec_module = load_once


def _quietly(load: _Load, tensorflow: Any) -> None:
    with without_noise():
        load(tensorflow)
        # Listing devices is the other source of messages.
        tensorflow.config.list_physical_devices()


def _without_extras(load: _Load, beam: ModuleType) -> None:
    absent = [name for name in _EXTRAS if name not in sys.modules]
    sys.modules.update(dict.fromkeys(absent))  # type: ignore[arg-type] # None: cannot be imported
    try:
        load(beam)
    finally:
        for name in absent:
            del sys.modules[name]
