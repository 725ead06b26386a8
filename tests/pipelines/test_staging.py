"""Recipes from files: how they are found and read, and how their code reaches other processes."""

import ast
import dataclasses
import inspect
import io
import os
import pickle
import subprocess
import sys
import textwrap
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import snapshard as ss
from snapshard.pipelines.recipe import shipping as staging
from snapshard.pipelines.recipe.shipping import carry, load_recipe_file, pack, stage, unpack
from snapshard.schemas.errors import RecipeError, StorageError
from snapshard.schemas.naming import Workspace
from snapshard.schemas.recipe import Recipe

_RECIPE = """
import snapshard as ss
{imports}

def step(record):
    return {body}

recipe = ss.Recipe(name="{name}", source=ss.ImageFolder("data"), prepare=[step])
"""


def _write(folder: Path, **files: str) -> Path:
    """Writes Python files, `a__b` as a/b.py; returns the one called recipe."""
    for name, text in files.items():
        path = folder / (name.replace("___", "/").replace("//", "/__") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    return folder / "recipe.py"


def _recipe_text(*, imports: str = "", body: str = "record", name: str = "test") -> str:
    return _RECIPE.format(imports=textwrap.dedent(imports), body=body, name=name)


def _step(recipe: Recipe) -> Any:
    return recipe.prepare[0]


_SERVER = """
import pickle, sys, traceback
while True:
    content, expression = pickle.load(sys.stdin.buffer)
    try:
        recipe = pickle.loads(content).load()
        answer = "", repr(eval(expression))
    except BaseException:
        answer = traceback.format_exc(), ""
    pickle.dump(answer, sys.stdout.buffer)
    sys.stdout.buffer.flush()
"""

_Elsewhere = Callable[[Any, str], Any]


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[_Elsewhere]:
    """What an expression of a loaded recipe gives in a process that cannot import this module."""
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", _SERVER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd="/",
    )
    assert process.stdin is not None
    assert process.stdout is not None

    def evaluate(handle: Any, expression: str) -> Any:
        content = handle if isinstance(handle, bytes) else pickle.dumps(handle)
        pickle.dump((content, expression), process.stdin)
        process.stdin.flush()
        failure, value = pickle.load(process.stdout)
        assert not failure, failure
        return ast.literal_eval(value)

    yield evaluate
    process.stdin.close()
    process.stdout.close()
    process.kill()
    process.wait()


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace(str(tmp_path / "workspace"))


def test_the_recipe_and_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _write(tmp_path / "project", recipe=_recipe_text())
    monkeypatch.chdir(tmp_path)
    recipe = load_recipe_file("project/recipe.py")
    assert recipe.name == "test"
    assert recipe.folder == str(path.parent)


def test_the_folder_is_the_files_where_a_helper_makes_the_recipe(tmp_path: Path) -> None:
    path = _write(
        tmp_path,
        recipe="from parts.make import make\nrecipe = make('made')",
        parts___make="""
            import snapshard as ss
            def make(name):
                return ss.Recipe(name=name, source=ss.ImageFolder("data"))
        """,
    )
    recipe = load_recipe_file(path)
    assert (recipe.name, recipe.folder) == ("made", str(tmp_path))


def test_the_only_recipe_may_have_any_name(tmp_path: Path) -> None:
    text = _recipe_text().replace("recipe = ", "digits = ") + "\nalso = digits\n"
    assert load_recipe_file(_write(tmp_path, recipe=text)).name == "test"


@pytest.mark.parametrize(
    "name", ["my-recipe.py", "recipe.v2.py", "1.py", "class.py", "rezept ä.py"]
)
def test_the_file_may_have_any_name(
    tmp_path: Path, name: str, workspace: Workspace, elsewhere: _Elsewhere
) -> None:
    (tmp_path / name).write_text(_recipe_text(imports="import helpers", body="helpers.f(record)"))
    (tmp_path / "helpers.py").write_text("def f(x): return x + 1")
    recipe = load_recipe_file(tmp_path / name)
    assert _step(recipe)(1) == 2
    assert elsewhere(stage(recipe, workspace), "recipe.prepare[0](1)") == 2


@pytest.mark.parametrize(
    ("imports", "body"),
    [
        ("import helpers", "helpers.f(record)"),
        ("import helpers as h", "h.f(record)"),
        ("from helpers import f as g", "g(record)"),
        ("from helpers import *", "f(record)"),
        ("from . import helpers", "helpers.f(record)"),
        ("from .helpers import f", "f(record)"),
        ("import package.inner", "package.inner.f(record)"),
        ("import package.inner as p", "p.f(record)"),
        ("from package import inner", "inner.f(record)"),
        ("from package.inner import f", "f(record)"),
        ("from package import f", "f(record)"),
        ("import package", "package.f(record)"),
        ("from folder.inner import f", "f(record)"),
        ("from folder import inner", "inner.f(record)"),
        ("def late(x):\n    import helpers\n    return helpers.f(x)", "late(record)"),
        ("def late(x):\n    from package.inner import f\n    return f(x)", "late(record)"),
        ("def late(x):\n    from . import helpers as h\n    return h.f(x)", "late(record)"),
    ],
)
def test_modules_beside_the_recipe_are_found_here_and_elsewhere(
    tmp_path: Path, workspace: Workspace, imports: str, body: str, elsewhere: _Elsewhere
) -> None:
    path = _write(
        tmp_path / "project",
        recipe=_recipe_text(imports=imports, body=body),
        helpers="import deeper\ndef f(x): return deeper.g(x) + 1",
        deeper="def g(x): return x * 10",
        package_____init__="from .inner import f",
        package___inner="from helpers import f as h\ndef f(x): return h(x)",
        folder___inner="from .other import f",
        folder___other="import helpers\ndef f(x): return helpers.f(x)",
    )
    before = list(sys.path)
    recipe = load_recipe_file(path)
    assert _step(recipe)(4) == 41
    assert sys.path == before
    assert "helpers" not in sys.modules
    assert "package" not in sys.modules
    handle = stage(recipe, workspace)
    (tmp_path / "project").rename(tmp_path / "gone")
    assert elsewhere(handle, "recipe.prepare[0](4)") == 41
    assert elsewhere(handle, "recipe.folder") == str(tmp_path / "project")


def test_two_recipes_with_equally_named_helpers(
    tmp_path: Path, workspace: Workspace, elsewhere: _Elsewhere
) -> None:
    recipes = []
    for value in (1, 2):
        path = _write(
            tmp_path / f"project{value}",
            recipe=_recipe_text(imports="import helpers", body="helpers.f()").replace(
                "def step(record)", "def step(record=None)"
            ),
            helpers=f"VALUE = {value}\ndef f():\n    import late\n    return VALUE, late.VALUE",
            late=f"VALUE = {value * 10}",
        )
        recipes.append(load_recipe_file(path))
    assert [_step(recipe)() for recipe in recipes] == [(1, 10), (2, 20)]
    handles = [stage(recipe, workspace) for recipe in recipes]
    assert [elsewhere(handle, "recipe.prepare[0]()") for handle in handles] == [(1, 10), (2, 20)]


def test_installed_modules_are_not_taken_from_beside(tmp_path: Path) -> None:
    (tmp_path / "numpy").mkdir()  # a folder of data
    (tmp_path / "snapshard").mkdir()
    (tmp_path / "snapshard" / "__init__.py").write_text("raise AssertionError('the checkout')")
    path = _write(
        tmp_path, recipe=_recipe_text(imports="import numpy", body="numpy.asarray(record)")
    )
    assert _step(load_recipe_file(path))([1]).tolist() == [1]


def test_a_file_is_read_anew_each_time(tmp_path: Path) -> None:
    path = _write(tmp_path, recipe=_recipe_text(imports="import h", body="h.N"), h="N = 1")
    first = load_recipe_file(path)
    (tmp_path / "h.py").write_text("N = 2")
    assert (_step(first)(0), _step(load_recipe_file(path))(0)) == (1, 2)


def test_what_is_staged_is_what_was_loaded(
    tmp_path: Path, workspace: Workspace, elsewhere: _Elsewhere
) -> None:
    path = _write(tmp_path, recipe=_recipe_text(imports="import h", body="h.N"), h="N = 1")
    recipe = load_recipe_file(path)
    path.write_text("broken(")
    (tmp_path / "h.py").write_text("N = 2")
    assert elsewhere(stage(recipe, workspace), "recipe.prepare[0](0)") == 1
    assert "h.N" in inspect.getsource(_step(recipe))


def test_source_text_is_there_in_a_worker(
    tmp_path: Path, workspace: Workspace, elsewhere: _Elsewhere
) -> None:
    path = _write(
        tmp_path,
        recipe=_recipe_text(imports="from h import f", body="f"),
        h="""
        def f(x):
            return x  # a comment
    """,
    )
    handle = stage(load_recipe_file(path), workspace)
    shown = "__import__('inspect').getsource(recipe.prepare[0](0))"
    assert "# a comment" in elsewhere(handle, shown)


def test_encoding_cookies_are_honoured(
    tmp_path: Path, workspace: Workspace, elsewhere: _Elsewhere
) -> None:
    text = "# -*- coding: latin-1 -*-\n" + _recipe_text(imports="import h", body="'é' + h.S")
    (tmp_path / "recipe.py").write_bytes(text.encode("latin-1"))
    (tmp_path / "h.py").write_bytes("﻿S = 'ü'\r\n".encode())
    recipe = load_recipe_file(tmp_path / "recipe.py")
    assert _step(recipe)(0) == "éü"
    assert elsewhere(stage(recipe, workspace), "recipe.prepare[0](0)") == "éü"


def _archive(workspace: Workspace) -> dict[str, bytes]:
    [path] = Path(workspace.root).rglob("*.zip")
    return unpack(path.read_bytes())


def test_only_what_is_imported_is_staged(tmp_path: Path, workspace: Workspace) -> None:
    path = _write(
        tmp_path,
        recipe=_recipe_text(imports="import used, json\nfrom package import inner"),
        used="def f():\n    import late",
        late="from package import *",
        unused="SECRET = 1",
        package_____init__="",
        package___inner="",
        package___other="",
        package___deeper___unused="",
    )
    (tmp_path / "data").mkdir()
    (tmp_path / "notes.txt").write_text("private")
    stage(load_recipe_file(path), workspace)
    assert sorted(_archive(workspace)) == [
        "late.py",
        "package/__init__.py",
        "package/inner.py",
        "package/other.py",
        "recipe.py",
        "used.py",
    ]


def test_the_archive_is_the_same_bytes_wherever_and_whenever(
    tmp_path: Path, workspace: Workspace
) -> None:
    for place, order in (("a", ["recipe", "h"]), ("b", ["h", "recipe"])):
        files = {"recipe": _recipe_text(imports="import h"), "h": "N = 1"}
        path = _write(tmp_path / place, **{name: files[name] for name in order})
        os.utime(path, (len(order), 1_000_000))
        stage(load_recipe_file(path), workspace)
    assert sorted(_archive(workspace)) == ["h.py", "recipe.py"]


def test_pack_is_a_plain_zip_of_fixed_bytes() -> None:
    files = {"b.py": b"2", "a/c.py": b"1"}
    assert pack(files) == pack(dict(reversed(files.items())))
    assert unpack(pack(files)) == files
    with zipfile.ZipFile(io.BytesIO(pack(files))) as archive:
        assert archive.testzip() is None


def test_the_driver_uses_the_live_object(tmp_path: Path, workspace: Workspace) -> None:
    recipe = load_recipe_file(_write(tmp_path, recipe=_recipe_text()))
    assert stage(recipe, workspace).load() is recipe
    assert pickle.loads(pickle.dumps(stage(recipe, workspace))).load() is recipe
    assert carry(recipe).load() is recipe


def test_too_much_code_is_refused(tmp_path: Path, workspace: Workspace) -> None:
    path = _write(tmp_path, recipe=_recipe_text(imports="import big"), big=f"X = {'1' * 3000!r}")
    with pytest.raises(RecipeError, match=r"the largest big\.py with 3,006.*2,000 are allowed"):
        stage(load_recipe_file(path), workspace, max_bytes=2000)


def test_a_damaged_archive_is_told(tmp_path: Path, workspace: Workspace) -> None:
    handle: Any = stage(load_recipe_file(_write(tmp_path, recipe=_recipe_text())), workspace)
    handle.folder = "elsewhere"  # so that it is not the live one
    Path(handle.url).write_bytes(b"damaged")
    with pytest.raises(StorageError, match=r"\.zip is damaged"):
        handle.load()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\n", "has no recipe. Write recipe = ss.Recipe"),
        ("recipe = 3\n", "recipe is 'int', expected an ss.Recipe"),
        ("def f(:\n  pass\n", r"recipe.py line 1: .*: def f\(:"),
        ("\n\nraise KeyError('a b')\n", r"recipe.py line 3: KeyError: 'a b'"),
        ("import h\nh.fail()\n", r"/h.py line 3: ZeroDivisionError: division by zero"),
        ("import broken\n", r"/broken.py line 2: .*: \)"),
        ("import nowhere\n", "No module named 'nowhere'. Install it, or put nowhere.py into"),
        ("from h import missing\n", "cannot import name 'missing' from 'h'"),
        ("from . import missing\n", "cannot import name 'missing'"),
        (
            "import importlib\nimportlib.import_module('h')\n",
            "It is next to the recipe: write `import h`",
        ),
        ("import sys\nsys.exit(3)\n", r"ended the program .*sys.exit, code 3"),
        (
            "import snapshard as ss\nss.Splits(train=0.5)\n",
            r"recipe.py line 2: Splits: the fractions add up to 0.5",
        ),
        (
            "from snapshard.pipelines.recipe.shipping import refuse_while_loading\n"
            "refuse_while_loading('ss.build')\n",
            r'recipe.py line 2: ss.build is called .*__name__ == "__main__"',
        ),
        ("import recipe\n", "recipe is 'module', expected an ss.Recipe"),
        ("x = '\0'\n", "null byte"),
    ],
)
def test_what_is_wrong_with_a_file(tmp_path: Path, text: str, message: str) -> None:
    path = _write(tmp_path, recipe=text, h="def fail():\n    # so\n    1 / 0", broken="\n)")
    before = set(sys.modules)
    with pytest.raises(RecipeError, match=message) as caught:
        load_recipe_file(path)
    assert "_snapshard_recipe" not in str(caught.value)
    assert not [n for n in set(sys.modules) - before if n.startswith("_snapshard_recipe")] or (
        "recipe" in message
    )


def test_several_recipes_are_named(tmp_path: Path) -> None:
    text = _recipe_text().replace("recipe = ", "one = ")
    text += 'two = ss.Recipe(name="two", source=one.source)\n'
    with pytest.raises(RecipeError, match=r"several recipes: one, two\. Name the one to build"):
        load_recipe_file(_write(tmp_path, recipe=text))


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"none\.py does not exist"):
        load_recipe_file(tmp_path / "none.py")
    with pytest.raises(RecipeError, match="is a folder"):
        load_recipe_file(tmp_path)


def test_loading_may_be_tried_again_after_an_error(tmp_path: Path) -> None:
    path = _write(tmp_path, recipe="raise ValueError")
    with pytest.raises(RecipeError):
        load_recipe_file(path)
    staging.refuse_while_loading("ss.build")
    path.write_text(_recipe_text())
    assert load_recipe_file(path).name == "test"


def _factory(factor: int) -> Recipe:
    helper = ModuleType("unused")

    def step(record: Any) -> Any:
        return record * factor + _OFFSET

    del helper
    return ss.Recipe(name="made", source=ss.ImageFolder("data"), prepare=[step])


_OFFSET = 7


@pytest.mark.slow
def test_a_recipe_made_in_a_function_is_carried(
    tmp_path: Path, workspace: Workspace, elsewhere: _Elsewhere
) -> None:
    handle = stage(_factory(3), workspace)
    assert handle.load().prepare[0](10) == 37  # type: ignore[operator]
    # This test's module cannot be imported there.
    assert elsewhere(handle, "recipe.prepare[0](10)") == 37
    assert not list(tmp_path.rglob("*.zip"))


@pytest.mark.slow
def test_a_changed_copy_of_a_recipe_is_carried(
    tmp_path: Path, workspace: Workspace, elsewhere: _Elsewhere
) -> None:
    path = _write(
        tmp_path,
        recipe=_recipe_text(imports="import h", body="h.f(record)"),
        h="def f(x): return -x",
    )
    changed = dataclasses.replace(load_recipe_file(path), seed=5)
    handle = stage(changed, workspace)
    assert elsewhere(handle, "(recipe.seed, recipe.prepare[0](2))") == (5, -2)


def test_what_cannot_be_carried_is_refused_only_elsewhere(
    tmp_path: Path, elsewhere: _Elsewhere
) -> None:
    with open(tmp_path / "file", "w") as file:

        def step(record: Any) -> Any:
            return file.name

        handle = carry(ss.Recipe(name="a", source=ss.ImageFolder("data"), prepare=[step]))
        content = pickle.dumps(handle)
    assert pickle.loads(content).load().prepare[0](0) == str(tmp_path / "file")
    with pytest.raises(AssertionError, match="RecipeError: The recipe cannot be sent to a worker"):
        elsewhere(content, "0")


@pytest.mark.slow
@pytest.mark.parametrize("with_file", [True, False])
def test_a_script_builds_with_what_it_defines(
    tmp_path: Path, with_file: bool, elsewhere: _Elsewhere
) -> None:
    script = """
        import os, pickle, sys
        import snapshard as ss
        from snapshard.pipelines.recipe.shipping import stage
        from snapshard.schemas.naming import Workspace
        {imports}
        SCALE = 3
        class Step:
            def __init__(self, n): self.n = n
            def __call__(self, record): return record * SCALE + self.n{call}
        recipe = ss.Recipe(name="s", source=ss.ImageFolder("data"), prepare=[Step(4)])
        sys.stdout.buffer.write(pickle.dumps(stage(recipe, Workspace("w"))))
    """
    text = textwrap.dedent(script).format(
        imports="import helpers" if with_file else "", call=" + helpers.N" if with_file else ""
    )
    (tmp_path / "helpers.py").write_text("N = 100")
    (tmp_path / "script.py").write_text(text)
    command = ["script.py"] if with_file else ["-"]
    done = subprocess.run(
        [sys.executable, *command],
        input=None if with_file else text.encode(),
        cwd=tmp_path,
        capture_output=True,
        check=True,
    )
    assert elsewhere(done.stdout, "recipe.prepare[0](1)") == (107 if with_file else 7)


def test_what_changes_between_processes_is_refused(
    tmp_path: Path, workspace: Workspace, elsewhere: _Elsewhere
) -> None:
    text = _recipe_text(
        imports="""
            from pathlib import Path
            WORDS = (Path(__file__).parent / "words.txt").read_text()
        """,
        body="WORDS",
    )
    path = _write(tmp_path, recipe=text)
    (tmp_path / "words.txt").write_text("one")
    handle = stage(load_recipe_file(path), workspace)
    assert elsewhere(handle, "recipe.prepare[0](0)") == "one"
    (tmp_path / "words.txt").write_text("two")
    handle = stage(load_recipe_file(path), workspace)
    (tmp_path / "words.txt").write_text("three")
    with pytest.raises(
        AssertionError, match=r"recipe\.py: prepare\[0\] is not the same in a worker.*__getstate__"
    ):
        elsewhere(handle, "0")


def test_all_kinds_of_code_are_the_same_in_a_worker(
    tmp_path: Path, workspace: Workspace, elsewhere: _Elsewhere
) -> None:
    text = """
        import dataclasses, enum, functools, string
        import snapshard as ss
        import helpers
        FORMATTER = string.Formatter()
        class Mode(enum.Enum):
            A = 1
        @dataclasses.dataclass
        class Step:
            n: int
            mode: Mode = Mode.A
            def __call__(self, record):
                return helpers.f(record) + self.n
            @property
            def twice(self):
                return self.n * 2
        def made(n):
            class Local:
                @staticmethod
                def run(x):
                    return x + n
            return Local.run
        def late(x):
            import late_helpers
            return late_helpers.TABLE, FORMATTER
        add = [lambda x: x + 1, lambda x: x + 2]
        recipe = ss.Recipe(
            name="test",
            source=ss.ImageFolder("data"),
            prepare=[Step(3), made(4), late, *add, functools.partial(late), Step(5).__call__],
        )
    """
    path = _write(
        tmp_path, recipe=text, helpers="def f(x): return -x", late_helpers="TABLE = {'a': 1}"
    )
    handle = stage(load_recipe_file(path), workspace)
    assert elsewhere(handle, "[step(1) for step in recipe.prepare[3:5]]") == [2, 3]
