"""1,000 files of which 40 are no readable image: rejects with a reason, or a refused build."""

import dataclasses
import functools
import io
import json
import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image as PillowImage
from PIL import ImageOps

import snapshard as ss

pytestmark = pytest.mark.slow  # two builds of a thousand images

RECIPE = """
import snapshard as ss

recipe = ss.Recipe(
    name="odd",
    source=ss.ImageFolder("images"),
    prepare=[ss.images.decode("image"), ss.images.resize("image", (24, 24))],
    max_rejects={max_rejects},
)
"""

# What 40 files are, and the reasons that they are rejected for.
REASONS = {
    "empty": ("empty file", 6),
    "text": ("text, not an image", 6),
    "truncated": ("truncated image", 6),
    "zeros": ("zero-filled file", 6),
    "folder": ("empty folder, expected a file", 5),
    "dangling": ("dangling symbolic link", 4),
    "loop": ("symbolic link loop", 4),
    "locked": ("no permission to read", 3),
}

# Takes from root what lets it read everything; the user stays the same.
WITHOUT_PRIVILEGE = ("setpriv", "--bounding-set", "-dac_override,-dac_read_search")


@dataclasses.dataclass(frozen=True)
class Built:
    """The two builds: refused, then allowed."""

    images: Path
    refused: Any
    left_by_refused: tuple[str, ...]
    allowed: Any

    @functools.cached_property
    def snapshot(self) -> ss.Snapshot:
        return ss.Snapshot.open(str(self.images.parent / "out" / "odd"))


def smooth(seed: int) -> Any:
    """A picture without symmetry: uint8[24, 24, 3]."""
    coarse = np.random.default_rng(seed).integers(0, 256, (5, 7, 3), np.uint8)
    picture = PillowImage.fromarray(coarse).resize((24, 24), PillowImage.Resampling.BICUBIC)
    return np.asarray(picture)


def encoded(pixels: Any, form: str, mode: str | None = None, **options: Any) -> bytes:
    picture = PillowImage.fromarray(pixels)
    sink = io.BytesIO()
    (picture.convert(mode) if mode else picture).save(sink, form, **options)
    return sink.getvalue()


def working() -> dict[str, bytes]:
    """Unusual files that are images all the same."""
    exif = PillowImage.Exif()
    exif[0x0112] = 6
    wide = np.arange(24 * 24, dtype=np.uint16).reshape(24, 24) * 113
    best = {"quality": 95, "subsampling": 0}
    return {
        "png named.jpg": encoded(smooth(1), "PNG"),
        "jpeg named.png": encoded(smooth(2), "JPEG", **best),
        "no suffix": encoded(smooth(3), "JPEG", **best),
        "cmyk.jpg": encoded(smooth(4), "JPEG", "CMYK", **best),
        "16 bits.png": encoded(wide, "PNG"),
        "grey.jpg": encoded(smooth(5), "JPEG", "L", **best),
        "rotated.jpg": encoded(smooth(6), "JPEG", exif=exif, **best),
        "palette.png": encoded(smooth(7), "PNG", "P"),
        "transparent.png": encoded(smooth(8), "PNG", "RGBA"),
        "progressive.jpg": encoded(smooth(9), "JPEG", progressive=True, **best),
        "still.gif": encoded(smooth(10), "GIF"),
        "plain.bmp": encoded(smooth(11), "BMP"),
        "ünïcödé ☃.jpg": encoded(smooth(12), "JPEG", **best),
    }


def make_odd(folder: Path, kind: str, index: int) -> None:
    path = folder / f"{kind} {index}.jpg"
    whole = encoded(smooth(index), "JPEG", quality=90)
    match kind:
        case "empty":
            path.touch()
        case "text":
            path.write_text("This is not an image, whatever it is called.\n")
        case "truncated":
            path.write_bytes(whole[: len(whole) // 2])
        case "zeros":
            path.write_bytes(bytes(len(whole)))
        case "folder":
            path.mkdir()
        case "dangling":
            path.symlink_to("not there.jpg")
        case "loop":
            path.symlink_to(path.name)
        case "locked":
            path.write_bytes(whole)
            path.chmod(0)


def make_all(images: Path) -> None:
    for label in ("left", "right"):
        (images / label).mkdir(parents=True)
    for name, content in working().items():
        (images / "left" / name).write_bytes(content)
    for kind, (_, number) in REASONS.items():
        for index in range(number):
            make_odd(images / ("left", "right")[index % 2], kind, index)
    for index in range(1000 - 40 - len(working())):
        content = encoded(smooth(100 + index), "JPEG", quality=90)
        (images / ("left", "right")[index % 2] / f"{index}.jpg").write_bytes(content)
    for skipped in ("Thumbs.db", ".DS_Store", "left/.hidden.jpg"):
        (images / skipped).write_bytes(b"skipped")


def without_privilege() -> tuple[str, ...]:
    """How a command is begun so that it cannot read what nobody may."""
    if os.geteuid() != 0:
        return ()
    if shutil.which("setpriv") is None:
        pytest.skip("root reads every file: run the tests as another user, or install setpriv")
    tried = subprocess.run([*WITHOUT_PRIVILEGE, "true"], check=False, capture_output=True)
    if tried.returncode:
        pytest.skip(f"root reads every file, and cannot give that up here: {tried.stderr!r}")
    return WITHOUT_PRIVILEGE


@pytest.fixture(scope="session")
def built(lab: Any, shared: Callable[[str], Path]) -> Built:
    """Two builds by the command line into one root; the second goes on from the first's run."""
    prefix = without_privilege()
    folder = shared("odd images")
    make_all(folder / "images")
    recipe, out = folder / "recipe.py", folder / "out"
    arguments = ("build", recipe, "--out", out, "--json")
    recipe.write_text(RECIPE.format(max_rejects=None))
    refused = lab.run_cli(*arguments, prefix=prefix)
    left = tuple(path.name for path in out.rglob("*"))
    recipe.write_text(RECIPE.format(max_rejects=40))
    return Built(folder / "images", refused, left, lab.run_cli(*arguments, prefix=prefix))


def test_over_budget_is_refused(built: Built) -> None:
    assert built.refused.returncode == 3
    assert json.loads(built.refused.stdout)["error"]["class"] == "RejectsError"
    assert "Traceback" not in built.refused.stderr
    assert "40 of 1,000 records were rejected (allowed: 10)" in built.refused.stderr
    for reason, number in REASONS.values():
        assert f"{number} × " in built.refused.stderr
        assert reason in built.refused.stderr
    assert "manifest.json" not in built.left_by_refused
    assert "latest.json" not in built.left_by_refused
    assert not any(".tfrecord" in name for name in built.left_by_refused)


def test_within_budget_is_published(lab: Any, built: Built) -> None:
    facts = lab.last_json(built.allowed)
    assert facts["num_rejects"] == 40
    assert sum(split["num_examples"] for split in facts["splits"].values()) == 960
    assert built.snapshot.manifest.num_rejects == 40
    facts = lab.build_facts(built.snapshot)
    assert facts["blocks"]["prepared"] == 0
    assert facts["input"]["skipped"] == {".DS_Store": 1, "Thumbs.db": 1, "hidden file": 1}


def test_each_reject_has_its_reason(lab: Any, built: Built) -> None:
    rejects = lab.rejects(built.snapshot)
    assert len(rejects) == 40
    found = Counter()
    for row in rejects:
        kind = Path(row["id"]).name.split(" ")[0]
        assert row["reason"] == REASONS[kind][0], row
        assert row["source"] == row["id"]
        assert row["position"] is None
        assert row["message"]
        assert str(built.images) not in row["message"]
        if kind in ("text", "truncated", "zeros", "empty"):
            assert row["payload"] == (built.images / row["id"]).read_bytes()
        found[kind] += 1
    assert found == {kind: number for kind, (_, number) in REASONS.items()}


def test_every_other_file_is_an_example(lab: Any, built: Built) -> None:
    held = lab.read_back(built.snapshot)
    rejected = {row["id"] for row in lab.rejects(built.snapshot)}
    files = {
        str(path.relative_to(built.images))
        for path in built.images.rglob("*")
        if path.parent != built.images and path.name != ".hidden.jpg"
    }
    assert sorted(held.ids) == sorted(files - rejected)
    assert len(files) == 1000
    values = {record_id: values for record_id, _, values in held.rows()}
    for name in working():
        with PillowImage.open(built.images / "left" / name) as image:
            if image.mode.startswith("I"):
                grey = (np.asarray(image).astype(int) / 257).astype(int)
                wanted = np.stack([grey] * 3, axis=2)
            else:
                wanted = np.asarray(ImageOps.exif_transpose(image).convert("RGB")).astype(int)
        difference = np.abs(values[f"left/{name}"]["image"].astype(int) - wanted).max()
        assert difference <= 2, name
