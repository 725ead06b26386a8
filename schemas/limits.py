"""Limits: how much a single piece of the data may take, so that no file can exhaust a machine.

What exceeds a limit becomes a reject, counted like any other; memory stays flat.
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
    """What data may ask for; the defaults are meant to be safe with data of strangers.

    A limit that is not the default's enters the fingerprint.

    Attributes:
        max_row_bytes: Of a row of CSV, a line of JSON, a record of text: None means 16 MiB, of
            JSON Lines and of a text file that is one record 64 MiB. A line of JSON that ends
            within 1 MiB is never refused.
        max_record_bytes: Of a file that is one record, of the parts of a WebDataset's sample
            together, and of a record of a TFRecord file.
        max_expansion: How many times its own size a compressed file, a member of an archive, or
            the values of a Parquet, Arrow or NumPy file may grow to. What stays below 256 MiB is
            never refused.
        max_columns: Of a table of CSV, and of names of JSON Lines, a feature each. Beyond that a
            build is refused.
        follow_links: Whether symbolic links may lead out of the source's folder. Where they may
            not, one that does is a reject.
    """

    max_row_bytes: _Count | None = None
    max_record_bytes: _Count = 1 << 30
    max_expansion: _Count = 250
    max_columns: _Count = 10_000
    follow_links: _Flag = False

    def changed(self) -> dict[str, object]:
        """Those that are not the default's, as plain JSON: for the fingerprint."""
        return {
            field.name: value
            for field in dataclasses.fields(self)
            if (value := getattr(self, field.name)) != field.default
        }


def too_many_columns(path: str, found: int, max_columns: int) -> str:
    """What is said of a table of too many columns."""
    return (
        f"{path} has {found:,} columns or names, more than {max_columns:,}. Is it the right file? "
        "limits=ss.Limits(max_columns=…) in the recipe allows more."
    )


FREE_BYTES = 256 << 20
"""What decompresses to no more than this is no bomb, whatever its ratio."""
