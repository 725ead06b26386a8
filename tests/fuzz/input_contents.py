"""Small files of every format that recipes read, and how to open what protects their insides."""

import csv
import gzip
import io
import json
import random
import struct
import tarfile
import wave
import zipfile
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import google_crc32c
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image as Pillow

from snapshard.transforms.examples.encode import encode_examples

ROWS = 12


def table(seed: int) -> pa.Table:
    rng = random.Random(seed)
    return pa.table(
        {
            "n": [rng.randrange(1000) for _ in range(ROWS)],
            "x": [rng.random() * 100 for _ in range(ROWS)],
            "word": [
                rng.choice(("alpha", "bêta", "gamma, delta", 'say "so"')) for _ in range(ROWS)
            ],
            "flag": [rng.random() < 0.5 for _ in range(ROWS)],
            "list": [[rng.random() for _ in range(rng.randrange(4))] for _ in range(ROWS)],
        }
    )


def csv_of(seed: int) -> bytes:
    sink = io.StringIO()
    columns = ("n", "x", "word", "flag")
    writer = csv.DictWriter(sink, columns, extrasaction="ignore")
    writer.writeheader()
    writer.writerows(table(seed).to_pylist())
    return sink.getvalue().encode()


def json_lines(seed: int) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in table(seed).to_pylist())


def text(seed: int) -> bytes:
    return b"".join(f"{row['word']} {row['n']}\n".encode() for row in table(seed).to_pylist())


def parquet(seed: int) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table(seed), sink, row_group_size=5, compression="zstd")
    return sink.getvalue()


def parquet_plain(seed: int) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table(seed), sink, row_group_size=5, compression="none", use_dictionary=False)
    return sink.getvalue()


def arrow(seed: int) -> bytes:
    return _ipc(seed, pa.ipc.new_file)


def arrow_stream(seed: int) -> bytes:
    return _ipc(seed, pa.ipc.new_stream)


def _ipc(seed: int, new: Any) -> bytes:
    sink = io.BytesIO()
    rows = table(seed)
    with new(sink, rows.schema) as writer:
        for start in range(0, ROWS, 4):
            writer.write_table(rows.slice(start, 4))
    return sink.getvalue()


def hugging_face(seed: int) -> bytes:
    info = {
        "info": {
            "features": {
                "label": {"names": ["no", "yes"], "_type": "ClassLabel"},
                "image": {"_type": "Image"},
            }
        }
    }
    rows = pa.table(
        {
            "label": pa.array([i % 2 for i in range(ROWS)], pa.int64()),
            "image": [{"bytes": image("PNG", seed + i), "path": None} for i in range(ROWS)],
        }
    ).replace_schema_metadata({"huggingface": json.dumps(info)})
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    return sink.getvalue()


def examples(seed: int) -> list[bytes]:
    rng = random.Random(seed)
    columns = pa.record_batch(
        {
            "n": pa.array([rng.randrange(1 << 40) for _ in range(ROWS)], pa.int64()),
            "x": pa.array(
                [[rng.random() for _ in range(2)] for _ in range(ROWS)], pa.list_(pa.float32(), 2)
            ),
            "name": pa.array([rng.randbytes(5) for _ in range(ROWS)], pa.large_binary()),
        }
    )
    return [bytes(one) for one in encode_examples(columns).to_pylist()]


def masked(content: bytes) -> bytes:
    crc = google_crc32c.value(content)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def framed(records: Sequence[bytes]) -> bytes:
    heads = [struct.pack("<Q", len(record)) for record in records]
    return b"".join(
        head + masked(head) + record + masked(record)
        for head, record in zip(heads, records, strict=True)
    )


def tfrecord(seed: int) -> bytes:
    return framed(examples(seed))


def tfrecord_of_boxes(seed: int) -> bytes:
    return framed(boxes(seed))


def boxes(seed: int) -> list[bytes]:
    """Examples of the Object Detection API, the images of 7 × 5 pixels."""
    rng = random.Random(seed)
    counts = [i % 3 for i in range(ROWS)]
    columns: dict[str, Any] = {
        f"image/object/bbox/{side}": pa.array(
            [[at / 4 + rng.random() / 4 for _ in range(num)] for num in counts],
            pa.large_list(pa.float32()),
        )
        for at, side in enumerate(("ymin", "xmin", "ymax", "xmax"))
    }
    columns["image/object/class/text"] = pa.array(
        [[rng.choice((b"cat", b"dog")) for _ in range(num)] for num in counts],
        pa.large_list(pa.large_binary()),
    )
    columns["image/encoded"] = pa.array(
        [image("PNG", seed + i) for i in range(ROWS)], pa.large_binary()
    )
    columns["image/height"] = pa.array([7] * ROWS, pa.int64())
    columns["image/width"] = pa.array([5] * ROWS, pa.int64())
    batch = pa.record_batch(columns)
    return [bytes(one) for one in encode_examples(batch).to_pylist()]


def image(form: str, seed: int, size: tuple[int, int] = (7, 5)) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (*size, 3), np.uint8)
    sink = io.BytesIO()
    Pillow.fromarray(pixels).save(sink, form)
    return sink.getvalue()


def mask(bits: int) -> bytes:
    rng = np.random.default_rng(bits)
    indices = Pillow.fromarray(rng.integers(0, 1 << bits, (7, 5), np.uint8))
    indices.putpalette(bytes(rng.integers(0, 256, 3 << bits, np.uint8)))
    sink = io.BytesIO()
    indices.save(sink, "PNG", bits=bits)
    return sink.getvalue()


def wav(seed: int) -> bytes:
    sink = io.BytesIO()
    with wave.open(sink, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(np.random.default_rng(seed).integers(-9999, 9999, 64, "<i2").tobytes())
    return sink.getvalue()


def npy(seed: int) -> bytes:
    sink = io.BytesIO()
    np.save(sink, np.random.default_rng(seed).random((ROWS, 3)).astype(np.float32))
    return sink.getvalue()


def npz(seed: int) -> bytes:
    rng = np.random.default_rng(seed)
    sink = io.BytesIO()
    np.savez(sink, x=rng.random((ROWS, 2)).astype(np.float32), n=rng.integers(0, 9, ROWS))
    return sink.getvalue()


def tar_of(members: Sequence[tuple[str, bytes]]) -> bytes:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w") as archive:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return sink.getvalue()


def zip_of(members: Sequence[tuple[str, bytes]]) -> bytes:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members:
            archive.writestr(zipfile.ZipInfo(name), content)
    return sink.getvalue()


def samples(seed: int) -> bytes:
    """A tar of WebDataset."""
    members: list[tuple[str, bytes]] = []
    for number in range(5):
        members.append((f"{number:04}.png", image("PNG", seed + number)))
        members.append((f"{number:04}.cls", str(number % 3).encode()))
        members.append((f"{number:04}.json", json.dumps({"n": number, "t": "x"}).encode()))
    return tar_of(members)


def class_folders(seed: int) -> list[tuple[str, bytes]]:
    return [
        (f"{label}/{number}.png", image("PNG", seed + number))
        for label in ("cat", "dog")
        for number in range(3)
    ]


def label_csv(names: Sequence[str], seed: int) -> bytes:
    rng = random.Random(seed)
    rows = (f"{name},{rng.choice(('yes', 'no'))},{rng.randrange(90)}\n" for name in names)
    return ("file,label,age\n" + "".join(rows)).encode()


def label_json(names: Sequence[str], seed: int) -> bytes:
    rng = random.Random(seed)
    rows = [
        {"file": name, "label": rng.choice(("yes", "no")), "box": [rng.random()] * 4, "n": i}
        for i, name in enumerate(names)
    ]
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def coco(names: Sequence[str], seed: int) -> bytes:
    """Boxes of images of 7 × 5 pixels, as ``image`` makes them."""
    rng = random.Random(seed)
    images = [
        {"id": 3 * i, "file_name": name, "height": 7, "width": 5} for i, name in enumerate(names)
    ]
    boxes = [
        {
            "image_id": rng.choice(images)["id"],
            "category_id": rng.choice((2, 5)),
            "bbox": [rng.random(), rng.random(), 1 + rng.random(), 2.5],
            "segmentation": [[0.5] * 6],
            "iscrowd": rng.randrange(2),
        }
        for _ in range(9)
    ]
    categories = [{"id": 5, "name": "dog"}, {"id": 2, "name": "cat"}]
    content = {"images": images, "annotations": boxes, "categories": categories}
    return json.dumps(content).encode()


Layer = tuple[Callable[[bytes], bytes], Callable[[bytes], bytes]]
"""How to open what checksums protect, and how to close it again with checksums that are right."""


def _gzip(content: bytes) -> bytes:
    return gzip.compress(content, mtime=0)


GZIP: Layer = (gzip.decompress, _gzip)


def _payloads(content: bytes) -> bytes:
    """The first record of a TFRecord file."""
    (length,) = struct.unpack("<Q", content[:8])
    return content[12 : 12 + length]


def tfrecord_layer(seed: int, records: Callable[[int], list[bytes]] = examples) -> Layer:
    """One record, damaged within a frame that is right."""
    rest = records(seed)[1:]
    return _payloads, lambda record: framed([record, *rest])


def _chunks(content: bytes) -> bytes:
    """The chunks of a PNG as they are, without their checksums' weight: all of them joined."""
    return content[8:]


def _mend_chunks(content: bytes) -> bytes:
    found, at = [b"\x89PNG\r\n\x1a\n"], 0
    while at + 12 <= len(content):
        (length,) = struct.unpack(">I", content[at : at + 4])
        body = content[at + 4 : at + 8 + length]
        found.append(content[at : at + 4] + body + struct.pack(">I", zlib.crc32(body)))
        at += 12 + length
    return b"".join([*found, content[at:]])


PNG: Layer = (_chunks, _mend_chunks)


def npz_layer(seed: int) -> Layer:
    """One array of a .npz, damaged within a zip that is right."""

    def opened(content: bytes) -> bytes:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            return archive.read("x.npy")

    def closed(array: bytes) -> bytes:
        with zipfile.ZipFile(io.BytesIO(npz(seed))) as archive:
            numbers = archive.read("n.npy")
        return zip_of([("x.npy", array), ("n.npy", numbers)])

    return opened, closed


def zip_layer(seed: int) -> Layer:
    """One image of a zip, damaged within a zip that is right."""
    members = class_folders(seed)
    return lambda _: members[0][1], lambda image: zip_of([(members[0][0], image), *members[1:]])


def tar_headers(content: bytes) -> bytes:
    """A tar's bytes; its layer mends the checksums of the headers."""
    return content


def mend_tar(content: bytes) -> bytes:
    changed = bytearray(content)
    for at in range(0, len(changed) - 511, 512):
        if changed[at + 257 : at + 262] == b"ustar":
            changed[at + 148 : at + 156] = b" " * 8
            total = sum(changed[at : at + 512])
            changed[at + 148 : at + 156] = b"%06o\0 " % total
    return bytes(changed)


TAR: Layer = (tar_headers, mend_tar)
