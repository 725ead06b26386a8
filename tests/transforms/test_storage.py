"""Storage: atomic durable puts, ranges, and errors that tell what helps and no secret."""

from __future__ import annotations

import contextlib
import doctest
import errno
import itertools
import os
import pathlib
import shutil
import stat
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from snapshard.schemas.errors import RecipeError, SnapshardError, StorageError
from snapshard.transforms import storage
from snapshard.transforms.storage import failures as storage_failures
from snapshard.transforms.storage import local as storage_local
from snapshard.transforms.storage import redaction


@pytest.fixture(params=["local", "memory"])
def root(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> Iterator[str]:
    """A folder to write to, on each kind of store."""
    if request.param == "local":
        yield str(tmp_path)
        return
    url = f"memory://test_storage/{tmp_path.name}"
    yield url
    storage.remove_tree(url)


def _raising(error: BaseException) -> Callable[..., Any]:
    def fail(*_: object, **__: object) -> None:
        raise error

    return fail


@pytest.mark.parametrize(
    ("url", "local"),
    [
        ("data/train", True),
        ("/data/what::ever", True),
        ("file:///data", True),
        ("gs://bucket/data", False),
        ("memory://data", False),
        ("zip://*::/data/a.zip", False),
        ("simplecache::/data/a.zip", False),
    ],
)
def test_tells_local_urls(url: str, local: bool) -> None:
    assert storage.is_local(url) is local


def test_local_path_refuses_remote_urls() -> None:
    assert storage.local_path("file:///data/a") == "/data/a"
    with pytest.raises(ValueError, match="not a local path"):
        storage.local_path("gs://bucket/a")


def test_puts_and_reads(root: str) -> None:
    url = f"{root}/new/folders/a.bin"
    assert not storage.exists(url)
    storage.put_bytes(url, b"0123456789")
    storage.put_bytes(url, b"abcdefghij")
    assert storage.exists(url)
    assert storage.exists(f"{root}/new/folders")
    assert storage.num_bytes(url) == 10
    assert storage.read_bytes(url) == b"abcdefghij"
    assert storage.read_bytes(url, 3) == b"defghij"
    assert storage.read_bytes(url, 3, 5) == b"de"
    assert storage.read_bytes(url, 3, 3) == b""
    assert storage.read_bytes(url, 8, 99) == b"ij"
    assert storage.list_names(f"{root}/new/folders") == ["a.bin"]
    assert storage.list_names(f"{root}/new") == ["folders"]
    assert storage.list_names(f"{root}/absent") == []


def test_a_put_into_the_current_folder(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    storage.put_bytes("a.bin", b"content")
    assert (tmp_path / "a.bin").read_bytes() == b"content"


def test_put_file_moves(root: str, tmp_path: pathlib.Path) -> None:
    scratch = tmp_path / "scratch.bin"
    scratch.write_bytes(b"content")
    storage.put_file(str(scratch), f"{root}/to/a.bin")
    assert storage.read_bytes(f"{root}/to/a.bin") == b"content"
    assert not scratch.exists()


def test_put_file_renames_on_one_filesystem(tmp_path: pathlib.Path) -> None:
    scratch = tmp_path / "scratch.bin"
    scratch.write_bytes(b"content")
    inode = scratch.stat().st_ino
    storage.put_file(str(scratch), str(tmp_path / "to" / "a.bin"))
    assert (tmp_path / "to" / "a.bin").stat().st_ino == inode


def test_put_file_copies_between_filesystems(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = tmp_path / "scratch.bin"
    scratch.write_bytes(b"content")
    replace = os.replace

    def replace_within(source: str, target: str) -> None:
        if source == str(scratch):
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        replace(source, target)

    monkeypatch.setattr(os, "replace", replace_within)
    storage.put_file(str(scratch), str(tmp_path / "to" / "a.bin"))
    assert (tmp_path / "to" / "a.bin").read_bytes() == b"content"
    assert os.listdir(tmp_path) == ["to"]
    assert os.listdir(tmp_path / "to") == ["a.bin"]


def test_files_of_a_disk_and_of_a_store_are_put_in_order(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As shards that describe themselves in a workspace elsewhere."""
    places = [f"{tmp_path}/to/a", f"{tmp_path}/to/b", "memory://put/c", "memory://put/d"]
    for urls in (places, places[::-1]):
        put: list[str] = []
        files = []
        for number, url in enumerate(urls):
            (tmp_path / str(number)).write_bytes(url.encode())
            files.append((str(tmp_path / str(number)), url))
        remote = storage._put_remotely

        def put_remotely(file: tuple[str, str], remote: Any = remote, put: Any = put) -> None:
            put.append(file[1])
            remote(file)

        monkeypatch.setattr(storage, "_put_remotely", put_remotely)
        storage.put_files(files)
        monkeypatch.setattr(storage, "_put_remotely", remote)
        assert [storage.read_bytes(url).decode() for url in places] == places
        assert sorted(put) == places[2:]
        storage.remove_tree(f"{tmp_path}/to")
        storage.remove_tree("memory://put")


def test_a_put_is_synced_before_it_is_named(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    fsync, replace = os.fsync, os.replace

    def recording_fsync(descriptor: int) -> None:
        is_folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        done.append("sync folder" if is_folder else "sync file")
        fsync(descriptor)

    def recording_replace(source: str, target: str) -> None:
        done.append("rename")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", recording_fsync)
    monkeypatch.setattr(os, "replace", recording_replace)
    storage.put_bytes(str(tmp_path / "a"), b"x")
    assert done == ["sync file", "rename", "sync folder"]
    done.clear()
    storage.put_file(str(tmp_path / "a"), str(tmp_path / "b"))
    assert done == ["sync file", "rename", "sync folder"]

    done.clear()
    storage.put_files([(str(tmp_path / "b"), str(tmp_path / "c"))])
    for name in "de":
        (tmp_path / name).write_bytes(b"x")
    done.clear()
    storage.put_files([(str(tmp_path / name), str(tmp_path / f"to-{name}")) for name in "cde"])
    assert done == [*["sync file"] * 3, *["rename"] * 3, "sync folder"]


@pytest.mark.parametrize("function", ["replace", "fsync"])
@pytest.mark.parametrize("failing", range(5))
def test_files_that_are_put_together_are_all_there_or_none(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, function: str, failing: int
) -> None:
    files = [(str(tmp_path / f"local-{n}"), str(tmp_path / "to" / f"{n}")) for n in range(4)]
    for local, _ in files:
        pathlib.Path(local).write_bytes(b"after")
    storage.put_bytes(files[1][1], b"before")
    original, calls = getattr(os, function), itertools.count()

    def fail(*arguments: Any) -> None:
        if next(calls) == failing:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        original(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(os, function, fail)
        if function == "replace" and failing == 4:
            storage.put_files(files)
            assert sorted(os.listdir(tmp_path / "to")) == ["0", "1", "2", "3"]
            return
        with pytest.raises(StorageError, match="input/output error"):
            storage.put_files(files)
    assert os.listdir(tmp_path / "to") == ["1"]


def test_a_put_file_has_the_usual_permissions(tmp_path: pathlib.Path) -> None:
    (tmp_path / "usual").write_bytes(b"")
    storage.put_bytes(str(tmp_path / "put"), b"")
    assert (tmp_path / "put").stat().st_mode == (tmp_path / "usual").stat().st_mode


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space"), KeyboardInterrupt()])
@pytest.mark.parametrize("function", ["replace", "fsync"])
def test_a_failed_put_leaves_all_as_it_was(
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
    function: str,
) -> None:
    storage.put_bytes(str(tmp_path / "a"), b"before")
    with monkeypatch.context() as patched:
        patched.setattr(os, function, _raising(error))
        with pytest.raises((StorageError, KeyboardInterrupt)) as raised:
            storage.put_bytes(str(tmp_path / "a"), b"after")
    if isinstance(error, OSError):
        assert "no space left" in str(raised.value)
    assert os.listdir(tmp_path) == ["a"]
    assert (tmp_path / "a").read_bytes() == b"before"


def test_temporary_names_are_known(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def look(source: str, _: str) -> None:
        seen.append(os.path.basename(source))

    monkeypatch.setattr(os, "replace", look)
    storage.put_bytes(str(tmp_path / "a"), b"x")
    assert len(seen) == 1
    assert storage.TEMPORARY.fullmatch(seen[0])


def test_settle_removes_what_killed_processes_left(tmp_path: pathlib.Path) -> None:
    storage.put_bytes(str(tmp_path / "index" / "a"), b"x")
    (tmp_path / "index" / f".{'0' * 32}.tmp").write_bytes(b"half")
    (tmp_path / ".hidden.tmp").write_bytes(b"a user's")
    storage.settle(str(tmp_path))
    assert storage.walk(str(tmp_path)) == [".hidden.tmp", "index/a"]


def test_put_while_another_process_settles(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace, settled = os.replace, []

    def replace_settled(source: str, target: str) -> None:
        if not settled:
            settled.append(source)
            storage.settle(str(tmp_path))
        replace(source, target)

    monkeypatch.setattr(os, "replace", replace_settled)
    storage.put_bytes(str(tmp_path / "a"), b"x")
    assert settled
    assert storage.walk(str(tmp_path)) == ["a"]
    assert (tmp_path / "a").read_bytes() == b"x"


def test_put_file_between_filesystems_while_another_process_settles(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch, to = tmp_path / "scratch.bin", tmp_path / "to"
    scratch.write_bytes(b"content")
    replace, copyfile, settled = os.replace, shutil.copyfile, []

    def replace_within(source: str, target: str) -> None:
        if source == str(scratch):
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        replace(source, target)

    def copy_settled(source: str, target: str) -> None:
        copyfile(source, target)
        if not settled:
            settled.append(target)
            storage.settle(str(to))

    monkeypatch.setattr(os, "replace", replace_within)
    monkeypatch.setattr(shutil, "copyfile", copy_settled)
    storage.put_file(str(scratch), str(to / "a.bin"))
    assert settled
    assert (to / "a.bin").read_bytes() == b"content"
    assert os.listdir(tmp_path) == ["to"]
    assert os.listdir(to) == ["a.bin"]


@pytest.mark.parametrize("put", ["put_bytes", "put_file"])
def test_put_while_empty_folders_are_removed(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, put: str
) -> None:
    """As garbage collection does where no lock keeps it out."""
    make_folders, left = storage_local.make_folders, {"once": 1, "always": 10**6}

    def make_and_lose(folder: str) -> None:
        make_folders(folder)
        name = os.path.basename(folder)
        if left.get(name):
            left[name] -= 1
            os.rmdir(folder)

    monkeypatch.setattr(storage_local, "make_folders", make_and_lose)
    scratch = tmp_path / "scratch.bin"
    scratch.write_bytes(b"content")

    def put_at(url: str) -> None:
        if put == "put_bytes":
            storage.put_bytes(url, b"content")
        else:
            storage.put_file(str(scratch), url)

    with pytest.raises(StorageError):
        put_at(str(tmp_path / "always" / "a"))
    assert scratch.exists()
    put_at(str(tmp_path / "once" / "a"))
    assert (tmp_path / "once" / "a").read_bytes() == b"content"


def test_remove_tree(root: str) -> None:
    storage.put_bytes(f"{root}/tree/a", b"x")
    storage.put_bytes(f"{root}/tree/b/c", b"x")
    storage.remove_tree(f"{root}/tree/b/c")
    assert not storage.exists(f"{root}/tree/b/c")
    storage.remove_tree(f"{root}/tree")
    assert not storage.exists(f"{root}/tree/a")
    storage.remove_tree(f"{root}/tree")


def test_remove_tree_does_not_follow_links(tmp_path: pathlib.Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "a").write_bytes(b"x")
    (tmp_path / "link").symlink_to("kept")
    storage.remove_tree(str(tmp_path / "link"))
    assert not (tmp_path / "link").is_symlink()
    assert (tmp_path / "kept" / "a").exists()


def test_walk(root: str) -> None:
    for path in ("b/c/d", "a", "b/e"):
        storage.put_bytes(f"{root}/{path}", b"x")
    assert storage.walk(root) == ["a", "b/c/d", "b/e"]
    assert storage.walk(f"{root}/absent") == []


def test_sizes(root: str) -> None:
    for path, content in (("b/c/d", b""), ("a", b"12"), ("b/e", b"1")):
        storage.put_bytes(f"{root}/{path}", content)
    assert storage.sizes(root) == {"a": 2, "b/c/d": 0, "b/e": 1}
    assert storage.sizes(f"{root}/absent") == {}


def test_sizes_where_files_come_and_go(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another build of the same snapshot puts its files there."""
    for name in ("a", f".{'0' * 32}.tmp"):
        storage.put_bytes(str(tmp_path / name), b"x")
    stat = os.stat

    def gone(path: Any, **options: Any) -> os.stat_result:
        if str(path).endswith(".tmp"):
            os.unlink(path)
        return stat(path, **options)

    monkeypatch.setattr(os, "stat", gone)
    assert storage.sizes(str(tmp_path)) == {"a": 1}


def test_scratch_lies_beside_the_workspace_and_is_removed(tmp_path: pathlib.Path) -> None:
    with storage.scratch_folder(str(tmp_path)) as folder:
        assert os.path.dirname(folder) == str(tmp_path / "scratch")
        assert os.path.basename(folder).startswith(storage.SCRATCH)
        (pathlib.Path(folder) / "a").write_bytes(b"x")
    assert not os.path.exists(folder)
    with storage.scratch_folder("memory://work") as folder:
        assert os.path.isdir(folder)
    assert not os.path.exists(folder)


def test_absolute(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert storage.absolute("out") == str(tmp_path / "out")
    assert storage.absolute("gs://bucket/out") == "gs://bucket/out"


def test_a_file_of_the_expected_length_is_read_and_no_other(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "file"
    for content in (b"", b"ab"):
        path.write_bytes(content)
        found = [storage.read_expected(str(path), length) for length in range(4)]
        assert found == [content if length == len(content) else None for length in range(4)]
    assert storage.read_expected(str(tmp_path / "missing"), 2) is None
    assert storage.read_expected(str(tmp_path), 2) is None


def test_reads_from_archives(tmp_path: pathlib.Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("folder/a.txt", b"0123456789" * 1000)
    url = f"zip://folder/a.txt::{tmp_path}/a.zip"
    assert storage.num_bytes(url) == 10_000
    assert storage.read_bytes(url, 5_003, 5_006) == b"345"


@pytest.mark.parametrize(
    ("act", "said"),
    [
        (lambda folder: storage.read_bytes(f"{folder}/absent"), "absent: it does not exist"),
        (lambda folder: storage.read_bytes(folder), "it is a folder, expected a file"),
        (lambda folder: storage.num_bytes("memory://absent/a"), "it does not exist"),
        (lambda folder: storage.put_bytes(f"{folder}/file/a", b""), "is a file, expected a folder"),
        (lambda folder: storage.put_bytes(f"{folder}/folder", b""), "it is a folder"),
        (lambda folder: storage.list_names(f"{folder}/file"), "is a file, expected a folder"),
        (lambda folder: storage.put_file(f"{folder}/no", f"{folder}/b"), "it does not exist"),
    ],
    ids=["absent", "read-folder", "absent-remote", "under-file", "over-folder", "list", "put"],
)
def test_failures_are_told(tmp_path: pathlib.Path, act: Callable[[str], Any], said: str) -> None:
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "folder").mkdir()
    with pytest.raises(StorageError, match=said):
        act(str(tmp_path))
    assert sorted(os.listdir(tmp_path)) == ["file", "folder"]


@pytest.mark.parametrize("url", ["foo://ann:secret@host/a", "foo://host/a?key=secret"])
def test_an_unknown_protocol_is_the_recipes_fault(url: str) -> None:
    with pytest.raises(RecipeError, match="Protocol not known: foo") as raised:
        storage.exists(url)
    assert "secret" not in str(raised.value)


class _NoCredentialsError(Exception):
    pass


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (PermissionError(13, "Permission denied"), "permission denied"),
        (OSError(errno.EDQUOT, "Quota"), "no space left"),
        (OSError(errno.EROFS, "Read-only"), "read-only"),
        (_NoCredentialsError("see https://a:secret@b/?sig=secret"), "no valid credentials"),
        (RuntimeError("GET https://host/a?X-Amz-Signature=secret&b=secret: 503"), "503"),
        (RuntimeError("memory://ann:se/cr@et@host refused"), "refused"),
    ],
)
def test_failing_stores_are_told_without_secrets(
    monkeypatch: pytest.MonkeyPatch, error: Exception, said: str
) -> None:
    found, _ = storage.filesystem("memory://a")
    monkeypatch.setattr(type(found), "info", _raising(error))
    with pytest.raises(StorageError, match=said) as raised:
        storage.exists("memory://ann:secret@host/a?token=secret")
    assert "secret" not in str(raised.value)
    assert "et@host" not in str(raised.value)
    assert raised.value.__suppress_context__


def test_defects_are_not_dressed_up(monkeypatch: pytest.MonkeyPatch) -> None:
    found, _ = storage.filesystem("memory://a")
    monkeypatch.setattr(type(found), "info", _raising(TypeError("a defect")))
    with pytest.raises(TypeError, match="a defect"):
        storage.exists("memory://a")


def test_what_tensorflow_makes_of_a_full_disk_is_told(tmp_path: pathlib.Path) -> None:
    """It has a class of its own, and no number."""
    kind = type("ResourceExhaustedError", (Exception,), {"__module__": "tensorflow.errors"})
    with (
        pytest.raises(StorageError, match=f"Cannot write {tmp_path}.*: no space left"),
        storage.scratch_folder(str(tmp_path)),
    ):
        raise kind("/a/saved_model.pb; No space left on device")
    with pytest.raises(kind), storage.scratch_folder(str(tmp_path)):
        raise kind("OOM when allocating a tensor")


def test_an_error_of_other_code_passes_unchanged_whatever_it_says(tmp_path: pathlib.Path) -> None:
    with (
        pytest.raises(RuntimeError, match=r"^batch 7: No space left on device$"),
        storage.scratch_folder(str(tmp_path)),
    ):
        raise RuntimeError("batch 7: No space left on device")


def _fill_up(near: str) -> None:
    with storage.scratch_folder(near) as folder:
        (pathlib.Path(folder) / "a").write_bytes(b"")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_scratch_that_may_not_be_removed_is_left(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the first error, not one of the removal, and not without end."""
    monkeypatch.setattr(os, "unlink", _raising(PermissionError(errno.EACCES, "Permission denied")))
    with pytest.raises(StorageError, match="no space left"):
        _fill_up(str(tmp_path))
    assert len(list(tmp_path.rglob("a"))) == 1


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("/data/what@ever?a=b.csv", "/data/what@ever?a=b.csv"),
        ("s3://bucket/img?.jpg", "s3://bucket/img?.jpg"),
        ("sftp://ann@host/a", "sftp://***@host/a"),
        ("https://host:8080/a", "https://host:8080/a"),
        ("zip://*::https://a:b@h/x.zip?se=1&sig=2", "zip://*::https://***@h/x.zip?se=***&sig=***"),
    ],
)
def test_redacts(text: str, shown: str) -> None:
    assert storage.redact(text) == shown


def test_a_reader_that_has_enough_is_no_failure_of_a_file() -> None:
    with pytest.raises(BrokenPipeError), storage_failures.os_errors_as_storage_errors("use", "a"):
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def test_errors_on_purpose_pass_unchanged() -> None:
    with (
        pytest.raises(SnapshardError, match=r"^mine$"),
        storage.failing_as_storage_error("read", "a"),
    ):
        raise SnapshardError("mine")


def test_doctests() -> None:
    assert [doctest.testmod(module).failed for module in (storage, redaction)] == [0, 0]


def test_a_folder_in_use_is_not_abandoned(tmp_path: pathlib.Path) -> None:
    near = str(tmp_path / "work")
    with storage.scratch_folder(near) as folder:
        storage.remove_abandoned_scratch(near)
        assert pathlib.Path(folder).is_dir()
    assert not pathlib.Path(folder).exists()


_HOLDER = """
import sys, time
from snapshard.transforms.storage import scratch_folder, temporary_folder
with scratch_folder(sys.argv[1]) as scratch, temporary_folder() as temporary:
    open(scratch + "/half", "w").close()
    print(scratch, temporary, sep="\\n", flush=True)
    time.sleep(300)
"""


def test_what_killed_processes_left_is_removed_and_what_others_use_is_not(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    (tmp_path / "tmp" / "snapshard-of-somebody").mkdir()
    (tmp_path / "link").mkdir()
    (tmp_path / "tmp" / "snapshard-link.held").symlink_to(tmp_path / "link")
    near = str(tmp_path / "work")
    command = [sys.executable, "-c", _HOLDER, near]
    with contextlib.ExitStack() as closing:
        started = [
            closing.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
            for _ in range(2)
        ]
        folders = []
        for process in started:
            assert process.stdout is not None
            folders.append([pathlib.Path(process.stdout.readline().strip()) for _ in range(2)])
        dead, alive = started
        dead.kill()
        dead.wait()
        for _ in range(2):
            storage.remove_abandoned_scratch(near)
            storage.remove_abandoned_folders(str(tmp_path / "tmp"))
            assert [[folder.is_dir() for folder in of] for of in folders] == [
                [False] * 2,
                [True] * 2,
            ]
        alive.kill()
    storage.remove_abandoned_scratch("memory://work")
    storage.remove_abandoned_folders(str(tmp_path / "nowhere"))
    assert (tmp_path / "link").is_dir()
    assert (tmp_path / "tmp" / "snapshard-of-somebody").is_dir()
