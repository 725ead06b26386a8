"""The benchmarks run, and what they say of mixing and of scale is right."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"


def load(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCHMARKS)  # what stands beside it, as in a run of it
        spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", sorted(path.stem for path in BENCHMARKS.glob("*.py")))
def test_what_a_script_imports_is_there(name: str) -> None:
    assert load(name).__doc__


def batches(places: Any, size: int) -> list[Any]:
    return [places[start : start + size] for start in range(0, len(places), size)]


class TestMixing:
    def test_stored_order_repeats_its_batches(self) -> None:
        stored = batches(np.arange(100), 10)
        shards, together = load("read_window").mixing([stored, stored], [25, 50, 75, 100])
        # Two of ten batches lie across the ends of shards; nine partners of 99 are in the batch.
        assert shards == 1.2
        assert together == pytest.approx(99 / 9)

    def test_a_full_shuffle_is_chance(self) -> None:
        rng = np.random.default_rng(0)
        epochs = [batches(rng.permutation(10_000), 100) for _ in range(2)]
        shards, together = load("read_window").mixing(epochs, [2500, 5000, 7500, 10_000])
        assert shards == 4
        assert together == pytest.approx(1, abs=0.05)

    def test_an_epoch_that_lacks_a_record_is_told(self) -> None:
        whole, broken = batches(np.arange(20), 5), batches(np.arange(20) // 2, 5)
        with pytest.raises(SystemExit, match="each of 20 records once"):
            load("read_window").mixing([whole, broken], [20])


class TestInterval:
    def test_equal_ratios_leave_no_doubt(self) -> None:
        assert load("read_against").interval([1.1] * 5) == pytest.approx((1.1, 1.1, 1.1))

    def test_the_interval_is_that_of_students_distribution(self) -> None:
        # Logarithms of 0 and ln 4: the mean is ln 2, the standard error ln 2, and t is 12.71.
        middle, low, high = load("read_against").interval([1.0, 4.0])
        assert middle == pytest.approx(2)
        assert low == pytest.approx(2 * 2**-12.71)
        assert high == pytest.approx(2 * 2**12.71)


@pytest.mark.parametrize(("seconds", "num_bytes"), [(60.1, 10**9), (1.0, 2_001_000_000)])
def test_a_plan_beyond_its_limits_fails(seconds: float, num_bytes: int) -> None:
    scale = load("scale")
    scale.check_limits(60.0, 2 * 10**9)
    with pytest.raises(SystemExit, match=r"Its limits are 60 s and 2,000 MB") as ended:
        scale.check_limits(seconds, num_bytes)
    assert str(ended.value.code).startswith("Planning took ")  # a text, so exit code 1


@pytest.mark.slow  # writes 64 runs of 1 MiB; imports in two processes
def test_planning_at_scale_runs(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / "scale.py"), "--records", "5e7", "--blocks", "5000"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert "50,000,000 records in 5,000 runs" in done.stdout
    apart = [float(found) for found in re.findall(r"([\d.]+) % apart", done.stdout)]
    assert len(apart) == 3
    assert max(apart) <= 1
    assert [*tmp_path.iterdir()] == []


# Each builds snapshots and imports TensorFlow in two processes.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "given", "rows"),
    [
        (
            "read.py",
            ["--kinds", "jpeg gzip", "table", "text gzip"],
            ["**`reader.dataset`, shuffled**", "batched, then parsed", "no parsing"],
        ),
        ("first_batch.py", [], ["first batch", "a later epoch", "train, validation and test"]),
        ("wide.py", [], ["as columns", "stacked"]),
        ("train.py", [], ["**the snapshot, `reader.dataset`**", "`image_dataset_from_directory("]),
    ],
)
def test_a_benchmark_prints_its_tables(
    examples: Path, tmp_path: Path, script: str, given: list[str], rows: list[str]
) -> None:
    if script in ("read.py", "first_batch.py", "train.py"):
        given = ["--images", str(examples / "data" / "sign_digits"), *given]
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / script), *given, "--smoke"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    tables = [part for part in done.stdout.split("\n\n") if part.startswith("| |")]
    assert len(tables) == done.stdout.count("###") or len(tables) == 1
    for table in tables:
        head, line, *found = (row.strip("|").split(" | ") for row in table.strip().splitlines())
        assert {len(head)} == {len(line), *map(len, found)}
        for row in rows:
            assert sum(row in cells[0] for cells in found) == 1, table
    assert [*tmp_path.iterdir()] == []
