"""What can go wrong, who can fix it, and the exit code of each.

Exit code 1 is for what another try may find otherwise, a store or a process that failed:
schedulers retry it. What would end alike has another code.

A message says what, where, what was expected, what was found, and how to fix it. The command
line prints the message alone for every :class:`SnapshardError`; a traceback means a defect.
"""

from __future__ import annotations

import dataclasses


class SnapshardError(Exception):
    """Base of all errors that snapshard raises on purpose. Exit code 1."""

    exit_code = 1


class RecipeError(SnapshardError):
    """The recipe or the command line asks for what cannot be done. Exit code 2."""

    exit_code = 2


class StepOrderError(RecipeError):
    """A step of a build is to run before one that it needs, or of something that has changed."""


class DataError(SnapshardError):
    """The data is refused: empty, against its schema, too many rejects. Exit code 3."""

    exit_code = 3


class SchemaError(DataError):
    """The data does not have the declared features."""


class RejectsError(DataError):
    """More records were rejected than the recipe allows, or all of them."""


class DamagedSnapshotError(SnapshardError):
    """A published snapshot is not what its manifest says. Exit code 4."""

    exit_code = 4


class StorageError(SnapshardError):
    """A file or store could not be read or written. Exit code 1; starting again goes on."""


class SourceChangedError(StorageError):
    """A file of the source is not what the inventory found. The next build takes it as it is."""

    @classmethod
    def of(cls, place: str) -> SourceChangedError:
        """The error that names a file, by what is shown of its path or URL."""
        return cls(
            f"{place} changed while the build read it. Wait until nothing writes there, then run "
            "the same command again: it starts from the new content, and finished work is kept."
        )


class PlaceError(StorageError):
    """A place cannot be used until somebody changes it or chooses another. Exit code 2.

    It refuses access, is read-only, is a file where a folder is expected, or holds what does not
    belong there.
    """

    exit_code = 2


class MissingFileError(StorageError):
    """A file or folder is not there, or whoever looked for it does not see its disk."""


class DamagedWorkError(StorageError):
    """A file of the workspace is not what was written. The build that meets it redoes it."""


class RunnerError(SnapshardError):
    """An engine or one of its workers ended. Exit code 1; starting again goes on."""


RECORD_ERROR = "RecordError"
"""Stands in a reject for the class of an exception where a check told of it, which raises none."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PayloadPlace:
    """Where a payload lies that a reject does not hold: it is too long, or a whole file."""

    sha256: str
    """Of the payload, hex."""
    num_bytes: int | None = None
    """Its length; None for a file that was not read to its end."""
    start: int | None = None
    """The payload is bytes [start, stop) of the source file; None where it is a record's values,
    which lie at the reject's position."""
    stop: int | None = None
    """None for the end of the file."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reject:
    """A record that could not be read, validated or prepared, kept with its reason."""

    record_id: str
    """``relative/path`` or ``relative/path#position``, as the record's id would be."""
    stage: str
    """Where it failed: one of ``schemas.reject_budgets.STAGES``."""
    reason: str
    """A short, stable class of failure (``not an image``), to group by."""
    message: str
    """What was expected and found, for a person."""
    source: str
    """Relative path of the source file."""
    position: int | None = None
    """Byte offset or row inside the source file; None where the file is the record."""
    exception: str = RECORD_ERROR
    """Name of the class of the exception that told of it."""
    payload: bytes | None = None
    """What the record held, where it is short enough to keep."""
    payload_kind: str = "bytes"
    """What the payload is: ``bytes`` as they stand in the source, or ``values``, as JSON."""
    place: PayloadPlace | None = None
    """Where the payload lies, if it is not kept."""
