"""The commands of the reader: what they measure, find damaged, show, serve and refuse."""

import argparse
import contextlib
import hashlib
import json
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from snapshard import cli, startup_noise
from snapshard.pipelines.reader.runtime import console, doctor, serve, timing, tools
from snapshard.pipelines.reader.runtime.benchmark import _arriving
from snapshard.schemas.features import ClassLabel, Features, Image, Scalar, Text
from snapshard.schemas.manifest import json_checksum

from .conftest import load, part

NUMBERS: Features = {"label": ClassLabel(names=("even", "odd")), "id": Scalar(dtype="int64")}
IMAGES: Features = {"image": Image(storage="encoded"), "label": ClassLabel(names=("a", "b"))}
LENGTHS = (70, 65, 72)
Run = Callable[..., tuple[int, Any, str]]


def complete(folder: Path) -> None:
    """Adds to the manifest its files, as a build does."""
    manifest = json.loads((folder / "manifest.json").read_text())
    contents = {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.parent.name != "__pycache__"
    }
    manifest["files"] = {
        name: {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        for name, content in contents.items()
        if name != "manifest.json"
    }
    for split in manifest["splits"].values():
        for shard in split["shards"]:
            shard["label_counts"] = {"even": shard["num_examples"] - 30, "odd": 30}
            shard["sha256"] = manifest["files"][shard["file"]]["sha256"]
    put_artifact(folder / "manifest.json", manifest)


def put_artifact(path: Path, manifest: dict[str, Any]) -> None:
    """Writes a manifest that was changed, with the checksum that it has then."""
    path.write_text(json.dumps(manifest | {"checksum": json_checksum(manifest)}))


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory, write_snapshot: Any) -> Path:
    folder = tmp_path_factory.mktemp("numbers")
    shards = [[{"id": i, "label": i % 2} for i in range(length)] for length in LENGTHS]
    write_snapshot(folder, NUMBERS, {"train": shards, "test": shards[:1], "none": []})
    complete(folder)
    return folder


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory, write_snapshot: Any) -> Path:
    """Six JPEGs of one colour each, of unequal sizes, in two GZIP shards."""
    folder = tmp_path_factory.mktemp("images")
    records = []
    for index in range(6):
        pixels = np.full((20 + index, 30, 3), 40 * index, np.uint8)
        content = tf.io.encode_jpeg(pixels).numpy()
        sides = {"image/height": 20 + index, "image/width": 30, "image/orientation": 1}
        records.append({"image": content, "label": index % 2, **sides})
    splits = {"train": [records[:3], records[3:]]}
    write_snapshot(folder, IMAGES, splits, compression="gzip")
    complete(folder)
    return folder


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Iterator[Run]:
    """Runs the tools in this process: the code, the output (parsed, with --json), the errors."""

    def call(folder: Path, *arguments: str) -> tuple[int, Any, str]:
        capfd.readouterr()
        code = part(load(folder), "tools").main(arguments)
        printed, errors = capfd.readouterr()
        assert "Traceback" not in errors
        return code, json.loads(printed) if "--json" in arguments and not code else printed, errors

    handler = signal.getsignal(signal.SIGINT)
    yield call
    signal.signal(signal.SIGINT, handler)  # `serve` takes it


class TestBenchmark:
    def test_rates_beside_the_limit(self, run: Run, numbers: Path) -> None:
        code, found, _ = run(
            numbers, "benchmark", "--seconds", "0.05", "--batch-size", "16", "--json"
        )
        assert code == 0
        assert (found["split"], found["batch_size"]) == ("train", 16)
        rates = {row["what"]: row for row in found["rates"]}
        assert set(rates) >= {"reader, warm", "unparsed, warm"}
        assert all(row["examples/s"] > 0 and row["MB/s"] > 0 for row in rates.values())
        each = (numbers / "train-00000-of-00003.tfrecord").stat().st_size / 70
        warm = rates["reader, warm"]
        assert warm["MB/s"] * 1e6 / warm["examples/s"] == pytest.approx(each, rel=0.01)
        assert found["cold"] == ("reader, cold" in rates)

    def test_options_reach_the_reader(self, run: Run, numbers: Path) -> None:
        arguments = ["--option", "seed=1", "--option", "shuffle=False"]
        code, printed, _ = run(numbers, "benchmark", "--seconds", "0.02", *arguments)
        assert code == 0
        assert "seed=1, shuffle=False" in printed

    @pytest.mark.slow  # reads as slowly as a slow store
    def test_throttled_as_estimated(self, run: Run, numbers: Path) -> None:
        arguments = ["--mb-per-s", "0.02,0.05", "--seconds", "0.6", "--batch-size", "16", "--json"]
        code, found, _ = run(numbers, "benchmark", *arguments)
        assert code == 0
        rows = [row for row in found["throttled"] if "stored" in row["read as"]]
        assert [row["MB/s"] for row in rows] == [0.02, 0.05]
        for row in rows:
            assert row["estimated examples/s"] == pytest.approx(
                row["MB/s"] * 1e6 / row["bytes each"], rel=0.01
            )
        packed = [row for row in found["throttled"] if row["read as"] == "GZIP, instead"]
        assert packed[0]["bytes each"] == pytest.approx(
            found["gzip_ratio"] * rows[0]["bytes each"], rel=0.01
        )
        assert found["gzip_ratio"] < 1, "numbers compress"

    @pytest.mark.parametrize("gzip", [False, True])
    def test_throttle_gives_the_records_at_its_rate(self, tmp_path: Path, gzip: bool) -> None:
        path = tmp_path / "shard"
        # Random bytes of a length that no piece is a multiple of, some of them zeros at the end.
        records = [os.urandom(1_999) + b"\0" for _ in range(150)]
        with tf.io.TFRecordWriter(str(path), "GZIP" if gzip else "") as writer:
            for record in records:
                writer.write(record)
        size = path.stat().st_size
        started = time.perf_counter()
        batches = list(_arriving([str(path), str(path)], gzip, 2e6, 60))
        spent = time.perf_counter() - started
        assert [len(batch) for batch in batches] == [60] * 5
        assert [record for batch in batches for record in batch] == records + records
        due = 2 * size / 2e6
        assert 0.9 * due < spent < 3 * due + 5


class TestDoctor:
    @pytest.mark.slow  # measures stages one by one
    def test_input_binds_a_short_step_by_its_slowest_stage(self, run: Run, images: Path) -> None:
        arguments = ["--step-ms", "0.1", "--seconds", "0.3", "--batch-size", "3", "--json"]
        code, found, _ = run(images, "doctor", *arguments, "--image-size", "300", "300")
        assert code == 0
        stages = [row["stage"] for row in found["stages"]]
        assert stages == ["read", "decompress", "shuffle", "batch", "parse", "decode"]
        assert found["bound_by_input"]
        assert found["slowest_stage"] in stages
        slowest = max(found["stages"], key=lambda row: row["µs added"])
        assert found["slowest_stage"] == slowest["stage"]
        assert found["advice"]
        seen = {row["symptom"]: row["seen"] for row in found["symptoms"]}
        assert seen["starved accelerator"] == "yes"

    @pytest.mark.slow  # measures stages one by one
    def test_a_long_step_is_not_bound(self, run: Run, numbers: Path) -> None:
        # So long that a moment in which the machine does something else binds nothing.
        arguments = ["--step-ms", "100", "--seconds", "0.5", "--batch-size", "8"]
        _, found, _ = run(numbers, "doctor", *arguments, "--json")
        assert not found["bound_by_input"]
        assert "decompress" not in [row["stage"] for row in found["stages"]]
        assert {row["symptom"] for row in found["symptoms"]} == {
            "starved accelerator",
            "slow epoch start",
            "slow first epoch",
            "periodic stalls",
            "memory growth",
            "hanging epoch end",
            "uneven batches",
        }
        assert all(row["measured"] and row["where it comes from"] for row in found["symptoms"])

    @pytest.mark.slow  # measures stages one by one
    def test_checklist_is_about_this_pipeline(self, run: Run, numbers: Path) -> None:
        base = ["doctor", "--step-ms", "1", "--seconds", "0.05", "--json"]
        _, found, _ = run(numbers, *base)
        items = {row["item"]: row for row in found["checklist"]}
        assert len(items) == 10
        for item in ("interleaved reading", "files and elements shuffled", "parallel map"):
            assert items[item][""] == "ok", items[item]
        assert items["prefetch last"]["measured"] == "the last stage is PrefetchDataset"
        assert "deterministic=False" in items["non-deterministic order where allowed"]["measured"]
        _, found, _ = run(numbers, *base, "--option", "shuffle=False")
        items = {row["item"]: row for row in found["checklist"]}
        assert "stored order" in items["files and elements shuffled"]["measured"]
        assert "shuffle" not in [row["stage"] for row in found["stages"]]

    @pytest.mark.slow  # measures stages one by one
    def test_compression_that_does_not_pay_is_told(self, run: Run, images: Path) -> None:
        arguments = ["doctor", "--seconds", "0.05", "--step-ms", "1", "--image-size", "8", "8"]
        _, found, _ = run(images, *arguments, "--json")
        row = next(row for row in found["checklist"] if row["item"].startswith("compression"))
        assert row["measured"].startswith("gzip; GZIP leaves")

    @pytest.mark.slow
    def test_operations_of_a_pipeline_without_prefetch(self) -> None:
        plain = tf.data.Dataset.range(9).map(lambda i: i + 1).batch(2)
        used, last = doctor.operations_of(plain)
        assert "MapDataset" in used
        assert last.startswith("BatchDataset")

    @pytest.mark.slow  # measures stages one by one
    def test_augment_is_a_stage(self, run: Run, numbers: Path, tmp_path: Path) -> None:
        path = tmp_path / "mine.py"
        path.write_text(
            "def same(example, seed):\n    return example\n"
            "def wrong(example, seed):\n    return example['nix']\n"
        )
        arguments = ["doctor", "--seconds", "0.05", "--step-ms", "1", "--augment"]
        code, found, _ = run(numbers, *arguments, f"{path}:same", "--json")
        assert code == 0
        assert [row["stage"] for row in found["stages"]][-2:] == ["decode", "augment"]
        code, _, errors = run(numbers, *arguments, f"{path}:wrong")
        assert code == 2
        assert ":wrong cannot be applied: " in errors
        assert "augment= failed when called with example, seed" in errors
        assert "KeyError" in errors
        code, _, errors = run(numbers, *arguments, f"{path}:nix")
        assert (code, "has no 'nix'" in errors) == (2, True)
        path.write_text("def (")
        code, _, errors = run(numbers, *arguments, f"{path}:same")
        assert (code, "fails when imported: SyntaxError" in errors) == (2, True)


class TestShow:
    def test_tables_and_records(self, run: Run, numbers: Path) -> None:
        code, printed, _ = run(numbers, "show", "--records", "2", "--split", "test")
        assert code == 0
        assert re.search(r"^  label +class_label +int64 +2 classes$", printed, flags=re.MULTILINE)
        assert re.search(r"^  test +70 +1 +[\d.e-]+ +even: 40, odd: 30$", printed, re.MULTILINE)
        assert "test record 1" in printed
        assert "test record 2" not in printed
        assert "label: 1 = odd" in printed
        _, found, _ = run(numbers, "show", "--json")
        assert found["label_counts"]["train"] == {"even": sum(LENGTHS) - 90, "odd": 90}
        assert [record["id"] for record in found["records"]] == ["0", "1", "2"]

    def test_contact_sheet(self, run: Run, images: Path, tmp_path: Path) -> None:
        path = tmp_path / "sheet.png"
        code, printed, _ = run(images, "show", "--sheet", str(path), "--image-size", "10", "12")
        assert code == 0
        assert f"6 images of 'image': {path}" in printed
        pixels = tf.io.decode_png(path.read_bytes()).numpy()
        assert pixels.shape == (2 * 12, 3 * 14, 3)
        for index in range(6):
            row, column = divmod(index, 3)
            tile = pixels[row * 12 : row * 12 + 10, column * 14 : column * 14 + 12]
            assert np.abs(tile.astype(int) - 40 * index).max() <= 2

    def test_names_steer_no_terminal(self, capsys: pytest.CaptureFixture[str]) -> None:
        console.Output(as_json=False).say("a \x1b[31mred\x1b[0m name\nand more")
        assert capsys.readouterr().out == "a \\x1b[31mred\\x1b[0m name\nand more\n"


def test_profile_writes_a_trace(run: Run, numbers: Path, tmp_path: Path) -> None:
    code, found, _ = run(numbers, "profile", str(tmp_path), "--batches", "3", "--json")
    assert code == 0
    (trace,) = tmp_path.glob("plugins/profile/*/*.xplane.pb")
    assert found["files"] == [str(trace)]
    assert b"next_batch" in trace.read_bytes()


class TestRefusals:
    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (
                ["benchmark", "--split", "nix"],
                "made has no split 'nix', only train, test, none. Acc",
            ),
            (["doctor", "--split", "none"], "Split 'none' has no examples"),
            (["benchmark", "--root", "nowhere"], "There is no nowhere/manifest.json"),
            (["benchmark", "--batch-size", "0"], "--batch-size 0 must be 1 or more"),
            (["doctor", "--step-ms", "-1"], "--step-ms -1.0 must be 0 or more"),
            (["benchmark", "--option", "nix=1"], "with an option of reader.dataset()"),
            (["benchmark", "--option", "epochs=1"], "with an option of reader.dataset()"),
            (["benchmark", "--option", "seed"], "expected NAME=VALUE"),
            (["benchmark", "--option", "shuffle=-3"], "shuffle=-3"),
            (["show", "--sheet", "x.png"], "made has no images"),
            (["doctor", "--augment", "nix.py:f"], "there is no 'nix.py'"),
            (["serve", "--workers", "-1"], "--workers -1 must be 0 or more"),
            (["serve", "--workers", "0", "--join", "x"], "--workers 0 must be 1 or more"),
            (["serve", "--join", "grpc://localhost:1"], "no dispatcher answers at localhost:1"),
            (["serve", "--port", "99999"], "--port 99999 cannot be used"),
            (["serve", "--join", "nix"], "no dispatcher answers at nix"),
            (["serve", "--join", "grpc://far:1"], "give --host, this machine's name"),
        ],
    )
    def test_is_2_in_one_sentence(
        self, run: Run, numbers: Path, arguments: list[str], message: str
    ) -> None:
        code, printed, errors = run(numbers, *arguments, "--json")
        assert code == 2
        assert message in errors
        assert errors.startswith("error: ")
        assert not printed

    def test_images_of_unequal_sizes_need_one(self, run: Run, images: Path) -> None:
        code, _, errors = run(images, "benchmark")
        assert code == 2
        assert "--image-size H W" in errors

    @pytest.mark.parametrize("arguments", [["nix"], [], ["benchmark", "--mb-per-s", "fast"]])
    def test_usage_is_2(self, run: Run, numbers: Path, arguments: list[str]) -> None:
        with pytest.raises(SystemExit) as ended:
            run(numbers, *arguments)
        assert ended.value.code == 2

    @pytest.mark.parametrize("content", ["", "[]", '{"splits": 3}', "null"])
    def test_no_manifest_is_4(self, run: Run, numbers: Path, tmp_path: Path, content: str) -> None:
        (tmp_path / "manifest.json").write_text(content)
        code, _, errors = run(numbers, "show", "--root", str(tmp_path))
        assert code == 4
        assert "is not a manifest" in errors


def child(folder: Path, *arguments: str, **options: Any) -> subprocess.Popen[str]:
    """The commands in a process of their own, which has no snapshard."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("TF_")}
    hide = "import sys, runpy; sys.modules['snapshard'] = None; sys.argv = sys.argv[1:]\n"
    hide += "runpy.run_path(sys.argv[0], run_name='__main__')"
    return subprocess.Popen(
        [sys.executable, "-c", hide, str(folder / "reader"), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=plain,
        **options,
    )


class TestAlone:
    @pytest.mark.parametrize("copied", [False, True])
    def test_help_loads_no_tensorflow(self, numbers: Path, tmp_path: Path, copied: bool) -> None:
        package = numbers / "reader"
        if copied:  # the folder's name need not be one of a module
            package = Path(shutil.copytree(package, tmp_path / "my-reader 2.0"))
        for arguments in (["--help"], ["doctor", "--help"]):
            done = subprocess.run(
                [sys.executable, "-B", "-X", "importtime", package, *arguments],
                capture_output=True,
                text=True,
                check=True,
            )
            assert not re.search(r"\| +(tensorflow|numpy|snapshard)", done.stderr)
            command = " ".join([os.path.relpath(package), *arguments[:-1]])
            assert f"usage: python {command}" in done.stdout

    def test_as_a_module_in_the_folder_of_the_snapshot(self, numbers: Path) -> None:
        done = subprocess.run(
            [sys.executable, "-B", "-m", "reader", "show", "--help"],
            capture_output=True,
            text=True,
            cwd=numbers,
            env={name: v for name, v in os.environ.items() if name != "PYTHONSAFEPATH"},
            check=True,
        )
        assert "usage: python reader show" in done.stdout

    def test_modules_of_the_package_hide_no_others(self, numbers: Path, tmp_path: Path) -> None:
        """`python FOLDER` puts the folder on the path, where `cache` or `parse` would be found."""
        package = Path(shutil.copytree(numbers / "reader", tmp_path / "reader"))
        (package / "tools.py").write_text(
            "import importlib.util\n"
            "def main() -> int:\n"
            "    return sum(importlib.util.find_spec(n) is not None for n in ('cache', 'order'))\n"
        )
        assert subprocess.run([sys.executable, "-B", package], check=False).returncode == 0

    @pytest.mark.slow  # two processes load TensorFlow, one after the other
    def test_works_alone_and_makes_no_noise(self, numbers: Path) -> None:
        shutil.rmtree(numbers / "reader" / "__pycache__", ignore_errors=True)  # of this process
        started = child(numbers, "show", "--json")
        printed, errors = started.communicate(timeout=120)
        assert started.returncode == 0, errors
        assert json.loads(printed)["records"]
        assert errors == ""
        written = {path.name.partition(".")[0] for path in numbers.rglob("*.pyc")}
        assert written <= {"__main__"}, "Python keeps that one before it runs a line of it"

    @pytest.mark.slow  # a process that loads TensorFlow
    def test_bench_runs_it(
        self, numbers: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(startup_noise, "hush_libraries", lambda: None)
        shutil.rmtree(numbers / "reader" / "__pycache__", ignore_errors=True)  # of this process
        arguments = ["bench", str(numbers), "--seconds", "0.1", "--batch-size", "16", "--json"]
        with pytest.raises(SystemExit) as ended:
            cli.main(arguments)
        assert ended.value.code == 0
        assert json.loads(capfd.readouterr().out)["batch_size"] == 16
        assert not [*numbers.rglob("__pycache__")]


def test_bench_of_an_older_snapshot_says_so(
    numbers: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(startup_noise, "hush_libraries", lambda: None)
    manifest = json.loads((numbers / "manifest.json").read_text())
    for name in [name for name in manifest["files"] if name.startswith("reader/")]:
        del manifest["files"][name]
    manifest["files"]["reader.py"] = {"bytes": 1, "sha256": "0" * 64}
    put_artifact(tmp_path / "manifest.json", manifest)
    with pytest.raises(SystemExit) as ended:
        cli.main(["bench", str(tmp_path)])
    assert ended.value.code == 2
    assert "has no benchmark: it was written by snapshard" in capsys.readouterr().err


def listening_on(pid: int) -> dict[int, str]:
    """The TCP ports that a process listens on, with the device that each is bound to, or ""."""
    found = {}
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            found[os.readlink(f"/proc/{pid}/fd/{name}")] = None
    ports = {}
    for family in (socket.AF_INET, socket.AF_INET6):
        # Linux's sock_diag(7): struct inet_diag_req_v2 for what listens, inet_diag_msg for each.
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 4) as asked:
            body = struct.pack("=BBBxI48x", family, socket.IPPROTO_TCP, 0, 1 << 10)
            asked.send(struct.pack("=IHHII", 16 + len(body), 20, 0x301, 1, 0) + body)
            kind = 20
            while kind == 20:
                answer = asked.recv(1 << 16)
                while answer:
                    length, kind = struct.unpack_from("=IH", answer)
                    if kind != 20:
                        break
                    (port,) = struct.unpack_from("!H", answer, 20)
                    (device,) = struct.unpack_from("=I", answer, 56)
                    (inode,) = struct.unpack_from("=I", answer, 84)
                    if f"socket:[{inode}]" in found:
                        ports[port] = socket.if_indextoname(device) if device else ""
                    answer = answer[(length + 3) & ~3 :]
    return ports


def test_show_escapes_what_names_hide(run: Run, tmp_path: Path, write_snapshot: Any) -> None:
    names = ("a\nforged line", "b\u200b\U000e0041")
    features: Features = {"label": ClassLabel(names=names), "te\u00adxt\n": Text()}
    records = [{"label": i % 2, "te\u00adxt\n": "v\u2060\n".encode()} for i in range(4)]
    write_snapshot(tmp_path, features, {"train": [records]})
    code, printed, _ = run(tmp_path, "show")
    assert code == 0
    assert "0 = a\\nforged line" in printed
    assert "1 = b\\u200b\\U000e0041" in printed
    assert "te\\xadxt\\n" in printed
    assert not {"\u200b", "\u2060", "\u00ad"} & set(printed)
    assert not [line for line in printed.splitlines() if line.startswith("forged")]


class TestServe:
    @pytest.mark.slow  # a process that loads TensorFlow
    @pytest.mark.parametrize(
        ("arguments", "interface", "device", "ending"),
        [
            ((), "loopback", "lo", signal.SIGINT),
            (("--host", socket.gethostname()), "all interfaces", "", signal.SIGTERM),
        ],
        ids=["loopback", "host"],
    )
    def test_every_record_once_through_two_workers(
        self,
        run: Run,
        numbers: Path,
        arguments: tuple[str, ...],
        interface: str,
        device: str,
        ending: signal.Signals,
    ) -> None:
        """They listen on loopback unless a host is given."""
        started = child(numbers, "serve", "--workers", "2", "--json", *arguments)
        try:
            assert started.stdout is not None
            facts = json.loads(started.stdout.readline())
            assert (facts["workers"], facts["interface"]) == (2, interface)
            assert listening_on(started.pid) == dict.fromkeys(facts["ports"], device)
            assert len(facts["ports"]) == 3
            host, _, port = facts["address"].removeprefix("grpc://").rpartition(":")
            assert host == (arguments[1] if arguments else "localhost")
            assert int(port) in facts["ports"]
            records = tf.data.Dataset.range(100)
            served = records.apply(
                tf.data.experimental.service.distribute(
                    processing_mode=tf.data.experimental.service.ShardingPolicy.DYNAMIC,
                    service=facts["address"],
                )
            )
            assert "cannot be used" in run(numbers, "serve", "--port", port)[2]
            assert sorted(int(value) for value in served) == list(range(100))
            started.send_signal(ending)
            _, errors = started.communicate(timeout=30)
            assert (started.returncode, errors) == (0, "")
        finally:
            with contextlib.suppress(ProcessLookupError):
                started.kill()
            started.wait()

    def test_without_a_way_to_loopback_it_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with socket.create_server(("", 0)) as found:
            assert found.getsockname()[1] in serve._listening_ports(keep_to_loopback=False)
            monkeypatch.delattr(socket, "SO_BINDTODEVICE")
            with pytest.raises(console.RefusedError, match="--host"):
                serve._bind_to_loopback(found)

    @pytest.mark.slow  # two processes that load TensorFlow
    def test_ends_while_a_client_waits(self, numbers: Path) -> None:
        """TensorFlow's own stop waits for the answer, which never comes."""
        started = child(numbers, "serve", "--json")
        asks = (
            "import sys, tensorflow as tf\n"
            "none = tf.data.Dataset.counter().filter(lambda number: number < 0)\n"
            "service = tf.data.experimental.service\n"
            "none = none.apply(service.distribute('parallel_epochs', sys.argv[1]))\n"
            "iterator = iter(none)\n"
            "print('asks', flush=True)\n"
            "next(iterator)\n"
        )
        client: subprocess.Popen[str] | None = None
        try:
            assert started.stdout is not None
            address = json.loads(started.stdout.readline())["address"]
            client = subprocess.Popen(
                [sys.executable, "-c", asks, address],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            assert client.stdout is not None
            assert client.stdout.readline() == "asks\n"
            time.sleep(1)
            started.terminate()
            _, errors = started.communicate(timeout=30)
            assert (started.returncode, errors) == (0, "")
            assert client.poll() is None, "it still waited"
        finally:
            for process in (started, client):
                if process is not None:
                    process.kill()
                    process.communicate()


@pytest.mark.usefixtures("real_fsync")
def test_drops_the_page_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A look brings the pages back that it looks at, so each dropping is looked at once."""
    path = tmp_path / "file"
    with path.open("wb") as file:
        file.write(os.urandom(1 << 20))
        file.flush()
        os.fsync(file.fileno())  # what has yet to be written stays
    if timing.cached_share([str(path)]) is None or timing.drop_cache([str(path)]) is not None:
        pytest.skip("this system does not tell, or its files lie in memory")
    path.read_bytes()
    assert timing.cached_share([str(path)]) == 1
    assert timing.drop_cache([str(path)]) is None
    path.read_bytes()
    monkeypatch.setattr(os, "posix_fadvise", lambda *_: None)
    assert timing.drop_cache([str(path)]) == "100% of the pages stayed"
    assert timing.drop_cache(["gs://bucket/file"]) is not None


def test_rates_are_numbers_above_zero() -> None:
    assert tools._rates("1,2.5") == [1.0, 2.5]
    for text in ("0", "10,x", "nan", "inf", ""):
        with pytest.raises(argparse.ArgumentTypeError, match="expected numbers above 0"):
            tools._rates(text)
