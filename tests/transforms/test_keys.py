"""Keys of records and groups."""

import hashlib
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapshard import Splits
from snapshard.schemas.errors import RecipeError
from snapshard.transforms.runs.keys import (
    NO_PARTITION,
    assign_partitions,
    record_keys,
    split_of_keys,
    value_texts,
)

SPLITS = Splits(train=0.8, validation=0.1, test=0.1)
KEYS_OF_SEED_0 = [13973450695488962684, 12892693271256881398, 328670549605087634]


def _split_of(key: int, splits: Splits) -> int:
    ranges = splits.key_ranges()
    return next(index for index, (_, start, stop) in enumerate(ranges) if start <= key < stop)


def _key(text: str, seed: int) -> int:
    salt = hashlib.blake2b(str(seed).encode(), digest_size=16).digest()
    digest = hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=8, salt=salt)
    return int.from_bytes(digest.digest(), "big")


# Any character, and bytes that are no UTF-8 as os.fsdecode gives them.
_ids = st.lists(
    st.text(st.one_of(st.characters(exclude_categories=["Cs"]), st.sampled_from("\udc80\udcff")))
)


@given(_ids, st.one_of(st.just(0), st.integers()))
def test_a_key_is_the_salted_hash_of_the_id_alone(ids: list[str], seed: int) -> None:
    keys = record_keys(ids, seed)
    assert keys.dtype == np.uint64
    assert keys.tolist() == [_key(text, seed) for text in ids]


def test_keys_never_change() -> None:
    """Other keys would be another order and other splits of every snapshot there is."""
    assert record_keys(["a/1.jpg", "Käfer#7", "\udcff"], seed=0).tolist() == KEYS_OF_SEED_0
    assert record_keys(["a/1.jpg"], seed=-1).tolist() != record_keys(["a/1.jpg"], seed=1).tolist()


def test_keys_are_uniform() -> None:
    keys = record_keys([f"{i}.png" for i in range(100_000)], seed=3)
    counts = np.bincount((keys >> np.uint64(60)).astype(np.int64), minlength=16)
    # 16 bins of 6,250: five standard deviations.
    assert np.abs(counts - 6_250).max() < 5 * 6_250**0.5


@given(
    st.lists(st.one_of(st.integers(0, 2**64 - 1), st.sampled_from([0, 2**63, 2**64 - 1]))),
    st.sampled_from(
        [SPLITS, Splits(train=1.0), Splits(a=0.5, b=0.5), Splits(a=1e-30, b=1.0, c=1e-30)]
    ),
)
def test_a_key_is_in_the_split_whose_range_holds_it(keys: list[int], splits: Splits) -> None:
    found = split_of_keys(np.array(keys, np.uint64), splits)
    assert found.tolist() == [_split_of(key, splits) for key in keys]


@pytest.mark.parametrize(
    ("values", "texts"),
    [
        (pa.array(["b", None, "a", "b", ""]), [b"b", None, b"a", b"b", b""]),
        (pa.array([b"\xff", None]), [b"\xff", None]),
        (pa.array([b"x"], pa.large_binary()), [b"x"]),
        (pa.array([3, None, -1], pa.int64()), [b"3", None, b"-1"]),
        (pa.array([2**64 - 1], pa.uint64()), [b"18446744073709551615"]),
        (pa.array([True, False, None]), [b"true", b"false", None]),
        (pa.array([0.5, -0.0, 0.0, float("nan"), None]), [b"0.5", b"0.0", b"0.0", None, None]),
        (pa.array(["a", None, "a"]).dictionary_encode(), [b"a", None, b"a"]),
        (pa.array([], pa.int64()), []),
    ],
    ids=["string", "binary", "large", "int", "uint64", "bool", "float", "dictionary", "none"],
)
def test_value_texts(values: Any, texts: list[bytes | None]) -> None:
    found = value_texts(values)
    assert found.to_pylist() == texts
    assert found.type == pa.dictionary(pa.int32(), pa.large_binary())
    assert len(set(found.dictionary.to_pylist())) == len(found.dictionary)


def test_a_list_names_no_group() -> None:
    with pytest.raises(RecipeError, match=r"type list.* cannot name groups"):
        assign_partitions(pa.array([[1, 2]]), SPLITS, seed=0)


@given(st.lists(st.one_of(st.none(), st.text("abcdefgh", max_size=2))))
def test_a_group_has_one_split_by_its_key(values: Any) -> None:
    found = assign_partitions(pa.array(values, pa.string()), SPLITS, seed=5)
    assert found.dtype == np.int16
    assert found.tolist() == [
        NO_PARTITION if value is None else _split_of(_key(value, 5), SPLITS) for value in values
    ]
