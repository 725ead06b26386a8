"""A snapshot that an earlier snapshard published, and what this one does with it.

``published_snapshot.tar.xz`` is of format version 1, with the reader as a package: ``recipe_of``,
built by snapshard 0.1.0. docs/compatibility.md promises what is tested here.
"""

import json
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

import snapshard as ss
from snapshard.pipelines.inspect.diff import diff
from snapshard.pipelines.inspect.verify import check_snapshot
from snapshard.pipelines.inspect.why import why
from snapshard.schemas.errors import DamagedSnapshotError
from snapshard.schemas.manifest import FORMAT_VERSION
from snapshard.schemas.progress import Silent

ARCHIVE = Path(__file__).parents[1] / "pipelines" / "data" / "published_snapshot.tar.xz"
NUM = 24


def recipe_of(folder: Path) -> ss.Recipe:
    """The recipe that made it, with its source in a folder."""
    rows = (f"{n},{'yes' if n % 3 else 'no'},word {n}\n" for n in range(NUM))
    (folder / "rows.csv").write_text("n,label,word\n" + "".join(rows))
    return ss.Recipe(
        name="rows",
        source=ss.Csv(str(folder / "rows.csv"), types={"label": ss.ClassLabel(("no", "yes"))}),
        splits=ss.Splits(train=0.9, test=0.1),
        shards=ss.Shards(num_shards={"train": 2, "test": 1}),
    )


@pytest.fixture
def published(tmp_path: Path) -> Path:
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path / "out" / "rows", filter="data")
    (folder,) = (tmp_path / "out" / "rows").iterdir()
    return folder


@pytest.fixture
def rebuilt(tmp_path: Path) -> ss.Snapshot:
    """What this version makes of the same rows."""
    return ss.build(recipe_of(tmp_path), out=tmp_path / "new")


@pytest.mark.slow
def test_its_own_reader_reads_it(published: Path) -> None:
    program = (
        "import json, sys\n"
        "sys.path.insert(0, sys.argv[1])\n"
        "sys.modules['snapshard'] = None\n"
        "import reader\n"
        "found = [int(n) for split in ('train', 'test')\n"
        "         for b in reader.dataset(split, 5, seed=1) for n in b['n']]\n"
        "from reader import arrays\n"
        "print(json.dumps([found, len(arrays.Records('train'))]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(published)], capture_output=True, text=True, check=True
    )
    found, num_train = json.loads(done.stdout)
    assert sorted(found) == list(range(NUM))
    assert num_train == 21


def test_verify_accepts_it(published: Path) -> None:
    report = check_snapshot(published, progress=Silent())
    assert (report.exit_code, report.damages, report.warnings) == (0, [], [])


def test_a_rebuild_gives_the_same_records_and_shards(published: Path, rebuilt: ss.Snapshot) -> None:
    old = ss.Snapshot.open(published)
    records = diff(old, rebuilt, progress=Silent()).records
    assert (records.num_old, records.num_new, records.num_same) == (NUM, NUM, NUM)
    for split, entry in old.manifest.splits.items():
        new = rebuilt.manifest.splits[split]
        assert [one.sha256 for one in entry.shards] == [one.sha256 for one in new.shards]


def test_why_compares_it(published: Path, rebuilt: ss.Snapshot) -> None:
    explained = why(ss.Snapshot.open(published), rebuilt)
    parts = {change.part for change in explained.changes}
    assert parts <= {"versions"}, "the recipe and its input are the same"


@pytest.mark.parametrize("version", [0, FORMAT_VERSION + 1])
def test_another_format_is_refused(published: Path, version: int) -> None:
    manifest = published / "manifest.json"
    value = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**value, "format_version": version}))
    expected = "Read it with the snapshard version that wrote it"
    with pytest.raises(DamagedSnapshotError, match=expected):
        ss.Snapshot.open(published)
    (damage,) = check_snapshot(published, progress=Silent()).damages
    assert expected in damage.what
