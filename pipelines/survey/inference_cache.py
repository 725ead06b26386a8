"""The inference cache: what a source inferred from its files' contents, kept between builds.

It only saves reading. Entries are keyed by the contents, the source's settings and the libraries'
versions, so none is out of date; if the file is missing or damaged, contents are read again. See
``transforms.sources.bundles`` for the sources' side.
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
from ...schemas.recipe import OpenSource, Remarks, Source
from ...transforms import storage
from ...transforms.sources.bundles import remembered
from ...transforms.sources.combined import join_features, parts_of, without_prefix
from ...transforms.storage.opened_source import OpenedSource
from ..inventory.hash_cache import read_sources, write_source
from ..inventory.step import input_digest
from ..watchdog import expected_to_advance
from .telltales import alike_classes, telltale_columns

_FORMAT = 6
_WHAT = f"findings {_FORMAT}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class RememberingSource(OpenedSource):
    """An opened source that uses the inference cache."""

    known: dict[str, Any] = dataclasses.field(repr=False)
    used: dict[str, Any] = dataclasses.field(default_factory=dict, repr=False)
    name: str = ""
    """The source's name among several of a recipe."""

    def remembered(self, content: str, what: str, compute: Callable[[], Any]) -> Any:
        """What was inferred from the same content before, otherwise the result of ``compute``."""
        named = f"{self.name} {content} {what}" if self.name else f"{content} {what}"
        key = hashlib.sha256(named.encode("utf-8", "surrogatepass")).hexdigest()[:32]
        if key not in self.used:
            self.used[key] = self.known[key] if key in self.known else compute()
        return self.used[key]


class Findings:
    """The inference cache of a workspace."""

    def __init__(self, url: str, source: Mapping[str, object]) -> None:
        """Reads the entries of a source with these settings.

        Args:
            url: The file; a missing or damaged one is empty.
            source: The source's settings. Entries of the last few sources are kept.
        """
        described = {"format": _FORMAT, "source": dict(source), "versions": library_versions()}
        self._url = url
        self._source = digest(described)[:32]
        self._sources = read_sources(url, what=_WHAT)
        self._known: dict[str, Any] = self._sources.get(self._source, {})
        self._used: dict[str, Any] = {}

    def opened(self, opened: OpenedSource) -> OpenedSource:
        """The same source, using the cache."""
        return opened.each(self._remembering)

    def _remembering(self, name: str, opened: OpenedSource) -> RememberingSource:
        parts = {field.name: getattr(opened, field.name) for field in dataclasses.fields(opened)}
        return RememberingSource(**parts, known=self._known, used=self._used, name=name)

    def write(self) -> None:
        """Writes what was inferred through opened sources, if there is anything new.

        Raises:
            StorageError: if it cannot be written.
        """
        if self._used.keys() <= self._known.keys():
            return
        write_source(self._url, self._sources, what=_WHAT, source=self._source, kept=self._used)


class Inferred(NamedTuple):
    """The features of a source's records."""

    features: dict[str, Feature]
    """Flat, in the order of the source."""
    structs: tuple[str, ...]
    """The structs whose fields they are."""
    missing: Mapping[str, tuple[str, ...]] = {}
    """The features that each of several sources lacks, by the source's name."""
    remarks: tuple[str, ...] = ()
    """How the sources read what is not as usual."""


def infer_features(source: Source, files: Sequence[SourceFile], opened: OpenedSource) -> Inferred:
    """Infers the features of a source's records, or of those of several sources together.

    Through a :class:`RememberingSource`, nothing is read if all contents are unchanged.

    Raises:
        SchemaError: if they cannot be inferred, or two sources have a feature in different types.
    """
    by_source: dict[str, Inferred] = {}
    for part in parts_of(source, opened):
        with part.naming():
            own = without_prefix(files, part.prefix)
            by_source[part.name] = _infer_part(part.source, own, part.opened)
    joined = join_features({name: inferred.features for name, inferred in by_source.items()})
    structs = dict.fromkeys(name for inferred in by_source.values() for name in inferred.structs)
    if both := [name for name in structs if name in joined.features]:
        raise SchemaError(
            f"Sources: {both[0]!r} is a struct in one source, and a value in another. Give it "
            "another name in one of them."
        )
    remarks = tuple(line for inferred in by_source.values() for line in inferred.remarks)
    return Inferred(joined.features, tuple(structs), joined.missing, remarks)


def _infer_part(source: Source, files: Sequence[SourceFile], opened: OpenedSource) -> Inferred:

    def infer() -> dict[str, Any]:
        waited_for = f"the inspection of the contents of {storage.redact(source.url)}"
        with expected_to_advance(waited_for):
            inferred = source.infer(files, opened)
            remarks = source.remarks(files, opened) if isinstance(source, Remarks) else []
        try:
            features, structs = flatten(inferred)
            wire_columns(features)
        except (RecipeError, SchemaError) as error:
            where = f"{type(source).__name__}, {storage.redact(source.url)}"
            raise SchemaError(f"{where}: {error}") from None
        flat = {"features": features_to_json(features), "structs": list(structs)}
        remarks = [
            *remarks,
            *alike_classes(features),
            *telltale_columns(source, files, opened, features),
        ]
        return flat | {"names": list(features), "remarks": remarks}

    stored = remembered(opened, _content(source, files, opened), "features", infer)
    features = features_from_json(stored["features"])
    named = {name: features[name] for name in stored["names"]}
    return Inferred(named, tuple(stored["structs"]), remarks=tuple(stored["remarks"]))


def _content(source: Source, files: Sequence[SourceFile], opened: OpenSource) -> str:
    """Digest of the contents of all files; empty if that of one is unknown."""
    if not isinstance(opened, RememberingSource):
        return ""
    if not all(file.sha256 or file.problem for file in files):
        return ""
    sides = [opened.side_digest(url) for url in source.side_urls]
    return digest([input_digest(files), *sides])
