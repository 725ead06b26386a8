"""Loads the numbers of records as PyTorch's DataLoader or Grain does, in a process of its own.

``python data_loader.py FOLDER LOADER DATASET METHOD WORKERS`` prints them as JSON. LOADER is
``torch``, ``stateful`` (torchdata's), ``ranks`` (a group of torch processes) or ``grain``, or
``protocol``: what torch's loader does to a dataset, written down once more, since torch is
gigabytes. Workers get the dataset by fork or, pickled, by spawn; of a sequence
each gets batches of numbers, of an iterable dataset each gets all and
has ``get_worker_info`` to take its share.
"""

import dataclasses
import json
import multiprocessing
import pickle
import sys
import tempfile
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
            results.put(collate(dataset.__getitems__(numbers)))
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
            yield collate(dataset.__getitems__(numbers))
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


def by_stateful(dataset: Any, method: str, num_workers: int) -> list[Any]:
    """A pass of torchdata's loader, then what new loaders give that are to resume it.

    They resume it after some numbers of batches: (number, what is left, the pass that follows).
    """
    from torchdata.stateful_dataloader import (  # type: ignore[import-not-found]
        StatefulDataLoader,
    )

    def loader() -> Any:
        return StatefulDataLoader(
            pickle.loads(pickle.dumps(dataset)),
            batch_size=BATCH_SIZE,
            num_workers=num_workers,
            multiprocessing_context=method if num_workers else None,
        )

    whole, batches = loader(), []
    states = [(0, json.dumps(loader().state_dict()))] if method == "fork" else []
    for batch in whole:
        batches.append(batch["n"].tolist())
        if method == "fork" or len(batches) == 3:  # torch takes seconds to load
            states.append((len(batches), json.dumps(whole.state_dict())))
    found: list[Any] = [batches]
    for num, state in states:
        again = loader()
        again.load_state_dict(json.loads(state))
        left, following = ([batch["n"].tolist() for batch in again] for _ in range(2))
        found.append((num, left, following))
    return found


def by_ranks(folder: str, num_workers: int, num_ranks: int = 2) -> list[Any]:
    """The numbers that each process of a torch process group gets: of all, and of equal steps."""
    with (
        tempfile.TemporaryDirectory() as shared,
        multiprocessing.get_context("spawn").Pool(num_ranks) as pool,
    ):
        tasks = [(folder, shared, rank, num_ranks, num_workers) for rank in range(num_ranks)]
        return [*zip(*pool.starmap(rank_numbers, tasks, chunksize=1), strict=True)]


def rank_numbers(
    folder: str, shared: str, rank: int, num_ranks: int, num_workers: int
) -> list[list[int]]:
    """What one rank reads."""
    import torch.distributed  # type: ignore[import-not-found]

    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{shared}/group", rank=rank, world_size=num_ranks
    )
    arrays = arrays_of(folder)
    assert arrays.process_shard() == (rank, num_ranks)
    found = []
    for equal_steps in (False, True):
        stream = arrays.Stream(
            "train", seed=1, shard=arrays.process_shard(), equal_steps=equal_steps
        )
        # A pool's processes may have no children.
        multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]
        loader = by_torch(stream, "spawn", 0 if equal_steps else num_workers)
        found.append([n for batch in loader for n in batch["n"].tolist()])
    torch.distributed.destroy_process_group()
    return found


def by_grain(dataset: Any, form: str, num_workers: int) -> Iterator[dict[str, Any]]:
    """Batches of Grain, and those that follow when a checkpoint is restored in a new loader."""
    import grain  # type: ignore[import-not-found]
    from absl import flags

    assert isinstance(dataset, grain.sources.RandomAccessDataSource)
    flags.FLAGS(sys.argv[:1])

    def loader() -> Any:
        source = pickle.loads(pickle.dumps(dataset))
        if form == "dataset":
            made = grain.MapDataset.source(source).shuffle(seed=1).batch(BATCH_SIZE)
            iterable = made.to_iter_dataset()
            if num_workers:
                options = grain.multiprocessing.MultiprocessingOptions(num_workers=num_workers)
                iterable = iterable.mp_prefetch(options)
            return iterable
        return grain.DataLoader(
            data_source=source,
            sampler=grain.samplers.IndexSampler(
                len(dataset),
                shuffle=True,
                seed=1,
                num_epochs=1,
                shard_options=grain.sharding.NoSharding(),
            ),
            operations=[grain.transforms.Batch(BATCH_SIZE)],
            worker_count=num_workers,
        )

    batches = iter(loader())
    for _ in range(2):
        yield next(batches)
    again = iter(loader())
    again.set_state(batches.get_state())
    yield from again


def arrays_of(folder: str) -> Any:
    """``reader.arrays`` of a snapshot."""
    if folder not in sys.path:
        sys.path.insert(0, folder)
    from reader import arrays  # type: ignore[import-not-found]

    return arrays


if __name__ == "__main__":
    folder, loader, kind, method, workers = sys.argv[1:]
    if loader == "protocol":
        make_torch()
    elif loader in ("torch", "stateful"):
        import torch.utils.data  # type: ignore[import-not-found] # noqa: F401
    module = arrays_of(folder)
    if loader == "ranks":
        print(json.dumps(by_ranks(folder, int(workers))))
        sys.exit()
    made = {"Records": module.Records, "Stream": module.Stream}[kind]("train")
    if loader == "stateful":
        print(json.dumps(by_stateful(module.Stream("train", seed=1), method, int(workers))))
        sys.exit()
    load = {"protocol": by_protocol, "torch": by_torch, "grain": by_grain}[loader]
    numbers = [n for batch in load(made, method, int(workers)) for n in batch["n"].tolist()]
    print(json.dumps(numbers))
