"""Stores transform graphs and applies them to record batches.

A graph's folder is what ``tft.TFTransformOutput`` reads (``transform_fn/``,
``transformed_metadata/``, ``metadata/``) plus ``graph.json``: its features before and after, and
the list of its files. ``graph.json`` is written last: without it there is no graph.

:class:`Reach` finds which inputs of a graph its outputs depend on, without running it.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...schemas.errors import DamagedWorkError, StorageError
from ...schemas.features import (
    Feature,
    Features,
    WireColumn,
    features_from_json,
    features_to_json,
    wire_columns,
)
from ...schemas.naming import join
from .. import storage
from ..case_mapping import refuse_other_case
from ..examples.encode import offsets_of
from ..examples.metadata import ARROW_VALUES, as_lists, tensor_adapter_config
from ..runs.files import wire_schema
from ..storage.artifacts import is_lost, put_artifact, read_artifact

DESCRIPTION = "graph.json"
PUBLISHED = "metadata/graph.json"
"""Its path inside a snapshot."""
_WHAT = "graph-3"
BATCH_ROWS = 4096
"""Rows in each analyzed record batch. More are faster; fewer need less memory."""
ANALYSIS = {"batch_rows": BATCH_ROWS, "engine": "FnApiRunner, one worker", "format": 2}
"""The settings of the analysis that affect the graph: part of the fingerprint."""
ON_RUNNER = {"batch_rows": BATCH_ROWS, "engine": "the runner", "format": 1}
"""The same for an analysis on the engine of the other jobs: ``analyze_on_runner``."""

_NUMPY = {"int64": np.int64, "float32": np.float32, "bytes": np.object_}

_CALLS = ("PartitionedCall", "StatefulPartitionedCall")
_CHECKS = ("Assert", "If", "StatefulPartitionedCall", "While")
"""Operations that fail a request, or may contain one that does."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class GraphOutputs:
    """The outputs of a transform graph."""

    features: Mapping[str, Feature]
    """The features of the examples."""
    kept: Mapping[str, str]
    """Outputs that are an unchanged input -> the input's name. They are copied as stored and
    bypass the graph, which supports fewer types."""

    def to_json(self) -> dict[str, object]:
        """As plain JSON; :meth:`from_json` is the inverse."""
        return {
            "features": features_to_json(self.features),
            "kept": dict(sorted(self.kept.items())),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> GraphOutputs:
        """Reads what :meth:`to_json` wrote."""
        return cls(features=features_from_json(value["features"]), kept=value["kept"])


@dataclasses.dataclass(frozen=True, kw_only=True)
class GraphInfo:
    """Describes a stored transform graph."""

    inputs: Mapping[str, Feature]
    """Its input features."""
    outputs: Mapping[str, Feature]
    """Its output features: those of the examples."""
    kept: Mapping[str, str]
    """Outputs that are an unchanged input -> the input's name."""
    files: Mapping[str, str]
    """Relative path -> sha256 of each file except ``graph.json``."""
    code: str = ""
    """Digest of its ``preprocessing_fn``; empty if unknown."""

    @property
    def digest(self) -> str:
        """Digest of the graph: its files, features and code."""
        return hashlib.sha256(self.to_bytes()).hexdigest()

    def to_bytes(self) -> bytes:
        """The content of ``graph.json``."""
        value = {
            "code": self.code,
            "files": dict(sorted(self.files.items())),
            "inputs": features_to_json(self.inputs),
            "kept": dict(sorted(self.kept.items())),
            "outputs": features_to_json(self.outputs),
        }
        return (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode()

    @classmethod
    def from_bytes(cls, content: bytes) -> GraphInfo:
        """Reads what :meth:`to_bytes` wrote."""
        value = json.loads(content)
        return cls(
            inputs=features_from_json(value["inputs"]),
            outputs=features_from_json(value["outputs"]),
            kept=value["kept"],
            files=value["files"],
            code=value["code"],
        )


def put_graph(
    local: str, url: str, *, inputs: Features, outputs: GraphOutputs, code: str = ""
) -> GraphInfo:
    """Stores a finished graph from a local folder; ``graph.json`` is written last.

    Args:
        local: The folder.
        url: The destination.
        inputs: Its input features.
        outputs: Its outputs.
        code: Digest of its ``preprocessing_fn``.

    Raises:
        StorageError: if it cannot be written.
    """
    files = {}
    for name in storage.walk(local):
        with open(os.path.join(local, name), "rb") as file:
            files[name] = hashlib.file_digest(file, "sha256").hexdigest()
    info = GraphInfo(
        inputs=inputs, outputs=outputs.features, kept=outputs.kept, files=files, code=code
    )
    for name in files:
        storage.put_file(os.path.join(local, name), join(url, name))
    put_artifact(join(url, DESCRIPTION), info.to_bytes(), what=_WHAT)
    return info


def copy_graph(source: str, info: GraphInfo, url: str) -> str | None:
    """Copies a graph to another place, unless an intact one is there.

    Returns:
        The first file of the source that is missing or damaged; None if the graph is in place.

    Raises:
        StorageError: if it cannot be read or written.
    """
    if checked_graph(url) is not None:
        return None
    for name in info.files:
        content = _intact_file(source, info, name)
        if content is None:
            return join(source, name)
        storage.put_bytes(join(url, name), content)
    put_artifact(join(url, DESCRIPTION), info.to_bytes(), what=_WHAT)
    return None


def read_graph_info(url: str) -> GraphInfo | None:
    """Describes a stored graph; None if there is none, or its ``graph.json`` is damaged."""
    content = read_artifact(join(url, DESCRIPTION), what=_WHAT)
    return None if content is None else GraphInfo.from_bytes(content)


def graph_info(url: str) -> GraphInfo:
    """Describes a stored graph.

    Raises:
        DamagedWorkError: if it is missing or damaged.
    """
    info = read_graph_info(url)
    if info is None:
        raise DamagedWorkError(f"There is no transform graph in {storage.redact(url)}.")
    return info


def checked_graph(url: str) -> GraphInfo | None:
    """Describes a stored graph after checking every file; None if it is incomplete or damaged."""
    info = read_graph_info(url)
    if info is None or any(_intact_file(url, info, name) is None for name in info.files):
        return None
    return info


def read_graph_file(url: str, info: GraphInfo, name: str) -> bytes:
    """The content of a graph's file.

    Raises:
        DamagedWorkError: if it is missing or damaged.
    """
    content = _intact_file(url, info, name)
    if content is None:
        raise DamagedWorkError(
            f"{storage.redact(join(url, name))} is missing or damaged. Start the build again to "
            "recreate it."
        )
    return content


def _intact_file(url: str, info: GraphInfo, name: str) -> bytes | None:
    """The content of a graph's file; None if it is missing or damaged."""
    try:
        content = storage.read_bytes(join(url, name))
    except StorageError as error:
        if not is_lost(error):
            raise
        return None
    return content if hashlib.sha256(content).hexdigest() == info.files[name] else None


class TransformGraph:
    """A transform graph, ready to apply; TensorFlow loads it once per process."""

    def __init__(self, url: str) -> None:
        """Reads the graph's description; the graph itself is loaded on first use.

        Raises:
            DamagedWorkError: if it is missing or damaged.
        """
        info = graph_info(url)
        self.url = url
        self._inputs = wire_schema(info.inputs)
        self._columns = wire_columns(info.outputs)
        self._kept = _kept_columns(info)
        self._schema = wire_schema(info.outputs)
        self.info = info

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Transforms records.

        Args:
            batch: The prepared features in wire form; other columns are ignored.

        Returns:
            The transformed features in wire form, one row per record. Large batches (4,096 rows
            and more) are fast. How records are batched changes at most last bits, of functions that
            TensorFlow computes several values at a time, such as ``tf.exp``.
        """
        if batch.num_rows == 0:
            return pa.RecordBatch.from_pylist([], schema=self._schema)
        given = batch.select(self._inputs.names)
        columns = {name: given.column(source) for name, source in self._kept.items()}
        made = [column for column in self._columns if column.name not in columns]
        if made:
            adapter, function = _loaded(self.url, self.info.to_bytes())
            outputs = function(adapter.ToBatchTensors(as_lists(given, self.info.inputs)))
            columns |= {c.name: _to_arrow(outputs[c.name], c, num_rows=len(given)) for c in made}
        return pa.RecordBatch.from_arrays(
            [columns[column.name] for column in self._columns], schema=self._schema
        )


def _kept_columns(info: GraphInfo) -> dict[str, str]:
    """Stored columns that are copied unchanged: the output's name -> the input's."""
    return {
        made.name: given.name
        for name, source in info.kept.items()
        for made, given in zip(
            info.outputs[name].wire_columns(name),
            info.inputs[source].wire_columns(source),
            strict=True,
        )
    }


def load_for_serving(url: str, *, scratch: str) -> tuple[Any, dict[str, str]]:
    """Loads a graph as a function of tensors to be traced into a serving model.

    Args:
        url: The graph's folder.
        scratch: A local folder for its files, which are read again when the model is saved.

    Returns:
        A function from the tensors of the prepared features to those of the outputs, and for each
        unchanged output the name of its prepared feature. The function's attribute ``reads`` has
        for each other output the names of the tensors from which it is computed, ``checked`` those
        that its checks read.

    Raises:
        DamagedWorkError: if it is missing or damaged.
    """
    info = read_graph_info(url)
    if info is None:
        raise DamagedWorkError(f"There is no transform graph in {storage.redact(url)}.")
    import tensorflow as tf

    _fetch(url, info, scratch)
    # As TFTransformOutput loads it; the name of its Keras layer would depend on earlier layers.
    model = tf.saved_model.load(os.path.join(scratch, "transform_fn"))

    def transform(inputs: dict[str, Any]) -> dict[str, Any]:
        made = model.transform_fn(inputs)
        return {name: made[name] for name in info.outputs if name not in info.kept}

    # A model that calls it must keep these alive.
    transform.resources = [model]  # type: ignore[attr-defined]
    reads, checked = _reads(model.transform_fn)
    transform.reads, transform.checked = reads, checked  # type: ignore[attr-defined]
    return transform, dict(info.kept)


def _reads(function: Any) -> tuple[dict[str, set[str]], set[str]]:
    """The names of the inputs that each output of a concrete function, and its checks, read."""
    import tensorflow as tf

    def named(structure: Any, tensors: Sequence[Any]) -> list[tuple[str, str]]:
        """Name -> tensor, in the order in which a dict of composite tensors is flattened."""
        names = [
            name
            for name in sorted(structure)
            for _ in tf.nest.flatten(structure[name], expand_composites=True)
        ]
        return [(name, tensor.name) for name, tensor in zip(names, tensors, strict=False)]

    (specs,), _ = function.structured_input_signature
    reach = Reach(function.graph.as_graph_def())
    inputs = {tensor.partition(":")[0]: name for name, tensor in named(specs, function.inputs)}

    def read_by(tensors: Iterable[str]) -> set[str]:
        return {inputs[node] for node in reach.before(tensors, control=False) if node in inputs}

    reads: dict[str, set[str]] = {name: set() for name in function.structured_outputs}
    for name, tensor in named(function.structured_outputs, function.outputs):
        reads[name] |= read_by([tensor])
    return reads, read_by(name for name, node in reach.nodes.items() if node.op in _CHECKS)


@functools.lru_cache(maxsize=4)
def _loaded(url: str, description: bytes) -> tuple[Any, Any]:
    """The adapter to tensors and the compiled graph; ``description`` is part of the cache key."""
    import tensorflow as tf
    import tensorflow_transform as tft
    from tfx_bsl.tfxio.tensor_adapter import TensorAdapter

    refuse_other_case()
    info = GraphInfo.from_bytes(description)
    kept = _kept_columns(info)
    adapter = TensorAdapter(tensor_adapter_config(info.inputs))
    with storage.temporary_folder() as scratch:
        folder = storage.local_path(url) if storage.is_local(url) else scratch
        if folder == scratch:
            _fetch(url, info, scratch)
        output = tft.TFTransformOutput(folder)

        @tf.function(input_signature=[adapter.TypeSpecs()])
        def transform(inputs: dict[str, Any]) -> dict[str, Any]:
            made = output.transform_raw_features(inputs)
            return {name: made[name] for name in made if name not in kept}

        # Tracing reads the graph's files; afterwards they are no longer needed.
        transform.get_concrete_function()
    return adapter, transform


def _fetch(url: str, info: GraphInfo, folder: str) -> None:
    for name in info.files:
        path = os.path.join(folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(read_graph_file(url, info, name))


def _to_arrow(tensor: Any, column: WireColumn, *, num_rows: int) -> pa.Array:
    """Converts one output to a wire column."""
    if hasattr(tensor, "indices"):
        counts, values = _rows_of_sparse(tensor, num_rows)
    elif hasattr(tensor, "row_splits"):
        rows = tensor.flat_values.numpy()
        counts = np.diff(tensor.row_splits.numpy()) * math.prod(rows.shape[1:])
        values = rows.reshape(-1)
    else:
        values = tensor.numpy().reshape(-1)
        flat = _flat(values, column)
        if column.length == 1:
            return flat
        return pa.FixedSizeListArray.from_arrays(flat, column.length)
    if column.length is None:
        offsets = pa.array(offsets_of(counts))
        return pa.LargeListArray.from_arrays(offsets, _flat(values, column))
    present = counts > 0
    spread: npt.NDArray[Any] = np.zeros(num_rows, _NUMPY[column.kind])
    spread[present] = values
    return _flat(spread, column, mask=~present)


def _rows_of_sparse(tensor: Any, num_rows: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[Any]]:
    """The number of values in each row, and the values in row order."""
    indices, values = tensor.indices.numpy(), tensor.values.numpy()
    rows = indices[:, 0]
    if (np.diff(rows) < 0).any():
        order = np.lexsort((indices[:, 1], rows))
        rows, values = rows[order], values[order]
    return np.bincount(rows, minlength=num_rows), values


def _flat(
    values: npt.NDArray[Any], column: WireColumn, *, mask: npt.NDArray[np.bool_] | None = None
) -> pa.Array:
    return pa.array(values, ARROW_VALUES[column.kind], mask=mask)


class Reach:
    """The nodes of a ``GraphDef`` and what they depend on.

    Exact from operation to operation, also inside called functions; all outputs of a loop or a
    branch depend on all of its inputs. Control dependencies inside called functions do not count:
    TensorFlow makes every output of a function wait for all operations with side effects.
    """

    def __init__(self, graph_def: Any) -> None:
        """Indexes the nodes by name; changes nothing."""
        self._graph_def = graph_def
        self.nodes = {node.name: node for node in graph_def.node}
        self._functions = {
            function.signature.name: function for function in graph_def.library.function
        }
        self._of_function: dict[str, list[set[int]]] = {}

    def before(self, tensors: Iterable[str], *, control: bool = True) -> set[str]:
        """Names of the nodes on which the values of tensors depend, including their own.

        Args:
            tensors: Names of tensors or nodes.
            control: Whether control dependencies count.
        """
        return _walk(tensors, self.nodes, self._inputs_of if control else self._data_of)

    def needed_to_run(self, tensors: Iterable[str]) -> set[str]:
        """Names of all nodes that must exist to compute tensors, including their own."""
        return _walk(tensors, self.nodes, lambda node, output: node.input)

    def part(self, names: Set[str]) -> Any:
        """A ``GraphDef`` of these nodes alone, with all functions."""
        made = type(self._graph_def)()
        made.CopyFrom(self._graph_def)
        del made.node[:]
        made.node.extend(node for node in self._graph_def.node if node.name in names)
        return made

    def _inputs_of(self, node: Any, output: int) -> Iterable[str]:
        """The inputs of a node on which one of its outputs depends."""
        function = self._functions.get(node.attr["f"].func.name) if node.op in _CALLS else None
        if function is None:
            return list(node.input)
        needed = self._needed(function)
        if output >= len(needed):
            return list(node.input)
        data = [name for name in node.input if not name.startswith("^")]
        control = [name for name in node.input if name.startswith("^")]
        return [data[index] for index in sorted(needed[output])] + control

    def _data_of(self, node: Any, output: int) -> Iterable[str]:
        return [name for name in self._inputs_of(node, output) if not name.startswith("^")]

    def _needed(self, function: Any) -> list[set[int]]:
        """For each output of a function, the numbers of the arguments on which it depends."""
        name = function.signature.name
        if name not in self._of_function:
            arguments = {
                argument.name: n for n, argument in enumerate(function.signature.input_arg)
            }
            nodes = {node.name: node for node in function.node_def}
            self._of_function[name] = [
                {
                    arguments[argument]
                    for argument in _walk([function.ret[output.name]], nodes, self._data_of)
                    if argument in arguments
                }
                for output in function.signature.output_arg
            ]
        return self._of_function[name]


def _walk(tensors: Iterable[str], nodes: Mapping[str, Any], inputs_of: Any) -> set[str]:
    """All names that are reached backwards from tensors: of nodes, and of arguments."""
    seen: set[tuple[str, int]] = set()
    waiting = list(tensors)
    while waiting:
        name, output = _parsed(waiting.pop())
        if (name, output) in seen:
            continue
        seen.add((name, output))
        if name in nodes:
            waiting += inputs_of(nodes[name], output)
    return {name for name, _ in seen}


def _parsed(tensor: str) -> tuple[str, int]:
    """The node and number of an output: ``node``, ``^node``, ``node:1`` or ``node:output:1``."""
    name, *rest = tensor.removeprefix("^").split(":")
    return name, int(rest[-1]) if rest else 0
