"""Output of the commands: text and tables, or one JSON object."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from typing import Any

MB = 1_000_000
DAMAGED = 4
"""Exit code if the snapshot is damaged; 2 means that the command cannot be executed as given."""

_UNSEEN = re.compile(  # invisible letters and marks that isprintable() accepts
    "[\\u034f\\u115f\\u1160\\u17b4\\u17b5\\u180b-\\u180f\\u2800\\u3164\\ufe00-\\ufe0f\\uffa0"
    "\\U000e0100-\\U000e01ef]"
)


class RefusedError(Exception):
    """A command cannot be executed; holds a one-sentence message and the exit code."""

    def __init__(self, message: str, code: int = 2) -> None:
        super().__init__(message)
        self.code = code


class Output:
    """Reports results: lines as they come, or one JSON object at the end."""

    def __init__(self, as_json: bool) -> None:
        self.facts: dict[str, Any] = {}
        self._as_json = as_json

    def say(self, text: str = "") -> None:
        """Prints a line of text (not with --json)."""
        if not self._as_json:
            print("\n".join(map(visible, text.split("\n"))))
            sys.stdout.flush()

    def table(self, key: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Prints a table, numbers right-aligned; in JSON, a list of objects under ``key``."""
        self.facts[key] = [dict(zip(columns, row, strict=True)) for row in rows]
        lines = [list(columns), *([cell(value) for value in row] for row in rows)]
        widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
        right = [any(isinstance(row[i], int | float) for row in rows) for i in range(len(columns))]
        for line in lines:
            cells = zip(line, widths, right, strict=True)
            self.say(
                "  " + "  ".join(c.rjust(w) if r else c.ljust(w) for c, w, r in cells).rstrip()
            )

    def end(self) -> None:
        """Prints the JSON object, if requested."""
        if self._as_json:
            print(json.dumps(self.facts))


def cell(value: Any) -> str:
    """Formats a value for a table."""
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else visible(str(value))


def visible(text: str) -> str:
    """Text from the data on one line, with invisible and control characters escaped."""
    seen = (c if c.isprintable() and not _UNSEEN.match(c) else ascii(c)[1:-1] for c in text)
    return "".join(seen)


def reason(error: Any) -> str:
    """TensorFlow's error message, without the location in its graph."""
    text = str(getattr(error, "message", error)).partition(" [Op:")[0].partition("\n")[0]
    return text.rpartition("}} ")[2]
