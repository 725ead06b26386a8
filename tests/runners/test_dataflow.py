"""What Dataflow is told, what is said where something is missing, and what its errors come to."""

import logging
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import google.auth
import google.auth.credentials
import google.auth.exceptions
import pytest
from apache_beam.options import pipeline_options as beam_options

import snapshard as ss
from snapshard.pipelines.engines import runner_config
from snapshard.pipelines.operate.check_runner import check_runner
from snapshard.pipelines.workspace import refuse_memory_of_one_process
from snapshard.runners import make_runner
from snapshard.runners.dataflow import DataflowRunner
from snapshard.runners.portable import own_error, parsed_options
from snapshard.schemas.naming import OutputPaths

SAID: dict[str, Any] = {
    "project": "my-project-1234",
    "region": "us-central1",
    "temp_location": "gs://my-bucket/tmp",
    "image": "us-central1-docker.pkg.dev/my-project-1234/images/snapshard:1",
}


@pytest.fixture(autouse=True)
def _no_surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No credentials, and no machine of Google's to ask for them."""
    for name in ("GOOGLE_CLOUD_PROJECT", "CLOUDSDK_COMPUTE_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))


def check(**settings: Any) -> str:
    with pytest.raises(ss.SnapshardError) as raised:
        make_runner(ss.Dataflow(**(SAID | settings))).check()
    assert raised.value.exit_code == 2
    return str(raised.value)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"project": ""}, ["missing project", "--project="]),
        ({"project": "1234567"}, ["'1234567'", "not its name or number"]),
        ({"project": "My Project"}, ["'My Project'", "not its name"]),
        ({"region": ""}, ["missing region", "us-central1"]),
        ({"region": "us-central1-a"}, ["us-central1-a"]),
        ({"temp_location": ""}, ["missing temp_location", "gs://"]),
        ({"temp_location": "/tmp/x"}, ["invalid temp_location '/tmp/x'", "gs://"]),
        ({"temp_location": "s3://my-bucket/tmp"}, ["s3://my-bucket/tmp", "gs://"]),
        ({"staging_location": "stage"}, ["invalid staging_location 'stage'"]),
        ({"service_account": "ann"}, ["'ann'", "gserviceaccount.com"]),
        ({"image": ""}, ["would not have snapshard", "--extra_package="]),
        ({"workers": 9, "max_workers": 3}, ["9", "3", "max_workers"]),
        ({"beam_options": ("--template_location=gs://my-bucket/t",)}, ["Flex Template"]),
        ({"beam_options": ("--dry_run=true",)}, ["Flex Template"]),
        ({}, ["no Google credentials", "gcloud auth application-default login"]),
        ({"image": "", "beam_options": ("--extra_package=a.whl",)}, ["no Google credentials"]),
    ],
)
def test_missing(settings: dict[str, Any], words: list[str]) -> None:
    told = check(**settings)
    assert all(word in told for word in words), told


def test_surroundings_complete_what_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "other-project")
    monkeypatch.setenv("CLOUDSDK_COMPUTE_REGION", "europe-west1")
    assert "no Google credentials" in check(project="", region="")


@pytest.mark.parametrize(
    ("raised", "words"),
    [
        (
            google.auth.exceptions.RefreshError("It was revoked"),
            ["revoked", "Log in again"],
        ),
        (google.auth.exceptions.TransportError("no route"), ["cannot reach Google", "no route"]),
    ],
)
def test_credentials_that_fail(
    monkeypatch: pytest.MonkeyPatch, raised: Exception, words: list[str]
) -> None:
    class Failing(google.auth.credentials.AnonymousCredentials):
        valid = False

        def refresh(self, request: Any) -> None:
            raise raised

    monkeypatch.setattr(google.auth, "default", lambda scopes: (Failing(), None))
    told = check()
    assert all(word in told for word in words), told


def test_options_are_beams() -> None:
    config = ss.Dataflow(
        **SAID,
        staging_location="gs://my-bucket/staging",
        machine_type="n2-standard-4",
        workers=3,
        max_workers=50,
        service_account="builder@my-project-1234.iam.gserviceaccount.com",
        beam_options=("--subnetwork=regions/us-central1/subnetworks/x", "--region=europe-west4"),
    )
    options = DataflowRunner(config).options("prepare")
    said = options.get_all_options(drop_default=True)
    assert said["project"] == SAID["project"]
    assert said["region"] == "europe-west4", "what follows -- wins"
    assert said["temp_location"] == SAID["temp_location"]
    assert said["staging_location"] == "gs://my-bucket/staging"
    assert said["sdk_container_image"] == SAID["image"]
    assert said["machine_type"] == "n2-standard-4"
    assert (said["num_workers"], said["max_num_workers"]) == (3, 50)
    assert said["service_account_email"].startswith("builder@")
    assert said["subnetwork"].endswith("/x")
    assert said["labels"] == ["snapshard_step=prepare"]
    assert said["sdk_location"] == "container"


def test_names_of_jobs() -> None:
    def name(*options: str, job: str = "prepare") -> str:
        found = DataflowRunner(ss.Dataflow(**SAID, beam_options=options)).options(job)
        job_name: str = found.view_as(beam_options.GoogleCloudOptions).job_name
        return job_name

    assert name().startswith("snapshard-prepare-")
    assert name() != name()
    assert name("--job_name=Our_Data").startswith("our-data-prepare-")
    assert len(name(f"--job_name={'x' * 90}")) <= 63


def test_unfit_option(capsys: pytest.CaptureFixture[str]) -> None:
    told = check(beam_options=("--num_workers=many",))
    assert "argument --num_workers: invalid int value: 'many'." in told
    assert not capsys.readouterr().err


def test_logging_stays_as_it_is() -> None:
    """Beam logs while it reads options, which sets up logging, on the stream of the time."""
    before = logging.root.handlers[:]
    logging.root.handlers.clear()
    try:
        parsed_options(["--project=x"], given=())
        assert not logging.root.handlers
    finally:
        logging.root.handlers[:] = before


def test_team_file(tmp_path: Path) -> None:
    path = tmp_path / "team.toml"
    lines = [f'{name} = "{value}"' for name, value in SAID.items()]
    path.write_text("\n".join(['runner = "dataflow"', "max_workers = 40", *lines]))
    assert runner_config(str(path), workers=2) == ss.Dataflow(**SAID, workers=2, max_workers=40)


@pytest.mark.parametrize("out", [None, "out", "file:///out"])
def test_small_job_needs_a_store(monkeypatch: pytest.MonkeyPatch, out: str | None) -> None:
    monkeypatch.setattr(DataflowRunner, "check", lambda self: None)
    with pytest.raises(ss.SnapshardError, match="--out gs://"):
        check_runner(ss.Dataflow(**SAID), out)


@pytest.mark.parametrize(
    ("source", "out", "named"),
    [
        ("table", "gs://my-bucket/out", "table"),
        ("zip://*.csv::t.zip", "gs://my-bucket/out", "t.zip"),
        ("gs://my-bucket/table", "out", "out"),
    ],
)
def test_local_places(source: str, out: str, named: str) -> None:
    recipe = ss.Recipe(name="t", source=ss.Csv(source))
    with pytest.raises(ss.SnapshardError, match="no worker of dataflow") as raised:
        refuse_memory_of_one_process(
            recipe, OutputPaths(out, "t"), make_runner(ss.Dataflow(**SAID))
        )
    assert named in str(raised.value)


WORKER_ERROR = """Error message from worker: generic::unknown: Traceback (most recent call last):
  File "apache_beam/runners/common.py", line 1496, in apache_beam.runners.common.DoFnRunner.process
  File "/usr/local/lib/python3.11/site-packages/snapshard/pipelines/prepare.py", line 1, in process
    raise DataError(message)
snapshard.schemas.errors.DataError: t.csv row 7: bad{tail}

passed through:
==>
    dist_proc/dax/workflow/worker/fnapi_service_impl.cc:1337"""


@pytest.mark.parametrize("tail", ["", " [while running 'Prepare/Block-ptransform-42']"])
def test_errors_of_workers(tail: str) -> None:
    """Raised where an element is worked on, or in setup(), where Beam names no step."""
    error = own_error(WORKER_ERROR.format(tail=tail))
    assert isinstance(error, ss.SnapshardError)
    assert (type(error).__name__, str(error)) == ("DataError", "t.csv row 7: bad")


class _Result:
    """What Beam gives of a job, for a service that is not there."""

    has_job = True

    def __init__(self, state: str, cancel: Callable[[], Any] = lambda: None) -> None:
        self.state = state
        self.cancel = cancel
        self._options = DataflowRunner(ss.Dataflow(**SAID)).options("write")

    def job_id(self) -> str:
        return "2026-11-21_abc"


class _Polled:
    """The runner of Beam that waits."""

    def __init__(self, error: BaseException | None = None, said: str | None = None) -> None:
        self.last_error_msg = said
        self._error = error

    def poll_for_job_completion(self, runner: Any, result: Any, duration: None) -> None:
        if self._error is not None:
            raise self._error


@pytest.mark.parametrize(
    ("state", "polled", "words"),
    [
        ("FAILED", _Polled(said="Workflow failed. Causes: quota"), ["FAILED", "quota"]),
        ("CANCELLED", _Polled(), ["CANCELLED", "nothing"]),
        ("RUNNING", _Polled(OSError("no route")), ["was lost", "no route"]),
    ],
)
def test_jobs_that_end_badly(state: str, polled: _Polled, words: list[str]) -> None:
    runner = DataflowRunner(ss.Dataflow(**SAID))
    with pytest.raises(ss.SnapshardError) as raised:
        runner._wait(_Result(state), polled, job_name="write")
    told = str(raised.value)
    assert all(word in told for word in [*words, "jobs/us-central1/2026-11-21_abc"]), told


def test_ended_by_a_scheduler(capsys: pytest.CaptureFixture[str]) -> None:
    """SIGTERM does what Ctrl-C does, and afterwards what it did before."""

    class _Killed(_Polled):
        def poll_for_job_completion(self, runner: Any, result: Any, duration: None) -> None:
            os.kill(os.getpid(), signal.SIGTERM)

    cancelled: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        DataflowRunner(ss.Dataflow(**SAID))._wait(
            _Result("RUNNING", lambda: cancelled.append(1)), _Killed(), job_name="write"
        )
    assert cancelled
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_interrupted_while_the_service_takes_the_job(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it has, nobody knows: whoever pays is told where to look."""

    class _Taking:
        def __init__(self, options: Any) -> None:
            pass

        def run(self) -> None:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr("apache_beam.Pipeline", _Taking)
    with pytest.raises(KeyboardInterrupt):
        DataflowRunner(ss.Dataflow(**SAID)).run(lambda pipeline: None, job_name="write")
    told = capsys.readouterr().err
    assert "may have accepted the job 'write'" in told
    assert f"dataflow/jobs?project={SAID['project']}" in told


def test_interrupted(capsys: pytest.CaptureFixture[str]) -> None:
    """The job is cancelled; where that fails, whoever pays is told."""
    runner = DataflowRunner(ss.Dataflow(**SAID))
    cancelled = []
    result = _Result("RUNNING", lambda: cancelled.append(1))
    with pytest.raises(KeyboardInterrupt):
        runner._wait(result, _Polled(KeyboardInterrupt()), job_name="write")
    assert cancelled
    assert "is being cancelled" in capsys.readouterr().err

    def refused() -> None:
        raise OSError("no route")

    with pytest.raises(KeyboardInterrupt):
        runner._wait(_Result("RUNNING", refused), _Polled(KeyboardInterrupt()), job_name="write")
    assert "could not be cancelled" in capsys.readouterr().err
