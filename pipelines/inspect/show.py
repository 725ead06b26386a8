"""Show: records of a snapshot by split, class and id, on a page, and images on one sheet."""

from __future__ import annotations

import io
import math
import pathlib
from collections.abc import Collection, Sequence

from ...schemas.errors import RecipeError
from ..display import Shown, as_pixels, escaped, first_image
from ..records import Record
from ..snapshot import Snapshot

_SIDE = 96
"""Height and width of the images on a sheet."""
_STYLE = (
    ":root{color-scheme:light dark;font-family:sans-serif}table{border-collapse:collapse}"
    "th,td{border-bottom:1px solid #8888;padding:.3em .7em;text-align:left;vertical-align:top}"
)


def find_records(
    snapshot: Snapshot, split: str | None, *, num: int, ids: Collection[str], label: str | None
) -> list[Record]:
    """Reads records as :meth:`Snapshot.records` does; an error if there are none."""
    found = [*snapshot.records(split, num=num, ids=ids, label=label)]
    if not found and num:
        of_class = "" if label is None else f" of class {label!r}"
        raise RecipeError(
            f"Split {split or snapshot.main_split!r} has no records{of_class}: pass another one as "
            "--split."
        )
    return found


def write_sheet(snapshot: Snapshot, records: Sequence[Record], path: str) -> tuple[str, int]:
    """Writes the first image of each record into one PNG, in a square grid.

    Returns:
        The name of the feature, and the number of images.

    Raises:
        RecipeError: if the snapshot has no images, or the file cannot be written.
    """
    from PIL import Image as Pillow

    name = first_image(snapshot.manifest.features)
    if name is None:
        raise RecipeError(f"{snapshot.path} has no images: leave out --sheet.")
    if not records:
        raise RecipeError("There are no records for --sheet.")
    feature = snapshot.manifest.features[name]
    columns = math.ceil(math.sqrt(len(records)))
    rows = math.ceil(len(records) / columns)
    sheet = Pillow.new("RGB", (columns * (_SIDE + 2), rows * (_SIDE + 2)))
    for number, record in enumerate(records):
        row, column = divmod(number, columns)
        image = Pillow.fromarray(as_pixels(record.values[name], feature)).convert("RGB")
        small = image.resize((_SIDE, _SIDE), Pillow.Resampling.BILINEAR)
        sheet.paste(small, (column * (_SIDE + 2), row * (_SIDE + 2)))
    content = io.BytesIO()
    sheet.save(content, "PNG")
    _write("--sheet", path, content.getvalue())
    return name, len(records)


def write_page(snapshot: Snapshot, records: Sequence[Record], path: str) -> None:
    """Writes records as a table with thumbnails into one HTML file without scripts.

    Raises:
        RecipeError: if the file cannot be written.
    """
    manifest = snapshot.manifest
    title = f"{escaped(manifest.name)} {manifest.fingerprint}"
    table = Shown(records, manifest.features)._repr_html_()
    page = (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f"<style>{_STYLE}</style></head>\n<body><h1>{title}</h1>\n{table}</body></html>\n"
    )
    _write("--page", path, page.encode())


def _write(option: str, path: str, content: bytes) -> None:
    try:
        pathlib.Path(path).write_bytes(content)
    except OSError as error:
        raise RecipeError(f"{option} {path} cannot be written: {error}.") from None
