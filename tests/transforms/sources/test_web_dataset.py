"""WebDataset tars: samples, types of parts, and whatever may be wrong with them."""

import gzip
import io
import itertools
import json
import os
import pathlib
import re
import tarfile
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snapshard.schemas.blocks import Block, FileRange, RawBatch
from snapshard.schemas.errors import DataError, RecipeError, SchemaError
from snapshard.schemas.features import (
    Audio,
    ClassLabel,
    Feature,
    Image,
    Scalar,
    Sequence,
    Tensor,
    Text,
)
from snapshard.schemas.recipe import Source
from snapshard.transforms.sources.blocks import MIN_CUT_BYTES
from snapshard.transforms.sources.folders.web_dataset import WebDataset
from snapshard.transforms.storage.opened_source import open_source

from ...file_bytes import npy, tar_of

PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x03\0\0\0\x02\x08\x02\0\0\0"  # 3 wide, 2 high


def sample(number: int, **parts: bytes) -> list[tuple[str, bytes]]:
    given = {"png": PNG + bytes([number]), "cls": str(number % 3).encode(), **parts}
    return [(f"set/{number:04}.{part}", content) for part, content in given.items()]


def read(
    source: WebDataset,
    folder: pathlib.Path,
    features: dict[str, Feature] | None = None,
    *,
    every: int = MIN_CUT_BYTES,
) -> tuple[dict[str, Feature], list[dict[str, Any]], list[Any]]:
    opened = open_source(source.url, str(folder))
    files = source.select(opened.list()).files
    found = dict(source.infer(files, opened)) if features is None else features
    rows: list[dict[str, Any]] = []
    rejects: list[Any] = []
    for batch in _batches(source, files, opened, found, every):
        rows += [
            {"id": name, **row}
            for name, row in zip(batch.ids, batch.columns.to_pylist(), strict=True)
        ]
        rejects += batch.rejects
    return found, rows, rejects


def _batches(
    source: WebDataset, files: Any, opened: Any, features: Any, every: int
) -> list[RawBatch]:
    ranges = []
    for file in files:
        ends = [0, *source.cuts(file, opened, every=every), file.num_bytes]
        ranges += [
            FileRange(path=file.path, sha256="", start=a, stop=b, problem=file.problem)
            for a, b in itertools.pairwise(ends)
        ]
    block = Block(tuple(ranges))
    return list(source.read(block, features=features, opened=opened, ordered=range(len(ranges))))


def write(folder: pathlib.Path, members: list[tuple[str, bytes]], name: str = "a.tar") -> None:
    (folder / name).write_bytes(tar_of(members))


def test_every_kind_of_part(tmp_path: pathlib.Path) -> None:
    array = np.arange(6, dtype=">f4").reshape(2, 3)
    form = b"WAVEfmt \x10\0\0\0\1\0\1\0\x40\x1f\0\0\x80\x3e\0\0\2\0\x10\0"
    wav = b"RIFF\x28\0\0\0" + form + b"data\4\0\0\0abcd"
    members = [
        part
        for number in range(4)
        for part in sample(
            number,
            txt=f"text é{number}".encode(),
            json=json.dumps({"a": {"b": number}, "tags": ["x"] * number, "c": None}).encode(),
            npy=npy(array + number),
            wav=wav,
            **{"left.npy": npy(np.zeros(number, np.uint8)), "raw": bytes([number, 255])},
        )
    ]
    write(tmp_path, members)
    source = WebDataset("a.tar")
    assert isinstance(source, Source)
    features, rows, rejects = read(source, tmp_path)
    assert rejects == []
    assert features == {
        "image": Image(storage="encoded"),
        "label": Scalar("int64"),
        "text": Text(),
        "json.a.b": Scalar("int64"),
        "json.tags": Sequence(Scalar("string")),
        "array": Tensor("float32", shape=(2, 3)),
        "audio": Audio(storage="encoded"),
        "left.array": Tensor("uint8", shape=(None,)),
        "raw": Scalar("string"),
    }
    row = rows[2]
    assert row["id"].startswith("a.tar#")
    assert (row["image"], row["image/height"], row["image/width"]) == (PNG + b"\2", 2, 3)
    assert (row["label"], row["text"], row["json.a.b"]) == (2, "text é2".encode(), 2)
    assert row["json.tags"] == [b"x", b"x"]
    assert row["array"] == (array + 2).ravel().tolist()
    assert (row["audio"], row["left.array"], row["raw"]) == (wav, b"\0\0", b"\2\xff")


def test_names_of_classes_are_found_in_all_tars(tmp_path: pathlib.Path) -> None:
    for number, name in enumerate(("owl", "cat", "dog")):
        write(tmp_path, sample(number, cls=f"{name}\n".encode()), f"s-{number:02}.tar")
    features, rows, _ = read(WebDataset("s-{00..02}.tar"), tmp_path)
    assert features["label"] == ClassLabel(("cat", "dog", "owl"))
    assert [row["label"] for row in rows] == [2, 0, 1]
    assert [row["id"] for row in rows] == ["s-00.tar#0", "s-01.tar#0", "s-02.tar#0"]


def test_a_missing_part_is_optional_or_a_reject(tmp_path: pathlib.Path) -> None:
    members = [*sample(0, txt=b"x"), ("set/1.txt", b"no image"), *sample(2)]
    write(tmp_path, members)
    features, rows, rejects = read(WebDataset("a.tar"), tmp_path)
    assert features["text"] == Text(optional=True)
    assert features["label"] == Scalar("int64", optional=True)
    assert [row["text"] for row in rows] == [b"x", None]
    (reject,) = rejects
    assert (reject.reason, reject.position) == ("missing value", 3072)
    assert "'set/1'" in reject.message
    assert "no 'image'" in reject.message


@pytest.mark.parametrize("name", ["a.tar.gz", "a.tgz", "zipped.tar"])
def test_compressed_tars(tmp_path: pathlib.Path, name: str) -> None:
    data = tar_of([part for number in range(9) for part in sample(number)])
    (tmp_path / name).write_bytes(gzip.compress(data))
    _, rows, rejects = read(WebDataset(name), tmp_path)
    assert [row["label"] for row in rows] == [0, 1, 2] * 3
    assert rejects == []
    (file,) = open_source(WebDataset(name).url, str(tmp_path)).list()
    opened = open_source(WebDataset(name).url, str(tmp_path))
    assert WebDataset(name).cuts(file, opened, every=1) == ()


def test_ranges_of_a_tar_give_its_samples(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    members = [part for number in range(40) for part in sample(number, txt=b"x" * 700)]
    write(tmp_path, members)
    _, whole, _ = read(WebDataset("a.tar"), tmp_path)
    monkeypatch.setattr("snapshard.transforms.sources.folders.web_dataset._PIECE_BYTES", 1500)
    opened = open_source(WebDataset("a.tar").url, str(tmp_path))
    (file,) = opened.list()
    offsets = WebDataset("a.tar").cuts(file, opened, every=6000)
    assert len(offsets) > 10
    _, parts, rejects = read(WebDataset("a.tar"), tmp_path, every=6000)
    assert parts == whole
    assert len(whole) == 40
    assert rejects == []


@pytest.mark.parametrize(
    ("shards", "url"),
    [
        ("a.tar", "a[.]tar"),
        ("x/y/a.tar.gz", "x/y/a.tar[.]gz"),
        ("folder", "folder"),
        ("s3://b/{a,b}/x-{000..010}.tar", "s3://b/*/x-*.tar"),
        ("x/*.tar", "x/*.tar"),
        ("zip://a.tar::x/y.zip", "zip://a[.]tar::x/y.zip"),
        ("zip://d/{1..3}.tar::x/y.zip", "zip://d/*.tar::x/y.zip"),
        ("zip://::x/y.zip", "zip://::x/y.zip"),
    ],
)
def test_a_tar_is_asked_for_as_a_file(shards: str, url: str) -> None:
    assert WebDataset(shards).url == url


def test_braces_choose_and_none_may_be_missing(tmp_path: pathlib.Path) -> None:
    (tmp_path / "x").mkdir()
    for name in ("x/s-8.tar", "x/s-9.tar", "x/s-10.tar", "x/s-11.tar", "x/readme.md"):
        write(tmp_path, sample(0), name)
    source = WebDataset("x/s-{8..10}.tar")
    opened = open_source(source.url, str(tmp_path))
    selection = source.select(opened.list())
    assert sorted(file.path for file in selection.files) == ["s-10.tar", "s-8.tar", "s-9.tar"]
    assert selection.num_skipped == {"not named by the braces": 1}
    gone = WebDataset("x/s-{8..12}.tar")
    with pytest.raises(DataError, match=r"1 of them are missing \(first: 's-12.tar'\)"):
        gone.select(opened.list())
    whole = WebDataset("x")
    found = whole.select(open_source(whole.url, str(tmp_path)).list())
    assert (len(found.files), found.num_skipped) == (4, {"not a tar": 1})


@pytest.mark.parametrize("shards", ["a-{1..", "a-}.tar", "{9..1}.tar", "{0..999999999}.tar"])
def test_braces_that_cannot_be_meant(shards: str) -> None:
    with pytest.raises(RecipeError, match="WebDataset"):
        WebDataset(shards)


# What may be wrong.

FEATURES: dict[str, Feature] = {
    "image": Image(storage="encoded"),
    "label": ClassLabel(("cat", "dog")),
    "json.n": Scalar("int64"),
    "array": Tensor("float32", shape=(2,)),
}
GOOD = {
    "png": PNG,
    "cls": b"cat",
    "json": b'{"n": 3}',
    "npy": npy(np.zeros(2, np.float32)),
}
BAD: dict[str, tuple[dict[str, bytes], str]] = {
    "no_image": ({"png": b"text"}, "text, not an image"),
    "empty_image": ({"png": b""}, "empty file"),
    "cut_image": ({"png": PNG[:20]}, "truncated image"),
    "other_class": ({"cls": b"owl"}, "unknown class"),
    "no_text": ({"cls": b"\xff\xfe"}, "no cls"),
    "no_json": ({"json": b"{"}, "no json"),
    "other_json": ({"json": b"[1]"}, "no json"),
    "deep_json": ({"json": b'{"n":' + b"[" * 100_000 + b"]" * 100_000 + b"}"}, "no json"),
    "other_field": ({"json": b'{"m": 1}'}, "missing value"),
    "other_type": ({"json": b'{"n": "x"}'}, "wrong type"),
    "huge": ({"json": b'{"n": 99999999999999999999}'}, "out of range"),
    "no_array": ({"npy": b"x"}, "no npy"),
    "pickled": ({"npy": npy(np.array([None, 1]))}, "no npy"),
    "complex": ({"npy": npy(np.zeros(2, np.complex64))}, "no npy"),
    "cut_array": ({"npy": GOOD["npy"][:-1]}, "no npy"),
    "other_shape": ({"npy": npy(np.zeros(3, np.float32))}, "wrong length"),
    "two_images": ({"jpg": PNG}, "two parts of one kind"),
}


@pytest.mark.parametrize(
    ("known", "other"),
    [("cls", "label"), ("npy", "array"), ("txt", "text"), ("png", "image"), ("json", "json.n")],
)
@pytest.mark.parametrize("swapped", [False, True])
def test_a_name_of_two_kinds_is_refused(
    tmp_path: pathlib.Path, known: str, other: str, *, swapped: bool
) -> None:
    content = GOOD.get(known, b"text")
    members = [(f"a.{known}", content), (f"b.{other}", b"7"), (f"c.{known}", content)]
    write(tmp_path, members[::-1][:2] if swapped else members)
    with pytest.raises(SchemaError, match=r"parts of two kinds, \w+ and \w+\. Rename"):
        read(WebDataset("a.tar"), tmp_path)


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_sample_is_a_reject(tmp_path: pathlib.Path, kind: str) -> None:
    parts, reason = BAD[kind]
    members = []
    for number, given_parts in enumerate((GOOD, GOOD | parts, GOOD)):
        members += [(f"{number}.{part}", content) for part, content in given_parts.items()]
    write(tmp_path, members)
    _, rows, rejects = read(WebDataset("a.tar"), tmp_path, FEATURES)
    assert [row["json.n"] for row in rows] == [3, 3]
    (reject,) = rejects
    assert reject.reason == reason
    assert reject.record_id == f"a.tar#{reject.position}"
    assert "sample '1'" in reject.message


def test_parts_that_come_twice_or_have_no_suffix(tmp_path: pathlib.Path) -> None:
    members = [
        *((f"0.{part}", content) for part, content in GOOD.items()),
        *((f"1.{part}", content) for part, content in [*GOOD.items(), ("cls", b"dog")]),
        ("README", b"x"),
        (".hidden.cls", b"x"),
        ("__info__", b"x"),
        *((f"2.{part}", content) for part, content in GOOD.items()),
    ]
    write(tmp_path, members)
    _, rows, rejects = read(WebDataset("a.tar"), tmp_path, FEATURES)
    assert len(rows) == 2
    assert ["two parts 'cls'" in r.message or "no suffix" in r.message for r in rejects] == [
        True
    ] * 2


def _of_links(folder: pathlib.Path, *, compressed: bool = False) -> dict[str, tuple[bytes, int]]:
    """A tar of a folder with links, as GNU tar makes it; the image and label of each sample."""
    for number in range(4):
        for name, content in sample(number):
            path = folder / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(content)
    parts = folder / "set"
    for number, linked in ((4, 0), (5, 2)):
        for kind in ("png", "cls"):
            os.link(parts / f"{linked:04}.{kind}", parts / f"{number:04}.{kind}")
    (parts / "0006.png").symlink_to("0001.png")
    (parts / "0006.cls").symlink_to("../set/0007.cls")  # which leads to another
    (parts / "0007.cls").symlink_to("0003.cls")
    os.link(parts / "0000.png", parts / "0007.png")
    expected = {}
    with tarfile.open(folder / "a.tar", "w:gz" if compressed else "w") as archive:
        for path in sorted(parts.iterdir()):
            archive.add(path, f"set/{path.name}")
            key = path.name.partition(".")[0]
            image, label = parts / f"{key}.png", parts / f"{key}.cls"
            expected[key] = image.read_bytes(), int(label.read_bytes())
    return expected


@pytest.mark.parametrize("compressed", [False, True])
def test_parts_that_are_links_are_what_they_lead_to(
    tmp_path: pathlib.Path, compressed: bool
) -> None:
    """As ``hardlink`` and ``cp -l`` leave them."""
    expected = _of_links(tmp_path, compressed=compressed)
    _, rows, rejects = read(WebDataset("a.tar"), tmp_path, every=1)
    assert rejects == []
    assert [(row["image"], row["label"]) for row in rows] == list(expected.values())


@pytest.mark.parametrize(
    ("kind", "link", "problem"),
    [
        (tarfile.LNKTYPE, "absent.cls", "a link to what its archive does not hold"),
        (tarfile.SYMTYPE, "1.cls", "a link to what its archive does not hold"),
        (tarfile.SYMTYPE, "/etc/hostname", "a link to what its archive does not hold"),
        (tarfile.FIFOTYPE, "", "a special file, expected a file"),
        (tarfile.CHRTYPE, "", "a special file, expected a file"),
        (tarfile.GNUTYPE_SPARSE, "", "a sparse file, which is not read from an archive"),
    ],
)
def test_a_part_that_is_no_file_makes_its_sample_a_reject(
    tmp_path: pathlib.Path, kind: bytes, link: str, problem: str
) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for name in ("0.cls", "1.cls", "2.cls"):
            member = tarfile.TarInfo(name)
            if name == "1.cls":
                member.type, member.linkname = kind, link
            else:
                member.size = 1
            archive.addfile(member, io.BytesIO(b"7"))
    _, rows, rejects = read(WebDataset("a.tar"), tmp_path, {"label": Scalar("int64")})
    assert [row["label"] for row in rows] == [7, 7]
    assert [reject.message for reject in rejects] == [
        f"a.tar: sample '1': its part 'cls' is {problem}"
    ]


@pytest.mark.parametrize("behind", ["another tar", "a zero-filled tail", "half a block"])
def test_what_follows_the_mark_of_the_end_is_told(tmp_path: pathlib.Path, behind: str) -> None:
    data = tar_of([("0.cls", b"0"), ("1.cls", b"1")])
    tails = {
        "another tar": tar_of([("2.cls", b"2")]),
        "a zero-filled tail": bytes(2 << 20),
        "half a block": bytes(256),
    }
    (tmp_path / "a.tar").write_bytes(data + tails[behind])
    refused(tmp_path, problem="data after the end-of-archive|zero bytes")


FEW: dict[str, Feature] = {"label": Scalar("int64")}


def refused(folder: pathlib.Path, name: str = "a.tar", *, problem: str = "") -> None:
    """A damaged tar is refused: how many samples it lacks is unknown."""
    expected = rf"{re.escape(name)}: the tar cannot be read from byte [\d,]+ on: .*({problem})"
    with pytest.raises(DataError, match=expected):
        read(WebDataset(name), folder, FEW)


def test_a_file_of_zeros_is_no_empty_tar(tmp_path: pathlib.Path) -> None:
    for num_bytes, is_told in ((1024, False), (10240, False), (993, True), (1 << 20, True)):
        (tmp_path / "a.tar").write_bytes(bytes(num_bytes))
        if is_told:
            refused(tmp_path)
        else:
            assert read(WebDataset("a.tar"), tmp_path, FEW)[1:] == ([], [])


@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_a_tar_cut_at_any_byte_is_refused(tmp_path: pathlib.Path, step: int) -> None:
    """At some of them, and around the ends of blocks and of contents, in the quick run."""
    data = tar_of([(f"{number}.cls", b"%d" % number) for number in range(2)])
    path = tmp_path / "a.tar"
    near = {512 * block + distance for block in range(6) for distance in range(-3, 4)}
    stops = {*range(0, 2 * 1024 + 600, step), *(stop for stop in near if stop >= 0), len(data)}
    for stop in sorted(stops):
        path.write_bytes(data[:stop])
        if stop < 2 * 1024 + 512 or stop % 512 != 0:
            refused(tmp_path)
        else:
            _, rows, rejects = read(WebDataset("a.tar"), tmp_path, FEW)
            assert ([row["label"] for row in rows], rejects) == ([0, 1], []), stop


def test_a_compressed_tar_cut_at_any_byte_is_refused(tmp_path: pathlib.Path) -> None:
    data = gzip.compress(tar_of([(f"{number}.cls", b"%d" % number) for number in range(2)]))
    for stop in range(len(data)):
        (tmp_path / "a.tar.gz").write_bytes(data[:stop])
        refused(tmp_path, "a.tar.gz")


@pytest.mark.parametrize("cut_bytes", [1_000, 40_000])
def test_a_damaged_tar_is_refused_before_anything_is_read(
    tmp_path: pathlib.Path, cut_bytes: int
) -> None:
    """Where it is large enough to be cut."""
    data = tar_of([part for number in range(40) for part in sample(number)])
    (tmp_path / "a.tar").write_bytes(data[:cut_bytes])
    opened = open_source(WebDataset("a.tar").url, str(tmp_path))
    (file,) = opened.list()
    with pytest.raises(DataError, match="cannot be read from byte"):
        WebDataset("a.tar").cuts(file, opened, every=6000)


def test_no_sample_at_all_and_parts_of_no_one_type(tmp_path: pathlib.Path) -> None:
    write(tmp_path, [])
    with pytest.raises(DataError, match="no sample"):
        read(WebDataset("a.tar"), tmp_path)
    write(tmp_path, sample(0, npy=npy(np.zeros(2))) + sample(1, npy=npy(np.zeros(2, np.int8))))
    with pytest.raises(SchemaError, match="float64, int8"):
        read(WebDataset("a.tar"), tmp_path)
    write(tmp_path, sample(0, json=b'{"a": 1}') + sample(1, json=b'{"a": "x"}'))
    with pytest.raises(SchemaError, match=r"'json\.a' is 1 \(int\), 'x' \(str\)"):
        read(WebDataset("a.tar"), tmp_path)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_damage_is_told_or_harmless(tmp_path_factory: Any, data: st.DataObject) -> None:
    folder = tmp_path_factory.getbasetemp()
    content = bytearray(tar_of([p for n in range(3) for p in sample(n)]))
    for _ in range(data.draw(st.integers(1, 6))):
        content[data.draw(st.integers(0, 6143))] = data.draw(st.integers(0, 255))
    (folder / "h.tar").write_bytes(content)
    features: dict[str, Feature] = {"image": Image(storage="encoded"), "label": Scalar("int64")}
    try:
        _, rows, rejects = read(WebDataset("h.tar"), folder, features)
    except DataError:
        return
    assert len(rows) + len(rejects) > 0
