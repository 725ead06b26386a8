"""The choice of compression."""

from typing import Any

import pytest

from snapshard.pipelines.plan.step import choose_compression


@pytest.mark.parametrize("ratio", [0.01, 0.5, 2.0])
@pytest.mark.parametrize("setting", ["none", "gzip"])
def test_what_is_set_is_taken(setting: Any, ratio: float) -> None:
    assert choose_compression(setting, ratio=ratio, read_mb_per_s=1.0) == setting


@pytest.mark.parametrize(
    ("ratio", "read_mb_per_s", "expected"),
    [
        (0.01, 200.0, "none"),  # the default: unpacking is slower than reading
        (0.01, 119.0, "none"),
        (0.01, 118.0, "gzip"),
        (0.77, 50.0, "gzip"),  # raw images over a slow network
        (0.92, 50.0, "none"),  # JPEGs: too little to gain
        (1.01, 1.0, "none"),
    ],
)
def test_auto_takes_gzip_where_reading_gets_faster(
    ratio: float, read_mb_per_s: float, expected: str
) -> None:
    assert choose_compression("auto", ratio=ratio, read_mb_per_s=read_mb_per_s) == expected
