"""The files of a run: found if complete, refused if damaged, and described as its records are."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from snapshard.pipelines.prepare.run_files import RunFiles, run_in_place, run_rejects
from snapshard.schemas.blocks import ImageFacts, RunInfo
from snapshard.schemas.errors import DamagedWorkError, Reject
from snapshard.schemas.features import ClassLabel, Features, Image, Scalar
from snapshard.schemas.naming import Workspace
from snapshard.transforms import storage
from snapshard.transforms.rejects import Dropped, iterate_rejects
from snapshard.transforms.runs import files as runs
from snapshard.transforms.runs.files import RunReader

RUN_ID = "0" * 32
FEATURES: Features = {"x": Scalar("int64"), "kind": ClassLabel(("a", "b"))}
JPEG, PNG = b"\xff\xd8\xff\xe0", b"\x89PNG\r\n\x1a\n"


@pytest.fixture(params=["local", "remote"])
def workspace(request: pytest.FixtureRequest, tmp_path: Path) -> Workspace:
    return Workspace(str(tmp_path) if request.param == "local" else f"memory://{tmp_path.name}/w")


def run_files(workspace: Workspace, features: Features = FEATURES, **options: Any) -> RunFiles:
    given: dict[str, Any] = {"label": None, "stratify_by": None, "suffix": "plain", **options}
    return RunFiles(workspace, features, **given)


def batch(files: RunFiles, rows: Sequence[dict[str, Any]], *, first: int = 0) -> pa.RecordBatch:
    """Records of ascending keys, from the values of their features."""
    keyed = [
        {runs.PARTITION: 0, runs.KEY: key, runs.ID: b"r%d" % key, runs.NUM_BYTES: 1, **row}
        for key, row in enumerate(rows, start=first)
    ]
    return pa.RecordBatch.from_pylist(keyed, schema=files.schema)


def put_run(workspace: Workspace, *, num_rejects: int) -> RunInfo:
    """A run of two records."""
    files, dropped = run_files(workspace), Dropped()
    dropped.add(
        Reject(record_id=f"r{n}", stage="read", reason="bad", message="", source="a", position=n)
        for n in range(num_rejects)
    )
    rows = batch(files, [{"x": 1, "kind": 0}, {"x": 2, "kind": 1}])
    return files.write(RUN_ID, [rows], dropped=dropped, in_order=False).entries[0].run


@pytest.mark.parametrize("num_rejects", [0, 2])
def test_a_complete_run_is_found(workspace: Workspace, num_rejects: int) -> None:
    assert run_in_place(workspace, RUN_ID) is None
    info = put_run(workspace, num_rejects=num_rejects)
    assert (info.num_records, info.num_rejects) == (2, num_rejects)
    assert run_in_place(workspace, RUN_ID) == info


@pytest.mark.parametrize("name", ["run", "run_info", "run_rejects"])
def test_a_run_without_one_of_its_files_is_not_found(workspace: Workspace, name: str) -> None:
    put_run(workspace, num_rejects=1)
    storage.remove_tree(getattr(workspace, name)(RUN_ID))
    assert run_in_place(workspace, RUN_ID) is None


def test_a_truncated_run_is_not_found(workspace: Workspace) -> None:
    put_run(workspace, num_rejects=0)
    content = storage.read_bytes(workspace.run(RUN_ID))
    storage.put_bytes(workspace.run(RUN_ID), content[:-1])
    assert run_in_place(workspace, RUN_ID) is None


def test_rejects_are_read_if_they_are_those_of_the_run(workspace: Workspace) -> None:
    info = put_run(workspace, num_rejects=2)
    url = workspace.run_rejects(RUN_ID)
    content = storage.read_bytes(url)
    found = [one.record_id for one in iterate_rejects(run_rejects(workspace, info))]
    assert found == ["r0", "r1"]
    assert info.rejects_sha256 == hashlib.sha256(content).hexdigest()
    storage.put_bytes(url, content[:-1] + b"x")
    with pytest.raises(DamagedWorkError, match="missing or damaged"):
        run_rejects(workspace, info)
    storage.remove_tree(url)
    with pytest.raises(DamagedWorkError, match="missing or damaged"):
        run_rejects(workspace, info)


def test_a_run_without_rejects_has_no_file_of_them(workspace: Workspace) -> None:
    info = put_run(workspace, num_rejects=0)
    assert run_rejects(workspace, info) is None
    assert not storage.exists(workspace.run_rejects(RUN_ID))


def image(content: bytes, height: int, width: int, *, orientation: int = 1) -> dict[str, Any]:
    sizes = {"image/height": height, "image/width": width, "image/orientation": orientation}
    return {"image": content, **sizes}


@pytest.mark.parametrize(
    ("batches", "expected"),
    [
        ([[image(JPEG, 4, 6), image(JPEG, 4, 6)]], ImageFacts(4, 6, False, ("jpeg",))),
        ([[image(JPEG, 4, 6), image(JPEG, 5, 6)]], ImageFacts(None, 6, False, ("jpeg",))),
        ([[image(JPEG, 4, 6), image(JPEG, 4, 7)]], ImageFacts(4, None, False, ("jpeg",))),
        ([[image(JPEG, 4, 6)], [image(PNG, 4, 7)]], ImageFacts(4, None, False, ("jpeg", "png"))),
        (
            [[image(PNG, 4, 6)], [image(PNG, 4, 6, orientation=6)]],
            ImageFacts(4, 6, True, ("png",)),
        ),
    ],
)
def test_what_all_images_have_in_common(
    tmp_path: Path, batches: list[list[dict[str, Any]]], expected: ImageFacts
) -> None:
    features: Features = {"image": Image(storage="encoded"), "x": Scalar("int64")}
    files = run_files(Workspace(str(tmp_path)), features)
    written = [
        batch(files, [{**row, "x": 0} for row in rows], first=10 * number)
        for number, rows in enumerate(batches)
    ]
    info = files.write(RUN_ID, written, dropped=Dropped(), in_order=True).entries[0].run
    assert info.image_facts == {"image": expected}
    assert run_in_place(Workspace(str(tmp_path)), RUN_ID) == info


@pytest.mark.parametrize(
    ("features", "label", "num_contents"),
    [(FEATURES, None, 3), (FEATURES, "kind", 2), ({"kind": FEATURES["kind"]}, "kind", 2)],
)
def test_contents_are_compared_without_the_label(
    tmp_path: Path, features: Features, label: str | None, num_contents: int
) -> None:
    """Except where nothing else is left to compare."""
    workspace = Workspace(str(tmp_path))
    files = run_files(workspace, features, label=label)
    rows = [{"x": 1, "kind": 0}, {"x": 1, "kind": 1}, {"x": 2, "kind": 1}]
    records = batch(files, [{name: row[name] for name in features} for row in rows])
    (entry,) = files.write(RUN_ID, [records], dropped=Dropped(), in_order=True).entries
    assert files.summarize(entry.run).entries == (entry,)
    keys = RunReader(workspace.run_keys(RUN_ID, "plain"), entry.keys, runs.keys_schema())
    contents = [one for part in keys.scan() for one in part.column(runs.CONTENT).to_pylist()]
    assert len(contents) == 3
    assert len(set(contents)) == num_contents
