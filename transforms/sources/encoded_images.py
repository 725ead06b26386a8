"""Images' files inside records: their bytes, and beside them what their headers say."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from ..media.image_header import UnreadableImageError, read_header

_SIDES = ("height", "width", "orientation")


def image_columns(name: str, contents: pa.Array) -> tuple[dict[str, pa.Array], dict[int, str]]:
    """The wire columns of an encoded image, and what is wrong with rows that hold none.

    Args:
        name: The feature.
        contents: large_binary[n], the bytes of image files; null where there is none.

    Returns:
        By name the columns, of n rows, with zeros where a row is wrong; and row -> problem.
    """
    sides = np.zeros((len(_SIDES), len(contents)), np.int64)
    problems: dict[int, str] = {}
    for row, content in enumerate(contents.to_pylist()):
        if content is None:
            problems[row] = "is missing, expected one image"
            continue
        try:
            header = read_header(content)
        except UnreadableImageError as error:
            problems[row] = str(error)
            continue
        sides[:, row] = [getattr(header, side) for side in _SIDES]
    columns = {f"{name}/{side}": pa.array(sides[i]) for i, side in enumerate(_SIDES)}
    return {name: contents.fill_null(b""), **columns}, problems
