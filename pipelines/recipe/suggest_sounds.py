"""Suggesting a source and steps for a folder of sounds, from files' names and headers."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Sequence

from ...schemas.blocks import SourceFile
from ...schemas.recipe import PrepareStep
from ...schemas.splits import Splits
from ...transforms.prepare import audio
from ...transforms.sources.folders.audio import AudioFolder, read_headers
from ...transforms.sources.folders.labels import LABEL, looks_like_splits
from ...transforms.storage.opened_source import OpenedSource

_SOUNDS = (".flac", ".mp3", ".oga", ".ogg", ".opus", ".wav")
_SEPARATORS = ("_", "-", " ")
_MAX_FIELDS = 6
_FALLBACK_RATE = 16_000
"""Where no rate is the rule: what most models of speech take."""


@dataclasses.dataclass(frozen=True)
class SuggestedSounds:
    """What a folder of sounds looks like."""

    source: AudioFolder
    steps: tuple[PrepareStep, ...]
    splits: Splits | None
    """Where folders name splits."""
    num_files: int


def find_sounds(
    url: str, listed: Sequence[SourceFile], opened: OpenedSource
) -> SuggestedSounds | None:
    """Suggests how to read the sounds among files; None where there are none, or no labels.

    Labels come from class folders, else from names that are all made alike. Sounds of several
    rates are resampled to the one that more than half of them have, or to 16 kHz; where they
    differ in their number of channels, they are mixed to one.
    """
    files = AudioFolder(url).select(listed).files
    sounds = [file for file in files if file.path.lower().endswith(_SOUNDS)]
    if not sounds:
        return None
    paths = [file.path for file in sounds]
    splits: Splits | None = None
    if all("/" in path for path in paths):
        source = AudioFolder(url)
        if looks_like_splits(paths) and all(path.count("/") > 1 for path in paths):
            source = AudioFolder(url, split_folders=True)
            splits = Splits.by_folder()
    else:
        pattern = name_pattern([path.rpartition("/")[2] for path in paths])
        if pattern is None:
            return None
        source = AudioFolder(url, pattern=pattern)
    return SuggestedSounds(source, _infer_steps(sounds, opened), splits, len(sounds))


def _infer_steps(sounds: Sequence[SourceFile], opened: OpenedSource) -> tuple[PrepareStep, ...]:
    headers = list(read_headers(sounds, opened))
    rates = Counter(header.rate for header in headers)
    mono = len({header.channels for header in headers}) > 1
    rate: int | None = None
    if len(rates) > 1:
        most, count = max(rates.items(), key=lambda item: (item[1], item[0]))
        rate = most if 2 * count > rates.total() else _FALLBACK_RATE
    return (audio.decode("audio", rate, mono),)


def name_pattern(names: Sequence[str]) -> str | None:
    """The pattern of files' names that are all made of as many fields; None if they are not.

    The first field is the label: it has several values, and each again and again. The last one is
    a number, if it is made of digits.

    >>> name_pattern(["yes_ann_1.wav", "no_ann_2.wav", "yes_bob_3.wav", "no_bob_4.wav"])
    '{label}_{field2}_{n}.wav'
    """
    parts = [name.rpartition(".") for name in names]
    ends = {end for _, _, end in parts}
    end = next(iter(ends)) if len(ends) == 1 else "*"
    for separator in _SEPARATORS:
        rows = [stem.split(separator) for stem, _, _ in parts]
        num_fields = {len(row) for row in rows}
        if num_fields not in [{number} for number in range(2, _MAX_FIELDS + 1)]:
            continue
        columns = [set(column) for column in zip(*rows, strict=True)]
        if not 1 < len(columns[0]) <= len(names) // 2 or "" in set().union(*columns):
            continue
        fields = [LABEL, *(f"field{number}" for number in range(2, len(columns) + 1))]
        if all(re.fullmatch(r"[0-9]+", text) for text in columns[-1]):
            fields[-1] = "n"
        return f"{separator.join(f'{{{field}}}' for field in fields)}.{end}"
    return None
