"""The analyze step: a child process, the same bytes, plain errors, nothing left running."""

import functools
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from snapshard.pipelines.analyze.process import AnalysisSpec, analyze, start_process
from snapshard.pipelines.recipe.shipping import StagedRecipe, load_recipe_file, stage
from snapshard.schemas.errors import RecipeError, RunnerError
from snapshard.schemas.features import ClassLabel, Features, Scalar
from snapshard.schemas.naming import Workspace

pytestmark = pytest.mark.slow  # each child process imports TensorFlow and Beam: 10 s and more

PREPARED: Features = {
    "label": ClassLabel(("no", "yes")),
    "size": Scalar("float32", optional=True),
    "word": Scalar("string"),
}

# What children import: records in batches of `size` rows, words that tie.
RECORDS = """
import os
import signal

import numpy as np
import pyarrow as pa
from snapshard.schemas.features import ClassLabel, Scalar
from snapshard.transforms.runs.files import wire_schema

PREPARED = {
    "label": ClassLabel(("no", "yes")),
    "size": Scalar("float32", optional=True),
    "word": Scalar("string"),
}


def read(columns, *, size):
    rng = np.random.default_rng(0)
    sizes = rng.normal(3.0, 2.0, 20_000).astype(np.float32)
    rows = {
        "label": pa.array(np.arange(20_000) % 2),
        "size": pa.array(sizes, mask=sizes < 0),
        "word": pa.array([b"w%d" % (i % 1000) for i in range(20_000)], pa.large_binary()),
    }
    whole = pa.RecordBatch.from_pydict(rows, schema=wire_schema(PREPARED))
    for start in range(0, 20_000, size):
        yield whole.select(columns).slice(start, size)


def die(columns):
    os.kill(os.getpid(), signal.SIGKILL)


def hang(columns):
    import time

    open("/".join([os.environ["TEST_FOLDER"], "started"]), "w").close()
    time.sleep(300)
"""

RECIPE = """
import snapshard as ss
from words import FREQUENT


def preprocessing_fn(inputs):
    import tensorflow as tf
    import tensorflow_transform as tft

    {check}
    size = tft.scale_to_z_score(inputs["size"])
    return {{
        "label": inputs["label"],
        "size": size,
        "bucket": tft.bucketize(inputs["size"], num_buckets=7),
        "word": tft.compute_and_apply_vocabulary(inputs["word"], vocab_filename="words"),
        "frequent": tft.compute_and_apply_vocabulary(inputs["word"], top_k=FREQUENT),
        "deviation": tft.scale_to_z_score(tf.strings.length(inputs["word"])),
    }}


recipe = ss.Recipe(name="r", source=ss.Csv("a.csv"), preprocessing_fn=preprocessing_fn)
"""


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the path of this process and of its children."""
    folder = tmp_path / "modules"
    folder.mkdir()
    (folder / "records_to_analyse.py").write_text(RECORDS)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
    monkeypatch.setenv("TEST_FOLDER", str(tmp_path))
    return folder


def staged(folder: Path, *, check: str = "") -> StagedRecipe:
    folder.mkdir(parents=True)
    (folder / "words.py").write_text("FREQUENT = 10\n")
    (folder / "recipe.py").write_text(textwrap.dedent(RECIPE).format(check=check))
    recipe = load_recipe_file(folder / "recipe.py")
    return stage(recipe, Workspace(str(folder / "work")))


def spec(recipe: StagedRecipe, reader: str, **arguments: int) -> AnalysisSpec:
    import records_to_analyse

    read = functools.partial(getattr(records_to_analyse, reader), **arguments)
    return AnalysisSpec(staged=recipe, prepared=PREPARED, read_batches=read)


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_the_same_records_give_the_same_bytes(
    tmp_path: Path, modules: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From another folder, another hash seed, another temporary folder, other batches."""
    one = analyze(spec(staged(tmp_path / "one"), "read", size=1000), str(tmp_path / "graph one"))
    monkeypatch.setenv("PYTHONHASHSEED", "77")
    monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", "4")
    (tmp_path / "scratch").mkdir()
    other = analyze(
        spec(staged(tmp_path / "elsewhere/other"), "read", size=333),
        str(tmp_path / "graph other"),
        scratch=str(tmp_path / "scratch"),
    )
    assert one == other
    assert contents(tmp_path / "graph one") == contents(tmp_path / "graph other")
    assert list((tmp_path / "scratch").iterdir()) == []
    assert one.outputs["label"] == ClassLabel(("no", "yes"))
    assert one.outputs["size"] == Scalar("float32", optional=True)
    assert str(tmp_path).encode() not in b"".join(contents(tmp_path / "graph one").values())
    # A graph that is there is not made again.
    assert analyze(spec(staged(tmp_path / "third"), "die"), str(tmp_path / "graph one")) == one


def test_an_error_of_the_user_names_the_line(tmp_path: Path, modules: Path) -> None:
    recipe = staged(tmp_path / "recipe", check='raise ValueError("not on a Monday")')
    message = r"failed in recipe\.py line 10: ValueError: not on a Monday\. Its inputs, for a batch"
    with pytest.raises(RecipeError, match=message):
        analyze(spec(recipe, "read", size=1000), str(tmp_path / "graph"))
    assert not (tmp_path / "graph").exists()


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Even where a shell started the tests in the background, and so ignores SIGINT for them."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("in_main", [True, False])
def test_an_error_without_data_ends_the_preparing_of_records(
    tmp_path: Path, modules: Path, in_main: bool
) -> None:
    whole = spec(staged(tmp_path / "recipe", check='raise ValueError("typo")'), "read", size=1000)
    waited = threading.Event()

    def prepare_records() -> None:
        with process.failing_early():
            waited.wait(60 if in_main else 0.1)
            waited.set()

    with start_process(str(tmp_path)) as process:
        process.begin(whole)
        if in_main:
            with pytest.raises(RecipeError, match="ValueError: typo"):
                prepare_records()
            assert not waited.is_set()
        else:
            with ThreadPoolExecutor(1) as pool:
                pool.submit(prepare_records).result()
        with pytest.raises(RecipeError, match="ValueError: typo"):
            process.run(whole)


def test_an_analysis_without_analyzers_ends_nothing_early(tmp_path: Path, modules: Path) -> None:
    """It needs no records, so its answer is there before them."""
    recipe = staged(tmp_path / "recipe", check='return {"label": inputs["label"]}')
    whole = spec(recipe, "read", size=1000)
    others = {*psutil.Process().children()}
    with start_process(str(tmp_path)) as process:
        process.begin(whole)
        with process.failing_early():
            psutil.wait_procs({*psutil.Process().children()} - others, timeout=60)
        assert set(process.run(whole)["features"]) == {"label"}


def test_a_child_that_is_killed_is_told_of(tmp_path: Path, modules: Path) -> None:
    with pytest.raises(RunnerError, match=r"was killed by SIGKILL \(out of memory\?\)"):
        analyze(spec(staged(tmp_path / "recipe"), "die"), str(tmp_path / "graph"))
    assert not (tmp_path / "graph").exists()


def test_the_child_ends_with_its_parent(tmp_path: Path, modules: Path) -> None:
    job = tmp_path / "job.pickle"
    job.write_bytes(pickle.dumps(spec(staged(tmp_path / "recipe"), "hang")))
    program = (
        "import pickle, sys\n"
        "from snapshard.pipelines.analyze.process import analyze\n"
        "analyze(pickle.load(open(sys.argv[1], 'rb')), sys.argv[2])\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", program, str(job), str(tmp_path / "graph")])
    try:
        deadline = time.monotonic() + 300
        while not (tmp_path / "started").exists():
            assert parent.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.2)
        children = psutil.Process(parent.pid).children(recursive=True)
    finally:
        parent.kill()
        parent.wait()
    gone, alive = psutil.wait_procs(children, timeout=40)  # what they do takes longer
    for process in alive:
        process.kill()
    assert gone
    assert not alive
