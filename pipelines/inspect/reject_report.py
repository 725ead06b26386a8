"""What ``snapshard rejects`` prints: groups with the first three of each, counts, or a list."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from typing import Any

from ...schemas.errors import RecipeError
from ...transforms import storage
from ...transforms.rejects import on_a_line
from .reject_export import INDEX, export_payloads
from .reject_queries import GROUPINGS, RejectFilter, RejectsFile

_LISTED = (
    "id",
    "stage",
    "reason",
    "exception",
    "message",
    "source",
    "position",
    "payload_kind",
    "payload_bytes",
    "payload_sha256",
    "payload_start",
    "payload_stop",
)


def check_grouping(by: str | None) -> None:
    """Refuses a grouping that there is not.

    Raises:
        RecipeError: if there is none of this name.
    """
    if by is not None and by not in GROUPINGS:
        raise RecipeError(f"--by {by}: expected one of {', '.join(GROUPINGS)}.")


def group_lines(
    rejects: RejectsFile, wanted: RejectFilter, *, by: str | None, as_json: bool
) -> Iterator[str]:
    """Rejects by stage and reason, the first three of each; or their number by one column.

    Args:
        rejects: Where they lie.
        wanted: Which of them.
        by: One of ``GROUPINGS``; None for stage and reason.
        as_json: Gives one JSON object.
    """
    check_grouping(by)
    facts: dict[str, Any] = {
        "path": storage.redact(rejects.url),
        "refused": rejects.refused,
        "source": rejects.source,
    }
    if by is None or by == "reason":
        tally = rejects.tally(wanted)
        groups: list[dict[str, Any]] = [
            {
                "stage": stage,
                "reason": reason,
                "num_rejects": group.num_rejects,
                "first": [{"id": one, "message": message} for one, message in group.first],
            }
            for stage, reason, group in tally.groups()
        ]
        text = tally.describe(max_groups=1000)
    else:
        counts = rejects.count_by(by, wanted)
        groups = [{by: name, "num_rejects": number} for name, number in counts.items()]
        text = "\n".join(f"  {number:,} × {on_a_line(name)}" for name, number in counts.items())
    number = sum(group["num_rejects"] for group in groups)
    if as_json:
        yield json.dumps({**facts, "num_rejects": number, "groups": groups})
        return
    yield f"{number:,} reject{'' if number == 1 else 's'} in {facts['path']}"
    if rejects.refused:
        yield "of the last build, which was refused for them; nothing of it is published"
    if text:
        yield text


def list_lines(
    rejects: RejectsFile, wanted: RejectFilter, *, first: int, number: int, as_json: bool
) -> Iterator[str]:
    """Rejects one by one, in the order of their files and positions.

    Args:
        rejects: Where they lie.
        wanted: Which of them.
        first: How many to leave out.
        number: How many to give at most; 0 for all.
        as_json: Gives each as a JSON object.
    """
    rows = islice(rejects.rows(wanted, list(_LISTED)), first, None)
    at = first
    for row in rows if number == 0 else islice(rows, number):
        at += 1
        if as_json:
            yield json.dumps(row)
        else:
            yield on_a_line(f"{row['id']}  {row['stage']}: {row['reason']} ({row['exception']})")
            yield f"    {on_a_line(row['message'])}"
            yield f"    {on_a_line(_payload_words(row))}"
    if not as_json and number and at == first + number and next(rows, None) is not None:
        yield f"… and more: --offset {at}"


def _payload_words(row: dict[str, Any]) -> str:
    kind, size, start = row["payload_kind"], row["payload_bytes"], row["payload_start"]
    if kind is None:
        return "no payload: nothing of it could be read"
    words = "the file" if size is None else f"{size:,} bytes"
    if kind == "values":
        words = f"its values, {words} of JSON"
    if start is not None:
        stop = "its end" if row["payload_stop"] is None else f"{row['payload_stop']:,}"
        words += f", which lie in {row['source']} from byte {start:,} to {stop}"
    return f"payload: {words}, sha256 {row['payload_sha256']}"


def export_lines(
    rejects: RejectsFile,
    wanted: RejectFilter,
    folder: str,
    *,
    source: str | None,
    as_json: bool,
) -> Iterator[str]:
    """Exports payloads, and says what was done."""
    report = export_payloads(rejects, wanted, folder, source=source)
    if as_json:
        yield json.dumps({"folder": folder, **vars(report)})
        return
    fetched = f", {report.num_fetched:,} of them read from the source" * bool(report.num_fetched)
    yield (
        f"exported {report.num_files:,} payloads of {report.num_rejects:,} rejects to {folder}"
        f"{fetched}; {INDEX} tells which is which"
    )
    if report.num_missing:
        yield f"{report.num_missing:,} have no payload to export; {INDEX} says of each why"
