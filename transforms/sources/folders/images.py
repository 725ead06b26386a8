"""The source of folders of images, and the prepare steps inferred from the sizes in headers.

Labels come from folders, file names or a table (``labels``). A mask's file has the path of its
image's, but for one folder's name and the suffix.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import heapq
import json
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal

import pyarrow as pa
import pydantic

from ....schemas.blocks import Block, Selection, SourceFile
from ....schemas.config import config_class
from ....schemas.errors import DataError
from ....schemas.features import Features, Image, Mask, written
from ....schemas.recipe import OpenSource, PrepareStep
from ...media.image_header import MAX_PIXELS, ImageHeader, UnreadableImageError
from ...media.tiff import has_16_bits, read_any_header, readable_image
from ...prepare import images
from ...storage.opened_source import path_bytes
from ...storage.read_files import read_headers
from . import bystanders
from .annotations.beside import BoxReader, Format, infer_boxes
from .annotations.labelme import read_json
from .annotations.model import BOX_DIFFICULT, BOX_FEATURES, BadBoxes, InvalidAnnotationError
from .annotations.voc import read_xml
from .annotations.yolo import TEXTS, read_labels, read_names
from .files import MediaFolder, MediaKind, Partner, contents_array, may_be_image
from .labels import LABEL, FileLabels, compile_pattern, file_name

BATCH_PIXELS = 48 << 20
"""Maximum pixels in a raw batch: about 144 MiB when decoded."""

MAX_HEADERS = 20_000
"""Maximum number of headers read: those of the files with the lowest path hashes."""
_NUM_LOOKED_AT = 32
"""Number of images of which the bits are looked at."""
FALLBACK_SIZE = (256, 256)
"""The size if no size has a majority."""
MASK = "mask"
"""The feature of the masks."""
IMAGES = "images"
"""The usual name of the folder of images that have masks."""

FORMATS: Mapping[str, Format] = {
    "yolo": Format(
        name="yolo",
        suffix=".txt",
        parse=functools.partial(read_labels, names={}, polygons=False),
        lists=TEXTS,
        empty=True,
    ),
    "voc": Format(name="voc", suffix=".xml", parse=read_xml, flags=(BOX_DIFFICULT,)),
    "labelme": Format(
        name="labelme", suffix=".json", parse=functools.partial(read_json, polygons=False)
    ),
}
"""Formats of boxes with a file for each image."""

_Key = tuple[str, ...]


@config_class
class ImageFolder(MediaFolder):
    """A folder of images: feature ``image``, and its labels.

    Without ``pattern`` and ``table``, the images are in class folders, whose names become the
    feature ``label``. Every file is a record, at any depth and with any name; files that cannot be
    decoded become rejects. Documents, tables and sounds beside the images (``README``, ``.txt``,
    ``.csv``, ``.wav`` …), hidden files and files left by operating systems (``Thumbs.db``,
    ``__MACOSX`` …) are skipped and counted.

    With ``masks``, each image has a mask, the feature ``mask``: the file of the same path and stem,
    but in the folder ``masks`` instead of ``images``, such as ``masks/a.png`` for ``images/a.jpg``.
    Images without a mask, masks without an image, and several files of one stem are rejects. There
    are no class folders then: other features come from ``pattern`` or ``table``.

    Raw batches are in the wire form of the raw features: the file's bytes in ``image``, of a TIFF
    those of a PNG with the same pixels, and facts
    from its header in ``image/height``, ``image/width`` and ``image/orientation``, where the size
    is that of the image as displayed. Steps find out whether the pixels can be decoded.

    Attributes:
        url: The folder of the class folders: a path, any fsspec URL, or a glob whose root contains
            them. In a recipe, a relative path is relative to the recipe's file.
        pattern: Pattern of the file names, with fields in braces: ``"{label}_{camera}_{n}.jpg"``.
            Matched with the entire path if it has a '/'. ``*`` matches any characters, a field as
            few as possible, ``{n:d}`` digits alone. Each field is a feature: the label a
            ClassLabel, a field of digits only an int64, others strings.
        table: A ``.csv``, ``.tsv``, ``.txt`` or ``.jsonl`` file with a row for each image, named in
            a column ``file``, ``file_name``, ``filename``, ``path`` or ``image``, else in the first
            column. Other columns are features: the label a ClassLabel, ``boxes`` of JSON Lines
            bounding boxes. Or COCO's instances, ``.json``: ``image_id``, ``boxes``, ``box_labels``,
            and ``box_crowd`` if any annotation has ``iscrowd``. An image without a row is rejected,
            and one whose size is not the one in COCO's file. Relative paths are resolved like
            ``url``. A dict has a table for each folder:
            ``{"val2017": "instances_val2017.json"}``; images in other folders are skipped. A
            glob is one of the parts of a table: ``"*/labels.csv"``.
        split_folders: Whether the first folder is the split (``train/cat/1.jpg``), for use with
            ``ss.Splits.by_folder()``. False if class folders have such names.
        label: The column of ``table`` or field of ``pattern`` to predict. Its strings become a
            ClassLabel; numbers of a table are kept. None for none; folders are no classes then.
            With ``masks``, the default is the mask.
        max_pixels: Images with more pixels are rejected before decoding, which would need 3 bytes
            of memory for each pixel.
        masks: The name of the folder of the masks, at any depth; or a pattern of their paths
            without suffix, with fields in braces: ``masks="{id}_mask", images="{id}"`` for masks
            beside their images, ``"{id}/mask"`` and ``"{id}/image"`` for a folder per sample. A
            mask is that of the image of the same fields. None for no masks.
        images: With ``masks``: the name of the folder of the images, or a pattern. Files that are
            neither are skipped and counted.
        pair: Two folders, or patterns, of images that belong together, by the names of their
            features: ``pair={"before": "before", "after": "after"}``. They are told apart as images
            and masks are, and there are no class folders either.
        unlisted: Whether files without a row in ``table`` are rejected, or skipped and counted:
            ``"skip"`` reads only the labelled part of a folder.
        one_hot: Columns of ``table``, one of which is 1 in each row, and the others 0: instead of
            them there is the feature ``label``, whose classes are their names.
        rows: ``"list"``: a file may have several rows in ``table``; its features are lists of their
            values, in the order of the rows.
        lists: Texts that name the files of each split, a file on each line: ``{"train":
            "train.txt", "test": "test.txt"}``, for use with ``ss.Splits.by_column("split")``. None
            for the split of all other files: ``{"train": None, "test": "test.txt"}``; else files in
            no list are skipped and counted. Feature ``split``.
        boxes: The format of the files that have the images' boxes: features ``boxes``
            and ``box_labels``. ``"yolo"``: texts such as ``labels/a.txt`` for ``images/a.jpg``; an
            image without one has no boxes. ``"voc"``: Pascal VOC's XML, such as
            ``Annotations/a.xml`` for ``JPEGImages/a.jpg``, with ``box_difficult`` if any object is.
            ``"labelme"``: LabelMe's JSON, such as ``a.json`` for ``a.jpg``. ``"rows"``: each row
            of ``table`` is a box. There are no class folders then.
        names: With ``boxes="yolo"``: the classes, or the file that names them, ``data.yaml`` or a
            text with a name on each line. Relative paths are resolved like ``url``.
        polygons: With YOLO's and LabelMe's files: whether polygons are read, as the boxes around
            them.
        bad_boxes: What becomes of an image with boxes that have no area or exceed the image by
            more than a pixel, of any format but JSON Lines: ``"reject"``; ``"drop"`` leaves these
            boxes out; ``"clip"`` clips them, and leaves out what has no area then. The feature
            ``num_bad_boxes`` counts them.
        texts: The suffix of the images' texts, captions or transcripts: ``".txt"`` for ``a.txt``
            beside ``a.jpg``, or in a folder of its own, ``captions/a.txt``. Feature ``text``: the
            file in UTF-8, without line ends at its end. An image without one is rejected.
    """

    max_pixels: Annotated[int, pydantic.Field(gt=0)] = MAX_PIXELS
    table: str | dict[str, str] | None = None
    masks: str | None = None
    images: str = IMAGES
    pair: Mapping[str, str] | None = None
    boxes: Literal["yolo", "voc", "labelme", "rows"] | None = None
    names: str | tuple[str, ...] | None = None
    polygons: bool = False
    bad_boxes: BadBoxes = "reject"
    texts: str | None = None

    _suffixes = bystanders.IMAGES
    _what = "image"

    @property
    def _content(self) -> str:
        return self.parts[0]

    @property
    def parts(self) -> tuple[str, ...]:
        """The features of a record's files: one, or two."""
        if self.pair is not None:
            return tuple(self.pair)
        return ("image",) if self.masks is None else ("image", MASK)

    @property
    def _rules(self) -> tuple[str, str] | None:
        """Where the files of the two parts are, if there are two."""
        if self.pair is not None:
            first, second = self.pair.values()
            return first, second
        return None if self.masks is None else (self.images, self.masks)

    def __post_init__(self) -> None:
        """Checks the origin of labels and boxes; with masks, these are the label."""
        if self.pair is not None and (self.masks is not None or len(self.pair) != 2):
            raise ValueError(
                f"pair={self.pair!r}: expected two names of features with their folders, and no "
                "masks="
            )
        if self._rules is not None:
            _check_roles(*self._rules)
        if self.masks is not None and self.label == LABEL:
            object.__setattr__(self, "label", MASK)
        self._check_boxes()
        if self.texts is not None and (self._rules is not None or self.boxes in FORMATS):
            raise ValueError("texts= is for images without masks=, pair= and files of boxes=")
        super().__post_init__()

    def _check_boxes(self) -> None:
        if self.boxes is not None and self.masks is not None:
            raise ValueError("boxes and masks are mutually exclusive: give one of them")
        tables = super()._labels.tables
        are_boxes = tables and all(file_name(url).lower().endswith(".json") for url in tables)
        if self.bad_boxes != "reject" and self.boxes is None and not are_boxes:
            raise ValueError("bad_boxes= is for boxes= or for COCO's files as table=")
        if self.boxes == "rows" and not (tables and all(map(_is_csv, tables))):
            raise ValueError('boxes="rows" is for a table= with a box in each row, .csv or .tsv')
        if self.names is not None and self.boxes != "yolo":
            raise ValueError('names= is for boxes="yolo": other formats name the class of each box')
        if self.polygons and self.boxes not in ("yolo", "labelme"):
            raise ValueError('polygons= is for boxes="yolo" and boxes="labelme"')

    @property
    def _labels(self) -> FileLabels:
        labels = super()._labels
        labels = dataclasses.replace(labels, bad_boxes=self.bad_boxes)
        if self.boxes is not None:
            return dataclasses.replace(labels, by_folder=False, of_boxes=self.boxes == "rows")
        if self._rules is None:
            return labels
        of_columns = self.pattern is not None or self.table is not None
        label = None if self.label == MASK or not of_columns else self.label
        return dataclasses.replace(labels, label=label, by_folder=False)

    def select(self, files: Sequence[SourceFile]) -> Selection:
        """Selects all files except hidden ones, system files and the table; pairs masks."""
        if (of := FORMATS.get(self.boxes or "")) is not None:
            return self._select_paired(files, of)
        selection = super().select(files)
        if self._rules is None:
            return selection
        files = pair_files(selection.files, self._rules, names=self.parts)
        return dataclasses.replace(selection, files=files)

    def _is_named(self, path: str) -> bool:
        names = self.names
        return isinstance(names, str) and path.rpartition("/")[2] == file_name(names)

    @property
    def side_urls(self) -> tuple[str, ...]:
        """The table and the file of the classes' names, if there are any."""
        return super().side_urls + ((self.names,) if isinstance(self.names, str) else ())

    def rows_digest(self, block: Block, *, features: Features, opened: OpenSource) -> str:
        """Hash of what the side files say of a block's records; empty if there are none."""
        rows = super().rows_digest(block, features=features, opened=opened)
        if not isinstance(self.names, str):
            return rows
        said = json.dumps([rows, self._class_names(opened)])
        return hashlib.sha256(said.encode("ascii")).hexdigest()

    def _class_names(self, opened: OpenSource) -> dict[int, str]:
        """YOLO's classes by number.

        Raises:
            DataError: if they are not given, or their file has none.
        """
        if self.names is None:
            raise DataError(
                'ImageFolder: with boxes="yolo" labels are numbers of classes. Name these: '
                'names="data.yaml", names="classes.txt" with a name on each line, or '
                'names=("cat", "dog").'
            )
        if isinstance(self.names, str):
            return read_names(file_name(self.names), opened.read_side(self.names))
        return dict(enumerate(self.names))

    def _format(self, opened: OpenSource) -> Format | None:
        """The format of the annotation files, with what is needed to read them."""
        of = FORMATS.get(self.boxes or "")
        if of is None or self.boxes == "voc":
            return of
        settings: dict[str, Any] = {"polygons": self.polygons}
        if self.boxes == "yolo":
            settings["names"] = self._class_names(opened)
        return dataclasses.replace(of, parse=functools.partial(of.parse, **settings))

    def _why_unfit(self, path: str) -> str:
        if self.boxes is not None and not may_be_image(path):
            return "not an image, by its suffix"
        beside = super()._why_unfit(path)
        if beside or self._rules is None or _roles(*self._rules)(path) is not None:
            return beside
        return f"in neither {self._rules[0]!r} nor {self._rules[1]!r}"

    def settings(self) -> dict[str, object]:
        """The settings that determine the records, as plain JSON, for the fingerprint."""
        labels = self._labels.settings()
        parts: dict[str, object] = {}
        if self.masks is not None:
            parts = {"masks": [self.images, self.masks]}
        elif self.pair is not None:
            parts = {"pair": list(self.pair.items())}
        boxes: dict[str, object] = {} if self.boxes is None else {"boxes": self.boxes}
        if isinstance(self.names, tuple):
            boxes["names"] = list(self.names)
        if self.polygons:
            boxes["polygons"] = True
        if self.bad_boxes != "reject":
            boxes["bad_boxes"] = self.bad_boxes
        if self.texts is not None:
            parts = {"texts": self.texts}
        settings = {"source": "image_folder", "max_pixels": self.max_pixels}
        return {**settings, **labels, **parts, **boxes}

    def infer(self, files: Sequence[SourceFile], opened: OpenSource) -> Mapping[str, Any]:
        """The encoded image, its mask or partner, and the features found by ``labels``.

        Raises:
            RecipeError: if class folders are named like splits.
            DataError: if no file has labels, or the table is not valid.
        """
        labels = self.infer_labels(files, opened)
        if (of := self._format(opened)) is not None:
            names = tuple(self._class_names(opened).values()) if self.boxes == "yolo" else None
            boxes = infer_boxes(
                files,
                opened,
                of=of,
                image=self._content,
                class_names=names,
                mends=self.bad_boxes != "reject",
            )
            return {"image": Image(storage="encoded"), **labels, **boxes}
        files_of: dict[str, Any] = {name: Image(storage="encoded") for name in self.parts}
        if self.masks is not None:
            files_of[MASK] = Mask(storage="encoded")
        if taken := sorted(files_of.keys() & labels.keys()):
            raise DataError(
                f"ImageFolder: a field or column is called {taken[0]!r}, which is the name of a "
                "file's content. Rename it."
            )
        return self.with_text(files_of | labels)

    def remarks(self, files: Sequence[SourceFile], opened: OpenSource) -> list[str]:
        """How many of a few images have more bits than are kept by default."""
        pictures = (file for file in files if self.is_picture(file) and not file.problem)
        deep = list(
            read_headers(
                heapq.nsmallest(_NUM_LOOKED_AT, pictures, key=_path_hash),
                opened,
                read=lambda _, data: has_16_bits(data),
                unreadable=UnreadableImageError,
                cut_short="truncated image",
            )
        )
        if not any(deep):
            return []
        return [
            f"{sum(deep):,} of {len(deep):,} sampled images have 16 bits, of which the upper 8 are "
            f'used, unless ss.images.decode({written(self.parts[0])}, 1, dtype="uint16") keeps all.'
        ]

    def is_picture(self, file: SourceFile) -> bool:
        """Whether a file of a record is an image: no mask, text or annotations."""
        return not file.of or self.pair is not None

    def _kind(self, features: Features) -> MediaKind[ImageHeader]:
        return MediaKind(
            name=self._content,
            read=self._read_image,
            unreadable=UnreadableImageError,
            weigh=_num_pixels,
            max_weight=BATCH_PIXELS,
            sides=functools.partial(_side_columns, name=self._content),
        )

    @property
    def _partner_features(self) -> frozenset[str]:
        if self._rules is not None:
            return frozenset(self.parts[1:])
        return BOX_FEATURES if self.boxes in FORMATS else super()._partner_features

    def _partner(self, features: Features, opened: OpenSource) -> Partner[ImageHeader] | None:
        if self._rules is not None:
            return Partner(
                read=self._read_second,
                unreadable=UnreadableImageError,
                columns=functools.partial(_second_columns, name=self.parts[1]),
            )
        if (of := self._format(opened)) is None:
            return super()._partner(features, opened)
        wanted = {n: f for n, f in features.items() if n in self._partner_features}
        boxes = BoxReader(of, wanted, image=self._content, bad_boxes=self.bad_boxes)
        return Partner(
            read=boxes.read,
            unreadable=InvalidAnnotationError,
            columns=boxes.columns,
        )

    def _read_second(self, data: bytes | None, header: ImageHeader) -> tuple[bytes, ImageHeader]:
        del header
        assert data is not None
        return self._read_image(data)

    def _read_image(self, data: bytes) -> tuple[bytes, ImageHeader]:
        return readable_image(data, max_pixels=self.max_pixels)


def _check_roles(images: str, masks: str) -> None:
    """Refuses what are neither two folders nor two patterns of the same fields."""
    given = f"masks={masks!r} and images={images!r}"
    if "{" in images + masks:
        if compile_pattern(images).groupindex.keys() != compile_pattern(masks).groupindex.keys():
            raise ValueError(f"{given}: expected patterns with the same fields, such as {{id}}")
    elif "/" in masks + images or masks == images:
        raise ValueError(f"{given}: expected the names of two folders, or two patterns")


def _is_csv(url: str) -> bool:
    return file_name(url).lower().endswith((".csv", ".tsv"))


def _second_columns(
    files: Sequence[tuple[bytes, ImageHeader]], *, name: str
) -> Mapping[str, pa.Array]:
    sides = _side_columns([header for _, header in files], name=name)
    return {name: contents_array([data for data, _ in files]), **sides}


def _num_pixels(header: ImageHeader) -> int:
    return header.height * header.width + header.more_pixels // 3


def _side_columns(headers: Sequence[ImageHeader], *, name: str) -> Mapping[str, pa.Array]:
    return {
        f"{name}/{part}": pa.array([getattr(header, part) for header in headers], pa.int64())
        for part in ("height", "width", "orientation")
    }


def infer_image_steps(
    source: ImageFolder, files: Sequence[SourceFile], opened: OpenSource
) -> list[PrepareStep]:
    """Infers the steps for a folder of images; the same files give the same steps.

    Images of the same size are copied unchanged. Otherwise they are resized to the size of more
    than half of them, or fitted into 256×256 with black padding if no size has a majority. Files
    without a readable header are ignored. Masks are decoded if images are.

    Args:
        source: The source of the files.
        files: The records' files, of which at most 20,000 are read.
        opened: The source's root.
    """
    of_masks = source.masks is not None
    pictures = [file for file in files if source.is_picture(file) and not file.unpaired]
    sizes = Counter(read_sizes(pictures, opened))
    if len(sizes) <= 1:
        return []
    size, count = max(sizes.items(), key=lambda item: (item[1], item[0]))
    ruled = 2 * count > sizes.total()
    size = size if ruled else FALLBACK_SIZE
    resized = source.parts[:1] if of_masks else source.parts  # masks follow their images
    return [
        *(images.decode(name) for name in source.parts),
        *(images.resize(name, size, keep_ratio=not ruled) for name in resized),
    ]


def read_sizes(files: Sequence[SourceFile], opened: OpenSource) -> list[tuple[int, int]]:
    """Heights and widths, as displayed, of the images with readable headers."""
    readable = [file for file in files if not file.problem]
    if len(readable) > MAX_HEADERS:
        readable = sorted(readable, key=_path_hash)[:MAX_HEADERS]
    headers = read_headers(
        readable,
        opened,
        read=lambda _, data: read_any_header(data),
        unreadable=UnreadableImageError,
        cut_short="truncated image",
    )
    return [(header.height, header.width) for header in headers]


def _path_hash(file: SourceFile) -> bytes:
    return hashlib.blake2b(path_bytes(file.path), digest_size=16).digest()


def pair_files(
    files: Sequence[SourceFile], rules: tuple[str, str], *, names: Sequence[str]
) -> tuple[SourceFile, ...]:
    """Marks each second file as a part of its record, and files without one partner as unpaired.

    Args:
        files: Files that are in one of the two folders.
        rules: The folders of the first and second files, or patterns of their paths.
        names: What they are called.
    """
    find = _roles(*rules)
    roles: dict[str, tuple[bool, _Key]] = {}
    sides: dict[bool, dict[_Key, list[str]]] = {False: {}, True: {}}
    for file in files:
        role = find(unicodedata.normalize("NFC", file.path))
        assert role is not None
        roles[file.path] = role
        is_second, key = role
        sides[is_second].setdefault(key, []).append(file.path)

    def paired(file: SourceFile) -> SourceFile:
        is_second, key = roles[file.path]
        own, others = sides[is_second][key], sides[not is_second].get(key, [])
        this, other = names[is_second], names[not is_second]
        folder = rules[not is_second]
        unpaired = ""
        if len(own) > 1:
            unpaired = f"several files of this name for one {this}"
        elif not others:
            article = "an" if other[0] in "aeiou" else "a"
            unpaired = f"{this} without {article} {other} of its name in {folder!r}"
        elif len(others) > 1:
            unpaired = f"{this} with several files of its name in {folder!r}"
        if unpaired:
            return dataclasses.replace(file, unpaired=unpaired)
        return dataclasses.replace(file, of=others[0]) if is_second else file

    return tuple(map(paired, files))


@dataclasses.dataclass(frozen=True)
class Pairs:
    """How files pair as images and masks."""

    images: tuple[str, ...]
    """The paths of the images that have a mask."""
    alone: tuple[str, ...]
    """The paths without exactly one partner, and those that are neither image nor mask."""


def find_pairs(paths: Sequence[str], *, images: str, masks: str) -> Pairs:
    """Pairs images and masks by their paths, as :class:`ImageFolder` does.

    >>> find_pairs(["images/a.jpg", "masks/a.png", "images/b.jpg"], images="images", masks="masks")
    Pairs(images=('images/a.jpg',), alone=('images/b.jpg',))
    """
    find = _roles(images, masks)
    roles = [(path, find(path)) for path in paths]
    files = [SourceFile(path=path, num_bytes=0, stamp="") for path, role in roles if role]
    paired = pair_files(files, (images, masks), names=("image", MASK))
    alone = [path for path, role in roles if not role] + [f.path for f in paired if f.unpaired]
    return Pairs(tuple(sorted(file.of for file in paired if file.of)), tuple(sorted(alone)))


@functools.lru_cache(8)
def _roles(images: str, masks: str) -> Callable[[str], tuple[bool, _Key] | None]:
    """Finds whether a file is a mask, and what it has in common with its partner; None: neither."""
    if "{" not in images:
        return functools.partial(_role_by_folder, images=images, masks=masks)
    # The longer pattern first: a_mask fits {id}, too.
    rules = sorted([(masks, True), (images, False)], key=lambda rule: -len(rule[0]))
    expressions = {is_mask: compile_pattern(pattern) for pattern, is_mask in rules}

    def find(path: str) -> tuple[bool, _Key] | None:
        folder, slash, name = path.rpartition("/")
        stem = f"{folder}{slash}{name.rpartition('.')[0] or name}"
        for is_mask, expression in expressions.items():
            if (match := expression.fullmatch(stem)) is not None:
                return is_mask, tuple(match[field] for field in sorted(expression.groupindex))
        return None

    return find


def _role_by_folder(path: str, images: str, masks: str) -> tuple[bool, _Key] | None:
    *folders, name = path.split("/")
    at = next((index for index, folder in enumerate(folders) if folder in (images, masks)), None)
    if at is None:
        return None
    key = "/".join(folders[:at]), "/".join(folders[at + 1 :]), name.rpartition(".")[0] or name
    return folders[at] == masks, key
