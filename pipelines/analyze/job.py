"""Beam job 2, analyze, on the engine of the other jobs instead of in a child process.

For ``analyze_on_runner``. ``Create | runs | Reshuffle | ReadRun | AnalyzeDataset |
WriteTransformFn``. Up to the analyzers, Beam carries only numbers of runs; workers read the
analyzed columns of the run's train records. The engine chooses the order in which parts are merged,
so results from floats may differ in their last bits: the first graph in the workspace stays.

Imports Beam and TensorFlow: import this module only where it is used.
"""

import contextlib
import dataclasses
import fcntl
import os
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

import apache_beam as beam
import pyarrow as pa
import tensorflow_transform.beam as tft_beam

from ...schemas.errors import RecipeError, SnapshardError
from ...schemas.features import Features, wire_columns
from ...schemas.naming import Workspace, join
from ...schemas.runner import JobRunner
from ...transforms import storage
from ...transforms.analysis.analyze import (
    analysis_error,
    finish_graph,
    rebatch,
    refuse_no_records,
    trace,
)
from ...transforms.analysis.graph import BATCH_ROWS, GraphInfo, checked_graph, put_graph
from ...transforms.code.dependencies import refuse_undeclared
from ...transforms.examples.metadata import as_lists, tensor_adapter_config
from ...transforms.storage.failures import os_errors_as_storage_errors
from ..engines import runs_here
from ..prepare.job import run_groups
from ..recipe.shipping import StagedRecipe
from ..watchdog import expected_to_advance
from .process import AnalysisTask
from .train_records import TrainRecords

_FOLDER = "graph"


def analyze_on_runner(
    task: AnalysisTask,
    url: str,
    *,
    records: TrainRecords,
    num_runs: int,
    runner: JobRunner,
    workspace: Workspace,
    code: str,
) -> GraphInfo:
    """Ensures that the transform graph is in ``url``. Idempotent: an existing graph stays.

    Args:
        task: The recipe's handle, and the features of its records.
        url: The graph's folder: see ``transforms.analysis.graph``.
        records: The records of the train split.
        num_runs: Number of runs that contain them.
        runner: The engine that runs the job.
        workspace: Location of temporary files, if TensorFlow can access it.
        code: Digest of the function, to be stored with the graph.

    Raises:
        RecipeError: if ``preprocessing_fn`` fails; with its message.
        DataError: if the train split is empty.
        StorageError: if the graph cannot be written.
        RunnerError: if the engine or a worker ended before the job did.
    """
    with _one_at_a_time(url):
        done = checked_graph(url)
        if done is not None:
            return done
        held = task.dependencies.hold()
        function = _StagedFunction(task.staged)
        traced = trace(function, task.prepared)
        if traced.analyzed and not records.num_records:
            refuse_no_records()
        # An analysis that needs no column still needs an input: any column, and no records.
        columns = traced.analyzed or [wire_columns(task.prepared)[0].name]
        config = tensor_adapter_config(task.prepared, columns=columns)
        reading = _ReadRunFn(records, columns, features=task.prepared)
        with (
            _temporary_folder(workspace, runner) as temp,
            storage.temporary_folder() as scratch,
        ):
            made = join(temp, _FOLDER)

            def construct(pipeline: Any) -> None:
                with tft_beam.Context(temp_dir=join(temp, "temp")):
                    batches = (
                        pipeline
                        | "AllRuns"
                        >> beam.Create([(num_runs if traced.analyzed else 0, 1)], reshuffle=False)
                        | "Runs" >> beam.FlatMap(run_groups)  # (run, stop)
                        | "SpreadRuns" >> beam.Reshuffle()
                        | "ReadRun" >> beam.ParDo(reading).with_output_types(pa.RecordBatch)
                    )
                    graph = (batches, config) | "Analyze" >> tft_beam.AnalyzeDataset(function)
                    graph | "Write" >> tft_beam.WriteTransformFn(made)

            try:
                with expected_to_advance(f"the job 'analyze' on {runner.name}", runner):
                    runner.run(construct, job_name="analyze")
            except (SnapshardError, OSError, MemoryError):
                raise
            except Exception as error:
                raise analysis_error(error) from None
            refuse_undeclared([function], held.paths)
            held.check()
            local = os.path.join(scratch, _FOLDER)
            _fetch(made, local)
            outputs = finish_graph(local, task.prepared, traced, temp=temp)
            return put_graph(local, url, inputs=task.prepared, outputs=outputs, code=code)


@dataclasses.dataclass(frozen=True)
class _StagedFunction:
    """A recipe's ``preprocessing_fn``, which workers load through the recipe's handle."""

    staged: StagedRecipe

    def __call__(self, inputs: dict[str, Any]) -> dict[str, Any]:
        function = self.staged.load().preprocessing_fn
        if function is None:
            raise RecipeError("The recipe has no preprocessing_fn to analyze.")
        return function(inputs)


class _ReadRunFn(beam.DoFn):
    """Reads the records of the train split in a run, in the form that tfx_bsl needs."""

    def __init__(
        self, records: TrainRecords, columns: Sequence[str], *, features: Features
    ) -> None:
        self._records = records
        self._columns = list(columns)
        self._features = features

    def setup(self) -> None:
        self._readers = self._records.readers()

    def process(self, element: tuple[int, int]) -> Iterator[pa.RecordBatch]:
        # The engine keeps an error's message but not its errno: explain it here.
        with os_errors_as_storage_errors("use", "a file of the worker"):
            readers = self._readers[slice(*element)]
            for batch in rebatch(self._records.read(readers, self._columns), BATCH_ROWS):
                yield as_lists(batch.select(self._columns), self._features)


@contextlib.contextmanager
def _temporary_folder(workspace: Workspace, runner: JobRunner) -> Iterator[str]:
    """A temporary folder that all workers can access."""
    if storage.is_local(workspace.root) or runs_here(runner):
        with storage.scratch_folder(workspace.root) as folder:
            yield folder
        return
    url = join(workspace.root, "scratch", f"{storage.SCRATCH}{uuid.uuid4().hex}")
    try:
        yield url
    finally:
        storage.remove_tree(url)


@contextlib.contextmanager
def _one_at_a_time(url: str) -> Iterator[None]:
    """Makes a second build of the same graph wait for the first, if locks are supported."""
    if not storage.is_local(url):
        yield
        return
    path = storage.local_path(f"{url}.lock")
    with storage.failing_as_storage_error("write", path):
        storage.make_folders(os.path.dirname(path))
        descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o644)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _fetch(url: str, local: str) -> None:
    for name in storage.walk(url):
        path = os.path.join(local, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(storage.read_bytes(join(url, name)))
