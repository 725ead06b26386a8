"""What the command line shows: on terminals, in pipes, on streams that are closed or full."""

import hashlib
import os
import pty
import re
import select
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import snapshard as ss
from snapshard import terminal
from snapshard.pipelines import progress_bars
from snapshard.schemas.manifest import FileEntry, Manifest
from snapshard.schemas.progress import Counted

# The tests' own process asks TensorFlow to say more.
PLAIN = {name: value for name, value in os.environ.items() if not name.startswith("TF_")}


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    """A snapshot of no records, and two files."""
    contents = {"reader/facts.py": b"x = 1\n", "schema.pbtxt": b"feature {}\n"}
    entries = {
        name: FileEntry(bytes=len(content), sha256=hashlib.sha256(content).hexdigest())
        for name, content in contents.items()
    }
    manifest = Manifest(
        format_version=1,
        name="made",
        fingerprint="0" * 16,
        features={"x": ss.Scalar("int64")},
        label=None,
        compression="none",
        num_rejects=0,
        seed=0,
        versions={},
        splits={},
        files=entries,
    )
    folder = tmp_path / "made"
    folder.mkdir()
    for name, content in contents.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)
    (folder / "manifest.json").write_bytes(manifest.to_bytes())
    return folder


class TestStreams:
    @pytest.mark.slow
    @pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
    def test_closed_streams(self, snapshot: Path, closed: str) -> None:
        command = f"{sys.executable} -m snapshard verify {snapshot} {closed}"
        done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert (">&-" in closed.split()) == (done.stdout == "")
        assert "Traceback" not in done.stderr

    @pytest.mark.parametrize("line", ["import sys; sys.stdout.close()", "import os; os.close(1)"])
    def test_a_recipe_that_closes_the_output(self, tmp_path: Path, line: str) -> None:
        (tmp_path / "t.csv").write_text("a\n" + "1\n" * 90)
        recipe = (
            f"{line}\nimport snapshard as ss\nrecipe = ss.Recipe(name='t', source=ss.Csv('t.csv'))"
        )
        (tmp_path / "recipe.py").write_text(recipe)
        done = subprocess.run(
            [sys.executable, "-m", "snapshard", "plan", tmp_path / "recipe.py"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 1
        assert "output" in done.stderr.splitlines()[-1]
        assert "Traceback" not in done.stderr

    def test_reader_of_the_output_that_leaves(self, snapshot: Path) -> None:
        command = f"{sys.executable} -m snapshard inspect {snapshot} | true"
        done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
        assert done.stderr == ""

    @pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
    def test_full_output_is_1(self, snapshot: Path) -> None:
        with open("/dev/full", "w") as full:
            done = subprocess.run(
                [sys.executable, "-m", "snapshard", "inspect", snapshot],
                stdout=full,
                stderr=subprocess.PIPE,
                text=True,
                check=False,
            )
        assert done.returncode == 1
        assert "no space left" in done.stderr
        assert "Traceback" not in done.stderr

    def test_output_that_is_not_unicode(self, tmp_path: Path) -> None:
        (tmp_path / "täble \x1b[31m.csv").write_text("größe,…\n1,2\n")
        done = subprocess.run(
            [sys.executable, "-m", "snapshard", "init", tmp_path / "täble \x1b[31m.csv"],
            capture_output=True,
            text=True,
            check=False,
            env={**PLAIN, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"},
        )
        assert done.returncode == 0, done.stderr
        assert "\x1b" not in done.stdout
        namespace: dict[str, Any] = {}
        exec(done.stdout, namespace)
        assert set(namespace["recipe"].features) == {"größe", "…"}


@pytest.fixture
def terminal_output() -> Callable[..., str]:
    """Runs the command line on a terminal; gives what was written there."""

    def run(*arguments: str | Path, env: dict[str, str] | None = None) -> str:
        main, other = pty.openpty()
        process = subprocess.Popen(
            [sys.executable, "-m", "snapshard", *map(str, arguments)],
            stdin=other,
            stdout=other,
            stderr=other,
            env={**PLAIN, "TERM": "xterm", "COLUMNS": "120", **(env or {})},
        )
        os.close(other)
        written = b""
        while select.select([main], [], [], 60)[0]:
            try:
                part = os.read(main, 1 << 16)
            except OSError:  # what Linux says when the other end is closed
                break
            if not part:
                break
            written += part
        os.close(main)
        assert process.wait(60) == 0, written
        return written.decode()

    return run


class TestTerminal:
    def test_bar(self, snapshot: Path, terminal_output: Any) -> None:
        written = terminal_output("verify", snapshot)
        assert "━" in written
        plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", written)
        assert re.search(r"✓ verify +━+ 2 files, \d+\.\d s", plain)
        assert "intact: 2 files" in plain

    def test_dumb_terminal_gets_lines(self, snapshot: Path, terminal_output: Any) -> None:
        written = terminal_output("verify", snapshot, env={"TERM": "dumb"})
        assert "\x1b" not in written
        assert re.search(r"^verify: 2 files, \d+\.\d s\r$", written, re.MULTILINE)


class _Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


class TestProgress:
    def test_rate_and_time_left(self, monkeypatch: pytest.MonkeyPatch) -> None:
        clock = _Clock()
        monkeypatch.setattr(progress_bars, "time", clock)
        step = progress_bars._Step(total=1000, unit="blocks")
        clock.now += 5
        assert step.facts() == "0/1,000 blocks, 5 s"
        # 400 were there before: no rate comes of them.
        step.advance(400)
        assert step.facts() == "400/1,000 blocks, 5 s"
        # Nor of the first block, which waits for libraries, workers and graphs.
        clock.now += 31
        step.advance(401)
        assert step.facts() == "401/1,000 blocks, 36 s"
        clock.now += 10
        step.advance(601)
        assert step.facts() == "601/1,000 blocks, 20.0/s, 19 s left"
        clock.now += 5
        assert step.facts() == "601/1,000 blocks, 20.0/s, 14 s left"
        clock.now += 100
        assert step.facts() == "601/1,000 blocks, 20.0/s, 0 s left"
        # What came long ago does not count.
        step.advance(602)
        clock.now += 10
        step.advance(702)
        assert step.facts() == "702/1,000 blocks, 10.0/s, 29 s left"
        step.finish(reused=False, note="")
        assert step.facts() == "1,000 blocks, 161.0 s"

    def test_slow_steps_tell_the_time_of_each(self, monkeypatch: pytest.MonkeyPatch) -> None:
        clock = _Clock()
        monkeypatch.setattr(progress_bars, "time", clock)
        step = progress_bars._Step(total=7, unit="blocks")
        step.advance(0)
        step.advance(1)
        clock.now += 40
        step.advance(3)
        assert step.facts() == "3/7 blocks, 20.0 s each, 1:20 min left"

    def test_records_inside_a_block(self, monkeypatch: pytest.MonkeyPatch) -> None:
        clock = _Clock()
        monkeypatch.setattr(progress_bars, "time", clock)
        step = progress_bars._Step(total=1, unit="blocks")
        step.advance(0)
        step.count(Counted(records=1_000, num_bytes=5_000_000))
        clock.now += 10
        step.count(Counted(records=21_000, rejects=3, num_bytes=45_000_000))
        expected = "0/1 block, 10 s, 21,000 records, 2,000/s, 4.0 MB/s, 3 rejects"
        assert step.facts() == expected
        counts = step.counts()
        assert (counts["records"], counts["rejects"], counts["num_bytes"]) == (
            21_000,
            3,
            45_000_000,
        )

    def test_lines(self, capsys: pytest.CaptureFixture[str]) -> None:
        with terminal.Bars() as bars:
            bars.start("prepare", total=1, unit="blocks")
            bars.advance("prepare", done=1)
            bars.finish("prepare", reused=True, note="1 records")
            bars.start("plan", total=None, unit="shards")
            bars.finish("plan", reused=False, note="12 shards")
        assert capsys.readouterr().err == (
            "prepare: 1 block, 1 record, reused, 0.0 s\nplan: 12 shards, 0.0 s\n"
        )

    def test_lines_every_ten_seconds(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        clock = _Clock()
        monkeypatch.setattr(progress_bars, "time", clock)
        with terminal.Bars() as bars:
            bars.start("prepare", total=90, unit="blocks")
            for done in range(25):
                bars.advance("prepare", done=done)
                bars.print_due_lines()
                clock.now += 1
            bars.finish("prepare", reused=False)
        assert capsys.readouterr().err.splitlines() == [
            "prepare: 10/90 blocks, 1.0/s, 1:20 min left",
            "prepare: 20/90 blocks, 1.0/s, 1:10 min left",
            "prepare: 90 blocks, 25.0 s",
        ]

    def test_quiet(self, capsys: pytest.CaptureFixture[str]) -> None:
        with terminal.Bars(quiet=True) as bars:
            bars.start("write", total=3, unit="shards")
            bars.finish("write", reused=True)
            bars.warn("it rains")
        assert capsys.readouterr().err == "warning: it rains\n"

    def test_finish_without_an_advance(self, capsys: pytest.CaptureFixture[str]) -> None:
        with terminal.Bars() as bars:
            bars.start("write", total=3, unit="shards")
            bars.finish("write", reused=True)
        assert capsys.readouterr().err == "write: 3 shards, reused, 0.0 s\n"
