"""The manifest's own checksum, and what passes for a manifest."""

import hashlib
import json
from typing import Any

import pytest

import snapshard as ss
from snapshard.schemas.errors import DamagedSnapshotError
from snapshard.schemas.manifest import FileEntry, Manifest, json_checksum, read_manifest

MANIFEST = Manifest(
    format_version=1,
    name="made",
    fingerprint="0" * 16,
    features={"x": ss.Scalar("float32", default=0.5), "label": ss.ClassLabel(("né", "\x1b"))},
    label="label",
    compression="none",
    num_rejects=0,
    seed=0,
    versions={"numpy": "2"},
    splits={},
    files={"reader/facts.py": FileEntry(bytes=3, sha256="0" * 64)},
)


def _read(content: bytes) -> Manifest:
    return Manifest.from_bytes(content, where="here")


def _with(**changed: Any) -> bytes:
    return json.dumps(json.loads(MANIFEST.to_bytes()) | changed).encode()


def test_what_is_written_reads_back() -> None:
    content = MANIFEST.to_bytes()
    assert _read(content) == MANIFEST
    assert _read(content).to_bytes() == content
    assert read_manifest(content, where="here") == (MANIFEST, "right")


def test_checksum_takes_the_standard_library_alone() -> None:
    value = json.loads(MANIFEST.to_bytes())
    told = value.pop("checksum")
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    assert told == hashlib.sha256(text.encode()).hexdigest() == json_checksum(value)


def test_layout_is_no_edit() -> None:
    value = json.loads(MANIFEST.to_bytes())
    assert _read(json.dumps(dict(reversed(value.items())), indent=7).encode()) == MANIFEST


def test_every_flipped_bit_shows() -> None:
    content = MANIFEST.to_bytes()
    for position in range(len(content)):
        for bit in range(8):
            flipped = bytearray(content)
            flipped[position] ^= 1 << bit
            try:
                found = _read(bytes(flipped))
            except DamagedSnapshotError:
                continue
            # A space that became a line break, or "\\u001B" for "\\u001b".
            assert found == MANIFEST


def test_without_a_checksum_it_is_from_before_there_were_any() -> None:
    value = json.loads(MANIFEST.to_bytes())
    del value["checksum"]
    content = json.dumps(value).encode()
    assert _read(content) == MANIFEST
    assert read_manifest(content, where="here")[1] == "missing"


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (_with(seed=1), "edited or is damaged: its checksum"),
        (_with(seed=0.0), "edited or is damaged: its checksum"),
        (_with(checksum=None), "edited or is damaged"),
        (_with(checksum=[1]), "edited or is damaged"),
        (b"", "is not valid JSON"),
        (b"\xff", "is not valid JSON"),
        (b"\xef\xbb\xbf{}", "is not valid JSON"),
        (b'{"a": 1, "a": 1}', "duplicate name 'a' in an object"),
        (
            b"{%s}" % b",".join(b'"%d": 1' % (n % 200_000) for n in range(200_001)),
            "duplicate name '0' in an object",
        ),
        (b"[" * 1_000_000, "is not valid JSON"),
        (b'{"a":' * 1_000_000, "is not valid JSON"),
        (b'{"a": ' + b"9" * 10_000 + b"}", "is not valid JSON"),
        (b"[]", "is not a manifest: not a JSON object"),
        (b"{}", "has format_version None, expected 1"),
        (b'{"format_version": 2}', "has format_version 2, expected 1"),
        (b'{"format_version": 1}', "is not a manifest: name: Field required"),
        (_with(more=1), "is not a manifest: more: Extra inputs"),
        (_with(files={"../a": {"bytes": 1, "sha256": ""}}), "is not the name of a file inside"),
        (_with(files={"/a": {"bytes": 1, "sha256": ""}}), "is not the name of a file inside"),
        (_with(files={"a": {"bytes": -1, "sha256": ""}}), "files.a.bytes"),
        (_with(features={"x": {"kind": "ClassLabel", "names": []}}), "is not a manifest: "),
        (_with(features={"x": {"kind": "Scalar", "dtype": "int7"}}), "is not a manifest: "),
    ],
)
def test_what_is_none(content: bytes, found: str) -> None:
    with pytest.raises(DamagedSnapshotError) as caught:
        _read(content)
    assert str(caught.value).startswith("here ")
    assert found in str(caught.value)


@pytest.mark.parametrize("content", [MANIFEST.to_bytes()[:100], b"[]", b'{"format_version": 1}'])
def test_a_damaged_manifest_names_the_command_that_repairs_it(content: bytes) -> None:
    with pytest.raises(DamagedSnapshotError) as raised:
        read_manifest(content, where="my out/birds/5f0a3b1c9d2e4f60/manifest.json")
    assert "snapshard build SOURCE --out 'my out' --repair, where" in str(raised.value)
