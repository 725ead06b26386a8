"""Worker processes of the embedded engine: watched, and ended when one of them fails.

Beam's own multi-processing mode waits forever for a worker that was killed, wraps every error in
text, and starts workers through a shell, again for each job. Here the engine gets a custom
environment: its workers come from a pool, a thread watches them, and the first one that dies or
fails ends the job.
"""

import contextlib
import json
import os
import signal
import tempfile
import threading
import uuid
from typing import Any, NamedTuple

from apache_beam.portability.api import beam_fn_api_pb2, endpoints_pb2
from apache_beam.runners.portability.fn_api_runner.worker_handlers import (
    GrpcWorkerHandler,
    WorkerHandler,
)
from apache_beam.transforms import environments
from google.protobuf import json_format, text_format

from ..schemas import errors
from .portable import WorkerFailedError as WorkerFailedError
from .worker_pool import WorkerPool, WorkerProcess

_WATCH_SECONDS = 0.1
_GRACE_SECONDS = 10.0


class WorkerProcesses:
    """The worker processes of one job; a context manager around the job's run.

    On exit, the first failure of a worker is raised instead of the engine's error: a SnapshardError
    unchanged, a death as RunnerError, anything else as WorkerFailedError.
    """

    def __init__(self, pool: WorkerPool, *, job_name: str) -> None:
        self._pool = pool
        self._job_name = job_name
        self._urn = f"snapshard:env:process:{uuid.uuid4().hex}"
        self._workers: list[_Worker] = []
        self._failure: Exception | None = None
        self._ended = threading.Event()

    @property
    def environment(self) -> environments.Environment:
        """The environment by which the engine starts workers."""
        return _ProcessEnvironment(self._urn)

    def __enter__(self) -> "WorkerProcesses":
        """Starts watching."""
        self._failures = tempfile.mkdtemp(prefix="job-", dir=self._pool.folder)
        WorkerHandler.register_environment(self._urn, None)(self._create)
        self._watcher = threading.Thread(target=self._watch, name="watch_workers", daemon=True)
        self._watcher.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Ends workers that still run, and raises the first failure."""
        # The engine may have seen a connection break before the watcher saw the process end.
        failure = self._failure or self._look() if kind is not None else None
        self._ended.set()
        self._watcher.join()
        self._pool.end_taken()
        WorkerHandler._registered_environments.pop(self._urn, None)
        if failure is not None and kind is not None and issubclass(kind, Exception):
            raise failure from None

    def _create(
        self, payload: object, state: Any, provision_info: Any, grpc_server: Any
    ) -> "_Worker":
        worker = _Worker(
            state, provision_info, grpc_server, pool=self._pool, failures=self._failures
        )
        self._workers.append(worker)
        return worker

    def _watch(self) -> None:
        """Watches the workers until the job ends.

        After a failure, repeatedly answers all pending requests of the engine with an error: the
        engine may be about to send more.
        """
        while not self._ended.wait(_WATCH_SECONDS):
            if self._failure is None:
                self._failure = self._look()
            if self._failure is not None:
                for worker in list(self._workers):
                    worker.abort(str(self._failure))

    def _look(self) -> Exception | None:
        deaths = (worker.death() for worker in list(self._workers))
        death = next((death for death in deaths if death is not None), None)
        recorded = self._recorded_failure()
        if recorded is not None or death is None:
            return recorded
        return errors.RunnerError(
            f"The job {self._job_name!r} cannot continue: a worker process "
            f"{_end_of(death.exit_code)}. Finished work is kept. Run the same build again to "
            "resume. Fewer workers (--workers) need less memory." + _indented(death.last_words)
        )

    def _recorded_failure(self) -> Exception | None:
        """The earliest failure that a worker recorded."""
        names = [n for n in os.listdir(self._failures) if n.endswith(".failure.json")]
        if not names:
            return None
        with open(os.path.join(self._failures, min(names)), encoding="utf-8") as file:
            try:
                record = json.load(file)
            except ValueError:
                return errors.StorageError(
                    f"Cannot write {self._failures}, where a worker process records why the job "
                    f"{self._job_name!r} failed: probably no space is left there. Free some, or "
                    "set TMPDIR to another folder. Finished work is kept. Run the same build again "
                    "to resume."
                )
        known = {
            cls.__name__: cls
            for cls in vars(errors).values()
            if isinstance(cls, type) and issubclass(cls, errors.SnapshardError)
        }
        if record["class"] in known:
            return known[record["class"]](record["message"])
        return WorkerFailedError(
            f"a worker process of the job {self._job_name!r} failed:\n{record['traceback']}"
        )


class _ProcessEnvironment(environments.Environment):
    """Identifies the worker processes of a job in its graph."""

    def __init__(self, urn: str) -> None:
        super().__init__(capabilities=environments.python_sdk_capabilities())
        self._urn = urn

    def to_runner_api_parameter(self, context: object) -> tuple[str, None]:
        return self._urn, None


class _Death(NamedTuple):
    """How a process ended before its job did."""

    exit_code: int
    """As in subprocess: negative for a signal."""
    last_words: str
    """The end of the process's output."""


class _Worker(GrpcWorkerHandler):
    """One worker process in one job, and the engine's connections to it."""

    def __init__(
        self,
        state: Any,
        provision_info: Any,
        grpc_server: Any,
        *,
        pool: WorkerPool,
        failures: str,
    ) -> None:
        super().__init__(state, provision_info, grpc_server)
        self._pool = pool
        self._failures = failures
        self._process: WorkerProcess | None = None
        self._death: _Death | None = None
        self._broken = False
        self._closing = False
        self._aborted = False
        connections = ((self.control_conn, "set_input"), (self.data_conn, "set_inputs"))
        for connection, method in connections:
            take = getattr(connection, method)
            setattr(connection, method, lambda stream, take=take: take(self._until_broken(stream)))

    def death(self) -> _Death | None:
        """How the process ended, if it ended before its job."""
        process = self._process
        if self._death is None and process is not None and not self._closing:
            exit_code = process.exit_code
            if exit_code is not None and not self._closing:  # else this process has killed it
                self._death = _Death(exit_code, process.last_words())
        return self._death

    def start_worker(self) -> None:
        """Takes a process from the pool and tells it where to connect."""
        control = endpoints_pb2.ApiServiceDescriptor(url=self.control_address)
        self._process = self._pool.take()
        self._process.assign(
            {
                "CONTROL_API_SERVICE_DESCRIPTOR": text_format.MessageToString(control),
                "PIPELINE_OPTIONS": json_format.MessageToJson(
                    self.provision_info.provision_info.pipeline_options
                ),
                "WORKER_ID": self.worker_id,
            },
            failures=self._failures,
        )

    def stop_worker(self) -> None:
        """Returns the process to the pool once the closed connection has ended its job."""
        process, self._process = self._process, None
        if process is None or self._aborted:
            return
        if process.wait_until_idle(_GRACE_SECONDS):
            self._pool.give_back(process)
        else:
            process.end()

    def close(self) -> None:
        """Ends the job; kills a process that is still working because the job failed."""
        if self._broken and self._process is not None:
            self._process.wait_until_ended(_GRACE_SECONDS)  # its connections close before it ends
        self.death()
        self._closing = True
        if any(not future.is_done() for future in list(self.control_conn._futures_by_id.values())):
            self._kill()
        super().close()

    def abort(self, message: str) -> None:
        """Answers all pending requests of the engine with an error, and kills the process."""
        for future in list(self.control_conn._futures_by_id.values()):
            if not future.is_done():
                future.set(
                    beam_fn_api_pb2.InstructionResponse(
                        instruction_id=future.instruction_id, error=message
                    )
                )
        self._kill()

    def _until_broken(self, stream: Any) -> Any:
        """Passes the worker's messages on until the connection breaks.

        Errors in the engine's reading threads would be lost: the watcher reports why it broke.
        """
        import grpc  # type: ignore[import-untyped]

        try:
            yield from stream
        except grpc.RpcError:
            self._broken = True

    def _kill(self) -> None:
        process = self._process
        if process is not None and not self._aborted:
            self._aborted = self._closing = True
            process.end()


def _end_of(exit_code: int) -> str:
    if exit_code == -signal.SIGKILL:
        return "was killed (signal 9), by a user or because memory ran out"
    if exit_code < 0:
        with contextlib.suppress(ValueError):
            return f"crashed ({signal.Signals(-exit_code).name})"
    return f"ended with exit code {exit_code}"


def _indented(text: str) -> str:
    if not text:
        return ""
    return " Its last output:\n" + "\n".join(f"    {line}" for line in text.splitlines())
