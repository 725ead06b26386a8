"""Engines that Beam reaches through a job server: the common part of Prism, Flink and Spark.

The job server is started with the first job and kept for later ones. If the engine runs on this
machine, its worker is this process (Beam's LOOPBACK environment). Logs of engines are kept off the
terminal: their relevant parts are raised as errors.
"""

from __future__ import annotations

import contextlib
import functools
import io
import logging
import os
import re
import shutil
import subprocess
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

from ..schemas import errors
from ..schemas.errors import MissingFileError, RecipeError, RunnerError, SnapshardError
from ..schemas.progress import build_folder
from ..schemas.runner import Flink, JobSize, Spark
from .job_server import JobServer

_DEFECT = re.compile(
    r"Traceback \(most recent call last\):\n(?:(?!Traceback \(most).)*?^(?:Arithmetic|Assertion|"
    r"Attribute|Import|Index|Key|ModuleNotFound|Name|NotImplemented|Recursion|Type|UnboundLocal|"
    r"Unicode\w*|Value|ZeroDivision)Error\b.*?(?=$| \[while running)",
    re.DOTALL | re.MULTILINE,
)
_RAISED = re.compile(
    # Dataflow appends "passed through:" and the steps.
    r"snapshard\.schemas\.errors\.(\w+): "
    r"(.*?)(?: \[while running '|\n\s*passed through:|\n\nDuring handling of the above |\Z)",
    re.DOTALL,
)
_LAST_CHARACTERS = 2000
_GRACE_SECONDS = 10.0
_UNSEEN = (
    "Or this storage is not visible to the worker of {} that needed it: source, output and "
    "workspace must be accessible to every worker, on an object store or on a network filesystem "
    "that is mounted at the same path everywhere."
)

_NOISY = ("apache_beam", "grpc")
_MIN_JAVA = 11


class PortableRunner:
    """Runs jobs on an engine behind a job server; a context manager around a build's jobs.

    Implements :class:`snapshard.schemas.runner.JobRunner`. Subclasses define how the job server
    starts and what the engine needs.
    """

    name = "portable"

    def __init__(self, *, num_workers: int, beam_options: Sequence[str]) -> None:
        """Stores the settings common to these engines; starts nothing."""
        self._num_workers = num_workers
        self._beam_options = tuple(beam_options)
        self._server: JobServer | None = None

    def threads_per_worker(self, size: JobSize | None = None) -> int:
        """One: the engine itself runs several elements at once in a worker."""
        del size
        return 1

    def start_workers(self, size: JobSize) -> None:
        """Does nothing: the engine starts them."""

    @property
    def shares_memory(self) -> bool:
        """Whether the worker is this process."""
        return self._environment_type() == "LOOPBACK"

    @property
    def sees_local_files(self) -> bool:
        """Assumed to be true: a cluster's machines may have mounted the same network disk."""
        return True

    def check(self) -> None:
        """Checks the engine's requirements.

        Raises:
            RecipeError: if something is missing; the message says what, and how to get it.
        """
        raise NotImplementedError

    def engine_options(self) -> list[str]:
        """Beam's options for this engine."""
        raise NotImplementedError

    def server_command(self, port: int, folder: str) -> list[str]:
        """The command line of the engine's job server.

        Args:
            port: Port to listen on.
            folder: A local folder for the server's files.
        """
        raise NotImplementedError

    def engine_job_name(self, job_name: str) -> str:
        """The job's name on the engine."""
        return job_name

    def end_job(self, name: str) -> None:
        """Cancels a job that would outlive its job server, by its name on the engine."""

    def run(
        self, construct: Callable[[Any], object], *, job_name: str, size: JobSize | None = None
    ) -> None:
        """Runs the job that ``construct`` builds on the ``beam.Pipeline`` it is given.

        A :class:`SnapshardError` raised by a DoFn is raised here with its class and message.

        Raises:
            RunnerError: if the engine could not run the job, or ended before it was done.
        """
        with quiet(), quiet_threads():
            if self._server is None:
                self._server = JobServer(self.server_command, engine=self.name)
            server = self._server
            name = self.engine_job_name(job_name)
            options = self._options(name, f"--job_endpoint={server.endpoint}")
            pipeline = new_pipeline(options=options)
            construct(pipeline)
            result = None
            try:
                result = pipeline.run()
                result.wait_until_finish()
            except SnapshardError:
                raise
            except Exception as error:
                if _is_broken(error):
                    server.wait_until_ended(_GRACE_SECONDS)  # its connections close before it ends
                raise self._explained(str(error), job_name=job_name) from None
            except BaseException:
                if result is not None:
                    with contextlib.suppress(Exception):
                        result.cancel()
                self.end_job(name)
                raise

    def __enter__(self) -> PortableRunner:
        """Does nothing: the job server starts with the first job."""
        return self

    def __exit__(self, *_: object) -> None:
        """Ends the job server."""
        server, self._server = self._server, None
        if server is not None:
            server.stop()

    def _environment_type(self) -> str:
        """Where Python runs: as set by the user's options, otherwise in this process."""
        given = [
            option.partition("=")[2]
            for option in self._beam_options
            if option.startswith("--environment_type=")
        ]
        return given[-1] if given else "LOOPBACK"

    def _options(self, job_name: str, *further: str) -> Any:
        flags = [
            *self.engine_options(),
            f"--environment_type={self._environment_type()}",
            # Otherwise Beam lists the installed packages with pip, which may not be installed.
            "--experiments=disable_logging_submission_environment",
            *self._beam_options,
            *further,
        ]
        return parsed_options(flags, given=self._beam_options, job_name=job_name)

    def _explained(self, text: str, *, job_name: str) -> Exception:
        own = own_error(text)
        if isinstance(own, MissingFileError) and not self.shares_memory:
            return MissingFileError(f"{own} {_UNSEEN.format(self.name)}")
        if own is not None:
            return own
        if (defect := defect_in(text)) is not None:
            return defect
        if self._server is not None and self._server.exit_code is not None:
            return RunnerError(
                f"The job server of {self.name} ended with code {self._server.exit_code} in the "
                f"job {job_name!r}. Finished work is kept. Run the same build again to resume. "
                f"Its last output:\n{self._server.last_words()}"
            )
        return RunnerError(
            f"The job {job_name!r} failed on {self.name}. Finished work is kept. Run the same "
            f"build again to resume. The engine reported:\n{text.strip()[-_LAST_CHARACTERS:]}"
        )


class JavaRunner(PortableRunner):
    """Flink or Spark, whose job servers are Java programs; embedded, its worker is this process."""

    title: ClassVar[str]
    """The engine's display name."""
    embedded: ClassVar[str]
    """The master for the embedded engine, in the job server on this machine."""
    artifact: ClassVar[str]
    """Name of Beam's Maven artifact with the job server."""
    naming: ClassVar[str]
    """How users give the path of its jar."""

    def __init__(self, config: Flink | Spark) -> None:
        """Stores the configuration; starts nothing."""
        super().__init__(num_workers=config.workers, beam_options=config.beam_options)
        self._master = config.master
        self._jar = config.jar or os.environ.get(f"SNAPSHARD_{self.name.upper()}_JAR", "")

    def check(self) -> None:
        """Checks for Java, the job server and the cluster.

        Raises:
            RecipeError: if one of them is missing.
        """
        _check_java(self.title)
        if not os.path.isfile(self._jar):
            problem = f"{self._jar} is not a file" if self._jar else "no path was given"
            raise RecipeError(
                f"The job server for {self.title} was not found: {problem}. Get the jar "
                f"{self.artifact} from Maven Central (or build it: docs/engines.md), and give its "
                f"path {self.naming}."
            )
        if self._master == self.embedded:
            return
        self._check_cluster()
        if self.shares_memory:
            raise RecipeError(
                f"{self.title} at {self._master} cannot reach workers inside this process. Specify "
                "how its workers run Python: --environment_type=DOCKER --environment_config=IMAGE "
                "(built from the Dockerfile), or --environment_type=EXTERNAL "
                "--environment_config=HOST:PORT of Beam's worker pools. See docs/engines.md."
            )

    def server_command(self, port: int, folder: str) -> list[str]:
        """The job server's command line; without a cluster, it includes the engine itself."""
        return [
            _java_program(),
            f"-Djava.io.tmpdir={folder}",
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
            *self._java_options(folder),
            "-jar",
            self._jar,
            self._master_option(),
            f"--artifacts-dir={folder}",
            f"--job-port={port}",
            "--artifact-port=0",
            "--expansion-port=0",
        ]

    def _java_options(self, folder: str) -> list[str]:
        return []

    def _master_option(self) -> str:
        raise NotImplementedError

    def _check_cluster(self) -> None:
        raise NotImplementedError


def _java_program() -> str:
    """The ``java`` of JAVA_HOME, otherwise that on the PATH."""
    home = os.environ.get("JAVA_HOME")
    if home:
        return os.path.join(home, "bin", "java")
    return shutil.which("java") or "java"


def _check_java(engine: str) -> None:
    """Checks that Java is installed.

    Raises:
        RecipeError: if it is missing or too old.
    """
    try:
        output = subprocess.run(
            [_java_program(), "-version"], capture_output=True, text=True, check=False, timeout=30
        ).stderr
    except (OSError, subprocess.TimeoutExpired):
        output = ""
    version = re.search(r'version "(\d+)', output)
    if version is None or int(version[1]) < _MIN_JAVA:
        raise RecipeError(
            f"{engine}'s job server needs Java {_MIN_JAVA} or newer; {_java_program()} "
            f"{f'is version {version[1]}' if version else 'was not found'}. Install a JRE "
            "(apt install openjdk-17-jre-headless), or set JAVA_HOME."
        )


def _is_broken(error: Exception) -> bool:
    """Whether the connection to the job server was lost."""
    import grpc  # type: ignore[import-untyped]

    lost = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.UNKNOWN)
    return isinstance(error, grpc.RpcError) and error.code() in lost


def new_pipeline(**settings: Any) -> Any:
    """A ``beam.Pipeline`` whose temporary folder is in the build's and is removed with it."""
    import apache_beam as beam

    pipeline = beam.Pipeline(**settings)
    inside = build_folder()
    if inside is not None:
        with contextlib.suppress(OSError):
            os.rmdir(pipeline.local_tempdir)
        pipeline.local_tempdir = tempfile.mkdtemp(prefix="beam-", dir=inside)
    return pipeline


def parsed_options(flags: Sequence[str], *, given: Sequence[str], job_name: str = "") -> Any:
    """Parses flags into Beam's ``PipelineOptions``.

    Args:
        flags: Each as ``--name=value``.
        given: The flags that the user wrote.
        job_name: Name of the job; empty if the flags may set it.

    Raises:
        RecipeError: if Beam does not accept a flag.
    """
    from apache_beam.options.pipeline_options import PipelineOptions

    printed = io.StringIO()
    # Beam calls functions of `logging` itself, which add a root handler for this stream.
    handlers = logging.root.handlers[:]
    named = {"job_name": job_name} if job_name else {}
    try:
        with contextlib.redirect_stderr(printed):
            options = PipelineOptions(list(flags), pickle_library="cloudpickle", **named)
            # Values are parsed only on access.
            options.get_all_options()
    except SystemExit:
        reason = printed.getvalue().strip().rpartition("error: ")[2]
        raise RecipeError(
            f"Beam does not accept the options {' '.join(given)}: {reason}. Give each as "
            "--name=value."
        ) from None
    finally:
        logging.root.handlers[:] = handlers
    return options


class WorkerFailedError(Exception):
    """An unexpected error in a worker process; its traceback is the message."""


def defect_in(text: str) -> WorkerFailedError | None:
    r"""Extracts a worker's defect from an engine's error text; None for other causes.

    Errors of these classes would recur in a retry: the engine is not at fault.

    >>> defect_in("…\nTraceback (most recent call last):\n  File …\nKeyError: 'x' [while running …")
    WorkerFailedError("Traceback (most recent call last):\n  File …\nKeyError: 'x'")
    """
    defect = _DEFECT.search(text)
    return WorkerFailedError(defect[0]) if defect else None


def own_error(text: str) -> SnapshardError | None:
    r"""Extracts a SnapshardError that a worker raised from an engine's error text.

    Engines pass on tracebacks as text.

    >>> own_error("…\nsnapshard.schemas.errors.DataError: t.csv: bad [while running 'Prepare']\n…")
    DataError('t.csv: bad')
    """
    for match in _RAISED.finditer(text):
        kind = getattr(errors, match[1], None)
        if isinstance(kind, type) and issubclass(kind, SnapshardError):
            return kind(match[2].strip())
    return None


@contextlib.contextmanager
def quiet(*further: str) -> Iterator[None]:
    """Keeps the logs of Beam, and of the loggers in ``further``, off the terminal.

    Loggers with an explicit level are unchanged.
    """
    silenced = []
    for name in (*_NOISY, *further):
        logger = logging.getLogger(name)
        if logger.level == logging.NOTSET:
            logger.setLevel(logging.CRITICAL + 1)
            silenced.append(logger)
    root = logging.getLogger()
    root.addFilter(_is_not_beams)
    try:
        yield
    finally:
        root.removeFilter(_is_not_beams)
        for logger in silenced:
            logger.setLevel(logging.NOTSET)


def _is_not_beams(record: logging.LogRecord) -> bool:
    """Whether a record of the root logger is not one that Beam forwards from a job server."""
    return "apache_beam" not in record.pathname


@contextlib.contextmanager
def quiet_threads() -> Iterator[None]:
    """Keeps output of Beam's threads, and lost connections to engines, off the terminal.

    Workers in this process lose their connection at the end of every job, some threads only later;
    the result of a failed job reports its failure.
    """
    from apache_beam.runners.worker import sdk_worker

    _hide_lost_connections()
    # Beam prints the errors of steps to standard error, and also sends them to the engine.
    vars(sdk_worker)["print"] = _print_nothing
    try:
        yield
    finally:
        vars(sdk_worker).pop("print", None)  # another job may have ended before


@functools.cache
def _hide_lost_connections() -> None:
    """Hides lost connections of Beam's threads from now on: the threads outlive their job."""
    import grpc

    logger = logging.getLogger("apache_beam.runners.worker.data_plane")
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.CRITICAL + 1)
    shown: Callable[[threading.ExceptHookArgs], object] = threading.excepthook

    def hook(raised: threading.ExceptHookArgs) -> None:
        files = [frame.filename for frame in traceback.extract_tb(raised.exc_traceback)]
        in_beam = any("apache_beam" in file for file in files)
        if not (in_beam and isinstance(raised.exc_value, grpc.RpcError)):
            shown(raised)

    threading.excepthook = hook


def _print_nothing(*_: object, **__: object) -> None:
    """Prints nothing."""
