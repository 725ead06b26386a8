"""Where autograph writes the modules that it converts users' functions into."""

from __future__ import annotations

import contextlib
import os
import tempfile
from typing import Any

from ...schemas.progress import build_folder


class _InBuildFolder:
    """The module ``tempfile`` as autograph sees it, with the build's folder as the default.

    Setting ``tempfile.tempdir`` would affect all threads of the process, whose files may have to
    outlive the build.
    """

    def __getattr__(self, name: str) -> Any:
        return getattr(tempfile, name)

    def NamedTemporaryFile(self, *args: Any, **settings: Any) -> Any:
        """As ``tempfile`` does, but in the folder of the current build, if there is one."""
        folder = build_folder()
        if folder is not None and os.path.isdir(folder):
            settings.setdefault("dir", folder)
        return tempfile.NamedTemporaryFile(*args, **settings)


def keep_autograph_files() -> None:
    """Makes autograph write modules and bytecode where the cleanup of a killed build finds them.

    Autograph has no setting for the folder, removes its modules only on a regular exit of Python,
    and never removes their bytecode. Call this before functions are converted; a second call does
    nothing.
    """
    # In versions of TensorFlow that differ, the files stay in the default temporary folder.
    with contextlib.suppress(ImportError, AttributeError):
        from tensorflow.python.autograph.pyct import loader

        if loader.tempfile is tempfile:
            loader.tempfile = _InBuildFolder()
