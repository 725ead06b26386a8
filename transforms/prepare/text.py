"""Steps on text: normalize, tokenize, truncate, pack."""

from __future__ import annotations

import dataclasses
import json
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal

import pydantic

from ...schemas.config import as_tuple, config_class
from ...schemas.errors import RecipeError
from ...schemas.features import Features, Tensor, tensor_form
from .engine.python_functions import call_on_strings
from .lookup import check_vocabulary, read_vocabulary, token_table
from .packing import Pack, pack
from .tokenizer_files import TokenizeWith
from .values import NO_FEATURES, call_text, compute, each, find, find_single

__all__ = ["Pack", "TokenizeWith", "normalize", "pack", "tokenize", "truncate"]

_STRINGS = {"string"}
_SEPARATOR = "\x1f"
_Form = Literal["NFC", "NFD", "NFKC", "NFKD"]


@config_class
class Normalize:
    """See :func:`normalize`."""

    name: str
    form: _Form | None = "NFC"
    lower: bool = True
    batched = True
    sees_features = True

    def __post_init__(self) -> None:
        """Checks that there is something to do."""
        if self.form is None and not self.lower:
            raise ValueError("expected a form, lower=True or both")

    @property
    def export_obstacle(self) -> str:
        """Why it cannot be exported, where it cannot."""
        return "" if self.form is None else "Unicode's normal forms run in Python"

    def __repr__(self) -> str:
        """As it is written in a recipe."""
        settings = [f"form={self.form!r}".replace("'", '"')] if self.form != "NFC" else []
        settings += [] if self.lower else ["lower=False"]
        name = json.dumps(self.name, ensure_ascii=False)
        return f"ss.text.normalize({', '.join([name, *settings])})"

    def settings(self) -> dict[str, object]:
        """What shapes the output, as plain JSON, for the fingerprint."""
        return {
            "step": "text.normalize",
            "name": self.name,
            "form": self.form,
            "lower": self.lower,
            "unicode": unicodedata.unidata_version if self.form else None,
        }

    def features(self, features: Features) -> Features:
        """The features, unchanged.

        Raises:
            RecipeError: if there are no such strings.
        """
        find(self, self.name, features, dtypes=_STRINGS, what="text")
        return features

    def apply(self, record: dict[str, Any], features: Features = NO_FEATURES) -> dict[str, Any]:
        """Normalises all strings; fails where one is not UTF-8."""
        import tensorflow as tf

        form = self.form

        def normalize(texts: list[bytes]) -> list[list[bytes]]:
            assert form is not None
            return [[unicodedata.normalize(form, decode_text(t)).encode()] for t in texts]

        def change(value: Any) -> Any:
            if form is not None:
                values, _ = call_on_strings(normalize, value, tf.string, instead=[b""])
                value = tf.ensure_shape(tf.reshape(values, tf.shape(value)), value.shape)
            else:
                value = tf.strings.unicode_transcode(value, "UTF-8", "UTF-8", errors="strict")
            return tf.strings.lower(value, encoding="utf-8") if self.lower else value

        return compute(record, self.name, change, after=features[self.name])


@config_class
class Tokenize:
    """See :func:`tokenize`."""

    name: str
    vocabulary: tuple[str, ...] | str | None = None
    unknown: str | None = None
    split: str | None = None
    tokens: tuple[str, ...] | None = dataclasses.field(default=None, repr=False, compare=False)
    """What a vocabulary file held, in the step that runs."""
    batched = True
    sees_features = True

    def __post_init__(self) -> None:
        """Checks a vocabulary that is given as a list."""
        if self.unknown is not None and self.vocabulary is None:
            raise ValueError("unknown: there is no vocabulary that it could be in")
        if isinstance(self.vocabulary, tuple):
            check_vocabulary(self.vocabulary, where=repr(self))
            self._check_unknown(self.vocabulary)

    @property
    def files(self) -> tuple[str, ...]:
        """The vocabulary file, if it is one."""
        return (self.vocabulary,) if isinstance(self.vocabulary, str) else ()

    def with_files(self, contents: Sequence[bytes]) -> Tokenize:
        """The step with the content of its file.

        Raises:
            RecipeError: if that is no vocabulary.
        """
        (content,) = contents
        tokens = read_vocabulary(content, where=f"prepare: {self!r}: {self.vocabulary}")
        self._check_unknown(tokens)
        return dataclasses.replace(self, tokens=tokens)

    def _check_unknown(self, tokens: Sequence[str]) -> None:
        if self.unknown is not None and self.unknown not in tokens:
            raise RecipeError(
                f"prepare: {self!r}: unknown={self.unknown!r} is none of the {len(tokens):,} "
                "tokens."
            )

    def __repr__(self) -> str:
        """As it is written in a recipe."""
        listed = self.vocabulary
        if isinstance(listed, tuple) and len(listed) > 8:
            listed = (*listed[:8], "…")
        return call_text(
            "ss.text.tokenize",
            self.name,
            vocabulary=listed,
            unknown=self.unknown,
            split=self.split,
        )

    def settings(self) -> dict[str, object]:
        """What shapes the output, as plain JSON, for the fingerprint; a file by its content."""
        given = self.vocabulary
        return {
            "step": "text.tokenize",
            "name": self.name,
            "vocabulary": "file" if isinstance(given, str) else given and list(given),
            "unknown": self.unknown,
            "split": self.split,
        }

    def features(self, features: Features) -> Features:
        """The features after this step.

        Raises:
            RecipeError: if there is no such text.
        """
        feature = find_single(self, self.name, features, dtypes=_STRINGS, what="text")
        dtype: Any = "string" if self.vocabulary is None else "int64"
        return {**features, self.name: Tensor(dtype, (None,), optional=feature.optional)}

    def apply(self, record: dict[str, Any], features: Features = NO_FEATURES) -> dict[str, Any]:
        """Replaces text by its tokens or their numbers."""
        import tensorflow as tf

        text = record[self.name]
        if self.split is None:
            tokens = tf.strings.split(text)
        else:
            marked = tf.strings.regex_replace(text, self.split, _SEPARATOR)
            tokens = tf.strings.split(marked, sep=_SEPARATOR)
            tokens = _without_empty(tokens)
        vocabulary = self.vocabulary if isinstance(self.vocabulary, tuple) else self.tokens
        if vocabulary is not None:
            unknown = len(vocabulary)
            if self.unknown is not None:
                unknown = vocabulary.index(self.unknown)
            tokens = each(token_table(vocabulary, unknown=unknown).lookup, tokens)
        return {**record, self.name: tokens}


@config_class
class Truncate:
    """See :func:`truncate`."""

    name: str
    length: Annotated[int, pydantic.Field(ge=0, lt=2**31)]
    keep: Literal["first", "last"] = "first"
    batched = True
    sees_features = True

    def __repr__(self) -> str:
        """As it is written in a recipe."""
        keep = None if self.keep == "first" else self.keep
        return call_text("ss.text.truncate", self.name, self.length, keep=keep)

    def settings(self) -> dict[str, object]:
        """What shapes the output, as plain JSON, for the fingerprint."""
        return {
            "step": "text.truncate",
            "name": self.name,
            "length": self.length,
            "keep": self.keep,
        }

    def features(self, features: Features) -> Features:
        """The features, unchanged.

        Raises:
            RecipeError: if there is no text of this name, and no list of varying length.
        """
        feature = features.get(self.name)
        form = tensor_form(feature) if feature is not None else None
        varies = form is not None and form.shape[:1] == (None,)
        if not varies:
            find_single(self, self.name, features, dtypes=_STRINGS, what="text or a varying list")
        return features

    def apply(self, record: dict[str, Any], features: Features = NO_FEATURES) -> dict[str, Any]:
        """Cuts what is too long."""
        import tensorflow as tf

        value, length = record[self.name], self.length
        form = tensor_form(features[self.name])
        if form is not None and not form.shape:
            start = 0
            if self.keep == "last":
                num_characters = tf.strings.length(value, unit="UTF8_CHAR")
                start = tf.maximum(num_characters - length, 0)
            sizes = tf.fill(tf.shape(start), length)
            value = tf.strings.substr(value, start, sizes, unit="UTF8_CHAR")
        elif isinstance(value, tf.RaggedTensor):
            value = value[:, :length] if self.keep == "first" else value[:, -length:]
            value = value if length else value[:, :0]
        else:
            value = value[:length] if self.keep == "first" or not length else value[-length:]
        return {**record, self.name: value}


def normalize(name: str, form: _Form | None = "NFC", *, lower: bool = True) -> Normalize:
    """Brings text into one of Unicode's normal forms, and to lower case.

    Text that is not UTF-8 is rejected. Unicode's forms run in Python, so that this step is not
    exported for serving; with ``form=None`` it is.

    Args:
        name: A feature of text; sequences of it, too.
        form: NFC, NFD, NFKC or NFKD; None leaves the text as it is.
        lower: Whether to turn upper case into lower case, of any alphabet.

    Raises:
        RecipeError: if an argument is unfit.
    """
    return Normalize(name=name, form=form, lower=lower)


def tokenize(
    name: str,
    vocabulary: str | Iterable[str] | None = None,
    *,
    tokenizer: str | None = None,
    unknown: str | None = None,
    split: str | None = None,
    special_tokens: bool = True,
) -> Tokenize | TokenizeWith:
    """Splits text into tokens, and gives their numbers: ``int64[any]``.

    Without a vocabulary and a tokenizer it gives the tokens themselves: ``string[any]``.

    Args:
        name: The text.
        vocabulary: A list of tokens, or the path or URL of a file with one a line, in UTF-8: a
            token's number is its place, from 0. A relative path counts from the recipe's folder;
            the content counts for the fingerprint, the path does not.
        tokenizer: Instead, the path or URL of a ``tokenizer.json`` of Hugging Face's
            ``tokenizers``, which splits by its own rules (``pip install snapshard[text]``). It
            runs outside of TensorFlow, so that it is not exported for serving. Truncation that
            the file asks for is done, padding is not.
        unknown: The token of the vocabulary that stands for all that is not in it; None gives
            those the number behind the last one.
        split: A regular expression (RE2) of what lies between tokens; None is white space.
        special_tokens: Whether the tokenizer adds its special tokens (``[CLS]`` …).

    Raises:
        RecipeError: if an argument is unfit.
    """
    if tokenizer is not None:
        if vocabulary is not None or unknown is not None or split is not None:
            raise RecipeError(
                "ss.text.tokenize: a tokenizer has its own vocabulary and rules. Leave out "
                "vocabulary=, unknown= and split=."
            )
        return TokenizeWith(name=name, tokenizer=tokenizer, special_tokens=special_tokens)
    if not special_tokens:
        raise RecipeError("ss.text.tokenize: special_tokens= is for a tokenizer=.")
    return Tokenize(name=name, vocabulary=as_tuple(vocabulary), unknown=unknown, split=split)


def truncate(name: str, length: int, *, keep: Literal["first", "last"] = "first") -> Truncate:
    """Cuts a list to so many items, or text to so many characters, where it is longer.

    Args:
        name: Text, or a feature whose first dimension varies.
        length: What is left at most.
        keep: Which end of it.

    Raises:
        RecipeError: if an argument is unfit.
    """
    return Truncate(name=name, length=length, keep=keep)


def decode_text(content: bytes) -> str:
    """Text of UTF-8.

    Raises:
        ValueError: if it is not UTF-8; saying at which byte.
    """
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"expected UTF-8, found another byte at {error.start:,}") from None


def _without_empty(tokens: Any) -> Any:
    import tensorflow as tf

    if isinstance(tokens, tf.RaggedTensor):
        return tf.ragged.boolean_mask(tokens, tokens != "")
    return tf.boolean_mask(tokens, tokens != "")
