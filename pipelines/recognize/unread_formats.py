"""Names the formats of files by suffix or content, and files that were not downloaded.

Each format without a source has a recipe with a function that reads it, in docs/sources.md.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections import Counter
from collections.abc import Sequence

from ...schemas.blocks import SourceFile
from ...schemas.errors import DataError
from ...transforms.sources.folders.bystanders import is_document
from ...transforms.storage import git_lfs
from .view import View

_NUM_PROBED = 64
_HEAD_BYTES = 512


@dataclasses.dataclass(frozen=True)
class _Format:
    name: str
    suffixes: tuple[str, ...]
    marks: tuple[tuple[int, bytes], ...] = ()
    """Offsets and bytes there, each of which shows the format of a file without a suffix."""
    why: str = "which no source reads. A function can: copy"
    """Why it is not read, and what to do with the recipe."""


FORMATS = (
    _Format("Excel", (".xlsx", ".xlsm", ".xlsb", ".xls", ".ods")),
    _Format("HDF5", (".h5", ".hdf5", ".hdf", ".he5"), ((0, b"\x89HDF\r\n\x1a\n"),)),
    _Format("MATLAB", (".mat",), ((0, b"MATLAB 5.0 MAT-file"),)),
    _Format("DICOM", (".dcm", ".dicom"), ((128, b"DICM"),)),
    _Format("NIfTI", (".nii", ".nii.gz"), ((344, b"n+1\0"),)),
    _Format("HEIC", (".heic", ".heif", ".hif", ".avif"), ((4, b"ftyphei"), (4, b"ftypmif1"))),
    _Format("M4A", (".m4a", ".aac"), ((4, b"ftypM4A"),)),
    _Format("ARFF", (".arff",)),
    _Format(
        "video",
        (".mp4", ".m4v", ".mov", ".avi", ".mkv", ".webm", ".mpg", ".mpeg", ".wmv", ".flv"),
        ((4, b"ftypisom"), (4, b"ftypmp4"), (4, b"ftypqt"), (8, b"AVI "), (0, b"\x1aE\xdf\xa3")),
    ),
    _Format(
        "IDX",
        tuple(end for n in (1, 2, 3, 4) for end in (f".idx{n}-ubyte", f"idx{n}-ubyte.gz")),
        tuple((0, bytes([0, 0, 8, n])) for n in (1, 2, 3, 4)),
    ),
    _Format(
        "pickle",
        (".pickle", ".pkl", ".joblib"),
        tuple((0, bytes([0x80, protocol])) for protocol in (2, 3, 4, 5)),
        "and nothing is unpickled, since that can run any code. If you trust the files, copy",
    ),
)
_SUFFIXES = tuple(suffix for format in FORMATS for suffix in format.suffixes)
_WHY = {format.name: format.why for format in FORMATS}
_MIN_LINES = 3
_PAIR = rb"[ \t]+[0-9]+:[-+]?[0-9.]+([eE][-+]?[0-9]+)?"
_LIBSVM = re.compile(rb"[-+]?[0-9.]+(,[-+]?[0-9.]+)*(%s)*[ \t]*(#.*)?" % _PAIR)
_LETTER = re.compile(rb"[A-Za-z\x80-\xff]")
_NO_WORDS = (b"#", b"-DOCSTART-")
"""How lines of CoNLL files begin that hold no word."""
READ = ("Excel", "HDF5")
"""Those that have a source, behind an extra."""


def check_formats(view: View) -> tuple[str, Sequence[SourceFile]]:
    """Checks that files are not pointers of Git LFS, and most of them not of an unread format.

    Returns:
        The format in :data:`READ` of most files but documents, and those files; or "" and none.

    Raises:
        DataError: naming the format, and what to do.
    """
    small = list(git_lfs.may_be_pointers(file for file in view.listed if not file.problem))
    for file in small[:: 1 + len(small) // _NUM_PROBED]:
        if git_lfs.is_pointer(view.head(file, _HEAD_BYTES)):
            raise git_lfs.refusal(view.opened.place(file.path))
    name, files = _main_format(view)
    if name and name not in READ:
        raise DataError(
            f"{view.shown} holds {len(files):,} {name} file{'s' * (len(files) > 1)} (first: "
            f"{files[0].path!r}), {_WHY[name]} {recipe_for(name)}"
        )
    return name, files


def recipe_for(name: str) -> str:
    """Where the recipe for a format is, at the end of a message."""
    return f"the recipe in docs/sources.md, 'Formats without a source: {name}'."


def check_lines(path: str, head: bytes) -> None:
    """Checks that a text does not begin with lines of a format that no source reads.

    Raises:
        DataError: naming the format, and what to do.
    """
    if name := _format_of_lines(head):
        raise DataError(
            f"{path} is {name}, which no source reads. A function can: copy {recipe_for(name)}"
        )


def _format_of_lines(head: bytes) -> str:
    r"""The name of the format that all first lines of a text have; empty if it is none of these.

    >>> _format_of_lines(b"__label__a x\n__label__b y\n__label__a z\n")
    'fastText'
    """
    lines = head.replace(b"\r\n", b"\n").split(b"\n")[:-1]
    there = [line for line in lines if line.strip()]
    if len(there) < _MIN_LINES:
        return ""
    if all(line.startswith(b"__label__") for line in there):
        return "fastText"
    if all(map(_LIBSVM.fullmatch, there)) and any(b":" in line for line in there):
        return "LibSVM"
    return "CoNLL" if _are_sentences(lines) else ""


def _are_sentences(lines: Sequence[bytes]) -> bool:
    """Whether blank lines separate groups of lines that have as many cells, most with a word."""
    lines = [line for line in lines if not line.startswith(_NO_WORDS)]
    sizes = [
        sum(1 for _ in group)
        for is_word, group in itertools.groupby(lines, lambda line: bool(line.strip()))
        if is_word
    ]
    words = [line for line in lines if line.strip()]
    if len(sizes) < _MIN_LINES or max(sizes) < 2:
        return False
    for mark in (b"\t", b" "):
        rows = [line.strip().split(mark) for line in words]
        if len(rows[0]) > 1 and {*map(len, rows)} == {len(rows[0])}:
            columns = [*zip(*rows, strict=True)][:2]
            num_words = (sum(bool(_LETTER.search(cell)) for cell in cells) for cells in columns)
            return 2 * max(num_words) >= len(rows)
    return False


def _main_format(view: View) -> tuple[str, Sequence[SourceFile]]:
    """The format of most files but documents, and those files; "" if none of :data:`FORMATS`."""
    # A name without a suffix may be that of a DICOM file, and .gz that of an IDX file.
    if not any(format_of(f"x{s}") or s in ("", ".gz") for s in {s for _, s in view.groups}):
        return "", ()
    every = [file for file in view.visible if file.num_bytes]
    # Pickles are documents beside other files.
    visible = [file for file in every if not is_document(file.path)] or every
    bare = next((file for file in visible if _is_bare(file.path)), None)
    of_bare = _by_content(view.head(bare, _HEAD_BYTES)) if bare else ""
    formats = [format_of(f.path) or (of_bare if _is_bare(f.path) else "") for f in visible]
    (name, num), *_ = Counter(formats).most_common(1) or [("", 0)]
    if not name or 2 * num <= len(visible):
        return "", ()
    return name, [file for file, of in zip(visible, formats, strict=True) if of == name]


def format_of(path: str) -> str:
    """The name of the format in :data:`FORMATS` that a file has by its suffix; else empty."""
    lower = path.lower()
    if not lower.endswith(_SUFFIXES):
        return ""
    return next((format.name for format in FORMATS if lower.endswith(format.suffixes)), "")


def _is_bare(path: str) -> bool:
    """Whether a name has no suffix, as those of DICOM files."""
    return "." not in path.rpartition("/")[2]


def _by_content(head: bytes) -> str:
    for format in FORMATS:
        if any(head.startswith(mark, offset) for offset, mark in format.marks):
            return format.name
    return ""
