"""Reads the latest snapshot of this folder: ``import reader``, with this folder on ``sys.path``.

Imports the package ``reader/`` of the snapshot that ``latest.json`` names, in place of this module,
and logs the snapshot's fingerprint at level INFO, as logger ``reader``. A process that has imported
it keeps that snapshot until it ends. To keep one snapshot for good, put the snapshot's own folder
on ``sys.path`` instead.
"""

import importlib.util
import json
import logging
import os
import sys


def _load_latest() -> None:
    folder = os.path.dirname(os.path.abspath(__file__))
    pointer = os.path.join(folder, "latest.json")
    try:
        with open(pointer, encoding="utf-8") as file:
            fingerprint = json.load(file)["fingerprint"]
        package = os.path.join(folder, fingerprint, "reader")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ImportError(f"{pointer} does not name a snapshot: {error}. Build again.") from error
    path = os.path.join(package, "__init__.py")
    if not os.path.isfile(path):
        raise ImportError(f"{path} is missing, but {pointer} names its snapshot. Build again.")
    spec = importlib.util.spec_from_file_location(
        __name__, path, submodule_search_locations=[package]
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[__name__] = module  # so that `import reader` returns the package
    spec.loader.exec_module(module)
    logging.getLogger(__name__).info("reading snapshot %s in %s", fingerprint, folder)


if __name__ == "reader":  # not where tools import this file as a module of snapshard
    _load_latest()
