"""A published snapshot: where it lies, its manifest, its reader."""

from __future__ import annotations

import dataclasses
import json
import types

from ..schemas.errors import DamagedSnapshotError, RecipeError
from ..schemas.manifest import Manifest
from ..schemas.naming import LATEST, MANIFEST, READER, join
from ..transforms import storage


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """A directory with a manifest.

    Attributes:
        path: Its folder, a local path or URL.
        manifest: What it holds.
        cached: Whether the build that returned it found it published already.
    """

    path: str
    manifest: Manifest
    cached: bool = False

    @classmethod
    def open(cls, path: str) -> Snapshot:
        """Opens a snapshot, or the latest one where ``path`` is a folder of snapshots.

        Raises:
            RecipeError: if there is none at this place.
            DamagedSnapshotError: if its manifest cannot be read.
        """
        where = join(path, MANIFEST)
        if not storage.exists(where):
            pointer = join(path, LATEST)
            if not storage.exists(pointer):
                raise RecipeError(
                    f"{path} is no snapshot: it has neither {MANIFEST} nor {LATEST}. Give the "
                    "folder that `snapshard build` printed."
                )
            path = join(path, read_latest(pointer))
            where = join(path, MANIFEST)
        content = storage.read_bytes(where)
        return cls(path, Manifest.from_bytes(content, where=where))

    def reader(self) -> types.ModuleType:
        """Imports the snapshot's ``reader.py`` under a name of its own."""
        where = join(self.path, READER)
        module = types.ModuleType(f"snapshard_reader_{self.manifest.fingerprint}")
        module.__file__ = where
        source = storage.read_bytes(where)
        exec(compile(source, where, "exec"), module.__dict__)
        return module


def read_latest(url: str) -> str:
    """The fingerprint that a ``latest.json`` names.

    Raises:
        DamagedSnapshotError: if it names none.
    """
    try:
        fingerprint = json.loads(storage.read_bytes(url))["fingerprint"]
    except (ValueError, KeyError, TypeError):
        fingerprint = None
    if not isinstance(fingerprint, str) or not fingerprint.isalnum():
        raise DamagedSnapshotError(f"{url} names no fingerprint. Build again to replace it.")
    return fingerprint
