"""``python SNAPSHOT/reader COMMAND``, or ``python -m reader COMMAND`` in the snapshot's folder."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys


def _commands() -> str:
    """Imports this package, if necessary, and returns the name of the module of its commands."""
    if __package__:
        return f"{__package__}.tools"
    # Python ran the folder, not a package: import it as one, whatever the folder's name.
    folder = os.path.dirname(os.path.abspath(__file__))
    # Keep its modules from being imported as top-level ones.
    sys.path[:] = [path for path in sys.path if os.path.abspath(path or ".") != folder]
    spec = importlib.util.spec_from_file_location(
        "reader", os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
    )
    assert spec is not None
    assert spec.loader is not None
    sys.modules["reader"] = package = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(package)
    return "reader.tools"


if __name__ == "__main__":
    sys.dont_write_bytecode = True  # a snapshot holds only the files that its manifest lists
    sys.exit(importlib.import_module(_commands()).main())
