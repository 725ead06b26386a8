"""The package as a whole: what it loads, what it ships, which room may import which."""

import ast
import doctest
import functools
import graphlib
import importlib
import os
import pkgutil
import re
import resource
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import snapshard

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("schemas", "transforms", "pipelines", "runners")
ROOT_MODULES = {"__init__", "__main__", "cli", "cli_options", "startup_noise", "terminal"}

# An arrow that runs back up is what is not listed here. `pipelines.engines` alone imports a runner.
MAY_IMPORT = {
    "schemas": {"schemas"},
    "transforms": {"schemas", "transforms"},
    "pipelines": {"schemas", "transforms", "pipelines"},
    "runners": {"schemas", "runners"},
    "pipelines.engines": {"schemas", "runners"},
    "__init__": {*ROOMS},
    "__main__": {"cli"},
    "cli": {*ROOMS, "cli_options", "startup_noise", "terminal"} - {"runners"},
    "cli_options": {*ROOMS, "terminal"} - {"runners"},
    "startup_noise": set(),
    "terminal": {"schemas", "transforms", "pipelines"},
}
# In pipelines/, Beam is for the `job.py` of each step, and for these.
IMPORT_BEAM = {
    "pipelines/operate/check_runner.py",  # runs a small job of its own
    "pipelines/operate/flex_template.py",  # is a job of its own, which runs a build
    "pipelines/recipe/shipping.py",  # only Beam's copy of cloudpickle
}
SLOW_TO_LOAD = ("tensorflow", "apache_beam", "tensorflow_transform", "tfx_bsl")


def _module_files() -> list[Path]:
    in_rooms = [path for room in ROOMS for path in (ROOT / room).rglob("*.py")]
    return sorted([*ROOT.glob("*.py"), *in_rooms])


def _module_name(path: Path) -> str:
    """Dotted name below the package: `pipelines.build`; `__init__` for the package itself."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if len(parts) > 1 and parts[-1] == "__init__" else parts)


@functools.cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@functools.cache
def _imports(path: Path) -> list[tuple[ast.stmt, str | None]]:
    """Each import of a module, with the module it names below the package (None: outside it)."""
    return [*_find_imports(path)]


def _find_imports(path: Path) -> Iterator[tuple[ast.stmt, str | None]]:
    parts = path.relative_to(ROOT).parts[:-1]
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                top, _, below = alias.name.partition(".")
                yield node, (below or "__init__") if top == "snapshard" else None
        elif isinstance(node, ast.ImportFrom):
            if node.level == 0:
                top, _, below = (node.module or "").partition(".")
                yield node, (below or "__init__") if top == "snapshard" else None
                continue
            base = parts[: len(parts) - node.level + 1]
            found = [*base, *(node.module.split(".") if node.module else [])]
            for alias in node.names:
                inner = ROOT.joinpath(*found, alias.name)
                is_module = inner.is_dir() or inner.with_suffix(".py").exists()
                is_module = is_module or node.module is None  # as the package's version
                yield node, ".".join([*found, alias.name] if is_module else found)


def _allowed(module: str) -> set[str]:
    return MAY_IMPORT[module] if module in MAY_IMPORT else MAY_IMPORT[module.split(".")[0]]


def _run_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_import_loads_neither_tensorflow_nor_beam() -> None:
    loaded = _run_python(
        "import sys, snapshard\n"
        "for name in snapshard.__all__: getattr(snapshard, name)\n"
        f"print([name for name in {SLOW_TO_LOAD} if name in sys.modules])"
    )
    assert loaded == "[]"


def test_every_public_name_resolves() -> None:
    assert len(set(snapshard.__all__)) == len(snapshard.__all__)
    for name in snapshard.__all__:
        assert getattr(snapshard, name) is not None
    assert set(snapshard.__all__) <= set(dir(snapshard))


def test_type_checkers_see_the_same_names() -> None:
    tree = ast.parse((ROOT / "__init__.py").read_text())
    seen = {
        alias.name: "." + (node.module or "")
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.level == 1
        for alias in node.names
    }
    modules = {name: path.rpartition(".")[0] for name, path in snapshard._MODULES.items()}
    assert seen == {**snapshard._EXPORTS, **modules}
    assert {*seen, "__version__"} == set(snapshard.__all__)


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Recipee'"):
        _ = snapshard.Recipee


def test_help_is_quick() -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "snapshard", "--help"],
        capture_output=True,
        text=True,
        check=True,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert imported.isdisjoint(SLOW_TO_LOAD)
    assert "build" in done.stdout
    # The promise is under 1 s; a slow machine gets the benefit of the doubt, since what makes it
    # slow (the imports above) is ruled out exactly. Processor time: others' load is no fault of it.
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert 0 < seconds < 2


def test_root_holds_no_other_module() -> None:
    assert {path.stem for path in ROOT.glob("*.py")} <= ROOT_MODULES


def test_imports_run_one_way() -> None:
    for path in _module_files():
        module = _module_name(path)
        for node, target in _imports(path):
            if target is None:
                continue
            where = f"{module}, line {node.lineno}"
            relative = isinstance(node, ast.ImportFrom) and node.level > 0
            assert relative, f"{where}: import relatively inside the package"
            # From the package's own __init__ (its version) every module may import.
            allowed = {*_allowed(module), "__version__"}
            assert target.split(".")[0] in allowed, f"{where}: imports {target}; {sorted(allowed)}"


def _rows() -> list[tuple[str, ...]]:
    """The paths in each row of ARCHITECTURE.md's table of folders."""
    _, _, text = (ROOT / "ARCHITECTURE.md").read_text().partition("## Folders\n")
    table = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    return [tuple(re.findall(r"`([^`]+)`", cell)) for cell in table]


def test_folders_import_in_the_order_of_the_architecture() -> None:
    rows = [(path, number) for number, paths in enumerate(_rows()) for path in paths]

    def row_of(module: str) -> int | None:
        path = module.replace(".", "/")
        found = [number for name, number in rows if f"{path}/".startswith(name.removesuffix(".py"))]
        return found[0] if found else None

    for path in _module_files():
        module = _module_name(path)
        row = row_of(module)
        if row is None:  # a folder's own docstring
            assert path.name in ("__init__.py", "__main__.py"), f"{module} is in no row"
            continue
        for node, target in _imports(path):
            needed = row_of(target) if target is not None else None
            assert needed is None or needed <= row, (
                f"{module}, line {node.lineno}: {target} stands below it in ARCHITECTURE.md"
            )


def test_no_two_folders_reach_each_other() -> None:
    """Where a folder holds folders, its own modules count one by one."""
    folders = {path.parent for path in _module_files()}
    mixed = {folder.parent for folder in folders if folder != ROOT} & folders

    def node(module: str) -> str:
        path = ROOT.joinpath(*module.split("."))
        return module if path in folders or path.parent in mixed else module.rpartition(".")[0]

    needed: dict[str, set[str]] = {}
    for path in _module_files():
        own = node(_module_name(path))
        for _, target in _imports(path):
            if target is not None and target.split(".")[0] in ROOMS and node(target) != own:
                needed.setdefault(own, set()).add(node(target))
    graphlib.TopologicalSorter(needed).prepare()  # raises CycleError


def test_only_jobs_import_beam() -> None:
    found = set()
    for path in (ROOT / "pipelines").rglob("*.py"):
        imported = {
            name.partition(".")[0]
            for node in ast.walk(_tree(path))
            if isinstance(node, ast.Import | ast.ImportFrom)
            for name in (
                [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else [node.module or ""]
            )
        }
        if path.name != "job.py" and "apache_beam" in imported:
            found.add(path.relative_to(ROOT).as_posix())
    assert found == IMPORT_BEAM


def test_modules_keep_the_house_rules() -> None:
    for path in _module_files():
        text, tree = path.read_text(), _tree(path)
        assert ast.get_docstring(tree), f"{path}: the first lines say what the module is"
        # Beam resolves the annotations of a DoFn's process_batch at run time.
        has_dofn = any(
            isinstance(node, ast.ClassDef)
            and any(ast.unparse(b).endswith("DoFn") for b in node.bases)
            for node in ast.walk(tree)
        )
        assert not has_dofn or "from __future__ import annotations" not in text, path
        assert path.stem not in {"utils", "util", "helpers", "common", "misc"}, path


def test_every_room_ships() -> None:
    import tomllib

    setup = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    on_disk = {
        ".".join(["snapshard", *path.parent.relative_to(ROOT).parts])
        for path in _module_files()
        if path.name == "__init__.py"
    }
    assert set(setup["packages"]) == on_disk
    assert set(setup["package-dir"]) == on_disk


def test_wheel_holds_only_the_package(tmp_path: Path) -> None:
    checkout = tmp_path / "snapshard-main (copy)"  # no identifier, as a checkout's folder may be
    left_out = shutil.ignore_patterns(".*", "__pycache__", "build", "dist", "out", "*.egg-info")
    shutil.copytree(ROOT, checkout, ignore=left_out)

    build = f"import setuptools.build_meta as b; b.build_wheel({str(tmp_path)!r})"
    subprocess.run([sys.executable, "-c", build], cwd=checkout, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("snapshard-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    info = next(name.split("/")[0] for name in names if ".dist-info/" in name)
    assert {name.split("/")[0] for name in names} == {"snapshard", info}
    expected = {f"snapshard/{path.relative_to(ROOT)}" for path in _module_files()}
    shipped = {name for name in names if name.startswith("snapshard/")}
    templates = {
        f"snapshard/{path.relative_to(ROOT)}" for path in ROOT.glob("pipelines/**/templates/*")
    }
    assert len(templates) > 1
    assert shipped == {*expected, *templates, "snapshard/py.typed"}

    target = tmp_path / "installed"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(target)
    where = subprocess.run(
        [sys.executable, "-S", "-c", "import snapshard; print(snapshard.__file__)"],
        env={**os.environ, "PYTHONPATH": str(target)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert where.stdout.strip() == str(target / "snapshard" / "__init__.py")


def test_doctests() -> None:
    num_attempted = 0
    for found in pkgutil.walk_packages(snapshard.__path__, "snapshard."):
        if found.name.split(".")[1] not in {*ROOMS, *ROOT_MODULES} or found.name.endswith(
            "__main__"
        ):
            continue
        result = doctest.testmod(importlib.import_module(found.name), optionflags=doctest.ELLIPSIS)
        assert result.failed == 0, found.name
        num_attempted += result.attempted
    assert num_attempted > 0


def _text_files() -> list[Path]:
    folders = [*ROOMS, "tests", "examples", "benchmarks", "docs", ".ci"]
    inner = [path for folder in folders for path in (ROOT / folder).rglob("*")]
    return [
        path
        for path in [*ROOT.iterdir(), *inner]
        if path.is_file()
        and path.name != ".git"  # of a worktree
        and path.suffix in {"", ".py", ".md", ".toml", ".txt", ".yaml", ".json"}
    ]


def test_no_file_names_a_machine_or_a_registry() -> None:
    forbidden = re.compile(
        r"(?<![\w.>/*-])/(?:work|home|Users|root)/\w"  # a path of one machine
        r"|\.\./shared(?!/data)"
        r"|pypi\.org|files\.pythonhosted|(?<!emit-)index-url\b|--find-links|trusted-host"
    )
    for path in _text_files():
        made = {"__pycache__", ".hypothesis"}.intersection(path.parts)
        if path == Path(__file__).resolve() or made:
            continue
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), start=1):
            assert not forbidden.search(line), f"{path.relative_to(ROOT)}, line {number}: {line}"
            if "../shared" in line:
                assert path.relative_to(ROOT) == Path(".ci/run"), f"{path}, line {number}"


def test_constraints_are_exact() -> None:
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        if not line.startswith("#"):
            assert re.fullmatch(r"[a-z0-9.-]+==[\w.]+( ; [^/]+)?", line), line


def test_make_help_tells_every_target() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = re.findall(r"^\.PHONY: (.+)$", makefile, flags=re.MULTILINE)
    shown = subprocess.run(
        ["make", "--no-print-directory", "help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert [line.split()[1] for line in shown.stdout.splitlines()] == targets
