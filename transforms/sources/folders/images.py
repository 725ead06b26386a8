"""The source of folders of images, and the prepare steps inferred from the sizes in headers.

Labels come from folders, file names or a table (``labels``). A mask's file has the path of its
image's, but for one folder's name and the suffix.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal

import pyarrow as pa
import pydantic

from ....schemas.blocks import Block, Selection, SourceFile
from ....schemas.config import config_class
from ....schemas.errors import DataError
from ....schemas.features import Features, Image, Mask
from ....schemas.recipe import OpenSource, PrepareStep
from ...media.image_header import MAX_PIXELS, ImageHeader, UnreadableImageError
from ...media.tiff import read_any_header, readable_image
from ...prepare import images
from ...storage.opened_source import path_bytes
from ...storage.read_files import read_headers
from .annotations.beside import BoxReader, Format, infer_boxes, pair
from .annotations.labelme import read_json
from .annotations.model import BOX_DIFFICULT, BOX_FEATURES, BadBoxes, InvalidAnnotationError
from .annotations.voc import read_xml
from .annotations.yolo import TEXTS, read_labels, read_names
from .files import MediaFolder, MediaKind, Partner, contents_array, may_be_image, why_skipped
from .labels import LABEL, FileLabels, file_name

BATCH_PIXELS = 48 << 20
"""Maximum pixels in a raw batch: about 144 MiB when decoded."""

MAX_HEADERS = 20_000
"""Maximum number of headers read: those of the files with the lowest path hashes."""
FALLBACK_SIZE = (256, 256)
"""The size if no size has a majority."""
MASK = "mask"
"""The feature of the masks."""
IMAGES, MASKS = "images", "masks"
"""The usual names of the two folders."""

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

_Key = tuple[str, str, str]


@config_class
class ImageFolder(MediaFolder):
    """A folder of images: feature ``image``, and its labels.

    Without ``pattern`` and ``table``, the images are in class folders, whose names become the
    feature ``label``. Every file is a record, at any depth and with any name; files that cannot be
    decoded become rejects. Hidden files and files left by operating systems (``Thumbs.db``,
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
            Matched with the entire path if it has a '/'. ``*`` matches any characters. Each field
            is a feature: the label a ClassLabel, a field of digits only an int64, others strings.
        table: A ``.csv``, ``.tsv`` or ``.jsonl`` file with a row for each image, named in a column
            ``file``, ``file_name``, ``filename``, ``path`` or ``image``, else in the first column.
            Other columns are features: the label a ClassLabel, ``boxes`` of JSON Lines bounding
            boxes. Or COCO's instances, ``.json``: ``image_id``, ``boxes``, ``box_labels``, and
            ``box_crowd`` if any annotation has ``iscrowd``. An image without a row is rejected, and
            one whose size is not the one in COCO's file. Relative paths are resolved like ``url``.
            A dict has a table for each folder: ``{"val2017": "instances_val2017.json"}``; images in
            other folders are skipped.
        split_folders: Whether the first folder is the split (``train/cat/1.jpg``), for use with
            ``ss.Splits.by_folder()``. False if class folders have such names.
        label: The column of ``table`` or field of ``pattern`` to predict; None for none. Its
            strings become a ClassLabel; numbers of a table are kept. With ``masks``, the default is
            the mask.
        max_pixels: Images with more pixels are rejected before decoding, which would need 3 bytes
            of memory for each pixel.
        masks: The name of the folder of the masks, at any depth; None for none.
        images: With ``masks``: the name of the folder of the images. Files in neither folder are
            skipped and counted.
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
    """

    url: str
    max_pixels: Annotated[int, pydantic.Field(gt=0)] = MAX_PIXELS
    pattern: str | None = None
    table: str | dict[str, str] | None = None
    split_folders: bool | None = None
    label: str | None = LABEL
    masks: str | None = None
    images: str = IMAGES
    boxes: Literal["yolo", "voc", "labelme", "rows"] | None = None
    names: str | tuple[str, ...] | None = None
    polygons: bool = False
    bad_boxes: BadBoxes = "reject"

    _content = "image"

    def __post_init__(self) -> None:
        """Checks the origin of labels and boxes; with masks, these are the label."""
        if self.masks is not None:
            if "/" in self.masks + self.images or self.masks == self.images:
                raise ValueError(
                    f"masks={self.masks!r} and images={self.images!r}: expected the names of two "
                    "folders"
                )
            if self.label == LABEL:
                object.__setattr__(self, "label", MASK)
        self._check_boxes()
        super().__post_init__()

    def _check_boxes(self) -> None:
        if self.boxes is not None and self.masks is not None:
            raise ValueError("boxes and masks are mutually exclusive: give one of them")
        tables = super().side_urls
        are_boxes = tables and all(url.lower().endswith(".json") for url in tables)
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
        if self.masks is None:
            return labels
        label = None if self.label == MASK else self.label
        return dataclasses.replace(labels, label=label, by_folder=False)

    def select(self, files: Sequence[SourceFile]) -> Selection:
        """Selects all files except hidden ones, system files and the table; pairs masks."""
        if (of := FORMATS.get(self.boxes or "")) is not None:
            return self._select_annotated(files, of)
        selection = super().select(files)
        if self.masks is None:
            return selection
        files = pair_masks(selection.files, images=self.images, masks=self.masks)
        return dataclasses.replace(selection, files=files)

    def _select_annotated(self, files: Sequence[SourceFile], of: Format) -> Selection:
        """Selects the images, and the annotation files as parts of their records."""
        annotations = [
            file
            for file in files
            if file.path.lower().endswith(of.suffix)
            and not why_skipped(file.path)
            and not self._names_classes(file.path)
        ]
        set_aside = {file.path for file in annotations}
        selection = super().select([file for file in files if file.path not in set_aside])
        marked, skipped = pair(selection.files, annotations, of)
        return Selection(
            files=tuple(marked[file.path] for file in files if file.path in marked),
            num_skipped=dict(sorted((skipped + Counter(selection.num_skipped)).items())),
        )

    def _names_classes(self, path: str) -> bool:
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
        if self.masks is None or _role(path, self.images, self.masks) is not None:
            return ""
        return f"in neither {self.images!r} nor {self.masks!r}"

    def settings(self) -> dict[str, object]:
        """The settings that determine the records, as plain JSON, for the fingerprint."""
        labels = self._labels.settings()
        masks = {} if self.masks is None else {"masks": [self.images, self.masks]}
        boxes: dict[str, object] = {} if self.boxes is None else {"boxes": self.boxes}
        if isinstance(self.names, tuple):
            boxes["names"] = list(self.names)
        if self.polygons:
            boxes["polygons"] = True
        if self.bad_boxes != "reject":
            boxes["bad_boxes"] = self.bad_boxes
        settings = {"source": "image_folder", "max_pixels": self.max_pixels}
        return {**settings, **labels, **masks, **boxes}

    def infer(self, files: Sequence[SourceFile], opened: OpenSource) -> Mapping[str, Any]:
        """The encoded image, its mask, and the features found by ``labels``.

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
        if self.masks is None:
            return {"image": Image(storage="encoded"), **labels}
        if MASK in labels:
            raise DataError(
                f"ImageFolder: a field or column is called {MASK!r}, which is the name of the "
                "mask. Rename it."
            )
        return {"image": Image(storage="encoded"), MASK: Mask(storage="encoded"), **labels}

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
        if self.masks is not None:
            return frozenset([MASK])
        return BOX_FEATURES if self.boxes in FORMATS else frozenset()

    def _partner(self, features: Features, opened: OpenSource) -> Partner[ImageHeader] | None:
        if self.masks is not None:
            return Partner(
                read=self._read_mask,
                unreadable=UnreadableImageError,
                columns=_mask_columns,
            )
        if (of := self._format(opened)) is None:
            return None
        wanted = {n: f for n, f in features.items() if n in self._partner_features}
        boxes = BoxReader(of, wanted, image=self._content, bad_boxes=self.bad_boxes)
        return Partner(
            read=boxes.read,
            unreadable=InvalidAnnotationError,
            columns=boxes.columns,
        )

    def _read_mask(self, data: bytes | None, header: ImageHeader) -> tuple[bytes, ImageHeader]:
        del header
        assert data is not None
        return self._read_image(data)

    def _read_image(self, data: bytes) -> tuple[bytes, ImageHeader]:
        return readable_image(data, max_pixels=self.max_pixels)


def _is_csv(url: str) -> bool:
    return file_name(url).lower().endswith((".csv", ".tsv"))


def _mask_columns(masks: Sequence[tuple[bytes, ImageHeader]]) -> Mapping[str, pa.Array]:
    sides = _side_columns([header for _, header in masks], name=MASK)
    return {MASK: contents_array([data for data, _ in masks]), **sides}


def _num_pixels(header: ImageHeader) -> int:
    return header.height * header.width + header.more_pixels // 3


def _side_columns(headers: Sequence[ImageHeader], *, name: str) -> Mapping[str, pa.Array]:
    return {
        f"{name}/{part}": pa.array([getattr(header, part) for header in headers], pa.int64())
        for part in ("height", "width", "orientation")
    }


def infer_image_steps(
    files: Sequence[SourceFile], opened: OpenSource, *, with_masks: bool = False
) -> list[PrepareStep]:
    """Infers the steps for a folder of images; the same files give the same steps.

    Images of the same size are copied unchanged. Otherwise they are resized to the size of more
    than half of them, or fitted into 256×256 with black padding if no size has a majority. Files
    without a readable header are ignored. Masks are decoded if images are.

    Args:
        files: The records' files, of which at most 20,000 are read.
        opened: The source's root.
        with_masks: Whether the images have masks.
    """
    masks = [images.decode(MASK)] if with_masks else []
    pictures = [file for file in files if not file.of and not file.unpaired]
    sizes = Counter(read_sizes(pictures, opened))
    if len(sizes) <= 1:
        return []
    size, count = max(sizes.items(), key=lambda item: (item[1], item[0]))
    ruled = 2 * count > sizes.total()
    resize = images.resize("image", size if ruled else FALLBACK_SIZE, keep_ratio=not ruled)
    return [images.decode("image"), *masks, resize]


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


def pair_masks(files: Sequence[SourceFile], *, images: str, masks: str) -> tuple[SourceFile, ...]:
    """Marks each mask as a part of its image's record, and files without one partner as unpaired.

    Args:
        files: Files that are in one of the two folders.
        images: The name of the folder of the images, at any depth.
        masks: The name of the folder of the masks.
    """
    roles: dict[str, tuple[bool, _Key]] = {}
    sides: dict[bool, dict[_Key, list[str]]] = {False: {}, True: {}}
    for file in files:
        role = _role(file.path, images, masks)
        assert role is not None
        roles[file.path] = role
        is_mask, key = role
        sides[is_mask].setdefault(key, []).append(file.path)

    def paired(file: SourceFile) -> SourceFile:
        is_mask, key = roles[file.path]
        own, others = sides[is_mask][key], sides[not is_mask].get(key, [])
        this, other = ("mask", "image") if is_mask else ("image", "mask")
        folder = images if is_mask else masks
        unpaired = ""
        if len(own) > 1:
            unpaired = f"several files of this name for one {this}"
        elif not others:
            unpaired = (
                f"{this} without {'an' if is_mask else 'a'} {other} of its name in {folder!r}"
            )
        elif len(others) > 1:
            unpaired = f"{this} with several files of its name in {folder!r}"
        if unpaired:
            return dataclasses.replace(file, unpaired=unpaired)
        return dataclasses.replace(file, of=others[0]) if is_mask else file

    return tuple(map(paired, files))


def holds_masks(paths: Iterable[str]) -> bool:
    """Whether there is an image in a folder ``images`` and a mask of its name in ``masks``.

    >>> holds_masks(["images/a.jpg", "masks/a.png"]), holds_masks(["images/a.jpg", "masks/b.png"])
    (True, False)
    """
    keys: dict[bool, set[_Key]] = {False: set(), True: set()}
    for path in paths:
        role = _role(path, IMAGES, MASKS)
        if role is not None:
            keys[role[0]].add(role[1])
    return not keys[True].isdisjoint(keys[False])


def _role(path: str, images: str, masks: str) -> tuple[bool, _Key] | None:
    """Whether a file is a mask, and what it has in common with its partner; None if neither."""
    *folders, name = path.split("/")
    at = next((index for index, folder in enumerate(folders) if folder in (images, masks)), None)
    if at is None:
        return None
    key = "/".join(folders[:at]), "/".join(folders[at + 1 :]), name.rpartition(".")[0] or name
    return folders[at] == masks, key
