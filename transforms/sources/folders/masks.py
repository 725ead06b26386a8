"""Pairs the files of images and masks: the same path, but for one folder's name and the suffix."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable

from ....schemas.blocks import Selection, SourceFile

MASK = "mask"
"""The feature of the masks."""
IMAGES, MASKS = "images", "masks"
"""The usual names of the two folders."""

_Key = tuple[str, str, str]


def pair_masks(selection: Selection, *, images: str, masks: str) -> Selection:
    """Marks each mask as a part of its image's record, and files without one partner as unpaired.

    Files in neither folder are skipped.

    Args:
        selection: The files, with masks among them.
        images: The name of the folder of the images, at any depth.
        masks: The name of the folder of the masks.
    """
    roles: dict[str, tuple[bool, _Key]] = {}
    sides: dict[bool, dict[_Key, list[str]]] = {False: {}, True: {}}
    for file in selection.files:
        found = _role(file.path, images, masks)
        if found is not None:
            roles[file.path] = found
            is_mask, key = found
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

    kept = tuple(paired(file) for file in selection.files if file.path in roles)
    skipped = Counter(selection.num_skipped)
    if len(kept) < len(selection.files):
        skipped[f"in neither {images!r} nor {masks!r}"] = len(selection.files) - len(kept)
    return Selection(files=kept, num_skipped={key: skipped[key] for key in sorted(skipped)})


def holds_masks(paths: Iterable[str]) -> bool:
    """Whether there is an image in a folder ``images`` and a mask of its name in ``masks``.

    >>> holds_masks(["images/a.jpg", "masks/a.png"]), holds_masks(["images/a.jpg", "masks/b.png"])
    (True, False)
    """
    keys: dict[bool, set[_Key]] = {False: set(), True: set()}
    for path in paths:
        found = _role(path, IMAGES, MASKS)
        if found is not None:
            keys[found[0]].add(found[1])
    return not keys[True].isdisjoint(keys[False])


def _role(path: str, images: str, masks: str) -> tuple[bool, _Key] | None:
    """Whether a file is a mask, and what it has in common with its partner; None if neither."""
    *folders, name = path.split("/")
    at = next((index for index, folder in enumerate(folders) if folder in (images, masks)), None)
    if at is None:
        return None
    key = "/".join(folders[:at]), "/".join(folders[at + 1 :]), name.rpartition(".")[0] or name
    return folders[at] == masks, key
