"""Rejects through the command line: every stage's payloads, budgets, retries, mended files."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from snapshard.pipelines import build as builds
from snapshard.pipelines.publish import step as publishing
from snapshard.pipelines.write import step as writing
from snapshard.schemas.errors import StorageError

from ..small_blocks import small_blocks

ROWS = """\
import json
import os

import snapshard as ss


def read(file):
    text = file.read().decode()
    if "service" in text and "SERVICE" not in os.environ:  # which no fingerprint covers
        raise ConnectionError("the service is down")
    for line in text.splitlines():
        yield {{"x": int(line.split()[0])}}


recipe = ss.Recipe(
    name="rows",
    source=ss.Files("data", read=read, label=None),
    splits=ss.Splits(train=0.5, test=0.5),
    max_rejects={max_rejects},
    revision={revision},
)
"""

STAGES = """\
import snapshard as ss


def double(record):
    if record["x"] == 13:
        raise KeyError("thirteen")
    return {"y": record["x"] * 2}


recipe = ss.Recipe(
    name="stages",
    source=ss.Csv("data", types={"x": "int64", "part": "string"}),
    prepare=[ss.records.map_python(double, {"y": ss.Scalar("int64")})],
    features={
        "part": ss.Text(),
        "x": ss.Scalar("int64"),
        "y": ss.Scalar("int64", max=1000),
    },
    splits=ss.Splits.by_column("part", train="a", test="b"),
    max_rejects=%s,
)
"""

WINDOWS = """\
import snapshard as ss

recipe = ss.Recipe(
    name="windows",
    source=ss.Csv("data", types={"time": "int64", "value": "float32"}),
    prepare=[ss.series.windows("value", size=2, time="time", horizon=0)],
    splits=ss.Splits(train=1.0),
    max_rejects={"across": 1},
)
"""

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def many_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of about three files."""
    small_blocks(monkeypatch, 60)


class Rows:
    """A recipe whose source reads two of its files only while a service is there."""

    def __init__(self, folder: Path, call: Call) -> None:
        self.folder, self.call = folder, call
        self.out = folder / "out"
        (folder / "data").mkdir()
        for number in range(30):
            words = "service" if number in (4, 21) else "plain"
            (folder / "data" / f"{number:02}.txt").write_text(
                f"{number * 10} {words}\n{number * 10 + 1}\n"
            )
        self.write(2)

    def write(self, max_rejects: Any, *, revision: int = 0) -> None:
        text = ROWS.format(max_rejects=max_rejects, revision=revision)
        (self.folder / "recipe.py").write_text(text)

    def build(self, *options: str, out: Path | None = None) -> dict[str, Any]:
        recipe, out = self.folder / "recipe.py", out or self.out
        code, output, errors = self.call("build", recipe, "--out", out, "--json", *options)
        assert code == 0, errors
        found: dict[str, Any] = json.loads(output.splitlines()[-1])
        found["facts"] = json.loads((Path(found["path"]) / "build.json").read_text())
        return found

    def refuse(self, *options: str) -> str:
        """Builds what is refused; gives what is said."""
        code, _, errors = self.call("build", self.folder / "recipe.py", "--out", self.out, *options)
        assert code == 3
        return errors

    def latest(self) -> str:
        text = (self.out / "rows" / "latest.json").read_text()
        return str(json.loads(text)["fingerprint"])


@pytest.fixture
def rows(tmp_path: Path, call: Call) -> Rows:
    return Rows(tmp_path, call)


def hashes(path: str | Path) -> dict[str, str]:
    """Each file below a folder and the hash of its content."""
    files = (file for file in Path(path).rglob("*") if file.is_file())
    return {
        str(file.relative_to(path)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files
    }


def listed(snapshot: Path | str) -> dict[str, dict[str, Any]]:
    table = pq.read_table(Path(snapshot) / "rejects.parquet")
    return {row["id"]: row for row in table.to_pylist()}


@pytest.mark.slow  # builds six times
@pytest.mark.usefixtures("many_blocks")
def test_a_revision_redoes_the_blocks_with_rejects_and_reuses_the_others(
    rows: Rows, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = rows.build()
    total = first["facts"]["blocks"]["total"]
    assert first["num_rejects"] == 2
    assert total > 5
    assert set(listed(first["path"])) == {"04.txt#0", "21.txt#0"}
    before = hashes(first["path"])
    monkeypatch.setenv("SERVICE", "1")
    assert rows.build()["path"] == first["path"]
    second = rows.build("--revision", "1")
    assert not second["cached"]
    assert second["fingerprint"] != first["fingerprint"]
    assert second["num_rejects"] == 0
    assert second["facts"]["blocks"] == {"total": total, "prepared": 2}
    assert hashes(first["path"]) == before
    assert rows.latest() == second["fingerprint"]
    for path in (first["path"], second["path"]):
        assert call("verify", path)[0] == 0
    # The same as a build that met no trouble, but for what names the snapshot.
    untroubled = rows.build(out=rows.folder / "other")
    assert untroubled["fingerprint"] == first["fingerprint"]
    named = {"build.json", "croissant.json", "manifest.json", "report.html"}
    same = {name: one for name, one in hashes(untroubled["path"]).items() if name not in named}
    for name, one in hashes(second["path"]).items():
        if name not in named and not name.startswith("reader"):
            assert same[name] == one, name
    # The revision alone says which of the two is meant, also after garbage collection.
    monkeypatch.delenv("SERVICE")
    assert call("gc", rows.out)[0] == 0
    assert rows.build()["path"] == first["path"]
    rows.write(2, revision=1)
    again = rows.build()
    assert (again["cached"], again["path"]) == (True, second["path"])
    # Where files are added, the revised blocks are reused like all others.
    (rows.folder / "data" / "30.txt").write_text("300\n")
    third = rows.build()
    assert third["num_rejects"] == 0
    assert third["facts"]["blocks"]["prepared"] <= 2


@pytest.mark.slow  # builds five times
@pytest.mark.usefixtures("many_blocks")
def test_a_revision_that_changes_nothing_gives_the_same_records(rows: Rows, call: Call) -> None:
    first = rows.build()
    second = rows.build("--revision", "1")
    assert second["path"] != first["path"]
    assert set(listed(second["path"])) == set(listed(first["path"]))
    assert second["facts"]["blocks"]["prepared"] == 2
    code, said, _ = call("diff", first["path"], second["path"], "--json")
    assert code == 0, said
    # Those of revision 1 are no longer asked.
    assert rows.build("--revision", "2")["facts"]["blocks"]["prepared"] == 2
    code, said, _ = call("why", first["path"], second["path"])
    assert code == 0
    assert "revision" in said


@pytest.mark.slow  # builds nine times
@pytest.mark.usefixtures("many_blocks")
@pytest.mark.parametrize(
    ("module", "name"),
    [(builds, "prepare_records"), (writing, "write_job"), (publishing, "point_latest")],
    ids=["prepare", "write", "latest"],
)
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_revision_that_is_killed_alters_nothing_and_resumes(
    rows: Rows, monkeypatch: pytest.MonkeyPatch, module: Any, name: str, after: bool
) -> None:
    first = rows.build()
    before = hashes(first["path"])
    monkeypatch.setenv("SERVICE", "1")
    real = getattr(module, name)

    def killed(*arguments: Any, **options: Any) -> None:
        if after:
            real(*arguments, **options)
        raise StorageError("killed")

    monkeypatch.setattr(module, name, killed)
    command = (rows.folder / "recipe.py", "--out", rows.out, "--revision", "1")
    assert rows.call("build", *command)[0] == 1
    monkeypatch.setattr(module, name, real)
    assert hashes(first["path"]) == before
    assert rows.build()["path"] == first["path"]
    second = rows.build("--revision", "1")
    assert second["num_rejects"] == 0
    assert second["path"] != first["path"]
    assert hashes(first["path"]) == before
    for path in (first["path"], second["path"]):
        assert rows.call("verify", path)[0] == 0


@pytest.mark.slow  # builds five times
@pytest.mark.usefixtures("many_blocks")
def test_a_refused_build_shows_its_rejects_and_resumes_when_retried(
    rows: Rows, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows.write({"read": 1, "total": 10})
    said = rows.refuse()
    work = rows.out / "rows" / ".work"
    assert "2 of 58 records were rejected; nothing was published" in said
    assert "  read: 2 rejected, 1 allowed" in said
    assert "2 × read: the function raised ConnectionError" in said
    assert f"{work}/rejects.parquet" in said
    assert not (rows.out / "rows" / "latest.json").exists()
    for place in (rows.out, rows.out / "rows", work / "rejects.parquet"):
        code, out, _ = call("rejects", place, "--json")
        assert (code, json.loads(out)["num_rejects"]) == (0, 2)
    code, out, _ = call("rejects", rows.out, "--export", rows.folder / "export")
    assert code == 0
    index = (rows.folder / "export" / "index.jsonl").read_text().splitlines()
    # Of what a function failed at, the file is told, which is read from the source.
    exported = [json.loads(line)["file"] for line in index]
    assert [(rows.folder / "export" / name).read_text() for name in exported] == [
        "40 service\n41\n",
        "210 service\n211\n",
    ]
    monkeypatch.setenv("SERVICE", "1")
    assert "--revision 1" in rows.refuse()
    built = rows.build("--revision", "1")
    assert built["num_rejects"] == 0
    assert not (work / "rejects.parquet").exists()
    assert not (work / "refused.json").exists()
    assert rows.build("--revision", "1")["cached"]


@pytest.mark.slow  # builds three times
@pytest.mark.usefixtures("many_blocks")
def test_a_fixed_file_alone_is_prepared_again(rows: Rows) -> None:
    first = rows.build()
    path = rows.folder / "data" / "21.txt"
    path.write_text(path.read_text().replace("service", "healthy"))
    second = rows.build()
    assert set(listed(second["path"])) == {"04.txt#0"}
    facts = second["facts"]["blocks"]
    assert (facts["prepared"], facts["total"]) == (1, first["facts"]["blocks"]["total"])


@pytest.mark.slow  # loads TensorFlow for a step in Python
def test_every_stage_keeps_what_the_record_held(tmp_path: Path, call: Call) -> None:
    data = tmp_path / "data"
    data.mkdir()
    good = "".join(f"{number},{'ab'[number % 2]}\n" for number in range(100, 140))
    long = "z" * 70_000
    bad = f"oops,a\n13,a\n5000,b\n7,elsewhere\n,a\n1,a,extra\nx,{long}\n"
    (data / "rows.csv").write_text("x,part\n" + good + bad)
    (data / "gone.csv").symlink_to(tmp_path / "nowhere")
    recipe = tmp_path / "recipe.py"
    allowed = {"inventory": 1, "read": 3, "validate": 1, "prepare": 2, "split": 1}
    recipe.write_text(STAGES % (allowed | {"read": 2}))
    code, _, errors = call("build", recipe, "--out", tmp_path / "out")
    assert code == 3
    assert "  read: 3 rejected, 2 allowed" in errors, errors
    recipe.write_text(STAGES % allowed)
    code, output, errors = call("build", recipe, "--out", tmp_path / "out", "--json")
    assert code == 0, errors
    snapshot = json.loads(output.splitlines()[-1])["path"]
    found = list(listed(snapshot).values())
    at = len("x,part\n" + good)
    lines = bad.splitlines()

    def told(row: dict[str, Any]) -> tuple[Any, ...]:
        payload = row["payload"]
        if row["payload_kind"] == "values":
            payload = json.loads(payload)
        return row["stage"], row["exception"], row["position"], payload

    positions = [at + sum(len(line) + 1 for line in lines[:number]) for number in range(7)]
    assert [told(row) for row in found] == [
        ("inventory", "OSError", None, None),
        ("read", "ArrowInvalid", positions[0], b"oops,a"),
        ("prepare", "KeyError", positions[1], {"part": "a", "x": 13}),
        ("validate", "RecordError", positions[2], {"part": "b", "x": 5000}),
        ("split", "RecordError", positions[3], {"part": "elsewhere", "x": 7}),
        ("prepare", "TypeError", positions[4], {"part": "a", "x": None}),
        ("read", "ArrowInvalid", positions[5], b"1,a,extra"),
        ("read", "ArrowInvalid", positions[6], None),
    ]
    last = found[-1]
    assert last["payload_bytes"] == len(lines[6])
    assert last["payload_sha256"] == hashlib.sha256(lines[6].encode()).hexdigest()
    assert (last["payload_start"], last["payload_stop"]) == (
        positions[6],
        positions[6] + len(lines[6]),
    )
    code, output, _ = call("rejects", snapshot, "--export", tmp_path / "export", "--stage", "read")
    assert code == 0
    assert "1 of them read from the source" in output
    assert (tmp_path / "export" / "000002.txt").read_text() == lines[6]


def test_a_step_across_records_keeps_the_rows(tmp_path: Path, call: Call) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "rows.csv").write_text(
        "time,value\n" + "".join(f"{n},{n / 2}\n" for n in range(8)) + "3,99.5\n"
    )
    (tmp_path / "recipe.py").write_text(WINDOWS)
    code, output, errors = call(
        "build", tmp_path / "recipe.py", "--out", tmp_path / "out", "--json"
    )
    assert code == 0, errors
    snapshot = json.loads(output.splitlines()[-1])["path"]
    (row,) = listed(snapshot).values()
    assert (row["stage"], row["reason"]) == ("across", "second row of one time")
    assert json.loads(row["payload"])["time"] == 3
    assert row["position"] in (29, 59)
    code, output, _ = call("rejects", snapshot)
    assert code == 0
    assert "1 × across: second row of one time" in output
    # Whichever bit is another, it is told.
    path = Path(snapshot) / "rejects.parquet"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    code, _, errors = call("rejects", tmp_path / "out")
    assert code == 4
    assert "its sha256 is not the one in the manifest" in errors
