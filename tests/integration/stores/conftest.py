"""Stand-ins for S3 and GCS, as processes, each behind a proxy that counts and breaks requests."""

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from snapshard.runners.job_server import free_port

from ..engines.installed import MissingEngineError, fake_gcs_server
from .proxy import Proxy


@contextlib.contextmanager
def _running(command: Sequence[str], port: int, log: Path) -> Iterator[None]:
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
    try:
        deadline = time.monotonic() + 200
        while True:
            assert process.poll() is None, log.read_text()[-2000:]
            assert time.monotonic() < deadline, log.read_text()[-2000:]
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            time.sleep(0.05)
        yield
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="session")
def _s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with _running(command, port, tmp_path_factory.mktemp("moto") / "log.txt"):
        yield f"127.0.0.1:{port}"


@pytest.fixture(scope="session")
def _gcs_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    try:
        program = fake_gcs_server()
    except MissingEngineError as error:
        if os.environ.get("SNAPSHARD_NEED_ENGINES"):
            pytest.fail(str(error))
        pytest.skip(str(error))
    port = free_port()
    command = [str(program), "-scheme", "http", "-host", "127.0.0.1", "-port", str(port)]
    command += ["-backend", "memory"]
    with _running(command, port, tmp_path_factory.mktemp("gcs") / "log.txt"):
        yield f"127.0.0.1:{port}"


def _forget_filesystems() -> None:
    """Fsspec keeps filesystems by their arguments, and these take their address from outside."""
    import fsspec

    for protocol in ("s3", "gcs"):
        with contextlib.suppress(ImportError):
            fsspec.get_filesystem_class(protocol).clear_instance_cache()


class _QuickAsyncio:
    """The module ``asyncio``, for clients that wait longer and longer before they try again."""

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / 1000)


@pytest.fixture
def s3(_s3_server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """S3 with an empty bucket, called "bucket"; ``s3://`` leads to it in this process and below."""
    with Proxy(_s3_server) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        _forget_filesystems()
        import aiobotocore.endpoint
        import s3fs

        for module in (aiobotocore.endpoint, s3fs.core):
            monkeypatch.setattr(module, "asyncio", _QuickAsyncio())
        files = s3fs.S3FileSystem(use_listings_cache=False)
        if files.exists("bucket"):
            files.rm("bucket", recursive=True)
        files.mkdir("bucket")
        proxy.requests.clear()
        yield proxy
    _forget_filesystems()


@pytest.fixture
def gcs(_gcs_server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """GCS with an empty bucket, called "bucket"; ``gs://`` leads to it."""
    with Proxy(_gcs_server) as proxy:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", proxy.url)
        _forget_filesystems()
        import gcsfs

        monkeypatch.setattr(gcsfs.retry, "asyncio", _QuickAsyncio())
        files = gcsfs.GCSFileSystem(token="anon", use_listings_cache=False)
        if files.exists("bucket"):
            files.rm("bucket", recursive=True)  # the bucket, too
        files.mkdir("bucket")
        proxy.requests.clear()
        yield proxy
    _forget_filesystems()
