"""Tokenizers of Hugging Face's ``tokenizers``, from their JSON files."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
from collections.abc import Sequence
from typing import Any

from ...schemas.config import config_class
from ...schemas.errors import RecipeError
from ...schemas.features import Features, Tensor
from .engine.python_functions import call_on_strings
from .values import NO_FEATURES, call_text, find_single


@config_class
class TokenizeWith:
    """See :func:`.text.tokenize`."""

    name: str
    tokenizer: str
    special_tokens: bool = True
    content: bytes | None = dataclasses.field(default=None, repr=False, compare=False)
    """What the tokenizer's file held, in the step that runs."""
    batched = True
    sees_features = True
    export_obstacle = "the tokenizer runs outside of TensorFlow"

    @property
    def files(self) -> tuple[str, ...]:
        """The tokenizer's file."""
        return (self.tokenizer,)

    def with_files(self, contents: Sequence[bytes]) -> TokenizeWith:
        """The step with the content of its file.

        Raises:
            RecipeError: if that is no tokenizer.
        """
        step = dataclasses.replace(self, content=contents[0])
        step._load()
        return step

    def __repr__(self) -> str:
        """As it is written in a recipe."""
        special = None if self.special_tokens else False
        return call_text(
            "ss.text.tokenize", self.name, tokenizer=self.tokenizer, special_tokens=special
        )

    def settings(self) -> dict[str, object]:
        """What shapes the output beside the file, as plain JSON, for the fingerprint."""
        return {
            "step": "text.tokenize_with",
            "name": self.name,
            "special_tokens": self.special_tokens,
            "tokenizers": _version(),
        }

    def features(self, features: Features) -> Features:
        """The features after this step.

        Raises:
            RecipeError: if there is no such text.
        """
        feature = find_single(self, self.name, features, dtypes={"string"}, what="text")
        return {**features, self.name: Tensor("int64", (None,), optional=feature.optional)}

    def apply(self, record: dict[str, Any], features: Features = NO_FEATURES) -> dict[str, Any]:
        """Replaces text by the numbers of its tokens; fails where it is not UTF-8."""
        import tensorflow as tf

        tokenizer, special = self._load(), self.special_tokens

        def encode(texts: list[bytes]) -> list[list[int]]:
            from .text import decode_text

            decoded = [decode_text(text) for text in texts]
            found = tokenizer.encode_batch(decoded, add_special_tokens=special)
            return [encoding.ids for encoding in found]

        text = record[self.name]
        numbers, lengths = call_on_strings(encode, text, tf.int64, instead=[])
        if text.shape.rank:
            numbers = tf.RaggedTensor.from_row_lengths(numbers, lengths, validate=False)
        return {**record, self.name: numbers}

    def _load(self) -> Any:
        try:
            from tokenizers import Tokenizer
        except ImportError:
            raise RecipeError(
                f"prepare: {self!r} needs the package tokenizers. Run: pip install snapshard[text]"
            ) from None
        where = f"prepare: {self!r}: {self.tokenizer}"
        try:
            text = (self.content or b"").decode()
            tokenizer = Tokenizer.from_str(text)
            model = json.loads(text).get("model") or {}
        except Exception as error:
            raise RecipeError(
                f"{where} is not a tokenizer.json of Hugging Face's tokenizers: {error}."
            ) from None
        if model.get("dropout"):
            raise RecipeError(
                f"{where} drops merges at random (dropout={model['dropout']}), and a record must "
                "come out the same each time. Set its dropout to null."
            )
        tokenizer.no_padding()
        return tokenizer


def _version() -> str:
    try:
        return importlib.metadata.version("tokenizers")
    except importlib.metadata.PackageNotFoundError:
        return "absent"
