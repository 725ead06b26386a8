"""Recipe code reaches every worker: the recipe's file, and the modules beside it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import snapshard as ss

RECIPE = """
import snapshard as ss
from colours.invert import invert
from settings import SIZE


def preprocessing_fn(inputs):
    import tensorflow as tf

    from late import scaled

    return {"mean": scaled(inputs["mean"]), "label": inputs["label"]}


def summarise(record):
    import tensorflow as tf

    image = tf.cast(invert(record["image"]), tf.float32)
    return {"mean": tf.reduce_mean(image), "label": record["label"]}


recipe = ss.Recipe(
    name="beside",
    source=ss.ImageFolder("images"),
    prepare=[ss.images.decode("image"), ss.images.resize("image", SIZE), summarise],
    features={"mean": ss.Scalar("float32"), "label": ss.ClassLabel(("class 0", "class 1"))},
    splits=ss.Splits(train=0.8, validation=0.1, test=0.1, allow_empty=True),
    REST
)
"""

FILES = {
    "settings.py": "SIZE = (16, 16)\n",
    "colours/__init__.py": "",
    "colours/most.py": "MOST = 255\n",
    "colours/invert.py": (
        "from .most import MOST\n\n\ndef invert(image):\n    return MOST - image\n"
    ),
    "late.py": (
        "import tensorflow_transform as tft\n\n\n"
        "def scaled(column):\n    return tft.scale_to_z_score(column)\n"
    ),
    # What the names of modules beside the recipe might be mixed up with.
    "statistics.py": "raise RuntimeError('not imported by the recipe')\n",
}


@pytest.fixture
def beside(lab: Any, tmp_path: Path) -> Path:
    """A recipe with a module and a package beside it, which the process cannot import."""
    folder = tmp_path / "project"
    lab.make_images(folder / "images", num=40, classes=2)
    for name, content in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    (folder / "recipe.py").write_text(RECIPE.replace("REST", ""))
    return folder / "recipe.py"


def inverted_mean(path: Path) -> float:
    from PIL import Image as PillowImage

    with PillowImage.open(path) as image:
        return float(255 - np.asarray(image).astype(float).mean())


@pytest.mark.slow
def test_modules_beside_a_recipe(lab: Any, beside: Path, tmp_path: Path) -> None:
    snapshot = lab.build(beside, tmp_path / "out")
    held = lab.read_back(snapshot)
    assert len(set(held.ids)) == 40
    for record_id, _, values in held.rows():
        mean = inverted_mean(beside.parent / "images" / record_id)
        assert values["mean"] == pytest.approx(mean, abs=2)


@pytest.mark.slow  # the command line, with two worker processes and the analysis
def test_from_another_folder_with_workers(lab: Any, beside: Path, tmp_path: Path) -> None:
    """The analysis's process and the writers import the module that the function imports late."""
    beside.write_text(RECIPE.replace("REST", "preprocessing_fn=preprocessing_fn,"))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "settings.py").write_text("raise RuntimeError('the wrong settings')\n")
    done = lab.run_cli(
        "build", "../project/recipe.py", "--out", "out", "--workers", "2", "--json", cwd=elsewhere
    )
    snapshot = ss.Snapshot.open(lab.last_json(done)["path"])
    assert Path(snapshot.path).is_relative_to(elsewhere / "out")
    held = lab.read_back(snapshot)
    is_train = np.array(held.splits) == "train"
    means = np.array([inverted_mean(beside.parent / "images" / name) for name in held.ids])
    scaled = (means - means[is_train].mean()) / means[is_train].std()
    assert held.values["mean"] == pytest.approx(scaled, abs=0.2)
    train = held.values["mean"][is_train]
    assert train.mean() == pytest.approx(0, abs=1e-5)
    assert train.std() == pytest.approx(1, abs=1e-4)
