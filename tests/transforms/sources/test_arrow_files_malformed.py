"""Damaged and odd Parquet, Arrow and Feather files: rejects that name file and row, no crash."""

import contextlib
import gzip
import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from snapshard.schemas.errors import SchemaError
from snapshard.schemas.features import Feature, Scalar, Sequence
from snapshard.transforms.rejects import Dropped
from snapshard.transforms.sources.arrow.ipc import Arrow
from snapshard.transforms.sources.arrow.parquet import Parquet

from ...file_bytes import ipc, parquet

ROWS = 12
SMALL = pa.table({"x": range(ROWS), "s": ["abc"] * ROWS, "l": [[1.5]] * ROWS})
FEATURES: dict[str, Feature] = {
    "x": Scalar("int64"),
    "s": Scalar("string"),
    "l": Sequence(Scalar("float64")),
}
NOTHING = SMALL.set_column(2, "l", pa.array([[None]] * ROWS))
CONTENTS = {
    "parquet": parquet(SMALL),
    "arrow": ipc(SMALL),
    "arrows": ipc(SMALL, stream=True),
}
DAMAGED: dict[str, tuple[str, bytes, str]] = {
    "an empty file": ("parquet", b"", "is empty"),
    "text": ("parquet", b"x,s\n1,2\n" * 10, "cannot be read"),
    "zeros": ("parquet", bytes(1000), "cannot be read"),
    "only the magic": ("parquet", b"PAR1PAR1", "cannot be read"),
    "another format": ("parquet", CONTENTS["arrow"], "cannot be read"),
    "half": ("parquet", CONTENTS["parquet"][: len(CONTENTS["parquet"]) // 2], "cannot be read"),
    "no footer": ("parquet", CONTENTS["parquet"][:-8], "cannot be read"),
    "a footer too long": (
        "parquet",
        CONTENTS["parquet"][:-8] + b"\xff\xff\xff\x7fPAR1",
        "cannot be read",
    ),
    "encrypted": ("parquet", b"PARE" + CONTENTS["parquet"][4:-4] + b"PARE", "cannot be read"),
    "an empty stream": ("arrow", b"", "is empty"),
    "text as arrow": ("arrow", b"x,s\n1,2\n" * 10, "cannot be read"),
    "zeros as arrow": ("arrow", bytes(1000), "cannot be read"),
    "only the magic of arrow": ("arrow", b"ARROW1\0\0", "cannot be read"),
    "parquet as arrow": ("arrow", CONTENTS["parquet"], "cannot be read"),
    "a file cut in its middle": ("arrow", CONTENTS["arrow"][:900], "cannot be read"),
    "a stream cut in its schema": ("arrow", CONTENTS["arrows"][:100], "cannot be read"),
    "old feather": ("arrow", b"FEA1" + bytes(60), "Feather V1"),
    "one byte": ("parquet", b"P", "cannot be read"),
    "a footer of no length": (
        "parquet",
        CONTENTS["parquet"][:-8] + bytes(4) + b"PAR1",
        "cannot be read",
    ),
    "a footer of noise": (
        "parquet",
        b"PAR1" + random.Random(0).randbytes(200) + b"\xc8\0\0\0PAR1",
        "cannot be read",
    ),
    "compressed as a whole": ("parquet", gzip.compress(CONTENTS["parquet"]), "cannot be read"),
    "the magic at its end alone": ("parquet", bytes(400) + b"PAR1", "cannot be read"),
    "a tail without its head": ("parquet", CONTENTS["parquet"][-60:], "cannot be read"),
    "one byte of arrow": ("arrow", b"A", "cannot be read"),
    "arrow compressed as a whole": ("arrow", gzip.compress(CONTENTS["arrow"]), "cannot be read"),
    "a file without its end": ("arrow", CONTENTS["arrow"][:-6], "cannot be read"),
    "a footer that is too long": (
        "arrow",
        CONTENTS["arrow"][:-10] + b"\xff\xff\xff\x7fARROW1",
        "cannot be read",
    ),
    "a footer without a length": (
        "arrow",
        CONTENTS["arrow"][:-10] + bytes(4) + b"ARROW1",
        "cannot be read",
    ),
    "a message longer than all": ("arrow", b"\xff\xff\xff\xff\xff\xff\xff\x7f", "cannot be read"),
    "a message of noise": (
        "arrow",
        b"\xff\xff\xff\xff\x40\0\0\0" + random.Random(0).randbytes(64),
        "cannot be read",
    ),
}


def read(reading: Any, form: str, content: bytes) -> Any:
    make: Any = Parquet if form == "parquet" else Arrow
    source = make(reading.write("broken", content))
    return reading.read(source, features=FEATURES)


@pytest.mark.parametrize("name", DAMAGED)
def test_a_file_that_is_none_is_one_reject(reading: Any, name: str) -> None:
    form, content, words = DAMAGED[name]
    got = read(reading, form, content)
    assert not got.rows
    (reject,) = got.rejects
    assert (reject.record_id, reject.stage) == ("broken", "read")
    assert words in reject.message


@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("form", CONTENTS)
def test_cut_at_every_byte(reading: Any, form: str, step: int) -> None:
    """At every fifth, and at those of both ends, in the quick run."""
    content = CONTENTS[form]
    lengths = {*range(0, len(content), step), *range(20), *range(len(content) - 20, len(content))}
    for length in sorted(lengths):
        got = read(reading, form, content[:length])
        # A stream needs no end mark: one that ends between two messages ended there.
        assert got.rejects or form == "arrows"
        assert got.column("x") == list(range(len(got.rows)))


@pytest.mark.slow
@pytest.mark.parametrize("form", CONTENTS)
def test_any_damage_gives_rejects_or_rows_and_never_a_crash(reading: Any, form: str) -> None:
    content = CONTENTS[form]

    @given(st.data())
    @settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
    def damaged(data: st.DataObject) -> None:
        broken = bytearray(content)
        for _ in range(data.draw(st.integers(1, 4))):
            broken[data.draw(st.integers(0, len(broken) - 1))] = data.draw(st.integers(0, 255))
        with contextlib.suppress(SchemaError):  # a damaged name or type is another schema
            read(reading, form, bytes(broken))

    damaged()


def test_a_damaged_row_group_loses_its_own_rows_alone(reading: Any) -> None:
    rng = random.Random(0)
    table = pa.table({"x": [rng.getrandbits(60) for _ in range(3000)]})
    content = bytearray(
        parquet(table, row_group_size=1000, use_dictionary=False, write_page_checksum=True)
    )
    content[len(content) // 2] ^= 0xFF
    got = reading.read(Parquet(reading.write("t", bytes(content))))
    assert got.column("x") == [*table["x"].to_pylist()[:1000], *table["x"].to_pylist()[2000:]]
    (reject,) = got.rejects
    assert reject.record_id == "t#1000"
    assert "t row 1000: row group 1 is damaged" in reject.message
    assert "1,000 rows are lost" in reject.message
    assert reject.num_records == 1000
    dropped = Dropped()
    dropped.add(got.rejects)
    assert dropped.num_rejects == {"read": 1000}, "budgets count what is lost"


def test_a_damaged_batch_of_a_stream_keeps_those_before(reading: Any) -> None:
    content = CONTENTS["arrows"]
    got = read(reading, "arrows", content[: len(content) * 3 // 4])
    assert got.column("x") == list(range(len(got.rows)))
    assert len(got.rows) in (4, 8)
    (reject,) = got.rejects
    assert reject.position == len(got.rows)
    assert "all rows that follow are lost" in reject.message


def test_offsets_out_of_bounds_are_found_before_they_are_followed(reading: Any) -> None:
    content = ipc(pa.table({"s": ["abc"] * 12}))
    offsets = np.array([0, 3, 6, 9, 12], np.int32).tobytes()
    bad = np.array([0, 3, 6, 9, 2**30], np.int32).tobytes()
    first, second, third = content.split(offsets, 2)
    source = Arrow(reading.write("t.arrow", first + offsets + second + bad + third))
    got = reading.read(source, features={"s": Scalar("string")})
    assert list(got.rows) == [f"t.arrow#{row}" for row in (0, 1, 2, 3, 8, 9, 10, 11)]
    assert list(got.rejected) == ["t.arrow#4"]


@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_text_that_is_not_utf8_is_a_matter_of_its_row(reading: Any, form: str) -> None:
    raw = pa.array([b"ok", b"caf\xe9", b"fine"]).view(pa.string())
    table = pa.table({"s": raw})
    make, write = (Parquet, parquet) if form == "parquet" else (Arrow, ipc)
    got = reading.read(make(reading.write("t", write(table))))
    assert got.column("s") == [b"ok", b"fine"]
    assert "t row 1: column 's' is b'caf\\xe9', expected string (not UTF-8)" in got.rejected["t#1"]


@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_lists_of_nothing_are_told_and_shown(reading: Any, form: str) -> None:
    """Arrow 25 aborts the process where such a list is cast to its own type."""
    got = read(reading, form, (parquet if form == "parquet" else ipc)(NOTHING))
    assert not got.rows
    assert len(got.rejects) == ROWS
    assert "column 'l' is [None]" in got.rejected["broken#3"]


def test_tables_without_rows_give_none(reading: Any) -> None:
    for make, content in ((Parquet, parquet(SMALL[:0])), (Arrow, ipc(SMALL[:0]))):
        got = reading.read(make(reading.write("t", content)))
        assert (got.rows, got.rejects) == ({}, [])
        assert got.features == FEATURES
