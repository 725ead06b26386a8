"""Source, workspace and output on object stores, also mixed: the bytes are those of local disks."""

import dataclasses
import functools
import hashlib
import os
import shutil
import zipfile
from pathlib import Path
from typing import Any

import fsspec
import pytest

import snapshard as ss
from snapshard.pipelines.inspect.verify import verify
from snapshard.pipelines.operate.gc import collect_garbage
from snapshard.schemas.errors import SourceChangedError
from snapshard.schemas.progress import Silent
from snapshard.transforms.storage.opened_source import open_source

from .proxy import Proxy, Request

pytestmark = [
    pytest.mark.engine,
    # gcsfs leaves sessions to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

NUM_FILES, NUM_ROWS, NUM_SHARDS = 4, 300, 2


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


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.smoke), 2])
def test_all_on_s3(
    lab: Any, s3: Proxy, table: Path, local_hashes: dict[str, str], tmp_path: Path, workers: int
) -> None:
    source = put(table, "s3://bucket/table")
    snapshot = ss.build(recipe(source), "s3://bucket/out", workers=workers)
    assert hashes(lab, snapshot, tmp_path) == local_hashes
    assert verify(snapshot, progress=Silent()).num_examples == NUM_FILES * NUM_ROWS
    assert ss.build(recipe(source), "s3://bucket/out").cached


@pytest.mark.smoke
def test_all_on_gcs(
    lab: Any, gcs: Proxy, table: Path, local_hashes: dict[str, str], tmp_path: Path
) -> None:
    source = put(table, "gs://bucket/table")
    snapshot = ss.build(recipe(source), "gs://bucket/out")
    assert hashes(lab, snapshot, tmp_path) == local_hashes
    assert verify(snapshot, progress=Silent()).num_examples == NUM_FILES * NUM_ROWS
    assert ss.build(recipe(source), "gs://bucket/out").cached


@pytest.mark.parametrize("store", ["s3", "gcs"])
def test_members_of_archives_that_change(
    store: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Members of equal length and CRC-32 have other stamps, and no read mixes two archives."""
    content = os.urandom(5 << 20)  # more than is read ahead
    request.getfixturevalue(store)
    url = f"{'gs' if store == 'gcs' else store}://bucket/a.zip"
    stamps, first = [], None
    for number in (0, 0, 1):
        with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
            for name in ("a", "b"):
                info = zipfile.ZipInfo(name, (2026, 1, 1 + number, 0, 0, 0))
                archive.writestr(info, content)
        put(tmp_path / "a.zip", url)
        opened = open_source(url, "/")
        stamps.append([file.stamp for file in opened.list()])
        assert opened.read("a") == content
        first = first or open_source(url, "/")
    assert all(stamps[0])
    assert not {*stamps[1]} & {*stamps[2]}
    assert first is not None
    with pytest.raises(SourceChangedError):
        first.read("b")


def test_mixed(
    lab: Any,
    s3: Proxy,
    gcs: Proxy,
    table: Path,
    local_hashes: dict[str, str],
    tmp_path: Path,
) -> None:
    """Local to GCS, GCS to S3, a zip on S3 to local, a file:// to S3; workspaces elsewhere, too."""
    here = str(tmp_path / "workspace")
    zipped = put(table.with_suffix(".zip"), "s3://bucket/table.zip")
    cases = [
        (str(table), "gs://bucket/from-local", None),
        (put(table, "gs://bucket/table"), "s3://bucket/from-gcs", "gs://bucket/workspace"),
        (f"zip://*.csv::{zipped}", str(tmp_path / "from-zip"), "s3://bucket/workspace"),
        (f"file://{table}", "s3://bucket/from-file", here),
    ]
    for number, (source, out, workspace) in enumerate(cases):
        snapshot = ss.build(recipe(source), out, workspace=workspace)
        assert hashes(lab, snapshot, tmp_path / f"{number}") == local_hashes, (source, out)
        assert ss.build(recipe(source), out).cached
        assert not collect_garbage(out).paths
        if workspace is not None:
            files, root = fsspec.core.url_to_fs(workspace, use_listings_cache=False)
            assert [path for path in files.find(root) if "/runs/" in path]


def test_requests(s3: Proxy, tmp_path: Path) -> None:
    """A shard reads the ranges that it needs, and each file is put once, whole; with two workers.

    Runs of several batches, so that a shard needs a part of each.
    """
    num_rows, num_shards = 24_000, 12
    rows = "".join(
        f"{row},{hashlib.sha512(b'%d' % row).hexdigest() * 2}\n" for row in range(num_rows)
    )
    (tmp_path / "table.csv").write_text(f"number,word\n{rows}")
    source = put(tmp_path / "table.csv", "s3://bucket/table.csv")
    s3.requests.clear()
    many = dataclasses.replace(recipe(source), shards=ss.Shards(num_shards=num_shards // 2))
    snapshot = ss.build(many, "s3://bucket/out", workers=2)
    assert sum(len(split.shards) for split in snapshot.manifest.splits.values()) == num_shards

    def of(method: str, part: str) -> list[Request]:
        return [one for one in s3.requests if one.method == method and part in one.path]

    num_source_bytes = (tmp_path / "table.csv").stat().st_size
    # Once to know its content, once for its columns' types (none is declared), once to prepare.
    assert sum(one.num_received for one in of("GET", "/table.csv")) < 3.1 * num_source_bytes
    of_runs = of("GET", ".arrow")
    of_runs = [one for one in of_runs if "/runs/" in one.path]
    assert all(one.ranged for one in of_runs)
    run_bytes = sum(one.num_sent for one in of("PUT", ".arrow") if "/runs/" in one.path)
    num_runs = len({one.path for one in of_runs})
    # A range of each run for each shard; its sample; each MiB of it to look for equal contents, and
    # again for texts that are alike.
    num_scanned = run_bytes / 2**20 + num_runs
    assert len(of_runs) <= num_runs * (num_shards + 2) + 2 * num_scanned
    # Batches of 256 KiB at both ends of a shard's range are read for its neighbour, too.
    read = sum(one.num_received for one in of_runs)
    assert read < 2 * run_bytes + 2 * num_shards * num_runs * 2**18
    of_shards = of("PUT", ".tfrecord")
    assert len(of_shards) == len({one.path for one in of_shards})
    puts = of("PUT", "")
    last = [one.path.rpartition("/")[2] for one in puts[-3:]]
    assert last == ["manifest.json", "reader.py", "latest.json"]
    assert not of("POST", "uploads")
    print(
        f"{len(s3.requests) / num_shards:.1f} requests a shard, {len(puts)} of them puts in all; "
        f"{read / num_shards / 1e6:.2f} MB of runs read for a shard of {run_bytes / 1e6:.1f} MB"
    )


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


def test_put_that_fails(
    lab: Any, s3: Proxy, table: Path, local_hashes: dict[str, str], tmp_path: Path
) -> None:
    """For good, in the middle of a build: an error of ours, no half snapshot, and it goes on."""
    source = put(table, "s3://bucket/table")
    files, _ = fsspec.core.url_to_fs("s3://bucket", use_listings_cache=False)
    # In the order of a build: each fails later than the one before, in the same place.
    for file in ("/runs/", ".tfrecord", "reader/facts.py", "manifest.json", "latest.json"):
        s3.breaking = functools.partial(_refuse_puts, file)
        with pytest.raises(ss.SnapshardError) as raised:
            ss.build(recipe(source), "s3://bucket/out")
        assert raised.value.exit_code == 1
        assert file.strip("/") in str(raised.value)
        s3.breaking = lambda method, path: 0
        found = files.find("bucket/out")
        published = [path for path in found if path.endswith("/manifest.json")]
        assert len(published) == (file == "latest.json")
    snapshot = ss.build(recipe(source), "s3://bucket/out")
    assert hashes(lab, snapshot, tmp_path) == local_hashes


def _refuse_puts(file: str, method: str, path: str) -> int:
    return 403 if method in ("PUT", "POST") and file in path else 0


def test_expired_credential(s3: Proxy, table: Path) -> None:
    source = put(table, "s3://bucket/table")
    s3.breaking = lambda method, path: 403
    with pytest.raises(ss.SnapshardError) as raised:
        ss.build(recipe(source), "s3://bucket/out")
    assert "s3://bucket" in str(raised.value)
    assert "secret" not in str(raised.value)
