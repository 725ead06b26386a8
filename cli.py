"""The command line: parses arguments and calls the pipelines; ``terminal`` prints the results.

Exit codes: 0 done, 1 a store, disk, engine or process failed, 2 usage or recipe error, 3 the data
is refused (or has a record that must be absent), 4 a snapshot is damaged, 5 a defect, 130
interrupted. Only 1 and 130 are worth a retry; only a defect shows a traceback.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import itertools
import json
import os
import shlex
import sys
import time
import traceback
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .cli_options import (
    BEAM_OPTIONS,
    FlinkJar,
    FlinkMaster,
    Limit,
    LogFormat,
    Memory,
    OutputFolder,
    Quiet,
    Revision,
    Runner,
    SnapshotPath,
    Source,
    SparkMaster,
    Split,
    StallTimeout,
    Workspace,
    age_of,
    asked_forms,
    check_options,
    engine_of,
    json_option,
    rates_of,
    reader_options,
    recipe_of,
)
from .schemas.visible import human_count, visible

if TYPE_CHECKING:
    from .pipelines.snapshot import Snapshot
    from .schemas.errors import SnapshardError
    from .schemas.recipe import Recipe
    from .schemas.runner import RunnerConfig

_WITH_THREADS = {"pyarrow", "tensorflow"}
"""Libraries whose threads may still run at exit."""
_DEFECT = 5
"""Exit code for unexpected errors. Python's own code, 1, would make schedulers retry."""
_NO_MEMORY = ("failed to map segment from shared object", "can't start new thread")
"""What errors other than MemoryError say where memory, or the address space, is exhausted."""
_MAX_FEATURES = 20
"""Maximum number of features that ``build`` prints."""
_MAX_REASONS = 5
"""Maximum number of reasons of rejects that ``build`` and ``inspect`` print."""
_MOST = 2**31 - 1
"""The largest number of lines to show or skip."""
_SHEET_RECORDS = 64
"""Number of images on a sheet."""
_LINES = 1_000
"""Lines that are printed at once."""
_MAX_LEAKS = 4
"""Maximum number of combinations of splits that are named: a cross-validation has many."""

app = typer.Typer(
    name="snapshard",
    help="Turns raw files into a training-ready snapshot, once: TFRecord shards and their reader.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        from . import __version__

        print(f"snapshard {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Turns raw files into a training-ready snapshot, once: TFRecord shards and their reader."""


@app.command(context_settings=BEAM_OPTIONS)
def build(
    context: typer.Context,
    source: Source,
    out: Annotated[str, typer.Option(help="Output root: a folder or URL.", metavar="DIR")],
    workers: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Number of worker processes (direct; by default one for every four cores, if "
            "there is work for them), of elements processed at once (flink, spark; 1 by default), "
            "or of machines at first (dataflow). No effect with prism.",
            metavar="N",
            show_default=False,
        ),
    ] = None,
    memory: Memory = None,
    limit: Limit = None,
    revision: Revision = None,
    runner: Runner = "direct",
    flink_master: FlinkMaster = None,
    flink_jar: FlinkJar = None,
    spark_master: SparkMaster = None,
    stall_timeout: StallTimeout = None,
    workspace: Workspace = None,
    write_by: Annotated[
        str,
        typer.Option(
            help="How records reach their shard: ranges (read from runs by key range), shuffle "
            "(by the engine), or auto. Does not change the output.",
            metavar="STRATEGY",
        ),
    ] = "auto",
    repair: Annotated[
        bool,
        typer.Option(
            "--repair", help="Check existing output and work; rebuild whatever is damaged."
        ),
    ] = False,
    quiet: Quiet = False,
    log_format: LogFormat = "text",
    as_json: Annotated[bool, json_option("Print one JSON object as the last line.")] = False,
) -> None:
    """Build the snapshot of a recipe or of raw data; resumes an interrupted build.

    Options after -- are passed to Beam: snapshard build recipe.py --out DIR --runner flink
    --flink-master host:8081 -- --environment_type=DOCKER --environment_config=IMAGE
    """
    from . import terminal
    from .pipelines.build import build as run_build
    from .pipelines.watchdog import expected_to_advance, stall_timeout_of, watched_build
    from .pipelines.workspace import check_place
    from .pipelines.write.strategy import checked_write_by

    begun = time.monotonic()
    check_place(out, "--out")
    engine = engine_of(
        runner,
        context.args,
        workers=workers,
        memory=memory,
        flink_master=flink_master,
        flink_jar=flink_jar,
        spark_master=spark_master,
        stall_timeout=stall_timeout,
    )
    terminal.be_quiet(quiet)
    bars = terminal.Bars(quiet=quiet)
    with watched_build(stall_timeout_of(engine), progress=bars):
        with expected_to_advance(f"the recipe {source}"):
            recipe = recipe_of(source, revision=revision)
        if context.obj:
            _spare_extras(recipe, engine)
        with bars:
            snapshot = run_build(
                recipe,
                out,
                limit=limit,
                runner=engine,
                repair=repair,
                write_by=checked_write_by(write_by),
                workspace=workspace,
                progress=bars,
            )
    if as_json:
        terminal.say_json(_json_facts(snapshot))
        return
    terminal.show_features(
        snapshot.manifest.features,
        label=snapshot.manifest.label,
        lines=_MAX_FEATURES,
        all_with=f"snapshard inspect {snapshot.path}",
    )
    terminal.show_splits(snapshot.manifest)
    _show_labels(snapshot)
    _show_missing(snapshot)
    _show_rejects(snapshot)
    _show_leaks(snapshot.manifest.shared_contents)
    _show_near_duplicates(snapshot)
    _show_empty_splits(snapshot, recipe)
    _show_next(snapshot, seconds=time.monotonic() - begun)
    terminal.be_quiet(False)
    built = "already built" if snapshot.cached else "built"
    sample = ", a SAMPLE: latest.json does not name it" if limit is not None else ""
    terminal.say(f"{built}{sample}: {snapshot.path}")


@app.command(context_settings=BEAM_OPTIONS)
def step(
    context: typer.Context,
    name: Annotated[
        str,
        typer.Argument(
            help="inventory, prepare, analyze, plan, write, verify or publish; each requires the "
            "ones before it.",
            metavar="STEP",
        ),
    ],
    source: Source,
    out: Annotated[str, typer.Option(help="Output root: a folder or URL.", metavar="DIR")],
    part: Annotated[
        str | None,
        typer.Option(
            help="Run only one part of prepare or write: for 8 parts, 1/8 to 8/8. After the parts "
            "of prepare, run prepare itself, which reuses them.",
            metavar="PART",
            show_default=False,
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="See build --help.", metavar="N", show_default=False),
    ] = None,
    memory: Memory = None,
    limit: Limit = None,
    revision: Revision = None,
    runner: Runner = "direct",
    flink_master: FlinkMaster = None,
    flink_jar: FlinkJar = None,
    spark_master: SparkMaster = None,
    stall_timeout: StallTimeout = None,
    workspace: Workspace = None,
    write_by: Annotated[str, typer.Option(help="See build --help.", metavar="STRATEGY")] = "auto",
    quiet: Quiet = False,
    log_format: LogFormat = "text",
    as_json: Annotated[bool, json_option("Print one JSON object as the last line.")] = False,
) -> None:
    """Run one step of a build, as a scheduler's task; a finished step does nothing.

    All steps of a build must have the same recipe, --out and --limit.
    """
    from . import terminal
    from .pipelines.build import run_step
    from .pipelines.watchdog import expected_to_advance, stall_timeout_of, watched_build
    from .pipelines.workspace import check_place
    from .pipelines.write.strategy import checked_write_by

    check_place(out, "--out")
    engine = engine_of(
        runner,
        context.args,
        workers=workers,
        memory=memory,
        flink_master=flink_master,
        flink_jar=flink_jar,
        spark_master=spark_master,
        stall_timeout=stall_timeout,
    )
    terminal.be_quiet(quiet)
    bars = terminal.Bars(quiet=quiet)
    with watched_build(stall_timeout_of(engine), progress=bars):
        with expected_to_advance(f"the recipe {source}"):
            recipe = recipe_of(source, revision=revision)
        if context.obj:
            _spare_extras(recipe, engine)
        with bars:
            report = run_step(
                recipe,
                out,
                name,
                part=part,
                limit=limit,
                runner=engine,
                write_by=checked_write_by(write_by),
                workspace=workspace,
                progress=bars,
            )
    if as_json:
        terminal.say_json(report.to_json())
    else:
        terminal.be_quiet(False)
        terminal.say(report.line())


@app.command()
def init(
    context: typer.Context,
    source: Source,
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            help="Write the recipe to this .py file. Relative paths in it are relative to the "
            "file. (default: print it, with paths relative to the current folder)",
            metavar="FILE",
            show_default=False,
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="With --output: replace an existing file.")
    ] = False,
    label: Annotated[
        str | None,
        typer.Option(
            help="The column to predict. A few different texts or integers become classes.",
            metavar="COLUMN",
            show_default=False,
        ),
    ] = None,
    reading: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Which reading of a folder that has several, by its number in the refusal.",
            metavar="N",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Suggest a recipe for raw data: print it, or write it to a file."""
    from . import terminal
    from .pipelines.inspect.suggest import describe_suggestion, write_suggestion

    check_options(context, requires={"--force": "--output"})
    if output is None:
        terminal.say(describe_suggestion(source, label=label, reading=reading).rstrip("\n"))
        return
    write_suggestion(source, output, label=label, reading=reading, replace=force)
    terminal.say(f"wrote {output}; build it: snapshard build {output} --out DIR")


@app.command()
def plan(
    source: Source,
    limit: Limit = None,
    revision: Revision = None,
    as_json: Annotated[bool, json_option("Print one JSON object.")] = False,
) -> None:
    """Show what a build would read and write. Writes nothing."""
    from . import terminal
    from .pipelines.inspect.forecast import forecast

    recipe = recipe_of(source, revision=revision)
    with terminal.Bars() as bars:
        planned = forecast(recipe, progress=bars, limit=limit)
    if as_json:
        terminal.say_json(planned.to_json())
        return
    skipped = ", ".join(f"{reason}: {number:,}" for reason, number in planned.num_skipped.items())
    terminal.say(
        f"reads {human_count(planned.num_files, 'files')}, "
        f"{terminal.human_bytes(planned.input_bytes)}" + (f"; skips {skipped}" if skipped else "")
    )
    before = " before preprocessing_fn" if recipe.preprocessing_fn or recipe.transform_from else ""
    terminal.show_features(planned.features, f"features{before}", label=planned.label)
    if planned.outputs:
        names = terminal.shorten(", ".join(map(repr, planned.outputs)), 600)
        terminal.say(f"preprocessing_fn returns: {names}")
    if planned.undeclared:
        names = terminal.shorten(", ".join(map(repr, planned.undeclared)), 600)
        terminal.say(f"left out, because features= does not declare them: {names}")
    sampled = f"in {human_count(planned.num_sampled, 'sampled records')}"
    terminal.show_missing(
        planned.features,
        planned.num_missing,
        label=planned.label,
        where=sampled + before,
        stored=not before,
    )
    terminal.show_splits_to_come(planned.splits)
    terminal.show_labels(planned.label_counts, name=planned.label)
    if planned.sampled_labels:
        terminal.show_counts(f"{planned.label} {sampled}", planned.sampled_labels)
    terminal.say(
        f"about {human_count(planned.num_examples, 'examples')} of "
        f"{terminal.human_bytes(planned.example_bytes)}, "
        f"{terminal.human_bytes(planned.output_bytes)} in total before compression; this "
        f"{'fits' if planned.fits_memory else 'does not fit'} into the "
        f"{terminal.human_bytes(planned.free_memory_bytes)} of free memory on this machine"
    )
    terminal.say(recipe.splits.when_data_is_added)
    if planned.compression:
        terminal.say(f"shards: {planned.compression}")
    _show_leaks(planned.shared_contents)
    for warning in planned.warnings:
        terminal.show_warning(warning)


@app.command()
def inspect(
    snapshot: SnapshotPath,
    as_json: Annotated[bool, json_option("Print one JSON object.")] = False,
) -> None:
    """Show the contents of a snapshot."""
    from . import terminal
    from .pipelines.snapshot import Snapshot, build_facts

    opened = Snapshot.open(snapshot)
    manifest = opened.manifest
    if as_json:
        terminal.say_json(opened.to_json())
        return
    terminal.show_features(manifest.features, label=manifest.label)
    terminal.show_splits(manifest)
    _show_labels(opened)
    versions = ", ".join(f"{name} {version}" for name, version in manifest.versions.items())
    num_bytes = sum(entry.bytes for entry in manifest.files.values())
    terminal.say(
        f"label: {manifest.label or 'none'}; compression: {manifest.compression}; "
        f"seed: {manifest.seed}; "
        f"{human_count(len(manifest.files), 'files')}, {terminal.human_bytes(num_bytes)}\n"
        f"written with {versions}"
    )
    facts = build_facts(opened.path)
    for name, value in facts.get("metadata", {}).items():
        terminal.say(f"{name}: {value if isinstance(value, str) else ', '.join(value)}")
    _show_missing(opened)
    _show_rejects(opened)
    _show_leaks(opened.manifest.shared_contents)
    _show_near_duplicates(opened)
    _show_serving(opened)
    if why := facts.get("not_tfds"):
        terminal.say(f"not a folder of TensorFlow Datasets: {why}")
    terminal.say(opened.path)


@app.command()
def verify(
    context: typer.Context,
    snapshot: SnapshotPath,
    sample: Annotated[
        str | None,
        typer.Option(
            help="Check only a sample of records (1%, 0.01 or 500), and all names and lengths.",
            metavar="SHARE",
            show_default=False,
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the sample.", metavar="N")] = 0,
    absent: Annotated[
        str | None,
        typer.Option(
            help="A text file of record ids, one per line: also prove that none of these records "
            "is in the snapshot. Exit code 3 if one is.",
            metavar="FILE",
            show_default=False,
        ),
    ] = None,
    lines: Annotated[
        int, typer.Option(min=0, help="Show at most N problems; 0 for all.", metavar="N")
    ] = 50,
    as_json: Annotated[bool, json_option("Print one JSON object with all problems.")] = False,
) -> None:
    """Check every file of a snapshot against its manifest, and name damaged records."""
    from . import terminal
    from .pipelines.inspect.verify import SampleSize, check_snapshot
    from .pipelines.inventory.exclusions import read_ids

    check_options(
        context,
        requires={"--seed": "--sample"},
        excludes={"--absent": ("--sample",)},
    )
    size = None if sample is None else SampleSize.parse(sample, seed=seed)
    ids = None if absent is None else read_ids(absent, os.getcwd(), argument="--absent")
    with terminal.Bars() as bars:
        report = check_snapshot(snapshot, progress=bars, sample=size, absent=ids)
    if as_json:
        terminal.say_json(report.to_json())
    else:
        terminal.show_report(report, lines=lines)
    raise typer.Exit(report.exit_code)


@app.command()
def diff(
    old: Annotated[str, typer.Argument(help="Folder of a snapshot.", metavar="OLD")],
    new: Annotated[str, typer.Argument(help="Folder of another snapshot.", metavar="NEW")],
    ids: Annotated[
        int, typer.Option(min=0, help="List at most N records of each kind.", metavar="N")
    ] = 10,
    only_ids: Annotated[
        bool,
        typer.Option("--only-ids", help="Read only indexes; does not find changed contents."),
    ] = False,
    as_json: Annotated[bool, json_option("Print one JSON object.")] = False,
) -> None:
    """Show what changed between two snapshots: records, features, settings."""
    from . import terminal
    from .pipelines.inspect.diff import diff as run_diff
    from .pipelines.inspect.diff import diff_text
    from .pipelines.snapshot import Snapshot

    first, second = Snapshot.open(old), Snapshot.open(new)
    with terminal.Bars() as bars:
        difference = run_diff(first, second, progress=bars, num_shown=ids, contents=not only_ids)
    if as_json:
        terminal.say_json(difference.to_json())
    else:
        terminal.say(diff_text(difference))


@app.command()
def drift(
    old: Annotated[
        str,
        typer.Argument(
            help="Folder of a snapshot; alone, its splits are compared with train.", metavar="OLD"
        ),
    ],
    new: Annotated[
        str | None,
        typer.Argument(help="Folder of a newer snapshot.", metavar="NEW", show_default=False),
    ] = None,
    as_json: Annotated[bool, json_option("Print one JSON object.")] = False,
) -> None:
    """Show how schema and distributions differ between two snapshots, or between splits.

    Exit code 3 if they do.
    """
    from . import terminal
    from .pipelines.inspect.drift import drift as run_drift
    from .pipelines.inspect.drift import drift_of_splits
    from .pipelines.snapshot import Snapshot

    first = Snapshot.open(old)
    found = drift_of_splits(first) if new is None else run_drift(first, Snapshot.open(new))
    if as_json:
        terminal.say_json(found.to_json())
    else:
        terminal.say("\n".join(found.lines()))
    raise typer.Exit(3 if found.differences else 0)


@app.command()
def pin(
    recipe: Annotated[
        str, typer.Argument(help="A recipe file (.py).", metavar="RECIPE", show_default=False)
    ],
    out: Annotated[
        str,
        typer.Option(
            help="Output root of its builds, whose latest snapshot is pinned; or the folder of "
            "one of its snapshots.",
            metavar="DIR",
        ),
    ],
) -> None:
    """Hold later builds to a snapshot of a recipe: write RECIPE's lock file beside it.

    Builds then keep the indexes of classes, and refuse data of another schema or distribution.
    """
    from . import terminal
    from .pipelines.inspect.pin import pin as run_pin

    terminal.say(f"wrote {run_pin(recipe, out)}; keep it with the recipe")


@app.command()
def why(
    old: Annotated[
        str,
        typer.Argument(help="Folder of a snapshot; or a recipe file or raw data.", metavar="A"),
    ],
    new: Annotated[
        str,
        typer.Argument(
            help="Folder of another snapshot; for a recipe or raw data, the --out of its builds.",
            metavar="B",
        ),
    ],
    limit: Limit = None,
    revision: Revision = None,
    files: Annotated[
        int, typer.Option(min=0, help="List at most N input files of each kind.", metavar="N")
    ] = 10,
    as_json: Annotated[bool, json_option("Print one JSON object.")] = False,
) -> None:
    """Explain why a snapshot is not reused: how the fingerprints of A and B differ.

    Either A and B are snapshots; or A is the source of a build (a recipe, raw data) and B its
    --out: then explains why that build would not reuse the latest snapshot there. Builds nothing.
    """
    from . import terminal
    from .pipelines.inspect.why import explanation_text, why_not_found
    from .pipelines.inspect.why import why as explain
    from .pipelines.snapshot import Snapshot, is_snapshot

    if is_snapshot(old):
        explanation = explain(Snapshot.open(old), Snapshot.open(new), num_shown=files)
    else:
        recipe = recipe_of(old, revision=revision)
        with terminal.Bars() as bars:
            explanation = why_not_found(recipe, new, progress=bars, limit=limit, num_shown=files)
    if as_json:
        terminal.say_json(explanation.to_json())
    else:
        terminal.say(explanation_text(explanation))


@app.command()
def rejects(
    context: typer.Context,
    snapshot: Annotated[
        str,
        typer.Argument(
            help="Folder of a snapshot; or of all snapshots of a name, for the rejects of the last "
            "build, even if it failed because of them; or a rejects.parquet file.",
            metavar="SNAPSHOT",
        ),
    ],
    by: Annotated[
        str | None,
        typer.Option(
            help="Count by reason, stage, exception or source.", metavar="FIELD", show_default=False
        ),
    ] = None,
    listed: Annotated[bool, typer.Option("--list", help="List rejects one by one.")] = False,
    number: Annotated[
        int,
        typer.Option(
            "--number",
            min=0,
            max=_MOST,
            help="With --list: show at most N; 0 for all.",
            metavar="N",
        ),
    ] = 20,
    offset: Annotated[
        int,
        typer.Option(min=0, max=_MOST, help="With --list: skip the first N.", metavar="N"),
    ] = 0,
    stage: Annotated[
        str | None, typer.Option(help="Only rejects of this stage.", show_default=False)
    ] = None,
    reason: Annotated[
        str | None, typer.Option(help="Only rejects with this reason.", show_default=False)
    ] = None,
    export: Annotated[
        str | None,
        typer.Option(
            help="Write the content of the records to files in a new folder, with an index.jsonl.",
            metavar="DIR",
            show_default=False,
        ),
    ] = None,
    source: Annotated[
        str | None,
        typer.Option(
            help="With --export: current location of the source, for payloads over 64 KiB.",
            metavar="URL",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[
        bool, json_option("Print one JSON object; with --list, one per line.")
    ] = False,
) -> None:
    """Show rejected records: by reason, one by one, or exported as files.

    By default: counts per stage and reason, and the first three of each.
    """
    from . import terminal
    from .pipelines.inspect.rejects import (
        RejectFilter,
        RejectsFile,
        export_lines,
        group_lines,
        list_lines,
    )

    check_options(
        context,
        requires={"--source": "--export", "--number": "--list", "--offset": "--list"},
        excludes={"--export": ("--list", "--by", "--number", "--offset"), "--list": ("--by",)},
    )
    wanted = RejectFilter(stage=stage, reason=reason)
    rejects_file = RejectsFile.find(snapshot)
    if export is not None:
        lines = export_lines(rejects_file, wanted, export, source=source, as_json=as_json)
    elif listed:
        lines = list_lines(rejects_file, wanted, first=offset, number=number, as_json=as_json)
    else:
        lines = group_lines(rejects_file, wanted, by=by, as_json=as_json)
    # Together: looking for secrets, and the terminal, cost more than a line.
    remaining = iter(lines)
    while some := list(itertools.islice(remaining, _LINES)):
        terminal.say("\n".join(some))


@app.command()
def show(
    snapshot: SnapshotPath,
    split: Split = None,
    records: Annotated[int, typer.Option(min=0, help="Show the first N records.", metavar="N")] = 3,
    label: Annotated[
        str | None,
        typer.Option(
            "--class", help="Only records of this class.", metavar="NAME", show_default=False
        ),
    ] = None,
    ids: Annotated[
        list[str] | None,
        typer.Option(
            "--id", help="Show the record with this id; may be repeated.", show_default=False
        ),
    ] = None,
    sheet: Annotated[
        str | None,
        typer.Option(
            help="Write the first 64 images to one PNG.", metavar="FILE", show_default=False
        ),
    ] = None,
    page: Annotated[
        str | None,
        typer.Option(
            help="Write the records to one HTML page.", metavar="FILE", show_default=False
        ),
    ] = None,
    as_json: Annotated[bool, json_option("Print one JSON object.")] = False,
) -> None:
    """Show records of a snapshot: the first ones are a random sample."""
    from . import terminal
    from .pipelines.display import Shown, plain_values
    from .pipelines.inspect.show import find_records, write_page, write_sheet
    from .pipelines.records import id_name
    from .pipelines.snapshot import Snapshot

    opened = Snapshot.open(snapshot)
    wanted = ids or ()
    num = len(wanted) or records
    most = max(num, _SHEET_RECORDS if sheet and not wanted else 0)
    found = find_records(opened, split, num=most, ids=wanted, label=label)
    features = opened.manifest.features
    drawn = None if sheet is None else write_sheet(opened, found, sheet)
    if page is not None:
        write_page(opened, found[:num], page)
    if as_json:
        name = id_name(features)
        shown = [{name: one.record_id, **plain_values(one, features)} for one in found[:num]]
        terminal.say_json({"records": shown, "sheet": sheet, "page": page})
        return
    if num and page is None:
        terminal.say(repr(Shown(found[:num], features)))
    if drawn is not None:
        feature, count = drawn
        terminal.say(f"{human_count(count, 'images')} of {visible(feature)!r}: {sheet}")
    if page is not None:
        terminal.say(f"{human_count(len(found[:num]), 'records')}: {page}")


@app.command()
def report(
    snapshot: SnapshotPath,
    other: Annotated[
        str | None,
        typer.Argument(help="Another snapshot, to show both side by side.", metavar="OTHER"),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            help="Where to write the page; by default report.html in the snapshot's folder.",
            metavar="FILE",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Write a page that shows a snapshot: warnings, distributions, records, rejects.

    It is one HTML file without scripts, to open or to send.
    """
    from . import terminal
    from .pipelines.inspect.report.page import write_report
    from .pipelines.snapshot import Snapshot

    snapshots = [Snapshot.open(path) for path in (snapshot, other) if path is not None]
    place, num_bytes, reasons = write_report(snapshots, output)
    terminal.say(f"wrote {place}, {terminal.human_bytes(num_bytes)}")
    for reason in reasons:
        terminal.show_warning(f"the page is incomplete: {reason}")


@app.command("open")
def open_(
    snapshot: SnapshotPath,
    port: Annotated[int, typer.Option(min=0, help="The port; 0: any free one.", metavar="N")] = 0,
    no_browser: Annotated[
        bool, typer.Option("--no-browser", help="Only print the address.")
    ] = False,
) -> None:
    """Show a snapshot's report in the browser: serves it on this machine until interrupted."""
    from . import terminal
    from .pipelines.inspect.report.page import serve_page
    from .pipelines.snapshot import Snapshot

    def started(url: str) -> None:
        terminal.say(f"{url}; press Ctrl-C to stop")
        terminal.flush()

    serve_page(Snapshot.open(snapshot), port=port, started=started, browser=not no_browser)


@app.command()
def bench(
    snapshot: SnapshotPath,
    split: Split = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Examples per batch.", metavar="N")] = 128,
    option: Annotated[
        list[str] | None,
        typer.Option(
            help="Another option of the reader's dataset(), such as image_size=(64,64).",
            metavar="NAME=VALUE",
            show_default=False,
        ),
    ] = None,
    seconds: Annotated[
        float, typer.Option(min=0.01, help="Duration of each measurement.", metavar="S")
    ] = 5.0,
    mb_per_s: Annotated[
        str | None,
        typer.Option(
            help="Also estimate the rates with slower stores.",
            metavar="10,100",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[bool, json_option("Print one JSON object.")] = False,
) -> None:
    """Measure how fast a snapshot reads on this machine."""
    from . import terminal
    from .pipelines.inspect.bench import bench as run_bench
    from .pipelines.snapshot import Snapshot

    measured = run_bench(
        Snapshot.open(snapshot),
        split=split,
        batch_size=batch_size,
        seconds=seconds,
        options=reader_options(option or []),
        mb_per_s=rates_of(mb_per_s),
    )
    if as_json:
        terminal.say_json(measured.to_json())
    else:
        terminal.say("\n".join(measured.lines()))


@app.command()
def serve(
    workers: Annotated[
        int, typer.Option(help="Number of workers; 0: only the dispatcher.", metavar="N")
    ] = 1,
    host: Annotated[
        str,
        typer.Option(
            help="This machine's name, as other machines see it; the service then listens on all "
            "interfaces, without authentication. By default on loopback only.",
            metavar="NAME",
        ),
    ] = "localhost",
    port: Annotated[
        int,
        typer.Option(
            help="Of the dispatcher, or with --join of the first worker; workers use the next "
            "ports. 0: any free ports.",
            metavar="N",
        ),
    ] = 0,
    join: Annotated[
        str | None,
        typer.Option(
            help="Start only workers, for that dispatcher.",
            metavar="grpc://…",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[bool, json_option("Print one JSON object.")] = False,
) -> None:
    """Run a tf.data service for the reader's service= until interrupted."""
    from . import terminal
    from .pipelines.operate.serve import Service
    from .pipelines.operate.serve import serve as run_serve

    def started(service: Service) -> None:
        if as_json:
            terminal.say_json(dataclasses.asdict(service))
        else:
            note = "" if service.interface == "loopback" else ", where anyone can run any graph"
            ports = ", ".join(map(str, service.ports))
            terminal.say(f"{service.address}, workers: {service.workers}; press Ctrl-C to stop")
            terminal.say(f"listening on {service.interface}{note}, ports {ports}")
        terminal.flush()

    run_serve(workers=workers, host=host, port=port, join=join, started=started)


@app.command("check-runner", context_settings=BEAM_OPTIONS)
def check_runner(
    context: typer.Context,
    engine: Annotated[
        str,
        typer.Argument(
            help="direct, prism, flink, spark, dataflow, or a TOML file with an engine and its "
            "settings.",
            metavar="ENGINE",
        ),
    ],
    out: Annotated[
        str | None,
        typer.Option(
            help="Output root of later builds: checks that every worker can access it.",
            metavar="DIR",
            show_default=False,
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="See build --help.", metavar="N", show_default=False),
    ] = None,
    flink_master: FlinkMaster = None,
    flink_jar: FlinkJar = None,
    spark_master: SparkMaster = None,
) -> None:
    """Check whether an engine can run builds: its requirements, then a small job."""
    from . import terminal
    from .pipelines.operate.check_runner import check_runner as run_check

    config = engine_of(
        engine,
        context.args,
        workers=workers,
        flink_master=flink_master,
        flink_jar=flink_jar,
        spark_master=spark_master,
    )
    report = run_check(config, out)
    for worker in report.workers:
        terminal.say(f"worker: {worker}")
    terminal.say(f"{engine} can run builds: a small job took {report.seconds:.1f} s")


@app.command("flex-template")
def flex_template(
    launcher: Annotated[
        str,
        typer.Argument(help="Image of the Dockerfile's launcher stage.", metavar="LAUNCHER"),
    ],
    worker: Annotated[
        str, typer.Argument(help="Image of the Dockerfile's worker stage.", metavar="WORKER")
    ],
) -> None:
    """Print the Flex Template with which schedulers run builds on Dataflow; upload it to gs://."""
    from . import terminal
    from .pipelines.operate.flex_template import container_spec

    terminal.say(json.dumps(container_spec(launcher=launcher, worker=worker), indent=2))


@app.command()
def export(
    snapshot: SnapshotPath,
    to: Annotated[str, typer.Option("--to", help="parquet or webdataset.", metavar="FORMAT")],
    output: Annotated[
        str,
        typer.Option(
            "--output",
            "-o",
            help="Destination: a local folder that does not exist.",
            metavar="DIR",
        ),
    ],
    split: Annotated[
        str | None,
        typer.Option(help="Only this split; by default all.", metavar="SPLIT", show_default=False),
    ] = None,
    as_json: Annotated[bool, json_option("Print one JSON object.")] = False,
) -> None:
    """Write the records of a snapshot in another format: Parquet or WebDataset."""
    from . import terminal
    from .pipelines.operate.export import export as run_export
    from .pipelines.snapshot import Snapshot

    opened = Snapshot.open(snapshot)
    with terminal.Bars() as bars:
        exported = run_export(opened, to, output, split=split, progress=bars)
    if as_json:
        terminal.say_json(dataclasses.asdict(exported))
        return
    terminal.say(
        f"exported {human_count(exported.num_examples, 'examples')} to "
        f"{human_count(exported.num_files, 'files')}, "
        f"{terminal.human_bytes(exported.num_bytes)}: {exported.folder}"
    )


@app.command("list")
def list_(
    folder: OutputFolder,
    as_json: Annotated[
        bool, json_option("Print one JSON object for each snapshot, as lines.")
    ] = False,
) -> None:
    """List the snapshots of an output root, the newest of each name first."""
    from . import terminal
    from .pipelines.inspect.listing import list_snapshots

    snapshots = list_snapshots(folder)
    if as_json:
        for snapshot in snapshots:
            terminal.say_json(dataclasses.asdict(snapshot))
        return
    rows = [
        (
            snapshot.name,
            snapshot.version,
            snapshot.fingerprint,
            snapshot.started,
            *(
                ("cannot be opened", "")
                if snapshot.problem
                else (sum(snapshot.num_examples.values()), terminal.human_bytes(snapshot.num_bytes))
            ),
            "latest"
            if snapshot.is_latest
            else ""
            if snapshot.limit is None
            else f"sample of {human_count(snapshot.limit, 'records')}",
        )
        for snapshot in snapshots
    ]
    if not rows:
        terminal.say(f"no published snapshots in {folder}")
        return
    columns = ("name", "version", "fingerprint", "built", "examples", "size", "")
    terminal.show_table("snapshots", columns, rows)
    for snapshot in snapshots:
        if snapshot.problem:
            terminal.show_warning(snapshot.problem)


@app.command()
def gc(
    folder: OutputFolder,
    keep: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Also remove published snapshots: of each name all but the N newest, the N "
            "newest samples, and the latest, which trainers follow.",
            metavar="N",
            show_default=False,
        ),
    ] = None,
    older_than: Annotated[
        str | None,
        typer.Option(
            help="Also remove published snapshots built longer ago, such as 30d or 12h; with "
            "--keep, only those that it would remove. The latest stays.",
            metavar="AGE",
            show_default=False,
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what would be removed.")
    ] = False,
    as_json: Annotated[bool, json_option("Print one JSON object that lists each file.")] = False,
) -> None:
    """Remove work that no snapshot refers to, unpublished folders, and old snapshots if asked."""
    from . import terminal
    from .pipelines.operate.gc import Retention, collect_garbage

    retention = Retention(num=keep, seconds=age_of(older_than))
    report = collect_garbage(folder, dry_run=dry_run, retention=retention)
    for path in report.links:
        terminal.show_warning(f"{path} is a symbolic link: its target was not touched.")
    for path in report.foreign:
        terminal.show_warning(
            f"The workspace {path} belongs to another output root, from which this one was copied "
            "or moved: it was not touched. If that root no longer exists, remove the workspace."
        )
    for path in report.unexplained:
        terminal.show_warning(
            f"All work beside {path} was kept, also that of removed snapshots and records: its "
            "build.json is missing or damaged, so that it is unknown what it is made of. Restore "
            "that file, or remove the snapshot, and run gc again."
        )
    if as_json:
        terminal.say_json(report.to_json())
        return
    for path in report.expired:
        terminal.say(f"{'would remove' if dry_run else 'removed'} the snapshot {path}")
    for path in report.unpublished:
        terminal.say(f"{'would remove' if dry_run else 'removed'} {path}, which is not published")
    for path in report.busy:
        terminal.show_warning(
            f"{path} was not touched: a build is using it, or one that runs step by step has yet "
            "to publish."
        )
    terminal.say(
        f"{'would free' if dry_run else 'freed'} {terminal.human_bytes(report.num_bytes)} in "
        f"{human_count(report.num_files, 'files')}"
    )


def _spare_extras(recipe: Recipe, engine: RunnerConfig) -> None:
    """Loads Beam without its extras, in a process of its own, where none is needed."""
    from .schemas.runner import Direct
    from .startup_noise import spare_extras

    if isinstance(engine, Direct) and not recipe.analyze_on_runner:
        spare_extras()


def _json_facts(snapshot: Snapshot) -> dict[str, Any]:
    manifest = snapshot.manifest
    return {
        "path": snapshot.path,
        "fingerprint": manifest.fingerprint,
        "cached": snapshot.cached,
        **({} if manifest.limit is None else {"limit": manifest.limit}),
        "num_rejects": manifest.num_rejects,
        "num_filtered": manifest.num_filtered,
        "num_missing": manifest.num_missing,
        "shared_contents": manifest.shared_contents,
        "splits": {
            name: {"num_examples": split.num_examples} for name, split in manifest.splits.items()
        },
    }


def _show_next(snapshot: Snapshot, *, seconds: float) -> None:
    """Prints what a build has made, how long it took, and what to do with it."""
    from . import terminal
    from .schemas.naming import REPORT, join
    from .transforms import storage

    splits = snapshot.manifest.splits.values()
    num_examples = human_count(sum(split.num_examples for split in splits), "examples")
    num_bytes = terminal.human_bytes(sum(split.num_bytes for split in splits))
    terminal.say(f"{num_examples}, {num_bytes}, in {terminal.human_seconds(seconds)}")
    path = shlex.quote(snapshot.path)
    terminal.say(f"to look at records: snapshard show {path}")
    if storage.exists(join(snapshot.path, REPORT)):
        terminal.say(f"what may be wrong with the data: {join(snapshot.path, REPORT)}")
    else:
        terminal.say(f"to see what may be wrong with the data: snapshard report {path}")
    if storage.is_local(snapshot.path):
        supervised = "" if snapshot.manifest.label is None else ", as_supervised=True"
        terminal.say("to train from it:")
        terminal.say(f"  import sys; sys.path.insert(0, {snapshot.path!r})")
        terminal.say("  import reader")
        terminal.say(f"  train = reader.dataset({snapshot.main_split!r}, 128{supervised})")
        terminal.say(f"to see all options of the reader: python {path}/reader")


def _show_missing(snapshot: Snapshot) -> None:
    from . import terminal

    manifest = snapshot.manifest
    counts = {name: number for name, number in manifest.num_missing.items() if number}
    total = sum(split.num_examples for split in manifest.splits.values())
    where = f"in {human_count(total, 'examples')}"
    terminal.show_missing(manifest.features, counts, label=manifest.label, where=where)


def _show_rejects(snapshot: Snapshot) -> None:
    from . import terminal
    from .pipelines.inspect.rejects import RejectFilter, RejectsFile

    excluded = snapshot.manifest.excluded
    if excluded is not None:
        number = human_count(excluded.num_ids, "ids")
        terminal.say(f"excluded: the records of {number} (sha256 {excluded.sha256[:16]}…)")
    if snapshot.manifest.num_filtered:
        number = human_count(snapshot.manifest.num_filtered, "records")
        terminal.say(f"filtered: {number} dropped by steps")
    if snapshot.manifest.num_rejects:
        number = human_count(snapshot.manifest.num_rejects, "rejects")
        reasons = RejectsFile.find(snapshot.path).count_by("reason", RejectFilter())
        most = [f"{count:,} {reason}" for reason, count in reasons.items()][:_MAX_REASONS]
        rest = ", …" if len(reasons) > len(most) else ""
        terminal.say(
            f"{number} ({visible(', '.join(most))}{rest}): snapshard rejects {snapshot.path}"
        )


def _show_labels(snapshot: Snapshot) -> None:
    """Prints how many examples of each label every split has, and which classes are missing."""
    from . import terminal
    from .transforms.runs.partitions import describe_lacking

    manifest, name = snapshot.manifest, snapshot.manifest.label
    if name is None:
        return
    counts = {split: entry.label_counts for split, entry in terminal.by_size(manifest)}
    terminal.show_labels(counts, name=name)
    if lacking := describe_lacking(counts, manifest.features.get(name), name):
        terminal.show_warning(lacking)


def _show_leaks(shared_contents: Mapping[str, int]) -> None:
    from . import terminal

    # Most first.
    shared = sorted(shared_contents.items(), key=lambda item: -item[1])
    if not shared:
        return
    places = [
        f"{human_count(number, 'equal contents')} in {' and '.join(splits.rsplit(', ', 1))}"
        for splits, number in shared[:_MAX_LEAKS]
    ]
    if rest := sum(number for _, number in shared[_MAX_LEAKS:]):
        places.append(f"{rest:,} in other combinations of splits")
    terminal.show_warning(
        f"{'; '.join(places)}. A model would be tested on data that it was trained on: drop them "
        "(ss.records.drop_duplicates()), or keep them together (Splits(…, group_by=…))."
    )


def _show_near_duplicates(snapshot: Snapshot) -> None:
    from . import terminal
    from .pipelines.snapshot import build_facts

    facts = build_facts(snapshot.path).get("near_duplicates", {})
    for splits, number in facts.get("counts", {}).items():
        earlier, _, later = splits.partition(", ")
        first = next(pair for pair in facts["pairs"] if pair["splits"] == [earlier, later])
        records = human_count(number, "records")
        verb = "resembles one" if number == 1 else "resemble records"
        terminal.show_warning(
            f"{records} of {later} {verb} of {earlier}, such as {visible(first['ids'][1])} and "
            f"{visible(first['ids'][0])}: copies with small changes? build.json lists pairs; see "
            "docs/duplicates.md."
        )


def _show_empty_splits(snapshot: Snapshot, recipe: Recipe) -> None:
    from . import terminal
    from .pipelines.plan.ranges import empty_splits

    splits = snapshot.manifest.splits
    counts = {name: split.num_examples for name, split in splits.items()}
    if empty := empty_splits(recipe.splits, counts):
        terminal.show_warning(
            f"none of the {sum(counts.values()):,} records fell into {' and '.join(empty)}. Set "
            "other fractions, or a single split, in a recipe: splits=ss.Splits(train=1.0)."
        )


def _show_serving(snapshot: Snapshot) -> None:
    from . import terminal
    from .schemas.naming import SERVING, join

    serving = snapshot.manifest.serving
    if serving is None:
        return
    if serving.inputs:
        given = ", ".join(serving.inputs)
        terminal.say(f"served by {join(snapshot.path, SERVING)}, from {given}")
    for step in serving.left_out:
        terminal.say(f"not in the model for serving: {step}")


def main(arguments: list[str] | None = None) -> None:
    """Runs the command line and exits with its code."""
    from . import terminal
    from .pipelines import endings
    from .startup_noise import tame_libraries

    terminal.prepare_streams()
    terminal.be_quiet(False)
    answers, logs = asked_forms(sys.argv[1:] if arguments is None else arguments)
    terminal.answer_in_json(answers)
    terminal.log_as_json(logs)
    tame_libraries()
    if arguments is None:
        endings.treat_signals_as_interrupts()
    try:
        code = _run(arguments)
    except KeyboardInterrupt:
        code = endings.INTERRUPTED
    except BrokenPipeError:  # the reader of the output has closed it
        code = 1
    except Exception as error:
        code = _explain(error)
    if code == endings.INTERRUPTED:  # typer converts KeyboardInterrupt to this code
        terminal.show_interruption(endings.MESSAGE)
    if arguments is None and not _WITH_THREADS.isdisjoint(sys.modules):
        # Library threads that still run may abort the interpreter at exit and change the exit code.
        with contextlib.suppress(OSError, ValueError):  # full, or closed
            terminal.flush()
        os._exit(code)
    sys.exit(code)


def _explain(error: Exception) -> int:
    """Prints what an unexpected error means; returns the exit code."""
    from . import terminal

    if sys.stdout.closed:
        terminal.show_error(
            "standard output is closed, so results cannot be shown. If the recipe, or a function "
            "that it uses, closes it (sys.stdout.close()), remove that line."
        )
        return 1
    if isinstance(error, MemoryError) or any(text in str(error) for text in _NO_MEMORY):
        message = (
            "out of memory. Provide more, or build with fewer workers. Finished work is kept: run "
            "the same command to resume."
        )
        return terminal.show_failure(message, kind="MemoryError", exit_code=1)
    terminal.show_traceback("".join(traceback.format_exception(error)))
    message = (
        "this is a defect in snapshard or in a library; running it again would not help. "
        "Report it with the traceback above."
    )
    return terminal.show_failure(message, kind=type(error).__name__, exit_code=_DEFECT)


def _fail(error: SnapshardError) -> int:
    """Prints an error that snapshard raised on purpose; returns its exit code."""
    from . import terminal

    return terminal.show_failure(
        str(error),
        kind=type(error).__name__,
        exit_code=error.exit_code,
        file=error.file,
        record=error.record,
    )


def _plain(message: str) -> str:
    """A message of typer about invalid arguments, in the words of the other errors."""
    from .schemas.config import expectation

    problem, _, similar = message.partition(" (Possible options: ")
    names = [name for name in similar.removesuffix(")").split(", ") if name not in ("", "--help")]
    return f"{problem}. Did you mean {' or '.join(names)}?" if names else expectation(problem)


@functools.cache
def _command(name: str) -> Any:
    """The command line with the one command of this name, or else all: to make all takes 60 ms."""
    chosen = copy.copy(app)
    if named := [one for one in app.registered_commands if _name_of(one) == name]:
        chosen.registered_commands = named
    return typer.main.get_command(chosen)


def _name_of(command: typer.models.CommandInfo) -> str:
    return command.name or typer.main.get_command_name(getattr(command.callback, "__name__", ""))


def _run(arguments: list[str] | None) -> int:
    from . import terminal
    from .schemas.errors import SnapshardError

    try:
        # Commands learn whether the process is theirs alone.
        alone = arguments is None
        name = next(iter(sys.argv[1:] if arguments is None else arguments), "")
        command = _command(name)
        code = command(arguments, standalone_mode=False, prog_name="snapshard", obj=alone)
        terminal.flush()
    except SnapshardError as error:
        return _fail(error)
    except typer.TyperException as error:
        if message := error.format_message():  # empty if the help was shown instead
            command = getattr(getattr(error, "ctx", None), "command_path", "snapshard")
            message = _plain(message)
            stop = "" if message.endswith((".", "?")) else "."
            message = f"{message}{stop} Try '{command} --help'."
            terminal.show_failure(message, kind="UsageError", exit_code=2)
        return 2
    except BrokenPipeError:
        raise
    except OSError as error:  # for example a full disk or a missing temporary folder: not a defect
        from .transforms.storage.failures import failing_as_storage_error

        try:
            with failing_as_storage_error("use", str(error.filename or "a file or the output")):
                raise
        except SnapshardError as explained:
            return _fail(explained)
        return 1
    return code if isinstance(code, int) else 0
