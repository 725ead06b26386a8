"""An interrupt gets out, however often it is lost on the way; what cleans up behind it ends."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest

from snapshard.pipelines.interrupts import AGAIN_SECONDS, insistent_interrupts


def _interrupt_that_is_lost() -> None:
    try:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(1)
    except:  # noqa: E722 - as libraries do
        pass


@insistent_interrupts()
def _work_on() -> None:
    _interrupt_that_is_lost()
    time.sleep(20 * AGAIN_SECONDS)


def test_one_that_was_lost_comes_again() -> None:
    with pytest.raises(KeyboardInterrupt):
        _work_on()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


@contextlib.contextmanager
def _resource(done: list[str]) -> Iterator[None]:
    try:
        yield
    finally:
        time.sleep(3 * AGAIN_SECONDS)
        done.append("resource")


@insistent_interrupts()
def _clean_up(done: list[str]) -> None:
    try:
        with _resource(done):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(1)
    except KeyboardInterrupt:
        try:
            int("no number")
        except ValueError:
            time.sleep(2 * AGAIN_SECONDS)
            done.append("error on the way")
        raise


def test_what_cleans_up_is_left_alone() -> None:
    done: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        _clean_up(done)
    assert done == ["resource", "error on the way"]


def test_nothing_comes_without_one() -> None:
    with insistent_interrupts():
        time.sleep(2 * AGAIN_SECONDS)


def test_other_threads_have_no_signals() -> None:
    found = []

    def run() -> None:
        with insistent_interrupts():
            found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found == [signal.default_int_handler]
