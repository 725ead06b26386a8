"""Files that recipes read: one is damaged among whole ones, and all are read as a build does.

What may not be: another exception than a SnapshardError, an error or a reject that does not name
the file, a record of another file that is lost or changed, a record of the damaged file that is
gone without a reject. Where other bytes are simply another file with other records (a CSV file with
one more line), a plain reader of the standard library says how many there are.
"""

import bz2
import csv
import dataclasses
import gzip
import hashlib
import io
import itertools
import lzma
import random
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import input_contents as made
import pyarrow as pa
import pyarrow.parquet as pq
import zstandard
from commands import CODES, run_command
from harness import DETECTED, HARMLESS, WRONG, Kind
from mutations import damage, edit_json

import snapshard as ss
from snapshard.pipelines.inventory.step import Inventory, take_inventory
from snapshard.pipelines.survey.inference_cache import infer_features
from snapshard.schemas.blocks import Block, FileRange
from snapshard.schemas.errors import SnapshardError
from snapshard.schemas.naming import Workspace
from snapshard.schemas.progress import Silent
from snapshard.transforms.prepare.engine import program
from snapshard.transforms.runs.files import wire_schema
from snapshard.transforms.sources.blocks import MIN_CUT_BYTES
from snapshard.transforms.storage.opened_source import open_source

Count = Callable[[bytes], int | None]
"""How many records a plain reader finds; None where it cannot tell."""

Intact = Callable[[bytes], bool]
"""Whether the checksums of a format are right, as a plain reader finds."""


@dataclasses.dataclass
class Read:
    """What came of a source."""

    rows: dict[str, Any]
    rejects: list[Any]
    num_skipped: int

    def of(self, name: str) -> dict[str, Any]:
        return {key: row for key, row in self.rows.items() if key.partition("#")[0] == name}


_compile_programs = program.compile_programs
_programs: dict[str, Any] = {}


def compiled_once(*given: Any) -> Any:
    """What the steps are compiled to, the same for each mutation that leaves the features alone."""
    key = repr(given)
    if key not in _programs:
        _programs[key] = _compile_programs(*given)
    return _programs[key]


program.compile_programs = compiled_once


def take(source: Any, folder: Path) -> tuple[Any, Inventory]:
    """Opens a source and takes its inventory."""
    opened = open_source(source.url, str(folder))
    nowhere = Workspace(str(folder / ".work"))
    return opened, take_inventory(source, opened, workspace=nowhere, progress=Silent(), write=False)


def infer(source: Any, folder: Path) -> dict[str, Any]:
    """The features of a source's records."""
    opened, inventory = take(source, folder)
    return infer_features(source, inventory.files, opened)[0]


def read_source(source: Any, folder: Path, features: Mapping[str, Any]) -> Read:
    """Reads all of a source, each file cut wherever it can be."""
    opened, inventory = take(source, folder)
    schema = wire_schema(features)
    got = Read({}, [], sum(inventory.num_skipped.values()))
    for file in inventory.files:
        cuts = source.cuts(file, opened, every=MIN_CUT_BYTES) if file.num_bytes else ()
        ends = [0, *cuts, file.num_bytes]
        for start, stop in itertools.pairwise(ends):
            part = FileRange(
                path=file.path, sha256=file.sha256, start=start, stop=stop, problem=file.problem
            )
            block = Block((part,))
            for batch in source.read(block, features=features, opened=opened, ordered=[0]):
                batch.columns.validate(full=True)
                assert batch.columns.schema.equals(schema), "columns are not those of the features"
                rows = batch.columns.to_pylist()
                assert len(batch.ids) == len(rows), "not an id for each row"
                assert not got.rows.keys() & set(batch.ids), "two records have one id"
                got.rows.update(zip(batch.ids, rows, strict=True))
                got.rejects.extend(batch.rejects)
    return got


@dataclasses.dataclass
class InputTarget:
    """A folder of files, one of which is damaged."""

    folder: Path
    source: Any
    name: str
    """Of the file that is damaged, below the folder."""
    content: bytes
    others: Sequence[bytes]
    count: Count = lambda _: None
    layers: Sequence[made.Layer] = ()
    json: bool = False
    tokens: Sequence[bytes] = ()
    intact: Intact | None = None
    """For formats with checksums: whether all of them are right."""
    holds_records: bool = True
    """Whether its records bear its name; else it shapes the records of all other files."""

    def __post_init__(self) -> None:
        self._put(self.content)
        self._features = infer(self.source, self.folder)
        self._whole = read_source(self.source, self.folder, self._features)
        assert self._whole.rows
        assert not self._whole.rejects

    def mutate(self, rng: random.Random) -> bytes:
        if self.json and rng.random() < 0.4:
            return edit_json(rng, self.content)
        if self.layers and rng.random() < 0.5:
            opened, closed = rng.choice(self.layers)
            inside = [opened(other) for other in self.others]
            inner = damage(rng, opened(self.content), others=inside, tokens=self.tokens)
            return closed(inner)
        return damage(rng, self.content, others=self.others, tokens=self.tokens)

    def try_out(self, content: bytes) -> tuple[str, str]:
        self._put(content)
        error = self._infer() or self._suggest(content)
        if error:
            return error
        try:
            got = read_source(self.source, self.folder, self._features)
        except SnapshardError as refused:
            return self._refused(refused)
        finally:
            self._put(self.content)
        return self._judge(got, content)

    def _infer(self) -> tuple[str, str] | None:
        """Features are told first, unless the recipe declares them; None where nothing is wrong."""
        try:
            found = infer(self.source, self.folder)
            if found != self._features:
                read_source(self.source, self.folder, found)
        except SnapshardError as refused:
            outcome, how = self._refused(refused)
            return (outcome, how) if outcome == WRONG else None
        return None

    def _suggest(self, content: bytes) -> tuple[str, str] | None:
        """Now and then `snapshard init` is asked what the data looks like."""
        if hashlib.sha256(content).digest()[0] % 5:
            return None
        where = self.source.url if hasattr(self.source, "url") else str(self.folder)
        code, said = run_command("init", where)
        if code in CODES and said.strip():
            return None
        return WRONG, f"init ends with {code}: {said[-200:]}"

    def _refused(self, error: SnapshardError) -> tuple[str, str]:
        # Of a name that the damage changed, the folder is told.
        if Path(self.name).name not in str(error) and str(self.folder) not in str(error):
            return WRONG, f"an error that does not name the file: {str(error)[:200]}"
        return DETECTED, f"{type(error).__name__}"

    def _judge(self, got: Read, content: bytes) -> tuple[str, str]:
        if not self.holds_records:
            return self._judge_shaped(got)
        for reject in got.rejects:
            if reject.source != self.name or not reject.record_id.startswith(self.name):
                return WRONG, f"a reject of another file: {reject.source}: {reject.message[:200]}"
            if not reject.reason or not reject.message:
                return WRONG, f"a reject without a word: {reject.record_id}"
        for name, row in self._whole.rows.items():
            other = self._file(name) != self.name
            if other and not _same(got.rows.get(name), row):
                return WRONG, f"{name} of another file is lost or changed"
        before, after = self._num(self._whole), self._num(got)
        if got.rejects:
            return DETECTED, f"reject: {got.rejects[0].reason}"
        if _same(got.rows, self._whole.rows):
            return HARMLESS, "the same records"
        if self.intact is not None and not self.intact(content):
            return WRONG, "other records are read, and a checksum is wrong"
        if before == after:
            return HARMLESS, "as many records, with other values"
        counted = self.count(content)
        if counted == after:
            return HARMLESS, "another file, as a plain reader sees it"
        return WRONG, f"{before} records became {after}, a plain reader counts {counted}: no reject"

    def _judge_shaped(self, got: Read) -> tuple[str, str]:
        before, after = len(self._whole.rows), len(got.rows) + len(got.rejects)
        if before != after:
            return WRONG, f"{before} records became {after}"
        for reject in got.rejects:
            if self._base() not in reject.message:
                return WRONG, f"a reject that does not name the table: {reject.message[:200]}"
        return (DETECTED, "rejects") if got.rejects else (HARMLESS, "as many records")

    def _base(self) -> str:
        return Path(self.name).name

    def _file(self, record_id: str) -> str:
        return record_id.rpartition("#")[0] or record_id if self.source.numbered else record_id

    def _num(self, got: Read) -> int:
        return sum(self._file(key) == self.name for key in got.rows)

    def _put(self, content: bytes) -> None:
        path = self.folder / self.name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


class ArchiveTarget(InputTarget):
    """The one archive that holds all files: names in it are data too."""

    def _judge(self, got: Read, content: bytes) -> tuple[str, str]:
        before, after = len(self._whole.rows), len(got.rows) + got.num_skipped
        for reject in got.rejects:
            if not (reject.source and reject.reason and reject.message):
                return WRONG, f"a reject without a word: {reject.record_id}"
        if not got.rejects and _same(got.rows, self._whole.rows):
            return HARMLESS, "the same records"
        if not got.rejects and self.intact is not None and not self.intact(content):
            return WRONG, "other records are read, and a checksum is wrong"
        if after + len(got.rejects) == before:
            return (DETECTED, "rejects") if got.rejects else (HARMLESS, "as many records")
        counted = self.count(content)
        if counted == after + len(got.rejects):
            return HARMLESS, "another archive, as a plain reader sees it"
        return WRONG, f"{before} records became {after}, a plain reader counts {counted}"

    def _refused(self, error: SnapshardError) -> tuple[str, str]:
        # What lies in an archive is named by its name there.
        if "(first: " in str(error) or "The first one, " in str(error):
            return DETECTED, type(error).__name__
        return super()._refused(error)


def _same(one: Any, other: Any) -> bool:
    return one is not None and repr(one) == repr(other)  # NaN equals NaN here


def _lines(content: bytes) -> int | None:
    return sum(1 for line in content.split(b"\n") if line.strip(b" \t\r\n"))


def _csv_rows(content: bytes) -> int | None:
    try:
        rows = list(csv.reader(io.StringIO(content.decode("utf-8-sig"), newline="")))
    except (csv.Error, UnicodeError):
        return None
    return sum(1 for row in rows if row) - 1


def _json_rows(content: bytes) -> int | None:
    return _lines(content)


def _unpacked(count: Count, unpack: Callable[[bytes], bytes] = gzip.decompress) -> Count:
    def counted(content: bytes) -> int | None:
        try:
            return count(unpack(content))
        except (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError, zstandard.ZstdError):
            return None

    return counted


def _unzstd(content: bytes) -> bytes:
    with zstandard.ZstdDecompressor().stream_reader(content, read_across_frames=True) as stream:
        return bytes(stream.read())


def _zstd(content: bytes) -> bytes:
    return bytes(zstandard.ZstdCompressor(write_checksum=True).compress(content))


def _parquet_rows(content: bytes) -> int | None:
    return int(pq.ParquetFile(io.BytesIO(content)).metadata.num_rows)


def _stream_rows(content: bytes) -> int | None:
    return sum(len(batch) for batch in pa.ipc.open_stream(content))


def _file_rows(content: bytes) -> int | None:
    return int(pa.ipc.open_file(content).read_all().num_rows)


def _unpacks(unpack: Callable[[bytes], bytes]) -> Intact:
    return lambda content: _unpacked(lambda _: 1, unpack)(content) is not None


def _is_whole_zip(content: bytes) -> bool:
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            return archive.testzip() is None
    except (zipfile.BadZipFile, OSError, EOFError, ValueError, zlib.error, RuntimeError):
        return False


def _are_whole_frames(content: bytes) -> bool:
    at = 0
    while at < len(content):
        (length,) = struct.unpack("<Q", content[at : at + 8])
        record = content[at + 12 : at + 12 + length]
        foot = content[at + 12 + length : at + 16 + length]
        if content[at + 8 : at + 12] != made.masked(content[at : at + 8]):
            return False
        if foot != made.masked(record):
            return False
        at += 16 + length
    return True


def _frames(content: bytes) -> int | None:
    at = number = 0
    while at < len(content):
        (length,) = struct.unpack("<Q", content[at : at + 8])
        at += 16 + length
        number += 1
    return number


SEED = 7


def _files(
    source: Callable[[str], Any],
    suffix: str,
    make: Callable[[int], bytes],
    **more: Any,
) -> Callable[[Path], InputTarget]:
    """Three files of a format, the second of which is damaged."""

    def target(folder: Path) -> InputTarget:
        contents = [make(seed) for seed in (SEED, SEED + 100, SEED + 200)]
        for name, content in (("a", contents[0]), ("c", contents[2])):
            (folder / f"{name}{suffix}").write_bytes(content)
        return InputTarget(
            folder, source(str(folder)), f"b{suffix}", contents[1], contents[::2], **more
        )

    return target


_FORMS = ("JPEG", "GIF", "BMP", "WEBP", "TIFF")


def _images(form: str, **more: Any) -> Callable[[Path], InputTarget]:
    """An image in one of two class folders."""

    def target(folder: Path) -> InputTarget:
        for label in ("cat", "dog"):
            (folder / label).mkdir()
            (folder / label / "whole").write_bytes(made.image("PNG", 1))
        others = [made.image(other, 3) for other in ("PNG", *_FORMS)]
        others.append(made.image(form, 4, (300, 2)))
        content = made.image(form, 5)
        return InputTarget(
            folder, ss.ImageFolder(str(folder)), "cat/b.img", content, others, **more
        )

    return target


def _sounds(folder: Path) -> InputTarget:
    for label in ("cat", "dog"):
        (folder / label).mkdir()
        (folder / label / "whole.wav").write_bytes(made.wav(1))
    others = [made.wav(2), made.wav(3)]
    return InputTarget(folder, ss.AudioFolder(str(folder)), "cat/b.wav", made.wav(4), others)


def _label_table(suffix: str) -> Callable[[Path], InputTarget]:
    def target(folder: Path) -> InputTarget:
        names = [f"{number}.png" for number in range(6)]
        (folder / "images").mkdir()
        for number, name in enumerate(names):
            (folder / "images" / name).write_bytes(made.image("PNG", number))
        make = {".csv": made.label_csv, ".jsonl": made.label_json, ".json": made.coco}[suffix]
        table = f"labels{suffix}"
        return InputTarget(
            folder,
            ss.ImageFolder(str(folder / "images"), table=str(folder / table)),
            table,
            make(names, 1),
            [make(names[:3], 2), make(names[3:], 3)],
            json=suffix != ".csv",
            tokens=(b"0.png", b"file", b"label", b",", b"yes"),
            holds_records=False,
        )

    return target


def _archive(
    name: str,
    content: Callable[[int], bytes],
    count: Count,
    layers: Sequence[made.Layer] = (),
    intact: Intact | None = None,
) -> Callable[[Path], InputTarget]:
    def target(folder: Path) -> InputTarget:
        others = [content(SEED + 100)]
        source = ss.ImageFolder(str(folder / name))
        return ArchiveTarget(
            folder,
            source,
            name,
            content(SEED),
            others,
            count=count,
            layers=layers,
            intact=intact,
        )

    return target


def _zip(seed: int) -> bytes:
    return made.zip_of(made.class_folders(seed))


def _tar(seed: int) -> bytes:
    return made.tar_of(made.class_folders(seed))


def _gzipped(make: Callable[[int], bytes]) -> Callable[[int], bytes]:
    return lambda seed: gzip.compress(make(seed), mtime=0)


def _zip_members(content: bytes) -> int | None:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return len({name for name in archive.namelist() if not name.endswith("/")})


def _tar_members(content: bytes) -> int | None:
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        return len({member.name for member in archive if not member.isdir()})


KINDS = (
    Kind("CSV", _files(ss.Csv, ".csv", made.csv_of, count=_csv_rows), 3),
    Kind(
        "CSV, gzip",
        _files(
            ss.Csv,
            ".csv.gz",
            _gzipped(made.csv_of),
            count=_unpacked(_csv_rows),
            intact=_unpacks(gzip.decompress),
            layers=(made.GZIP,),
        ),
    ),
    Kind(
        "JSON Lines",
        _files(ss.JsonLines, ".jsonl", made.json_lines, count=_json_rows, json=True),
        3,
    ),
    Kind(
        "CSV, bzip2",
        _files(
            ss.Csv,
            ".csv.bz2",
            lambda seed: bz2.compress(made.csv_of(seed)),
            count=_unpacked(_csv_rows, bz2.decompress),
            intact=_unpacks(bz2.decompress),
        ),
    ),
    Kind(
        "JSON Lines, xz",
        _files(
            ss.JsonLines,
            ".jsonl.xz",
            lambda seed: lzma.compress(made.json_lines(seed)),
            count=_unpacked(_lines, lzma.decompress),
            intact=_unpacks(lzma.decompress),
        ),
    ),
    Kind(
        "text, zstd",
        _files(
            ss.TextFiles,
            ".txt.zst",
            lambda seed: _zstd(made.text(seed)),
            count=_unpacked(_lines, _unzstd),
            intact=_unpacks(_unzstd),
            layers=((_unzstd, _zstd),),
        ),
    ),
    Kind("text", _files(ss.TextFiles, ".txt", made.text, count=_lines)),
    Kind("Parquet", _files(ss.Parquet, ".parquet", made.parquet, count=_parquet_rows), 2),
    Kind(
        "Parquet, plain", _files(ss.Parquet, ".parquet", made.parquet_plain, count=_parquet_rows), 2
    ),
    Kind("Arrow file", _files(ss.Arrow, ".arrow", made.arrow, count=_file_rows), 2),
    Kind("Arrow stream", _files(ss.Arrow, ".arrow", made.arrow_stream, count=_stream_rows), 2),
    Kind("Hugging Face", _files(ss.HuggingFace, ".arrow", made.hugging_face, count=_stream_rows)),
    Kind(
        "TFRecord",
        _files(
            ss.TFRecords,
            ".tfrecord",
            made.tfrecord,
            count=_frames,
            intact=_are_whole_frames,
            layers=(made.tfrecord_layer(SEED + 100),),
        ),
        2,
        loads="tensorflow",
    ),
    Kind(
        "TFRecord, boxes",
        _files(
            lambda url: ss.TFRecords(url, boxes="object_detection"),
            ".tfrecord",
            made.tfrecord_of_boxes,
            count=_frames,
            intact=_are_whole_frames,
            layers=(made.tfrecord_layer(SEED + 100, made.boxes),),
        ),
        loads="tensorflow",
    ),
    Kind(
        "TFRecord, gzip",
        _files(
            ss.TFRecords,
            ".tfrecord.gz",
            _gzipped(made.tfrecord),
            count=_unpacked(_frames),
            intact=_unpacks(gzip.decompress),
            layers=(made.GZIP,),
        ),
        loads="tensorflow",
    ),
    Kind("NumPy, npy", _files(ss.Numpy, ".npy", made.npy)),
    Kind(
        "NumPy, npz",
        _files(
            ss.Numpy,
            ".npz",
            made.npz,
            layers=(made.npz_layer(SEED + 100),),
            intact=_is_whole_zip,
        ),
    ),
    # A suggested recipe counts the records of its splits, whose images are decoded.
    Kind("PNG", _images("PNG", layers=(made.PNG,)), loads="tensorflow"),
    *(Kind(form, _images(form), loads="tensorflow") for form in _FORMS),
    Kind("WAV", _sounds, loads="tensorflow"),
    Kind("label table, CSV", _label_table(".csv"), loads="tensorflow"),
    Kind("label table, JSON", _label_table(".jsonl"), loads="tensorflow"),
    Kind("label table, COCO", _label_table(".json"), loads="tensorflow"),
    Kind(
        "WebDataset tar",
        _files(ss.WebDataset, ".tar", made.samples, layers=(made.TAR,)),
        2,
        loads="tensorflow",
    ),
    Kind(
        "zip of images",
        _archive("a.zip", _zip, _zip_members, (made.zip_layer(SEED),), _is_whole_zip),
        loads="tensorflow",
    ),
    Kind("tar of images", _archive("a.tar", _tar, _tar_members, (made.TAR,)), loads="tensorflow"),
    Kind(
        "tar.gz of images",
        _archive("a.tar.gz", _gzipped(_tar), _tar_members, (made.GZIP,), _unpacks(gzip.decompress)),
        loads="tensorflow",
    ),
)
