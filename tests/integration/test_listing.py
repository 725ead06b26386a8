"""What snapshots say about their data, the list of an output root, and how old ones go."""

import errno
import json
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import snapshard as ss
from snapshard import cli
from snapshard.pipelines.inspect.listing import list_snapshots
from snapshard.pipelines.inspect.verify import verify
from snapshard.pipelines.operate.gc import Retention, collect_garbage
from snapshard.pipelines.snapshot import build_facts
from snapshard.schemas.errors import RecipeError
from snapshard.schemas.manifest import with_checksum
from snapshard.schemas.progress import Silent
from snapshard.transforms import storage

ABOUT: dict[str, Any] = {
    "description": "Trees of a park, with their heights in metres.",
    "version": "2026.1",
    "license": "CC-BY-4.0",
    "citation": "Park office (2026): Trees.",
    "tags": ["trees", "heights"],
}
NO_SPLITS = ss.Splits(train=1.0)


def trees(folder: Path, num: int = 8, *, name: str = "trees", **about: Any) -> ss.Recipe:
    table = folder / "trees.csv"
    table.write_text("kind,height\n" + "".join(f"oak,{k}.5\n" for k in range(num)))
    return ss.Recipe(name=name, source=ss.Csv(str(table)), splits=NO_SPLITS, **about)


def files_of(snapshot: ss.Snapshot) -> dict[str, bytes]:
    paths = [path for path in Path(snapshot.path).rglob("*") if path.is_file()]
    varying = {"build.json", "croissant.json"}
    return {str(path): path.read_bytes() for path in paths if path.name not in varying}


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as ended:
        cli.main([*arguments])
    out, err = capsys.readouterr()
    assert ended.value.code == 0, err
    return out


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three snapshots of trees, the first of which is the latest again, a sample, and another."""
    folder = tmp_path_factory.mktemp("listed")
    out = folder / "out"
    for num in (8, 9, 10, 8):
        ss.build(trees(folder, num, **ABOUT), out)
    ss.build(trees(folder, 9), out, limit=5)
    ss.build(trees(folder, 9, name="bushes"), out)
    return out


def test_what_describes_the_data_is_kept_and_changes_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = ss.build(trees(tmp_path), tmp_path / "out")
    before = files_of(plain)
    assert build_facts(plain.path)["metadata"] == {}
    described = ss.build(trees(tmp_path, **ABOUT), tmp_path / "out")
    assert described.cached
    assert described.path == plain.path
    assert files_of(described) == before
    assert build_facts(described.path)["metadata"] == ABOUT
    shown = run(capsys, "inspect", described.path)
    for text in ("license: CC-BY-4.0", "tags: trees, heights", "version: 2026.1"):
        assert text in shown
    run(capsys, "verify", described.path)
    ss.build(trees(tmp_path, version="2"), tmp_path / "out")
    assert build_facts(plain.path)["metadata"] == {"version": "2"}
    (Path(plain.path) / "croissant.json").unlink()
    assert ss.build(trees(tmp_path, version="2"), tmp_path / "out").cached
    assert (Path(plain.path) / "croissant.json").exists(), "what was removed comes back"


@pytest.mark.parametrize(
    ("about", "message"),
    [
        ({"description": 3}, "description=3 is not a string"),
        ({"version": 2.1}, "version=2.1 is not a string"),
        ({"license": None}, "license=None is not a string"),
        ({"tags": "a,b"}, r"tags='a,b' is not a list of strings.*tags=\["),
        ({"tags": [1]}, r"tags=\[1\] is not a list of strings"),
        ({"citation": "\ud800"}, "citation contains"),
    ],
    ids=str,
)
def test_what_describes_nothing_is_refused(
    about: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(RecipeError, match=message):
        trees(tmp_path, **about)


def test_a_root_lists_its_snapshots(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    listed = list_snapshots(str(root))
    assert [one.name for one in listed] == ["bushes", "trees", "trees", "trees", "trees"]
    assert [one.started for one in listed[1:]] == sorted(
        (one.started for one in listed[1:]), reverse=True
    )
    (latest,) = (one for one in listed if one.name == "trees" and one.is_latest)
    assert (latest.num_examples, latest.version, latest.limit) == ({"train": 8}, "2026.1", None)
    (sample,) = (one for one in listed if one.limit)
    assert (sample.num_examples, sample.is_latest) == ({"train": 5}, False)
    assert latest.num_bytes > 1_000
    assert list_snapshots(str(root / "trees")) == listed[1:]
    lines = run(capsys, "list", str(root), "--json").splitlines()
    assert [json.loads(line)["fingerprint"] for line in lines] == [s.fingerprint for s in listed]
    shown = run(capsys, "list", str(root))
    assert all(one.fingerprint in shown for one in listed)
    assert "sample of 5 records" in shown
    assert shown.count("latest") == 2


def test_a_damaged_snapshot_does_not_hide_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    snapshot = ss.build(trees(tmp_path), tmp_path / "out")
    Path(snapshot.path, "manifest.json").write_text("{}")
    ss.build(trees(tmp_path, 9), tmp_path / "out")
    Path(tmp_path, "out", "trees", "latest.json").write_text("?")
    first, second = sorted(list_snapshots(str(tmp_path / "out")), key=lambda one: one.problem)
    assert (first.problem, first.num_examples) == ("", {"train": 9})
    assert second.path == snapshot.path
    assert "manifest.json" in second.problem
    assert "cannot be opened" in run(capsys, "list", str(tmp_path / "out"))


def test_a_folder_without_snapshots_is_not_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out" / "trees" / ".work").mkdir(parents=True)
    assert "no published snapshots" in run(capsys, "list", str(tmp_path / "out"))
    with pytest.raises(RecipeError, match="neither an output root nor a folder of snapshots"):
        list_snapshots(str(tmp_path))


@pytest.mark.parametrize(
    ("retention", "expired"),
    [
        (Retention(), ""),
        (Retention(num=1), "abc"),
        (Retention(num=2), "ab"),
        (Retention(num=9), ""),
        (Retention(seconds=2.5 * 86_400), "ab"),
        (Retention(num=3, seconds=86_400), "a"),
        (Retention(num=1, seconds=3.5 * 86_400), "a"),
        (Retention(seconds=0), "abcd"),
    ],
    ids=str,
)
@pytest.mark.parametrize("latest", ["", "a", "d"])
def test_which_snapshots_are_not_kept(retention: Retention, expired: str, latest: str) -> None:
    started = {name: time.time() - (4 - k) * 86_400 - 60 for k, name in enumerate("abcd")}
    assert retention.expired(started, latest=latest) == set(expired) - {latest}


@pytest.fixture
def three(tmp_path: Path) -> tuple[Path, list[ss.Snapshot]]:
    """Snapshots of the last three days; the last is the latest."""
    snapshots = [ss.build(trees(tmp_path, num), tmp_path / "out") for num in (8, 9, 10)]
    for age, snapshot in zip((3, 2, 1), snapshots, strict=True):
        path = Path(snapshot.path, "build.json")
        facts = json.loads(path.read_text())
        facts["started"] = time.strftime(
            "%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - age * 86_400 - 60)
        )
        path.write_text(json.dumps(with_checksum(facts)))
    return tmp_path / "out", snapshots


def published(snapshots: list[ss.Snapshot]) -> list[bool]:
    return [os.path.exists(os.path.join(one.path, "manifest.json")) for one in snapshots]


def test_old_snapshots_go_with_their_work(
    three: tuple[Path, list[ss.Snapshot]], capsys: pytest.CaptureFixture[str]
) -> None:
    root, snapshots = three
    told = json.loads(run(capsys, "gc", str(root), "--keep", "2", "--dry-run", "--json"))
    assert published(snapshots) == [True, True, True]
    assert told["expired"] == [snapshots[0].path]
    assert f"{snapshots[0].path}/manifest.json" in told["paths"]
    assert f"removed the snapshot {snapshots[0].path}" in run(
        capsys, "gc", str(root), "--keep", "2"
    )
    assert not os.path.exists(snapshots[0].path)
    assert published(snapshots) == [False, True, True]
    run(capsys, "gc", str(root), "--older-than", "36h")
    assert published(snapshots) == [False, False, True]
    run(capsys, "verify", snapshots[2].path)
    assert collect_garbage(str(root)).paths == ()


def test_a_file_of_somebody_stays_where_a_snapshot_goes(
    three: tuple[Path, list[ss.Snapshot]],
) -> None:
    root, snapshots = three
    Path(snapshots[0].path, "my notes.txt").write_text("mine")
    collect_garbage(str(root), retention=Retention(num=1))
    assert os.listdir(snapshots[0].path) == ["my notes.txt"]
    assert published(snapshots) == [False, False, True]


def test_a_snapshot_of_unknown_age_stays(three: tuple[Path, list[ss.Snapshot]]) -> None:
    root, snapshots = three
    Path(snapshots[1].path, "build.json").write_text("{}")
    report = collect_garbage(str(root), retention=Retention(num=1))
    assert published(snapshots) == [False, True, True]
    assert report.unexplained == (snapshots[1].path,)


@pytest.mark.parametrize("killed_after", [1, 2, 5])
def test_a_collection_that_is_killed_leaves_no_half_snapshot(
    three: tuple[Path, list[ss.Snapshot]],
    killed_after: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    root, snapshots = three
    remove: Callable[[str], None] = storage.remove_tree
    removed: list[str] = []

    def removing(path: str) -> None:
        if len(removed) == killed_after:
            raise KeyboardInterrupt
        removed.append(path)
        remove(path)

    monkeypatch.setattr(storage, "remove_tree", removing)
    with pytest.raises(KeyboardInterrupt):
        collect_garbage(str(root), retention=Retention(num=2))
    monkeypatch.setattr(storage, "remove_tree", remove)
    assert removed[0].endswith("manifest.json")
    assert published(snapshots) == [False, True, True]
    collect_garbage(str(root))
    assert not os.path.exists(snapshots[0].path)


def test_samples_and_others_do_not_count_together(root: Path) -> None:
    report = collect_garbage(str(root), dry_run=True, retention=Retention(num=1))
    (latest,) = (s for s in list_snapshots(str(root / "trees")) if s.is_latest)
    (newest, *others) = (s for s in list_snapshots(str(root / "trees")) if not s.limit)
    assert set(report.expired) == {s.path for s in others} - {latest.path}
    assert newest.path not in report.expired


@pytest.mark.parametrize(
    ("arguments", "kind", "exit_code"),
    [
        (["inspect", "{root}/nothing", "--json"], "RecipeError", 2),
        (["plan", "--json", "{root}/nothing.csv"], "RecipeError", 2),
        (["plan", "{root}", "--json", "--limit", "x"], "UsageError", 2),
        (["list", "{root}/nothing", "--json"], "RecipeError", 2),
        (["inspect", "--bogus", "{root}", "--json"], "UsageError", 2),
        (["gc", "--json", "{root}", "--older-than", "x"], "UsageError", 2),
        (["verify", "{root}/trees", "--json", "--seed", "3"], "UsageError", 2),
        (["diff", "{root}/trees", "{root}/nothing", "--json"], "RecipeError", 2),
        (["build", "{root}/empty", "--out", "{root}/o", "--json"], "DataError", 3),
    ],
    ids=lambda value: " ".join(value[:2]) if isinstance(value, list) else "",
)
def test_an_error_is_json_where_the_result_would_be(
    arguments: list[str],
    kind: str,
    exit_code: int,
    root: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (root / "empty").mkdir(exist_ok=True)
    with pytest.raises(SystemExit) as ended:
        cli.main([argument.format(root=root) for argument in arguments])
    out, err = capsys.readouterr()
    error = json.loads(out)["error"]
    assert (error["class"], error["exit_code"], ended.value.code) == (kind, exit_code, exit_code)
    assert f"error: {error['message']}" in err
    with pytest.raises(SystemExit):
        cli.main([argument.format(root=root) for argument in arguments if argument != "--json"])
    assert capsys.readouterr().out == ""


def test_an_error_about_a_file_names_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trees(tmp_path)
    arguments = [str(tmp_path / "trees.csv"), "--out", "/proc/out"]  # where nobody can write
    with pytest.raises(SystemExit):
        cli.main(["build", *arguments, "--json"])
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["file"].startswith("/proc/out")
    assert error["file"] in error["message"]


def test_an_error_about_records_names_the_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "numbers.csv").write_text("x\n1\n2\nthree\n")
    recipe = tmp_path / "recipe.py"
    recipe.write_text(
        "import snapshard as ss\n"
        "recipe = ss.Recipe(name='numbers', source=ss.Csv('numbers.csv'),"
        " features={'x': ss.Scalar('int64')})\n"
    )
    with pytest.raises(SystemExit):
        cli.main(["build", str(recipe), "--out", str(tmp_path / "out"), "--json"])
    error = json.loads(capsys.readouterr().out)["error"]
    assert (error["class"], error["record"]) == ("RejectsError", "numbers.csv#6")
    assert error["file"] == "numbers.csv"


def test_plan_and_inspect_answer_in_json(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trees(tmp_path, 8)
    planned = json.loads(run(capsys, "plan", str(tmp_path / "trees.csv"), "--json"))
    assert planned["num_examples"] == 8
    assert planned["features"]["height"]["kind"] == "scalar"
    (latest,) = (s for s in list_snapshots(str(root / "trees")) if s.is_latest)
    shown = json.loads(run(capsys, "inspect", latest.path, "--json"))
    assert shown["fingerprint"] == latest.fingerprint
    assert shown["splits"]["train"]["num_examples"] == 8
    assert shown["build"]["metadata"] == ABOUT
    assert shown["build"]["started"] == latest.started
    assert shown["features"] == planned["features"]


def test_standard_error_in_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trees(tmp_path)
    table, out = str(tmp_path / "trees.csv"), str(tmp_path / "out")
    with pytest.raises(SystemExit):
        cli.main(["build", table, "--out", out, "--log-format", "json", "--limit", "4"])
    printed, logged = capsys.readouterr()
    assert "SAMPLE" in printed
    lines = [json.loads(line) for line in logged.splitlines()]
    steps = {line["step"]: line for line in lines if line["kind"] == "step"}
    assert {"inventory", "prepare", "plan", "write"} <= set(steps)
    varying: dict[str, object] = {"time": "", "message": "", "seconds": 0, "num_bytes": 0}
    assert steps["write"] | varying == {
        **{"kind": "step", "step": "write", "done": 1, "total": 1, "unit": "shards"},
        **{"records": 4, "rejects": 0},
        **varying,
    }
    assert (steps["prepare"]["records"], steps["prepare"]["num_bytes"] > 0) == (8, True)
    with pytest.raises(SystemExit):
        cli.main(["build", f"{table}.gone", "--out", out, "--log-format", "json"])
    (error,) = map(json.loads, capsys.readouterr().err.splitlines())
    assert error["kind"] == "error"
    assert "trees.csv.gone does not exist" in error["message"]
    with pytest.raises(SystemExit):
        cli.main(["build", table, "--out", out, "--log-format", "xml"])
    error_text = " ".join(capsys.readouterr().err.split())
    assert error_text.startswith("error: Invalid value for '--log-format': expected text")
    with pytest.raises(SystemExit):
        cli.main(["build", table, "--out", out, "--bogus", "--log-format=json"])
    assert json.loads(capsys.readouterr().err)["kind"] == "error"


def test_a_quiet_build_prints_where_the_snapshot_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trees(tmp_path)
    arguments = [str(tmp_path / "trees.csv"), "--out", str(tmp_path / "out"), "--quiet"]
    with pytest.raises(SystemExit):
        cli.main(["build", *arguments])
    printed, logged = capsys.readouterr()
    (path,) = (tmp_path / "out" / "trees").glob("[0-9a-f]*")
    assert printed == f"built: {path}\n"
    assert all(line.startswith("warning: ") for line in logged.splitlines())


def test_a_build_in_python_shows_its_progress(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ss.build(trees(tmp_path), tmp_path / "out")
    assert capsys.readouterr().err == ""
    ss.build(trees(tmp_path, 9), tmp_path / "out", progress=True)
    shown = capsys.readouterr().err
    assert [line.split(":")[0] for line in shown.splitlines()][:2] == ["inventory", "prepare"]
    assert "write: 1 shard, 0." in shown


@pytest.mark.parametrize("progress", [1, "bars", object()], ids=["1", "bars", "object"])
def test_odd_progress_is_refused(tmp_path: Path, progress: Any) -> None:
    with pytest.raises(RecipeError, match=r"progress=.*expected True, False, or an object"):
        ss.build(trees(tmp_path), tmp_path / "out", progress=progress)


def test_a_snapshot_that_a_trainer_imported_goes_as_a_whole(
    three: tuple[Path, list[ss.Snapshot]],
) -> None:
    root, snapshots = three
    cache = Path(snapshots[0].path, "reader", "__pycache__")
    cache.mkdir()
    (cache / "facts.cpython-311.pyc").write_bytes(b"x")
    collect_garbage(str(root), retention=Retention(num=1))
    assert not os.path.exists(snapshots[0].path)


def test_a_snapshot_that_becomes_the_latest_meanwhile_stays(
    three: tuple[Path, list[ss.Snapshot]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where there are no locks: a build finds it published, while garbage is collected."""
    root, snapshots = three
    latest = root / "trees" / "latest.json"
    remove = storage.remove_tree
    found: list[ss.Snapshot] = []

    def removing(path: str) -> None:
        if not found:  # that other than the one whose manifest goes now
            found.extend(one for one in snapshots[:2] if not path.startswith(one.path))
            latest.write_text(json.dumps({"fingerprint": found[0].manifest.fingerprint}))
        remove(path)

    monkeypatch.setattr(storage, "remove_tree", removing)
    monkeypatch.setattr("snapshard.pipelines.operate.gc.SAFE_AGE_S", -3_600)
    monkeypatch.setattr("fcntl.flock", _no_locks)
    for path in root.rglob("*"):
        os.utime(path, (1, 1))
    collect_garbage(str(root), retention=Retention(num=1))
    assert sum(published(snapshots)) == 2
    assert ss.load(root / "trees").path == found[0].path
    verify(found[0], progress=Silent())


def _no_locks(*_: object) -> None:
    raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))


def test_an_age_is_days_hours_or_minutes(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for text in ("3", "d", "-1d", "1 week"):
        with pytest.raises(SystemExit) as ended:
            cli.main(["gc", str(root), "--older-than", text])
        assert ended.value.code == 2
        error = " ".join(capsys.readouterr().err.split())
        assert re.search("expected days, hours or minutes, such as 30d", error)
    assert len(list_snapshots(str(root))) == 5
