"""Stores in trouble: what is published is whole, what is said is one sentence, and builds go on."""

from pathlib import Path
from typing import Any

import fsspec
import pytest

import snapshard as ss
from snapshard.pipelines.gc import collect_garbage
from snapshard.pipelines.verify import verify
from snapshard.schemas.progress import Silent
from snapshard.transforms import storage

from .proxy import CUT, Answer, Proxy
from .test_stores import hashes, local_hashes, put, recipe, table

__all__ = ["local_hashes", "table"]

pytestmark = [
    pytest.mark.engine,
    # gcsfs leaves sessions to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
A_LONG_WHILE_S = 1e9
LARGE_BYTES = 101 * 2**20
"""More than s3fs and gcsfs put in one request."""


def stored(url: str) -> dict[str, bytes]:
    files, root = fsspec.core.url_to_fs(url, use_listings_cache=False)
    return {path: files.cat_file(path) for path in files.find(root)}


@pytest.mark.parametrize("store", ["s3", "gs"])
def test_listings_that_lag(
    lab: Any,
    s3: Proxy,
    gcs: Proxy,
    table: Path,
    local_hashes: dict[str, str],
    tmp_path: Path,
    store: str,
) -> None:
    """Nothing that a build puts is listed while it runs, nor when it is read."""
    proxy = {"s3": s3, "gs": gcs}[store]
    source, out = put(table, f"{store}://bucket/table"), f"{store}://bucket/out"
    first = ss.build(recipe(source), out)
    proxy.listing_lag_s = A_LONG_WHILE_S
    proxy.list_from_now("bucket/table")
    files, root = fsspec.core.url_to_fs(out, use_listings_cache=False)
    assert not files.find(root)
    assert ss.build(recipe(source), out).cached
    other = ss.build(recipe(source), f"{out}-2")
    assert other.manifest.fingerprint == first.manifest.fingerprint
    assert verify(other, progress=Silent()).num_examples == 1200
    assert ss.Snapshot.open(f"{out}-2/table").path == other.path
    assert ss.Snapshot.open(other.path).path == other.path
    report = collect_garbage(f"{out}-2/table")
    assert not report.paths
    proxy.listing_lag_s = 0
    assert hashes(lab, other, tmp_path) == local_hashes
