"""The mutants that are found, and that the same are chosen wherever the code lies."""

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from .mutate import choose, find_mutants
from .run import ROOT, chosen, weaker
from .subjects import SUBJECTS


def mutated(source: str, path: str = "a.py") -> dict[str, str]:
    """The mutated texts, by function and mutation."""
    content = textwrap.dedent(source).encode()
    return {
        f"{mutant.function}: {mutant.mutation}": mutant.apply(content).decode()
        for mutant in find_mutants(content, path)
    }


@pytest.mark.parametrize(
    ("line", "mutation", "expected"),
    [
        ("a = b < c", "Lt → LtE", "a = (b <= c)"),
        ("a = b == c in d", "In → NotIn", "a = (b == c not in d)"),
        ("a = b * (c + d)", "Mult → FloorDiv", "a = (b // (c + d))"),
        ("a += b", "Add → Sub", "a -= b"),
        ("a = 'ä' and f(7)", "7 → 8", "a = 'ä' and f((8))"),
        ("a = b or c", "or → and", "a = (b and c)"),
        ("a = not b", "not x → x", "a = (b)"),
        ("if a: f()", "condition → False", "if (False): f()"),
        ("a = b if c else d", "condition → True", "a = b if (True) else d"),
        ("while a: f()", "condition → False", "while (False): f()"),
        ("a = [b for b in c if d]", "filter → True", "a = [b for b in c if (True)]"),
        ("f(a)", "call deleted", "pass"),
        ("raise ValueError(1)", "raise deleted", "pass"),
        ("a = b[c : d + e]", "slice's upper + 1", "a = b[c : ((d + e) + 1)]"),
        ("a = b[-1:]", "1 → 2", "a = b[-(2):]"),
    ],
)
def test_each_mutation(line: str, mutation: str, expected: str) -> None:
    assert mutated(line)[f": {mutation}"] == expected


def test_lines_keep_their_numbers() -> None:
    found = mutated("a = (\n    b <\n    c\n)\nf(\n    a\n)\nd = 1\n")
    assert {
        text.splitlines().index("d = 1") for key, text in found.items() if "1 →" not in key
    } == {7}


@pytest.mark.parametrize(
    "source",
    [
        '"""Words."""\n__all__ = ["a", 1]',
        "a: Literal[1] = b\ndef f(c: Array[2]) -> Array[3]: ...",
        "@cache(maxsize=1)\ndef f() -> None: ...",
        "if TYPE_CHECKING:\n    import a\n    f(1)",
        "import logging\nlogging.warning('%d', 1 + 2)\nlogger.info(a[1])\n_LOG.debug(not a)",
        "error = errors.StorageError(1 + 2)\nassert f'{a + 1}' and 'b' + c"[:34],
        "a = f'{b + 1:>{c * 2}}'\nd = 'e' + g",
        "def f() -> None:\n    return g\ndef h() -> Any:\n    return g\ndef i():\n    return g",
    ],
)
def test_what_is_left_alone(source: str) -> None:
    assert mutated(source) == {}


def test_what_an_annotated_function_returns() -> None:
    source = "class A:\n    def f(self) -> int:\n        return g\n    b = 1"
    found = mutated(source)
    assert found == {
        "f: returns None": source.replace("return g", "return (None)"),
        "A: 1 → 2": source.replace("b = 1", "b = (2)"),
    }


HALVES = (
    "def clip(a: int, b: int) -> int:\n    return _least(a, b - 1) if a < b else a + 1\n",
    "class Part:\n    def _size(self) -> int:\n        return self.stop - self.start + 1 + 1\n",
)


def test_the_same_are_chosen_after_a_move() -> None:
    together = find_mutants("\n\n".join(HALVES).encode(), "one.py")
    moved = [*find_mutants(b"import os\n" + HALVES[1].encode(), "a/other.py")]
    # Another layout, and a name made public.
    text = HALVES[0].replace("(a, b - 1) if", "(\n        a, b - 1\n    ) if").replace("_l", "l")
    moved += find_mutants(text.encode(), "third.py")
    assert len({mutant.rank for mutant in together}) == len(together) > 8
    for num in (1, 5, len(together)):
        before, after = choose(together, num), choose(moved, num)
        assert [one.rank for one in before] == [one.rank for one in after]
        assert len(before) == num


def test_equal_ones_are_chosen_together() -> None:
    twice = [*find_mutants(b"a = b < c", "one.py"), *find_mutants(b"a = b < c", "two.py")]
    assert [mutant.path for mutant in choose(twice, 1)] == ["one.py", "two.py"]


@pytest.mark.parametrize("name", SUBJECTS)
def test_subjects_are_there_and_their_mutants_compile(name: str) -> None:
    subject = SUBJECTS[name]
    assert all((ROOT / path).is_file() for path in subject.tests)
    mutants = chosen(subject, 40)
    assert len(mutants) >= 40
    for mutant in mutants:
        compile(mutant.apply((ROOT / mutant.path).read_bytes()), mutant.path, "exec")


def test_fewer_kills_are_told() -> None:
    one = {"rank": "0", "path": "a.py", "line": 3, "function": "f", "statement": "g()"}
    one |= {"mutation": "call deleted"}
    same = {"killed": 30, "mutants": []}
    before = {"keys": {"killed": 1, "mutants": [one | {"killed": True}]}, "plan": same}
    after = {"keys": {"killed": 0, "mutants": [one | {"killed": False}]}, "plan": same}
    gone = {"keys": {"killed": 0, "mutants": []}}
    assert weaker(after, before) == weaker(before, before) == weaker(before, gone) == []
    assert weaker(before, after) == [
        "keys: 0 killed, 1 of the same before",
        "  survives now: a.py:3 f: g() [call deleted]",
    ]


CODE = """
def join(a: list[int], b: list[int]) -> list[int]:
    return a + b
def count(stop: int) -> None:
    found = []
    while len(found) < stop:
        found.append(stop)
def exit_with(name: str) -> None:
    if name:
        import signal
        signal.raise_signal(signal.SIGKILL)
def unused() -> int:
    return found
"""
TESTS = """
from made.code import count, exit_with, join
def test_join(): assert join([1], [2]) == [1, 2]
def test_count(): count(2)
def test_exit(): exit_with("")
"""
RUN = """
import sys
from pathlib import Path
from tests.mutation import run, subjects
run.ROOT, run.PACKAGE, run.LIBRARIES, run._LIMIT_SECONDS = Path(sys.argv[1]), "made", (), 0
run.SUBJECTS.clear()
run.SUBJECTS["made"] = subjects.Subject(("code.py",), ("test_made.py",))
sys.path.insert(0, str(run.ROOT.parent))
sys.argv[1:] = sys.argv[2:]
sys.exit(run.main())
"""


@pytest.mark.slow  # three processes, and one for each mutant
def test_a_run(tmp_path: Path) -> None:
    root, out = tmp_path / "made", tmp_path / "out" / "results.json"
    root.mkdir()
    (root / "code.py").write_text(CODE)
    (root / "test_made.py").write_text(TESTS)
    command = [sys.executable, "-c", RUN, str(root), "--out", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(out.read_text())["made"]
    ended = {f"{one['function']}: {one['mutation']}": one["outcome"] for one in found["mutants"]}
    assert ended == {
        "join: Add → Sub": "failed",
        "join: returns None": "failed",
        "count: Lt → LtE": "passed",
        "count: condition → False": "passed",
        "count: call deleted": "timeout",
        "exit_with: condition → True": "crashed",
        "exit_with: condition → False": "passed",
        "exit_with: call deleted": "passed",
        "unused: returns None": "passed",
    }
    assert found["killed"] == 4
    killers = {one["killer"] for one in found["mutants"] if one["outcome"] == "failed"}
    assert killers == {"test_made.py::test_join"}
    assert f"{'made':8} 4 of 9 killed" in done.stdout

    (root / "test_made.py").write_text("from made import code\ndef test_nothing(): pass")
    weak = subprocess.run(
        [*command, "--against", str(out)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert weak.returncode == 1
    assert "made: 0 killed, 4 of the same before" in weak.stdout
    assert "survives now: code.py:3 join: return a + b [Add → Sub]" in weak.stdout

    (root / "test_made.py").write_text("def test_nothing(): pass")
    unloaded = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert unloaded.returncode == 1
    assert "Modules that they did not load: code.py" in unloaded.stderr
