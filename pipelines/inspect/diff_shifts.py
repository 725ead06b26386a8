"""Files whose records changed their ids because something was inserted before them.

Records of a text or a table are named by their place in the file. A line put in or taken out
shifts all that follow: they are removed under their old ids and added under new ones, although
nobody touched them. That is told from their contents: those that went and those that came are the
same. Of each file's contents only the lowest hashes are kept, a uniform sample of distinct ones
(Broder, "On the resemblance and containment of documents", 1997), so memory is bounded.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ...transforms.examples.stored_records import StoredRecords
from .diff_records import ComparedRecords

_MAX_FILES = 10_000
"""Of more files no shifts are told."""
_SAMPLE = 64
_FEW = 3
_MOST = 0.75
_ID = r"(?s)^(?P<source>.*)#(?P<position>[0-9]{1,18})$"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShiftedFile:
    """A file in which records of the same content lie at other places than before."""

    source: str
    after: int | None
    """Place (byte or row) of the last record that is as it was; None where none is."""
    num_removed: int
    num_added: int
    num_changed: int


@dataclasses.dataclass
class _Seen:
    """What has been seen of one file."""

    removed: int = 0
    added: int = 0
    changed: int = 0
    first: int | None = None
    last_kept: int | None = None
    gone: npt.NDArray[np.uint64] = dataclasses.field(default_factory=lambda: np.empty(0, np.uint64))
    come: npt.NDArray[np.uint64] = dataclasses.field(default_factory=lambda: np.empty(0, np.uint64))
    places: npt.NDArray[np.int64] = dataclasses.field(
        default_factory=lambda: np.empty((0, 3), np.int64)
    )
    """int64[n, 3]: key, place, and whether it is gone, of the old records with the lowest keys."""

    @property
    def last_before(self) -> int | None:
        """A place before which no id differs."""
        return None if self.first is None else max(0, self.first - 1)

    def note(self, kind: str, first: int, last: int, number: int) -> None:
        """Takes in some records of a kind, of which the first and the last lie here."""
        if kind == "kept":
            self.last_kept = last if self.last_kept is None else max(last, self.last_kept)
        elif kind != "rewritten":
            setattr(self, kind, getattr(self, kind) + number)
        if kind in ("removed", "added"):
            self.first = first if self.first is None else min(first, self.first)

    def shifted(self, *, by_contents: bool) -> bool:
        """Whether contents are the same at other places.

        Where contents do not tell, the ids behind one place are gone, but for some that happen to
        be those of other records now, and those before it are not.
        """
        if by_contents:
            both = _lowest(np.concatenate([self.gone, self.come]))
            shared = np.isin(both, self.gone) & np.isin(both, self.come)
            few = self.removed + self.added + self.changed < _FEW
            return not few and 2 * int(shared.sum()) >= len(both) > 0
        if min(self.removed, self.added) < _FEW or self.first is None:
            return False
        behind = self.places[:, 1] >= self.first
        if behind.all():
            return False
        return bool(self.places[behind, 2].mean() >= _MOST) if behind.any() else False


class Shifts:
    """Looks for shifted files among compared records."""

    def __init__(self, *, contents: bool) -> None:
        """Nothing seen yet; ``contents`` says whether it is known what the records hold."""
        self._contents = contents
        self._files: dict[str, _Seen] = {}

    def see(self, compared: ComparedRecords, changed: npt.NDArray[np.bool_]) -> None:
        """Takes in a range of compared records; ``changed`` says of each pair whether it is."""
        old, new, pairs = compared.old, compared.new, compared.pairs
        for records, rows, kind in (
            (old, compared.removed, "removed"),
            (new, compared.added, "added"),
            (old, pairs[changed, 0], "changed"),
            (new, pairs[changed, 1], "rewritten"),
            (old, pairs[~changed, 0], "kept"),
        ):
            if len(rows):
                self._note(records.take(rows), kind)

    def _note(self, records: StoredRecords, kind: str) -> None:
        ids = records.ids
        parts = pc.extract_regex(ids, _ID)
        numbered = parts.is_valid()
        parts = parts.drop_null()
        if not len(parts):
            return
        sources, texts = parts.flatten()
        positions = texts.cast(pa.string()).cast(pa.int64())
        table = pa.table({"source": sources, "position": positions})
        grouped = table.group_by("source").aggregate(
            [("position", "min"), ("position", "max"), ("position", "count")]
        )
        for row in grouped.to_pylist():
            seen = self._of(row["source"])
            if seen is not None:
                seen.note(kind, row["position_min"], row["position_max"], row["position_count"])
        chosen = numbered.to_numpy(zero_copy_only=False)
        groups = list(self._by_file(sources))
        if kind != "kept" and self._contents:
            contents = records.contents[chosen, 0]
            name = "come" if kind in ("added", "rewritten") else "gone"
            for seen, rows in groups:
                held = [getattr(seen, name), contents[rows]]
                setattr(seen, name, _lowest(np.concatenate(held)))
        if kind in ("removed", "changed") or (kind == "kept" and not self._contents):
            gone = np.full(len(positions), kind == "removed", np.int64)
            keys = records.keys[chosen].view(np.int64)
            places = np.stack([keys, positions.to_numpy(), gone], axis=1)
            for seen, rows in groups:
                both = np.concatenate([seen.places, places[rows]])
                seen.places = both[np.argsort(both[:, 0].view(np.uint64), kind="stable")[:_SAMPLE]]

    def _by_file(self, sources: pa.Array) -> Iterator[tuple[_Seen, npt.NDArray[np.int64]]]:
        """What has been seen of each file, and the rows of its records."""
        encoded = sources.dictionary_encode()
        codes = encoded.indices.to_numpy()
        order = np.argsort(codes, kind="stable")
        edges = np.searchsorted(codes[order], np.arange(len(encoded.dictionary) + 1))
        names = encoded.dictionary.to_pylist()
        for source, (start, stop) in zip(names, itertools.pairwise(edges.tolist()), strict=True):
            seen = self._files.get(_text(source))
            if seen is not None:
                yield seen, order[start:stop]

    def _of(self, source: bytes) -> _Seen | None:
        name = _text(source)
        if name not in self._files and len(self._files) >= _MAX_FILES:
            return None
        return self._files.setdefault(name, _Seen())

    def found(self, *, none_same: bool) -> list[ShiftedFile]:
        """The shifted files, by path.

        Args:
            none_same: Whether no record at all is as it was: a new mean, say, changes every
                content, and ids alone are left to tell.
        """
        by_contents = self._contents and not none_same
        return [
            ShiftedFile(
                source=source,
                after=seen.last_kept if by_contents else seen.last_before,
                num_removed=seen.removed,
                num_added=seen.added,
                num_changed=seen.changed,
            )
            for source, seen in sorted(self._files.items())
            if seen.shifted(by_contents=by_contents)
        ]


def _lowest(hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    found: npt.NDArray[np.uint64] = np.unique(hashes)[:_SAMPLE]
    return found


def _text(source: bytes) -> str:
    return source.decode("utf-8", "backslashreplace")
