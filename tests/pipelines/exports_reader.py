"""Reads an export of images with Hugging Face's datasets or with the webdataset library.

``python exports_reader.py datasets|webdataset FOLDER`` needs that package, and nothing of
snapshard. It prints as JSON, by split, a list of [height, width, label] in order.
"""

import json
import pathlib
import sys
from typing import Any


def by_datasets(folder: str) -> dict[str, Any]:
    import datasets

    loaded = datasets.load_dataset(folder, cache_dir=f"{folder}-cache")
    kinds = {type(part.features["image"]).__name__ for part in loaded.values()}
    assert kinds == {"Image"}, kinds
    return {
        split: [[row["image"].height, row["image"].width, row["label"]] for row in part]
        for split, part in loaded.items()
    }


def by_webdataset(folder: str) -> dict[str, Any]:
    import webdataset

    found: dict[str, Any] = {}
    for path in sorted(pathlib.Path(folder).glob("*.tar")):
        samples = webdataset.WebDataset(str(path), shardshuffle=False).decode("rgb8")
        for sample in samples:
            image = sample["jpg"] if "jpg" in sample else sample["png"]
            assert sample["json"]["label"] == "ab"[sample["cls"]]
            found.setdefault(path.name.partition("-")[0], []).append(
                [*image.shape[:2], sample["json"]["label"]]
            )
    return found


print(json.dumps({"datasets": by_datasets, "webdataset": by_webdataset}[sys.argv[1]](sys.argv[2])))
