"""Bench: runs the benchmark in a snapshot's reader, in a separate Python process."""

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
"""The commands of older readers, which were not yet a package."""


def bench(snapshot: Snapshot, arguments: Sequence[str]) -> int:
    """Runs ``python SNAPSHOT/reader benchmark``; its output goes to that of this process.

    Args:
        snapshot: The snapshot to read. TensorFlow reads one in a store directly from there; only
            its reader is copied first.
        arguments: Arguments of the command.

    Returns:
        The exit code of the command.

    Raises:
        RecipeError: if the snapshot has no such command.
        StorageError: if its reader cannot be read.
    """
    program = READER if READER_FACTS in snapshot.manifest.files else _OLD_TOOLS
    if program == _OLD_TOOLS and _OLD_TOOLS not in snapshot.manifest.files:
        version = snapshot.manifest.versions.get("snapshard", "an older one")
        raise RecipeError(
            f"{snapshot.path} has no benchmark: it was written by snapshard {version}, which "
            "included none. Build again with this version to measure it."
        )
    command = ["benchmark", *arguments]
    if storage.is_local(snapshot.path):
        return _run(storage.local_path(join(snapshot.path, program)), command)
    with storage.temporary_folder() as folder:
        fetch_reader(snapshot, folder)
        return _run(os.path.join(folder, program), [*command, "--root", snapshot.path])


def _run(program: str, command: list[str]) -> int:
    # Without -B, Python would write a __pycache__ to the snapshot's folder.
    return subprocess.run([sys.executable, "-B", program, *command], check=False).returncode
