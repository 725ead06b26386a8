"""Analyzes a ``preprocessing_fn`` on the train split in a child process, and makes its graph.

The child runs Beam's FnApiRunner with one in-memory worker, on whichever engine the other jobs run,
because a graph must be identical to the last bit: with a fixed hash seed, one thread per operation,
and a separate working directory (``transforms.analysis.analyze`` says why). Its end also frees the
memory of TensorFlow and Beam. It may be started early, to load them, trace the function and set up
its job while records are prepared.
"""

import contextlib
import dataclasses
import functools
import gc
import json
import os
import pickle
import select
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
from ...transforms.analysis.graph import (
    BATCH_ROWS,
    GraphInfo,
    GraphOutputs,
    checked_graph,
    put_graph,
)
from ...transforms.code.dependencies import Dependencies, refuse_undeclared
from ...transforms.storage.failures import os_errors_as_storage_errors
from ..endings import fail, is_interruptible
from ..recipe.shipping import StagedRecipe
from ..watchdog import expected_to_advance
from .train_records import read_handed_over

_MODULE = __name__
_TASK, _RECORDS = "task.pickle", "records.pickle"
_LOG, _FOLDER = "log.txt", "graph"
_LOG_TAIL = 2000
_POLL_S = 0.2
_BEGIN = b"\n"
_ENVIRONMENT = {
    "PYTHONHASHSEED": "0",
    # With sums split over threads, the last bits depend on the number of threads.
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
    """The part of an analysis that is known before there are records, as plain data."""

    staged: StagedRecipe
    """A handle on the recipe with the ``preprocessing_fn``."""
    prepared: Features
    """The features of the records."""
    dependencies: Dependencies = dataclasses.field(default_factory=Dependencies)
    """Dependencies of the recipe in addition to its source."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class AnalysisSpec(AnalysisTask):
    """An analysis, as plain data that is sent to the child process."""

    read_batches: Any
    """Given a sequence of wire columns, yields these columns of all records of the train split as
    ``pa.RecordBatch``, in a fixed order: a function of a module, or a partial of one."""


def analyze(
    spec: AnalysisSpec,
    url: str,
    *,
    scratch: str | None = None,
    process: "AnalysisProcess | None" = None,
    code: str = "",
) -> GraphInfo:
    """Ensures that the transform graph is in ``url``. Idempotent.

    Args:
        spec: The analysis.
        url: The graph's folder: see ``transforms.analysis.graph``.
        scratch: A local folder to work in; by default the system's temporary folder.
        process: A child process that was started early, and may have received the task; it can be
            used only once.
        code: Digest of the function, to be stored with the graph.

    Raises:
        RecipeError: if ``preprocessing_fn`` fails; with its message and the line.
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
    """Starts a child process that loads TensorFlow and Beam and then waits for its task.

    Args:
        scratch: A local folder to work in; by default the system's temporary folder.
    """
    with storage.held_folder(scratch) as folder:
        process = AnalysisProcess(folder)
        try:
            yield process
        finally:
            process.end()


class AnalysisFailedError(Exception):
    """The child process raised an unexpected exception; the message is the end of its log."""


class AnalysisProcess:
    """The child process, in a separate folder."""

    def __init__(self, folder: str) -> None:
        """Starts the process in a folder."""
        self.folder = folder
        self._begun = False
        self._answer = b""
        with open(os.path.join(folder, _LOG), "wb") as log:
            # Standard input signals the child to begin, and ends when this process does: so does
            # the child.
            self._child = subprocess.Popen(
                [sys.executable, "-m", _MODULE],
                cwd=folder,
                # Temporary files that Beam leaves when killed are removed with the folder.
                env={**child_environment(), **_ENVIRONMENT, "TMPDIR": folder},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )

    def begin(self, task: AnalysisTask) -> None:
        """Starts the work that needs no records; :meth:`run` raises its errors."""
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

    @contextlib.contextmanager
    def failing_early(self) -> Iterator[None]:
        """Ends the body as soon as the work that needs no records fails, with its error.

        Only a body in the main thread can be interrupted; after another, :meth:`run` raises it.
        """
        answer = self._child.stdout
        if not is_interruptible() or answer is None:
            yield
            return
        ended, failed = threading.Event(), threading.Event()

        def watch() -> None:
            while not ended.is_set():
                if select.select([answer], [], [], _POLL_S)[0]:
                    self._answer = self._read_answer()
                    if "error" in json.loads(self._answer or "{}"):
                        failed.set()
                        fail()
                    return

        thread = threading.Thread(target=watch, name="fail_early", daemon=True)
        thread.start()
        try:
            try:
                yield
            finally:  # the interrupt may come this late
                ended.set()
                thread.join()
        except KeyboardInterrupt:
            if not failed.is_set():
                raise
        if failed.is_set():
            self._outputs()

    def run(self, spec: AnalysisSpec) -> Any:
        """Runs the analysis; returns the graph's outputs as JSON.

        Raises:
            SnapshardError: if the analysis raised it.
            RunnerError: if the process was killed or ran out of memory.
            AnalysisFailedError: if it raised an unexpected exception.
        """
        if not self._begun:
            self.begin(spec)
        storage.put_bytes(os.path.join(self.folder, _RECORDS), pickle.dumps(spec.read_batches))
        with expected_to_advance(f"the process {self._child.pid} that analyzes preprocessing_fn"):
            self._answer = self._answer or self._read_answer()
        return self._outputs()

    def _read_answer(self) -> bytes:
        # Through a pipe: a full disk would have no room for a message.
        return self._child.stdout.read() if self._child.stdout is not None else b""

    def _outputs(self) -> Any:
        """The graph's outputs, or the error, of the child's answer."""
        code = self._child.wait()
        if not self._answer:
            if code < 0 or MemoryError.__name__ in self._log_tail():
                raise RunnerError(
                    f"The process that analyzes preprocessing_fn {_end_of(code)}. Start the build "
                    f"again to resume it. The end of its log:\n{self._log_tail()}"
                )
            raise AnalysisFailedError(self._log_tail())
        result = json.loads(self._answer)
        if "error" in result:
            raise getattr(errors, result["error"])(result["message"])
        return result["outputs"]

    def end(self) -> None:
        """Kills the process, whatever its state."""
        self._child.kill()
        self._child.wait()
        for stream in (self._child.stdin, self._child.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()

    def _log_tail(self) -> str:
        with open(os.path.join(self.folder, _LOG), errors="replace") as file:
            return file.read()[-_LOG_TAIL:].strip()


def _end_of(code: int) -> str:
    if code < 0:
        return f"was killed by {signal.Signals(-code).name} (out of memory?)"
    return "ran out of memory"


def main() -> None:
    """Runs in the child process, in its working directory."""
    # Output of libraries must not mix with the result.
    answer = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    # Objects that libraries create while loading stay: garbage collection among them takes a
    # quarter of the loading time.
    gc.disable()
    from ...transforms.analysis import analyze as analysis  # noqa: F401 - ahead of time

    gc.freeze()
    gc.enable()
    if os.read(0, 1) != _BEGIN:
        return  # The build has ended, or needs no analysis.
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with open(_TASK, "rb") as file:
        task: AnalysisTask = pickle.load(file)
    result: dict[str, object]
    try:
        with (
            os_errors_as_storage_errors("write", os.getcwd()),
            working_on("the analysis (preprocessing_fn)"),
        ):
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
        raise RecipeError("The recipe has no preprocessing_fn to analyze.")
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
    # Not through sys.stdin, whose lock would be held when the process exits.
    os.read(0, 1)
    os._exit(1)


if __name__ == "__main__":
    main()
