"""The readers that a snapshot ships: ``reader.py``, and on request one that needs no TensorFlow."""

from __future__ import annotations

import pathlib
from collections.abc import Iterable, Sequence

from ..schemas.errors import RecipeError
from ..schemas.features import Image
from ..schemas.naming import READER, READER_NUMPY
from .emit import ReaderFacts, constants, emit_reader, fill, measured
from .reader_facts import sides_of

READERS = ("tf", "numpy")
"""What ``readers=`` may name; the first is in every snapshot."""

_TEMPLATES = tuple(
    pathlib.Path(__file__).with_name(f"reader_{part}.py")
    for part in ("numpy_template", "frames_template", "numpy_examples")
)

_HEADER = '''\
"""Reads the snapshot {fingerprint} by NumPy: record by number, or one after another.

    import reader_numpy
    records = reader_numpy.Records("train")       # len(records), records[7]["label"]
    for record in reader_numpy.Stream("train", seed=1): ...

``torch.utils.data.DataLoader`` takes either, Grain takes ``Records``. Emitted by snapshard
{version} for this snapshot, not to be edited by hand. It needs NumPy and nothing else (with
google-crc32c it checks faster). Import it from the snapshot, or copy it next to the model and say
``root=``.
"""

from __future__ import annotations

import bisect
# [if gzip]
import contextlib
# [end]
import functools
# [if gzip]
import gzip
# [end]
# [if encoded]
import io
# [end]
import itertools
import json
import math
import operator
import os
import random
import struct
import sys
import weakref
# [if gzip]
import zlib
# [end]
from collections.abc import Callable, Iterator
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt
'''


def check_readers(readers: Iterable[str]) -> tuple[str, ...]:
    """The names of the readers to emit, each once, in one order.

    Raises:
        RecipeError: if a name is none of ``READERS``, or "tf" is missing.
    """
    allowed = ", ".join(map(repr, READERS))
    found = [readers] if isinstance(readers, str) else list(readers)
    for name in found:
        if name not in READERS:
            raise RecipeError(f"readers: there is no reader {name!r}, only {allowed}.")
    if READERS[0] not in found:
        raise RecipeError(
            f"readers={tuple(found)!r}: {READERS[0]!r} must be among them, since every snapshot "
            f"has a {READER}. There are {allowed}."
        )
    return tuple(name for name in READERS if name in found)


def emit_readers(facts: ReaderFacts, readers: Sequence[str]) -> dict[str, str]:
    """The content of the readers' files, by their names."""
    emitted = emit_reader(facts)
    if "numpy" in readers:
        emitted[READER_NUMPY] = emit_numpy_reader(facts)
    return emitted


def emit_numpy_reader(facts: ReaderFacts) -> str:
    """The content of ``reader_numpy.py``; the same facts give the same bytes."""
    wanted = {
        "gzip": facts.compression == "gzip",
        "encoded": any(
            isinstance(feature, Image) and feature.storage == "encoded"
            for feature in facts.features.values()
        ),
    }
    header = _HEADER.format(fingerprint=facts.fingerprint, version=facts.version).splitlines()
    more = measured(facts) | {
        # The orientation of an encoded image stands in its own EXIF, too.
        "SIDES: dict[str, list[str]]": sides_of(facts.features, frozenset()),
        "STRUCTS: list[str]": list(facts.structs),
    }
    blocks = {
        "header": list(fill(header, blocks={}, wanted=wanted)),
        "constants": list(constants(facts, more)),
    }
    lines: list[str] = []
    for template in _TEMPLATES:
        text = template.read_text(encoding="utf-8").splitlines()
        lines += fill(text, blocks=blocks, wanted=wanted)
        blocks["header"] = []
    return "\n".join(lines).rstrip("\n") + "\n"
