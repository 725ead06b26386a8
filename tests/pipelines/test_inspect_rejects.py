"""``snapshard rejects``: finds, lists, groups and exports rejects, whatever data they hold."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from snapshard import cli
from snapshard.pipelines.inspect.rejects import INDEX, RejectFilter, RejectsFile, export_payloads
from snapshard.schemas.errors import (
    DamagedSnapshotError,
    PayloadPlace,
    RecipeError,
    Reject,
)
from snapshard.transforms.rejects import rejects_to_bytes

ALL = RejectFilter()
LONG = bytes(range(256)) * 300
NASTY = "../../../etc/'\"$(touch x)`\n\x1b[31m<b>é"


def rejects() -> list[Reject]:
    def make(number: int, stage: str, reason: str, **others: Any) -> Reject:
        return Reject(
            record_id=f"a.csv#{number}",
            stage=stage,
            reason=reason,
            message=f"message {number}",
            source="a.csv",
            position=number,
            **others,
        )

    sha256 = hashlib.sha256(LONG).hexdigest()
    placed = PayloadPlace(sha256=sha256, num_bytes=len(LONG), start=4, stop=4 + len(LONG))
    whole = PayloadPlace(sha256=hashlib.sha256(b"head" + LONG).hexdigest(), start=0)
    values = PayloadPlace(sha256="0" * 64, num_bytes=70_000)
    return [
        make(0, "read", "wrong type", payload=b"1,x\n", exception="ArrowInvalid"),
        make(1, "read", "wrong type", payload=b"\xff\xd8\xff", exception="ArrowInvalid"),
        make(2, "validate", "missing value", payload=b'{"a": 1}', payload_kind="values"),
        make(3, "prepare", "step failed", place=placed, exception="ValueError"),
        make(4, "read", "damaged file", place=whole),
        make(5, "across", "no time", place=values, payload_kind="values"),
        make(6, "inventory", "no permission", exception="OSError"),
        Reject(
            record_id=NASTY,
            stage="read",
            reason="<script>",
            message=NASTY,
            source=NASTY,
            payload=b"RIFF....WAVE",
        ),
    ]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a name whose last build was refused; its source lies beside it."""
    work = tmp_path / "out" / "name" / ".work"
    work.mkdir(parents=True)
    (work / "rejects.parquet").write_bytes(rejects_to_bytes(rejects()))
    (work / "refused.json").write_text(json.dumps({"source": str(tmp_path / "data")}))
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.csv").write_bytes(b"head" + LONG)
    return tmp_path / "out" / "name"


@pytest.mark.parametrize("below", ["", "..", ".work", ".work/rejects.parquet"])
def test_a_refused_build_is_found_from_each_of_its_folders(folder: Path, below: str) -> None:
    found = RejectsFile.find(str(folder / below))
    assert found.refused
    assert found.source == str(folder.parent.parent / "data")
    assert sum(1 for _ in found.rows(ALL)) == 8


@pytest.mark.parametrize(
    ("wanted", "number"),
    [
        (RejectFilter(stage="read"), 4),
        (RejectFilter(reason="wrong type"), 2),
        (RejectFilter(stage="validate", reason="wrong type"), 0),
    ],
)
def test_filters(folder: Path, wanted: RejectFilter, number: int) -> None:
    found = RejectsFile.find(str(folder))
    assert sum(1 for _ in found.rows(wanted, ["id"])) == number
    assert sum(group.num_rejects for *_, group in found.tally(wanted).groups()) == number
    assert sum(found.count_by("source", wanted).values()) == number


def test_what_is_not_there_is_told(folder: Path, tmp_path: Path) -> None:
    for path in ("", str(tmp_path / "nothing"), str(tmp_path / "no.parquet")):
        with pytest.raises(RecipeError):
            RejectsFile.find(path)
    with pytest.raises(RecipeError, match="Invalid stage 'reading'"):
        RejectFilter(stage="reading")
    (folder / ".work" / "rejects.parquet").unlink()
    with pytest.raises(RecipeError, match="its build did not finish"):
        RejectsFile.find(str(folder))


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "other"])
def test_a_damaged_file_is_told(folder: Path, damage: str) -> None:
    path = folder / ".work" / "rejects.parquet"
    content = bytearray(path.read_bytes())
    if damage == "flipped":
        for at in range(10, len(content) // 2, 5):
            content[at] ^= 0xFF
    changed = {"cut": content[:-9], "flipped": content, "empty": b"", "other": b"PAR1" * 9}
    path.write_bytes(bytes(changed[damage]))
    with pytest.raises(DamagedSnapshotError) as raised:
        list(RejectsFile.find(str(folder)).rows(ALL))
    assert raised.value.exit_code == 4


def test_payloads_are_exported_under_names_of_our_own(folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "export"
    report = export_payloads(RejectsFile.find(str(folder)), ALL, str(target))
    lines = (target / INDEX).read_text().splitlines()
    index = [json.loads(line) for line in lines]
    assert [entry["file"] for entry in index] == [
        "000000.wav",
        "000001.txt",
        "000002.jpg",
        "000003.json",
        "000004.bin",
        "000005.bin",
        None,
        None,
    ]
    assert sorted(path.name for path in target.iterdir()) == sorted(
        [INDEX, *(entry["file"] for entry in index if entry["file"])]
    )
    for entry in index:
        if entry["file"] is not None:
            content = (target / entry["file"]).read_bytes()
            assert hashlib.sha256(content).hexdigest() == entry["payload_sha256"]
            assert "missing" not in entry
    assert (target / "000004.bin").read_bytes() == LONG
    assert "too long to keep; the record is in a.csv at 5" in index[6]["missing"]
    assert "nothing of the record" in index[7]["missing"]
    assert index[0]["id"] == NASTY
    assert (report.num_files, report.num_fetched, report.num_missing) == (6, 2, 2)
    with pytest.raises(RecipeError, match="is not empty"):
        export_payloads(RejectsFile.find(str(folder)), ALL, str(target))
    with pytest.raises(RecipeError, match="is not local"):
        export_payloads(RejectsFile.find(str(folder)), ALL, "memory://x")


def test_a_source_that_changed_or_moved_is_told(folder: Path, tmp_path: Path) -> None:
    moved = tmp_path / "moved"
    (tmp_path / "data").rename(moved)
    found = RejectsFile.find(str(folder))
    wanted = RejectFilter(stage="prepare")

    def missing(name: str, **options: Any) -> str | None:
        export_payloads(found, wanted, str(tmp_path / name), **options)
        told: str | None = json.loads((tmp_path / name / INDEX).read_text()).get("missing")
        return told

    assert "the source cannot be read" in str(missing("1"))
    assert missing("2", source=str(moved)) is None
    (moved / "a.csv").write_bytes(b"other" + LONG)
    assert "has changed since" in str(missing("3", source=str(moved)))
    (folder / ".work" / "refused.json").write_text("[" * 5000)
    found = RejectsFile.find(str(folder))
    assert "location of the source is unknown" in str(missing("4"))


@pytest.mark.parametrize("name", ["../secret", "/secret", "link", "pipe", "a/../../secret"])
def test_what_is_outside_of_the_source_is_never_read(tmp_path: Path, name: str) -> None:
    (tmp_path / "secret").write_bytes(LONG)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "link").symlink_to(tmp_path / "secret")
    os.mkfifo(tmp_path / "data" / "pipe")
    place = PayloadPlace(sha256=hashlib.sha256(LONG).hexdigest(), num_bytes=len(LONG), start=0)
    reject = Reject(record_id=name, stage="read", reason="r", message="m", source=name, place=place)
    (tmp_path / "rejects.parquet").write_bytes(rejects_to_bytes([reject]))
    found = RejectsFile.find(str(tmp_path / "rejects.parquet"))
    source = str(tmp_path / "data")
    report = export_payloads(found, ALL, str(tmp_path / "export"), source=source)
    assert (report.num_files, report.num_missing) == (0, 1)
    assert [path.name for path in (tmp_path / "export").iterdir()] == [INDEX]


def run(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        cli.main(["rejects", *map(str, arguments)])
    written = capsys.readouterr()
    assert isinstance(ended.value.code, int)
    return ended.value.code, written.out, written.err


def test_the_command_groups_by_stage_and_reason(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run(capsys, folder)
    assert code == 0
    assert "8 rejects in" in out
    assert "of the last build, which failed because of them" in out
    assert "  2 × read: wrong type\n      a.csv#0: message 0\n" in out
    assert "\x1b" not in out
    facts = json.loads(run(capsys, folder, "--json")[1])
    assert facts["num_rejects"] == 8
    assert facts["groups"][0]["num_rejects"] == 2
    assert [one["id"] for one in facts["groups"][0]["first"]] == ["a.csv#0", "a.csv#1"]
    assert "  4 × read\n" in run(capsys, folder, "--by", "stage")[1]
    assert "  2 × ArrowInvalid\n" in run(capsys, folder, "--by", "exception")[1]
    _, out, _ = run(capsys, folder, "--reason", "wrong")
    assert "0 rejects with the reason 'wrong' in" in out
    assert "\nother reasons: wrong type, " in out
    code, _, err = run(capsys, folder, "--by", "colour")
    assert code == 2
    assert "--by colour: expected one of reason, stage, exception, source" in err


def test_the_command_lists_page_by_page(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = []
    for offset in range(0, 9, 3):
        _, out, _ = run(capsys, folder, "--list", "--number", 3, "--offset", offset, "--json")
        found += [json.loads(line)["position"] for line in out.splitlines()]
    assert found == [None, 0, 1, 2, 3, 4, 5, 6]
    _, out, _ = run(capsys, folder, "--list", "--number", 2)
    assert "… and more: --offset 2" in out
    assert "\x1b" not in out
    _, out, _ = run(capsys, folder, "--list", "--number", 0, "--stage", "prepare")
    assert "a.csv#3  prepare: step failed (ValueError)" in out
    assert "in a.csv from byte 4 to 76,804" in out
    assert "and more" not in out


def test_the_command_exports(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run(capsys, folder, "--export", tmp_path / "export")
    assert code == 0
    assert "exported 6 payloads of 8 rejects" in out
    assert "2 have no payload to export" in out
    assert run(capsys, folder, "--export", tmp_path / "export")[0] == 2
    assert run(capsys, folder, "--export", tmp_path / "other", "--list")[0] == 2
    _, out, _ = run(capsys, folder, "--export", tmp_path / "third", "--json", "--reason", "no time")
    assert json.loads(out)["num_missing"] == 1
