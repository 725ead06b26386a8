"""Excel workbooks and HDF5 files are recognized, or refused with a line for each table."""

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import pytest

import snapshard as ss
from snapshard.pipelines.inspect.forecast import forecast
from snapshard.pipelines.inspect.suggest import describe_suggestion, suggest_recipe
from snapshard.pipelines.recipe.shipping import load_recipe_file
from snapshard.schemas.errors import DataError, RecipeError
from snapshard.schemas.progress import Silent

from ..file_bytes import workbook, zip_of

ROWS = [["n", "label"], *([i, "ab"[i % 2]] for i in range(30))]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("d").mkdir()


def book(path: str, *sheets: str, rows: Any = ROWS) -> None:
    Path(path).write_bytes(workbook(dict.fromkeys(sheets or ("t",), rows)))


def arrays(path: str, **datasets: Any) -> None:
    with h5py.File(path, "w") as file:
        for name, values in datasets.items():
            file[name.replace("__", "/")] = values


CLEAR: list[tuple[Callable[[], Any], str, Any]] = [
    (lambda: book("d/t.xlsx"), "d/t.xlsx", ss.Excel("d/t.xlsx")),
    (
        lambda: (book("d/t.xlsx"), Path("d/README.md").write_text("x")),
        "d",
        ss.Excel("d/t.xlsx"),
    ),
    (lambda: arrays("d/t.h5", n=range(30), label=[0, 1] * 15), "d", ss.Hdf5("d/t.h5")),
    (lambda: arrays("d/t", n=range(30), label=[0, 1] * 15), "d/t", ss.Hdf5("d/t")),
    (
        lambda: arrays("d/t.h5", in__n=range(30), in__label=[0, 1] * 15, scale=2.5),
        "d/t.h5",
        ss.Hdf5("d/t.h5"),
    ),
    (
        lambda: book("d/t.xlsx", "Test", "Training"),
        "d/t.xlsx",
        ss.Sources(
            train=ss.Excel("d/t.xlsx", sheet="Training"), test=ss.Excel("d/t.xlsx", sheet="Test")
        ),
    ),
    (
        lambda: (book("d/my_train.xlsx"), book("d/my_test.xlsx")),
        "d",
        ss.Sources(train=ss.Excel("d/my_train.xlsx"), test=ss.Excel("d/my_test.xlsx")),
    ),
    (
        lambda: arrays(
            "d/t.h5",
            **{
                f"{name}_{split}": [0, 1] * 6
                for name in ("n", "label")
                for split in ("test", "train")
            },
        ),
        "d/t.h5",
        ss.Sources(
            **{
                split: ss.Hdf5("d/t.h5", {"label": f"label_{split}", "n": f"n_{split}"})
                for split in ("train", "test")
            }
        ),
    ),
    (
        lambda: arrays(
            "d/t.h5",
            **{
                f"{split}__{name}": [0, 1] * 6
                for name in ("n", "label")
                for split in ("dev", "train")
            },
        ),
        "d/t.h5",
        ss.Sources(
            train=ss.Hdf5("d/t.h5", {"label": "train/label", "n": "train/n"}),
            validation=ss.Hdf5("d/t.h5", {"label": "dev/label", "n": "dev/n"}),
        ),
    ),
]


@pytest.mark.parametrize(("write", "url", "source"), CLEAR)
def test_clear_files_are_read(write: Callable[[], Any], url: str, source: Any) -> None:
    write()
    recipe = suggest_recipe(url)
    assert recipe.source == source
    by_folder = isinstance(source, ss.Sources)
    assert (recipe.splits == ss.Splits.by_folder()) == by_folder
    Path("recipes").mkdir()
    Path("recipes/made.py").write_text(describe_suggestion(url, folder="recipes", label="label"))
    made = load_recipe_file("recipes/made.py")
    assert made.source.label == "label"
    assert made.features is not None
    assert list(made.features) in (["label", "n"], ["n", "label"])
    assert made.features["n"] == ss.Scalar("int64")
    assert isinstance(made.features["label"], ss.ClassLabel)
    found = {split.name: split.num_examples for split in forecast(made, progress=Silent()).splits}
    assert found["train"] > 0


UNCLEAR: list[tuple[Callable[[], Any], str, list[str]]] = [
    (
        lambda: book("d/t.xlsx", "a", "b"),
        "holds 2 sheets, each of which may be the records",
        ['ss.Excel("d/t.xlsx", sheet="a")', 'ss.Excel("d/t.xlsx", sheet="b")'],
    ),
    (
        lambda: (book("d/a.xlsx"), book("d/2 b.xlsx"), book("d/c.xlsx", "x", "y")),
        "holds 4 sheets, in 3 files",
        [
            'ss.Excel("d/2 b.xlsx")',
            'ss.Excel("d/a.xlsx")',
            'ss.Excel("d/c.xlsx", sheet="x")',
            'ss.Excel("d/c.xlsx", sheet="y")',
        ],
    ),
    (
        lambda: (book("d/a.xlsx"), book("d/b.xlsx")),
        "holds 2 sheets, in 2 files",
        [
            'ss.Sources(a=ss.Excel("d/a.xlsx"), b=ss.Excel("d/b.xlsx"))',
            'ss.Excel("d/a.xlsx")',
            'ss.Excel("d/b.xlsx")',
        ],
    ),
    (
        lambda: (book("d/train.xlsx"), book("d/test.xlsx", rows=[r[:1] for r in ROWS])),
        "named like splits, with different columns",
        [
            'ss.Sources(train=ss.Excel("d/train.xlsx"), test=ss.Excel("d/test.xlsx")), '
            "splits=ss.Splits.by_folder()",
            'ss.Excel("d/test.xlsx")',
            'ss.Excel("d/train.xlsx")',
        ],
    ),
    (
        lambda: arrays("d/t.h5", x=range(30), names=["a", "b"]),
        "holds 2 sets of datasets of one length",
        [
            'ss.Hdf5("d/t.h5", datasets={"names": "names"}), splits=ss.Splits(train=1.0)',
            'ss.Hdf5("d/t.h5", datasets={"x": "x"})',
        ],
    ),
]


@pytest.mark.parametrize(("write", "seen", "lines"), UNCLEAR)
def test_unclear_files_are_refused(write: Callable[[], Any], seen: str, lines: list[str]) -> None:
    write()
    with pytest.raises(DataError, match=seen) as caught:
        suggest_recipe("d")
    found = [line.strip() for line in str(caught.value).splitlines() if "source=" in line]
    assert found == [f"source={line}" for line in lines]
    for line in found:
        recipe = eval(f"ss.Recipe(name='t', {line})", {"ss": ss})
        object.__setattr__(recipe, "folder", ".")
        assert all(split.num_examples for split in forecast(recipe, progress=Silent()).splits[:1])
    text = describe_suggestion("d", reading=len(lines))
    assert lines[-1].partition(", splits")[0].rstrip(")") in text


@pytest.mark.parametrize(
    ("module", "name", "extra"),
    [("python_calamine", "t.xlsx", "excel"), ("h5py", "t.h5", "hdf5")],
)
def test_a_missing_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, module: str, name: str, extra: str
) -> None:
    book(f"d/{name}") if extra == "excel" else arrays(f"d/{name}", x=[1])
    plain = importlib.import_module

    def find(wanted: str, *more: Any) -> Any:
        if wanted == module:
            raise ModuleNotFoundError(f"No module named {wanted!r}", name=wanted)
        return plain(wanted, *more)

    monkeypatch.setattr(importlib, "import_module", find)
    with pytest.raises(RecipeError, match=rf'Run: pip install "snapshard\[{extra}\]"$'):
        suggest_recipe("d")


def test_workbooks_of_other_kinds() -> None:
    Path("d/t.ods").write_bytes(zip_of({"content.xml": b"<office/>"}))
    with pytest.raises(DataError, match=r"t\.ods is not a workbook .* Save it as \.xlsx"):
        suggest_recipe("d")


def test_more_files_than_are_named() -> None:
    for number in range(21):
        book(f"d/{number}.xlsx", rows=ROWS[:2])
    with pytest.raises(DataError, match=r"holds 21 Excel files .*ss\.Files"):
        suggest_recipe("d")
