"""What differs between snapshots, in words: lines for a person of what diff and why find.

Names from the data stand in them as they are, but for line breaks; a terminal escapes the rest.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from ...schemas.visible import visible
from ..snapshot import Snapshot
from .diff import SnapshotDiff
from .diff_shifts import ShiftedFile
from .diff_tally import KINDS
from .part_changes import Change
from .why import Explanation

_VALUE_LENGTH = 200


def diff_text(found: SnapshotDiff) -> str:
    """What changed from one snapshot to another."""
    return "\n".join(_diff_lines(found))


def explanation_text(found: Explanation) -> str:
    """Why two fingerprints differ."""
    return "\n".join(_explanation_lines(found))


def _diff_lines(found: SnapshotDiff) -> Iterator[str]:
    old, new, records = found.old, found.new, found.records
    yield f"old {old.manifest.fingerprint}  {old.path}"
    yield f"new {new.manifest.fingerprint}  {new.path}"
    if found.same:
        yield "the same snapshot"
        return
    for note in found.notes:
        yield f"note: {note}"
    rows = [
        (name, *(_num_examples(s, name) for s in (old, new)), *(counts[kind] for kind in KINDS))
        for name, counts in records.counts.items()
    ]
    totals = [records.total(kind) for kind in KINDS]
    yield "records"
    yield from _table(
        ("split", "old", "new", *KINDS), [*rows, ("all", records.num_old, records.num_new, *totals)]
    )
    yield f"  {records.num_same:,} as before: the same content in the same split"
    if not found.contents:
        yield "  what records hold was not compared (--only-ids)"
    for (before, after), number in sorted(records.moves.items()):
        yield f"  moved from {before} to {after}: {number:,}"
    for kind in KINDS:
        yield from _first(kind, records.first[kind], records.total(kind))
    for file in records.shifted:
        yield _shift(file)
    yield from _changes("features", found.features)
    yield from _changes("settings and code", found.settings)
    yield from _changes("versions", found.versions)


def _explanation_lines(found: Explanation) -> Iterator[str]:
    there = "" if found.published else ", which a build would make"
    yield f"A {found.old}  {found.old_path}"
    yield f"B {found.new}  {found.new_path}{there}"
    if found.same:
        yield "nothing differs: the build finds this snapshot"
        return
    if not found.complete:
        yield "note: a build.json is missing or damaged: only what manifests hold was compared."
    inputs = found.inputs
    others = [change for change in found.changes if change.part != "inputs"]
    yield from _changes("what differs, from A to B", found.changes if inputs is None else others)
    if inputs is not None:
        yield (
            f"input files: {inputs.num_added:,} added, {inputs.num_removed:,} removed, "
            f"{inputs.num_changed:,} changed, {inputs.num_same:,} as before"
        )
        yield from _first("added", inputs.added, inputs.num_added)
        yield from _first("removed", inputs.removed, inputs.num_removed)
        yield from _first("changed", inputs.changed, inputs.num_changed)
    elif len(others) < len(found.changes) and not found.inputs_known:
        yield (
            "Which input files differ cannot be told: the workspace that lists them is gone. "
            "`snapshard diff` compares the records."
        )


def _num_examples(snapshot: Snapshot, split: str) -> int:
    entry = snapshot.manifest.splits.get(split)
    return 0 if entry is None else entry.num_examples


def _table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> Iterator[str]:
    lines = [list(columns), *([_cell(value) for value in row] for row in rows)]
    widths = [max(len(line[place]) for line in lines) for place in range(len(columns))]
    for first, *numbers in lines:
        cells = [cell.rjust(width) for cell, width in zip(numbers, widths[1:], strict=True)]
        yield f"  {'  '.join([first.ljust(widths[0]), *cells])}"


def _cell(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else _line(str(value))


def _first(kind: str, names: Sequence[str], total: int) -> Iterator[str]:
    if names:
        more = f" … and {total - len(names):,} more" if total > len(names) else ""
        yield f"{kind}: {', '.join(map(_line, names))}{more}"


def _shift(file: ShiftedFile) -> str:
    place = "from its beginning on" if file.after is None else f"after #{file.after}"
    return (
        f"warning: {_line(file.source)}, {place}: records have other ids than before (removed "
        f"{file.num_removed:,}, added {file.num_added:,}, changed {file.num_changed:,}). Rows were "
        "put in or taken out there, and an id is a place in the file. Append rows, or put new ones "
        "into a file of their own, and ids stay."
    )


def _changes(title: str, changes: Sequence[Change]) -> Iterator[str]:
    if changes:
        yield title
    for change in changes:
        thing = _line(": ".join(filter(None, (change.part, change.where, change.thing))))
        old, new = (_value(value) for value in (change.old, change.new))
        if change.kind == "changed":
            yield f"  {thing}: {old} → {new}" if old or new else f"  {thing} changed"
        else:
            value = new if change.kind == "added" else old
            yield f"  {thing} {change.kind}" + (f": {value}" if value else "")


def _value(value: object) -> str:
    """A value as JSON, in a line that is not long; nothing where only a digest was kept."""
    if value is None:
        return ""
    text = _line(json.dumps(value, ensure_ascii=False))
    return text if len(text) <= _VALUE_LENGTH else f"{text[:_VALUE_LENGTH]} …"


def _line(text: str) -> str:
    return visible(text)
