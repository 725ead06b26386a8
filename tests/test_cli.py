"""The command line as users and scripts meet it: exit codes, messages, output, what is written."""

import errno
import functools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image as PillowImage

import snapshard as ss
from snapshard.pipelines import endings
from snapshard.pipelines.inspect import suggest as suggest_module
from snapshard.schemas.errors import StorageError

from .integration.faults import PAUSED, PHASES

TABLE = "id,name,weight\n" + "".join(f"{i},name {i % 5},{i / 4}\n" for i in range(60))
# The tests' own process asks TensorFlow to say more.
PLAIN = {name: value for name, value in os.environ.items() if not name.startswith("TF_")}
NOISE = ("absl", "oneDNN", "cuda", "WARNING", "Warning", "Traceback")


def _run(*arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "snapshard", *map(str, arguments)],
        **{
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            "text": True,
            "check": False,
            "timeout": 300,
            "env": PLAIN,
            **options,
        },
    )


def _listing(folder: Path) -> dict[str, tuple[int, int]]:
    found = {str(path): path.lstat() for path in [folder, *folder.rglob("*")]}
    return {name: (stat.st_ino, stat.st_mtime_ns) for name, stat in found.items()}


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Raw images of two sizes in class folders."""
    folder = tmp_path_factory.mktemp("raw") / "pets"
    rng = np.random.default_rng(0)
    for index in range(40):
        path = folder / ("cat" if index % 2 else "dog") / f"{index}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        size = (6, 8) if index % 3 else (5, 5)
        PillowImage.fromarray(rng.integers(0, 256, (*size, 3), np.uint8)).save(path)
    return folder


@pytest.fixture(scope="module")
def built(images: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A build of raw images: the output root, and how the process ended."""
    out = tmp_path_factory.mktemp("built") / "out"
    return out, _run("build", images.name, "--out", out, "--json", cwd=images.parent)


@pytest.fixture
def snapshot(built: tuple[Path, Any], tmp_path: Path) -> Path:
    """A copy of the snapshot, to be damaged."""
    out, done = built
    assert done.returncode == 0, done.stderr
    shutil.copytree(out, tmp_path / "out")
    return (
        tmp_path / "out" / Path(json.loads(done.stdout.splitlines()[-1])["path"]).relative_to(out)
    )


class TestBuild:
    @pytest.mark.slow
    def test_raw_images(self, built: tuple[Path, Any], images: Path) -> None:
        out, done = built
        assert done.returncode == 0, done.stderr
        (line,) = done.stdout.splitlines()
        facts = json.loads(line)
        assert set(facts) == {
            "path",
            "fingerprint",
            "cached",
            "num_filtered",
            "num_rejects",
            "shared_contents",
            "num_missing",
            "splits",
        }
        assert facts["path"] == f"{out}/pets/{facts['fingerprint']}"
        assert re.fullmatch("[0-9a-f]{16}", facts["fingerprint"])
        assert (facts["cached"], facts["num_rejects"]) == (False, 0)
        assert set(facts["splits"]) == {"train", "validation", "test"}
        assert sum(split["num_examples"] for split in facts["splits"].values()) == 40
        manifest = json.loads((out / "pets" / facts["fingerprint"] / "manifest.json").read_text())
        assert set(manifest["features"]) == {"image", "label"}
        assert manifest["features"]["image"]["height"] == 6

    def test_equal_contents_in_several_splits_are_a_warning(
        self, tmp_path: Path, call: Any
    ) -> None:
        (tmp_path / "t.csv").write_text("x,label\n" + "1,a\n2,b\n" * 100)
        code, printed, errors = call("build", tmp_path / "t.csv", "--out", tmp_path / "out")
        assert code == 0
        shown = [call("inspect", tmp_path / "out")[1:], (printed, errors)]
        for results, notes in shown:
            assert "equal contents" not in results
            assert "warning: 2 equal contents in train, validation and test." in notes

    def test_equal_contents_are_one_warning_however_many_splits(
        self, tmp_path: Path, call: Any
    ) -> None:
        rows = [f"{number},{word}" for number in range(60) for word in ("a", "b", "a")]
        (tmp_path / "t.csv").write_text("x,label\n" + "\n".join(rows) + "\n")
        (tmp_path / "recipe.py").write_text(
            "import snapshard as ss\nrecipe = ss.Recipe(name='t', source=ss.Csv('t.csv'), "
            "splits=ss.Splits.k_fold(5, test=0.1))"
        )
        code, _, notes = call("build", tmp_path / "recipe.py", "--out", tmp_path / "out")
        assert code == 0
        (warning,) = [line for line in notes.splitlines() if "equal content" in line]
        assert warning.count("equal content") == 4
        numbers = re.findall(r"(\d+) (?:equal content|in other)", warning)
        manifest = ss.load(tmp_path / "out").manifest
        assert sum(map(int, numbers)) == sum(manifest.shared_contents.values())

    def test_a_build_says_how_many_blocks_it_reused(self, tmp_path: Path, call: Any) -> None:
        (tmp_path / "t").mkdir()
        for name in "ab":
            rows = "".join(f"{name}{number:0100}\n" for number in range(3000))
            (tmp_path / "t" / f"{name}.csv").write_text(f"x\n{rows}")
        command = ("build", tmp_path / "t", "--out", tmp_path / "out")
        assert "\nprepare: 2 blocks, 6,000 records, " in call(*command)[2]
        with (tmp_path / "t" / "b.csv").open("a") as file:
            file.write("more\n")
        assert "\nprepare: 2 blocks, 1 reused, 6,001 records, " in call(*command)[2]

    def test_an_inferred_recipe_comes_with_the_command_that_keeps_it(
        self, tmp_path: Path, call: Any
    ) -> None:
        (tmp_path / "a t.csv").write_text("x\n" + "".join(f"{n}\n" for n in range(30)))
        notes = call("build", tmp_path / "a t.csv", "--out", tmp_path / "out")[2]
        said, code = notes.split("\n\n", 1)
        assert said.endswith(f": snapshard init '{tmp_path}/a t.csv' --label COLUMN -o recipe.py")
        assert code.startswith("import snapshard as ss\n")

    def test_tells_the_recipe_and_each_step_and_no_noise(self, built: tuple[Path, Any]) -> None:
        _, done = built
        assert 'source=ss.ImageFolder("pets")' in done.stderr
        assert 'ss.images.resize("image", (6, 8))' in done.stderr
        steps = [line for line in done.stderr.splitlines() if re.match(r"\w+: ", line)]
        assert [step.partition(":")[0] for step in steps] == [
            "inventory",
            "prepare",
            "plan",
            "write",
        ]
        planned = r"3 shards, uncompressed \(GZIP would save \d+ %\)"
        amounts = ("40 files", "1 block, 40 records", planned, "3 shards")
        for step, said in zip(steps, amounts, strict=True):
            assert re.fullmatch(rf"\w+: {said}, \d+\.\d s", step), step
        for word in NOISE:
            assert word not in done.stderr

    def test_saved_suggestion_is_cached_and_writes_nothing(
        self, built: tuple[Path, Any], images: Path, call: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        out, done = built
        monkeypatch.chdir(images.parent)
        code, text, _ = call("init", "pets")
        assert code == 0
        Path("pets_recipe.py").write_text(text)
        before = _listing(out)
        code, printed, told = call("build", "pets_recipe.py", "--out", out, "--json")
        assert code == 0
        assert _listing(out) == before
        first, second = json.loads(done.stdout), json.loads(printed)
        assert second == {**first, "cached": True}
        # A file that was written just now is read again.
        assert re.search(r"^inventory: 40 files,( reused,)? \d+\.\d s$", told, re.MULTILINE)
        code, printed, _ = call("build", "pets_recipe.py", "--out", out)
        assert code == 0
        assert printed.endswith(f"already built: {first['path']}\n")

    @pytest.mark.parametrize("num_columns", [3, 20, 25])
    def test_features_are_printed(self, tmp_path: Path, call: Any, num_columns: int) -> None:
        names = [f"c{n:02}" for n in range(num_columns)]
        rows = [f"{k},{'' if k == 3 else 1}{',7' * (num_columns - 2)}" for k in range(60)]
        (tmp_path / "t.csv").write_text("\n".join([",".join(names), *rows]) + "\n")
        for _ in range(2):  # built, then found
            code, printed, _ = call("build", tmp_path / "t.csv", "--out", tmp_path / "out")
            assert code == 0
            lines = printed.splitlines()
            assert lines[:4] == [
                "features",
                "  name  type",
                "  c00   int64",
                "  c01   int64  optional",
            ]
            end = lines.index("splits")
            more = f"  … and 5 more: snapshard inspect {lines[-1].partition(': ')[2]}"
            assert lines[end - 1] == (more if num_columns > 20 else f"  {names[-1]}   int64")
            assert end == 2 + min(num_columns, 20) + (num_columns > 20)
        printed = call("inspect", tmp_path / "out")[1]
        assert all(f"  {name}   int64" in printed for name in names)

    def test_declared_features_are_enforced(self, tmp_path: Path, call: Any) -> None:
        (tmp_path / "t.csv").write_text(TABLE)
        code, text, _ = call("init", tmp_path / "t.csv")
        assert code == 0
        (tmp_path / "recipe.py").write_text(text)
        (tmp_path / "t.csv").write_text(TABLE + "sixty,name,1.0\n")
        code, printed, told = call("build", tmp_path / "recipe.py", "--out", tmp_path / "out")
        assert code == 3
        assert printed == ""
        assert "1 of 61 records was rejected (allowed: 0); nothing was published" in told
        assert "'sixty'" in told
        assert not list((tmp_path / "out").rglob("manifest.json"))

    @pytest.mark.slow
    @pytest.mark.parametrize(
        "phase",
        ["prepare", pytest.param("plan", marks=pytest.mark.slow)],  # a process each
    )
    def test_interrupted(self, images: Path, tmp_path: Path, phase: str) -> None:
        """At a quiet point: while modules load, Python itself may lose a KeyboardInterrupt."""
        reached, go_on = tmp_path / "reached", tmp_path / "go on"
        # As a command, which ends otherwise than a call.
        call, command = "cli.main(sys.argv[4:])", "del sys.argv[1:4]\ncli.main()"
        assert call in PAUSED
        script = PAUSED.replace(call, command)
        paused = [sys.executable, "-c", script, PHASES[phase], reached, go_on]
        with subprocess.Popen(
            [*paused, "build", images, "--out", tmp_path / "out"],
            stderr=subprocess.PIPE,
            text=True,
            # Jobs in the background inherit that it is ignored.
            preexec_fn=functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
        ) as process:
            try:
                deadline = time.monotonic() + 200
                while not reached.exists():
                    assert process.poll() is None
                    assert time.monotonic() < deadline
                    time.sleep(0.02)
                process.send_signal(signal.SIGINT)
                time.sleep(1)  # the main thread sees it; others end what they are at
                go_on.touch()
                _, told = process.communicate(timeout=100)
            finally:
                process.kill()
        assert process.returncode == 130
        assert "Traceback" not in told
        assert "interrupted. Finished work is kept" in told
        assert not list((tmp_path / "out").rglob("manifest.json"))


EARLY = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
class Finder:
    def find_spec(self, name, path, target=None):
        if name == sys.argv[1]:
            del sys.argv[1]
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
from snapshard.__main__ import main
main()
"""


@pytest.mark.parametrize(
    "module", ["snapshard.cli", "snapshard.terminal", "pydantic", "fsspec", "asyncio.coroutines"]
)
def test_interrupted_while_modules_load(module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", EARLY, module, "plan", "nowhere.csv"],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode in (-signal.SIGINT, 130)
    assert done.stderr in ("", f"error: {endings.MESSAGE}\n")


class TestPlan:
    def test_shows_what_would_come_and_writes_nothing(
        self, images: Path, call: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(images.parent)
        before = _listing(images.parent)
        code, printed, told = call("plan", "pets")
        assert code == 0, told
        assert _listing(images.parent) == before
        for part in (
            "reads 40 files",
            "image  image, uint8[6, 8, 3]",
            "class, one of 2: cat, dog",
            "train by label: cat: ",
            "about 40 examples",
            "fits into the",
        ):
            assert part in printed
        # The sample holds all records: these are the counts to come.
        counts = re.findall(r"^  (?:train|validation|test) +(\d+) +1 ", printed, re.MULTILINE)
        assert len(counts) == 3
        assert sum(map(int, counts)) == 40
        assert "source=ss.ImageFolder" in told

    def test_says_what_a_declaration_leaves_out(self, tmp_path: Path, call: Any) -> None:
        (tmp_path / "t.csv").write_text("a,b,c\n" + "1,2,x\n" * 40)
        (tmp_path / "recipe.py").write_text(
            "import snapshard as ss\nrecipe = ss.Recipe(name='t', "
            "source=ss.Csv('t.csv', label='c'), features={'a': ss.Scalar('uint8')})"
        )
        code, printed, told = call("plan", tmp_path / "recipe.py")
        assert code == 0
        assert "left out, because features= does not declare them: 'b', 'c'\n" in printed
        assert "warning: the source's label 'c' is not a feature of the examples" in told

    def test_warns(self, tmp_path: Path, call: Any) -> None:
        (tmp_path / "t.csv").write_text("a,b\n1,2\n3\n")
        (tmp_path / "r.py").write_text(
            "import snapshard as ss\n"
            'recipe = ss.Recipe(name="r", source=ss.Csv("t.csv"), splits=ss.Splits(train=1.0))\n'
        )
        code, _, told = call("plan", tmp_path / "r.py")
        assert code == 0
        assert "warning: 1 of 2 sampled records would be rejected:" in told
        assert "t.csv byte 8: the row '3' does not have 2 cells" in told


class TestInspectAndVerify:
    def test_inspect(self, snapshot: Path, call: Any) -> None:
        for place in (snapshot, snapshot.parent, snapshot.parent.parent):
            code, printed, _ = call("inspect", place)
            assert code == 0
            assert printed.splitlines()[-1] == str(snapshot)
        assert "image, uint8[6, 8, 3]" in printed
        assert re.search(r"train by label: cat: \d+, dog: \d+", printed)
        assert "tensorflow 2" in printed

    def test_inspect_without_a_label(self, tmp_path: Path, call: Any) -> None:
        (tmp_path / "t.csv").write_text("a\n" + "1\n" * 20)
        recipe = ss.Recipe(
            name="t", source=ss.Csv(str(tmp_path / "t.csv")), splits=ss.Splits(train=1.0)
        )
        _, printed, _ = call("inspect", ss.build(recipe, tmp_path / "out").path)
        assert "\nlabel: none; compression: none; seed: 0; " in printed

    def test_verify(self, snapshot: Path, call: Any) -> None:
        code, printed, told = call("verify", snapshot)
        assert code == 0
        assert re.fullmatch(
            rf"intact: \d+ files, [\d,]+ bytes, 40 examples in {snapshot}\n", printed
        )
        assert re.match(r"verify: \d+ files, ", told)

    def test_damage_is_4_and_names_file_and_record(self, snapshot: Path, call: Any) -> None:
        (shard,) = snapshot.glob("train-*")
        content = bytearray(shard.read_bytes())
        content[len(content) // 2] ^= 1
        shard.write_bytes(content)
        code, printed, told = call("verify", snapshot)
        assert (code, printed) == (4, "")
        assert re.search(rf"{shard.name}: record \d+ \(byte [\d,]+, id '", told)

    @pytest.mark.parametrize("command", ["verify", "inspect"])
    def test_missing_manifest_is_4(self, snapshot: Path, call: Any, command: str) -> None:
        (snapshot / "manifest.json").unlink()
        code, _, told = call(command, snapshot)
        assert code == 4
        assert "no manifest.json" in told


class TestGc:
    def test_dry_run_then_real(self, snapshot: Path, call: Any) -> None:
        out = snapshot.parent.parent
        unpublished = snapshot.parent / ("e" * 16)
        unpublished.mkdir()
        (unpublished / "train-00000-of-00001.tfrecord").write_bytes(bytes(1000))
        before = _listing(out)
        code, printed, _ = call("gc", out, "--dry-run")
        assert code == 0
        assert _listing(out) == before
        assert f"would remove {unpublished}" in printed
        assert "would free" in printed
        code, listed, _ = call("gc", out, "--dry-run", "--json")
        going = json.loads(listed)["paths"]
        assert f"{unpublished}/train-00000-of-00001.tfrecord" in going
        assert _listing(out) == before
        code, printed, _ = call("gc", out)
        assert code == 0
        assert not any(Path(path).exists() for path in going)
        assert json.loads(call("gc", out, "--json")[1])["num_files"] == 0
        assert f"removed {unpublished}" in printed
        assert not unpublished.exists()
        assert call("verify", snapshot)[0] == 0

    def test_links_are_told_and_left(self, snapshot: Path, call: Any, tmp_path: Path) -> None:
        link = snapshot.parent / ("d" * 16)
        link.symlink_to(tmp_path)
        code, _, told = call("gc", snapshot.parent.parent)
        assert code == 0
        assert f"{link} is a symbolic link" in " ".join(told.split())
        assert link.is_symlink()


BROKEN_RECIPES = {
    "syntax": ("recipe = ss.Recipe(name='x' source=1)", "recipe.py line 2: invalid syntax"),
    "unknown argument": ("recipe = ss.Recipe(nam='x')", "recipe.py line 2: TypeError"),
    "misspelt argument": (
        "recipe = ss.Recipe(name='x', split=ss.Splits(train=1.0))",
        "unexpected keyword argument 'split'. Did you mean splits=?",
    ),
    "misspelt argument of a source": (
        "ss.Csv('x.csv', lable='y')",
        "line 2: Csv: lable: unknown argument (found 'y'). Did you mean label=?",
    ),
    "misspelt argument of a step": (
        "ss.tables.clip('x', mn=0)",
        "line 2: Clip: mn: unknown argument (found 0). Did you mean min=?",
    ),
    "misspelt source": ("ss.CSV('x')", "has no attribute 'CSV'. Did you mean ss.Csv?"),
    "misspelt group of steps": ("ss.table", "has no attribute 'table'. Did you mean ss.tables?"),
    "misspelt step": (
        "ss.images.resized",
        "module 'ss.images' has no attribute 'resized'. Did you mean ss.images.resize?",
    ),
    "misspelt option of splits": (
        "ss.Splits(train=1.0, stratify='label')",
        "Splits: stratify='label' is not a fraction. Did you mean stratify_by=?",
    ),
    "no pair": (
        "ss.images.resize('image', 64)",
        "Resize: size: expected a tuple (found 64)",
    ),
    "bad setting": (
        "ss.Shards(target_bytes='big')",
        "Shards: target_bytes: 'big' is not a size",
    ),
    "bad type": ("ss.ImageFolder('x', max_pixels='y')", "line 2: ImageFolder: max_pixels"),
    "own error": ("def f():\n    return 1 / 0\nf()", "recipe.py line 3: ZeroDivisionError"),
    "missing module": ("import nowhere_at_all", "No module named 'nowhere_at_all'. Install it"),
    "no recipe": ("x = 1", "has no recipe"),
    "ends the program": ("import sys; sys.exit(7)", "ended the program while it was loaded"),
    "no source": (
        "recipe = ss.Recipe(name='x', source=ss.ImageFolder('gone'))",
        "The source gone does not exist (looked for ",
    ),
}


class TestErrors:
    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (["bild"], "No such command 'bild'. Did you mean 'build'? Try 'snapshard --help'."),
            (["zap"], "No such command 'zap'. Try 'snapshard --help'."),
            (["build"], "Missing argument 'SOURCE'. Try 'snapshard build --help'."),
            (["build", "x"], "Missing option '--out'. Try 'snapshard build --help'."),
            (["build", "x", "--out", "y", "--nope"], "No such option: --nope"),
            (
                ["build", "x", "--output", "y"],
                "No such option: --output. Did you mean --out? Try 'snapshard build --help'.",
            ),
            (
                ["build", "x", "--out", "y", "--label", "z"],
                "No such option: --label. Try 'snapshard build --help'.",
            ),
            (["build", "x", "--out", "y", "--workers", "0"], "Invalid value for '--workers'"),
            (
                ["build", "x", "--out", "y", "--workers", "two"],
                "Invalid value for '--workers': expected an integer. Try",
            ),
            (["build", "x", "--out"], "--out"),
            (["build", "x", "--out", ""], "--out is empty"),
            (["build", "x", "--out", "s3://"], "--out: s3:// is only a protocol"),
            (["build", "x", "--out", "file"], "--out: file is a file, expected a folder"),
            (["build", "x", "y", "--out", "z"], "unexpected extra argument (y). Put"),
            (["verify", "x", "y"], "unexpected extra argument(s) (y). Try"),
            (["rejects", "x", "--export", "y", "--list"], "--export: excludes --list"),
            (["rejects", "x", "--export", "y", "--number", "3"], "--export: excludes --number"),
            (["rejects", "x", "--export", "y", "--offset", "3"], "--export: excludes --offset"),
            (["rejects", "x", "--list", "--by", "stage"], "--list: excludes --by"),
            (["rejects", "x", "--number", "3"], "--number: requires --list"),
            (["rejects", "x", "--offset", "3"], "--offset: requires --list"),
            (["rejects", "x", "--source", "y"], "--source: requires --export"),
            *(
                (
                    ["rejects", "x", "--list", option, f"1{30 * '0'}"],
                    f"for '{option}': expected less",
                )
                for option in ("--number", "--offset")
            ),
            (["verify", "x", "--seed", "3"], "--seed: requires --sample"),
            (["build", "nowhere", "--out", "y"], "The source nowhere does not exist"),
            (["build", "nowhere.py", "--out", "y"], "nowhere.py does not exist"),
            (["build", "foo://y", "--out", "z"], "Protocol not known"),
            (["plan", ""], "The source is empty"),
            (["verify", ""], "The path of the snapshot is empty"),
            (["plan", "nowhere"], "The source nowhere does not exist"),
            (["init", "recipe.py"], "recipe.py is already a recipe"),
            (["inspect", "nowhere"], "nowhere does not exist"),
            (["verify", "file"], "file is a file, expected the folder of a snapshot"),
            (["gc", "nowhere"], "nowhere is neither an output root"),
            (["gc", "file"], "file is neither an output root"),
        ],
    )
    def test_usage_is_2(
        self,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        call: Any,
        arguments: list[str],
        said: str,
    ) -> None:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "file").write_text("text")
        code, printed, told = call(*arguments)
        assert (code, printed) == (2, "")
        assert told.startswith("error: ")
        assert said in told
        assert os.listdir(tmp_path) == ["file"]

    def test_no_arguments_show_the_help(self, call: Any) -> None:
        code, printed, told = call()
        assert (code, told) == (2, "")
        assert "Usage: snapshard" in printed

    def test_help_and_version_are_0(self, call: Any) -> None:
        code, printed, _ = call("--help")
        assert code == 0
        for command in ("build", "init", "plan", "inspect", "verify", "gc"):
            assert re.search(rf"\b{command}\b", printed)
        code, printed, _ = call("--version")
        assert code == 0
        assert re.fullmatch(r"snapshard \d+\.\d+\.\d+\n", printed)

    @pytest.mark.parametrize("broken", BROKEN_RECIPES)
    @pytest.mark.parametrize("command", ["build", "plan"])
    def test_broken_recipe_is_2(self, tmp_path: Path, call: Any, broken: str, command: str) -> None:
        code, said = BROKEN_RECIPES[broken]
        (tmp_path / "recipe.py").write_text(f"import snapshard as ss\n{code}\n")
        out = ["--out", str(tmp_path / "out")] if command == "build" else []
        code, printed, told = call(command, tmp_path / "recipe.py", *out)
        assert (code, printed) == (2, "")
        assert said in told

    def test_refused_data_is_3(self, tmp_path: Path, call: Any) -> None:
        out = tmp_path / "out"
        (tmp_path / "empty").mkdir()
        code, _, told = call("build", tmp_path / "empty", "--out", out)
        assert code == 3
        assert "empty holds no files" in told
        (tmp_path / "t.csv").write_text("a,b\n")
        code, _, told = call("build", tmp_path / "t.csv", "--out", out)
        assert code == 3
        assert "a header and no complete row" in told

    def test_output_that_cannot_be_written_is_told(
        self, images: Path, tmp_path: Path, call: Any
    ) -> None:
        (tmp_path / "file").touch()
        code, _, told = call("build", images, "--out", tmp_path / "file" / "out")
        assert code == 2
        assert "Cannot write" in told
        assert "a part of the path is a file, expected a folder" in told

    @pytest.mark.parametrize(
        ("error", "said"),
        [
            (StorageError("Cannot read x: no answer."), "error: Cannot read x: no answer."),
            (OSError(28, "No space left on device", "/tmp/x"), "/tmp/x: no space left."),
            (OSError(5, "Input/output error"), "or the output: the disk or its driver failed"),
        ],
    )
    def test_failing_machine_is_1_without_a_traceback(
        self, monkeypatch: pytest.MonkeyPatch, call: Any, error: Exception, said: str
    ) -> None:
        def fail(source: str) -> None:
            raise error

        monkeypatch.setattr(suggest_module, "suggest", fail)
        code, _, told = call("plan", "x")
        assert code == 1
        assert said in told

    def test_defect_shows_its_traceback(self, tmp_path: Path) -> None:
        done = subprocess.run(
            [
                sys.executable,
                "-c",
                "from snapshard import cli\n"
                "from snapshard.pipelines.inspect import suggest\n"
                "suggest.suggest = lambda source: 1 / 0\n"
                "cli.main(['plan', 'x'])",
            ],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 5
        assert "Traceback" in done.stderr
        assert "ZeroDivisionError" in done.stderr
        assert "error: this is a defect" in done.stderr

    @pytest.mark.slow
    @pytest.mark.parametrize("level", ["1", "2"])
    def test_python_without_asserts_is_2(self, tmp_path: Path, level: str) -> None:
        (tmp_path / "t.csv").write_text("a,b\n" + "1,2\n" * 30)
        for command in (["build", "t.csv", "--out", "out"], ["plan", "t.csv"]):
            done = subprocess.run(
                [sys.executable, "-m", "snapshard", *command],
                cwd=tmp_path,
                env={**os.environ, "PYTHONOPTIMIZE": level},
                capture_output=True,
                text=True,
                check=False,
                timeout=60,
            )
            assert done.returncode == 2
            assert "Unset PYTHONOPTIMIZE" in done.stderr
            assert "Traceback" not in done.stderr
        assert not (tmp_path / "out").exists()

    @pytest.mark.parametrize("locale", ["C", "POSIX"])
    def test_names_and_texts_are_read_as_utf8_or_refused(self, tmp_path: Path, locale: str) -> None:
        (tmp_path / "é.csv").write_text("a,b\n1,2\n")
        for utf8 in ("0", "1"):
            done = subprocess.run(
                [sys.executable, "-m", "snapshard", "plan", "."],
                cwd=tmp_path,
                env={**os.environ, "LC_ALL": locale, "PYTHONUTF8": utf8},
                capture_output=True,
                encoding="utf-8",
                check=False,
                timeout=60,
            )
            assert ("Set PYTHONUTF8=1" in done.stderr) == (utf8 == "0")
            assert "Traceback" not in done.stderr

    @pytest.mark.parametrize(
        "error",
        [
            MemoryError(),
            ImportError("libarrow.so: failed to map segment from shared object"),
            RuntimeError("can't start new thread"),
        ],
    )
    def test_no_memory_is_1(
        self, monkeypatch: pytest.MonkeyPatch, call: Any, error: Exception
    ) -> None:
        def fail(source: str) -> None:
            raise error

        monkeypatch.setattr(suggest_module, "suggest", fail)
        code, _, told = call("plan", "x")
        assert code == 1
        assert "out of memory" in told

    @pytest.mark.parametrize(
        ("number", "code"),
        [
            (errno.EACCES, 2),
            (errno.EROFS, 2),
            (errno.ENOTDIR, 2),
            (errno.ENAMETOOLONG, 2),
            (errno.EIO, 1),
            (errno.ENOSPC, 1),
            (errno.ESTALE, 1),
            (errno.ETIMEDOUT, 1),
        ],
    )
    def test_only_what_may_pass_is_1(
        self, monkeypatch: pytest.MonkeyPatch, call: Any, number: int, code: int
    ) -> None:
        def fail(source: str) -> None:
            raise OSError(number, os.strerror(number), "/x")

        monkeypatch.setattr(suggest_module, "suggest", fail)
        assert call("plan", "x")[0] == code

    def test_ctrl_c_is_130(self, monkeypatch: pytest.MonkeyPatch, call: Any) -> None:
        def interrupt(source: str) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(suggest_module, "suggest", interrupt)
        code, _, told = call("plan", "x")
        assert code == 130
        assert "Run the same command to resume" in told
