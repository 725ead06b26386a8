"""Renders the page, writes it beside a snapshot's manifest, and serves it on this machine."""

from __future__ import annotations

import contextlib
import functools
import http.server
import pathlib
import webbrowser
from collections.abc import Callable, Sequence
from typing import Any

import jinja2

from ....schemas.errors import RecipeError, SnapshardError
from ....schemas.naming import REPORT, join
from ....schemas.visible import shorten, visible
from ....transforms import storage
from ...snapshot import Snapshot
from ..drift import compare, difference_lines
from .charts import Histogram
from .evidence import Evidence, gather
from .facts import FeatureFacts, Limits, facts_of

MAX_BYTES = 2_000_000
"""Maximum length of a page."""
_NAME = 120
"""Characters that are shown of a name from the data."""


def render(evidence: list[Evidence]) -> bytes:
    """The page of a snapshot, or of two side by side: HTML of at most 2 MB."""
    limits = Limits() if len(evidence) == 1 else Limits().halved()
    differences = None if len(evidence) == 1 else _differences(*evidence)
    template = _environment().get_template("page.html.j2")
    while True:
        sides = [facts_of(one, limits) for one in evidence]
        both, raw = _both([one.features for one in sides]), _both([one.raw for one in sides])
        page = template.render(sides=sides, both=both, raw=raw, differences=differences)
        content = page.encode()
        if len(content) <= MAX_BYTES or limits == limits.halved():
            return content
        limits = limits.halved()


def write_report(snapshots: list[Snapshot], output: str | None) -> tuple[str, int, list[str]]:
    """Writes the page of a snapshot, or of two.

    Args:
        snapshots: One or two.
        output: The file; by default ``report.html`` in the folder of the one snapshot.

    Returns:
        Its place, its length in bytes, and why something is missing from it.

    Raises:
        RecipeError: if there are two snapshots and no output.
        StorageError: if a file cannot be read or written.
    """
    if output is None and len(snapshots) > 1:
        raise RecipeError("A page of two snapshots belongs to neither: name it with --output FILE.")
    place = join(snapshots[0].path, REPORT) if output is None else storage.absolute(output)
    evidence = [gather(snapshot) for snapshot in snapshots]
    content = render(evidence)
    storage.put_bytes(place, content)
    reasons = [why for one in evidence for why in (one.why_no_statistics, one.sample.trouble)]
    return place, len(content), [reason for reason in reasons if reason]


def serve_page(
    snapshot: Snapshot, *, port: int, started: Callable[[str], None], browser: bool
) -> None:
    """Serves the page of a snapshot on loopback until interrupted.

    Args:
        snapshot: The snapshot.
        port: The port; 0 for any free one.
        started: Receives the URL.
        browser: Whether to open the page in a browser.

    Raises:
        RecipeError: if the port cannot be used.
    """
    content = b""

    class Handler(http.server.BaseHTTPRequestHandler):
        """Answers with the page, and nothing else."""

        def do_GET(self) -> None:
            """Sends it, unless another site asks under a name of its own."""
            host = self.headers.get("Host", "").rpartition(":")[0]
            if self.path != "/" or host not in ("127.0.0.1", "localhost"):
                self.send_error(404)
                return
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            """Logs nothing."""

    try:
        server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
    except (OSError, OverflowError) as error:
        raise RecipeError(f"--port {port} cannot be used ({error}): give another, or 0.") from None
    with contextlib.suppress(KeyboardInterrupt), server:  # how it is meant to end
        url = f"http://127.0.0.1:{server.server_port}/"
        started(url)
        content = render([gather(snapshot)])  # requests wait
        if browser:
            webbrowser.open(url)
        server.serve_forever()


def _both(columns: list[Sequence[FeatureFacts]]) -> list[tuple[str, list[FeatureFacts | None]]]:
    """The features that have a chart, each with its facts of every snapshot (None without)."""
    by_name = [{one.name: one for one in side} for side in columns]
    names = dict.fromkeys(name for side in by_name for name in side)
    return [(name, [side.get(name) for side in by_name]) for name in names]


def _differences(old: Evidence, new: Evidence) -> list[tuple[str, str]]:
    """How a snapshot differs from another one, and what to do."""
    try:
        found = compare(old.profile, new.profile)
    except SnapshardError as error:
        return [(f"Their distributions could not be compared: {error}", "")]
    return [(line, difference.advice) for difference, line in difference_lines(found)]


@functools.cache
def _environment() -> jinja2.Environment:
    loader = jinja2.FileSystemLoader(pathlib.Path(__file__).parent / "templates")
    environment = jinja2.Environment(
        loader=loader,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["seen"] = _seen
    environment.tests["histogram"] = lambda chart: isinstance(chart, Histogram)
    return environment


def _seen(text: str, limit: int = _NAME) -> str:
    """A text from the data: invisible characters as escapes, and not too long."""
    return shorten(visible(str(text), keep="\n"), limit)
