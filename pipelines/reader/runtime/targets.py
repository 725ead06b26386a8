"""What a batch has: the features that are asked for, and which are inputs and which targets.

Nothing that was not asked for enters the inputs of a model. A feature may have a mask, a rate or a
length; each has a name of its own, and comes where it is named. Without any names, masks and rates
come too: that dict has everything.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeAlias

from . import facts

Names: TypeAlias = "str | Sequence[str]"
"""A name yields a tensor, several names a dict."""
Supervised: TypeAlias = "bool | str | tuple[Names, Names] | tuple[Names, Names, Names]"
"""What ``as_supervised`` takes: True (the label), a target, or (inputs, targets[, weights])."""


@dataclasses.dataclass(frozen=True)
class Asked:
    """What a batch has, by name: features, and masks, rates and lengths of features."""

    names: tuple[str, ...]
    sides: tuple[str | tuple[str, ...], ...] | None = None
    """The inputs, targets and weights, if any: a name for a tensor, names for a dict."""

    @property
    def features(self) -> dict[str, dict[str, Any]]:
        """The features to parse, in the order of ``FEATURES``."""
        own = owners()
        parsed = {own[name] for name in self.names}
        return {name: feature for name, feature in facts.FEATURES.items() if name in parsed}

    @property
    def lengths(self) -> dict[str, str]:
        """The lists whose lengths are asked for, by the names of the lengths."""
        own = owners()
        return {name: own[name] for name in self.names if name == f"{own[name]}_length"}

    def arrange(self, values: Mapping[str, Any]) -> Any:
        """A batch, or a record, of values by name: a dict, or (inputs, targets[, weights])."""
        if self.sides is None:
            return nested({name: values[name] for name in self.names})
        return tuple(
            values[side] if isinstance(side, str) else nested({name: values[name] for name in side})
            for side in self.sides
        )

    def change(self, function: Callable[[Any, str], Any], batch: Any) -> Any:
        """Applies ``function(tensor, name)`` to what a batch has; what follows it is kept."""

        def changed(value: Any, name: str) -> Any:
            if not isinstance(value, dict):
                return function(value, name)
            dot = f"{name}." if name else ""
            return {key: changed(one, f"{dot}{key}") for key, one in value.items()}

        if self.sides is None:
            return changed(batch, "")
        names = (side if isinstance(side, str) else "" for side in self.sides)
        return *map(changed, batch, names), *batch[len(self.sides) :]


def warn_of_fills(asked: Asked, masks: bool | None) -> None:
    """Warns if missing values will look like real ones, because nobody asked for their masks.

    A missing class is -1, a missing time NaT.
    """
    for name in asked.names if masks is None else ():
        num, feature = facts.NUM_MISSING.get(name), facts.FEATURES.get(name, {})
        is_told = feature.get("kind") in ("class_label", "timestamp")
        if num and not is_told and feature.get("present", name) not in asked.names:
            fill = repr(feature["default"]) if "default" in feature else "an empty list"
            text = (
                f"{num:,} examples have no {name!r} and give {fill}. masks=True adds "
                f"{feature['present']!r}; masks=False accepts this; with default= in the recipe no "
                "mask is needed."
            )
            warnings.warn(text, UserWarning, stacklevel=5)


def owners() -> dict[str, str]:
    """The feature that each name is, or belongs to: features first, then what belongs to them."""
    parts = {}
    for name, feature in facts.FEATURES.items():
        if "present" in feature:
            parts[feature["present"]] = name
        for part in ("rate", "orientation"):
            if f"{name}/{part}" in facts.SIDES.get(name, ()):
                parts[f"{name}/{part}"] = name
        if feature.get("shape", [])[:1] == [None]:
            parts[f"{name}_length"] = name
    features = {name: name for name in facts.FEATURES}
    return features | {part: name for part, name in parts.items() if part not in features}


def nested(values: dict[str, Any]) -> dict[str, Any]:
    """The same values, with the fields of each struct in a nested dict."""
    for name in reversed(facts.STRUCTS):  # inner ones first
        if fields := [key for key in values if key.startswith(f"{name}.")]:
            values[name] = {key[len(name) + 1 :]: values.pop(key) for key in fields}
    return values


def ask(
    columns: Sequence[str] | None = None, as_supervised: Any = False, masks: bool | None = None
) -> Asked:
    """Resolves the options of ``dataset`` that say what a batch has.

    Raises:
        ValueError: if a name does not exist, there is no label, some examples lack a target, or no
            input is left.
    """
    if type(masks) not in (bool, type(None)):
        raise ValueError(f"masks={masks!r} must be True, False or None.")
    names, sides = _columns(columns), _sides(as_supervised)
    if sides is None and columns is None:
        rates = [name for name in owners() if name.endswith("/rate") and name not in names]
        return Asked(_with_masks((*names, *rates), masks is not False))
    if sides is None:
        return Asked(_with_masks(names, bool(masks)))
    inputs, *others = sides
    taken = {name: None for side in others for name in _names(side)}
    _check_values(as_supervised, taken)
    if inputs is None:
        if columns is None:
            names = tuple(name for name in names if name not in facts.TIMES)
        inputs = _with_masks(tuple(name for name in names if name not in taken), bool(masks))
        if not inputs:
            which = "the label" if [*taken] == [facts.LABEL] else "the target"
            where = "" if columns is None else f" with columns={columns!r}"
            raise ValueError(
                f"as_supervised={as_supervised!r}{where} leaves no features beside {which}: add "
                "some, or use the dict."
            )
        inputs = inputs if len(inputs) > 1 else inputs[0]
    elif columns is not None:
        raise ValueError(
            "columns= and as_supervised=(inputs, targets) cannot be combined (both name the "
            "inputs): leave out columns=."
        )
    elif masks and len(masked := _with_masks(_names(inputs), True)) > len(_names(inputs)):
        inputs = masked
    return Asked(tuple({name: None for name in _names(inputs)} | taken), (inputs, *others))


def _columns(columns: Any) -> tuple[str, ...]:
    """The names that ``columns`` asks for, in the order of features; a struct is all its fields."""
    if columns is None:
        return tuple(facts.FEATURES)
    known = owners()
    are_names = isinstance(columns, Collection) and not isinstance(columns, str)
    if not are_names or not columns or not {*map(str, columns)} <= {*known, *facts.STRUCTS}:
        raise ValueError(
            f"columns={columns!r} must be a list of some of "
            f"{', '.join((*facts.FEATURES, *facts.STRUCTS))}."
        )
    fields = tuple(f"{name}." for name in columns if name in facts.STRUCTS)
    return tuple(
        name
        for name in known
        if name in columns or (name in facts.FEATURES and name.startswith(fields))
    )


def _sides(as_supervised: Any) -> tuple[Any, ...] | None:
    """(inputs, targets[, weights]); None if ``as_supervised`` is False, inputs None for all others.

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
        return None, facts.LABEL
    known = owners()

    def is_side(side: Any) -> bool:
        if isinstance(side, str):
            return side in known
        is_list = isinstance(side, list | tuple) and len(side) > 0
        return (
            is_list and all(map(known.__contains__, map(str, side))) and len({*side}) == len(side)
        )

    if isinstance(as_supervised, str) and as_supervised in known:
        return None, as_supervised
    is_tuple = isinstance(as_supervised, list | tuple) and len(as_supervised) in (2, 3)
    if is_tuple and all(map(is_side, as_supervised)):
        return tuple(side if isinstance(side, str) else tuple(side) for side in as_supervised)
    raise ValueError(
        f"as_supervised={as_supervised!r} must be True (the label), a target, (input, target), or "
        "((inputs, …), (targets, …)), by name, and may have weights as a third; the names are "
        f"{', '.join(facts.FEATURES)}."
    )


def _check_values(as_supervised: Any, names: Collection[str]) -> None:
    """Raises ValueError if some examples lack a target or a weight: it cannot be learned."""
    for name in names:
        if num := facts.NUM_MISSING.get(name):
            raise ValueError(
                f"as_supervised={as_supervised!r}: {num:,} examples have no {name!r}. Use the dict."
            )


def _names(side: str | tuple[str, ...]) -> tuple[str, ...]:
    return (side,) if isinstance(side, str) else side


def _with_masks(names: tuple[str, ...], masks: bool) -> tuple[str, ...]:
    """The names, with the masks of those that are features with one."""
    wanted = [facts.FEATURES[name].get("present") for name in names if name in facts.FEATURES]
    more = [mask for mask in wanted if masks and mask and mask not in names]
    return (*names, *more)
