"""The engines that tests run on, or why they are not there; inputs that several of them build."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from .flink_cluster import QUICK_JAVA, FlinkCluster
from .installed import (
    MissingEngineError,
    airflow,
    flink_job_server,
    flink_libraries,
    prism,
    spark_job_server,
)

TABLE_RECIPE = """
import snapshard as ss
import tensorflow_transform as tft


def preprocess(inputs):
    return {
        "number": tft.scale_to_z_score(inputs["number"]),
        "word": tft.compute_and_apply_vocabulary(inputs["word"]),
        "label": inputs["label"],
    }


recipe = ss.Recipe(
    name="table",
    source=ss.Csv("table", label="label"),
    preprocessing_fn=preprocess,
    shards=ss.Shards(num_shards={"train": 6, "validation": 2, "test": 2}),
)
"""
IMAGE_RECIPE = """
import snapshard as ss

recipe = ss.Recipe(
    name="images",
    source=ss.ImageFolder("images"),
    prepare=[ss.images.decode("image"), ss.images.resize("image", (16, 16))],
    shards=ss.Shards(num_shards=4),
)
"""


def _there(engine: Callable[[], Path]) -> Path:
    try:
        return engine()
    except MissingEngineError as error:
        if os.environ.get("SNAPSHARD_NEED_ENGINES"):
            pytest.fail(str(error))
        pytest.skip(str(error))


@pytest.fixture(scope="module", autouse=True)
def _quick_java() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("JAVA_TOOL_OPTIONS", " ".join(QUICK_JAVA))
        yield


@pytest.fixture(scope="session")
def airflow_python() -> Path:
    return _there(airflow)


@pytest.fixture(scope="session")
def prism_program() -> Path:
    return _there(prism)


@pytest.fixture(scope="session")
def flink_jar() -> Path:
    return _there(flink_job_server)


@pytest.fixture(scope="session")
def spark_jar() -> Path:
    return _there(spark_job_server)


@pytest.fixture(scope="session")
def flink_cluster(
    flink_jar: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[FlinkCluster]:
    """Two TaskManagers and a pool of Python workers."""
    libraries = _there(flink_libraries)
    with FlinkCluster(libraries, tmp_path_factory.mktemp("flink")) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def table_recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table in five files, for tensorflow-transform."""
    folder = tmp_path_factory.mktemp("table")
    (folder / "table").mkdir()
    rng = np.random.default_rng(7)
    for number in range(5):
        rows = [
            f"{value:.6f},word {word},{'yes' if value > 0 else 'no'}"
            for value, word in zip(rng.normal(size=400), rng.integers(0, 50, 400), strict=True)
        ]
        (folder / "table" / f"{number}.csv").write_text("\n".join(["number,word,label", *rows]))
    recipe = folder / "recipe.py"
    recipe.write_text(TABLE_RECIPE)
    return recipe


@pytest.fixture(scope="session")
def image_recipe(lab: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    lab.make_images(folder / "images", num=120)
    recipe = folder / "recipe.py"
    recipe.write_text(IMAGE_RECIPE)
    return recipe
