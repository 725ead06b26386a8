"""Canonical bytes for saved graphs, independent of the order in which their parts were written.

TensorFlow iterates over Python sets when it writes the nodes of a function, so their order depends
on memory addresses; protobuf maps have no order at all. Nodes name their inputs, so every order
that puts inputs first is equivalent.

Imports TensorFlow: import it only where it is used.
"""

import heapq
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tensorflow.core.protobuf import saved_model_pb2


def canonicalize(folder: Path, *, temp: str | None = None) -> None:
    """Rewrites the output of ``WriteTransformFn``: the same graph, in canonical bytes.

    Removes ``fingerprint.pb``, which holds a random identifier, and the path of the folder
    ``temp`` from the names of tables.
    """
    model = folder / "transform_fn" / "saved_model.pb"
    model.write_bytes(canonical_saved_model(model.read_bytes(), temp=temp))
    (folder / "transform_fn" / "fingerprint.pb").unlink(missing_ok=True)
    assets = folder / "transformed_metadata" / "asset_map"
    if assets.exists():
        assets.write_text(json.dumps(json.loads(assets.read_bytes()), sort_keys=True))


def canonical_saved_model(content: bytes, *, temp: str | None = None) -> bytes:
    """The bytes of a ``saved_model.pb`` with the nodes of its functions in canonical order."""
    model = saved_model_pb2.SavedModel.FromString(content)
    for graph in model.meta_graphs:
        library = graph.graph_def.library
        if temp is not None:
            for nodes in (graph.graph_def.node, *(f.node_def for f in library.function)):
                _leave_out(nodes, f"{temp}/".encode())
        for function in library.function:
            _put_in_order(function.node_def)
        functions = sorted(library.function, key=lambda function: function.signature.name)
        _replace(library.function, functions)
    written: bytes = model.SerializeToString(deterministic=True)
    return written


def canonicalize_serving(path: str) -> None:
    """Rewrites a SavedModel of traced functions: the same graph, in canonical bytes.

    Function names depend on what this process has traced before, table names on random numbers;
    both are replaced.
    """
    model = saved_model_pb2.SavedModel.FromString(Path(path).read_bytes())
    names: dict[str, str] = {}
    for graph in model.meta_graphs:
        old_names = [function.signature.name for function in graph.graph_def.library.function]
        numbered = sorted(old_names, key=lambda name: (_counter(name), name))
        for index, name in enumerate(numbered):
            names[name] = f"{_COUNTER.sub('', name)}_{index}"
    counters = {_counter(old): _counter(new) for old, new in names.items()}

    seen: dict[bool, set[int]] = {True: set(), False: set()}

    def noted(text: str) -> str:
        seen[_is_table(text)].update(int(number) for number in _captures(text))
        return text

    _rename(model, noted)
    # Rank each kind separately: they are numbered independently, so numbers may coincide.
    ranks = {
        kind: {number: rank for rank, number in enumerate(sorted(numbers))}
        for kind, numbers in seen.items()
    }

    def renamed(text: str) -> str:
        if text not in names and _captures(text):
            of_kind = ranks[_is_table(text)]
            return _NUMBER.sub(lambda match: f"_{of_kind[int(match[1])]}", text)
        # Unused inputs of a loop or branch are named after the enclosing function.
        return names.get(text) or _UNUSED.sub(
            lambda match: f"_{counters.get(int(match[1]), int(match[1]))}{match[2]}", text
        )

    _rename(model, renamed)
    content = canonical_saved_model(model.SerializeToString())
    for index, table in enumerate(dict.fromkeys(_TABLE.findall(content))):
        # Same length, so the length prefixes around it stay valid.
        content = content.replace(table, f"{index:036d}".encode())
    Path(path).write_bytes(content)


# Captures of the transform graph's function also have per-process numbers in their names: its
# arguments, their nodes, and the loaded tables.
_CAPTURE = re.compile(
    r"(?:transform_\w*|captured|unknown)_(\d+)|hash_table_.*_load_(\d+)_(\d+)", re.DOTALL
)
_CAPTURE_KEYS = ("_user_specified_name", "shared_name")
_NUMBER = re.compile(r"_(\d+)(?=_\d+$|$)")
_COUNTER = re.compile(r"_\d+$")
_UNUSED = re.compile(r"_(\d+)(___redundant_placeholder)")
_TABLE = re.compile(rb"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}")


def _counter(name: str) -> int:
    match = _COUNTER.search(name)
    return int(match[0][1:]) if match else -1


def _is_table(text: str) -> bool:
    return text.startswith("hash_table_")


def _captures(text: str) -> list[str]:
    """The numbers in the name of a capture; empty for any other name."""
    match = _CAPTURE.fullmatch(text)
    return [number for number in match.groups() if number] if match else []


def _rename(message: Any, renamed: Callable[[str], str]) -> None:
    """Replaces names everywhere in a message."""
    for field, value in message.ListFields():
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            _rename_map(field, value, renamed)
        elif field.type == field.TYPE_MESSAGE:
            for part in value if field.is_repeated else [value]:
                _rename(part, renamed)
        elif field.type == field.TYPE_STRING:
            if field.is_repeated:
                value[:] = [renamed(text) for text in value]
            else:
                setattr(message, field.name, renamed(value))


def _rename_map(field: Any, value: Any, renamed: Callable[[str], str]) -> None:
    is_message = field.message_type.fields_by_name["value"].type == field.TYPE_MESSAGE
    for key in list(value):
        if is_message:
            _rename(value[key], renamed)
            if key in _CAPTURE_KEYS and value[key].s:
                text = value[key].s.decode("latin-1")
                # Only here may a capture's name be just a number, and nothing reads it.
                text = "captured" if text.isdigit() else renamed(text)
                value[key].s = text.encode("latin-1")
        elif isinstance(value[key], str):
            value[key] = renamed(value[key])
        if isinstance(key, str) and renamed(key) != key:
            if is_message:
                value[renamed(key)].CopyFrom(value[key])
            else:
                value[renamed(key)] = value[key]
            del value[key]


def _leave_out(nodes: Any, path: bytes) -> None:
    """Removes a path from the names of tables."""
    for node in nodes:
        # Looking up a missing key would insert it.
        if "shared_name" in node.attr:
            name = node.attr["shared_name"]
            name.s = name.s.replace(path, b"")


def _put_in_order(nodes: Any) -> None:
    """Sorts nodes topologically, inputs first; ties are broken by name."""
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
        raise ValueError("a function of the saved graph has a cycle of nodes")
    _replace(nodes, ordered)


def _node_of(text: str) -> str:
    """The name of the node that an input (``^name``, ``name:output:0``) refers to."""
    return text.removeprefix("^").partition(":")[0]


def _replace(repeated: Any, messages: Sequence[Any]) -> None:
    copies = [type(message).FromString(message.SerializeToString()) for message in messages]
    del repeated[:]
    repeated.extend(copies)
