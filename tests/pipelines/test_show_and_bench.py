"""``show`` and ``bench`` of a snapshot, and what ``python SNAPSHOT/reader`` prints."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
import tensorflow as tf

import snapshard as ss
from snapshard import cli, startup_noise
from snapshard.pipelines.inspect import bench
from snapshard.pipelines.snapshot import Snapshot
from snapshard.schemas.errors import RecipeError
from snapshard.schemas.features import ClassLabel, Features, Image, Scalar, Text

from .made_snapshots import put_ids

NUMBERS: Features = {"label": ClassLabel(names=("even", "odd")), "id": Scalar(dtype="int64")}
IMAGES: Features = {"image": Image(storage="encoded"), "label": ClassLabel(names=("a", "b"))}
LENGTHS = (70, 65, 72)
Run = Callable[..., tuple[int, Any, str]]


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory, write_snapshot: Any) -> Path:
    folder: Path = tmp_path_factory.mktemp("numbers")
    shards = [[{"id": i, "label": i % 2} for i in range(length)] for length in LENGTHS]
    write_snapshot(folder, NUMBERS, {"train": shards, "test": shards[:1], "none": []})
    put_ids(folder)
    return folder


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory, write_snapshot: Any) -> Path:
    """Six JPEGs of one colour each, of unequal sizes, in two GZIP shards."""
    folder: Path = tmp_path_factory.mktemp("images")
    records = []
    for index in range(6):
        pixels = np.full((20 + index, 30, 3), 40 * index, np.uint8)
        content = tf.io.encode_jpeg(pixels).numpy()
        sides = {"image/height": 20 + index, "image/width": 30, "image/orientation": 1}
        records.append({"image": content, "label": index % 2, **sides})
    splits = {"train": [records[:3], records[3:]]}
    write_snapshot(folder, IMAGES, splits, compression="gzip")
    put_ids(folder)
    return folder


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command in this process: its code, its output (parsed, with --json), its errors."""
    monkeypatch.setattr(startup_noise, "tame_libraries", lambda: None)

    def call(*arguments: str) -> tuple[int, Any, str]:
        with pytest.raises(SystemExit) as ended:
            cli.main([*arguments])
        code = ended.value.code
        assert isinstance(code, int)
        printed, errors = capsys.readouterr()
        return code, json.loads(printed) if "--json" in arguments and not code else printed, errors

    return call


@pytest.mark.parametrize(
    ("sizes", "read"),
    [
        ({"test": 3, "train": 2}, "train"),
        ({"a": 1, "b": 3, "train": 0}, "b"),
        ({"validation": 1, "test": 2}, "test"),
    ],
)
def test_what_is_read_by_default(
    run: Run, tmp_path: Path, write_snapshot: Any, sizes: dict[str, int], read: str
) -> None:
    ids = dict(zip(sizes, (100, 200, 300), strict=False))
    splits = {
        name: [[{"id": ids[name], "label": 0}] * num] if num else [] for name, num in sizes.items()
    }
    write_snapshot(tmp_path, NUMBERS, splits)
    put_ids(tmp_path)
    _, shown, _ = run("show", str(tmp_path), "--records", "1", "--json")
    assert shown["records"][0]["id"] == ids[read]
    assert bench.bench(Snapshot.open(tmp_path), seconds=0.01, batch_size=1).split == read


class TestShow:
    def test_records(self, run: Run, numbers: Path) -> None:
        code, printed, _ = run("show", str(numbers), "--records", "2", "--split", "test")
        assert code == 0
        assert printed.splitlines() == [
            *("record test-0", "  id: 0", "  label: 0 = even"),
            *("record test-1", "  id: 1", "  label: 1 = odd"),
        ]
        _, found, _ = run("show", str(numbers), "--json")
        assert [record["id"] for record in found["records"]] == [0, 1, 2]
        _, printed, _ = run("show", str(numbers), "--split", "train[-1:]")
        assert "id: 71" in printed

    def test_values_as_json_has_them(self, run: Run, tmp_path: Path, write_snapshot: Any) -> None:
        features: Features = {
            "city": Scalar(dtype="string"),
            "height": Scalar(dtype="float32"),
            "width": Scalar(dtype="float32"),
            "kind": ClassLabel(("no", "yes"), optional=True),
            "when": ss.Timestamp(unit="s"),
            "sizes": ss.Tensor(dtype="float64", shape=(2,)),
            "tags": ss.Sequence(ClassLabel(("a", "b"))),
        }
        values = {
            "city": b"Z\xfcrich",
            "height": np.float32("nan"),
            "width": 0.1,
            "kind": 1,
            "when": 0,
            "sizes": np.array([1.5, np.inf]),
            "tags": [1, 0],
        }
        write_snapshot(
            tmp_path, features, {"train": [[values, {**values, "kind": None}]]}, label=None
        )
        put_ids(tmp_path)
        _, found, _ = run("show", str(tmp_path), "--json")
        first, second = found["records"]
        expected = {"city": "Z\\xfcrich", "height": None, "when": "1970-01-01T00:00:00Z"}
        expected |= {"sizes": [1.5, None], "tags": ["b", "a"], "width": 0.1}
        assert first == {"record_id": "train-0", "kind": "yes", **expected}
        assert second == {"record_id": "train-1", "kind": None, **expected}
        _, printed, _ = run("show", str(tmp_path), "--records", "1")
        shown = (
            "  sizes: [1.5, inf]\n  tags: ['b', 'a']\n  when: 1970-01-01T00:00:00Z\n  width: 0.1"
        )
        assert shown in printed

    def test_a_feature_named_as_the_ids_are(
        self, run: Run, tmp_path: Path, write_snapshot: Any
    ) -> None:
        """As an exported snapshot has one, whose ids would be lost."""
        features: Features = {"record_id": Scalar(dtype="int64"), "label": NUMBERS["label"]}
        write_snapshot(tmp_path, features, {"train": [[{"record_id": 8, "label": 0}]]})
        put_ids(tmp_path)
        _, found, _ = run("show", str(tmp_path), "--json")
        (record,) = found["records"]
        assert (record["record_id_"], record["record_id"]) == ("train-0", 8)

    def test_records_by_id_and_class(self, run: Run, tmp_path: Path) -> None:
        for name in ("cat", "dog"):
            for k in range(8):
                path = tmp_path / "pets" / name / f"{k}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                PIL.Image.new("RGB", (8, 6), (k, 0, 0)).save(path)
        snapshot = ss.build(
            ss.Recipe(
                name="pets",
                source=ss.ImageFolder(str(tmp_path / "pets")),
                splits=ss.Splits(train=1.0),
            ),
            tmp_path / "out",
        )
        _, found, _ = run("show", snapshot.path, "--class", "dog", "--records", "20", "--json")
        ids = sorted(record["record_id"] for record in found["records"])
        assert ids == [f"dog/{k}.png" for k in range(8)]
        _, found, _ = run("show", snapshot.path, "--id", "cat/3.png", "--id", "dog/1.png", "--json")
        images = {record["record_id"]: record["image"] for record in found["records"]}
        assert images.keys() == {"cat/3.png", "dog/1.png"}
        assert images["cat/3.png"].endswith("uint8[6, 8, 3], mean 1")
        for arguments, message in (
            (["--class", "cow"], "There is no class 'cow', only 'cat', 'dog'."),
            (["--id", "cat/9.png"], "Split 'train' has no record 'cat/9.png'."),
        ):
            code, _, errors = run("show", snapshot.path, *arguments)
            assert (code, message in errors) == (2, True)

    def test_sheet(self, run: Run, images: Path, tmp_path: Path) -> None:
        path = tmp_path / "sheet.png"
        code, printed, _ = run("show", str(images), "--sheet", str(path), "--records", "0")
        assert (code, printed) == (0, f"6 images of 'image': {path}\n")
        pixels = tf.io.decode_png(path.read_bytes()).numpy()
        assert pixels.shape == (2 * 98, 3 * 98, 3)
        for index in range(6):
            row, column = divmod(index, 3)
            tile = pixels[row * 98 : row * 98 + 96, column * 98 : column * 98 + 96]
            assert np.abs(tile.astype(int) - 40 * index).max() <= 2

    def test_a_page(self, run: Run, images: Path, tmp_path: Path) -> None:
        path = tmp_path / "page.html"
        code, printed, _ = run("show", str(images), "--page", str(path), "--records", "4")
        assert (code, printed) == (0, f"4 records: {path}\n")
        page = path.read_text()
        assert page.startswith('<!DOCTYPE html>\n<html lang="en">')
        assert page.count('<img alt="') == page.count("data:image/jpeg;base64,") == 4
        assert "train-0" in page
        assert "<script" not in page

    def test_names_and_values_control_no_terminal(
        self, run: Run, tmp_path: Path, write_snapshot: Any
    ) -> None:
        names = ("a\nforged line", "b\u200b\U000e0041")
        features: Features = {"label": ClassLabel(names=names), "te\u00adxt\n": Text()}
        records = [{"label": i % 2, "te\u00adxt\n": "v\u2060\n".encode()} for i in range(4)]
        write_snapshot(tmp_path, features, {"train": [records]})
        put_ids(tmp_path)
        _, printed, _ = run("show", str(tmp_path))
        assert "0 = a\\nforged line" in printed
        assert "1 = b\\u200b\\U000e0041" in printed
        assert "te\\xadxt\\n: 'v\\u2060\\n'" in printed
        assert not {"\u200b", "\u2060", "\u00ad"} & set(printed)

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["--split", "nix"], "has no split 'nix', only train, test, none"),
            (["--split", "none"], "Split 'none' has no records: pass another one as --split."),
            (["--sheet", "x.png"], "has no images: leave out --sheet"),
            (["--page", "/"], "--page / cannot be written: "),
        ],
    )
    def test_refusals(self, run: Run, numbers: Path, arguments: list[str], message: str) -> None:
        code, _, errors = run("show", str(numbers), *arguments)
        assert code == 2
        assert message in errors


class TestBench:
    def test_rates(self, run: Run, numbers: Path) -> None:
        code, found, _ = run(
            *("bench", str(numbers), "--seconds", "0.05", "--batch-size", "16"),
            *("--option", "seed=1", "--option", "shuffle=False"),
            *("--mb-per-s", "0.002,1e9", "--json"),
        )
        assert code == 0
        assert (found["split"], found["batch_size"], found["num_examples"]) == ("train", 16, 207)
        rates = {row["what"]: row for row in found["rates"]}
        assert ("reader, cold" in rates) == (found["not_cold"] is None)
        size = sum(path.stat().st_size for path in numbers.glob("train-*.tfrecord"))
        assert found["bytes_each"] == pytest.approx(size / 207)
        assert found["plain_each"] == pytest.approx(size / 207), "the shards are not compressed"
        assert found["gzip_each"] < found["plain_each"]
        warm = rates["reader, warm"]
        assert warm["mb_per_s"] * 1e6 / warm["examples_per_s"] == pytest.approx(size / 207)
        slow, fast = found["estimates"].values()
        assert slow["none"] == pytest.approx(0.002e6 / found["plain_each"])
        assert slow["gzip"] == pytest.approx(0.002e6 / found["gzip_each"])
        assert {*fast.values()} == {slow["copy"]} == {warm["examples_per_s"]}

    def test_text(self, images: Path) -> None:
        opened = Snapshot.open(images)
        found = bench.bench(
            opened, seconds=0.02, options={"image_size": (8, 8)}, mb_per_s=[10], batch_size=2
        )
        text = "\n".join(found.lines())
        assert "train: 6 examples of " in text
        assert "in 2 shards (gzip); batches of 2" in text
        assert "a store of 10 MB/s would give " in text

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (
                ["--split", "nix"],
                "Invalid split 'nix': expected one with examples, such as test, train.",
            ),
            (["--split", "none"], "Invalid split 'none'"),
            (["--option", "nix=1"], "cannot be read with these options: "),
            (["--option", "shuffle=-3"], "shuffle=-3"),
            (["--option", "seed"], "expected NAME=VALUE"),
            (["--option", "epochs=1"], "epochs= cannot be set here"),
            (["--mb-per-s", "10,x"], "expected numbers above 0"),
            (["--mb-per-s", "inf"], "expected numbers above 0"),
        ],
    )
    def test_refusals(self, run: Run, numbers: Path, arguments: list[str], message: str) -> None:
        code, _, errors = run("bench", str(numbers), *arguments)
        assert code == 2
        assert message in " ".join(errors.split())

    @pytest.mark.parametrize("damage", ["flip", "cut", "remove"])
    def test_damaged_shards(self, run: Run, numbers: Path, tmp_path: Path, damage: str) -> None:
        shutil.copytree(numbers, tmp_path / "copy")
        shard = sorted((tmp_path / "copy").glob("train*"))[0]
        content = shard.read_bytes()
        shard.unlink()
        if damage != "remove":
            middle = len(content) // 2
            changed = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
            shard.write_bytes(changed if damage == "flip" else content[:-5])
        code, _, errors = run("bench", str(tmp_path / "copy"))
        assert code == 4
        assert "snapshard verify" in errors
        assert "Traceback" not in errors

    def test_images_of_unequal_sizes_need_one(self, images: Path) -> None:
        with pytest.raises(RecipeError, match="image_size="):
            bench.bench(Snapshot.open(images))

    @pytest.mark.usefixtures("real_fsync")
    def test_drops_the_page_cache(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Looking at a page may load its neighbours, so each dropping is looked at once."""
        path = tmp_path / "file"
        with path.open("wb") as file:
            file.write(os.urandom(1 << 20))
            file.flush()
            os.fsync(file.fileno())  # a dirty page would stay
        if bench._drop_cache([str(path)]) is not None:
            pytest.skip("this file system cannot drop pages")
        path.read_bytes()
        monkeypatch.setattr(os, "posix_fadvise", lambda *_: None)
        if bench._cached_share([str(path)]) == 0:
            pytest.skip("this system does not tell which pages are cached")
        assert bench._drop_cache([str(path)]) == "100% of the pages stayed in the page cache"
        assert bench._drop_cache(["gs://bucket/file"]) == "the shards are in a store"


class TestFolder:
    """``python SNAPSHOT/reader``."""

    @pytest.mark.parametrize("copied", [False, True])
    def test_prints_facts_and_loads_nothing(
        self, numbers: Path, tmp_path: Path, copied: bool
    ) -> None:
        package = numbers / "reader"
        shutil.rmtree(package / "__pycache__", ignore_errors=True)  # of this process
        if copied:  # the folder's name need not be one of a module
            package = Path(shutil.copytree(package, tmp_path / "my-reader 2.0"))
        done = subprocess.run(
            [sys.executable, "-X", "importtime", package],
            capture_output=True,
            text=True,
            check=True,
        )
        assert not re.search(r"\| +(tensorflow|numpy|snapshard)", done.stderr)
        assert "'train': 207 examples" in done.stdout
        assert "'label': class_label int64 (the label)" in done.stdout
        assert "train = reader.dataset('train', 128, as_supervised=True)" in done.stdout
        written = {path.name.partition(".")[0] for path in package.rglob("*.pyc")}
        assert written <= {"__main__"}, "Python writes that one before it runs a line of it"

    def test_its_lines_run(self, numbers: Path) -> None:
        command = [sys.executable, "-B", numbers / "reader"]
        printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        lines = printed[printed.index("import sys") :].splitlines()
        code = "\n".join(line for line in lines if not line.startswith(("help(", "print(")))
        names: dict[str, Any] = {}
        before = [*sys.path]
        try:
            exec(code, names)
            assert next(iter(names["train"]))[1].shape == (128,)
        finally:
            sys.path[:] = before
            sys.modules.pop("reader", None)
