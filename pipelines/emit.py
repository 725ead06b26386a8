"""Writes a snapshot's ``reader.py``: the template, with this snapshot's facts and what it can use.

Pure text from plain data. Names that come from the data enter only as Python literals, never as
code, so no class name can do more than be a class name.
"""

from __future__ import annotations

import dataclasses
import pathlib
import re
from collections.abc import Iterator, Mapping, Sequence

from ..schemas.features import ClassLabel, Features
from ..schemas.manifest import FORMAT_VERSION
from ..schemas.naming import READER, READER_VALUES
from ..transforms.lengths import varying_lists
from .literals import Name, assign
from .reader_facts import describe, layout_of, sections, sides_of
from .reader_length import shortened

_TEMPLATE = pathlib.Path(__file__).with_name("reader_template.py")

_MARK = re.compile(r"\s*# \[(?:(?P<named>header|constants)|if (?P<fact>\w+)|(?P<end>end))\]")

_DICT_LINES = 6
"""Dicts but the features' take longer lines instead of more than so many."""

_HEADER = '''\
"""Reads the snapshot {fingerprint}: ``dataset(split, batch_size)`` gives a ``tf.data.Dataset``.

    import reader
    train = reader.dataset("train", 128, as_supervised=True, seed=1)
    model.fit(train, validation_data=reader.dataset("validation", 128, as_supervised=True))

Emitted by snapshard {version} for this snapshot, not to be edited by hand. It needs TensorFlow and
nothing else. Import it from the snapshot, or copy it next to the model and say ``root=``.
"""
'''


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReaderFacts:
    """What the reader of a snapshot is told of it."""

    name: str
    """The recipe's."""
    fingerprint: str
    """Of the snapshot, 16 hex digits."""
    features: Features
    """What the examples hold."""
    label: str | None
    """The feature to predict, if there is one."""
    compression: str
    """Of the shards: "none" or "gzip"."""
    num_examples: Mapping[str, int]
    """By split."""
    record_bytes: int
    """Average length of a serialized example, uncompressed; sizes the buffer."""
    rotated_images: frozenset[str]
    """Names of encoded image features that have an EXIF orientation other than 1."""
    image_formats: Mapping[str, frozenset[str]] = dataclasses.field(default_factory=dict)
    """What the files of encoded image features are: "jpeg", "png", "gif", "bmp", "webp", and "cmyk"
    where JPEGs of four components are to become grey. Any, where it is not told of a feature."""
    version: str
    """Of snapshard."""
    structs: tuple[str, ...] = ()
    """Names of the structs that features ``<struct>.<field>`` are fields of, outer ones first."""
    class_counts: Sequence[int] = ()
    """Examples of each class, of the split to train on; none where they are not counted."""
    lengths: Mapping[str, Sequence[int]] = dataclasses.field(default_factory=dict)
    """Where to part lists by their lengths, of features whose first dimension varies."""
    missing_labels: int = 0
    """Examples without a value of the label."""
    serving: bool = False
    """Whether the snapshot has a model of its preparation."""


def emit_reader(facts: ReaderFacts) -> dict[str, str]:
    """``reader.py``, and what it needs beside it of this snapshot alone, by file name.

    The same facts give the same bytes.

    Raises:
        ValueError: if the fingerprint or the version is none.
    """
    fingerprint, version = facts.fingerprint, facts.version
    if not re.fullmatch(r"[0-9a-f]{16}", fingerprint) or not re.fullmatch(r"[\w.+!-]+", version):
        raise ValueError(f"fingerprint {fingerprint!r} or version {version!r} is malformed")
    lines = _TEMPLATE.read_text(encoding="utf-8").splitlines()
    header = _HEADER.format(fingerprint=fingerprint, version=version).splitlines()

    def write(has_values: bool) -> str:
        blocks = {"header": header, "constants": list(_constants(facts))}
        wanted = _sections(facts) | {"values": has_values}
        return "\n".join(fill(lines, blocks=blocks, wanted=wanted)).rstrip("\n")

    reader, values = shortened(
        write,
        lambda max_lines: list(assign(*_features(facts), max_lines=max_lines)),
        module=READER_VALUES.removesuffix(".py"),
        fingerprint=fingerprint,
    )
    return {READER: reader} | ({READER_VALUES: values} if values else {})


def fill(
    lines: list[str], *, blocks: Mapping[str, list[str]], wanted: Mapping[str, bool]
) -> Iterator[str]:
    """The template's lines: blocks replaced, sections that are not wanted left out."""
    open_marks: list[bool] = []
    for line in lines:
        mark = _MARK.fullmatch(line)
        if mark is None:
            if all(open_marks):
                yield line
        elif mark["end"]:
            open_marks.pop()
        elif mark["named"]:
            yield from blocks[mark["named"]]
            open_marks.append(False)
        else:
            open_marks.append(wanted[mark["fact"]])


def _sections(facts: ReaderFacts) -> dict[str, bool]:
    found = sections(
        facts.features,
        label=facts.label,
        rotated_images=facts.rotated_images,
        image_formats=facts.image_formats,
        structs=facts.structs,
    )
    return found | {"serving": facts.serving, "unlabelled": facts.missing_labels > 0}


def _constants(facts: ReaderFacts) -> Iterator[str]:
    """The snapshot's facts as assignments; the features are left to be filled in."""
    wanted = _sections(facts)
    more = measured(facts)
    if wanted["sides"]:
        more["SIDES: dict[str, list[str]]"] = sides_of(facts.features, facts.rotated_images)
    if facts.structs:
        more["STRUCTS: list[str]"] = list(facts.structs)
    layout = layout_of(facts.features)
    if layout:
        more["LAYOUT: list[tuple[str, bytes, int]]"] = layout
    more[_features(facts)[0]] = {}
    return constants(facts, more)


def measured(facts: ReaderFacts) -> dict[str, object]:
    """What the build measured of classes and lists: target -> value."""
    more: dict[str, object] = {}
    wanted = _sections(facts)
    if wanted["classes"]:
        more |= _class_shares(facts)
    if wanted["lengths"]:
        names = varying_lists(facts.features)
        more["LENGTHS: dict[str, list[int]]"] = {n: list(facts.lengths.get(n, ())) for n in names}
    return more


def _class_shares(facts: ReaderFacts) -> dict[str, object]:
    """How frequent classes are, and the weights that make all of them count alike in a loss."""
    label = facts.features[facts.label or ""]
    assert isinstance(label, ClassLabel)
    counts = list(facts.class_counts) or [0] * len(label.names)
    total, num_present = sum(counts), sum(map(bool, counts))
    weights = [total / (num_present * count) if count else 0.0 for count in counts]
    return {
        "CLASS_SHARES: list[float]": [_rounded(count / max(1, total)) for count in counts],
        "CLASS_WEIGHTS: list[float]": [_rounded(weight) for weight in weights],
    }


def _rounded(number: float) -> float:
    """Six digits of a number."""
    return float(f"{number:.6g}")


def constants(facts: ReaderFacts, more: Mapping[str, object]) -> Iterator[str]:
    """Assignments of what every reader is told, and ``more``: target -> value."""
    features, label = _features(facts), None if facts.label is None else facts.features[facts.label]
    class_names = list(label.names) if isinstance(label, ClassLabel) else None
    kind = "None" if class_names is None else "list[str]"
    assignments = {
        "FORMAT_VERSION": FORMAT_VERSION,
        "NAME": facts.name,
        "FINGERPRINT": facts.fingerprint,
        "NUM_EXAMPLES: dict[str, int]": dict(facts.num_examples),
        "LABEL: str | None": facts.label,
        f"CLASS_NAMES: {kind}": class_names,
        features[0]: features[1],
        **more,
        "COMPRESSION": facts.compression,
        "RECORD_BYTES": max(1, facts.record_bytes),
    }
    yield "# fmt: off"
    for name, value in assignments.items():
        max_lines = 2**31 if name == features[0] else _DICT_LINES
        yield from assign(name, value, max_lines=max_lines)
    yield "# fmt: on"


def _features(facts: ReaderFacts) -> tuple[str, dict[str, dict[str, object]]]:
    """The constant of the features, and its value."""
    features = describe(facts.features)
    if facts.label is not None and isinstance(facts.features[facts.label], ClassLabel):
        features[facts.label]["names"] = Name("CLASS_NAMES")
    return "FEATURES: dict[str, dict[str, Any]]", features
