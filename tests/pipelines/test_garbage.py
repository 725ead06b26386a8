"""What garbage collection chooses, against a model that knows why each file is there."""

from __future__ import annotations

import dataclasses
import doctest
import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from snapshard.pipelines.operate import gc
from snapshard.pipelines.operate.gc import References, StoredFile, choose_garbage

PUBLISHED = ["1" * 16, "a" * 16]
UNPUBLISHED = ["2" * 16, "b" * 16]
KEPT = ["c" * 32, "d" * 64]
LOOSE = ["e" * 32, "f" * 64]
TEMPORARY = f".{'0' * 32}.tmp"

IN_SNAPSHOT = [
    "train-00000-of-00001.tfrecord",
    "validation_2-00003-of-00010.tfrecord.gz",
    "index/train-00000-of-00001.tfrecord.idx",
    "index/train-00000-of-00001.tfrecord.parquet",
    "index/train-00000-of-00001.tfrecord.labels",
    "reader/facts.py",
    "reader/__init__.py",
    "reader.py",
    "reader_numpy.py",
    "reader_tools.py",
    "schema.pbtxt",
    "rejects.parquet",
    "build.json",
    "croissant.json",
    "dataset_info.json",
    "features.json",
    "serving/saved_model.pb",
    "serving/variables/variables.index",
    "transform_fn/saved_model.pb",
    "transformed_metadata/asset_map",
    "metadata/schema.pbtxt",
]
WORK = {
    "runs": ["{two}/{id}.arrow", "{two}/{id}.json", "{two}/{id}.plain.keys.json"],
    "summaries": ["{id}.arrow", "{id}.jsonl"],
    "graphs": ["{id}/graph.json", "{id}/transform_fn/saved_model.pb"],
    "blocks": ["{id}.jsonl"],
}
FOREIGN = [
    "notes.txt",
    "latest.json",
    "my folder/reader.py",
    ".work/memo.json",
    ".work/lock",
    ".work/runs/mine.txt",
    ".work/scratch/mine.txt",
    ".work/mine/" + "e" * 32 + ".arrow",
    "0123456789abcdeg/reader.py",
    "01234567/reader.py",
    "checkpoints/train-00000-of-00001.tfrecord",
]
MINE = ["model.keras", "notes/a.txt", "train.tfrecord", "reader.py.orig", "READER.py", "index"]
MINE += ["reader/notes.txt", "reader/mine/a.py"]


@dataclasses.dataclass(frozen=True)
class Known:
    """A file, and whether it goes: known from how it was made, not from its name."""

    path: str
    goes: bool


def _all_files(tells_work: bool) -> list[Known]:
    files = [Known(path, False) for path in FOREIGN]
    files.append(Known(TEMPORARY, True))
    for fingerprint, name in itertools.product([*PUBLISHED, *UNPUBLISHED], IN_SNAPSHOT):
        files.append(Known(f"{fingerprint}/{name}", fingerprint in UNPUBLISHED))
    for fingerprint, name in itertools.product([*PUBLISHED, *UNPUBLISHED], MINE):
        files.append(Known(f"{fingerprint}/{name}", False))
    for fingerprint in [*PUBLISHED, *UNPUBLISHED]:
        goes = fingerprint in UNPUBLISHED
        files.append(Known(f"{fingerprint}/index/{TEMPORARY}", True))
        files.append(Known(f".work/plans/{fingerprint}.json", goes))
        files.append(Known(f".work/shards/{fingerprint}/train-00000-of-00001.json", goes))
    files += [Known(f"{fingerprint}/manifest.json", False) for fingerprint in PUBLISHED]
    for room, names in WORK.items():
        for one, name in itertools.product([*KEPT, *LOOSE], names):
            path = f".work/{room}/{name.format(two=one[:2], id=one)}"
            files.append(Known(path, tells_work and one in LOOSE))
    for one in (*KEPT, *LOOSE):
        files.append(Known(f".work/staged/{one}.zip", True))
        files.append(Known(f".work/building/{one}", True))
    files.append(Known(".work/scratch/snapshard-abc/run.arrow", True))
    return files


@given(st.data(), st.booleans())
def test_exactly_what_nothing_refers_to_goes(data: st.DataObject, tells_work: bool) -> None:
    known = data.draw(st.lists(st.sampled_from(_all_files(tells_work)), unique=True))
    links = data.draw(st.sets(st.sampled_from(known))) if known else set()
    files = [
        StoredFile(path=one.path, num_bytes=1, modified_ns=None, is_link=one in links)
        for one in known
    ]
    kept = {room: frozenset(KEPT) for room in WORK}
    references = References(published=frozenset(PUBLISHED), work=kept if tells_work else None)
    chosen = [file.path for file in choose_garbage(files, references)]
    assert chosen == [one.path for one in known if one.goes and one not in links]


_PARTS = st.sampled_from([".work", "runs", "shards", "scratch", "a" * 16, "b" * 32, "index", "x"])


@given(st.lists(_PARTS, min_size=1, max_size=5), st.sampled_from(["", ".json", ".py", ".arrow"]))
def test_of_published_snapshots_nothing_goes(parts: list[str], suffix: str) -> None:
    path = "/".join(["1" * 16, *parts]) + suffix
    file = StoredFile(path=path, num_bytes=1, modified_ns=None)
    assert choose_garbage([file], References(published=frozenset(["1" * 16]), work={})) == []


@settings(max_examples=30)
@given(st.text(max_size=20), st.sampled_from(["", "a/", ".work/", ".work/runs/", "2" * 16 + "/"]))
def test_no_name_is_too_odd(name: str, folder: str) -> None:
    """Names of others, whatever they are, stay."""
    file = StoredFile(path=folder + name, num_bytes=1, modified_ns=None)
    assert choose_garbage([file], References(published=frozenset(), work={})) == []


def test_doctests() -> None:
    assert doctest.testmod(gc).failed == 0
