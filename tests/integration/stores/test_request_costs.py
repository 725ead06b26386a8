"""How many requests a build makes of a store, by what is billed: what docs/dataflow.md has."""

import collections
import re
from pathlib import Path

import fsspec
import pytest

import snapshard as ss
from snapshard.pipelines import watchdog

from ...small_blocks import small_blocks
from .proxy import Proxy

pytestmark = [
    pytest.mark.engine,
    # gcsfs leaves sessions to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

DOCUMENT = Path(__file__).parents[3] / "docs" / "dataflow.md"
NUM_BYTES = 3000


def billed(proxy: Proxy) -> dict[str, int]:
    """Operations of class A and class B among the requests that have passed."""
    found: collections.Counter[str] = collections.Counter()
    for request in proxy.requests:
        listing = request.method == "GET" and re.search(r"/o/?(\?|$)", request.path)
        if request.method in ("POST", "PUT") or listing:
            found["A"] += 1
        elif request.method == "GET":
            found["B"] += 1
    return dict(found)


def build(proxy: Proxy, *, num_files: int, num_shards: int) -> dict[str, int]:
    """What a build of so many files, each a block of its own, asks for."""
    name = f"of{num_files}x{num_shards}"
    files = fsspec.filesystem("gs", use_listings_cache=False)
    row = "7,some words\n"
    table = "number,text\n" + row * (NUM_BYTES // len(row))
    for number in range(num_files):
        files.pipe_file(f"bucket/{name}/{number}.csv", table.encode())
    proxy.requests.clear()
    recipe = ss.Recipe(
        name=name,
        source=ss.Csv(f"gs://bucket/{name}"),
        splits=ss.Splits(train=0.8, test=0.2),
        shards=ss.Shards(num_shards=num_shards // 2),
        near_duplicates=False,  # as in large data
    )
    ss.build(recipe, "gs://bucket/out", write_by="shuffle")
    runs = {m[1] for r in proxy.requests if (m := re.search(r"([0-9a-f]{8,})\.arrow", r.path))}
    assert len(runs) - num_files in (0, 1)  # and a file of keys
    return billed(proxy)


def documented() -> dict[str, tuple[float, float, float]]:
    """Class -> operations of any build, for a run and for a shard, as the document has them."""
    text = DOCUMENT.read_text()
    found = {
        kind: re.search(rf"class {kind}: (\d+) \+ (?:2 F \+ )?(\d+) R \+ (\d+) S", text)
        for kind in "AB"
    }
    return {kind: (float(m[1]), float(m[2]), float(m[3])) for kind, m in found.items() if m}


def test_requests_of_runs_and_shards(gcs: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    """The differences of three builds: what a run costs (with its file), and what a shard.

    Of so many runs that all keys of a shard's borders are not in a few of them.
    """
    small_blocks(monkeypatch, NUM_BYTES)
    # A job that takes so long would list folders, for the progress.
    monkeypatch.setattr(watchdog, "SECONDS_BETWEEN_REMOTE_LOOKS", 1e9)
    small = build(gcs, num_files=20, num_shards=4)
    more_runs = build(gcs, num_files=52, num_shards=4)
    more_shards = build(gcs, num_files=20, num_shards=36)
    for kind, (of_build, of_run, of_shard) in documented().items():
        of_file = 2 if kind == "B" else 0
        runs = (more_runs[kind] - small[kind]) / 32 - of_file
        shards = (more_shards[kind] - small[kind]) / 32
        rest = small[kind] - 20 * (runs + of_file) - 4 * shards
        print(f"class {kind}: {rest:.0f}, {runs:.1f} a run, {shards:.1f} a shard")
        assert runs == pytest.approx(of_run, rel=0.1), kind
        assert shards == pytest.approx(of_shard, rel=0.15), kind
        # What a build costs beyond these depends on how its workers take turns.
        assert rest == pytest.approx(of_build, abs=30), kind
