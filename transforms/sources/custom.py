"""The source of files in any format, read by a user-defined function.

The first part calls the function on a file: its argument, what it may yield, and its exceptions.
The second infers the features of what it yields.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
from fsspec.implementations.local import LocalFileSystem

from ...schemas.blocks import Block, FileRange, RawBatch, Selection, SourceFile
from ...schemas.config import check_texts
from ...schemas.errors import RECORD_ERROR, RecipeError, Reject, SchemaError, SnapshardError
from ...schemas.features import (
    ClassLabel,
    Feature,
    Features,
    Scalar,
    is_encoded,
    is_optional,
    tensor_form,
)
from ...schemas.manifest import MAX_LABELS
from ...schemas.recipe import OpenSource
from .. import storage
from ..activity import advance, reading, working_on
from ..code.dependencies import running
from ..examples.row_values import UnfitError
from ..rejects import reject_at, with_values
from ..storage.opened_source import is_hidden
from ..storage.redaction import redact_repeated
from .arrow.rows import RowReader
from .arrow.types import join_schemas, leaf_feature, missing_leaves
from .extracted import plain_batch, plain_schema
from .python_values import (
    BATCH_BYTES,
    Lists,
    PendingRows,
    flat_record,
    media_lists,
    value_feature,
    wire_lists,
)
from .table_files import (
    check_columns,
    class_of,
    may_be_class,
    read_ranges,
    select_where,
    types_to_json,
    with_types,
)

_WORDS = 500

SAMPLED = 100
"""Number of records of a file used to infer types, …"""
SAMPLED_FILES = 64
"""… and of evenly spaced files."""

_BATCH_RECORDS = 1024


class RaisedError(Exception):
    """An error of a user's function, with a reason to group by."""

    def __init__(self, reason: str, message: str, *, exception: str = RECORD_ERROR) -> None:
        """Stores the stable class of failure, and the class name of the exception."""
        super().__init__(message)
        self.reason, self.exception = reason, exception


@dataclasses.dataclass(frozen=True)
class InputFile:
    """A file of the source, as passed to the user's function."""

    path: str
    """Relative to the source's root."""
    _opened: OpenSource = dataclasses.field(repr=False)

    def open(self) -> Any:
        """Opens the file as a seekable binary file object.

        Raises:
            StorageError: if the file cannot be opened.
        """
        self._opened.hold(self.path)
        full = self._opened.full_path(self.path)
        with running(None), storage.failing_as_storage_error("read", full):
            if isinstance(self._opened.filesystem, LocalFileSystem):
                return io.BufferedReader(self._opened.open_local(self.path))
            return self._opened.filesystem.open(full, "rb")

    def read(self) -> bytes:
        """The content of the file.

        Raises:
            StorageError: if the file cannot be read.
        """
        with running(None):
            return self._opened.read(self.path)


ReadFn = Callable[[InputFile], Iterable[Any]]


def records_of(function: ReadFn, path: str, opened: OpenSource) -> Iterator[Any]:
    """The mappings and RecordBatches that a function yields for a file.

    Raises:
        RaisedError: if it raises, or yields anything else. Errors of snapshard are not wrapped.
    """
    name = getattr(function, "__qualname__", type(function).__name__)
    records: Any = None
    own = ""
    if getattr(opened, "local", False):
        own = opened.full_path(path)
        opened.hold(path)  # the function may open the file by its path
    elif storage.is_local(archive := str(getattr(opened, "url", "")).rpartition("::")[2]):
        own = storage.local_path(archive)  # which reading a member opens
    watched = running(function, own=own)
    reading(path)
    try:
        try:
            with watched:
                records = iter(function(InputFile(path, opened)))
        except Exception as error:
            _reraise(error, name)
        while True:
            try:
                with watched:
                    record = next(records)
            except StopIteration:
                return
            except Exception as error:
                _reraise(error, name)
            advance()
            if isinstance(record, pa.Table):
                yield from record.to_batches()
            elif isinstance(record, Mapping | pa.RecordBatch):
                yield record
            else:
                raise RaisedError(
                    "not a record",
                    f"{name} yields {type(record).__name__}, expected a dict or a pa.RecordBatch",
                )
    finally:
        # A generator that is not exhausted must release the file.
        if hasattr(records, "close"):
            records.close()


def _reraise(error: Exception, name: str) -> NoReturn:
    if isinstance(error, SnapshardError):
        raise error
    words = " ".join(redact_repeated(str(error)).split())[:_WORDS]
    raise RaisedError(
        f"the function raised {type(error).__name__}",
        f"{name} raised {type(error).__name__}{f': {words}' if words else ''}",
        exception=type(error).__name__,
    ) from None


class RecordTypes:
    """The types of the values of records, as inferred so far."""

    def __init__(self) -> None:
        """Starts with no records."""
        self.num_records = 0
        self._values: dict[str, list[Any]] = {}
        self._schemas: dict[pa.Schema, str] = {}
        self._missing: set[str] = set()

    def add(self, record: Any, *, path: str) -> None:
        """Adds a dict, or the rows of a RecordBatch; ``path`` names the file in errors."""
        if isinstance(record, pa.RecordBatch):
            self.num_records += len(record)
            self._missing |= missing_leaves(record, path=path)
            self._schemas.setdefault(record.schema, path)
            return
        try:
            flat = flat_record(record)
        except ValueError:  # the record will be rejected
            return
        self.num_records += 1
        for name, value in flat.items():
            values = self._values.setdefault(name, [])
            if value is not None:
                values.append(value)

    def features(self, declared: Mapping[str, Any]) -> dict[str, Any]:
        """The features of the values; string if the type is unknown.

        Args:
            declared: Declared features, whose values may have several types.

        Raises:
            SchemaError: if the values of another feature have no common type.
        """
        inferred: dict[str, Any] = {}
        if self._schemas:
            remedy = "Yield batches of the same columns."
            leaves = join_schemas(self._schemas, declared=declared, remedy=remedy)
            inferred.update(
                {n: leaf_feature(leaf, missing=n in self._missing) for n, leaf in leaves.items()}
            )
        for name, values in self._values.items():
            optional = len(values) < self.num_records
            if isinstance(declared.get(name), Feature):
                inferred[name] = declared[name]
            elif declared.get(name) == "string":  # numbers are written out
                inferred[name] = Scalar("string", optional=optional)
            elif values:
                inferred[name] = value_feature(name, values, optional=optional)
            else:
                inferred[name] = Scalar("string", optional=True)
        return inferred


@dataclasses.dataclass(frozen=True, init=False)
class Files:
    """Records that a user-defined function reads from files.

    The function receives a file with ``.path``, ``.open()`` and ``.read()``, and yields its
    records: dicts of name -> value, or ``pa.RecordBatch`` for many. It must be deterministic: the
    same records for the same content, without random numbers, clocks or other changing inputs. Its
    code, and everything that refers to, enters the fingerprint. A record's id is ``path#number``.
    If the function raises, the records it has yielded are kept, and the rest of the file is one
    reject. The build is refused if the function opens a local file that neither its code nor the
    recipe's ``depends_on`` names.

    Attributes:
        url: A file, a folder (all its files, at any depth), a glob, or any fsspec URL.
        function: The argument ``read``.
        label: The feature to predict. Strings and bools become a ClassLabel, for which all files
            are read an extra time, unless it is declared in ``types``; numbers are kept.
        types: Overrides types inferred from the first 100 records of up to 64 files, of which one
            must have each field, None where it is missing: ``{"age": "float32"}``, or a
            feature such as ``ss.ClassLabel(("no", "yes"))``, or ``ss.Image(storage="encoded")`` or
            ``ss.Audio(storage="encoded")`` for the bytes of image or sound files.
    """

    url: str
    function: ReadFn
    label: str | None
    types: Mapping[str, Any] | None

    media = False
    numbered = True
    side_urls = ()

    def __init__(
        self,
        url: str,
        read: ReadFn,
        label: str | None = None,
        types: Mapping[str, Any] | None = None,
    ) -> None:
        """Checks the arguments.

        Raises:
            RecipeError: naming the invalid argument.
        """
        if not isinstance(url, str) or not url:
            raise RecipeError(f"Files: url={url!r}, expected a path or URL.")
        if not callable(read):
            raise RecipeError(
                f"Files: read={read!r} is not a function; expected one that takes a file and "
                "yields dicts."
            )
        if label is not None and not isinstance(label, str):
            raise RecipeError(f"Files: label={label!r} is not a valid name.")
        if types is not None and not isinstance(types, Mapping):
            raise RecipeError(
                f'Files: types={types!r}, expected a dict such as {{"age": "float32"}}.'
            )
        check_texts("Files", {"label": label, "types": types})
        for name, wanted in (types or {}).items():
            if not isinstance(name, str):
                raise RecipeError(f"Files: types names {name!r}, expected the name of a feature.")
            if isinstance(wanted, Feature):
                _check_stored(name, wanted)
            else:
                try:
                    Scalar(wanted)
                except RecipeError:
                    raise RecipeError(
                        f"Files: types: {name!r} is {wanted!r}, expected a dtype such as "
                        '"float32", or a feature such as ss.Scalar(…) or ss.Text().'
                    ) from None
        for field, value in (("url", url), ("function", read), ("label", label), ("types", types)):
            object.__setattr__(self, field, value)

    @property
    def functions(self) -> tuple[ReadFn, ...]:
        """The user's function, whose code enters the fingerprint."""
        return (self.function,)

    def settings(self) -> dict[str, object]:
        """The settings besides the function, as plain JSON, for the fingerprint."""
        return {"label": self.label, "types": types_to_json(self.types)}

    def select(self, files: Sequence[SourceFile]) -> Selection:
        """Selects all files that are not hidden."""
        if len(files) == 1:
            return Selection(files=tuple(files), num_skipped={})
        return select_where(files, lambda path: "hidden file" if is_hidden(path) else "")

    def cuts(self, file: SourceFile, opened: OpenSource, *, every: int) -> tuple[int, ...]:
        """None: only the function knows the layout of a file."""
        del file, opened, every
        return ()

    def offset_of(self, file: SourceFile, row: int, opened: OpenSource) -> None:
        """None: the location of a record is unknown."""
        del file, row, opened

    def infer(self, files: Sequence[SourceFile], opened: OpenSource) -> Mapping[str, Any]:
        """The features of the records, from the first 100 of each of up to 64 files.

        Raises:
            SchemaError: if there are no records, or the values of a name have no common type.
            RecipeError: if ``label`` or ``types`` name a value that does not exist.
        """
        readable = [file for file in files if not file.problem]
        types = RecordTypes()
        why = "it yields nothing"
        for file in readable[:: -(-len(readable) // SAMPLED_FILES) or 1]:
            stop = types.num_records + SAMPLED
            try:
                with working_on(f"inferring features from {file.path}"):
                    for record in records_of(self.function, file.path, opened):
                        types.add(record, path=file.path)
                        if types.num_records >= stop:
                            break
            except RaisedError as error:
                why = f"{file.path}: {error}"
        if not types.num_records:
            raise SchemaError(
                f"Files: none of {len(files):,} files has a record ({why}). Fix the function, or "
                "correct the source."
            )
        features = types.features(self.types or {})
        check_columns("Files", features, label=self.label, types=self.types)
        features = with_types(features, self.types)
        label = self.label
        if label is not None and may_be_class(features[label], (self.types or {}).get(label)):
            class_label = class_of(self._class_names(readable, opened, label))
            if class_label is not None:
                optional = is_optional(features[label])
                features[label] = dataclasses.replace(class_label, optional=optional)
        return features

    def read(
        self, block: Block, *, features: Features, opened: OpenSource, ordered: Sequence[int]
    ) -> Iterator[RawBatch]:
        """Reads the files of a block; ids are ``path#number``.

        Raises:
            RecipeError: if a feature is a decoded image or sound.
        """
        for name, feature in features.items():
            _check_stored(name, feature)
        yield from read_ranges(
            block,
            ordered,
            features=features,
            read=lambda part: self._read_file(part, features, opened),
            may_be_empty=True,
        )

    def _read_file(
        self, part: FileRange, features: Features, opened: OpenSource
    ) -> Iterator[RawBatch]:
        pending = PendingRows(features, part.path, max_rows=_BATCH_RECORDS)
        number = 0
        try:
            for record in records_of(self.function, part.path, opened):
                if isinstance(record, pa.RecordBatch):
                    if len(pending):
                        yield pending.batch()
                        pending = PendingRows(features, part.path, max_rows=_BATCH_RECORDS)
                    yield from _read_batch(record, number, features, path=part.path)
                    number += len(record)
                    continue
                _add_record(pending, number, record, features, path=part.path)
                number += 1
                if pending.is_full:
                    yield pending.batch()
                    pending = PendingRows(features, part.path, max_rows=_BATCH_RECORDS)
        except RaisedError as error:
            pending.rejects.append(_rest(part.path, number, error))
        yield pending.batch()

    def _class_names(
        self, files: Sequence[SourceFile], opened: OpenSource, label: str
    ) -> set[str] | None:
        names: set[str] = set()
        for file in files:
            what = working_on(f"finding the classes in {file.path}")
            with contextlib.suppress(RaisedError), what:
                for record in records_of(self.function, file.path, opened):
                    if isinstance(record, pa.RecordBatch):
                        labels = record.column(label).unique().to_pylist()
                    else:
                        try:
                            labels = [flat_record(record).get(label)]
                        except ValueError:  # the record will be rejected
                            labels = []
                    names.update(_text(value) for value in labels if value is not None)
                    if len(names) > MAX_LABELS:
                        return None
        return names


def _add_record(
    pending: PendingRows, number: int, record: Mapping[str, Any], features: Features, *, path: str
) -> None:
    """Adds a record, or the reject of one that does not fit."""
    try:
        flat = _flat(record)
        row = {name: _lists(name, f, _raw(f, flat.get(name))) for name, f in features.items()}
    except UnfitError as error:
        reject = reject_at(
            path,
            number,
            stage=error.stage,
            reason=error.reason,
            message=f"{path} record {number}: {error} Convert it in the function, "
            "declare it in types=, or raise max_rejects to quarantine such records.",
            exception=type(error).__name__,
        )
        pending.rejects.append(with_values(reject, flat))
        return
    num_bytes = sum(_size(v) for lists in row.values() for v in lists.values())
    pending.add(number, row, num_bytes=num_bytes)


def _read_batch(
    batch: pa.RecordBatch, number: int, features: Features, *, path: str
) -> Iterator[RawBatch]:
    """The rows of a batch from the function, a bounded number at a time."""
    schema = plain_schema(batch.schema, path=path)
    reader = RowReader(schema, features, path=path, unit="record")
    step = max(1, min(1 << 16, BATCH_BYTES * len(batch) // max(1, batch.nbytes)))
    for start in range(0, len(batch), step):
        part = plain_batch(batch.slice(start, step), schema)
        yield reader.read(part, np.arange(number + start, number + start + len(part)))


def _check_stored(name: str, feature: Feature) -> None:
    if tensor_form(feature) is None and not is_encoded(feature):
        raise RecipeError(
            f"Files: {name!r} is declared as decoded; expected the bytes of a file, "
            'ss.Image(storage="encoded") or ss.Audio(storage="encoded"), which a step decodes '
            "(ss.images.decode), or a Tensor if the function yields arrays."
        )


def _flat(record: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return flat_record(record)
    except ValueError as error:
        raise UnfitError(f"{error}.", "duplicate key", stage="read") from None


def _lists(name: str, feature: Any, value: Any) -> Lists:
    if is_encoded(feature):
        return media_lists(name, feature, value)
    return wire_lists(name, feature, value)


def _raw(feature: Any, value: Any) -> Any:
    """A value as the feature has it: classes and texts may be numbers in the data."""
    if not isinstance(value, bool | np.bool_ | int | float | np.number):
        return value
    if isinstance(feature, ClassLabel):
        kind = "bool" if isinstance(value, bool | np.bool_) else "int"
        return _text(value) if feature.num_written(kind) else value
    form = tensor_form(feature)
    return _text(value) if form is not None and form.dtype == "string" else value


def _rest(path: str, number: int, error: RaisedError) -> Reject:
    return reject_at(
        path,
        number,
        stage="read",
        reason=error.reason,
        message=f"{path} record {number}: {error}. What follows in the file is lost. Fix the "
        "function or the file, or raise max_rejects to do without.",
        exception=error.exception,
    )


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, bool | np.bool_):
        return str(bool(value)).lower()
    return str(value)


def _size(values: Any) -> int:
    if isinstance(values, np.ndarray):
        return int(values.nbytes)
    return sum(len(value) if isinstance(value, bytes) else 8 for value in values)
