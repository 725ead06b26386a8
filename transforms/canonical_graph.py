"""One byte string for each saved graph, whatever order its parts were written in.

TensorFlow walks Python sets when it writes the nodes of a function, so their order depends on
addresses in memory; protobuf maps have no order at all. Nodes name their inputs, so any order
that puts inputs first means the same.

A module about TensorFlow: import it where it is used.
"""

import heapq
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tensorflow.core.protobuf import saved_model_pb2


def canonicalize(folder: Path) -> None:
    """Rewrites what ``WriteTransformFn`` wrote: the same graph, in canonical bytes.

    ``fingerprint.pb``, which holds a random identifier, is removed.
    """
    model = folder / "transform_fn" / "saved_model.pb"
    model.write_bytes(canonical_saved_model(model.read_bytes()))
    (folder / "transform_fn" / "fingerprint.pb").unlink(missing_ok=True)
    assets = folder / "transformed_metadata" / "asset_map"
    if assets.exists():
        assets.write_text(json.dumps(json.loads(assets.read_bytes()), sort_keys=True))


def canonical_saved_model(content: bytes) -> bytes:
    """A ``saved_model.pb`` with the nodes of its functions in canonical order."""
    model = saved_model_pb2.SavedModel.FromString(content)
    for graph in model.meta_graphs:
        library = graph.graph_def.library
        for function in library.function:
            _put_in_order(function.node_def)
        functions = sorted(library.function, key=lambda function: function.signature.name)
        _replace(library.function, functions)
    written: bytes = model.SerializeToString(deterministic=True)
    return written


def _put_in_order(nodes: Any) -> None:
    """Sorts nodes by name, as far as each comes after its inputs."""
    by_name = {node.name: node for node in nodes}
    waiting = {name: 0 for name in by_name}
    readers: dict[str, list[str]] = {name: [] for name in by_name}
    for node in nodes:
        for source in {_node_of(text) for text in node.input} & by_name.keys():
            waiting[node.name] += 1
            readers[source].append(node.name)
    ready = [name for name, count in waiting.items() if count == 0]
    heapq.heapify(ready)
    ordered = []
    while ready:
        name = heapq.heappop(ready)
        ordered.append(by_name[name])
        for reader in readers[name]:
            waiting[reader] -= 1
            if waiting[reader] == 0:
                heapq.heappush(ready, reader)
    if len(ordered) < len(nodes):
        raise ValueError("a function of the saved graph has nodes that wait for each other")
    _replace(nodes, ordered)


def _node_of(text: str) -> str:
    """The node that an input names: ``^name``, ``name:output:0``."""
    return text.removeprefix("^").partition(":")[0]


def _replace(repeated: Any, messages: Sequence[Any]) -> None:
    copies = [type(message).FromString(message.SerializeToString()) for message in messages]
    del repeated[:]
    repeated.extend(copies)
