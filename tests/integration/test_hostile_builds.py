"""Hostile data through the command line: builds end well or are refused, and memory stays flat."""

import csv
import io
import itertools
import json
import os
import shutil
import struct
import subprocess
import sys
import tarfile
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image as PillowImage

import snapshard as ss

NAMES = (
    'it\'s "quoted"',
    "{braces}",
    "back\\slash",
    "new\nline",
    "__import__('os').mkdir('executed')",
    "'''+__import__('os').mkdir('executed')+'''",
    '"""triple"""',
    "$(mkdir executed)",
    "`mkdir executed`",
    "; mkdir executed",
    "\u202egpj.exe",
    "\u2028line",
    "\x1b[31mred\x1b[0m",
    "[red]markup[/red]",
    "# [end]",
    "null\0byte",
    "long" * 2500,
)
READ = """
import json, sys
sys.path.insert(0, sys.argv[1])
import reader
from reader import arrays
(batch,) = reader.dataset("train", 160, shuffle=False).as_numpy_iterator()
found = [list(arrays.Records("train")[0]), list(batch)]
print(json.dumps([reader.CLASS_NAMES, list(reader.FEATURES), *found, len(batch["label"])]))
"""


class Done(NamedTuple):
    code: int
    text: str
    peak_mib: int
    """Of the process and of those that it started, the largest one's."""


# By a process between: what a child is said to have used at most begins with what its parent holds.
MEASURE = """
import resource, subprocess, sys
code = subprocess.call(sys.argv[2:])
with open(sys.argv[1], "w") as file:
    file.write(str(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss))
sys.exit(code)
"""


def run(*arguments: str | Path, cwd: Path) -> Done:
    log, peak = cwd / "log.txt", cwd / "peak.txt"
    command = [sys.executable, "-m", "snapshard", *map(str, arguments)]
    with log.open("wb") as file:
        done = subprocess.run(
            [sys.executable, "-c", MEASURE, str(peak), *command],
            cwd=cwd,
            stdout=file,
            stderr=file,
            check=False,
        )
    text = log.read_text(errors="replace")
    assert "Traceback" not in text, text
    return Done(done.returncode, text, int(peak.read_text()) >> 10)


def png_of(width: int, height: int) -> bytes:
    """One grey bit a pixel, all black: about a two-hundred-thousandth of what it decodes to."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        crc = zlib.crc32(kind + content)
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", crc)

    pack = zlib.compressobj(9)
    row = bytes(1 + (width + 7) // 8)
    data = b"".join(pack.compress(row) for _ in range(height)) + pack.flush()
    head = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    chunks = chunk(b"IHDR", head) + chunk(b"IDAT", data) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunks


def make_images(folder: Path) -> None:
    for label in ("cat", "dog"):
        for index in range(12):
            path = folder / label / f"{index}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            pixels = np.full((4, 4, 3), index * 9 + len(label) + (label == "dog"), np.uint8)
            PillowImage.fromarray(pixels).save(path)


@pytest.mark.slow
def test_image_bombs_are_rejects_and_memory_stays_flat(tmp_path: Path) -> None:
    """Decodes images in TensorFlow twice."""
    make_images(tmp_path / "good")
    make_images(tmp_path / "bad")
    frame = b"\x2c" + struct.pack("<HHHHB", 0, 0, 2000, 2000, 0) + b"\x02\x02\x4c\x01\x00"
    bombs = {
        "pixels.png": png_of(20_000, 20_000),
        "frames.gif": b"GIF89a" + struct.pack("<HHBBB", 9, 9, 0, 0, 0) + frame * 3000 + b";",
        "name\nwith \x1b[31m breaks.png": b"no image",
        "n" * 251 + ".png": b"",
        'it\'s "quoted".png': b"no image",
        os.fsdecode(b"no \xff text.png"): b"no image",
    }
    for name, content in bombs.items():
        (tmp_path / "bad" / "cat" / name).write_bytes(content)
    (tmp_path / "outside.png").write_bytes(b"secret")
    (tmp_path / "bad" / "dog" / "out.png").symlink_to(tmp_path / "outside.png")
    (tmp_path / "bad" / "dog" / "loop").symlink_to(tmp_path / "bad")
    done = {}
    for name in ("good", "bad"):
        recipe = tmp_path / f"{name}.py"
        recipe.write_text(
            "import snapshard as ss\n"
            f"recipe = ss.Recipe(name={name!r}, source=ss.ImageFolder({name!r}), max_rejects=9,\n"
            '    prepare=[ss.images.decode("image"), ss.images.resize("image", (4, 4))])\n'
        )
        done[name] = run("build", recipe, "--out", tmp_path / "out", cwd=tmp_path)
        assert done[name].code == 0, done[name].text
    assert done["bad"].peak_mib < done["good"].peak_mib + 200
    assert "\x1b[31m" not in done["bad"].text
    (path,) = (tmp_path / "out" / "bad").glob("*/manifest.json")
    rejects = pq.read_table(path.parent / "rejects.parquet").to_pylist()
    reasons = {reject["id"].rpartition("/")[2]: reject["reason"] for reject in rejects}
    assert reasons.pop("pixels.png") == reasons.pop("frames.gif") == "too many pixels"
    assert reasons.pop("loop") == "symbolic link loop"
    assert "leads out of the source" in reasons.pop("out.png")
    assert reasons.pop("n" * 251 + ".png") == "empty file"
    # What is no UTF-8 stands as an escape.
    for name in ("name\nwith \x1b[31m breaks.png", 'it\'s "quoted".png', "no \\xff text.png"):
        assert reasons.pop(name) == "text, not an image"
    assert not reasons
    assert not any(b"secret" in (reject["payload"] or b"") for reject in rejects)
    shown = run("rejects", path.parent, cwd=tmp_path).text
    assert 'cat/it\'s "quoted".png: begins with' in shown
    listed = run("rejects", path.parent, "--list", cwd=tmp_path).text
    for name in ("name\\nwith \\x1b[31m breaks.png", "no \\xff text.png"):
        assert f"\ncat/{name}  read: text, not an image" in listed
    counted = run("rejects", path.parent, "--by", "source", cwd=tmp_path).text
    assert "  1 × cat/name\\nwith \\x1b[31m breaks.png\n" in counted


@pytest.mark.slow
def test_files_and_folders_whose_names_have_quotes_or_are_not_text(tmp_path: Path) -> None:
    """Two builds in processes of their own."""
    make_images(tmp_path / "images")
    first = os.fsencode(tmp_path / "images" / "cat" / "0.png")
    for name in (b"no \xff text.png", b'it\'s "quoted".png'):
        shutil.copy(first, os.path.join(os.path.dirname(first), name))
    shutil.copytree(tmp_path / "images" / "dog", tmp_path / "images" / 'it\'s a "wolf"')
    recipe = tmp_path / "names.py"
    recipe.write_text(
        "import snapshard as ss\n"
        'recipe = ss.Recipe(name="names", source=ss.ImageFolder("images"))\n'
    )
    done = run("build", recipe, "--out", tmp_path / "out", cwd=tmp_path)
    assert done.code == 0, done.text
    (path,) = (tmp_path / "out" / "names").glob("*/manifest.json")
    manifest = json.loads(path.read_text())
    assert sum(split["num_examples"] for split in manifest["splits"].values()) == 38
    assert manifest["features"]["label"]["names"] == ["cat", "dog", 'it\'s a "wolf"']
    assert run("verify", path.parent, cwd=tmp_path).code == 0
    # A class is part of the schema, which is text.
    os.rename(tmp_path / "images" / "dog", os.path.join(os.fsencode(tmp_path), b"images/d\xff"))
    refused = run("build", recipe, "--out", tmp_path / "out", cwd=tmp_path)
    assert refused.code == 3, refused
    assert "class folder b'd\\xff' is not valid UTF-8. Rename it." in refused.text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("quote", "reason"), [(b"", "row too long"), (b'"', "quote not closed")], ids=["bare", "quoted"]
)
def test_a_cell_of_500_mb_is_one_reject(tmp_path: Path, quote: bytes, reason: str) -> None:
    """Writes and reads 500 MB: the rows before and behind it are built, in flat memory."""
    path = tmp_path / "t.csv"
    megabyte = b"x" * 1_000_000
    with path.open("wb") as file:
        file.write(b"n,text\n1,a\n2," + quote)
        file.writelines(itertools.repeat(megabyte, 500))
        file.write(quote + b"\n" + b"".join(b"%d,b\n" % n for n in range(3, 100)))
    recipe = tmp_path / "cell.py"
    recipe.write_text(
        "import snapshard as ss\n"
        'recipe = ss.Recipe(name="cell", source=ss.Csv("t.csv"), max_rejects=1)\n'
    )
    try:
        done = run("build", recipe, "--out", tmp_path / "out", cwd=tmp_path)
    finally:
        path.unlink()
    assert done.code == 0, done.text
    assert done.peak_mib < 600
    (path,) = (tmp_path / "out" / "cell").glob("*/manifest.json")
    splits = json.loads(path.read_text())["splits"]
    assert sum(split["num_examples"] for split in splits.values()) == 98
    (reject,) = pq.read_table(path.parent / "rejects.parquet").to_pylist()
    assert reject["reason"] == reason
    assert reject["position"] == reject["payload_start"] == len("n,text\n1,a\n")
    assert reject["payload_bytes"] == 16 << 20  # As far as a row is looked at.
    assert reject["payload"] is None
    assert len(path.with_name("rejects.parquet").read_bytes()) < 100_000


@pytest.mark.slow
def test_hostile_names_come_back_through_the_readers(tmp_path: Path) -> None:
    """Builds, and reads with TensorFlow in a process of its own."""
    header = [name for name in NAMES if "\0" not in name and "\n" not in name]
    with (tmp_path / "t.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*header, "label"])
        classes = [name for name in NAMES if "\0" not in name]
        writer.writerows([*[i] * len(header), classes[i % len(classes)]] for i in range(160))
    snapshot = ss.build(
        ss.Recipe(
            name="hostile",
            source=ss.Csv(str(tmp_path / "t.csv"), label="label"),
            splits=ss.Splits(train=1.0),
        ),
        tmp_path / "out",
    )
    done = subprocess.run(
        [sys.executable, "-c", READ, snapshot.path],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    class_names, *found, num_read = json.loads(done.stdout.splitlines()[-1])
    assert num_read == 160
    assert sorted(class_names) == sorted(classes)
    for names in found:
        assert sorted(names) == sorted([*header, "label"])
    for command in ("inspect", "verify"):
        text = run(command, snapshot.path, cwd=tmp_path).text
        assert not {"\x1b", "\u202e", "\u2028"} & set(text)
    assert not list(tmp_path.rglob("executed"))


def build(folder: Path, source: Any, **settings: Any) -> ss.Snapshot:
    return ss.build(ss.Recipe(name="few", source=source, **settings), folder / "out")


@pytest.mark.slow
def test_few_records_and_many_classes(tmp_path: Path) -> None:
    """Four builds, which write shards with TensorFlow."""
    path = tmp_path / "t.csv"
    tables = {1: 1, 2: 2, 30: 1, 20_000: 10_000}
    for num_rows, num_classes in tables.items():
        path.write_text(
            "n,y\n" + "".join(f"{i},class {i % num_classes}\n" for i in range(num_rows))
        )
        types = {"y": ss.ClassLabel(tuple(f"class {i}" for i in range(num_classes)))}
        splits = ss.Splits(train=0.8, validation=0.1, test=0.1, allow_empty=True)
        snapshot = build(tmp_path, ss.Csv(str(path), label="y", types=types), splits=splits)
        manifest = snapshot.manifest
        assert sum(split.num_examples for split in manifest.splits.values()) == num_rows
        assert len(manifest.features["y"].names) == num_classes  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("content", "words"),
    [("", "has no readable line of text"), ("n,y\n", "has a header and no complete row")],
)
def test_no_records_are_refused(tmp_path: Path, content: str, words: str) -> None:
    (tmp_path / "t.csv").write_text(content)
    with pytest.raises(ss.SnapshardError, match=words):
        build(tmp_path, ss.Csv(str(tmp_path / "t.csv")))
    assert not list(tmp_path.rglob("manifest.json"))


@pytest.mark.slow
def test_a_kilobyte_that_stands_for_gigabytes(tmp_path: Path) -> None:
    """A build through the command line, which decodes 256 MiB before it stops."""
    indices = pa.array(np.zeros(5_000, np.int32))
    table = pa.table({"s": pa.DictionaryArray.from_arrays(indices, ["x" * (1 << 20)])})
    pq.write_table(table, tmp_path / "t.parquet", compression="zstd", store_schema=False)
    assert (tmp_path / "t.parquet").stat().st_size < 4_000
    done = run("build", "t.parquet", "--out", tmp_path / "out", cwd=tmp_path)
    assert done.code == 3
    assert "grows to over 250 times its size" in done.text
    assert done.peak_mib < 2_500
    assert not list(tmp_path.rglob("manifest.json"))


def misleading_tar(contents: dict[str, bytes]) -> bytes:
    """Good members, then one whose size leads back to the first."""
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, content in contents.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
        end = archive.offset
    back = bytearray(tarfile.TarInfo("back.png").tobuf(tarfile.USTAR_FORMAT))
    back[124:136] = b"\xff" + (-end - 512).to_bytes(11, "big", signed=True)
    back[148:156] = b" " * 8
    back[148:156] = b"%06o\0 " % sum(back)
    return sink.getvalue()[:end] + bytes(back) + bytes(1024)


@pytest.mark.slow
@pytest.mark.parametrize("source", ["ImageFolder", "WebDataset"])
def test_a_tar_that_leads_back_ends(tmp_path: Path, source: str) -> None:
    """Commands in processes of their own, which ran until they were killed."""
    make_images(tmp_path / "images")
    images = [path.read_bytes() for path in sorted(tmp_path.rglob("*.png"))]
    contents = {}
    for i, image in enumerate(images):
        folder = f"{('cat', 'dog')[i % 2]}/" if source == "ImageFolder" else ""
        contents[f"{folder}{i}.png"] = image
        if source == "WebDataset":
            contents[f"{i}.txt"] = b"a text"
    (tmp_path / "a.tar").write_bytes(misleading_tar(contents))
    (tmp_path / "recipe.py").write_text(
        "import snapshard as ss\n"
        f'recipe = ss.Recipe(name="back", source=ss.{source}("a.tar"), max_rejects=1)\n'
    )
    assert run("init", "a.tar", cwd=tmp_path).code == 3
    done = run("build", "recipe.py", "--out", "out", cwd=tmp_path)
    assert done.code == 3
    assert "the member 'back.png' states -" in done.text
