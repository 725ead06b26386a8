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
from collections.abc import Mapping, Sequence, Set
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
    call,
    is_optional,
    nest,
    written,
)
from ...schemas.naming import LATEST, MANIFEST, SCHEMA, join
from ...schemas.progress import Silent
from ...schemas.recipe import PrepareStep, Recipe, Source
from ...schemas.splits import FOLDERS, Splits
from ...schemas.wire import FLOATS
from ...transforms import storage
from ...transforms.prepare import audio
from ...transforms.prepare.tables import Stack
from ...transforms.sources.arrow.hugging_face import HuggingFace
from ...transforms.sources.arrow.ipc import Arrow
from ...transforms.sources.arrow.parquet import Parquet
from ...transforms.sources.csv.dialect import SUFFIXES, default_delimiter, sniff
from ...transforms.sources.csv.source import Csv
from ...transforms.sources.encodings import Reading
from ...transforms.sources.folders.audio import AudioFolder, read_headers
from ...transforms.sources.folders.clips import ClipFolder, holds_clips
from ...transforms.sources.folders.files import LabelledFolder
from ...transforms.sources.folders.images import (
    MASKS,
    ImageFolder,
    holds_masks,
    infer_image_steps,
    read_sizes,
)
from ...transforms.sources.folders.labels import LABEL, looks_like_splits
from ...transforms.sources.folders.side_tables import LabelTable, is_table
from ...transforms.sources.folders.web_dataset import WebDataset, holds_samples
from ...transforms.sources.json.rows import find_lines
from ...transforms.sources.json.source import JsonLines
from ...transforms.sources.json.values import UnfitError, parse_line
from ...transforms.sources.numpy import Numpy, array_names, split_names
from ...transforms.sources.text import SUFFIXES as TEXTS
from ...transforms.sources.text import TextFiles
from ...transforms.sources.text_stream import open_text
from ...transforms.sources.tfrecord.source import TFRecords
from ...transforms.storage.decompress import DamagedError
from ...transforms.storage.opened_source import OpenedSource, is_hidden, open_source
from ..survey.inference_cache import infer_features
from ..survey.resolve import resolve_features
from ..survey.texts import TextColumn, read_integers, read_texts
from .forecast import forecast

_IMAGES = (".bmp", ".gif", ".jpe", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")
_SOUNDS = (".flac", ".mp3", ".oga", ".ogg", ".opus", ".wav")
_SQLITE = b"SQLite format 3\0"
_SNIFFED_BYTES = 1 << 20
_HEAD_BYTES = 1 << 16
_NUM_LINES = 5
_NUM_PROBED = 64
_SEPARATORS = ("_", "-", " ")
_MAX_FIELDS = 6
_MANY_COLUMNS = 50
"""From so many numbered columns of one dtype, ``init`` suggests to stack them."""
_FALLBACK_RATE = 16_000
"""If no rate has a majority: the rate that most speech models expect."""
_MIN_FILES_PER_CLASS = 10
"""With fewer files for each class, proportions in splits of a tenth mean nothing."""
_MIN_NAMED = 0.99
"""A table is that of a folder's labels if it names at least this share of the files."""
_MAX_TABLES = 20
_MAX_TABLE_BYTES = 64 << 20
_COUNTED_BYTES = 256 << 20
"""Up to this size, ``init`` counts the records of each split."""
_MAX_SKIPPING = 1_000
"""Of so many files at most, ``skip=`` is suggested: the head of each is read."""
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
    return _suggest(url)[0]


def describe_suggestion(url: str, *, label: str | None = None, folder: str = ".") -> str:
    """The text of the suggested recipe's file, with the features found declared.

    The next build then refuses data that no longer has them. Beyond :func:`suggest_recipe`, texts
    of tables that are all ISO 8601 times are declared as such, the label of a table is its column
    ``label`` if there is one, and comments show what else a column of strings could be.

    Args:
        url: The raw data.
        label: The column to predict. A label of a few different integers becomes a class.
        folder: The folder of the recipe's file: relative paths are relative to it.

    Raises:
        RecipeError: if nothing is there, it is already a recipe, or it has no such label.
        DataError: if it is empty or of an unknown kind, or its features cannot be inferred.
    """
    recipe, opened = _suggest(url, label=label)
    files = recipe.files.select(opened.list()).files
    inferred = infer_features(recipe.files, files, opened)
    if recipe.source.label is None and LABEL in inferred.features:
        recipe = _labelled(recipe, LABEL)
        inferred = infer_features(recipe.files, files, opened)
    resolved = resolve_features(recipe, inferred)
    features, hints = dict(resolved.prepared), dict[str, Hint]()
    name = recipe.source.label
    if (table := _table_of(recipe, files, opened)) is not None:
        columns = read_texts(table.source, table.files, table.opened, features)
        for column_name, column in columns.items():
            found = _look_again(features[column_name], column, table.source, recipe.files)
            features[column_name], hint = found
            if hint is not None:
                hints[column_name] = hint
        if name in features:
            features[name] = _numbered_class(table, name, features[name])
    feature = features.get(name or "")
    if isinstance(feature, ClassLabel) and not _is_tiny(feature, files, media=recipe.files.media):
        recipe = _changed(recipe, splits=_stratified(recipe.splits, name))
    stacks = _stacks(features, label=name)
    for stack in stacks:
        features = dict(stack.features(features))
    recipe = _changed(recipe, prepare=(*recipe.prepare, *stacks))
    if sum(file.num_bytes for file in files) <= _COUNTED_BYTES:
        recipe = _with_splits_that_fill(recipe)
    return recipe_text(
        _seen_from(recipe, folder),
        features,
        resolved.structs,
        hints=hints,
        remarks=inferred.remarks,
    )


def write_suggestion(
    url: str, file: str, *, label: str | None = None, replace: bool = False
) -> None:
    """Writes the suggested recipe to a file; local paths in it are relative to that file.

    Args:
        url: The raw data.
        file: A local path that ends in ``.py``.
        label: The column to predict.
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
    text = describe_suggestion(url, label=label, folder=folder)
    storage.put_bytes(os.path.abspath(file), text.encode())


def describe_inferred(recipe: Recipe, url: str) -> str:
    """The text of a recipe that was inferred for a build, and the command that writes it to a file.

    Args:
        recipe: What :func:`suggest_recipe` returned.
        url: The raw data.
    """
    has_columns = _takes_label(recipe.files) and recipe.source.label is None
    label = " --label COLUMN" if has_columns else ""
    data = shlex.quote(storage.redact(url))
    return (
        "The recipe, inferred from the data. To keep and change it: "
        f"snapshard init {data}{label} -o recipe.py\n\n" + recipe_text(recipe).removeprefix(_HEAD)
    )


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
    if not recipe.files.media:
        return _Table(recipe.files, files, opened)
    if not isinstance(source, LabelledFolder):
        return None
    if source.table is None or not source.table.lower().endswith((".csv", ".tsv")):
        return None
    beside = open_source(source.table, ".")
    return _Table(Csv(source.table), beside.list(), beside)


def _look_again(
    feature: Feature, column: TextColumn, table: Source, source: Source
) -> tuple[Feature, Hint | None]:
    """The feature of a column of strings, if it is more than that, and what else it could be."""
    assert isinstance(feature, Scalar)
    kind, optional = column.kind or "", feature.optional
    unit: Any = kind.removeprefix("time ")
    if unit != kind and column.is_uniform and isinstance(table, Csv | JsonLines):
        return Timestamp(unit, optional=optional), None
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


def _takes_label(source: Source) -> bool:
    return any(field.name == "label" for field in dataclasses.fields(source))  # type: ignore[arg-type]


def _with_label(source: Source, label: str) -> Source:
    if not _takes_label(source):
        raise RecipeError(f"{type(source).__name__} has no columns, so label={label!r} is not one.")
    changed: Source = dataclasses.replace(source, label=label)  # type: ignore[type-var]
    return changed


def _seen_from(recipe: Recipe, folder: str) -> Recipe:
    """The recipe with local paths relative to a folder. Absolute paths outside of it are kept."""
    source: Any = recipe.source
    changes = {
        field.name: _relative(getattr(source, field.name), folder)
        for field in dataclasses.fields(source)
        if field.name in ("url", "shards", "table") and getattr(source, field.name) is not None
    }
    return _changed(recipe, source=dataclasses.replace(source, **changes))


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
        pattern = f"{glob.escape(prefix)}[0-9]*"
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
    remarks: Sequence[str] = (),
) -> str:
    """The text of a recipe file that defines an equal recipe of built-in parts.

    ``features`` are declared, so the next build enforces them; the fields of ``structs`` are
    nested in these. ``hints`` become comments above features, ``remarks`` above the source.
    Credentials in the source's URL are left out.
    """
    # The repr of a built-in step is the code that makes it.
    steps = [repr(step) for step in recipe.prepare]
    splits = ", ".join(f"{name}={share}" for name, share in recipe.splits.fractions)
    if recipe.splits.stratify_by is not None:
        splits += f", stratify_by={written(recipe.splits.stratify_by)}"
    if recipe.splits.rule is not None and recipe.splits != Splits.by_folder():
        values = recipe.splits.rule.values
        splits = ", ".join(f"{n}={written(v[0] if len(v) == 1 else v)}" for n, v in values)
    by_folder = ".by_folder" * (recipe.splits.rule is not None)
    source = f"source=ss.{call(recipe.source, type(recipe.source).__name__)},"
    url = recipe.files.url
    bare = source
    for place in (url, getattr(recipe.source, "table", None)):
        if place is not None and not storage.is_local(place):
            bare = bare.replace(written(place), written(storage.redact(place)))
    lines = [
        f"name={written(recipe.name)},",
        bare,
        _list_of(steps, "prepare"),
        f"splits=ss.Splits{by_folder}({splits}),",
    ]
    if recipe.source.label is None:
        lines.insert(1, '# Add label="COLUMN" to name the column to predict.')
    if getattr(recipe.source, "encoding", "utf-8") not in ("utf-8", "utf-16-le", "utf-16-be"):
        lines.insert(1, _GUESSED)
    said = (textwrap.wrap(remark, _COMMENT_WIDTH) for remark in remarks)
    lines[1:1] = [f"# {line}" for remark in said for line in remark]
    if recipe.splits == _ONE_SPLIT:
        lines.insert(-1, _FEW)
    if bare != source:
        lines.insert(1, _NO_CREDENTIALS)
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


def _suggest(url: str, *, label: str | None = None) -> tuple[Recipe, OpenedSource]:
    if not url:
        raise RecipeError("The source is empty, expected a path or URL.")
    if url.endswith(".py"):
        raise RecipeError(f"{url} is already a recipe. Build it: snapshard build {url} --out DIR")
    opened = open_source(url, ".")
    listed = opened.list()
    if not listed:
        raise DataError(f"{opened.shown} holds no files. Put the data there, or correct the path.")
    _refuse_snapshots(opened.shown, {file.path for file in listed})
    source: Source
    steps: Sequence[PrepareStep] = ()
    splits = _USUAL
    images = ImageFolder(url)
    pictured = [file for file in images.select(listed).files if "/" in file.path]
    tables = [f for f in listed if f.path.lower().endswith(SUFFIXES) and not is_hidden(f.path)]
    num_images = sum(file.path.lower().endswith(_IMAGES) for file in pictured)
    typed = _find_typed_tables(url, listed, opened)
    sounds = _find_sounds(url, listed, opened)
    num_tables = max(len(tables), typed.num_files if typed is not None else 0)
    if holds_samples(url, listed):
        source = WebDataset(url)
        opened = open_source(source.url, ".")
    elif (labelled := _find_labelled_files(url, listed, opened, label=label)) is not None:
        source, splits = labelled.source, labelled.splits or splits
        opened = open_source(source.url, ".")
        listed = opened.list()
        files = source.select(listed).files
        if isinstance(source, ImageFolder):
            steps = infer_image_steps(files, opened)
        else:
            steps = _infer_sound_steps(files, opened)
    elif sounds is not None and sounds.num_files > max(num_tables, num_images):
        source, steps, splits = sounds.source, sounds.steps, sounds.splits or splits
    elif typed is not None and typed.num_files >= max(len(tables), num_images):
        source = typed.source
        if isinstance(source, Numpy):
            source, splits = _split_arrays(source, listed, opened) or (source, splits)
    elif tables and len(tables) >= num_images:
        source = _table_source(url, tables, opened)
    elif holds_masks(file.path for file in images.select(listed).files):
        paired = ImageFolder(url, masks=MASKS).select(listed).files
        split_folders = _has_split_folders(paired)
        source = ImageFolder(url, masks=MASKS, split_folders=split_folders or None)
        steps = infer_image_steps(paired, opened)
        splits = Splits.by_folder() if split_folders else splits
    elif (clips := _find_clips(url, pictured)) is not None:
        source = clips
        splits = Splits.by_folder() if clips.split_folders else splits
    elif num_images or read_sizes(pictured[:: 1 + len(pictured) // _NUM_PROBED], opened):
        source = images
        steps = infer_image_steps(images.select(listed).files, opened)
        if _has_split_folders(pictured):
            source = ImageFolder(url, split_folders=True)
            splits = Splits.by_folder()
    elif (named_otherwise := _find_other_tables(url, listed, opened)) is not None:
        source = named_otherwise
        opened = open_source(source.url, ".")
        listed = opened.list()
    elif 2 * sum(file.path.lower().endswith(TEXTS) for file in listed) > len(listed):
        source = TextFiles(url)
    else:
        raise DataError(_say_unknown(opened, listed))
    if label is not None and source.label != label:
        source = _with_label(source, label)
    if isinstance(source, LabelledFolder):
        files = source.select(listed).files
        splits = _stratified_by_class(
            splits, source, [file for file in files if not file.of], opened
        )
    recipe = Recipe(name=_name_of(url), source=source, prepare=steps, splits=splits)
    object.__setattr__(recipe, "folder", ".")
    return recipe, opened


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


def _find_clips(url: str, pictured: Sequence[SourceFile]) -> ClipFolder | None:
    """The source of folders of frames in class folders; None if there are none."""
    split_folders = _has_split_folders(pictured)
    paths = [file.path.partition("/")[2] if split_folders else file.path for file in pictured]
    return ClipFolder(url, split_folders=split_folders or None) if holds_clips(paths) else None


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


@dataclasses.dataclass(frozen=True)
class _LabelledFiles:
    """Images or sounds, and a table that names them."""

    source: ImageFolder | AudioFolder
    splits: Splits | None
    """If folders name splits."""


def _find_labelled_files(
    url: str, listed: Sequence[SourceFile], opened: OpenedSource, *, label: str | None
) -> _LabelledFiles | None:
    """Images or sounds outside class folders, and a table in or beside the folder that has them.

    A table is used only if it has a row for 99 % of the files: more than 1 % of rejects would fail
    a build. Its label is the column ``label``, or the only column, or else ``label``.
    """
    by_kind: dict[type[ImageFolder | AudioFolder], list[str]] = {
        ImageFolder: [f.path for f in listed if _is_file_of(_IMAGES, f)],
        AudioFolder: [f.path for f in listed if _is_file_of(_SOUNDS, f)],
    }
    make, paths = max(by_kind.items(), key=lambda item: len(item[1]))
    of_images = make is ImageFolder
    tables = [
        file
        for file in listed
        if is_table(file.path, of_images=of_images) and not is_hidden(file.path)
    ]
    if len(paths) <= len(tables) or opened.pattern or opened.single or opened.archived:
        return None
    splits = Splits.by_folder() if looks_like_splits(paths) else None
    num_classes = len({path.split("/")[1 if splits else 0] for path in paths if "/" in path})
    depths = {path.count("/") for path in paths}
    if min(depths) > (splits is not None) and num_classes > 1:
        return None  # class folders
    root = url.rstrip("/") or url
    near = [file.path for file in tables if _is_moderate(file)][:_MAX_TABLES]
    inner = "" if splits else os.path.commonpath([os.path.dirname(path) for path in paths])
    urls = [f"{root}/{path}" for path in near] + _tables_beside(root, of_images=of_images)
    for below in dict.fromkeys((inner, "")):
        place = f"{root}/{below}" if below else url
        names = [path.removeprefix(f"{below}/") for path in paths]
        found = [
            (table, columns)
            for table in urls
            if (columns := _columns_for(table, names, make, splits, opened, label)) is not None
        ]
        if found:
            table, columns = found[0]
            plain = [n for n, f in columns.items() if isinstance(f, Scalar | ClassLabel)]
            only = plain[0] if len(plain) == len(columns) == 1 else None
            chosen = label or (LABEL if LABEL in columns else only)
            split_folders = True if splits else None
            source = make(place, table=table, label=chosen, split_folders=split_folders)
            return _LabelledFiles(source, splits)
    return None


def _is_file_of(suffixes: tuple[str, ...], file: SourceFile) -> bool:
    return file.path.lower().endswith(suffixes) and not is_hidden(file.path)


def _is_moderate(file: SourceFile) -> bool:
    """Whether a table is small enough to look at, and in the folder or one below it."""
    return file.path.count("/") <= 1 and file.num_bytes <= _MAX_TABLE_BYTES


def _tables_beside(root: str, *, of_images: bool) -> list[str]:
    """The tables of moderate size next to a local folder."""
    if not storage.is_local(root) or "://" in root:
        return []
    plain = os.path.normpath(root)
    last = os.path.basename(plain)
    outer = os.path.join(plain, os.pardir) if last in ("", ".", "..") else os.path.dirname(plain)
    try:
        names = sorted(entry.name for entry in os.scandir(outer or ".") if entry.is_file())
    except OSError:
        return []
    found = [
        os.path.normpath(os.path.join(outer, name))
        for name in names
        if is_table(name, of_images=of_images) and not is_hidden(name)
    ]
    return [path for path in found if os.path.getsize(path) <= _MAX_TABLE_BYTES][:_MAX_TABLES]


def _columns_for(
    table: str,
    paths: Sequence[str],
    make: type[ImageFolder | AudioFolder],
    splits: Splits | None,
    opened: OpenedSource,
    label: str | None,
) -> Features | None:
    """The columns of a table that names these files; None if it does not."""
    content = "image" if make is ImageFolder else None
    try:
        data = opened.read_side(table)
        read = LabelTable(name=os.path.basename(table), data=data, image=content, label=label)
        columns = read.features()
        rows = read.read(columns)
    except SnapshardError:
        return None
    named = sum(
        rows.key((path, path.partition("/")[2]) if splits else (path,)) is not None
        for path in paths
    )
    return columns if named >= _MIN_NAMED * len(paths) else None


def _has_split_folders(files: Sequence[SourceFile]) -> bool:
    """Whether all files are below folders named like splits."""
    paths = [file.path for file in files]
    return looks_like_splits(paths) and all(path.count("/") > 1 for path in paths)


def _find_other_tables(url: str, listed: Sequence[SourceFile], opened: OpenedSource) -> Csv | None:
    """A CSV source of files with other suffixes whose content shows that they are tables.

    In a folder, these are files directly in it.

    Raises:
        DataError: if there are several, or several files of a suffix without the same header.
    """
    files = [file for file in listed if file.num_bytes and not is_hidden(file.path)]
    groups: dict[str, list[SourceFile]] = {}
    if opened.single or opened.pattern:
        groups[url] = files
    else:
        for file in files:
            suffix = os.path.splitext(file.path)[1] or file.path
            if "/" not in file.path:
                groups.setdefault(join(url, f"*{suffix}"), []).append(file)
    tables = [table for place in groups for table in _tables_of(place, url, groups[place], opened)]
    if len(tables) > 1:
        lines = [f"    source=ss.{call(table, 'Csv')}" for table in tables]
        text = f"{opened.shown} holds several tables. Choose one of them:"
        raise DataError("\n".join([text, *lines]))
    return tables[0] if tables else None


def _tables_of(
    place: str, root: str, files: Sequence[SourceFile], opened: OpenedSource
) -> list[Csv]:
    """The tables that the files of a glob are: one if they have one header, or one for each file.

    None if any of those looked at is not clearly a table.
    """
    looked = files[:: 1 + len(files) // _MAX_TABLES]
    found = [_sniff_table(place, file, opened) for file in looked]
    tables = [table for table in found if table is not None]
    if not tables or len(tables) < len(found):
        return []
    if place == root or (len(files) > 1 and _have_one_header(tables)):
        return tables[:1]
    return [
        dataclasses.replace(table, url=join(root, file.path))
        for table, file in zip(tables, looked, strict=True)
    ]


def _have_one_header(tables: Sequence[Csv]) -> bool:
    """Whether tables of one glob are formatted alike, and their files have the same columns."""
    source = tables[0]
    if not source.header or any(table != source for table in tables):
        return False
    opened = open_source(source.url, ".")
    try:
        source.infer(source.select(opened.list()).files, opened)
    except SnapshardError:
        return False
    return True


def _sniff_table(url: str, file: SourceFile, opened: OpenedSource) -> Csv | None:
    """A CSV source for a file whose content shows that it is a table."""
    text = open_text(opened, file.path, num_bytes=file.num_bytes, encoding="utf-8")
    try:
        head = text.read(0, _SNIFFED_BYTES)
    except DamagedError:
        return None
    if b"\0" in head[:_HEAD_BYTES] or not sniff(head).is_table:
        return None
    return _table_source(url, [file], opened)


def _table_source(url: str, tables: Sequence[SourceFile], opened: OpenedSource) -> Csv:
    """A CSV source with the first file's delimiter and encoding, with or without a header."""
    first = next((file for file in tables if not file.problem and file.num_bytes), None)
    if first is None:
        return Csv(url)
    default = default_delimiter(first.path)
    text = open_text(opened, first.path, num_bytes=first.num_bytes, encoding="utf-8")
    try:
        found = sniff(text.read(0, _SNIFFED_BYTES), default=default)
    except DamagedError:
        return Csv(url)
    source = Csv(
        url,
        delimiter=None if found.delimiter == default else found.delimiter,
        encoding=found.encoding,
        header=found.header,
        quote='"' if found.quoted else None,
        skip=found.skip if _all_skip(found.skip, tables, opened) else 0,
        comment=found.comment,
        decimal=found.decimal,
    )
    if len(found.readings) > 1:
        raise DataError(_say_unknown_encoding(first.path, source, found.readings))
    return source


def _all_skip(num: int, tables: Sequence[SourceFile], opened: OpenedSource) -> bool:
    """Whether files all begin with so many lines that are not rows; else rows would be lost."""
    if num and len(tables) > _MAX_SKIPPING:
        return False
    for file in tables[1:] if num else ():
        text = open_text(opened, file.path, num_bytes=file.num_bytes, encoding="utf-8")
        try:
            head = text.read(0, _HEAD_BYTES)
        except DamagedError:
            continue
        if sniff(head, default=default_delimiter(file.path)).skip != num:
            return False
    return True


def _say_unknown_encoding(path: str, source: Csv, readings: Sequence[Reading]) -> str:
    lines = []
    for reading in readings:
        changed = dataclasses.replace(source, encoding=reading.encoding)
        lines += [f"with {reading.sample!r} in it:", f"    source=ss.{call(changed, 'Csv')}"]
    return "\n".join(
        [
            f"{path} is not UTF-8, and its encoding is not clear. Choose the line that reads it:",
            *lines,
        ]
    )


def _say_unknown(opened: OpenedSource, listed: Sequence[SourceFile]) -> str:
    flat = [file for file in listed if file.path.lower().endswith(_IMAGES)]
    if flat:
        return (
            f"{opened.shown} holds {len(flat):,} images in one folder (first: "
            f"{flat[0].path!r}), expected class folders: <root>/<class>/<image>. Put the images "
            "into one folder per class, give the parent folder, or put a table beside them with a "
            "row for each image: labels.csv with the columns file and label."
        )
    first = next((file.path for file in listed if not file.problem and file.num_bytes), None)
    if first is not None and opened.read(first, 0, len(_SQLITE)) == _SQLITE:
        return (
            f"{opened.shown} holds an SQLite database ({first!r}): only a query can say "
            'what a record is. Write a recipe file with source=ss.Sql("path of the database", '
            '"SELECT …", key="id").'
        )
    return (
        f"{opened.shown} holds neither tables (CSV, Parquet, Arrow, JSON Lines, NumPy, TFRecord), "
        "nor texts, nor class folders of images or sounds (first of "
        f"{len(listed):,} files: {listed[0].path!r}). Correct the path, or write a recipe file "
        "that describes it."
    )


def _name_of(url: str) -> str:
    """A recipe's name: the last part of the URL that is not a wildcard."""
    parts = [part for part in re.split(r"[/\\]|::", url.partition("?")[0]) if part]
    plain = [part for part in parts if not re.search(r"[*\[]", part) and part not in (".", "..")]
    last = plain[-1] if plain else ""
    name = re.sub(r"[^A-Za-z0-9_-]+", "_", last.rpartition(".")[0] or last).strip("_-")
    return name[:100] or "dataset"


@dataclasses.dataclass(frozen=True)
class _Sounds:
    """What a folder of sounds suggests."""

    source: AudioFolder
    steps: tuple[PrepareStep, ...]
    splits: Splits | None
    """If folders name splits."""
    num_files: int


def _find_sounds(url: str, listed: Sequence[SourceFile], opened: OpenedSource) -> _Sounds | None:
    """Suggests how to read the sounds among files; None if there are none, or no labels.

    Labels come from class folders, or else from file names of one pattern. Sounds of several
    rates are resampled to the rate that more than half of them have, or to 16 kHz; if the number
    of channels differs, they are mixed to mono.
    """
    files = AudioFolder(url).select(listed).files
    sounds = [file for file in files if file.path.lower().endswith(_SOUNDS)]
    if not sounds:
        return None
    paths = [file.path for file in sounds]
    splits: Splits | None = None
    if all("/" in path for path in paths):
        source = AudioFolder(url)
        if looks_like_splits(paths) and all(path.count("/") > 1 for path in paths):
            source = AudioFolder(url, split_folders=True)
            splits = Splits.by_folder()
    else:
        pattern = name_pattern([path.rpartition("/")[2] for path in paths])
        if pattern is None:
            return None
        source = AudioFolder(url, pattern=pattern)
    return _Sounds(source, _infer_sound_steps(sounds, opened), splits, len(sounds))


def _infer_sound_steps(
    sounds: Sequence[SourceFile], opened: OpenedSource
) -> tuple[PrepareStep, ...]:
    headers = list(read_headers(sounds, opened))
    rates = Counter(header.rate for header in headers)
    mono = len({header.channels for header in headers}) > 1
    rate: int | None = None
    if len(rates) > 1:
        most, count = max(rates.items(), key=lambda item: (item[1], item[0]))
        rate = most if 2 * count > rates.total() else _FALLBACK_RATE
    return (audio.decode("audio", rate, mono),)


def name_pattern(names: Sequence[str]) -> str | None:
    """The pattern of file names that all have the same number of fields; None if they do not.

    The first field is the label: it has several values, each of them repeated. The last one is a
    number if it consists of digits.

    >>> name_pattern(["yes_ann_1.wav", "no_ann_2.wav", "yes_bob_3.wav", "no_bob_4.wav"])
    '{label}_{field2}_{n}.wav'
    """
    parts = [name.rpartition(".") for name in names]
    ends = {end for _, _, end in parts}
    end = next(iter(ends)) if len(ends) == 1 else "*"
    for separator in _SEPARATORS:
        rows = [stem.split(separator) for stem, _, _ in parts]
        num_fields = {len(row) for row in rows}
        if num_fields not in [{number} for number in range(2, _MAX_FIELDS + 1)]:
            continue
        columns = [set(column) for column in zip(*rows, strict=True)]
        if not 1 < len(columns[0]) <= len(names) // 2 or "" in set().union(*columns):
            continue
        fields = [LABEL, *(f"field{number}" for number in range(2, len(columns) + 1))]
        if all(re.fullmatch(r"[0-9]+", text) for text in columns[-1]):
            fields[-1] = "n"
        return f"{separator.join(f'{{{field}}}' for field in fields)}.{end}"
    return None


@dataclasses.dataclass(frozen=True)
class _TypedTables:
    """A source of tables, and the number of files it would read."""

    source: Source
    num_files: int


def _find_typed_tables(
    url: str, listed: Sequence[SourceFile], opened: OpenedSource
) -> _TypedTables | None:
    """The kind of typed table that most files are, by name and content; None if there is none.

    For a single file, only the content decides.

    Args:
        url: The source's URL.
        listed: All files of it.
        opened: Its root.
    """
    dataset = _find_dataset(url, listed)
    if dataset is not None:
        return dataset
    found = []
    for make in (Parquet, Arrow, JsonLines, Numpy, TFRecords):
        source = make(url)
        files = [file for file in source.select(listed).files if not file.problem]
        # The first file decides: another file with such a name but other content is rejected.
        first = next((file for file in files if file.num_bytes), None)
        if first is not None and _table_kind(first, opened) is make:
            found.append(_TypedTables(source, len(files)))
    return max(found, key=lambda tables: tables.num_files, default=None)


def _split_arrays(
    source: Numpy, listed: Sequence[SourceFile], opened: OpenedSource
) -> tuple[Numpy, Splits] | None:
    """The source of arrays such as ``x_train`` and ``x_test``, and its splits; None for others.

    Of ``x`` and ``y``, the label is ``y``.
    """
    every: set[str] = set()
    there: set[str] = set()
    for file in source.select(listed).files:
        names = array_names(opened, file.path)
        found = split_names(names)
        if len(found) < 2:
            return None
        every.update(name for arrays in found.values() for name in arrays)
        there.update(found)
    label = "y" if every == {"x", "y"} else None
    named = {
        split: tuple(text for text in texts if text in there) for split, texts in FOLDERS.items()
    }
    splits = Splits.by_folder(**{split: texts for split, texts in named.items() if texts})
    return dataclasses.replace(source, split_arrays=True, label=label), splits


def _find_dataset(url: str, listed: Sequence[SourceFile]) -> _TypedTables | None:
    """A Hugging Face dataset: Arrow files next to a ``state.json``."""
    source = HuggingFace(url)
    paths = [file.path.rpartition("/") for file in listed]
    folders = {folder for folder, _, name in paths if name == "state.json"}
    files = [f for f in source.select(listed).files if f.path.rpartition("/")[0] in folders]
    return _TypedTables(source, len(files)) if files else None


def _table_kind(file: SourceFile, opened: OpenedSource) -> type[Source] | None:
    head = opened.read(file.path, 0, 8)
    if head.startswith((b"PAR1", b"PARE")):
        return Parquet
    # A stream begins with the marker of a message.
    if head.startswith((b"ARROW1", b"FEA1", b"\xff\xff\xff\xff")):
        return Arrow
    if head.startswith(b"\x93NUMPY") or (head.startswith(b"PK") and file.path.endswith(".npz")):
        return Numpy
    if TFRecords(".").select([file]).files:
        return TFRecords
    return JsonLines if _holds_objects(file, opened) else None


def _holds_objects(file: SourceFile, opened: OpenedSource) -> bool:
    """Whether one of a file's first lines is a JSON object."""
    text = open_text(opened, file.path, num_bytes=file.num_bytes, encoding="utf-8")
    try:
        lines = next(find_lines(text, 0, min(text.stop, _HEAD_BYTES)), None)
    except DamagedError:
        return False
    if lines is None:
        return False
    for line in range(min(len(lines), _NUM_LINES)):
        try:
            parse_line(lines.text(line))
        except UnfitError:
            continue
        return True
    # The first line is longer than what was read.
    return len(lines) == 1 and lines.data.startswith(b'{"') and len(lines.data) == _HEAD_BYTES
