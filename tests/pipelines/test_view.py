"""The view of a listing that recognition asks for files."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import snapshard as ss
from snapshard.pipelines.inspect.suggest import suggest_recipe
from snapshard.pipelines.recognize.view import View
from snapshard.transforms.storage.opened_source import open_source

PATHS = ("a/1.JPG", "a/2.jpg", "b/.jpg", "b/3.csv.gz", "b/4.gz", "b/.5.jpg", "README", "z.jpg")


@pytest.mark.parametrize(
    ("suffixes", "expected"),
    [
        ((".jpg",), ["a/1.JPG", "a/2.jpg", "z.jpg"]),
        ((".csv.gz", ".jpg"), ["a/1.JPG", "a/2.jpg", "b/3.csv.gz", "z.jpg"]),
        ((".gz",), ["b/3.csv.gz", "b/4.gz"]),
        (("",), ["README"]),
        ((".png",), []),
    ],
)
def test_files_with_a_suffix(
    tmp_path: Path, suffixes: tuple[str, ...], expected: list[str]
) -> None:
    for path in (*PATHS, "__MACOSX/a.jpg", "a/Thumbs.db"):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text("x")
    opened = open_source(str(tmp_path), ".")
    listed = opened.list()
    view = View(str(tmp_path), listed, opened)
    assert [file.path for file in view.ending(*suffixes)] == expected
    visible = [file.path for file in view.visible]
    assert visible == sorted(set(PATHS) - {"b/.jpg", "b/.5.jpg"})
    if all(suffix.count(".") == 1 for suffix in suffixes):
        others = [file.path for file in view.without(*suffixes)]
        assert sorted(others + expected) == visible


def test_a_hidden_file_that_is_named_is_seen(tmp_path: Path) -> None:
    path = tmp_path / ".rows.parquet"
    pq.write_table(pa.table({"x": range(30)}), path)
    assert suggest_recipe(str(path)).source == ss.Parquet(str(path))
