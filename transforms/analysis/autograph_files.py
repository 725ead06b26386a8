"""Files that TensorFlow's autograph writes: in the build's folder, which goes with the build."""

from __future__ import annotations

import contextlib
import os
import tempfile
from typing import Any

from ...schemas.progress import build_folder


class _InBuildFolder:
    """The module ``tempfile`` as autograph sees it, with a folder of the build's.

    ``tempfile.tempdir`` would do so for all threads of the process, whose files may have to
    outlive the build.
    """

    def __getattr__(self, name: str) -> Any:
        return getattr(tempfile, name)

    def NamedTemporaryFile(self, *args: Any, **settings: Any) -> Any:
        """The same in the folder of the build under way; elsewhere where there is none."""
        folder = build_folder()
        if folder is not None and os.path.isdir(folder):
            settings.setdefault("dir", folder)
        return tempfile.NamedTemporaryFile(*args, **settings)


def keep_autograph_files() -> None:
    """Has autograph put its modules and their byte code where a build that is killed is cleared.

    It names no folder of its own, and removes its modules only where Python ends in order, their
    byte code never. Call it before functions are converted; a second call does nothing.
    """
    # Where another version has it otherwise, the files lie among the temporary ones as before.
    with contextlib.suppress(ImportError, AttributeError):
        from tensorflow.python.autograph.pyct import loader

        if loader.tempfile is tempfile:
            loader.tempfile = _InBuildFolder()
