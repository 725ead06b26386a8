"""Vocabularies: tokens and their indices, and the tables that look them up inside a graph."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from ...schemas.errors import RecipeError

Tables = dict[tuple[tuple[str, ...], int], Any]
"""(tokens, index of unknown tokens) -> lookup table."""

_HELD: ContextVar[Tables | None] = ContextVar("tables", default=None)


@contextmanager
def holding_tables(tables: Tables) -> Iterator[None]:
    """Caches in ``tables`` the lookup tables of steps that are traced inside.

    A traced function only works as long as its tables exist: its owner must keep them, and must
    make them trackable to export it. TensorFlow may trace a function again while exporting it.
    """
    token = _HELD.set(tables)
    try:
        yield
    finally:
        _HELD.reset(token)


def token_table(tokens: Sequence[str], *, unknown: int) -> Any:
    """A table from tokens to their indices, with ``unknown`` for all other strings."""
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
    """The tokens of a vocabulary file, one per line; a token's index is its line, from 0.

    Raises:
        RecipeError: if it is not a valid vocabulary; ``where`` names it.
    """
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise RecipeError(f"{where} is not UTF-8 text (byte {error.start:,}).") from None
    lines = text.replace("\r\n", "\n").removesuffix("\n").split("\n")
    return check_vocabulary(lines, where=where)


def check_vocabulary(tokens: Sequence[str], *, where: str) -> tuple[str, ...]:
    """Checks that tokens are distinct, and returns them as a tuple.

    Raises:
        RecipeError: if there are none, or one occurs twice.
    """
    places: dict[str, int] = {}
    for number, token in enumerate(tokens):
        if token in places:
            raise RecipeError(
                f"{where}: the token {token!r} occurs twice, at {places[token]:,} and "
                f"{number:,}. Remove one."
            )
        places[token] = number
    if not any(tokens):
        raise RecipeError(f"{where} contains no tokens.")
    return tuple(tokens)
