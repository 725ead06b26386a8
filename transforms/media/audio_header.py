"""Reads what a sound file's bytes say of it: format, rate, channels, length. No sample is decoded.

The content decides the format, never the name: WAV (RIFF, RF64 and big-endian RIFX, in ``wav``
here), and what ``audio_streams`` knows: FLAC, Ogg with Vorbis or Opus, MP3. What is none of them is
told apart by a reason, so that rejects can be grouped.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple

from .audio_streams import first_frame, read_flac, read_mp3, read_ogg
from .sound_header import SoundHeader, UnreadableSoundError

__all__ = [
    "MAX_SAMPLES",
    "SoundHeader",
    "UnreadableSoundError",
    "mp3_start",
    "read_header",
    "with_length",
]

MAX_SAMPLES = 100_000_000
"""Of all channels: 400 MB as floats, 35 minutes of 48 kHz, 100 minutes of 16 kHz."""
MIN_RATE, MAX_RATE = 100, 1_000_000
MAX_CHANNELS = 64

_PCM, _FLOAT, _EXTENSIBLE = 1, 3, 0xFFFE
_CODECS = {
    (_PCM, 8): ("PCM_U8", True),
    (_PCM, 16): ("PCM_16", True),
    (_PCM, 24): ("PCM_24", False),
    (_PCM, 32): ("PCM_32", False),
    (_FLOAT, 32): ("FLOAT", False),
    (_FLOAT, 64): ("DOUBLE", False),
    (6, 8): ("ALAW", True),
    (7, 8): ("ULAW", True),
}
"""Format tag and bits a sample -> libsndfile's name, whether 16 bits hold every sample."""
_STREAMED = 0x7FFF_0000
"""Recorders that cannot seek back leave such a length, or more, or 0: the data lasts to the end."""
_GUID_END = b"\x00\x00\x00\x00\x10\x00\x80\x00\x00\xaa\x00\x38\x9b\x71"
_FOREIGN: dict[str, Callable[[bytes], bool]] = {
    "AIFF": lambda data: data[:4] == b"FORM" and data[8:12] in (b"AIFF", b"AIFC"),
    "Sun AU": lambda data: data[:4] == b".snd",
    "Core Audio": lambda data: data[:4] == b"caff",
    "Wave64": lambda data: data[:4] == b"riff",
    "MPEG-4 or QuickTime": lambda data: data[4:8] == b"ftyp",
    "Matroska or WebM": lambda data: data[:4] == b"\x1aE\xdf\xa3",
    "Windows Media": lambda data: data[:4] == b"0&\xb2u",
    "MIDI": lambda data: data[:4] == b"MThd",
    "AMR": lambda data: data[:5] == b"#!AMR",
    "RIFF of another kind": lambda data: data[:4] in (b"RIFF", b"RIFX", b"RF64"),
}
_IMAGES = (b"\xff\xd8\xff", b"\x89PNG", b"GIF8", b"BM", b"II*\0", b"MM\0*", b"%PDF-", b"PK\3\4")
_CONTROLS = frozenset(range(32)) - frozenset(b"\t\n\r\f\x1b")


def read_header(
    data: bytes, *, num_bytes: int | None = None, max_samples: int = MAX_SAMPLES
) -> SoundHeader:
    """Reads the header of a sound file, and checks what can be checked without decoding it.

    Args:
        data: The file's bytes, or its first ones.
        num_bytes: Length of the file; None where ``data`` is all of it. With a part of a file,
            ``samples`` is None where the format states the length at its end.
        max_samples: Of all channels together.

    Raises:
        UnreadableSoundError: with one of the reasons ``empty file``, ``zero-filled file``, ``text,
            not a sound``, ``not a sound``, ``unsupported sound format``, ``unsupported codec``,
            ``truncated sound``, ``damaged sound``, ``no samples``, ``absurd rate``, ``too many
            channels``, ``too many samples``.
    """
    total = len(data) if num_bytes is None else num_bytes
    header = _parse(data, total)
    if not MIN_RATE <= header.rate <= MAX_RATE:
        raise UnreadableSoundError(
            "absurd rate",
            f"the header states {header.rate:,} samples a second, expected {MIN_RATE:,} to "
            f"{MAX_RATE:,}",
        )
    if not 1 <= header.channels <= MAX_CHANNELS:
        raise UnreadableSoundError(
            "too many channels",
            f"the header states {header.channels:,} channels, expected 1 to {MAX_CHANNELS}",
        )
    if header.samples is not None:
        if header.samples < 1:
            raise UnreadableSoundError("no samples", "the file holds a header and no samples")
        if header.samples * header.channels > max_samples:
            raise UnreadableSoundError(
                "too many samples",
                f"the sound has {header.samples:,} samples of {header.channels} channels, expected "
                f"at most {max_samples:,} together (max_samples=)",
            )
    return header


def _parse(data: bytes, total: int) -> SoundHeader:
    if total == 0:
        raise UnreadableSoundError("empty file", "the file has no bytes")
    if data[:4] in (b"RIFF", b"RIFX", b"RF64") and (data[8:12] == b"WAVE" or len(data) < 12):
        return _read_wav(data, total)
    start = _after_id3(data)
    if start is not None:
        if len(data) < start + 4:
            raise UnreadableSoundError("truncated sound", "the file ends inside its ID3 tag")
        if data[start : start + 4] == b"fLaC":
            return read_flac(data, start)
        return read_mp3(data, start, total)
    if data[:4] == b"fLaC":
        return read_flac(data, 0)
    if data[:4] == b"OggS":
        return read_ogg(data, whole=len(data) == total)
    if len(data) >= 2 and data[0] == 0xFF and data[1] & 0xE0 == 0xE0 and data[1] & 0x06:
        return read_mp3(data, 0, total)
    raise _say_what_it_is(data)


def _say_what_it_is(data: bytes) -> UnreadableSoundError:
    """The error for bytes that are none of the known formats."""
    if not data.strip(b"\0"):
        return UnreadableSoundError("zero-filled file", f"all of {len(data):,} bytes are zero")
    for name, fits in _FOREIGN.items():
        if fits(data):
            return UnreadableSoundError(
                "unsupported sound format",
                f"the content is {name}, expected WAV, FLAC, Ogg or MP3. Convert it.",
            )
    if not data.startswith(_IMAGES) and not _CONTROLS & frozenset(data[:256]):
        return UnreadableSoundError(
            "text, not a sound", f"the content begins with the text {data[:24]!r}"
        )
    return UnreadableSoundError(
        "not a sound", f"the content begins with {data[:8]!r}, as no WAV, FLAC, Ogg or MP3 does"
    )


def _after_id3(data: bytes) -> int | None:
    """Where the sound begins behind ID3v2 tags; None where there are none."""
    position = 0
    while data[position : position + 3] == b"ID3" and len(data) >= position + 10:
        size = 0
        for byte in data[position + 6 : position + 10]:
            size = size << 7 | byte & 0x7F
        footer = 10 if data[position + 5] & 0x10 else 0
        position += 10 + size + footer
    return position or None


def mp3_start(data: bytes) -> int:
    """Where the frames of an MP3 begin, behind its tags."""
    return first_frame(data, _after_id3(data) or 0)


def with_length(data: bytes) -> bytes:
    """A WAV file with the length of its samples where a recorder has left 0."""
    order = ">" if data[:4] == b"RIFX" else "<"
    for chunk in _chunks(data, order):
        if chunk.name == b"data" and chunk.size == 0:
            size = struct.pack(order + "I", len(data) - chunk.start)
            return data[: chunk.start - 4] + size + data[chunk.start :]
        if chunk.name == b"data":
            break
    return data


class _Chunk(NamedTuple):
    name: bytes
    start: int
    size: int


def _read_wav(data: bytes, total: int) -> SoundHeader:
    order = ">" if data[:4] == b"RIFX" else "<"
    if len(data) < 12:
        raise UnreadableSoundError(
            "truncated sound", f"the file ends after {len(data)} bytes, inside its RIFF header"
        )
    form: bytes | None = None
    long_size: int | None = None
    for chunk in _chunks(data, order):
        content = data[chunk.start : chunk.start + chunk.size]
        if chunk.name == b"ds64" and len(content) >= 16:
            long_size = struct.unpack_from(order + "Q", content, 8)[0]
        elif chunk.name == b"fmt ":
            form = content
        elif chunk.name == b"data":
            if form is None:
                raise UnreadableSoundError(
                    "damaged sound", "the samples come before the chunk 'fmt ' that describes them"
                )
            size = chunk.size
            if size == 0xFFFF_FFFF and long_size is not None:
                size = long_size
            return _describe_wav(form, order, _data_bytes(data, chunk.start, size, total))
    if len(data) < total:
        raise UnreadableSoundError("truncated sound", "no samples among the bytes that were read")
    missing = "samples (no chunk 'data')" if form is not None else "chunk 'fmt '"
    raise UnreadableSoundError("truncated sound", f"the file ends before its {missing}")


def _chunks(data: bytes, order: str) -> Iterator[_Chunk]:
    position = 12
    while position + 8 <= len(data):
        name = data[position : position + 4]
        size = struct.unpack_from(order + "I", data, position + 4)[0]
        yield _Chunk(name, position + 8, size)
        position += 8 + size + size % 2


def _data_bytes(data: bytes, start: int, size: int, total: int) -> int:
    """How many bytes of samples there are.

    Raises:
        UnreadableSoundError: if the file ends before the length that it states.
    """
    rest = total - start
    if size == 0 and rest > 0 and not _holds_chunks(data, start, total):
        return rest
    if size > rest and size >= _STREAMED:
        return rest
    if size > rest:
        raise UnreadableSoundError(
            "truncated sound",
            f"the header states {size:,} bytes of samples, and {max(rest, 0):,} follow it",
        )
    return size


def _holds_chunks(data: bytes, start: int, total: int) -> bool:
    """Whether what follows an empty chunk of samples are chunks, and not samples."""
    while start < total:
        name = data[start : start + 4]
        if len(name) < 4 or not name.isascii() or not name.decode("ascii").isprintable():
            return False
        if start + 8 > len(data):
            return False
        size = int.from_bytes(data[start + 4 : start + 8], "little")
        start += 8 + size + size % 2
    return start - total <= 1


def _describe_wav(form: bytes, order: str, num_bytes: int) -> SoundHeader:
    if len(form) < 16:
        raise UnreadableSoundError(
            "damaged sound", f"the chunk 'fmt ' has {len(form)} bytes, expected 16 or more"
        )
    tag, channels, rate, _, frame_bytes, bits = struct.unpack_from(order + "HHIIHH", form)
    if tag == _EXTENSIBLE and len(form) >= 40 and form[26:40] == _GUID_END:
        tag = struct.unpack_from(order + "H", form, 24)[0]
    known = _CODECS.get((tag, bits))
    if known is None:
        raise UnreadableSoundError(
            "unsupported codec",
            f"WAV with codec {tag:#06x} of {bits} bits, expected PCM of 8, 16, 24 or 32 bits, "
            "floats, A-law or µ-law. Convert it.",
        )
    if frame_bytes != channels * bits // 8:
        raise UnreadableSoundError(
            "damaged sound",
            f"the header states {frame_bytes} bytes for {channels} samples of {bits} bits",
        )
    subtype, fits = known
    return SoundHeader(
        format="wav",
        subtype=subtype,
        rate=rate,
        channels=channels,
        samples=num_bytes // frame_bytes if frame_bytes else 0,
        fits_16_bits=fits,
    )
