"""PNGs of 16 bits and arrays of uint16, from a source through the reader: no bit is lost."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import snapshard as ss

from .built import build_all

PIXELS = np.random.default_rng(0).integers(0, 2**16, (6, 8, 10, 1), np.uint16)


def _folder(folder: Path) -> Any:
    import tensorflow as tf

    for number, pixels in enumerate(PIXELS):
        path = folder / "in" / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(tf.io.encode_png(pixels).numpy())
    return ss.ImageFolder(str(folder / "in"))


def _read(snapshot: ss.Snapshot, **options: Any) -> Any:
    batches = snapshot.reader().dataset("train", len(PIXELS), shuffle=False, **options)
    return next(iter(batches))["image"]


@pytest.mark.slow
@pytest.mark.parametrize("storage", ["raw", "encoded"])
def test_depths_come_back_from_files(lab: Any, tmp_path: Path, storage: Any) -> None:
    features = {
        "image": ss.Image(8, 10, channels=1, storage=storage, dtype="uint16"),
        "label": ss.ClassLabel(("a", "b")),
    }
    steps = [ss.images.decode("image", 1), ss.images.resize("image", (8, 10))]
    source = _folder(tmp_path)
    prepare = steps if storage == "raw" else []
    snapshot = build_all(tmp_path, source, prepare=prepare, features=features, max_rejects=0)
    assert snapshot.manifest.features["image"] == features["image"]
    ids = lab.read_back(snapshot).ids
    expected = np.stack([PIXELS[int(Path(one).stem)] for one in ids])
    found = _read(snapshot)
    assert found.dtype.name == "uint16"
    np.testing.assert_array_equal(found, expected)
    scaled = _read(snapshot, scale=1 / 65_535)
    np.testing.assert_allclose(scaled, expected / 65_535, rtol=1e-5)
    small = _read(snapshot, image_size=(4, 5))
    assert (small.dtype.name, small.shape) == ("uint16", (6, 4, 5, 1))
    if storage == "raw":
        content = Path(tmp_path, "in", ids[0]).read_bytes()
        served = snapshot.reader().preprocess()(image=[content])
        np.testing.assert_array_equal(served["image"][0], expected[0])
    arrays = snapshot.reader().arrays
    if storage == "raw":
        row = arrays.Records("train")[0]
        np.testing.assert_array_equal(row["image"], expected[0])
    else:
        with pytest.raises(ValueError, match="has 16 bits"):
            arrays.Records("train", decode=arrays.decode_image)[0]


@pytest.mark.parametrize("kind", ["Table", "npz", "bytes"])
def test_depths_come_back_from_arrays(lab: Any, tmp_path: Path, kind: str) -> None:
    types = {"image": ss.Image(8, 10, channels=1, dtype="uint16")}
    np.savez(tmp_path / "t.npz", image=PIXELS[..., 0], n=np.arange(len(PIXELS)))
    rows = [{"image": one.tobytes(), "n": n} for n, one in enumerate(PIXELS)]
    sources: dict[str, Any] = {
        "Table": ss.Table({"image": PIXELS, "n": np.arange(len(PIXELS))}, types=types),
        "npz": ss.Numpy(str(tmp_path / "t.npz"), types=types),
        "bytes": ss.Iterable(rows, types=types),
    }
    snapshot = build_all(tmp_path, sources[kind], max_rejects=0)
    assert snapshot.manifest.features["image"] == types["image"]
    for row in lab.stored_rows(snapshot).values():
        np.testing.assert_array_equal(row["image"], PIXELS[row["n"]])
    held = lab.read_back(snapshot).values
    np.testing.assert_array_equal(held["image"], PIXELS[held["n"]])
