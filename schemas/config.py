"""The decorator of every class that a user writes in a recipe: frozen, validated, plain errors."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from typing import Any, TypeVar, dataclass_transform

import pydantic
from pydantic.dataclasses import dataclass

from .errors import RecipeError

_T = TypeVar("_T")


def describe_validation_error(error: pydantic.ValidationError, *, subject: str) -> str:
    """Puts pydantic's findings into one sentence a finding, without its links and types."""
    findings = []
    for detail in error.errors(include_url=False):
        where = ".".join(str(part) for part in detail["loc"])
        message = detail["msg"].removeprefix("Value error, ")
        if where:
            message = f"{where}: {message}"
            if detail["type"] != "missing_argument":
                message += f" (found {detail['input']!r})"
            if where in ("url", "uri") and detail["type"] == "string_type":
                message += _one_text(detail["input"])
        findings.append(message)
    return f"{subject}: " + "; ".join(findings)


def _one_text(found: object) -> str:
    """What to give in place of what is not one path or URL."""
    if isinstance(found, os.PathLike):
        return f". Write {os.fspath(found)!r}, a text"
    if isinstance(found, list | tuple | set | frozenset):
        return (
            '. One source has one path or URL: for several files give a folder, or a glob as "d/*"'
        )
    return '. Give a path or URL, such as "folder"'


@dataclass_transform(
    frozen_default=True, kw_only_default=False, field_specifiers=(dataclasses.field,)
)
def config_class(cls: type[_T]) -> type[_T]:
    """Makes a frozen pydantic dataclass whose constructor raises RecipeError.

    Fields are checked and coerced as pydantic does (lists become tuples where a tuple is
    declared); unknown arguments are refused.

    Raises:
        RecipeError: from the constructor, when an argument is missing, unknown or unfit.
    """
    made: Any = dataclass(
        frozen=True,
        config=pydantic.ConfigDict(extra="forbid", arbitrary_types_allowed=True),
    )(cls)
    validate: Callable[..., None] = made.__init__

    names = [field.name for field in dataclasses.fields(made) if not field.kw_only]

    def init(self: _T, *args: object, **kwargs: object) -> None:
        if len(args) <= len(names) and not kwargs.keys() & set(names[: len(args)]):
            # By name, so that an error names the argument and not its place.
            args, kwargs = (), dict(zip(names, args, strict=False)) | kwargs
        try:
            validate(self, *args, **kwargs)
        except pydantic.ValidationError as error:
            message = describe_validation_error(error, subject=cls.__name__)
            raise RecipeError(message) from None

    init.__wrapped__ = validate  # type: ignore[attr-defined]
    made.__init__ = init
    return made  # type: ignore[no-any-return]
