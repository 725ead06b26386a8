"""The rejects of a build: gathered from its runs into one file, in bounded memory.

They stand in the order of their source files and positions, whatever runs hold them. Those of a
build that was refused for them lie in the workspace, where ``snapshard rejects`` finds them.
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ..schemas.errors import RejectsError
from ..schemas.naming import Workspace, join
from ..schemas.reject_budgets import TOTAL, exceeded_budgets
from ..transforms import storage
from ..transforms.rejects import RejectWriter, tally_file
from ..transforms.summary import RunEntry
from .run_files import run_rejects
from .survey import Survey


def gather_rejects(entries: Iterable[RunEntry], workspace: Workspace, path: str) -> None:
    """Writes the rejects of some runs to one local file.

    Raises:
        DamagedWorkError: if a run's are missing or damaged.
    """
    with contextlib.ExitStack() as stack:
        found = []
        for entry in entries:
            with _opened(entry, workspace) as file:
                if file is not None:
                    found.append((*_first(file), entry.run.run_id, entry))
        writer = stack.enter_context(RejectWriter(path))
        for *_, entry in sorted(found, key=lambda one: one[:3]):
            with _opened(entry, workspace) as file:
                for batch in file.iter_batches(1024):
                    writer.write(pa.Table.from_batches([batch]))


@contextlib.contextmanager
def _opened(entry: RunEntry, workspace: Workspace) -> Iterator[Any]:
    found = run_rejects(workspace, entry.run)
    if found is None:
        yield None
        return
    with pq.ParquetFile(found) as file:
        yield file


def _first(file: Any) -> tuple[str, int]:
    """Where the first reject of a run comes from: runs' ranges of a source do not overlap."""
    columns = ["source", "position"]
    row = next(file.iter_batches(1, row_groups=[0], columns=columns)).to_pylist()[0]
    return row["source"], -1 if row["position"] is None else row["position"]


def count_by_stage(entries: Iterable[RunEntry]) -> Counter[str]:
    """How many rejects each stage made."""
    counts: Counter[str] = Counter()
    for entry in entries:
        counts.update(entry.run.rejects_by_stage)
    return counts


def check_rejects(
    entries: Iterable[RunEntry],
    workspace: Workspace,
    *,
    num_records: int,
    allowed: Mapping[str, int],
    source: str | None,
) -> None:
    """Refuses more rejects than a recipe allows; keeps them in the workspace then.

    Args:
        entries: The runs of all stages.
        workspace: Where they lie.
        num_records: All records that were found.
        allowed: As ``Recipe.reject_budgets`` gives it.
        source: Where the source lies, as :func:`told_source` says it.

    Raises:
        RejectsError: with the budgets that do not do, the counts per reason and the first three
            of each.
        DamagedWorkError: if a run's are missing or damaged.
    """
    entries = list(entries)
    counts = count_by_stage(entries)
    exceeded = exceeded_budgets(counts, allowed)
    if not exceeded:
        return
    with storage.scratch_folder(workspace.root) as scratch:
        path = join(scratch, "rejects.parquet")
        gather_rejects(entries, workspace, path)
        reasons = tally_file(path).describe()
        storage.put_file(path, workspace.refused_rejects)
    told = {"num_records": num_records, "num_rejects": dict(sorted(counts.items()))}
    told["source"] = source
    storage.put_bytes(workspace.refused, json.dumps(told, sort_keys=True).encode())
    first, *_ = exceeded
    number = sum(counts.values())
    if len(exceeded) == 1 and first.stage == TOTAL:
        said = (
            f"{number:,} of {num_records:,} records were rejected, and {first.allowed:,} are "
            "allowed; nothing was published."
        )
    else:
        said = "\n".join(
            [
                f"{number:,} of {num_records:,} records were rejected; nothing was published. "
                "More than max_rejects= allows:",
                *(
                    f"  {one.stage}: {one.num_rejects:,} rejected, {one.allowed:,} allowed"
                    for one in exceeded
                ),
            ]
        )
    raise RejectsError(
        f"{said}\n{reasons}\n"
        "Mend the files, or allow more with max_rejects= in the recipe (a fraction or a count, in "
        f"all or by stage). All rejects: {storage.redact(workspace.refused_rejects)}, which "
        "`snapshard rejects` lists and exports."
    )


def told_source(found: Survey) -> str | None:
    """Where a build's source lies, without credentials; None where its records lay in no files."""
    return None if found.extracted is not None else found.opened.shown


def forget_refused(workspace: Workspace) -> None:
    """Clears the rejects of a build that was refused: what it was to make is published."""
    for url in (workspace.refused, workspace.refused_rejects):
        if storage.exists(url):
            storage.remove_tree(url)
