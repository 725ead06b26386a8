"""The decorator of every class that a user writes in a recipe: frozen, validated, plain errors."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar, dataclass_transform

import pydantic
from pydantic.dataclasses import dataclass

from .errors import RecipeError

_T = TypeVar("_T")


_PATHS = {"url", "uri", "table", "pattern", "beside", "shards", "vocabulary", "tokenizer"} | {
    *("binary", "jar"),
}
"""Fields whose text, or a mapping's values, may be the path of a file whose name is not UTF-8."""


def is_unicode(text: str) -> bool:
    """Whether a text is valid Unicode: names of files may hold lone surrogates, UTF-8 cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_texts(subject: str, settings: Mapping[str, object]) -> None:
    """Refuses texts that no file of a snapshot could hold, in containers too.

    Raises:
        RecipeError: naming the setting.
    """
    for name, value in settings.items():
        for text in _texts_in(value):
            if not is_unicode(text):
                raise RecipeError(
                    f"{subject}: {name} holds {text!a}, which is not valid Unicode: it has a lone "
                    "surrogate, which no file of a snapshot can hold. Correct the text."
                )


def _refuse_sets(subject: str, settings: Mapping[str, object]) -> None:
    """Refuses sets: their order, which would be in the fingerprint, is another in each process."""
    for name, value in settings.items():
        if _holds_set(value):
            raise RecipeError(
                f"{subject}: {name}={value!r}: a set has no order. Give a list or a tuple."
            )


def _holds_set(value: object) -> bool:
    if isinstance(value, Mapping):
        return any(map(_holds_set, value.values()))
    return isinstance(value, set | frozenset) or (
        isinstance(value, list | tuple) and any(map(_holds_set, value))
    )


def _texts_in(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from _texts_in([*value.keys(), *value.values()])
    elif isinstance(value, list | tuple | set | frozenset):
        for item in value:
            yield from _texts_in(item)


def as_tuple(value: object) -> Any:
    """Anything that gives items in order as a tuple of them; what is one value as it is."""
    if isinstance(value, str | bytes | Mapping | set | frozenset):
        return value
    return tuple(value) if isinstance(value, Iterable) else value


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


def _literals(name: str, value: object) -> object:
    """The part of a setting that is written into the files of a snapshot."""
    if name not in _PATHS:
        return value
    if isinstance(value, Mapping):
        return list(value)
    return None if isinstance(value, str) else value


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
    # What does not tell two of them apart is data, or what a file held.
    written = [field.name for field in dataclasses.fields(made) if field.compare]

    def init(self: _T, *args: object, **kwargs: object) -> None:
        if len(args) <= len(names) and not kwargs.keys() & set(names[: len(args)]):
            # By name, so that an error names the argument and not its place.
            args, kwargs = (), dict(zip(names, args, strict=False)) | kwargs
        _refuse_sets(cls.__name__, {name: kwargs[name] for name in written if name in kwargs})
        try:
            validate(self, *args, **kwargs)
        except pydantic.ValidationError as error:
            message = describe_validation_error(error, subject=cls.__name__)
            raise RecipeError(message) from None
        check_texts(cls.__name__, {name: _literals(name, getattr(self, name)) for name in written})

    init.__wrapped__ = validate  # type: ignore[attr-defined]
    made.__init__ = init
    return made  # type: ignore[no-any-return]


def check_revision(revision: object) -> None:
    """Refuses what is not the number of a revision.

    Raises:
        RecipeError: if it is not an integer of 0 or more.
    """
    if isinstance(revision, bool) or not isinstance(revision, int) or revision < 0:
        raise RecipeError(f"Recipe: revision={revision!r}, expected an integer, 0 or more.")
