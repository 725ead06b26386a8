"""Checks before a build starts: places that cannot be used for its output or source."""

from __future__ import annotations

import os

from fsspec.registry import known_implementations

from ..schemas.blocks import SourceFile
from ..schemas.config import is_unicode
from ..schemas.errors import PlaceError, RecipeError
from ..schemas.naming import MANIFEST, OutputPaths
from ..schemas.recipe import Recipe, Source
from ..schemas.runner import JobRunner
from ..transforms import storage
from ..transforms.sources.combined import sources_of
from ..transforms.storage.opened_source import OpenedSource, open_source


def refuse_memory_of_one_process(recipe: Recipe, out: OutputPaths, runner: JobRunner) -> None:
    """Refuses ``memory://``, and local disks, if workers cannot access them.

    Raises:
        RecipeError: if the source or the output is there, or an analysis on the engine could not
            keep its temporary files in the workspace.
    """
    if runner.shares_memory:
        return
    urls = [url for source in sources_of(recipe.source) for url in (source.url, *source.side_urls)]
    for url in (*urls, out.out, out.workspace):
        if not runner.sees_local_files and storage.is_local(url.rpartition("::")[2]):
            raise RecipeError(
                f"{storage.redact(url)} is on this machine, where no worker of {runner.name} can "
                f"{'read' if url in urls else 'write'} it. Put it on an object store that they "
                "can access, and give its URL, such as gs://bucket/folder."
            )
        if storage.is_in_memory(url):
            raise RecipeError(
                f"{storage.redact(url)} is in the memory of this process, where no worker "
                "process can read or write it. Build with workers=1, or put it into files."
            )
    if recipe.analyze_on_runner and not (
        runs_here(runner) or is_reached_by_tensorflow(out.workspace)
    ):
        raise RecipeError(
            "analyze_on_runner keeps TensorFlow's temporary files in the workspace, and "
            f"TensorFlow cannot write to {storage.redact(out.workspace)}. Put the output, or only "
            "the workspace, on gs://, hdfs:// or a disk that all workers share; or leave "
            "analyze_on_runner= out of the recipe: the analysis then runs in one process on this "
            "machine."
        )


def runs_here(runner: JobRunner) -> bool:
    """Whether all workers run on this machine."""
    return runner.shares_memory or runner.name in ("direct", "prism")


def is_reached_by_tensorflow(url: str) -> bool:
    """Whether TensorFlow and Beam can write there directly."""
    return storage.is_local(url) or url.startswith(("gs://", "hdfs://"))


def refuse_output_among_data(recipe: Recipe, out: OutputPaths) -> None:
    """Refuses an output that the next build would read as records.

    Raises:
        RecipeError: if the output's folder is inside the source, and the source would read it.
    """
    for source in sources_of(recipe.source):
        _refuse_output_in(source, open_source(source.url, recipe.folder), out)


def _refuse_output_in(source: Source, opened: OpenedSource, out: OutputPaths) -> None:
    if not opened.local or opened.single or opened.pattern:
        return
    root = os.path.realpath(storage.local_path(opened.root))
    for what, folder in (("output", out.folder), ("workspace", out.workspace)):
        if not storage.is_local(folder):
            continue
        inside = os.path.relpath(os.path.realpath(storage.local_path(folder)), root)
        written = SourceFile(path=f"{inside}/{MANIFEST}", num_bytes=1, stamp="")
        if inside.split(os.sep)[0] != os.pardir and source.select([written]).files:
            raise RecipeError(
                f"The {what} {folder} is inside the source {opened.shown}: the next build would "
                "read it as data. Choose a folder outside the source."
            )


def check_place(place: object, argument: str) -> None:
    """Checks that a place can be a folder to write to, before anything is read.

    Args:
        place: A path or URL.
        argument: Name of the argument in messages.

    Raises:
        RecipeError: if it is not a path or URL, is empty, not valid UTF-8, or only a protocol.
        PlaceError: if it is a file.
    """
    if not isinstance(place, str | os.PathLike) or not isinstance(os.fspath(place), str):
        raise RecipeError(f"{argument}={place!r}, expected a folder or URL.")
    url = os.fspath(place)
    if not url:
        raise RecipeError(f"{argument} is empty, expected a folder or URL.")
    if "\0" in url or not is_unicode(url):
        # The snapshot's files contain its folder's name, and they are UTF-8.
        raise RecipeError(f"{argument}={url!r} is not valid UTF-8 text. Choose another place.")
    if not storage.is_local(url):
        if not url.partition("://")[2].strip("/"):
            raise RecipeError(
                f"{argument}: {url} is only a protocol, expected a folder or URL, such as "
                f"{url.rstrip('/')}//bucket/folder."
            )
        return
    protocol, mistyped, rest = url.partition(":/")
    if mistyped and not rest.startswith("/") and protocol in known_implementations:
        is_file = protocol in ("file", "local")
        missing = "slashes: write /" if is_file else f"a slash: write {protocol}://"
        raise RecipeError(
            f"{argument}: {url} is missing {missing}{rest}, or ./{url} for a folder of that name."
        )
    path = storage.local_path(url)
    if os.path.exists(path) and not os.path.isdir(path):
        raise PlaceError(f"{argument}: {path} is a file, expected a folder. Choose another place.")
