"""Files of a workspace that keep something of each of the last few sources, as JSON.

They save work, nothing else: a missing or damaged one holds nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from ...schemas.blocks import SourceFile
from ...schemas.errors import StorageError
from ...transforms.sources.blocks import BLOCK_BYTES
from ...transforms.storage.sealed import put_sealed, read_sealed
from ...transforms.storage.unchanged import COARSE_NS, times_in

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


_WHAT = "memo 3"


class Known(NamedTuple):
    """What is known of a file of this size and stamp; a tuple, since each file makes one."""

    num_bytes: int
    stamp: str
    sha256: str
    cuts: tuple[int, ...] = ()
    parts: tuple[str, ...] = ()
    """Hashes of what lies between the cuts, where it stands alone; see ``group_blocks``."""


class Memo:
    """Known contents of one source's files, as they were when last written."""

    def __init__(
        self,
        url: str,
        *,
        source: str,
        cuts_by: str,
        content: Mapping[str, Any],
    ) -> None:
        """Takes what the memo's file holds; see :func:`read_memo`."""
        self._url = url
        self._source = source
        self._cuts_by = cuts_by
        self._sources: dict[str, Any] = dict(content)
        found = self._sources.get(source, {})
        self._listed_ns = int(found.get("listed_ns", 0))
        self._files = {
            path: Known(
                num_bytes=size, stamp=stamp, sha256=sha256, cuts=tuple(cuts), parts=tuple(parts)
            )
            for path, (size, stamp, sha256, cuts, parts) in found.get("files", {}).items()
            if found["cuts_by"] == cuts_by or size <= BLOCK_BYTES
        }

    def find(self, file: SourceFile) -> Known | None:
        """What is known of a listed file; None where it has to be read.

        A file whose time lies less than a clock's tick before the listing that the memo was
        made from may have changed after it was read without its stamp telling: as with git's
        index, it is read again.
        """
        known = self._files.get(file.path)
        if known is None or (known.num_bytes, known.stamp) != (file.num_bytes, file.stamp):
            return None
        # A member of an archive has the archive's times in its stamp.
        latest = max(times_in(file.stamp), default=None)
        if latest is not None and latest > self._listed_ns - COARSE_NS:
            return None
        return known

    def write(self, known: Mapping[str, Known], *, listed_ns: int) -> None:
        """Writes what is known now, if that is not what the memo holds already.

        Args:
            known: By path. Files without a stamp are left out.
            listed_ns: When the files were listed, in ns since 1970.

        Raises:
            StorageError: if it cannot be written.
        """
        kept = {path: facts for path, facts in known.items() if facts.stamp}
        if kept == self._files:
            return
        files = {
            path: [facts.num_bytes, facts.stamp, facts.sha256, list(facts.cuts), list(facts.parts)]
            for path, facts in kept.items()
        }
        entry = {"listed_ns": listed_ns, "cuts_by": self._cuts_by, "files": files}
        write_source(self._url, self._sources, what=_WHAT, source=self._source, kept=entry)


def read_memo(url: str, *, source: str, cuts_by: str) -> Memo:
    """Reads the memo of a workspace; a missing or damaged one is empty.

    Args:
        url: Where it lies.
        source: Names the source; only its hash is kept, since a URL may hold credentials.
        cuts_by: Names how files are cut; cuts made otherwise are not known.
    """
    key = hashlib.sha256(source.encode("utf-8", "surrogateescape")).hexdigest()[:32]
    return Memo(url, source=key, cuts_by=cuts_by, content=read_sources(url, what=_WHAT))
