"""Opened sources: roots, globs, archives, stores, and files that are none."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import http.server
import os
import pathlib
import pickle
import random
import socket
import tempfile
import threading
import tracemalloc
import zipfile
from collections.abc import Iterator

import pytest

from snapshard.schemas import blocks
from snapshard.schemas.blocks import SourceFile
from snapshard.schemas.errors import DataError, RecipeError, StorageError
from snapshard.transforms import storage
from snapshard.transforms.storage.opened_source import OpenedSource, open_source, path_bytes
from snapshard.transforms.storage.tar import LEADS_OUT, REPLACED

TREE = ("a/1.jpg", "a/2.txt", "b/3.jpg", "b/c/4.jpg", "top.jpg")


@pytest.fixture
def tree(tmp_path: pathlib.Path) -> pathlib.Path:
    """A folder that holds ``source/`` with the files of TREE, and ``source.zip`` with the same."""
    with zipfile.ZipFile(tmp_path / "source.zip", "w") as archive:
        for path in TREE:
            storage.put_bytes(f"{tmp_path}/source/{path}", path.encode())
            archive.writestr(path, path)
    return tmp_path


@contextlib.contextmanager
def another_user() -> Iterator[None]:
    """Root reads everything: drops its rights for a while."""
    if os.geteuid():
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def _paths(opened: OpenedSource) -> list[str]:
    return [file.path for file in opened.list()]


def _problems(opened: OpenedSource) -> dict[str, str]:
    return {file.path: file.problem for file in opened.list() if file.problem}


@pytest.mark.parametrize(
    ("url", "paths"),
    [
        ("source", list(TREE)),
        ("source/", list(TREE)),
        ("../{name}/source", list(TREE)),
        ("file://{folder}/source", list(TREE)),
        ("source/a", ["1.jpg", "2.txt"]),
        ("source/a/1.jpg", ["1.jpg"]),
        ("source/*.jpg", ["top.jpg"]),
        ("source/*/*.jpg", ["a/1.jpg", "b/3.jpg"]),
        ("source/**/*.jpg", ["a/1.jpg", "b/3.jpg", "b/c/4.jpg", "top.jpg"]),
        ("source/b*", ["b/3.jpg", "b/c/4.jpg"]),
        ("source/[!a]/?.jpg", ["b/3.jpg"]),
        ("source/*.png", []),
        ("zip://*::source.zip", list(TREE)),
        ("zip://::source.zip", list(TREE)),
        ("zip://a/*::source.zip", ["1.jpg", "2.txt"]),
        ("zip://b/**/4.jpg::{folder}/source.zip", ["c/4.jpg"]),
        ("zip://b/c/4.jpg::source.zip", ["4.jpg"]),
    ],
)
def test_lists_and_reads(tree: pathlib.Path, url: str, paths: list[str]) -> None:
    opened = open_source(url.format(folder=tree, name=tree.name), str(tree))
    opened = pickle.loads(pickle.dumps(opened))
    assert _paths(opened) == paths
    for file in opened.list():
        content = opened.read(file.path)
        assert content.decode().endswith(file.path)
        assert (file.num_bytes, file.problem, file.sha256) == (len(content), "", "")
        assert opened.read(file.path, 1, 3) == content[1:3]
        assert opened.read(file.path, 2) == content[2:]
        assert b"".join(opened.chunks(file.path, chunk_bytes=3)) == content
        with opened.filesystem.open(opened.full_path(file.path), "rb") as raw:
            assert raw.read() == content


@pytest.mark.parametrize(
    ("below", "paths"),
    [("", list(TREE)), ("/*/*.jpg", ["a/1.jpg", "b/3.jpg"]), ("/b/c/4.jpg", ["4.jpg"])],
)
def test_lists_stores(tree: pathlib.Path, below: str, paths: list[str]) -> None:
    root = f"memory://test_opened_source/{tree.name}"
    for path in TREE:
        storage.put_bytes(f"{root}/{path}", path.encode())
    try:
        opened = open_source(root + below, "/anywhere")
        assert _paths(opened) == paths
        assert all(file.stamp.startswith("time:") for file in opened.list())
        assert opened.read(paths[-1]) in {path.encode() for path in TREE}
        assert b"".join(opened.chunks(paths[0], chunk_bytes=2)) == opened.read(paths[0])
    finally:
        storage.remove_tree(root)


def test_an_existing_path_is_no_glob(tmp_path: pathlib.Path) -> None:
    storage.put_bytes(f"{tmp_path}/set [1]/a*/1.jpg", b"x")
    storage.put_bytes(f"{tmp_path}/set [1]/ab/1.jpg", b"x")
    assert _paths(open_source("set [1]/a*", str(tmp_path))) == ["1.jpg"]


def test_an_archive_put_anew_is_read_anew(tree: pathlib.Path) -> None:
    before = open_source("zip://*::source.zip", str(tree))
    stamps = [file.stamp for file in before.list()]
    with zipfile.ZipFile(tree / "new.zip", "w") as archive:
        archive.writestr("a/1.jpg", "new")
    os.replace(tree / "new.zip", tree / "source.zip")
    (after,) = open_source("zip://*::source.zip", str(tree)).list()
    assert after.num_bytes == 3
    assert after.stamp not in stamps


@pytest.mark.parametrize(
    "url",
    [
        "absent",
        "absent/*.jpg",
        "zip://*::absent.zip",
        "zip://absent::source.zip",
        "memory://absent",
    ],
)
def test_an_absent_source_is_the_recipes_fault(tree: pathlib.Path, url: str) -> None:
    with pytest.raises(RecipeError, match="does not exist"):
        open_source(url, str(tree))


def test_a_file_that_is_no_archive_is_told(tree: pathlib.Path) -> None:
    (tree / "source.zip").write_bytes(b"not a zip")
    for url in ("zip://*::source.zip", "source.zip"):
        with pytest.raises(DataError, match=r"source\.zip is not a zip archive"):
            open_source(url, str(tree))


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("gone", "does not exist (looked for /data/gone). Correct the path; in a recipe, a "),
        ("memory://gone/a.csv", "does not exist. Correct the URL."),
        ("file:///data/a%20b.csv", "of a file:// URL it is taken as it is, %20 is no space"),
        ("http://host/folder/", "http://host/folder/ cannot be listed: HTTP has no folders. Name"),
        ("https://host/*.csv?sig=abc", "https://host/*.csv?sig=*** cannot be listed: HTTP has"),
    ],
)
def test_what_to_do_about_one_that_is_not_found(url: str, words: str) -> None:
    with pytest.raises(RecipeError) as raised:
        open_source(url, "/data")
    assert words in str(raised.value)


class _Handler(http.server.SimpleHTTPRequestHandler):
    """Serves a folder; knows no ranges."""

    def log_message(self, *_: object) -> None:
        pass


def test_reads_a_file_from_a_web_server_and_keeps_its_signature_out_of_names(
    tree: pathlib.Path,
) -> None:
    handler = functools.partial(_Handler, directory=str(tree))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/source/b/c"
        opened = open_source(f"{url}/4.jpg?sig=secret", "/")
        (file,) = opened.list()
        assert (file.path, file.num_bytes) == ("4.jpg", 9)
        assert opened.read("4.jpg") == b"b/c/4.jpg"
        assert opened.read("4.jpg", 2, 5) == b"c/4"
        assert opened.read("4.jpg", 4) == b"4.jpg"
        assert list(opened.chunks("4.jpg", chunk_bytes=5)) == [b"b/c/4", b".jpg"]
        assert "secret" not in f"{opened!r} {opened.shown}"
        with pytest.raises(RecipeError, match=r"4\.png\?sig=\*\*\* does not exist"):
            open_source(f"{url}/4.png?sig=secret", "/")
        server.shutdown()


def test_secrets_are_not_shown() -> None:
    opened = OpenedSource(url="sftp://ann:secret@host/a", root="/a")
    assert "secret" not in repr(opened)
    assert opened.shown == "sftp://***@host/a"


def test_files_that_are_none_are_listed_with_their_problem(tree: pathlib.Path) -> None:
    a = tree / "source" / "a"
    (a / "dangling.jpg").symlink_to("nowhere.jpg")
    (a / "loop.jpg").symlink_to("loop.jpg")
    (a / "up").symlink_to("..")
    (a / "folder.jpg").mkdir()
    (a / "empty").mkdir()
    os.mkfifo(a / "pipe.jpg")
    (a / "null.jpg").symlink_to("/dev/null")
    with socket.socket(socket.AF_UNIX) as bound, contextlib.chdir(a):
        bound.bind("socket.jpg")
    assert _problems(open_source("source", str(tree))) == {
        "a/dangling.jpg": "dangling symbolic link",
        "a/folder.jpg": "empty folder, expected a file",
        "a/loop.jpg": "symbolic link loop",
        "a/null.jpg": "character device, expected a file",
        "a/pipe.jpg": "named pipe, expected a file",
        "a/socket.jpg": "socket, expected a file",
        "a/up": "symbolic link loop",
    }
    only = _problems(open_source("source/*/[fp]*.jpg", str(tree)))
    assert sorted(only) == ["a/folder.jpg", "a/pipe.jpg"]


def test_files_come_by_the_bytes_of_their_paths(tmp_path: pathlib.Path) -> None:
    for path in ("a/1", "a-b", "a b/2", "a.txt", "a.c/2", "a0", "ä", "a.b/a/3", "a.b-c", "a.jpg-1"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    (tmp_path / os.fsdecode(b"\xff")).touch()
    (tmp_path / "a.jpg").mkdir()  # a problem, listed as a file
    (tmp_path / "a.b" / "up").symlink_to("..")
    (tmp_path / "c").symlink_to("a.b")
    *first, umlaut, other = _paths(open_source(".", str(tmp_path)))
    names = "a b/2, a-b, a.b-c, a.b/a/3, a.b/up, a.c/2, a.jpg, a.jpg-1, a.txt, a/1, a0, c/a/3, c/up"
    assert first == names.split(", ")
    assert (umlaut, os.fsencode(other)) == ("ä", b"\xff")


def test_a_long_listing_never_holds_all_files(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "_PACKED_FROM", 1_000)
    num_files = 4_000
    for number in range(num_files):
        path = tmp_path / str(number % 10) / f"{number:07d}.jpg"
        path.parent.mkdir(exist_ok=True)
        path.touch()
    opened = open_source(".", str(tmp_path))
    tracemalloc.start()
    try:
        assert len(opened.list()) == num_files
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 200 * num_files  # a listed file has 400 bytes


def test_links_are_followed(tree: pathlib.Path) -> None:
    (tree / "source" / "d").symlink_to("b")
    (tree / "source" / "e.jpg").symlink_to("a/1.jpg")
    opened = open_source("source", str(tree))
    assert {"d/3.jpg", "d/c/4.jpg", "e.jpg"} <= set(_paths(opened))
    assert not _problems(opened)
    assert opened.read("e.jpg") == b"a/1.jpg"


def test_what_may_not_be_read_is_listed_with_its_problem() -> None:
    # Not pytest's own folder: another user may not enter that.
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        for path in ("open/1.jpg", "open/2.jpg", "closed/3.jpg", "names/4.jpg"):
            storage.put_bytes(f"{folder}/{path}", b"x")
        os.chmod(f"{folder}/open/2.jpg", 0)
        os.chmod(f"{folder}/closed", 0)
        os.chmod(f"{folder}/names", 0o644)
        try:
            opened = open_source(folder, "/")
            with another_user():
                problems = _problems(open_source(f"{folder}/[no]*", "/"))
                with pytest.raises(DataError, match="The folder closed cannot be listed"):
                    opened.list()
                with pytest.raises(StorageError, match="permission denied"):
                    opened.read("open/2.jpg")
                with pytest.raises(StorageError, match="permission denied"):
                    open_source("closed", folder).list()
        finally:
            os.chmod(f"{folder}/closed", 0o755)
            os.chmod(f"{folder}/names", 0o755)
    assert problems == {
        "names/4.jpg": "cannot be looked at: Permission denied",
        "open/2.jpg": "no permission to read",
    }


@pytest.mark.parametrize(
    ("path", "kind"),
    [("pipe.csv", "named pipe"), ("socket.csv", "socket"), ("/dev/zero", "character device")],
)
def test_a_source_that_is_not_a_file_is_refused_as_what_it_is(
    tmp_path: pathlib.Path, path: str, kind: str
) -> None:
    os.mkfifo(tmp_path / "pipe.csv")
    with socket.socket(socket.AF_UNIX) as bound, contextlib.chdir(tmp_path):
        bound.bind("socket.csv")
    with pytest.raises(RecipeError, match=f"is a {kind}, expected a file or folder"):
        open_source(path, str(tmp_path))


def test_names_of_any_bytes(tmp_path: pathlib.Path) -> None:
    folder = os.path.join(os.fsencode(tmp_path), b"\xff")
    os.mkdir(folder)
    for name in (b"\xfe.jpg", "ä.jpg".encode(), b"new\nline", "日本".encode()):
        with open(os.path.join(folder, name), "wb") as file:
            file.write(name)
    opened = open_source(str(tmp_path), "/")
    listed = opened.list()
    encoded = [path_bytes(file.path) for file in listed]
    assert encoded == sorted(encoded)
    assert len(encoded) == 4
    for file in listed:
        assert opened.read(file.path) == path_bytes(file.path).removeprefix(b"\xff/")


def test_the_listing_does_not_depend_on_the_order_of_creation(tmp_path: pathlib.Path) -> None:
    names = [f"{folder}/{index}.jpg" for folder in ("x", "x-y", "x.z") for index in range(20)]

    def listed(root: str, order: list[str]) -> list[tuple[str, int]]:
        for name in order:
            storage.put_bytes(f"{tmp_path}/{root}/{name}", name.encode())
        return [(f.path, f.num_bytes) for f in open_source(root, str(tmp_path)).list()]

    shuffled = names[:]
    random.Random(0).shuffle(shuffled)
    assert listed("one", names) == listed("two", shuffled)


def test_stamps_tell_a_file_put_in_place_with_its_old_time(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "a.jpg"

    def put(content: bytes) -> SourceFile:
        path.write_bytes(content)
        os.utime(path, ns=(10**18, 10**18))
        (file,) = open_source("a.jpg", str(tmp_path)).list()
        return file

    before, after = put(b"one"), put(b"two")
    assert before.num_bytes == after.num_bytes
    assert before.stamp != after.stamp


def test_a_side_file_that_changes_meanwhile_is_told(tmp_path: pathlib.Path) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "labels.csv").write_bytes(b"a,b\n")
    opened = open_source("images", str(tmp_path))
    held = opened.expecting({"labels.csv": opened.side_digest("labels.csv")})
    assert held.read_side("labels.csv") == b"a,b\n"
    (tmp_path / "labels.csv").write_bytes(b"a,c\n")
    assert opened.read_side("labels.csv") == b"a,c\n"
    with pytest.raises(StorageError, match=r"labels\.csv changed while the build read it"):
        held.read_side("labels.csv")


def test_a_member_of_a_zip_that_bears_the_name_of_a_folder_is_not_lost(
    tmp_path: pathlib.Path,
) -> None:
    with zipfile.ZipFile(tmp_path / "source.zip", "w") as archive:
        archive.writestr("dog/", b"")
        archive.writestr("dog/1.jpg", b"x")
        archive.writestr("cat/1.jpg", b"bytes")
    content = (tmp_path / "source.zip").read_bytes()
    name = content.rindex(b"cat/1.jpg")
    damaged = content[:name] + b"cat/\0\0\0\0g" + content[name + 9 :]
    (tmp_path / "source.zip").write_bytes(damaged)
    found = {file.path: file.problem for file in open_source("source.zip", str(tmp_path)).list()}
    assert found["dog/1.jpg"] == ""
    assert "name of a folder" in found["cat"]


def test_members_of_a_zip_are_where_unpacking_puts_them(tmp_path: pathlib.Path) -> None:
    names = ("./dog/1.jpg", "dog//2.jpg", "dog/./3.jpg", "dog/3.jpg", "/dog/1.jpg", "./")
    with zipfile.ZipFile(tmp_path / "source.zip", "w") as archive:
        for name in names:
            archive.writestr(name, name)
    opened = open_source("source.zip", str(tmp_path))
    listed = {file.path: file.problem for file in opened.list()}
    assert sorted(path for path, problem in listed.items() if not problem) == [
        *("dog/1.jpg", "dog/2.jpg", "dog/3.jpg"),
    ]
    assert opened.read("dog/1.jpg") == b"./dog/1.jpg"
    assert opened.read("dog/3.jpg") == b"dog/3.jpg"
    assert sorted(filter(None, listed.values())) == [
        "name of a folder, and bytes as a file has them",
        LEADS_OUT,
        REPLACED,
    ]


def test_a_glob_beside_a_source_is_one_table(tmp_path: pathlib.Path) -> None:
    for name, text in {
        "a/l.csv": "file,label\n1,x",
        "b/l.csv": "file,label\n2,y\n",
        "c": "",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    opened = open_source(str(tmp_path), str(tmp_path))
    joined = b"file,label\n1,x\n2,y\n"
    assert opened.read_side("*/l.csv") == joined
    assert opened.side_digest("*/l.csv") == hashlib.sha256(joined).hexdigest()
    for url in ("*/no.csv", ".", "a"):
        with pytest.raises(RecipeError, match=r"does not exist|is a folder, or a glob"):
            opened.read_side(url)


@pytest.mark.parametrize(
    "heads", [("file,a,b", "file,b,a"), ("file,a", "file,a", "file,b"), ("file;a", "a;file")]
)
def test_parts_of_a_table_with_other_columns_are_refused(
    tmp_path: pathlib.Path, heads: tuple[str, ...]
) -> None:
    for number, head in enumerate(heads):
        (tmp_path / f"{number}.csv").write_text(f"{head}\n{number}.wav,x,y\n")
    with pytest.raises(DataError, match="Parts of a table begin with"):
        open_source(str(tmp_path), str(tmp_path)).read_side("*.csv")
