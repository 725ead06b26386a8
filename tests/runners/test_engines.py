"""What is said where an engine or its surroundings are missing: one sentence, and how to get it."""

import sys
from pathlib import Path
from typing import Any

import pytest

import snapshard as ss
from snapshard.pipelines.engines import runner_config
from snapshard.runners import make_runner
from snapshard.runners.prism import PrismRunner


def check(config: Any) -> str:
    with pytest.raises(ss.SnapshardError) as raised:
        make_runner(config).check()
    assert raised.value.exit_code == 2
    return str(raised.value)


def test_no_prism(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    told = check(ss.Prism())
    assert "go install" in told
    assert "PATH" in told
    assert str(tmp_path / "nowhere") in check(ss.Prism(binary=str(tmp_path / "nowhere")))


def test_no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert "Java" in check(ss.Flink())


def java(folder: Path, monkeypatch: pytest.MonkeyPatch, *, version: str) -> None:
    """Puts a program on the PATH that says it is this version of Java."""
    program = folder / "java"
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("JAVA_HOME", raising=False)


def test_old_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    java(tmp_path, monkeypatch, version="8.0.1")
    assert "version 8" in check(ss.Flink())


def test_no_job_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    java(tmp_path, monkeypatch, version="17.0.1")
    monkeypatch.delenv("SNAPSHARD_FLINK_JAR", raising=False)
    assert "--flink-jar" in check(ss.Flink())
    assert "nowhere.jar" in check(ss.Flink(jar="nowhere.jar"))


def test_no_cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    java(tmp_path, monkeypatch, version="17.0.1")
    jar = tmp_path / "server.jar"
    jar.touch()
    told = check(ss.Flink(jar=str(jar), master="localhost:1"))
    assert "http://localhost:1" in told


def test_no_spark(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    java(tmp_path, monkeypatch, version="17.0.1")
    monkeypatch.delenv("SNAPSHARD_SPARK_JAR", raising=False)
    assert "SNAPSHARD_SPARK_JAR" in check(ss.Spark())
    jar = tmp_path / "server.jar"
    jar.touch()
    told = check(ss.Spark(jar=str(jar), master="spark://localhost:1"))
    assert "No Spark cluster answers at spark://localhost:1" in told
    assert "--environment_type" in check(ss.Spark(jar=str(jar), master="yarn"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("runner = 'ray'", ["'ray'", "direct, prism, flink"]),
        ("workers = 2", ["names one"]),
        ("runner = 'flink'\nmester = 'x'", ["'mester'", "master"]),
        ("runner = 'direct'\nworkers = 0", ["workers"]),
        ("runner = 'direct'\nworkers = true", ["workers"]),
        ("runner = ", ["not valid TOML"]),
    ],
)
def test_team_file(tmp_path: Path, text: str, words: list[str]) -> None:
    path = tmp_path / "team.toml"
    path.write_text(text)
    with pytest.raises(ss.SnapshardError) as raised:
        runner_config(str(path))
    for word in [*words, "team.toml"]:
        assert word in str(raised.value)


def test_team_file_and_arguments(tmp_path: Path) -> None:
    path = tmp_path / "team.toml"
    path.write_text("runner = 'flink'\nmaster = 'a:1'\nworkers = 3\nbeam_options = ['--x=1']")
    assert runner_config(str(path)) == ss.Flink(master="a:1", workers=3, beam_options=("--x=1",))
    assert runner_config(str(path), workers=5, master=None).workers == 5
    with pytest.raises(ss.SnapshardError, match="cannot be read"):
        runner_config(str(tmp_path / "other.toml"))


def test_unknown_engine() -> None:
    with pytest.raises(ss.SnapshardError, match="expected one of direct, prism, flink"):
        runner_config("ray")
    with pytest.raises(ss.SnapshardError, match="has no setting 'master'"):
        runner_config("direct", master="a:1")
    with pytest.raises(ss.SnapshardError, match="has no setting 'flink_master'"):
        runner_config("spark", flink_master="a:1")
    assert runner_config("flink", flink_master="a:1") == ss.Flink(master="a:1")


def test_prism_has_no_use_for_workers() -> None:
    """As its docstring, ``--help`` and docs/engines.md say."""
    one, many = (make_runner(ss.Prism(workers=n, binary=sys.executable)) for n in (1, 8))
    assert isinstance(one, PrismRunner)
    assert isinstance(many, PrismRunner)
    assert one.engine_options() == many.engine_options()
    assert one.server_command(1, "x") == many.server_command(1, "x")
    assert "workers: No effect" in str(ss.Prism.__doc__)
