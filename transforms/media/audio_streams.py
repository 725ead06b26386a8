"""Reads the headers of compressed sounds: FLAC (RFC 9639), Ogg Vorbis and Opus (RFC 3533), MP3.

Of Ogg, pages are counted and their checksums held against their bytes: a decoder would leave out
what is damaged, and take a file that was cut off for a shorter sound.
"""

from __future__ import annotations

import struct
import zlib
from typing import Any, NamedTuple

from .sound_header import SoundHeader, UnreadableSoundError

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
"""How far behind a tag an MP3's first frame is looked for."""


def read_flac(data: bytes, start: int) -> SoundHeader:
    """Reads the STREAMINFO of the FLAC stream at ``start``.

    Raises:
        UnreadableSoundError: if there is none.
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
    """Reads the first header of an Ogg file; of a ``whole`` one, checks every page.

    Raises:
        UnreadableSoundError: if it is neither Vorbis nor Opus, or damaged, or cut off.
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


class _Page(NamedTuple):
    first: bool
    last: bool
    granule: int
    serial: int
    number: int
    start: int
    stop: int


def _ogg_page(data: bytes, position: int) -> _Page:
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
    return _Page(bool(flags & 2), bool(flags & 4), granule, serial, number, start, stop)


def _ogg_checksum(page: bytes) -> int:
    """Ogg's CRC-32, of zlib's polynomial, but most significant bit first, from 0, not inverted."""
    body = page[:22] + bytes(4) + page[26:]
    value = zlib.crc32(body.translate(_REVERSED), 0xFFFF_FFFF) ^ 0xFFFF_FFFF
    return int(f"{value:032b}"[::-1], 2)


def _check_pages(data: bytes, page: _Page) -> int:
    """The position of the last sample; all pages have to be there."""
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
    """The rate that libsndfile decodes Opus at: the next one that the codec has."""
    return next((rate for rate in _OPUS_RATES if stated <= rate), 48_000)


class _Frame(NamedTuple):
    rate: int
    channels: int
    samples: int
    num_bytes: int
    side_bytes: int
    """Between the frame's header and what an encoder may put there of the whole file."""


def read_mp3(data: bytes, start: int, total: int) -> SoundHeader:
    """Reads the first frame of an MPEG audio stream (layers I to III).

    Raises:
        UnreadableSoundError: if there is no frame, or the file is shorter than its encoder says.
    """
    start = first_frame(data, start)
    frame = _mp3_frame(data, start)
    assert frame is not None
    num_frames, stated = _stated(data, start, frame)
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
        # Where the encoder does not say, as if all frames were as long as the first.
        estimate=(num_frames or (total - start) // frame.num_bytes) * frame.samples,
    )


def _mp3_layer(byte: int) -> str:
    return f"MPEG_LAYER_{'I' * (4 - (byte >> 1 & 3))}"


def first_frame(data: bytes, start: int) -> int:
    """Where the first frame begins that another one of its kind follows, or that ends the file.

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


def _mp3_frame(data: bytes, position: int) -> _Frame | None:
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
    return _Frame(rate, 1 if mono else 2, samples, num_bytes, side)


def _stated(data: bytes, start: int, frame: _Frame) -> tuple[int | None, int | None]:
    """How many frames and bytes of them an encoder's ``Xing`` or ``Info`` header states."""
    position = start + 4 + frame.side_bytes
    if data[position : position + 4] not in (b"Xing", b"Info"):
        return None, None
    head = data[position + 4 : position + 16]
    found: list[int | None] = []
    place = 4
    for flag in (1, 2):
        is_there = len(head) == 12 and bool(head[3] & flag)
        found.append(int.from_bytes(head[place : place + 4], "big") if is_there else None)
        place += 4 if is_there else 0
    return found[0], found[1]
