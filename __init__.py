"""snapshard turns raw files into a training-ready snapshot, once.

A recipe (a Python object in a Python file) declares the source, the prepare steps, the splits and
the shards; a build reads the raw files with Apache Beam, runs the deterministic preprocessing a
single time, and publishes a directory of balanced TFRecord shards together with the package
`reader`, which builds the matching `tf.data` input pipeline.

The names below load on first use: `import snapshard` is fast and loads neither TensorFlow nor
Apache Beam.
"""

import contextlib
import importlib
import locale
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .pipelines.build import build, plan, run_step
    from .pipelines.snapshot import Snapshot, load
    from .schemas.errors import SnapshardError
    from .schemas.features import (
        Audio,
        BoundingBoxes,
        ClassLabel,
        Image,
        Mask,
        Scalar,
        Sequence,
        Struct,
        Tensor,
        Text,
        Timestamp,
    )
    from .schemas.limits import Limits
    from .schemas.recipe import Recipe
    from .schemas.runner import Dataflow, Direct, Flink, Prism, Spark
    from .schemas.shards import Shards
    from .schemas.splits import Splits
    from .transforms.prepare import audio, images, records, series, tables, text
    from .transforms.prepare.engine.rows import encode_example, parse_example
    from .transforms.sources.arrow.hugging_face import HuggingFace
    from .transforms.sources.arrow.ipc import Arrow
    from .transforms.sources.arrow.parquet import Parquet
    from .transforms.sources.combined import Sources
    from .transforms.sources.csv.source import Csv
    from .transforms.sources.custom import Files
    from .transforms.sources.excel import Excel
    from .transforms.sources.folders.arrays import ArrayFolder
    from .transforms.sources.folders.audio import AudioFolder
    from .transforms.sources.folders.clips import ClipFolder
    from .transforms.sources.folders.images import ImageFolder
    from .transforms.sources.folders.texts import TextFolder
    from .transforms.sources.folders.web_dataset import WebDataset
    from .transforms.sources.hdf5 import Hdf5
    from .transforms.sources.iterable import Iterable
    from .transforms.sources.json.source import JsonLines
    from .transforms.sources.memory import Table
    from .transforms.sources.numpy import Numpy
    from .transforms.sources.sql.source import Sql
    from .transforms.sources.text import TextFiles
    from .transforms.sources.tfrecord.source import TFRecords

__version__ = "0.1.0"

# In each process that builds, before TensorFlow asks for it (transforms/case_mapping.py).
with contextlib.suppress(locale.Error, AttributeError):  # no such locale, or no such category
    locale.setlocale(locale.LC_MESSAGES, "C.UTF-8")

__all__ = [
    "ArrayFolder",
    "Arrow",
    "Audio",
    "AudioFolder",
    "BoundingBoxes",
    "ClassLabel",
    "ClipFolder",
    "Csv",
    "Dataflow",
    "Direct",
    "Excel",
    "Files",
    "Flink",
    "Hdf5",
    "HuggingFace",
    "Image",
    "ImageFolder",
    "Iterable",
    "JsonLines",
    "Limits",
    "Mask",
    "Numpy",
    "Parquet",
    "Prism",
    "Recipe",
    "Scalar",
    "Sequence",
    "Shards",
    "SnapshardError",
    "Snapshot",
    "Sources",
    "Spark",
    "Splits",
    "Sql",
    "Struct",
    "TFRecords",
    "Table",
    "Tensor",
    "Text",
    "TextFiles",
    "TextFolder",
    "Timestamp",
    "WebDataset",
    "__version__",
    "audio",
    "build",
    "encode_example",
    "images",
    "load",
    "parse_example",
    "plan",
    "records",
    "run_step",
    "series",
    "tables",
    "text",
]

# Public name -> the module that defines it, relative to this package: the imports above again, for
# use at run time. Names such as `images` are modules themselves.
_EXPORTS: dict[str, str] = {
    "Files": ".transforms.sources.custom",
    "HuggingFace": ".transforms.sources.arrow.hugging_face",
    "Sql": ".transforms.sources.sql.source",
    "Table": ".transforms.sources.memory",
    "TFRecords": ".transforms.sources.tfrecord.source",
    "Arrow": ".transforms.sources.arrow.ipc",
    "Audio": ".schemas.features",
    "ArrayFolder": ".transforms.sources.folders.arrays",
    "AudioFolder": ".transforms.sources.folders.audio",
    "BoundingBoxes": ".schemas.features",
    "ClassLabel": ".schemas.features",
    "ClipFolder": ".transforms.sources.folders.clips",
    "Csv": ".transforms.sources.csv.source",
    "Dataflow": ".schemas.runner",
    "Direct": ".schemas.runner",
    "Excel": ".transforms.sources.excel",
    "Flink": ".schemas.runner",
    "Hdf5": ".transforms.sources.hdf5",
    "Image": ".schemas.features",
    "ImageFolder": ".transforms.sources.folders.images",
    "Iterable": ".transforms.sources.iterable",
    "JsonLines": ".transforms.sources.json.source",
    "Numpy": ".transforms.sources.numpy",
    "Limits": ".schemas.limits",
    "Mask": ".schemas.features",
    "Parquet": ".transforms.sources.arrow.parquet",
    "Prism": ".schemas.runner",
    "Recipe": ".schemas.recipe",
    "Scalar": ".schemas.features",
    "Sequence": ".schemas.features",
    "Shards": ".schemas.shards",
    "SnapshardError": ".schemas.errors",
    "Snapshot": ".pipelines.snapshot",
    "Sources": ".transforms.sources.combined",
    "load": ".pipelines.snapshot",
    "Spark": ".schemas.runner",
    "Splits": ".schemas.splits",
    "Struct": ".schemas.features",
    "Tensor": ".schemas.features",
    "Text": ".schemas.features",
    "TextFiles": ".transforms.sources.text",
    "TextFolder": ".transforms.sources.folders.texts",
    "Timestamp": ".schemas.features",
    "build": ".pipelines.build",
    "plan": ".pipelines.build",
    "run_step": ".pipelines.build",
    "encode_example": ".transforms.prepare.engine.rows",
    "parse_example": ".transforms.prepare.engine.rows",
    "WebDataset": ".transforms.sources.folders.web_dataset",
}
_MODULES: dict[str, str] = {
    "audio": ".transforms.prepare.audio",
    "images": ".transforms.prepare.images",
    "records": ".transforms.prepare.records",
    "series": ".transforms.prepare.series",
    "tables": ".transforms.prepare.tables",
    "text": ".transforms.prepare.text",
}


if not TYPE_CHECKING:  # otherwise type checkers would accept misspelt names as Any

    def __getattr__(name: str) -> Any:
        if name in _EXPORTS:
            value = getattr(importlib.import_module(_EXPORTS[name], __name__), name)
        elif name in _MODULES:
            value = importlib.import_module(_MODULES[name], __name__)
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
