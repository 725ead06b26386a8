"""A listing as recognition sees it: files in groups of one folder and suffix, and their heads."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterable, Mapping, Sequence

from ...schemas.blocks import SourceFile
from ...transforms.sources.folders.files import why_skipped
from ...transforms.storage.opened_source import OpenedSource, url_below


@dataclasses.dataclass(frozen=True, eq=False)
class View:
    """Raw data to be recognized. Rules ask it for files of a kind, and do not go over all."""

    url: str
    """The source's URL."""
    listed: Sequence[SourceFile]
    """All files there."""
    opened: OpenedSource
    """The source's root."""
    label: str | None = None
    """The feature to predict, if it is given."""

    @property
    def shown(self) -> str:
        """The URL without credentials, for messages."""
        return self.opened.shown

    @property
    def has_urls(self) -> bool:
        """Whether its files have URLs of their own: those of a glob have none."""
        return not (self.opened.pattern or self.opened.single)

    def url_below(self, path: str) -> str:
        """The URL of a file or folder."""
        return url_below(self.url, path)

    def inner_url(self, path: str) -> str | None:
        """The URL of what is inside; None if this is a glob, a single file or an inner archive."""
        if not self.has_urls or "?" in self.url or "::" in self.url:
            return None
        return path if self.url in (".", "./") else url_below(self.url, path)

    def head(self, file: SourceFile, num_bytes: int) -> bytes:
        """The first bytes of a file."""
        return self.opened.read(file.path, 0, min(file.num_bytes, num_bytes))

    @functools.cached_property
    def groups(self) -> Mapping[tuple[str, str], Sequence[int]]:
        """The numbers of the files in a folder with a suffix, from the last dot on, in lower case.

        Hidden files and those of operating systems are in no group.
        """
        groups: dict[tuple[str, str], list[int]] = {}
        for number, file in enumerate(self.listed):
            if not self.opened.single and why_skipped(file.path):
                continue
            folder, _, name = file.path.rpartition("/")
            stem, dot, end = name.rpartition(".")
            groups.setdefault((folder, f".{end.lower()}" if dot and stem else ""), []).append(
                number
            )
        return groups

    @property
    def visible(self) -> list[SourceFile]:
        """All files of all groups, in the order of the listing."""
        return self._files(self.groups.values())

    def ending(self, *suffixes: str) -> list[SourceFile]:
        """The files with one of these suffixes, in the order of the listing; "" is that of none."""
        ends = {suffix[suffix.rfind(".") :] if suffix else "" for suffix in suffixes}
        longer = tuple(suffix for suffix in suffixes if suffix.rfind(".") > 0)
        return self._files(
            numbers
            if suffix in suffixes
            else [n for n in numbers if self.listed[n].path.lower().endswith(longer)]
            for (_, suffix), numbers in self.groups.items()
            if suffix in ends
        )

    def without(self, *suffixes: str) -> list[SourceFile]:
        """The files with none of these suffixes, which have one dot each."""
        return self._files(of for (_, suffix), of in self.groups.items() if suffix not in suffixes)

    def _files(self, groups: Iterable[Sequence[int]]) -> list[SourceFile]:
        return [self.listed[number] for number in sorted(itertools.chain.from_iterable(groups))]
