"""Recognizes texts beside images and sounds, a file for each: captions, or something else."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Collection, Sequence

from ...transforms.sources.folders.side_files import key_of

HEAD_BYTES = 4096
MAX_LOOKED_AT = 100
_SUFFIXES = (".gt.txt", ".caption", ".txt")
"""Suffixes of texts that belong to the image or sound of the same name."""
_MIN_SHARE = 0.99
_MIN_REPEATS = 4
_NUMBER = re.compile(r"[-+]?[0-9]*\.?[0-9]+([eE][-+]?[0-9]+)?")


@dataclasses.dataclass(frozen=True)
class SideTexts:
    """The texts of at least half of the images or sounds in a folder."""

    suffix: str
    paths: Sequence[str]
    num_missing: int
    """How many images or sounds have none."""
    is_complete: bool
    """Whether 99 % have one, and some in each folder."""


def find_texts(paths: Sequence[str], others: Collection[str]) -> SideTexts | None:
    """The texts of these images or sounds among other files; None if few have one.

    >>> find_texts(["a.png", "b.png"], ["a.gt.txt", "b.gt.txt", "a.txt"]).suffix
    '.gt.txt'
    """
    for suffix in _SUFFIXES:
        texts = {key_of(path, suffix): path for path in others if path.lower().endswith(suffix)}
        keys = [key_of(path, suffix) for path in paths] if texts else []
        own = [texts[key] for key in keys if key in texts]
        if not own or 2 * len(own) < len(paths) or len(set(keys)) < len(keys):
            continue
        pairs = zip(paths, keys, strict=True)
        folders = {path.rpartition("/")[0] for path, key in pairs if key in texts}
        everywhere = all(path.rpartition("/")[0] in folders for path in paths)
        is_complete = everywhere and len(own) >= _MIN_SHARE * len(paths)
        return SideTexts(suffix, own, len(paths) - len(own), is_complete)
    return None


def why_no_captions(heads: Sequence[bytes]) -> str:
    """What texts may be that are no captions, to follow "which"; empty if nothing shows it.

    Args:
        heads: The beginnings of some, of at most ``HEAD_BYTES``.

    >>> why_no_captions([b"0 0.5 0.5 0.1 0.1", b"1 0.5 0.2 0.1 0.1"])
    'are mostly numbers: boxes, or classes'
    >>> why_no_captions([b"a dog in the grass", b"two cats"])
    ''
    """
    texts = [head.decode("utf-8", "replace").strip() for head in heads]
    filled = [text for text in texts if text]
    if not filled:
        return "are empty"
    # The last character may be cut.
    if 2 * sum("\0" in text or "\ufffd" in text[:-3] for text in filled) > len(filled):
        return "are no UTF-8"
    if 2 * sum(text[0] in "{[<" for text in filled) > len(filled):
        return "are JSON or XML"
    if 2 * sum(map(_is_numeric, filled)) > len(filled):
        return "are mostly numbers: boxes, or classes"
    words = Counter(filled)
    if len(words) * _MIN_REPEATS <= len(filled) and all(" " not in word for word in words):
        return "are a few words again and again: classes, maybe"
    return ""


def _is_numeric(text: str) -> bool:
    parts = [part for part in re.split(r"[\s,;|]+", text) if part]
    return 2 * sum(bool(_NUMBER.fullmatch(part)) for part in parts) > len(parts)
