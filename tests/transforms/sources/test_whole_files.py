"""Folders of texts and of arrays, each file a record with the labels of media."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import snapshard as ss
from snapshard.pipelines.inspect.suggest import suggest_recipe
from snapshard.pipelines.recognize.media_folders import UnclearError
from snapshard.schemas.features import ClassLabel, Tensor, Text
from snapshard.transforms.runs.files import wire_schema
from snapshard.transforms.storage.opened_source import open_source

from ...file_bytes import npy, write
from .conftest import make_block


def read(source: Any) -> tuple[dict[str, Any], dict[str, Any], dict[str, str]]:
    """The features, the columns by record, and the reasons of rejects."""
    opened = open_source(source.url, "/")
    files = source.select(opened.list()).files
    features = source.infer(files, opened)
    block = make_block(files, opened)
    ordered = list(range(len(block.ranges)))
    rows: dict[str, Any] = {}
    reasons: dict[str, str] = {}
    for batch in source.read(block, features=features, opened=opened, ordered=ordered):
        assert batch.columns.schema.equals(wire_schema(features))
        rows |= dict(zip(batch.ids, batch.columns.to_pylist(), strict=True))
        reasons |= {reject.record_id: reject.reason for reject in batch.rejects}
    return features, rows, reasons


def test_texts(tmp_path: Path) -> None:
    files = {
        "pos/1.txt": "good\n\nvery gööd\n".encode(),
        "pos/2.txt": "\ufeffmarked".encode(),
        "neg/3.txt": "bad".encode("utf-16"),
        "neg/4.md": b"",
        "neg/5.txt": b"caf\xe9",
        "README.txt": b"about",
        "labels.csv": b"a,b\n",
    }
    features, rows, reasons = read(ss.TextFolder(write(tmp_path, files)))
    assert features == {"text": Text(), "label": ClassLabel(("neg", "pos"))}
    assert rows == {
        "neg/3.txt": {"text": b"bad", "label": 0},
        "neg/4.md": {"text": b"", "label": 0},
        "pos/1.txt": {"text": files["pos/1.txt"], "label": 1},
        "pos/2.txt": {"text": b"marked", "label": 1},
    }
    assert reasons == {"neg/5.txt": "not text of the encoding"}
    _, rows, reasons = read(ss.TextFolder(str(tmp_path / "neg"), label=None, encoding="latin-1"))
    assert (rows["5.txt"], reasons) == ({"text": "café".encode()}, {})


def test_arrays(tmp_path: Path) -> None:
    one, two = np.arange(6, dtype=np.float32).reshape(2, 3), np.ones((2, 3), np.float32)
    files = {
        "a/1.npy": npy(one),
        "b/2.npy": npy(np.asfortranarray(two)),
        "b/other.npy": npy(np.ones(3, np.float32)),
        "b/cut.npy": npy(two)[:-1],
        "b/text.npy": b"not an array",
        "b/objects.npy": npy(np.array([None]), allow_pickle=True),
        "b/words.npy": npy(["x", "y"]),
    }
    features, rows, reasons = read(ss.ArrayFolder(write(tmp_path, files)))
    assert features == {"array": Tensor("float32", (2, 3)), "label": ClassLabel(("a", "b"))}
    assert rows == {
        "a/1.npy": {"array": one.ravel().tolist(), "label": 0},
        "b/2.npy": {"array": two.ravel().tolist(), "label": 1},
    }
    assert reasons == {
        "b/other.npy": "wrong type",
        "b/cut.npy": "truncated array",
        "b/text.npy": "not an array",
        "b/objects.npy": "unsupported array",
        "b/words.npy": "unsupported array",
    }
    (tmp_path / "a" / "3.npy").write_bytes(npy(np.zeros((5, 3), np.float32)))
    features, rows, _ = read(ss.ArrayFolder(str(tmp_path)))
    assert features["array"] == Tensor("float32", (None, 3))
    assert rows["a/3.npy"]["array"] == [0.0] * 15


@pytest.mark.parametrize("kind", ["txt", "npy"])
def test_folders_of_them_are_recognized(tmp_path: Path, kind: str) -> None:
    data = b"words" if kind == "txt" else npy(np.zeros(2))
    make: Any = ss.TextFolder if kind == "txt" else ss.ArrayFolder
    split = {
        f"{split}/{label}/{n}.{kind}": data
        for split in ("train", "test")
        for label in "ab"
        for n in range(3)
    }
    recipe = suggest_recipe(write(tmp_path / "split", split))
    assert recipe.source == make(str(tmp_path / "split"), split_folders=True)
    assert recipe.splits == ss.Splits.by_folder(train="train", test="test")
    deep = {path.replace("train", "x").replace("test", "y"): data for path in split}
    with pytest.raises(UnclearError, match="2 levels of folders"):
        suggest_recipe(write(tmp_path / "deep", deep))


def test_lines_or_files(tmp_path: Path) -> None:
    one = write(tmp_path / "one", {"a.txt": b"x\ny\n"})
    assert suggest_recipe(one).source == ss.TextFiles(one)
    write(tmp_path / "one", {"b.txt": b"x\ny\n"})
    with pytest.raises(
        UnclearError, match=r"2 texts .* of which each line may be a record"
    ) as caught:
        suggest_recipe(one)
    assert [reading.source for reading in caught.value.readings] == [
        ss.TextFiles(one),
        ss.TextFolder(one, label=None),
    ]
