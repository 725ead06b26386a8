"""Reads a sound file's header: format, rate, channels, length. Decodes no sample.

The content decides the format, never the name: WAV (RIFF, RF64 and big-endian RIFX, in ``wav``
here), FLAC (RFC 9639), Ogg with Vorbis or Opus (RFC 3533), MP3. Anything else is reported with a
reason by which rejects can be grouped. Ogg's pages are counted and their checksums verified: a
decoder would skip damaged pages, and treat a truncated file as a shorter sound.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

from ...schemas.errors import ReasonedError

SUFFIXES = (".flac", ".mp3", ".oga", ".ogg", ".opus", ".wav")
"""The usual suffixes of sounds."""
MAX_SAMPLES = 100_000_000
"""Of all channels together: 400 MB as floats, 35 minutes at 48 kHz, 100 minutes at 16 kHz."""
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
"""Format tag and bits per sample -> libsndfile's name, whether 16 bits hold every sample."""
_STREAMED = 0x7FFF_0000
"""Recorders that cannot seek back leave at least such a length, or 0: the data lasts to the end."""
_GUID_OF_CODECS = (0, 0x10, b"\x80\x00\x00\xaa\x00\x38\x9b\x71")
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

_OGG_HEAD = struct.Struct("<4sBBqIIIB")
_REVERSED = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))
_OPUS_RATES = (8_000, 12_000, 16_000, 24_000)
_MP3_RATES = {3: (44_100, 48_000, 32_000), 2: (22_050, 24_000, 16_000), 0: (11_025, 12_000, 8_000)}
"""MPEG 1, 2 and 2.5."""
_MP3_KBITS = {
    (True, 1): (32, 64, 96, 128, 160, 192, 224, 256, 288, 320, 352, 384, 416, 448),
    (True, 2): (32, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384),
    (True, 3): (32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    (False, 1): (32, 48, 56, 64, 80, 96, 112, 128, 144, 160, 176, 192, 224, 256),
    (False, 2): (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
    (False, 3): (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
}
"""(MPEG 1, layer) -> kbit/s of the header's index 1 to 14."""
_SEARCHED = 64 << 10
"""How far after a tag the first frame of an MP3 is searched for."""


class SoundHeader(NamedTuple):
    """The header of one sound."""

    format: Literal["wav", "flac", "ogg", "mp3"]
    subtype: str
    """As libsndfile names it: ``PCM_16``, ``FLOAT``, ``VORBIS`` …"""
    rate: int
    """Samples per second of each channel, as decoded."""
    channels: int
    samples: int | None
    """Of each channel; None if only decoding can tell."""
    fits_16_bits: bool
    """Whether every sample is an integer multiple of 1/32768, at most 1."""
    estimate: int = 0
    """If ``samples`` is None: their approximate number, if it can be estimated."""


class UnreadableSoundError(ReasonedError):
    """Bytes that cannot be decoded as a sound."""


def read_header(
    data: bytes, *, num_bytes: int | None = None, max_samples: int = MAX_SAMPLES
) -> SoundHeader:
    """Reads the header of a sound file, and checks what can be checked without decoding.

    Args:
        data: The file's bytes, or its first ones.
        num_bytes: Length of the file; None if ``data`` is all of it. With a part of a file,
            ``samples`` is None for formats that store the length at the end.
        max_samples: Maximum number of samples of all channels together.

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
    """The error for bytes of no known format."""
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
    """Where the sound begins after ID3v2 tags; None if there are none."""
    position = 0
    while data[position : position + 3] == b"ID3" and len(data) >= position + 10:
        size = 0
        for byte in data[position + 6 : position + 10]:
            size = size << 7 | byte & 0x7F
        footer = 10 if data[position + 5] & 0x10 else 0
        position += 10 + size + footer
    return position or None


def mp3_start(data: bytes) -> int:
    """Where the frames of an MP3 begin, after its tags."""
    return first_frame(data, _after_id3(data) or 0)


def with_length(data: bytes) -> bytes:
    """A WAV file with the length of its samples filled in, if a recorder left 0."""
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
    """Number of bytes of samples.

    Raises:
        UnreadableSoundError: if the file ends before the stated length.
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
    """Whether an empty chunk of samples is followed by chunks rather than by samples."""
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
    if tag == _EXTENSIBLE and len(form) >= 40:
        codec, *kind, end = struct.unpack_from(order + "IHH8s", form, 24)
        tag = codec if (*kind, end) == _GUID_OF_CODECS else tag
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


def read_flac(data: bytes, start: int) -> SoundHeader:
    """Reads the STREAMINFO of the FLAC stream at ``start``.

    Raises:
        UnreadableSoundError: if it is missing or damaged.
    """
    info = data[start + 8 : start + 42]
    if len(info) < 34:
        raise UnreadableSoundError("truncated sound", "the file ends inside its STREAMINFO")
    kind, size = data[start + 4] & 0x7F, int.from_bytes(data[start + 5 : start + 8], "big")
    if kind != 0 or size != 34:
        raise UnreadableSoundError(
            "damaged sound", "the FLAC stream does not begin with STREAMINFO"
        )
    packed = int.from_bytes(info[10:18], "big")
    samples = packed & ((1 << 36) - 1)
    bits = (packed >> 36 & 31) + 1
    return SoundHeader(
        format="flac",
        subtype=f"PCM_{bits}",
        rate=packed >> 44,
        channels=(packed >> 41 & 7) + 1,
        samples=samples or None,
        fits_16_bits=bits <= 16,
    )


def read_ogg(data: bytes, *, whole: bool) -> SoundHeader:
    """Reads the first header of an Ogg file; checks every page if the file is ``whole``.

    Raises:
        UnreadableSoundError: if it is neither Vorbis nor Opus, or damaged, or truncated.
    """
    page = _ogg_page(data, 0)
    packet = data[page.start : page.stop]
    rate, channels, skipped = 0, 0, 0
    if packet.startswith(b"\x01vorbis") and len(packet) >= 16:
        subtype, channels, rate = "VORBIS", *struct.unpack_from("<BI", packet, 11)
    elif packet.startswith(b"OpusHead") and len(packet) >= 19:
        channels, skipped, stated = struct.unpack_from("<BHI", packet, 9)
        subtype, rate = "OPUS", _opus_rate(stated)
    else:
        raise UnreadableSoundError(
            "unsupported codec",
            f"Ogg whose first stream begins with {packet[:8]!r}, expected Vorbis or Opus",
        )
    samples = None
    if whole:
        last = _check_pages(data, page)
        samples = (last - skipped) * rate // 48_000 if subtype == "OPUS" else last
    return SoundHeader(
        format="ogg",
        subtype=subtype,
        rate=rate,
        channels=channels,
        samples=None if samples is None else max(samples, 0),
        fits_16_bits=False,
    )


class _OggPage(NamedTuple):
    first: bool
    last: bool
    granule: int
    serial: int
    number: int
    start: int
    stop: int


def _ogg_page(data: bytes, position: int) -> _OggPage:
    head = data[position : position + 27]
    if not b"OggS".startswith(head[:4]) and head[:4] != b"OggS":
        raise UnreadableSoundError(
            "damaged sound", f"byte {position:,} begins with {head[:4]!r}, expected an Ogg page"
        )
    cut_off = UnreadableSoundError(
        "truncated sound", f"the file ends inside the Ogg page at byte {position:,}"
    )
    if len(head) < 27:
        raise cut_off
    _, _, flags, granule, serial, number, checksum, num_segments = _OGG_HEAD.unpack(head)
    sizes = data[position + 27 : position + 27 + num_segments]
    start = position + 27 + num_segments
    stop = start + sum(sizes)
    if len(sizes) < num_segments or stop > len(data):
        raise cut_off
    if _ogg_checksum(data[position:stop]) != checksum:
        raise UnreadableSoundError(
            "damaged sound", f"the Ogg page at byte {position:,} does not match its checksum"
        )
    return _OggPage(bool(flags & 2), bool(flags & 4), granule, serial, number, start, stop)


def _ogg_checksum(page: bytes) -> int:
    """Ogg's CRC-32: zlib's polynomial, most significant bit first, initially 0, not inverted."""
    body = page[:22] + bytes(4) + page[26:]
    value = zlib.crc32(body.translate(_REVERSED), 0xFFFF_FFFF) ^ 0xFFFF_FFFF
    return int(f"{value:032b}"[::-1], 2)


def _check_pages(data: bytes, page: _OggPage) -> int:
    """The position of the last sample; all pages must be present."""
    first, granule = page, -1
    while not page.last:
        if page.stop == len(data):
            raise UnreadableSoundError(
                "truncated sound", "the file ends before the page that is marked as its last"
            )
        following = _ogg_page(data, page.stop)
        if following.serial != first.serial or following.first:
            raise UnreadableSoundError(
                "unsupported codec", "the Ogg file holds several streams, expected one of sound"
            )
        if following.number != page.number + 1:
            raise UnreadableSoundError(
                "damaged sound", f"Ogg page {page.number + 1} is missing at byte {page.stop:,}"
            )
        page = following
        granule = page.granule if page.granule != -1 else granule
    if data[page.stop : page.stop + 4] == b"OggS":
        raise UnreadableSoundError(
            "unsupported codec", "the Ogg file holds several streams, expected one of sound"
        )
    return granule


def _opus_rate(stated: int) -> int:
    """The rate at which libsndfile decodes Opus: the codec's next higher one."""
    return next((rate for rate in _OPUS_RATES if stated <= rate), 48_000)


class _Mp3Frame(NamedTuple):
    rate: int
    channels: int
    samples: int
    num_bytes: int
    side_bytes: int
    """Between the frame's header and an encoder's header for the entire file, if there is one."""


def read_mp3(data: bytes, start: int, total: int) -> SoundHeader:
    """Reads the first frame of an MPEG audio stream (layers I to III).

    Raises:
        UnreadableSoundError: if there is no frame, or the file is shorter than the encoder states.
    """
    start = first_frame(data, start)
    frame = _mp3_frame(data, start)
    assert frame is not None
    num_frames, stated = _mp3_stated(data, start, frame)
    if stated is not None and total - start < stated:
        raise UnreadableSoundError(
            "truncated sound",
            f"the encoder states {stated:,} bytes of frames, and {total - start:,} are there",
        )
    return SoundHeader(
        format="mp3",
        subtype=_mp3_layer(data[start + 1]),
        rate=frame.rate,
        channels=frame.channels,
        samples=None,
        fits_16_bits=False,
        # If the encoder states no number, assume that all frames are as long as the first.
        estimate=(num_frames or (total - start) // frame.num_bytes) * frame.samples,
    )


def _mp3_layer(byte: int) -> str:
    return f"MPEG_LAYER_{'I' * (4 - (byte >> 1 & 3))}"


def first_frame(data: bytes, start: int) -> int:
    """Where the first frame begins that is followed by a frame of its kind or ends the file.

    Raises:
        UnreadableSoundError: if there is none near ``start``.
    """
    for position in range(start, min(len(data), start + _SEARCHED)):
        if data[position] != 0xFF:
            continue
        frame = _mp3_frame(data, position)
        if frame is None:
            continue
        end = position + frame.num_bytes
        following = _mp3_frame(data, end)
        if (following is not None and following.rate == frame.rate) or end == len(data):
            return position
    if not data[start:].strip(b"\0"):
        raise UnreadableSoundError("no samples", "the file holds a tag and no frames")
    raise UnreadableSoundError(
        "truncated sound" if _mp3_frame(data, start) is not None else "not a sound",
        f"no two frames of MPEG audio follow byte {start:,}",
    )


def _mp3_frame(data: bytes, position: int) -> _Mp3Frame | None:
    head: Any = data[position : position + 4]
    if len(head) < 4 or head[0] != 0xFF or head[1] & 0xE0 != 0xE0:
        return None
    version, layer = head[1] >> 3 & 3, 4 - (head[1] >> 1 & 3)
    index, rate_index = head[2] >> 4, head[2] >> 2 & 3
    if version == 1 or layer == 4 or index in (0, 15) or rate_index == 3:
        return None
    newest = version == 3
    bits = 1000 * _MP3_KBITS[newest, layer][index - 1]
    rate = _MP3_RATES[version][rate_index]
    padding = head[2] >> 1 & 1
    mono = head[3] >> 6 == 3
    if layer == 1:
        samples, num_bytes = 384, (12 * bits // rate + padding) * 4
    else:
        samples = 1152 if layer == 2 or newest else 576
        num_bytes = samples // 8 * bits // rate + padding
    side = (17 if mono else 32) if newest else (9 if mono else 17)
    return _Mp3Frame(rate, 1 if mono else 2, samples, num_bytes, side)


def _mp3_stated(data: bytes, start: int, frame: _Mp3Frame) -> tuple[int | None, int | None]:
    """Numbers of frames and of their bytes that an encoder's ``Xing`` or ``Info`` header states."""
    position = start + 4 + frame.side_bytes
    if data[position : position + 4] not in (b"Xing", b"Info"):
        return None, None
    head = data[position + 4 : position + 16]
    stated: list[int | None] = []
    place = 4
    for flag in (1, 2):
        is_there = len(head) == 12 and bool(head[3] & flag)
        stated.append(int.from_bytes(head[place : place + 4], "big") if is_there else None)
        place += 4 if is_there else 0
    return stated[0], stated[1]
