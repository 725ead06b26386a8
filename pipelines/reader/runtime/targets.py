"""Which features ``as_supervised`` makes inputs and which targets, and the pairs of both."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, TypeAlias

from . import facts

Names: TypeAlias = "str | Sequence[str]"
"""A name yields a tensor, several names a dict."""
Supervised: TypeAlias = "bool | str | tuple[Names, Names]"
"""What ``as_supervised`` takes: True (the label), a target, or (inputs, targets)."""


@dataclasses.dataclass(frozen=True)
class Targets:
    """The features of a supervised batch."""

    inputs: str | tuple[str, ...] | None
    """None is all but the targets."""
    targets: str | tuple[str, ...]

    def wanted(self, columns: Sequence[str] | None) -> set[str]:
        """The features to parse, if ``columns`` are those of ``dataset``.

        Raises:
            ValueError: if no input is left, or both name the inputs.
        """
        targets = {*_names(self.targets)}
        if self.inputs is not None:
            if columns is not None:
                raise ValueError(
                    "columns= and as_supervised=(inputs, targets) cannot be combined (both name "
                    "the inputs): leave out columns=."
                )
            return {*_names(self.inputs)} | targets
        wanted = {*facts.FEATURES} if columns is None else {*columns}
        if not wanted - targets:
            which = "the label" if self.targets == facts.LABEL else "the target"
            where = "" if columns is None else f" with columns={columns!r}"
            raise ValueError(
                f"as_supervised={self._asked!r}{where} leaves no features beside {which}: add "
                "some, or use the dict."
            )
        return wanted | targets

    def check_values(self) -> None:
        """Raises ValueError if some examples lack a target: it cannot be learned."""
        for name in _names(self.targets):
            if num := facts.NUM_MISSING.get(name):
                raise ValueError(
                    f"as_supervised={self._asked!r}: {num:,} examples have no {name!r}. Use the "
                    "dict."
                )

    @property
    def _asked(self) -> Any:
        if self.inputs is not None:
            return self.inputs, self.targets
        return True if self.targets == facts.LABEL else self.targets

    def split(self, values: dict[str, Any]) -> tuple[Any, Any]:
        """The inputs and the targets of a batch: each a tensor, or a dict by name."""
        targets = _parts(values, _names(self.targets), with_masks=False)
        if self.inputs is None:
            masks = {facts.FEATURES[name].get("present") for name in _names(self.targets)}
            others = {*values} - {*targets} - masks
            inputs = {name: value for name, value in values.items() if name in others}
        else:
            inputs = _parts(values, _names(self.inputs), with_masks=True)
        return (
            inputs if isinstance(self.inputs, tuple) else _tensor_if_one(inputs),
            targets if isinstance(self.targets, tuple) else _tensor_if_one(targets),
        )

    def tensor_names(self, columns: Sequence[str] | None) -> tuple[str, str]:
        """The features of the inputs and of the targets, where these are a single tensor."""
        inputs = self.inputs
        if inputs is None:
            inputs = next(iter(self.wanted(columns) - {*_names(self.targets)}))
        return "".join(_names(inputs)[:1]), "".join(_names(self.targets)[:1])


def targets_of(as_supervised: Any) -> Targets | None:
    """What ``as_supervised`` asks for; None if it is False.

    Raises:
        ValueError: if it has none of the accepted forms, or there is no label.
    """
    if as_supervised is False:
        return None
    if as_supervised is True:
        if facts.LABEL is None:
            raise ValueError(
                f"as_supervised=True needs a label, and {facts.NAME} has none: use the dict, or "
                "name the target, as_supervised=NAME."
            )
        return Targets(None, facts.LABEL)
    if _is_name(as_supervised):
        return Targets(None, as_supervised)
    is_pair = isinstance(as_supervised, list | tuple) and len(as_supervised) == 2
    if is_pair and all(map(_are_names, as_supervised)):
        return Targets(*(one if isinstance(one, str) else tuple(one) for one in as_supervised))
    raise ValueError(
        f"as_supervised={as_supervised!r} must be True (the label), a target, (input, target), or "
        f"((inputs, …), (targets, …)), by name; the names are {', '.join(facts.FEATURES)}."
    )


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and value in facts.FEATURES


def _are_names(value: Any) -> bool:
    if not isinstance(value, list | tuple):
        return _is_name(value)
    return bool(value) and all(map(_is_name, value)) and len({*value}) == len(value)


def _names(value: str | tuple[str, ...]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else value


def _parts(values: dict[str, Any], names: tuple[str, ...], *, with_masks: bool) -> dict[str, Any]:
    """Features with what belongs to them: the rate of a sound, and the mask if asked for."""
    found: dict[str, Any] = {}
    for name in names:
        mask = facts.FEATURES[name].get("present", "") if with_masks else ""
        found |= {part: values[part] for part in (name, f"{name}/rate", mask) if part in values}
    return found


def _tensor_if_one(values: dict[str, Any]) -> Any:
    return next(iter(values.values())) if len(values) == 1 else values
