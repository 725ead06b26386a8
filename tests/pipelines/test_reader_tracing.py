"""TensorFlow traces the reader's functions as they are: AutoGraph would take seconds for them."""

import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import tensorflow as tf
from tensorflow.python.autograph.impl import api

from snapshard.schemas.features import ClassLabel, Features, Scalar, Sequence

FEATURES: Features = {
    "id": Scalar(dtype="int64"),
    "label": ClassLabel(names=("short", "long")),
    "words": Sequence(Scalar(dtype="int64")),
}


@pytest.fixture(scope="module")
def reader(
    tmp_path_factory: pytest.TempPathFactory, write_snapshot: Callable[..., types.ModuleType]
) -> types.ModuleType:
    records = [{"id": i, "label": i % 2, "words": [i] * (i % 7 + 1)} for i in range(60)]
    folder = tmp_path_factory.mktemp("tracing")
    return write_snapshot(
        folder, FEATURES, {"train": [records[:30], records[30:]]}, lengths={"words": [3]}
    )


@pytest.fixture
def service() -> Iterator[str]:
    dispatcher = tf.data.experimental.service.DispatchServer()
    address = dispatcher.target.split("://")[1]
    worker = tf.data.experimental.service.WorkerServer(
        tf.data.experimental.service.WorkerConfig(dispatcher_address=address)
    )
    yield dispatcher.target
    del worker, dispatcher


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"start_step": 3},
        {"start_step": 3, "epochs": 2},
        {"start_step": [(2, 8, 2), (1, 8, 1)]},
        {"bucket": True, "pad": True},
        {"bucket": True, "start_step": 3},
        {"bucket": True, "start_step": [(2, 8, 2)]},
        {"cache": "memory"},
        {"cache": "decoded"},
        {"windows": (3, 1), "columns": ["words"]},
        {"pack": 9, "columns": ["words"]},
        {"shard": (1, 2), "equal_steps": True},
        {"shuffle": 8, "start_step": 3},
        {"batch_size": None},
        {"service": ..., "seed": None},
    ],
    ids=str,
)
def test_autograph_converts_nothing_of_the_package(
    reader: types.ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    options: dict[str, Any],
) -> None:
    if "service" in options:
        options = {**options, "service": request.getfixturevalue("service")}
    converted = []
    convert = api._convert_actual
    monkeypatch.setattr(
        api, "_convert_actual", lambda *given: converted.append(given[0]) or convert(*given)
    )
    dataset = reader.dataset("train", **{"batch_size": 8, "seed": 1, **options})
    assert next(iter(dataset))
    assert not converted


def test_it_converts_what_users_write(reader: types.ModuleType) -> None:
    def negate(example: Any, seed: Any) -> Any:
        del seed
        if example["id"] > 10:
            example = {**example, "id": -example["id"]}
        return example

    for start_step in (0, 2):
        dataset = reader.dataset(
            "train", 8, seed=1, bucket=True, augment=negate, start_step=start_step
        )
        ids = [int(number) for batch in dataset for number in batch["id"]]
        assert len(ids) == 60 - 8 * start_step
        assert max(ids) <= 10
