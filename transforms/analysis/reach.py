"""Which inputs of a TensorFlow graph its outputs depend on, without running it.

Exact from operation to operation, also inside called functions; all outputs of a loop or a branch
depend on all of its inputs. Control dependencies inside called functions do not count: TensorFlow
makes every output of a function wait for all operations with side effects.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from typing import Any

_CALLS = ("PartitionedCall", "StatefulPartitionedCall")


class Reach:
    """The nodes of a ``GraphDef`` and what they depend on."""

    def __init__(self, graph_def: Any) -> None:
        """Indexes the nodes by name; changes nothing."""
        self._graph_def = graph_def
        self.nodes = {node.name: node for node in graph_def.node}
        self._functions = {one.signature.name: one for one in graph_def.library.function}
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
            arguments = {one.name: n for n, one in enumerate(function.signature.input_arg)}
            nodes = {node.name: node for node in function.node_def}
            self._of_function[name] = [
                {
                    arguments[found]
                    for found in _walk([function.ret[output.name]], nodes, self._data_of)
                    if found in arguments
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
