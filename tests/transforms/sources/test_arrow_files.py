"""Parquet, Arrow and Feather files: what is inferred of them and how they are read."""

import io
import itertools
import json
import sys
import zipfile
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.feather
import pytest

from snapshard.schemas.blocks import Block, FileRange, SourceFile
from snapshard.schemas.errors import RecipeError, SchemaError, SourceChangedError
from snapshard.schemas.features import (
    ClassLabel,
    Feature,
    Image,
    Scalar,
    Sequence,
    Struct,
    Tensor,
    Timestamp,
)
from snapshard.transforms.sources.arrow.hugging_face import HuggingFace
from snapshard.transforms.sources.arrow.ipc import Arrow
from snapshard.transforms.sources.arrow.parquet import Parquet
from snapshard.transforms.sources.memory import Table
from snapshard.transforms.storage.opened_source import OpenedSource, open_source

from ...file_bytes import ipc, parquet

TABLE = pa.table(
    {
        "n": pa.array(range(10), pa.int16()),
        "kind": ["a", "b"] * 5,
        "vector": pa.array([[float(i), 0.5] for i in range(10)], pa.list_(pa.float32(), 2)),
        "at": pa.array([{"x": i, "y": None if i == 3 else "y"} for i in range(10)]),
        "when": pa.array(range(10), pa.timestamp("ms", "UTC")),
        "code": pa.array(["u", "v"] * 5).dictionary_encode(),
        "some": pa.array([None if i % 2 else [i] * i for i in range(10)], pa.list_(pa.int64())),
    }
)


def feather(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    pa.feather.write_feather(table, sink, chunksize=4)
    return sink.getvalue()


FORMATS: dict[str, tuple[Callable[..., Any], Callable[[pa.Table], bytes]]] = {
    "t.parquet": (Parquet, parquet),
    "plain.parquet": (Parquet, lambda t: parquet(t, compression=None, use_dictionary=False)),
    "v1.parquet": (Parquet, lambda t: parquet(t, version="1.0", write_statistics=False)),
    "t.arrow": (Arrow, ipc),
    "t.arrows": (Arrow, lambda table: ipc(table, stream=True)),
    "t.feather": (Arrow, feather),
}


@pytest.mark.parametrize("name", FORMATS)
def test_every_row_with_its_values(reading: Any, name: str) -> None:
    make, write = FORMATS[name]
    url = reading.write(f"made/{name}", write(TABLE))
    got = reading.read(make(url, label="kind"))
    assert got.features == {
        "n": Scalar("int16"),
        "kind": ClassLabel(("a", "b")),
        "vector": Tensor("float32", (2,)),
        "at.x": Scalar("int64"),
        "at.y": Scalar("string", optional=True),
        "when": Timestamp("ms"),
        "code": Scalar("string"),
        "some": Sequence(Scalar("int64"), optional=True),
    }
    assert list(got.rows) == [f"{name}#{row}" for row in range(10)]
    assert not got.rejects
    for row, values in zip(TABLE.to_pylist(), got.rows.values(), strict=True):
        assert values == {
            "n": row["n"],
            "kind": "ab".index(row["kind"]),
            "vector": row["vector"],
            "at.x": row["at"]["x"],
            "at.y": row["at"]["y"] and row["at"]["y"].encode(),
            "when": row["n"],
            "code": row["code"].encode(),
            "some": row["some"],
        }


def test_columns_choose_and_structs_stay_structs(reading: Any) -> None:
    url = reading.write("t.parquet", parquet(TABLE))
    source = Parquet(url, columns=("at", "n"), types={"at.x": "float32", "n": Scalar("int64")})
    opened = open_source(url, ".")
    assert source.infer(opened.list(), opened) == {
        "n": Scalar("int64"),
        "at": Struct({"x": Scalar("float32"), "y": Scalar("string", optional=True)}),
    }
    assert reading.read(source).column("at.x") == [float(i) for i in range(10)]


def test_a_dtype_in_types_keeps_lists_and_what_may_be_missing(reading: Any) -> None:
    url = reading.write("t.parquet", parquet(TABLE))
    types = {"vector": "float64", "some": "float32", "at.y": "string"}
    features = reading.read(Parquet(url, types=types)).features
    assert features["vector"] == Tensor("float64", (2,))
    assert features["some"] == Sequence(Scalar("float32"), optional=True)
    assert features["at.y"] == Scalar("string", optional=True)


def test_a_list_is_missing_where_it_is_null_and_not_where_it_is_empty(reading: Any) -> None:
    table = pa.table({"e": pa.array([[1], []]), "n": pa.array([[1], None])})
    got = reading.read(Parquet(reading.write("t.parquet", parquet(table))))
    item = Scalar("int64")
    assert got.features == {"e": Sequence(item), "n": Sequence(item, optional=True)}
    assert got.column("n") == [[1], None]


def test_files_with_columns_in_another_order_and_of_other_width(reading: Any) -> None:
    reading.write("d/a.parquet", parquet(pa.table({"x": pa.array([1], pa.int8()), "y": ["a"]})))
    reading.write("d/b.parquet", parquet(pa.table({"y": [None, "b"], "x": [1000, 2]})))
    got = reading.read(Parquet(f"{reading.folder}/d", label="y"))
    assert got.features == {"x": Scalar("int64"), "y": ClassLabel(("a", "b"))}
    assert list(got.rows) == ["a.parquet#0", "b.parquet#1"]
    assert "b.parquet row 0: column 'y' has no value" in got.rejected["b.parquet#0"]


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (
            pa.table({"x": [1]}),
            r"b\.parquet has different columns from a\.parquet: it lacks 'y'\.",
        ),
        (pa.table({"x": [1], "y": ["a"], "z": [1]}), r"a\.parquet: it adds 'z'\. Select"),
        (pa.table({"x": ["one"], "y": ["a"]}), "Column 'x' is int64 in a.parquet and string in b"),
        (pa.table({"x": [[1]], "y": ["a"]}), r"int64\[\] in b\.parquet"),
    ],
)
def test_files_that_do_not_fit_together(reading: Any, other: pa.Table, words: str) -> None:
    reading.write("d/a.parquet", parquet(pa.table({"x": [1], "y": ["a"]})))
    reading.write("d/b.parquet", parquet(other))
    with pytest.raises(SchemaError, match=words):
        reading.read(Parquet(f"{reading.folder}/d"))


@pytest.mark.parametrize(
    "feature", [Scalar("int64"), Sequence(Scalar("float32")), ClassLabel(("a",)), Image()]
)
@pytest.mark.parametrize("name", FORMATS)
def test_a_file_that_lacks_the_column_of_a_feature(
    reading: Any, name: str, feature: Feature
) -> None:
    make, content = FORMATS[name]
    url = reading.write(name, content(TABLE))
    with pytest.raises(SchemaError, match=f"{name} has no column 'x', expected one"):
        reading.read(make(url), features={"n": Scalar("int64"), "x": feature})


def test_what_files_share_can_be_chosen(reading: Any) -> None:
    reading.write("d/a.parquet", parquet(pa.table({"x": [1], "y": ["a"]})))
    reading.write("d/b.parquet", parquet(pa.table({"x": [2]})))
    got = reading.read(Parquet(f"{reading.folder}/d", columns=("x",)))
    assert got.column("x") == [1, 2]


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        (
            {"label": "no"},
            RecipeError,
            "label names 'no', which is not a column. The columns are 'n'",
        ),
        ({"types": {"no": "int8"}}, RecipeError, "types names 'no'"),
        ({"columns": ("no",)}, SchemaError, "no column 'no', which columns= names"),
        ({"types": {"kind": "int64"}}, SchemaError, "'kind' is string, which Scalar of int64"),
    ],
)
def test_names_and_types_that_the_table_does_not_have(
    reading: Any, arguments: dict[str, Any], error: type[Exception], words: str
) -> None:
    url = reading.write("t.parquet", parquet(TABLE))
    with pytest.raises(error, match=words):
        reading.read(Parquet(url, **arguments))


def test_which_files_are_tables() -> None:
    paths = ["a.parquet", "b/C.PQ", "d.csv", "_metadata.parquet", ".x.parquet", "e/.f/g.parquet"]
    files = [SourceFile(path=path, num_bytes=1, stamp="") for path in paths]
    selected = Parquet("folder").select(files)
    assert [file.path for file in selected.files] == ["a.parquet", "b/C.PQ"]
    assert selected.num_skipped == {"hidden file": 3, "not a .parquet file": 1}
    assert len(Parquet("x/*.csv").select(files).files) == 3
    assert Parquet("data/d.csv").select(files[2:3]).files == tuple(files[2:3])


def test_bool_labels_are_classes_and_numbers_stay(reading: Any) -> None:
    table = pa.table({"yes": [True, False, True], "n": [1, 2, 3], "s": ["a", "b", "c"]})
    url = reading.write("t.parquet", parquet(table))
    got = reading.read(Parquet(url, label="yes"))
    assert got.features["yes"] == ClassLabel(("false", "true"))
    assert got.column("yes") == [1, 0, 1]
    assert reading.read(Parquet(url, label="n")).features["n"] == Scalar("int64")
    declared = Parquet(url, label="s", types={"s": Scalar("string")})
    assert reading.read(declared).features["s"] == Scalar("string")


def test_many_rows_come_in_batches(reading: Any) -> None:
    table = pa.table({"x": range(150_000)})
    for make, content in (
        (Parquet, parquet(table, row_group_size=200_000)),
        (Arrow, ipc(table, rows=200_000)),
    ):
        source = make(reading.write("t", content))
        opened = open_source(source.url, ".")
        assert len(reading.read(source).rows) == 150_000
        (file,) = opened.list()
        assert source.cuts(file, opened, every=1) == ()


def num_calls(read: Callable[[], object]) -> int:
    """How many functions reading calls, whatever the machine."""
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        read()
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.parametrize(("make", "write"), [(Parquet, parquet), (Arrow, ipc)])
def test_many_row_groups_or_batches_cost_in_proportion(reading: Any, make: Any, write: Any) -> None:
    """A footer is parsed once for all blocks, and for all that a block reads."""
    calls = []
    for num_units, num_blocks in ((200, 4), (800, 4), (800, 16)):
        url = reading.write(
            f"{num_units} {num_blocks}", write(pa.table({"x": range(4 * num_units)}))
        )
        opened = open_source(url, ".")
        (file,) = opened.list()
        ends = [file.num_bytes * place // num_blocks for place in range(num_blocks + 1)]
        parts = [
            FileRange(path=file.path, sha256="", start=start, stop=stop)
            for start, stop in itertools.pairwise(ends)
        ]

        source = make(url)

        def read(opened: Any = opened, source: Any = source, parts: Any = parts) -> None:
            for part in parts:
                for _ in source.read(
                    Block((part,)), features={"x": Scalar("int64")}, opened=opened, ordered=[0]
                ):
                    pass

        calls.append(num_calls(read))
    assert calls[1] < 6 * calls[0]
    assert calls[2] < 3 * calls[1]


PAIRS = [[1, 2], None, [3, 4], None]
WITH_NULLS: dict[str, pa.Array] = {
    "numbers": pa.array(PAIRS, pa.list_(pa.int32(), 2)),
    "halves": pa.array(PAIRS, pa.list_(pa.float16(), 2)),
    "times": pa.array(PAIRS, pa.list_(pa.timestamp("us", "Europe/Berlin"), 2)),
    "durations": pa.array(PAIRS, pa.list_(pa.duration("ms"), 2)),
    "texts": pa.array([["a", "b"], None, ["c", "d"], None], pa.list_(pa.large_string(), 2)),
    "an item": pa.array([[1, 2], None, [3, None], [5, 6]], pa.list_(pa.int32(), 2)),
    "in a list": pa.array([[[1, 2]], None, [[3, 4], None], []], pa.list_(pa.list_(pa.int8(), 2))),
    "in a vector": pa.array(
        [[[1, 2], [3, 4]], None, [[5, 6], None], None], pa.list_(pa.list_(pa.int8(), 2), 2)
    ),
    "in a struct": pa.array(
        [{"v": [1, 2]}, None, {"v": None}, {"v": [3, 4]}],
        pa.struct([("v", pa.list_(pa.float32(), 2))]),
    ),
    "in a list of structs": pa.array(
        [[{"v": [1, 2]}], None, [{"v": None}], []],
        pa.list_(pa.struct([("v", pa.list_(pa.float32(), 2))])),
    ),
    "a tensor": pa.ExtensionArray.from_storage(
        pa.fixed_shape_tensor(pa.int32(), [2]), pa.array(PAIRS, pa.list_(pa.int32(), 2))
    ),
}


@pytest.mark.parametrize("kind", WITH_NULLS)
def test_a_vector_may_be_null(reading: Any, kind: str) -> None:
    """As in Arrow files: of its row group every other row is read."""
    others = {"n": range(4), "kind": pa.array([*"ab", None, "a"]).dictionary_encode()}
    others |= {"d": pa.array(range(4), pa.duration("s")), "n.v": WITH_NULLS["numbers"]}
    table = pa.table({"x": WITH_NULLS[kind], **others})
    expected = reading.read(Arrow(reading.write("t.arrow", ipc(table))))
    found = reading.read(Parquet(reading.write("t.parquet", parquet(table))))
    assert found.features == expected.features

    def rows(got: Any) -> dict[str, Any]:
        return {name.partition("#")[2]: row for name, row in got.rows.items()}

    def reasons(got: Any) -> list[tuple[int, str]]:
        return sorted((reject.position, reject.reason) for reject in got.rejects)

    assert rows(found) == rows(expected)
    assert reasons(found) == reasons(expected)
    assert "damaged" not in str(reasons(found))
    assert len(rows(found)) + len(found.rejects) == 4


class _Cut(OpenedSource):
    """The source, of which a file has been cut since it was opened first."""

    def read(self, path: str, start: int = 0, stop: int | None = None) -> bytes:
        content = super().read(path, start, stop)
        if start == 0 and stop is None:
            first = path not in self.__dict__
            self.__dict__[path] = True
            return content if first else content[: len(content) // 2]
        return content


@pytest.mark.parametrize("name", ["t.parquet", "t.arrow"])
@pytest.mark.parametrize("label", ["kind", None])
def test_a_file_that_cannot_be_opened_again_has_changed(
    reading: Any, name: str, label: str | None
) -> None:
    make, write = FORMATS[name]
    with zipfile.ZipFile(reading.folder / "a.zip", "w") as archive:
        archive.writestr(name, write(TABLE))
    source = make(f"zip://*::{reading.folder}/a.zip", label=label)
    opened = open_source(source.url, ".")
    cut = _Cut(**opened.__getstate__())
    with pytest.raises(SourceChangedError, match=rf"{name} changed while the build read it"):
        source.infer(source.select(opened.list()).files, cut)


@pytest.mark.parametrize("kind", ["Parquet", "HuggingFace", "Table"])
@pytest.mark.parametrize(
    ("names", "codes"),
    [
        (("b", "c", "d"), [1, 2]),  # with the classes of another source
        (("c", "d"), [0, 1]),
        (("x", "y", "z"), [0, 1]),  # declared names, of the same numbers
        (("d", "c"), [0, 1]),
    ],
)
def test_numbers_have_the_names_of_their_file(
    reading: Any, kind: str, names: tuple[str, ...], codes: list[int]
) -> None:
    spec = {"_type": "ClassLabel", "names": ["c", "d"]}
    specs = {"n": spec, "of": {"n": spec}, "some": {"_type": "List", "feature": spec}}
    columns: dict[str, Any] = {"n": [0, 1, 2, -1], "of": [{"n": 1}] * 4, "some": [[0, 1]] * 4}
    metadata = {"huggingface": json.dumps({"info": {"features": specs}})}
    table = pa.table(columns).replace_schema_metadata(metadata)
    reading.write("d/t.parquet", parquet(table))
    reading.write("d/t.arrow", ipc(table))
    if kind == "Table":
        source: Any = Table(table).extract(str(reading.folder / "w" / "t"), base="")
    else:
        source = Parquet("d/t.parquet") if kind == "Parquet" else HuggingFace("d")
    label = ClassLabel(names)
    got = reading.read(source, features={"n": label, "of.n": label, "some": Sequence(label)})
    unknown = len(names) == 3 and codes == [0, 1]  # 2 is one of three declared names
    assert got.column("n") == [*codes, *([2] if unknown else [])]
    assert len(got.rejects) == (1 if unknown else 2)
    assert got.column("of.n") == [codes[1]] * len(got.rows)
    assert got.column("some") == [codes] * len(got.rows)
