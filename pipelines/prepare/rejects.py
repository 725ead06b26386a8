"""The rejects of a build: gathered from its runs into one file, in bounded memory, and checked.

They are in the order of their source files and positions, regardless of how runs hold them. If a
build is refused because of its rejects, they are in the workspace for ``snapshard rejects``.
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow.parquet as pq

from ...schemas.errors import DataError, RejectsError
from ...schemas.naming import Workspace, join
from ...schemas.progress import Progress
from ...schemas.recipe import CrossStep
from ...schemas.reject_budgets import TOTAL, Exceeded, exceeded_budgets
from ...schemas.visible import human_count
from ...transforms import storage
from ...transforms.rejects import RejectWriter, iterate_rows, tally_file
from ...transforms.runs.summary import RunEntry
from ..survey.survey import Survey
from .run_files import run_rejects
from .step import Prepared


def gather_rejects(entries: Iterable[RunEntry], workspace: Workspace, path: str) -> None:
    """Writes the rejects of some runs to one local file.

    Raises:
        DamagedWorkError: if the rejects of a run are missing or damaged.
    """

    def place(entry: RunEntry) -> tuple[str, int, str, RunEntry]:
        with _opened(entry, workspace) as file:
            return (*_first(file), entry.run.run_id, entry)

    some = [entry for entry in entries if entry.run.num_rejects]
    with ThreadPoolExecutor(storage.num_requests(workspace.root)) as pool:
        placed = list(pool.map(place, some))
    with contextlib.ExitStack() as stack:
        writer = stack.enter_context(RejectWriter(path))
        for *_, entry in sorted(placed, key=lambda one: one[:3]):
            with _opened(entry, workspace) as file:
                for group in range(file.num_row_groups):
                    writer.write(file.read_row_group(group, use_threads=False))


@contextlib.contextmanager
def _opened(entry: RunEntry, workspace: Workspace) -> Iterator[Any]:
    rejects = run_rejects(workspace, entry.run)
    assert rejects is not None, "the entry has rejects"
    with pq.ParquetFile(rejects) as file:
        yield file


def _first(file: Any) -> tuple[str, int]:
    """The origin of a run's first reject: the ranges of runs in a source do not overlap."""
    columns = ["source", "position"]
    row = next(file.iter_batches(1, row_groups=[0], columns=columns)).to_pylist()[0]
    return row["source"], -1 if row["position"] is None else row["position"]


def count_by_stage(entries: Iterable[RunEntry]) -> Counter[str]:
    """The number of rejects of each stage."""
    counts: Counter[str] = Counter()
    for entry in entries:
        counts.update(entry.run.rejects_by_stage)
    return counts


def check_prepared(survey: Survey, prepared: Prepared, workspace: Workspace) -> None:
    """Refuses a build with more rejects than the recipe allows, or without records.

    Raises:
        RejectsError: with the exceeded budgets, the counts per reason and the first three rejects
            of each; all rejects are kept in the workspace.
        DataError: if no record is left.
        DamagedWorkError: if the rejects of a run are missing or damaged.
    """
    num_kept, counts = prepared.summary.num_records, count_by_stage(prepared.entries)
    num_records = num_kept + counts.total() + prepared.num_filtered
    exceeded = exceeded_budgets(counts, survey.recipe.reject_budgets(num_records))
    if exceeded:
        reasons, first = _keep_refused(survey, prepared, workspace, num_records=num_records)
        raise RejectsError.of(
            f"{_budget_words(exceeded, counts.total(), num_records)}\n{reasons}\n"
            "Fix the files, or allow more with max_rejects= in the recipe (a fraction or a count, "
            f"in total or by stage). {_try_again(survey)} "
            f"{_where_rejects_are(workspace)}",
            record=first["id"],
            file=first["source"],
        )
    num_before = prepared.entries.total("num_records")  # of the stages before the last
    if num_kept == 0 and num_before:
        steps = ", ".join(
            repr(step) for step in survey.recipe.prepare if isinstance(step, CrossStep)
        )
        raise DataError(
            f"{steps} in prepare= produced no record from {num_before:,} records. Nothing was "
            "published. A window needs consecutive rows of one group and one split, without a gap "
            "(max_gap=) or a missing value: fill in values (ss.tables.fill), or use shorter "
            "windows."
        )
    if num_kept == 0 and prepared.num_filtered:
        raise DataError(
            f"The filters in prepare= keep none of {num_records:,} records. Nothing was published."
        )
    if num_kept == 0 and counts.total():
        reasons, first = _keep_refused(survey, prepared, workspace, num_records=num_records)
        share = "The only record was" if num_records == 1 else f"All {num_records:,} records were"
        raise RejectsError.of(
            f"{share} rejected; nothing was published. max_rejects= allows it, but a snapshot "
            f"needs a record.\n{reasons}\nFix the files. {_try_again(survey)} "
            f"{_where_rejects_are(workspace)}",
            record=first["id"],
            file=first["source"],
        )
    if num_kept == 0 and prepared.num_excluded:
        number = human_count(prepared.num_excluded, "records")
        raise DataError(
            f"The list in exclude= leaves out all {number} of the source. Nothing was published."
        )
    if num_kept == 0:
        raise DataError("The source contains no records. Nothing was published.")


def _try_again(survey: Survey) -> str:
    revision = survey.recipe.revision + 1
    return (
        "If the cause is neither in the recipe nor in the data, such as a service that did not "
        f"respond, set revision={revision} in the recipe or build with --revision {revision}: "
        "this prepares the blocks with rejects again."
    )


def num_excluded(survey: Survey, prepared: Prepared) -> int:
    """How many records of the source the recipe excludes."""
    return survey.num_files_excluded + prepared.num_excluded


def warn_of_unknown_ids(survey: Survey, prepared: Prepared, progress: Progress) -> None:
    """Warns of ids to exclude that name no record: mistyped ones, or records that are gone."""
    if survey.excluded is None:
        return
    num_ids, num_records = len(survey.excluded.ids), num_excluded(survey, prepared)
    if num_records < num_ids:
        progress.warn(
            f"{num_ids - num_records:,} of {human_count(num_ids, 'ids')} in "
            f"{storage.redact(str(survey.recipe.exclude))} (exclude=) name no record of the "
            "source. The records may be gone already, or their ids may have changed: rows that "
            "are inserted into a file change the ids of all rows that follow."
        )


def _where_rejects_are(workspace: Workspace) -> str:
    return (
        f"All rejects: {storage.redact(workspace.refused_rejects)}. `snapshard rejects` lists and "
        "exports them."
    )


def _keep_refused(
    survey: Survey, prepared: Prepared, workspace: Workspace, *, num_records: int
) -> tuple[str, Mapping[str, str]]:
    """Writes the rejects of a refused build to the workspace.

    Returns:
        A text with their counts, and ``id`` and ``source`` of the first one of the most frequent
        reason.
    """
    with storage.scratch_folder(workspace.root) as scratch:
        path = join(scratch, "rejects.parquet")
        gather_rejects(prepared.entries, workspace, path)
        tally = tally_file(path)
        record = tally.groups()[0][2].first[0][0]
        first = next(row for row in iterate_rows(path, ["id", "source"]) if row["id"] == record)
        storage.put_file(path, workspace.refused_rejects)
    facts = {
        "num_records": num_records,
        "num_rejects": prepared.num_rejects,
        "source": source_shown(survey),
    }
    storage.put_bytes(workspace.refused, json.dumps(facts, sort_keys=True).encode())
    return tally.describe(), first


def _budget_words(exceeded: Sequence[Exceeded], num_rejects: int, num_records: int) -> str:
    first, *others = exceeded
    records = "record" if num_records == 1 else "records"
    were = "was" if num_rejects == 1 else "were"
    share = f"{num_rejects:,} of {num_records:,} {records} {were} rejected"
    if first.stage == TOTAL and not others:
        return f"{share} (allowed: {first.allowed:,}); nothing was published."
    lines = [
        f"  {over.stage}: {over.num_rejects:,} rejected, {over.allowed:,} allowed"
        for over in exceeded
    ]
    return "\n".join([f"{share}; nothing was published. More than max_rejects= allows:", *lines])


def source_shown(survey: Survey) -> str | dict[str, str] | None:
    """The location of a build's source, or of each of several by name, without credentials.

    None if records are not in files.
    """
    location = survey.opened.location
    if isinstance(location, dict):
        return {name: url for name, url in location.items() if name not in survey.extracted}
    return None if survey.extracted else location


def forget_refused(workspace: Workspace) -> None:
    """Removes the rejects of a refused build, once its snapshot is published."""
    for url in (workspace.refused, workspace.refused_rejects):
        if storage.exists(url):
            storage.remove_tree(url)
