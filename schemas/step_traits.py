"""Optional attributes of a prepare step: how it may be run and what it needs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepTraits:
    """The optional attributes of a step, under these names.

    >>> StepTraits.of(object()).batched
    False
    """

    batched: bool = False
    """``apply()`` also accepts tensors with a leading batch dimension (``tf.RaggedTensor`` where
    lists vary in length), and is elementwise over records: each result is independent of all other
    records, to the bit. Complete batches are then processed at once, without a loop."""
    moves_only: bool = False
    """The step only selects and renames features and reads no values: it needs no TensorFlow, and
    ``apply()`` works on any objects."""
    on_columns: Callable[..., Any] | None = None
    """``on_columns(columns, features)`` gives the wire columns of the step's new features, by name,
    from a batch of wire columns: what ``apply()`` gives, without TensorFlow. The step passes on the
    other features as they are, or removes them."""
    sees_features: bool = False
    """``apply()`` takes the record's features as its second argument."""
    filters: bool = False
    """The step selects the records to keep; dropped ones are counted and are not rejects."""
    export_obstacle: str = ""
    """Why the step cannot be exported for serving, for example because it runs Python; empty if it
    can."""
    functions: tuple[Callable[..., Any], ...] = ()
    """The user's functions that the step calls; their code enters the fingerprint."""
    files: tuple[str, ...] = ()
    """Paths or URLs of files whose contents the step needs; relative to the recipe's folder. They
    enter the fingerprint by content and are passed to ``with_files(contents)``, as bytes in this
    order, which returns the step to run."""

    @classmethod
    def of(cls, step: object) -> StepTraits:
        """The traits of a step or function."""
        names = [field.name for field in dataclasses.fields(cls)]
        return cls(**{name: getattr(step, name) for name in names if hasattr(step, name)})
