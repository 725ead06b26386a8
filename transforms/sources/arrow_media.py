"""Columns of files' bytes in Arrow tables: encoded images, their headers read, and sounds."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...schemas.features import Feature, Image
from ..media.image_header import ImageHeader, UnreadableImageError, read_header
from .arrow_leaves import nulls

_Bools = npt.NDArray[np.bool_]


class MediaCells:
    """The cells of one column of a batch, as the bytes of media files.

    Images must have a header that can be read; sounds are taken as they are, for the step that
    decodes them to judge.
    """

    def __init__(self, name: str, feature: Feature, values: pa.Array) -> None:
        """Reads the headers; ``values`` are the bytes of a file each, as large_binary."""
        self._name, self._feature = name, feature
        self._values = values.cast(pa.large_binary())
        self._headers: list[ImageHeader] = []
        self._why: dict[int, tuple[str, str]] = {}
        self.bad = nulls(values)
        for row in np.flatnonzero(self.bad).tolist():
            self._why[row] = ("missing value", "has no value, expected the bytes of a file")
        if isinstance(feature, Image):
            for row, value in enumerate(self._values):
                if not self.bad[row]:
                    self._read_header(row, value.as_buffer().to_pybytes())

    def _read_header(self, row: int, content: bytes) -> None:
        try:
            self._headers.append(read_header(content))
        except UnreadableImageError as error:
            self._why[row] = (error.reason, f"holds {len(content):,} bytes: {error}")
            self.bad[row] = True

    def describe(self, row: int) -> tuple[str, str]:
        """The reason and the message for a bad row."""
        reason, message = self._why[row]
        return reason, f"column {self._name!r} {message}. Fix or remove it"

    def drop(self, rows: _Bools) -> None:
        """Leaves out rows: all that are bad, in this column or another."""
        kept = ~rows
        if self._headers:
            # Those of bad rows of this column have none.
            with_header = kept[~self.bad]
            self._headers = [
                header for header, keep in zip(self._headers, with_header, strict=True) if keep
            ]
        self._values = self._values.filter(pa.array(kept))
        self.bad = self.bad[kept]

    def wire(self) -> Iterator[tuple[str, pa.Array]]:
        """The wire columns, by name; no row may be bad any more."""
        yield self._name, self._values
        if isinstance(self._feature, Image):
            for part in ("height", "width", "orientation"):
                sizes = [getattr(header, part) for header in self._headers]
                yield f"{self._name}/{part}", pa.array(sizes, pa.int64())
