"""Repair: withdraws a damaged snapshot, so that the next build repairs it.

Only the manifest is removed: what is left is an unfinished build, which the same build resumes. It
finds damaged files by their hashes and replaces each in one atomic step, so that a reader that is
iterating finds a file under every name at any time.
"""

from __future__ import annotations

from ...schemas.errors import PlaceError, StorageError
from ...schemas.naming import MANIFEST, join
from ...schemas.progress import Progress
from ...transforms import storage
from ..inspect.verify import check_snapshot
from ..inspect.verify_report import Report


def withdraw_damaged(folder: str, *, progress: Progress) -> Report | None:
    """Checks a published snapshot, and removes its manifest if anything is damaged.

    Args:
        folder: The snapshot's folder, a local path or URL.
        progress: Receives how far the check is.

    Returns:
        The report; None if nothing is published.

    Raises:
        StorageError: if a part of it cannot be read, or removed.
        PlaceError: if the path of a file is occupied by something else, which is not ours to
            remove.
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
        paths = "1 path is" if len(obstacles) == 1 else f"{len(obstacles):,} paths are"
        raise PlaceError(
            f"In the snapshot, {paths} occupied by something that is not a file:\n{listed}\n"
            "Remove it if it is not needed, and build again."
        )
    storage.remove_tree(join(folder, MANIFEST))
    return report
