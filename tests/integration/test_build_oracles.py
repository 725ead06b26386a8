"""Random data through a whole build and its reader: the values that others read.

Parquet against pyarrow, records against protobuf's own parser, arrays against NumPy, as the tests
of sources do without a build. Set SNAPSHARD_ORACLE_EXAMPLES to try more: half as many builds.
"""

import io
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import snapshard as ss
from snapshard.schemas.errors import DataError

from ..transforms.prepare.image_files import arithmetic, shown_by_pillow, twelve_bits
from ..transforms.sources import test_oracles as oracles
from ..transforms.sources.conftest import Reading
from ..transforms.sources.test_tfrecord_files import framed

builds = settings(
    max_examples=max(1, oracles.NUM // 2),
    deadline=None,
    phases=(Phase.generate,),  # to make a failing example smaller takes hundreds of builds
    suppress_health_check=list(HealthCheck),
)
ROW = "row"
"""A column that numbers the rows, so that they are found again."""


def built(source: Any, folder: Path) -> dict[int, dict[str, Any]]:
    """Row -> values by name, as the reader gives them; what is missing is None.

    No rows where the build is refused since it has no record.
    """
    recipe = ss.Recipe(name="made", source=source, splits=ss.Splits(train=1.0), max_rejects=1000)
    try:
        snapshot = ss.build(recipe, folder / "out")
    except DataError:
        return {}
    rows: dict[int, dict[str, Any]] = {}
    for batch in snapshot.reader().dataset("train", 4, shuffle=False):
        lists = {
            name: values.to_list()
            if isinstance(values, tf.RaggedTensor)
            else values.numpy().tolist()
            for name, values in dotted(batch)
        }
        for at, row in enumerate(lists.pop(ROW)):
            assert row not in rows
            rows[row] = {
                name: values[at] if lists.get(f"{name}_present", {at: True})[at] else None
                for name, values in lists.items()
                if name.removesuffix("_present") not in lists or not name.endswith("_present")
            }
    return rows


def dotted(batch: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in batch.items():
        if isinstance(value, Mapping):
            yield from dotted(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def plain(value: Any) -> Any:
    """A value of the reader as the oracles write it."""
    if isinstance(value, list):
        return [plain(one) for one in value]
    if isinstance(value, float):
        return oracles.bits(value)
    return int(value) if isinstance(value, bool) else value


def has_empty(value: Any) -> bool:
    return isinstance(value, list) and (not value or any(map(has_empty, value)))


def depth(value: Any) -> int:
    return 1 + depth(value[0]) if isinstance(value, list) and value else 0


def check(source: Any, folder: Path, expected: list[dict[str, Any]], read: Any = None) -> None:
    """What the reader gives is expected; the rows that lack are those that the source rejects."""
    (folder / "read").mkdir()
    got = Reading(folder / "read").read(source if read is None else read)
    rows = built(source, folder)
    assert sorted(rows) == sorted(row[ROW] for row in got.rows.values())
    assert len(got.rows) + len(got.rejects) == len(expected)
    for number, row in rows.items():
        for name, found in row.items():
            wanted = expected[number].get(name)
            if wanted is None and isinstance(found, float):
                assert np.isnan(found), (number, name)
            elif has_empty(wanted) or depth(found) != depth(wanted):
                # A ragged tensor has no dimensions behind one of length 0; what is one value in
                # every list of a TFRecord is no list.
                assert oracles.flat([plain(found)]) == oracles.flat([wanted]), (number, name)
            else:
                assert plain(found) == wanted, (number, name)


@pytest.mark.slow
@given(columns=st.lists(oracles.types_and_rows(), min_size=1, max_size=4))
@builds
def test_parquet_as_pyarrow_reads_it(columns: list[tuple[pa.DataType, list[Any]]]) -> None:
    """Builds 20 small tables."""
    num_rows = min(len(rows) for _, rows in columns)
    arrays = {f"c{i}": oracles.array_of(t, rows[:num_rows]) for i, (t, rows) in enumerate(columns)}
    table = pa.table({**arrays, ROW: pa.array(range(num_rows), pa.int64())})
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "a.parquet"
        pq.write_table(table, path)
        try:
            read = pq.read_table(path)
        except pa.ArrowInvalid:  # pyarrow does not read missing lists of fixed size
            return
        values = {n: oracles.plain(read.column(n).combine_chunks()) for n in read.column_names}
        expected = [{n: column[row] for n, column in values.items()} for row in range(num_rows)]
        check(ss.Parquet(str(path)), Path(name), expected)


@pytest.mark.slow
@given(records=st.lists(oracles.sequences(), min_size=1, max_size=5))
@builds
def test_records_as_protobuf_parses_them(records: list[bytes]) -> None:
    """Builds 20 files of records."""
    part, varint = oracles.part, oracles.varint
    expected, numbered = [], []
    for row, record in enumerate(records):
        number = part(1, ROW.encode()) + part(2, part(3, part(1, varint(row))))
        numbered.append(record + part(1, part(1, number)))
        message = tf.train.SequenceExample.FromString(numbered[-1])
        values = {n: oracles.of_feature(f) for n, f in message.context.feature.items()}
        values |= {
            name: [oracles.of_feature(frame) or [] for frame in frames.feature]
            for name, frames in message.feature_lists.feature_list.items()
        }
        expected.append(values)
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "a.tfrecord"
        path.write_bytes(framed(numbered))
        check(ss.TFRecords(str(path)), Path(name), expected)


@pytest.mark.slow
@given(data=st.data(), num_rows=st.integers(1, 5))
@builds
def test_arrays_as_numpy_has_them(data: st.DataObject, num_rows: int) -> None:
    """Builds 20 tables of arrays, in memory and in files."""
    array = data.draw(oracles.arrays(num_rows=num_rows))
    in_memory = data.draw(st.booleans()) or (array.flags.f_contiguous and array.ndim > 1)
    if in_memory and array.dtype.names is None and data.draw(st.booleans()):
        holes = data.draw(st.lists(st.booleans(), min_size=array.size, max_size=array.size))
        array = np.ma.array(array, mask=np.array(holes, bool).reshape(array.shape))
    named = {"x": array, ROW: np.arange(num_rows)}
    columns: dict[str, Any] = {}
    for name, values in named.items():
        found = oracles.columns_of(name, values)
        columns |= {n: oracles.numpy_rows(a) for n, a in found.items()}
    expected = [{n: column[row] for n, column in columns.items()} for row in range(num_rows)]
    with tempfile.TemporaryDirectory() as folder:
        if in_memory:
            source: Any = ss.Table(named)
            check(source, Path(folder), expected, source.extract(f"{folder}/w", base=""))
        else:
            sink = io.BytesIO()
            np.savez_compressed(sink, **named)
            (Path(folder) / "a.npz").write_bytes(sink.getvalue())
            check(ss.Numpy(f"{folder}/a.npz"), Path(folder), expected)


@pytest.mark.slow
@pytest.mark.parametrize("decoded", [False, True], ids=["kept as files", "decoded"])
def test_jpegs_of_twelve_bits_are_rejects_and_arithmetic_ones_are_read(
    tmp_path: Path, decoded: bool
) -> None:
    """TensorFlow decodes arithmetic coding, and no more than 8 bits."""
    images = {**twelve_bits(), **{f"arithmetic {n}": c for n, c in arithmetic().items()}}
    (tmp_path / "images" / "one").mkdir(parents=True)
    for name, content in images.items():
        (tmp_path / "images" / "one" / f"{name}.jpg").write_bytes(content)
    steps = [ss.images.decode("image"), ss.images.resize("image", (11, 17))] if decoded else []
    recipe = ss.Recipe(
        name="made",
        source=ss.ImageFolder(str(tmp_path / "images")),
        prepare=steps,
        splits=ss.Splits(train=1.0),
        max_rejects=2,
    )
    snapshot = ss.build(recipe, tmp_path / "out")
    rejects = pq.read_table(Path(snapshot.path) / "rejects.parquet").to_pylist()
    assert {reject["id"]: reject["reason"] for reject in rejects} == {
        f"one/{name}.jpg": "unsupported image format" for name in twelve_bits()
    }
    assert all("12 bits" in reject["message"] for reject in rejects)
    found = [one for b in snapshot.reader().dataset("train", 1) for one in b["image"].numpy()]
    shown = [shown_by_pillow(content, 3).astype(int) for content in arithmetic().values()]
    assert len(found) == len(shown)
    for image in shown:
        assert min(np.abs(one - image).max() for one in found) <= 1
