"""What is written reads back, whatever it holds; builds of damaged workspaces end the same."""

import contextlib
import dataclasses
import io
import random
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import snapshard as ss
from snapshard.schemas.blocks import (
    BatchInfo,
    Block,
    FileRange,
    ImageFacts,
    RunInfo,
    ShardInfo,
    unit_from_line,
)
from snapshard.schemas.errors import Reject
from snapshard.schemas.manifest import FileEntry, Manifest, ShardEntry, SplitEntry, read_manifest
from snapshard.schemas.naming import stays_inside
from snapshard.transforms.examples.index import index_bytes, index_from_bytes, write_index_table
from snapshard.transforms.rejects import iterate_rejects, printable, rejects_to_bytes
from snapshard.transforms.runs.summary import RunEntry, RunPart, RunTable, table_to_bytes
from snapshard.transforms.storage.artifacts import put_artifact, read_artifact

NAMES = st.text(
    st.characters(exclude_categories=["Cs"]) | st.sampled_from("\"'\\{}\n\r\0\x1b<>&%/ é"),
    min_size=1,
    max_size=20,
)
FILES = NAMES.filter(stays_inside)
NUMBERS = st.integers(0, (1 << 63) - 1)
HASHES = st.text("0123456789abcdef", min_size=64, max_size=64)


_FEATURES = st.dictionaries(
    NAMES,
    st.one_of(
        st.sampled_from([ss.Scalar("int64"), ss.Scalar("string", optional=True), ss.Text()]),
        st.lists(NAMES, min_size=1, max_size=4, unique=True).map(
            lambda names: ss.ClassLabel(tuple(names))
        ),
    ),
    max_size=3,
)
_SHARDS = st.builds(
    ShardEntry,
    file=FILES,
    num_examples=NUMBERS,
    num_bytes=NUMBERS,
    sha256=HASHES,
    label_counts=st.dictionaries(NAMES, NUMBERS, max_size=3),
)
MANIFESTS = st.builds(
    Manifest,
    format_version=st.just(1),
    name=NAMES,
    fingerprint=st.text("0123456789abcdef", min_size=16, max_size=16),
    features=_FEATURES,
    structs=st.lists(NAMES, max_size=2),
    label=st.none() | NAMES,
    compression=st.sampled_from(["none", "gzip"]),
    num_rejects=NUMBERS,
    num_filtered=NUMBERS,
    shared_contents=st.dictionaries(NAMES, NUMBERS, max_size=2),
    seed=st.integers(-(1 << 70), 1 << 70),
    versions=st.dictionaries(NAMES, NAMES, max_size=2),
    splits=st.dictionaries(
        NAMES,
        st.builds(
            SplitEntry,
            num_examples=NUMBERS,
            num_bytes=NUMBERS,
            shards=st.lists(_SHARDS, max_size=2),
        ),
        max_size=2,
    ),
    files=st.dictionaries(FILES, st.builds(FileEntry, bytes=NUMBERS, sha256=HASHES), max_size=3),
)


@given(MANIFESTS)
@settings(max_examples=30, suppress_health_check=list(HealthCheck))
def test_a_manifest_reads_back(manifest: Manifest) -> None:
    content = manifest.to_bytes()
    assert Manifest.from_bytes(content, where="manifest.json") == manifest
    found, checksum = read_manifest(content, where="manifest.json")
    assert (found, checksum) == (manifest, "right")
    assert found.to_bytes() == content


@given(MANIFESTS, st.integers(0, 1 << 30), st.integers(1, 255))
@settings(max_examples=30, suppress_health_check=list(HealthCheck))
def test_no_byte_of_a_manifest_changes_what_it_says(
    manifest: Manifest, place: int, mask: int
) -> None:
    content = bytearray(manifest.to_bytes())
    content[place % len(content)] ^= mask
    with contextlib.suppress(ss.SnapshardError):
        assert Manifest.from_bytes(bytes(content), where="manifest.json") == manifest


@given(st.lists(st.tuples(*[st.integers(0, (1 << 64) - 1)] * 2), max_size=20))
def test_an_index_of_offsets_reads_back(pairs: list[tuple[int, int]]) -> None:
    offsets, lengths = (np.array([pair[i] for pair in pairs], np.uint64) for i in (0, 1))
    found = index_from_bytes(index_bytes(offsets, lengths))
    np.testing.assert_array_equal(found[0], offsets)
    np.testing.assert_array_equal(found[1], lengths)


_PATHS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@given(st.lists(st.tuples(_PATHS, st.integers(-5, (1 << 63) - 1)), max_size=8), st.booleans())
@settings(max_examples=30)
def test_an_index_of_ids_reads_back(records: list[tuple[str, int]], numbered: bool) -> None:
    ids = [f"{path}#{number}" if numbered else path for path, number in records]
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/x.parquet"
        write_index_table(path, [pa.array(ids, pa.large_string())], numbered=numbered)
        rows = pq.read_table(path).to_pylist()
    sources = [path for path, _ in records]
    positions = [number if numbered else None for _, number in records]
    assert [row["id"] for row in rows] == ids
    assert [row["source"] for row in rows] == sources
    assert [row["position"] for row in rows] == positions


_REJECTS = st.builds(
    Reject,
    record_id=_PATHS,
    stage=st.sampled_from(["inventory", "read", "validate", "prepare"]),
    reason=NAMES,
    message=NAMES,
    source=_PATHS,
    position=st.none() | NUMBERS,
    payload=st.none() | st.binary(max_size=30),
)


@given(st.lists(_REJECTS, max_size=6))
@settings(max_examples=30)
def test_rejects_read_back(rejects: list[Reject]) -> None:
    content = rejects_to_bytes(rejects)
    found = list(iterate_rejects(io.BytesIO(content)))
    kept = [dataclasses.replace(one, payload_kind="bytes") for one in rejects]
    assert sorted(found, key=repr) == sorted(kept, key=repr)
    assert rejects_to_bytes(found) == content
    assert all(printable(one.record_id) == one.record_id for one in found)


_BATCHES = st.builds(
    BatchInfo,
    **{field.name: NUMBERS for field in dataclasses.fields(BatchInfo)},
)
_FACTS = st.builds(
    ImageFacts, st.none() | NUMBERS, st.none() | NUMBERS, st.booleans(), st.just(("jpeg",))
)


@given(
    st.builds(
        RunInfo,
        run_id=NAMES,
        num_records=NUMBERS,
        num_bytes=NUMBERS,
        num_rejects=NUMBERS,
        batches=st.lists(_BATCHES, max_size=3).map(tuple),
        image_facts=st.dictionaries(NAMES, _FACTS, max_size=2),
    ),
    st.lists(_BATCHES, max_size=3).map(tuple),
)
def test_facts_of_runs_read_back(run: RunInfo, keys: tuple[BatchInfo, ...]) -> None:
    other = dataclasses.replace(run, run_id="other", batches=keys, num_rejects=0)
    content, batches = table_to_bytes([RunEntry(run, keys), RunEntry(other, ())])
    found = list(RunTable([RunPart(content, lambda: batches)]))
    assert [tuple(entry.keys) for entry in found] == [keys, ()]
    assert [
        dataclasses.replace(entry.run, batches=tuple(entry.run.batches)) for entry in found
    ] == [run, other]


@given(
    st.builds(
        ShardInfo,
        file=NAMES,
        num_examples=NUMBERS,
        num_bytes=NUMBERS,
        sha256=HASHES,
        label_counts=st.dictionaries(NAMES, NUMBERS, max_size=3),
        lengths=st.dictionaries(NAMES, st.lists(NUMBERS, max_size=3), max_size=2),
        statistics=st.dictionaries(NAMES, st.lists(NUMBERS, max_size=3), max_size=2),
        start_key=NUMBERS,
        stop_key=NUMBERS,
        index_files=st.dictionaries(NAMES, st.tuples(NUMBERS, HASHES), max_size=2),
    )
)
def test_facts_of_shards_read_back(info: ShardInfo) -> None:
    assert ShardInfo.from_json(info.to_json()) == info


_ODD_PATHS = st.binary(min_size=1, max_size=20).map(
    lambda name: name.decode("utf-8", "surrogateescape")
)


@given(
    st.lists(
        st.builds(
            FileRange, path=_ODD_PATHS, sha256=HASHES, start=NUMBERS, stop=NUMBERS, problem=NAMES
        ),
        max_size=3,
    ),
    st.sampled_from(["", "0" * 64]),
)
def test_blocks_read_back(ranges: list[FileRange], rows: str) -> None:
    block = Block(tuple(ranges), rows=rows)
    assert Block.from_line(block.to_line()) == unit_from_line(block.to_line()) == block
    assert b"\n" not in block.to_line()


@given(st.binary(max_size=200), st.integers(0, 1 << 20), st.integers(1, 255))
@settings(max_examples=30)
def test_an_artifact_is_intact_or_none(body: bytes, place: int, mask: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "x")
        put_artifact(str(path), body, what="thing 1")
        assert read_artifact(str(path), what="thing 1") == body
        assert read_artifact(str(path), what="thing 2") is None
        content = bytearray(path.read_bytes())
        content[place % len(content)] ^= mask
        path.write_bytes(content)
        assert read_artifact(str(path), what="thing 1") is None


@pytest.mark.slow  # some hundreds of small builds
def test_builds_of_changing_data_in_a_damaged_workspace_end_as_builds_from_nothing() -> None:
    sys.path.insert(0, str(Path(__file__).parent))
    try:
        from input_contents import csv_of
        from mutations import damage
        from workspace import SmallBuild, put_tables
    finally:
        sys.path.pop(0)
    wholes: dict[str, dict[str, str]] = {}

    class Machine(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.folder = Path(tempfile.mkdtemp(prefix="snapshard-fuzz-"))

        @initialize()
        def begin(self) -> None:
            put_tables(self.folder / "data", seed=0)
            self.build = SmallBuild(self.folder)

        def files(self, below: str) -> list[Path]:
            return [p for p in sorted((self.folder / below).rglob("*")) if p.is_file()]

        @rule(number=st.integers(0, 4), seed=st.integers(0, 3))
        def put_file(self, number: int, seed: int) -> None:
            (self.folder / "data" / f"{number}.csv").write_bytes(csv_of(seed))

        @rule(number=st.integers(0, 4))
        def remove_file(self, number: int) -> None:
            if len(self.files("data")) > 1:
                (self.folder / "data" / f"{number}.csv").unlink(missing_ok=True)

        @rule(below=st.sampled_from(["work", "work", "snapshots"]), seed=st.integers(0, 1 << 30))
        def damage_file(self, below: str, seed: int) -> None:
            rng = random.Random(seed)
            paths = self.files(below)
            if paths:
                path = rng.choice(paths)
                path.write_bytes(damage(rng, path.read_bytes(), others=[b"", b"{}"]))

        @rule(below=st.sampled_from(["work", "snapshots"]), which=st.integers(0, 100))
        def lose_file(self, below: str, which: int) -> None:
            paths = self.files(below)
            if paths:
                paths[which % len(paths)].unlink()

        @rule()
        def go_on(self) -> None:
            data = io.BytesIO()
            for path in self.files("data"):
                data.write(path.name.encode() + path.read_bytes())
            key = data.getvalue().hex()
            if key not in wholes:
                with tempfile.TemporaryDirectory() as fresh:
                    shutil.copytree(self.folder / "data", Path(fresh, "data"))
                    wholes[key] = SmallBuild(Path(fresh)).result()
            assert self.build.result() == wholes[key]

        @invariant()
        def leaves_the_data_alone(self) -> None:
            assert len(self.files("data")) <= 5

        def teardown(self) -> None:
            shutil.rmtree(self.folder)

    from hypothesis.stateful import run_state_machine_as_test

    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=30, stateful_step_count=15, suppress_health_check=list(HealthCheck)
        ),
    )
