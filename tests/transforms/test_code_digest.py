"""What changes the digest of a user's code, and what must not."""

import collections
import dataclasses
import datetime
import decimal
import enum
import functools
import importlib
import json
import logging
import operator
import os
import re
import subprocess
import sys
import textwrap
import types
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import snapshard as ss
from snapshard.pipelines.recipe.shipping import load_recipe_file
from snapshard.schemas.errors import RecipeError
from snapshard.transforms.code.digest import CodeHashes

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
    return CodeHashes(recipe.folder).function(recipe.prepare[0]).digest


def _parts_of(path: Path) -> dict[str, str]:
    recipe = load_recipe_file(path)
    return CodeHashes(recipe.folder).parts(recipe.prepare[0])


@pytest.fixture(scope="module")
def base_parts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    parts = _parts_of(_write(tmp_path_factory.mktemp("parts")))
    assert len(parts) > 30
    return parts


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    return _digest_of(_write(tmp_path_factory.mktemp("base")))


@pytest.mark.slow
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
def test_what_has_no_effect(
    tmp_path: Path, base: str, base_parts: dict[str, str], name: str, old: str, new: str
) -> None:
    path = _write(tmp_path, {name: (old, new)})
    assert _digest_of(path) == base
    assert _parts_of(path) == base_parts


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
def test_what_has_an_effect(
    tmp_path: Path, base: str, base_parts: dict[str, str], name: str, old: str, new: str
) -> None:
    path = _write(tmp_path, {name: (old, new)})
    assert _digest_of(path) != base
    # Of dozens of parts those are named that changed: what is read under two names is two.
    changed = {part for part, _ in _parts_of(path).items() ^ base_parts.items()}
    assert 1 <= len(changed) <= 4, changed


def test_place_times_and_hash_seed_do_not_matter(tmp_path: Path, base: str) -> None:
    path = _write(tmp_path / "another place")
    os.utime(path, (1, 1))
    script = (
        "from snapshard.pipelines.recipe.shipping import load_recipe_file\n"
        "from snapshard.transforms.code.digest import CodeHashes\n"
        "import sys\n"
        "recipe = load_recipe_file(sys.argv[1])\n"
        "print(CodeHashes(recipe.folder).function(recipe.prepare[0]).digest, end='')"
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


def _of(value: Any) -> str:
    """The digest of a function that captured a value."""

    def function() -> Any:
        return value

    return CodeHashes("").function(function).digest


class _Color(enum.Enum):
    RED = 1
    BLUE = 2


@dataclasses.dataclass
class _Point:
    x: int
    y: list[int]


class _Hashed:
    def __init__(self, point: _Point) -> None:
        self.point = point


class _Slots:
    __slots__ = ("a",)

    def __init__(self, a: int) -> None:
        self.a = a


class _Words(dict[str, int]):
    pass


class _Lazy:
    def __init__(self, n: int) -> None:
        self.n = n
        self.cache = object()

    def __getstate__(self) -> int:
        return self.n


def _double(x: int) -> int:
    return x * 2


def _values() -> list[Any]:
    """Values that all differ."""
    return [
        None, True, False, 0, 1, -1, 2**70, 1.0, 0.0, -0.0, float("nan"), float("inf"), 1j, ...,
        "", "a", "1", "\udce9", b"", b"a", bytearray(b"a"), (), (1,), (1, 2), (2, 1), [], [1],
        [1, 2], [[1], 2], [[1, 2]], {}, {"a": 1}, {"a": 2}, {"b": 1},
        {"a": 1, "b": 2}, {"b": 2, "a": 1},
        set(), {1}, {1, 2}, frozenset({1}), range(3), range(4), slice(1), Path("a"), Path("b"),
        re.compile("a"), re.compile("a", re.I), re.compile(b"a"),
        np.array([1, 2]), np.array([1.0, 2.0]), np.array([[1, 2]]), np.array([1, 2], np.int32),
        np.array([], np.int32), np.array(["a"], object), np.array(["b"], object), np.float32(1),
        np.float64(1), np.dtype("f4"), np.dtype("f8"), np.ma.masked_array([1, 2], [True, False]),
        np.add, np.subtract, np.float32, len, max, dict, "abc".join, "abd".join, str.lower,
        _Color.RED, _Color.BLUE, _Point(1, [2]), _Point(1, [3]), _Slots(1), _Slots(2),
        _Words(a=1), _Words(a=2), _Lazy(1), _Lazy(2), _double, _Point, _Slots,
        functools.partial(_double, 1), functools.partial(_double, 2),
        functools.partial(_double, x=1),
        types.SimpleNamespace(a=1), types.SimpleNamespace(a=2), types.MappingProxyType({"a": 1}),
        np, re, list[int], int | None, ss.Shards(), ss.Shards(min_shards=2), ss.Splits(a=1),
        _Slots(1).__init__, _Slots(2).__init__, functools.lru_cache(_double),
        datetime.date(2020, 1, 1), decimal.Decimal("1.0"),
        collections.OrderedDict(a=1), collections.Counter("a"),
        collections.defaultdict(int, a=1), collections.deque([1]),
        operator.itemgetter(1), operator.itemgetter(2),
        pa.int64(), pa.array([1]), pa.array([2]),
    ]  # fmt: skip


@pytest.mark.slow
def test_values_count_by_value() -> None:
    first, second = ([_of(value) for value in _values()] for _ in range(2))
    assert first == second
    assert len(set(first)) == len(first), [
        (_values()[i], _values()[first.index(d)])
        for i, d in enumerate(first)
        if first.index(d) != i
    ]


def test_loggers_do_not_depend_on_other_loggers() -> None:
    logger = logging.getLogger("of.a.recipe")
    before = _of(logger)
    logging.getLogger("made.later")
    assert _of(logger) == before


def test_values_that_hold_themselves() -> None:
    looped: list[Any] = [1]
    looped.append(looped)
    other: list[Any] = [2]
    other.append(other)
    assert _of(looped) != _of(other)
    point = _Point(1, [])
    point.y = point  # type: ignore[assignment]
    assert _of(point) == _of(point)


def test_sets_do_not_depend_on_their_order() -> None:
    many = [f"word{i}" for i in range(1000)]
    assert _of(set(many)) == _of(set(reversed(many)))
    assert _of({_double, _of}) == _of({_of, _double})
    # Objects have no order but that of their addresses, which differ from list to list.
    made = [[_Point(n, [n]) for n in range(9)] for _ in range(20)]
    assert len({_of([set(map(_Hashed, points))]) for points in made}) == 1


def test_a_set_is_one_part(tmp_path: Path) -> None:
    """What its members refer to has no part of its own: the set's hash has it."""
    parts = []
    for number in (1, 2):
        path = tmp_path / "recipe.py"
        path.write_text(
            "import snapshard as ss\n"
            f"def a(x): return {number}\ndef b(x): return a(x)\n"
            "FUNCTIONS = {b, len}\nOTHER = [b]\n"
            "def step(x):\n    return FUNCTIONS, OTHER\n"
            'recipe = ss.Recipe(name="t", source=ss.ImageFolder("d"), prepare=[step])\n'
        )
        parts.append(_parts_of(path))
    assert parts[0].keys() == parts[1].keys()
    changed = {name for name in parts[0] if parts[0][name] != parts[1][name]}
    assert changed == {"recipe.py: FUNCTIONS", "recipe.py: a"}


def test_a_set_of_objects_that_lead_back_to_it() -> None:
    points = [_Hashed(_Point(n, [])) for n in range(5)]
    for point in points:
        point.point.y.append({*points})  # type: ignore[arg-type]
    with pytest.raises(RecipeError, match="its content cannot be hashed"):
        _of(points)


@pytest.mark.parametrize("kind", ["constant", "table", "ragged", "dtype"])
def test_tensorflow_values(kind: str) -> None:
    import tensorflow as tf

    def make(last: int) -> Any:
        if kind == "constant":
            return tf.constant([1, last])
        if kind == "table":
            initializer = tf.lookup.KeyValueTensorInitializer(["a", "b"], [1, last])
            return tf.lookup.StaticHashTable(initializer, -1)
        return tf.ragged.constant([[1], [last, 2]]) if kind == "ragged" else tf.as_dtype(last)

    assert _of(make(2)) == _of(make(2))
    assert _of(make(2)) != _of(make(3))


def test_a_tf_function_counts_by_its_python(tmp_path: Path) -> None:
    import tensorflow as tf

    text = """
        import snapshard as ss
        import tensorflow as tf
        from tensorflow.io import decode_jpeg
        N = 2
        RESIZE = tf.keras.layers.Resizing(4, 4)
        @tf.function
        def compiled(x):
            return x * N
        def step(record):
            return RESIZE(compiled(decode_jpeg(record)))
        recipe = ss.Recipe(name="t", source=ss.ImageFolder("d"), prepare=[step])
    """
    path = tmp_path / "recipe.py"

    def of(old: str = "", new: str = "") -> str:
        path.write_text(textwrap.dedent(text).replace(old, new))
        return _digest_of(path)

    assert of() == of("def compiled(x):", "def compiled(x):  # so")
    assert len({of(), of("N = 2", "N = 3"), of("Resizing(4, 4)", "Resizing(4, 5)")}) == 3
    assert tf.executing_eagerly()


_DATABASE = "import sqlite3\nDB = sqlite3.connect(':memory:')\n"


@pytest.mark.parametrize(
    ("imports", "expression", "drawn"),
    [
        ("import random", "random.random()", "random.random"),
        ("import random", "helper() + random.randint(0, 9)", "random.randint"),
        ("import random", "[random.shuffle(x) for _ in x]", "random.shuffle"),
        ("from random import gauss as g", "g(0, 1)", "g"),
        ("import numpy as np", "np.random.rand()", "np.random.rand"),
        ("import numpy", "numpy.random.normal(size=3)", "numpy.random.normal"),
        ("from numpy.random import rand", "rand()", "rand"),
        ("from numpy import random as r", "r.uniform()", "r.uniform"),
        ("import random", "random.Random(0).random()", None),
        ("import numpy as np", "np.random.default_rng(0).normal()", None),
        ("import random", "helper()", None),
        ("import sys", "sys.stdout.write('x')", None),
    ],
)
@pytest.mark.parametrize("where", ["module", "function"])
def test_the_generators_of_the_process_are_refused(
    tmp_path: Path, imports: str, expression: str, drawn: str | None, where: str
) -> None:
    """A function that is traced would give every record the same number, others a new one."""
    path = tmp_path / "recipe.py"
    at_top, inside = (imports, "pass") if where == "module" else ("", imports)
    path.write_text(
        f"import snapshard as ss\n{at_top}\n"
        "def helper():\n    return 1\n"
        f"def step(x):\n    {inside}\n    return {{'x': {expression}}}\n"
        'recipe = ss.Recipe(name="t", source=ss.ImageFolder("d"), prepare=[step])\n'
    )
    if drawn is None:
        assert _digest_of(path)
    else:
        with pytest.raises(RecipeError, match=f"step draws from {re.escape(drawn)}, .*fixed seed"):
            _digest_of(path)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("THING = F", r"step uses THING, a _io\.TextIOWrapper: .*Read the file"),
        ("THING = iter([1])", "step uses THING, a builtins.list_iterator"),
        ("THING = (i for i in [1])", "step uses THING, a builtins.generator"),
        ("THING = {'a': [F]}", r"step uses THING\['a'\]\[0\], a _io"),
        ("import random\nTHING = random.Random(3)", r"step uses THING, a random\.Random"),
        ("import numpy\nTHING = numpy.random.default_rng(3)", r"step uses THING, a numpy\.random"),
        ("import threading, logging\nTHING = threading.Lock(), logging.getLogger()", None),
        ("import string\nTHING = string.Formatter()", None),
        ("import string\nTHING = [string.Formatter()]", None),
        ("import string\ndef f(): return string.Formatter()\nTHING = f()", None),
        (f"{_DATABASE}THING = [DB]", r"THING\[0\], a sqlite3.Connection: .*depends_on=\["),
        (f"{_DATABASE}import types\nTHING = types.MethodType(len, DB)", "THING, a sqlite3.Conn"),
        (f"{_DATABASE}THING = DB.execute", "uses THING, a sqlite3.Connection"),
        (f"{_DATABASE}import functools\nTHING = functools.partial(len, DB)", "a sqlite3.Conn"),
        (f"{_DATABASE}class THING(dict): pass\nTHING.db = DB", r"THING\.db, a sqlite3"),
        ("import numpy\nTHING = numpy.frompyfunc(len, 1, 1)", r"step uses THING, a numpy\.ufunc"),
        ("import weakref\nTHING = weakref.WeakSet()", "a .*weakref"),
        ("class A: pass\nTHING = A()\nTHING.file = F", r"THING\.file, a _io"),
        ("class THING: pass\nTHING.file = F", r"THING\.file, a _io\.Text"),
        ("class THING:\n  import string\n  f = string.Formatter()", None),
        ("class A:\n  def settings(s): return 1\nTHING = A()\nTHING.f = F", r"THING\.f, a _io"),
    ],
)
def test_what_cannot_be_told_is_refused(tmp_path: Path, line: str, message: str | None) -> None:
    path = tmp_path / "recipe.py"
    path.write_text(
        f"import snapshard as ss\nF = open(__file__)\nF.close()\n{line}\n"
        "def step(x):\n    return THING\n"
        'recipe = ss.Recipe(name="t", source=ss.ImageFolder("d"), prepare=[step])\n'
    )
    recipe = load_recipe_file(path)
    if message is None:
        assert CodeHashes(recipe.folder).function(recipe.prepare[0]).digest
        return
    with pytest.raises(RecipeError, match=message):
        CodeHashes(recipe.folder).function(recipe.prepare[0])


_CALLED = "def f(self, *_): return 1\n"


@pytest.mark.parametrize(
    "lines",
    [
        f"class C: pass\n{_CALLED}C.__call__ = f\nTHING = C()",
        "class C: pass\nC.__len__ = lambda self: 1\nTHING = C()",
        "class C: pass\nC.__length_hint__ = property(lambda self: 1)\nTHING = C()",
        'THING = type("C", (), {"__call__": lambda self, r: 1})()',
        'THING = type("C", (), {"__marks__": 1})',
        "import dataclasses\ndef make(): return 1\nTHING = dataclasses.make_dataclass("
        '"D", [("a", int, dataclasses.field(default_factory=make))])',
        f'{_CALLED}import dataclasses\nTHING = dataclasses.make_dataclass("D", [("a", int)], '
        'namespace={"__call__": f})(0)',
        "import functools\n@functools.cache\ndef THING(): return 0\nTHING._k = 1",
        "import numpy\nTHING = numpy.zeros(3, numpy.dtype('i4', metadata={'k': 1}))",
        "import numpy\nTHING = numpy.zeros(3, [('f', numpy.dtype('i4', metadata={'k': 1}))])",
        "import numpy\nTHING = numpy.zeros(3, numpy.dtype('O', metadata={'k': 1}))",
        f"import functools\nclass C: pass\n{_CALLED}C.__call__ = functools.partialmethod(f, 1)\n"
        "THING = C()",
        "class C: pass\nclass D: pass\nD.k = 1\nC.__call__ = D()\nTHING = C()",
        "import builtins\nbuiltins.ANY = 1\nTHING = lambda: ANY",
    ],
)
def test_whatever_a_name_leads_to_counts(tmp_path: Path, lines: str) -> None:
    digests = []
    for number in (1, 2, 1):
        path = tmp_path / "recipe.py"
        path.write_text(
            f"import snapshard as ss\n{lines.replace('1', str(number))}\n"
            "def step(x):\n    return THING\n"
            'recipe = ss.Recipe(name="t", source=ss.ImageFolder("d"), prepare=[step])\n'
        )
        digests.append(_digest_of(path))
    assert digests[0] == digests[2] != digests[1]


_NO_PY = "a module that was not loaded from a .py file"
_LOADED = """
import importlib.machinery, importlib.util, pathlib
path = pathlib.Path(__file__).with_name("thing.cfg")
path.write_text("K = 1")
loader = importlib.machinery.SourceFileLoader("thing", str(path))
THING = importlib.util.module_from_spec(importlib.util.spec_from_loader("thing", loader))
loader.exec_module(THING)
"""
_COMPILED = """
import pathlib, py_compile
source = pathlib.Path(__file__).with_name("compiled.py")
source.write_text("K = 1")
py_compile.compile(str(source), cfile=str(source.with_suffix(".pyc")))
source.unlink()
import importlib, sys
sys.path.insert(0, str(source.parent))
importlib.invalidate_caches()
THING = importlib.import_module("compiled")
sys.path.pop(0)
"""


@pytest.mark.parametrize(
    ("lines", "used", "message"),
    [
        ("import types\nTHING = types.ModuleType('thing')\nTHING.K = 1", "THING.K", _NO_PY),
        ("import types\nTHING = types.ModuleType('json')\nTHING.K = 1", "THING.K", _NO_PY),
        (_LOADED, "THING.K", _NO_PY),
        (_COMPILED, "THING.K", _NO_PY),
        (
            "import sys, types\nsys.modules['made_here'] = types.ModuleType('made_here')",
            "__import__('made_here').K",
            _NO_PY,
        ),
        ("import pydantic\nTHING = pydantic.create_model('T', a=(int, 1))", "THING", "uses THING"),
        ("V = 1\ndef f(): pass", "f.__globals__['V']", "reads __globals__"),
        ("V = 1\ndef f(): pass", "getattr(f, '__globals__')['V']", "reads __globals__"),
        ("def f():\n  '1'", "f.__doc__", "reads __doc__"),
        ("import inspect\ndef f():\n  '1'", "inspect.getdoc(f)", "reads getdoc"),
        ("from inspect import getsource\ndef f(): pass  # 1", "getsource(f)", "reads getsource"),
        ("import sys\nV = 1", "getattr(sys.modules[__name__], 'V')", r"reads sys\.modules"),
        ("'1'", "__doc__", "reads __doc__"),
        ("def f(a: 1): pass", "f.__annotations__", "reads __annotations__"),
        ("import os\nHOME = os.environ['HOME']", "HOME", None),
        ("import os, json", "os.path.join('a', json.dumps('b'))", None),
    ],
)
def test_what_would_change_unnoticed_is_refused(
    tmp_path: Path, lines: str, used: str, message: str | None
) -> None:
    path = tmp_path / "recipe.py"
    path.write_text(
        f"{lines}\nimport snapshard as ss\ndef step(x):\n    return {used}\n"
        'recipe = ss.Recipe(name="t", source=ss.ImageFolder("d"), prepare=[step])\n'
    )
    if message is None:
        assert _digest_of(path)
        return
    with pytest.raises(RecipeError, match=message):
        _digest_of(path)


def test_the_environment_has_no_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may hold credentials, and differs from machine to machine."""
    before = _of(os.environ)
    monkeypatch.setenv("SOMETHING_NEW", "1")
    assert _of(os.environ) == before != _of(dict(os.environ))


class _AnswersAll:
    """A configuration that has every attribute."""

    def __init__(self, k: int) -> None:
        self.k = k

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return None


def test_an_object_that_answers_every_attribute_is_no_step() -> None:
    assert _of(_AnswersAll(1)) == _of(_AnswersAll(1)) != _of(_AnswersAll(2))
    with pytest.raises(RecipeError, match="expected a step such as"):
        ss.Recipe(name="t", source=ss.ImageFolder("d"), prepare=[_AnswersAll(1)])  # type: ignore[list-item]


def _scaled(text: str, *changes: tuple[str, str]) -> str:
    """The digest of `f` in some source that is run without a file, as a notebook does."""
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    scope: dict[str, Any] = {"__name__": "typed_in"}
    exec(compile(textwrap.dedent(text), "<typed in>", "exec"), scope)
    return CodeHashes("").function(scope["f"]).digest


_TYPED = """
    N = 3
    M = 4
    class Helper:
        gain = 2
        def __call__(self, x):
            return x * self.gain
    HELPER = Helper()
    def inner(x):
        'Says something.'
        return x + N
    def f(x):
        'Says something.'
        return inner(x) + HELPER(x) + len({1, 2} & {x})
"""


def test_code_without_source() -> None:
    base = _scaled(_TYPED)
    assert base == _scaled(_TYPED)
    assert base == _scaled(_TYPED, ("M = 4", "M = 5"))
    assert base == _scaled(_TYPED, ("return x + N", "# a comment\n\n        return (x + N)"))
    assert base == _scaled(_TYPED, ("Says something.", "Says other."))
    for change in (
        ("N = 3", "N = 4"),
        ("x + N", "x - N"),
        ("gain = 2", "gain = 3"),
        ("x * self.gain", "x / self.gain"),
        ("{1, 2}", "{1, 3}"),
    ):
        assert base != _scaled(_TYPED, change), change


def test_a_file_edited_after_it_was_loaded_does_not_stand_for_the_code(tmp_path: Path) -> None:
    path = tmp_path / "edited_later.py"
    path.write_text("def f(x):\n    return x + 1\n")
    sys.path.insert(0, str(tmp_path))
    try:
        import edited_later  # type: ignore[import-not-found]

        before = CodeHashes(str(tmp_path)).function(edited_later.f).digest
        path.write_text("def f(x):\n    return x + 2\n")
        stale = CodeHashes(str(tmp_path)).function(edited_later.f).digest
        del sys.modules["edited_later"]
        import edited_later as fresh

        os.utime(path, (1, 1))
        importlib.reload(fresh)
        assert stale != CodeHashes(str(tmp_path)).function(fresh.f).digest
        assert before != stale
    finally:
        sys.path.remove(str(tmp_path))
        sys.modules.pop("edited_later", None)


def test_a_recipe_that_reads_its_own_file_counts_by_the_code_that_ran(tmp_path: Path) -> None:
    text = (
        "import snapshard as ss\nimport pathlib\nTEXT = pathlib.Path(__file__).read_text()\n"
        "def step(x):\n    return x + 1\n"
        'recipe = ss.Recipe(name="t", source=ss.ImageFolder("d"), prepare=[step])\n'
    )
    path = tmp_path / "recipe.py"
    path.write_text(text)
    recipe = load_recipe_file(path)
    before = CodeHashes(recipe.folder).function(recipe.prepare[0]).digest
    path.write_text(text.replace("x + 1", "x + 2"))
    assert CodeHashes(recipe.folder).function(recipe.prepare[0]).digest == before


def _factories() -> list[Any]:
    def make(n: int) -> Any:
        class Local:
            def __call__(self, x: int) -> int:
                return x + n

        return Local()

    two = [lambda x: x + 1, lambda x: x + 2]
    return [make(1), make(2), *two, (lambda n: lambda x: x + n)(1), (lambda n: lambda x: x + n)(2)]


def test_what_factories_make() -> None:
    digests = [CodeHashes("").function(function).digest for function in _factories()]
    assert digests == [CodeHashes("").function(function).digest for function in _factories()]
    assert len(set(digests)) == 6


def test_reading_all_globals_takes_the_whole_module(tmp_path: Path) -> None:
    text = 'import snapshard as ss\nA = 1\nB = 2\ndef step(x):\n    return globals()["A"]\n' + (
        'recipe = ss.Recipe(name="t", source=ss.ImageFolder("d"), prepare=[step])\n'
    )
    path = tmp_path / "recipe.py"
    path.write_text(text)
    first = _digest_of(path)
    path.write_text(text.replace("A = 1", "A = 3"))
    assert _digest_of(path) != first


def test_a_module_that_makes_its_attributes_counts_as_a_whole(tmp_path: Path) -> None:
    text = "import snapshard as ss\nimport h\ndef step(x):\n    return h.made\n" + (
        'recipe = ss.Recipe(name="t", source=ss.ImageFolder("d"), prepare=[step])\n'
    )
    path = tmp_path / "recipe.py"
    path.write_text(text)
    found = set()
    for value in (1, 2):
        (tmp_path / "h.py").write_text(f"def __getattr__(name): return {value}")
        found.add(_digest_of(path))
    assert len(found) == 2


def test_values_nested_too_deeply_are_refused() -> None:
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(RecipeError, match="nested too deeply"):
        _of(deep)


def test_a_bare_module_counts_as_a_whole(tmp_path: Path) -> None:
    text = "import snapshard as ss\nimport h\ndef step(x):\n    return getattr(h, x)\n" + (
        'recipe = ss.Recipe(name="t", source=ss.ImageFolder("d"), prepare=[step])\n'
    )
    path = tmp_path / "recipe.py"
    path.write_text(text)
    found = set()
    for helper in ("A = 1", "A = 2", "A = 1\ndef f(): return 1", "A = 1\ndef f(): return 2"):
        (tmp_path / "h.py").write_text(helper)
        found.add(_digest_of(path))
    (tmp_path / "h.py").write_text("# so\ndef f():\n    return 2\nA = 1")
    assert _digest_of(path) in found
    assert len(found) == 4


def test_built_in_steps_count_by_their_settings() -> None:
    decode, resize = ss.images.decode("image"), ss.images.resize("image", (64, 64))
    digests = {
        CodeHashes("").step_digest(step)
        for step in (decode, resize, ss.images.resize("image", (64, 32)), ss.images.decode("other"))
    }
    assert len(digests) == 4
    assert CodeHashes("/elsewhere").step_digest(ss.images.decode("image")) in digests


def test_steps_of_the_users_own_count_by_code_and_settings(tmp_path: Path) -> None:
    text = """
        import snapshard as ss
        class Scale:
            def __init__(self, by):
                self.by = by
            def settings(self):
                return {"by": self.by}
            def features(self, features):
                return features
            def apply(self, record):
                return {"x": record["x"] * self.by}
        recipe = ss.Recipe(name="t", source=ss.ImageFolder("d"), prepare=[Scale(2)])
    """
    path = tmp_path / "recipe.py"

    def of(old: str = "", new: str = "") -> str:
        path.write_text(textwrap.dedent(text).replace(old, new))
        recipe = load_recipe_file(path)
        return CodeHashes(recipe.folder).step_digest(recipe.prepare[0])

    assert of() == of("def features", "# so\n    def features")
    assert len({of(), of("Scale(2)", "Scale(3)"), of("] * self.by", "] / self.by")}) == 3


def test_an_installed_library_counts_by_name_and_version() -> None:
    from packaging.version import parse

    assert _of(parse) == _of(parse)
    assert _of(parse) != _of(json.dumps)
