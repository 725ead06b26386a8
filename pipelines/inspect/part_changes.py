"""What differs between the fingerprints of two snapshots, down to the thing that changed.

Both sides are told by their ``build.json``: the parts that the fingerprint is made of, and the
details that these parts consist of. What has no details (a snapshot of an older version) is named
by its part.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from ...schemas.errors import DamagedSnapshotError, StorageError
from ...schemas.features import features_to_json
from ...schemas.fingerprint import canonical_json, differences
from ...schemas.manifest import Manifest, json_checksum
from ...schemas.naming import BUILD, join
from ...transforms import storage
from ..snapshot import Snapshot

Kind = Literal["added", "removed", "changed"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Change:
    """One thing that differs."""

    part: str
    """Part of the fingerprint: ``inputs``, ``steps``, ``features``, ``splits`` …"""
    thing: str
    """What of it: ``recipe.py: DARKER``, ``train``, ``numpy``; empty for all of it."""
    kind: Kind
    old: object = None
    """Its value before; None where there was none, or only a digest of it is kept."""
    new: object = None
    where: str = ""
    """What it belongs to: the step, say."""

    def to_json(self) -> dict[str, object]:
        """The change as plain JSON."""
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Told:
    """What a snapshot, or a recipe that was surveyed, tells of its fingerprint."""

    parts: Mapping[str, Any]
    details: Mapping[str, Any]


def told_of(old: Snapshot, new: Snapshot) -> tuple[Told, Told, bool]:
    """What two snapshots tell of their fingerprints, and whether that is all of it.

    Where one has no ``build.json`` any more, only what stands in both manifests.
    """
    facts = [build_facts(snapshot) for snapshot in (old, new)]
    if all(facts):
        first, second = (
            Told(parts=fact["fingerprint_parts"], details=fact.get("fingerprint_details") or {})
            for fact in facts
        )
        return first, second, True
    first, second = (told_of_manifest(snapshot.manifest) for snapshot in (old, new))
    return first, second, False


def build_facts(snapshot: Snapshot) -> dict[str, Any]:
    """What a snapshot's ``build.json`` says; nothing where there is none, or a damaged one."""
    try:
        facts = json.loads(storage.read_bytes(join(snapshot.path, BUILD)))
        canonical_json(facts)
    except (StorageError, ValueError, TypeError, RecursionError):
        return {}
    known = isinstance(facts, dict) and isinstance(facts.get("fingerprint_parts"), dict)
    # What has been edited may have any form.
    return facts if known and facts.get("checksum") == json_checksum(facts) else {}


def only_manifest(told: Told, manifest: Manifest) -> Told:
    """Of what is told, only what a manifest tells, too."""
    wanted = told_of_manifest(manifest).parts
    parts: dict[str, Any] = {}
    for name, value in wanted.items():
        held = told.parts.get(name)
        if isinstance(value, Mapping) and isinstance(held, Mapping):
            held = {key: held.get(key) for key in value}
        parts[name] = held
    # What the examples hold and how they are compressed is found out by building.
    parts["prepare"] = {"seed": parts["prepare"]["seed"]}
    del parts["shards"]
    return Told(parts=parts, details={})


def told_of_manifest(manifest: Manifest) -> Told:
    """What a manifest alone tells of a fingerprint."""
    features = features_to_json(manifest.features)
    prepare = {"prepared": features, "seed": manifest.seed, "structs": manifest.structs or None}
    return Told(
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


def part_changes(old: Told, new: Told) -> list[Change]:
    """All that differs, input files apart: of these only whether any does.

    The parts come in the order in which a build uses them.

    Raises:
        DamagedSnapshotError: if what is told is nothing that a build writes.
    """
    try:
        return _all_changes(old, new)
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise DamagedSnapshotError(
            f"What a {BUILD} tells of a fingerprint is nothing that a build writes ({error}): it "
            "was edited. Restore it from a copy, or remove it: then the manifests are compared."
        ) from None


def _all_changes(old: Told, new: Told) -> list[Change]:
    first, second = old.parts, new.parts
    before, after = _of(first, "prepare"), _of(second, "prepare")
    found: list[Change] = []
    found += _single("name", first, second)
    found += _single("format_version", first, second)
    found += _changed("format of runs", "", before.get("format"), after.get("format"))
    found += _mapped("versions", _of(first, "versions"), _of(second, "versions"))
    if first.get("inputs") != second.get("inputs"):
        found.append(Change(part="inputs", thing="", kind="changed"))
    found += _sides(old, new)
    found += _depends_on(old, new)
    found += _source(old, new)
    found += feature_changes(_of(before, "prepared"), _of(after, "prepared"))
    known = {change.thing for change in found if change.part in ("features", "classes")}
    for change in feature_changes(_of(before, "raw"), _of(after, "raw")):
        if change.thing not in known:
            found.append(dataclasses.replace(change, where="as the source reads it"))
    found += _changed("features", "structs", before.get("structs"), after.get("structs"))
    found += _steps(old, new)
    found += _preprocessing(old, new)
    found += _changed("seed", "", before.get("seed"), after.get("seed"))
    found += _changed("revision", "", first.get("revision", 0), second.get("revision", 0))
    found += _splits(_of(first, "splits"), _of(second, "splits"))
    found += _mapped("shards", _of(first, "shards"), _of(second, "shards"))
    found += _mapped("analysis", _of(first, "analysis"), _of(second, "analysis"))
    found += _rest(first, second)
    return found


def feature_changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Change]:
    """What differs between two sets of features in plain JSON; names of classes one by one."""
    found = []
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
                found += _mapped("features", {name: before}, {name: after})
            else:
                found += _changed("features", name, before, after)
            continue
        found += _classes(name, classes[0], classes[1])
        found += _changed("features", name, *(_without_names(value) for value in (before, after)))
    return found


def _without_names(feature: Any) -> dict[str, Any]:
    return {key: value for key, value in feature.items() if key != "names"}


def _classes(feature: str, old: Sequence[str], new: Sequence[str]) -> Iterator[Change]:
    gone, come = set(old) - set(new), set(new) - set(old)
    for name in old:
        if name in gone:
            yield Change(part="classes", thing=name, kind="removed", where=feature)
    for name in new:
        if name in come:
            yield Change(part="classes", thing=name, kind="added", where=feature)
    kept = [name for name in old if name not in gone], [name for name in new if name not in come]
    if kept[0] != kept[1]:
        yield Change(part="classes", thing="their order", kind="changed", where=feature)


def _of(value: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = value.get(name)
    return found if isinstance(found, Mapping) else {}


def _single(part: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Change]:
    return _changed(part, "", old.get(part), new.get(part))


def _changed(part: str, thing: str, old: object, new: object, *, where: str = "") -> list[Change]:
    """A change of one value; none where both are the same."""
    if canonical_json(old) == canonical_json(new):
        return []
    kind: Kind = "added" if old is None else "removed" if new is None else "changed"
    return [Change(part=part, thing=thing, kind=kind, old=old, new=new, where=where)]


def _mapped(
    part: str, old: Mapping[str, Any], new: Mapping[str, Any], *, where: str = ""
) -> list[Change]:
    """Changes of the values of a mapping, whose own mappings are told by dotted names."""
    found = []
    for name in dict.fromkeys((*old, *new)):
        before, after = old.get(name), new.get(name)
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            inner = _mapped(part, before, after, where=where)
            found += [
                dataclasses.replace(change, thing=f"{name}.{change.thing}") for change in inner
            ]
        else:
            found += _changed(part, name, before, after, where=where)
    return found


def _digests(
    part: str, old: Mapping[str, str], new: Mapping[str, str], *, where: str = ""
) -> list[Change]:
    """Changes of things of which only digests are kept."""
    changes = _mapped(part, old, new, where=where)
    return [dataclasses.replace(change, old=None, new=None) for change in changes]


def _sides(old: Told, new: Told) -> list[Change]:
    before, after = _of(old.parts, "prepare"), _of(new.parts, "prepare")
    if before.get("sides") == after.get("sides"):
        return []
    found = _digests("side files", _of(old.details, "sides"), _of(new.details, "sides"))
    return found or [Change(part="side files", thing="", kind="changed")]


def _depends_on(old: Told, new: Told) -> list[Change]:
    before, after = _of(old.parts, "prepare"), _of(new.parts, "prepare")
    if before.get("depends_on") == after.get("depends_on"):
        return []
    details = (_of(told.details, "depends_on") for told in (old, new))
    found = _digests("depends_on", *details)
    return found or [Change(part="depends_on", thing="", kind="changed")]


def _source(old: Told, new: Told) -> list[Change]:
    before, after = (dict(_of(_of(told.parts, "prepare"), "source")) for told in (old, new))
    code = before.pop("functions", None), after.pop("functions", None)
    found = _mapped("source", before, after)
    if code[0] != code[1]:
        found += _functions("source", old.details.get("source"), new.details.get("source"))
    return found


def _functions(part: str, old: object, new: object, *, where: str = "") -> list[Change]:
    """What differs in the code of some functions."""
    before, after = (_code(functions) for functions in (old, new))
    found = _digests(part, before, after, where=where)
    return found or [Change(part=part, thing="code", kind="changed", where=where)]


def _code(functions: object) -> dict[str, str]:
    parts: dict[str, str] = {}
    for function in functions if isinstance(functions, list) else [functions]:
        if isinstance(function, Mapping):
            parts |= _of(function, "code")
    return parts


def _steps(old: Told, new: Told) -> list[Change]:
    before, after = (list(_of(told.parts, "prepare").get("steps") or []) for told in (old, new))
    if before == after:
        return []
    details = [
        told.details.get("steps") or [{"name": "?"}] * len(digests)
        for told, digests in ((old, before), (new, after))
    ]
    names = [[step.get("name", "?") for step in steps] for steps in details]
    found: list[Change] = []
    matcher = difflib.SequenceMatcher(None, names[0], names[1], autojunk=False)
    for _, start, stop, new_start, new_stop in matcher.get_opcodes():
        if names[0][start:stop] == names[1][new_start:new_stop]:
            for index, new_index in zip(
                range(start, stop), range(new_start, new_stop), strict=True
            ):
                if before[index] != after[new_index]:
                    found += _step(details[0][index], details[1][new_index], number=new_index + 1)
            continue
        for index in range(start, stop):
            step = f"step {index + 1}, {names[0][index]}"
            found.append(Change(part="steps", thing=step, kind="removed"))
        for index in range(new_start, new_stop):
            step = f"step {index + 1}, {names[1][index]}"
            found.append(Change(part="steps", thing=step, kind="added"))
    return found


def _step(old: Mapping[str, Any], new: Mapping[str, Any], *, number: int) -> list[Change]:
    where = f"step {number}, {new.get('name', '?')}"
    found = _mapped("steps", _of(old, "settings"), _of(new, "settings"), where=where)
    found += _digests("files of steps", _of(old, "files"), _of(new, "files"), where=where)
    functions = [{**_code(step.get("functions")), **_code(step)} for step in (old, new)]
    found += _digests("steps", functions[0], functions[1], where=where)
    return found or [Change(part="steps", thing=where, kind="changed")]


def _preprocessing(old: Told, new: Told) -> list[Change]:
    before, after = old.parts.get("preprocessing"), new.parts.get("preprocessing")
    if before == after:
        return []
    if before is None or after is None:
        kind: Kind = "added" if before is None else "removed"
        return [Change(part="preprocessing_fn", thing="", kind=kind)]
    return _functions(
        "preprocessing_fn", old.details.get("preprocessing"), new.details.get("preprocessing")
    )


def _splits(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Change]:
    fractions = [dict(map(tuple, splits.get("fractions") or [])) for splits in (old, new)]
    found = _mapped("splits", fractions[0], fractions[1])
    order = [list(splits) for splits in fractions]
    if not found and order[0] != order[1]:
        found += _changed("splits", "their order", *order)
    rest = [
        {k: v for k, v in splits.items() if k not in ("fractions", "names")}
        for splits in (old, new)
    ]
    found += _mapped("splits", *rest)
    if not found:
        found += _changed("splits", "names", old.get("names"), new.get("names"))
    return found


_KNOWN = {"name", "format_version", "versions", "inputs", "preprocessing", "splits", "shards"}
_KNOWN |= {"analysis", "prepare", "revision"}
_KNOWN_PREPARE = {"format", "group", "prepared", "raw", "seed", "source", "sides", "steps"}
_KNOWN_PREPARE |= {"versions", "structs", "depends_on"}


def _rest(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Change]:
    """Parts that are not known here, as another version of snapshard may write them."""
    found = []
    for name in differences(old, new):
        part, _, thing = name.partition(".")
        if part == "prepare" and thing.split(".")[0] in _KNOWN_PREPARE:
            continue
        if part not in _KNOWN or (part == "prepare" and thing):
            found.append(Change(part=part, thing=thing, kind="changed"))
    return found
