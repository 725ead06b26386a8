"""Datasets of Hugging Face on disk: built, verified, and read back equal, splits by folder too."""

import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from PIL import Image

import snapshard as ss
from snapshard.pipelines.inspect.suggest import suggest_recipe

from .built import build, plain_rows

NUM = 12
SPECS = {
    "label": {"names": ["no", "yes"], "_type": "ClassLabel"},
    "x": {"dtype": "float32", "_type": "Value"},
    "s": {"dtype": "string", "_type": "Value"},
    "img": {"_type": "Image"},
    "fix": {"feature": {"dtype": "float32", "_type": "Value"}, "length": 3, "_type": "List"},
    "arr": {"shape": [2, 3], "dtype": "uint8", "_type": "Array2D"},
    "nest": {
        "a": {"dtype": "int32", "_type": "Value"},
        "b": {"names": ["p", "q"], "_type": "ClassLabel"},
    },
    "labels": {"feature": {"names": ["u", "v", "w"], "_type": "ClassLabel"}, "_type": "List"},
}
ARRAY = {
    b"ARROW:extension:name": b"datasets.features.features.Array2DExtensionType",
    b"ARROW:extension:metadata": b'[[2, 3], "uint8"]',
}
SCHEMA = pa.schema(
    [
        pa.field("label", pa.int64()),
        pa.field("x", pa.float32()),
        pa.field("s", pa.string()),
        pa.field("img", pa.struct([("bytes", pa.binary()), ("path", pa.string())])),
        pa.field("fix", pa.list_(pa.float32(), 3)),
        pa.field("arr", pa.list_(pa.list_(pa.uint8())), metadata=ARRAY),
        pa.field("nest", pa.struct([("a", pa.int32()), ("b", pa.int64())])),
        pa.field("labels", pa.list_(pa.int64())),
    ],
    metadata={"huggingface": json.dumps({"info": {"features": SPECS}})},
)
FEATURES = {
    "label": ss.ClassLabel(("no", "yes")),
    "x": ss.Scalar("float32"),
    "s": ss.Scalar("string"),
    "fix": ss.Tensor("float32", (3,)),
    "arr": ss.Tensor("uint8", (2, 3)),
    "nest.a": ss.Scalar("int32"),
    "nest.b": ss.ClassLabel(("p", "q")),
    "labels": ss.Sequence(ss.ClassLabel(("u", "v", "w"))),
}


def png(red: int) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (5, 4), (red, 0, 0)).save(out, "PNG")
    return out.getvalue()


def row(n: int) -> dict[str, Any]:
    return {
        "label": n % 2,
        "x": n / 2,
        "s": f"é{n}",
        "img": {"bytes": png(n), "path": None},
        "fix": [n, 1, 2],
        "arr": [[n, n, n], [0, 0, n]],
        "nest": {"a": n, "b": n % 2},
        "labels": [n % 3] * (n % 4),
    }


def save(folder: Path, numbers: range, *, name: str = "data-00000-of-00001.arrow") -> None:
    """As ``Dataset.save_to_disk`` does."""
    folder.mkdir(parents=True, exist_ok=True)
    with pa.ipc.new_stream(folder / name, SCHEMA) as writer:
        for start in range(0, len(numbers), 5):
            rows = [row(n) for n in numbers[start : start + 5]]
            writer.write_batch(pa.RecordBatch.from_pylist(rows, SCHEMA))
    state = {"_data_files": [{"filename": name}], "_split": None}
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "dataset_info.json").write_text(json.dumps({"features": SPECS}))
    (folder / "cache-0123.arrow").write_bytes(b"what map() has cached")


def expected(n: int) -> dict[str, Any]:
    plain = {k: v for k, v in row(n).items() if k not in ("img", "nest", "s")}
    return {**plain, "s": f"é{n}".encode(), "nest.a": n, "nest.b": n % 2, "img": png(n)}


def rows_of(lab: Any, snapshot: ss.Snapshot) -> dict[str, dict[str, Any]]:
    """Record id -> stored values; each image's file is told back from what is stored."""
    features = dict(snapshot.manifest.features)
    assert features.pop("img") == ss.Image(4, 5, storage="encoded")
    assert features == FEATURES
    return plain_rows(lab, snapshot)


@pytest.mark.slow
def test_a_dataset_comes_back_equal(lab: Any, tmp_path: Path) -> None:
    save(tmp_path / "set", range(NUM))
    snapshot = build(tmp_path, ss.HuggingFace(str(tmp_path / "set"), label="label"))
    assert snapshot.manifest.label == "label"
    name = "data-00000-of-00001.arrow"
    assert rows_of(lab, snapshot) == {f"{name}#{n}": expected(n) for n in range(NUM)}


def test_the_folders_of_a_dataset_dict_are_splits(lab: Any, tmp_path: Path) -> None:
    save(tmp_path / "set/train", range(8))
    save(tmp_path / "set/test", range(8, NUM))
    (tmp_path / "set/dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    source = ss.HuggingFace(str(tmp_path / "set"), label="label")
    snapshot = build(tmp_path, source, splits=ss.Splits.by_folder())
    sizes = {name: split.num_examples for name, split in snapshot.manifest.splits.items()}
    assert (sizes["train"], sizes["test"]) == (8, 4)
    found = rows_of(lab, snapshot)
    assert {values["x"] for name, values in found.items() if name.startswith("test/")} == {
        n / 2 for n in range(8, NUM)
    }


def test_a_dataset_is_recognised(tmp_path: Path) -> None:
    save(tmp_path / "set/train", range(2))
    recipe = suggest_recipe(str(tmp_path / "set"))
    assert recipe.source == ss.HuggingFace(str(tmp_path / "set"))
