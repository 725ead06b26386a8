"""Functions of the user's own: built, verified, read back equal; their code in the fingerprint."""

import io
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pytest

import snapshard as ss
from snapshard.pipelines.inspect.verify import verify
from snapshard.schemas.progress import Silent

from .built import build

HEAD = struct.Struct("<Bd")
NUM = 30
RECIPE = '''
import struct
import numpy as np
import snapshard as ss

FACTOR = 2

def read(file):
    """Records of one byte and one double."""
    with file.open() as opened:
        while record := opened.read(9):
            n, x = struct.unpack("<Bd", record)
            yield {"n": n * FACTOR, "x": x, "v": np.full((2, 2), n, np.uint8), "who": {"s": str(n)}}

recipe = ss.Recipe(name="made", source=ss.Files("raw/*.bin", read=read))
'''


def content(start: int) -> bytes:
    return b"".join(HEAD.pack(n, n / 7) for n in range(start, start + NUM // 2))


def write(folder: Path) -> None:
    (folder / "raw").mkdir()
    (folder / "raw/a.bin").write_bytes(content(0))
    (folder / "raw/b.bin").write_bytes(content(NUM // 2))
    (folder / "recipe.py").write_text(RECIPE)


def expected() -> dict[str, tuple[Any, ...]]:
    half = NUM // 2
    return {
        f"{'ab'[n // half]}.bin#{n % half}": (2 * n, n / 7, [[n, n], [n, n]], str(n).encode())
        for n in range(NUM)
    }


def rows_of(lab: Any, snapshot: ss.Snapshot) -> dict[str, tuple[Any, ...]]:
    rows = {}
    for record_id, _, values in lab.read_back(snapshot).rows():
        rows[record_id] = (
            values["n"],
            values["x"],
            values["v"].tolist(),
            values["who.s"] if "who.s" in values else values["who"]["s"],
        )
    return rows


def read(file: Any) -> Iterator[Any]:
    """The same as Arrow batches."""
    values = np.frombuffer(file.read(), np.dtype([("n", "u1"), ("x", "<f8")]))
    for part in np.array_split(values, 3):
        n = part["n"].astype(np.int64)
        yield pa.RecordBatch.from_pydict(
            {
                "n": n * 2,
                "x": part["x"],
                "v": pa.array([[[k, k], [k, k]] for k in n.tolist()], GRID),
                "who": pa.array([{"s": str(k)} for k in n.tolist()]),
            }
        )


GRID = pa.list_(pa.list_(pa.uint8(), 2), 2)


@pytest.mark.slow
def test_dicts_come_back_equal_with_one_worker_or_two(lab: Any, tmp_path: Path) -> None:
    write(tmp_path)
    one = lab.build(tmp_path / "recipe.py", tmp_path / "one")
    verify(one, progress=Silent())
    assert rows_of(lab, one) == expected()
    two = lab.build(tmp_path / "recipe.py", tmp_path / "two", workers=2)
    assert lab.hashes(one) == lab.hashes(two)


@pytest.mark.slow
def test_batches_come_back_equal(lab: Any, tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(content(0))
    (tmp_path / "b.bin").write_bytes(content(NUM // 2))
    snapshot = build(tmp_path, ss.Files(f"{tmp_path}/*.bin", read))
    assert rows_of(lab, snapshot) == expected()


@pytest.mark.slow
def test_the_code_of_the_function_is_part_of_the_fingerprint(lab: Any, tmp_path: Path) -> None:
    write(tmp_path)
    recipe = tmp_path / "recipe.py"
    first = lab.build(recipe, tmp_path / "out")
    recipe.write_text(RECIPE.replace("Records of one", "# One").replace("FACTOR = 2", "FACTOR=2"))
    assert lab.build(recipe, tmp_path / "out").cached
    recipe.write_text(RECIPE.replace("FACTOR = 2", "FACTOR = 3"))
    other = lab.build(recipe, tmp_path / "out")
    assert other.path != first.path
    assert rows_of(lab, other)["b.bin#0"][0] == 45


@pytest.mark.slow
def test_what_it_raises_is_a_reject_of_the_build(lab: Any, tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "raw/b.bin").write_bytes(content(15)[:-4])
    with pytest.raises(ss.SnapshardError, match=r"b\.bin record 14: read raised error: unpack"):
        lab.build(tmp_path / "recipe.py", tmp_path / "out")
    allowed = RECIPE.replace("read=read)", "read=read), max_rejects=1")
    (tmp_path / "recipe.py").write_text(allowed)
    snapshot = lab.build(tmp_path / "recipe.py", tmp_path / "out")
    (reject,) = lab.rejects(snapshot)
    assert (reject["id"], reject["position"]) == ("b.bin#14", 14)
    assert rows_of(lab, snapshot).keys() == expected().keys() - {"b.bin#14"}


@pytest.mark.slow
def test_images_pass_through(lab: Any, tmp_path: Path) -> None:
    from PIL import Image

    (tmp_path / "a.bin").write_bytes(b"")

    def read_images(file: Any) -> Iterator[dict[str, Any]]:
        for n in range(3):
            out = io.BytesIO()
            Image.new("RGB", (4, 4), (n, 0, 0)).save(out, "PNG")
            yield {"image": out.getvalue(), "n": n}

    image = ss.Image(storage="encoded")
    source = ss.Files(str(tmp_path / "a.bin"), read_images, types={"image": image})
    snapshot = build(tmp_path, source, prepare=[ss.images.decode("image")])
    held = lab.read_back(snapshot, image_size=(4, 4))
    assert held.values["image"][:, 0, 0, 0].tolist() == held.values["n"].tolist()


def test_memory_is_refused_where_processes_do_not_share_it(tmp_path: Path) -> None:
    fsspec.filesystem("memory").pipe("/own2/a.bin", b"")
    (tmp_path / "a.bin").write_bytes(b"")
    for source, out in (
        (ss.Files("memory://own2", read), str(tmp_path / "out")),
        (ss.Files(str(tmp_path / "a.bin"), read), "memory://out"),
        (ss.Parquet("zip://*::memory://own2/a.zip"), str(tmp_path / "out")),
    ):
        recipe = ss.Recipe(name="made", source=source)
        with pytest.raises(ss.SnapshardError, match=r"memory.* no worker process can.*workers=1"):
            ss.build(recipe, out, workers=2)
