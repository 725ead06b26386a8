"""Builds of recipes that depend on files beside their source: declared, undeclared, changed."""

import dataclasses
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from snapshard.pipelines.build import build as build_recipe
from snapshard.pipelines.recipe.shipping import load_recipe_file
from snapshard.schemas.errors import RecipeError, StorageError
from snapshard.schemas.progress import Silent

NEIGHBOUR = """
    import snapshard as ss
    from pathlib import Path
    HERE = Path(__file__).resolve().parent

    def read(file):
        for number in range(150):
            # Behind the records that types are inferred from.
            mask = HERE / "masks" / file.path
            yield {"x": int(mask.read_text()) if number == 149 else 0}

    recipe = ss.Recipe(name="t", source=ss.Files("raw/*.bin", read=read), OPTIONS)
"""
SINGLE = """
    import snapshard as ss
    from pathlib import Path
    HERE = Path(__file__).resolve().parent

    def read(file):
        yield {"x": int((HERE / "masks" / file.path).read_text())}

    recipe = ss.Recipe(name="t", source=ss.Files("raw/*.bin", read=read), OPTIONS)
"""
PYTHON_STEP = """
    import snapshard as ss
    from pathlib import Path
    HERE = Path(__file__).resolve().parent

    def looked_up(record):
        try:
            return {"x": int((HERE / "masks" / "a.bin").read_text())}
        except ValueError:
            return {"x": 0}

    def read(file):
        yield {"n": 1}

    recipe = ss.Recipe(
        name="t",
        source=ss.Files("raw/*.bin", read=read),
        prepare=[ss.records.map_python(looked_up, {"x": ss.Scalar("int64")})],
        OPTIONS
    )
"""
TRACED_STEP = """
    import snapshard as ss
    from pathlib import Path
    HERE = Path(__file__).resolve().parent

    def scaled(record):
        return {"x": record["n"] * int((HERE / "masks" / "a.bin").read_text())}

    def read(file):
        yield {"n": 1}

    recipe = ss.Recipe(
        name="t", source=ss.Files("raw/*.bin", read=read), prepare=[scaled], OPTIONS
    )
"""
GRAPH_STEP = """
    import snapshard as ss
    import tensorflow as tf
    from pathlib import Path
    HERE = Path(__file__).resolve().parent

    def read(file):
        yield {"name": file.path}

    def paired(record):
        path = tf.strings.join([str(HERE / "masks"), "/", record["name"]])
        return {"x": tf.strings.to_number(tf.io.read_file(path), tf.int64)}

    recipe = ss.Recipe(
        name="t", source=ss.Files("raw/*.bin", read=read), prepare=[paired], OPTIONS
    )
"""
GRAPH_CONSTANT = """
    import snapshard as ss
    import tensorflow as tf
    from pathlib import Path
    HERE = Path(__file__).resolve().parent

    def read(file):
        yield {"n": 1}

    def scaled(record):
        text = tf.io.read_file(str(HERE / "masks" / "a.bin"))
        return {"x": record["n"] * tf.strings.to_number(text, tf.int64)}

    recipe = ss.Recipe(
        name="t", source=ss.Files("raw/*.bin", read=read), prepare=[scaled], OPTIONS
    )
"""
OWN_STEP = """
    import snapshard as ss
    from pathlib import Path
    HERE = Path(__file__).resolve().parent

    class Scale:
        def settings(self):
            return {}

        def features(self, features):
            return features

        def apply(self, record):
            return {"n": record["n"] * int((HERE / "masks" / "a.bin").read_text())}

    def read(file):
        yield {"n": 1}

    recipe = ss.Recipe(
        name="t", source=ss.Files("raw/*.bin", read=read), prepare=[Scale()], OPTIONS
    )
"""
ANALYSED = """
    import snapshard as ss
    from pathlib import Path
    HERE = Path(__file__).resolve().parent

    def preprocessing_fn(inputs):
        return {"x": inputs["n"] * int((HERE / "masks" / "a.bin").read_text())}

    def read(file):
        yield {"n": 1}

    recipe = ss.Recipe(
        name="t",
        source=ss.Files("raw/*.bin", read=read),
        preprocessing_fn=preprocessing_fn,
        OPTIONS
    )
"""


_REFUSED = r"(opened .*/masks/[ab]\.bin, |reads files in ).*depends_on=\[['\"]masks/"


def project(folder: Path, text: str, options: str = "") -> Path:
    for name in ("a", "b"):
        for kind in ("raw", "masks"):
            path = folder / kind / f"{name}.bin"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("7")
    recipe = folder / "recipe.py"
    recipe.write_text(
        textwrap.dedent(text).replace("OPTIONS", f"splits=ss.Splits(train=1.0), {options}")
    )
    return recipe


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        NEIGHBOUR,
        PYTHON_STEP,
        TRACED_STEP,
        OWN_STEP,
        GRAPH_STEP,
        GRAPH_CONSTANT,
        pytest.param(ANALYSED, marks=pytest.mark.slow),  # a process for the analysis
    ],
    ids=[
        "neighbour",
        "Python step",
        "traced step",
        "own step",
        "graph",
        "constant in a graph",
        "preprocessing_fn",
    ],
)
def test_a_file_that_nothing_declares_is_refused(lab: Any, tmp_path: Path, text: str) -> None:
    recipe = project(tmp_path / "project", text)
    with pytest.raises(RecipeError, match=_REFUSED):
        lab.build(recipe, tmp_path / "out")
    assert not list((tmp_path / "out").glob("*/*/manifest.json"))
    recipe = project(tmp_path / "project", text, "depends_on=['masks/']")
    first = lab.build(recipe, tmp_path / "out")
    assert lab.build(recipe, tmp_path / "out").cached
    (tmp_path / "project" / "masks" / "a.bin").write_text("8")
    second = lab.build(recipe, tmp_path / "out")
    assert second.path != first.path
    values = [repr(lab.read_back(snapshot).values) for snapshot in (first, second)]
    assert values[0].replace("7", "8") == values[1].replace("7", "8")
    assert values[0] != values[1]


@dataclasses.dataclass
class _Meanwhile(Silent):
    """Does something as a step ends."""

    step: str
    act: Callable[[], object]

    def finish(self, step: str, *, reused: bool, note: str = "") -> None:
        if step == self.step:
            self.act()


DECLARED = SINGLE.replace("OPTIONS", "splits=ss.Splits(train=1.0), depends_on=['masks/']")
BY_PATH = SINGLE.replace('(HERE / "masks" / file.path)', "MASK").replace(
    "    def read", '    MASK = HERE / "masks" / "a.bin"\n\n    def read'
)


@pytest.mark.parametrize(
    ("text", "step"),
    [
        pytest.param(DECLARED, "inventory", id="depends_on, after inventory"),
        pytest.param(BY_PATH, "write", id="path constant, after write"),
        # The same again in another order, with three builds each.
        pytest.param(BY_PATH, "inventory", marks=pytest.mark.slow),
        pytest.param(DECLARED, "prepare", marks=pytest.mark.slow),
        pytest.param(BY_PATH, "prepare", marks=pytest.mark.slow),
        pytest.param(DECLARED, "write", marks=pytest.mark.slow),
    ],
)
def test_a_file_that_changes_during_the_build_stops_it(
    lab: Any, tmp_path: Path, text: str, step: str
) -> None:
    recipe = project(tmp_path / "project", text)
    changed, out = tmp_path / "project" / "masks" / "a.bin", tmp_path / "out"
    new = changed.with_suffix(".new")
    new.write_text("9")
    meanwhile = _Meanwhile(step, lambda: new.replace(changed))
    with pytest.raises(StorageError, match=r"masks/a\.bin, which the recipe depends on, changed"):
        build_recipe(load_recipe_file(recipe), out, progress=meanwhile)
    assert not list(out.glob("*/*/manifest.json"))
    changed.write_text("7")
    restored = lab.build(recipe, out)
    assert set(lab.read_back(restored).values["x"].tolist()) == {7}
    changed.write_text("9")
    assert 9 in lab.read_back(lab.build(recipe, out)).values["x"]


@pytest.mark.slow
def test_a_file_that_an_object_is_made_from_counts(lab: Any, tmp_path: Path) -> None:
    """Though the recipe declares another; in each process that loads the recipe."""
    text = """
        import snapshard as ss
        import struct
        from pathlib import Path
        HERE = Path(__file__).resolve().parent
        FORMAT = struct.Struct((HERE / "format.txt").read_text())

        def read(file):
            yield {"x": FORMAT.size}

        recipe = ss.Recipe(name="t", source=ss.Files("raw/*.bin", read=read), OPTIONS)
        """
    recipe = project(tmp_path / "project", text, "depends_on=['masks/']")
    found = []
    for size, workers in (("7s", 2), ("8s", 1)):
        (tmp_path / "project" / "format.txt").write_text(size)
        found.append(lab.build(recipe, tmp_path / "out", workers=workers))
    assert lab.build(recipe, tmp_path / "out").cached
    assert [lab.read_back(s).values["x"].tolist() for s in found] == [[7, 7], [8, 8]]


def test_why_names_the_file(lab: Any, tmp_path: Path) -> None:
    recipe = project(tmp_path / "project", DECLARED)
    lab.build(recipe, tmp_path / "out")
    (tmp_path / "project" / "masks" / "a.bin").write_text("8")
    done = lab.run_cli("why", recipe, tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert "depends_on: masks changed" in done.stdout


def test_what_a_function_writes_it_may_read(lab: Any, tmp_path: Path) -> None:
    recipe = project(
        tmp_path / "project",
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

        recipe = ss.Recipe(
            name="t", source=ss.Files("raw/*.bin", read=read), splits=ss.Splits(train=1.0)
        )
        """,
    )
    (tmp_path / "project" / "late.py").write_text(
        "import json\nfrom pathlib import Path\n"
        "VALUE = json.loads((Path(__file__).parent / 'late.json').read_text())\n"
    )
    (tmp_path / "project" / "late.json").write_text("5")
    first = lab.build(recipe, tmp_path / "out")
    assert lab.read_back(first).values["x"].tolist() == [6, 6]
    (tmp_path / "project" / "late.json").write_text("6")
    assert lab.read_back(lab.build(recipe, tmp_path / "out")).values["x"].tolist() == [7, 7]
