"""What a source has found out of its files' contents, kept in the workspace between builds.

It saves reading, nothing else: everything is kept by the contents it was found in, by the source's
settings and by the versions of the libraries, so it is never out of date; without it, or with a
damaged file, contents are read again. See ``transforms.sources.remembered`` for the sources' side.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ...schemas.blocks import SourceFile
from ...schemas.errors import RecipeError, SchemaError
from ...schemas.features import (
    Feature,
    features_from_json,
    features_to_json,
    flatten,
    wire_columns,
)
from ...schemas.fingerprint import digest, library_versions
from ...schemas.recipe import OpenSource, Source
from ...transforms import storage
from ...transforms.sources.remembered import remembered
from ...transforms.storage.opened_source import OpenedSource
from ..watchdog import expected_to_advance
from .hash_cache import read_sources, write_source
from .step import input_digest

_FORMAT = 2
_WHAT = f"findings {_FORMAT}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class RememberingSource(OpenedSource):
    """An opened source whose findings are kept."""

    known: dict[str, Any] = dataclasses.field(repr=False)
    used: dict[str, Any] = dataclasses.field(default_factory=dict, repr=False)

    def remembered(self, content: str, what: str, compute: Callable[[], Any]) -> Any:
        """What was found in the same content before, else what ``compute`` gives now."""
        key = hashlib.sha256(f"{content} {what}".encode("utf-8", "surrogatepass")).hexdigest()[:32]
        if key not in self.used:
            self.used[key] = self.known[key] if key in self.known else compute()
        return self.used[key]


class Findings:
    """The file of findings of a workspace."""

    def __init__(self, url: str, source: Mapping[str, object]) -> None:
        """Reads what is kept of a source with these settings.

        Args:
            url: Where the file lies; a missing or damaged one is empty.
            source: What it is whose findings they are. The last few sources' are kept.
        """
        described = {"format": _FORMAT, "source": dict(source), "versions": library_versions()}
        self._url = url
        self._source = digest(described)[:32]
        self._sources = read_sources(url, what=_WHAT)

    def opened(self, opened: OpenedSource) -> RememberingSource:
        """The same root, which remembers."""
        parts = {field.name: getattr(opened, field.name) for field in dataclasses.fields(opened)}
        return RememberingSource(**parts, known=self._sources.get(self._source, {}))

    def write(self, opened: RememberingSource) -> None:
        """Writes what was found through an opened source, if there is anything new.

        Raises:
            StorageError: if it cannot be written.
        """
        if opened.used.keys() <= opened.known.keys():
            return
        write_source(self._url, self._sources, what=_WHAT, source=self._source, kept=opened.used)


class Inferred(NamedTuple):
    """The features of a source's records."""

    features: dict[str, Feature]
    """Flat ones, in the order of the source."""
    structs: tuple[str, ...]
    """The structs that they are fields of."""


def infer_features(source: Source, files: Sequence[SourceFile], opened: OpenSource) -> Inferred:
    """The features of a source's records.

    Through a :class:`RememberingSource` nothing is read where all contents are as before.

    Raises:
        SchemaError: if they cannot be told.
    """

    def infer() -> dict[str, Any]:
        waited_for = f"the look at the contents of {storage.redact(source.url)}"
        with expected_to_advance(waited_for):
            inferred = source.infer(files, opened)
        try:
            features, structs = flatten(inferred)
            wire_columns(features)
        except (RecipeError, SchemaError) as error:
            where = f"{type(source).__name__}, {storage.redact(source.url)}"
            raise SchemaError(f"{where}: {error}") from None
        found = {"features": features_to_json(features), "structs": list(structs)}
        return found | {"names": list(features)}

    found = remembered(opened, _content(source, files, opened), "features", infer)
    features = features_from_json(found["features"])
    return Inferred({name: features[name] for name in found["names"]}, tuple(found["structs"]))


def _content(source: Source, files: Sequence[SourceFile], opened: OpenSource) -> str:
    """Names the contents of all files; empty where that of one is not known."""
    if not isinstance(opened, RememberingSource):
        return ""
    if not all(file.sha256 or file.problem for file in files):
        return ""
    sides = [hashlib.sha256(opened.read_side(url)).hexdigest() for url in source.side_urls]
    return digest([input_digest(files), *sides])
