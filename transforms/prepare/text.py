"""Steps on text: normalize, tokenize, truncate, pack.

Vocabularies are looked up inside the graph; tokenizers of Hugging Face's ``tokenizers`` are loaded
from their JSON files. Packing puts several short sequences in one row of fixed length, to reduce
padding.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pydantic

from ...schemas.blocks import RawBatch
from ...schemas.config import as_tuple, config_class
from ...schemas.errors import RecipeError
from ...schemas.features import Features, Tensor, TensorForm, tensor_form
from ...schemas.recipe import SortedRecords
from ...schemas.splits import Splits
from ..examples.dtypes import dense_column, joined_bytes, narrowed, unpacked
from ..runs.files import wire_schema
from ..runs.keys import order_by_key
from .engine.user_functions import call_on_strings
from .values import (
    NO_FEATURES,
    BuiltIn,
    call_text,
    changed,
    check_vocabulary,
    compute,
    each,
    find,
    find_single,
    read_vocabulary,
    token_table,
)

__all__ = ["Pack", "TokenizeWith", "normalize", "pack", "tokenize", "truncate"]

_STRINGS = {"string"}
_SEPARATOR = "\x1f"
_Form = Literal["NFC", "NFD", "NFKC", "NFKD"]

_OPEN_ROWS = 32
"""Open rows per split: with varying lengths, at least 97 % of the positions are used."""
_BATCH_BYTES = 8 << 20


@config_class
class Normalize(BuiltIn):
    """Converts text to a Unicode normal form (Unicode Standard Annex 15) and to lower case.

    Text that is not UTF-8 is rejected. Normal forms are computed in Python (``unicodedata``), so
    the step cannot be exported for serving; with ``form=None`` it can.

    Args:
        name: A string feature, which may be a tensor or sequence.
        form: NFC, NFD, NFKC or NFKD; None means no normalization.
        lower: Whether to convert to lower case, in any alphabet.

    Raises:
        RecipeError: if an argument is invalid.
    """

    name: str
    form: _Form | None = "NFC"
    _: dataclasses.KW_ONLY
    lower: bool = True
    kind = "text.normalize"
    batched = True
    sees_features = True

    def __post_init__(self) -> None:
        """Checks that the step changes anything."""
        if self.form is None and not self.lower:
            raise ValueError("expected a form, lower=True or both")

    @property
    def export_obstacle(self) -> str:
        """Why the step cannot be exported; empty if it can."""
        return "" if self.form is None else "Unicode's normal forms run in Python"

    def settings(self) -> dict[str, object]:
        """Everything that affects the output, as plain JSON, for the fingerprint."""
        version = unicodedata.unidata_version if self.form else None
        return {**super().settings(), "unicode": version}

    def features(self, features: Features) -> Features:
        """The features, unchanged.

        Raises:
            RecipeError: if there is no string feature of this name.
        """
        find(self, self.name, features, dtypes=_STRINGS, what="text")
        return features

    def apply(self, record: dict[str, Any], features: Features = NO_FEATURES) -> dict[str, Any]:
        """Normalizes all strings; fails if one is not UTF-8."""
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


normalize = Normalize


@config_class
class Tokenize(BuiltIn):
    """See :func:`tokenize`."""

    name: str
    vocabulary: tuple[str, ...] | str | None = None
    unknown: str | None = None
    split: str | None = None
    tokens: tuple[str, ...] | None = dataclasses.field(default=None, repr=False, compare=False)
    """The content of the vocabulary file, set in the step that runs."""
    kind = "text.tokenize"
    batched = True
    sees_features = True

    def __post_init__(self) -> None:
        """Checks a vocabulary given as a list."""
        if self.unknown is not None and self.vocabulary is None:
            raise ValueError("unknown: requires a vocabulary")
        if isinstance(self.vocabulary, tuple):
            check_vocabulary(self.vocabulary, where=repr(self))
            self._check_unknown(self.vocabulary)

    @property
    def files(self) -> tuple[str, ...]:
        """The vocabulary file, if there is one."""
        return (self.vocabulary,) if isinstance(self.vocabulary, str) else ()

    def with_files(self, contents: Sequence[bytes]) -> Tokenize:
        """The step with the content of its file.

        Raises:
            RecipeError: if it is not a valid vocabulary.
        """
        (content,) = contents
        tokens = read_vocabulary(content, where=f"prepare: {self!r}: {self.vocabulary}")
        self._check_unknown(tokens)
        return dataclasses.replace(self, tokens=tokens)

    def _check_unknown(self, tokens: Sequence[str]) -> None:
        if self.unknown is not None and self.unknown not in tokens:
            raise RecipeError(
                f"prepare: {self!r}: unknown={self.unknown!r} is not one of the {len(tokens):,} "
                "tokens."
            )

    def settings(self) -> dict[str, object]:
        """Everything but a file's content that affects the output, as plain JSON."""
        settings = super().settings()
        return {**settings, "vocabulary": "file"} if isinstance(self.vocabulary, str) else settings

    def features(self, features: Features) -> Features:
        """The features after this step.

        Raises:
            RecipeError: if there is no text of this name.
        """
        feature = find_single(self, self.name, features, dtypes=_STRINGS, what="text")
        dtype: Any = "string" if self.vocabulary is None else "int64"
        return {**features, self.name: Tensor(dtype, (None,), optional=feature.optional)}

    def apply(self, record: dict[str, Any], features: Features = NO_FEATURES) -> dict[str, Any]:
        """Replaces text by its tokens or their indices."""
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
class Truncate(BuiltIn):
    """Truncates a list to at most ``length`` items, or text to at most ``length`` characters.

    Args:
        name: Text, or a feature whose first dimension varies.
        length: The maximum length, at least 0.
        keep: Which end to keep.

    Raises:
        RecipeError: if an argument is invalid.
    """

    name: str
    length: Annotated[int, pydantic.Field(ge=0, lt=2**31)]
    _: dataclasses.KW_ONLY
    keep: Literal["first", "last"] = "first"
    kind = "text.truncate"
    batched = True
    sees_features = True

    def features(self, features: Features) -> Features:
        """The features, unchanged.

        Raises:
            RecipeError: if there is neither text nor a list of varying length of this name.
        """
        feature = features.get(self.name)
        form = tensor_form(feature) if feature is not None else None
        varies = form is not None and form.shape[:1] == (None,)
        if not varies:
            find_single(self, self.name, features, dtypes=_STRINGS, what="text or a varying list")
        return features

    def apply(self, record: dict[str, Any], features: Features = NO_FEATURES) -> dict[str, Any]:
        """Truncates values that are too long."""
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


truncate = Truncate


def tokenize(
    name: str,
    vocabulary: str | Iterable[str] | None = None,
    *,
    tokenizer: str | None = None,
    unknown: str | None = None,
    split: str | None = None,
    special_tokens: bool = True,
) -> Tokenize | TokenizeWith:
    """Splits text into tokens, and replaces it by their indices: ``int64[any]``.

    Without a vocabulary or tokenizer, the result is the tokens themselves: ``string[any]``.

    Args:
        name: The text feature.
        vocabulary: A list of tokens, or the path or URL of a UTF-8 file with one token per line.
            A token's index is its position, from 0. A relative path starts at the recipe's folder;
            the file's content enters the fingerprint, its path does not.
        tokenizer: Instead, the path or URL of a ``tokenizer.json`` of Hugging Face's
            ``tokenizers``, which splits by its own rules (``pip install snapshard[text]``). It
            runs outside of TensorFlow, so it cannot be exported for serving. The file's truncation
            is applied, its padding is not.
        unknown: The vocabulary's token that represents all tokens not in it; None gives them the
            index after the last one.
        split: A regular expression (RE2) that matches separators; None means white space.
        special_tokens: Whether the tokenizer adds its special tokens (``[CLS]`` …).

    Raises:
        RecipeError: if an argument is invalid.
    """
    if tokenizer is not None:
        if vocabulary is not None or unknown is not None or split is not None:
            raise RecipeError(
                "ss.text.tokenize: a tokenizer has its own vocabulary and rules. Remove "
                "vocabulary=, unknown= and split=."
            )
        return TokenizeWith(name=name, tokenizer=tokenizer, special_tokens=special_tokens)
    if not special_tokens:
        raise RecipeError("ss.text.tokenize: special_tokens= requires tokenizer=.")
    return Tokenize(name=name, vocabulary=as_tuple(vocabulary), unknown=unknown, split=split)


def decode_text(content: bytes) -> str:
    """Decodes UTF-8.

    Raises:
        ValueError: if it is not UTF-8; names the first invalid byte.
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


@config_class
class Pack(BuiltIn):
    """Packs sequences of numbers into rows of fixed length; a row never mixes splits.

    The result has ``name`` ``dtype[length]``, padded with zeros; ``<name>_segments``
    ``int32[length]``, 1 for the first sequence of a row, 2 for the next …, 0 for padding; and
    ``<name>_positions`` ``int32[length]``, counting within each sequence, for attention masks
    and position embeddings (as in Raffel et al., "Exploring the limits of transfer learning",
    2020). Other features are dropped, since a row contains several records. Sequences longer
    than ``length`` are truncated; empty ones are dropped and counted. In the order of the records'
    keys, each sequence goes into the first of 32 open rows that has room.

    Args:
        name: The sequence, such as token ids.
        length: The length of each row.

    Raises:
        RecipeError: if an argument is invalid.
    """

    name: str
    length: Annotated[int, pydantic.Field(ge=1)]

    kind = "text.pack"
    prefix_bytes = 0

    def features(self, features: Features) -> Features:
        """The features after this step: the packed sequence, its segments and positions.

        Raises:
            RecipeError: if there is no sequence of numbers of this name.
        """
        dtype = self._form(features).dtype
        return {
            self.name: Tensor(dtype, (self.length,)),
            f"{self.name}_positions": Tensor("int32", (self.length,)),
            f"{self.name}_segments": Tensor("int32", (self.length,)),
        }

    def check(self, splits: Splits) -> None:
        """Refuses strata: with them, a record's split is known too late.

        Raises:
            RecipeError: naming the splits that can be used.
        """
        if splits.key_strata is not None:
            raise RecipeError(
                "text.pack: with stratify_by, a record's split is known only after all records "
                "have been counted, but a row must not mix splits. Split by a hash, a group, a "
                "column or time."
            )

    def order(
        self, ids: Sequence[str], columns: Any, *, features: Features, seed: int
    ) -> tuple[Any, Any]:
        """Sorts by the records' own keys, which shuffles them."""
        del columns, features
        return order_by_key(ids, seed)

    def merge(self, records: Iterator[SortedRecords], *, features: Features) -> Iterator[RawBatch]:
        """Packs sequences into rows, in batches of about 8 MiB."""
        form = self._form(features)
        open_rows: dict[int, list[_Row]] = {}
        done: list[_Row] = []
        num_empty = 0
        for part in records:
            for record_id, split, values in zip(
                part.ids, part.splits.tolist(), self._sequences(part, form), strict=True
            ):
                if not len(values):
                    num_empty += 1
                    continue
                done += self._place(open_rows.setdefault(split, []), record_id, values)
                if len(done) * self.length * 16 > _BATCH_BYTES:
                    yield self._batch(done, features)
                    done = []
        for rows in open_rows.values():
            done += rows
        yield dataclasses.replace(self._batch(done, features), num_filtered=num_empty)

    def _place(self, rows: list[_Row], record_id: str, values: npt.NDArray[Any]) -> list[_Row]:
        """Puts a sequence into the first row with room; returns the rows that are then full."""
        values = values[: self.length]
        for row in rows:
            if row.used + len(values) <= self.length:
                row.add(values)
                break
        else:
            rows.append(_Row(record_id))
            rows[-1].add(values)
        closed = [row for row in rows if row.used == self.length]
        if not closed and len(rows) > _OPEN_ROWS:
            closed = [max(rows, key=lambda row: row.used)]
        for row in closed:
            rows.remove(row)
        return closed

    def _sequences(self, part: SortedRecords, form: TensorForm) -> Iterator[npt.NDArray[Any]]:
        """Each record's values; empty if missing."""
        column = part.columns.column(self.name)
        (wire,) = form.wire_columns(self.name)
        if wire.packed is not None:
            column = column.fill_null(b"")
            sizes = np.array([len(value.as_buffer()) for value in column], np.int64)
            flat = unpacked(joined_bytes(column), wire.packed)
            sizes //= max(1, flat.itemsize)
        else:
            sizes = column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
            flat = narrowed(column.flatten().to_numpy(), form.dtype)
        ends = np.cumsum(sizes)
        for size, end in zip(sizes.tolist(), ends.tolist(), strict=True):
            yield flat[end - size : end]

    def _batch(self, rows: Sequence[_Row], features: Features) -> RawBatch:
        after = self.features(features)
        form = tensor_form(after[self.name])
        assert form is not None
        shape = (len(rows), self.length)
        dtype = rows[0].parts[0].dtype if rows else np.dtype(np.int64)
        values = np.zeros(shape, dtype)
        segments, positions = np.zeros(shape, np.int32), np.zeros(shape, np.int32)
        for index, row in enumerate(rows):
            start = 0
            for number, part in enumerate(row.parts, start=1):
                stop = start + len(part)
                values[index, start:stop] = part
                segments[index, start:stop] = number
                positions[index, start:stop] = np.arange(len(part))
                start = stop
        content = {
            self.name: values,
            f"{self.name}_positions": positions,
            f"{self.name}_segments": segments,
        }
        arrays = {
            name: dense_column(content[name], *feature.wire_columns(name))
            for name, feature in after.items()
        }
        schema = wire_schema(after)
        columns = [arrays[name] for name in schema.names]
        return RawBatch(
            ids=[row.record_id for row in rows],
            columns=pa.RecordBatch.from_arrays(columns, schema=schema),
        )

    def _form(self, features: Features) -> TensorForm:
        feature = features.get(self.name)
        form = tensor_form(feature) if feature is not None else None
        if form is None or form.shape != (None,) or form.dtype == "string":
            raise RecipeError(
                f"prepare: {self!r}: {self.name!r} is {feature or 'not a feature'}, expected a "
                "sequence of numbers, such as ss.text.tokenize returns."
            )
        return form


pack = Pack


class _Row:
    """An open row."""

    def __init__(self, record_id: str) -> None:
        self.record_id = record_id
        self.parts: list[npt.NDArray[Any]] = []
        self.used = 0

    def add(self, values: npt.NDArray[Any]) -> None:
        self.parts.append(values)
        self.used += len(values)


@config_class
class TokenizeWith(BuiltIn):
    """See :func:`tokenize`."""

    name: str
    tokenizer: str
    special_tokens: bool = True
    content: bytes | None = dataclasses.field(default=None, repr=False, compare=False)
    """The content of the tokenizer's file, set in the step that runs."""
    kind = "text.tokenize_with"
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
            RecipeError: if it is not a valid tokenizer.
        """
        step = dataclasses.replace(self, content=contents[0])
        step._load()
        return step

    def __repr__(self) -> str:
        """The step as written in a recipe."""
        return call_text("ss.text.tokenize", self.name, tokenizer=self.tokenizer, **changed(self))

    def settings(self) -> dict[str, object]:
        """Everything but the file's content that affects the output, as plain JSON."""
        return {
            "step": self.kind,
            "name": self.name,
            "special_tokens": self.special_tokens,
            "tokenizers": _version(),
        }

    def features(self, features: Features) -> Features:
        """The features after this step.

        Raises:
            RecipeError: if there is no text of this name.
        """
        feature = find_single(self, self.name, features, dtypes={"string"}, what="text")
        return {**features, self.name: Tensor("int64", (None,), optional=feature.optional)}

    def apply(self, record: dict[str, Any], features: Features = NO_FEATURES) -> dict[str, Any]:
        """Replaces text by the indices of its tokens; fails if it is not UTF-8."""
        import tensorflow as tf

        tokenizer, special = self._load(), self.special_tokens

        def encode(texts: list[bytes]) -> list[list[int]]:
            decoded = [decode_text(text) for text in texts]
            encodings = tokenizer.encode_batch(decoded, add_special_tokens=special)
            return [encoding.ids for encoding in encodings]

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
                f"prepare: {self!r} needs the package tokenizers, which is not installed. Run: pip "
                'install "snapshard[text]"'
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
                f"{where} drops merges at random (dropout={model['dropout']}), but the result for "
                "a record must always be the same. Set its dropout to null."
            )
        tokenizer.no_padding()
        return tokenizer


def _version() -> str:
    try:
        return importlib.metadata.version("tokenizers")
    except importlib.metadata.PackageNotFoundError:
        return "absent"
