"""Saved graphs in canonical bytes."""

import random
from pathlib import Path

import pytest
from tensorflow.core.protobuf import saved_model_pb2

from snapshard.transforms.analysis.canonical_graph import (
    canonical_saved_model,
    canonicalize_serving,
)


def saved_model(edges: dict[str, list[str]], *, order: list[str]) -> bytes:
    model = saved_model_pb2.SavedModel()
    library = model.meta_graphs.add().graph_def.library
    for name in ("second", "first"):
        function = library.function.add()
        function.signature.name = name
        for node in order:
            function.node_def.add(name=node, op="Add", input=edges[node])
    written: bytes = model.SerializeToString()
    return written


EDGES = {
    "a": ["argument"],
    "b": ["a:z:0", "c:z:0"],
    "c": ["argument", "^d"],
    "d": [],
    "e": ["b:z:0", "a:z:0"],
}


def test_the_order_of_nodes_does_not_matter() -> None:
    rng = random.Random(0)
    orders = [rng.sample(sorted(EDGES), len(EDGES)) for _ in range(20)]
    made = {canonical_saved_model(saved_model(EDGES, order=order)) for order in orders}
    assert len(made) == 1
    library = saved_model_pb2.SavedModel.FromString(made.pop()).meta_graphs[0].graph_def.library
    assert [function.signature.name for function in library.function] == ["first", "second"]
    assert [node.name for node in library.function[0].node_def] == ["a", "d", "c", "b", "e"]


def test_canonical_bytes_stay() -> None:
    once = canonical_saved_model(saved_model(EDGES, order=sorted(EDGES)))
    assert canonical_saved_model(once) == once


def test_a_loop_is_refused() -> None:
    edges = {"a": ["b:z:0"], "b": ["a:z:0"]}
    with pytest.raises(ValueError, match="has a cycle of nodes"):
        canonical_saved_model(saved_model(edges, order=["a", "b"]))


def test_numbers_of_the_process_are_not_in_a_model_for_serving(tmp_path: Path) -> None:
    """Names that tensorflow-transform's tables and captured tensors have, in two processes."""
    written = []
    for start in (95, 652):
        model = saved_model_pb2.SavedModel()
        library = model.meta_graphs.add().graph_def.library
        function = library.function.add()
        function.signature.name = f"__inference_serve_{start + 7}"
        for offset in (0, 3, 10):
            node = function.node_def.add(name=f"transform_features_layer_{start + offset}")
            node.attr["_user_specified_name"].s = f"{start + offset}".encode()
            table = f"hash_table_tf.Tensor(b'who')_-2_-1_load_{start}_{start + offset}"
            node.attr["shared_name"].s = table.encode()
            node.attr["value"].s = b"95"
        reading = function.node_def.add(name="reading")
        reading.input.append(f"transform_features_layer_{start + 3}")
        path = tmp_path / str(start)
        path.write_bytes(model.SerializeToString())
        canonicalize_serving(str(path))
        written.append(path.read_bytes())
    assert written[0] == written[1]
    (graph,) = saved_model_pb2.SavedModel.FromString(written[0]).meta_graphs
    nodes = {node.name: node for node in graph.graph_def.library.function[0].node_def}
    assert nodes["reading"].input == ["transform_features_layer_1"]
    assert nodes["transform_features_layer_2"].attr["value"].s == b"95"
