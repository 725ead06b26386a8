"""Which input files differ between two builds: a merge of two sorted lists, in flat memory."""

from __future__ import annotations

import dataclasses
import heapq
import itertools
from collections.abc import Iterator

from ...transforms.storage.opened_source import path_bytes
from ..inventory.fingerprint_details import InputFile


@dataclasses.dataclass(frozen=True, kw_only=True)
class InputChanges:
    """How many files differ, and the first of each kind."""

    num_added: int
    num_removed: int
    num_changed: int
    """Of files that both builds read: with other content, or another reason not to be read."""
    num_same: int
    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[str, ...]

    def to_json(self) -> dict[str, object]:
        """The changes as plain JSON."""
        return dataclasses.asdict(self)


def input_changes(
    old: Iterator[InputFile], new: Iterator[InputFile], *, num_shown: int
) -> InputChanges:
    """Holds two lists of files against each other.

    Args:
        old: In the order of the bytes of their paths.
        new: Likewise.
        num_shown: How many paths to give of each kind, the first ones.
    """
    counts = dict.fromkeys(("added", "removed", "changed", "same"), 0)
    shown: dict[str, list[str]] = {kind: [] for kind in counts}

    def count(kind: str, path: str) -> None:
        counts[kind] += 1
        if len(shown[kind]) < num_shown:
            shown[kind].append(path)

    merged = heapq.merge(_tagged(0, old), _tagged(1, new))
    for _, group in itertools.groupby(merged, key=lambda item: item[0]):
        found = {side: file for _, side, file in group}
        if len(found) == 1:
            for side, file in found.items():
                count("added" if side else "removed", file[0])
        else:
            count("same" if found[0][1:] == found[1][1:] else "changed", found[1][0])
    return InputChanges(
        num_added=counts["added"],
        num_removed=counts["removed"],
        num_changed=counts["changed"],
        num_same=counts["same"],
        added=tuple(shown["added"]),
        removed=tuple(shown["removed"]),
        changed=tuple(shown["changed"]),
    )


def _tagged(side: int, files: Iterator[InputFile]) -> Iterator[tuple[bytes, int, InputFile]]:
    for file in files:
        yield path_bytes(file[0]), side, file
