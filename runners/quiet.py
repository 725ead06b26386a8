"""Keeps engines' logs off the terminal: relevant parts are raised as errors."""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
import traceback
from collections.abc import Callable, Iterator

_NOISY = ("apache_beam", "grpc")


@contextlib.contextmanager
def quiet(*further: str) -> Iterator[None]:
    """Keeps the logs of Beam, and of the loggers in ``further``, off the terminal.

    Loggers with an explicit level are unchanged.
    """
    silenced = []
    for name in (*_NOISY, *further):
        logger = logging.getLogger(name)
        if logger.level == logging.NOTSET:
            logger.setLevel(logging.CRITICAL + 1)
            silenced.append(logger)
    root = logging.getLogger()
    root.addFilter(_is_not_beams)
    try:
        yield
    finally:
        root.removeFilter(_is_not_beams)
        for logger in silenced:
            logger.setLevel(logging.NOTSET)


def _is_not_beams(record: logging.LogRecord) -> bool:
    """Whether a record of the root logger is not one that Beam forwards from a job server."""
    return "apache_beam" not in record.pathname


@contextlib.contextmanager
def quiet_threads() -> Iterator[None]:
    """Keeps output of Beam's threads, and lost connections to engines, off the terminal.

    Workers in this process lose their connection at the end of every job, some threads only later;
    the result of a failed job reports its failure.
    """
    from apache_beam.runners.worker import sdk_worker

    _hide_lost_connections()
    # Beam prints the errors of steps to standard error, and also sends them to the engine.
    vars(sdk_worker)["print"] = _print_nothing
    try:
        yield
    finally:
        vars(sdk_worker).pop("print", None)  # another job may have ended before


@functools.cache
def _hide_lost_connections() -> None:
    """Hides lost connections of Beam's threads from now on: the threads outlive their job."""
    import grpc  # type: ignore[import-untyped]

    logger = logging.getLogger("apache_beam.runners.worker.data_plane")
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.CRITICAL + 1)
    shown: Callable[[threading.ExceptHookArgs], object] = threading.excepthook

    def hook(raised: threading.ExceptHookArgs) -> None:
        files = [frame.filename for frame in traceback.extract_tb(raised.exc_traceback)]
        in_beam = any("apache_beam" in file for file in files)
        if not (in_beam and isinstance(raised.exc_value, grpc.RpcError)):
            shown(raised)

    threading.excepthook = hook


def _print_nothing(*_: object, **__: object) -> None:
    """Prints nothing."""
