"""The decorator for every class that users write in recipes: frozen, validated, plain errors."""

from __future__ import annotations

import dataclasses
import difflib
import html
import itertools
import os
import re
import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar, dataclass_transform

import pydantic
from pydantic.dataclasses import dataclass

from .errors import RecipeError
from .visible import visible

_T = TypeVar("_T")


_PATHS = {"url", "uri", "table", "pattern", "beside", "shards", "vocabulary", "tokenizer"} | {
    *("binary", "jar"),
}
"""Fields whose text, or mapping values, may be a path that is not valid UTF-8."""


def is_unicode(text: str) -> bool:
    """Whether a text can be encoded as UTF-8; file names may contain lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_texts(subject: str, settings: Mapping[str, object]) -> None:
    """Checks that all texts, including those in containers, can be stored in a snapshot.

    Raises:
        RecipeError: if a text is not valid Unicode; the message names the setting.
    """
    for name, value in settings.items():
        for text in _texts_in(value):
            if not is_unicode(text):
                raise RecipeError(
                    f"{subject}: {name} contains {text!a}, which is not valid Unicode: it has a "
                    "lone surrogate, which cannot be stored in a snapshot. Correct the text."
                )


def _refuse_sets(subject: str, settings: Mapping[str, object]) -> None:
    """Refuses sets: their order would enter the fingerprint, and differs between processes."""
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
    """Converts an ordered iterable to a tuple; returns all else (strings, sets …) unchanged."""
    if isinstance(value, str | bytes | Mapping | set | frozenset):
        return value
    return tuple(value) if isinstance(value, Iterable) else value


def expectation(message: str) -> str:
    """Pydantic's message, in the words of the other errors.

    >>> expectation("Input should be a valid integer, unable to parse string as an integer")
    'expected an integer'
    >>> expectation("Input should be greater than 0")
    'expected greater than 0'
    """
    match = re.search("Input should be (a valid )?([^,]*(?:, (?!unable to).*)?)", message)
    if match is None:
        return message
    article = ("an " if match[2][:1] in "aeiou" else "a ") if match[1] else ""
    return f"{message[: match.start()]}expected {article}{match[2]}"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A hint with the most similar of the known names; empty if none is similar.

    >>> did_you_mean("CSV", ["ss.Csv", "ss.Sql"]), did_you_mean("x", ["ss.Csv"])
    ('. Did you mean ss.Csv?', '')
    """
    shown = {full.rpartition(".")[2].rstrip("="): full for full in known}
    lower = {short.lower(): short for short in shown}
    similar = [
        *difflib.get_close_matches(name, shown, n=1),
        *(lower[lowered] for lowered in difflib.get_close_matches(name.lower(), lower, n=1)),
        *(short for short in shown if short.startswith(f"{name}_")),
    ]
    return f". Did you mean {shown[similar[0]]}?" if similar else ""


def describe_validation_error(
    error: pydantic.ValidationError, *, subject: str, names: Iterable[str] = ()
) -> str:
    """Describes pydantic's findings in one sentence each, without its links and types.

    Args:
        error: The findings.
        subject: What was checked.
        names: The arguments that there are, for a hint to a misspelt one.
    """
    names = list(names)
    findings = []
    for detail in error.errors(include_url=False):
        where = ".".join(str(part) for part in detail["loc"])
        message = expectation(detail["msg"].removeprefix("Value error, "))
        if detail["type"] == "unexpected_keyword_argument":
            message = "unknown argument"
        if where:
            message = f"{where}: {message}"
            if detail["type"] not in ("missing", "missing_argument"):
                message += f" (found {detail['input']!r})"
            if detail["type"] == "unexpected_keyword_argument":
                message += did_you_mean(where, (f"{name}=" for name in names))
            if where in ("url", "uri") and detail["type"] == "string_type":
                message += _one_text(detail["input"])
        findings.append(message)
    return f"{subject}: " + "; ".join(findings)


def _one_text(value: object) -> str:
    """A hint for a value that is not a single path or URL."""
    if isinstance(value, os.PathLike):
        return f". Write the string {os.fspath(value)!r}"
    if isinstance(value, list | tuple | set | frozenset):
        return (
            ". A source has one path or URL: for several files, give a folder or a glob such as "
            '"d/*"'
        )
    return '. Give a path or URL, such as "folder"'


def _literals(name: str, value: object) -> object:
    """The part of a setting that is written to the files of a snapshot."""
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

    Pydantic checks and coerces the fields (lists become tuples where a tuple is declared); unknown
    arguments are refused.

    Raises:
        RecipeError: from the constructor, if an argument is missing, unknown or invalid.
    """
    made: Any = dataclass(
        frozen=True,
        repr=False,
        config=pydantic.ConfigDict(extra="forbid", arbitrary_types_allowed=True),
    )(cls)
    validate: Callable[..., None] = made.__init__

    names = [field.name for field in dataclasses.fields(made) if not field.kw_only]
    # Fields excluded from comparison hold data, or the content of a file.
    written = [field.name for field in dataclasses.fields(made) if field.compare]

    def init(self: _T, *args: object, **kwargs: object) -> None:
        if len(args) > len(names):
            by_name = [f"{field.name}=" for field in dataclasses.fields(made) if field.kw_only]
            raise RecipeError(
                f"{cls.__name__}: {len(args)} arguments without a name, expected at most "
                f"{len(names)} ({', '.join(names)}). Name the others"
                + (f": {', '.join(by_name)}." if by_name else ", or leave them out.")
            )
        if not kwargs.keys() & set(names[: len(args)]):
            # By name: then an error names the argument, not its position.
            args, kwargs = (), dict(zip(names, args, strict=False)) | kwargs
        _refuse_sets(cls.__name__, {name: kwargs[name] for name in written if name in kwargs})
        try:
            validate(self, *args, **kwargs)
        except pydantic.ValidationError as error:
            accepted = [field.name for field in dataclasses.fields(made) if field.init]
            message = describe_validation_error(error, subject=cls.__name__, names=accepted)
            raise RecipeError(message) from None
        check_texts(cls.__name__, {name: _literals(name, getattr(self, name)) for name in written})

    init.__wrapped__ = validate  # type: ignore[attr-defined]
    made.__init__ = init
    if cls.__repr__ is object.__repr__:
        made.__repr__ = repr_of_settings
    return made  # type: ignore[no-any-return]


def repr_of_settings(self: Any) -> str:
    """The constructor's call, without arguments that have their default value."""
    parts = (f"{name}={text}" for name, text in _settings(self))
    return f"{type(self).__name__}({', '.join(parts)})"


def html_of_settings(self: Any) -> str:
    """The same as a table, for notebooks."""
    rows = (
        f'<tr><th scope="row">{name}</th><td><code>{html.escape(visible(text))}</code></td></tr>'
        for name, text in _settings(self)
    )
    return f"<table><tbody>{''.join(rows)}</tbody></table>"


def _settings(self: Any) -> Iterator[tuple[str, str]]:
    """The settings that differ from their default, as they are written."""
    shown = _Repr()
    for field in dataclasses.fields(self):
        value = getattr(self, field.name)
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        if field.init and field.repr and not (type(value) is type(default) and value == default):
            yield field.name, shown.repr(value)


class _Repr(reprlib.Repr):
    """Long texts are kept, as they are paths and queries; long collections are cut."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = 200
        self.maxlist = self.maxtuple = self.maxdict = 10

    def repr_dict(self, x: Mapping[Any, Any], level: int) -> str:
        """In the dictionary's own order."""
        shown = [
            f"{self.repr1(key, level - 1)}: {self.repr1(value, level - 1)}"
            for key, value in itertools.islice(x.items(), self.maxdict)
        ]
        return "{" + ", ".join([*shown, "..."] if len(x) > self.maxdict else shown) + "}"


def check_revision(revision: object) -> None:
    """Refuses what is not the number of a revision.

    Raises:
        RecipeError: if it is not an integer of 0 or more.
    """
    if isinstance(revision, bool) or not isinstance(revision, int) or revision < 0:
        raise RecipeError(f"Recipe: revision={revision!r}, expected an integer, 0 or more.")
