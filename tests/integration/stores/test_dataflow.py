"""Dataflow, offline: jobs as they are described and staged; builds whose jobs a stand-in runs."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
import fsspec
import pytest
from apache_beam.internal.gcp import auth
from apache_beam.portability.api import beam_runner_api_pb2
from apache_beam.runners.dataflow import dataflow_runner
from google.cloud import dataflow
from google.protobuf import json_format

import snapshard as ss
from snapshard.pipelines.operate.flex_template import container_spec, main
from snapshard.pipelines.recipe.shipping import load_recipe_file
from snapshard.runners.dataflow import DataflowRunner
from snapshard.schemas.errors import StorageError
from snapshard.transforms import storage

from .dataflow_service import ENDPOINT, DataflowService, Job
from .dataflow_worker import QuickClock
from .proxy import Proxy

pytestmark = [
    pytest.mark.engine,
    # gcsfs leaves sessions to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

IMAGE = "us-central1-docker.pkg.dev/my-project-1234/images/snapshard:1"
ACCOUNT = "builder@my-project-1234.iam.gserviceaccount.com"
RECIPE = """
import snapshard as ss

from numbers_of import SHARDS

recipe = ss.Recipe(
    name="table",
    source=ss.Csv("{source}"),
    splits=ss.Splits(train=0.8, test=0.2),
    shards=ss.Shards(num_shards=SHARDS),
)
"""


@pytest.fixture
def service(
    gcs: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[DataflowService]:
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    # What Beam asks once in a process, and remembers: whether there are credentials.
    monkeypatch.setattr(auth._Credentials, "_credentials_init", True)
    monkeypatch.setattr(dataflow_runner, "time", QuickClock())
    (tmp_path / "jobs").mkdir()
    with DataflowService(tmp_path / "jobs") as running:
        monkeypatch.setenv("HTTP_PROXY", running.proxy)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
        yield running


def settings(*options: str) -> dict[str, Any]:
    return {
        "project": "my-project-1234",
        "region": "us-central1",
        "temp_location": "gs://bucket/dataflow",
        "image": IMAGE,
        "machine_type": "n2-standard-4",
        "workers": 3,
        "max_workers": 50,
        "service_account": ACCOUNT,
        "beam_options": ("--no_auth", f"--dataflow_endpoint={ENDPOINT}", *options),
    }


def write_tables(folder: str, *, bad: bool = False) -> None:
    files, root = fsspec.core.url_to_fs(folder, use_listings_cache=False)
    files.makedirs(root, exist_ok=True)
    for number in range(3):
        rows = [f"{row},word {row % 7}" for row in range(100)]
        if bad and number == 1:
            rows[50] = "n/a,word 1"
        files.pipe_file(f"{root}/{number}.csv", "\n".join(["number,word", *rows]).encode() + b"\n")


def write_recipe(folder: str, source: str) -> str:
    """A recipe and a module beside it; gives its URL or path."""
    files, root = fsspec.core.url_to_fs(folder, use_listings_cache=False)
    files.makedirs(root, exist_ok=True)
    files.pipe_file(f"{root}/recipe.py", RECIPE.format(source=source).encode())
    files.pipe_file(f"{root}/numbers_of.py", b"SHARDS = 2\n")
    return f"{folder}/recipe.py"


def hashes(url: str) -> dict[str, str]:
    """What the manifest says of each file."""
    manifest = json.loads(fsspec.open(f"{url}/manifest.json").open().read())
    return {name: entry["sha256"] for name, entry in manifest["files"].items()}


def check_described(job: Job, *, step: str, labels: dict[str, str] | None = None) -> None:
    """What a job says of its machines, and where its files are."""
    assert (job.project, job.region) == ("my-project-1234", "us-central1")
    assert job.described["name"].startswith(f"snapshard-{step}-")
    assert job.described["type"] == dataflow.JobType.JOB_TYPE_BATCH
    assert job.described["labels"] == {"snapshard_step": step, **(labels or {})}
    environment, pool = job.described["environment"], job.pool
    assert environment["serviceAccountEmail"] == ACCOUNT
    assert environment["tempStoragePrefix"].startswith("storage.googleapis.com/bucket/dataflow/")
    assert {"use_runner_v2", "use_portable_job_submission"} <= set(environment["experiments"])
    assert pool["machineType"] == "n2-standard-4"
    assert pool["numWorkers"] == 3
    assert pool["autoscalingSettings"]["maxNumWorkers"] == 50
    assert pool["workerHarnessContainerImage"] == IMAGE
    assert [entry["containerImage"] for entry in pool["sdkHarnessContainerImages"]] == [IMAGE]
    assert pool.get("packages", []) == []
    url = job.options["pipelineUrl"]
    assert url.startswith(("gs://bucket/dataflow/", "gs://bucket/staging/"))
    assert url.endswith("/pipeline.pb")
    pipeline = beam_runner_api_pb2.Pipeline.FromString(fsspec.open(url, "rb").open().read())
    for found in pipeline.components.environments.values():
        payload = beam_runner_api_pb2.DockerPayload.FromString(found.payload)
        assert payload.container_image == IMAGE
        assert not found.dependencies


@pytest.mark.smoke
def test_build(service: DataflowService, tmp_path: Path) -> None:
    """Each job of a build: described, staged, run from its staged files; the bytes of direct."""
    write_tables("gs://bucket/table")
    config = ss.Dataflow(**settings())
    recipe = ss.Recipe(name="table", source=ss.Csv("gs://bucket/table"))
    snapshot = ss.build(recipe, "gs://bucket/out", runner=config)
    jobs = list(service.jobs.values())
    assert [job.state for job in jobs] == ["JOB_STATE_DONE"] * 2
    for job, step in zip(jobs, ["prepare", "write"], strict=True):
        check_described(job, step=step)
    assert hashes(snapshot.path) == hashes(ss.build(recipe, tmp_path / "out").path)
    assert ss.build(recipe, "gs://bucket/out", runner=config).cached
    assert len(service.jobs) == 2


def test_template_of_the_build(service: DataflowService, tmp_path: Path) -> None:
    """The launcher describes a job within seconds; run, it builds by jobs of its own."""
    write_tables("gs://bucket/table")
    recipe = write_recipe("gs://bucket/recipes", "gs://bucket/table")
    spec = container_spec(launcher="registry/launcher:1", worker=IMAGE)
    known = json_format.ParseDict(spec, dataflow.ContainerSpec.pb(dataflow.ContainerSpec()))
    assert known.sdk_info.language == dataflow.SDKInfo.Language.PYTHON
    assert known.image == "registry/launcher:1"
    said = {
        "recipe": recipe,
        "out": "gs://bucket/out",
        "build_machine_type": "n2-standard-4",
        "build_workers": "3",
        "build_max_workers": "50",
        "build_options": "--labels=team=vision --disk_size_gb=30",
    }
    for parameter in known.metadata.parameters:
        (pattern,) = parameter.regexes
        assert parameter.is_optional or parameter.name in said
        assert re.search(pattern, said.get(parameter.name, "7")), parameter.name
    # What Google's launcher adds to what was said.
    job_file = "gs://bucket/staging/template_launches/1/job_object"
    given = {
        **said,
        "runner": "DataflowRunner",
        "project": "my-project-1234",
        "region": "us-central1",
        "job_name": "nightly",
        "temp_location": "gs://bucket/dataflow",
        "staging_location": "gs://bucket/staging",
        "template_location": job_file,
        "sdk_container_image": known.default_environment.sdk_container_image,
        "num_workers": known.default_environment.num_workers,
        "max_num_workers": known.default_environment.max_workers,
        "service_account_email": ACCOUNT,
        "dataflow_endpoint": ENDPOINT,
    }
    main([*(f"--{name}={value}" for name, value in given.items()), "--no_auth"])
    described = json.loads(fsspec.open(job_file).open().read())
    assert described["name"] == "nightly"
    assert not service.jobs
    launched = service.launch(described, project="my-project-1234", region="us-central1")
    job = service.wait(launched)
    assert job.state == "JOB_STATE_DONE", job.error
    assert (job.pool["numWorkers"], job.pool["autoscalingSettings"]["maxNumWorkers"]) == (1, 1)
    assert job.pool["workerHarnessContainerImage"] == IMAGE
    _, prepare, write = service.jobs.values()
    for started, step in ((prepare, "prepare"), (write, "write")):
        assert started.state == "JOB_STATE_DONE"
        assert started.pool["diskSizeGb"] == 30
        check_described(started, step=step, labels={"team": "vision"})
    (latest,) = fsspec.open_files("gs://bucket/out/table/latest.json")
    with latest as file:
        fingerprint = json.load(file)["fingerprint"]
    local = write_recipe(str(tmp_path / "recipes"), "gs://bucket/table")
    direct = ss.build(load_recipe_file(local), tmp_path / "out")
    assert hashes(f"gs://bucket/out/table/{fingerprint}") == hashes(direct.path)


def test_template_of_a_job(service: DataflowService, tmp_path: Path) -> None:
    """Written without being run, and with packages in place of an image."""
    package = tmp_path / "snapshard-1.0.tar.gz"
    package.write_bytes(b"a package")
    options = (f"--extra_package={package}", "--template_location=gs://bucket/templates/one")
    config = ss.Dataflow(**settings(*options) | {"image": ""})
    DataflowRunner(config).run(construct, job_name="read")
    described = json.loads(fsspec.open("gs://bucket/templates/one").open().read())
    job = Job(described, project="", region="")
    assert not service.jobs
    names = {entry["name"].rpartition("/")[2] for entry in job.pool["packages"]}
    assert names == {"snapshard-1.0.tar.gz", "extra_packages.txt"}
    for entry in job.pool["packages"]:
        url = "gs://" + entry["location"].removeprefix("storage.googleapis.com/")
        content = fsspec.open(url, "rb").open().read()
        assert content == (b"a package" if url.endswith(".gz") else b"snapshard-1.0.tar.gz\n")


def construct(pipeline: Any) -> Any:
    """A job that a worker refuses: what it is to read is not there."""
    return (
        pipeline
        | "Elements" >> beam.Create(["gs://bucket/nothing"], reshuffle=False)
        | "Read" >> beam.Map(storage.read_bytes)
    )


def test_errors_of_workers(service: DataflowService) -> None:
    """What a worker raised comes out as itself."""
    with pytest.raises(StorageError, match="gs://bucket/nothing") as raised:
        DataflowRunner(ss.Dataflow(**settings())).run(construct, job_name="read")
    assert "passed through" not in str(raised.value)
    assert "Traceback" not in str(raised.value)


def test_interrupted(service: DataflowService, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while a job runs: it is cancelled."""

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    service.hold = True
    monkeypatch.setattr(
        dataflow_runner.DataflowRunner, "poll_for_job_completion", staticmethod(interrupt)
    )
    with pytest.raises(KeyboardInterrupt):
        DataflowRunner(ss.Dataflow(**settings())).run(construct, job_name="read")
    (job,) = service.jobs.values()
    assert job.state == "JOB_STATE_CANCELLED"


def test_no_bucket(service: DataflowService) -> None:
    config = ss.Dataflow(**settings() | {"temp_location": "gs://elsewhere/dataflow"})
    with pytest.raises(ss.SnapshardError, match="buckets create gs://elsewhere") as raised:
        DataflowRunner(config).check()
    assert raised.value.exit_code == 2
    DataflowRunner(ss.Dataflow(**settings())).check()
