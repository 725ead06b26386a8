"""Several workers: each reads its part, and is warned where it does not."""

import json
import os
import subprocess
import sys
import types
import warnings
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

import snapshard as ss
from snapshard.runners.job_server import free_port

from ..pipelines.conftest import write_snapshot

TOTAL, BATCH = 203, 8
WARNING = r"has 2 workers, and each of them reads all of 'train'\. Pass input_context= or shard="


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> types.ModuleType:
    shards = [[{"id": i} for i in range(start, TOTAL, 5)] for start in range(5)]
    folder = tmp_path_factory.mktemp("workers")
    return write_snapshot(folder, {"id": ss.Scalar("int64")}, {"train": shards}, label=None)


def two_workers(index: int, ports: list[int], kind: str = "worker") -> str:
    cluster = {"worker": [f"localhost:{port}" for port in ports]}
    return json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})


class TestWarning:
    def test_where_each_reads_everything(
        self, reader: types.ModuleType, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("TF_CONFIG", two_workers(1, [1, 2]))
        with pytest.warns(UserWarning, match=f"^TF_CONFIG {WARNING}") as caught:
            reader.dataset("train", BATCH)
        assert caught[0].filename == __file__

    @pytest.mark.parametrize(
        "options",
        [
            {"shard": (1, 2)},
            {"shard": (0, 1)},
            {"input_context": tf.distribute.InputContext(2, 1, 2)},
        ],
        ids=["shard", "all on purpose", "input_context"],
    )
    def test_not_where_work_is_divided(
        self, reader: types.ModuleType, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
    ) -> None:
        monkeypatch.setenv("TF_CONFIG", two_workers(1, [1, 2]))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            reader.dataset("train", BATCH, **options)

    @pytest.mark.parametrize(
        "config",
        ["", "{}", "[]", "no JSON", two_workers(0, [1]), two_workers(0, [1, 2], "evaluator")],
        ids=["empty", "nothing", "a list", "no JSON", "one", "evaluator"],
    )
    def test_not_of_one_worker(
        self, reader: types.ModuleType, monkeypatch: pytest.MonkeyPatch, config: str
    ) -> None:
        monkeypatch.setenv("TF_CONFIG", config)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            reader.dataset("train", BATCH)

    def test_not_of_a_strategy_of_one_worker(self, reader: types.ModuleType) -> None:
        with warnings.catch_warnings(), tf.distribute.MirroredStrategy(["CPU:0"]).scope():
            warnings.simplefilter("error")
            reader.dataset("train", BATCH)


WORKER = """
import json, os, sys, warnings
import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
sys.path.insert(0, sys.argv[1])
import reader

def read(context):
    return reader.dataset(
        "train", 8, input_context=context, equal_steps=True, seed=1, epochs=2
    ).map(lambda batch: batch["id"])

found = []
with strategy.scope():
    total = tf.Variable(0, dtype=tf.int64, aggregation=tf.VariableAggregation.SUM)
    with warnings.catch_warnings(record=True) as without:
        warnings.simplefilter("always")
        reader.dataset("train", 8)
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        dataset = strategy.distribute_datasets_from_function(read)
    whole = strategy.distribute_datasets_from_function(
        lambda context: reader.dataset("train", 8, input_context=context, seed=1)
    )

    @tf.function
    def step(ids):
        per_replica = strategy.run(lambda ids: tf.size(ids, tf.int64), args=(ids,))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, per_replica, axis=None)

    num = 0
    for ids in dataset:
        found.append(strategy.experimental_local_results(ids)[0].numpy().tolist())
        num += int(step(ids))
every = [
    one
    for batch in whole
    for one in strategy.experimental_local_results(batch["id"])[0].numpy().tolist()
]
warned = [[str(one.message) for one in caught] for caught in (without, given)]
print(json.dumps([found, num, every, warned]), flush=True)
"""


@pytest.mark.slow  # two processes that load TensorFlow
def test_two_processes_of_a_multi_worker_strategy(reader: types.ModuleType) -> None:
    ports = [free_port(), free_port()]
    folder = Path(str(reader.__file__)).parent.parent
    started = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, str(folder)],
            env={**os.environ, "TF_CONFIG": two_workers(index, ports)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for index in range(2)
    ]
    try:
        results = []
        for process in started:
            stdout, stderr = process.communicate(timeout=240)
            assert process.returncode == 0, stderr
            results.append(json.loads(stdout.splitlines()[-1]))
    finally:
        for process in started:
            process.kill()
            process.communicate()
    (one, num, every, (without, given)), (other, same, others, _) = results
    assert len(one) == len(other), "or one would wait for the other without end"
    assert num == same == sum(map(len, one + other)), "each step reduces what both read"
    steps = len(one) // 2
    for batches in (one[:steps] + other[:steps], one[steps:] + other[steps:]):
        ids = [number for batch in batches for number in batch]
        assert len(ids) == len(set(ids)), "none is read twice in an epoch"
        assert TOTAL - 2 * BATCH < len(ids) <= TOTAL
    assert sorted(every + others) == [*range(TOTAL)], "each record once, by one of them"
    (text,) = [text for text in without if "reads all of" in text]
    assert text.startswith("the strategy has 2 workers, and each of them reads all of 'train'")
    assert [text for text in given if "reads all of" in text] == []
