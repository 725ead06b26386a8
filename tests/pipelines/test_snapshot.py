"""Opening a snapshot from wherever a user points, and importing its reader."""

import json
import logging
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

import snapshard as ss
from snapshard.pipelines.inspect.verify import check_snapshot
from snapshard.pipelines.publish.step import point_latest
from snapshard.pipelines.reader.emit import LATEST_READER_FILE
from snapshard.schemas.errors import DamagedSnapshotError, RecipeError
from snapshard.schemas.manifest import file_entry, json_checksum
from snapshard.schemas.naming import OutputPaths
from snapshard.schemas.progress import Silent

FEATURES = {"x": ss.Scalar("int64"), "label": ss.ClassLabel(("no", "yes"))}
RECORDS = [{"x": i, "label": i % 2} for i in range(5)]
FIRST, SECOND = "0" * 16, "1" * 16


def list_reader(folder: Path) -> None:
    """Puts the reader's files into the manifest, as a build does."""
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    for file in (folder / "reader").glob("*.py"):
        entry = file_entry(file.read_bytes())
        manifest["files"][f"reader/{file.name}"] = entry.model_dump()
    path.write_text(json.dumps(manifest | {"checksum": json_checksum(manifest)}))


@pytest.fixture
def make(write_snapshot: Callable[..., Any]) -> Callable[..., Path]:
    """Makes ``<out>/<name>/<fingerprint>`` and the pointer to it."""

    def made(
        out: Path,
        name: str = "made",
        fingerprint: str = FIRST,
        *,
        latest: bool = True,
        **options: Any,
    ) -> Path:
        folder = out / name / fingerprint
        features = options.pop("features", FEATURES)
        write_snapshot(folder, features, {"train": [RECORDS]}, fingerprint=fingerprint, **options)
        list_reader(folder)
        if latest:
            pointer = json.dumps({"fingerprint": fingerprint})
            (out / name / "latest.json").write_text(pointer)
        return folder

    return made


def test_opens_a_snapshot(make: Any, tmp_path: Path) -> None:
    folder = make(tmp_path)
    found = ss.Snapshot.open(folder)
    assert found.path == str(folder)
    assert found.manifest.fingerprint == FIRST
    assert not found.cached


def test_names_of_a_reader_load_on_first_use(make: Any, tmp_path: Path) -> None:
    made = make(tmp_path)
    (Path(made) / "statistics.json").write_text('{"splits": {}}')
    reader = ss.Snapshot.open(made).reader()
    assert "arrays" not in vars(reader)
    assert len(reader.arrays.Records("train")) == 5
    assert set(reader.__all__) <= {*dir(reader)}
    for name in reader.__all__:
        assert getattr(reader, name, reader) is not reader, name
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = reader.nothing


def test_path_is_absolute(make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make(tmp_path)
    monkeypatch.chdir(folder)
    assert ss.Snapshot.open(".").path == str(folder)
    monkeypatch.chdir(tmp_path)
    assert ss.Snapshot.open("made").path == str(folder)


def test_folder_of_a_name_is_its_latest(make: Any, tmp_path: Path) -> None:
    make(tmp_path, fingerprint=FIRST)
    latest = make(tmp_path, fingerprint=SECOND)
    assert ss.Snapshot.open(tmp_path / "made").path == str(latest)


def test_output_root_of_one_name(make: Any, tmp_path: Path) -> None:
    folder = make(tmp_path)
    (tmp_path / "notes.txt").write_text("beside it")
    (tmp_path / "empty").mkdir()
    assert ss.Snapshot.open(tmp_path).path == str(folder)


def test_a_recipe_called_reader(make: Any, tmp_path: Path) -> None:
    """A snapshot without a manifest holds a folder of that name, too."""
    folder = make(tmp_path, name="reader")
    assert ss.Snapshot.open(tmp_path).path == str(folder)


def test_output_root_of_several_names(make: Any, tmp_path: Path) -> None:
    make(tmp_path, name="one")
    make(tmp_path, name="two")
    with pytest.raises(
        RecipeError, match=rf"several snapshots: one, two\. Name one.*{tmp_path}/one"
    ):
        ss.Snapshot.open(tmp_path)


def test_folder_of_snapshots_without_a_pointer(make: Any, tmp_path: Path) -> None:
    folder = make(tmp_path, latest=False)
    (tmp_path / "made" / ".work").mkdir()
    assert ss.Snapshot.open(tmp_path / "made").path == str(folder)
    make(tmp_path, fingerprint=SECOND, latest=False)
    with pytest.raises(RecipeError, match=f"several snapshots: {FIRST}, {SECOND}"):
        ss.Snapshot.open(tmp_path / "made")


def test_samples_alone(make: Any, tmp_path: Path) -> None:
    """A sample never becomes the latest: it is found where nothing else is, and says what it is."""
    folder = make(tmp_path, latest=False, limit=5)
    for place in (tmp_path, tmp_path / "made", folder):
        sample = ss.Snapshot.open(place)
        assert sample.path == str(folder)
        assert repr(sample) == f"Snapshot({str(folder)!r}, SAMPLE, train=5)"
        assert "SAMPLE of 5 records" in repr(sample.manifest)
    make(tmp_path, fingerprint=SECOND, latest=False, limit=4)
    for place in (tmp_path, tmp_path / "made"):
        with pytest.raises(RecipeError, match=f"several snapshots: {FIRST}, {SECOND}"):
            ss.Snapshot.open(place)


def test_what_is_no_snapshot(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text")
    (tmp_path / "folder" / "below").mkdir(parents=True)
    with pytest.raises(RecipeError, match="absent does not exist"):
        ss.Snapshot.open(tmp_path / "absent")
    with pytest.raises(RecipeError, match="file is a file, expected the folder"):
        ss.Snapshot.open(tmp_path / "file")
    with pytest.raises(RecipeError, match=r"folder is not a snapshot: there is no manifest\.json"):
        ss.Snapshot.open(tmp_path / "folder")


def test_unfinished_build(tmp_path: Path) -> None:
    (tmp_path / "made" / ".work" / "runs").mkdir(parents=True)
    for place in (tmp_path, tmp_path / "made"):
        with pytest.raises(RecipeError, match="holds no published snapshot: its build did not"):
            ss.Snapshot.open(place)


def test_unpublished(make: Any, tmp_path: Path) -> None:
    folder = make(tmp_path)
    (folder / "manifest.json").unlink()
    with pytest.raises(DamagedSnapshotError, match=r"no manifest\.json: either its build did not"):
        ss.Snapshot.open(folder)
    with pytest.raises(DamagedSnapshotError, match=f"names {FIRST}, and no snapshot"):
        ss.Snapshot.open(tmp_path / "made")


@pytest.mark.parametrize(
    "pointer", ["", "[]", "{}", '{"fingerprint": "../../x"}', '{"fingerprint": 1}']
)
def test_pointer_is_no_path(make: Any, tmp_path: Path, pointer: str) -> None:
    make(tmp_path)
    (tmp_path / "made" / "latest.json").write_text(pointer)
    with pytest.raises(DamagedSnapshotError, match=r"latest\.json names no fingerprint"):
        ss.Snapshot.open(tmp_path / "made")
    (damage,) = check_snapshot(tmp_path / "made", progress=Silent()).damages
    assert (damage.file, damage.what) == (
        "latest.json",
        "names no fingerprint. A build replaces it.",
    )


def test_manifest_that_is_none(make: Any, tmp_path: Path) -> None:
    folder = make(tmp_path)
    for content, said in (
        ("{", "is not valid JSON"),
        ("[]", "is not a manifest"),
        ('{"format_version": 99}', "has format_version 99, expected 1"),
    ):
        (folder / "manifest.json").write_text(content)
        with pytest.raises(DamagedSnapshotError, match=said):
            ss.Snapshot.open(folder)


def test_reader_reads(make: Any, tmp_path: Path) -> None:
    first = ss.Snapshot.open(make(tmp_path, fingerprint=FIRST)).reader()
    second = ss.Snapshot.open(make(tmp_path, fingerprint=SECOND)).reader()
    assert (first.FINGERPRINT, second.FINGERPRINT) == (FIRST, SECOND)
    assert "reader" not in sys.modules
    assert first.__name__ != second.__name__
    (batch,) = first.dataset("train", 8, shuffle=False)
    np.testing.assert_array_equal(batch["x"], [0, 1, 2, 3, 4])


def test_reader_leaves_the_snapshot_as_it_is(make: Any, tmp_path: Path) -> None:
    folder = make(tmp_path)
    shutil.rmtree(folder / "reader" / "__pycache__", ignore_errors=True)  # of this test's own
    before = {*folder.rglob("*")}
    reader = ss.Snapshot.open(folder).reader()
    next(iter(reader.dataset("train", 2, seed=1, cache="memory")))
    assert {*folder.rglob("*")} == before


@pytest.mark.slow
def test_reader_of_a_remote_snapshot(make: Any, tmp_path: Path) -> None:
    folder = make(tmp_path)
    store = fsspec.filesystem("memory")
    store.put(str(folder), "memory://bucket/made", recursive=True)
    try:
        found = ss.Snapshot.open("memory://bucket/made")
        assert found.manifest == ss.Snapshot.open(folder).manifest
        reader = found.reader()
        assert reader.NUM_EXAMPLES == {"train": 5}
        # TensorFlow reads gs:// by itself and this store not: the place is what matters here.
        with pytest.raises(Exception, match="memory"):
            next(iter(reader.dataset("train", 8)))
        (batch,) = reader.dataset("train", 8, shuffle=False, root=folder)
        np.testing.assert_array_equal(batch["x"], [0, 1, 2, 3, 4])
        with pytest.raises(Exception, match=r"is damaged: expected .* with sha256 "):
            # It was fetched, and the manifest made by hand has no hash to hold it against.
            next(iter(reader.dataset("train", 8, local_copy=str(tmp_path / "copy"))))
        wanted = [f"memory://bucket/made/{path.name}" for path in sorted(folder.glob("train-*"))]
        assert reader.files("train") == wanted
        assert reader.files("train", folder) == reader.files("train", root=folder) != wanted
        assert reader.steps("train", 2) == 3
    finally:
        store.rm("memory://bucket", recursive=True)


@pytest.mark.slow
@pytest.mark.parametrize("remote", [False, True])
def test_options_of_a_reader(
    make: Any, tmp_path: Path, remote: bool, caplog: pytest.LogCaptureFixture
) -> None:
    folder = make(tmp_path)
    store = fsspec.filesystem("memory")
    if remote:
        store.put(str(folder), "memory://bucket/made", recursive=True)
    reader = ss.Snapshot.open("memory://bucket/made" if remote else folder).reader()
    logging.getLogger("tensorflow").addHandler(caplog.handler)

    def augment(example: Any, seed: Any) -> Any:
        del seed
        return {"x": example["x"] + 1}

    try:
        options = {"seed": 1, "start_step": 1, "cache": "memory", "augment": augment}
        with caplog.at_level("WARNING"):
            dataset = reader.dataset("train", 2, root=folder, **options)
            found = sorted(int(x) for batch in dataset for x in batch["x"].numpy())
    finally:
        logging.getLogger("tensorflow").removeHandler(caplog.handler)
        if remote:
            store.rm("memory://bucket", recursive=True)
    assert len(found) == 3
    assert set(found) < {1, 2, 3, 4, 5}
    assert caplog.text == "", "TensorFlow finds nothing to say"
    assert reader.steps("train", 2, root=folder) == 3


def test_names_from_the_data_are_not_code(make: Any, tmp_path: Path) -> None:
    names = ('"); raise SystemExit("pwned") #', "'''", '"""', "\\", "a\nimport os", "{}", "\x1b")
    features = {"x": ss.Scalar("int64"), "label": ss.ClassLabel(names)}
    reader = ss.Snapshot.open(make(tmp_path, features=features)).reader()
    assert tuple(reader.CLASS_NAMES) == names
    (batch,) = reader.dataset("train", 8, shuffle=False)
    np.testing.assert_array_equal(batch["label"], [0, 1, 0, 1, 0])


IMPORT_LATEST = """
import logging, sys
logging.basicConfig(level=logging.INFO, format="%(name)s %(levelname)s %(message)s")
sys.path.insert(0, sys.argv[1])
import reader
from reader.arrays import Records
print(reader.FINGERPRINT, reader.__name__, len(Records("train")), "snapshard" in sys.modules)
"""


def _import_latest(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-I", "-c", IMPORT_LATEST, str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_folder_of_snapshots_imports_the_reader_of_the_latest(make: Any, tmp_path: Path) -> None:
    out = OutputPaths(str(tmp_path), "made")
    for fingerprint in (FIRST, SECOND):
        make(tmp_path, fingerprint=fingerprint, latest=False)
        point_latest(out, fingerprint)
        done = _import_latest(tmp_path / "made")
        assert done.stdout == f"{fingerprint} reader 5 False\n", done.stderr
        assert f"reader INFO reading snapshot {fingerprint} in " in done.stderr
    assert ss.load(tmp_path / "made").manifest.fingerprint == SECOND


@pytest.mark.parametrize(
    ("pointer", "message"),
    [
        (None, "does not name a snapshot"),
        ("{", "does not name a snapshot"),
        ('{"fingerprint": 3}', "does not name a snapshot"),
        (json.dumps({"fingerprint": SECOND}), "is missing, but"),
    ],
)
def test_a_folder_without_a_latest_snapshot_says_so(
    make: Any, tmp_path: Path, pointer: str | None, message: str
) -> None:
    make(tmp_path, latest=False)
    point_latest(OutputPaths(str(tmp_path), "made"), FIRST)
    (tmp_path / "made/latest.json").unlink()
    if pointer is not None:
        (tmp_path / "made/latest.json").write_text(pointer)
    done = _import_latest(tmp_path / "made")
    assert "ImportError" in done.stderr
    assert message in done.stderr
    assert "Build again" in done.stderr


def test_only_what_changed_is_put_beside_the_pointer(make: Any, tmp_path: Path) -> None:
    make(tmp_path)
    out = OutputPaths(str(tmp_path), "made")
    point_latest(out, FIRST)
    module = tmp_path / "made/reader.py"
    assert module.read_bytes() == LATEST_READER_FILE.read_bytes()
    times = module.stat().st_mtime_ns
    point_latest(out, FIRST)
    assert module.stat().st_mtime_ns == times
    module.write_text("edited")
    point_latest(out, FIRST)
    assert module.read_bytes() == LATEST_READER_FILE.read_bytes()


def test_it_is_shown_in_a_line(make: Any, tmp_path: Path) -> None:
    snapshot = ss.load(make(tmp_path))
    assert repr(snapshot) == f"Snapshot('{tmp_path}/made/{FIRST}', train=5)"
    assert str(snapshot.manifest) == repr(snapshot.manifest)
    assert repr(snapshot.manifest).startswith(f"Manifest(made {FIRST}; train: 5; features ")
