"""A store's key is a string, not a path: all that it lists is a record, a reject, or counted."""

import http.server
import io
import json
import re
import threading
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import gcsfs
import pytest
import s3fs
from fsspec.implementations.memory import MemoryFile, MemoryFileSystem
from PIL import Image as PillowImage

import snapshard as ss
from snapshard.schemas.errors import StorageError
from snapshard.transforms import storage
from snapshard.transforms.storage.opened_source import open_source

from ..pipelines.read_records import read_blocks, survey_of

KEYS = (
    *("x.txt", "/x.txt", "//x.txt", "./x.txt", "../x.txt", "e//x.txt", "e/x.txt", "e/./x.txt"),
    *("a b+c%20?#é.txt", "new\nline.txt", "_SUCCESS", ".hidden.txt", "e/f", "e/f/x.txt", "e/g/"),
)
"""Below the folder ``d``; the last one has bytes, though it is named as a folder is."""
MARKS = ("", "e/h/")
"""Keys without bytes, as consoles make them for folders."""
FOLDER = "name of a folder, and bytes as a file has them"


class _Server(http.server.BaseHTTPRequestHandler):
    """The bucket ``bucket`` on S3, by its path, and on GCS."""

    protocol_version = "HTTP/1.1"
    keys: ClassVar[dict[str, bytes]] = {}
    page_keys = 5
    damage = ""

    def do_GET(self) -> None:
        where, _, query = self.path.partition("?")
        asked = dict(urllib.parse.parse_qsl(query, keep_blank_values=True))
        key = urllib.parse.unquote(where.removeprefix("/bucket/"))
        if where.startswith("/download/storage"):
            key = urllib.parse.unquote(where.rpartition("/o/")[2])
        if "list-type" in asked:
            self._answer(self._s3_page(asked).encode())
        elif where == "/storage/v1/b/bucket/o":
            self._answer(self._gcs_page(asked).encode())
        elif where.startswith("/storage/v1/b/bucket/o/"):
            key = urllib.parse.unquote(where.rpartition("/o/")[2])
            self._answer(json.dumps(_object(key)).encode(), is_there=key in self.keys)
        else:
            self._answer(self.keys.get(key, b""), is_there=key in self.keys)

    do_HEAD = do_GET

    def _answer(self, content: bytes, *, is_there: bool = True) -> None:
        first, status = 0, 200 if is_there else 404
        if is_there and (span := re.match(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))):
            status, total, first = 206, len(content), int(span[1])
            content = content[first : int(span[2]) + 1]
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("ETag", '"tag"')
        if status == 206:
            self.send_header("Content-Range", f"bytes {first}-{first + len(content) - 1}/{total}")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _page(self, asked: dict[str, str]) -> tuple[list[str], list[str], bool, int]:
        """The keys and folders of a page, whether more follow, and from which place on."""
        prefix, delimiter = asked.get("prefix", ""), asked.get("delimiter", "")
        token = asked.get("continuation-token") or asked.get("pageToken") or "0"
        entries = {}
        for key in sorted(self.keys):
            if key.startswith(prefix):
                inside, mark, _ = key[len(prefix) :].partition(delimiter or "\0")
                entries[prefix + inside + mark] = bool(mark)
        stop = int(token) + int(asked.get("max-keys", self.page_keys))
        page = list(entries.items())[int(token) : stop]
        keys = [name for name, is_folder in page if not is_folder]
        return keys, [name for name, is_folder in page if is_folder], stop < len(entries), stop

    def _s3_page(self, asked: dict[str, str]) -> str:
        keys, folders, has_more, stop = self._page(asked)
        if stop > self.page_keys and self.damage == "no body":
            return ""
        contents = [
            f"<Contents><Key>{urllib.parse.quote(key)}</Key><Size>{len(self.keys[key])}</Size>"
            "<ETag>&quot;tag&quot;</ETag><LastModified>2026-01-01T00:00:00Z</LastModified>"
            "</Contents>"
            for key in keys
        ]
        num_keys = len(keys) + len(folders)
        if stop > self.page_keys and self.damage == "no keys":
            contents, has_more = [], False
        if stop > self.page_keys and self.damage == "no token":
            stop = 0
        prefixes = [f"<CommonPrefixes><Prefix>{f}</Prefix></CommonPrefixes>" for f in folders]
        more = f"<NextContinuationToken>{stop}</NextContinuationToken>" if has_more and stop else ""
        return (
            "<?xml version='1.0'?><ListBucketResult xmlns='http://s3.amazonaws.com/doc/2006-03-01/'>"
            f"<Name>bucket</Name><KeyCount>{num_keys}</KeyCount><EncodingType>url</EncodingType>"
            f"<IsTruncated>{str(has_more).lower()}</IsTruncated>{more}"
            f"{''.join(contents)}{''.join(prefixes)}</ListBucketResult>"
        )

    def _gcs_page(self, asked: dict[str, str]) -> str:
        keys, folders, has_more, stop = self._page(asked)
        page = {"kind": "storage#objects", "items": [_object(key) for key in keys]}
        page |= {"prefixes": folders} if folders else {}
        return json.dumps(page | ({"nextPageToken": str(stop)} if has_more else {}))

    def log_message(self, *_: object) -> None:
        pass


class _Quiet(http.server.ThreadingHTTPServer):
    def handle_error(self, request: object, client_address: object) -> None:
        """A client may leave before it has the whole answer."""


def _object(key: str) -> dict[str, str]:
    size = len(_Server.keys.get(key, b""))
    return {
        "kind": "storage#object",
        "name": key,
        "size": str(size),
        "generation": "1",
        "bucket": "bucket",
    }


@pytest.fixture(scope="module")
def _server() -> Iterator[None]:
    """S3 and GCS of this process are the server."""
    with _Quiet(("127.0.0.1", 0), _Server) as server, pytest.MonkeyPatch.context() as patched:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for name in ("AWS_ENDPOINT_URL", "STORAGE_EMULATOR_HOST"):
            patched.setenv(name, f"http://127.0.0.1:{server.server_port}")
        patched.setenv("AWS_ACCESS_KEY_ID", "key")
        patched.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        for kind in (s3fs.S3FileSystem, gcsfs.GCSFileSystem):
            kind.clear_instance_cache()
        yield
        for kind in (s3fs.S3FileSystem, gcsfs.GCSFileSystem):
            kind.clear_instance_cache()
        server.shutdown()


@pytest.fixture(params=["s3", "gs", "memory"])
def store(
    request: pytest.FixtureRequest, _server: None, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """A bucket with the keys in ``_Server.keys``, by its URL."""
    monkeypatch.setattr(_Server, "keys", {})
    yield f"{request.param}://bucket"
    if request.param == "memory":
        MemoryFileSystem.store.clear()


def put(store: str, keys: dict[str, bytes]) -> None:
    _Server.keys.update(keys)
    if store.startswith("memory"):
        files = MemoryFileSystem()
        for key, content in keys.items():
            files.store[f"/bucket/{key}"] = MemoryFile(files, f"/bucket/{key}", content)


def contents(*, of: str) -> dict[str, bytes]:
    """What the keys below ``d`` hold; memory holds no file that has the name of a folder."""
    keys = [key for key in KEYS if of != "memory" or key != "e/f"]
    return {key: f"line of {key!r}\n".encode() for key in keys}


def put_all(store: str) -> dict[str, bytes]:
    found = contents(of=store.partition(":")[0])
    put(store, {f"d/{key}": content for key, content in found.items()})
    put(store, {f"d/{key}": b"" for key in MARKS})
    put(store, {"other/x.txt": b"of another folder\n"})
    return found


def test_every_key_is_listed_and_read(store: str) -> None:
    expected = put_all(store)
    opened = open_source(f"{store}/d", "/")
    listed = {file.path: file for file in opened.list()}
    assert listed.keys() == expected.keys()
    assert {path for path, file in listed.items() if file.problem} == {"e/g/"}
    assert listed.pop("e/g/").problem == FOLDER
    for path, file in listed.items():
        proven = opened.proving([file])
        assert file.num_bytes == len(expected[path])
        assert proven.read(path) == expected[path]
        assert b"".join(proven.chunks(path, chunk_bytes=7)) == expected[path]
        proven.check()
    assert storage.sizes(f"{store}/d").keys() >= expected.keys() - {"e/g/"}
    assert {"..", "e", "x.txt"} <= set(storage.list_names(f"{store}/d"))


def test_a_key_alone_is_that_key(store: str) -> None:
    expected = put_all(store)
    for key in expected.keys() - {"e/g/", "a b+c%20?#é.txt"}:  # "?" is a wildcard
        opened = open_source(f"{store}/d/{key}", "/")
        (file,) = opened.list()
        assert opened.proving([file]).read(file.path) == expected[key], key


@pytest.mark.parametrize(
    ("glob", "paths"),
    [
        ("d/*.txt", ["a b+c%20?#é.txt", "new\nline.txt", "x.txt", ".hidden.txt"]),
        ("d//*.txt", ["x.txt"]),
        ("d///*", ["x.txt"]),
        ("d//**/*.txt", ["/x.txt", "x.txt"]),
        ("d/e//*", ["x.txt"]),
        ("d/*/x.txt", ["/x.txt", "./x.txt", "../x.txt", "e/x.txt"]),
    ],
)
def test_globs(store: str, glob: str, paths: list[str]) -> None:
    expected = put_all(store)
    opened = open_source(f"{store}/{glob}", "/")
    listed = [file.path for file in opened.list()]
    assert sorted(listed) == sorted(paths)
    folder = opened.root.partition("bucket/d")[2]
    for path in listed:
        assert opened.read(path) == expected[f"{folder}/{path}"[1:]]


@pytest.mark.parametrize(("kind", "num_hidden"), [(ss.TextFiles, 2), (ss.ImageFolder, 1)])
def test_every_key_is_a_record_a_reject_or_counted(
    store: str, kind: Any, num_hidden: int, tmp_path: Path
) -> None:
    expected = put_all(store)
    if kind is ss.ImageFolder:
        file = io.BytesIO()
        PillowImage.new("RGB", (4, 4)).save(file, "PNG")
        put(store, {f"d/{key}": file.getvalue() for key in expected})
    recipe = ss.Recipe(
        name="keys", source=kind(f"{store}/d"), splits=ss.Splits(train=1.0), max_rejects=99
    )
    survey = survey_of(recipe, tmp_path)
    found = read_blocks(survey, tmp_path)
    skipped = survey.inventory.num_skipped
    assert found.rejects["e/g/"].reason == FOLDER
    assert skipped["hidden file"] == num_hidden
    assert len(found.records) + len(found.rejects) + sum(skipped.values()) == len(expected)
    if kind is ss.ImageFolder:
        assert survey.features.raw["label"] == ss.ClassLabel(("e",))  # not "", "." and ".."
    else:
        texts = [expected[key][:-1] for key in expected if re.search(r"[^n]\.txt$", key)]
        assert sorted(record["text"] for record in found.records.values()) == sorted(texts)


@pytest.mark.parametrize("store", ["s3"], indirect=True)
@pytest.mark.parametrize("damage", ["no body", "no keys", "no token"])
@pytest.mark.parametrize(
    "use",
    [
        lambda url: open_source(url, "/").list(),
        storage.list_names,
        storage.walk,
        storage.sizes,
    ],
)
def test_a_page_that_is_not_what_it_says_is_no_end(
    store: str, damage: str, use: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, {f"d/{number:02}.txt": b"x" for number in range(12)})
    assert len(use(f"{store}/d")) == 12
    monkeypatch.setattr(_Server, "damage", damage)
    with pytest.raises(StorageError, match=r"Cannot list s3://bucket/d: a page of the listing"):
        use(f"{store}/d")
