"""The source of folders of arrays, each ``.npy`` file a record; rows of arrays are ``ss.Numpy``."""

from __future__ import annotations

import io
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, get_args

import numpy as np
import pyarrow as pa

from ....schemas.blocks import SourceFile
from ....schemas.config import config_class
from ....schemas.errors import DataError, ReasonedError, SchemaError
from ....schemas.features import Dtype, Feature, Features
from ....schemas.recipe import OpenSource
from ...examples.row_values import UnfitError
from ...storage.read_files import read_headers
from ..numpy import read_head
from ..python_values import Lists, array_feature, wire_arrays, wire_lists
from .files import MediaFolder, MediaKind

BATCH_BYTES = 8 << 20
_DTYPES = frozenset(get_args(Dtype)) - {"string"}


class UnreadableArrayError(ReasonedError):
    """A file that is no array of the declared type."""


@config_class
class ArrayFolder(MediaFolder):
    """A folder of ``.npy`` files: feature ``array``, a file's whole array, and its labels.

    Labels come from class folders, from ``pattern`` or from ``table``, as for ``ss.ImageFolder``,
    and files are skipped as there. All arrays have one dtype and one number of dimensions; a
    dimension that differs between files is None. Other arrays, and files with Python objects, are
    rejected: nothing is unpickled.

    Attributes:
        url: The folder: a path or any fsspec URL, or a glob.
        pattern: Pattern of the file names, with fields in braces: ``"{label}_{n}.npy"``.
        table: A table with a row for each file.
        split_folders: Whether the first folder is the split (``train/walk/1.npy``), for use with
            ``ss.Splits.by_folder()``.
        label: The column of ``table`` or field of ``pattern`` to predict; None for none.
        unlisted: Whether files without a row in ``table`` are rejected or skipped.
        one_hot: Columns of ``table``, one of which is 1 in each row, as the label.
        rows: ``"list"``: a file may have several rows in ``table``, as lists.
        lists: Texts that name the files of each split, a file on each line: ``{"train":
            "train.txt", "test": "test.txt"}``, for use with ``ss.Splits.by_column("split")``. None
            for the split of all other files: ``{"train": None, "test": "test.txt"}``; else files in
            no list are skipped and counted. Feature ``split``.
    """

    table: str | None = None

    _content = "array"
    _suffixes = (".npy",)

    def settings(self) -> dict[str, object]:
        """The settings that determine the records, as plain JSON, for the fingerprint."""
        return {"source": "array_folder", **self._labels.settings()}

    def infer(self, files: Sequence[SourceFile], opened: OpenSource) -> Mapping[str, Any]:
        """The array as most files' headers describe it, and the features found by ``labels``.

        Raises:
            RecipeError: if class folders are named like splits.
            DataError: if no file is an array, no file has labels, or the table is not valid.
        """
        heads = list(
            read_headers(
                files,
                opened,
                read=lambda _, data: _head_of(data),
                unreadable=UnreadableArrayError,
                cut_short="truncated array",
            )
        )
        if not heads:
            raise DataError(
                f"ArrayFolder: none of the {len(files):,} files has the header of an array of "
                f"numbers (first: {files[0].path if files else None!r})."
            )
        kinds = Counter((dtype, len(shape)) for dtype, shape in heads)
        (dtype, rank), _ = max(kinds.items(), key=lambda item: (item[1], item[0]))
        shapes = [shape for kind, shape in heads if (kind, len(shape)) == (dtype, rank)]
        feature = array_feature(dtype, shapes, optional=False)  # type: ignore[arg-type]
        return {self._content: feature, **self.infer_labels(files, opened)}

    def _kind(self, features: Features) -> MediaKind[tuple[int, Lists]]:
        feature = features[self._content]

        def read(data: bytes) -> tuple[bytes, tuple[int, Lists]]:
            return b"", (len(data), _lists_of(self._content, feature, data))

        def columns(headers: Sequence[tuple[int, Lists]]) -> Mapping[str, pa.Array]:
            return wire_arrays(self._content, feature, [lists for _, lists in headers])

        return MediaKind(
            name=self._content,
            read=read,
            unreadable=UnreadableArrayError,
            weigh=lambda header: header[0],
            max_weight=BATCH_BYTES,
            sides=columns,
        )


def _head_of(data: bytes) -> tuple[str, tuple[int, ...]]:
    """Dtype and shape of an array, from its header."""
    try:
        dtype, shape, _, _ = read_head(data, "it")
    except ValueError as error:
        raise UnreadableArrayError("not an array", f"{error}.") from None
    except SchemaError as error:
        raise UnreadableArrayError("unsupported array", str(error)) from None
    if dtype.name not in _DTYPES:
        raise UnreadableArrayError("unsupported array", f"it has values of the type {dtype.name}.")
    return dtype.name, shape


def _lists_of(name: str, feature: Feature, data: bytes) -> Lists:
    """The stored lists of an array, if it is one of the feature."""
    dtype, shape = _head_of(data)
    try:
        array = np.load(io.BytesIO(data), allow_pickle=False)
    except (ValueError, EOFError, OSError):
        raise UnreadableArrayError(
            "truncated array",
            f"its shape {shape} of {dtype} needs {math.prod(shape):,} values, and it has fewer.",
        ) from None
    try:
        return wire_lists(name, feature, array)
    except UnfitError as error:
        raise UnreadableArrayError(error.reason, str(error)) from None
