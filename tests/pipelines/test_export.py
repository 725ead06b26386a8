"""Exported records are those of the snapshot, in Parquet and in WebDataset, or nothing is there."""

import io
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import soundfile
import tensorflow as tf
from PIL import Image as PillowImage

import snapshard as ss
from snapshard.cli import main
from snapshard.pipelines.operate import export as module
from snapshard.pipelines.operate.export import export
from snapshard.schemas.errors import DamagedSnapshotError, DataError, PlaceError, RecipeError
from snapshard.schemas.features import Feature, tensor_form
from snapshard.schemas.progress import Silent
from snapshard.transforms.prepare.engine.rows import encode_example

from .stored_snapshots import put_records
from .test_reader_every_type import EVERY, any_record

PEERS = os.environ.get("SNAPSHARD_PEERS", sys.executable)
IN_STRUCTS = {"at.all": ss.Scalar("int32"), "at.in.it": ss.Text()}
FEATURES = {name: feature for name, feature in EVERY.items() if name != "at"} | IN_STRUCTS
STRUCTS = ("at", "at.in")
NUM = 40


def run(snapshot: ss.Snapshot, to: str, output: Path, split: str | None = None) -> Any:
    return export(snapshot, to, str(output), split=split, progress=Silent())


@pytest.fixture(scope="module")
def records() -> dict[str, Any]:
    """By id: random values of every type, many of them missing."""
    return {f"in/{n}.csv#{n}": any_record(FEATURES, np.random.default_rng(n)) for n in range(NUM)}


@pytest.fixture(scope="module", params=["none", "gzip"])
def snapshot(
    records: dict[str, Any],
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> ss.Snapshot:
    stored = {
        name: ("train" if n % 4 else "test", encode_example(record, FEATURES))
        for n, (name, record) in enumerate(records.items())
    }
    folder = tmp_path_factory.mktemp("every type")
    features = {"features": dict(FEATURES), "structs": list(STRUCTS)}
    return put_records(folder, stored, compression=request.param, **features)


def sound(content: bytes, feature: ss.Audio) -> Any:
    kind: Any = "int16" if feature.dtype == "int16" else "float32"
    samples, _ = soundfile.read(io.BytesIO(content), dtype=kind)
    return samples.tolist()


def expected(feature: Feature, value: Any) -> Any:
    """What a column has for a value, as plain Python."""
    item = feature.of if isinstance(feature, ss.Sequence) else feature
    if value is None:
        return None
    value = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(item, ss.ClassLabel):
        return [item.names[n] for n in value] if isinstance(value, list) else item.names[value]
    return decoded(value)


def decoded(value: Any) -> Any:
    if isinstance(value, list):
        return [decoded(each) for each in value]
    return value.decode() if isinstance(value, bytes) else value


def test_each_value_of_each_type_is_in_parquet(
    snapshot: ss.Snapshot, records: dict[str, Any], tmp_path: Path
) -> None:
    exported = run(snapshot, "parquet", tmp_path / "out")
    files = sorted((tmp_path / "out" / "data").iterdir())
    assert [file.name for file in files] == [
        f"{split}-0000{n}-of-00002.parquet" for split in ("test", "train") for n in range(2)
    ]
    assert (exported.num_files, exported.num_examples) == (4, NUM)
    table = pa.concat_tables(map(pq.read_table, files))
    assert table.column_names[0] == "record_id"
    given = [records[name] for name in table["record_id"].to_pylist()]
    assert len(given) == NUM
    for name, feature in FEATURES.items():
        first, *rest = name.split(".") if name.startswith("at.") else (name,)
        column = table[first].combine_chunks()
        for part in rest:
            column = column.field(part)
        wanted = [record[name] for record in given]
        if isinstance(feature, ss.Audio):
            found = [sound(cell["bytes"], feature) for cell in column.to_pylist()]
        elif isinstance(feature, ss.Image):
            kind = tf.as_dtype(feature.dtype)
            files_of = [cell["bytes"] for cell in column.to_pylist()]
            found = [tf.io.decode_png(c, dtype=kind).numpy().tolist() for c in files_of]
        elif isinstance(feature, ss.Timestamp):
            assert column.type == pa.timestamp(feature.unit, "UTC")
            found = column.cast(pa.int64()).to_pylist()
        else:
            found = column.to_pylist()
        np.testing.assert_equal(found, [expected(feature, value) for value in wanted], name)


def test_types_of_columns(snapshot: ss.Snapshot, tmp_path: Path) -> None:
    run(snapshot, "parquet", tmp_path / "out", split="train")
    (file, _) = sorted((tmp_path / "out" / "data").iterdir())
    schema = pq.read_schema(file)
    assert schema.field("class").type == pa.dictionary(pa.int32(), pa.string())
    assert schema.field("boxes").type.value_type == pa.list_(pa.float32(), 4)
    assert schema.field("int8 (2, 2)").type == pa.list_(pa.list_(pa.int8(), 2), 2)
    assert schema.field("uint64 maybe").type == pa.uint64()
    assert schema.field("image").type == pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    features = json.loads(schema.metadata[b"huggingface"])["info"]["features"]
    assert features["class"] == {"_type": "ClassLabel", "names": ["a", "b", "c"]}
    assert features["image"] == features["depth"] == {"_type": "Image"}
    assert pd.read_parquet(file)["class"].dtype == "category"


def is_array(feature: Feature) -> bool:
    item = getattr(feature, "of", feature)
    form = tensor_form(feature)
    numbers = isinstance(item, ss.Scalar | ss.Tensor) and item.dtype != "string"
    return numbers and form is not None and form.shape != ()


def parts_of(folder: Path) -> dict[str, dict[str, bytes]]:
    samples: dict[str, dict[str, bytes]] = {}
    for path in sorted(folder.iterdir()):
        with tarfile.open(path) as archive:
            for member in archive:
                base = member.name.rpartition("/")[2]
                stem, _, part = base.partition(".")
                key = member.name[: len(member.name) - len(base)] + stem
                content = archive.extractfile(member)
                assert content is not None
                samples.setdefault(key, {})[part] = content.read()
    return samples


def test_each_value_of_each_type_is_in_a_tar(
    snapshot: ss.Snapshot, records: dict[str, Any], tmp_path: Path
) -> None:
    run(snapshot, "webdataset", tmp_path / "out")
    names = [path.name for path in sorted((tmp_path / "out").iterdir())]
    assert names == ["test-000000.tar", "test-000001.tar", "train-000000.tar", "train-000001.tar"]
    samples = parts_of(tmp_path / "out")
    assert {key.replace("%2E", ".") for key in samples} == {*records}
    for key, parts in samples.items():
        record = records[key.replace("%2E", ".")]
        plain = json.loads(parts["json"])
        for name, feature in FEATURES.items():
            value = record[name]
            item = getattr(feature, "of", feature)
            if isinstance(feature, ss.Audio):
                rate = soundfile.info(io.BytesIO(parts[f"{name}.wav"])).samplerate
                assert rate == (feature.rate or record[f"{name}/rate"])
            elif isinstance(feature, ss.Image):
                content = parts["png" if name == "image" else f"{name}.png"]
                kind = tf.as_dtype(feature.dtype)
                assert (tf.io.decode_png(content, dtype=kind).numpy() == value).all()
            elif is_array(feature) and value is not None:
                found = np.load(io.BytesIO(parts[f"{name}.npy"]))
                np.testing.assert_equal(found, np.asarray(value).astype(found.dtype))
            elif name == "text":
                assert parts["txt"].decode() == value
            else:
                found = plain
                for part in name.split(".") if name.startswith("at.") else [name]:
                    found = found[part]
                wanted = expected(feature, value)
                if isinstance(item, ss.Timestamp) and value is not None:
                    wanted = f"{np.datetime64(int(value), item.unit)}Z"
                assert found == wanted, name


def image_folder(folder: Path) -> ss.Snapshot:
    rng = np.random.default_rng(0)
    for n in range(24):
        path = folder / "in" / "ab"[n % 2] / f"{n:02}.{('png', 'jpg')[n % 3 == 0]}"
        path.parent.mkdir(parents=True, exist_ok=True)
        PillowImage.fromarray(rng.integers(0, 255, (8, 9 + n, 3), np.uint8)).save(path)
    splits = ss.Splits(train=0.7, test=0.3)
    recipe = ss.Recipe(name="files", source=ss.ImageFolder(str(folder / "in")), splits=splits)
    return ss.build(recipe, folder / "out")


def test_webdataset_reads_the_same_records_again(tmp_path: Path) -> None:
    given = image_folder(tmp_path)
    run(given, "webdataset", tmp_path / "tars")
    samples = parts_of(tmp_path / "tars").items()
    names = {f"{key}.{part}" for key, parts in samples for part in parts}
    inside = (path.relative_to(tmp_path / "in") for path in (tmp_path / "in").rglob("*.*"))
    assert {*map(str, inside)} <= names
    splits = ss.Splits(train=1.0)
    source = ss.WebDataset(str(tmp_path / "tars" / "*.tar"))
    again = ss.build(ss.Recipe(name="again", source=source, splits=splits), tmp_path / "out")
    assert again.manifest.num_rejects == 0
    read = again.to_pandas()
    frames = pd.concat([given.to_pandas(split) for split in given.manifest.splits])
    wanted = {*zip(frames["image"], frames["label"].cat.codes, strict=True)}
    assert {*zip(read["image"], read["label"], strict=True)} == wanted
    assert len(wanted) == 24


def test_parquet_reads_the_same_records_again(tmp_path: Path) -> None:
    given = image_folder(tmp_path)
    run(given, "parquet", tmp_path / "tables")
    recipe = ss.Recipe(
        name="again",
        source=ss.Parquet(str(tmp_path / "tables" / "data"), label="label"),
        splits=ss.Splits(train=1.0),
    )
    again = ss.build(recipe, tmp_path / "out")
    assert again.manifest.features["label"] == given.manifest.features["label"]
    assert isinstance(again.manifest.features["image"], ss.Image)
    read = again.to_pandas().set_index("record_id")
    for split in given.manifest.splits:
        for name, row in given.to_pandas(split).iterrows():
            assert tuple(read.loc[name][["image", "label"]]) == (row["image"], row["label"])


@pytest.mark.peers
@pytest.mark.parametrize("package", ["datasets", "webdataset"])
def test_other_libraries_read_the_same_records(tmp_path: Path, package: str) -> None:
    has = f"from importlib.util import find_spec; print(bool(find_spec({package!r})))"
    done = subprocess.run([PEERS, "-c", has], capture_output=True, text=True, check=True)
    if done.stdout.strip() != "True":
        pytest.skip(f"needs {package}: make peers, or a Python that has it in SNAPSHARD_PEERS")
    given, out = image_folder(tmp_path), tmp_path / "exported"
    run(given, "parquet" if package == "datasets" else package, out)
    script = str(Path(__file__).with_name("exports_reader.py"))
    done = subprocess.run([PEERS, script, package, str(out)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    for split in given.manifest.splits:
        frame = given.to_pandas(split)
        sizes = [PillowImage.open(io.BytesIO(image)).size for image in frame["image"]]
        wanted = [[*size[::-1], name] for size, name in zip(sizes, frame["label"], strict=True)]
        assert found[split] == wanted


@pytest.mark.parametrize("to", ["parquet", "webdataset"])
def test_strings_that_are_not_text(tmp_path: Path, to: str) -> None:
    features = {"x": ss.Scalar("string"), "y": ss.Text()}
    values = {f"{n}": b"\xff" if n == 17 else b"ok" for n in range(30)}
    stored = {
        name: ("train", encode_example({"x": value, "y": "é"}, features))
        for name, value in values.items()
    }
    snapshot = put_records(tmp_path / "in", stored, features=features)
    run(snapshot, to, tmp_path / "out")
    if to == "parquet":
        table = pq.read_table(tmp_path / "out" / "data")
        assert dict(zip(table["record_id"].to_pylist(), table["x"].to_pylist(), strict=True)) == {
            **values
        }
        assert table["y"].type == pa.string()
    else:
        found = parts_of(tmp_path / "out")
        assert {key: parts["x.bin"] for key, parts in found.items()} == values
        assert all(json.loads(parts["json"]) == {"y": "é"} for parts in found.values())


def test_json_cannot_hold_lists_of_bytes(tmp_path: Path) -> None:
    features = {"x": ss.Sequence(ss.Scalar("string"))}
    stored = {"a": ("train", encode_example({"x": [b"\xff"]}, features))}
    snapshot = put_records(tmp_path / "in", stored, features=features)
    with pytest.raises(DataError, match="Feature 'x' has lists of strings that are not UTF-8"):
        run(snapshot, "webdataset", tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["in"]
    run(snapshot, "parquet", tmp_path / "out")
    table = pq.read_table(tmp_path / "out" / "data")
    assert table["x"].to_pylist() == [[b"\xff"]]


@pytest.mark.parametrize(
    ("record_id", "taken", "key"),
    [
        ("c0/7.png", "", "c0/7"),
        ("c0/7.JPEG", "", "c0/7"),
        ("c0/7.png", "c0/7", "c0/7%2Epng"),
        ("c/7", "c/7", "c/7%2E"),
        ("v1.0/7.txt", "", "v1.0/7%2Etxt"),
        ("rows.csv#12", "", "rows%2Ecsv#12"),
        ("a.b.png", "", "a%2Eb"),
        (".png", "", "%2Epng"),
        ("../7.png", "", "%2E%2E%2F7"),
        ("/etc/7.png", "", "%2Fetc%2F7"),
        ("a%2Eb", "", "a%252Eb"),
        ("ü \0", "", "ü %00"),
    ],
)
def test_keys_of_samples(record_id: str, taken: str, key: str) -> None:
    assert module._key(record_id, {"png", "jpg", "cls"}, {taken}) == key


def test_two_features_are_not_one_part(tmp_path: Path) -> None:
    features = {name: ss.Image(1, 1) for name in ("left", "left.image")}
    value = np.zeros((1, 1, 3), np.uint8)
    stored = {"a": ("train", encode_example(dict.fromkeys(features, value), features))}
    snapshot = put_records(tmp_path / "in", stored, features=features)
    with pytest.raises(RecipeError, match=r"Feature 'left.image' would be the part 'left.png'"):
        run(snapshot, "webdataset", tmp_path / "out")


class TestNothingByHalves:
    @pytest.fixture
    def table(self, tmp_path: Path) -> ss.Snapshot:
        features = {"x": ss.Scalar("int64")}
        stored = {f"{n}": ("train", encode_example({"x": n}, features)) for n in range(20)}
        return put_records(tmp_path / "in", stored, features=features)

    @pytest.mark.parametrize("name", ["*.tfrecord", "index/*.parquet"])
    @pytest.mark.parametrize("to", ["parquet", "webdataset"])
    def test_damage_leaves_nothing(
        self, table: ss.Snapshot, tmp_path: Path, to: str, name: str
    ) -> None:
        last = sorted((tmp_path / "in").glob(name))[-1]
        content = bytearray(last.read_bytes())
        content[len(content) // 2] ^= 1
        last.write_bytes(content if name == "*.tfrecord" else content[:-9])
        with pytest.raises(DamagedSnapshotError, match=last.name):
            run(table, to, tmp_path / "out")
        assert [path.name for path in tmp_path.iterdir()] == ["in"]

    def test_an_index_of_other_records(self, table: ss.Snapshot, tmp_path: Path) -> None:
        first, second = sorted((tmp_path / "in" / "index").glob("*.parquet"))
        kept = pq.read_table(first)
        pq.write_table(kept[:-1], second)
        with pytest.raises(DamagedSnapshotError, match="and its index differ"):
            run(table, "parquet", tmp_path / "out")

    @pytest.mark.parametrize("kind", ["folder", "file", "link"])
    def test_what_is_there_stays(self, table: ss.Snapshot, tmp_path: Path, kind: str) -> None:
        out = tmp_path / "out"
        {
            "folder": out.mkdir,
            "file": lambda: out.write_text("mine"),
            "link": lambda: out.symlink_to(tmp_path / "nowhere"),
        }[kind]()
        with pytest.raises(PlaceError, match="out exists already"):
            run(table, "parquet", out)
        assert {path.name for path in tmp_path.iterdir()} == {"in", "out"}

    def test_a_store_is_no_output(self, table: ss.Snapshot) -> None:
        with pytest.raises(PlaceError, match="gs://b/x is not on this machine"):
            export(table, "parquet", "gs://b/x", split=None, progress=Silent())

    @pytest.mark.parametrize(
        ("to", "split", "match"),
        [("csv", None, "expected parquet or webdataset"), ("parquet", "dev", "only train")],
    )
    def test_arguments(
        self, table: ss.Snapshot, tmp_path: Path, to: str, split: Any, match: str
    ) -> None:
        with pytest.raises(RecipeError, match=match):
            run(table, to, tmp_path / "out", split)

    def test_command(
        self, table: ss.Snapshot, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        arguments = [table.path, "--to", "parquet", "--output", str(tmp_path / "new" / "out")]
        with pytest.raises(SystemExit, match="0"):
            main(["export", *arguments, "--json"])
        told = json.loads(capsys.readouterr().out)
        assert (told["num_files"], told["num_examples"]) == (2, 20)
        values = pq.read_table(tmp_path / "new" / "out" / "data")["x"].to_pylist()
        assert sorted(values) == [*range(20)]

    def test_batches_of_few_records(
        self, table: ss.Snapshot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "_BATCH_BYTES", 1)
        run(table, "parquet", tmp_path / "out")
        file = pq.ParquetFile(next((tmp_path / "out" / "data").iterdir()))
        assert file.num_row_groups == 10
        assert sorted(pq.read_table(tmp_path / "out" / "data")["x"].to_pylist()) == [*range(20)]

    def test_no_tensorflow_is_loaded(self, table: ss.Snapshot, tmp_path: Path) -> None:
        code = (
            "import sys\nfrom snapshard.cli import main\n"
            f"try: main(['export', {table.path!r}, '--to', 'webdataset', '-o', "
            f"{str(tmp_path / 'out')!r}])\n"
            "except SystemExit as error: print(error.code, 'tensorflow' in sys.modules)\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], check=True, capture_output=True, text=True
        )
        assert done.stdout.splitlines()[-1] == "0 False"


def test_files_of_one_name_are_records_of_their_own(tmp_path: Path) -> None:
    for suffix in ("png", "jpg"):
        for k in range(12):
            path = tmp_path / "images" / "a" / f"{k}.{suffix}"
            path.parent.mkdir(parents=True, exist_ok=True)
            PillowImage.new("RGB", (4, 4), (k, 0, 0)).save(path)
    recipe = ss.Recipe(
        name="twins",
        source=ss.ImageFolder(str(tmp_path / "images")),
        splits=ss.Splits(train=1.0),
    )
    run(ss.build(recipe, tmp_path / "out"), "webdataset", tmp_path / "exported")
    (path,) = (tmp_path / "exported").rglob("*.tar")
    with tarfile.open(path) as archive:
        names = archive.getnames()
    assert len(names) == len(set(names))
    assert len({name.rpartition("/")[2].partition(".")[0] for name in names}) == 24


def test_a_time_that_parquet_cannot_hold_is_an_error(tmp_path: Path) -> None:
    pq.write_table(pa.table({"at": pa.array([10**16] * 5)}), tmp_path / "a.parquet")
    recipe = ss.Recipe(
        name="far",
        source=ss.Parquet(str(tmp_path / "a.parquet")),
        features={"at": ss.Timestamp("s")},
        splits=ss.Splits(train=1.0),
    )
    snapshot = ss.build(recipe, tmp_path / "out")
    with pytest.raises(RecipeError, match="'at' has a time that Parquet cannot store"):
        run(snapshot, "parquet", tmp_path / "exported")
    assert not (tmp_path / "exported").exists()
