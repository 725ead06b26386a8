"""Notes of a chain of steps: what each step leaves for those after it, in files of the workspace.

A chain is one build, told apart from others of the same name by its options. It begins with its
inventory, which names the fingerprint to come; a note of another fingerprint is none of its own.
Garbage collection leaves a workspace alone where a chain is under way: between two steps no build
is at work that would say so.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ..schemas.fingerprint import digest
from ..schemas.naming import Workspace, join
from ..transforms import storage
from ..transforms.storage.sealed import put_sealed, read_sealed
from .locks import SAFE_AGE_S
from .steps import STEPS, Part

FIRST = STEPS[0]
_PART = re.compile(r"[a-z]+-\d+-of-\d+")
DAMAGE = "damage"
"""The note of what a step met that an earlier one has to make anew."""


def chain_id(options: Mapping[str, object]) -> str:
    """Names the chain of a build with these options."""
    return digest({"chain": 1, **options})[:32]


class ChainNotes:
    """The notes of one chain."""

    def __init__(self, workspace: Workspace, chain: str) -> None:
        """Reads nothing yet."""
        self._workspace = workspace
        self._chain = chain
        self._held: str | None = None

    @property
    def pinned(self) -> str:
        """Where the chain's inventory lies."""
        return self._workspace.pinned(self._chain)

    def begin(self, fingerprint: str, told: Mapping[str, object]) -> None:
        """Notes the inventory; notes of another fingerprint go first."""
        before = self._read(FIRST)
        if before is None or before["fingerprint"] != fingerprint:
            self.forget((*STEPS, DAMAGE))
        self._put(FIRST, fingerprint, told)

    def hold_to(self, fingerprint: str) -> None:
        """From now on, all notes are of this fingerprint, even if another inventory comes."""
        self._held = fingerprint

    def fingerprint(self) -> str | None:
        """What the chain is to make; None where it has not begun."""
        found = self._read(FIRST)
        return None if found is None else str(found["fingerprint"])

    def find(self, step: str) -> dict[str, Any] | None:
        """What a step of this chain told; None where it is not done."""
        found = self._read(step)
        if found is None or found["fingerprint"] != (self._held or self.fingerprint()):
            return None
        told: dict[str, Any] = found["told"]
        return told

    def put(self, step: str, told: Mapping[str, object]) -> None:
        """Notes that a step of this chain is done.

        Raises:
            StorageError: if the note cannot be written.
        """
        fingerprint = self._held or self.fingerprint()
        if fingerprint is not None:
            self._put(step, fingerprint, told)

    def put_part(self, step: str, part: Part, *, num_made: int) -> None:
        """Notes that a part of a step of this chain is done, and how much of it had to be made.

        Raises:
            StorageError: if the note cannot be written.
        """
        name = f"{step}-{part.number}-of-{part.total}"
        before = self.find(name) or {"num_made": 0}
        self.put(name, {"num_made": before["num_made"] + num_made})

    def made_in_parts(self, step: str, *, total: int | None = None) -> list[int]:
        """How much each part of a step made that is done: of so many in all, or of any number."""
        names = [name for name in self._names() if _PART.fullmatch(name)]
        wanted = (
            name
            for name in names
            if name.startswith(f"{step}-") and (total is None or name.endswith(f"-of-{total}"))
        )
        return [told["num_made"] for name in wanted if (told := self.find(name)) is not None]

    def forget(self, steps: Iterable[str]) -> None:
        """Removes the notes of steps and of their parts: they have to be done again."""
        forgotten = set(steps)
        for name in self._names():
            if name in forgotten or (_PART.fullmatch(name) and name.split("-")[0] in forgotten):
                storage.remove_tree(self._workspace.chain_note(self._chain, name))

    def _names(self) -> list[str]:
        """The notes that there are, of this fingerprint or another."""
        listed = storage.list_names(join(self._workspace.chains, self._chain))
        return [name.removesuffix(".json") for name in listed if name.endswith(".json")]

    def _put(self, step: str, fingerprint: str, told: Mapping[str, object]) -> None:
        value = {"fingerprint": fingerprint, "time": time.time(), "told": dict(told)}
        content = json.dumps(value, sort_keys=True).encode()
        put_sealed(self._workspace.chain_note(self._chain, step), content, what=_what(step))

    def _read(self, step: str) -> dict[str, Any] | None:
        return _read_note(self._workspace, self._chain, step)


def chains(workspace: Workspace) -> Iterator[tuple[str, str, float]]:
    """The chains that a workspace knows: id, fingerprint, when a step last ended, in s since 1970.

    Raises:
        StorageError: if they cannot be read.
    """
    for chain in storage.list_names(workspace.chains):
        first = _read_note(workspace, chain, FIRST)
        if first is None:
            continue
        names = storage.list_names(join(workspace.chains, chain))
        steps = [name.removesuffix(".json") for name in names if name.endswith(".json")]
        others = (_read_note(workspace, chain, step) for step in steps if step != FIRST)
        # Garbage collection of another process may have removed all of them by now.
        times = [first["time"], *(note["time"] for note in others if note is not None)]
        yield chain, str(first["fingerprint"]), max(times)


def is_recent(when: float) -> bool:
    """Whether a chain whose last step ended then may still go on."""
    return when > time.time() - SAFE_AGE_S


def _read_note(workspace: Workspace, chain: str, step: str) -> dict[str, Any] | None:
    content = read_sealed(workspace.chain_note(chain, step), what=_what(step))
    if content is None:
        return None
    value: dict[str, Any] = json.loads(content)
    return value


def _what(step: str) -> str:
    return f"chain-1 {step}"
