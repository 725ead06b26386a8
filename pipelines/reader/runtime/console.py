"""What the commands print: lines and tables for people, or one JSON object."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from typing import Any

MB = 1_000_000
DAMAGED = 4
"""The exit code where the snapshot is damaged; 2 is that of what cannot be done as asked."""

_UNSEEN = re.compile(  # letters and marks that are not seen: what isprintable() passes
    "[\\u034f\\u115f\\u1160\\u17b4\\u17b5\\u180b-\\u180f\\u2800\\u3164\\ufe00-\\ufe0f\\uffa0"
    "\\U000e0100-\\U000e01ef]"
)


class RefusedError(Exception):
    """What cannot be done, in a sentence for whoever asked, and the exit code."""

    def __init__(self, message: str, code: int = 2) -> None:
        super().__init__(message)
        self.code = code


class Output:
    """What a command reports: lines as they come, or one JSON object at the end."""

    def __init__(self, as_json: bool) -> None:
        self.facts: dict[str, Any] = {}
        self._as_json = as_json

    def say(self, text: str = "") -> None:
        """A line for people."""
        if not self._as_json:
            print("\n".join(map(visible, text.split("\n"))))
            sys.stdout.flush()

    def table(self, key: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Rows for people, and as objects under a key of the JSON; numbers stand on the right."""
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
        """Prints the JSON object, where one was asked for."""
        if self._as_json:
            print(json.dumps(self.facts))


def cell(value: Any) -> str:
    """A value as it stands in a table."""
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else visible(str(value))


def visible(text: str) -> str:
    """Text of the data in one line: what is not seen, or steers a terminal, as an escape."""
    seen = (c if c.isprintable() and not _UNSEEN.match(c) else ascii(c)[1:-1] for c in text)
    return "".join(seen)


def reason(error: Any) -> str:
    """What TensorFlow says of an error, without where in its graph."""
    text = str(getattr(error, "message", error)).partition(" [Op:")[0].partition("\n")[0]
    return text.rpartition("}} ")[2]
