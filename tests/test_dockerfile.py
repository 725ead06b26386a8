"""The Dockerfile, which nothing here can build: what it says; its steps, without a container."""

import dataclasses
import os
import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ENVIRONMENT = "/opt/snapshard"


@dataclasses.dataclass
class Stage:
    """A stage of the Dockerfile: its base, and its instructions in their order."""

    base: str
    steps: list[tuple[str, str]]

    def all(self, name: str) -> list[str]:
        """What follows each instruction of this name."""
        return [value for step, value in self.steps if step == name]


def stages() -> dict[str, Stage]:
    """The Dockerfile's stages by name."""
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    text = "\n".join(line for line in lines if not line.lstrip().startswith("#"))
    found: dict[str, Stage] = {}
    for line in re.sub(r"\\\n\s*", "", text).splitlines():
        if not line.strip():
            continue
        name, _, value = line.partition(" ")
        if name == "FROM":
            base, separator, stage = value.partition(" AS ")
            assert separator, "each stage has a name"
            found[stage] = Stage(base, [])
        else:
            assert found, "the first instruction is FROM"
            found[stage].steps.append((name, value))
    return found


def pins() -> set[str]:
    """``package==version`` of each line of constraints.txt; a package may have several."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return {line.partition(" ;")[0] for line in lines if not line.startswith("#")}


def test_base_is_of_the_pinned_beam() -> None:
    found = stages()
    beam = re.fullmatch(r"apache/beam_python(3\.\d+)_sdk:(\S+)", found["install"].base)
    assert beam is not None
    assert beam[2] == metadata.version("apache-beam")
    assert f"apache-beam=={beam[2]}" in pins()
    assert found["runtime"].base.startswith(f"python:{beam[1]}-slim-"), "the same Python"


def test_last_stages() -> None:
    """Workers are the default, and not root; the launcher starts what a template needs."""
    found = stages()
    assert list(found) == ["install", "runtime", "launcher", "worker"]
    assert found["launcher"].base == found["worker"].base == "runtime"
    assert found["worker"].all("ENTRYPOINT") == ['["/opt/apache/beam/boot"]']
    (user,) = found["worker"].all("USER")
    assert any(f" {user}" in step for step in found["runtime"].all("RUN") if "useradd" in step)
    assert found["runtime"].all("WORKDIR") == ["/tmp"]
    (said,) = found["runtime"].all("ENV")
    assert f'PATH="{ENVIRONMENT}/bin:$PATH"' in said
    # Else workers make an environment beside this one, without its packages.
    assert "RUN_PYTHON_SDK_IN_DEFAULT_ENVIRONMENT=1" in said
    (copied,) = found["launcher"].all("COPY")
    (entry,) = found["launcher"].all("ENTRYPOINT")
    assert copied.split()[-1] in entry
    (script,) = found["launcher"].all("ENV")
    assert script == f"FLEX_TEMPLATE_PYTHON_PY_FILE={ENVIRONMENT}/launch.py"


def test_no_build_tools_are_left() -> None:
    """Of the stage that has compilers two folders go further; later ones install nothing."""
    found = stages()
    copied = [value for stage in found.values() for value in stage.all("COPY")]
    from_install = [value.split()[1:] for value in copied if value.startswith("--from=install")]
    assert from_install == [["/opt/apache/beam"] * 2, [ENVIRONMENT] * 2]
    for name in ("runtime", "launcher", "worker"):
        for step in found[name].all("RUN"):
            assert not re.search(r"\b(apt|apt-get|pip|conda|curl|wget)\b", step), step


def context(folder: Path) -> None:
    """Copies what .dockerignore lets through, as a builder is sent it."""
    rules = [
        line
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line and not line.startswith("#")
    ]
    assert rules[0] == "*", "nothing but what is named"
    for rule in rules[1:]:
        name = rule.removeprefix("!")
        if rule == name:
            assert name.startswith("**/")
        elif (ROOT / name).is_dir():
            left_out = shutil.ignore_patterns(*(r[3:] for r in rules if r.startswith("**/")))
            shutil.copytree(ROOT / name, folder / name, ignore=left_out)
        else:
            for path in ROOT.glob(name):
                shutil.copy(path, folder / path.name)


def run(command: str, *, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Runs a shell command as a step does, in no environment of Python."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL_ENV"))}
    return subprocess.run(
        ["/bin/sh", "-ec", command],
        cwd=cwd,
        env=env,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )


@pytest.mark.engine  # Installs TensorFlow and all else into an environment of its own.
@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the image has Python 3.11")
def test_steps(tmp_path: Path) -> None:
    """The steps of the first stage, as they stand, but in another folder and from the cache."""
    source, made = tmp_path / "src", tmp_path / "made"
    source.mkdir()
    context(source)
    (step,) = stages()["install"].all("RUN")
    python = f"{made}/bin/python"
    command = step.replace(ENVIRONMENT, str(made)).replace("python -m", f"{sys.executable} -m", 1)
    command = command.replace("--no-cache-dir ", "")
    if shutil.which("uv"):
        command = command.replace(
            f"{made}/bin/pip install", f"uv pip install --python {python}"
        ).replace(f"{made}/bin/pip check", f"uv pip check --python {python}")
    else:  # to compile all of TensorFlow takes longer than all else; here nothing imports it
        command = command.replace("/bin/pip install", "/bin/pip install --no-compile")
    done = run(command, cwd=source)
    assert done.returncode == 0, done.stderr[-3000:]

    listed = run(
        f"{python} -c 'from importlib.metadata import distributions as found\n"
        'for each in found(): print(each.name.lower().replace("_", "-").replace(".", "-"), '
        "each.version)'",
        cwd=tmp_path,
    )
    versions = dict(line.split() for line in listed.stdout.splitlines())
    assert versions.pop("snapshard")
    brought = {"pip", "setuptools"}  # by the environment itself
    found = {f"{name}=={version}" for name, version in versions.items() if name not in brought}
    assert found <= pins(), found - pins()
    for needed in ("s3fs", "soundfile", "tokenizers", "adbc-driver-sqlite", "tensorflow"):
        assert needed in versions
    # What Beam's program asks first, then the commands of the two images.
    asked = f"{python} -m pip show apache-beam"
    for command in (asked, f"{made}/bin/snapshard --version"):
        done = run(command, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    done = run(f"{python} {made}/launch.py --recipe=r.py", cwd=tmp_path)
    assert done.returncode == 2
    assert "--out" in done.stderr
