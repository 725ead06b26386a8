"""Dropping records of equal content, across the whole source and whatever their order."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from ...schemas.blocks import RawBatch
from ...schemas.config import config_class
from ...schemas.errors import RecipeError
from ...schemas.features import Features
from ...schemas.recipe import SortedRecords
from ...schemas.splits import Splits
from ..runs.contents import DIGEST_BYTES, content_digests


@config_class
class DropDuplicates:
    """See :func:`drop_duplicates`."""

    names: tuple[str, ...] = ()

    prefix_bytes = DIGEST_BYTES

    def __repr__(self) -> str:
        """As it is written in a recipe."""
        names = (json.dumps(name, ensure_ascii=False) for name in self.names)
        return f"ss.records.drop_duplicates({', '.join(names)})"

    def settings(self) -> dict[str, object]:
        """What shapes the output, as plain JSON, for the fingerprint."""
        return {"step": "records.drop_duplicates", "names": sorted(self.names)}

    def features(self, features: Features) -> Features:
        """The features, unchanged.

        Raises:
            RecipeError: if one to compare is not there.
        """
        missing = sorted(set(self.names) - set(features))
        if missing:
            raise RecipeError(
                f"prepare: {self!r}: there is no feature {', '.join(map(repr, missing))}, only "
                f"{', '.join(map(repr, features))}."
            )
        return features

    def check(self, splits: Splits) -> None:
        """Any splits do."""

    def order(
        self, ids: Sequence[str], columns: Any, *, features: Features, seed: int
    ) -> tuple[Any, Any]:
        """By a 128-bit hash of the content; records that share one are taken for equal."""
        del ids, seed
        digests = content_digests(columns, features, names=self.names or tuple(features))
        keys = digests[:, :8].copy().view(">u8").reshape(-1).astype(np.uint64)
        offsets = np.arange(len(digests) + 1, dtype=np.int64) * DIGEST_BYTES
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(digests)]
        return keys, pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(digests), buffers)

    def merge(self, records: Iterator[SortedRecords], *, features: Features) -> Iterator[RawBatch]:
        """The first record, by its id, of each content."""
        del features
        last = b""
        for part in records:
            prefixes = part.prefixes.to_pylist()
            before = [last, *prefixes][: len(prefixes)]
            last = prefixes[-1] if prefixes else last
            first = np.array([a != b for a, b in zip(prefixes, before, strict=True)], bool)
            yield RawBatch(
                ids=[text for text, kept in zip(part.ids, first, strict=True) if kept],
                columns=part.columns.filter(pa.array(first)),
                num_filtered=int(len(first) - first.sum()),
            )


def drop_duplicates(*names: str) -> DropDuplicates:
    """Keeps one of all records with equal content, wherever they lie: that of the lowest id.

    Content is compared by a 128-bit hash, the whole source over; what is dropped is counted.

    Args:
        names: The features to compare; none given means all. Leave the label out to find inputs
            that stand under two labels, too.

    Raises:
        RecipeError: if a name is no feature.
    """
    return DropDuplicates(names=names)
