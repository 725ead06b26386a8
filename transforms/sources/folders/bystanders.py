"""Files in folders of media that are never records: documents, tables and code, and other media.

A file is known by its name alone. One of an unknown kind, or without a suffix, may be a record: its
content decides, and a file that does not decode becomes a reject. So does an archive, which may
hold records.
"""

from __future__ import annotations

IMAGES = (".bmp", ".gif", ".jpe", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")
SOUNDS = (".flac", ".mp3", ".oga", ".ogg", ".opus", ".wav")
VIDEOS = (".avi", ".m4v", ".mkv", ".mov", ".mp4", ".mpeg", ".mpg", ".webm", ".wmv")
TABLES = (
    *(".arff", ".csv", ".dat", ".db", ".feather", ".json", ".jsonl", ".mat", ".ndjson", ".npy"),
    *(".npz", ".parquet", ".sqlite", ".tsv", ".xls", ".xlsx", ".xml", ".yaml", ".yml"),
)
"""What may hold labels or annotations, but no media."""
_DOCUMENTS = (
    *(".bib", ".cfg", ".conf", ".css", ".doc", ".docx", ".htm", ".html", ".ini", ".ipynb", ".js"),
    *(".log", ".m", ".md", ".md5", ".names", ".odt", ".pdf", ".pickle", ".pkl", ".ps", ".py"),
    *(".rst", ".rtf", ".sh", ".sha1", ".sha256", ".svg", ".tex", ".toml", ".txt", ".url"),
)
_NAMES = ("authors", "changelog", "citation", "copying", "license", "notice", "readme")
"""Of documents without a suffix."""


def why_beside(path: str, *, media: tuple[str, ...]) -> str:
    """Why a file is no record of a folder of media with these suffixes; empty if it may be one.

    >>> why_beside("cat/notes.txt", media=IMAGES), why_beside("cat/1.png", media=IMAGES)
    ('.txt file', '')
    """
    name = path.rpartition("/")[2].lower()
    _, dot, end = name.rpartition(".")
    if not dot:
        return name.upper() if name in _NAMES else ""
    others = (*_DOCUMENTS, *TABLES, *IMAGES, *SOUNDS, *VIDEOS)
    suffix = f".{end}"
    return f"{suffix} file" if suffix in others and suffix not in media else ""
