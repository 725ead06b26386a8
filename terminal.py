"""Output of the command line: tables and error messages; progress is in ``progress_bars``.

Progress and notes go to standard error, results to standard output: a pipe gets only results.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.console import Console

from .pipelines.progress_bars import (
    Bars,
    human_seconds,
    log,
    log_as_json,
    printable,
    show_warning,
)
from .schemas.visible import human_bytes, human_count, shorten, visible

__all__ = ["Bars", "human_bytes", "human_seconds", "log_as_json", "shorten", "show_warning"]

if TYPE_CHECKING:
    from .pipelines.inspect.forecast import SplitForecast
    from .pipelines.inspect.verify_report import Report
    from .schemas.features import Features
    from .schemas.manifest import Manifest, SplitEntry

# Neither markup nor emoji: the output contains names from the data.
out = Console(soft_wrap=True, highlight=False, markup=False, emoji=False)
_answers_in_json = False


def prepare_streams() -> None:
    """Makes any text printable: characters that the encoding cannot represent become escapes.

    Redirects closed streams to the null device: otherwise the next opened file would get their
    descriptor, and libraries' output.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    if sys.stdout is None:
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def say_json(value: object) -> None:
    """Prints one JSON object as a line on standard output."""
    from .transforms.storage.redaction import hide_known

    print(hide_known(json.dumps(value)))


def be_quiet(wanted: bool) -> None:
    """Sets whether results and notes are left out."""
    out.quiet = wanted


def answer_in_json(wanted: bool) -> None:
    """Sets whether :func:`show_failure` prints a JSON object."""
    global _answers_in_json
    _answers_in_json = wanted


def show_failure(message: str, *, kind: str, exit_code: int, **about: str) -> int:
    """Prints the error that ends a command; under ``--json`` also as an object on standard output.

    Args:
        message: For people: on standard error.
        kind: The error's class.
        exit_code: The command's.
        **about: What it is about, empty if unknown: the path or URL of a file, the id of a record.

    Returns:
        The exit code.
    """
    show_error(message)
    if _answers_in_json:
        error = {"class": kind, "message": message, "exit_code": exit_code}
        with contextlib.suppress(OSError, ValueError):  # the stream may be what failed
            say_json({"error": error | {key: name for key, name in about.items() if name}})
    return exit_code


def say(text: str) -> None:
    """Prints a result on standard output."""
    out.print(printable(text))


def show_error(message: str) -> None:
    """Prints an error on standard error."""
    show_interruption(printable(message))


def show_interruption(message: str) -> None:
    """Prints an error that holds no data; loads no module, since a load may be interrupted."""
    log("error", message)


def show_traceback(text: str) -> None:
    """Prints the traceback of a defect on standard error, with credentials removed."""
    from .transforms.storage.redaction import redact

    log("traceback", redact(printable(text)))


def show_note(message: str) -> None:
    """Prints a note on standard error."""
    if not out.quiet:
        log("note", printable(message))


def show_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Prints a table on standard output; numbers are right-aligned."""
    kept = [list(row) for row in rows]
    say(title)
    lines = [list(columns), *([_cell(value) for value in row] for row in kept)]
    widths = [max(cell_len(line[i]) for line in lines) for i in range(len(columns))]
    for line in lines:
        cells = []
        for i, (cell, width) in enumerate(zip(line, widths, strict=True)):
            space = " " * (width - cell_len(cell))
            right = bool(kept) and all(isinstance(row[i], int | float) for row in kept)
            cells.append(space + cell if right else cell + space)
        say(f"  {'  '.join(cells)}".rstrip())


def _cell(value: object) -> str:
    text = f"{value:,}" if isinstance(value, int) else str(value)
    return visible(text)


def show_features(
    features: Features,
    title: str = "features",
    *,
    label: str | None,
    lines: int | None = None,
    all_with: str = "",
) -> None:
    """Prints features, one per line: name, type and shape, whether it is the label or optional.

    Args:
        features: The features.
        title: What they are.
        label: The feature to predict.
        lines: Print at most this many; all by default.
        all_with: The command that prints all of them.
    """
    from .schemas.features import (  # pydantic's classes: longer than all of --help
        describe,
        is_optional,
    )

    shown = list(features.items())[:lines]
    rows = []
    for name, feature in shown:
        marks = ["label"] * (name == label) + ["optional"] * is_optional(feature)
        rows.append((name, describe(feature), ", ".join(marks)))
    show_table(title, ("name", "type", ""), rows)
    if len(shown) < len(features):
        say(f"  … and {len(features) - len(shown):,} more: {all_with}")


def show_missing(
    features: Features,
    counts: Mapping[str, int],
    *,
    label: str | None,
    where: str,
    stored: bool = True,
) -> None:
    """Prints how many values each feature lacks, and what is returned instead.

    Args:
        features: The features.
        counts: Number of records without a value, by feature that may be missing.
        label: The feature to predict.
        where: Which records, for the title.
        stored: Whether these are the features that the reader returns, rather than those that a
            ``preprocessing_fn`` gets.
    """
    from .schemas.features import mask_name, tensor_form

    rows = []
    for name, number in counts.items():
        form = tensor_form(features[name])
        assert form is not None
        mask = mask_name(name, features[name])
        if not stored:
            given = "an empty list" if form.shape else "no value (tf.SparseTensor)"
        elif mask is not None:
            given = f"mask: {mask} is False"
        elif form.shape:
            given = "an empty list"
        else:
            given = "NaN" if form.fill != form.fill else f"{form.fill!r}, from default="
        rows.append((name, number, given))
    if not rows:
        return
    place = "in the reader" if stored else "in preprocessing_fn"
    show_table(f"missing values {where}", ("feature", "missing", place), rows)
    if not stored:
        return
    if any(mask_name(name, features[name]) for name in counts):
        say("to get a value instead of a mask: ss.tables.fill, or default= of the feature's type")
    if label is not None and counts.get(label) and mask_name(label, features[label]):
        show_warning(
            f"{counts[label]:,} examples have no label {label!r}, so the reader will refuse "
            "as_supervised=True. Fill it, drop these records (ss.tables.missing, then "
            "ss.records.filter), or declare it without optional=True, which rejects them."
        )


def show_counts(title: str, counts: Mapping[str, int]) -> None:
    """Prints how often each name occurs, in one line, truncated if it is long."""
    listed = ", ".join(f"{_cell(name)}: {counts[name]:,}" for name in sorted(counts))
    say(f"{title}: {shorten(listed, 600)}")


def show_labels(counts: Mapping[str, Mapping[str, int]], *, name: str | None) -> None:
    """Prints how many records of each label every split has; one line for each split.

    Args:
        counts: Records of each label by split.
        name: The label's feature.
    """
    for split, labels in counts.items():
        if labels:
            show_counts(f"{split} by {name}", labels)


def by_size(manifest: Manifest) -> list[tuple[str, SplitEntry]]:
    """The splits of a snapshot with their names, largest first."""
    return sorted(manifest.splits.items(), key=lambda item: -item[1].num_examples)


def show_splits(manifest: Manifest) -> None:
    """Prints the splits of a snapshot, largest first."""
    rows = []
    for name, split in by_size(manifest):
        sizes = [shard.num_bytes for shard in split.shards]
        span = (
            " to ".join(dict.fromkeys(human_bytes(f(sizes)) for f in (min, max))) if sizes else ""
        )
        rows.append(
            (name, split.num_examples, len(split.shards), human_bytes(split.num_bytes), span)
        )
    title = "splits"
    if manifest.limit is not None:
        title += f" of a SAMPLE of {human_count(manifest.limit, 'records')} (--limit)"
    show_table(title, ("name", "examples", "shards", "size", "each shard"), rows)


def show_splits_to_come(splits: Iterable[SplitForecast]) -> None:
    """Prints the splits that a build would make."""
    rows = [
        (
            split.name,
            split.num_examples,
            split.num_shards,
            human_bytes(split.num_bytes),
            human_bytes(split.num_bytes / max(1, split.num_shards)),
        )
        for split in splits
    ]
    columns = ("name", "examples", "shards", "size", "each shard")
    show_table("planned splits, approximately", columns, rows)


def show_report(report: Report, *, lines: int) -> None:
    """Prints the report of verify: warnings and problems on standard error."""
    for warning in report.warnings:
        show_warning(str(warning))
    if problems := report.lines(lines):
        show_error("\n".join(problems))
    if summary := report.summary():
        say(summary)


def flush() -> None:
    """Writes all buffered output, before the process ends.

    Raises:
        OSError: if it cannot be written; the rest is then discarded, since the interpreter would
            otherwise try again and report an error.
    """
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise
    sys.stderr.flush()
