"""Loads the numbers of records as PyTorch's DataLoader or Grain does, in a process of its own.

``python data_loader.py FOLDER LOADER DATASET METHOD WORKERS`` prints them as JSON. LOADER is
``torch`` or ``grain``, or ``protocol``: what torch's loader does to a dataset, written down once
more, since torch is gigabytes. Workers get the dataset by fork or, pickled, by spawn; of a sequence
each gets batches of numbers and fetches these one by one, of an iterable dataset each gets all and
has ``get_worker_info`` to take its share.
"""

import dataclasses
import json
import multiprocessing
import sys
import types
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

BATCH_SIZE = 8


@dataclasses.dataclass
class WorkerInfo:
    """What torch tells a worker."""

    id: int
    num_workers: int
    seed: int = 0


class IterableDataset(Iterable[Any]):
    """Derived as torch's is, so that other classes can be registered as its own."""


def make_torch() -> Any:
    """A module in torch's place."""
    data = types.ModuleType("torch.utils.data")
    found: dict[str, Any] = {"IterableDataset": IterableDataset, "get_worker_info": lambda: None}
    vars(data).update(found)
    sys.modules["torch.utils.data"] = data
    return data


def collate(records: list[dict[str, Any]]) -> dict[str, Any]:
    """Records of equal shapes as one batch."""
    return {name: np.stack([record[name] for record in records]) for name in records[0]}


def batched(items: Iterable[Any]) -> Iterator[list[Any]]:
    """Lists of BATCH_SIZE, the last shorter."""
    held: list[Any] = []
    for item in items:
        held.append(item)
        if len(held) == BATCH_SIZE:
            yield held
            held = []
    if held:
        yield held


def work(dataset: Any, iterable: bool, batches: Any, results: Any, info: WorkerInfo) -> None:
    """A worker process; what kind of dataset it has, it is told."""
    data = make_torch()
    data.get_worker_info = lambda: info
    if iterable:
        for records in batched(dataset):
            results.put(collate(records))
    else:
        for numbers in batches:
            results.put(collate([dataset[number] for number in numbers]))
    results.put(None)


def by_protocol(dataset: Any, method: str, num_workers: int) -> Iterator[dict[str, Any]]:
    """Batches, as torch's DataLoader gives them."""
    batches, iterable = [], isinstance(dataset, IterableDataset)
    if not iterable:
        batches = list(batched(np.random.default_rng(0).permutation(len(dataset)).tolist()))
    if num_workers == 0:
        for records in batched(dataset) if not batches else ():
            yield collate(records)
        for numbers in batches:
            yield collate([dataset[number] for number in numbers])
        return
    context = multiprocessing.get_context(method)
    results = context.Queue()
    workers = [
        context.Process(  # type: ignore[attr-defined]
            target=work,
            args=(dataset, iterable, batches[n::num_workers], results, WorkerInfo(n, num_workers)),
        )
        for n in range(num_workers)
    ]
    for worker in workers:
        worker.start()
    num_done = 0
    while num_done < num_workers:
        batch = results.get(timeout=60)
        if batch is None:
            num_done += 1
        else:
            yield batch
    for worker in workers:
        worker.join()


def by_torch(dataset: Any, method: str, num_workers: int) -> Any:
    """Batches of torch's DataLoader."""
    from torch.utils.data import DataLoader, IterableDataset  # type: ignore[import-not-found]

    return DataLoader(
        dataset,
        batch_size=BATCH_SIZE,
        shuffle=None if isinstance(dataset, IterableDataset) else True,
        num_workers=num_workers,
        multiprocessing_context=method if num_workers else None,
    )


def by_grain(dataset: Any, method: str, num_workers: int) -> Iterator[dict[str, Any]]:
    """Batches of Grain's DataLoader, and those that follow when it is taken up again."""
    import grain.python as grain  # type: ignore[import-not-found]
    from absl import flags

    assert isinstance(dataset, grain.RandomAccessDataSource)
    flags.FLAGS(sys.argv[:1])
    loader = grain.DataLoader(
        data_source=dataset,
        sampler=grain.IndexSampler(
            len(dataset), shuffle=True, seed=1, num_epochs=1, shard_options=grain.NoSharding()
        ),
        operations=[grain.Batch(BATCH_SIZE)],
        worker_count=num_workers,
    )
    batches = iter(loader)
    for _ in range(2):
        yield next(batches)
    again = iter(loader)
    again.set_state(batches.get_state())
    yield from again


if __name__ == "__main__":
    folder, loader, kind, method, workers = sys.argv[1:]
    if loader == "protocol":
        make_torch()
    elif loader == "torch":
        import torch.utils.data  # type: ignore[import-not-found] # noqa: F401
    sys.path.insert(0, folder)
    import reader_numpy  # type: ignore[import-not-found]

    made = {"Records": reader_numpy.Records, "Stream": reader_numpy.Stream}[kind]("train")
    load = {"protocol": by_protocol, "torch": by_torch, "grain": by_grain}[loader]
    numbers = [n for batch in load(made, method, int(workers)) for n in batch["n"].tolist()]
    print(json.dumps(numbers))
