"""Repair: withdraws a snapshot that is damaged, so that building it again mends it.

Only the manifest goes: what is left is a build that did not finish, which the same build takes up.
It finds what is damaged by its hash and replaces each file in one atomic step, so that a reader
that is iterating finds a file under every name at any time.
"""

from __future__ import annotations

from ...schemas.errors import PlaceError, StorageError
from ...schemas.naming import MANIFEST, join
from ...schemas.progress import Progress
from ...transforms import storage
from ..inspect.verify import check_snapshot
from ..inspect.verify_report import Report


def withdraw_damaged(folder: str, *, progress: Progress) -> Report | None:
    """Checks a published snapshot, and removes its manifest where anything is damaged.

    Args:
        folder: The snapshot's folder, a local path or URL.
        progress: Told how far the check is.

    Returns:
        What was found; None where nothing is published.

    Raises:
        StorageError: if a part of it cannot be read, or removed.
        PlaceError: if something that is not a file occupies a file's place, which is not ours
            to remove.
    """
    if not storage.exists(join(folder, MANIFEST)):
        return None
    report = check_snapshot(folder, progress=progress)
    if report.unreadable:
        raise StorageError("\n".join(report.lines()))
    damaged = [finding for finding in report.damages if finding.kind != "extra"]
    if not damaged:
        return report
    obstacles = [finding for finding in damaged if finding.kind == "not a file"]
    if obstacles:
        listed = "\n".join(f"  {join(folder, finding.file)}" for finding in obstacles[:20])
        raise PlaceError(
            f"Something that is no file lies in the place of {len(obstacles):,} of the snapshot's "
            f"files:\n{listed}\nRemove it, if it is worth nothing, and build again."
        )
    storage.remove_tree(join(folder, MANIFEST))
    return report
