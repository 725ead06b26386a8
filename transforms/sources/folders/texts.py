"""The source of folders of texts, each file a record; lines of files are ``ss.TextFiles``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ....schemas.blocks import SourceFile
from ....schemas.config import config_class
from ....schemas.features import Features, Text
from ....schemas.recipe import OpenSource
from ..text_stream import codec_name
from .bystanders import TEXTS
from .decoded import UnreadableTextError, utf8_text
from .files import MediaFolder, MediaKind

BATCH_BYTES = 8 << 20


@config_class
class TextFolder(MediaFolder):
    """A folder of texts: feature ``text``, a file's whole text, and its labels.

    Labels come from class folders, from ``pattern`` or from ``table``, as for ``ss.ImageFolder``,
    and files are skipped as there. A file that is not valid in the encoding is rejected.

    Attributes:
        url: The folder: a path or any fsspec URL, or a glob.
        pattern: Pattern of the file names, with fields in braces: ``"{label}_{n}.txt"``.
        table: A table with a row for each file.
        split_folders: Whether the first folder is the split (``train/pos/1.txt``), for use with
            ``ss.Splits.by_folder()``.
        label: The column of ``table`` or field of ``pattern`` to predict; None for none.
        unlisted: Whether files without a row in ``table`` are rejected or skipped.
        one_hot: Columns of ``table``, one of which is 1 in each row, as the label.
        rows: ``"list"``: a file may have several rows in ``table``, as lists.
        lists: Texts that name the files of each split, a file on each line: ``{"train":
            "train.txt", "test": "test.txt"}``, for use with ``ss.Splits.by_column("split")``. None
            for the split of all other files: ``{"train": None, "test": "test.txt"}``; else files in
            no list are skipped and counted. Feature ``split``.
        encoding: Python's name of the encoding. Not needed for text that begins with a byte order
            mark.
    """

    table: str | None = None
    encoding: str = "utf-8"

    _content = "text"
    _suffixes = TEXTS

    def __post_init__(self) -> None:
        """Checks the encoding, and the origin of labels."""
        codec_name(self.encoding)
        super().__post_init__()

    def settings(self) -> dict[str, object]:
        """The settings that determine the records, as plain JSON, for the fingerprint."""
        encoding = codec_name(self.encoding)
        return {"source": "text_folder", "encoding": encoding, **self._labels.settings()}

    def infer(self, files: Sequence[SourceFile], opened: OpenSource) -> Mapping[str, Any]:
        """The text, and the features found by ``labels``.

        Raises:
            RecipeError: if class folders are named like splits.
            DataError: if no file has labels, or the table is not valid.
        """
        return {self._content: Text(), **self.infer_labels(files, opened)}

    def _kind(self, features: Features) -> MediaKind[int]:
        return MediaKind(
            name=self._content,
            read=self._read_text,
            unreadable=UnreadableTextError,
            weigh=int,
            max_weight=BATCH_BYTES,
        )

    def _read_text(self, data: bytes) -> tuple[bytes, int]:
        text = utf8_text(data, self.encoding, remedy="Fix it, or name its encoding=")
        return text, len(text)
