"""A quick look: what it reads, what it finds, and that a seed draws it."""

import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

from snapshard.pipelines.inspect.verify import SampleSize, check_snapshot
from snapshard.pipelines.inspect.verify_report import Report
from snapshard.schemas.errors import RecipeError
from snapshard.schemas.progress import Silent
from snapshard.transforms import storage

from .whole_snapshots import whole_snapshot

ROWS = [bytes([n % 251]) * 1000 for n in range(3000)]
SHARDS = {"train": [ROWS[:1500], ROWS[1500:2900]], "test": [ROWS[2900:]]}
FRAME_BYTES = 1016
NAMES = ("test-00000-of-00001", "train-00000-of-00002", "train-00001-of-00002")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return whole_snapshot(tmp_path_factory.mktemp("made") / "made", SHARDS)


@pytest.fixture
def snapshot(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "made"))


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """Bytes read of each file."""
    counts: Counter[str] = Counter()
    real = storage.read_bytes

    def counting(url: str, *args: Any, **kwargs: Any) -> bytes:
        content = real(url, *args, **kwargs)
        counts[url.rpartition("made/")[2]] += len(content)
        return content

    monkeypatch.setattr(storage, "read_bytes", counting)
    return counts


def _look(folder: Path | str, text: str, *, seed: int = 0) -> Report:
    size = SampleSize.parse(text, seed=seed)
    return check_snapshot(folder, progress=Silent(), sample=size)


@pytest.mark.parametrize(
    ("text", "total", "number"),
    [("1%", 3000, 30), ("0.01", 3000, 30), ("0.1%", 3, 1), ("7", 3000, 7), ("7", 3, 3), ("1", 9, 1),
     ("100%", 9, 9), ("1.0", 9, 9), (" 50 % ", 9, 5)],
)  # fmt: skip
def test_sizes(text: str, total: int, number: int) -> None:
    assert SampleSize.parse(text).of(total) == number


@pytest.mark.parametrize("text", ["", "0", "0%", "-1", "101%", "1.5", "x", "nan", "inf%", "1%%"])
def test_sizes_that_are_none(text: str) -> None:
    with pytest.raises(RecipeError, match=r"expected a share such as 1% or 0\.01, or a number"):
        SampleSize.parse(text)


@pytest.mark.parametrize("remote", [False, True])
def test_a_sample_reads_its_records_alone(snapshot: Path, read: Counter[str], remote: bool) -> None:
    store = fsspec.filesystem("memory")
    where = str(snapshot)
    if remote:
        where = "memory://sample/made"
        store.put(str(snapshot), where, recursive=True)
    try:
        report = _look(where, "1%")
    finally:
        if remote:
            store.rm("memory://sample", recursive=True)
    sampled = report.sampled
    assert report.exit_code == 0
    assert sampled is not None
    assert (sampled.num_records, sampled.total_records) == (30, 3000)
    assert sum(n for name, n in read.items() if name.endswith("tfrecord")) == 30 * FRAME_BYTES
    assert sum(n for name, n in read.items() if name.endswith(".idx")) == 30 * 16
    assert not any(name.endswith(".parquet") and "index" in name for name in read)
    assert sampled.num_hashed == 4, "the emitted files, the schema and the rejects"
    told = sum(n for name, n in read.items() if name != "manifest.json")
    assert sampled.num_bytes_read == told
    assert "30 of 3,000 records" in report.summary()
    assert "not checked: the other records" in report.summary()


def test_a_seed_draws_the_same_records(snapshot: Path) -> None:
    for name in NAMES:
        path = snapshot / f"{name}.tfrecord"
        content = bytearray(path.read_bytes())
        content[500::FRAME_BYTES] = b"\xff" * len(content[500::FRAME_BYTES])
        path.write_bytes(content)

    def drawn(seed: int) -> set[tuple[str, int | None]]:
        report = _look(snapshot, "20", seed=seed)
        assert report.exit_code == 4
        assert len(report.damages) == 20
        return {(finding.file, finding.record) for finding in report.damages}

    assert drawn(1) == drawn(1)
    assert len(drawn(1) & drawn(2)) < 10
    assert len({name for name, _ in drawn(1)}) > 1


def test_all_of_it_finds_every_damaged_record(snapshot: Path) -> None:
    path = snapshot / f"{NAMES[1]}.tfrecord"
    content = bytearray(path.read_bytes())
    for record in (0, 700, 1499):
        content[FRAME_BYTES * record + 500] ^= 1
    path.write_bytes(content)
    report = _look(snapshot, "100%")
    assert [(f.record, f.record_id) for f in report.damages] == [
        (n, f"train/0/{n}.txt") for n in (0, 700, 1499)
    ]


def test_what_is_found_without_reading_records(snapshot: Path) -> None:
    (snapshot / f"{NAMES[0]}.tfrecord").unlink()
    with (snapshot / f"{NAMES[1]}.tfrecord").open("ab") as file:
        file.write(b"more")
    (snapshot / f"index/{NAMES[2]}.tfrecord.idx").write_bytes(b"")
    (snapshot / "schema.pbtxt").write_bytes(b"S")
    (snapshot / "more").touch()
    kinds = {finding.file: finding.kind for finding in _look(snapshot, "1").damages}
    assert kinds == {
        f"{NAMES[0]}.tfrecord": "missing",
        f"{NAMES[1]}.tfrecord": "length",
        f"index/{NAMES[2]}.tfrecord.idx": "length",
        "schema.pbtxt": "content",
        "more": "extra",
    }


def test_a_stale_index_shows(snapshot: Path) -> None:
    path = snapshot / f"index/{NAMES[0]}.tfrecord.idx"
    pairs = np.frombuffer(path.read_bytes(), "<u8").reshape(-1, 2) + np.array([1, 0], "<u8")
    path.write_bytes(content := pairs.astype("<u8").tobytes())
    report = _look(snapshot, "100%")
    assert len(report.damages) > 50
    assert "(or the index is not that of the shard)" in report.damages[-1].what
    path.write_bytes(b"\xff" * len(content))
    report = _look(snapshot, "100%")
    assert "does not match its shard: it states 18,446," in report.damages[0].what
    assert {finding.kind for finding in report.damages} == {"index"}


def test_of_compressed_shards_whole_ones_are_drawn(tmp_path: Path, read: Counter[str]) -> None:
    folder = whole_snapshot(tmp_path / "made", {"train": [ROWS[:100]] * 5}, compress=True)
    report = _look(folder, "1%")
    drawn = [name for name in read if name.endswith(".gz")]
    assert len(drawn) == 1
    assert report.sampled is not None
    assert report.sampled.num_records == 100
    content = bytearray((folder / drawn[0]).read_bytes())
    content[-1] ^= 1
    (folder / drawn[0]).write_bytes(content)
    assert [finding.kind for finding in _look(folder, "1%").damages] == ["content", "record"]
    assert _look(folder, "1%", seed=5).exit_code in (0, 4)


def test_nothing_to_draw_from(tmp_path: Path) -> None:
    report = _look(whole_snapshot(tmp_path / "made", {"train": []}), "1%")
    assert report.exit_code == 0
    assert report.sampled is not None
    assert report.sampled.num_records == 0
