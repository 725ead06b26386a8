"""Rejects held, spilled, written and read back, in bounded memory."""

import dataclasses
import io
import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given, settings
from hypothesis import strategies as st

from snapshard.schemas.errors import PayloadPlace, Reject
from snapshard.transforms import rejects as module
from snapshard.transforms.rejects import (
    Dropped,
    iterate_rejects,
    iterate_rows,
    reject_rows,
    rejects_to_bytes,
    tally,
    tally_file,
    write_rejects,
)

TEXT = st.text(max_size=20)
PLACES = st.builds(
    PayloadPlace,
    sha256=st.just("0" * 64),
    num_bytes=st.none() | st.integers(0, 2**40),
    start=st.none() | st.integers(0, 2**40),
    stop=st.none(),
)
PAYLOADS = st.one_of(
    st.fixed_dictionaries({"payload": st.binary(max_size=50)}),
    st.fixed_dictionaries({"place": PLACES}),
    st.just({}),
)


@st.composite
def some_reject(draw: st.DrawFn) -> Reject:
    return Reject(
        record_id=draw(TEXT),
        stage=draw(st.sampled_from(["read", "validate"])),
        reason=draw(TEXT),
        message=draw(TEXT),
        source=draw(TEXT),
        position=draw(st.none() | st.integers(0, 2**40)),
        exception=draw(st.sampled_from(["RecordError", "ValueError"])),
        **draw(PAYLOADS),
    )


def make(number: int, *, source: str = "a.csv", size: int = 10) -> Reject:
    return Reject(
        record_id=f"{source}#{number}",
        stage="read" if number % 3 else "validate",
        reason="wrong type",
        message=f"row {number}",
        source=source,
        position=number,
        payload=random.Random(number).randbytes(size),
    )


@settings(max_examples=40)
@given(st.lists(some_reject(), max_size=20), st.randoms())
def test_rejects_come_back_whatever_their_order(rejects: list[Reject], rng: random.Random) -> None:
    content = rejects_to_bytes(rejects)
    found = list(iterate_rejects(io.BytesIO(content)))
    key = repr
    assert sorted(map(key, found)) == sorted(map(key, map(_as_read, rejects)))
    positions = [(one.source, -1 if one.position is None else one.position) for one in found]
    assert positions == sorted(positions)
    different = {(r.source, r.position, r.record_id, r.stage, r.reason) for r in rejects}
    if len(different) == len(rejects):
        shuffled = rng.sample(rejects, len(rejects))
        assert rejects_to_bytes(shuffled) == content


def _as_read(reject: Reject) -> Reject:
    # Text that is no UTF-8 is written so that it is.
    names = ("record_id", "reason", "message", "source")
    texts = {name: module.printable(getattr(reject, name)) for name in names}
    return dataclasses.replace(reject, **texts)


def test_names_that_are_not_text_are_kept_readable() -> None:
    reject = dataclasses.replace(make(1), record_id="caf\udce9.jpg", source="caf\udce9.jpg")
    (found,) = iterate_rejects(io.BytesIO(rejects_to_bytes([reject])))
    assert found.source == "caf\\xe9.jpg"


def test_what_is_spilled_is_merged_in_order(tmp_path: Path) -> None:
    rejects = [make(number, source=f"{number % 2}.csv") for number in range(500)]
    random.Random(0).shuffle(rejects)
    dropped = Dropped(folder=str(tmp_path), max_held_bytes=20_000)
    for start in range(0, 500, 7):
        dropped.add(rejects[start : start + 7])
    assert len(list(tmp_path.iterdir())) > 10
    assert len(dropped.rejects) < 50
    assert dropped.num_rejects.total() == 500
    path = tmp_path / "all.parquet"
    dropped.write(str(path))
    wanted = sorted(rejects, key=lambda one: (one.source, one.position or 0))
    assert list(iterate_rejects(str(path))) == wanted
    small = tmp_path / "small.parquet"
    write_rejects(wanted, str(small), group_bytes=8_000)
    assert pq.ParquetFile(small).num_row_groups > 5
    assert [row["id"] for row in iterate_rows(str(small), ["id"])] == [
        one.record_id for one in wanted
    ]
    whole = Dropped()
    whole.add(rejects)
    whole.write(str(tmp_path / "whole.parquet"))
    # Where parts were spilled shows nowhere.
    assert (tmp_path / "whole.parquet").read_bytes() == path.read_bytes()
    assert tally_file(str(path)).describe() == tally(wanted).describe()


def test_groups_are_told_most_frequent_first_with_three_of_each() -> None:
    text = tally(make(number) for number in range(9)).describe()
    assert text.splitlines() == [
        "  6 × read: wrong type",
        "      a.csv#1: row 1",
        "      a.csv#2: row 2",
        "      a.csv#4: row 4",
        "      … and 3 more",
        "  3 × validate: wrong type",
        "      a.csv#0: row 0",
        "      a.csv#3: row 3",
        "      a.csv#6: row 6",
    ]


def test_many_reasons_are_cut() -> None:
    rejects = [dataclasses.replace(make(n), reason=f"reason {n}") for n in range(50)]
    lines = tally(rejects).describe(max_groups=3).splitlines()
    assert lines[-1] == "  … and 47 more reasons"


def test_rows_of_a_batch_keep_their_values() -> None:
    columns = pa.RecordBatch.from_pydict({"x": [1, 2, 3]})
    (found,) = reject_rows(
        ["a#0", "a#5", "a#9"],
        np.array([1]),
        stage="split",
        reason="no split",
        message="why",
        numbered=True,
        columns=columns,
    )
    assert (found.record_id, found.source, found.position) == ("a#5", "a", 5)
    assert (found.stage, found.payload, found.payload_kind) == ("split", b'{"x": 2}', "values")
