"""What users' functions may not put into a graph: random numbers, changes, Python of a process."""

from __future__ import annotations

from typing import Any

from ...schemas.errors import RecipeError

_RANDOM = ("Random", "TruncatedNormal", "ParameterizedTruncatedNormal", "Multinomial")
_WRITES = (
    *("Assign", "ResourceApply", "ResourceCountUpTo", "ResourceScatter", "ResourceSparseApply"),
    *("LookupTableInsert", "LookupTableRemove"),
)
_PYTHON = ("PyFunc", "PyFuncStateless", "EagerPyFunc")


def refuse_random(graph: Any, where: str) -> None:
    """Refuses a graph that draws random numbers.

    Args:
        graph: A ``tf.Graph``.
        where: Whose graph it is, for the message.

    Raises:
        RecipeError: naming the operation.
    """
    for operation in operations(graph):
        if operation.startswith(_RANDOM):
            raise RecipeError(
                f"{where} draws random numbers (operation {operation}), but the result for a "
                "record must always be the same. Augment in the trainer, or use "
                "tf.random.stateless_* with a fixed seed."
            )


def refuse_writes(graph: Any, where: str) -> None:
    """Refuses a graph that changes a variable or table: results would depend on earlier records.

    Args:
        graph: A ``tf.Graph``.
        where: Whose graph it is, for the message.

    Raises:
        RecipeError: naming the operation.
    """
    for operation in operations(graph):
        if operation.startswith(_WRITES):
            raise RecipeError(
                f"{where} changes a variable or lookup table (operation {operation}), but the "
                "result for a record must not depend on the records before it. Use only values "
                "that are complete when the module is loaded."
            )


def refuse_python(graph: Any, where: str, *, scope: str = "", instead: str) -> None:
    """Refuses a graph that calls Python: another process, and a model, cannot.

    Args:
        graph: A ``tf.Graph``.
        where: Whose graph it is, for the message.
        scope: The name scope to look at, with its ``/``; "" for all.
        instead: What to use.

    Raises:
        RecipeError: naming the operation.
    """
    for operation in operations(graph, scope):
        if operation in _PYTHON:
            raise RecipeError(
                f"{where} calls Python from the graph (tf.py_function or tf.numpy_function, "
                f"operation {operation}): no other process and no served model has that function. "
                f"{instead}"
            )


def operations(graph: Any, scope: str = "") -> list[str]:
    """The types of all operations below a name scope, sorted, and of what they call."""
    definition = graph.as_graph_def()
    functions = {made.signature.name: made for made in definition.library.function}
    waiting = [node for node in definition.node if node.name.startswith(scope)]
    types = set()
    while waiting:
        node = waiting.pop()
        types.add(node.op)
        attributes = node.attr.values()
        called = {value.func.name for value in attributes}
        called |= {function.name for value in attributes for function in value.list.func}
        for name in called & functions.keys():
            waiting += functions.pop(name).node_def
    return sorted(types)
