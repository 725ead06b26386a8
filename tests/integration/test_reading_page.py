"""The README's recipe, built, and what the pages show of its snapshot: each example runs."""

import contextlib
import shutil
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import snapshard as ss

from .documented import HEAD, run_examples

ROOT = Path(__file__).resolve().parents[2]
README, PAGE = ROOT / "README.md", ROOT / "docs" / "reading.md"

pytestmark = pytest.mark.slow  # builds 300 images


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, examples: Path) -> Path:
    """A folder with ``out/sign_digits``, as the README builds it."""
    folder = tmp_path_factory.mktemp("readme")
    shutil.copytree(examples / "data" / "sign_digits", folder / "data" / "sign_digits")
    with contextlib.chdir(folder):
        num_shown = run_examples(
            README, folder, heading="Building", elided={"3f9c…": "…"}, num_notes=1
        )
    assert num_shown == 2
    return folder


@pytest.fixture
def fingerprint(project: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """That of the snapshot. Its project is the current folder, and no reader is imported yet."""
    monkeypatch.chdir(project)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield ss.load("out/sign_digits").manifest.fingerprint
    for name in [*sys.modules]:
        if name.partition(".")[0] == "reader":
            del sys.modules[name]


def test_training_of_the_readme(project: Path, fingerprint: str) -> None:
    fitted: dict[str, Any] = {}
    model = types.SimpleNamespace(fit=lambda data, **given: fitted.update(given, train=data))
    variables: dict[str, Any] = {"model": model}
    run_examples(README, project, heading="Training", variables=variables, num_notes=2)
    assert fingerprint == variables["reader"].FINGERPRINT
    images, labels = next(iter(fitted["train"]))
    assert (images.shape, labels.shape) == ((32, 64, 64, 3), (32,))
    assert fitted["validation_data"].cardinality() == 1


@pytest.mark.parametrize("block", range(3))
def test_ways_to_import_a_reader(
    project: Path, fingerprint: str, block: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """The folder of a snapshot, that of its name, and ``ss.load``."""
    variables: dict[str, Any] = {"sys": sys}
    num_shown = run_examples(
        PAGE,
        project,
        heading=HEAD,
        block=block,
        variables=variables,
        elided={"3f9c…": fingerprint},
        num_notes=int(block == 1),
    )
    assert num_shown == (2 if block == 2 else 0)
    assert fingerprint == variables["reader"].FINGERPRINT
    assert capsys.readouterr().out == (f"{fingerprint}\n" if block == 1 else "")
    assert variables["reader"].__file__.startswith(str(project / "out" / "sign_digits"))
