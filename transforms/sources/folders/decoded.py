"""The text of a file, in UTF-8."""

from __future__ import annotations

import codecs

from ..text_stream import ZERO_FILLED, codec_name, is_zero_filled, mark_of


class UnreadableTextError(ValueError):
    """A file that is not a text of the encoding, with a reason to group by."""

    def __init__(self, message: str, reason: str = "not text of the encoding") -> None:
        """Stores the reason."""
        super().__init__(message)
        self.reason = reason


def utf8_text(data: bytes, encoding: str = "utf-8", *, remedy: str = "Save it as UTF-8") -> bytes:
    """A file's text in UTF-8, without a byte order mark.

    Args:
        data: The file's content.
        encoding: Python's name of its encoding, unless it begins with a byte order mark.
        remedy: What to do if it is not valid.

    Raises:
        UnreadableTextError: if it is not valid, or all zero bytes.
    """
    encoding = mark_of(data) or codec_name(encoding)
    try:
        text = data.decode(encoding).encode()
    except UnicodeError as error:
        where = f"byte {error.start} of it " if isinstance(error, UnicodeDecodeError) else "it "
        raise UnreadableTextError(f"{where}is not valid {encoding}. {remedy}.") from None
    text = text.removeprefix(codecs.BOM_UTF8)
    if is_zero_filled(text):
        raise UnreadableTextError(
            f"all of {len(text):,} bytes are zero. Copy or create it again.", ZERO_FILLED
        )
    return text
