"""A TensorFlow Datasets builder of class folders of JPEGs, which Beam pickles by name."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
import tensorflow as tf
import tensorflow_datasets as tfds


def make_example(path: str) -> tuple[str, dict[str, Any]]:
    """Reads and checks one image."""
    content = Path(path).read_bytes()
    tf.io.decode_jpeg(content, channels=3, ratio=8)
    label = os.path.basename(os.path.dirname(path))
    return path, {"image": content, "label": label}


class Images(tfds.core.GeneratorBasedBuilder):
    """Class folders of JPEGs, found in the folder that IMAGES names."""

    # Where TFDS looks for the files that describe a dataset.
    pkg_dir_path = Path(__file__).parent
    VERSION = tfds.core.Version("1.0.0")
    USE_BEAM = False

    def _info(self) -> Any:
        labels = sorted(path.name for path in Path(os.environ["IMAGES"]).iterdir())
        features = {
            "image": tfds.features.Image(encoding_format="jpeg"),
            "label": tfds.features.ClassLabel(names=labels),
        }
        return self.dataset_info_from_configs(features=tfds.features.FeaturesDict(features))

    def _split_generators(self, dl_manager: Any) -> dict[str, Any]:
        return {"train": self._generate_examples()}

    def _generate_examples(self) -> Any:
        paths = sorted(str(path) for path in Path(os.environ["IMAGES"]).glob("*/*"))
        if self.USE_BEAM:
            return beam.Create(paths) | beam.Map(make_example)
        return self._each(paths)

    @staticmethod
    def _each(paths: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
        return (make_example(path) for path in paths)


class BeamImages(Images):
    """The same as a Beam pipeline."""

    USE_BEAM = True
