"""Reads files by URL: of the protocols that TensorFlow supports, and of those that fsspec does."""

from __future__ import annotations

import importlib
import re
from typing import Any

import tensorflow as tf  # type: ignore[import-untyped, unused-ignore]

_PACKAGES = {
    **dict.fromkeys(("s3", "s3a"), "s3fs"),
    **dict.fromkeys(("abfs", "abfss", "adl", "az"), "adlfs"),
    **dict.fromkeys(("http", "https"), "aiohttp"),
    "gcs": "gcsfs",
    "hdfs": "pyarrow",
    "sftp": "paramiko",
}


class UnreadableError(Exception):
    """A URL cannot be read, and retrying would not help."""


def check_protocol(root: str) -> None:
    """Raises ValueError if TensorFlow cannot read the shards of a snapshot at a URL."""
    if not _is_supported(root):
        raise ValueError(
            f"TensorFlow cannot read {root}: it supports "
            f"{', '.join(f'{one}://' for one in tf.io.gfile.get_registered_schemes() if one)}. "
            "Pass local_copy=FOLDER, which copies the shards there while they are read, or the "
            "folder of a copy as root=."
        )


def _is_supported(url: str) -> bool:
    return _scheme(url) in tf.io.gfile.get_registered_schemes()


def _scheme(url: str) -> str:
    return url.split("://", 1)[0] if re.match("[a-z][a-z0-9+.-]*://", url) else ""


def read_bytes(url: str) -> bytes:
    """The content of a file at a path or URL, of any protocol that TensorFlow or fsspec supports.

    Raises:
        ValueError: if it cannot be read; says which package to install if one is missing.
    """
    try:
        with open_url(url) as source:
            return bytes(source.read())
    except (FileNotFoundError, tf.errors.NotFoundError):
        raise ValueError(f"There is no {url}.") from None
    except UnreadableError as error:
        raise ValueError(str(error)) from None
    except Exception as error:
        raise ValueError(f"{url} cannot be read: {one_line(error)}.") from error


def open_url(url: str) -> Any:
    """Opens a file with TensorFlow if it supports the protocol, else with fsspec."""
    if _is_supported(url):
        return tf.io.gfile.GFile(url, "rb")
    try:
        return importlib.import_module("fsspec").open(url, "rb").open()
    except ImportError as error:
        raise UnreadableError(
            f"{url} cannot be read: TensorFlow does not support {_scheme(url)}://, and fsspec "
            f"cannot be used ({one_line(error)}). To install: pip install fsspec "
            f"{_PACKAGES.get(_scheme(url), '')}".rstrip()
        ) from None
    except ValueError as error:
        raise UnreadableError(f"{url} cannot be read: {one_line(error)}.") from None


def one_line(error: Exception) -> str:
    """An error as one line of text."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]
