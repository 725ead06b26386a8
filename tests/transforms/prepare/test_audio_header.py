"""Headers of sound files: every format, odd files that are good, and what is wrong with others."""

import contextlib
import os
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapshard.transforms.media.audio_decode import caught_noise, decode_sound
from snapshard.transforms.media.audio_header import UnreadableSoundError, read_header

FORMATS = [
    ("WAV", "PCM_16", "wav", True),
    ("WAV", "PCM_U8", "wav", True),
    ("WAV", "PCM_24", "wav", False),
    ("WAV", "PCM_32", "wav", False),
    ("WAV", "FLOAT", "wav", False),
    ("WAV", "DOUBLE", "wav", False),
    ("WAV", "ULAW", "wav", True),
    ("WAV", "ALAW", "wav", True),
    ("WAVEX", "PCM_16", "wav", True),
    ("RF64", "PCM_16", "wav", True),
    ("FLAC", "PCM_16", "flac", True),
    ("FLAC", "PCM_24", "flac", False),
    ("FLAC", "PCM_S8", "flac", True),
    ("OGG", "VORBIS", "ogg", False),
    ("OGG", "OPUS", "ogg", False),
    ("MP3", "MPEG_LAYER_III", "mp3", False),
]
IDS = [f"{form}-{subtype}" for form, subtype, _, _ in FORMATS]
STARTS = [b"", b"RIFF\0\0\0\0WAVE", b"fLaC", b"OggS", b"ID3", b"\xff\xfb"]
PCM = np.arange(-50, 50, dtype=np.int16).reshape(50, 2) * 300


@pytest.mark.parametrize(("form", "subtype", "name", "fits"), FORMATS, ids=IDS)
@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("rate", [8000, 48000])
def test_every_format_says_what_libsndfile_finds(
    sounds: Any, form: str, subtype: str, name: str, fits: bool, channels: int, rate: int
) -> None:
    data = sounds.encode(sounds.noise(700, channels), rate, form, subtype)
    header = read_header(data)
    assert (header.format, header.rate, header.channels) == (name, rate, channels)
    assert header.samples == (None if form == "MP3" else 700)
    assert header.fits_16_bits == fits
    samples, found_rate = decode_sound(data)
    np.testing.assert_array_equal(samples, sounds.decoded(data))
    assert samples.dtype == np.float32
    assert (samples.shape, found_rate) == ((700, channels), rate)
    if fits:
        assert (samples * 32768 % 1 == 0).all()
    head = read_header(data[:400], num_bytes=len(data)) if form != "MP3" else header
    assert head == header or (head._replace(samples=700) == header and form == "OGG")


@pytest.mark.parametrize("stated", [0, 1000, 8000, 11025, 16000, 22050, 32000, 44100, 96000])
def test_opus_is_decoded_at_the_rate_that_its_header_leads_to(sounds: Any, stated: int) -> None:
    data = sounds.encode(sounds.noise(4000), 48000, "OGG", "OPUS")
    start = data.index(b"OpusHead") + 12
    data = bytearray(data[:start] + struct.pack("<I", stated) + data[start + 4 :])
    data[22:26] = struct.pack("<I", _slow_checksum(bytes(data[: start + 7])))
    samples, rate = decode_sound(bytes(data))
    header = read_header(bytes(data))
    assert rate == header.rate
    assert header.samples is not None
    assert abs(header.samples - len(samples)) <= 1


def _slow_checksum(page: bytes) -> int:
    """RFC 3533's CRC, bit by bit."""
    crc = 0
    for byte in page[:22] + bytes(4) + page[26:]:
        crc ^= byte << 24
        for _ in range(8):
            crc = (crc << 1 ^ (0x04C11DB7 if crc >> 31 else 0)) & 0xFFFFFFFF
    return crc


class TestOddWav:
    """Files that other programs write, and that are whole."""

    def good(self, sounds: Any, data: bytes, rate: int = 8000) -> None:
        header = read_header(data)
        assert (header.rate, header.channels, header.samples) == (rate, 2, 50)
        samples, _ = decode_sound(data)
        np.testing.assert_array_equal(samples, PCM / np.float32(32768))
        # From its first bytes as well, wherever what follows the samples stands.
        assert read_header(data[:300], num_bytes=len(data)) == header

    def test_chunks_before_and_behind(self, sounds: Any) -> None:
        odd = sounds.chunk(b"LIST", b"INFOISFT\x05\0\0\0Lavf\0") + sounds.chunk(b"junk", b"abc")
        self.good(sounds, sounds.wav(PCM, before=odd))
        self.good(sounds, sounds.wav(PCM, behind=odd))
        self.good(sounds, sounds.wav(PCM, before=sounds.chunk(b"fact", b"\x32\0\0\0"), behind=odd))

    def test_a_format_of_18_bytes(self, sounds: Any) -> None:
        form = struct.pack("<HHIIHHH", 1, 2, 8000, 32000, 4, 16, 0)
        self.good(sounds, sounds.wav(PCM, form=form))

    @pytest.mark.parametrize("order", ["<", ">"])
    def test_extensible(self, sounds: Any, order: str) -> None:
        guid = struct.pack(order + "IHH", 1, 0, 0x10) + b"\x80\0\0\xaa\0\x38\x9b\x71"
        form = struct.pack(order + "HHIIHHHHI", 0xFFFE, 2, 8000, 32000, 4, 16, 22, 16, 3) + guid
        if order == "<":
            self.good(sounds, sounds.wav(PCM, form=form))
        else:
            self.good(sounds, self.big_endian(form))

    @pytest.mark.parametrize("size", [0, 0xFFFFFFFF, 0x7FFFFFFF, 0x80000000, 0x7FFFF000])
    def test_a_stream_has_no_length(self, sounds: Any, size: int) -> None:
        self.good(sounds, sounds.wav(PCM, data_size=size))

    def test_a_wrong_riff_size(self, sounds: Any) -> None:
        data = sounds.wav(PCM)
        for size in (0, 5, 0xFFFFFFFF):
            self.good(sounds, data[:4] + struct.pack("<I", size) + data[8:])

    def test_big_endian(self, sounds: Any) -> None:
        self.good(sounds, self.big_endian(struct.pack(">HHIIHH", 1, 2, 8000, 32000, 4, 16)))

    def big_endian(self, form: bytes) -> bytes:
        body = b"WAVEfmt " + struct.pack(">I", len(form)) + form
        body += b"data" + struct.pack(">I", 200) + PCM.astype(">i2").tobytes()
        return b"RIFX" + struct.pack(">I", len(body)) + body

    def test_a_metadata_tag_before(self, sounds: Any) -> None:
        tag = b"ID3\x04\0\0\0\0\x01\x00" + bytes(128)
        for form, subtype in (("FLAC", "PCM_16"), ("MP3", "MPEG_LAYER_III")):
            data = sounds.encode(sounds.noise(5000), 16000, form, subtype)
            tagged, _ = decode_sound(tag + data)
            np.testing.assert_array_equal(tagged, decode_sound(data)[0])
            assert read_header(tag + data) == read_header(data)
            with pytest.raises(UnreadableSoundError, match="ID3") as caught:
                read_header((tag + data)[:100], num_bytes=len(tag + data))
            assert caught.value.reason == "truncated sound"


def bad_files(sounds: Any) -> dict[str, tuple[bytes, str, str]]:
    """Files by name, with the reason and a part of the message."""
    good = sounds.wav(PCM)
    flac = sounds.encode(sounds.noise(3000, 2), 8000, "FLAC")
    ogg = sounds.encode(sounds.noise(3000, 2), 8000, "OGG", "VORBIS")
    nan = sounds.noise(20)
    nan[7] = np.nan
    float_wav = sounds.encode(sounds.noise(20), 8000, "WAV", "FLOAT")
    patched = bytearray(float_wav)
    patched[-4:] = struct.pack("<f", np.inf)
    md5 = bytearray(flac)
    md5[26] ^= 1
    other_stream = sounds.encode(sounds.noise(3000, 2, seed=1), 8000, "OGG", "VORBIS")
    first_page = ogg.index(b"OggS", 4)

    def form(*fields: int) -> bytes:
        return sounds.wav(PCM, form=struct.pack("<HHIIHH", *fields))

    return {
        "empty": (b"", "empty file", "no bytes"),
        "zeros": (bytes(99), "zero-filled file", "99 bytes are zero"),
        "text": (b"label,speaker\nyes,1\n", "text, not a sound", "label,speaker"),
        "image": (b"\x89PNG\r\n\x1a\n\0\0", "not a sound", "begins with"),
        "noise": (bytes(range(1, 90)), "not a sound", "begins with"),
        "aiff": (b"FORM\0\0\0\x20AIFFCOMM", "unsupported sound format", "AIFF"),
        "m4a": (b"\0\0\0\x20ftypM4A \0\0", "unsupported sound format", "MPEG-4"),
        "webm": (b"\x1aE\xdf\xa3\x01\0\0", "unsupported sound format", "WebM"),
        "avi": (b"RIFF\x20\0\0\0AVI LIST", "unsupported sound format", "another kind"),
        "riff alone": (b"RIFF", "truncated sound", "inside its RIFF header"),
        "no chunks": (good[:12], "truncated sound", "'fmt '"),
        "no data": (good[:36], "truncated sound", "no chunk 'data'"),
        "cut off": (good[:-1], "truncated sound", "states 200 bytes of samples, and 199 follow"),
        "data first": (
            good[:12] + good[36:] + good[12:36],
            "damaged sound",
            "before the chunk 'fmt '",
        ),
        "no samples": (sounds.wav(PCM[:0]), "no samples", "no samples"),
        "no samples, chunks": (
            sounds.wav(PCM[:0], behind=sounds.chunk(b"LIST", b"INFO")),
            "no samples",
            "no samples",
        ),
        "less than one sample": (sounds.wav(PCM, data_size=3)[:47], "no samples", "no samples"),
        "short format": (sounds.wav(PCM, form=b"\1\0\1\0"), "damaged sound", "has 4 bytes"),
        "rate 0": (form(1, 2, 0, 0, 4, 16), "absurd rate", "states 0 samples"),
        "rate 4e9": (form(1, 2, 4_000_000_000, 0, 4, 16), "absurd rate", "4,000,000,000"),
        "no channels": (form(1, 0, 8000, 0, 0, 16), "too many channels", "states 0 channels"),
        "many channels": (
            form(1, 999, 8000, 0, 1998, 16),
            "too many channels",
            "states 999 channels",
        ),
        "wrong block": (form(1, 2, 8000, 0, 6, 16), "damaged sound", "6 bytes for 2 samples"),
        "codec": (form(0x55, 2, 8000, 0, 4, 16), "unsupported codec", "0x0055"),
        "12 bits": (form(1, 2, 8000, 0, 3, 12), "unsupported codec", "12 bits"),
        "NaN": (sounds.encode(nan, 8000, "WAV", "FLOAT"), "not finite", "sample 7 is"),
        "infinite": (bytes(patched), "not finite", "sample 19 is"),
        "flac alone": (flac[:20], "truncated sound", "STREAMINFO"),
        "flac without info": (
            b"fLaC\x84" + flac[5:],
            "damaged sound",
            "does not begin with STREAMINFO",
        ),
        "flac cut off": (flac[:-9], "damaged sound", ""),
        "flac of another md5": (bytes(md5), "damaged sound", "MD5"),
        "ogg cut off": (ogg[:-9], "truncated sound", "inside the Ogg page"),
        "ogg without its end": (ogg[: ogg.rindex(b"OggS")], "truncated sound", "as its last"),
        "ogg of one page": (ogg[:first_page], "truncated sound", "as its last"),
        "ogg damaged": (
            ogg[:3000] + b"\x55" + ogg[3001:],
            "damaged sound",
            "does not match its checksum",
        ),
        "ogg with a gap": (_without_page(ogg), "damaged sound", "is missing"),
        "ogg of two streams": (ogg + other_stream, "unsupported codec", "several streams"),
        "ogg of speex": (_speex(), "unsupported codec", "Speex"),
        "mp3 of one frame": (b"\xff\xfb\x90\x00" + bytes(20), "truncated sound", "two frames"),
        "mp3 cut off": (
            sounds.encode(sounds.noise(9000), 8000, "MP3", "MPEG_LAYER_III")[:-300],
            "truncated sound",
            "encoder states",
        ),
        "a tag alone": (b"ID3\x03\0\0\0\0\0\x0a" + bytes(40), "no samples", "no frames"),
    }


def _without_page(ogg: bytes) -> bytes:
    """Without the page of the comments, which is the second."""
    second = ogg.index(b"OggS", 4)
    third = ogg.index(b"OggS", second + 4)
    return ogg[:second] + ogg[third:]


def _speex() -> bytes:
    page = bytearray(struct.pack("<4sBBqIIIB", b"OggS", 0, 2, 0, 1, 0, 0, 1) + b"\x08Speex   ")
    page[22:26] = struct.pack("<I", _slow_checksum(bytes(page)))
    return bytes(page)


def test_what_is_wrong_is_told(sounds: Any, capfd: Any) -> None:
    for name, (data, reason, message) in bad_files(sounds).items():
        with pytest.raises(UnreadableSoundError) as raised:
            decode_sound(data)
        error = raised.value
        assert error.reason in (reason, "truncated sound"), (name, error)
        assert message in str(error), (name, error)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("form", "subtype"),
    [
        ("WAV", "PCM_16"),
        ("WAV", "FLOAT"),
        ("FLAC", "PCM_16"),
        ("OGG", "VORBIS"),
        ("OGG", "OPUS"),
        ("MP3", "MPEG_LAYER_III"),
    ],
)
def test_no_sound_that_is_cut_off_passes(sounds: Any, form: str, subtype: str, capfd: Any) -> None:
    data = sounds.encode(sounds.noise(120 if form == "WAV" else 600), 16000, form, subtype)
    for stop in range(len(data)):
        with pytest.raises(UnreadableSoundError):
            decode_sound(data[:stop])
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("form", "subtype"), [("FLAC", "PCM_16"), ("OGG", "VORBIS"), ("MP3", "MPEG_LAYER_III")]
)
def test_a_flipped_bit_never_raises_anything_else(
    sounds: Any, form: str, subtype: str, capfd: Any
) -> None:
    data = sounds.encode(sounds.noise(600), 16000, form, subtype)
    whole = sounds.decoded(data)
    for place in range(0, len(data), 7):
        damaged = bytearray(data)
        damaged[place] ^= 0x24
        try:
            samples, _ = decode_sound(bytes(damaged))
        except UnreadableSoundError:
            continue
        # What is not samples may change without a sound; an MP3 checks nothing of its own.
        assert form == "MP3" or np.array_equal(samples, whole), place
    assert capfd.readouterr().err == ""


@given(st.binary(max_size=200), st.sampled_from(STARTS))
def test_any_bytes_are_a_sound_or_an_error(content: bytes, start: bytes) -> None:
    with contextlib.suppress(UnreadableSoundError):
        decode_sound(start + content)


@given(st.integers(1, 40), st.integers(1, 4), st.sampled_from([8000, 11025, 44100, 96000]))
def test_any_plain_wav_is_read_to_the_bit(num: int, channels: int, rate: int) -> None:
    pcm = np.random.default_rng(num).integers(-32768, 32768, (num, channels), np.int16)
    form = struct.pack("<HHIIHH", 1, channels, rate, rate * channels * 2, channels * 2, 16)
    content = pcm.astype("<i2").tobytes()
    body = b"WAVEfmt \x10\0\0\0" + form + b"data" + struct.pack("<I", len(content)) + content
    samples, found = decode_sound(b"RIFF" + struct.pack("<I", len(body)) + body)
    assert found == rate
    np.testing.assert_array_equal(samples * 32768, pcm)


def test_more_samples_than_allowed_are_refused_before_they_are_decoded(sounds: Any) -> None:
    for form, subtype, *_ in FORMATS:
        data = sounds.encode(np.zeros((20_000, 2), np.float32), 8000, form, subtype)
        for limit, fits in ((40_000, True), (39_999, False)):
            if fits:
                decode_sound(data, max_samples=limit)
                continue
            with pytest.raises(UnreadableSoundError) as caught:
                decode_sound(data, max_samples=limit)
            assert caught.value.reason == "too many samples"


def test_others_words_are_passed_on_while_an_mp3_is_decoded(sounds: Any, capfd: Any) -> None:
    with caught_noise() as damage:
        os.write(2, b"a warning of somebody's\n[src/libmpg123/layer3.c:9] error: bad!\nNote: x\n")
    assert capfd.readouterr().err == "a warning of somebody's\n"
    assert damage == ["bad!"]
