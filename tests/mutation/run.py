"""Breaks the code in small ways, and counts which of them its tests tell: ``make mutation``.

    python -m tests.mutation.run --list                     the mutants that are chosen
    python -m tests.mutation.run --only keys --num 5        a few of them
    python -m tests.mutation.run --out after.json --against before.json

For each subject its quick tests must pass first. Then each mutant gets a process of its own, forked
from this one, which has loaded the libraries; there the module is compiled from the mutated source,
and the tests run until one fails. That, a crash and a timeout count as killed. What survives is
listed: an equivalent mutant, or something that these tests do not hold.

A process that a test starts loads the module from its file, so there it is not mutated. A module
whose text is copied, as those of the reader are into each snapshot, is mutated in the copies.
Compare runs of one Python version: mutants are known by statements as its ``ast.unparse`` writes
them. With ``--against``, the mutants are those of that run that still exist. Ends with 1 if a
subject's tests fail unmutated, or let a mutant survive that was killed in that run.
"""

import argparse
import contextlib
import dataclasses
import importlib
import itertools
import json
import math
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from types import CodeType
from typing import Any

from .mutate import Mutant, choose, find_mutants
from .subjects import PACKAGE, SUBJECTS, Subject

ROOT = Path(__file__).resolve().parents[2]
PER_SUBJECT = 40
LIBRARIES = (
    "apache_beam",
    "fsspec",
    "numpy",
    "PIL.Image",
    "pyarrow.dataset",
    "pyarrow.parquet",
    "pydantic",
    "pytest",
    "soundfile",
    "tensorflow",
    "tensorflow_metadata",
    "tensorflow_transform.beam",
)
"""Loaded once, before the processes are forked; nothing of the product may be."""
QUICK = "not slow and not engine and not peers"
_POLL_SECONDS = 0.02
_LIMIT_SECONDS, _LIMIT_TIMES = 20, 3
"""What a mutant may take: so long, and so many times what the tests take without one; that much
processor time, so that a busy machine kills no mutant."""
_IDLE_TIMES = 10
"""A mutant may wait so much longer than it may compute."""
_MEMORY_BYTES = 6 << 30


@dataclasses.dataclass(frozen=True)
class Trial:
    """How the tests of a subject ended, with a mutant or without."""

    outcome: str
    """passed (so it survived), failed, timeout or crashed."""
    seconds: float
    """Processor time."""
    killer: str
    """The first test that failed; empty where none did."""
    missing: tuple[str, ...]
    """Modules of the subject that the tests did not load."""
    output: str

    @property
    def killed(self) -> bool:
        """Whether the tests told."""
        return self.outcome != "passed"


class _MutantLoader(SourceFileLoader):
    """Compiles a module from other source than lies in its file."""

    def __init__(self, fullname: str, path: str, source: bytes) -> None:
        super().__init__(fullname, path)
        self._source = source

    def get_code(self, fullname: str) -> CodeType:
        return compile(self._source, self.path, "exec", dont_inherit=True)


class _MutantFinder(MetaPathFinder):
    """Finds one module, mutated."""

    def __init__(self, mutant: Mutant) -> None:
        self._name, self._path = _module_name(mutant.path), str(ROOT / mutant.path)
        self._source = mutant.apply((ROOT / mutant.path).read_bytes())

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        loader = _MutantLoader(fullname, self._path, self._source)
        return spec_from_file_location(fullname, self._path, loader=loader)


class _CopiedText:
    """Gives a module's mutated text to who reads its file as text, and notes who does."""

    def __init__(self, mutant: Mutant | None) -> None:
        self.read: set[Path] = set()
        texts = {}
        if mutant:
            path = ROOT / mutant.path
            texts[path] = mutant.apply(path.read_bytes()).decode()
        original = Path.read_text

        def read_text(path: Path, *args: Any, **options: Any) -> str:
            self.read.add(path)
            return texts[path] if path in texts else original(path, *args, **options)

        Path.read_text = read_text  # type: ignore[method-assign]


class _Watch:
    """What pytest is asked besides its exit status, and told besides its options."""

    def __init__(self) -> None:
        self.killer = ""

    def pytest_configure(self) -> None:
        """A failing example is enough: it need not become the smallest."""
        import hypothesis

        hypothesis.settings.register_profile(
            "mutation",
            parent=hypothesis.settings(),
            phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],
            report_multiple_bugs=False,
            database=None,
        )
        hypothesis.settings.load_profile("mutation")

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.killer = self.killer or report.nodeid

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.killer = self.killer or report.nodeid


def _module_name(path: str) -> str:
    parts = Path(path).with_suffix("").parts
    return ".".join([PACKAGE, *(parts[:-1] if parts[-1] == "__init__" else parts)])


def _run_tests(subject: Subject, mutant: Mutant | None, folder: Path, limit: float) -> int:
    """Runs a subject's tests in this process, which is good for nothing else afterwards."""
    import pytest

    with (folder / "output").open("wb") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY_BYTES, _MEMORY_BYTES))
    if limit < math.inf:
        resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(limit), resource.RLIM_INFINITY))
    # Where a mutant removes or leaves temporary files, it is in a folder of its own.
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
    if mutant:
        sys.meta_path.insert(0, _MutantFinder(mutant))
    copied, watch = _CopiedText(mutant), _Watch()
    options = ["-q", "-x", "-m", QUICK, "-p", "no:cacheprovider", "-p", "no:xdist", "--tb=short"]
    basetemp = f"--basetemp={folder / 'tests'}"
    status = pytest.main([*options, basetemp, *subject.tests], plugins=[watch])
    sys.stdout.flush()
    missing = []
    for path in subject.modules:
        module = sys.modules.get(_module_name(path))
        loaded = module is not None and Path(module.__file__ or "").resolve() == ROOT / path
        if not loaded and ROOT / path not in copied.read:
            missing.append(path)
    (folder / "end").write_text(json.dumps({"killer": watch.killer, "missing": missing}))
    return int(status)


class _Forked:
    """A process, with a session of its own, that runs the tests once."""

    def __init__(self, subject: Subject, mutant: Mutant | None, *, limit: float = math.inf) -> None:
        self.mutant = mutant
        self._folder = tempfile.TemporaryDirectory(prefix="mutant-", ignore_cleanup_errors=True)
        os.chmod(self._folder.name, 0o755)  # for tests that become another user
        self._started, self._limit = time.monotonic(), limit
        sys.stdout.flush()
        self._pid = os.fork()
        if self._pid == 0:
            status = 70
            try:
                os.setsid()
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                status = _run_tests(subject, mutant, Path(self._folder.name), limit)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)

    def poll(self) -> Trial | None:
        """How it ended, if it did; one that takes too long is ended."""
        seconds = time.monotonic() - self._started
        # Looked at and not reaped: else its group's number could be another's before it is killed.
        ended = os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is None and seconds < _IDLE_TIMES * self._limit:
            return None
        cpu_seconds = self.kill()
        folder = Path(self._folder.name)
        end: dict[str, Any] = {"killer": "", "missing": ()}
        with contextlib.suppress(OSError, json.JSONDecodeError):
            end = json.loads((folder / "end").read_text())
        output = ""
        with contextlib.suppress(OSError):
            output = (folder / "output").read_text(errors="replace")
        self._folder.cleanup()
        if ended is None or ended.si_status == signal.SIGXCPU:
            outcome = "timeout"
        elif ended.si_code != os.CLD_EXITED:
            outcome = "crashed"
        else:
            outcome = "failed" if ended.si_status else "passed"
        return Trial(outcome, cpu_seconds, end["killer"], tuple(end["missing"]), output)

    def kill(self) -> float:
        """Ends it with all that it started, and returns the processor time that it took."""
        for kill in (os.killpg, os.kill):  # it may not have a group yet
            with contextlib.suppress(ProcessLookupError):
                kill(self._pid, signal.SIGKILL)
        _, _, usage = os.wait4(self._pid, 0)
        return usage.ru_utime + usage.ru_stime


def run_trials(
    subject: Subject, mutants: Sequence[Mutant | None], *, jobs: int, limit: float = math.inf
) -> Iterator[tuple[Mutant | None, Trial]]:
    """Tries each mutant, and None as the code is: so many at once, given as they end."""
    waiting, running = list(reversed(mutants)), list[_Forked]()
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                running.append(_Forked(subject, waiting.pop(), limit=limit))
            for one in list(running):
                if trial := one.poll():
                    running.remove(one)
                    yield one.mutant, trial
            time.sleep(_POLL_SECONDS)
    finally:
        for one in running:
            one.kill()


def chosen(subject: Subject, num: int, before: Mapping[str, Any] | None = None) -> list[Mutant]:
    """The mutants of a subject; those of the results ``before``, where they still exist."""
    modules = [find_mutants((ROOT / path).read_bytes(), path) for path in subject.modules]
    mutants = list(itertools.chain.from_iterable(modules))
    if before is None:
        return choose(mutants, num)
    ranks = {mutant["rank"] for mutant in before["mutants"]}
    kept = [mutant for mutant in mutants if mutant.rank in ranks]
    return choose(kept, len(kept)) if kept else []


def told(mutant: Mutant) -> str:
    """A mutant on one line."""
    statement = mutant.statement.splitlines()[0]
    return f"{mutant.path}:{mutant.line} {mutant.function}: {statement} [{mutant.mutation}]"


@dataclasses.dataclass(frozen=True)
class Result:
    """What the tests of a subject made of its mutants."""

    trials: Sequence[tuple[Mutant, Trial]]
    """By rank."""

    @property
    def survivors(self) -> list[Mutant]:
        return [mutant for mutant, trial in self.trials if not trial.killed]

    @property
    def num_killed(self) -> int:
        return len(self.trials) - len(self.survivors)

    def as_json(self) -> dict[str, Any]:
        mutants = [
            dataclasses.asdict(mutant)
            | {"rank": mutant.rank, "killed": trial.killed, "outcome": trial.outcome}
            | {"killer": trial.killer, "seconds": round(trial.seconds, 1)}
            for mutant, trial in self.trials
        ]
        return {"killed": self.num_killed, "total": len(self.trials), "mutants": mutants}


def run_subject(
    name: str, *, num: int, jobs: int, before: Mapping[str, Any] | None = None
) -> Result:
    """Runs the mutants of one subject, and says how each ended.

    Raises:
        RuntimeError: if its tests fail on the code as it is, or leave a module out.
    """
    subject = SUBJECTS[name]
    # As many at once as mutants, so that they pass, and are timed, under the same load.
    unmutated = [trial for _, trial in run_trials(subject, [None] * jobs, jobs=jobs)]
    for trial in unmutated:
        if trial.killed or trial.missing:
            raise RuntimeError(
                f"{trial.output}{name}: the tests {trial.outcome} without a mutant. Modules that "
                f"they did not load: {', '.join(trial.missing) or 'none'}. What belongs together "
                "is listed in tests/mutation/subjects.py."
            )
    slowest = max(trial.seconds for trial in unmutated)
    print(f"{name}: passed without a mutant in {slowest:.0f} s of processor time", flush=True)
    mutants, trials = chosen(subject, num, before), []
    limit = _LIMIT_SECONDS + _LIMIT_TIMES * slowest
    for mutant, trial in run_trials(subject, mutants, jobs=jobs, limit=limit):
        assert mutant
        trials.append((mutant, trial))
        count, ended = f"{len(trials)}/{len(mutants)}", "killed" if trial.killed else "survived"
        print(f"{name} {count} {ended} {trial.seconds:.0f} s  {told(mutant)}", flush=True)
    return Result(sorted(trials, key=lambda one: (one[0].rank, one[0].path)))


def weaker(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """The mutants of each subject that were killed before and survive now: results as JSON."""
    lines = []
    for name in sorted(before.keys() & after.keys()):
        killed = {mutant["rank"] for mutant in before[name]["mutants"] if mutant["killed"]}
        survivors = [
            f"  survives now: {mutant['path']}:{mutant['line']} {mutant['function']}: "
            f"{mutant['statement']} [{mutant['mutation']}]"
            for mutant in after[name]["mutants"]
            if not mutant["killed"] and mutant["rank"] in killed
        ]
        if survivors:
            same = {mutant["rank"] for mutant in after[name]["mutants"]}
            lines += [
                f"{name}: {after[name]['killed']} killed, {len(killed & same)} of the same before",
                *survivors,
            ]
    return lines


def run(
    names: Sequence[str], *, num: int, jobs: int, out: Path | None, before: Mapping[str, Any]
) -> dict[str, Any]:
    """Runs subjects, prints what is found, and gives the results as JSON has them.

    Raises:
        RuntimeError: as :func:`run_subject`.
    """
    # The same examples each time; few threads, since processes are forked from this one.
    os.environ.update(CI="1", OMP_NUM_THREADS="1", TF_CPP_MIN_LOG_LEVEL="2")
    os.chdir(ROOT)
    for library in LIBRARIES:
        importlib.import_module(library)
    assert PACKAGE not in sys.modules
    started, results, written = time.monotonic(), dict[str, Result](), dict[str, Any]()
    for name in names:
        results[name] = run_subject(name, num=num, jobs=jobs, before=before.get(name))
        written[name] = results[name].as_json()
        if out:
            out.parent.mkdir(parents=True, exist_ok=True)
            out.write_text(json.dumps(written, indent=1, ensure_ascii=False) + "\n")
    print(f"\n{time.monotonic() - started:.0f} s. Survivors:")
    for name, result in results.items():
        for mutant in result.survivors:
            print(f"  {name:8} {told(mutant)}")
    for name, result in results.items():
        seconds = sum(trial.seconds for _, trial in result.trials) / max(1, len(result.trials))
        count = f"{result.num_killed} of {len(result.trials)}"
        print(f"{name:8} {count} killed, {seconds:.1f} s a mutant")
    return written


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", action="append", choices=SUBJECTS, help="may be given again")
    parser.add_argument("--num", type=int, default=PER_SUBJECT, help="mutants of each subject")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time")
    parser.add_argument("--list", action="store_true", help="print the mutants, and run nothing")
    parser.add_argument("--out", type=Path, help="write the results to this file, as JSON")
    parser.add_argument("--against", type=Path, help="results that these are held against")
    args = parser.parse_args()
    names = args.only or list(SUBJECTS)
    if args.list:
        for name in names:
            for mutant in chosen(SUBJECTS[name], args.num):
                print(f"{name:8} {told(mutant)}")
        return 0
    # So that no process is left behind: each has a session of its own.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    before = json.loads(args.against.read_text()) if args.against else {}
    try:
        out = args.out and args.out.resolve()
        after = run(names, num=args.num, jobs=args.jobs, out=out, before=before)
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 1
    lines = weaker(before, after)
    print(*lines, sep="\n", end="\n" if lines else "")
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main())
