"""Reading without TensorFlow, of snapshots that are built: it gives what ``dataset`` gives."""

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import snapshard as ss
from snapshard.pipelines.build import build
from snapshard.pipelines.inspect.verify import verify
from snapshard.pipelines.recipe.shipping import load_recipe_file
from snapshard.schemas.progress import Silent

# What a trainer without TensorFlow does; prints what it found.
TRAINER = """
import json
import sys

from reader import arrays

records = arrays.Records("train")
stream = arrays.Stream("train", seed=1)
print(json.dumps({
    "num": [len(records), sum(1 for _ in stream)],
    "names": sorted(records[0]),
    "loaded": sorted({name.partition(".")[0] for name in sys.modules}),
}))
"""


def arrays_of(snapshot: ss.Snapshot) -> Any:
    """The module ``arrays`` of the snapshot's reader."""
    return importlib.import_module(".arrays", snapshot.reader().__name__)


def assert_readers_agree(snapshot: ss.Snapshot) -> int:
    """All values of all splits are the same in type, shape and bits; gives how many records."""
    reader, other = snapshot.reader(), arrays_of(snapshot)
    num_compared = 0
    for split, entry in snapshot.manifest.splits.items():
        records = other.Records(split)
        streamed = other.Stream(split, shuffle=False)
        assert len(records) == len(streamed) == entry.num_examples
        by_number = iter(records)
        stream = iter(streamed)
        for batch in reader.dataset(split, 50, shuffle=False):
            columns = {name: list(values.numpy()) for name, values in batch.items()}
            for row in zip(*columns.values(), strict=True):
                for found in (next(by_number), next(stream)):
                    assert found.keys() == columns.keys()
                    for name, wanted in zip(columns, row, strict=True):
                        assert type(found[name]) is type(wanted), name
                        np.testing.assert_array_equal(found[name], wanted, name)
                        if not isinstance(wanted, bytes):
                            assert found[name].dtype == wanted.dtype
                num_compared += 1
        assert next(by_number, None) is next(stream, None) is None
    return num_compared


@pytest.mark.slow
def test_images(lab: Any, tmp_path: Path) -> None:
    lab.make_images(tmp_path / "images", num=60)
    recipe = ss.Recipe(
        name="made",
        source=ss.ImageFolder(str(tmp_path / "images")),
        prepare=[ss.images.decode("image"), ss.images.resize("image", (8, 8))],
    )
    snapshot = build(recipe, tmp_path / "out")
    assert assert_readers_agree(snapshot) == 60
    assert {"reader/arrays.py", "reader/examples.py"} <= set(snapshot.manifest.files)
    verify(snapshot, progress=Silent())
    done = subprocess.run(
        [sys.executable, "-c", TRAINER],
        cwd=snapshot.path,
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout)
    assert found["num"] == [snapshot.manifest.splits["train"].num_examples] * 2
    assert found["names"] == ["image", "label"]
    assert not {"tensorflow", "snapshard", "pyarrow"} & set(found["loaded"])


@pytest.mark.slow
@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_tables(tmp_path: Path, examples: Path, compression: Any) -> None:
    recipe = ss.Recipe(
        name="penguins",
        source=ss.Csv(str(examples / "data" / "penguins.csv"), label="species"),
        shards=ss.Shards(num_shards=3, compression=compression),
    )
    snapshot = ss.build(recipe, tmp_path / "out")
    assert assert_readers_agree(snapshot) == 344


@pytest.mark.slow  # hundreds of photographs; tensorflow-transform in a child process
@pytest.mark.parametrize("name", ["sign_digits", "penguins"])
def test_examples(request: pytest.FixtureRequest, name: str) -> None:
    snapshot: ss.Snapshot = request.getfixturevalue(name)
    num_examples = sum(split.num_examples for split in snapshot.manifest.splits.values())
    assert assert_readers_agree(snapshot) == num_examples >= 300


@pytest.mark.slow
def test_sounds(tmp_path: Path, examples: Path) -> None:
    recipe = load_recipe_file(examples / "spoken_digits.py")
    assert assert_readers_agree(build(recipe, tmp_path)) > 10


def test_encoded_images_decode_as_in_the_other(lab: Any, tmp_path: Path) -> None:
    lab.make_images(tmp_path / "images", num=8)
    splits = ss.Splits(train=1.0)
    recipe = ss.Recipe(name="made", source=ss.ImageFolder(str(tmp_path / "images")), splits=splits)
    snapshot = ss.build(recipe, tmp_path / "out")
    assert snapshot.manifest.features["image"].storage == "encoded"
    other = arrays_of(snapshot)
    batch = next(iter(snapshot.reader().dataset("train", 1, shuffle=False)))
    files = {path.read_bytes() for path in (tmp_path / "images").rglob("*.jpg")}
    first = other.Records("train")[0]
    assert first["image"] in files
    decoded = other.Records("train", decode=other.decode_image)[0]["image"]
    wanted = batch["image"].numpy()[0]
    assert decoded.shape == wanted.shape
    assert decoded.dtype == wanted.dtype
    # Both by libjpeg-turbo, with the exact DCT.
    assert np.abs(decoded.astype(int) - wanted).max() <= 1
