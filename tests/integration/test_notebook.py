"""What a notebook shows of a snapshot, and the notebook among the examples."""

import ast
import html
import json
from pathlib import Path
from typing import Any

import PIL.Image
import pytest

import snapshard as ss

HOSTILE = "<script>alert('x')</script>"


def run_cell(source: str, names: dict[str, Any]) -> Any:
    """Runs a cell; returns the value of its last expression, which a notebook would show."""
    *body, last = ast.parse(source).body
    exec(compile(ast.Module(body, []), "<cell>", "exec"), names)
    if isinstance(last, ast.Expr):
        return eval(compile(ast.Expression(last.value), "<cell>", "eval"), names)
    exec(compile(ast.Module([last], []), "<cell>", "exec"), names)
    return None


def test_the_example(examples: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notebook = json.loads((examples / "look.ipynb").read_text())
    (tmp_path / "data").symlink_to(examples / "data")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    shown = [
        run_cell("".join(cell["source"]), names)
        for cell in notebook["cells"]
        if cell["cell_type"] == "code"
    ]
    pages = [value._repr_html_() for value in shown if hasattr(value, "_repr_html_")]
    assert len(pages) == 5
    assert "train</td><td>240" in pages[0]
    assert "look_at_digits" in pages[1]
    assert pages[2].count("<img ") == 5
    assert "7/" in repr(shown[3])
    assert "deviation" in pages[4]
    assert shown[-1].sum() == 240
    assert not any(cell.get("outputs") for cell in notebook["cells"])


def test_names_and_values_are_escaped(tmp_path: Path) -> None:
    folder = tmp_path / "images" / "<b>bold"
    folder.mkdir(parents=True)
    for k in range(2):
        PIL.Image.new("L", (300, 20), k).save(folder / f"<i>{k}.png")
    recipe = ss.Recipe(
        name="hostile",
        source=ss.ImageFolder(str(tmp_path / "images")),
        splits=ss.Splits(train=1.0),
        description=HOSTILE,
    )
    assert html.escape(repr(HOSTILE)) in recipe._repr_html_()
    assert "<script>" not in recipe._repr_html_()
    planned = ss.plan(recipe)
    assert "warning: " in planned._repr_html_()
    assert repr(planned).startswith("about 2 examples (train 2), ")
    snapshot = ss.build(recipe, tmp_path / "out")
    pages = (planned._repr_html_(), snapshot._repr_html_(), snapshot.show()._repr_html_())
    for page in pages:
        assert "<b>bold" not in page
        assert "<i>" not in page
    assert html.escape("<b>bold/<i>0.png") in snapshot.show()._repr_html_()
    assert "record <b>bold/<i>0.png" in repr(snapshot.show(ids=["<b>bold/<i>0.png"]))
