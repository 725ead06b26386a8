"""Bench: runs the benchmark that a snapshot ships, in a Python of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence

from ..schemas.errors import RecipeError
from ..schemas.naming import READER_TOOLS, join
from ..transforms import storage
from .snapshot import Snapshot


def bench(snapshot: Snapshot, arguments: Sequence[str]) -> int:
    """Runs ``reader_tools.py benchmark``; what it prints goes where this process prints.

    Args:
        snapshot: Whose reader is measured. One that lies in a store is read from there, by
            TensorFlow; its tools are copied first.
        arguments: As the tools take them.

    Returns:
        The exit code of the tools.

    Raises:
        RecipeError: if the snapshot has no tools.
        StorageError: if they cannot be read.
    """
    if READER_TOOLS not in snapshot.manifest.files:
        version = snapshot.manifest.versions.get("snapshard", "an older one")
        raise RecipeError(
            f"{snapshot.path} has no {READER_TOOLS}: it was written by snapshard {version}, which "
            "emitted none. Build again with this version to measure it."
        )
    command = ["benchmark", *arguments]
    if storage.is_local(snapshot.path):
        return _run(storage.local_path(join(snapshot.path, READER_TOOLS)), command)
    copied = [name for name in snapshot.manifest.files if re.fullmatch(r"reader\w*\.py", name)]
    with storage.temporary_folder() as folder:
        for name in copied:
            with open(os.path.join(folder, name), "wb") as file:
                file.write(storage.read_bytes(join(snapshot.path, name)))
        tools = os.path.join(folder, READER_TOOLS)
        return _run(tools, [*command, "--root", snapshot.path])


def _run(tools: str, command: list[str]) -> int:
    # Without -B, the snapshot's folder would get a __pycache__.
    return subprocess.run([sys.executable, "-B", tools, *command], check=False).returncode
