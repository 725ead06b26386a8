"""Runs the Python examples of a page of the documentation."""

import ast
import linecache
import re
import types
from pathlib import Path
from typing import Any


def examples(page: Path) -> str:
    """The Python blocks of a page as one module, its other lines empty."""
    lines, is_code = [], False
    for line in page.read_text().splitlines():
        is_fence = line.startswith("```")
        lines.append(line if is_code and not is_fence else "")
        is_code = line == "```python" if is_fence else is_code
    return "\n".join(lines) + "\n"


def run_examples(page: Path, folder: Path) -> int:
    """Runs the examples of a page, and compares values with the comments that show them.

    Args:
        page: The page.
        folder: The folder with the page's data, which is the current one.

    Returns:
        The number of values that were compared.
    """
    path = folder / "page.py"
    path.write_text(examples(page))
    source = path.read_text()
    module = types.ModuleType("page")
    module.__file__ = str(path)
    linecache.checkcache(str(path))
    num_checked = 0

    def check(number: int, value: Any) -> None:
        nonlocal num_checked
        found = re.search(r"  # (.*)$", source.splitlines()[number - 1])
        if found is not None:
            start, dots, _ = found[1].partition("…")
            shown = " ".join(repr(value).split())
            assert (shown[: len(start)] if dots else shown) == start, f"{page.name}:{number}"
            num_checked += 1

    class Checked(ast.NodeTransformer):
        def visit_Expr(self, node: ast.Expr) -> ast.AST:
            number = ast.Constant(node.end_lineno)
            call = ast.Call(ast.Name("__check__", ast.Load()), [number, node.value], [])
            return ast.copy_location(ast.Expr(call), node)

    module.__dict__["__check__"] = check
    tree = ast.fix_missing_locations(Checked().visit(ast.parse(source)))
    exec(compile(tree, str(path), "exec"), module.__dict__)
    num_comments = len(re.findall(r"^[^#\n]*\S  # ", source, flags=re.MULTILINE))
    assert num_checked == num_comments
    return num_checked
