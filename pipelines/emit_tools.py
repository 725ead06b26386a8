"""Writes what stands beside a snapshot's ``reader.py``: the same for every snapshot."""

from __future__ import annotations

import pathlib

from ..schemas.naming import (
    READER_BALANCE,
    READER_CACHES,
    READER_COPIES,
    READER_OPTIONS,
    READER_RESUME,
    READER_SEQUENCES,
    READER_SERVICE,
    READER_STREAMS,
    READER_TIMING,
    READER_TOOLS,
)
from .emit import fill

_TEMPLATES = {
    READER_CACHES: "reader_caches_template.py",
    READER_COPIES: "reader_copies_template.py",
    READER_OPTIONS: "reader_options_template.py",
    READER_RESUME: "reader_resume_template.py",
    READER_SEQUENCES: "reader_sequences_template.py",
    READER_SERVICE: "reader_service_template.py",
    READER_STREAMS: "reader_streams_template.py",
    READER_TOOLS: "reader_tools_template.py",
    READER_TIMING: "reader_timing_template.py",
}
_IMPORT = ("from .reader_timing_template import", "from reader_timing import")
"""In the snapshot's folder the tools are no package."""


_BALANCE = tuple(f"reader_{part}_template.py" for part in ("balance", "draw", "frames"))
_BALANCE_HEADER = '''\
"""What ``reader.py`` beside it does for ``balance=``; and ``mix``, of several datasets.

It needs TensorFlow and nothing else (with google-crc32c it checks faster).
"""

from __future__ import annotations

import contextlib
import functools
import gzip
import itertools
import math
import operator
import os
import random
import struct
import threading
import types
import warnings
import weakref
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf  # type: ignore[import-untyped, unused-ignore]
'''


def emit_tools() -> dict[str, str]:
    """Their contents by file name."""
    folder = pathlib.Path(__file__).parent
    found = {
        name: (folder / template).read_text(encoding="utf-8").replace(*_IMPORT)
        for name, template in _TEMPLATES.items()
    }
    blocks = {"header": _BALANCE_HEADER.splitlines()}
    lines: list[str] = []
    for template in _BALANCE:
        text = (folder / template).read_text(encoding="utf-8").splitlines()
        lines += fill(text, blocks=blocks, wanted={"gzip": True})
        blocks["header"] = []
    return {READER_BALANCE: "\n".join(lines) + "\n", **found}
