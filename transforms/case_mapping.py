"""Upper and lower case follow no locale: the same text gives the same bytes on every machine.

TensorFlow's ``lower`` and ``upper`` of UTF-8 ask ICU, which takes a process's locale on first use,
for good: in a Turkish one, ``TITLE`` gets no dot on its i. ``import snapshard`` pins the locale of
messages, which ICU asks first, and graphs run only where that came in time.
"""

from __future__ import annotations

import functools

from ..schemas.errors import RecipeError

_LOWER, _UPPER = ("IÌ", "iì"), ("iάև", "IΆԵՒ")
"""Texts that Turkish, Lithuanian, Greek or Armenian rules would change in another way."""


@functools.cache
def refuse_other_case() -> None:
    """Checks how TensorFlow maps case in this process.

    Raises:
        RecipeError: if it follows a locale whose rules differ.
    """
    import tensorflow as tf

    for function, (text, expected) in ((tf.strings.lower, _LOWER), (tf.strings.upper, _UPPER)):
        with tf.device("/CPU:0"):
            mapped = function(tf.constant(text), encoding="utf-8").numpy().decode()
        if mapped != expected:
            raise RecipeError(
                f"TensorFlow follows the locale of this process: it maps the case of {text!r} to "
                f"{mapped!r}, expected {expected!r}, so the same recipe would give other bytes. "
                "Import snapshard before TensorFlow is used, or set LC_ALL=C.UTF-8."
            )
