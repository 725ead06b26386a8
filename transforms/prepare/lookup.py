"""Vocabularies: tokens and their numbers, and the tables that look them up inside a graph."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from ...schemas.errors import RecipeError

Tables = dict[tuple[tuple[str, ...], int], Any]
"""Tables by their tokens, and the number of what is none of these."""

_HELD: ContextVar[Tables | None] = ContextVar("tables", default=None)


@contextmanager
def holding_tables(tables: Tables) -> Iterator[None]:
    """Keeps the tables that steps make while they are traced inside, and gives them again.

    A traced function lives no longer than its tables: who keeps it keeps them, and who exports it
    makes them trackable. TensorFlow may trace a function once more while it exports it.
    """
    token = _HELD.set(tables)
    try:
        yield
    finally:
        _HELD.reset(token)


def token_table(tokens: Sequence[str], *, unknown: int) -> Any:
    """A table from tokens to their indices; ``unknown`` for what is none of them."""
    import tensorflow as tf

    held, key = _HELD.get(), (tuple(tokens), unknown)
    if held is not None and key in held:
        return held[key]
    with tf.init_scope():
        keys = tf.constant([token.encode() for token in tokens], tf.string)
        numbers = tf.range(len(tokens), dtype=tf.int64)
        table = tf.lookup.StaticHashTable(
            tf.lookup.KeyValueTensorInitializer(keys, numbers), unknown
        )
    if held is not None:
        held[key] = table
    return table


def read_vocabulary(content: bytes, *, where: str) -> tuple[str, ...]:
    """The tokens of a vocabulary file, one a line; a token's number is its line's, from 0.

    Raises:
        RecipeError: if it is no such file; ``where`` names it.
    """
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise RecipeError(f"{where} is not UTF-8 text (byte {error.start:,}).") from None
    lines = text.replace("\r\n", "\n").removesuffix("\n").split("\n")
    return check_vocabulary(lines, where=where)


def check_vocabulary(tokens: Sequence[str], *, where: str) -> tuple[str, ...]:
    """The tokens, if no two are the same.

    Raises:
        RecipeError: if there is none, or one stands there twice.
    """
    places: dict[str, int] = {}
    for number, token in enumerate(tokens):
        if token in places:
            raise RecipeError(
                f"{where}: the token {token!r} has two numbers, {places[token]:,} and "
                f"{number:,}. Leave one out."
            )
        places[token] = number
    if not any(tokens):
        raise RecipeError(f"{where} holds no tokens.")
    return tuple(tokens)
