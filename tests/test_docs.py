"""The documents hold what they say: which tests prove which source, and what each step is."""

import ast
import functools
import inspect
import re
from pathlib import Path
from typing import Any, get_args

import pytest

import snapshard as ss
from snapshard.schemas.features import Dtype, Feature
from snapshard.schemas.recipe import StepTraits

from .transforms.sources.subjects import SUBJECTS

ROOT = Path(__file__).resolve().parent.parent
STEP_MODULES = ("images", "audio", "text", "tables", "records", "series")


def table_rows(document: str, heading: str) -> list[list[str]]:
    """The cells of the first table behind a heading, its head first."""
    _, _, rest = (ROOT / "docs" / document).read_text().partition(f"\n{heading}\n")
    found = re.search(r"(?:^\|.*\n)+", rest, flags=re.MULTILINE)
    assert found, f"{document}: no table behind {heading!r}"
    rows = [[cell.strip() for cell in line[1:-1].split("|")] for line in found[0].splitlines()]
    return [rows[0], *rows[2:]]


SOURCES_HEADING = "## Which features each source gives, and the tests that prove it"


def proofs(document: str = "sources.md") -> dict[str, str]:
    """Number -> path::test of the list below a document's table."""
    text = (ROOT / "docs" / document).read_text()
    return dict(re.findall(r"^(\d+)\. `([^`]+)`", text, flags=re.MULTILINE))


def is_source(value: Any) -> bool:
    is_kind = inspect.isclass(value) and value is not ss.Sources  # it has no format of its own
    return is_kind and (hasattr(value, "infer") or hasattr(value, "extract"))


def test_the_table_of_sources_is_whole() -> None:
    head, *rows = table_rows("sources.md", SOURCES_HEADING)
    public = {name: getattr(ss, name) for name in ss.__all__}
    kinds = {kind.__name__ for kind in get_args(Feature)} | {"Struct"}
    assert {name.strip("`") for name in head[1:]} == kinds <= set(ss.__all__)
    assert len(head) == len(set(head))
    sources = {name for name, value in public.items() if is_source(value)}
    assert {row[0].strip("`") for row in rows} == sources
    for row in rows:
        assert len(row) == len(head), row


def test_every_source_is_proved_elsewhere() -> None:
    """The table names sources that are not of files; the others have one test."""
    head, files, *rows = table_rows("sources.md", "## Where the files can be")
    assert head[1:] == ["`memory://`", "in a zip or a tar", "`memory://` with several workers"]
    assert files[3].startswith("refused: ")
    assert {row[0].split()[0] for row in rows} == {
        f"`{name}`" for name, subject in SUBJECTS.items() if subject.files is None
    }
    assert all(re.fullmatch(r"read: \d+", several) for *_, several in rows)


def test_every_cell_of_the_table_of_sources_names_a_test() -> None:
    _, *rows = table_rows("sources.md", SOURCES_HEADING)
    used: set[str] = set()
    for row in table_rows("sources.md", "## Where the files can be")[1:]:
        used.update(number for cell in row[1:] for number in re.findall(r"\d+", cell))
    for row in rows:
        for cell in row[1:]:
            assert cell == "–" or re.fullmatch(r"\d+(, \d+)*( \(d\))?", cell), row
            used.update(re.findall(r"\d+", cell))
        assert any(cell != "–" for cell in row[1:]), row
    assert used == set(proofs())


def test_every_feature_type_has_its_row_and_tests() -> None:
    head, *rows = table_rows("features.md", "## How each type is stored")
    assert head[-1] == "proved by"
    kinds = {kind.__name__ for kind in get_args(Feature)} | {"Struct"}
    assert {re.findall(r"\w+", row[0])[0] for row in rows} == kinds
    listed = proofs("features.md")
    used = {number for row in rows for number in row[-1].split(", ")}
    assert used == set(listed)
    _, *dtypes = table_rows("features.md", "## How each dtype is stored")
    named = {name for row in dtypes for name in re.findall(r"`(\w+)`", row[0])}
    assert named == {*get_args(Dtype), "complex64", "complex128"}


NAMED_TESTS = sorted(
    {
        name
        for path in (ROOT / "docs").glob("*.md")
        for name in re.findall(r"`(tests/[\w/]+\.py::\w+)`", path.read_text())
    }
)


@functools.cache
def tree_of(path: str) -> ast.Module:
    return ast.parse((ROOT / path).read_text())


@pytest.mark.parametrize("proof", NAMED_TESTS)
def test_named_tests_are_there(proof: str) -> None:
    path, _, name = proof.partition("::")
    assert name in {node.name for node in tree_of(path).body if isinstance(node, ast.FunctionDef)}


def public_steps() -> dict[str, Any]:
    """`ss.tables.fill` and the like -> the class or function."""
    found = {}
    for module_name in STEP_MODULES:
        module = getattr(ss, module_name)
        for name, value in vars(module).items():
            own = getattr(value, "__module__", "") == module.__name__ and not name.startswith("_")
            public = name in module.__all__ if hasattr(module, "__all__") else own
            if public and name.islower() and callable(value):
                found[f"ss.{module_name}.{name}"] = value
    return found


def step_class(step: Any) -> Any:
    """The class of a step, or of those that a function makes."""
    if inspect.isclass(step):
        return step
    name = inspect.signature(step).return_annotation.partition(" | ")[0]
    found = inspect.getmodule(step).__dict__[name]  # type: ignore[union-attr]
    assert inspect.isclass(found)
    return found


@functools.cache
def step_rows() -> dict[str, list[str]]:
    rows = {}
    for heading in ("Images", "Audio", "Text", "Tables", "Records", "Series"):
        head, *body = table_rows("steps.md", f"## {heading}")
        assert head == ["step", "does", "features", "runs on", "exported"]
        for row in body:
            rows[f"ss.{heading.lower()}.{row[0].strip('`').partition('(')[0]}"] = row
    return rows


def test_every_step_is_listed() -> None:
    assert step_rows().keys() == public_steps().keys()


@pytest.mark.parametrize("name", public_steps())
def test_what_is_said_of_a_step_is_so(name: str) -> None:
    _, _, _, runs, exported = step_rows()[name]
    made = step_class(public_steps()[name])
    if hasattr(made, "prefix_bytes"):
        assert runs == "all records"
        assert exported == ("left out" if name == "ss.records.drop_duplicates" else "no")
        return
    fields = {f.name: f.default for f in getattr(made, "__dataclass_fields__", {}).values()}
    if "batched" in fields:
        assert runs == "records, or batches with `batched=True`"
    else:
        assert runs == ("batches" if StepTraits.of(made).batched else "records")
    obstacle = getattr(made, "export_obstacle", "")
    if isinstance(obstacle, property):
        assert exported.startswith("only "), exported
    elif StepTraits.of(made).filters:
        assert exported == "left out"
    else:
        assert exported.split(",")[0] == ("no" if obstacle else "yes")


DOCUMENTS = sorted(
    path.relative_to(ROOT).as_posix()
    for path in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("examples/*.md"))
)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_somewhere_and_names_are_public(document: str) -> None:
    path = ROOT / document
    text = path.read_text()
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        target, _, anchor = link.partition("#")
        if "://" in target:
            continue
        found = path.parent / target if target else path
        assert found.exists(), link
        if anchor:
            headings = re.findall(r"^#+ (.+)$", found.read_text(), flags=re.MULTILINE)
            slugs = {
                re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings
            }
            assert anchor in slugs, link
    for name in re.findall(r"\bss((?:\.\w+)+)", text):
        found_so_far: Any = ss
        for part in name[1:].split("."):
            assert hasattr(found_so_far, part), f"ss{name}"
            found_so_far = getattr(found_so_far, part)


@pytest.mark.parametrize("document", ["reliability.md", "engines.md"])
def test_tests_that_a_document_names_are_there(document: str) -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", (ROOT / "docs" / document).read_text())
    assert named
    for path, function in named:
        nodes = ast.walk(tree_of(path))
        functions = {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
        assert not function or function in functions, f"{path}::{function}"
