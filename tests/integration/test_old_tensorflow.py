"""Readers on TensorFlow 2.16 and 2.18: they give what they give on the one that wrote them."""

import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image as PillowImage

import snapshard as ss
from snapshard.schemas.features import flatten

from ..pipelines.conftest import write_snapshot
from ..pipelines.test_reader_every_type import DTYPES, EVERY, any_record, snapshot_of

VERSIONS = ("2.16", "2.18")
SCRIPT = Path(__file__).with_name("read_snapshots.py")
Cases = dict[str, dict[str, Any]]

# Installs each TensorFlow once, a process for each version reads every case: a minute.
pytestmark = pytest.mark.engine


@pytest.fixture(scope="module", params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    """Of the older TensorFlow."""
    return str(request.param)


@pytest.fixture(scope="module")
def old_python(version: str) -> Path:
    """Python with the older TensorFlow, in a folder that later runs use again."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "snapshard-tests"
    tag = f"tensorflow-{version}-python{sys.version_info[0]}.{sys.version_info[1]}"
    folder, done = cache / tag, cache / tag / "complete"
    python = folder / "bin" / "python"
    if shutil.which("uv"):
        commands = [
            ["uv", "venv", "--clear", "--python", sys.executable, str(folder)],
            ["uv", "pip", "install", "--python", str(python), f"tensorflow=={version}.*"],
        ]
    else:
        commands = [
            [sys.executable, "-m", "venv", "--clear", str(folder)],
            [str(python), "-m", "pip", "install", f"tensorflow=={version}.*"],
        ]
    if not done.exists():
        for command in commands:
            tried = subprocess.run(command, capture_output=True, text=True, check=False)
            if tried.returncode:
                said = " && ".join(" ".join(one) for one in commands)
                reason = tried.stderr.strip().splitlines()[-1:]
                pytest.skip(f"needs TensorFlow {version}: {said} ({reason})")
        done.touch()
    return python


def encoded(name: str, *, number: int = 0, mode: str = "RGB", **save: Any) -> bytes:
    """An image file: a gradient with noise, as photographs have both."""
    rng = np.random.default_rng(number)
    rows, columns = np.mgrid[0 : 37 + number % 3, 0:53]
    pixels = np.stack([rows * 6, columns * 4, rows + columns], axis=2)
    pixels = np.clip(pixels + rng.integers(-20, 20, pixels.shape), 0, 255).astype(np.uint8)
    file = io.BytesIO()
    PillowImage.fromarray(pixels).convert(mode).save(file, name, **save)
    return file.getvalue()


def table(num_rows: int) -> pa.Table:
    """Numbered rows; of every other kind of column, one value in seven is missing."""
    rng = np.random.default_rng(2)
    columns = {
        "float32": rng.normal(size=num_rows).astype(np.float32),
        "float64": rng.normal(size=num_rows),  # stored as its bytes
        "number": rng.integers(-(2**40), 2**40, num_rows),
        "text": [f"word {number}" for number in rng.integers(0, 99, num_rows)],
        "label": rng.choice(["bird", "cat", "dog"], num_rows),
    }
    mask = rng.integers(0, 7, num_rows) == 0
    arrays = {name: pa.array(column) for name, column in columns.items()}
    for name in ("float32", "float64", "number", "text"):
        arrays[name] = pa.array(columns[name], mask=mask)
    return pa.table({"id": np.arange(num_rows)} | arrays)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Snapshots of every kind of feature: some built, the odd ones made by hand."""
    root = tmp_path_factory.mktemp("old_tensorflow")
    rng = np.random.default_rng(1)
    for number in range(60):
        upright = PillowImage.Exif()
        upright[0x0112] = 6 if number % 10 == 0 else 1
        form = "PNG" if number % 6 == 5 else "JPEG"
        save = {} if form == "PNG" else {"quality": 90, "exif": upright}
        path = (
            root / "images" / ("rare" if number % 5 == 0 else "common") / f"{number}.{form.lower()}"
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encoded(form, number=number, **save))
    source = ss.ImageFolder(str(root / "images"))
    recipes = {
        "files": ss.Recipe(name="files", source=source, shards=ss.Shards(num_shards=3)),
        "pixels": ss.Recipe(
            name="pixels",
            source=source,
            prepare=[ss.images.decode("image"), ss.images.resize("image", (8, 8))],
            shards=ss.Shards(num_shards=4, compression="gzip"),
        ),
        # A small split, which is shuffled completely, and one whose streams have several pieces.
        "rows": ss.Recipe(name="rows", source=ss.Table(table(700), label="label")),
        "many": ss.Recipe(
            name="many",
            source=ss.Table(table(70_000).select(["id", "float64", "number"])),
            splits=ss.Splits(train=1.0),
        ),
    }
    found = {name: str(ss.build(recipe, root / "out").path) for name, recipe in recipes.items()}

    inner = ss.Struct({"n": ss.Scalar("int8")})
    # Each dtype in one or two of the forms: to trace them all takes half a minute.
    tensors = [name for name in EVERY if name.partition(" ")[0] in DTYPES]
    declared = {
        name: EVERY[name] for name in EVERY if name not in tensors or tensors.index(name) % 7 == 0
    } | {"s": ss.Struct({"text": ss.Text(), "in": inner})}
    features = flatten(declared)[0]
    records = [any_record(features, rng) for _ in range(17)]
    shards = [records[:9], records[9:]]
    snapshot_of(root / "every", declared, shards, write_snapshot=write_snapshot, label="class")

    features = {
        "grey": ss.Image(storage="encoded", channels=1),
        "alpha": ss.Image(storage="encoded", channels=4),
        "any": ss.Image(storage="encoded"),
        "scan": ss.Image(),
        "id": ss.Scalar("int64"),
    }
    made = []
    for number, form in enumerate(("JPEG", "PNG", "GIF", "BMP") * 2):
        scan = rng.integers(0, 256, (5 + number, 7, 3), np.uint8)
        made.append(
            {
                "grey": encoded("JPEG" if form == "JPEG" else "PNG", number=number, mode="L"),
                "alpha": encoded("PNG", number=number, mode=("RGBA", "P")[number % 2]),
                "any": encoded(form, number=number),
                "scan": scan,
                "scan/height": scan.shape[0],
                "scan/width": scan.shape[1],
                "id": number,
            }
            | {f"{name}/orientation": 1 for name in ("grey", "alpha", "any")}
        )
    formats = {
        "grey": frozenset({"jpeg", "png"}),
        "alpha": frozenset({"png"}),
        "any": frozenset({"jpeg", "png", "gif", "bmp"}),
    }
    shards = [made[:5], made[5:]]
    write_snapshot(root / "odd", features, {"train": shards}, label=None, image_formats=formats)
    return found | {name: str(root / name) for name in ("every", "odd")}


ORDERS: dict[str, dict[str, Any]] = {
    "stored": {"shuffle": False},
    "seeded": {"seed": 3, "epochs": 2},
    "seeded buffer": {"seed": 3, "shuffle": 7, "deterministic": True},
    "part 0": {"seed": 3, "shard": [0, 2]},
    "part 1": {"seed": 3, "shard": [1, 2], "equal_steps": True, "drop_remainder": True},
    "later": {"seed": 3, "start_step": 3, "epochs": 2},
    "later in parts": {"seed": 3, "start_step": [[2, 8, 2]], "shard": [0, 3]},
    "cached": {"seed": 3, "epochs": 2, "cache": "memory"},
    "copied": {"seed": 3, "local_copy": "copied"},
    "augmented": {"seed": 3, "augment": True},
    "balanced": {"seed": 3, "balance": "uniform"},
}
FORMS: dict[str, dict[str, Any]] = {
    "supervised": {"as_supervised": True},
    "columns": {"columns": ["image"]},
    "smaller": {"image_size": [5, 6]},
    "larger": {"image_size": [50, 60]},
    "scaled": {"scale": 1 / 255},
    "halves": {"scale": 1 / 255, "dtype": "float16"},
}


KINDS = ("pixels", "files", "odd", "every", "rows", "many")
SERVING = "pixels, serving"
UNSEEDED: dict[str, dict[str, Any]] = {
    "pixels, unseeded": {},
    "pixels, served": {"service": True},
    "files, unseeded": {"image_size": [37, 53]},
    "rows, unseeded": {"epochs": 1},
    "rows, unseeded, cached": {"cache": "memory"},
    "rows, unseeded, decoded": {"cache": "decoded"},
    "rows, unseeded, buffer": {"shuffle": 50},
    "many, unseeded": {},
    "many, unseeded, in any order": {"deterministic": False},
}


def cases_of(folders: dict[str, str]) -> Cases:
    """What both read: names begin with the kind of snapshot."""
    cases: Cases = {}

    def add(kind: str, name: str, **case: Any) -> None:
        cases[f"{kind}, {name}"] = {"folder": folders[kind], "options": {}} | case

    for name, options in ORDERS.items():
        add("pixels", name, options=options)
        if name != "augmented":
            add("rows", name, options=options, batch=32)
    for name in ("seeded", "part 0", "part 1", "later", "cached"):
        add("many", name, options=ORDERS[name], batch=1000)
    for name in ("supervised", "larger", "halves"):
        add("pixels", name, options={"shuffle": False} | FORMS[name], take=2)
    for name in ("columns", "smaller", "larger", "scaled"):
        options = {"shuffle": False, "image_size": [38, 53]} | FORMS[name]
        add("files", name, options=options, take=2)
    add("files", "stored", options={"shuffle": False, "image_size": [37, 53]})
    add("files", "balanced", options={"seed": 3, "image_size": [38, 53], "balance": "uniform"})
    add("odd", "stored", options={"shuffle": False, "image_size": [37, 53]})
    add("every", "stored", options={"shuffle": False})
    some = ["texts", "vectors", "mono", "boxes", "given", "s.in.n", "class"]
    add("every", "padded", options={"shuffle": False, "pad": True, "columns": some})
    windows = {"seed": 3, "windows": [2, 1], "columns": ["mono"]}
    add("every", "windows", options=windows)
    add("every", "packed", options={"seed": 3, "pack": 24, "columns": ["mono"]})
    alike = {"seed": 3, "bucket": "texts", "columns": some}
    add("every", "alike", options=alike)
    add("every", "alike, later", options={"start_step": 1, "epochs": 2} | alike)
    add("rows", "masks", options={"shuffle": False, "masks": True, "as_supervised": True})
    return cases


Came = dict[str, dict[str, np.ndarray[Any, Any]]]


@pytest.fixture(scope="module")
def cases(folders: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of all cases, for every TensorFlow."""
    folder = tmp_path_factory.mktemp("cases")
    image = folder / "raw.jpg"
    image.write_bytes(encoded("JPEG", number=1000))
    cases = cases_of(folders) | {
        name: {"folder": folders[name.partition(",")[0]], "options": options, "batch": 50}
        for name, options in UNSEEDED.items()
    }
    cases[SERVING] = {"folder": folders["pixels"], "options": {}, "file": str(image)}
    path = folder / "cases.json"
    path.write_text(json.dumps(cases))
    return path


def read(python: str | Path, begins: str, *, cases: Path, work: Path) -> Came:
    """By case, what comes with the TensorFlow whose version begins so."""
    # Each works in a folder of its own, where it keeps caches and copies.
    done = subprocess.run(
        [python, SCRIPT, cases, work / "came.npz"],
        cwd=work,
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr
    print(done.stdout)
    found: Came = {}
    for key, value in np.load(work / "came.npz").items():
        case, _, part = key.partition("|")
        found.setdefault(case, {})[part] = value
    assert str(found.pop("tensorflow")[""]).startswith(begins)
    return found


@pytest.fixture(scope="module")
def newest(cases: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Future[Came]]:
    """What comes with this TensorFlow: read once, while the first of the older ones reads."""
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(
            read, sys.executable, "2.", cases=cases, work=tmp_path_factory.mktemp("2")
        )


@pytest.fixture(scope="module")
def came(
    newest: Future[Came],
    cases: Path,
    old_python: Path,
    version: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Came, Came]:
    """By case, what came with this TensorFlow and what came with the older one."""
    work = tmp_path_factory.mktemp(version)
    old = read(old_python, f"{version}.", cases=cases, work=work)
    return newest.result(), old


@pytest.mark.parametrize("name", cases_of(dict.fromkeys(KINDS, "")))
def test_the_same_to_the_bit(came: tuple[Came, Came], name: str) -> None:
    """Values, dtypes, shapes; orders by a seed; decoded and resized images, too."""
    new, old = (found[name] for found in came)
    for found in (new, old):
        assert "error" not in found, found["error"]
    assert new.keys() == old.keys()
    assert new.get("code", 0) == 0
    assert new.get("num", 1) > 0
    for part, value in new.items():
        assert value.dtype == old[part].dtype, part
        np.testing.assert_array_equal(value, old[part], err_msg=part)


@pytest.mark.parametrize("name", UNSEEDED)
def test_every_record_once_in_no_fixed_order(came: tuple[Came, Came], name: str) -> None:
    kind = name.partition(",")[0]
    # Stored order comes from the newer TensorFlow; "many" are too many to be read by another case.
    stored = came[0][f"{kind}, stored"] if kind != "many" else {"0.id/int64": np.arange(70_000)}
    for found in came:
        assert "error" not in found[name], found[name]["error"]
        assert sorted(records_of(found[name])) == sorted(records_of(stored))
        assert records_of(found[name]) != records_of(stored)


def records_of(found: dict[str, np.ndarray[Any, Any]]) -> list[bytes]:
    """What tells the records of an epoch apart, in their order: their images, or their ids."""
    return [
        record.tobytes()
        for part, batch in found.items()
        if ".image/" in part or ".id/" in part
        for record in batch
    ]


def test_the_model_of_the_preparation_needs_the_newer_one(
    came: tuple[Came, Came], version: str
) -> None:
    """It holds the operations of the TensorFlow that built it: of images, one for WebP."""
    new, old = (found[SERVING] for found in came)
    assert new["0.image/uint8"].shape == (1, 8, 8, 3)
    told = str(old["error"])
    assert f"TensorFlow {version}" in told
    assert "cannot load the model: Op type not registered 'DecodeWebP'" in told
