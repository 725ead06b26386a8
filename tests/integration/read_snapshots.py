"""A trainer's script: reads snapshots as it is told and writes down what came.

``python read_snapshots.py CASES.json OUT.npz``, with any TensorFlow and no snapshard. A case names
the folder of a snapshot, and the options of ``reader.dataset`` (with the size of a batch) or a file
for ``reader.preprocess()``.
"""

import importlib
import importlib.util
import json
import sys
import time
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf


def load(folder: str) -> types.ModuleType:
    """The reader package of a snapshot; several are loaded side by side."""
    name = f"reader_{len(sys.modules)}"
    spec = importlib.util.spec_from_file_location(
        name, f"{folder}/reader/__init__.py", submodule_search_locations=[f"{folder}/reader"]
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def augment(example: Any, seed: Any) -> Any:
    """Adds noise by the seed, and the seed."""
    return {**example, "noise": tf.random.stateless_uniform([2], seed), "seed": seed}


def leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """The tensors in nested dicts and tuples, by dotted names; ragged ones as their parts."""
    if isinstance(value, tuple):
        value = dict(enumerate(value))
    if isinstance(value, dict):
        for key, one in value.items():
            yield from leaves(one, f"{name}.{key}")
    elif isinstance(value, tf.RaggedTensor):
        yield f"{name}/values", value.flat_values
        for level, splits in enumerate(value.nested_row_splits):
            yield f"{name}/splits {level}", splits
    else:
        yield name, value


def plain(tensor: Any) -> Iterator[tuple[str, Any]]:
    """A tensor as arrays that ``np.savez`` takes without pickling."""
    array = tensor.numpy()
    if tensor.dtype == tf.string:
        content = b"".join(array.ravel().tolist())
        yield "lengths", np.array([len(one) for one in array.ravel()], np.int64)
        yield "bytes", np.frombuffer(content, np.uint8)
        yield "shape", np.array(array.shape)
    elif tensor.dtype == tf.bfloat16:
        yield "bfloat16", array.view(np.uint16)
    else:
        yield tensor.dtype.name, array


def read(case: dict[str, Any]) -> dict[str, Any]:
    """What a case gives, by names of batch, feature and part."""
    options = dict(case["options"])
    if "augment" in options:
        options["augment"] = augment
    servers: list[Any] = []
    if "service" in options:
        service = tf.data.experimental.service
        dispatcher = service.DispatchServer()
        address = options["service"] = dispatcher.target
        config = service.WorkerConfig(dispatcher_address=address.partition("://")[2])
        servers += [dispatcher, service.WorkerServer(config)]  # they end when nothing holds them
    reader = load(case["folder"])
    if "file" in case:
        raw = tf.io.read_file(case["file"])[None]
        batches: list[Any] = [reader.preprocess()(image=raw)]
    else:
        dataset = reader.dataset("train", case.get("batch", 8), **options)
        batches = list(dataset.take(case.get("take", -1)))
        servers.clear()
    found: dict[str, Any] = {"num": np.array(len(batches))}
    for number, batch in enumerate(batches):
        for name, tensor in leaves(batch):
            for part, array in plain(tensor):
                found[f"{number}{name}/{part}"] = array
    return found


def main() -> None:
    """Reads all cases; what one raises is written down, too."""
    with open(sys.argv[1]) as file:
        cases = json.load(file)
    arrays = {"tensorflow": np.array(tf.__version__)}
    for name, case in cases.items():
        started = time.perf_counter()
        try:
            found = read(case)
        except Exception as error:
            found = {"error": np.array(f"{type(error).__name__}: {error}")}
        print(f"{time.perf_counter() - started:5.1f} s  {name}")
        arrays |= {f"{name}|{key}": array for key, array in found.items()}
    np.savez(sys.argv[2], **arrays)


if __name__ == "__main__":
    main()
