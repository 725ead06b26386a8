"""A subject for each source: how files of it are written, and what must be read of them.

Records have numbers. ``Subject.files`` writes groups of them, ``Subject.row`` says what a source
must read of each. Two numbers are special: :data:`BAD` and :data:`BIG`.
"""

import contextlib
import dataclasses
import gzip
import io
import json
import sqlite3
import wave
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
from PIL import Image as PillowImage

import snapshard as ss
from snapshard.schemas.limits import Limits

from ...file_bytes import frame, ipc, npy, npz, parquet, tar_of, workbook, write

BAD = -1
"""The number of a record that is not valid."""
BIG = 10**6
"""The number of a record beyond ``Subject.limits``."""

Groups = Sequence[Sequence[int]]
"""Numbers of records; those of a group are in one file, where a file holds several."""
Row = dict[str, Any]
At = Callable[[str], str]
"""The URL of a folder of the test."""

LABELLED: dict[str, Any] = {"label": "kind"}


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Subject:
    """One source, or one of the forms that it reads."""

    kind: type[Any]
    files: Callable[[Groups], dict[str, bytes]] | None = None
    """Path -> content; None if its records are not in files."""
    row: Callable[[int], Row]
    """The columns of a record."""
    payload: bytes
    """What the reject of a bad record holds."""
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Arguments of the source."""
    make: Callable[[At], Any] | None = None
    """The source of a folder, if that is not ``kind(URL, **settings)``."""
    extract: Callable[[Path, Groups], Any] | None = None
    """A source of records that are not in files."""
    order: Callable[[Groups], list[int]] = lambda groups: [n for group in groups for n in group]
    """The numbers in the order of ids."""
    with_bad: Mapping[str, Any] | None = None
    """To be declared for a bad record, where those of good records could hold it."""
    cut: bool = False
    """Whether files are cut between records."""
    ends: bool = True
    """Whether a file shows that its end is missing; where the decoder finds it, this is False."""
    blank: bool = False
    """Whether an empty file is a valid one."""
    refused: bool = False
    """Whether a damaged file is refused: it is unknown how many records it holds."""
    headed: bool = False
    """Whether a file is refused whose beginning is damaged: it names the columns of all rows."""
    limits: Limits | None = None
    """Limits that refuse the record BIG alone; None if only whole files are limited."""
    options: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    """Each other argument -> values of it and what it needs, which change the records."""

    def source(self, at: At) -> Any:
        """The source of the folder ``raw``."""
        return self.make(at) if self.make else self.kind(at("raw"), **self.settings)

    def put(self, folder: Path, groups: Groups) -> Any:
        """Writes records, and returns their source."""
        if self.extract is not None:
            return self.extract(folder, groups)
        assert self.files is not None
        write(folder / "raw", self.files(groups))
        return self.source(lambda sub: str(folder / sub))


# Where records are


def containers(
    suffix: str, content: Callable[[Sequence[int]], bytes]
) -> Callable[[Groups], dict[str, bytes]]:
    """A file for each group; names are no patterns, wherever they look like some."""
    return lambda groups: {f"{i} [x]*{suffix}": content(group) for i, group in enumerate(groups)}


def _placed(groups: Groups) -> list[tuple[str, int]]:
    """Paths in class folders without suffix, and their numbers."""
    return [
        (f"{'ab'[number % 2]}/{i}{j:02} [x]*", number)
        for i, group in enumerate(groups)
        for j, number in enumerate(group)
    ]


def folders(**parts: Callable[[int], bytes]) -> dict[str, Any]:
    """A file for each record, or several: name or suffix -> content."""
    names = {name.replace("_", "/").replace("dot", "."): part for name, part in parts.items()}
    return {
        "files": lambda groups: {
            f"{path}{name}": part(number)
            for path, number in _placed(groups)
            for name, part in names.items()
        },
        "order": lambda groups: [number for _, number in sorted(_placed(groups))],
    }


# What records hold


def _text(number: int, big: int = 2000) -> str:
    return "x" * big if number == BIG else f"é{number}"


def _kind(number: int) -> str:
    return "ab"[number % 2]


def values(number: int) -> Row:
    """A record of a table; a number is missing in the bad one."""
    return {
        "n": None if number == BAD else number,
        "s": _text(number),
        "kind": _kind(number),
    }


def table_row(number: int) -> Row:
    return {"n": number, "s": _text(number).encode(), "kind": number % 2}


VALUES = json.dumps(values(BAD)).encode()


def table(numbers: Sequence[int]) -> pa.Table:
    schema = pa.schema({"n": pa.int64(), "s": pa.string(), "kind": pa.string()})
    return pa.Table.from_pylist([values(number) for number in numbers], schema=schema)


def csv(numbers: Sequence[int]) -> bytes:
    rows = (
        ",".join([str("no" if number == BAD else number), _text(number), _kind(number)])
        for number in numbers
    )
    return "\n".join(["n,s,kind", *rows, ""]).encode()


def json_objects(numbers: Sequence[int]) -> list[bytes]:
    """Of lines, only those that end within 1 MiB are always read."""
    return [
        json.dumps({**values(number), "s": _text(number, 3 << 20)}).encode() for number in numbers
    ]


def json_lines(numbers: Sequence[int]) -> bytes:
    return b"".join(line + b"\n" for line in json_objects(numbers))


def lines(numbers: Sequence[int]) -> bytes:
    return b"".join(line(number) + b"\n" for number in numbers)


def line(number: int) -> bytes:
    return b"caf\xe9" if number == BAD else _text(number).encode()


def paragraph(number: int) -> bytes:
    return line(number) + b"\nand more"


def tfrecord(numbers: Sequence[int]) -> bytes:
    texts = {"s": ss.Scalar("string"), "kind": ss.Scalar("string")}
    features = {"n": ss.Scalar("int64"), **texts}
    return b"".join(
        frame(b"\xff\xff" if number == BAD else ss.encode_example(values(number), features))
        for number in numbers
    )


def arrays(numbers: Sequence[int]) -> dict[str, Any]:
    """The number of the bad record is beyond int32."""
    return {
        "n": np.array([-(2**40) if number == BAD else number for number in numbers]),
        "s": np.array([_text(number).encode() for number in numbers]),
        "kind": np.array([_kind(number).encode() for number in numbers]),
    }


def png(number: int) -> bytes:
    if number == BAD:
        return b"no image"
    side = 40 if number == BIG else 4
    pixels = np.random.default_rng(number).integers(0, 256, (side, 5, 3), np.uint8)
    file = io.BytesIO()
    PillowImage.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def image_row(number: int) -> Row:
    height = 40 if number == BIG else 4
    sizes = {"image/height": height, "image/width": 5, "image/orientation": 1}
    return {"image": png(number), **sizes, "label": number % 2}


def wav(number: int) -> bytes:
    if number == BAD:
        return b"no sound"
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(8000)
        sound.writeframes(np.full(2000 if number == BIG else 40, number % 999, "<i2").tobytes())
    return file.getvalue()


def array(number: int) -> bytes:
    return b"no array" if number == BAD else npy(_vector(number))


def _vector(number: int) -> Any:
    return np.full(1000 if number == BIG else 1 + number % 3, number)


def sample(number: int) -> list[tuple[str, bytes]]:
    parts = {"png": png(number), "cls": _kind(number).encode(), "txt": _text(number).encode()}
    return [(f"{number:08}.{part}", content) for part, content in parts.items()]


def tar(numbers: Sequence[int]) -> bytes:
    return tar_of([part for number in numbers for part in sample(number)])


def read_objects(file: Any) -> Iterator[Row]:
    """A user's function: the objects of JSON lines."""
    with file.open() as opened:
        for one in opened:
            yield json.loads(one)


def read_nothing(file: Any) -> Iterator[Row]:
    yield from ()


def _rows(groups: Groups) -> list[Row]:
    return [values(number) for group in groups for number in group]


def database(folder: Path, groups: Groups) -> ss.Sql:
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.closing(sqlite3.connect(folder / "t.db")) as opened:
        opened.execute("DROP TABLE IF EXISTS t")
        opened.execute("CREATE TABLE t (id INTEGER, n INTEGER, s TEXT, kind TEXT)")
        rows = [(i, row["n"], row["s"], row["kind"]) for i, row in enumerate(_rows(groups))]
        opened.executemany("INSERT INTO t VALUES (?, ?, ?, ?)", rows)
        opened.commit()
    query = "SELECT n, s, kind FROM t ORDER BY id"
    return ss.Sql(f"sqlite:///{folder}/t.db", query, **LABELLED)


def sheets(folder: Path, groups: Groups) -> ss.Excel:
    rows = [list(row.values()) for row in _rows(groups)]
    book = workbook({"one": [["n", "s", "kind"], *rows], "two": [["n"], [1]]})
    return ss.Excel(f"{write(folder, {'t.xlsx': book})}/t.xlsx", "one", **LABELLED)


def datasets(folder: Path, groups: Groups) -> ss.Hdf5:
    """Numbers are never missing there: the bad record has a class that others lack."""
    folder.mkdir(parents=True, exist_ok=True)
    numbers = [number for group in groups for number in group]
    with h5py.File(folder / "t.h5", "w") as file:
        file["n"], file["m"] = np.array(numbers), np.array(numbers) + 1
        for name, read in (("s", _text), ("kind", _kind_or_none)):
            file[name] = np.array([read(number) for number in numbers], h5py.string_dtype())
    return ss.Hdf5(f"{folder}/t.h5", {name: name for name in ("n", "s", "kind")}, **LABELLED)


def _kind_or_none(number: int) -> str:
    return "none" if number == BAD else _kind(number)


def _both(groups: Groups) -> dict[str, bytes]:
    """Files of two sources by turns."""
    return {
        f"two/{i}.jsonl" if i % 2 else f"one/{i}.csv": (json_lines if i % 2 else csv)(group)
        for i, group in enumerate(groups)
    }


# Arguments


def _each(**options: Any) -> dict[str, dict[str, Any]]:
    """Each argument with a value, alone."""
    return {name: {name: value} for name, value in options.items()}


def _table(
    kind: type[Any], suffix: str, content: Callable[[Sequence[int]], bytes], **more: Any
) -> Subject:
    """A subject whose files hold the rows of tables."""
    held = {"row": table_row, "payload": VALUES, "settings": LABELLED, **more}
    return Subject(kind=kind, files=containers(suffix, content), **held)


TYPED = _each(label="s", types={"n": "int8"})
COLUMNS = _each(columns=("n",), hive=True)
LISTED = {
    **_each(pattern="{label}_{n}", split_folders=True, label=None),
    "table": {"table": "t.csv"},
    "unlisted": {"table": "t.csv", "unlisted": "skip"},
    "one_hot": {"table": "t.csv", "one_hot": ("a", "b")},
    "rows": {"table": "t.csv", "rows": "list"},
    "lists": {"lists": {"train": None, "test": "test.txt"}},
}
ROW_LIMIT = Limits(max_row_bytes=500)
FILE_LIMIT = Limits(max_record_bytes=500)
CLASSES = ss.ClassLabel(("a", "b"))

SUBJECTS: dict[str, Subject] = {
    "ArrayFolder": Subject(
        kind=ss.ArrayFolder,
        **folders(dotnpy=array),
        row=lambda n: {"array": _vector(n).tolist(), "label": n % 2},
        payload=array(BAD),
        limits=FILE_LIMIT,
        options=LISTED,
    ),
    "Arrow": _table(
        ss.Arrow,
        ".arrow",
        lambda numbers: ipc(table(numbers)),
        cut=True,
        options={**TYPED, **COLUMNS},
    ),
    "Arrow stream": _table(
        ss.Arrow,
        ".arrows",
        lambda numbers: ipc(table(numbers), stream=True),
        options={**TYPED, **COLUMNS},
    ),
    "AudioFolder": Subject(
        kind=ss.AudioFolder,
        **folders(dotwav=wav),
        row=lambda n: {"audio": wav(n), "label": n % 2},
        payload=wav(BAD),
        limits=FILE_LIMIT,
        options={**LISTED, **_each(max_samples=9, texts=".txt")},
    ),
    "ClipFolder": Subject(
        kind=ss.ClipFolder,
        **folders(_0dotpng=png, _1dotpng=png),
        row=lambda n: {"frames": [png(n), png(n)], "label": n % 2},
        payload=png(BAD),
        ends=False,
        limits=FILE_LIMIT,
        options={**LISTED, **_each(max_pixels=9)},
    ),
    "Csv": _table(
        ss.Csv,
        ".csv",
        csv,
        payload="no,é-1,b".encode(),
        headed=True,
        cut=True,
        ends=False,
        limits=ROW_LIMIT,
        options={
            **TYPED,
            **COLUMNS,
            **_each(delimiter=";", null_values=("-",), encoding="latin-1", header=False),
            **_each(quote=None, skip=1, comment="#", decimal=","),
            **_each(thousands="'", strip=True, escape="\\"),
        },
    ),
    "Csv gzip": _table(
        ss.Csv,
        ".csv.gz",
        lambda numbers: gzip.compress(csv(numbers), mtime=0),
        payload="no,é-1,b".encode(),
        headed=True,
        limits=ROW_LIMIT,
    ),
    "Files": Subject(
        kind=ss.Files,
        make=lambda at: ss.Files(at("raw"), read_objects, **LABELLED),
        files=containers(".any", json_lines),
        row=lambda n: {**table_row(n), "s": _text(n, 3 << 20).encode()},
        payload=VALUES,
        settings={"read": read_objects},
        blank=True,
        ends=False,
        options={**TYPED, **_each(read=read_nothing)},
    ),
    "HuggingFace": _table(
        ss.HuggingFace,
        "-of-2.arrow",
        lambda numbers: ipc(table(numbers), stream=True),
        options=TYPED,
    ),
    "ImageFolder": Subject(
        kind=ss.ImageFolder,
        **folders(dotpng=png),
        row=image_row,
        payload=png(BAD),
        ends=False,
        limits=FILE_LIMIT,
        options={
            **LISTED,
            **_each(max_pixels=9, masks="masks", texts=".txt", pair={"before": "a", "after": "b"}),
            "images": {"masks": "masks", "images": "photos"},
            "boxes": {"boxes": "voc"},
            "names": {"boxes": "yolo", "names": ("cat",)},
            "polygons": {"boxes": "yolo", "names": ("cat",), "polygons": True},
            "bad_boxes": {"boxes": "voc", "bad_boxes": "drop"},
        },
    ),
    "Excel": Subject(
        kind=ss.Excel,
        extract=sheets,
        row=table_row,
        payload=VALUES,
        options={**TYPED, "sheet": {"sheet": "two", "label": None}},
    ),
    "Hdf5": Subject(
        kind=ss.Hdf5,
        extract=datasets,
        row=table_row,
        payload=json.dumps({"n": BAD, "s": _text(BAD), "kind": "none"}).encode(),
        options={**TYPED, "datasets": {"datasets": {"n": "m", "s": "s", "kind": "kind"}}},
    ),
    "Iterable": Subject(
        kind=ss.Iterable,
        extract=lambda folder, groups: ss.Iterable(lambda: _rows(groups), **LABELLED),
        row=table_row,
        payload=VALUES,
        options={
            **TYPED,
            **_each(key="n"),
            "names": {"records": [tuple(values(9).values())], "names": ("n", "s", "kind")},
        },
    ),
    "JsonLines": _table(
        ss.JsonLines,
        ".jsonl",
        json_lines,
        row=lambda n: {**table_row(n), "s": _text(n, 3 << 20).encode()},
        cut=True,
        ends=False,
        limits=ROW_LIMIT,
        options={**TYPED, **_each(records="data", hive=True)},
    ),
    "JsonLines list": _table(
        ss.JsonLines,
        ".json",
        lambda ns: b"[" + b",\n".join(json_objects(ns)) + b"]",
        row=lambda n: {**table_row(n), "s": _text(n, 3 << 20).encode()},
        cut=True,
        limits=ROW_LIMIT,
    ),
    "Numpy": Subject(
        kind=ss.Numpy,
        files=containers(".npy", lambda numbers: npy(arrays(numbers)["n"])),
        row=lambda n: {"data": n},
        payload=json.dumps({"data": -(2**40)}).encode(),
        with_bad={"data": ss.Scalar("int32")},
        cut=True,
        options={
            **TYPED,
            **_each(name="x", beside={"x": "a", "y": "b"}, split_arrays=True),
        },
    ),
    "Numpy archive": _table(
        ss.Numpy,
        ".npz",
        lambda numbers: npz(**arrays(numbers)),
        payload=json.dumps({**values(BAD), "n": -(2**40)}).encode(),
        with_bad={"n": ss.Scalar("int32"), "s": ss.Scalar("string"), "kind": CLASSES},
    ),
    "Parquet": _table(
        ss.Parquet,
        ".parquet",
        lambda numbers: parquet(table(numbers)),
        cut=True,
        options={**TYPED, **COLUMNS},
    ),
    "Sources": Subject(
        kind=ss.Sources,
        make=lambda at: ss.Sources(
            one=ss.Csv(at("raw/one"), types={"n": "int64"}, **LABELLED),
            two=ss.JsonLines(at("raw/two"), **LABELLED),
        ),
        files=_both,
        row=table_row,
        payload="no,é-1,b".encode(),
        headed=True,
        cut=True,
        ends=False,
    ),
    "Sql": Subject(
        kind=ss.Sql,
        extract=database,
        row=table_row,
        payload=VALUES,
        options={
            **TYPED,
            **_each(key="n", query="SELECT n + 1 AS n, s, kind FROM t ORDER BY id"),
        },
    ),
    "TFRecords": _table(
        ss.TFRecords,
        ".tfrecord",
        tfrecord,
        payload=b"\xff\xff",
        cut=True,
        limits=FILE_LIMIT,
        options={
            **TYPED,
            **_each(boxes="object_detection"),
            "bad_boxes": {"boxes": "object_detection", "bad_boxes": "drop"},
        },
    ),
    "Table": Subject(
        kind=ss.Table,
        extract=lambda folder, groups: ss.Table(pa.Table.from_pylist(_rows(groups)), **LABELLED),
        row=table_row,
        payload=VALUES,
        options=TYPED,
    ),
    "TextFiles": Subject(
        kind=ss.TextFiles,
        files=containers(".txt", lines),
        row=lambda n: {"text": line(n)},
        payload=line(BAD),
        cut=True,
        blank=True,
        ends=False,
        limits=ROW_LIMIT,
        options=_each(per="paragraph", name="line", encoding="latin-1"),
    ),
    "TextFiles paragraphs": Subject(
        kind=ss.TextFiles,
        files=containers(".txt", lambda numbers: b"\n \n".join(map(paragraph, numbers))),
        row=lambda n: {"text": paragraph(n)},
        payload=paragraph(BAD),
        settings={"per": "paragraph"},
        cut=True,
        blank=True,
        ends=False,
        limits=ROW_LIMIT,
    ),
    "TextFiles whole": Subject(
        kind=ss.TextFiles,
        **folders(dottxt=line),
        row=lambda n: {"text": line(n)},
        payload=line(BAD),
        settings={"per": "file"},
        blank=True,
        ends=False,
        limits=ROW_LIMIT,
    ),
    "TextFolder": Subject(
        kind=ss.TextFolder,
        **folders(dottxt=line),
        row=lambda n: {"text": line(n), "label": n % 2},
        payload=line(BAD),
        blank=True,
        ends=False,
        limits=FILE_LIMIT,
        options={**LISTED, **_each(encoding="latin-1")},
    ),
    "WebDataset": Subject(
        kind=ss.WebDataset,
        files=containers(".tar", tar),
        row=lambda n: {**image_row(n), "text": _text(n).encode()},
        payload=json.dumps({"png": "no image", "cls": "b", "txt": _text(BAD)}).encode(),
        cut=True,
        refused=True,
        limits=Limits(max_record_bytes=1000),
        options=_each(max_pixels=9),
    ),
}

IN_FILES = {name: subject for name, subject in SUBJECTS.items() if subject.files is not None}
