"""Suggests a recipe for raw data: as a Recipe, and as the text of a recipe file."""

from __future__ import annotations

import contextlib
import dataclasses
import fnmatch
import glob
import itertools
import os
import re
import shlex
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from types import MappingProxyType
from typing import Any

from ...schemas.blocks import SourceFile
from ...schemas.config import is_unicode
from ...schemas.errors import DataError, RecipeError, SnapshardError
from ...schemas.features import (
    ClassLabel,
    Feature,
    Features,
    Scalar,
    Struct,
    Tensor,
    Timestamp,
    is_optional,
    nest,
    written,
)
from ...schemas.limits import DEFAULT_LIMITS
from ...schemas.naming import LATEST, MANIFEST, SCHEMA, Workspace, join
from ...schemas.progress import Silent
from ...schemas.recipe import (
    ExtractedSource,
    PrepareStep,
    Recipe,
    SelectsRows,
    Source,
    reads_files,
)
from ...schemas.splits import Splits
from ...schemas.visible import human_count
from ...schemas.wire import FLOATS
from ...transforms import storage
from ...transforms.prepare import audio, images
from ...transforms.prepare.tables import Stack
from ...transforms.sources.combined import Sources, open_files, urls_of
from ...transforms.sources.csv.source import Csv
from ...transforms.sources.folders.arrays import ArrayFolder
from ...transforms.sources.folders.audio import AudioFolder, read_headers
from ...transforms.sources.folders.bystanders import is_document
from ...transforms.sources.folders.clips import ClipFolder
from ...transforms.sources.folders.files import LabelledFolder
from ...transforms.sources.folders.images import ImageFolder, infer_image_steps
from ...transforms.sources.folders.labels import LABEL, file_name
from ...transforms.sources.folders.side_tables import csv_source
from ...transforms.sources.folders.texts import TextFolder
from ...transforms.sources.json.source import JsonLines
from ...transforms.sources.tfrecord.source import TFRecords
from ...transforms.storage.opened_source import (
    OpenedSource,
    is_hidden,
    open_source,
    path_below,
)
from ..recognize.data import recognize
from ..recognize.readings import Reading, UnclearError, quoted, source_text
from ..recognize.record_bytes import pixel_sizes, square_image
from ..recognize.split_columns import splits_in_column
from ..recognize.view import View
from ..survey.inference_cache import infer_features
from ..survey.resolve import resolve_features
from ..survey.telltales import relevant
from ..survey.texts import TextColumn, read_integers, read_texts
from .forecast import forecast

_SNIFFED_BYTES = 1 << 20
_MANY_COLUMNS = 50
"""From so many numbered columns of one dtype, ``init`` suggests to stack them."""
_FALLBACK_RATE = 16_000
"""If no rate has a majority: the rate that most speech models expect."""
_MIN_FILES_PER_CLASS = 10
"""With fewer files for each class, proportions in splits of a tenth mean nothing."""
_COUNTED_BYTES = 256 << 20
"""Up to this size, ``init`` counts the records of each split."""
_SMALL_BYTES, _FEW_FILES = 256 << 10, 300
"""Up to this size or number, data may be too little for the usual splits."""
_RECORDS: Mapping[type, str] = {
    ImageFolder: "an image",
    AudioFolder: "a sound",
    TextFolder: "a text file",
    ArrayFolder: "an array file",
    ClipFolder: "a folder of frames",
}
_ONE_SPLIT = Splits(train=1.0)
_USUAL = Splits(train=0.8, validation=0.1, test=0.1)
_MAX_CLASSES = 20
"""Maximum number of different values that are suggested as classes."""
_MIN_REPEATS = 5
"""Values of classes occur at least this often, on average."""
_WIDTH = 88
_COMMENT_WIDTH = 69
"""Comments between features then have 79 columns."""
_INDENT = " " * 4
_NO_CREDENTIALS = "# Credentials are left out of the URL: set them in the environment."
_GUESSED = "# The text is not UTF-8; its encoding is a guess. Look at words beyond ASCII."
_FEW = "# Too few records for train=0.8, validation=0.1, test=0.1: one of them would be empty."
_HEAD = '"""Build it: snapshard build FILE --out DIR. Paths are relative to this file."""\n\n'
_IMPORT = "import snapshard as ss\n\n"


def suggest_recipe(url: str) -> Recipe:
    """Suggests a recipe for raw data: folders of images or sounds, or tables.

    Tables are CSV, Parquet, Arrow, Feather, JSON Lines, NumPy and TFRecord files, and Hugging Face
    datasets: the format of most files is chosen. If most are texts, each line is a record.

    Images of one size are stored unchanged; images of several sizes are resized to the size that
    most have, or to 256×256 with the aspect ratio kept if none has a majority. Sounds likewise.

    Raises:
        RecipeError: if nothing is there, or it is already a recipe.
        DataError: if it is empty or of an unknown kind.
    """
    return suggest(url)[0]


def suggest(url: str) -> tuple[Recipe, tuple[str, ...]]:
    """Like :func:`suggest_recipe`, with what was seen and why the recipe follows, for people."""
    found = _suggest(url)
    recipe = found.recipe
    if _are_few(recipe, found.files):
        recipe = _with_splits_that_fill(recipe)
    return recipe, found.notes


def describe_suggestion(
    url: str, *, label: str | None = None, folder: str = ".", reading: int | None = None
) -> str:
    """The text of the suggested recipe's file, with the features found declared.

    The next build then refuses data that no longer has them. Beyond :func:`suggest_recipe`, texts
    of tables that are all ISO 8601 times are declared as such, the label of a table is its column
    ``label`` if there is one, and comments show what else a column of strings could be.

    Args:
        url: The raw data.
        label: The column to predict. A label of a few different integers becomes a class.
        folder: The folder of the recipe's file: relative paths are relative to it.
        reading: Which of the readings of a folder with several is meant, from 1.

    Raises:
        RecipeError: if nothing is there, it is already a recipe, or it has no such label or
            reading.
        DataError: if it is empty or of an unknown kind, or its features cannot be inferred.
    """
    found = _suggest(url, label=label, number=reading)
    with _extracted(found) as suggestion:
        return _describe(suggestion, found.recipe.source, folder)


@contextlib.contextmanager
def _extracted(found: _Suggestion) -> Iterator[_Suggestion]:
    """The suggestion with a source of files; records that are in none are extracted for it."""
    source: Any = found.recipe.source
    if reads_files(source):
        yield found
        return
    with storage.temporary_folder() as scratch:
        source = source.extract(Workspace(scratch).extracted, base=".")
        opened = open_files(source, ".", found.opened.limits)
        files = source.select(opened.list()).files
        recipe = _changed(found.recipe, source=source)
        yield dataclasses.replace(found, recipe=recipe, opened=opened, files=files)


def _describe(found: _Suggestion, source: Source | ExtractedSource, folder: str) -> str:
    """The text of a recipe file with all features; ``source`` is what it names."""
    recipe, opened, files = found.recipe, found.opened, found.files
    inferred = infer_features(recipe.files, files, opened)
    if recipe.source.label is None and LABEL in inferred.features:
        recipe = _labelled(recipe, LABEL)
        inferred = infer_features(recipe.files, files, opened)
    resolved = resolve_features(recipe, inferred)
    features, hints = dict(resolved.prepared), dict[str, Hint]()
    name = recipe.source.label
    if (table := _table_of(recipe, files, opened)) is not None:
        columns = read_texts(table.source, table.files, table.opened, features)
        pixels = _pixels(recipe.files, files, opened)
        for column_name, column in columns.items():
            if column_name in pixels:
                hints[column_name] = pixels[column_name]
                continue
            features[column_name], hint = _look_again(
                features[column_name], column, table.source, recipe.files
            )
            if hint is not None:
                hints[column_name] = hint
        if name in features:
            features[name] = _numbered_class(table, name, features[name])
    feature = features.get(name or "")
    if isinstance(feature, ClassLabel) and not _is_tiny(feature, files, media=_of_files(recipe)):
        recipe = _changed(recipe, splits=_stratified(recipe.splits, name))
    # Without a header, the label is one of the numbered columns.
    whole = recipe.files
    tables = [part for _, part in whole.sources] if isinstance(whole, Sources) else [whole]
    is_known = name is not None or all(getattr(table, "header", True) for table in tables)
    stacks = _stacks(features, label=name) if is_known else []
    for stack in stacks:
        features = dict(stack.features(features))
    recipe = _changed(recipe, prepare=(*recipe.prepare, *stacks))
    if sum(file.num_bytes for file in files) <= _COUNTED_BYTES:
        recipe = _with_splits_that_fill(recipe)
    if not reads_files(source):
        recipe = _changed(recipe, source=_with_label(source, name))
    seen = _seen_from(recipe, folder)
    remarks = relevant(inferred.remarks, recipe.splits)
    said = tuple(dict.fromkeys((*found.notes, *remarks)))  # splits may have the same
    return recipe_text(seen, features, resolved.structs, hints=hints, notes=said)


def write_suggestion(
    url: str,
    file: str,
    *,
    label: str | None = None,
    reading: int | None = None,
    replace: bool = False,
) -> None:
    """Writes the suggested recipe to a file; local paths in it are relative to that file.

    Args:
        url: The raw data.
        file: A local path that ends in ``.py``.
        label: The column to predict.
        reading: Which of several readings is meant, from 1.
        replace: Whether to replace an existing file.

    Raises:
        RecipeError: if the file exists, its folder does not, or it is not a ``.py`` file.
        SnapshardError: as for :func:`describe_suggestion`.
    """
    folder = os.path.dirname(file) or "."
    if not file.endswith(".py"):
        raise RecipeError(f"--output: {file} does not end in .py, as recipe files do.")
    if not os.path.isdir(folder):
        raise RecipeError(f"--output: the folder {folder} does not exist.")
    if os.path.lexists(file) and not replace:
        raise RecipeError(f"--output: {file} exists. Give another name, or replace it: --force.")
    text = describe_suggestion(url, label=label, folder=folder, reading=reading)
    storage.put_bytes(os.path.abspath(file), text.encode())


def describe_inferred(recipe: Recipe, notes: Sequence[str], url: str) -> str:
    """The text of a recipe that was inferred for a build, and the command that writes it to a file.

    Args:
        recipe: What :func:`suggest` returned.
        notes: What it said of the data.
        url: The raw data.
    """
    has_columns = _takes_label(recipe.source) and _may_have_label(recipe)
    label = " --label COLUMN" if has_columns else ""
    data = shlex.quote(storage.redact(url))
    return (
        "The recipe, inferred from the data. To keep and change it: "
        f"snapshard init {data}{label} -o recipe.py\n\n"
        + recipe_text(recipe, notes=notes).removeprefix(_HEAD)
    )


def _may_have_label(recipe: Recipe) -> bool:
    """Whether a column may be the label, and none is named."""
    of_columns = not recipe.source.media or getattr(recipe.source, "table", None) is not None
    return of_columns and recipe.source.label is None


@dataclasses.dataclass(frozen=True)
class Hint:
    """What a feature could be instead, for a comment."""

    reason: str
    other: Feature | None = None


@dataclasses.dataclass(frozen=True)
class _Table:
    """Files of rows, whose columns are features."""

    source: Source
    files: Sequence[SourceFile]
    opened: OpenedSource


def _table_of(recipe: Recipe, files: Sequence[SourceFile], opened: OpenedSource) -> _Table | None:
    """The table that a source reads: its own files, or the one that labels images or sounds."""
    source = recipe.source
    if not _of_files(recipe):
        return _Table(recipe.files, files, opened)
    if not isinstance(source, LabelledFolder):
        return None
    if not isinstance(source.table, str) or getattr(source, "boxes", None) is not None:
        return None
    if not file_name(source.table).lower().endswith((".csv", ".tsv")):
        return None
    beside = open_source(source.table, ".")
    (file,) = beside.list()
    table = csv_source(file_name(source.table), beside.read(file.path, 0, _SNIFFED_BYTES))
    return _Table(table, [file], beside)


def _of_files(recipe: Recipe) -> bool:
    """Whether each record is a file, or several: TFRecords with images are a table, too."""
    return recipe.source.media and not isinstance(recipe.source, TFRecords)


def _look_again(
    feature: Feature, column: TextColumn, table: Source, source: Source
) -> tuple[Feature, Hint | None]:
    """The feature of a column of strings, if it is more than that, and what else it could be."""
    assert isinstance(feature, Scalar)
    kind, optional = column.kind or "", feature.optional
    unit: Any = kind.removeprefix("time ")
    if unit != kind and column.is_uniform and isinstance(table, Csv | JsonLines):
        return Timestamp(unit, optional=optional), None
    if isinstance(source, Csv) and source.thousands is None and (found := column.thousands()):
        return feature, Hint(found)
    # Other sources do not read numbers in texts.
    if isinstance(table, Csv | JsonLines) and (found := column.explain()):
        if isinstance(source, Csv) and (setting := column.null_values()):
            fix, optional = f"If that means a missing value, add {setting} to the source, and", True
        else:
            fix = "To reject the others (see max_rejects=),"
        other: Feature = (
            Scalar(column.dtype, optional=optional)
            if unit == kind
            else Timestamp(unit, optional=optional)
        )
        return feature, Hint(f"{found}. {fix} declare:", other)
    if column.num_cells and column.are_lists:
        reads = "json.loads in a step ss.records.map_python reads them."
        return feature, Hint(f"Lists as JSON: {reads}")
    if column.are_with_units and column.with_unit:
        return feature, Hint(
            f"Numbers with other characters, such as {column.with_unit!r}: a step "
            "ss.records.map_python can make numbers of them."
        )
    texts = sorted(column.texts or ())
    if len(texts) < 2 or len(texts) * _MIN_REPEATS > column.num_cells:
        return feature, None
    if len(texts) <= _MAX_CLASSES and column.complete and all(map(is_unicode, texts)):
        other = ClassLabel(tuple(texts), optional=optional)
        return feature, Hint(f"{len(texts)} different texts. To read them as classes:", other)
    return feature, Hint(
        f"{len(texts):,} different texts: a vocabulary makes numbers of them, with "
        "tft.compute_and_apply_vocabulary in a preprocessing_fn."
    )


def _pixels(source: Source, files: Sequence[SourceFile], opened: OpenedSource) -> dict[str, Hint]:
    """What the bytes in TFRecords that all have one length could be."""
    if not isinstance(source, TFRecords):
        return {}
    hints = {}
    for name, num_bytes in pixel_sizes(files, opened).items():
        reason = f"Each has {num_bytes:,} bytes. If these are pixels, declare ss.Image(HEIGHT, "
        reason += "WIDTH, CHANNELS), for example:"
        hints[name] = Hint(reason, square_image(num_bytes))
    return hints


def _numbered_class(table: _Table, name: str, feature: Feature) -> Feature:
    """A label of integers as a class, if there are only a few different ones."""
    if not isinstance(feature, Scalar) or feature.dtype != "int64" or feature.optional:
        return feature
    values = read_integers(table.source, table.files, table.opened, name)
    if values is None or not 2 <= len(values) <= _MAX_CLASSES:
        return feature
    if len(values) * _MIN_REPEATS > values.total():
        return feature
    return ClassLabel({value: str(value) for value in sorted(values)})


def _stratified(splits: Splits, label: str | None) -> Splits:
    """Splits by fractions, each with the same proportions of the label's classes."""
    if not splits.fractions or label is None or splits == _ONE_SPLIT:
        return splits
    return _by_fractions(splits, stratify_by=label)


def _by_fractions(splits: Splits, *, stratify_by: str | None, allow_empty: bool = False) -> Splits:
    fractions: dict[str, Any] = dict(splits.fractions)
    return Splits(**fractions, stratify_by=stratify_by, allow_empty=allow_empty)


def _labelled(recipe: Recipe, label: str) -> Recipe:
    """The recipe with another label of its source."""
    return _changed(recipe, source=_with_label(recipe.files, label))


def _takes_label(source: Source | ExtractedSource) -> bool:
    if isinstance(source, Sources):
        return all(_takes_label(part) for _, part in source.sources)
    return any(field.name == "label" for field in dataclasses.fields(source))  # type: ignore[arg-type]


def _with_label(source: Any, label: str | None) -> Any:
    if not _takes_label(source):
        raise RecipeError(f"{type(source).__name__} has no columns, so label={label!r} is not one.")
    if isinstance(source, Sources):
        return Sources(**{name: _with_label(part, label) for name, part in source.sources})
    return dataclasses.replace(source, label=label)


def _seen_from(recipe: Recipe, folder: str) -> Recipe:
    """The recipe with local paths relative to a folder. Absolute paths outside of it are kept."""
    return _changed(recipe, source=_source_seen_from(recipe.source, folder))


def _source_seen_from(source: Any, folder: str) -> Any:
    if isinstance(source, Sources):
        parts = {name: _source_seen_from(part, folder) for name, part in source.sources}
        return Sources(**parts)
    changes: dict[str, Any] = {}
    places = {"url", "shards", "table", "names", "beside", "lists"}
    for name in places & {field.name for field in dataclasses.fields(source)}:
        place = getattr(source, name)
        if isinstance(place, str):
            changes[name] = _relative(place, folder)
        elif isinstance(place, Mapping):
            changes[name] = {key: url and _relative(url, folder) for key, url in place.items()}
    return dataclasses.replace(source, **changes)


def _relative(url: str, folder: str) -> str:
    """A local path as seen from a folder; other URLs unchanged.

    >>> _relative("data/t.csv", "recipes"), _relative("s3://bucket/t.csv", "recipes")
    ('../data/t.csv', 's3://bucket/t.csv')
    >>> _relative("zip://*::data/t.zip", "data"), _relative("data", ".")
    ('zip://*::t.zip', 'data')
    """
    outer, chained, path = url.rpartition("::")
    if not storage.is_local(path) or "://" in path or os.path.realpath(folder) == os.getcwd():
        return url
    absolute, base = os.path.abspath(path), os.path.abspath(folder)
    seen = os.path.relpath(absolute, base)
    if os.path.isabs(path) and seen.startswith(os.pardir):
        return url
    # Through a link, ".." leads elsewhere.
    if os.path.realpath(os.path.join(base, seen)) != os.path.realpath(absolute):
        seen = absolute
    return f"{outer}{chained}{seen}"


def _with_splits_that_fill(recipe: Recipe) -> Recipe:
    """The recipe, with a single split if a build would refuse the usual ones as empty."""
    if not recipe.splits.fractions:
        return recipe
    for label in dict.fromkeys((recipe.splits.stratify_by, None)):
        splits = _by_fractions(recipe.splits, stratify_by=label)
        counted = _by_fractions(recipe.splits, stratify_by=label, allow_empty=True)
        try:
            found = forecast(_changed(recipe, splits=counted), progress=Silent())
        except SnapshardError:
            return recipe  # a build will report the error
        if all(split.num_examples for split in found.splits):
            return _changed(recipe, splits=splits)
    return _changed(recipe, splits=_ONE_SPLIT)


def _stacks(features: Features, *, label: str | None) -> list[Stack]:
    """Steps that stack many columns of one dtype whose names differ in a number alone."""
    numbered = (re.fullmatch(r"(.*?)\d+", name) for name in features)
    prefixes = Counter(found[1] for found in numbered if found)
    free = (name for n in itertools.count(1) if (name := f"x{n}" if n > 1 else "x") not in features)
    stacks: list[Stack] = []
    for prefix, num in prefixes.items():
        pattern = f"{glob.escape(prefix)}[{int(label == f'{prefix}0')}-9]*"
        if num < _MANY_COLUMNS or (label is not None and fnmatch.fnmatchcase(label, pattern)):
            continue
        of = [feature for name, feature in features.items() if fnmatch.fnmatchcase(name, pattern)]
        is_float = all(isinstance(one, Scalar) and one.dtype in FLOATS for one in of)
        fill = float("nan") if is_float and any(map(is_optional, of)) else None
        stack = Stack(names=pattern, to=next(free), fill=fill)
        with contextlib.suppress(RecipeError):  # columns of several dtypes, or missing integers
            stack.features(features)
            stacks.append(stack)
    return stacks


def _changed(recipe: Recipe, **changes: Any) -> Recipe:
    made = dataclasses.replace(recipe, **changes)
    object.__setattr__(made, "folder", recipe.folder)
    return made


def recipe_text(
    recipe: Recipe,
    features: Features | None = None,
    structs: Sequence[str] = (),
    *,
    hints: Mapping[str, Hint] = MappingProxyType({}),
    notes: Sequence[str] = (),
) -> str:
    """The text of a recipe file that defines an equal recipe of built-in parts.

    ``features`` are declared, so the next build enforces them; the fields of ``structs`` are
    nested in these. ``hints`` become comments above features, ``notes`` above the source.
    Credentials in the source's URL are left out.
    """
    # The repr of a built-in step is the code that makes it.
    steps = [repr(step) for step in recipe.prepare]
    source = f"source={source_text(recipe.source)},"
    bare = source
    for place in urls_of(recipe.source):
        if not storage.is_local(place):
            bare = bare.replace(written(place), written(storage.redact(place)))
    lines = [
        f"name={written(recipe.name)},",
        bare,
        _list_of(steps, "prepare"),
        f"splits=ss.{recipe.splits!r},",
    ]
    if _may_have_label(recipe):
        lines.insert(1, '# Add label="COLUMN" to name the column to predict.')
    if getattr(recipe.source, "encoding", "utf-8") not in ("utf-8", "utf-16-le", "utf-16-be"):
        lines.insert(1, _GUESSED)
    if recipe.splits == _ONE_SPLIT:
        lines.insert(-1, _FEW)
    if bare != source:
        lines.insert(1, _NO_CREDENTIALS)
    wrapped = (textwrap.wrap(note, _WIDTH - len(_INDENT) - len("# ")) for note in notes)
    lines[1:1] = [f"# {line}" for line in itertools.chain.from_iterable(wrapped)]
    if recipe.max_rejects is not None:
        lines.append(f"max_rejects={recipe.max_rejects!r},")
    if features is not None:
        lines.append("features={")
        for name, feature in nest(features, structs).items():
            lines += textwrap.indent(_declared(name, feature, hints), _INDENT).splitlines()
        lines.append("},")
    body = textwrap.indent("\n".join(lines), _INDENT)
    return f"{_HEAD}{_IMPORT}recipe = ss.Recipe(\n{body}\n)\n"


def _list_of(values: Sequence[str], name: str) -> str:
    """An argument that is a list, on one line if it fits."""
    line = f"{name}=[{', '.join(values)}],"
    if len(line) <= _WIDTH - len(_INDENT):
        return line
    return f"{name}=[\n" + "".join(f"{_INDENT}{value},\n" for value in values) + "],"


def _declared(
    name: str, feature: Feature | Struct, hints: Mapping[str, Hint], outer: str = ""
) -> str:
    """One feature's line, or several if it has comments, many classes or fields."""
    if isinstance(feature, Struct):
        below = f"{outer}{name}."
        inner = "\n".join(_declared(*field, hints, below) for field in feature.fields.items())
        inner = f"{{\n{textwrap.indent(inner, _INDENT)}\n}}"
        return f"{written(name)}: ss.Struct(\n{textwrap.indent(inner, _INDENT)}\n),"
    hint = hints.get(f"{outer}{name}")
    if hint is None:
        return _declaration(name, feature)
    lines = textwrap.wrap(
        hint.reason, _COMMENT_WIDTH, break_long_words=False, break_on_hyphens=False
    )
    if hint.other is not None:
        lines += _declaration(name, hint.other).splitlines()
    return "\n".join([*(f"# {line}" for line in lines), _declaration(name, feature)])


def _declaration(name: str, feature: Feature) -> str:
    line = f"{written(name)}: {written(feature)},"
    is_class = isinstance(feature, ClassLabel) and not feature.values
    if len(line) <= _WIDTH or not (is_class or (isinstance(feature, Tensor) and feature.names)):
        return line
    assert isinstance(feature, ClassLabel | Tensor)
    lines = [""]
    for text in map(written, feature.names or ()):
        if lines[-1] and len(lines[-1]) + len(text) > _WIDTH - 8:
            lines.append("")
        lines[-1] += f" {text}," if lines[-1] else f"{text},"
    names = textwrap.indent("\n".join(lines), 2 * _INDENT)
    if isinstance(feature, Tensor):
        before = f"{_INDENT}{written(feature.dtype)},\n{_INDENT}{feature.shape},\n{_INDENT}names=("
        return f"{written(name)}: ss.Tensor(\n{before}\n{names}\n{_INDENT}),\n),"
    optional = f",\n{_INDENT}optional=True," if feature.optional else ""
    return f"{written(name)}: ss.ClassLabel(\n{_INDENT}(\n{names}\n{_INDENT}){optional}\n),"


@dataclasses.dataclass(frozen=True)
class _Suggestion:
    """A recipe for raw data, and the data as it was listed."""

    recipe: Recipe
    opened: OpenedSource
    files: Sequence[SourceFile]
    """Those that the source selects."""
    notes: tuple[str, ...]


def _suggest(url: str, *, label: str | None = None, number: int | None = None) -> _Suggestion:
    if not url:
        raise RecipeError("The source is empty, expected a path or URL.")
    if url.endswith(".py"):
        raise RecipeError(f"{url} is already a recipe. Build it: snapshard build {url} --out DIR")
    opened = open_source(url, ".")
    listed = opened.list()
    empty_folders = sorted(opened.empty_folders)
    if not listed:
        raise DataError(f"{opened.shown} holds no files. Put the data there, or correct the path.")
    _refuse_snapshots(opened.shown, {file.path for file in listed})
    reading = _chosen(url, listed, opened, label=label, number=number)
    source = reading.source
    if label is not None and source.label != label:
        source = _with_label(source, label)
    if not reads_files(source):
        recipe = Recipe(name=_name_of(url), source=source, splits=reading.splits or _USUAL)
        object.__setattr__(recipe, "folder", ".")
        return _Suggestion(recipe, opened, _files_of(source), ())
    unread: tuple[str, ...] = ()
    if getattr(source, "url", None) != url:
        unread = _say_unread(url, source, listed)
        opened = open_files(source, ".", opened.limits)
        listed = opened.list()
    selection = source.select(listed)
    if isinstance(source, SelectsRows):
        selection = source.select_listed(selection, opened)
    splits, steps = reading.splits, _steps(source, selection.files, opened)
    if splits is None and not source.media:
        splits = splits_in_column(source, selection.files, opened)
    splits = splits or _USUAL
    if isinstance(source, LabelledFolder):
        records = [file for file in selection.files if not file.of]
        splits = _stratified_by_class(splits, source, records, opened)
    recipe = Recipe(
        name=_name_of(url),
        source=source,
        prepare=steps,
        splits=splits,
        max_rejects=reading.num_rejects or None,
    )
    object.__setattr__(recipe, "folder", ".")
    notes = (
        *_notes_on(reading, selection.num_skipped, empty_folders),
        *unread,
        *filter(None, map(_said_of, steps)),
    )
    return _Suggestion(recipe, opened, selection.files, notes)


def _chosen(
    url: str,
    listed: Sequence[SourceFile],
    opened: OpenedSource,
    *,
    label: str | None,
    number: int | None,
) -> Reading:
    """The only reading of a folder, or the one of this number.

    Raises:
        RecipeError: if there is none of this number.
        UnclearError: if there are several, and no number is given.
    """
    try:
        readings: Sequence[Reading] = [recognize(View(url, tuple(listed), opened, label))]
    except UnclearError as error:
        readings = [_that_fill(reading) for reading in error.readings]
        if number is None:
            raise error.with_readings(readings) from None
    if number is not None and not 1 <= number <= len(readings):
        raise RecipeError(
            f"--reading: {number}, but {opened.shown} has {len(readings)} readings: "
            f"{'; '.join(reading.line() for reading in readings) or 'none'}."
        )
    return readings[0 if number is None else number - 1]


def _notes_on(
    reading: Reading, num_skipped: Mapping[str, int], empty_folders: Sequence[str]
) -> tuple[str, ...]:
    """What a record is, where its label comes from, which files are skipped, and empty folders."""
    what = _RECORDS.get(type(reading.source))
    if what is None:
        return reading.notes
    kinds = ", ".join(f"{reason} ({number:,})" for reason, number in num_skipped.items())
    skipped = [f"Skipped: {kinds}."] if kinds else []
    shown = quoted(empty_folders)
    empty = [f"Empty folders, which are no classes: {shown}."] if empty_folders else []
    return (f"A record is {what}, {reading.means}.", *reading.notes, *skipped, *empty)


def _say_unread(url: str, source: Any, listed: Sequence[SourceFile]) -> tuple[str, ...]:
    """What is said of files outside of the folder of media that is read."""
    if not isinstance(source, LabelledFolder):
        return ()
    read = urls_of(source)
    places = [path_below(place, url) for place in read]
    if not places[0] or glob.has_magic(places[0]):
        return ()
    outside = [
        file.path
        for file in listed
        if file.num_bytes
        and not is_hidden(file.path)
        and not is_document(file.path)
        and not any(place and f"{file.path}/".startswith(f"{place}/") for place in places)
    ]
    if not outside:
        return ()
    number = human_count(len(outside), "files")
    return (
        f"Not read: {number} outside of {read[0]} (first: {outside[0]!r}). If they hold labels, "
        "splits or annotations, name them in the source.",
    )


def _refuse_snapshots(url: str, paths: Set[str]) -> None:
    """Refuses a snapshot, and the folder of all snapshots of a name."""
    if {MANIFEST, SCHEMA} <= paths:
        what, shards = "a snapshot", "*.tfrecord*"
    elif LATEST in paths and any(path.endswith(f"/{MANIFEST}") for path in paths):
        what, shards = "a folder of snapshots", "FINGERPRINT/*.tfrecord*"
    else:
        return
    raise RecipeError(
        f"{url} is {what}, not raw data. Read it: snapshard.load({url!r}). To prepare its examples "
        f"again, name its shards: {join(url, shards)}"
    )


def _that_fill(reading: Reading) -> Reading:
    """The reading, with a single split where the usual ones would be refused as empty."""
    if reading.splits is not None:
        return reading
    recipe = Recipe(name="reading", source=reading.source, splits=_USUAL)
    object.__setattr__(recipe, "folder", ".")
    files = _files_of(reading.source)
    few = _are_few(recipe, files) and _with_splits_that_fill(recipe).splits == _ONE_SPLIT
    return dataclasses.replace(reading, splits=_ONE_SPLIT) if few else reading


def _files_of(source: Any) -> Sequence[SourceFile]:
    """The files that a source reads."""
    if not reads_files(source):
        return [file for url in urls_of(source) for file in open_source(url, ".").list()]
    return source.select(open_files(source, ".", DEFAULT_LIMITS).list()).files


def _are_few(recipe: Recipe, files: Sequence[SourceFile]) -> bool:
    """Whether the usual splits may be too many."""
    is_small = sum(file.num_bytes for file in files) <= _SMALL_BYTES
    return is_small or (_of_files(recipe) and len(files) <= _FEW_FILES)


def _steps(
    source: Source, files: Sequence[SourceFile], opened: OpenedSource
) -> Sequence[PrepareStep]:
    """The steps that make the records of media alike."""
    if isinstance(source, ImageFolder):
        return infer_image_steps(source, files, opened)
    return _infer_sound_steps(files, opened) if isinstance(source, AudioFolder) else ()


def _said_of(step: PrepareStep) -> str:
    """What is said of a step that makes records alike, and so changes some; empty for others."""
    if isinstance(step, images.Resize):
        how = "padded with black" if step.keep_ratio else "stretched"
        return f"Images have several sizes: those of others than {step.size} are {how}."
    if isinstance(step, audio.Decode) and step.rate is not None:
        return f"Sounds have several rates: they are resampled to {step.rate:,} Hz."
    if isinstance(step, audio.Decode) and step.mono:
        return "Sounds have different numbers of channels: they are mixed to one."
    return ""


def _stratified_by_class(
    splits: Splits, source: LabelledFolder, files: Sequence[SourceFile], opened: OpenedSource
) -> Splits:
    """Splits in which the classes of files have equal proportions, unless classes are tiny."""
    try:
        feature = source.infer_labels(files, opened).get(source.label or "")
    except SnapshardError:
        return splits  # a build will report the error
    if not isinstance(feature, ClassLabel) or _is_tiny(feature, files, media=True):
        return splits
    return _stratified(splits, source.label)


def _is_tiny(feature: ClassLabel, files: Sequence[SourceFile], *, media: bool) -> bool:
    """Whether classes of files are too small for splits of a tenth, or a label may be missing."""
    too_few = media and len(files) < _MIN_FILES_PER_CLASS * len(feature.names)
    return feature.optional or too_few


def _name_of(url: str) -> str:
    """A recipe's name: the last part of the URL that is not a wildcard."""
    parts = [part for part in re.split(r"[/\\]|::", url.partition("?")[0]) if part]
    plain = [part for part in parts if not re.search(r"[*\[]", part) and part not in (".", "..")]
    last = plain[-1] if plain else ""
    name = re.sub(r"[^A-Za-z0-9_-]+", "_", last.rpartition(".")[0] or last).strip("_-")
    return name[:100] or "dataset"


def _infer_sound_steps(
    sounds: Sequence[SourceFile], opened: OpenedSource
) -> tuple[PrepareStep, ...]:
    headers = list(read_headers([file for file in sounds if not file.of], opened))
    rates = Counter(header.rate for header in headers)
    mono = len({header.channels for header in headers}) > 1
    rate: int | None = None
    if len(rates) > 1:
        most, count = max(rates.items(), key=lambda item: (item[1], item[0]))
        rate = most if 2 * count > rates.total() else _FALLBACK_RATE
    return (audio.decode("audio", rate, mono),)
