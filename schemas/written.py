"""Configuration objects as Python source, for the text of recipes and for errors."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from .features import Feature
from .nested import Struct
from .values import ClassLabel


def written(value: object) -> str:
    """The Python expression for a value; features assume ``import snapshard as ss``.

    >>> from .features import Scalar, Sequence
    >>> written(Sequence(Scalar("float32", min=0)))
    'ss.Sequence(ss.Scalar("float32", min=0))'
    """
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    if isinstance(value, tuple):
        return f"({', '.join(map(written, value))}{',' if len(value) == 1 else ''})"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{written(key)}: {written(item)}' for key, item in value.items())}}}"
    if isinstance(value, Feature | Struct):
        return f"ss.{call(value, type(value).__name__)}"
    return repr(value)


def call(value: Any, name: str) -> str:
    """The call that constructs a configuration object; arguments equal to defaults are omitted.

    >>> from .features import Scalar
    >>> call(Scalar("float32", optional=True), "Scalar")
    'Scalar("float32", optional=True)'
    """
    if isinstance(value, ClassLabel) and value.values is not None:
        by_value = dict(zip(value.values, value.names, strict=True))
        rest = {"optional": value.optional, "default": value.default}
        settings = [
            f"{key}={written(one)}" for key, one in rest.items() if one not in (None, False)
        ]
        return f"{name}({', '.join([written(by_value), *settings])})"
    fields = sorted(dataclasses.fields(value), key=lambda field: bool(field.kw_only))
    arguments = []
    for field in fields:
        found, default = getattr(value, field.name), field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        if default is dataclasses.MISSING:
            arguments.append(written(found))
        elif found != default:
            arguments.append(f"{field.name}={written(found)}")
    return f"{name}({', '.join(arguments)})"


def _quoted(text: str) -> str:
    """A string literal, in double quotes unless the text contains quotes."""
    single = repr(text)
    return f'"{single[1:-1]}"' if single[0] == "'" and '"' not in text else single
