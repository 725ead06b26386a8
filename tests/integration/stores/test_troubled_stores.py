"""Stores in trouble: what is published is whole, what is said is one sentence, and builds go on."""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest

import snapshard as ss
from snapshard.pipelines.inspect.verify import verify
from snapshard.pipelines.operate.gc import collect_garbage
from snapshard.pipelines.snapshot import build_facts
from snapshard.schemas.progress import Silent
from snapshard.transforms import storage

from .proxy import CUT, Answer, Proxy
from .test_stores import NUM_FILES, NUM_ROWS, hashes, local_hashes, put, recipe, table

__all__ = ["local_hashes", "table"]

pytestmark = [
    pytest.mark.engine,
    # gcsfs leaves sessions to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
KEY, SECRET = "AKIAWRITTENNOWHERE", "a+secret/written/nowhere"
A_LONG_WHILE_S = 1e9
LARGE_BYTES = 101 * 2**20
"""More than s3fs and gcsfs put in one request."""


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has clients try again less often."""
    import s3fs

    monkeypatch.setattr(s3fs.S3FileSystem, "retries", 2)
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")


@pytest.fixture(params=["s3", "gs"])
def store(request: pytest.FixtureRequest) -> tuple[str, Proxy]:
    """The scheme of a store, and what stands before it."""
    name: str = request.param
    return name, request.getfixturevalue("s3" if name == "s3" else "gcs")


def stored(url: str) -> dict[str, bytes]:
    files, root = fsspec.core.url_to_fs(url, use_listings_cache=False)
    return {path: files.cat_file(path) for path in files.find(root)}


def after(
    number: int, answer: int | Answer, method: str = ""
) -> Callable[[str, str], int | Answer]:
    """Passes so many requests on, all or those of one method; what follows gets the answer."""
    num_seen = [0]

    def breaking(asked: str, path: str) -> int | Answer:
        if num_seen[0] >= number:
            return answer
        num_seen[0] += method in ("", asked)
        return 0

    return breaking


def mend(proxy: Proxy) -> None:
    proxy.breaking = lambda method, path: 0


@pytest.mark.usefixtures("impatient")
def test_credential_that_expires(
    lab: Any,
    store: tuple[str, Proxy],
    table: Path,
    local_hashes: dict[str, str],
    tmp_path: Path,
) -> None:
    """At several moments, each time of the same build: it never publishes half, and goes on."""
    scheme, proxy = store
    source, out = put(table, f"{scheme}://bucket/table"), f"{scheme}://bucket/out"
    expired = Answer(400, "ExpiredToken") if scheme == "s3" else Answer(401, "Invalid Credentials")
    num_done = []
    for number in (8, 30):
        proxy.breaking = after(number, expired)
        with pytest.raises(ss.SnapshardError) as raised:
            ss.build(recipe(source), out)
        mend(proxy)
        told = str(raised.value)
        assert raised.value.exit_code == 1, told
        assert f"{scheme}://bucket/" in told
        assert "the store refused the request (40" in told, told
        assert "which may have expired" in told
        assert "\n" not in told
        left = stored(out)
        assert not [name for name in left if name.endswith(("/manifest.json", "/latest.json"))]
        num_done.append(len(left))
    assert num_done == sorted(num_done)
    assert num_done[-1] > num_done[0]
    assert hashes(lab, ss.build(recipe(source), out), tmp_path) == local_hashes


def test_credential_that_expires_through_the_command_line(
    lab: Any, s3: Proxy, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One sentence, and nowhere the credentials; the build is of two workers."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    source = put(table, "s3://bucket/table")
    s3.breaking = after(4, Answer(400, "ExpiredToken"), "PUT")
    broken = lab.run_cli("build", source, "--out", "s3://bucket/out", "--workers", "2")
    mend(s3)
    assert broken.returncode == 1, broken.stderr
    assert broken.stderr.splitlines()[-1].startswith("error: Cannot ")
    assert "Traceback" not in broken.stderr
    written = stored("s3://bucket/out")
    assert written
    content = [broken.stdout.encode(), broken.stderr.encode(), *written.values()]
    assert not [one for one in content if KEY.encode() in one or SECRET.encode() in one]


def test_source_that_may_not_be_read_any_more(s3: Proxy, table: Path, tmp_path: Path) -> None:
    """The output is on another store: what cannot be read must not pass for rejects."""
    source = put(table, "s3://bucket/table")
    s3.breaking = after(6, Answer(403, "InvalidAccessKeyId"))
    lenient = ss.Recipe(name="table", source=ss.Csv(source), max_rejects=1.0)
    with pytest.raises(ss.SnapshardError, match="the store refused the request") as raised:
        ss.build(lenient, tmp_path)
    assert raised.value.exit_code == 1
    assert not list(tmp_path.rglob("manifest.json"))
    mend(s3)
    assert ss.build(lenient, tmp_path).manifest.num_rejects == 0


def test_listings_that_lag(
    lab: Any,
    store: tuple[str, Proxy],
    table: Path,
    local_hashes: dict[str, str],
    tmp_path: Path,
) -> None:
    """Nothing that builds put is listed while they run, are cut short, go on and are read."""
    scheme, proxy = store
    source, out = put(table, f"{scheme}://bucket/table"), f"{scheme}://bucket/out"
    proxy.list_from_now("bucket/table")
    proxy.listing_lag_s = A_LONG_WHILE_S
    files, root = fsspec.core.url_to_fs(out, use_listings_cache=False)
    num_puts = [0]

    def refuse_late_puts(method: str, path: str) -> int:
        num_puts[0] += method in ("PUT", "POST")
        return 403 if method in ("PUT", "POST") and num_puts[0] > 25 else 0

    proxy.breaking = refuse_late_puts
    with pytest.raises(ss.SnapshardError, match="Cannot write"):
        ss.build(recipe(source), out)
    mend(proxy)
    first = ss.build(recipe(source), out)
    assert build_facts(first.path)["blocks"]["prepared"] == 0
    assert ss.build(recipe(source), out).cached
    assert not files.find(root)
    assert verify(first, progress=Silent()).num_examples == NUM_FILES * NUM_ROWS
    assert ss.Snapshot.open(f"{out}/table").path == first.path
    assert ss.Snapshot.open(first.path).path == first.path
    with contextlib.suppress(ss.SnapshardError):
        # That nothing lies there.
        assert not collect_garbage(f"{out}/table").paths
    proxy.listing_lag_s = 0
    assert hashes(lab, first, tmp_path) == local_hashes
    assert not collect_garbage(f"{out}/table").paths


def test_busy_stores(
    lab: Any,
    store: tuple[str, Proxy],
    table: Path,
    local_hashes: dict[str, str],
    tmp_path: Path,
) -> None:
    """Every ninth request is answered 429 with Retry-After, or cut."""
    scheme, proxy = store
    source, out = put(table, f"{scheme}://bucket/table"), f"{scheme}://bucket/out"
    seen = [0]

    def busy(method: str, path: str) -> int | Answer:
        seen[0] += 1
        if seen[0] % 18 == 0:
            return CUT
        return Answer(429, "SlowDown", (("Retry-After", "1"),)) if seen[0] % 9 == 0 else 0

    proxy.breaking = busy
    snapshot = ss.build(recipe(source), out)
    mend(proxy)
    assert proxy.num_broken > 3
    assert hashes(lab, snapshot, tmp_path) == local_hashes


@pytest.mark.usefixtures("impatient")
def test_put_that_is_cut(store: tuple[str, Proxy], tmp_path: Path) -> None:
    """In the middle of its one request: there is nothing, or what was there before."""
    scheme, proxy = store
    url, local = f"{scheme}://bucket/shard", tmp_path / "shard"
    for before in (None, b"before"):
        if before is not None:
            storage.put_bytes(url, before)
        proxy.breaking = lambda method, path: CUT if method in ("PUT", "POST") else 0
        local.write_bytes(b"0123456789" * 1000)
        with pytest.raises(ss.SnapshardError, match="Cannot write"):
            storage.put_file(str(local), url)
        mend(proxy)
        assert local.exists()
        assert stored(f"{scheme}://bucket") == ({} if before is None else {"bucket/shard": before})


@pytest.mark.usefixtures("impatient")
def test_large_put_that_is_cut(store: tuple[str, Proxy], tmp_path: Path) -> None:
    """In its second part: clients put what is large in parts, and it appears with the last."""
    scheme, proxy = store
    url, local = f"{scheme}://bucket/shard", tmp_path / "shard"
    with local.open("wb") as file:
        file.truncate(LARGE_BYTES)
    parts = [0]

    def second_part(method: str, path: str) -> int:
        is_part = "partNumber=" in path or "upload_id=" in path
        parts[0] += is_part
        return CUT if is_part and parts[0] > 1 else 0

    proxy.breaking = second_part
    with pytest.raises(ss.SnapshardError, match="Cannot write"):
        storage.put_file(str(local), url)
    mend(proxy)
    assert parts[0] > 1
    assert stored(f"{scheme}://bucket") == {}
    storage.put_file(str(local), url)
    assert storage.size_of(url) == LARGE_BYTES
