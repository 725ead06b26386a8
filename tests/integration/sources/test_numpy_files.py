"""NumPy files: built, verified, and read back equal to the arrays."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import snapshard as ss
from snapshard.pipelines.inspect.suggest import suggest_recipe
from snapshard.pipelines.inspect.verify import verify
from snapshard.schemas.progress import Silent

from .built import build

NUM = 30
ARRAYS: dict[str, Any] = {
    "x": np.arange(NUM * 6, dtype=np.float32).reshape(NUM, 2, 3) / 7,
    "wide": np.arange(NUM) / 7,
    "half": (np.arange(NUM) / 8).astype(np.float16),
    "small": np.arange(NUM, dtype=np.int8) - 5,
    "big": np.uint64(2**64 - 1) - np.arange(NUM, dtype=np.uint64),
    "swapped": np.arange(NUM, dtype=">i4") * 1000,
    "yes": np.arange(NUM) % 3 == 0,
    "name": np.array([f"é{i}" for i in range(NUM)]),
    "kind": np.array(["cat", "dog"])[np.arange(NUM) % 2],
}


def npz() -> bytes:
    out = io.BytesIO()
    np.savez_compressed(out, **ARRAYS)
    return out.getvalue()


@pytest.mark.slow
def test_npz_comes_back_equal(lab: Any, tmp_path: Path) -> None:
    (tmp_path / "t.npz").write_bytes(npz())
    held = lab.read_back(build(tmp_path, ss.Numpy(str(tmp_path / "t.npz"), label="kind")))
    assert sorted(held.ids) == sorted(f"t.npz#{i}" for i in range(NUM))
    rows = np.array([int(i.partition("#")[2]) for i in held.ids])
    for name, array in ARRAYS.items():
        expected = array[rows]
        if name == "kind":
            expected = (expected == "dog").astype(np.int64)
        if array.dtype.kind == "U":
            expected = np.char.encode(expected) if name == "name" else expected
        found = held.values[name]
        if name == "big":
            found = found.astype(np.uint64)
        np.testing.assert_array_equal(found, expected, err_msg=name)


def write_beside(tmp_path: Path) -> Path:
    """Two arrays beside each other, and their recipe."""
    np.save(tmp_path / "x.npy", ARRAYS["x"])
    np.save(tmp_path / "y.npy", np.asfortranarray(ARRAYS["x"][:, :, 0]))
    recipe = tmp_path / "recipe.py"
    recipe.write_text(
        "import snapshard as ss\n"
        'recipe = ss.Recipe(name="made", source=ss.Numpy("x.npy", name="x", '
        'beside={"y": "y.npy"}))\n'
    )
    return recipe


@pytest.mark.slow  # worker processes
def test_npy_files_beside_each_other_with_two_workers(lab: Any, tmp_path: Path) -> None:
    recipe = write_beside(tmp_path)
    one = lab.build(recipe, tmp_path / "one")
    assert lab.hashes(lab.build(recipe, tmp_path / "two", workers=2)) == lab.hashes(one)


def test_npy_files_beside_each_other_come_back_equal(lab: Any, tmp_path: Path) -> None:
    recipe = write_beside(tmp_path)
    one = lab.build(recipe, tmp_path / "one")
    verify(one, progress=Silent())
    held = lab.read_back(one)
    rows = np.array([int(i.partition("#")[2]) for i in held.ids])
    assert sorted(held.ids) == sorted(f"x.npy#{i}" for i in range(NUM))
    np.testing.assert_array_equal(held.values["x"], ARRAYS["x"][rows])
    np.testing.assert_array_equal(held.values["y"], ARRAYS["x"][rows, :, 0])


def test_numpy_files_are_recognised(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", ARRAYS["x"])
    (tmp_path / "t.npz").write_bytes(npz())
    for url in (tmp_path / "x.npy", tmp_path / "t.npz", tmp_path):
        assert suggest_recipe(str(url)).source == ss.Numpy(str(url))


def test_a_file_cut_short_is_a_reject_of_the_build(lab: Any, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", ARRAYS["small"])
    content = (tmp_path / "x.npy").read_bytes()
    (tmp_path / "x.npy").write_bytes(content[:-7])
    source = ss.Numpy(str(tmp_path / "x.npy"))
    with pytest.raises(ss.SnapshardError, match=r"x\.npy row 23: part 0 is damaged"):
        build(tmp_path, source)
    with pytest.raises(ss.SnapshardError, match="7 of 30 records were rejected"):
        ss.build(ss.Recipe(name="made", source=source, max_rejects=6), tmp_path / "out")
    recipe = ss.Recipe(name="made", source=source, max_rejects=7)
    held = lab.read_back(ss.build(recipe, tmp_path / "out"))
    assert sorted(held.values["data"].tolist()) == list(range(-5, NUM - 7 - 5))
