"""The hash cache: path, size and stamp of a file → sha256 of its content.

It only saves reading: if it is missing or damaged, files are read again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ...schemas.blocks import SourceFile
from ...schemas.errors import StorageError
from ...transforms.sources.blocks import MIN_CUT_BYTES
from ...transforms.storage.artifacts import put_artifact, put_large_artifact, read_artifact
from ...transforms.storage.unchanged import COARSE_NS, times_in

_NUM_SOURCES = 4


def read_sources(url: str, *, what: str) -> dict[str, Any]:
    """The content of a cache file, by source; ``what`` is its kind and version."""
    try:
        body = read_artifact(url, what=what)
    except StorageError:
        return {}
    content: dict[str, Any] = {} if body is None else json.loads(body)
    return content


def write_source(
    url: str,
    sources: Mapping[str, Any],
    *,
    what: str,
    source: str,
    kept: object,
    num_kept: int = _NUM_SOURCES,
) -> None:
    """Writes a cache file with the entry of a source; the oldest of ``num_kept`` entries goes.

    Raises:
        StorageError: if it cannot be written.
    """
    content = {**_others(sources, source, num_kept), source: kept}
    body = json.dumps(content, separators=(",", ":")).encode("ascii")
    put_artifact(url, body, what=what)


def _others(sources: Mapping[str, Any], source: str, num_kept: int) -> dict[str, Any]:
    others = [item for item in sources.items() if item[0] != source]
    return dict(others[max(0, len(others) + 1 - num_kept) :])


_WHAT = "memo 4"


class Known(NamedTuple):
    """The content of a file of this size and stamp; a tuple, since there is one for each file."""

    num_bytes: int
    stamp: str
    sha256: str
    cuts: tuple[int, ...] = ()
    parts: tuple[str, ...] = ()
    """Hashes of the ranges between the cuts, if each can be read alone; see ``group_blocks``."""


class HashCache:
    """The known contents of one source's files."""

    def __init__(
        self,
        url: str,
        *,
        source: str,
        cuts_by: str,
        content: Mapping[str, Any],
        num_kept: int = _NUM_SOURCES,
        min_cut_bytes: int = MIN_CUT_BYTES,
    ) -> None:
        """See :func:`read_hash_cache`; ``content`` is that of the file."""
        self._url = url
        self._source = source
        self._cuts_by = cuts_by
        self._num_kept = num_kept
        self._sources: dict[str, Any] = dict(content)
        kept = self._sources.get(source, {})
        self._listed_ns = int(kept.get("listed_ns", 0))
        self._files = {
            path: Known(
                num_bytes=size, stamp=stamp, sha256=sha256, cuts=tuple(cuts), parts=tuple(parts)
            )
            for path, (size, stamp, sha256, cuts, parts) in kept.get("files", {}).items()
            if kept["cuts_by"] == cuts_by or size <= min_cut_bytes
        }

    def find(self, file: SourceFile) -> Known | None:
        """The content of a listed file; None if it must be read.

        A file modified less than a clock tick before the listing that the cache was made from may
        have changed after it was read without a new stamp. As with git's index, it is read again.
        """
        known = self._files.get(file.path)
        if known is None or (known.num_bytes, known.stamp) != (file.num_bytes, file.stamp):
            return None
        # A member of an archive has the archive's times in its stamp.
        latest = max(times_in(file.stamp), default=None)
        if latest is not None and latest > self._listed_ns - COARSE_NS:
            return None
        return known

    def write(
        self,
        files: Sequence[SourceFile],
        *,
        cuts: Mapping[str, Sequence[int]],
        parts: Mapping[str, Sequence[str]],
        listed_ns: int,
    ) -> None:
        """Writes the contents of files, unless they are those of the cache.

        Args:
            files: The files. Those without a hash or a stamp are omitted.
            cuts: By path, of the files that have any.
            parts: Likewise.
            listed_ns: When the files were listed, in ns since 1970.

        Raises:
            StorageError: if it cannot be written.
        """

        def known() -> Iterator[tuple[str, Known]]:
            for file in files:
                if file.sha256 and file.stamp:
                    yield (
                        file.path,
                        Known(
                            num_bytes=file.num_bytes,
                            stamp=file.stamp,
                            sha256=file.sha256,
                            cuts=tuple(cuts.get(file.path, ())),
                            parts=tuple(parts.get(file.path, ())),
                        ),
                    )

        if self._files:
            are_kept = [self._files.get(path) == content for path, content in known()]
            if all(are_kept) and len(are_kept) == len(self._files):
                return
        encoded = json.JSONEncoder(separators=(",", ":")).encode
        entry = {"listed_ns": listed_ns, "cuts_by": self._cuts_by, "files": {}}
        content = {**_others(self._sources, self._source, self._num_kept), self._source: entry}
        head = encoded(content).removesuffix("}}}")

        def written() -> Iterator[bytes]:
            before = head
            for path, content in known():
                yield f"{before}{encoded(path)}:{encoded(content)}".encode("ascii")
                before = ","
            yield (f"{head}}}}}}}" if before == head else "}}}").encode("ascii")

        workspace = self._url.rpartition("/")[0]
        put_large_artifact(self._url, written(), what=_WHAT, near=workspace)


def read_hash_cache(
    url: str,
    *,
    source: str,
    cuts_by: str,
    num_kept: int = 1,
    min_cut_bytes: int = MIN_CUT_BYTES,
) -> HashCache:
    """Reads the hash cache of a workspace; a missing or damaged one is empty.

    Args:
        url: Its file.
        source: URL of the source; only its hash is stored, since it may contain credentials.
        cuts_by: How files are cut; cuts that were made differently are not used.
        num_kept: The number of sources of the recipe: the cache keeps four times as many.
        min_cut_bytes: Files up to this size are not cut.
    """
    key = hashlib.sha256(source.encode("utf-8", "surrogateescape")).hexdigest()[:32]
    return HashCache(
        url,
        source=key,
        cuts_by=cuts_by,
        content=read_sources(url, what=_WHAT),
        num_kept=_NUM_SOURCES * num_kept,
        min_cut_bytes=min_cut_bytes,
    )
