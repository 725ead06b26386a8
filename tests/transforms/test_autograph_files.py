"""What autograph writes lies in the build's folder, and goes with it."""

import os
import tempfile
from pathlib import Path
from typing import Any

import pytest

from snapshard.schemas.progress import BUILD_FOLDER
from snapshard.transforms.prepare.engine.user_functions import call_user


def _inner(value: Any) -> Any:
    if value > 0:
        value = value + 1
    return value


def _step(record: dict[str, Any]) -> dict[str, Any]:
    if record["a"] > 1:
        record["a"] = _inner(record["a"])
    return record


def test_files_of_autograph_lie_in_the_folder_of_the_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tensorflow as tf

    for name in ("build", "temporary"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.setenv(BUILD_FOLDER, str(tmp_path / "build"))
    assert int(call_user(_step, {"a": tf.constant(2)}, where="_step")["a"]) == 3
    assert os.listdir(tmp_path / "temporary") == []
    assert len([n for n in os.listdir(tmp_path / "build") if n.endswith(".py")]) == 2


def test_without_a_build_they_lie_among_the_temporary_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tensorflow as tf

    def step(record: dict[str, Any]) -> dict[str, Any]:
        if record["a"] > 1:
            record["a"] = record["a"] * 2
        return record

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv(BUILD_FOLDER, str(tmp_path / "gone"))
    assert int(call_user(step, {"a": tf.constant(2)}, where="step")["a"]) == 4
    assert [n for n in os.listdir(tmp_path) if n.endswith(".py")]
