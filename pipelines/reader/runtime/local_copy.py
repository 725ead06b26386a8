"""``local_copy=``: copies shards to a fast local disk.

Shards are copied in the background, in the order in which they will be read and ahead of reading,
and checked by sha256 against the manifest. Runs and processes share them. Protocols that TensorFlow
does not support (``s3://``) are read by fsspec.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import functools
import hashlib
import json
import logging
import os
import shutil
import sys
import threading
import time
import types
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf  # type: ignore[import-untyped, unused-ignore]

from . import facts
from .order import Dealt
from .pipeline import Plan
from .urls import UnreadableError, one_line, open_url, read_bytes

_AT_ONCE = 4  # shards copied concurrently
_AHEAD = 8  # maximum of shards copied before a stream requests them
_CHUNK_BYTES = 1 << 20  # read, hashed and written at a time
_TRIES = 3  # consecutive failed reads before it is an error
_BACKOFF_S = 0.5  # before the second try; twice that before the third
_WAIT_S = 0.05  # between two checks whether a file has arrived


class _FailedError(Exception):
    """A copy failed, and retrying would not help."""


def read_copies(plan: Plan) -> Plan:
    """Reads local copies of the shards, in ``<folder>/<name>-<fingerprint>``.

    Raises:
        ValueError: if the folder cannot be written, or the disk or the limit is too small.
    """
    copy = plan.options.local_copy
    folder, limit = copy if isinstance(copy, tuple | list) else (copy, None)
    folder = os.fspath(folder)  # type: ignore[arg-type, unused-ignore]
    split, root = plan.options.split, plan.options.root_folder
    manifest = json.loads(read_bytes(f"{root}/manifest.json"))
    sections = plan.options.selection.sections(manifest)
    entries = [*{section.entry["file"]: section.entry for section in sections}.values()]
    num_bytes = sum(entry["num_bytes"] for entry in entries)
    if limit is not None and num_bytes > limit:
        raise ValueError(
            f"local_copy=({folder!r}, {limit}): {split!r} has {num_bytes:,} bytes. Allow as many, "
            "read a part of the split, or leave out local_copy=."
        )
    try:
        copies = copies_in(os.path.abspath(folder))
    except OSError as error:
        raise ValueError(
            f"local_copy={folder!r} cannot be written ({one_line(error)}): "
            "give a folder on a local disk."
        ) from None
    for entry in entries:
        copies.add(f"{root}/{entry['file']}", entry["num_bytes"], entry["sha256"])
    copies.check_room([piece.path for piece in plan.order.pieces])
    read = functools.partial(plan.open_records, is_remote=False)

    def read_copy(path: Any, *rest: Any) -> tf.data.Dataset:
        once = tf.data.Dataset.from_tensors((path, *rest))
        tries = once.concatenate(slowed(once.repeat(), _WAIT_S)).map(wait_for)
        return tries.filter(is_there).take(1).flat_map(read_here)

    def wait_for(path: Any, *places: Any) -> Any:
        return _checked(_call(copies.wait_for, path, [tf.string, tf.string])), *places

    def is_there(path: Any, *places: Any) -> Any:
        del places
        return tf.strings.length(path) > 0

    def read_here(path: Any, offset: Any, skip: Any, take: Any, *rest: Any) -> tf.data.Dataset:
        local = _checked(_call(copies.hand_out, path, [tf.string, tf.string]))
        return read(local, offset, skip, take, *rest)

    def announced(plan: Plan, pieces: tf.data.Dataset) -> tf.data.Dataset:
        def announce(number: Any, *rest: Any) -> Any:
            nothing = _call(copies.announce, tf.gather(plan.pieces[0], number), tf.string)
            # Adding its length keeps TensorFlow from dropping a call whose result is not used.
            number += tf.cast(tf.strings.length(tf.ensure_shape(nothing, [])), tf.int64)
            return (number, *rest) if rest else number

        # If records are dealt, each of the many streams announces its next piece.
        return pieces.map(announce).prefetch(1 if isinstance(plan.order, Dealt) else _AHEAD)

    return dataclasses.replace(
        plan, open_records=read_copy, ahead=announced, localize=copies.localize
    )


class _File:
    """One shard and its copy; mutable fields are guarded by the lock of ``_Copies``."""

    def __init__(self, url: str, local: str, num_bytes: int, sha256: str) -> None:
        self.url, self.local, self.num_bytes, self.sha256 = url, local, num_bytes, sha256
        self.state = "absent"  # then "queued", "copying" and "there"
        self.is_awaited = False  # whether a stream is waiting for it now
        self.error = ""  # why the last copy failed, if it did


class _Copies:
    """The copies in one folder, and the threads of this process that make them.

    They are made in the order in which they were announced; one that a stream is waiting for comes
    before all others.
    """

    def __init__(self, folder: str, log: logging.Logger) -> None:
        self.folder, self.log = folder, log
        self.files: dict[str, _File] = {}
        self.queue: list[_File] = []
        self.changed = threading.Condition()
        self.num_threads = 0
        self.num_busy = 0
        self.busy_since = 0.0
        self.logged = {"copied": 0, "there": 0, "bytes": 0, "seconds": 0.0}

    def add(self, url: str, num_bytes: int, sha256: str) -> None:
        """Adds a shard, or updates its URL."""
        name = os.path.basename(url)
        file = _File(url, f"{self.folder}/{name}", num_bytes, sha256)
        with self.changed:
            self.files.setdefault(name, file).url = url

    def check_room(self, urls: Sequence[str]) -> None:
        """Raises ValueError if the disk is too small for these shards."""
        files = [self.files[os.path.basename(url)] for url in {*urls}]
        there = sum(file.num_bytes for file in files if _is_whole(file))
        missing = sum(file.num_bytes for file in files) - there
        free = shutil.disk_usage(self.folder).free
        if missing > free:
            raise ValueError(
                f"local_copy={os.path.dirname(self.folder)!r}: {missing:,} bytes are still to be "
                f"copied there, but only {free:,} are free. Free some space there, or use a larger "
                "disk."
            )

    def announce(self, url: bytes) -> bytes:
        """Announces that a stream will request this shard, in the order of the calls."""
        with self.changed:
            self._want(self._file(url))
        return b""

    def wait_for(self, url: bytes) -> tuple[bytes, bytes]:
        """(``url``, or "" while the copy has not arrived; the error, if it failed)."""
        with self.changed:
            file = self._file(url)
            if file.error:
                error, file.error = file.error, ""
                return b"", error.encode()
            if file.state == "there" and not _is_whole(file):
                file.state = "absent"  # someone removed it
            if file.state == "there":
                file.is_awaited = False
                return url, b""
            file.is_awaited = True
            self._want(file)
            return b"", b""

    def hand_out(self, url: bytes) -> tuple[bytes, bytes]:
        """Waits for the copy: (its path; the error, if it failed)."""
        with self.changed:
            while True:
                copy, error = self.wait_for(url)
                if copy or error:
                    break
                self.changed.wait(_WAIT_S)  # removed meanwhile, or an iterator was restored
            return b"" if error else self._file(url).local.encode(), error

    def localize(self, url: str) -> str:
        """Waits for a shard's copy and returns its path.

        Raises:
            ValueError: if it cannot be copied.
        """
        local, error = self.hand_out(url.encode())
        if error:
            raise ValueError(error.decode())
        return local.decode()

    def _file(self, url: bytes) -> _File:
        return self.files[os.path.basename(url.decode())]

    def _want(self, file: _File) -> None:
        if file.state != "absent":
            return
        file.state, file.error = "queued", ""
        self.queue.append(file)
        if self.num_threads < _AT_ONCE:
            try:
                # Not a daemon: one that wakes up within TensorFlow during shutdown aborts Python.
                threading.Thread(target=self._work, name="local_copy", daemon=False).start()
                self.num_threads += 1
            except (MemoryError, RuntimeError) as error:  # no more threads: existing ones continue
                if not self.num_threads:
                    self.queue.remove(file)
                    file.state, file.error = "absent", f"{file.url}: {one_line(error)}."

    def _next(self) -> _File | None:
        """The next file to copy; None if none is left."""
        with self.changed:
            if not self.queue or not _is_running():
                self.num_threads -= 1
                return None
            file = next((file for file in self.queue if file.is_awaited), self.queue[0])
            self.queue.remove(file)
            file.state = "copying"
            if not self.num_busy:
                self.busy_since = time.monotonic()
            self.num_busy += 1
            return file

    def _work(self) -> None:
        """Loop of one thread: copies files until none is left."""
        while (file := self._next()) is not None:
            num_bytes, error = 0, f"The copy of {file.url} was interrupted."
            try:
                num_bytes, error = _ensure_copied(file), ""
            except (UnreadableError, _FailedError) as failed:
                error = str(failed)
            except Exception as failed:  # noqa: BLE001, RUF100 (MemoryError, for example)
                error = f"The copy of {file.url} failed: {one_line(failed)}."
            finally:  # otherwise streams would wait forever
                self._finish(file, num_bytes, error)

    def _finish(self, file: _File, num_bytes: int, error: str) -> None:
        with self.changed:
            file.state, file.error = "absent" if error else "there", error
            if not error:
                self.logged["copied" if num_bytes else "there"] += 1
                self.logged["bytes"] += num_bytes
            self.num_busy -= 1
            if not self.num_busy:
                self.logged["seconds"] += time.monotonic() - self.busy_since
            if not self.num_busy and not self.queue:
                self._log()
            self.changed.notify_all()

    def _log(self) -> None:
        """Logs what was copied since the last message."""
        seconds = max(self.logged["seconds"], 1e-9)
        self.log.info(
            "local_copy: %d shards copied to %s, %d bytes in %.1f s (%.1f MB/s); %d were there.",
            *(self.logged["copied"], self.folder, self.logged["bytes"], seconds),
            *(self.logged["bytes"] / seconds / 1e6, self.logged["there"]),
        )
        self.logged = dict.fromkeys(self.logged, 0)


def copies_in(folder: str) -> _Copies:
    """This process's copies in a folder, shared by all its datasets."""
    stem = f"{folder}/{facts.NAME}-{facts.FINGERPRINT}"
    # sys.modules is the one place that outlives this module, which may be loaded several times.
    registry = vars(sys.modules.setdefault("_reader_copies", types.ModuleType("_reader_copies")))
    key = f"{os.getpid()} {stem}"
    if key not in registry:
        os.makedirs(stem, exist_ok=True)
        registry[key] = _Copies(stem, logging.getLogger(facts.NAME))
    copies: _Copies = registry[key]
    return copies


def _ensure_copied(file: _File) -> int:
    """Ensures that the copy exists and matches the manifest; returns the number of bytes copied.

    If several processes share the folder, one copies a shard and the others wait for it.
    """
    part, damaged = f"{file.local}.part", None
    while _is_running():
        stamp = _stamp(file.local)
        if stamp not in (None, damaged) and _is_whole(file) and _sha256(file.local) == file.sha256:
            return 0
        damaged = stamp
        with open(part, "ab") as target:
            if _is_locked(target, part):
                if _stamp(file.local) == damaged:
                    with _removed_if_failed(part):
                        fetch(file, target)
                        os.replace(part, file.local)
                    return file.num_bytes
                os.unlink(part)  # another process has copied it meanwhile
        time.sleep(_WAIT_S)
    raise _FailedError("The program is shutting down.")


def _is_locked(target: Any, path: str) -> bool:
    """Locks an open file, unless another process has, or it is no longer at this path."""
    try:
        fcntl.flock(target, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(target.fileno()), os.stat(path))
    except (BlockingIOError, FileNotFoundError):
        return False


@contextlib.contextmanager
def _removed_if_failed(path: str) -> Iterator[None]:
    try:
        yield
    except BaseException:
        os.unlink(path)
        raise


def fetch(file: _File, target: Any) -> None:
    """Copies a shard into a file; retries once if it does not match the manifest."""
    for _ in range(2):
        target.truncate(0)
        num_bytes, sha256 = copy_stream(file, target)
        if (num_bytes, sha256) == (file.num_bytes, file.sha256):
            target.flush()
            return
    raise _FailedError(
        f"{file.url} is damaged: expected {file.num_bytes} bytes with sha256 {file.sha256}, found "
        f"{num_bytes} with {sha256}, in two attempts. Copy or build the snapshot again."
    )


def copy_stream(file: _File, target: Any) -> tuple[int, str]:
    """Copies once, resuming after failed reads; returns the number of bytes and their sha256."""
    digest, num_bytes, num_failed = hashlib.sha256(), 0, 0
    while True:
        try:
            with open_url(file.url) as source:
                source.seek(num_bytes)
                while num_bytes <= file.num_bytes and (chunk := source.read(_CHUNK_BYTES)):
                    digest.update(chunk)
                    _write(target, chunk)
                    num_bytes, num_failed = num_bytes + len(chunk), 0
            return num_bytes, digest.hexdigest()
        except (UnreadableError, _FailedError):
            raise
        except Exception as error:
            num_failed += 1
            if num_failed == _TRIES:
                raise _FailedError(
                    f"{file.url} cannot be read in {_TRIES} tries: {one_line(error)}. Run "
                    "again when the store can be reached: finished copies are kept."
                ) from error
            time.sleep(_BACKOFF_S * 2 ** (num_failed - 1))


def _write(target: Any, chunk: bytes) -> None:
    if not _is_running():
        raise _FailedError("The program is shutting down.")
    try:
        target.write(chunk)
    except OSError as error:
        raise _FailedError(
            f"{target.name} cannot be written: {one_line(error)}. Free some space there, or use a "
            "larger disk."
        ) from None


def _is_running() -> bool:
    """Whether the program is still running; Python waits for threads when it exits."""
    return threading.main_thread().is_alive()


def _is_whole(file: _File) -> bool:
    stamp = _stamp(file.local)
    return stamp is not None and stamp[2] == file.num_bytes


def _stamp(path: str) -> tuple[int, int, int] | None:
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def _sha256(path: str) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while _is_running() and (chunk := file.read(_CHUNK_BYTES)):
            digest.update(chunk)
    return digest.hexdigest()


def slowed(elements: tf.data.Dataset, seconds: float) -> tf.data.Dataset:
    """Delays each element by ``seconds``, without keeping one of TensorFlow's threads busy."""
    spec = tf.nest.flatten(elements.element_spec)
    variant = tf.raw_ops.SleepDataset(
        input_dataset=tf.data.experimental.to_variant(elements),
        sleep_microseconds=tf.constant(int(seconds * 1e6), tf.int64),
        output_types=[part.dtype for part in spec],
        output_shapes=[part.shape for part in spec],
    )
    return tf.data.experimental.from_variant(variant, elements.element_spec)


def _checked(result: tuple[Any, Any]) -> Any:
    """The first of two strings; raises the second, if it is not empty."""
    with tf.control_dependencies([tf.debugging.Assert(tf.equal(result[1], b""), [result[1]])]):
        return tf.ensure_shape(tf.identity(result[0]), [])


def _call(function: Any, argument: Any, dtypes: Any) -> Any:
    """Calls a Python function, declared stateless: otherwise iterators could not be checkpointed.

    Use it only in functions of datasets, where TensorFlow neither folds nor parallelizes calls.
    """
    return tf.numpy_function(function, [argument], dtypes, stateful=False)
