"""Failures of disks and stores as helpful messages: the place, the action, the cause, the fix.

Credentials in a URL never appear in a message.
"""

from __future__ import annotations

import contextlib
import errno
import http
import os
from collections.abc import Iterator

from ...schemas.errors import (
    DamagedSnapshotError,
    MissingFileError,
    PlaceError,
    SnapshardError,
    SourceChangedError,
    StorageError,
)
from ..activity import put_down, take_up
from .redaction import redact, redact_repeated

_NUMBERS = (
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EIO,
    errno.EROFS,
    errno.EACCES,
    errno.ESTALE,
    errno.ENOENT,
)
"""Of errors that TensorFlow reports as text only."""
_ABSENT = {404, 410}
_LASTING = {
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.EEXIST,
    errno.ENAMETOOLONG,
    errno.ELOOP,
    errno.EINVAL,
    errno.EOPNOTSUPP,
}
"""Of errors that a retry would hit again."""
_REFUSED = {400, 401, 403, 407}
_PASSING = {408, 425, 429}
"""HTTP statuses below 500 for which a retry may succeed."""
_AGAIN = "Run the same command again once it can be reached: finished work is kept."
_NETWORK = (
    (
        {"gaierror", "ClientConnectorDNSError", "NameResolutionError"},
        "the host's name cannot be resolved",
        f"Check the name and the network. {_AGAIN}",
    ),
    (
        {"SSLCertVerificationError", "ClientConnectorCertificateError", "CertificateError"},
        "the server's TLS certificate is not valid",
        "Check the host, and the certificates that this machine trusts.",
    ),
    (
        {"SSLError", "ClientSSLError"},
        "no TLS connection can be made",
        f"Check that the server speaks TLS on this port. {_AGAIN}",
    ),
    (
        {"ConnectionRefusedError"},
        "the connection was refused",
        f"Nothing listens there, or a firewall refuses it: check the host and the port. {_AGAIN}",
    ),
    (
        {
            *("TimeoutError", "FSTimeoutError", "Timeout", "ConnectTimeoutError"),
            *("ReadTimeoutError", "ServerTimeoutError"),
        },
        "the server did not answer in time",
        _AGAIN,
    ),
    (
        {
            *("ConnectionResetError", "ConnectionAbortedError", "ServerDisconnectedError"),
            *("ClientPayloadError", "RemoteDisconnected", "ProtocolError", "IncompleteReadError"),
            "error_temp",  # of FTP
        },
        "the connection was lost",
        _AGAIN,
    ),
    (
        {"ConnectionError", "ClientConnectionError", "EndpointConnectionError"},
        "no connection can be made",
        f"Check the host, the port and the network. {_AGAIN}",
    ),
    (
        {"HttpProcessingError"},
        "the server's answer is not valid HTTP",
        f"Check the host, the port and what is in front of the server. {_AGAIN}",
    ),
    (
        # The client of S3 looks for the region that a redirect does not name, and is redirected.
        {"TooManyRedirects", "RecursionError"},
        "the server redirects in a circle",
        "Check the URL. For S3, also set the bucket's region (AWS_DEFAULT_REGION).",
    ),
)
"""Network failures, the most specific first: class names, because their libraries may not be
installed; what happened; how to fix it."""
_CERTIFICATE, _CIRCLE = _NETWORK[1], _NETWORK[-1]
_DEFECTS = (TypeError, AttributeError, NameError, AssertionError, ImportError)


class failing_as_storage_error:
    """Turns what a filesystem raises within its ``with`` into a StorageError on ``url``.

    While the body runs, the build can report what it waits for (``activity``).

    A class, because a generator-based context manager adds a fifth to the time of reading a small
    file.
    """

    __slots__ = ("_action", "_name", "_url")

    def __init__(self, action: str, url: str, *, name: str = "") -> None:
        """Stores what error messages need.

        Args:
            action: What is attempted, as in "Cannot <action> <url>": read, write, list …
            url: The place; its credentials are left out of the message.
            name: Name of a file there, if the place holds many.
        """
        self._action = action
        self._url = url
        self._name = name

    def __enter__(self) -> None:
        """Registers the action as running."""
        take_up(self)

    def describe(self) -> str:
        """The action and the place, without credentials."""
        return f"{self._tried} {redact(self._url)}"

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        """Raises the StorageError; our own errors, defects and interrupts propagate unchanged."""
        put_down(self)
        if not isinstance(error, Exception) or isinstance(error, (SnapshardError, *_DEFECTS)):
            return
        raise _storage_error(error, action=self._tried, url=self._url) from None

    @property
    def _tried(self) -> str:
        return f"{self._action} {self._name} of" if self._name else self._action


@contextlib.contextmanager
def os_errors_as_storage_errors(action: str, url: str) -> Iterator[None]:
    """Turns an OSError, and TensorFlow's version of one, into a StorageError.

    For code that should raise neither; everything else propagates unchanged.

    Args:
        action: What is attempted: read, write, use …
        url: The place, if the error does not name one.
    """
    try:
        yield
    except BrokenPipeError:
        # The reader of our output closed the pipe: no file failed.
        raise
    except OSError as error:
        raise _storage_error(error, action=action, url=str(error.filename or url)) from None
    except Exception as error:
        if not type(error).__module__.startswith("tensorflow."):
            raise
        found = os_error_in(str(error))
        if found is None:
            raise
        raise _storage_error(found, action=action, url=url) from None


@contextlib.contextmanager
def first_look() -> Iterator[None]:
    """Turns a refusal into a PlaceError, around the first access to a place.

    A place that refuses the first request will refuse it again. A later refusal, after requests
    that succeeded, may be an expired credential: a scheduler's next attempt has a new one.
    """
    try:
        yield
    except SourceChangedError:
        # The file there now may be readable; the refused read was of the previous one.
        raise
    except StorageError as error:
        if error.__context__ is not None and _is_final(error.__context__):
            raise PlaceError(str(error)) from None
        raise


def _is_final(error: BaseException) -> bool:
    """Whether only another URL, other permissions or other credentials can change the outcome."""
    if (answer := store_answer(error)) is not None:
        status, word = answer
        # S3 answers 400 to an expired token; a response to HEAD has no body to say so.
        is_expired = "xpired" in word or word == "400 Bad Request"
        return 400 <= status < 500 and status not in _PASSING and not is_expired
    if isinstance(error, PermissionError) or _network_failure(error) is _CERTIFICATE:
        return True
    name = type(error).__name__
    return "redential" in name or name in ("error_perm", "AuthenticationException")  # FTP, SFTP


def is_missing(error: BaseException) -> bool:
    """Whether an error means that nothing is there, as opposed to a failed lookup.

    fsspec's HTTP filesystem raises FileNotFoundError for any failure.
    """
    if (answer := store_answer(error)) is not None:
        return answer[0] in _ABSENT
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        return False
    return _network_failure(error) is None and "ClientError" not in _class_names(error)


@contextlib.contextmanager
def losses_as_damage() -> Iterator[None]:
    """Within it, a file that does not exist is one that a snapshot lists, and has lost.

    Raises:
        DamagedSnapshotError: if a file does not exist.
    """
    try:
        yield
    except MissingFileError as error:
        raise DamagedSnapshotError(
            f"{error.file} is missing. Run `snapshard verify` to find all damage."
        ) from None


def os_error_in(text: str) -> OSError | None:
    """The disk failure that an error's text describes, where it is passed on as text only."""
    number = next((number for number in _NUMBERS if os.strerror(number) in text), None)
    return None if number is None else OSError(number, os.strerror(number))


def _storage_error(error: Exception, *, action: str, url: str) -> StorageError:
    what, fix = _explain(error, action, url)
    kind = StorageError
    if is_missing(error) and not isinstance(error, NotADirectoryError):
        kind = PlaceError if _missing_bucket(action, url) else MissingFileError
    elif isinstance(error, OSError) and error.errno in _LASTING and store_answer(error) is None:
        kind = PlaceError
    explained = kind(f"Cannot {action} {redact(url)}: {what}. {fix}".rstrip())
    explained.file = redact(url)
    return explained


def _explain(error: Exception, action: str, url: str) -> tuple[str, str]:
    """The cause, and how to fix it."""
    number = error.errno if isinstance(error, OSError) else None
    origin = f"{type(error).__module__}.{type(error).__name__}"
    if "redential" in origin or origin.startswith("google.auth"):
        return (
            f"no valid credentials ({redact_repeated(str(error), url)})",
            "Log in first (gcloud auth application-default login, aws configure), or set the "
            "credentials in the environment.",
        )
    if (answer := store_answer(error)) is not None:
        status, code = answer
        if status in _REFUSED:
            return (
                f"the store refused the request ({code})",
                "Check the credentials, which may have expired, and their permissions; run the "
                "same command again: finished work is kept.",
            )
        if status in _PASSING or status >= 500:
            return (
                f"the store failed to answer the request ({code})",
                "It is overloaded or down. Run the same command again, later or with fewer "
                "workers: finished work is kept.",
            )
        if status not in _ABSENT:
            return f"the store answered {code}", "Check the URL."
    elif not isinstance(error, PermissionError) and (found := _network_failure(error)) is not None:
        detail = "" if found is _CIRCLE else _one_line(_stated(error), url)
        return (f"{found[1]} ({detail})" if detail else found[1]), found[2]
    if number in (errno.ENOSPC, errno.EDQUOT):
        return (
            "no space left",
            "Free some space, or choose another place; run the same command again: "
            "finished work is kept.",
        )
    if isinstance(error, PermissionError):
        return "permission denied", "Check its read and write permissions, or choose another place."
    if number == errno.EROFS:
        return "the filesystem is read-only", "Choose another place."
    if number == errno.EOPNOTSUPP:
        return "the filesystem does not support this", "Choose another place."
    if isinstance(error, NotADirectoryError | FileExistsError):
        return "a part of the path is a file, expected a folder", "Choose another place."
    if isinstance(error, IsADirectoryError):
        return "it is a folder, expected a file", ""
    if is_missing(error):
        if bucket := _missing_bucket(action, url):
            return f"{bucket} does not exist", "Create it, or correct the URL."
        return "it does not exist", "It was removed, or the path is misspelled."
    if number == errno.EIO:
        return (
            "the disk or its driver failed (input/output error)",
            "Check the system log for disk errors; run the same command again: finished "
            "work is kept.",
        )
    if number == errno.ESTALE:
        return (
            "the file or folder is gone (stale file handle)",
            "The network filesystem may have been remounted. Run the same command again: "
            "finished work is kept.",
        )
    detail = (isinstance(error, OSError) and error.strerror) or str(error)
    kind: type[BaseException] = type(error)
    if detail == url and error.__cause__ is not None:  # of fsspec, whose cause says more
        detail, kind = _stated(error), type(error.__cause__)
    detail = _one_line(detail, url)
    what = f"{detail} ({kind.__name__})" if detail else kind.__name__
    return what, "Once that is fixed, run the same command again: finished work is kept."


def _missing_bucket(action: str, url: str) -> str:
    """The bucket or container of a store to which a file is written; else empty."""
    scheme, separator, rest = url.partition("://")
    name = rest.partition("/")[0]
    if action != "write" or not separator or not name or scheme in ("file", "local"):
        return ""
    return f"the bucket or container {redact(f'{scheme}://{name}')}"


def _stated(error: BaseException) -> str:
    """What an error, or the innermost of its causes, says of itself."""
    while error.__cause__ is not None:
        error = error.__cause__
    message = getattr(error, "message", None)  # of aiohttp, whose text begins with a number
    return message if isinstance(message, str) and message else str(error)


def _one_line(text: str, url: str) -> str:
    return " ".join(redact_repeated(text, url).split()).rstrip(".")


def _network_failure(error: BaseException) -> tuple[set[str], str, str] | None:
    """The network failure behind an error or one of its causes; None if there is none."""
    names = _class_names(error)
    return next((failure for failure in _NETWORK if failure[0] & names), None)


def _class_names(error: BaseException) -> set[str]:
    """Names of the classes of an error and of its causes."""
    names: set[str] = set()
    chain: list[BaseException] = []
    one: BaseException | None = error
    while one is not None and one not in chain:
        chain.append(one)
        names.update(kind.__name__ for kind in type(one).__mro__)
        one = one.__cause__ or (None if one.__suppress_context__ else one.__context__)
    return names


def store_answer(error: BaseException) -> tuple[int, str] | None:
    """The HTTP status with which a store refused a request, and its text; None for other errors.

    s3fs raises OSErrors caused by botocore's errors; gcsfs has a class of its own, and text only
    for forbidden requests.

    >>> store_answer(OSError("Forbidden: https://host/a"))
    (403, '403 Forbidden')
    """
    if "HttpProcessingError" in _class_names(error):
        return None  # aiohttp gives a broken answer the number 400
    for cause in (error, error.__cause__):
        response = getattr(cause, "response", None)
        if isinstance(response, dict):
            status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
            stated = response.get("Error", {})
            # A response to HEAD has no body: its code is the status.
            word = stated.get("Message" if str(stated.get("Code")) == str(status) else "Code")
        else:
            status = getattr(cause, "status", None)
            status = getattr(cause, "code", None) if status is None else status
            status = status or getattr(response, "status_code", None)  # of requests
            word = None
        if isinstance(status, int) and status >= 400:
            with contextlib.suppress(ValueError):
                word = word or http.HTTPStatus(status).phrase
            return status, f"{status} {word}"
    if isinstance(error, OSError) and str(error).startswith("Forbidden: "):
        return 403, "403 Forbidden"
    return None
