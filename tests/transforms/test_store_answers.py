"""What stores answer is told as what it is, and is neither a bad disk nor a missing file."""

import errno
from typing import Any

import pytest

from snapshard.schemas.errors import PlaceError, StorageError
from snapshard.transforms import storage
from snapshard.transforms.storage.artifacts import is_lost
from snapshard.transforms.storage.failures import store_answer


class BotocoreLikeError(Exception):
    def __init__(self, status: int, code: str, message: str = "") -> None:
        super().__init__(message)
        self.response = {
            "ResponseMetadata": {"HTTPStatusCode": status},
            "Error": {"Code": code, "Message": message},
        }


class GcsLikeError(Exception):
    def __init__(self, code: int) -> None:
        super().__init__(f"message, {code}")
        self.code = code


class AiohttpLikeError(Exception):
    status = 503


def caused(error: OSError, cause: Exception) -> OSError:
    """As s3fs raises it."""
    error.__cause__ = cause
    return error


REFUSED = "the store refused the request"
BUSY = "the store failed to answer the request"


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (caused(OSError(errno.EIO, "x"), BotocoreLikeError(400, "ExpiredToken")), 400, REFUSED),
        (caused(OSError(22, "x"), BotocoreLikeError(400, "400", "Bad Request")), 400, REFUSED),
        (
            caused(PermissionError(13, "x"), BotocoreLikeError(403, "RequestTimeTooSkewed")),
            403,
            "RequestTimeTooSkewed",
        ),
        (caused(OSError(errno.EIO, "x"), BotocoreLikeError(429, "429")), 429, BUSY),
        (GcsLikeError(401), 401, REFUSED),
        (GcsLikeError(429), 429, BUSY),
        (AiohttpLikeError(), 503, BUSY),
        (OSError("Forbidden: https://host/b\nno"), 403, REFUSED),
    ],
)
def test_answers(error: Exception, status: int, said: str) -> None:
    found = store_answer(error)
    assert found is not None
    assert found[0] == status
    with (
        pytest.raises(StorageError) as raised,
        storage.failing_as_storage_error("read", "s3://b/a"),
    ):
        raise error
    assert str(raised.value).startswith("Cannot read s3://b/a: ")
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)
    assert not is_lost(raised.value)


@pytest.mark.parametrize(
    "error",
    [
        caused(FileNotFoundError("bucket/a"), BotocoreLikeError(404, "NoSuchBucket")),
        FileNotFoundError("bucket/a"),
        GcsLikeError(404),
    ],
)
def test_a_missing_bucket_is_named(error: Exception) -> None:
    """Nothing else is missing where a file is put."""
    with (
        pytest.raises(PlaceError) as raised,
        storage.failing_as_storage_error("write", "s3://bucket/out/a"),
    ):
        raise error
    assert "the bucket or container s3://bucket does not exist. Create it" in str(raised.value)


@pytest.mark.parametrize(
    ("error", "is_final"),
    [
        (caused(OSError(errno.EIO, "x"), BotocoreLikeError(400, "ExpiredToken")), False),
        # The same to HEAD, whose answers have no body.
        (caused(OSError(22, "x"), BotocoreLikeError(400, "400", "Bad Request")), False),
        (caused(OSError(22, "x"), BotocoreLikeError(400, "InvalidBucketName")), True),
        (caused(PermissionError(13, "x"), BotocoreLikeError(403, "AccessDenied")), True),
        (GcsLikeError(401), True),
        (GcsLikeError(429), False),
    ],
)
def test_what_is_refused_at_first_look(error: Exception, is_final: bool) -> None:
    """A new try has another token, but no other rights: schedulers repeat only the former."""
    with (
        pytest.raises(StorageError) as raised,
        storage.first_look(),
        storage.failing_as_storage_error("read", "s3://b/a"),
    ):
        raise error
    assert isinstance(raised.value, PlaceError) == is_final


@pytest.mark.parametrize(
    "error", [OSError(errno.EIO, "bad disk"), PermissionError(13, "no"), ValueError("no")]
)
def test_no_answers(error: Exception) -> None:
    assert store_answer(error) is None


def test_size_by_name() -> None:
    storage.put_bytes("memory://sizes/a", b"abc")
    assert storage.size_of("memory://sizes/a") == 3
    assert storage.size_of("memory://sizes/b") is None


def test_size_that_cannot_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    found, _ = storage.filesystem("memory://sizes")

    def refuse(*_: Any, **__: Any) -> None:
        raise GcsLikeError(401)

    monkeypatch.setattr(type(found), "info", refuse)
    with pytest.raises(StorageError, match=REFUSED):
        storage.size_of("memory://sizes/a")
