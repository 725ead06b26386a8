"""Names from the data in emitted files: they come back as they are, and are never code."""

import ast
import pathlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snapshard.pipelines.reader.emit import ReaderFacts, emit_reader
from snapshard.schemas.errors import SchemaError
from snapshard.schemas.features import ClassLabel, Features, Scalar, Tensor, flatten, written

MARK = "hostile-name-was-run"
NAMES = (
    'it\'s "quoted"',
    "{braces} {0} {{}} %s %(a)s",
    "back\\slash \\n \\x41 \\N{DASH}",
    "new\nline\r\nand\ttab",
    f"__import__('pathlib').Path('{MARK}').touch()",
    f"'''+__import__('pathlib').Path('{MARK}').touch()+'''",
    f'"""\n__import__("pathlib").Path("{MARK}").touch()\n"""',
    f"\nimport pathlib; pathlib.Path('{MARK}').touch()\n#",
    "null \0 byte",
    "\u202egpj.exe",
    "\u200fright to left",
    "\u2028line\u2029 and paragraph",
    "\x1b[31mred\x1b[0m",
    "[red]markup[/red]",
    "# [end]",
    "    # [if classes]",
    "CLASS_NAMES",
    "*",
    "x" * 10_000,
)
BENIGN = tuple(f"n{i}" for i in range(len(NAMES)))


def facts(names: tuple[str, ...], classes: tuple[str, ...]) -> ReaderFacts:
    features: Features = {
        name: Tensor(dtype="float32", shape=(None,)) if i % 3 else Scalar(dtype="string")
        for i, name in enumerate(names)
    }
    return ReaderFacts(
        name="hostile",
        fingerprint="0123456789abcdef",
        features={**features, "the label": ClassLabel(names=classes)},
        label="the label",
        compression="none",
        num_examples={"train": 3},
        record_bytes=100,
        rotated_images=frozenset(),
        version="0.1.0",
    )


def parts(text: str) -> tuple[dict[str, Any], str]:
    """The constants that a module assigns at its top, and all the rest of it as a tree."""
    values, rest = {}, []
    scope: dict[str, Any] = {}
    for node in ast.parse(text).body:
        target = node.target if isinstance(node, ast.AnnAssign) else None
        if isinstance(node, ast.Assign):
            (target,) = node.targets
        if isinstance(target, ast.Name) and target.id.isupper():
            allowed = (ast.Constant, ast.List, ast.Dict, ast.Tuple, ast.Name, ast.Load, ast.UnaryOp)
            value: Any = node.value  # type: ignore[attr-defined]
            if all(isinstance(part, (*allowed, ast.USub)) for part in ast.walk(value)):
                found = eval(compile(ast.Expression(value), "value", "eval"), {}, scope)
                values[target.id] = scope[target.id] = found
                continue
        rest.append(ast.dump(node))
    return values, "\n".join(rest)


def emitted(names: tuple[str, ...], classes: tuple[str, ...]) -> tuple[dict[str, Any], list[str]]:
    """The facts; and what is emitted beside their constants."""
    values: dict[str, Any] = {}
    rests = []
    for name, text in sorted(emit_reader(facts(names, classes)).items()):
        text.encode("utf-8")
        if name == "reader/facts.py":
            values, rest = parts(text)
            rests.append(rest)
        else:
            rests.append(text)
    return values, rests


def test_hostile_names_come_back_as_they_are_and_are_not_code(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    values, rests = emitted(NAMES, ("", *NAMES))
    assert values["CLASS_NAMES"] == ["", *NAMES]
    assert {*values["FEATURES"]} == {*NAMES, "the label"}
    assert not (tmp_path / MARK).exists()
    # Beside the constants, what is emitted is the same whatever the names are.
    _, benign = emitted(BENIGN, ("none", *BENIGN))
    assert rests == benign


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(
    names=st.lists(
        st.text(st.characters(exclude_categories=["Cs"]), max_size=12),
        unique=True,
        min_size=2,
        max_size=5,
    )
)
def test_any_names_come_back(names: list[str]) -> None:
    classes = tuple(names)
    values, _ = emitted(("a", "b"), classes)
    assert values["CLASS_NAMES"] == names
    wanted = tuple(name for name in names if name not in ("", "the label"))
    values, _ = emitted(wanted, ("x", "y"))
    assert {*values["FEATURES"]} == {*wanted, "the label"}


def test_hostile_names_in_a_suggested_recipe_are_literals() -> None:
    for name in NAMES:
        assert ast.literal_eval(written(name)) == name
        label = ClassLabel(names=(name, "other"))
        call = ast.parse(written(label), mode="eval").body
        assert isinstance(call, ast.Call)
        assert ast.literal_eval(call.args[0]) == (name, "other")


def test_names_that_no_file_can_hold_are_refused() -> None:
    with pytest.raises(SchemaError, match=r"name '\\udce9x' is not valid Unicode"):
        flatten({"\udce9x": Scalar(dtype="int64")})
