"""Builds that are killed again and again, interrupted, or that fail: what they leave and say."""

import contextlib
import dataclasses
import functools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import snapshard as ss
from snapshard import cli
from snapshard.pipelines.operate.gc import collect_garbage

RECIPE = """
import snapshard as ss

recipe = ss.Recipe(
    name="made",
    source=ss.ImageFolder("images"),
    prepare=[ss.images.decode("image"), ss.images.resize("image", (48, 48))],
    shards=ss.Shards(num_shards=12),
)
"""

# The command line, with blocks of about eight small images.
SMALL_BLOCKS = """
import functools
import sys

from snapshard import cli
from snapshard.pipelines.inventory import step as inventory
from snapshard.transforms.sources.blocks import group_blocks

inventory.group_blocks = functools.partial(group_blocks, block_bytes=40_000)
cli.main(sys.argv[1:])
"""

# When to kill: as soon as the workspace or the snapshot holds so many of these. Kills at every
# file that is put are in test_kills.py.
POINTS = {
    "a first run is on its way": ("runs/*/*.arrow", 1),
    "a few runs": ("runs/*/*.json", 5),
    "the summary": ("summaries/*.arrow", 1),
    "half of the shards": ("shards/*/*.json", 18),
}


@dataclasses.dataclass(frozen=True)
class Project:
    recipe: Path
    script: Path
    hashes: dict[str, str]
    """Of a build that nothing disturbed."""


@pytest.fixture(scope="module")
def project(lab: Any, shared: Callable[[str], Path]) -> Project:
    folder = shared("resume")
    lab.make_images(folder / "images", num=400, size=32)
    recipe, script = folder / "recipe.py", folder / "small_blocks.py"
    recipe.write_text(RECIPE)
    script.write_text(SMALL_BLOCKS)
    # In blocks of the usual size: how the work is cut changes no byte.
    undisturbed = lab.build(recipe, folder / "undisturbed")
    return Project(recipe, script, lab.hashes(undisturbed))


@contextlib.contextmanager
def started(project: Project, out: Path) -> Iterator[subprocess.Popen[str]]:
    """A build under way, in a process group of its own; dead in the end."""
    arguments = ["build", str(project.recipe), "--out", str(out)]
    process = subprocess.Popen(
        [sys.executable, str(project.script), *arguments, "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # Jobs in the background inherit that it is ignored.
        preexec_fn=functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def kill_at(project: Project, out: Path, point: str) -> bool:
    """Kills a build at a point; False where it had ended before."""
    pattern, number = POINTS[point]
    workspace = out / "made" / ".work"
    deadline = time.monotonic() + 200
    with started(project, out) as process:
        while len(list(workspace.glob(pattern))) < number:
            if process.poll() is not None:
                return False
            assert time.monotonic() < deadline, f"{point} was never reached"
            time.sleep(0.001)
        return process.poll() is None


def go_on(lab: Any, project: Project, out: Path) -> ss.Snapshot:
    with started(project, out) as process:
        stdout, stderr = process.communicate(timeout=300)
    done = subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)
    return ss.Snapshot.open(lab.last_json(done)["path"])


@pytest.mark.slow  # many kills, one after the other
def test_killed_again_and_again(lab: Any, project: Project, tmp_path: Path) -> None:
    for point in POINTS:
        kill_at(project, tmp_path, point)
    snapshot = go_on(lab, project, tmp_path)
    assert lab.hashes(snapshot) == project.hashes
    # What was on its way when a build was killed, garbage collection clears; the rest is listed.
    collect_garbage(str(tmp_path))
    folder = Path(snapshot.path)
    found = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert found == {*snapshot.manifest.files, "manifest.json", "build.json"}
    assert not list((tmp_path / "made" / ".work" / "scratch").glob("*"))
    assert lab.build(project.recipe, tmp_path).cached


@pytest.mark.slow  # a process that loads TensorFlow
def test_interrupted_build(lab: Any, project: Project, tmp_path: Path) -> None:
    """Ctrl-C ends a build soon, says that it can go on, and shows no traceback."""
    with started(project, tmp_path) as process:
        deadline = time.monotonic() + 200
        while not list((tmp_path / "made" / ".work").glob("runs/*/*.json")):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.001)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "to resume" in stderr
    assert "Traceback" not in stderr
    assert lab.hashes(go_on(lab, project, tmp_path)) == project.hashes


def run_here(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """Runs the command line in this process: exit code, standard output, standard error."""
    with pytest.raises(SystemExit) as ended:
        cli.main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    assert isinstance(ended.value.code, int)
    return ended.value.code, captured.out, captured.err


FAILING_STEPS = {
    "raises": ("raise RuntimeError('no such luck')", "no such luck"),
    "unknown name": ("return record | {'image': undefined}", "undefined"),
    "no dict": ("return 3", "dict"),
    "unknown feature": ("return {'image': record['pixels']}", "pixels"),
}


@pytest.mark.parametrize("kind", FAILING_STEPS)
def test_step_that_fails(
    lab: Any, recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    body, word = FAILING_STEPS[kind]
    text = recipe.read_text().replace("(8, 8))", "(8, 8)), step")
    recipe.write_text(f"def step(record):\n    {body}\n\n\n{text}")
    code, stdout, stderr = run_here(capsys, "build", recipe, "--out", tmp_path / "out", "--json")
    assert code == 2, stderr
    assert stdout == ""
    assert "error:" in stderr
    assert word in stderr
    assert "Traceback" not in stderr
    assert not list(tmp_path.rglob("manifest.json"))


@pytest.mark.slow
def test_step_that_fails_on_a_record(lab: Any, recipe: Path, tmp_path: Path) -> None:
    """What a step refuses is a reject; the others go on."""
    recipe.write_text(
        "def step(record):\n"
        "    import tensorflow as tf\n\n"
        "    mean = tf.reduce_mean(tf.cast(record['image'], tf.float32))\n"
        "    tf.debugging.assert_less(mean, 128.0, 'too bright')\n"
        "    return record\n\n\n"
        + recipe.read_text().replace("(8, 8))]", "(8, 8)), step], max_rejects=0.9")
    )
    snapshot = lab.build(recipe, tmp_path / "out")
    rejects = lab.rejects(snapshot)
    assert 0 < len(rejects) < 60
    assert all("too bright" in row["message"] for row in rejects)
    held = lab.read_back(snapshot)
    assert len({*held.ids, *(row["id"] for row in rejects)}) == 60
    assert held.values["image"].mean(axis=(1, 2, 3)).max() < 128


@pytest.mark.parametrize(
    ("recipe_text", "code", "word"),
    [
        (
            "import snapshard as ss\n"
            "recipe = ss.Recipe(name='a b', source=ss.ImageFolder('images'))",
            2,
            "name=",
        ),
        ("recipe = 3", 2, "recipe"),
        ("import nowhere_to_be_found", 2, "nowhere_to_be_found"),
        ("recipe = (", 2, "line 1"),
        (
            "import snapshard as ss\n"
            "recipe = ss.Recipe(name='x', source=ss.ImageFolder('not there'))",
            2,
            "not there",
        ),
        (
            "import snapshard as ss\n"
            "recipe = ss.Recipe(name='x', source=ss.ImageFolder('images'),\n"
            "    splits=ss.Splits(train=1.0, stratify_by='nothing'))",
            2,
            "nothing",
        ),
        (
            "import snapshard as ss\n"
            "recipe = ss.Recipe(name='x', source=ss.ImageFolder('images'),\n"
            "    prepare=[ss.images.resize('image', (8, 8))])",
            2,
            "decode",
        ),
        (
            "import snapshard as ss\n"
            "recipe = ss.Recipe(name='x', source=ss.ImageFolder('images'),\n"
            "    features={'image': ss.Image(storage='encoded'), 'age': ss.Scalar('int64')})",
            3,
            "age",
        ),
        (
            "import snapshard as ss\nrecipe = ss.Recipe(name='x', source=ss.ImageFolder('empty'))",
            3,
            "empty",
        ),
    ],
    ids=["name", "no recipe", "import", "syntax", "source", "split", "step", "schema", "empty"],
)
def test_what_a_user_can_cause(
    lab: Any,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    recipe_text: str,
    code: int,
    word: str,
) -> None:
    lab.make_images(tmp_path / "images", num=3)
    (tmp_path / "empty").mkdir()
    (tmp_path / "recipe.py").write_text(recipe_text)
    found, stdout, stderr = run_here(
        capsys, "build", tmp_path / "recipe.py", "--out", tmp_path / "out", "--json"
    )
    assert found == code, stderr
    assert stdout == ""
    assert stderr.startswith("error:") or "\nerror:" in stderr
    assert word in stderr
    assert "Traceback" not in stderr
    assert not list(tmp_path.rglob("manifest.json"))


@pytest.mark.slow
def test_output_among_the_data(lab: Any, tmp_path: Path) -> None:
    """Refused where the next build would read it; hidden folders are no data."""
    recipe = lab.image_project(tmp_path, num=5)
    for out in ("images", "images/out", "images/class 0/out"):
        with pytest.raises(ss.SnapshardError, match="inside the source"):
            lab.build(recipe, tmp_path / out)
    assert not list(tmp_path.rglob(".work"))
    assert not lab.build(recipe, tmp_path / "images" / ".out").cached
    assert lab.build(recipe, tmp_path / "images" / ".out").cached


def test_output_beside_a_table(lab: Any, tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text("a,b\n" + "".join(f"{i},{i * i}\n" for i in range(50)))
    for source in ("table.csv", "."):
        recipe = tmp_path / "recipe.py"
        recipe.write_text(
            f"import snapshard as ss\nrecipe = ss.Recipe(name='table', source=ss.Csv({source!r}))\n"
        )
        assert not lab.build(recipe, tmp_path / "out" / source).cached
        assert lab.build(recipe, tmp_path / "out" / source).cached


@pytest.mark.slow
def test_preprocessing_fn_that_fails(
    examples: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "data").symlink_to(examples / "data")
    text = (examples / "penguins.py").read_text()
    assert 'inputs["island"]' in text
    recipe = tmp_path / "penguins.py"
    recipe.write_text(text.replace('inputs["island"]', 'inputs["isle"]'))
    code, stdout, stderr = run_here(capsys, "build", recipe, "--out", tmp_path / "out", "--json")
    assert code == 2, stderr
    assert stdout == ""
    assert "isle" in stderr
    assert "penguins.py line" in stderr
    assert "Traceback" not in stderr
    assert not list((tmp_path / "out").rglob("manifest.json"))
