"""Notes of chains, while another process removes them."""

import pathlib
from typing import Any

import pytest

from snapshard.pipelines import chain_notes
from snapshard.pipelines.chain_notes import FIRST, ChainNotes, chains
from snapshard.schemas.naming import Workspace
from snapshard.transforms import storage


@pytest.mark.parametrize("gone", ["notes", "folder"])
def test_notes_may_go_while_they_are_read(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, gone: str
) -> None:
    workspace = Workspace(str(tmp_path))
    notes = ChainNotes(workspace, "chain")
    notes.begin("fingerprint", {})
    notes.put("prepare", {})
    read, times = chain_notes._read_note, []

    def read_and_remove(workspace: Workspace, chain: str, step: str) -> dict[str, Any] | None:
        note = read(workspace, chain, step)
        if note is None:
            return None
        times.append(note["time"])
        if gone == "folder":
            storage.remove_tree(workspace.chains)
        # Listed after this, they are gone before they are read.
        return note if len(times) == 1 else None

    monkeypatch.setattr(chain_notes, "_read_note", read_and_remove)
    ((chain, fingerprint, when),) = chains(workspace)
    assert (chain, fingerprint, when) == ("chain", "fingerprint", times[0])


def test_a_chain_is_as_recent_as_its_last_note(tmp_path: pathlib.Path) -> None:
    workspace = Workspace(str(tmp_path))
    notes = ChainNotes(workspace, "chain")
    notes.begin("fingerprint", {})
    notes.put("prepare", {})
    last = chain_notes._read_note(workspace, "chain", "prepare")
    first = chain_notes._read_note(workspace, "chain", FIRST)
    assert last is not None
    assert first is not None
    assert [when for *_, when in chains(workspace)] == [max(first["time"], last["time"])]
