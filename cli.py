"""The command line: arguments in, calls out. What it prints is in ``terminal``.

Exit codes: 0 done, 2 usage or recipe error, 3 the data is refused, 4 a snapshot is damaged,
1 anything unexpected. Only the last shows a traceback.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from .pipelines.snapshot import Snapshot
    from .schemas.recipe import Recipe

_INTERRUPTED = 130
"""The shell's code for a program that SIGINT ended."""

app = typer.Typer(
    name="snapshard",
    help="Turns raw files into a training-ready snapshot, once: TFRecord shards and their reader.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

_Source = Annotated[
    str,
    typer.Argument(
        help="A recipe file (.py), or raw data itself: a folder of class folders of images, a "
        "CSV file or a folder of them.",
        show_default=False,
    ),
]
_SnapshotPath = Annotated[
    str,
    typer.Argument(help="A snapshot, or a folder of snapshots: then its latest."),
]


@app.command()
def build(
    source: _Source,
    out: Annotated[str, typer.Option(help="Output root: a folder or URL.")],
    workers: Annotated[int, typer.Option(min=1, help="Worker processes.")] = 1,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object as the last line.")
    ] = False,
) -> None:
    """Build the snapshot of a recipe or of raw data; a build that was cut short goes on."""
    from . import terminal
    from .pipelines.build import build as run_build

    recipe = _recipe_of(source)
    with terminal.Bars() as bars:
        snapshot = run_build(recipe, out, workers=workers, progress=bars)
    if as_json:
        terminal.flush()
        print(json.dumps(_json_facts(snapshot)))
        return
    terminal.show_splits(snapshot.manifest)
    _show_rejects(snapshot)
    state = "already built" if snapshot.cached else "built"
    terminal.out.print(f"{state}: {snapshot.path}", markup=False)


@app.command()
def init(source: _Source) -> None:
    """Print the recipe that raw data suggests, as a file worth keeping."""
    from .pipelines.suggest import recipe_text, suggest_recipe

    print(recipe_text(suggest_recipe(source)), end="")


@app.command()
def plan(source: _Source) -> None:
    """Show what a build would read and make. Writes nothing."""
    from . import terminal
    from .pipelines.forecast import forecast

    with terminal.Bars() as bars:
        found = forecast(_recipe_of(source), progress=bars)
    terminal.show_features(found.features)
    terminal.show_table(
        "splits to come",
        ("split", "examples", "shards", "size", "each shard"),
        [
            (
                split.name,
                split.num_examples,
                split.num_shards,
                terminal.human_bytes(split.num_bytes),
                terminal.human_bytes(split.num_bytes / max(1, split.num_shards)),
            )
            for split in found.splits
        ],
    )
    terminal.out.print(
        f"{found.num_files:,} files, {terminal.human_bytes(found.input_bytes)}; skipped "
        f"{sum(found.num_skipped.values()):,}. About {found.num_examples:,} examples of "
        f"{terminal.human_bytes(found.example_bytes)}, {terminal.human_bytes(found.output_bytes)} "
        f"in all; {found.memory_note}",
        markup=False,
    )
    for warning in found.warnings:
        terminal.out.print(f"warning: {warning}", markup=False)


@app.command()
def inspect(snapshot: _SnapshotPath) -> None:
    """Show what a snapshot holds."""
    from . import terminal
    from .pipelines.snapshot import Snapshot

    found = Snapshot.open(snapshot)
    manifest = found.manifest
    terminal.show_features(manifest.features)
    terminal.show_splits(manifest)
    for name, split in manifest.splits.items():
        counts: dict[str, int] = {}
        for shard in split.shards:
            for label, count in shard.label_counts.items():
                counts[label] = counts.get(label, 0) + count
        if counts:
            listed = ", ".join(f"{label} {count:,}" for label, count in sorted(counts.items()))
            terminal.out.print(f"{name}: {terminal.shorten(listed, 400)}", markup=False)
    versions = ", ".join(f"{name} {version}" for name, version in manifest.versions.items())
    terminal.out.print(
        f"compression {manifest.compression}; label {manifest.label}; seed {manifest.seed}; "
        f"fingerprint {manifest.fingerprint}\nwritten with {versions}",
        markup=False,
    )
    _show_rejects(found)
    terminal.out.print(found.path, markup=False)


@app.command()
def verify(snapshot: _SnapshotPath) -> None:
    """Check every file of a snapshot against its manifest."""
    from . import terminal
    from .pipelines.snapshot import Snapshot
    from .pipelines.verify import verify as run_verify

    found = Snapshot.open(snapshot)
    with terminal.Bars() as bars:
        checked = run_verify(found, progress=bars)
    terminal.out.print(
        f"whole: {checked.num_files:,} files, {terminal.human_bytes(checked.num_bytes)}, "
        f"{checked.num_examples:,} examples in {found.path}",
        markup=False,
    )


@app.command()
def gc(
    folder: Annotated[str, typer.Argument(help="An output root, or the folder of one name.")],
    dry_run: Annotated[bool, typer.Option(help="Only say what would go.")] = False,
) -> None:
    """Clear work that no snapshot refers to, and unpublished directories."""
    from . import terminal
    from .pipelines.gc import collect_garbage

    report = collect_garbage(folder, dry_run=dry_run)
    verb = "would free" if dry_run else "freed"
    terminal.out.print(
        f"{verb} {terminal.human_bytes(report.num_bytes)} in {report.num_files:,} files",
        markup=False,
    )


def _recipe_of(source: str) -> Recipe:
    """The recipe in a file, or the one that raw data suggests, shown."""
    if source.endswith(".py"):
        from .pipelines.staging import load_recipe_file

        return load_recipe_file(source)
    from . import terminal
    from .pipelines.suggest import recipe_text, suggest_recipe

    recipe = suggest_recipe(source)
    terminal.show_note(recipe_text(recipe))
    return recipe


def _json_facts(snapshot: Snapshot) -> dict[str, Any]:
    manifest = snapshot.manifest
    return {
        "path": snapshot.path,
        "fingerprint": manifest.fingerprint,
        "cached": snapshot.cached,
        "num_rejects": manifest.num_rejects,
        "splits": {
            name: {"num_examples": split.num_examples} for name, split in manifest.splits.items()
        },
    }


def _show_rejects(snapshot: Snapshot) -> None:
    from . import terminal
    from .schemas.naming import REJECTS

    if snapshot.manifest.num_rejects:
        terminal.out.print(
            f"{snapshot.manifest.num_rejects:,} rejects: {Path(snapshot.path) / REJECTS}",
            markup=False,
        )


def main(arguments: list[str] | None = None) -> None:
    """Runs the command line and exits with its code."""
    from . import terminal
    from .schemas.errors import SnapshardError

    # TensorFlow and Beam talk a lot; what a user should know, snapshard says.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        code = app(arguments, standalone_mode=False, prog_name="snapshard")
    except SnapshardError as error:
        terminal.show_error(str(error))
        code = error.exit_code
    except typer.TyperException as error:
        if message := error.format_message():  # none where the help was shown instead
            terminal.show_error(f"{message} Try 'snapshard --help'.")
        code = 2
    except typer.Abort:
        code = _INTERRUPTED
    except BrokenPipeError:
        code = 1
    if code == _INTERRUPTED:  # typer makes it of a KeyboardInterrupt
        terminal.show_error("interrupted. What is done is kept: the same command goes on.")
    terminal.flush()
    sys.exit(code if isinstance(code, int) else 0)
