"""The fingerprint: the content address of a snapshot, from everything that affects its bytes."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib.metadata
import json
import os
import sys
from collections.abc import Mapping

from .manifest import FORMAT_VERSION

_LIBRARIES = (
    "apache-beam",
    "numpy",
    "pillow",
    "protobuf",
    "pyarrow",
    "simplejpeg",
    "snapshard",
    "tensorflow",
    "tensorflow-metadata",
    "tensorflow-transform",
    "tfx-bsl",
)
_SETTINGS = ("DNNL_MAX_CPU_ISA", "ONEDNN_MAX_CPU_ISA", "TF_ENABLE_ONEDNN_OPTS")
"""Environment variables that change the last bits of sums and products in TensorFlow."""


def canonical_json(value: object) -> bytes:
    """A unique byte string for each plain JSON value: keys sorted, no spaces, UTF-8.

    Lone surrogates, as in undecodable file names, are encoded as if they were characters.

    Raises:
        TypeError: if the value is not plain JSON: for example, a key is not a string.
        ValueError: if a number is NaN or infinite, which JSON cannot express.

    >>> canonical_json({"b": [1, 2.5, None], "a": "é"}).decode()
    '{"a":"é","b":[1,2.5,null]}'
    """
    _check_keys(value)
    text = json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )
    return text.encode(errors="surrogatepass")


def _check_keys(value: object) -> None:
    """Refuses keys that json would turn into strings: 1 and "1" must not be the same key."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            if not isinstance(key, str):
                raise TypeError(f"key {key!r} is not a string")
            _check_keys(item)
    elif isinstance(value, list | tuple):
        for item in value:
            _check_keys(item)


def digest(value: object) -> str:
    """The sha256, in hex, of a plain JSON value.

    Raises:
        TypeError: if it is not plain JSON.
        ValueError: if it contains NaN or infinity.

    >>> digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})
    True
    """
    return hashlib.sha256(canonical_json(value)).hexdigest()


@dataclasses.dataclass(frozen=True, kw_only=True)
class FingerprintParts:
    """What affects a snapshot's bytes, each part as plain JSON.

    A large part (the contents of a million files) is a digest.
    """

    name: str
    """The recipe's name, which the manifest contains."""
    inputs: object
    """Relative paths and contents of the source's files, including side files."""
    prepare: object
    """What affects the runs: the source's settings, features, seed, each step's code."""
    splits: object
    shards: object
    preprocessing: object = None
    """Code of the ``preprocessing_fn``; None without one."""
    analysis: object = None
    """How the analysis ran: batch size and where; None without one."""
    label: str | None = None
    """The recipe's ``label``; None if the source or a step names it, whose settings count."""
    revision: int = 0
    """The recipe's revision; it affects the runs of blocks with rejects."""
    excluded: object = None
    """Number and hash of the ids of excluded records; None without ``exclude``."""
    lock: str | None = None
    """Hash of the recipe's lock; None without one."""
    versions: Mapping[str, str] = dataclasses.field(default_factory=lambda: library_versions())
    format_version: int = FORMAT_VERSION

    def to_json(self) -> dict[str, object]:
        """The parts by name."""
        parts = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        if self.revision == 0:
            del parts["revision"]
        for name in ("label", "excluded", "lock"):
            if parts[name] is None:
                del parts[name]
        return parts


def fingerprint(parts: FingerprintParts) -> str:
    """The fingerprint: the first 16 hex digits of the digest of all parts."""
    return digest(parts.to_json())[:16]


def differences(a: Mapping[str, object], b: Mapping[str, object]) -> list[str]:
    """Names of the parts that differ, in the order of ``a``, then those that only ``b`` has.

    ``a`` and ``b`` are parts as :meth:`FingerprintParts.to_json` returns them, possibly read
    from a ``build.json`` of another version. A part that is a mapping on both sides is named
    by its keys: ``versions.numpy``.

    >>> differences({"seed": 0, "versions": {"numpy": "2.3"}}, {"seed": 0, "versions": {}})
    ['versions.numpy']
    """
    names = []
    for name in dict.fromkeys((*a, *b)):
        if name in a and name in b:
            left, right = a[name], b[name]
            if isinstance(left, Mapping) and isinstance(right, Mapping):
                names += [f"{name}.{inner}" for inner in differences(left, right)]
            elif canonical_json(left) != canonical_json(right):
                names.append(name)
        else:
            names.append(name)
    return names


def library_versions() -> dict[str, str]:
    """Versions of Python (``3.11``) and of the libraries that affect bytes, by name.

    Read from the metadata of installed packages: nothing is imported. Of Python only the minor
    version counts: a bug-fix release changes neither its parser nor its arithmetic. A library
    that is not installed is ``absent``. Settings of the environment that choose how TensorFlow
    computes count where they are set.
    """
    versions = {"python": f"{sys.version_info.major}.{sys.version_info.minor}"}
    versions |= {name: installed_version(name) for name in _LIBRARIES}
    versions |= {name: os.environ[name] for name in _SETTINGS if name in os.environ}
    return dict(sorted(versions.items()))


@functools.cache
def installed_version(name: str) -> str:
    """The version of a library; ``absent`` if it is not installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "absent"
