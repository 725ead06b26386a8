"""Runs the Python examples of a page of the documentation."""

import ast
import linecache
import re
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HEAD = ""
"""The part of a page before its first section."""


def section(page: Path, heading: str) -> tuple[int, list[str]]:
    """The number of lines before a section, and its lines, without those of its subsections."""
    found: list[str] | None = [] if heading == HEAD else None
    before, is_code = 0, False
    lines = page.read_text().splitlines()
    for number, line in enumerate(lines):
        is_code ^= line.startswith("```")
        if re.match("##+ ", line) and not is_code:
            if found is not None:
                break
            if line.lstrip("#").strip() == heading:
                found, before = [], number
        if found is not None:
            found.append(line)
    assert found is not None, f"{page.name}: no section {heading!r}"
    return before, found


def code_blocks(page: Path, heading: str, language: str = "python") -> list[str]:
    """The blocks of code in a section."""
    text = "\n".join(section(page, heading)[1])
    found = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [code for name, code in found if name == language]


def examples(page: Path, heading: str | None = None, block: int | None = None) -> str:
    """Python blocks as one module, its other lines empty.

    Args:
        page: The page.
        heading: The section; None: the entire page.
        block: Which of the blocks, from 0; None: all.
    """
    before, source = 0, page.read_text().splitlines()
    if heading is not None:
        before, source = section(page, heading)
    lines, is_code, number = [""] * before, False, -1
    for line in source:
        is_fence = line.startswith("```")
        is_wanted = is_code and not is_fence and block in (None, number)
        lines.append(line if is_wanted else "")
        if is_fence:
            is_code = line == "```python"
            number += is_code
    return "\n".join(lines) + "\n"


def run_examples(
    page: Path,
    folder: Path,
    *,
    heading: str | None = None,
    block: int | None = None,
    variables: dict[str, Any] | None = None,
    elided: Mapping[str, str] | None = None,
    num_notes: int = 0,
) -> int:
    """Runs the examples of a page, and compares values with the comments that show them.

    Args:
        page: The page.
        folder: The folder with the page's data, which is the current one.
        heading: Only the examples of this section, without its subsections.
        block: Only this block of code, from 0.
        variables: Names that the examples use, and afterwards those that they assign.
        elided: What stands for a text that the page abbreviates.
        num_notes: The number of comments beside code that show no value.

    Returns:
        The number of values that were compared.
    """
    source = examples(page, heading, block)
    assert source.strip(), f"{page.name}: no examples"
    for text, full in (elided or {}).items():
        source = source.replace(text, full)
    path = folder / "page.py"
    path.write_text(source)
    module = types.ModuleType("page")
    module.__dict__.update(variables or {})
    module.__file__ = str(path)
    linecache.checkcache(str(path))
    num_checked = 0

    def check(number: int, value: Any) -> None:
        nonlocal num_checked
        found = re.search(r"  # (.*)$", source.splitlines()[number - 1])
        if found is not None and value is not None:
            shown = " ".join(repr(value).split())
            pattern = ".*".join(map(re.escape, found[1].split("…")))
            assert re.fullmatch(pattern, shown), f"{page.name}:{number}: {shown}"
            num_checked += 1

    class Checked(ast.NodeTransformer):
        def visit_Expr(self, node: ast.Expr) -> ast.AST:
            number = ast.Constant(node.end_lineno)
            call = ast.Call(ast.Name("__check__", ast.Load()), [number, node.value], [])
            return ast.copy_location(ast.Expr(call), node)

    module.__dict__["__check__"] = check
    tree = ast.fix_missing_locations(Checked().visit(ast.parse(source)))
    exec(compile(tree, str(path), "exec"), module.__dict__)
    if variables is not None:
        variables.update(module.__dict__)
    num_comments = len(re.findall(r"^[^#\n]*\S  # ", source, flags=re.MULTILINE))
    assert num_checked + num_notes == num_comments
    return num_checked
