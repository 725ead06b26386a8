"""Shared by the sources of typed tables: file selection, declared types, classes, rejects."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar, get_args

import pyarrow as pa

from ...schemas.blocks import Block, FileRange, RawBatch, Selection, SourceFile, packed
from ...schemas.errors import RecipeError, Reject
from ...schemas.features import (
    ClassLabel,
    Dtype,
    Feature,
    Features,
    Image,
    Scalar,
    Tensor,
    features_to_json,
    is_encoded,
    tensor_form,
)
from ...schemas.features import Sequence as SequenceOf
from ...schemas.manifest import MAX_LABELS
from ..prepare.engine.validate import is_utf8
from ..rejects import reject_at
from ..runs.files import wire_schema
from ..storage.decompress import DamagedError
from ..storage.opened_source import is_hidden
from .bundles import bundles, read_bundle

UNION = "union"
"""The setting ``columns`` for all columns of all files; one that a file lacks is missing there."""
READ_UNION = (
    'To read them together, set columns="union": a column that a file lacks is a missing value in '
    "its rows."
)

INFER_ALL_BYTES = 256 << 20
"""Total size up to which features are inferred from every row."""

_T = TypeVar("_T")

_DTYPES: tuple[str, ...] = get_args(Dtype)
_MAX_CHECKED = 100
_JOINED_ROWS = 1_024
_JOINED_BYTES = 1 << 20
# The suffix at the end of a glob: "*.pq", "part-*.parquet".
_GLOB_SUFFIX = re.compile(r"[*?\]](?:.*)(\.[a-z0-9]+)$")


def check_types(types: Mapping[str, Any] | None) -> None:
    """Checks the ``types`` of a source: dtypes, or features of values.

    Raises:
        ValueError: naming the first invalid type.
    """
    for name, wanted in (types or {}).items():
        is_feature = isinstance(wanted, Feature)
        if is_feature and tensor_form(wanted) is None:
            is_feature = is_encoded(wanted) or isinstance(wanted, Image)
        if not is_feature and wanted not in _DTYPES:
            raise ValueError(
                f"types: {name!r} is {wanted!r}, expected one of {', '.join(_DTYPES)}, or a "
                "feature such as ss.Scalar(…), ss.ClassLabel(…) or ss.Tensor(…)"
            )


def types_to_json(types: Mapping[str, Any] | None) -> dict[str, object]:
    """The ``types`` of a source as plain JSON, for its settings."""
    return {
        name: wanted if isinstance(wanted, str) else features_to_json({name: wanted})[name]
        for name, wanted in sorted((types or {}).items())
    }


def select_files(
    url: str,
    files: Sequence[SourceFile],
    *,
    suffixes: tuple[str, ...],
    what: str,
    underscores: bool = False,
) -> Selection:
    """Selects files with these suffixes or a glob's suffix, or a single file of any name.

    Args:
        url: The source's URL.
        files: All files there.
        suffixes: The suffixes to select.
        what: A file with one of them, for the count of the others.
        underscores: Whether to select names that begin with an underscore, too.
    """
    last = url.partition("::")[0].rpartition("/")[2]
    if len(files) == 1 and files[0].path == last.partition("?")[0]:
        return Selection(files=tuple(files), num_skipped={})
    wanted = (*suffixes, *_GLOB_SUFFIX.findall(last.lower()))

    def why_skipped(path: str) -> str:
        # Engines write such files next to tables: _SUCCESS, _metadata, .crc.
        internal = not underscores and (path.startswith("_") or "/_" in path)
        if internal or is_hidden(path):
            return "hidden file"
        return "" if path.lower().endswith(wanted) else f"not {what}"

    return select_where(files, why_skipped)


def select_where(files: Sequence[SourceFile], why_skipped: Callable[[str], str]) -> Selection:
    """Selects the files whose path gives no reason to skip them, and counts the others by it."""
    skipped = Counter(reason for file in files if (reason := why_skipped(file.path)))
    if skipped:
        files = packed(SourceFile, (file for file in files if not why_skipped(file.path)))
    return Selection(files=files, num_skipped=dict(sorted(skipped.items())))


def with_types(features: Features, types: Mapping[str, Any] | None) -> dict[str, Feature]:
    """Features with declared types instead of inferred ones. A dtype keeps all other properties."""
    chosen = dict(features)
    for name, wanted in (types or {}).items():
        chosen[name] = _with_dtype(chosen[name], wanted) if isinstance(wanted, str) else wanted
    return chosen


def _with_dtype(feature: Feature, dtype: Any) -> Feature:
    item = feature.of if isinstance(feature, SequenceOf) else feature
    # Times keep their unit as integers.
    unit = getattr(item, "unit", None) if "int" in dtype else None
    if isinstance(feature, Tensor):
        return Tensor(dtype, feature.shape, optional=feature.optional, unit=unit)
    if isinstance(feature, SequenceOf):
        if isinstance(feature.of, Tensor):
            of: Any = Tensor(dtype, feature.of.shape, unit=unit)
        else:
            of = Scalar(dtype, unit=unit)
        return SequenceOf(of, optional=feature.optional)
    form = tensor_form(feature)
    return Scalar(dtype, optional=form is not None and form.optional, unit=unit)


def check_columns(
    kind: str,
    names: Iterable[str],
    *,
    label: str | None,
    types: Mapping[str, Any] | None,
    hint: str = "",
) -> None:
    """Checks that ``label`` and ``types`` name columns. ``hint`` is appended to the message.

    Raises:
        RecipeError: naming the argument and the existing columns.
    """
    there = list(names)
    wanted = {name: "types" for name in types or {}}
    if label is not None:
        wanted[label] = "label"
    for name, argument in wanted.items():
        if name not in there:
            raise RecipeError(
                f"{kind}: {argument} names {name!r}, which is not a column. The columns are "
                f"{', '.join(map(repr, there))}.{hint}"
            )


def may_be_class(feature: Feature | None, wanted: object) -> bool:
    """Whether the label becomes a class: if a string or bool, unless a feature is declared."""
    is_text = isinstance(feature, Scalar) and feature.dtype in ("string", "bool")
    return is_text and (wanted is None or isinstance(wanted, str))


def class_of(names: Collection[str] | None) -> ClassLabel | None:
    """The class with these names; None if they are unknown, empty, or too many."""
    if not names or len(names) > MAX_LABELS:
        return None
    return ClassLabel(tuple(sorted(names)))


def with_class(
    features: Features,
    *,
    label: str | None,
    types: Mapping[str, Any] | None,
    texts_of: Callable[[str], Iterable[list[str] | None]],
) -> dict[str, Feature]:
    """Features whose label, if possible, is the class of all its texts in all files.

    ``texts_of`` returns the distinct texts of the label in each file or bundle of files; None for
    too many for a class.
    """
    chosen = dict(features)
    if label is None or not may_be_class(features[label], (types or {}).get(label)):
        return chosen
    names: set[str] = set()
    for texts in texts_of(label):
        if texts is None:
            return chosen
        names.update(texts)
    chosen[label] = class_of(names) or features[label]
    return chosen


def utf8_texts(texts: Iterable[bytes]) -> list[str]:
    """The texts that are UTF-8, sorted. Rows with other texts are rejected when read."""
    return sorted(text.decode() for text in texts if is_utf8(text))


def read_ranges(
    block: Block,
    ordered: Sequence[int],
    *,
    features: Features,
    read: Callable[[FileRange], Iterator[RawBatch]],
    small: Callable[[FileRange], _T | None] = lambda part: None,
    together: Callable[[list[_T]], RawBatch | None] = lambda texts: None,
    read_small: Callable[[_T], Iterable[RawBatch]] = lambda text: (),
    may_be_empty: bool = False,
) -> Iterator[RawBatch]:
    """Reads a block's ranges. Unreadable and empty files become rejects.

    ``small`` and ``together`` read many small files at once, as in :func:`read_bundle`;
    ``read_small`` reads what ``small`` returned for one of them.
    """

    def alone(part: FileRange, text: _T | None) -> Iterator[RawBatch]:
        if part.problem:
            yield no_rows(features, _unreadable(part))
        elif part.stop == 0 and not may_be_empty:
            yield no_rows(features, empty_file(part))
        else:
            yield from read(part) if text is None else read_small(text)

    def batches() -> Iterator[RawBatch]:
        for bundle in bundles(block.ranges[index] for index in ordered):
            yield from read_bundle(
                bundle,
                small=lambda part: small(part) if part.stop else None,
                together=together,
                alone=alone,
            )

    yield from _joined(batches())


def _joined(batches: Iterable[RawBatch]) -> Iterator[RawBatch]:
    """Joins small batches, such as those of files with one row, each of which has a cost."""
    held: list[RawBatch] = []
    num_rows = num_bytes = 0
    for batch in batches:
        num_rows += len(batch.ids) + len(batch.rejects)
        num_bytes += batch.columns.nbytes
        if held and (num_rows > _JOINED_ROWS or num_bytes > _JOINED_BYTES):
            yield concat(held)
            held = []
            num_rows, num_bytes = len(batch.ids) + len(batch.rejects), batch.columns.nbytes
        held.append(batch)
    if held:
        yield concat(held)


def concat(batches: Sequence[RawBatch]) -> RawBatch:
    """Several batches, at least one, as one."""
    if len(batches) == 1:
        return batches[0]
    return RawBatch(
        ids=[record_id for batch in batches for record_id in batch.ids],
        columns=pa.concat_batches([batch.columns for batch in batches]),
        rejects=tuple(reject for batch in batches for reject in batch.rejects),
        num_filtered=sum(batch.num_filtered for batch in batches),
    )


COPY_AGAIN = "Copy or create it again, or correct the source in the recipe."


def first_damage(files: Sequence[SourceFile], damage: Callable[[SourceFile], str]) -> str:
    """The first unreadable file, and why; empty if the files are merely empty.

    Args:
        files: Files without records. At most 100 are checked.
        damage: Finds out why a file has no records.
    """
    for file in files[:_MAX_CHECKED]:
        if why := file.problem or (damage(file) if file.num_bytes else ""):
            return f"{file.path} cannot be read: {why}"
    return ""


def no_rows(features: Features, reject: Reject) -> RawBatch:
    """A batch of one reject and no records."""
    empty = pa.RecordBatch.from_pylist([], schema=wire_schema(features))
    return RawBatch(ids=[], columns=empty, rejects=(reject,))


def _unreadable(part: FileRange) -> Reject:
    """The reject of a file that the inventory could not read."""
    return reject_at(
        part.path,
        None,
        stage="inventory",
        reason=part.problem,
        message=f"{part.path} cannot be read: {part.problem}. Copy or create it again, or raise "
        "max_rejects to do without it.",
        exception="OSError",
    )


def empty_file(part: FileRange) -> Reject:
    """The reject of an empty file."""
    return Reject(
        record_id=part.path,
        stage="read",
        reason="empty file",
        message=f"{part.path} is empty, expected rows. Remove it from the source.",
        source=part.path,
        payload=b"",
    )


def damaged_text(part: FileRange, error: DamagedError, done: int, *, records: str) -> Reject:
    """The reject of the rest of a damaged compressed file, from byte ``done`` of its text on."""
    return reject_at(
        part.path,
        done,
        stage="read",
        reason="damaged compression",
        message=f"{part.path}: {error}. The {records} before byte {done:,} of its text are kept; "
        "what follows is lost. Compress or copy it again, or raise max_rejects to do without the "
        "rest.",
        exception=type(error).__name__,
    )


def other_columns(
    found: Collection[str], expected: Collection[str], *, paths: tuple[str, str]
) -> str:
    """Describes how the columns of one file differ from those of another.

    >>> other_columns(["x", "z"], ["x", "y"], paths=("b.csv", "a.csv"))
    "b.csv has different columns from a.csv: it lacks 'y' and adds 'z'"
    >>> other_columns(["x", "z"], ["x"], paths=("b.csv", "a.csv"))
    "b.csv has different columns from a.csv: it adds 'z'"
    """
    lacks = ", ".join(map(repr, sorted(set(expected) - set(found))))
    more = ", ".join(map(repr, sorted(set(found) - set(expected))))
    words = [f"lacks {lacks}"] * bool(lacks) + [f"adds {more}"] * bool(more)
    return f"{paths[0]} has different columns from {paths[1]}: it {' and '.join(words)}"
