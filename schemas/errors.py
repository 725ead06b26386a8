"""What can go wrong, who can fix it, and the exit code of each error.

Exit code 1 is for failures that a retry may resolve, such as a store or a process that failed:
schedulers retry it. Errors that would recur have other codes.

A message says what is wrong, where, what was expected, what was found, and how to fix it. The
command line prints only the message of a :class:`SnapshardError`; a traceback means a defect.
"""

from __future__ import annotations

import dataclasses
import re


class SnapshardError(Exception):
    """Base of all errors that snapshard raises on purpose. Exit code 1."""

    exit_code = 1
    file = ""
    """Path or URL of the file concerned, without credentials; for a record, the file's path in the
    source."""
    record = ""
    """The id of the record that it is about, or of the first of several."""


class RecipeError(SnapshardError):
    """The recipe or the command line is invalid. Exit code 2."""

    exit_code = 2


class StepOrderError(RecipeError):
    """A step of a build was started before one that it needs, or its input has changed since."""


class DataError(SnapshardError):
    """The data is refused: empty, not matching its schema, too many rejects. Exit code 3."""

    exit_code = 3


class SchemaError(DataError):
    """The data does not match the declared features."""


class RejectsError(DataError):
    """More records were rejected than the recipe allows, or all of them."""

    @classmethod
    def of(cls, message: str, *, record: str, file: str) -> RejectsError:
        """The error with the first record of the most frequent reason, and its file."""
        error = cls(message)
        error.record, error.file = record, file
        return error


class DamagedSnapshotError(SnapshardError):
    """A published snapshot does not match its manifest. Exit code 4."""

    exit_code = 4


class StorageError(SnapshardError):
    """A file or store could not be read or written. Exit code 1; a new start resumes the build."""


class SourceChangedError(StorageError):
    """A source file changed since the inventory. The next build reads its new content."""

    @classmethod
    def of(cls, place: str) -> SourceChangedError:
        """The error for a file, named by its path or URL as shown to people."""
        error = cls(
            f"{place} changed while the build read it. Wait until nothing writes to it, then run "
            "the same command again: it reads the new content, and finished work is kept."
        )
        error.file = place
        return error


class PlaceError(StorageError):
    """A file or folder cannot be used; someone must fix it or choose another. Exit code 2.

    Access is denied, it is read-only, it is a file where a folder is expected, or it contains
    something that does not belong there.
    """

    exit_code = 2


class MissingFileError(StorageError):
    """A file or folder does not exist, or its disk is not visible to the process that needs it."""


class DamagedWorkError(StorageError):
    """A workspace file differs from what was written. The build that finds it writes it again."""


class RunnerError(SnapshardError):
    """An engine or one of its workers ended. Exit code 1; a new start resumes the build."""


class ReasonedError(ValueError):
    """Content that cannot be read, with a reason to group rejects by."""

    def __init__(self, reason: str, message: str) -> None:
        """Stores both."""
        super().__init__(message)
        self.reason = reason


_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")

RECORD_ERROR = "RecordError"
"""The exception class of a reject that was found by a check, which raises no exception."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PayloadPlace:
    """Where to find a payload that the reject does not hold: it is too long, or an entire file."""

    sha256: str
    """SHA-256 of the payload, hex."""
    num_bytes: int | None = None
    """Length of the payload; None for a file that was not read to its end."""
    start: int | None = None
    """The payload is bytes [start, stop) of the source file; None if it is a record's values,
    which are at the reject's position."""
    stop: int | None = None
    """None for the end of the file."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reject:
    """A record that could not be read, validated or prepared, kept with its reason."""

    record_id: str
    """``relative/path`` or ``relative/path#position``, the id that the record would have."""
    stage: str
    """Where it failed: one of ``schemas.reject_budgets.STAGES``."""
    reason: str
    """A short, stable class of failure to group by, such as ``not an image``."""
    message: str
    """What was expected and what was found, for people."""
    source: str
    """Relative path of the source file."""
    position: int | None = None
    """Byte offset or row in the source file; None if the file is the record."""
    exception: str = RECORD_ERROR
    """Class name of the exception that was raised."""
    payload: bytes | None = None
    """Content of the record, if short enough to keep."""
    payload_kind: str = "bytes"
    """Kind of payload: ``bytes`` as in the source, or ``values`` as JSON."""
    place: PayloadPlace | None = None
    """Where to find the payload, if it is not kept."""
    num_records: int = 1
    """How many records are lost with it: budgets count all of them."""

    def __post_init__(self) -> None:
        """Removes addresses, so that the same rejects give the same bytes."""
        object.__setattr__(self, "message", without_addresses(self.message))


def without_addresses(text: str) -> str:
    """A text without the addresses of objects in memory, which differ from run to run.

    >>> without_addresses("cannot read <_io.BytesIO object at 0x7f3a5c2e1d50>")
    'cannot read <_io.BytesIO object>'
    """
    return _ADDRESS.sub("", text) if "0x" in text else text
