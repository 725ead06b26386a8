"""Compressed streams: known by content, several in a row, damaged at any place."""

import bz2
import gzip
import itertools
import lzma
from collections.abc import Callable

import pytest
import zstandard

from snapshard.transforms.sources.text_stream import open_text
from snapshard.transforms.storage.decompress import (
    DamagedError,
    compression_of,
    decompressed,
    other_compression,
)

from .memory_files import Memory

CODECS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "zstd": lambda data: zstandard.ZstdCompressor(write_checksum=True).compress(data),
    "bzip2": bz2.compress,
    "xz": lzma.compress,
}
TEXT = b"".join(b"%d,%d\n" % (i, i * i % 977) for i in range(100_000))


def read_out(data: bytes, compression: str) -> tuple[bytes, DamagedError | None]:
    out: list[bytes] = []
    try:
        out.extend(decompressed(lambda start, stop: data[start:stop], compression))
    except DamagedError as error:
        return b"".join(out), error
    return b"".join(out), None


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("text", [b"", b"a\n", TEXT], ids=["empty", "short", "long"])
def test_what_is_compressed_reads_back(name: str, text: bytes) -> None:
    data = CODECS[name](text) + CODECS[name](b"more")
    assert compression_of(data[:10]) == name
    assert read_out(data, name) == (text + b"more", None)


@pytest.mark.parametrize("name", CODECS)
def test_each_truncation_keeps_what_is_there(name: str) -> None:
    data = CODECS[name](b"".join(b"%d\n" % i for i in range(300)))
    whole, _ = read_out(data, name)
    lengths = []
    for length in range(1, len(data)):
        found, error = read_out(data[:length], name)
        assert error is not None
        assert "ends too early" in str(error)
        assert whole.startswith(found)
        lengths.append(len(found))
    assert all(one <= other for one, other in itertools.pairwise(lengths))


@pytest.mark.parametrize("name", CODECS)
def test_damage_in_the_second_stream_costs_nothing_of_the_first(name: str) -> None:
    second = bytearray(CODECS[name](TEXT))
    second[1:4] = b"\0\0\0"
    found, error = read_out(CODECS[name](TEXT) + bytes(second), name)
    assert found == TEXT
    assert error is not None
    assert f"{name} data is damaged at byte" in str(error)


@pytest.mark.parametrize("name", CODECS)
def test_damage_in_the_middle_keeps_what_the_decoder_can_make(name: str) -> None:
    data = bytearray(CODECS[name](TEXT))
    middle = len(data) // 2
    data[middle : middle + 64] = bytes(64)
    found, error = read_out(bytes(data), name)
    assert error is not None
    assert error.offset > middle - 5
    # bzip2 gives blocks of 900 kB, zstd of 128 kB.
    least = {"bzip2": 0, "zstd": 1 << 17}.get(name, len(TEXT) // 4)
    assert len(found) >= least
    common = next((i for i in range(0, len(found), 997) if found[i] != TEXT[i : i + 1][0]), None)
    assert common is None or common >= least


def test_zeros_that_a_tape_adds_are_no_damage() -> None:
    assert read_out(gzip.compress(b"a\n") + bytes(10_000), "gzip") == (b"a\n", None)
    found, error = read_out(gzip.compress(b"a\n") + b"junk", "gzip")
    assert (found, error is None) == (b"a\n", False)


def test_padding_between_streams_of_xz_is_no_damage() -> None:
    one, two = lzma.compress(b"a\n"), lzma.compress(b"b\n")
    assert read_out(one + bytes(8) + two + bytes(4), "xz") == (b"a\nb\n", None)
    assert read_out(one + bytes(100_000) + two, "xz") == (b"a\nb\n", None)


@pytest.mark.parametrize(
    ("head", "name"),
    [
        (b"\x04\x22\x4d\x18@@", "lz4"),
        (b"\x1f\x9d\x90a", "compress (.Z)"),
        (b"\xff\x06\x00\x00sNaPpY", "snappy"),
        (lzma.compress(b"a\n", lzma.FORMAT_ALONE), "lzma"),
        (lzma.compress(TEXT, lzma.FORMAT_ALONE, preset=0), "lzma"),
        (lzma.compress(TEXT, lzma.FORMAT_ALONE, preset=9)[:13], "lzma"),
    ],
)
def test_other_compressions_are_named(head: bytes, name: str) -> None:
    assert compression_of(head) == ""
    content, error = read_out(head, other_compression(head))
    assert content == b""
    assert f"{name} data cannot be read" in str(error)


@pytest.mark.parametrize(
    "head",
    [b"", b"]\n", b"]a,b\n", b"a,b\n1,2\n"]
    + [f"]{text}".encode("utf-16-le") for text in ("Ā", "ĀĀ,b\n", "一,二\n1,2\n", "\u3000a" * 9)],
)
def test_text_is_not_taken_for_another_compression(head: bytes) -> None:
    assert other_compression(head) == ""


def test_frames_to_be_skipped() -> None:
    skipped = b"\x50\x2a\x4d\x18\x04\x00\x00\x00abcd"
    data = skipped + CODECS["zstd"](b"a") + skipped + CODECS["zstd"](b"b")
    assert compression_of(data[:10]) == "zstd"
    assert read_out(data, "zstd") == (b"ab", None)


@pytest.mark.parametrize("head", [b"", b"a,b", b"BZh9,a,b,c", b"\x1f", b"P*", b"PK\x03\x04"])
def test_what_is_not_compressed(head: bytes) -> None:
    assert compression_of(head) == ""


BROTLI = bytes.fromhex("0b0280612c620a03")
"""What the ``brotli`` of a short text is: it has no mark."""


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("t.csv.br", BROTLI, "brotli data cannot be read"),
        ("t.csv.gz", gzip.compress(gzip.compress(TEXT)), "gzip data is compressed twice"),
        ("t.txt", CODECS["zstd"](CODECS["xz"](TEXT)), "xz data is compressed twice"),
        ("t.csv.gz", gzip.compress(b"\x04\x22\x4d\x18@@"), "lz4 data is compressed twice"),
    ],
    ids=["brotli", "gzip", "xz", "lz4"],  # the contents hold the time
)
def test_what_is_no_text_when_it_is_decompressed_is_named(
    name: str, content: bytes, said: str
) -> None:
    text = open_text(Memory({name: content}), name, num_bytes=len(content), encoding="utf-8")
    with pytest.raises(DamagedError, match=said):
        text.read(0, 100)


@pytest.mark.parametrize("content", [b"ur wech\n", "kaoc'hañ\n".encode("latin-1"), b""])
def test_a_text_in_breton_is_not_brotli(content: bytes) -> None:
    text = open_text(Memory({"t.br": content}), "t.br", num_bytes=len(content), encoding="utf-8")
    assert text.read(0, 100) == content
