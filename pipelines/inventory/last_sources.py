"""Files of a workspace that keep something of each of the last few sources, as JSON.

They save work, nothing else: a missing or damaged one holds nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ...schemas.errors import StorageError
from ...transforms.storage.sealed import put_sealed, read_sealed

_NUM_SOURCES = 4


def read_sources(url: str, *, what: str) -> dict[str, Any]:
    """What a file keeps, by source; ``what`` says of what kind and version it is."""
    try:
        body = read_sealed(url, what=what)
    except StorageError:
        return {}
    content: dict[str, Any] = {} if body is None else json.loads(body)
    return content


def write_source(
    url: str, sources: Mapping[str, Any], *, what: str, source: str, kept: object
) -> None:
    """Writes the file anew: with what is kept of a source, which is now the last.

    Raises:
        StorageError: if it cannot be written.
    """
    others = [item for item in sources.items() if item[0] != source]
    content = dict([*others[1 - _NUM_SOURCES :], (source, kept)])
    body = json.dumps(content, separators=(",", ":")).encode("ascii")
    put_sealed(url, body, what=what)
