"""Files that a recipe's functions depend on: in the fingerprint, refused, or named in depends_on.

In each case an edited file must give another fingerprint, or the recipe must be refused with the
way out; with the file in ``depends_on``, editing it must give another fingerprint.
"""

import ast
import collections
import json
import shutil
import textwrap
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import snapshard as ss
from snapshard.pipelines.inspect.why import FingerprintFacts, part_changes
from snapshard.pipelines.recipe.shipping import load_recipe_file, stage
from snapshard.pipelines.survey import survey as survey_module
from snapshard.pipelines.survey.fingerprint_details import fingerprint_details
from snapshard.pipelines.survey.survey import Survey, take_survey
from snapshard.schemas.errors import RecipeError, StorageError
from snapshard.schemas.naming import Workspace
from snapshard.schemas.progress import Silent
from snapshard.transforms.code import user_code
from snapshard.transforms.code.digest import CodeWalk, functions_of

from .read_records import read_blocks, read_records, survey_of

_RECIPE = """
    import snapshard as ss
    from pathlib import Path
    HERE = Path(__file__).resolve().parent
    OUTSIDE = HERE.parent / "outside"
    {setup}

    def read(file):
        {body}
        yield {{"x": len(file.read()), "y": str(found)}}

    recipe = ss.Recipe(
        name="t", source=ss.Files("raw/*.bin", read=read, types={{"x": "int64"}}), {options}
    )
"""

_BESIDE = """
import struct
from pathlib import Path
FILE = Path(__file__).parent / "cfg.txt"
FORMAT = struct.Struct(f"{len(FILE.read_text()) if FILE.exists() else 1}s")
"""


class Case(NamedTuple):
    """A way to depend on a file."""

    setup: str
    """What the recipe's module does; ``<text>`` is the text of ``cfg.txt``."""
    found: str
    """The value that its function gives, or statements that bind ``found``."""
    file: str = "cfg.txt"


CASES = {
    "argparse.Namespace": Case(
        "import argparse, json\n"
        "CFG = argparse.Namespace(**json.loads((HERE / 'cfg.json').read_text()))",
        "CFG.value",
        "cfg.json",
    ),
    "ConfigParser": Case(
        "from configparser import ConfigParser\nCFG = ConfigParser()\nCFG.read(HERE / 'cfg.ini')",
        "CFG['a']['value']",
        "cfg.ini",
    ),
    "ConfigParser, read in a function": Case(
        "from configparser import ConfigParser\nCFG = ConfigParser()\n"
        "def load(cfg): cfg.read(HERE / 'cfg.ini')\nload(CFG)",
        "CFG['a']['value']",
        "cfg.ini",
    ),
    "string.Template": Case("import string\nTEXT = string.Template(<text>)", "TEXT.substitute()"),
    "numpy.poly1d": Case(
        "import numpy as np\nCURVE = np.poly1d(np.loadtxt(HERE / 'cfg.csv'))",
        "CURVE(2.0)",
        "cfg.csv",
    ),
    "collections.UserDict": Case(
        "import collections, json\n"
        "CFG = collections.UserDict(json.loads((HERE / 'cfg.json').read_text()))",
        "CFG['value']",
        "cfg.json",
    ),
    "numpy.frompyfunc": Case(
        "import numpy as np\nTABLE = np.loadtxt(HERE / 'cfg.csv')\n"
        "PICK = np.frompyfunc(lambda i: TABLE[i], 1, 1)",
        "PICK(0)",
        "cfg.csv",
    ),
    "a bound method": Case("NAMES = <text>.split()\nAT = NAMES.__len__", "AT()"),
    "a function that a library makes": Case(
        "import xml.etree.ElementTree as tree\n"
        "ROOT = tree.parse(HERE / 'cfg.xml').getroot()\nFIND = ROOT.find",
        "FIND('value').text",
        "cfg.xml",
    ),
    "an object in a list": Case(
        "import xml.etree.ElementTree as tree\nROOT = [tree.parse(HERE / 'cfg.xml')]",
        "ROOT[0].find('value').text",
        "cfg.xml",
    ),
    "a database": Case(
        "import sqlite3\nDB = sqlite3.connect(HERE / 'cfg.db', check_same_thread=False)",
        "DB.execute('select value from t').fetchone()[0]",
        "cfg.db",
    ),
    "a subclass of an array": Case(
        "import numpy as np\nclass Curve(np.ndarray): pass\n"
        "CURVE = np.loadtxt(HERE / 'cfg.csv').view(Curve)",
        "CURVE[0]",
        "cfg.csv",
    ),
    "a name that Python mangles": Case(
        "class Held:\n    __slots__ = ('__text',)\n"
        "    def __init__(self, text): self.__text = text\n"
        "    def get(self): return self.__text\nHELD = Held(<text>)",
        "HELD.get()",
    ),
    "a default of a method": Case(
        "class Reader:\n    def find(self, text=<text>): return text\nREADER = Reader()",
        "READER.find()",
    ),
    "a default of a static method": Case(
        "class Reader:\n    find = staticmethod(lambda *, text=<text>: text)", "Reader.find()"
    ),
    "dataclasses.make_dataclass": Case(
        "import dataclasses\nCFG = dataclasses.make_dataclass('CFG', [('a', str, <text>)])",
        "CFG().a",
    ),
    "types.new_class": Case(
        "import types\nTEXT = <text>\n"
        "CFG = types.new_class('CFG', (), {}, lambda names: names.update(a=TEXT))",
        "CFG.a",
    ),
    "a cached property": Case(
        "import functools\nclass Held:\n    @functools.cached_property\n"
        "    def text(self): return <text>\nHELD = Held()\nHELD.text",
        "HELD.text",
    ),
    "a cached property of a library's": Case(
        "import functools, string\nclass Held(string.Formatter):\n"
        "    text = functools.cached_property(lambda self: <text>)\nHELD = Held()\n"
        "HELD.text",
        "HELD.text",
    ),
    "a cached function": Case(
        "import functools\n@functools.cache\ndef load(): return <text>\nload()", "load()"
    ),
    "an attribute of a cached function": Case(
        "import functools\n@functools.cache\ndef load(): return 1\nload.table = <text>",
        "load.table",
    ),
    "an attribute of a partial": Case(
        "import functools\nPART = functools.partial(int, '1')\nPART.table = <text>", "PART.table"
    ),
    "an attribute of a logger": Case(
        "import logging\nLOG = logging.getLogger('t')\nLOG.table = <text>", "LOG.table"
    ),
    "an attribute of an enum's member": Case(
        "import enum\nclass Mode(enum.Enum):\n    A = 1\nMode.A.table = <text>", "Mode.A.table"
    ),
    "the value of an enum's member": Case(
        "import enum\nclass Mode(enum.Enum):\n    A = <text>", "Mode.A.value"
    ),
    "an attribute of a library's enum": Case(
        "import http\nhttp.HTTPStatus.OK.table = <text>\nOK = http.HTTPStatus.OK", "OK.table"
    ),
    "an attribute of an OrderedDict": Case(
        "import collections\nITEMS = collections.OrderedDict(a=1)\nITEMS.table = <text>",
        "ITEMS.table",
    ),
    "an attribute of an array": Case(
        "import numpy as np\nMASKED = np.ma.masked_array([1.0], [True])\nMASKED.table = <text>",
        "MASKED.table",
    ),
    "an attribute of a table": Case(
        "import pandas as pd\nTABLE = pd.DataFrame({'a': [1]})\n"
        "object.__setattr__(TABLE, 'table', <text>)",
        "TABLE.table",
    ),
    "an attribute of a layer": Case(
        "import tensorflow as tf\nLAYER = tf.keras.layers.Rescaling(2.0)\nLAYER.table = <text>",
        "LAYER.table",
    ),
    "an attribute of a layer that holds a function": Case(
        "import tensorflow as tf\nLAYER = tf.keras.layers.Lambda(lambda x: x)\n"
        "LAYER.table = <text>",
        "LAYER.table",
    ),
    "an attribute of a library's function": Case(
        "import json\nfrom json import dumps\ndumps.table = <text>", "dumps.table"
    ),
    "a class in the name of a library": Case(
        "class Held:\n    __module__ = 'json'\n    table = <text>", "Held.table"
    ),
    "an object in the name of a library": Case(
        "class Held:\n    __module__ = 'json'\n    def get(self): return self.table\n"
        "    table = <text>\nHELD = Held()",
        "HELD.get()",
    ),
    "a subclass in the name of NumPy": Case(
        "import numpy as np\nclass Held(np.ndarray):\n    __module__ = 'numpy'\n"
        "    table = <text>\nHELD = np.zeros(1).view(Held)",
        "HELD.table",
    ),
    "a subclass of Path": Case(
        "class Held(type(Path())):\n    table = <text>\nHELD = Held('a')", "HELD.table"
    ),
    "an attribute of a subclass of Path": Case(
        "class Held(type(Path())): pass\nHELD = Held('a')\nHELD.table = <text>", "HELD.table"
    ),
    "a subclass of Logger": Case(
        "import logging\nclass Held(logging.Logger):\n    table = <text>\nHELD = Held('a')",
        "HELD.table",
    ),
    "an object with settings": Case(
        "class Held:\n    def __init__(self): self.text = <text>\n"
        "    def settings(self): return {}\nHELD = Held()",
        "HELD.text",
    ),
    "a database behind a connection of one's own": Case(
        "import sqlite3\nclass Held:\n    def __init__(self):\n"
        "        self.db = sqlite3.connect(HERE / 'cfg.db', check_same_thread=False)\n"
        "    def settings(self): return {}\nHELD = Held()",
        "HELD.db.execute('select value from t').fetchone()[0]",
        "cfg.db",
    ),
    "an object that C code made in a module beside": Case("import beside", "beside.FORMAT.size"),
    "a file below an open folder": Case(
        "import os",
        "os.read(os.open('cfg.txt', os.O_RDONLY, dir_fd=os.open(HERE, os.O_RDONLY)), 9)",
    ),
    "a line of a file": Case("import linecache", "linecache.getline(str(HERE / 'cfg.txt'), 1)"),
    "a line that was read before": Case(
        "import linecache\nlinecache.getline(str(HERE / 'cfg.txt'), 1)",
        "linecache.getline(str(HERE / 'cfg.txt'), 1)",
    ),
    "a line of a Python file": Case(
        "import linecache", "linecache.getline(str(HERE / 'helper.py'), 1)", "helper.py"
    ),
    "what a mask hides": Case(
        "import numpy as np\nVALUES = np.loadtxt(HERE / 'cfg.csv')\n"
        "MASKED = np.ma.masked_array(VALUES, mask=np.ones_like(VALUES, bool))",
        "MASKED.data",
        "cfg.csv",
    ),
    "what a mask is filled with": Case(
        "import numpy as np\nVALUES = np.loadtxt(HERE / 'cfg.csv')\n"
        "MASKED = np.ma.masked_array([1.0], [True], fill_value=VALUES.sum())",
        "MASKED.filled()",
        "cfg.csv",
    ),
    "categories of pandas": Case(
        "import pandas as pd\nTEXT = <text>\n"
        "TABLE = pd.Series(pd.Categorical(['a'], categories=['a', TEXT]))",
        "TABLE.cat.categories[1]",
    ),
    "names of pandas": Case(
        "import pandas as pd\nTABLE = pd.DataFrame({'a': [1]})\nTABLE.columns.name = <text>",
        "TABLE.columns.name",
    ),
    "attributes of pandas": Case(
        "import pandas as pd\nTABLE = pd.DataFrame({'a': [1]})\nTABLE.attrs['a'] = <text>",
        "TABLE.attrs['a']",
    ),
    "long metadata of Arrow": Case(
        "import pyarrow as pa\nMETA = {'a': '-' * 500 + <text>}\n"
        "SCHEMA = pa.schema([('a', pa.int64())], metadata=META)",
        "SCHEMA.metadata[b'a']",
    ),
    "a time zone of one's own": Case(
        "import datetime\nclass Zone(datetime.tzinfo):\n    text = <text>\n"
        "    def utcoffset(self, when): return datetime.timedelta(minutes=len(self.text))\n"
        "    def tzname(self, when): return self.text\n"
        "    def __repr__(self): return 'Zone()'\n"
        "WHEN = datetime.datetime(2020, 1, 1, tzinfo=Zone())",
        "WHEN.tzname()",
    ),
    "a module loaded from a path": Case(
        "import importlib.util",
        "spec = importlib.util.spec_from_file_location('plugin', HERE / 'helper.py'); "
        "found = importlib.util.module_from_spec(spec); spec.loader.exec_module(found); "
        "found = found.VALUE",
        "helper.py",
    ),
    "a database opened by its URI": Case(
        "import sqlite3",
        "db = sqlite3.connect(f'file:{HERE}/cfg.db?mode=ro', uri=True); "
        "found = db.execute('select value from t').fetchone()[0]; db.close()",
        "cfg.db",
    ),
    "__import__": Case("", "__import__('helper').VALUE", "helper.py"),
    "importlib.import_module": Case(
        "import importlib, sys\nsys.path.insert(0, str(HERE))",
        "importlib.import_module('helper').VALUE",
        "helper.py",
    ),
    "import_module": Case(
        "from importlib import import_module\nimport sys\nsys.path.insert(0, str(HERE))",
        "import_module('helper').VALUE",
        "helper.py",
    ),
    "__import__ of a computed name": Case("", "__import__('hel' + 'per').VALUE", "helper.py"),
    "a path in a function": Case("", "Path('{outside}/cfg.txt').read_text()", "outside/cfg.txt"),
    "a path in a lambda": Case(
        "READ = lambda: Path('{outside}/cfg.txt').read_text()", "READ()", "outside/cfg.txt"
    ),
    "a path in a default": Case(
        "def load(path='{outside}/cfg.txt'): return Path(path).read_text()",
        "load()",
        "outside/cfg.txt",
    ),
    "a Path outside the folder": Case(
        "CFG = OUTSIDE / 'cfg.txt'", "CFG.read_text()", "outside/cfg.txt"
    ),
    "a text that is a path outside": Case(
        "CFG = str(OUTSIDE / 'cfg.txt')", "Path(CFG).read_text()", "outside/cfg.txt"
    ),
    "a Path inside the folder": Case("CFG = HERE / 'cfg.txt'", "CFG.read_text()"),
    "a neighbour": Case("", "(HERE / 'masks' / file.path).read_text()", "masks/a.bin"),
    "a neighbour among the inputs": Case("", "(HERE / 'raw' / 'b.bin').read_text()", "raw/b.bin"),
    "a neighbour, opened by os": Case(
        "import os", "os.read(os.open(HERE / 'masks' / file.path, os.O_RDONLY), 9)", "masks/a.bin"
    ),
    "a neighbour, in a thread": Case(
        "from concurrent.futures import ThreadPoolExecutor",
        "with ThreadPoolExecutor(1) as pool:\n"
        "            found = pool.submit((HERE / 'masks' / file.path).read_text).result()",
        "masks/a.bin",
    ),
    "a neighbour, the error hidden": Case(
        "def load(path):\n    try:\n        return path.read_text()\n"
        "    except BaseException:\n        return ''",
        "load(HERE / 'masks' / file.path)",
        "masks/a.bin",
    ),
    "a neighbour of a temporary file": Case(
        "import tempfile",
        "with tempfile.NamedTemporaryFile(dir=HERE):\n"
        "            found = (HERE / 'masks' / file.path).read_text()",
        "masks/a.bin",
    ),
    "a database that is opened": Case(
        "import sqlite3",
        "sqlite3.connect(HERE / 'cfg.db').execute('select value from t').fetchone()[0]",
        "cfg.db",
    ),
    "a relative path": Case("import os\nos.chdir(HERE)", "Path('cfg.txt').read_text()"),
    "code that is run": Case(
        "import runpy", "runpy.run_path(str(HERE / 'helper.py'))['VALUE']", "helper.py"
    ),
}


def put(path: Path, value: int) -> None:
    """Writes a file that holds a value."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".db":
        import sqlite3

        path.unlink(missing_ok=True)
        connection = sqlite3.connect(path)
        connection.execute("create table t (value integer)")
        connection.execute(f"insert into t values ({value})")
        connection.commit()
        connection.close()
        return
    texts = {
        ".json": json.dumps({"value": value}),
        ".ini": f"[a]\nvalue = {value}\n",
        ".csv": f"1 2 {value}\n",
        ".xml": f"<a><value>{value}</value></a>",
        ".py": f"VALUE = {value}\n",
    }
    path.write_text(texts.get(path.suffix, f"{'word ' * value}"))


def place(folder: Path, name: str) -> Path:
    """Where a case's file lies."""
    return folder.parent / name if name.startswith("outside/") else folder / name


def project(folder: Path, setup: str, found: str, *, options: str = "") -> Path:
    """Writes a recipe, and the two files that it reads."""
    for name in ("a", "b"):
        put(folder / "raw" / f"{name}.bin", 1)
        put(folder / "masks" / f"{name}.bin", 1)
    outside = str(folder.parent / "outside")
    body = found if "found = " in found else f"found = {found}"
    (folder / "beside.py").write_text(_BESIDE)
    text = textwrap.dedent(_RECIPE).format(setup=setup, body=body, options=options)
    text = text.replace("<text>", "(HERE / 'cfg.txt').read_text()")
    (folder / "recipe.py").write_text(text.replace("{outside}", outside))
    return folder / "recipe.py"


def surveyed(recipe: Path) -> Survey:
    """The survey of a recipe file, in a workspace of its own."""
    loaded = load_recipe_file(recipe)
    work = Workspace(str(recipe.parent / "work"))
    return take_survey(loaded, workspace=work, progress=Silent())


@pytest.fixture(autouse=True)
def _as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What recipes do to their process is undone."""
    import os
    import sys

    monkeypatch.setattr(sys, "path", list(sys.path))
    before = os.getcwd()
    yield
    os.chdir(before)
    for name in ("helper", "late"):
        sys.modules.pop(name, None)


def _fingerprint(recipe: Path) -> str:
    import linecache
    import sys

    linecache.clearcache()
    sys.modules.pop("helper", None)
    return surveyed(recipe).fingerprint


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_an_edited_file_is_noticed(tmp_path: Path, case: Case) -> None:
    folder = tmp_path / "project"
    edited = place(folder, case.file)
    put(edited, 1)
    recipe = project(folder, case.setup, case.found)
    refused = _refusal(recipe)
    if refused:
        assert any(way in refused for way in ("depends_on=[", "Write an import statement"))
        assert "read opened" not in refused or "masks" in refused or edited.name in refused
    else:
        before = _fingerprint(recipe)
        put(edited, 2)
        assert _fingerprint(recipe) != before
        put(edited, 1)
    # That the recipe declares another file changes nothing.
    recipe = project(folder, case.setup, case.found, options="depends_on=['masks/b.bin']")
    if not _refusal(recipe):
        before = _fingerprint(recipe)
        put(edited, 2)
        assert _fingerprint(recipe) != before
        put(edited, 1)
    declared = edited.parent if edited.parent.name == "masks" else edited
    recipe = project(folder, case.setup, case.found, options=f"depends_on=[{str(declared)!r}]")
    if "computed" in refused:
        assert "computed" in _refusal(recipe)
        return
    before = _fingerprint(recipe)
    put(edited, 2)
    assert _fingerprint(recipe) != before


def _refusal(recipe: Path) -> str:
    """Why a recipe is refused; empty where it is not."""
    try:
        _fingerprint(recipe)
    except RecipeError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("name", "named"),
    [("cfg.txt", "cfg.txt"), ("masks/a.txt", "masks/"), ("../beside/cfg.txt", "../beside/")],
)
def test_what_a_refusal_advises_helps(tmp_path: Path, name: str, named: str) -> None:
    folder = tmp_path / "project"
    put(folder / name, 1)
    body = f"found = (HERE / {name!r}).read_text()"
    assert f"depends_on=[{named!r}, …]" in _refusal(project(folder, "", body))
    assert not _refusal(project(folder, "", body, options=f"depends_on=[{named!r}]"))


OPAQUE = CASES["a database"][:2]
UNRELATED = "depends_on=['masks/b.bin']"


def test_files_read_while_loading_count_where_an_object_cannot_be_looked_into(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "project"
    put(folder / "cfg.db", 1)
    put(folder / "cfg.txt", 1)
    words = "\nimport late\nWORDS = (HERE / 'cfg.txt').read_text().split()"
    (folder / "late.py").write_text("import json, wave\nVALUE = 1\n")
    recipe = project(folder, OPAQUE[0] + words, OPAQUE[1], options=UNRELATED)
    before = surveyed(recipe)
    names = [name for name, _ in before.dependencies.entries]
    assert sorted(names) == ["cfg.db", "cfg.txt", "masks/b.bin"]
    # Nothing else does: no module, nothing that a library reads as it is imported.
    assert before.recipe.loaded_files is not None
    assert {Path(path).name for path in before.recipe.loaded_files} == {"cfg.db", "cfg.txt"}
    moved = tmp_path / "elsewhere" / "project"
    shutil.copytree(folder, moved, ignore=shutil.ignore_patterns("work"))
    assert surveyed(moved / "recipe.py").fingerprint == before.fingerprint
    put(folder / "cfg.txt", 2)
    changes = part_changes(*(_told(found) for found in (before, surveyed(recipe))))
    assert [(change.part, change.thing) for change in changes] == [("depends_on", "cfg.txt")]


def test_files_read_while_loading_count_by_value_where_values_can_be_seen(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    put(folder / "cfg.txt", 1)
    words = "WORDS = (HERE / 'cfg.txt').read_text().split()"
    recipe = project(folder, words, "found = WORDS", options=UNRELATED)
    before = _fingerprint(recipe)
    (folder / "cfg.txt").write_text("\n word")
    assert _fingerprint(recipe) == before


def test_a_file_that_changed_after_the_recipe_was_loaded_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    put(folder / "cfg.db", 1)
    recipe = project(folder, *OPAQUE, options="depends_on=['cfg.db']")
    loaded, work = load_recipe_file(recipe), Workspace(str(tmp_path / "work"))
    assert take_survey(loaded, workspace=work, progress=Silent()).fingerprint
    put(folder / "cfg.db", 2)
    with pytest.raises(RecipeError, match=r"read uses DB, a sqlite3.*cfg\.db.*reload the recipe"):
        take_survey(loaded, workspace=work, progress=Silent())


def test_an_object_of_a_recipe_that_no_file_holds_is_refused(tmp_path: Path) -> None:
    import sqlite3

    put(tmp_path / "raw" / "a.bin", 1)
    put(tmp_path / "cfg.db", 1)
    database = sqlite3.connect(tmp_path / "cfg.db", check_same_thread=False)

    def read(file: Any) -> Iterator[dict[str, Any]]:
        yield {"x": database.execute("select value from t").fetchone()[0]}

    source = ss.Files(str(tmp_path / "raw" / "*.bin"), read=read)
    recipe = ss.Recipe(name="t", source=source, depends_on=[tmp_path / "cfg.db"])
    work = Workspace(str(tmp_path / "work"))
    try:
        with pytest.raises(RecipeError, match=r"database .*sqlite3.*inside the function.*file of"):
            take_survey(recipe, workspace=work, progress=Silent())
    finally:
        database.close()


def test_caches_are_emptied_before_functions_are_watched(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    put(folder / "cfg.txt", 1)
    setup, body, _ = CASES["a cached function"]
    recipe = project(folder, setup, body, options="depends_on=['cfg.txt']")
    loaded, work = load_recipe_file(recipe), Workspace(str(tmp_path / "work"))
    found = []
    for value in (1, 2):
        put(folder / "cfg.txt", value)
        found.append(take_survey(loaded, workspace=work, progress=Silent()).fingerprint)
        (kept,) = (f.__globals__["load"] for f in functions_of(loaded.source))
        assert kept.cache_info().currsize == 0 or kept() == "word " * value
    assert found[0] != found[1]


@pytest.mark.parametrize("change", ["cfg.txt", "recipe.py"])
def test_a_source_of_ones_own_counts_by_what_it_holds(tmp_path: Path, change: str) -> None:
    folder = tmp_path / "project"
    put(folder / "cfg.txt", 1)
    put(folder / "raw" / "a.txt", 1)
    path = folder / "recipe.py"
    path.write_text(
        "import snapshard as ss\nfrom pathlib import Path\n"
        "class Mine(ss.TextFiles):\n"
        "    words = (Path(__file__).parent / 'cfg.txt').read_text()\n"
        "    def settings(self): return super().settings()\n"
        "    def more(self): return 1\n"
        "recipe = ss.Recipe(name='t', source=Mine('raw/*.txt'))\n"
    )
    before = _fingerprint(path)
    changed = folder / change
    changed.write_text(changed.read_text().replace("return 1", "return 2") + "\n")
    assert _fingerprint(path) != before


PLAIN = ("", "found = 1")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("depends_on='masks'", r"depends_on='masks' is not a list"),
        ("depends_on=['nowhere.txt']", r"'nowhere.txt', which does not exist \(looked for /.*text"),
        ("depends_on=['nowhere/*.txt']", r"'nowhere/\*.txt', which does not exist"),
        ("depends_on=['empty']", r"'empty', which holds no file"),
        ("depends_on=['memory://nowhere/x']", "memory://nowhere/x, which does not exist"),
        ("depends_on=[iter('ab')]", r"depends_on\[0\] uses depends_on\[0\], a builtins.str_"),
    ],
)
def test_what_depends_on_refuses(tmp_path: Path, options: str, message: str) -> None:
    recipe = project(tmp_path / "project", *PLAIN, options=options)
    (tmp_path / "project" / "empty").mkdir()
    with pytest.raises(RecipeError, match=message):
        surveyed(recipe)


@pytest.mark.parametrize(
    ("entry", "change"),
    [
        ("'masks'", "masks/a.bin"),
        ("'masks'", "masks/new.bin"),
        ("'mas*/*.bin'", "masks/a.bin"),
        ("'masks/a.bin'", "masks/a.bin"),
        ("HERE / 'masks' / 'a.bin'", "masks/a.bin"),
        ("{'model': HERE / 'masks' / 'a.bin'}", "masks/a.bin"),
        ("OUTSIDE / 'cfg.txt'", "outside/cfg.txt"),
        ("'../outside/cfg.txt'", "outside/cfg.txt"),
        ("(HERE / 'masks' / 'a.bin').as_uri()", "masks/a.bin"),
        ("'memory://depends/a.bin'", "memory://depends/a.bin"),
        ("'memory://depends/*.bin'", "memory://depends/a.bin"),
        ("len((HERE / 'masks' / 'a.bin').read_text())", "masks/a.bin"),
        ("((HERE / 'masks' / 'a.bin').read_text(),)", "masks/a.bin"),
    ],
)
def test_what_depends_on_may_name(tmp_path: Path, entry: str, change: str) -> None:
    import fsspec

    folder = tmp_path / "project"
    put(tmp_path / "outside" / "cfg.txt", 1)
    with fsspec.open("memory://depends/a.bin", "wb") as file:
        file.write(b"1")
    recipe = project(folder, *PLAIN, options=f"depends_on=[{entry}]")
    before = surveyed(recipe)
    # Neither the place of the project nor what it does not name counts.
    moved = tmp_path / "elsewhere" / "project"
    moved.parent.mkdir()
    shutil.copytree(tmp_path / "outside", moved.parent / "outside")
    shutil.copytree(folder, moved)
    put(moved / "unrelated.txt", 1)
    assert surveyed(moved / "recipe.py").fingerprint == before.fingerprint
    if "://" in change:
        with fsspec.open(change, "wb") as file:
            file.write(b"2")
    else:
        put(place(folder, change), 2)
    after = surveyed(recipe)
    assert after.fingerprint != before.fingerprint
    assert after.stage_digests[0] != before.stage_digests[0]
    changes = part_changes(*(_told(found) for found in (before, after)))
    assert [change.part for change in changes] == ["depends_on"]


def test_recipes_without_dependencies_keep_their_parts(tmp_path: Path) -> None:
    survey = surveyed(project(tmp_path / "project", *PLAIN))
    assert isinstance(survey.parts.prepare, dict)
    assert "depends_on" not in survey.parts.prepare


def _told(survey: Survey) -> FingerprintFacts:
    return FingerprintFacts(parts=survey.parts.to_json(), details=fingerprint_details(survey))


_STEP = """
    import snapshard as ss
    import tensorflow as tf
    from pathlib import Path
    HERE = Path(__file__).resolve().parent

    {step}

    def read(file):
        for number in range(150):
            # Behind the records that types are inferred from.
            value = {value} if number == 149 else 7
            yield {{"name": file.path, "n": value}}

    recipe = ss.Recipe(
        name="t", source=ss.Files("raw/*.bin", read=read), prepare=[{prepare}], {options}
    )
"""

# A step's definition, how prepare= names it, and what the reader yields.
STEPS: dict[str, tuple[str, str, str]] = {
    "neighbour": ("", "", "int((HERE / 'masks' / file.path).read_text())"),
    "Python step": (
        """
    def looked_up(record):
        try:
            return {"n": int((HERE / "masks" / "a.bin").read_text())}
        except ValueError:
            return {"n": 0}
    """,
        "ss.records.map_python(looked_up, {'n': ss.Scalar('int64')})",
        "7",
    ),
    "traced step": (
        """
    def scaled(record):
        return {"n": record["n"] // 7 * int((HERE / "masks" / "a.bin").read_text())}
    """,
        "scaled",
        "7",
    ),
    "own step": (
        """
    class Scale:
        def settings(self):
            return {}

        def features(self, features):
            return features

        def apply(self, record):
            number = int((HERE / "masks" / "a.bin").read_text())
            return {**record, "n": record["n"] // 7 * number}
    """,
        "Scale()",
        "7",
    ),
    "graph": (
        """
    def paired(record):
        path = tf.strings.join([str(HERE / "masks"), "/", record["name"]])
        return {"n": tf.strings.to_number(tf.io.read_file(path), tf.int64)}
    """,
        "paired",
        "7",
    ),
    "constant in a graph": (
        """
    def scaled(record):
        text = tf.io.read_file(str(HERE / "masks" / "a.bin"))
        return {"n": record["n"] // 7 * tf.strings.to_number(text, tf.int64)}
    """,
        "scaled",
        "7",
    ),
}


@pytest.mark.parametrize(("step", "prepare", "value"), STEPS.values(), ids=STEPS)
def test_a_file_that_a_step_reads_is_refused_or_declared(
    tmp_path: Path, step: str, prepare: str, value: str
) -> None:
    folder = tmp_path / "project"
    put(folder / "raw" / "a.bin", 1)
    put(folder / "masks" / "a.bin", 1)
    (folder / "masks" / "a.bin").write_text("7")

    def recipe(options: str) -> ss.Recipe:
        text = _STEP.format(step=step, prepare=prepare, value=value, options=options)
        (folder / "recipe.py").write_text(textwrap.dedent(text))
        return load_recipe_file(folder / "recipe.py")

    with pytest.raises(RecipeError, match=r"masks/a\.bin|reads files in .*depends_on=\[.masks/"):
        read_records(recipe(""), tmp_path)
    found = []
    for content in ("7", "8"):
        (folder / "masks" / "a.bin").write_text(content)
        read = read_records(recipe("depends_on=['masks/']"), tmp_path)
        assert len(read.records) == 150
        found.append((read.fingerprint, max(record["n"] for record in read.records.values())))
    assert found[0][0] != found[1][0]
    assert [value for _, value in found] == [7, 8]


@pytest.mark.parametrize("named", ["depends_on=['masks/']", ""])
def test_a_file_that_changes_after_the_survey_stops_what_uses_it(
    tmp_path: Path, named: str
) -> None:
    """Declared, or named by a path in the recipe's code."""
    folder = tmp_path / "project"
    mask = "HERE / 'masks' / file.path" if named else "MASK"
    recipe = project(
        folder, "MASK = HERE / 'masks' / 'a.bin'", f"found = ({mask}).read_text()", options=named
    )
    survey = survey_of(load_recipe_file(recipe), tmp_path)
    survey.held.check()
    put(folder / "masks" / "a.bin", 2)
    changed = r"masks/a\.bin, which the recipe depends on, changed"
    with pytest.raises(StorageError, match=changed):
        survey.held.check()
    with pytest.raises(StorageError, match=changed):
        read_blocks(survey, tmp_path)
    again = survey_of(load_recipe_file(recipe), tmp_path)
    assert again.fingerprint != survey.fingerprint
    assert read_blocks(again, tmp_path).records["a.bin#0"]["y"] == b"word word "


def test_what_a_function_writes_it_may_read(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    put(folder / "raw" / "a.bin", 1)
    (folder / "recipe.py").write_text(
        textwrap.dedent(
            """
            import json, subprocess, sys, tempfile
            from pathlib import Path
            import snapshard as ss
            ROOT = Path(__file__).resolve().parent / "raw"

            def read(file):
                import late
                with tempfile.TemporaryDirectory() as folder:
                    path = Path(folder) / "unpacked.json"
                    path.write_text(json.dumps(late.VALUE))
                    copied = Path(folder) / "copied"
                    code = "import shutil, sys; shutil.copyfile(*sys.argv[1:])"
                    subprocess.run([sys.executable, "-c", code, str(path), str(copied)], check=True)
                    with tempfile.NamedTemporaryFile("w+") as scratch:
                        scratch.write("1")
                        scratch.flush()
                        number = int(Path(scratch.name).read_text())
                    value = json.loads(copied.read_text())
                    with file.open() as opened:
                        length = len(opened.read())
                    yield {
                        "x": value + number,
                        "length": length,
                        "same": len((ROOT / file.path).read_bytes()),
                        "bytes": len(file.read()),
                        "zone": str(__import__("zoneinfo").ZoneInfo("Europe/Berlin")),
                    }

            recipe = ss.Recipe(name="t", source=ss.Files("raw/*.bin", read=read))
            """
        )
    )
    (folder / "late.py").write_text(
        "import json\nfrom pathlib import Path\n"
        "VALUE = json.loads((Path(__file__).parent / 'late.json').read_text())\n"
    )
    for number in (5, 6):
        (folder / "late.json").write_text(str(number))
        (record,) = read_records(load_recipe_file(folder / "recipe.py"), tmp_path).records.values()
        assert record["x"] == number + 1


def test_a_library_on_the_path_is_hashed_once_and_named_if_it_takes_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package, folder = tmp_path / "libraries" / "onpath", tmp_path / "project"
    package.mkdir(parents=True)
    for name in ("a", "b"):
        (package / f"{name}.py").write_text(f"def of(x):\n    return x + '{name}'\n")
    (package / "__init__.py").write_text("from . import a, b\n")
    body = "import onpath; found = onpath.a.of(onpath.b.of(''))"
    recipe = project(folder, "", body, options="prepare=[lambda record: record]")
    monkeypatch.syspath_prepend(str(package.parent))
    monkeypatch.setattr(survey_module, "_SLOW_S", 0.0)

    walks: dict[Any, int] = collections.Counter()
    parsed: dict[str, int] = collections.Counter()
    walk, parse = CodeWalk.digest, ast.parse
    warnings: list[str] = []

    def count_walk(self: CodeWalk, root: Any, **options: Any) -> str:
        walks[root.__qualname__] += 1
        return walk(self, root, **options)

    def count_parse(text: str) -> ast.Module:
        parsed[text] += 1
        return parse(text)

    class Recorded(Silent):
        def warn(self, message: str) -> None:
            warnings.append(message)

    loaded = load_recipe_file(recipe)
    monkeypatch.setattr(CodeWalk, "digest", count_walk)
    monkeypatch.setattr(
        user_code, "ast", types.SimpleNamespace(**{**vars(ast), "parse": count_parse})
    )
    work = Workspace(str(tmp_path / "work"))
    survey = take_survey(loaded, workspace=work, progress=Recorded())
    # Before functions run and after, because what they hold may have changed.
    assert walks == {"read": 1, "<lambda>": 2}
    stage(survey.recipe, work, survey.code)
    fingerprint_details(survey)
    # Once more each for workers and for the names of the parts.
    assert walks == {"read": 3, "<lambda>": 3}
    assert {text: n for text, n in parsed.items() if n > 1} == {}
    assert sum("def of" in text for text in parsed) == 2
    (warning,) = warnings
    assert f"3 Python files, 2 of them in {package}. A library outside site-packages" in warning
    assert "pip install, without -e" in warning
