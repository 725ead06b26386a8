"""What changes the digest of a user's code, and what must not."""

import dataclasses
import functools
import json
import os
import re
import subprocess
import sys
import textwrap
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import snapshard as ss
from snapshard.pipelines.staging import load_recipe_file
from snapshard.schemas.errors import RecipeError
from snapshard.transforms.code_digest import code_digest, step_digest

_RECIPE = '''
"""A recipe."""
import enum
import functools
import re
import numpy as np
import snapshard as ss
import helpers
import package.inner
from helpers import scale as rescale
from package import deep
from pathlib import Path

SIZE = 64
OFFSET = 3
UNRELATED = 1
TABLE = {"a": 1}
TABLE["b"] = 2
TABLE.update(c=3)
NAMES = ["x"]
NAMES += ["y"]
WORDS = (Path(__file__).parent / "words.txt").read_text().split()
LOOKUP = Path(__file__).parent / "lookup.txt"
PATTERN = re.compile("a+")
MEAN = np.array([1.0, 2.0])
if SIZE > 10:
    FACTOR = 2
else:
    FACTOR = 3

class Mode(enum.Enum):
    A = 1
    B = 2

class Base:
    shift = 1
    def moved(self, x):
        return x + self.shift

class Step(Base):
    """A step."""
    gain = 5
    def __init__(self, n):
        self.n = n
    def __call__(self, x):
        return self.moved(x) * self.gain + self.n + OFFSET
    @staticmethod
    def other(x):
        return x

STEP = Step(10)

def decorate(by):
    def outer(function):
        @functools.wraps(function)
        def inner(x):
            return function(x) + by
        return inner
    return outer

def local(x: int) -> int:
    """Doubles."""
    # a comment
    value: int = x * 2
    return value

def unrelated(x):
    return x + UNRELATED

def even(n):
    return n == 0 or odd(n - 1)

def odd(n):
    return n != 0 and even(n - 1)

@decorate(by=7)
def decorated(x):
    return x + SIZE

def factory(n):
    def made(x):
        return x * n + FACTOR
    return made

made = factory(4)
short = lambda x: x + OFFSET
pair = [lambda x: x + 1, lambda x: x + 2]

def step(x, by=OFFSET, *, mode=Mode.A):
    from package import late
    import helpers as again
    if even(x):
        return local(x)
    total = rescale(x) + helpers.shift(x) + package.inner.f(x) + deep.g(x) + again.small(x)
    total += decorated(x) + made(x) + short(x) + pair[0](x) + STEP(x) + late.h(x)
    return total, SIZE, TABLE, NAMES, WORDS, PATTERN, MEAN, LOOKUP, by, mode, len(NAMES)

recipe = ss.Recipe(name="test", source=ss.ImageFolder("data"), prepare=[step])
'''
_FILES = {
    "recipe.py": _RECIPE,
    "helpers.py": """
        import math
        K = 2
        UNUSED = 5
        def scale(x):
            return x * K
        def shift(x):
            return math.floor(x) + deeper(x)
        def deeper(x):
            return x + 1
        def small(x):
            return x
        def unused(x):
            return x * UNUSED
    """,
    "package/__init__.py": "from . import deep\nUNUSED = 1\n",
    "package/inner.py": "from ..helpers import K\nfrom .deep import g\ndef f(x): return g(x) + K\n",
    "package/deep.py": "G = 3\ndef g(x): return x + G\ndef unused(x): return x\n",
    "package/late.py": "H = 9\ndef h(x):\n    return x + H\nUNUSED = 2\n",
    "words.txt": "one two\n",
    "lookup.txt": "one 1\n",
    "notes.txt": "nothing\n",
}


def _write(folder: Path, changes: dict[str, tuple[str, str]] | None = None) -> Path:
    for name, text in _FILES.items():
        text = textwrap.dedent(text)
        if name in (changes or {}):
            old, new = (changes or {})[name]
            assert text.count(old) == 1, (old, text.count(old))
            text = text.replace(old, new)
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder / "recipe.py"


def _digest_of(path: Path) -> str:
    recipe = load_recipe_file(path)
    return code_digest(recipe.prepare[0], folder=recipe.folder)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    return _digest_of(_write(tmp_path_factory.mktemp("base")))


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("recipe.py", "# a comment", "# another comment, and\n    # one more"),
        ("recipe.py", '"""Doubles."""', '"""Doubles it."""'),
        ("recipe.py", '    """Doubles."""\n', ""),
        ("recipe.py", '"""A recipe."""', "# nothing"),
        ("recipe.py", '"""A step."""', '"""Another."""'),
        ("recipe.py", "(x: int) -> int", "(x: 'float') -> object"),
        ("recipe.py", "value: int = x * 2", "value = (x\n        * 2)"),
        ("recipe.py", "SIZE = 64", "SIZE = 32 * 2  # pixels"),
        ("recipe.py", "UNRELATED = 1", "UNRELATED = 2"),
        ("recipe.py", "return x + UNRELATED", "return x - UNRELATED"),
        ("recipe.py", "def unrelated(x):", "def renamed(x):"),
        ("recipe.py", 'TABLE = {"a": 1}\nTABLE["b"] = 2', 'TABLE = {"a": 1, "b": 2}'),
        ("recipe.py", 'name="test"', 'name="other", seed=3, shards=ss.Shards(num_shards=2)'),
        ("recipe.py", 'ss.ImageFolder("data")', 'ss.ImageFolder("elsewhere")'),
        ("recipe.py", "import helpers\n", "import json\nimport helpers\n"),
        ("recipe.py", "SIZE = 64\n", "\n\n\nSIZE = 64\n"),
        ("recipe.py", "x + self.shift", "(x + self.shift)"),
        ("recipe.py", "    B = 2\n\nclass Base", "    B = 2\n\n# ---\nclass Base"),
        ("recipe.py", "def odd(n):\n", "def odd(n):\n    'no matter'\n"),
        ("helpers.py", "UNUSED = 5", "UNUSED = 6"),
        ("helpers.py", "return x * UNUSED", "return x"),
        ("helpers.py", "def scale(x):", "def scale(x):  # scales"),
        ("package/__init__.py", "UNUSED = 1", "UNUSED = 2"),
        ("package/deep.py", "def unused(x): return x", ""),
        ("package/late.py", "UNUSED = 2", "UNUSED = 3"),
        ("notes.txt", "nothing", "something"),
        ("words.txt", "one two\n", "one\n\ttwo"),
    ],
)
def test_what_has_no_effect(tmp_path: Path, base: str, name: str, old: str, new: str) -> None:
    assert _digest_of(_write(tmp_path, {name: (old, new)})) == base


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("recipe.py", "SIZE = 64", "SIZE = 65"),
        ("recipe.py", "SIZE = 64", "SIZE = 64.0"),
        ("recipe.py", "OFFSET = 3", "OFFSET = 4"),
        ("recipe.py", 'TABLE["b"] = 2', 'TABLE["b"] = 3'),
        ("recipe.py", "TABLE.update(c=3)", "TABLE.update(d=3)"),
        ("recipe.py", 'NAMES += ["y"]', 'NAMES += ["z"]'),
        ("recipe.py", 're.compile("a+")', 're.compile("a+", re.I)'),
        ("recipe.py", "np.array([1.0, 2.0])", "np.array([1.0, 2.5])"),
        ("recipe.py", "np.array([1.0, 2.0])", "np.array([1.0, 2.0], np.float32)"),
        ("recipe.py", "    FACTOR = 2", "    FACTOR = 5"),
        ("recipe.py", "    A = 1", "    A = 3"),
        ("recipe.py", "mode=Mode.A", "mode=Mode.B"),
        ("recipe.py", "by=OFFSET, *", "by=OFFSET + 1, *"),
        ("recipe.py", "    shift = 1", "    shift = 2"),
        ("recipe.py", "return x + self.shift", "return x - self.shift"),
        ("recipe.py", "    gain = 5", "    gain = 6"),
        ("recipe.py", "STEP = Step(10)", "STEP = Step(11)"),
        ("recipe.py", "STEP = Step(10)", "STEP = Step(10)\nSTEP.n = 12"),
        ("recipe.py", "STEP = Step(10)", "STEP = Step(10)\nStep.gain = 12"),
        ("recipe.py", "STEP = Step(10)", "STEP = Step(10)\nStep.moved = lambda self, x: x"),
        ("recipe.py", "return function(x) + by", "return function(x) - by"),
        ("recipe.py", "@decorate(by=7)", "@decorate(by=8)"),
        ("recipe.py", "@decorate(by=7)\n", ""),
        ("recipe.py", "return x * n + FACTOR", "return x * n - FACTOR"),
        ("recipe.py", "made = factory(4)", "made = factory(5)"),
        ("recipe.py", "short = lambda x: x + OFFSET", "short = lambda x: x - OFFSET"),
        ("recipe.py", "pair = [lambda x: x + 1", "pair = [lambda x: x + 3"),
        ("recipe.py", "lambda x: x + 2]", "lambda x: x + 3]"),
        ("recipe.py", "value: int = x * 2", "value: int = x * 3"),
        ("recipe.py", "return value", "return -value"),
        ("recipe.py", "return n != 0 and", "return n != 1 and"),
        (
            "recipe.py",
            "from helpers import scale as rescale",
            "from helpers import small as rescale",
        ),
        ("recipe.py", "len(NAMES)\n", "max(NAMES)\n"),
        ("recipe.py", "again.small(x)", "again.deeper(x)"),
        ("helpers.py", "K = 2", "K = 3"),
        ("helpers.py", "return x + 1", "return x + 2"),
        ("helpers.py", "math.floor(x)", "math.ceil(x)"),
        ("helpers.py", "def small(x):\n    return x", "def small(x):\n    return -x"),
        ("package/inner.py", "return g(x) + K", "return g(x) - K"),
        ("package/deep.py", "G = 3", "G = 4"),
        ("package/late.py", "H = 9", "H = 8"),
        ("package/late.py", "return x + H", "return x - H"),
        ("words.txt", "two", "three"),
        ("lookup.txt", "one 1", "one 2"),
    ],
)
def test_what_has_an_effect(tmp_path: Path, base: str, name: str, old: str, new: str) -> None:
    assert _digest_of(_write(tmp_path, {name: (old, new)})) != base


def test_place_times_and_hash_seed_do_not_matter(tmp_path: Path, base: str) -> None:
    path = _write(tmp_path / "another place")
    os.utime(path, (1, 1))
    script = (
        "from snapshard.pipelines.staging import load_recipe_file\n"
        "from snapshard.transforms.code_digest import code_digest\n"
        "import sys\n"
        "recipe = load_recipe_file(sys.argv[1])\n"
        "print(code_digest(recipe.prepare[0], folder=recipe.folder), end='')"
    )
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", script, "recipe.py"],
            env={**os.environ, "PYTHONHASHSEED": seed},
            cwd=path.parent,
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout == base


def test_a_renamed_file_is_the_same_code(tmp_path: Path, base: str) -> None:
    path = _write(tmp_path)
    assert _digest_of(path.rename(tmp_path / "digits.py")) == base
