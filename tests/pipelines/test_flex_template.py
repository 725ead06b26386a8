"""The Flex Template's specification, and what its launcher makes of what it is given."""

import json
from pathlib import Path
from typing import Any

import apache_beam as beam
import fsspec
import pytest
from google.cloud import dataflow
from google.protobuf import json_format

import snapshard as ss
from snapshard import cli, startup_noise
from snapshard.pipelines.operate import flex_template
from snapshard.pipelines.operate.flex_template import container_spec, fetch_recipe, main
from snapshard.runners.dataflow import DataflowRunner

RECIPE = """
import snapshard as ss

recipe = ss.Recipe(name="t", source=ss.Csv("gs://b/t"))
"""


def test_container_spec() -> None:
    """The service's own message takes it as it is."""
    spec = container_spec(launcher="r/launcher:1", worker="r/worker:1")
    known = json_format.ParseDict(spec, dataflow.ContainerSpec.pb(dataflow.ContainerSpec()))
    assert (known.image, known.default_environment.sdk_container_image) == (
        "r/launcher:1",
        "r/worker:1",
    )
    required = [entry.name for entry in known.metadata.parameters if not entry.is_optional]
    assert required == ["recipe", "out"]
    assert all(entry.label and entry.help_text for entry in known.metadata.parameters)
    assert json.loads(json.dumps(spec)) == spec


@pytest.mark.parametrize("image", ["", "/", "a b", "a\n"])
def test_no_image(image: str) -> None:
    for images in ({"launcher": image, "worker": "w:1"}, {"launcher": "l:1", "worker": image}):
        with pytest.raises(ss.SnapshardError, match="Invalid image") as raised:
            container_spec(**images)
        assert raised.value.exit_code == 2


@pytest.fixture
def given(tmp_path: Path) -> list[str]:
    """What has to be said, and what Google's launcher adds."""
    recipe = tmp_path / "r.py"
    recipe.write_text(RECIPE)
    return [f"--recipe={recipe}", "--out=gs://b/out", "--runner=DataflowRunner"]


@pytest.fixture
def tasks(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The tasks of the jobs that ``main`` describes."""
    found: list[Any] = []
    monkeypatch.setattr(DataflowRunner, "check", lambda self: None)
    monkeypatch.setattr(beam, "Create", lambda values, **_: found.extend(values) or _Nothing())
    monkeypatch.setattr(flex_template.beam, "Pipeline", lambda options: _Nothing())
    return found


class _Nothing:
    """Stands where a pipeline and its transforms do."""

    def __or__(self, other: object) -> "_Nothing":
        return self

    def __ror__(self, other: object) -> "_Nothing":
        return self

    def __rrshift__(self, other: object) -> "_Nothing":
        return self

    def run(self) -> None:
        """Does nothing."""


def test_task(tasks: list[Any], given: list[str]) -> None:
    main(
        [
            *given,
            "--limit=7",
            "--build_max_workers=9",
            "--build_options=--labels=a=b --disk_size_gb=30",
            "--project=my-project-1234",
            "--temp_location=gs://b/tmp",
            "--job_name=nightly",
            "--num_workers=1",
            "--machine_type=n2-highmem-2",
            "--template_location=gs://b/job",
            "--no_use_public_ips",
        ]
    )
    (task,) = tasks
    assert (f"--recipe={task.recipe}", task.out, task.limit) == (given[0], "gs://b/out", 7)
    assert (task.runner.workers, task.runner.max_workers, task.runner.machine_type) == (None, 9, "")
    # What is the template's job's own stays there.
    assert set(task.runner.beam_options) == {
        "--project=my-project-1234",
        "--temp_location=gs://b/tmp",
        "--no_use_public_ips",
        "--labels=a=b",
        "--disk_size_gb=30",
    }


def test_recipe_of_a_store(tmp_path: Path) -> None:
    files = fsspec.filesystem("memory")
    for name in ("r.py", "beside.py", "data.csv", "package/in_it.py"):
        files.pipe_file(f"/flex/recipes/{name}", name.encode())
    found = fetch_recipe("memory://flex/recipes/r.py", str(tmp_path))
    assert Path(found) == tmp_path / "r.py"
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        "r.py": "r.py",
        "beside.py": "beside.py",
    }
    with pytest.raises(ss.SnapshardError, match=r"other\.py"):
        fetch_recipe("memory://flex/recipes/other.py", str(tmp_path))
    assert fetch_recipe("/recipes/r.py", str(tmp_path)) == "/recipes/r.py"


@pytest.mark.parametrize("missing", ["--recipe", "--out"])
def test_missing(missing: str, given: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([option for option in given if not option.startswith(missing)])
    assert missing in capsys.readouterr().err


def test_launch_that_cannot_build(tasks: list[Any], given: list[str], tmp_path: Path) -> None:
    """Said by the launcher, before there is a job."""
    (tmp_path / "r.py").write_text("import snapshard as ss\n\nrecipe = ss.Recipe(\n")
    with pytest.raises(SystemExit, match=r"error: .*r\.py"):
        main(given)
    assert not tasks


def test_launch_without_surroundings(given: list[str]) -> None:
    with pytest.raises(SystemExit, match="error: Dataflow: missing project"):
        main(given)


def test_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(startup_noise, "tame_libraries", lambda: None)
    with pytest.raises(SystemExit) as ended:
        cli.main(["flex-template", "r/launcher:1", "r/worker:1"])
    assert ended.value.code == 0
    spec = container_spec(launcher="r/launcher:1", worker="r/worker:1")
    assert json.loads(capsys.readouterr().out) == spec
