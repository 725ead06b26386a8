"""Limits on the size of single pieces of data: no file can exhaust a machine.

Data that exceeds a limit becomes a reject, counted like any other; memory stays flat.
"""

from __future__ import annotations

import dataclasses
from typing import Annotated

import pydantic

from .config import config_class

_Count = Annotated[int, pydantic.Field(gt=0, strict=True)]
_Flag = Annotated[bool, pydantic.Field(strict=True)]


@config_class
class Limits:
    """How much memory and disk the data may use. The defaults are safe for untrusted input.

    Only limits that differ from the default enter the fingerprint.

    Attributes:
        max_row_bytes: Maximum size of a CSV row, a JSON line or a text record. None means 16 MiB;
            for JSON Lines, and for a text file that is one record, 64 MiB. A JSON line that ends
            within 1 MiB is never refused.
        max_record_bytes: Maximum size of a file that is one record, of all parts of a WebDataset
            sample together, and of a record of a TFRecord file.
        max_expansion: Maximum ratio of decompressed to stored size, for a compressed file, an
            archive member, or the values of a Parquet, Arrow or NumPy file. Anything below
            256 MiB is never refused.
        max_columns: Maximum number of columns of a CSV table, or of names in JSON Lines; each is a
            feature. Data with more fails the build.
        follow_links: Whether symbolic links may lead out of the source's folder. If not, a link
            that does becomes a reject.
    """

    max_row_bytes: _Count | None = None
    max_record_bytes: _Count = 1 << 30
    max_expansion: _Count = 250
    max_columns: _Count = 10_000
    follow_links: _Flag = False

    def changed(self) -> dict[str, object]:
        """The limits that differ from the default, as plain JSON for the fingerprint."""
        return {
            field.name: value
            for field in dataclasses.fields(self)
            if (value := getattr(self, field.name)) != field.default
        }


DEFAULT_LIMITS = Limits()
"""The limits of a recipe that sets none."""


def too_many_columns(path: str, found: int, max_columns: int) -> str:
    """The error message for a table of too many columns."""
    return (
        f"{path} has {found:,} columns or names, more than {max_columns:,}. Check that "
        "it is the right file; limits=ss.Limits(max_columns=…) in the recipe allows more."
    )


FREE_BYTES = 256 << 20
"""Data that decompresses to at most this size is accepted, whatever its ratio."""
