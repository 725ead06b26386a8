"""Bench: runs the benchmark that a snapshot ships, in a Python of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

from ...schemas.errors import RecipeError
from ...schemas.naming import READER, READER_FACTS, join
from ...transforms import storage
from ..snapshot import Snapshot, fetch_reader

_OLD_TOOLS = "reader_tools.py"
"""The commands of readers before they were a package."""


def bench(snapshot: Snapshot, arguments: Sequence[str]) -> int:
    """Runs ``python SNAPSHOT/reader benchmark``; what it prints goes where this process prints.

    Args:
        snapshot: Whose reader is measured. One in a store is read from there, by TensorFlow; its
            reader is copied first.
        arguments: Of the command.

    Returns:
        Its exit code.

    Raises:
        RecipeError: if the snapshot has no such command.
        StorageError: if its reader cannot be read.
    """
    program = READER if READER_FACTS in snapshot.manifest.files else _OLD_TOOLS
    if program == _OLD_TOOLS and _OLD_TOOLS not in snapshot.manifest.files:
        version = snapshot.manifest.versions.get("snapshard", "an older one")
        raise RecipeError(
            f"{snapshot.path} has no benchmark: it was written by snapshard {version}, which "
            "shipped none. Build again with this version to measure it."
        )
    command = ["benchmark", *arguments]
    if storage.is_local(snapshot.path):
        return _run(storage.local_path(join(snapshot.path, program)), command)
    with storage.temporary_folder() as folder:
        fetch_reader(snapshot, folder)
        return _run(os.path.join(folder, program), [*command, "--root", snapshot.path])


def _run(program: str, command: list[str]) -> int:
    # Without -B, the snapshot's folder would get a __pycache__.
    return subprocess.run([sys.executable, "-B", program, *command], check=False).returncode
