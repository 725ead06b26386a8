"""Builds that are killed at each of their durable operations, by replay: see ``replay.py``.

After each, a reader sees nothing or the whole snapshot; the next build does nothing twice that was
committed, and publishes the same bytes. Of the table that is every operation; of each other recipe,
the first and last of each kind that those before it do not have. A build that misses the file of
its last operation is the one that was killed an operation earlier.
"""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from snapshard.pipelines.operate.gc import collect_garbage
from snapshard.schemas.errors import DamagedSnapshotError
from snapshard.schemas.naming import REPORT, UNLISTED
from snapshard.transforms.storage import TEMPORARY

from .faults import look
from .replay import Recorded, ends_of_kinds, files_of, leave_unfinished, replay

pytestmark = pytest.mark.slow  # builds on, from each of some hundred outputs

_COMMITS = re.compile(
    r"\w+/\.work/((runs|shards)/.*\.json|summaries/.*\.arrow|plans/.*|graphs/.*/graph\.json)"
)


def check_killed(recorded: Recorded, out: Path, number: int) -> None:
    """A build that is killed halfway through its operation of this number, and the next one."""
    done, folder = recorded.log[:number], out / recorded.recipe.stem
    replay(done, out)
    leave_unfinished(recorded.log[number], out)
    is_published = any(operation.path.endswith("/manifest.json") for operation in done)
    assert look(folder) == (recorded.published if is_published else {})
    again = recorded.go_on(out)
    committed = {operation.path for operation in done if _COMMITS.fullmatch(operation.path)}
    assert not committed.intersection(operation.path for operation in again), "done again"
    (manifest,) = folder.glob("*/manifest.json")
    found = {str(p.relative_to(manifest.parent)) for p in manifest.parent.rglob("*") if p.is_file()}
    # Whether there is a report depends on time; what was on its way is cleared below.
    found = {name for name in found if name != REPORT and not TEMPORARY.fullmatch(name)}
    assert found == {*json.loads(manifest.read_bytes())["files"], *UNLISTED} - {REPORT}
    assert not list(folder.glob(".work/scratch/*"))
    # What was on its way elsewhere, garbage collection clears.
    collect_garbage(str(out))
    assert not list(folder.rglob(".*.tmp"))
    shutil.rmtree(out)


def test_a_log_has_all_that_a_build_leaves(
    recorded: Callable[[str], Recorded], tmp_path: Path
) -> None:
    table = recorded("table")
    replay(table.log, tmp_path / "replayed")
    assert not table.go_on(tmp_path / "replayed"), "it was published"
    table.go_on(tmp_path / "built")
    replayed, built = (files_of(tmp_path / name) for name in ("replayed", "built"))
    assert replayed.keys() == built.keys()
    differing = {name for name in built if built[name] != replayed[name]}
    assert {name.rpartition("/")[2] for name in differing} == {"build.json", "memo.json"}, "times"


def test_killed_at_every_operation(recorded: Callable[[str], Recorded], tmp_path: Path) -> None:
    table = recorded("table")
    for number in range(len(table.log)):
        check_killed(table, tmp_path / str(number), number)


def test_killed_between_stages(recorded: Callable[[str], Recorded], tmp_path: Path) -> None:
    """Extracted records, and runs that are made of runs: two of each kind, of two stages."""
    query = recorded("query")
    numbers = ends_of_kinds(query.log)
    for number in numbers:
        check_killed(query, tmp_path / str(number), number)
    assert sum(query.log[number].kind.startswith(".work/summaries/") for number in numbers) == 6


@pytest.mark.parametrize("name", ["images", "graph"])
def test_killed_at_other_kinds_of_operations(
    recorded: Callable[[str], Recorded], tmp_path: Path, name: str
) -> None:
    """What is exported for serving; and what an analysis makes, which runs in another process."""
    log = recorded(name).log
    for number in ends_of_kinds(log, known=recorded("table").log):
        check_killed(recorded(name), tmp_path / str(number), number)


def test_the_last_file_is_cut(recorded: Callable[[str], Recorded], tmp_path: Path) -> None:
    """A disk that lost the end of what was put last: it is made anew, or refused."""
    table = recorded("table")
    for number, operation in enumerate(table.log):
        out = tmp_path / str(number)
        replay(table.log[: number + 1], out)
        assert operation.content is not None
        (out / operation.path).write_bytes(operation.content[: len(operation.content) // 2])
        if operation.path.endswith("/manifest.json"):
            with pytest.raises(DamagedSnapshotError, match="Build again with --repair"):
                table.go_on(out)
            table.go_on(out, repair=True)
        else:
            table.go_on(out)
        shutil.rmtree(out)


def test_a_repair_that_is_killed(recorded: Callable[[str], Recorded], tmp_path: Path) -> None:
    """It withdraws the snapshot first: then it is a build that was killed."""
    table = recorded("table")
    replay(table.log, tmp_path / "damaged")
    for path in (tmp_path / "damaged").glob("table/*/train*"):
        path.write_bytes(b"")
    shutil.copytree(tmp_path / "damaged", tmp_path / "repaired")
    log = table.go_on(tmp_path / "repaired", repair=True)
    assert log[0].path.endswith("/manifest.json")
    assert log[0].content is None
    for number in range(1, len(log)):
        out = tmp_path / str(number)
        shutil.copytree(tmp_path / "damaged", out)
        replay(log[:number], out)
        leave_unfinished(log[number], out)
        assert not list(out.glob("table/*/manifest.json"))
        table.go_on(out)
