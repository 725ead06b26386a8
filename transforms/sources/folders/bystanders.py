"""Files in folders of media that are never records: documents, tables and code, and other media.

A file is known by its name alone. One of an unknown kind, or without a suffix, may be a record: its
content decides, and a file that does not decode becomes a reject. So does an archive, which may
hold records.
"""

from __future__ import annotations

from ...media import audio_header, image_header

IMAGES = image_header.SUFFIXES
SOUNDS = audio_header.SUFFIXES

TEXTS = (".md", ".text", ".txt")
_RAW = (".aae", ".arw", ".cr2", ".cr3", ".nef", ".orf", ".psd", ".raf", ".rw2", ".xcf", ".xmp")
"""Of cameras and editors, beside the images that they export."""
VIDEOS = (".avi", ".m4v", ".mkv", ".mov", ".mp4", ".mpeg", ".mpg", ".webm", ".wmv")
TABLES = (
    *(".arff", ".csv", ".dat", ".db", ".feather", ".json", ".jsonl", ".mat", ".ndjson", ".npy"),
    *(".npz", ".parquet", ".sqlite", ".tsv", ".xls", ".xlsx", ".xml", ".yaml", ".yml"),
)
"""What may hold labels or annotations, but no media."""
_DOCUMENTS = frozenset(
    (
        *(
            ".bib",
            ".cfg",
            ".conf",
            ".css",
            ".doc",
            ".docx",
            ".htm",
            ".html",
            ".ini",
            ".ipynb",
            ".js",
        ),
        *(".log", ".m", ".md5", ".names", ".odt", ".pdf", ".pickle", ".pkl", ".ps", ".py"),
        *(".rst", ".rtf", ".sh", ".sha1", ".sha256", ".svg", ".tex", ".toml", ".url"),
    )
)
_KNOWN = frozenset((*_DOCUMENTS, *TEXTS, *TABLES, *IMAGES, *SOUNDS, *VIDEOS, *_RAW))
_NAMES = ("authors", "changelog", "citation", "copying", "license", "notice", "readme")
"""Of documents with any suffix or none."""


def is_document(path: str) -> bool:
    """Whether a file is about the data: README, LICENSE, ``.pdf``, code.

    >>> [is_document(path) for path in ("README", "a/notes.pdf", "notes.txt", "1.h5")]
    [True, True, False, False]
    """
    stem, suffix = _parts(path)
    return suffix in _DOCUMENTS or suffix == ".md" or _is_named_document(stem, suffix)


def why_beside(path: str, *, media: tuple[str, ...]) -> str:
    """Why a file is no record of a folder of media with these suffixes; empty if it may be one.

    >>> why_beside("cat/notes.txt", media=IMAGES), why_beside("cat/1.png", media=IMAGES)
    ('.txt file', '')
    """
    stem, suffix = _parts(path)
    if _is_named_document(stem, suffix):
        return stem.upper()
    return f"{suffix} file" if suffix in _KNOWN and suffix not in media else ""


def _parts(path: str) -> tuple[str, str]:
    """A file's name up to the first dot, and from the last one on; in lower case."""
    stem, dot, end = path.rpartition("/")[2].lower().partition(".")
    return stem, dot and f".{end.rpartition('.')[2]}"


def _is_named_document(stem: str, suffix: str) -> bool:
    return stem in _NAMES and suffix in ("", *TEXTS)
