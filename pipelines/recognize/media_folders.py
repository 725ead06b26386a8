"""Recognizes folders of media, texts or arrays: where labels and splits come from, by paths alone.

The common folders above all files are descended, however many there are. Each level of folders
below has a part:

    train/     x/          daisy/     001.jpg
    split      constant    class      record

Levels with one name in each split say nothing. If one level is left, its folders are the classes,
unless their names speak against it: roles (``images``, ``masks``, ``before``), folds, one folder
for each sample. If none is left, names of files may have a label. Whatever is ambiguous or
incomplete is refused, with a reading for each of its meanings.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from ...schemas.splits import FOLDERS, Splits, split_of, splits_said
from ...transforms import storage
from ...transforms.sources.combined import Sources
from ...transforms.sources.folders.arrays import ArrayFolder
from ...transforms.sources.folders.audio import AudioFolder
from ...transforms.sources.folders.bystanders import TABLES
from ...transforms.sources.folders.clips import ClipFolder, holds_clips
from ...transforms.sources.folders.images import ImageFolder, find_pairs
from ...transforms.sources.folders.labels import LABEL
from ...transforms.sources.folders.texts import TextFolder
from ...transforms.storage.opened_source import matches, url_below
from .file_names import (
    groups_in_names,
    name_pattern,
    parts_that_may_be_labels,
    pattern_before_number,
    stem_of,
    words_of_names,
)
from .readings import Reading, UnclearError, quoted
from .side_texts import SideTexts, find_texts
from .unread_formats import format_of

Media = ImageFolder | AudioFolder | TextFolder | ArrayFolder

_WHATS: Mapping[type, str] = {
    ImageFolder: "images",
    AudioFolder: "sounds",
    TextFolder: "texts",
    ArrayFolder: "arrays",
}

SPLIT = "split"
"""The field of a pattern whose values are splits."""
MIN_PAIRED = 0.99
"""Files are partners if at least this share of them has one."""
_IMAGE_ROLES = frozenset(
    ("image", "images", "img", "imgs", "imgdir", "jpegimages", "input", "inputs", "rgb")
)
_MASK_ROLES = frozenset(
    (
        *("mask", "masks", "label", "labels", "annotation", "annotations", "gt", "groundtruth"),
        *("segmentation", "segmentations", "segmentationclass", "seg", "segmented", "anndir"),
    )
)
_PAIRS = (
    *(("before", "after"), ("source", "target"), ("src", "dst"), ("noisy", "clean")),
    *(("input", "target"), ("inputs", "targets"), ("input", "output"), ("inputs", "outputs")),
    *(("lr", "hr"), ("lowres", "highres"), ("blur", "sharp"), ("hazy", "clear")),
)
"""Names of two folders of images that belong together."""
_ROLES = (
    _IMAGE_ROLES
    | _MASK_ROLES
    | {name for pair in _PAIRS for name in pair}
    | {
        *("left", "right", "depth", "edges", "sketch", "photo"),
        *("segmentationobject", "annots", "bboxes", "boxes", "thumbnails", "thumbs", "previews"),
    }
)
_MASK_ENDS = tuple(f"{mark}{role}" for role in sorted(_MASK_ROLES) for mark in "_-")
_FOLD = re.compile(
    r"(.*[^a-z])?(fold|part|batch|chunk|shard|split|subset|session)[ _-]?\d+", re.IGNORECASE
)
_ORIGIN = re.compile(
    r"(.*[^a-z])?(actor|cam|camera|case|day|participant|patient|person|recording|run|scene|seq"
    r"|sequence|site|speaker|sub|subj|subject|trial|user|video|visit)[ _-]?\d+",
    re.IGNORECASE,
)
"""What says whom or what a record is of, and not its class."""
_DATE = re.compile(r"(19|20)\d\d([-_./]?(0?[1-9]|1[0-2])([-_.]?(0?[1-9]|[12]\d|3[01]))?)?")
_UNLABELLED = frozenset(
    (
        *("unsup", "unsupervised", "unlabeled", "unlabelled", "nolabel", "no_label"),
        *("without_label", "_background_noise_"),
    )
)
"""Names of folders of records that have no label."""
_COPIES = frozenset(("aug", "augmentation", "augmentations", "augmented", "backup", "resized"))
"""Names of folders of records that are made of others."""
_MIN_COUNTED = 8
"""Fewer files in each folder may have the same numbers by chance."""
_MAX_ROLES = 20
"""More names of images or masks than these are names of single samples."""


def recognize_folders(
    make: type[Media], url: str, paths: Sequence[str], others: Collection[str], *, joins: bool
) -> Reading:
    """The meaning of the folders of media files.

    Args:
        make: The source of these files.
        url: The folder's URL.
        paths: The files, relative to it; at least one.
        others: The other files there.
        joins: Whether folders below it have URLs: a glob's have none.

    Raises:
        UnclearError: if they have several meanings, or none.
    """
    top = os.path.commonpath({path.rpartition("/")[0] for path in paths}) if joins else ""
    below = [path.removeprefix(f"{top}/") for path in paths] if top else list(paths)
    place = url_below(url, top)
    texts = find_texts(paths, others) if make in (ImageFolder, AudioFolder) else None
    are_inside = texts is None or all(
        path.startswith(f"{top}/" * bool(top)) for path in texts.paths
    )
    above = None if are_inside else (url, top)
    return _Folders(make, place, below, others, joins=joins, texts=texts, above=above).read()


class _Folders:
    """Media files below their common folder."""

    def __init__(
        self,
        make: type[Media],
        url: str,
        paths: Sequence[str],
        others: Collection[str],
        *,
        joins: bool,
        texts: SideTexts | None = None,
        above: tuple[str, str] | None = None,
    ) -> None:
        self.make, self.url, self.paths, self.others = make, url, paths, others
        self.joins = joins
        self.texts, self.above = texts, above
        """The texts; if they are elsewhere, the folder of both, and the files' folder in it."""
        self.what = _WHATS[make]
        folders = dict.fromkeys(path.rpartition("/")[0] for path in paths)
        self.places = [tuple(folder.split("/")) if folder else () for folder in folders]
        self.depths = {len(place) for place in self.places}

    def read(self) -> Reading:
        if len(self.depths) > 1:
            return self._uneven()
        if self.make is ImageFolder and (paired := self._paired()) is not None:
            return paired
        if self.make is ImageFolder and (unclear := self._named_by_folder()) is not None:
            raise unclear
        if self.depth == 0:
            return self._flat()
        levels = [frozenset(place[level] for place in self.places) for level in range(self.depth)]
        split = next((level for level, names in enumerate(levels) if _are_splits(names)), None)
        return self._levels(levels, split)

    @property
    def depth(self) -> int:
        (depth,) = self.depths
        return depth

    def _flat(self) -> Reading:
        """All files in one folder, or in folders with one name at each level."""
        names = [path.rpartition("/")[2] for path in self.paths]
        pattern = name_pattern(names)
        if pattern is not None:
            pattern = "*/" * self.depth + pattern
            reading = self._by_name(pattern, self.url)
            labels = {re.split(r"[_\- .]", name)[0] for name in names}
            if _are_splits(labels):
                return self._by_split_in_name(pattern, labels)
            beside = any(path.lower().endswith(TABLES) for path in self.others)
            if (self.make is ImageFolder or beside) and all(map(str.isdigit, labels)):
                raise self._unclear(
                    f"{self.what} whose names begin with one of {len(labels):,} numbers, which may "
                    "be classes",
                    [reading, Reading(self._source(label=None))],
                )
            return reading
        means = "without a label: no name of a folder or file says one"
        return self._without_label(Reading(self._source(label=None), means=means))

    def _without_label(self, reading: Reading) -> Reading:
        """A reading without a label, with texts of the files; what may have labels is refused."""
        if self.texts is None:
            self._refuse_left_over(reading)
            return reading
        suffix, missing = self.texts.suffix, self.texts.num_missing
        source: Any = dataclasses.replace(reading.source, texts=suffix)  # type: ignore[type-var]
        splits, means = reading.splits, f"with its text, <name>{suffix}"
        if self.above is not None:
            url, top = self.above
            source = dataclasses.replace(source, url=url)
            if splits is not None:  # images/train, captions/train
                pattern = "/".join([top, f"{{{SPLIT}}}", *["*"] * self.depth])
                source = self._source(url, pattern=pattern, label=None, texts=suffix)
                splits = _by_field(self._names(0))
        tables = sorted(path for path in self.others if path.lower().endswith(TABLES))
        if self.texts.is_complete and not tables:
            return Reading(source, splits, means)
        but = f"but {missing:,} have none"
        if tables:
            but = f"and {tables[0]!r}, which may describe them"
        raise self._unclear(
            f"{self.what} in no class folder, with texts of their names (<name>{suffix}), {but}",
            [Reading(source, splits, means, num_rejects=missing), reading],
        )

    def _by_split_in_name(self, pattern: str, names: Collection[str]) -> Reading:
        """Names that begin with a split; what follows may be a label."""
        pattern, splits = pattern.replace(f"{{{LABEL}}}", f"{{{SPLIT}}}"), _by_field(names)
        plain = Reading(
            self._source(label=None, pattern=pattern),
            splits,
            "without a label: names of files say the split",
        )
        if "{field2}" not in pattern:
            return plain
        labelled = pattern.replace("{field2}", f"{{{LABEL}}}")
        raise self._unclear(
            f"{self.what} whose names begin with a split ({quoted(sorted(names))}), and the part "
            "that follows can be the label",
            [Reading(self._source(pattern=labelled), splits), plain],
        )

    def _by_name(self, pattern: str, url: str, splits: Splits | None = None) -> Reading:
        split_folders = True if splits is not None else None
        source = self._source(url, pattern=pattern, split_folders=split_folders)
        notes = parts_that_may_be_labels(pattern, [path.rpartition("/")[2] for path in self.paths])
        return Reading(source, splits, f"labelled by its name, {pattern}", notes=notes)

    def _levels(self, levels: Sequence[frozenset[str]], split: int | None) -> Reading:
        """Files that are all at one depth."""
        told = [
            level
            for level in range(self.depth)
            if level != split and not self._is_constant(level, split)
        ]
        shown = [sorted(levels[level]) for level in told]
        for names in shown:
            paired = names if _folders_of_sequences(f"{name}/" for name in names) else []
            if roles := [name for name in names if _role_of(name) in _ROLES] or paired:
                may_be_classes = len(roles) < len(names) and not any(map(splits_said, names))
                readings = [self._reading(told[0], split)] if may_be_classes else []
                raise self._unclear(
                    f"folders named {quoted(roles)}, which are parts of records and no classes",
                    readings or self._readings_of_few_masks(),
                )
        if not told:
            return self._flat() if split is None else self._of_splits(split)
        if len(told) > 1:
            readings = [self._reading(level, split) for level in reversed(told)]
            inside = [path.partition("/")[2] if split == 0 else path for path in self.paths]
            if self.make is ImageFolder and split in (None, 0) and holds_clips(inside):
                source = ClipFolder(self.url, split_folders=None if split is None else True)
                readings.append(Reading(source, readings[0].splits))
            raise self._unclear(
                f"{len(told)} levels of folders ({'; '.join(map(quoted, shown))}), and one can be "
                "the classes",
                readings,
            )
        self._refuse_odd_classes(told[0], shown[0], split)
        reading = self._reading(told[0], split)
        if split is None and self.depth == 1:
            reading = dataclasses.replace(reading, notes=groups_in_names(self.paths))
        num = len(self.paths) // len(shown[0])
        if num < _MIN_COUNTED or not self._are_partners(told[0], split, but_counts=False):
            return reading
        # Both may be: files of a class are counted, and so are records.
        notes = (
            f"Files have the same names in {quoted(shown[0])}. As pairs: {two.line()}"
            for two in self._readings_of_two(shown[0])[:1]
        )
        return dataclasses.replace(reading, notes=tuple(notes))

    def _of_splits(self, split: int) -> Reading:
        """Folders that say only the split."""
        patterns = {name: name_pattern(self._in_split(name, split)) for name in self._names(split)}
        named = {name: pattern for name, pattern in patterns.items() if pattern is not None}
        if not named:
            return self._without_label(self._reading(None, split))
        if len(set(patterns.values())) == 1:
            pattern = next(iter(named.values()))
            return self._by_name(pattern, self.url, _by_folder(self._names(split)))
        without = sorted(patterns.keys() - named.keys())
        raise self._unclear(
            f"labels in the names of the files in {quoted(sorted(named))}, and not in "
            f"{quoted(without)}",
            [self._by_name(pattern, url_below(self.url, name)) for name, pattern in named.items()],
        )

    def _refuse_odd_classes(self, level: int, names: Sequence[str], split: int | None) -> None:
        """Refuses what is no set of classes, or may be none."""
        reading, plain = self._reading(level, split), Reading(self._source(label=None))
        if split is not None:
            plain = Reading(self._source(label=None, split_folders=True), reading.splits)
        for odd, what in ((_UNLABELLED, "records without a label"), (_COPIES, "copies of others")):
            if found := [name for name in names if name.lower() in odd]:
                raise self._unclear(
                    f"a folder named {found[0]!r}: {what}, or a class",
                    [*self._readings_at_one_depth(), reading],
                )
        above = self.url.rpartition("/")[2]
        if _DATE.fullmatch(above):  # 2021/01, 2021/02
            names = [f"{above}/{name}" for name in names]
        if split is None and len([*filter(splits_said, names)]) > 1:
            raise self._unclear(
                f"folders named {quoted(names)}: splits, parts of records, or classes",
                [reading, plain],
            )
        if any(map(_FOLD.fullmatch, names)):
            raise self._unclear(
                f"folders named {quoted(names)}: folds or parts, or classes", [reading, plain]
            )
        for pattern, what in ((_ORIGIN, "people or parts of a recording"), (_DATE, "dates")):
            if len(names) > 1 and all(map(pattern.fullmatch, names)):
                raise self._unclear(
                    f"folders named {quoted(names)}: {what}, or classes", [plain, reading]
                )
        if _only_divide(names):
            raise self._unclear(
                f"folders named {quoted(names)}, which may only divide many files, or classes",
                [plain, reading],
            )
        if split is not None and (apart := self._without_common_class(level, split)):
            raise self._unclear(
                f"folders of which none is in both {apart[0]!r} and {apart[1]!r} "
                f"({quoted(names)}): what tells records apart, or classes",
                [plain, reading],
            )
        spelled: dict[str, list[str]] = {}
        for name in names:
            spelled.setdefault(name.casefold(), []).append(name)
        if twins := [same for same in spelled.values() if len(same) > 1]:
            raise self._unclear(
                f"folders whose names differ in case only: {quoted(twins[0])}. If they are one "
                "class, rename the folders",
                [reading],
            )
        stems = self._stems_by(level)
        if _are_samples(stems):
            files = sorted(next(iter(stems.values())))
            if len(files) == 1:
                raise self._unclear(
                    f"{len(stems):,} folders with one file each, {files[0]!r}: one folder for each "
                    "sample, or classes with one of the files",
                    [plain, reading],
                )
            raise self._unclear(
                f"{len(stems):,} folders with the same files, {quoted(files)}: one folder for "
                "each sample, whose files are parts of one record",
                [],
            )
        if _are_scenes(stems):
            raise self._unclear(
                f"{len(stems):,} folders with files of the same kinds, "
                f"{quoted(sorted(next(iter(stems.values()))))} for example: one folder for each "
                "sample, whose files are parts of one record, or classes",
                [reading],
            )
        if self._are_partners(level, split):
            raise self._unclear(
                f"files of the same names in all of the folders {quoted(names)}: parts of the "
                "same records, or classes",
                [*self._readings_of_two(names), reading],
            )

    def _are_partners(self, level: int, split: int | None, *, but_counts: bool = True) -> bool:
        """Whether all folders of a level have files of the same names: in each split, if several.

        With ``but_counts``, names that only count files say nothing.
        A folder that is alone in its split, as of images without masks to test on, says nothing.
        Nor do texts in splits: messages have numbers of their own in each class.
        """
        if split is not None and self.make is TextFolder:
            return False
        stems: dict[str, dict[str, set[str]]] = {}
        for path in self.paths:
            parts = path.split("/")
            of_split = stems.setdefault("" if split is None else parts[split], {})
            of_split.setdefault(parts[level], set()).add(stem_of(parts[-1]))
        several = [list(found.values()) for found in stems.values() if len(found) > 1]
        return bool(several) and all(
            _have_same_names(found) and not (but_counts and _are_counts(found[0]))
            for found in several
        )

    def _readings_of_two(self, names: Sequence[str]) -> list[Reading]:
        """Two folders of images as pairs, and as images with masks."""
        if self.make is not ImageFolder or len(names) != 2:
            return []
        (first, second), roles = names, [_role_of(name) for name in names]
        pairs = find_pairs(self.paths, images=first, masks=second)
        if not all(map(str.isidentifier, roles)) or not pairs.images:
            return []
        said, splits = _splits_of_images(pairs.images)
        sides: list[dict[str, Any]] = [
            {"pair": dict(zip(roles, names, strict=True))},
            {"images": first, "masks": second},
            {"images": second, "masks": first},
        ]
        few = len(pairs.alone)
        return [Reading(self._source(**parts, **said), splits, num_rejects=few) for parts in sides]

    def _without_common_class(self, level: int, split: int) -> tuple[str, str] | None:
        """Two splits that have no class in common; None if all have."""
        classes: dict[str, set[str]] = {}
        for place in self.places:
            classes.setdefault(place[split], set()).add(place[level])
        pairs = itertools.combinations(sorted(classes), 2)
        return next((pair for pair in pairs if not classes[pair[0]] & classes[pair[1]]), None)

    def _uneven(self) -> Reading:
        """Files at several depths."""
        firsts = {place[0] if place else "" for place in self.places}
        direct = {place[0] for place in self.places if len(place) == 1}
        roles = {_role_of(part) for place in self.places for part in place} & _ROLES
        splits = [name for name, split in _splits_of(firsts - {""}).items() if split]
        if direct == firsts and not roles and not splits:
            # Folders inside of class folders.
            return self._reading_of_folders()
        readings, without = self._readings_inside(splits)
        readings = [*self._readings_at_one_depth(), *readings]
        alone = [path for path in self.paths if "/" not in path]
        if alone:
            what = f"{len(alone):,} {self.what} beside the folders (first: {alone[0]!r})"
        elif readings and without:
            what = (
                f"{self.what} at several depths: those of {quoted(without)} are in no class folder"
            )
        else:
            deep = max(self.paths, key=lambda path: path.count("/"))
            flat = min(self.paths, key=lambda path: path.count("/"))
            what = f"{self.what} at several depths ({flat!r}, {deep!r})"
        if not readings and not splits and not roles and len(firsts - {""}) > 1:
            readings = [self._reading_of_folders()]
        if not readings or alone:
            readings.append(Reading(self._source(label=None)))
        raise self._unclear(what, readings)

    def _readings_inside(self, splits: Sequence[str]) -> tuple[list[Reading], list[str]]:
        """The labelled readings of folders of splits, each alone; and those without labels."""
        readings: list[Reading] = []
        without: list[str] = []
        for name in splits:
            inside = [path.partition("/")[2] for path in self.paths if path.startswith(f"{name}/")]
            try:
                reading = recognize_folders(
                    self.make, url_below(self.url, name), inside, (), joins=True
                )
            except UnclearError:
                continue
            if reading.source.label is None:
                without.append(name)
            else:
                readings.append(reading)
        return readings, without

    def _readings_at_one_depth(self) -> list[Reading]:
        """The labelled reading of the files at the depth that most have, by a glob of these.

        It leaves out folders of files without a label.
        """
        num_at = Counter(path.count("/") for path in self.paths)
        depth, num = num_at.most_common(1)[0]
        if not self.joins or not depth or 2 * num < len(self.paths):
            return []
        places = [place for place in self.places if len(place) == depth]
        pattern = (*(_glob_of_labelled({*names}) for names in zip(*places, strict=True)), "*")
        parts = [path.split("/") for path in self.paths if path.count("/") == depth]
        paths = ["/".join(names) for names in parts if matches(tuple(names), pattern)]
        if len({path.partition("/")[0] for path in paths}) == 1:
            return []
        url = url_below(self.url, "/".join(pattern))
        try:
            reading = _Folders(self.make, url, paths, (), joins=False).read()
        except UnclearError:
            return []
        return [] if reading.source.label is None else [reading]

    def _paired(self) -> Reading | None:
        """Images and a mask of each, or two of each, in folders or by names; None for others."""
        found = [(*rule, True) for rule in _mask_rules(self.paths)]
        found += [(*rule, False) for rule in _pair_rules(self.places)]
        unclear = None
        for images, masks, of_masks in found:
            pairs = find_pairs(self.paths, images=images, masks=masks)
            total = len(pairs.images) + len(pairs.alone)
            if 2 * len(pairs.images) < total:
                continue
            said, splits = _splits_of_images(pairs.images)
            if of_masks:
                parts: dict[str, Any] = {"images": images, "masks": masks}
                means, what = f"with its mask, {masks}", f"images ({images}) and masks ({masks})"
            else:
                parts = {"pair": {_role_of(images): images, _role_of(masks): masks}}
                means, what = f"with that in {masks}", f"images in {images} and {masks}"
            source, notes = self._source(**parts, **said), _on_folders(pairs.images)
            reading = Reading(source, splits, means, notes=notes)
            if len(pairs.images) >= MIN_PAIRED * total:
                return reading
            unclear = unclear or self._unclear(
                f"{what}, but {len(pairs.alone):,} of {len(self.paths):,} files have no "
                f"partner (first: {pairs.alone[0]!r})",
                [reading],
            )
        if unclear is not None:
            raise unclear
        return None

    def _readings_of_few_masks(self) -> list[Reading]:
        """Images in folders of splits beside a folder with masks of some: defects, for example.

        If there are several such folders, the readings of the first.
        """
        firsts = sorted({place[0] for place in self.places})
        splits = [name for name in firsts if split_of(name)]
        if self.joins and self.depth > 1 and not splits:
            inside = [path.partition("/") for path in self.paths]
            paths = [path for first, _, path in inside if first == firsts[0]]
            url = url_below(self.url, firsts[0])
            of_first = _Folders(self.make, url, paths, (), joins=True)._readings_of_few_masks()
            only = (f"Only {firsts[0]!r}.",) if len(firsts) > 1 else ()
            return [dataclasses.replace(r, against=(*only, *r.against)) for r in of_first]
        masks = [name for name in firsts if name not in splits]
        if not self.joins or len(masks) != 1 or _role_of(masks[0]) not in _MASK_ROLES:
            return []
        by_name = _names_of_splits(splits)
        parts = {s: self._source(url_below(self.url, names[0])) for s, names in by_name.items()}
        readings = []
        if len(parts) == len(splits) > 1 and self.depth == 2:
            classes = Reading(Sources(**parts), Splits.by_folder())
            readings.append(dataclasses.replace(classes, against=("This ignores the masks:",)))
        for name in splits:
            of_masks, of_images = (
                [path for path in self.paths if path.startswith(f"{part}/")]
                for part in (masks[0], name)
            )
            ends = _ends(list(map(stem_of, of_images)), list(map(stem_of, of_masks))) or ("", "")
            fields = "".join(f"{{folder{level}}}/" for level in range(1, self.depth))
            rules = {
                "images": f"{name}/{fields}{{id}}",
                "masks": f"{masks[0]}/{fields}{ends[0]}{{id}}{ends[1]}",
            }
            pairs = find_pairs([*of_masks, *of_images], **rules)
            if len(pairs.images) == len(of_masks):
                few = f"{len(pairs.alone):,} of {len(of_images):,} images in {name!r} have no mask:"
                source = self._source(**rules)
                readings.append(Reading(source, against=(few,), num_rejects=len(pairs.alone)))
        return readings

    def _named_by_folder(self) -> UnclearError | None:
        """The refusal of images and kinds of masks whose names end with that of their folder.

        Such as ``leftImg8bit/train/ulm/a_leftImg8bit.png``, ``gtFine/train/ulm/a_gtFine_ids.png``.
        """
        kinds: dict[str, Counter[str]] = {}
        for path in self.paths:
            top, _, name = path.partition("/")
            _, found, kind = stem_of(name).rpartition(f"_{top}")
            if not found:
                return None
            kinds.setdefault(top, Counter())[kind] += 1
        plain = [top for top, found in kinds.items() if set(found) == {""}]
        if len(self.depths) > 1 or len(kinds) != 2 or len(plain) != 1:
            return None
        (images,), (masks,) = plain, kinds.keys() - plain
        fields = "".join(f"{{folder{level}}}/" for level in range(1, self.depth))
        level = next((n for n in range(1, self.depth) if _are_splits(self._names(n))), None)
        parts = [f"{{{SPLIT}}}" if at == level else "*" for at in range(self.depth)]
        splits = None if level is None else _by_field(self._names(level))
        readings = [
            Reading(
                self._source(
                    images=f"{images}/{fields}{{id}}_{images}",
                    masks=f"{masks}/{fields}{{id}}_{masks}{kind}",
                    pattern=None if level is None else "/".join([*parts, "*"]),
                ),
                splits,
            )
            for kind in sorted(kinds[masks], key=lambda kind: ("label" not in kind.lower(), kind))
        ]
        first: Any = readings[0].source
        pairs = find_pairs(self.paths, images=first.images, masks=first.masks)
        if len(pairs.images) < MIN_PAIRED * kinds[images].total():
            return None
        names = sorted(f"{{id}}_{masks}{kind}" for kind in kinds[masks])
        return self._unclear(
            f"images in {images!r}, and for each of them files in {masks!r} that may be its mask "
            f"({quoted(names)})",
            readings,
        )

    def _reading(self, level: int | None, split: int | None) -> Reading:
        """The reading with the classes at one level, or without classes."""
        splits = None if split is None else _by_folder(self._names(split))
        means = f"labelled by its folder, {'/'.join([*['*'] * (level or 0), '<class>'])}/"
        if level is None:
            source = self._source(label=None, split_folders=True)
            return Reading(source, splits, "without a label: folders say the split")
        if (level, split) == (0, None):
            return Reading(self._source(), None, means)
        if (level, split) == (1, 0):
            return Reading(self._source(split_folders=True), splits, means)
        fields = {level: f"{{{LABEL}}}"} | ({split: f"{{{SPLIT}}}"} if split else {})
        parts = [fields.get(at, "*") for at in range(self.depth)]
        if split:
            splits = _by_field(self._names(split))
        return Reading(self._source(pattern="/".join([*parts, "*"])), splits, means)

    def _reading_of_folders(self) -> Reading:
        return Reading(self._source(), None, "labelled by its first folder")

    def _source(self, url: str | None = None, **arguments: object) -> Media:
        return self.make(url or self.url, **arguments)  # type: ignore[arg-type]

    def _is_constant(self, level: int, split: int | None) -> bool:
        """Whether a level has one name in each split."""
        names: dict[str, set[str]] = {}
        for place in self.places:
            names.setdefault("" if split is None else place[split], set()).add(place[level])
        return all(len(found) == 1 for found in names.values())

    def _names(self, level: int) -> list[str]:
        return sorted({place[level] for place in self.places})

    def _in_split(self, name: str, split: int) -> list[str]:
        """The names of the files of a split."""
        return [path.rpartition("/")[2] for path in self.paths if path.split("/")[split] == name]

    def _stems_by(self, level: int) -> Mapping[str, set[str]]:
        """The names of files without suffix, by the folder of a level."""
        found: dict[str, set[str]] = {}
        for path in self.paths:
            parts = path.split("/")
            found.setdefault(parts[level], set()).add(stem_of(parts[-1]))
        return found

    def _refuse_left_over(self, reading: Reading) -> None:
        """Refuses files without labels beside what may hold them, or with labels in their names."""
        beside = [path for path in self.others if path.lower().endswith((*TABLES, ".txt"))]
        stems = {stem_of(path.rpartition("/")[2]) for path in self.paths} if beside else set()
        named = [path for path in beside if stem_of(path.rpartition("/")[2]) in stems]
        tables = [path for path in beside if path.lower().endswith(TABLES)]
        if beside and (2 * len(named) >= len(stems) or tables):
            first = min(named or tables)
            if unread := format_of(first):
                raise self._unclear(
                    f"{self.what} in no class folder, and {first!r} ({unread}), which may have "
                    "their labels, but is not read as a table of them. Write one: "
                    "docs/sources.md, 'Labels in files of other formats'",
                    [reading],
                )
            raise self._unclear(
                f"{self.what} in no class folder, and {first!r}, which may describe them but does "
                "not name them in a known form",
                [reading],
            )
        names = [path.rpartition("/")[2] for path in self.paths]
        if not (words := words_of_names(names)):
            return
        seen = (
            f"{self.what} whose names have one of {len(words):,} words ({quoted(words)}), "
            "which may be classes"
        )
        if (pattern := pattern_before_number(names, "")) is not None:
            raise self._unclear(seen, [self._by_name(pattern, self.url, reading.splits), reading])
        raise self._unclear(
            f"{seen}, but no pattern has these words as a field. To use them, put the {self.what} "
            "into a folder for each, or write a table with the columns file and label",
            [reading],
        )

    def _unclear(self, seen: str, readings: Sequence[Reading]) -> UnclearError:
        return UnclearError(f"{storage.redact(self.url)} holds {seen}.", readings)


def _splits_of_images(paths: Iterable[str]) -> tuple[dict[str, Any], Splits | None]:
    """Settings of a source, and splits, if a level of folders says the splits of images.

    >>> _splits_of_images(["images/train/1.jpg", "images/val/2.jpg"])[0]
    {'pattern': '*/{split}/*'}
    """
    places = {tuple(path.split("/")[:-1]) for path in paths}
    for level in range(min(map(len, places))):
        names = {place[level] for place in places}
        if _are_splits(names) and level == 0:
            return {"split_folders": True}, _by_folder(names)
        if _are_splits(names) and len({*map(len, places)}) == 1:
            (depth,) = {*map(len, places)}
            parts = [f"{{{SPLIT}}}" if at == level else "*" for at in range(depth)]
            return {"pattern": "/".join([*parts, "*"])}, _by_field(names)
    return {}, None


def _on_folders(paths: Collection[str]) -> tuple[str, ...]:
    """What is said of folders of images that are neither splits nor one for each image."""
    places = {tuple(path.split("/")[:-1]) for path in paths}
    depth, *others = {*map(len, places)}
    for level in range(0 if others else depth):
        names = sorted({place[level] for place in places})
        if 1 < len(names) <= len(paths) // 2 and not _are_splits(names):
            pattern = "/".join(["{group}" if at == level else "*" for at in range(depth)])
            return (
                f"The names of the folders {quoted(names)} are in no feature; "
                f'pattern="{pattern}/*" makes them one.',
            )
    return ()


def _glob_of_labelled(names: Collection[str]) -> str:
    """A glob of the names of folders but those of files without a label.

    >>> _glob_of_labelled(["neg", "pos", "unsup"]), _glob_of_labelled(["train", "test"])
    ('[np]*', '*')
    """
    labelled = {name for name in names if name.lower() not in _UNLABELLED}
    firsts = "".join(sorted({name[0] for name in labelled}))
    apart = not any(name[0] in firsts for name in names if name not in labelled)
    return f"[{firsts}]*" if len(labelled) < len(names) and apart and firsts.isalnum() else "*"


def _mask_rules(paths: Sequence[str]) -> list[tuple[str, str]]:
    """What may tell images from masks, as ``images=`` and ``masks=``: first the plainest.

    >>> _mask_rules(["image/1.jpg", "mask/1.png"]), _mask_rules(["1/image.png", "1/mask.png"])
    ([('image', 'mask')], [('{id}/image', '{id}/mask')])
    >>> _mask_rules(["images/a.jpg", "masks/a of.png"]), _mask_rules(["a.jpg", "a_mask.png"])
    ([('images', 'masks'), ('images/{id}', 'masks/{id} of')], [('{id}', '{id}_mask')])
    >>> _mask_rules(["train/a.jpg", "train_gt/a.png"])
    [('{folder}/{id}', '{folder}_gt/{id}')]
    """
    stems = sorted({stem_of(path) for path in paths})
    names = Counter(name for stem in stems for name in stem.split("/")[:-1])
    files = Counter(stem.rpartition("/")[2] for stem in stems)
    if len(files) <= _MAX_ROLES:  # as in a folder for each sample
        names += files
    by_image, by_mask = (
        _by_role(stems, names, roles) for roles in (_IMAGE_ROLES | {"original"}, _MASK_ROLES)
    )
    rules = _folders_of_sequences(stems)
    if any(f"{name}annot" in names for name in names):
        rules.append(("{folder}/{id}", "{folder}annot/{id}"))
    if "imagesTr" in names and "labelsTr" in names:  # of nnU-Net, images of one channel
        rules.append(("imagesTr/{id}_0000", "labelsTr/{id}"))
    for (images, of_images), (masks, of_masks) in itertools.product(
        by_image.items(), by_mask.items()
    ):
        folder, _, name = of_images[0].rpartition("/")
        if name == images:
            fields = "/".join(f"{{id{n}}}" if n else "{id}" for n in range(folder.count("/") + 1))
            rules.append((f"{fields}/{images}", f"{fields}/{masks}"))
            continue
        rules.append((images, masks))
        if folder.split("/")[-1] == images and (ends := _ends(of_images, of_masks)) is not None:
            outer = "{folder}/" * (folder.count("/") > 0)
            inner = f"{ends[0]}{{id}}{ends[1]}"
            rules.append((f"{outer}{images}/{{id}}", f"{outer}{masks}/{inner}"))
    for masks, of_masks in by_mask.items():
        images, sign, end = _last_part(masks)
        of_images = [stem for stem in stems if f"/{images}/" in f"/{stem}/"]
        if of_images and any(f"{masks}/" in stem for stem in of_masks):
            before, after = _ends(of_images, of_masks) or ("", "")
            rules.append(("{folder}/{id}", f"{{folder}}{sign}{end}/{before}{{id}}{after}"))
    marked = [stem for stem in stems if stem.lower().endswith(_MASK_ENDS)]
    if marked and len(marked) < len(stems):
        plain = sorted(set(stems) - set(marked))
        if (ends := _ends(plain, marked)) is not None:
            folder = "{folder}/" * min(plain[0].count("/"), 1)
            rules.append((f"{folder}{{id}}", f"{folder}{ends[0]}{{id}}{ends[1]}"))
        ends_of = [{_last_part(stem)[1:] for stem in part} for part in (plain, marked)]
        if [*map(len, ends_of)] == [1, 1]:
            ((sign, image),), ((_, mask),) = ends_of
            rules += [(f"{{id}}{sign}{image}", f"{{id}}{sign}{mask}")] if sign else []
    return rules


def _pair_rules(places: Iterable[tuple[str, ...]]) -> list[tuple[str, str]]:
    """Two folders whose names say that their images belong together."""
    folders = {_role_of(name): name for place in places for name in place}
    return [(folders[a], folders[b]) for a, b in _PAIRS if a in folders and b in folders]


def _folders_of_sequences(stems: Iterable[str]) -> list[tuple[str, str]]:
    """The rule of several folders of images, each with a folder of masks: ``a_img``, ``a_mask``.

    >>> _folders_of_sequences(["a_img/1", "b_img/1", "a_mask/1", "b_mask/1"])
    [('{folder}_img/{id}', '{folder}_mask/{id}')]
    """
    begins: dict[tuple[int, str], set[str]] = {}
    for level, name in {(at, n) for stem in stems for at, n in enumerate(stem.split("/")[:-1])}:
        begin, sign, end = _last_part(name)
        if begin and _role_of(end) in _IMAGE_ROLES | _MASK_ROLES:
            begins.setdefault((level, f"{sign}{end}"), set()).add(begin)
    images, masks = (
        [place for place in sorted(begins) if _role_of(place[1]) in roles]
        for roles in (_IMAGE_ROLES, _MASK_ROLES)
    )
    rules = []
    for (level, image), (other, mask) in itertools.product(images, masks):
        if level == other < 2 and len(begins[level, image] & begins[level, mask]) > 1:
            outer = "{outer}/" * level
            rules.append((f"{outer}{{folder}}{image}/{{id}}", f"{outer}{{folder}}{mask}/{{id}}"))
    return rules


def _last_part(name: str) -> tuple[str, str, str]:
    """What is before the last ``_`` or ``-`` of a name, that sign, and what follows it.

    >>> _last_part("a_b-mask"), _last_part("mask")
    (('a_b', '-', 'mask'), ('', '', 'mask'))
    """
    *before, end = re.split(r"([_-])(?=[^_-]*$)", name)
    begin, sign = before or ("", "")
    return begin, sign, end


def _by_role(
    stems: Sequence[str], names: Iterable[str], roles: Collection[str]
) -> dict[str, list[str]]:
    """The stems below or with each name of a role; none if there are many such names."""
    found = [name for name in sorted(names) if _last_role(name, roles)]
    if len(found) > _MAX_ROLES:
        return {}
    return {name: [stem for stem in stems if f"/{name}/" in f"/{stem}/"] for name in found}


def _last_role(name: str, roles: Collection[str]) -> bool:
    """Whether a name ends with a role: ``masks``, ``train_masks``, ``Task1_GroundTruth``."""
    words = re.findall(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+", name)
    return any(_role_of("".join(words[-num:])) in roles for num in (1, 2, len(words)) if words)


def _ends(images: Sequence[str], masks: Sequence[str]) -> tuple[str, str] | None:
    """What the first mask's name has before and after an image's."""
    name = masks[0].rpartition("/")[2]
    inside = [stem for path in images if (stem := path.rpartition("/")[2]) in name]
    before, _, after = name.partition(max(inside, key=len)) if inside else ("", "", "")
    return (before, after) if before or after else None


def _role_of(name: str) -> str:
    """The name of a folder without case, signs and ends of splits, such as ``imagesTr`` has.

    >>> _role_of("Ground_Truth"), _role_of("imagesTr")
    ('groundtruth', 'images')
    """
    return re.sub(r"[\W_]|(?<=[a-z])(Tr|Ts|Va|Te)$", "", name).lower()


def _splits_of(names: Iterable[str]) -> dict[str, str | None]:
    """The split of each name, apart from what they begin with: ``asl_train``, ``asl_test``."""
    names = sorted(set(names))
    same = itertools.takewhile(lambda letters: len(set(letters)) == 1, zip(*names, strict=False))
    shared = re.sub(r"[^\W_]*$", "", "".join(letters[0] for letters in same))
    return {name: split_of(name) or split_of(name.removeprefix(shared)) for name in names}


def _are_splits(names: Iterable[str]) -> bool:
    """Whether names are those of at least two splits."""
    splits = set(_splits_of(names).values())
    return None not in splits and len(splits) > 1


def _by_folder(folders: Iterable[str]) -> Splits:
    """Splits by these folders; those with the usual names need not be said."""
    usual = _names_of_splits(folders)
    known = all(f.casefold() in FOLDERS[name] for name, found in usual.items() for f in found)
    if known and len(usual) == len(FOLDERS):
        return Splits.by_folder()
    return Splits.by_folder(**usual)


def _by_field(names: Iterable[str]) -> Splits:
    """Splits by these values of a pattern's field."""
    return Splits.by_column(SPLIT, **_names_of_splits(names))


def _names_of_splits(names: Iterable[str]) -> dict[str, Any]:
    """The names of each split, in the usual order of splits."""
    values: dict[str, list[str]] = {}
    for name, split in _splits_of(names).items():
        values.setdefault(split or name, []).append(name)
    return {name: values[name] for name in FOLDERS if name in values}


def _are_samples(stems: Mapping[str, set[str]]) -> bool:
    """Whether each folder has the same few files, which words name and not numbers."""
    files = next(iter(stems.values()))
    alike = all(found == files for found in stems.values())
    words = not any(any(map(str.isdigit, stem)) for stem in files)
    return alike and words and len(stems) > 2 and len(files) < len(stems)


def _are_scenes(stems: Mapping[str, set[str]]) -> bool:
    """Whether each folder has one file of each of the same few words: ``GT_7``, ``NOISY_7``."""
    words = [sorted(re.sub(r"\d+", "", stem) for stem in found) for found in stems.values()]
    first = words[0]
    return len(stems) > 2 and 1 < len({*first}) == len(first) and all(w == first for w in words)


def _only_divide(names: Sequence[str]) -> bool:
    """Whether folders are named by a count of their files, a hash of them, or a camera.

    >>> _only_divide(["00000", "01000"]), _only_divide(["0a", "c3"]), _only_divide(["100CANON"] * 2)
    (True, True, True)
    >>> _only_divide(["100", "200"]), _only_divide(["a1", "b2"]), _only_divide(["00000", "00001"])
    (False, False, False)
    """

    def all_are(form: str) -> bool:
        return all(re.fullmatch(form, name) for name in names)

    is_count = all_are(r"\d{2,}00") and len({*map(len, names)}) == 1
    is_hash = all_are(r"[0-9a-f]{2}") and len({name[0].isdecimal() for name in names}) == 2
    return len(names) > 1 and (is_count or is_hash or all_are(r"[1-9]\d\d[A-Z0-9_]{5}"))


def _have_same_names(stems: Sequence[set[str]]) -> bool:
    """Whether all folders have files of the same names, at least three."""
    return len(stems[0]) > 2 and all(found == stems[0] for found in stems)


def _are_counts(stems: Collection[str]) -> bool:
    """Whether names only count files from 0 or 1."""
    texts = {re.sub(r"\d+", "", stem) for stem in stems}
    numbers = sorted(int("".join(re.findall(r"\d+", stem)) or 0) for stem in stems)
    counted = [number - numbers[0] for number in numbers] == list(range(len(numbers)))
    return len(texts) == 1 and counted and numbers[0] in (0, 1)
