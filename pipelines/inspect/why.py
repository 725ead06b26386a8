"""Why: explains why a build does not reuse a snapshot, by what differs in the fingerprints.

Both sides are known from their ``build.json``: the parts that the fingerprint is made of, and the
details of these parts. A part without details (in a snapshot of an older version) is only named.
Input files come from the lists in the workspace: a merge of two sorted lists, in flat memory.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import heapq
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

from ...schemas.errors import DamagedSnapshotError, RecipeError
from ...schemas.features import features_to_json
from ...schemas.fingerprint import canonical_json
from ...schemas.manifest import Manifest
from ...schemas.naming import BUILD, MANIFEST, OutputPaths, Workspace, join
from ...schemas.progress import Progress
from ...schemas.recipe import Recipe, reads_files
from ...schemas.visible import visible
from ...transforms import storage
from ...transforms.storage.opened_source import path_bytes
from ..snapshot import Snapshot, build_facts, is_snapshot
from ..survey.fingerprint_details import (
    InputFile,
    fingerprint_details,
    listed_inputs,
    surveyed_inputs,
)
from ..survey.survey import take_survey
from ..workspace import find_workspace

SHOWN = 10
"""How many files of each kind are named by default."""
_VALUE_LENGTH = 200
_ALL = ""
"""The name of the digest of a whole part."""
_OF_PREPARE = {
    *("depends_on", "format", "group", "prepared", "raw", "seed", "sides", "source"),
    *("steps", "structs", "versions"),
}
"""What ``prepare`` holds that other parts name, or that other facts determine."""
Kind = Literal["added", "removed", "changed"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Explanation:
    """Why two fingerprints differ.

    Attributes:
        old: Fingerprint of the snapshot that was not reused.
        new: Fingerprint of the other snapshot, or of the one that a build would make.
        old_path: Path of the first.
        new_path: Path of the second, existing or not.
        published: Whether the second exists.
        changes: What differs, in the order in which a build uses it.
        inputs: Which files differ; None if none does, or their lists are missing.
        inputs_known: Whether both lists of input files exist.
        complete: False if a ``build.json`` is missing and only the manifests were compared.
    """

    old: str
    new: str
    old_path: str
    new_path: str
    published: bool
    changes: tuple[Change, ...]
    inputs: InputChanges | None
    inputs_known: bool
    complete: bool

    @property
    def same(self) -> bool:
        """Whether there is nothing to explain."""
        return self.old == self.new

    def to_json(self) -> dict[str, object]:
        """The explanation as plain JSON."""
        value = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        value["same"] = self.same
        value["changes"] = [change.to_json() for change in self.changes]
        value["inputs"] = None if self.inputs is None else self.inputs.to_json()
        return value


@dataclasses.dataclass(frozen=True, kw_only=True)
class Change:
    """One difference."""

    part: str
    """Part of the fingerprint: ``inputs``, ``steps``, ``features``, ``splits`` …"""
    thing: str
    """Which thing in it: ``recipe.py: DARKER``, ``train``, ``numpy``; empty for all of the part."""
    kind: Kind
    old: object = None
    """Its value before; None if there was none, or only a digest of it is kept."""
    new: object = None
    where: str = ""
    """What it belongs to, such as a step."""

    def to_json(self) -> dict[str, object]:
        """The change as plain JSON."""
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True, kw_only=True)
class InputChanges:
    """How many files differ, and the first of each kind."""

    num_added: int
    num_removed: int
    num_changed: int
    """Files of both builds with other content, or with another reason for not being read."""
    num_same: int
    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[str, ...]

    def to_json(self) -> dict[str, object]:
        """The changes as plain JSON."""
        return dataclasses.asdict(self)


def why(old: Snapshot, new: Snapshot, *, num_shown: int = SHOWN) -> Explanation:
    """Explains why two snapshots have different fingerprints.

    Args:
        old: A snapshot.
        new: Another one.
        num_shown: How many input files to name of each kind.

    Raises:
        StorageError: if an existing file cannot be read.
    """
    first, second, complete = fingerprint_facts(old, new)
    return _explain(
        _Side(old.manifest.fingerprint, old.path, first, _inputs_of(old)),
        _Side(new.manifest.fingerprint, new.path, second, _inputs_of(new)),
        published=True,
        complete=complete,
        num_shown=num_shown,
    )


def why_not_found(
    recipe: Recipe,
    out: str,
    *,
    progress: Progress,
    limit: int | None = None,
    num_shown: int = SHOWN,
) -> Explanation:
    """Explains why a build of a recipe would not reuse the latest snapshot. Writes nothing.

    Args:
        recipe: What would be built.
        out: The output root of the build, or a snapshot.
        progress: Receives the progress of the inventory.
        limit: The limit of the build.
        num_shown: How many input files to name of each kind.

    Raises:
        RecipeError: if nothing is published there, or the recipe is invalid.
        DataError: if the source is empty.
        StorageError: if something cannot be read.
    """
    paths = OutputPaths(storage.absolute(out), recipe.name)
    if is_snapshot(out):
        latest = Snapshot.open(out)
        folder, _, _ = latest.path.rpartition("/")
    elif is_snapshot(paths.folder):
        latest, folder = Snapshot.open(paths.folder), paths.folder
    else:
        raise RecipeError(
            f"{paths.folder} contains no published snapshot that a build could reuse. Give the "
            "--out of a build of this recipe, or the folder of a snapshot."
        )
    with storage.temporary_folder() as scratch:
        # Records that are not in files are copied to the workspace, which must not change here.
        lasting = reads_files(recipe.source)
        survey = take_survey(
            recipe,
            workspace=find_workspace(folder) if lasting else Workspace(scratch),
            progress=progress,
            write=False,
            limit=limit,
        )
        details = fingerprint_details(survey)
    path = join(folder, survey.fingerprint)
    published = storage.exists(join(path, MANIFEST))
    if published:
        latest = Snapshot.open(path)
    parts = json.loads(canonical_json(survey.parts.to_json()))
    after = FingerprintFacts(parts=parts, details=json.loads(canonical_json(details)))
    facts = build_facts(latest.path)
    if facts:
        before = _recorded_facts(facts)
    else:
        before, after = (
            _limit_to_manifest(side, latest.manifest)
            for side in (_manifest_facts(latest.manifest), after)
        )
    return _explain(
        _Side(latest.manifest.fingerprint, latest.path, before, _inputs_of(latest)),
        _Side(survey.fingerprint, path, after, surveyed_inputs(survey)),
        published=published,
        complete=bool(facts),
        num_shown=num_shown,
    )


@dataclasses.dataclass(frozen=True)
class _Side:
    """One of two fingerprints."""

    fingerprint: str
    path: str
    facts: FingerprintFacts
    inputs: Iterator[InputFile] | None


def _explain(
    old: _Side, new: _Side, *, published: bool, complete: bool, num_shown: int
) -> Explanation:
    changes = part_changes(old.facts, new.facts) if old.fingerprint != new.fingerprint else []
    inputs = None
    inputs_known = old.inputs is not None and new.inputs is not None
    differ = not complete or any(change.part == "inputs" for change in changes)
    if old.inputs is not None and new.inputs is not None and differ and changes:
        inputs = input_changes(old.inputs, new.inputs, num_shown=num_shown)
    return Explanation(
        old=old.fingerprint,
        new=new.fingerprint,
        old_path=old.path,
        new_path=new.path,
        published=published,
        changes=tuple(changes),
        inputs=inputs,
        inputs_known=inputs_known,
        complete=complete,
    )


def _inputs_of(snapshot: Snapshot) -> Iterator[InputFile] | None:
    """The input files of a snapshot, if its workspace still lists them."""
    work = build_facts(snapshot.path).get("work")
    lists = work.get("blocks") if isinstance(work, Mapping) else None
    if not isinstance(lists, list):
        return None
    folder, _, _ = snapshot.path.rpartition("/")
    return listed_inputs(find_workspace(folder), [str(name) for name in lists])


@dataclasses.dataclass(frozen=True, kw_only=True)
class FingerprintFacts:
    """What is known of the fingerprint of a snapshot, or of a surveyed recipe."""

    parts: Mapping[str, Any]
    details: Mapping[str, Any]


def fingerprint_facts(
    old: Snapshot, new: Snapshot
) -> tuple[FingerprintFacts, FingerprintFacts, bool]:
    """The facts of two snapshots, and whether they are complete.

    If one has no valid ``build.json``, they are limited to what both manifests contain.
    """
    facts = [build_facts(snapshot.path) for snapshot in (old, new)]
    if all(facts):
        first, second = map(_recorded_facts, facts)
        return first, second, True
    first, second = (_manifest_facts(snapshot.manifest) for snapshot in (old, new))
    return first, second, False


def _recorded_facts(facts: Mapping[str, Any]) -> FingerprintFacts:
    """The facts that a ``build.json`` records."""
    return FingerprintFacts(
        parts=facts["fingerprint_parts"], details=facts.get("fingerprint_details") or {}
    )


def _limit_to_manifest(facts: FingerprintFacts, manifest: Manifest) -> FingerprintFacts:
    """Limits facts to those that a manifest contains, too."""
    wanted = _manifest_facts(manifest).parts
    parts: dict[str, Any] = {}
    for name, value in wanted.items():
        held = facts.parts.get(name)
        if isinstance(value, Mapping) and isinstance(held, Mapping):
            held = {key: held.get(key) for key in value}
        parts[name] = held
    # Only a build finds out what the examples contain and how they are compressed.
    parts["prepare"] = {"seed": parts["prepare"]["seed"]}
    del parts["shards"]
    return FingerprintFacts(parts=parts, details={})


def _manifest_facts(manifest: Manifest) -> FingerprintFacts:
    """The facts that a manifest contains."""
    features = features_to_json(manifest.features)
    prepare = {"prepared": features, "seed": manifest.seed, "structs": manifest.structs or None}
    return FingerprintFacts(
        parts={
            "format_version": manifest.format_version,
            "name": manifest.name,
            "prepare": prepare,
            "shards": {"compression": manifest.compression},
            "splits": {"names": list(manifest.splits)},
            "versions": manifest.versions,
        },
        details={},
    )


def part_changes(old: FingerprintFacts, new: FingerprintFacts) -> list[Change]:
    """All differences; of input files, only whether any differs.

    The parts are in the order in which a build uses them.

    Raises:
        DamagedSnapshotError: if the facts are not such as a build writes.
    """
    try:
        return _all_changes(old, new)
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise DamagedSnapshotError(
            f"{BUILD} has an invalid description of the fingerprint ({error}): it was edited. "
            "Restore it from a copy, or remove it: then the manifests are compared."
        ) from None


class _Digest(str):
    """A hash in place of a value: it is compared, and not shown."""

    __slots__ = ()


def _all_changes(old: FingerprintFacts, new: FingerprintFacts) -> list[Change]:
    before, after = _sections(old), _sections(new)
    changes: list[Change] = []
    for part in dict.fromkeys((*before, *after)):
        compare = _COMPARED.get(part, functools.partial(_changes, part))
        changes += compare(before.get(part), after.get(part))
    return changes


def _sections(facts: FingerprintFacts) -> dict[str, Any]:
    """The parts of a fingerprint in the order in which a build uses them.

    A part that is one digest becomes a mapping of it and of the digests that its details name:

        "sides": "5f1e…"   becomes   "side files": {"": "5f1e…", "labels.csv": "9a02…"}

    Parts that are unknown here, as another version of snapshard may write them, come last.
    """
    parts, details = dict(facts.parts), facts.details
    prepare = dict(_mapping(parts, "prepare"))
    source = dict(_mapping(prepare, "source"))
    functions = _detailed(source.pop("functions", None), _code_digests(details.get("source")))
    preprocessing = _code_digests(details.get("preprocessing"))
    sections = {
        "name": parts.pop("name", None),
        "format_version": parts.pop("format_version", None),
        "format of runs": prepare.get("format"),
        "versions": parts.pop("versions", None) or {},
        "inputs": _detailed(parts.pop("inputs", None), {}),
        "side files": _detailed(prepare.get("sides"), _mapping(details, "sides")),
        "depends_on": _detailed(prepare.get("depends_on"), _mapping(details, "depends_on")),
        "source": {**source, **functions},
        "features": (
            _mapping(prepare, "prepared"),
            _mapping(prepare, "raw"),
            prepare.get("structs"),
        ),
        "steps": (list(prepare.get("steps") or []), details.get("steps") or []),
        "preprocessing_fn": _detailed(parts.pop("preprocessing", None), preprocessing) or None,
        "seed": prepare.get("seed"),
        "label": parts.pop("label", None),
        "exclude": parts.pop("excluded", None) or {},
        "lock": _detailed(parts.pop("lock", None), {}),
        "revision": parts.pop("revision", 0),
        "splits": parts.pop("splits", None) or {},
        "shards": parts.pop("shards", None) or {},
        "analysis": parts.pop("analysis", None) or {},
        "prepare": {name: value for name, value in prepare.items() if name not in _OF_PREPARE},
    }
    parts.pop("prepare", None)
    return sections | parts


def _detailed(digest: Any, details: Mapping[str, Any]) -> dict[str, _Digest]:
    if digest is None:
        return {}
    return {_ALL: _Digest(digest), **{name: _Digest(value) for name, value in details.items()}}


def _code_digests(functions: object) -> dict[str, str]:
    """The digests of the code of functions, by file and name."""
    parts: dict[str, str] = {}
    for function in functions if isinstance(functions, list) else [functions]:
        if isinstance(function, Mapping):
            parts |= _mapping(function, "code")
    return parts


def _changes(part: str, old: Any, new: Any, *, where: str = "", thing: str = "") -> list[Change]:
    """Changes of a value; of mappings, of each value in them, by dotted names."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        if _ALL in old and old[_ALL] == new.get(_ALL):
            # The details of what is the same may have other names, such as that of the recipe file.
            old, new = ({k: v for k, v in one.items() if not _is_digest(v)} for one in (old, new))
        changes = []
        for name in dict.fromkeys((*old, *new)):
            inner = f"{thing}.{name}" if thing else name
            changes += _changes(part, old.get(name), new.get(name), where=where, thing=inner)
        # What has changed in particular says more than that something has.
        return [change for change in changes if change.thing != _ALL] or changes
    if canonical_json(old) == canonical_json(new):
        return []
    return [_changed(part, thing, old, new, where=where)]


def _changed(part: str, thing: str, old: Any, new: Any, *, where: str = "") -> Change:
    kind: Kind = "added" if old is None else "removed" if new is None else "changed"
    before, after = (None if _is_digest(value) else value for value in (old, new))
    return Change(part=part, thing=thing, kind=kind, old=before, new=after, where=where)


def _is_digest(value: Any) -> bool:
    return isinstance(value, _Digest) or (isinstance(value, Mapping) and _ALL in value)


def _mapping(value: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    inner = value.get(name)
    return inner if isinstance(inner, Mapping) else {}


def _all_features(old: Any, new: Any) -> list[Change]:
    """Changes of the prepared features, and of the raw ones that are not among these."""
    changes = feature_changes(old[0], new[0])
    known = {change.thing for change in changes}
    changes += [
        dataclasses.replace(change, where="as the source reads it")
        for change in feature_changes(old[1], new[1])
        if change.thing not in known
    ]
    return changes + _changes("features", old[2], new[2], thing="structs")


def feature_changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Change]:
    """Changes between two sets of features in plain JSON; classes are named one by one."""
    changes: list[Change] = []
    for name in dict.fromkeys((*old, *new)):
        before, after = pair = old.get(name), new.get(name)
        if before == after:
            continue
        classes = [
            value["names"] if isinstance(value, Mapping) and "names" in value else None
            for value in pair
        ]
        if classes[0] is None or classes[1] is None:
            kinds = {value.get("kind") if isinstance(value, Mapping) else None for value in pair}
            if len(kinds) == 1:
                changes += _changes("features", before, after, thing=name)
            else:
                changes.append(_changed("features", name, before, after))
            continue
        changes += _classes(name, classes[0], classes[1])
        rest = [_without_names(value) for value in pair]
        if rest[0] != rest[1]:
            changes.append(_changed("features", name, *rest))
    return changes


def _without_names(feature: Any) -> dict[str, Any]:
    return {key: value for key, value in feature.items() if key != "names"}


def _classes(feature: str, old: Sequence[str], new: Sequence[str]) -> Iterator[Change]:
    removed, added = set(old) - set(new), set(new) - set(old)
    for name in old:
        if name in removed:
            yield Change(part="classes", thing=name, kind="removed", where=feature)
    for name in new:
        if name in added:
            yield Change(part="classes", thing=name, kind="added", where=feature)
    kept = [name for name in old if name not in removed], [n for n in new if n not in added]
    if kept[0] != kept[1]:
        yield Change(part="classes", thing="their order", kind="changed", where=feature)


def _steps(old: Any, new: Any) -> list[Change]:
    """Changes of the steps, which are aligned by their names."""
    (before, old_details), (after, new_details) = old, new
    if before == after:
        return []
    sides = [
        details or [{"name": "?"}] * len(digests)
        for digests, details in ((before, old_details), (after, new_details))
    ]
    names = [[step.get("name", "?") for step in steps] for steps in sides]
    changes: list[Change] = []
    matcher = difflib.SequenceMatcher(None, names[0], names[1], autojunk=False)
    for tag, start, stop, new_start, new_stop in matcher.get_opcodes():
        if tag == "equal":
            for index, new_index in enumerate(range(new_start, new_stop), start):
                if before[index] != after[new_index]:
                    changes += _step(sides[0][index], sides[1][new_index], number=new_index + 1)
            continue
        for index in range(start, stop):
            step = f"step {index + 1}, {names[0][index]}"
            changes.append(Change(part="steps", thing=step, kind="removed"))
        for index in range(new_start, new_stop):
            step = f"step {index + 1}, {names[1][index]}"
            changes.append(Change(part="steps", thing=step, kind="added"))
    return changes


def _step(old: Mapping[str, Any], new: Mapping[str, Any], *, number: int) -> list[Change]:
    where = f"step {number}, {new.get('name', '?')}"
    sides = []
    for step in (old, new):
        code = _code_digests(step.get("functions")) | _code_digests(step)
        sides.append((_mapping(step, "settings"), _mapping(step, "files"), code))
    (settings, files, code), (new_settings, new_files, new_code) = sides
    changes = _changes("steps", settings, new_settings, where=where)
    changes += _changes("files of steps", _hidden(files), _hidden(new_files), where=where)
    changes += _changes("steps", _hidden(code), _hidden(new_code), where=where)
    return changes or [Change(part="steps", thing=where, kind="changed")]


def _hidden(digests: Mapping[str, str]) -> dict[str, _Digest]:
    return {name: _Digest(value) for name, value in digests.items()}


def _splits(old: Any, new: Any) -> list[Change]:
    fractions = [dict(map(tuple, splits.get("fractions") or [])) for splits in (old, new)]
    changes = _changes("splits", *fractions)
    order = [list(splits) for splits in fractions]
    if not changes and order[0] != order[1]:
        changes += _changes("splits", *order, thing="their order")
    rest = [
        {k: v for k, v in splits.items() if k not in ("fractions", "names")}
        for splits in (old, new)
    ]
    changes += _changes("splits", *rest)
    return changes or _changes("splits", old.get("names"), new.get("names"), thing="names")


_COMPARED: Mapping[str, Callable[[Any, Any], list[Change]]] = {
    "features": _all_features,
    "splits": _splits,
    "steps": _steps,
}
"""The parts that are not compared value by value."""


def input_changes(
    old: Iterator[InputFile], new: Iterator[InputFile], *, num_shown: int
) -> InputChanges:
    """Compares two lists of files.

    Args:
        old: Sorted by the bytes of their paths.
        new: Likewise.
        num_shown: How many paths of each kind to return: the first ones.
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


def explanation_text(found: Explanation) -> str:
    """Why two fingerprints differ, as text.

    Names from the data appear as they are, except for line breaks; a terminal escapes the rest.
    """
    return "\n".join(_explanation_lines(found))


def _explanation_lines(found: Explanation) -> Iterator[str]:
    note = "" if found.published else ", which a build would make"
    yield f"A {found.old}  {found.old_path}"
    yield f"B {found.new}  {found.new_path}{note}"
    if found.same:
        yield "no difference: a build reuses this snapshot"
        return
    if not found.complete:
        yield "note: a build.json is missing or damaged: only the manifests were compared."
    inputs = found.inputs
    others = [change for change in found.changes if change.part != "inputs"]
    yield from change_lines("differences, from A to B", found.changes if inputs is None else others)
    if inputs is not None:
        yield (
            f"input files: {inputs.num_added:,} added, {inputs.num_removed:,} removed, "
            f"{inputs.num_changed:,} changed, {inputs.num_same:,} unchanged"
        )
        yield from name_lines("added", inputs.added, inputs.num_added)
        yield from name_lines("removed", inputs.removed, inputs.num_removed)
        yield from name_lines("changed", inputs.changed, inputs.num_changed)
    elif len(others) < len(found.changes) and not found.inputs_known:
        yield (
            "Which input files differ is unknown: the workspace that lists them no longer exists. "
            "`snapshard diff` compares the records."
        )


def name_lines(kind: str, names: Sequence[str], total: int) -> Iterator[str]:
    """One line with the first names of a kind and the number of others; none without names."""
    if names:
        more = f" … and {total - len(names):,} more" if total > len(names) else ""
        yield f"{kind}: {', '.join(map(visible, names))}{more}"


def change_lines(title: str, changes: Sequence[Change]) -> Iterator[str]:
    """A title and a line for each change; nothing without changes."""
    if changes:
        yield title
    for change in changes:
        thing = visible(": ".join(filter(None, (change.part, change.where, change.thing))))
        old, new = (_value(value) for value in (change.old, change.new))
        if change.kind == "changed":
            yield f"  {thing}: {old} → {new}" if old or new else f"  {thing} changed"
        else:
            value = new if change.kind == "added" else old
            yield f"  {thing} {change.kind}" + (f": {value}" if value else "")


def _value(value: object) -> str:
    """A value as shortened JSON; empty if only a digest was kept."""
    if value is None:
        return ""
    text = visible(json.dumps(value, ensure_ascii=False))
    return text if len(text) <= _VALUE_LENGTH else f"{text[:_VALUE_LENGTH]} …"
