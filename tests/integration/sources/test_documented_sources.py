"""The examples in docs/sources.md and docs/csv.md that make a source or a recipe are built."""

import ast
import json
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image as Pillow

import snapshard as ss

DOCS = Path(__file__).parents[3] / "docs"


def _orders(folder: Path) -> None:
    (folder / "raw").mkdir()
    order = {"id": 7, "cart": {"items": [1, 2]}, "to": "fr"}
    (folder / "raw" / "a.jsonl").write_text(json.dumps(order) + "\n")


def _arrays(folder: Path) -> None:
    arrays = {f"x_{s}": np.zeros((3, 28, 28), np.uint8) for s in ("train", "test")}
    np.savez(folder / "mnist.npz", **arrays, y_train=np.zeros(3, int), y_test=np.zeros(3, int))


def _exports(folder: Path) -> None:
    (folder / "exports").mkdir()
    (folder / "exports" / "2024.csv").write_text("id,amount\n1,2.5\n")
    (folder / "exports" / "2025.csv").write_text("id,amount,currency\n2,3.5,EUR\n")


def _orders_of_two_shops(folder: Path) -> None:
    (folder / "shop").mkdir()
    lines = [f"{n},{n / 2},{'yes' if n % 3 else 'no'}" for n in range(40)]
    (folder / "shop" / "2024.csv").write_text("\n".join(["id,price,returned", *lines]) + "\n")
    (folder / "market").mkdir()
    columns = {"id": range(40), "returned": ["no", "yes"] * 20, "seller": ["a"] * 40}
    table = pa.table({name: list(values) for name, values in columns.items()})
    pq.write_table(table, folder / "market" / "part-0.parquet")


def _binary(folder: Path) -> None:
    (folder / "raw").mkdir()
    (folder / "raw" / "a.bin").write_bytes(struct.pack("<Bd", 1, 0.5))


def _depth(folder: Path) -> None:
    (folder / "depth").mkdir()
    for number in range(4):
        pixels = np.full((30, 40), 1000 * number, np.uint16)
        Pillow.fromarray(pixels).save(folder / "depth" / f"hall_{number}.png")


def _street(folder: Path) -> None:
    rng = np.random.default_rng(0)
    for kind, suffix, shape in (("images", "jpg", (30, 40, 3)), ("masks", "png", (30, 40))):
        (folder / "street" / kind).mkdir(parents=True)
        for number in range(4):
            pixels = rng.integers(0, 3, shape, np.uint8)
            Pillow.fromarray(pixels).save(folder / "street" / kind / f"{number}.{suffix}")


def _clips(folder: Path) -> None:
    rng = np.random.default_rng(0)
    for number in range(8):
        clip = folder / "clips" / ("run" if number % 2 else "walk") / f"clip_{number}"
        clip.mkdir(parents=True)
        for frame in range(1, 26):
            pixels = rng.integers(0, 256, (12, 16, 3), np.uint8)
            Pillow.fromarray(pixels).save(clip / f"{frame:04}.jpg")


def _nothing(folder: Path) -> None:
    del folder


EXAMPLES: list[tuple[str, str, Callable[[Path], None]]] = [
    ("sources.md", "Several sources", _orders_of_two_shops),
    ("sources.md", "Iterable", _orders),
    ("sources.md", "Images of 16 bits", _depth),
    ("sources.md", "Images with masks", _street),
    ("sources.md", "ClipFolder", _clips),
    ("sources.md", "Numpy", _arrays),
    ("sources.md", "Files", _binary),
    ("csv.md", "Files with different columns", _exports),
]


@pytest.mark.slow
@pytest.mark.parametrize(("document", "heading", "prepare"), EXAMPLES, ids=[e[1] for e in EXAMPLES])
def test_documented_sources_are_built(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    document: str,
    heading: str,
    prepare: Callable[[Path], None],
) -> None:
    import tensorflow as tf

    prepare(tmp_path)
    monkeypatch.chdir(tmp_path)
    _, _, rest = (DOCS / document).read_text().partition(f"\n## {heading}\n")
    section = rest.partition("\n## ")[0]
    text = "\n".join(re.findall(r"```python\n(.*?)```", section, flags=re.DOTALL))
    images, classes = np.zeros((4, 2, 2, 3), np.uint8), np.arange(4)
    names: dict[str, Any] = {"tf": tf, "images": images, "classes": classes}
    # Paths are relative to the file of the recipe.
    path = tmp_path / "example.py"
    path.write_text(f"import glob, json, struct\nimport snapshard as ss\n{text}")
    made: list[ss.Recipe] = []
    for statement in ast.parse(path.read_text()).body:
        _run(ast.Module([statement], []), path, names)
        (target,) = statement.targets if isinstance(statement, ast.Assign) else (None,)
        if isinstance(target, ast.Name) and target.id == "source":
            of = "ss.Recipe(name='made', source=source, splits=ss.Splits(train=1.0))"
            _run(ast.parse(f"recipe = {of}"), path, names)
        if isinstance(target, ast.Name) and target.id in ("source", "recipe"):
            made.append(names["recipe"])
    assert made
    for number, recipe in enumerate(made):
        ss.build(recipe, tmp_path / f"out-{number}", workers=1)


def _run(module: ast.Module, path: Path, names: dict[str, Any]) -> None:
    exec(compile(module, str(path), "exec"), names)
