"""Analyze, Beam job 2: a ``preprocessing_fn`` is analysed on the train split, into a graph.

It runs in a child process on Beam's FnApiRunner with one in-memory worker, wherever the other
jobs run, because a graph must be the same to the last bit: with a fixed hash seed, one thread
per operation, and a working directory of its own (``transforms.analysis.analyze`` says why). The
child also returns the memory that TensorFlow and Beam took. It may be started ahead, so that it
loads them, traces the function and sets its job up while records are prepared.
"""

import contextlib
import dataclasses
import functools
import gc
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

from ...schemas import errors
from ...schemas.errors import RecipeError, RunnerError, SnapshardError
from ...schemas.features import Features
from ...schemas.progress import child_environment
from ...schemas.recipe import Recipe
from ...transforms import storage
from ...transforms.activity import working_on
from ...transforms.analysis.graph import GraphInfo, GraphOutputs, checked_graph, put_graph
from ...transforms.code.dependencies import Dependencies
from ...transforms.code.user_reads import refuse_undeclared
from ...transforms.storage.failures import telling_os_errors
from ..recipe.shipping import StagedRecipe
from ..watchdog import expected_to_advance
from .train_records import read_handed_over

BATCH_ROWS = 4096
"""Rows in each record batch that is analysed. More is faster; less needs less memory."""
ANALYSIS = {"batch_rows": BATCH_ROWS, "engine": "FnApiRunner, one worker", "format": 2}
"""How the analysis runs, as far as it shapes the graph: part of the fingerprint."""
ON_RUNNER = {"batch_rows": BATCH_ROWS, "engine": "the runner", "format": 1}
"""The same of an analysis on the engine of the other jobs: ``analyze_on_runner``."""

_MODULE = __name__
_TASK, _RECORDS = "task.pickle", "records.pickle"
_LOG, _FOLDER = "log.txt", "graph"
_LAST_WORDS = 2000
_BEGIN = b"\n"
_ENVIRONMENT = {
    "PYTHONHASHSEED": "0",
    # Sums split over threads differ in their last bits with the number of threads.
    "MKL_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "1",
    "TF_NUM_INTRAOP_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "-1",
    "TF_CPP_MIN_LOG_LEVEL": "2",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class AnalysisTask:
    """What is known of an analysis before there are records, as plain data."""

    staged: StagedRecipe
    """A handle on the recipe whose ``preprocessing_fn`` it is."""
    prepared: Features
    """The features of the records."""
    dependencies: Dependencies = dataclasses.field(default_factory=Dependencies)
    """What the recipe depends on beside its source."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class AnalysisSpec(AnalysisTask):
    """What to analyse, as plain data that reaches the child process."""

    read_batches: Any
    """Given a sequence of wire columns, yields these of all records of the train split as
    ``pa.RecordBatch``, in a fixed order: a function of a module, or a partial of one."""


def analyze(
    spec: AnalysisSpec,
    url: str,
    *,
    scratch: str | None = None,
    process: "AnalysisProcess | None" = None,
    code: str = "",
) -> GraphInfo:
    """Makes sure that the transform graph lies in ``url``. Idempotent.

    Args:
        spec: What to analyse.
        url: The graph's folder: see ``transforms.analysis.graph``.
        scratch: A local folder to work in; the system's by default.
        process: A child process that was started ahead, and may have been told the task; it
            serves once.
        code: Digest of the function, to be kept with the graph.

    Raises:
        RecipeError: if ``preprocessing_fn`` fails; with its own words and the line.
        DataError: if the train split is empty.
        StorageError: if the graph cannot be written.
        RunnerError: if the child process died.
    """
    done = checked_graph(url)
    if done is not None:
        return done
    if process is None:
        with start_process(scratch) as started:
            return analyze(spec, url, process=started, code=code)
    outputs = process.run(spec)
    folder = os.path.join(process.folder, _FOLDER)
    made = GraphOutputs.from_json(outputs)
    return put_graph(folder, url, inputs=spec.prepared, outputs=made, code=code)


@contextlib.contextmanager
def start_process(scratch: str | None = None) -> Iterator["AnalysisProcess"]:
    """A child process that loads TensorFlow and Beam and then waits for what to analyse.

    Args:
        scratch: A local folder to work in; the system's by default.
    """
    with storage.held_folder(scratch) as folder:
        process = AnalysisProcess(folder)
        try:
            yield process
        finally:
            process.end()


class AnalysisFailedError(Exception):
    """Something unexpected was raised in the child process; its last words are the message."""


class AnalysisProcess:
    """The child process, in a folder of its own."""

    def __init__(self, folder: str) -> None:
        """Starts it."""
        self.folder = folder
        self._begun = False
        with open(os.path.join(folder, _LOG), "wb") as log:
            # Its standard input tells the child when to begin, and that this process lives: it
            # ends with it.
            self._child = subprocess.Popen(
                [sys.executable, "-m", _MODULE],
                cwd=folder,
                # What Beam leaves among temporary files, where it is killed, goes with the folder.
                env={**child_environment(), **_ENVIRONMENT, "TMPDIR": folder},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )

    def begin(self, task: AnalysisTask) -> None:
        """Lets it do meanwhile what needs no records; what fails there, :meth:`run` raises."""
        task = AnalysisTask(
            staged=task.staged, prepared=task.prepared, dependencies=task.dependencies
        )
        with open(os.path.join(self.folder, _TASK), "wb") as file:
            pickle.dump(task, file)
        if self._child.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._child.stdin.write(_BEGIN)
                self._child.stdin.flush()
        self._begun = True

    def run(self, spec: AnalysisSpec) -> Any:
        """Analyses; gives what the graph makes, as JSON.

        Raises:
            SnapshardError: what the analysis raised.
            RunnerError: if the process was killed, or ran out of memory.
            AnalysisFailedError: if it raised what nothing expected.
        """
        if not self._begun:
            self.begin(spec)
        storage.put_bytes(os.path.join(self.folder, _RECORDS), pickle.dumps(spec.read_batches))
        # Through a pipe: on a full disk there would be no room to say so.
        with expected_to_advance(f"the process {self._child.pid} that analyses preprocessing_fn"):
            told = self._child.stdout.read() if self._child.stdout is not None else b""
        code = self._child.wait()
        if not told:
            if code < 0 or MemoryError.__name__ in self._last_words():
                raise RunnerError(
                    f"The process that analyses preprocessing_fn {_end_of(code)}. Start the build "
                    f"again: it goes on. Its last words:\n{self._last_words()}"
                )
            raise AnalysisFailedError(self._last_words())
        result = json.loads(told)
        if "error" in result:
            raise getattr(errors, result["error"])(result["message"])
        return result["outputs"]

    def end(self) -> None:
        """Ends it, whatever it does."""
        self._child.kill()
        self._child.wait()
        for stream in (self._child.stdin, self._child.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()

    def _last_words(self) -> str:
        with open(os.path.join(self.folder, _LOG), errors="replace") as file:
            return file.read()[-_LAST_WORDS:].strip()


def _end_of(code: int) -> str:
    if code < 0:
        return f"was killed by {signal.Signals(-code).name} (out of memory?)"
    return "ran out of memory"


def main() -> None:
    """What the child process does, in its working directory."""
    # What libraries print is no result.
    answer = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    # What the libraries make while they load stays: to look for garbage among it takes a quarter
    # of the time that loading takes.
    gc.disable()
    from ...transforms.analysis import analyze as analysis  # noqa: F401 - ahead of time

    gc.freeze()
    gc.enable()
    if os.read(0, 1) != _BEGIN:
        return  # the build has ended, or needs no analysis
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with open(_TASK, "rb") as file:
        task: AnalysisTask = pickle.load(file)
    result: dict[str, object]
    try:
        with telling_os_errors("write", os.getcwd()), working_on("the analysis (preprocessing_fn)"):
            result = {"outputs": _analyze_here(task).to_json()}
    except SnapshardError as error:
        result = {"error": type(error).__name__, "message": str(error)}
    except SystemExit as error:
        message = f"preprocessing_fn ended the program (sys.exit, code {error.code!r})."
        result = {"error": RecipeError.__name__, "message": message}
    with answer:
        answer.write(json.dumps(result).encode())


def _analyze_here(task: AnalysisTask) -> GraphOutputs:
    recipe: Recipe = task.staged.load()
    if recipe.preprocessing_fn is None:
        raise RecipeError("The recipe has no preprocessing_fn to analyse.")
    from ...transforms.analysis.analyze import analyze as run_analysis

    held = task.dependencies.hold()
    outputs = run_analysis(
        recipe.preprocessing_fn,
        task.prepared,
        read_batches=functools.partial(read_handed_over, path=os.path.abspath(_RECORDS)),
        batch_rows=BATCH_ROWS,
        folder=_FOLDER,
    )
    refuse_undeclared([recipe.preprocessing_fn], held.paths, folder=recipe.folder)
    held.check()
    return outputs


def _end_with_parent() -> None:
    # Not through sys.stdin, whose lock would be held when the process ends.
    os.read(0, 1)
    os._exit(1)


if __name__ == "__main__":
    main()
