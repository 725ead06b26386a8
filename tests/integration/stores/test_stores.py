"""Source, workspace and output on object stores, also mixed: the bytes are those of local disks."""

import shutil
from pathlib import Path
from typing import Any

import fsspec
import pytest

import snapshard as ss
from snapshard.pipelines.verify import verify
from snapshard.schemas.progress import Silent

from .proxy import Proxy

pytestmark = [
    pytest.mark.engine,
    # gcsfs leaves sessions to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

NUM_FILES, NUM_ROWS, NUM_SHARDS = 4, 300, 3


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "table"
    folder.mkdir()
    for number in range(NUM_FILES):
        rows = [f"{row},word {row % 7},{row * 0.5}" for row in range(NUM_ROWS)]
        (folder / f"{number}.csv").write_text("\n".join(["number,word,half", *rows]) + "\n")
    shutil.make_archive(str(folder), "zip", folder)
    return folder


def recipe(url: str) -> ss.Recipe:
    return ss.Recipe(
        name="table",
        source=ss.Csv(url),
        splits=ss.Splits(train=0.8, test=0.2),
        shards=ss.Shards(num_shards=NUM_SHARDS),
    )


def put(local: Path, url: str) -> str:
    """Copies a folder or file to a store; gives its URL there."""
    files, root = fsspec.core.url_to_fs(url, use_listings_cache=False)
    if local.is_dir():
        for path in local.iterdir():
            files.pipe_file(f"{root}/{path.name}", path.read_bytes())
    else:
        files.pipe_file(root, local.read_bytes())
    return url


@pytest.fixture(scope="module")
def local_hashes(lab: Any, table: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    out = tmp_path_factory.mktemp("local")
    found: dict[str, str] = lab.hashes(ss.build(recipe(str(table)), out))
    return found


def hashes(lab: Any, snapshot: ss.Snapshot, folder: Path) -> dict[str, str]:
    """Of a snapshot on a store, brought here."""
    files, root = fsspec.core.url_to_fs(snapshot.path, use_listings_cache=False)
    for path in files.find(root):
        target = folder / path.removeprefix(root.rstrip("/") + "/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(files.cat_file(path))
    found: dict[str, str] = lab.hashes(str(folder))
    return found


@pytest.mark.parametrize("workers", [1, 2])
def test_all_on_s3(
    lab: Any, s3: Proxy, table: Path, local_hashes: dict[str, str], tmp_path: Path, workers: int
) -> None:
    source = put(table, "s3://bucket/table")
    snapshot = ss.build(recipe(source), "s3://bucket/out", workers=workers)
    assert hashes(lab, snapshot, tmp_path) == local_hashes
    assert verify(snapshot, progress=Silent()).num_examples == NUM_FILES * NUM_ROWS
    assert ss.build(recipe(source), "s3://bucket/out").cached


def test_all_on_gcs(
    lab: Any, gcs: Proxy, table: Path, local_hashes: dict[str, str], tmp_path: Path
) -> None:
    source = put(table, "gs://bucket/table")
    snapshot = ss.build(recipe(source), "gs://bucket/out")
    assert hashes(lab, snapshot, tmp_path) == local_hashes
    assert verify(snapshot, progress=Silent()).num_examples == NUM_FILES * NUM_ROWS
    assert ss.build(recipe(source), "gs://bucket/out").cached


def test_mixed(
    lab: Any,
    s3: Proxy,
    gcs: Proxy,
    table: Path,
    local_hashes: dict[str, str],
    tmp_path: Path,
) -> None:
    """Local to GCS, GCS to S3, a zip on S3 to local, a file:// to S3."""
    pairs = [
        (str(table), "gs://bucket/from-local"),
        (put(table, "gs://bucket/table"), "s3://bucket/from-gcs"),
        (f"zip://*.csv::{put(table.with_suffix('.zip'), 's3://bucket/table.zip')}", "from-zip"),
        (f"file://{table}", "s3://bucket/from-file"),
    ]
    for number, (source, out) in enumerate(pairs):
        out = out if "://" in out else str(tmp_path / out)
        snapshot = ss.build(recipe(source), out)
        assert hashes(lab, snapshot, tmp_path / f"{number}") == local_hashes, (source, out)


def test_requests(s3: Proxy, table: Path) -> None:
    """A shard reads the ranges that it needs, and each file is put once, whole."""
    source = put(table, "s3://bucket/table")
    s3.requests.clear()
    snapshot = ss.build(recipe(source), "s3://bucket/out")
    gets = [request for request in s3.requests if request.method == "GET"]
    puts = [request for request in s3.requests if request.method == "PUT"]
    of_runs = [request for request in gets if "/runs/" in request.path and ".arrow" in request.path]
    assert all(request.ranged for request in of_runs)
    num_shards = sum(len(split.shards) for split in snapshot.manifest.splits.values())
    num_runs = len({request.path for request in of_runs})
    # One range of a run for each shard; its keys, its sample and its contents' hashes.
    assert len(of_runs) <= num_runs * (num_shards + 3)
    of_shards = [request for request in puts if ".tfrecord" in request.path]
    assert len(of_shards) == len({request.path for request in of_shards})
    assert puts[-1].path.endswith("latest.json")
    assert puts[-2].path.endswith("manifest.json")
    per_shard = len(s3.requests) / num_shards
    print(f"{len(gets)} GET, {len(puts)} PUT of {num_shards} shards: {per_shard:.1f} requests each")


def test_throttled(
    lab: Any, s3: Proxy, table: Path, local_hashes: dict[str, str], tmp_path: Path
) -> None:
    """Every fifth request is told to slow down: tried again, nothing is lost."""
    source = put(table, "s3://bucket/table")
    seen = [0]

    def slow_down(method: str, path: str) -> int:
        seen[0] += 1
        return 503 if seen[0] % 5 == 0 else 0

    s3.breaking = slow_down
    snapshot = ss.build(recipe(source), "s3://bucket/out")
    s3.breaking = lambda method, path: 0
    assert s3.num_broken > 10
    assert hashes(lab, snapshot, tmp_path) == local_hashes


@pytest.mark.parametrize(
    "file", [".tfrecord", "reader.py", "manifest.json", "latest.json", "/runs/"]
)
def test_put_that_fails(
    lab: Any,
    s3: Proxy,
    table: Path,
    local_hashes: dict[str, str],
    tmp_path: Path,
    file: str,
) -> None:
    """For good, in the middle of a build: an error of ours, no half snapshot, and it goes on."""
    source = put(table, "s3://bucket/table")
    s3.breaking = lambda method, path: 403 if method in ("PUT", "POST") and file in path else 0
    with pytest.raises(ss.SnapshardError) as raised:
        ss.build(recipe(source), "s3://bucket/out")
    assert raised.value.exit_code == 1
    assert file.strip("/") in str(raised.value)
    s3.breaking = lambda method, path: 0
    files, _ = fsspec.core.url_to_fs("s3://bucket", use_listings_cache=False)
    found = files.find("bucket/out")
    published = [path for path in found if path.endswith("/manifest.json")]
    assert not published or file == "latest.json"
    snapshot = ss.build(recipe(source), "s3://bucket/out")
    assert hashes(lab, snapshot, tmp_path) == local_hashes


def test_expired_credential(s3: Proxy, table: Path) -> None:
    source = put(table, "s3://bucket/table")
    s3.breaking = lambda method, path: 403
    with pytest.raises(ss.SnapshardError) as raised:
        ss.build(recipe(source), "s3://bucket/out")
    assert "s3://bucket" in str(raised.value)
    assert "secret" not in str(raised.value)
