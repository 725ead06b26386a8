"""Small files read together give the features, records, rejects and errors of single files."""

import contextlib
import dataclasses
import gzip
import hashlib
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import snapshard as ss
from snapshard.pipelines.survey.inference_cache import RememberingSource
from snapshard.schemas.blocks import Block, FileRange, RawBatch, SourceFile
from snapshard.schemas.errors import RecipeError, SchemaError
from snapshard.schemas.features import flatten
from snapshard.transforms.sources import bundles as bundling
from snapshard.transforms.sources.bundles import bundles, content_of
from snapshard.transforms.storage.opened_source import open_source

from .memory_files import Memory, joined


@contextlib.contextmanager
def setting(name: str, value: int) -> Iterator[None]:
    before = getattr(bundling, name)
    setattr(bundling, name, value)
    try:
        yield
    finally:
        setattr(bundling, name, before)


def hashed(contents: dict[str, bytes]) -> list[SourceFile]:
    return [
        SourceFile(
            path=path,
            num_bytes=len(data),
            stamp="",
            sha256=hashlib.sha256(data).hexdigest(),
        )
        for path, data in contents.items()
    ]


def read(source: Any, contents: dict[str, bytes], opened: Any = None) -> Any:
    """All that a source makes of files: its features in their order, records and rejects."""
    files, opened = hashed(contents), opened or Memory(contents)
    try:
        features = flatten(source.infer(files, opened))[0]
        block = Block(
            tuple(
                FileRange(path=file.path, sha256=file.sha256, start=0, stop=file.num_bytes)
                for file in files
            )
        )
        batches: list[RawBatch] = list(
            source.read(block, features=features, opened=opened, ordered=range(len(files)))
        )
    except (RecipeError, SchemaError) as error:
        return f"{type(error).__name__}: {error}"
    found = joined(batches, features)
    # nan is not equal to itself
    rows = repr(found.columns.to_pylist())
    return list(features.items()), found.ids, rows, found.columns.schema, found.rejects


def check(source: Any, contents: dict[str, bytes], opened: Any = None) -> None:
    with setting("_FEW_FILES", 2):
        together = read(source, contents, opened)
    with setting("SMALL_BYTES", -1):
        assert together == read(source, contents, opened)


VALUES = st.sampled_from(
    [
        *(None, True, False, 0, 1, -1, 2**53 + 1, 2**63 - 1, 2**63, -(2**63), 2**64, 2**70),
        *(0.5, -0.0, 1e300, 3.0, "", "a", "b", "é", "2020-01-01", "2020-01-01T00:00:00Z", "\ud800"),
        *([], [None], [1], [1, 2], [0.5], [[]], [[1], [2, 3]], [{}], {}, ["a"]),
        *({"c": 1}, {"c": "x", "d": None}, {"d": [1]}, [{"c": 1}, {"c": 2}], [{"d": 1}, {}]),
        {"c": {"e": 1}},
    ]
)
OBJECTS = st.dictionaries(st.sampled_from(["a", "b", "a.c", "z", "é"]), VALUES, max_size=3)
USUAL = st.fixed_dictionaries(
    {"a": st.integers(-3, 3), "b": st.sampled_from(["x", "y", "2020-01-01"])},
    optional={"n": st.floats(0, 1), "list": st.lists(st.integers(0, 9), max_size=2)},
)
NESTED = st.fixed_dictionaries(
    {
        "a": st.fixed_dictionaries({"c": st.integers(0, 3)}, optional={"d": st.just(0.5)}),
        "boxes": st.lists(st.fixed_dictionaries({"x": st.integers(0, 3)}), max_size=2),
    },
    optional={"b": st.sampled_from(["x", "y"]), "z": st.booleans()},
)
ODD_LINES = st.sampled_from(
    [
        *(
            b"",
            b" ",
            b"[1]",
            b"{",
            b'{"a": 1} {"a": 2}',
            b'{"a": 1}}',
            b'{"a":\xff}',
            b'{"\xff": 1}',
        ),
        *(b'  {"a": 1}\r', b'{"a": 1, "a": 2}', b'{"\\u0061": 5}', b'{"a": 1.0e2}'),
        b"\xef\xbb\xbf{}",
    ]
)


def lines_of(objects: Any) -> Any:
    plain = objects.map(lambda row: json.dumps(row).encode())
    return st.lists(plain | plain | plain | ODD_LINES, min_size=0, max_size=3)


@st.composite
def json_files(draw: Any) -> dict[str, bytes]:
    objects = draw(st.sampled_from([OBJECTS, USUAL, NESTED]))
    regular = draw(st.booleans())
    lines = lines_of(objects)
    if regular:
        lines = st.lists(
            objects.map(lambda row: json.dumps(row, ensure_ascii=False).encode("utf-8", "replace")),
            min_size=1,
            max_size=2,
        )
    contents = {}
    for number in range(draw(st.integers(1, 8))):
        text = b"\n".join(draw(lines)) + draw(st.sampled_from([b"\n", b"", b"\r\n"]))
        if not regular:
            text = draw(st.sampled_from([b"", b"", b"", b"\xef\xbb\xbf"])) + text
            wrap = draw(st.sampled_from([bytes, bytes, bytes, gzip.compress, damaged]))
            text = wrap(text)
        contents[f"{number}.jsonl"] = text
    return contents


def damaged(text: bytes) -> bytes:
    return gzip.compress(text)[:-9]


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    json_files(),
    st.sampled_from([None, "a", "b"]),
    st.sampled_from(
        [
            *(None, {"a": "string"}, {"a": "float32"}, {"b": ss.Timestamp("s")}, {"a": "int8"}),
            *({"b": ss.ClassLabel(("x", "y"))}, {"a": ss.Tensor("float32", (2,))}),
        ]
    ),
)
# The order of names is that of files: z before a.c.
@example(
    {
        "0": b'{"a": [], "z": 1}',
        "1": b'{"z": 2, "a": [{"c": 1}]}',
        "2": b'{"a": null, "z": 3}',
        "3": b'{"z": 4}',
    },
    None,
    None,
)
def test_json_files_are_read_as_one_by_one(
    contents: dict[str, bytes], label: str | None, types: Any
) -> None:
    check(ss.JsonLines("x", label=label, types=types), contents)


CELLS = st.sampled_from(
    [
        *(b"", b"1", b"-2", b"0.5", b"16777217", b"9007199254740993", b"1234567890.5"),
        *(b"99999999999999999999", b"true", b"x", b"y", b"NA", b"nan", b"1e400", b"2020-01-01"),
        *(b'"a,b"', b'"a\nb"', b'"a""b"', b"\xff", b'a"b', b'"open', b" 7", b"\xc3\xa9"),
    ]
)
PLAIN_CELLS = st.sampled_from([b"1", b"2", b"", b"0.5", b'"a\nb"', b"x"])


@st.composite
def csv_files(draw: Any) -> dict[str, bytes]:
    regular = draw(st.booleans())
    cells = (
        st.sampled_from([b"1", b"-7", b"2"])
        if regular
        else draw(st.sampled_from([CELLS, PLAIN_CELLS]))
    )
    headers = [[b"a", b"b"]] * 6 + (
        [] if regular else [[b"b", b"a"], [b"a"], [b"a", b"b", b"c"], [b"a", b""]]
    )
    contents = {}
    for number in range(draw(st.integers(1, 8))):
        header = draw(st.sampled_from(headers))
        num_ragged = draw(st.sampled_from([0] * 9 + [1])) if not regular else 0
        rows = draw(
            st.lists(
                st.lists(
                    cells, min_size=len(header) + num_ragged, max_size=len(header) + num_ragged
                ),
                max_size=3,
            )
        )
        end = draw(st.sampled_from([b"\n", b"\r\n", b"\r"]))
        text = end.join(b",".join(row) for row in [header, *rows]) + draw(
            st.sampled_from([b"", end])
        )
        if not regular:
            text = draw(st.sampled_from([b"", b"", b"", b"\xef\xbb\xbf", end])) + text
            wrap = draw(st.sampled_from([bytes, bytes, bytes, gzip.compress, damaged, empty]))
            text = wrap(text)
        contents[f"{number}.{draw(st.sampled_from(['csv'] * 9 + ['tsv']))}"] = text
    return contents


def empty(text: bytes) -> bytes:
    return b""


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    csv_files(),
    st.sampled_from([None, "a", "b"]),
    st.sampled_from([None, {"a": "string"}, {"a": "float32"}, {"b": ss.Timestamp("s")}]),
    st.sampled_from([(), (), "union", ("a", "b")]),
)
def test_csv_files_are_read_as_one_by_one(
    contents: dict[str, bytes], label: str | None, types: Any, columns: Any
) -> None:
    check(ss.Csv("x", label=label, types=types, columns=columns), contents)


SOURCES = [
    pytest.param(lambda url: ss.JsonLines(url, label="word"), "jsonl", id="json"),
    pytest.param(lambda url: ss.Csv(url, label="word"), "csv", id="csv"),
]


def one_row(ending: str, number: int) -> bytes:
    if ending == "csv":
        return b"a,word\n%d,w%d\n" % (number, number % 5)
    return b'{"a": %d, "word": "w%d"}\n' % (number, number % 5)


@pytest.mark.parametrize(("source", "ending"), SOURCES)
def test_pyarrow_parses_many_small_files_at_once(
    source: Any, ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    for module, name in ((pa.json, "read_json"), (pa.csv, "read_csv")):
        whole = getattr(module, name)
        monkeypatch.setattr(
            module, name, lambda *args, whole=whole, **more: calls.append(1) or whole(*args, **more)
        )
    contents = {f"{i:04}.{ending}": one_row(ending, i) for i in range(1000)}
    _, ids, *_ = read(source("x"), contents)
    assert len(ids) == 1000
    # types, classes, records
    assert len(calls) < 3 * 40


@pytest.mark.parametrize(("source", "ending"), SOURCES)
def test_a_new_file_is_inferred_with_its_bundle_only(
    source: Any, ending: str, tmp_path: Path
) -> None:
    contents = {f"{i:04}.{ending}": one_row(ending, i) for i in range(1000)}
    for path, data in contents.items():
        (tmp_path / path).write_bytes(data)
    root = open_source(str(tmp_path), "/")
    known: dict[str, Any] = {}
    for extra in ({}, {f"0500a.{ending}": one_row(ending, 7_000)}):
        files = hashed(dict(sorted((contents | extra).items())))
        for path, data in extra.items():
            (tmp_path / path).write_bytes(data)
        found = Counting(**vars(root), known=dict(known), reads=[])
        source(str(tmp_path)).infer(files, found)
        known |= found.used
    # The bundle, and another one if the new file ends it.
    assert 0 < len(set(found.reads)) < 1000 / 2


@pytest.mark.parametrize(("source", "ending"), SOURCES)
def test_a_file_that_does_not_fit_the_others_is_not_read_again(
    source: Any, ending: str, tmp_path: Path
) -> None:
    values = (b"1", b'"x"', b"true", b"0.5")
    contents = {}
    for i in range(100):
        form = b"a,word\n%b,x\n%b,y,\n" if ending == "csv" else b'{"a": %b}\n{"word": %b}\n[]\n'
        contents[f"{i}.{ending}"] = form % (values[i % 4], values[i % 3])
        (tmp_path / f"{i}.{ending}").write_bytes(contents[f"{i}.{ending}"])
    files = hashed(contents)
    found = Counting(**vars(open_source(str(tmp_path), "/")), known={}, reads=[])
    features = flatten(source(str(tmp_path)).infer(files, found))[0]
    # Types and classes. Those of a CSV file are found in one reading, its header in another.
    assert len(found.reads) == len(files) * 2
    found.reads.clear()
    block = Block(
        tuple(
            FileRange(path=file.path, sha256=file.sha256, start=0, stop=file.num_bytes)
            for file in files
        )
    )
    batches = list(
        source("x").read(block, features=features, opened=found, ordered=range(len(files)))
    )
    assert sum(len(batch.rejects) for batch in batches) >= 100
    assert len(found.reads) == len(files)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Counting(RememberingSource):
    """Notes the files that are read."""

    reads: list[str]

    def read(self, path: str, start: int = 0, stop: int | None = None) -> bytes:
        self.reads.append(path)
        return super().read(path, start, stop)


@given(st.lists(st.integers(0, 200_000), min_size=1, max_size=300))
def test_bundles_hold_each_file_once_in_order(sizes: list[int]) -> None:
    files = [
        SourceFile(
            path=str(i), num_bytes=size, stamp="", sha256=hashlib.sha256(b"%d" % i).hexdigest()
        )
        for i, size in enumerate(sizes)
    ]
    found = list(bundles(files))
    assert [file for bundle in found for file in bundle] == files
    for bundle in found:
        assert sum(file.num_bytes for file in bundle) <= 1 << 20
        assert len(bundle) == 1 or all(file.num_bytes <= 1 << 16 for file in bundle)
    assert len({content_of(bundle) for bundle in found}) == len(found)


def test_a_bundle_of_unknown_content_has_no_hash() -> None:
    files = [SourceFile(path=str(i), num_bytes=1, stamp="", sha256="ab" * i) for i in range(3)]
    assert [content_of(files), content_of(files[1:2]), content_of(files[:1])] == ["", "ab", ""]


def check_files(source: Any, folder: Path, contents: dict[str, bytes]) -> None:
    for path, content in contents.items():
        (folder / path).write_bytes(content)
    check(source, contents, open_source(str(folder), "/"))


def parquet(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, row_group_size=2)
    return sink.getvalue()


def ipc(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)
    return sink.getvalue()


TYPED = {
    "equal": lambda number: pa.table({"x": [number, None], "kind": ["a", "b"]}),
    "nested": lambda number: pa.table(
        {"x": [[1.5, number], []], "s": [{"a": number}, {"a": None}], "kind": ["a", "b"]}
    ),
    "dictionaries": lambda number: pa.table(
        {"x": pa.array([f"t{number}", "u"]).dictionary_encode(), "kind": ["a", f"b{number % 3}"]}
    ),
    "orders of columns": lambda number: pa.table(
        {"x": [1], "kind": ["a"]} if number % 4 else {"kind": ["b"], "x": [number]}
    ),
    "types": lambda number: pa.table(
        {"x": pa.array([number], pa.int32() if number % 5 else pa.int64()), "kind": ["a"]}
    ),
    "no rows": lambda number: pa.table(
        {"x": pa.array([number] * (number % 2), pa.int64()), "kind": ["a"] * (number % 2)}
    ),
    "several row groups": lambda number: pa.table(
        {"x": list(range(5)), "kind": [f"k{number % 2}"] * 5}
    ),
    "many classes": lambda number: pa.table(
        {"x": [number] * 60, "kind": [f"k{number}-{i}" for i in range(60)]}
    ),
    "classes that are bools": lambda number: pa.table({"x": [1], "kind": [number % 2 == 0]}),
}


@pytest.mark.parametrize("damaged", [None, 3], ids=["whole", "one damaged"])
@pytest.mark.parametrize("name", TYPED)
@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_small_files_of_columns_are_read_together(
    tmp_path: Path, kind: str, name: str, damaged: int | None
) -> None:
    write = {"parquet": parquet, "arrow": ipc}[kind]
    contents = {f"{i:02d}.{kind}": write(TYPED[name](i)) for i in range(20)}
    if damaged is not None:
        path = f"{damaged:02d}.{kind}"
        content = bytearray(contents[path])
        content[8 : len(content) // 3] = bytes(len(content) // 3 - 8)
        contents[path] = bytes(content)
    source = {"parquet": ss.Parquet, "arrow": ss.Arrow}[kind]("d", label="kind")
    check_files(source, tmp_path, contents)


@pytest.mark.parametrize("value", [[7], [None], ["no"]], ids=["fits", "missing", "unfit"])
def test_rejects_and_columns_that_files_lack_are_as_of_files_alone(
    tmp_path: Path, value: list[Any]
) -> None:
    tables = [pa.table({"x": [1, 2], "y": [f"{i}", "4"]}) for i in range(20)]
    tables[5] = pa.table({"x": [5]})
    tables[11] = pa.table({"y": [str(item) for item in value], "z": [1.5]})
    contents = {f"{i:02d}.parquet": parquet(table) for i, table in enumerate(tables)}
    for types in ({"y": "int64"}, {"x": ss.Scalar("int8")}, {"y": ss.ClassLabel(("4", "7"))}):
        check_files(ss.Parquet("d", columns="union", types=types), tmp_path, contents)
