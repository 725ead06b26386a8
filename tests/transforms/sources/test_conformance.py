"""What every source guarantees: each test is one guarantee, asked of every source.

Sources are listed, inferred, cut and read as a build and its workers do, without the engine.
"""

import dataclasses
import functools
import gzip
import inspect
import json
import re
import tarfile
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import fsspec
import pytest

import snapshard as ss
from snapshard.schemas.blocks import SourceFile
from snapshard.schemas.errors import (
    DataError,
    RecipeError,
    SnapshardError,
    StorageError,
)
from snapshard.schemas.features import Features, flatten
from snapshard.schemas.recipe import ExtractedSource, Source
from snapshard.transforms.sources import numpy

from ...file_bytes import tar_of, write, zip_of
from ...listing import list_backwards
from ...pipelines.read_records import ReadRecords, read_raw, survey_of
from ...small_blocks import small_blocks
from ..test_opened_source import another_user
from .subjects import BAD, BIG, IN_FILES, SUBJECTS, At, Groups, Row, Subject

GROUPS: Groups = [range(10, 20), range(20, 29)]
GARBAGE = b"\x80 of no format\x81" * 30

every_source = pytest.mark.parametrize("subject", SUBJECTS.values(), ids=SUBJECTS)
every_source_of_files = pytest.mark.parametrize("subject", IN_FILES.values(), ids=IN_FILES)


def recipe_of(source: Any, **settings: Any) -> ss.Recipe:
    return ss.Recipe(name="made", source=source, splits=ss.Splits(train=1.0), **settings)


def read(source: Any, folder: Path, **settings: Any) -> ReadRecords:
    return read_raw(survey_of(recipe_of(source, **settings), folder), folder)


@functools.cache
def good(subject: Subject) -> tuple[ReadRecords, Features]:
    """The records of undamaged files on this machine, and their features after all steps."""
    with tempfile.TemporaryDirectory() as name:
        survey = survey_of(recipe_of(subject.put(Path(name), GROUPS)), Path(name))
        return read_raw(survey, Path(name)), survey.features.prepared


def rows_of(found: ReadRecords) -> list[Row]:
    """The columns of records in the order of ids: positions are numbers."""

    def place(record_id: str) -> tuple[str, int]:
        path, _, position = record_id.rpartition("#")
        return (path, int(position)) if path else (record_id, 0)

    return [found.records[name] for name in sorted(found.records, key=place)]


def rows(subject: Subject, groups: Groups, *, without: int = BAD) -> list[Row]:
    """What must be read of groups."""
    return [subject.row(number) for number in subject.order(groups) if number != without]


def of_file(path: str, record_id: str) -> bool:
    """Whether a record is in a file, or in the folder of one."""
    return record_id.partition("#")[0] in (path, path.rpartition("/")[0])


def files_of(subject: Subject, groups: Groups = GROUPS) -> dict[str, bytes]:
    assert subject.files is not None
    return subject.files(groups)


def test_every_source_has_a_subject() -> None:
    exported = {
        name for name, module in ss._EXPORTS.items() if module.startswith(".transforms.sources.")
    }
    assert exported == {subject.kind.__name__ for subject in SUBJECTS.values()}


@every_source
def test_a_source_is_plain_data(tmp_path: Path, subject: Subject) -> None:
    source = subject.put(tmp_path, GROUPS)
    assert isinstance(source, Source | ExtractedSource)
    with pytest.raises(dataclasses.FrozenInstanceError):
        source.label = "other"
    if isinstance(source, ExtractedSource):
        source = source.extract(str(tmp_path / "extracted"), base=str(tmp_path))
    assert isinstance(source, Source)
    assert str(tmp_path) not in json.dumps(source.settings()), "moving data changes nothing"
    assert source.numbered == all("#" in name for name in read(source, tmp_path).records)


# Which records there are


@every_source
def test_each_record_is_read_once(subject: Subject) -> None:
    found, _ = good(subject)
    assert not found.rejects
    assert rows_of(found) == rows(subject, GROUPS)


@every_source
def test_no_order_of_listing_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, subject: Subject
) -> None:
    list_backwards(monkeypatch)
    assert read(subject.put(tmp_path, GROUPS), tmp_path) == good(subject)[0]


@every_source
def test_files_in_pieces_hold_the_same_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, subject: Subject
) -> None:
    in_pieces(monkeypatch)
    survey = survey_of(recipe_of(subject.put(tmp_path, GROUPS)), tmp_path)
    ranges = [part for block in survey.inventory.blocks for part in block.ranges]
    assert (len(ranges) > len(survey.inventory.files)) == subject.cut
    assert read_raw(survey, tmp_path) == good(subject)[0]


def in_pieces(monkeypatch: pytest.MonkeyPatch, every: int = 1) -> None:
    """Cuts files wherever they can be, and gives each piece a block of its own."""
    small_blocks(monkeypatch, 1, min_cut_bytes=every)
    monkeypatch.setattr(numpy, "_UNIT_BYTES", 1)


@every_source
def test_more_records_change_no_others(tmp_path: Path, subject: Subject) -> None:
    before, _ = good(subject)
    after = read(subject.put(tmp_path, [*GROUPS, [40, 41]]), tmp_path)
    assert len(after.records) == len(before.records) + 2
    assert before.records.items() <= after.records.items()
    assert after.fingerprint != before.fingerprint


@every_source_of_files
def test_some_files_show_the_features_of_all(tmp_path: Path, subject: Subject) -> None:
    survey = survey_of(recipe_of(subject.put(tmp_path, [*GROUPS, *GROUPS])), tmp_path)
    files, source = survey.inventory.files, survey.recipe.files

    def inferred(files: Sequence[SourceFile]) -> Features:
        return flatten(source.infer(files, survey.opened))[0]

    features = inferred(files)
    assert inferred(files[::-1]) == features
    assert inferred([files[0], files[-1]]) == features


# What is not a record, or not as it should be


@every_source_of_files
def test_hidden_files_change_nothing(tmp_path: Path, subject: Subject) -> None:
    source = subject.put(tmp_path, GROUPS)
    path, content = next(iter(files_of(subject).items()))
    folder, _, name = path.rpartition("/")
    hidden = {f".{name}": content, ".DS_Store": b"x", f".git/{name}": GARBAGE}
    write(tmp_path / "raw" / folder, hidden)
    assert read(source, tmp_path) == good(subject)[0]


@every_source
@pytest.mark.parametrize("pieces", [False, True], ids=["whole", "in pieces"])
def test_a_bad_record_is_a_reject_with_what_it_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, subject: Subject, pieces: bool
) -> None:
    features = subject.with_bad or good(subject)[1]
    if pieces:
        in_pieces(monkeypatch)
    groups = [[10, 11, BAD, 12], range(20, 29)]
    found = read(subject.put(tmp_path, groups), tmp_path, features=features)
    assert rows_of(found) == rows(subject, groups)
    (reject,) = found.rejects.values()
    assert reject.payload == subject.payload
    assert reject.reason
    assert reject.message
    assert reject.exception.isidentifier()
    assert (reject.position is not None) == ("#" in reject.record_id)
    if subject.files is not None:
        assert of_file(reject.source, reject.record_id)


LIMITED = {name: subject for name, subject in SUBJECTS.items() if subject.limits is not None}


@pytest.mark.parametrize("subject", LIMITED.values(), ids=LIMITED)
@pytest.mark.parametrize("pieces", [False, True], ids=["whole", "in pieces"])
def test_a_record_beyond_a_limit_is_a_reject(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, subject: Subject, pieces: bool
) -> None:
    groups = [[10, BIG, 11, 12, 13], range(20, 24)]
    source, (_, features) = subject.put(tmp_path, groups), good(subject)
    if pieces:
        in_pieces(monkeypatch, every=max(map(len, files_of(subject, groups).values())) // 9)
    else:
        allowed = read(source, tmp_path, features=features)
        assert (rows_of(allowed), allowed.rejects) == (rows(subject, groups), {})
    limited = read(source, tmp_path, features=features, limits=subject.limits)
    assert rows_of(limited) == rows(subject, groups, without=BIG)
    (reject,) = limited.rejects.values()
    assert of_file(reject.source, reject.record_id)
    assert subject.limits is not None
    (limit,) = subject.limits.changed().values()
    assert f"{limit:,} bytes" in reject.message


BEGINNINGS: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda content: b"",
    "garbage": lambda content: GARBAGE,
    "zeros": lambda content: bytes(len(content)),
    "one byte": lambda content: content[:1],
    "second half": lambda content: content[len(content) // 2 + 1 :],
}
ENDS: dict[str, Callable[[bytes], bytes]] = {
    "first half": lambda content: content[: len(content) // 2 + 1],
    "no end": lambda content: content[:-5],
}


@every_source_of_files
@pytest.mark.parametrize("damage", BEGINNINGS | ENDS)
def test_damage_is_told(tmp_path: Path, subject: Subject, damage: str) -> None:
    """A damaged file is refused, or what it lacks is a reject; no other file loses anything."""
    whole, features = good(subject)
    source = subject.put(tmp_path, GROUPS)
    path, content = next(iter(files_of(subject).items()))
    write(tmp_path / "raw", {path: (BEGINNINGS | ENDS)[damage](content)})
    try:
        found = read(source, tmp_path, features=features)
    except SnapshardError as error:
        message = str(error)
    else:
        message = ""
    if message:
        assert subject.refused or (subject.headed and damage in BEGINNINGS)
        assert path in message or "Source 'one'" in message
        return
    assert not subject.refused
    assert {reject.source for reject in found.rejects.values()} <= {path}
    lost = {name for name in whole.records if of_file(path, name)}
    assert (
        found.records.items()
        >= {name: row for name, row in whole.records.items() if name not in lost}.items()
    )
    kept = [row for name, row in found.records.items() if of_file(path, name)]
    if damage in ENDS:
        # Where a format has no ends, the last record is what is left of it.
        before = [row for name, row in whole.records.items() if name in lost]
        sure = kept if subject.ends else kept[:-1]
        assert sure == before[: len(sure)]
    if subject.ends or damage in ("garbage", "zeros") or (damage == "empty" and not subject.blank):
        assert found.rejects
        assert damage in ENDS or not kept


@every_source_of_files
def test_damaged_files_alone_are_refused_or_rejects(tmp_path: Path, subject: Subject) -> None:
    source = subject.put(tmp_path, GROUPS)
    paths = files_of(subject)
    write(tmp_path / "raw", dict.fromkeys(paths, GARBAGE))
    message = ""
    try:
        found = read(source, tmp_path)
    except SnapshardError as error:
        message = str(error)
    if message:
        assert any(path.removeprefix("one/") in message for path in paths)
    else:
        assert not found.records
        assert {path.rpartition("/")[0] for path in paths} == {
            reject.source.rpartition("/")[0] for reject in found.rejects.values()
        }


@every_source_of_files
def test_what_cannot_be_read_is_a_reject_whatever_its_name(
    tmp_path: Path, subject: Subject
) -> None:
    """A link may lead to a folder of records: its name says nothing."""
    source = subject.put(tmp_path, GROUPS)
    subject.put(tmp_path / "elsewhere", GROUPS)
    links = tmp_path / "raw" / ("one" if subject.kind is ss.Sources else "")
    (links / "more").symlink_to(tmp_path / "elsewhere" / "raw")
    (links / "gone").symlink_to("nowhere")
    (links / ".#lock").symlink_to("user@host")  # of an editor: hidden files are no records
    found = read(source, tmp_path)
    assert found.records == good(subject)[0].records
    assert sorted(name.rpartition("/")[2] for name in found.rejects) == ["gone", "more"]
    assert {(reject.stage, reject.payload) for reject in found.rejects.values()} == {
        ("inventory", None)
    }


@every_source_of_files
@pytest.mark.parametrize("change", ["another content", "vanishes", "becomes a folder"])
def test_a_file_that_changes_before_it_is_read_is_refused(
    tmp_path: Path, subject: Subject, change: str
) -> None:
    survey = survey_of(recipe_of(subject.put(tmp_path, GROUPS)), tmp_path)
    (first, _), *_, (_, other) = files_of(subject).items()
    path = tmp_path / "raw" / first
    path.unlink()
    if change == "another content":
        path.write_bytes(other)
    elif change == "becomes a folder":
        path.mkdir()
    says = {"vanishes": "|: it does not exist", "becomes a folder": "|: it is a folder"}
    why = f"( changed while the build read it{says.get(change, '')})"
    with pytest.raises(StorageError, match=re.escape(first) + why):
        read_raw(survey, tmp_path)


@every_source_of_files
def test_a_source_without_records_is_refused(tmp_path: Path, subject: Subject) -> None:
    source = subject.source(lambda sub: str(tmp_path / sub))
    with pytest.raises(RecipeError, match="raw"):
        read(source, tmp_path)
    write(tmp_path / "raw", {".hidden": b"x", "one/.hidden": b"x", "two/.hidden": b"x"})
    with pytest.raises(DataError, match="raw"):
        read(source, tmp_path)


@every_source_of_files
def test_a_folder_that_cannot_be_listed_is_refused(subject: Subject) -> None:
    # Not pytest's own folder: another user may not enter that.
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        source = subject.put(folder, GROUPS)
        closed = folder / "raw" / ("one" if subject.kind is ss.Sources else "") / "closed"
        closed.mkdir(mode=0)
        with another_user(), pytest.raises(DataError, match="closed cannot be listed"):
            survey_of(recipe_of(source), folder)


# Elsewhere


def put_elsewhere(folder: Path, files: Mapping[str, bytes], place: str) -> At:
    """Files of the folder ``raw``, which is written here, in another place."""
    write(folder / "raw", files)
    files = {f"raw/{name}": content for name, content in files.items()}
    if place == "memory":
        root = f"/conformance/{folder.name}"
        for name, content in files.items():
            fsspec.filesystem("memory").pipe(f"{root}/{name}", content)
        return lambda sub: f"memory:/{root}/{sub}"
    write(folder, {f"a.{place}": zip_of(files) if place == "zip" else tar_of(files)})
    return lambda sub: f"{place}://{sub}::{folder}/a.{place}"


@every_source_of_files
@pytest.mark.parametrize("place", ["memory", "zip", "tar"])
def test_a_source_reads_the_same_from_anywhere(
    tmp_path: Path, subject: Subject, place: str
) -> None:
    at = put_elsewhere(tmp_path, files_of(subject), place)
    assert read(subject.source(at), tmp_path) == good(subject)[0]


def _flipped(content: bytes) -> bytes:
    """A bit of the header of a later member."""
    at = content.index(b"ustar", len(content) // 2) - 150
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


def _cut(content: bytes) -> bytes:
    """Ends before the header of a later member."""
    return content[: content.index(b"ustar", len(content) // 2) - 257]


MANY: Groups = [[number, number + 1] for number in range(10, 22)]
ARCHIVES: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "a flipped bit": ("a.tar", _flipped),
    "cut between members": ("a.tar", _cut),
    "two in one": ("a.tar", lambda content: content + content),
    "gzip that ends early": ("a.tar.gz", lambda c: gzip.compress(c, mtime=0)[:-20]),
    "garbage behind gzip": ("a.tar.gz", lambda c: gzip.compress(c, mtime=0) + b"garbage"),
}


@every_source_of_files
@pytest.mark.parametrize("damage", ARCHIVES)
def test_a_damaged_archive_is_refused(tmp_path: Path, subject: Subject, damage: str) -> None:
    name, change = ARCHIVES[damage]
    files = {f"raw/{path}": content for path, content in files_of(subject, MANY).items()}
    write(tmp_path, {name: change(tar_of(files))})
    source = subject.source(lambda sub: f"tar://{sub}::{tmp_path}/{name}")
    with pytest.raises(
        DataError, match=r"the (archive|tar) cannot be read .*: copy or create it again"
    ):
        read(source, tmp_path)


@every_source_of_files
def test_members_that_later_ones_replace_are_counted(tmp_path: Path, subject: Subject) -> None:
    at = put_elsewhere(tmp_path, files_of(subject), "tar")
    first = next(iter(files_of(subject)))
    with tarfile.open(tmp_path / "a.tar", "a") as archive:
        archive.add(tmp_path / "raw" / first, f"raw/{first}")
    source = subject.source(at)
    survey = survey_of(recipe_of(source), tmp_path)
    assert survey.inventory.num_skipped["replaced by a later member of the same name"] == 1
    assert read_raw(survey, tmp_path).records == good(subject)[0].records


# Arguments


TYPED = {name: subject for name, subject in SUBJECTS.items() if "types" in subject.options}


def changed(source: Any, **arguments: Any) -> Any:
    if isinstance(source, ss.Files):
        return ss.Files(source.url, source.function, **arguments)
    return dataclasses.replace(source, **arguments)


@pytest.mark.parametrize("subject", TYPED.values(), ids=TYPED)
@pytest.mark.parametrize("arguments", [{"label": "absent"}, {"types": {"absent": "int8"}}], ids=str)
def test_label_and_types_must_name_columns(
    tmp_path: Path, subject: Subject, arguments: Any
) -> None:
    source = changed(subject.put(tmp_path, GROUPS), **arguments)
    with pytest.raises(
        RecipeError,
        match=r"(label|types) names 'absent', which is not a column\. The columns are '",
    ):
        survey_of(recipe_of(source), tmp_path)


@pytest.mark.parametrize("subject", TYPED.values(), ids=TYPED)
@pytest.mark.parametrize("wanted", ["int", "complex64", 3, None], ids=str)
def test_types_are_dtypes_or_features(tmp_path: Path, subject: Subject, wanted: Any) -> None:
    with pytest.raises(RecipeError, match="types: 'n' is"):
        changed(subject.put(tmp_path, GROUPS), types={"n": wanted})


def described(kind: type[Any], arguments: Mapping[str, Any]) -> list[Any]:
    """All of a source of files that enters a fingerprint."""
    source = kind("somewhere", **arguments)
    return [source.settings(), source.side_urls, getattr(source, "functions", ())]


OPTIONAL = {subject.kind.__name__: subject for subject in SUBJECTS.values() if subject.options}


@pytest.mark.parametrize("subject", OPTIONAL.values(), ids=OPTIONAL)
def test_every_argument_changes_the_fingerprint(tmp_path: Path, subject: Subject) -> None:
    _, *names = inspect.signature(subject.kind).parameters
    assert sorted(names) == sorted(subject.options)
    for name, arguments in subject.options.items():
        if subject.files is None:
            source = changed(subject.put(tmp_path, GROUPS), **arguments)
            assert read(source, tmp_path).fingerprint != good(subject)[0].fingerprint, name
            continue
        base = {k: v for k, v in subject.settings.items() if k == "read"}
        without = {k: v for k, v in arguments.items() if k != name}
        assert described(subject.kind, base | arguments) != described(
            subject.kind, base | without
        ), name
