"""Builds of recipes that depend on files beside their source: declared, undeclared, changed.

``tests/pipelines/test_dependencies.py`` has the many ways to depend on a file, of surveys and of
blocks. These builds show that the steps agree with them, and that nothing is published.
"""

import dataclasses
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from snapshard.pipelines.build import build as build_recipe
from snapshard.pipelines.inspect.why import why_not_found
from snapshard.pipelines.recipe.shipping import load_recipe_file
from snapshard.schemas.errors import RecipeError, StorageError
from snapshard.schemas.progress import Silent

READ = """
    import snapshard as ss
    import struct
    from pathlib import Path
    HERE = Path(__file__).resolve().parent
    FORMAT = struct.Struct((HERE / "format.txt").read_text())

    def preprocessing_fn(inputs):
        return {**inputs, "shifted": inputs["x"] + len((HERE / "shift.txt").read_text())}

    def read(file):
        for number in range(150):
            # Behind the records that types are inferred from.
            mask = HERE / "masks" / file.path
            yield {"x": int(mask.read_text()) if number == 149 else 0, "size": FORMAT.size}

    recipe = ss.Recipe(
        name="t", source=ss.Files("raw/*.bin", read=read), splits=ss.Splits(train=1.0), OPTIONS
    )
"""
MASK = """
    import snapshard as ss
    from pathlib import Path
    MASK = Path(__file__).resolve().parent / "masks" / "a.bin"

    def read(file):
        yield {"x": int(MASK.read_text())}

    recipe = ss.Recipe(
        name="t", source=ss.Files("raw/*.bin", read=read), splits=ss.Splits(train=1.0)
    )
"""


def project(folder: Path, text: str, options: str = "") -> Path:
    for name in ("raw/a.bin", "raw/b.bin", "masks/a.bin", "masks/b.bin"):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("7")
    (folder / "format.txt").write_text("7s")
    (folder / "shift.txt").write_text("1")
    recipe = folder / "recipe.py"
    recipe.write_text(textwrap.dedent(text).replace("OPTIONS", options))
    return recipe


@pytest.mark.slow
def test_builds_refuse_what_nothing_declares_and_notice_what_changes(
    lab: Any, tmp_path: Path
) -> None:
    """A file of each record, one of ``preprocessing_fn``, and one that made an opaque object."""
    folder, out = tmp_path / "project", tmp_path / "out"
    with pytest.raises(RecipeError, match=r"opened .*/masks/[ab]\.bin, .*depends_on=\['masks/"):
        lab.build(project(folder, READ, "depends_on=['shift.txt']"), out)
    recipe = project(folder, READ, "depends_on=['masks/']")
    first = lab.build(recipe, out, workers=2)  # each process loads the recipe
    assert lab.build(recipe, out).cached
    values = lab.read_back(first).values
    assert {name: max(values[name]) for name in values} == {"x": 7, "size": 7}
    analyzed = "preprocessing_fn=preprocessing_fn, depends_on=['masks/', SHIFT]"
    recipe = project(folder, READ, analyzed.replace("SHIFT", ""))
    with pytest.raises(RecipeError, match=r"opened .*/shift\.txt, .*depends_on=\['shift"):
        lab.build(recipe, out)
    assert list(out.glob("*/*/manifest.json")) == [Path(first.path) / "manifest.json"]
    recipe = project(folder, READ, analyzed.replace("SHIFT", "'shift.txt'"))
    (folder / "masks" / "a.bin").write_text("8")
    (folder / "format.txt").write_text("9s")
    values = lab.read_back(lab.build(recipe, out)).values
    assert {name: max(values[name]) for name in values} == {"x": 8, "size": 9, "shifted": 9}


@dataclasses.dataclass
class _Meanwhile(Silent):
    """Does something as a step ends."""

    step: str
    act: Callable[[], object]

    def finish(self, step: str, *, reused: bool, note: str = "") -> None:
        if step == self.step:
            self.act()


def test_a_file_that_changes_before_the_build_ends_stops_it(lab: Any, tmp_path: Path) -> None:
    recipe = project(tmp_path / "project", MASK)
    changed, out = tmp_path / "project" / "masks" / "a.bin", tmp_path / "out"
    new = changed.with_suffix(".new")
    new.write_text("9")
    meanwhile = _Meanwhile("write", lambda: new.replace(changed))
    with pytest.raises(StorageError, match=r"masks/a\.bin, which the recipe depends on, changed"):
        build_recipe(load_recipe_file(recipe), out, progress=meanwhile)
    assert not list(out.glob("*/*/manifest.json"))
    changed.write_text("7")
    restored = lab.build(recipe, out)
    assert set(lab.read_back(restored).values["x"].tolist()) == {7}
    changed.write_text("9")
    found = why_not_found(load_recipe_file(recipe), str(out), progress=Silent())
    assert [change.thing for change in found.changes] == ["recipe.py: MASK"]
    assert set(lab.read_back(lab.build(recipe, out)).values["x"].tolist()) == {9}
