"""Snapshots that ship a reader without TensorFlow: it gives what the other one gives."""

import json
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import snapshard as ss
from snapshard import cli
from snapshard.pipelines import startup_noise
from snapshard.pipelines.build import build
from snapshard.pipelines.staging import load_recipe_file
from snapshard.pipelines.verify import verify
from snapshard.schemas.errors import RecipeError
from snapshard.schemas.progress import Silent

# What a trainer without TensorFlow does; prints what it found.
TRAINER = """
import json
import sys

import reader_numpy

records = reader_numpy.Records("train")
stream = reader_numpy.Stream("train", seed=1)
print(json.dumps({
    "num": [len(records), sum(1 for _ in stream)],
    "names": sorted(records[0]),
    "loaded": sorted({name.partition(".")[0] for name in sys.modules}),
}))
"""


def numpy_reader(snapshot: ss.Snapshot) -> types.ModuleType:
    path = Path(snapshot.path) / "reader_numpy.py"
    module = types.ModuleType("emitted_reader_numpy")
    module.__file__ = str(path)
    exec(compile(path.read_text(), path, "exec"), module.__dict__)
    return module


def assert_readers_agree(snapshot: ss.Snapshot) -> int:
    """All values of all splits are the same in type, shape and bits; gives how many records."""
    reader, other = snapshot.reader(), numpy_reader(snapshot)
    assert reader.FEATURES.keys() == other.FEATURES.keys()
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


def test_images(lab: Any, tmp_path: Path) -> None:
    lab.make_images(tmp_path / "images", num=60)
    recipe = ss.Recipe(
        name="made",
        source=ss.ImageFolder(str(tmp_path / "images")),
        prepare=[ss.images.decode("image"), ss.images.resize("image", (8, 8))],
    )
    snapshot = build(recipe, tmp_path / "out", readers=("numpy", "tf"))
    assert assert_readers_agree(snapshot) == 60
    assert {"reader.py", "reader_numpy.py"} <= set(snapshot.manifest.files)
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


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_tables(tmp_path: Path, examples: Path, compression: Any) -> None:
    recipe = ss.Recipe(
        name="penguins",
        source=ss.Csv(str(examples / "data" / "penguins.csv"), label="species"),
        shards=ss.Shards(num_shards=3, compression=compression),
    )
    plain = ss.build(recipe, tmp_path / "out")
    assert "reader_numpy.py" not in plain.manifest.files
    snapshot = ss.build(recipe, tmp_path / "out", readers=["tf", "numpy"])
    assert assert_readers_agree(snapshot) == 344
    facts = json.loads((Path(snapshot.path) / "build.json").read_text())
    assert facts["blocks"]["prepared"] == 0
    assert snapshot.manifest.fingerprint != plain.manifest.fingerprint
    assert not snapshot.cached
    assert ss.build(recipe, tmp_path / "out", readers=("tf", "numpy")).cached
    assert ss.build(recipe, tmp_path / "out").path == plain.path
    for shard in (split.shards[0] for split in plain.manifest.splits.values()):
        assert shard in [s for split in snapshot.manifest.splits.values() for s in split.shards]


@pytest.mark.slow  # hundreds of photographs; tensorflow-transform in a child process
@pytest.mark.parametrize("name", ["sign_digits", "penguins"])
def test_examples(tmp_path: Path, examples: Path, name: str) -> None:
    recipe = load_recipe_file(examples / f"{name}.py")
    snapshot = build(recipe, tmp_path, readers=("tf", "numpy"))
    num_examples = sum(split.num_examples for split in snapshot.manifest.splits.values())
    assert assert_readers_agree(snapshot) == num_examples >= 300


def test_sounds(tmp_path: Path, examples: Path) -> None:
    recipe = load_recipe_file(examples / "spoken_digits.py")
    assert assert_readers_agree(build(recipe, tmp_path, readers=("tf", "numpy"))) > 10


def test_encoded_images_decode_as_in_the_other(lab: Any, tmp_path: Path) -> None:
    lab.make_images(tmp_path / "images", num=8)
    splits = ss.Splits(train=1.0)
    recipe = ss.Recipe(name="made", source=ss.ImageFolder(str(tmp_path / "images")), splits=splits)
    snapshot = ss.build(recipe, tmp_path / "out", readers=("tf", "numpy"))
    assert snapshot.manifest.features["image"].storage == "encoded"
    other = numpy_reader(snapshot)
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


def test_from_the_command_line(
    tmp_path: Path,
    examples: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(startup_noise, "hush_libraries", lambda: None)
    table = str(examples / "data" / "penguins.csv")
    with pytest.raises(SystemExit) as ended:
        cli.main(["build", table, "--out", str(tmp_path), "--readers", "numpy, tf", "--json"])
    assert ended.value.code == 0
    path = json.loads(capsys.readouterr().out.splitlines()[-1])["path"]
    snapshot = ss.Snapshot.open(path)
    assert len(numpy_reader(snapshot).Records("train")) > 200
    assert "reader_numpy.py" in snapshot.manifest.files


def test_wrong_names(lab: Any, tmp_path: Path, examples: Path) -> None:
    recipe = load_recipe_file(examples / "sign_digits.py")
    with pytest.raises(RecipeError, match="no reader 'torch', only 'tf', 'numpy'"):
        ss.build(recipe, tmp_path, readers=("tf", "torch"))
    done = lab.run_cli("build", examples / "sign_digits.py", "--out", tmp_path, "--readers", "jax")
    assert done.returncode == 2
    assert "there is no reader 'jax', only 'tf', 'numpy'" in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []
