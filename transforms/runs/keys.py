"""Keys: the 64-bit numbers that order the records and choose their splits.

A key is the first 8 bytes, big-endian, of ``blake2b(id)`` with a salt derived from the recipe's
seed. Nothing else enters it, so a record's key does not depend on other records; another seed
changes every key. Because keys are uniform, a key range is a uniform sample, and the order by key
a global shuffle.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...schemas.errors import RecipeError
from ...schemas.splits import Splits

NO_PARTITION = -1
"""What :func:`assign_partitions` returns for a record whose group is unknown."""

Keys = npt.NDArray[np.uint64]


def record_keys(ids: Sequence[str], seed: int) -> Keys:
    """Computes the keys of records: uint64[n] for n ids.

    Ids are hashed as UTF-8; bytes of a path that are not UTF-8 are hashed unchanged
    (``surrogateescape``). The seed is any integer.

    >>> record_keys(["3/IMG_4509.JPG", "3/IMG_4216.JPG"], seed=0).tolist()
    [15271932593567521315, 3151852264818896348]
    """
    return text_keys((text.encode("utf-8", "surrogateescape") for text in ids), seed)


def order_by_key(ids: Sequence[str], seed: int) -> tuple[Keys, pa.LargeBinaryArray]:
    """The order of a step across records that shuffles them: uint64[n] keys, n empty prefixes."""
    return record_keys(ids, seed), pa.array([b""] * len(ids), pa.large_binary())


def text_keys(texts: Iterable[bytes], seed: int) -> Keys:
    """Computes the keys of ids given as bytes: uint64[n]."""
    # Hashing the seed's text turns integers of any size and sign into 16 bytes of salt.
    salt = blake2b(str(seed).encode("ascii"), digest_size=16).digest()
    # Copying a hasher costs a quarter less than creating one: parameters are parsed once.
    copy_hasher = blake2b(digest_size=8, salt=salt).copy
    digests = []
    for text in texts:
        hasher = copy_hasher()
        hasher.update(text)
        digests.append(hasher.digest())
    return np.frombuffer(b"".join(digests), dtype=">u8").astype(np.uint64)


def value_texts(values: pa.Array) -> pa.DictionaryArray:
    """Converts the values of a feature to text: dictionary<int32, large_binary>[n].

    Equal values have equal texts. Strings and bytes are unchanged, integers are decimal, booleans
    ``true`` and ``false``, floats the shortest decimal that round-trips. Nulls and NaN become
    null.

    Raises:
        RecipeError: for lists and structs.
    """
    if pa.types.is_nested(values.type):
        raise RecipeError(
            f"Splits: values of type {values.type} cannot name groups or strata. Give group_by or "
            "stratify_by a feature with one number, bool or string per record."
        )
    encoded = values if pa.types.is_dictionary(values.type) else values.dictionary_encode()
    distinct = encoded.dictionary.to_pylist()
    texts = [None if value is None else _text(value) for value in distinct]
    # 0.0 and -0.0 are two entries with the same text: encoding again merges them, and drops NaN.
    again = pa.array(texts, pa.large_binary()).dictionary_encode()
    indices = again.indices.take(encoded.indices).cast(pa.int32())
    return pa.DictionaryArray.from_arrays(indices, again.dictionary)


def _text(value: Any) -> bytes | None:
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape")
    if isinstance(value, bool):
        return b"true" if value else b"false"
    if isinstance(value, float):
        # Adding 0.0 turns -0.0 into 0.0.
        return None if math.isnan(value) else repr(value + 0.0).encode()
    return str(value).encode()


class _KnownGroups(Protocol):
    def find(self, keys: Keys) -> npt.NDArray[np.int16]:
        """Returns the splits of groups, by their keys."""
        ...


def assign_partitions(
    values: pa.Array, splits: Splits, *, seed: int, known: _KnownGroups | None = None
) -> npt.NDArray[np.int16]:
    """Assigns each record to a split by its group: int16[n], indices into the splits.

    Args:
        values: The records' values of the ``group_by`` feature, [n].
        splits: The splits; a group goes to the split whose key range contains its key.
        seed: The recipe's seed.
        known: The splits of the groups, if something other than their hash decides.

    Returns:
        The split whose range holds the key of each value's text: a group's split does not depend
        on other data. NO_PARTITION if the value is missing (null or NaN): an unknown group could
        span two splits, so the caller rejects the record.
    """
    texts = value_texts(values)
    keys = text_keys(texts.dictionary.to_pylist(), seed)
    of_group = split_of_keys(keys, splits) if known is None else known.find(keys)
    # The last entry is for the index -1, which represents null.
    of_group = np.append(of_group, np.int16(NO_PARTITION))
    partitions: npt.NDArray[np.int16] = of_group[texts.indices.fill_null(-1).to_numpy()]
    return partitions


def split_of_keys(keys: Keys, splits: Splits) -> npt.NDArray[np.int16]:
    """The index of the split whose range holds each key: int16[n] for uint64[n]."""
    # Searches each split's last key, not its stop: a stop may be 2**64.
    lasts = [stop - 1 for _, _, stop in splits.key_ranges()[:-1]]
    num_empty = sum(last < 0 for last in lasts)
    index = np.searchsorted(np.array(lasts[num_empty:], dtype=np.uint64), keys, side="left")
    return (index + num_empty).astype(np.int16)
