"""What `check-runner` says of workers that differ from here, or write elsewhere."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import snapshard as ss
from snapshard.pipelines.operate import check_runner as module
from snapshard.pipelines.operate.check_runner import check_runner
from snapshard.runners.direct import DirectRunner
from snapshard.schemas.errors import RunnerError
from snapshard.schemas.runner import JobSize


class _Altered(DirectRunner):
    """An engine whose workers leave something else behind than those of this machine."""

    def __init__(self, out: Path, alter: Callable[[Path], None]) -> None:
        super().__init__()
        self._out_root, self._alter = out, alter

    def run(
        self, construct: Callable[[Any], object], *, job_name: str, size: JobSize | None = None
    ) -> None:
        super().run(construct, job_name=job_name, size=size)
        (told,) = self._out_root.glob(".check-*/03.json")
        self._alter(told)


def _other_version(told: Path) -> None:
    facts = json.loads(told.read_text())
    facts["worker"] = "far, process 1"
    facts["versions"]["numpy"] = "0.1"
    told.write_text(json.dumps(facts))


@pytest.mark.parametrize(
    ("alter", "words"),
    [
        (
            _other_version,
            r"The worker far, process 1 has numpy 0\.1, but this machine has [\d.]+: .*Give",
        ),
        (
            Path.unlink,
            r"Of 16 files that workers wrote to .*, only 15 are visible to this machine\. Choose",
        ),
    ],
    ids=["another version", "a file that is not seen"],
)
def test_workers_that_differ(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, alter: Callable[[Path], None], words: str
) -> None:
    monkeypatch.setattr(module, "make_runner", lambda config: _Altered(tmp_path, alter))
    with pytest.raises(RunnerError, match=words):
        check_runner(ss.Direct(), str(tmp_path))
    assert not list(tmp_path.iterdir())


def test_workers_like_here(tmp_path: Path) -> None:
    report = check_runner(ss.Direct(), str(tmp_path))
    assert len(report.workers) == 1
    assert not list(tmp_path.iterdir())
