"""Places that a build writes to: refused at once where nothing could be written there."""

from __future__ import annotations

import os

from fsspec.registry import known_implementations

from ..schemas.config import is_unicode
from ..schemas.errors import PlaceError, RecipeError
from ..transforms import storage


def check_place(place: object, argument: str) -> None:
    """Refuses what cannot be a folder to write to, before anything is read.

    Args:
        place: A path or URL.
        argument: What messages call it.

    Raises:
        RecipeError: if it is not a path or URL, is empty, not valid UTF-8, or a protocol alone.
        PlaceError: if it is a file.
    """
    if not isinstance(place, str | os.PathLike) or not isinstance(os.fspath(place), str):
        raise RecipeError(f"{argument}={place!r}, expected a folder or URL.")
    url = os.fspath(place)
    if not url:
        raise RecipeError(f"{argument} is empty, expected a folder or URL.")
    if "\0" in url or not is_unicode(url):
        # The snapshot's files name its folder, and they are UTF-8.
        raise RecipeError(f"{argument}={url!r} is not valid UTF-8 text. Choose another place.")
    if not storage.is_local(url):
        if not url.partition("://")[2].strip("/"):
            raise RecipeError(
                f"{argument}: {url} is a protocol alone, expected a folder or URL, such as "
                f"{url.rstrip('/')}//bucket/folder."
            )
        return
    protocol, mistyped, rest = url.partition(":/")
    if mistyped and not rest.startswith("/") and protocol in known_implementations:
        is_file = protocol in ("file", "local")
        missing = "slashes: write /" if is_file else f"a slash: write {protocol}://"
        raise RecipeError(
            f"{argument}: {url} lacks {missing}{rest}, or ./{url} for a folder of that name."
        )
    path = storage.local_path(url)
    if os.path.exists(path) and not os.path.isdir(path):
        raise PlaceError(f"{argument}: {path} is a file, expected a folder. Choose another place.")
