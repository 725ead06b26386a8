"""Snapshots whose reader was ``reader.py`` with files beside it stay readable, by those files.

``data/older_snapshot.tar.xz`` was built by snapshard 0.1.0 before readers were packages: 24 rows
of a CSV, ``n`` and ``label`` (yes, but no for multiples of 3), in two shards and one. Of the files
beside ``reader.py`` it holds those for ``seed=`` and ``shard=``.
"""

import shutil
import sys
import tarfile
from pathlib import Path
from typing import Any

import fsspec
import pytest

import snapshard as ss
from snapshard.pipelines.inspect import bench
from snapshard.pipelines.inspect.verify import check_snapshot
from snapshard.pipelines.operate.gc import is_snapshot_file
from snapshard.pipelines.snapshot import Snapshot
from snapshard.schemas.progress import Silent

ARCHIVE = Path(__file__).parent / "data" / "older_snapshot.tar.xz"
TRAIN = "train-00000-of-00002.tfrecord"


@pytest.fixture
def older(tmp_path: Path) -> Path:
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path / "rows", filter="data")
    (folder,) = (tmp_path / "rows").iterdir()
    return folder


def read(reader: Any, **options: Any) -> list[tuple[int, int]]:
    batches = [b for split in ("train", "test") for b in reader.dataset(split, 5, **options)]
    return [(int(n), int(x)) for b in batches for n, x in zip(b["n"], b["label"], strict=True)]


ROWS = [(n, int(n % 3 > 0)) for n in range(24)]


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"shuffle": False}, {"seed": 1}])
def test_reads_by_its_own_files(older: Path, options: dict[str, Any]) -> None:
    reader = ss.Snapshot.open(older).reader()
    assert reader.__file__ == str(older / "reader.py")
    assert sorted(read(reader, **options)) == ROWS
    assert "reader" not in sys.modules


def test_shards_of_workers(older: Path) -> None:
    reader = ss.Snapshot.open(older).reader()
    parts = [read(reader, seed=1, shard=(i, 2)) for i in range(2)]
    assert sorted(parts[0] + parts[1]) == ROWS


def test_two_readers_do_not_mix(older: Path, tmp_path: Path) -> None:
    other = shutil.copytree(older, tmp_path / "other")
    readers = [ss.Snapshot.open(folder).reader() for folder in (older, other)]
    (older / TRAIN).unlink()
    assert sorted(read(readers[1])) == ROWS


def test_of_a_store(older: Path) -> None:
    store = fsspec.filesystem("memory")
    store.put(str(older), "memory://older/rows", recursive=True)
    try:
        reader = ss.Snapshot.open("memory://older/rows").reader()
        assert reader.NUM_EXAMPLES == {"train": 22, "test": 2}
        assert sorted(read(reader, seed=1, root=str(older))) == ROWS
        # TensorFlow does not read this store: the place is what matters here.
        with pytest.raises(Exception, match="reader_copies"):  # by which it reads other stores
            read(reader)
    finally:
        store.rm("memory://older", recursive=True)


def test_verify_accepts_it(older: Path) -> None:
    report = check_snapshot(older, progress=Silent())
    assert (report.exit_code, report.damages, report.warnings) == (0, [], [])


def test_verify_finds_its_damage(older: Path) -> None:
    (older / "reader_options.py").unlink()
    with (older / "reader_streams.py").open("a") as file:
        file.write("# mine\n")
    (older / "reader.py").write_text("def (")
    report = check_snapshot(older, progress=Silent())
    damages = {finding.file: finding.kind for finding in report.damages}
    assert damages == {"reader.py": "content", "reader_options.py": "missing"}
    assert [finding.file for finding in report.warnings] == ["reader_streams.py"]


def test_its_files_are_a_builds_own(older: Path) -> None:
    names = [str(path.relative_to(older)) for path in older.rglob("*") if path.is_file()]
    assert all(is_snapshot_file(name) for name in names if name != "manifest.json")


def test_bench(older: Path) -> None:
    measured = bench.bench(Snapshot.open(older), seconds=0.02, batch_size=5)
    assert (measured.split, measured.num_examples) == ("train", 22)
    assert all(rate.examples_per_s > 0 for rate in measured.rates)
