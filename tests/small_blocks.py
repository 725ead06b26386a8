"""Small data in many blocks, as large data is."""

import functools

import pytest

from snapshard.pipelines.inventory.step import Sizes, take_inventory
from snapshard.pipelines.survey import survey


def small_blocks(patch: pytest.MonkeyPatch, block_bytes: int, **sizes: int) -> None:
    """Makes the builds of this process divide their input into blocks of this size.

    Builds have no such option: blocks decide what is prepared again, and nothing that a snapshot
    holds.
    """
    take = functools.partial(take_inventory, sizes=Sizes(block_bytes=block_bytes, **sizes))
    patch.setattr(survey, "take_inventory", take)
