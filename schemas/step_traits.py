"""What a prepare step may say of itself beyond what it must: how it may be run, what it needs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepTraits:
    """Attributes that a step may have, by these names.

    >>> StepTraits.of(object()).batched
    False
    """

    batched: bool = False
    """``apply()`` works as well on tensors with a leading batch dimension (``tf.RaggedTensor``
    where lists vary in length), elementwise over records: what a record becomes depends on no
    other record, to the bit. Then whole batches go through at once, without a loop."""
    moves_only: bool = False
    """The step chooses and renames what is there, and looks at no value: then it needs no
    TensorFlow, and ``apply()`` works on anything."""
    sees_features: bool = False
    """``apply()`` takes the features that the record has as its second argument."""
    filters: bool = False
    """The step says which records to keep; dropped ones are counted, and are no rejects."""
    export_obstacle: str = ""
    """Why the step cannot be exported for serving, where it cannot: it runs Python, say."""
    functions: tuple[Callable[..., Any], ...] = ()
    """The user's functions that it calls: their code enters the fingerprint."""
    files: tuple[str, ...] = ()
    """Paths or URLs of files whose contents it needs; a relative one counts from the recipe's
    folder. They enter the fingerprint by content, and are given to ``with_files(contents)``,
    bytes in this order, which returns the step to run."""

    @classmethod
    def of(cls, step: object) -> StepTraits:
        """The traits of a step or function."""
        names = [field.name for field in dataclasses.fields(cls)]
        return cls(**{name: getattr(step, name) for name in names if hasattr(step, name)})
