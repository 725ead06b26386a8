"""Writes what stands beside a snapshot's ``reader.py``: the same for every snapshot."""

from __future__ import annotations

import pathlib

from ..schemas.naming import READER_OPTIONS, READER_TIMING, READER_TOOLS

_TEMPLATES = {
    READER_OPTIONS: "reader_options_template.py",
    READER_TOOLS: "reader_tools_template.py",
    READER_TIMING: "reader_timing_template.py",
}
_IMPORT = ("from .reader_timing_template import", "from reader_timing import")
"""In the snapshot's folder the tools are no package."""


def emit_tools() -> dict[str, str]:
    """Their contents by file name."""
    folder = pathlib.Path(__file__).parent
    return {
        name: (folder / template).read_text(encoding="utf-8").replace(*_IMPORT)
        for name, template in _TEMPLATES.items()
    }
