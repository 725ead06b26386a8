"""What is read by its position is checked: an exact epoch, or an error that names the shard.

Each damage that copying or mixing up files can do, for each way to read by positions.
"""

import functools
import shutil
import struct
import types
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from snapshard.schemas.features import ClassLabel, Features, Scalar, Text

from .conftest import load, part
from .made_snapshots import list_files, put_index

WriteSnapshot = Callable[..., types.ModuleType]
Damage = Callable[[Path, Path], None]
"""Given the snapshot's folder, and that of one with the same records in another order."""
Pairs = list[tuple[int, int]]
"""(id, label) of records."""
Read = Callable[[Any, Path], Pairs]
"""Given a reader and the snapshot's folder."""

FEATURES: Features = {
    "id": Scalar(dtype="int64"),
    "label": ClassLabel(names=("a", "b", "c")),
    "name": Text(),
}
NUM, EACH = 104, 26
SHARD = "train-00001-of-00004.tfrecord"
"""The one that is damaged, but for its suffix."""


def records(*, equal: bool, is_other: bool = False) -> list[list[dict[str, Any]]]:
    """Four shards; all records of one size, or not; and the same in another order."""
    rows = [
        {"id": i, "label": i * i % 3, "name": b"n" * (9 if equal else i * i % 11)}
        for i in range(NUM)
    ]
    if is_other:  # shards of the same sizes
        return [rows[first : first + EACH][::-1] for first in range(0, NUM, EACH)]
    return [rows[first : first + EACH] for first in range(0, NUM, EACH)]


def write(
    folder: Path, write_snapshot: WriteSnapshot, shards: list[list[dict[str, Any]]], gzip: bool
) -> None:
    compression = "gzip" if gzip else "none"
    write_snapshot(folder, FEATURES, {"train": shards}, compression=compression)
    put_index(folder, compression, [row["label"] for shard in shards for row in shard])
    list_files(folder)


@pytest.fixture(scope="module")
def snapshots(
    tmp_path_factory: pytest.TempPathFactory, write_snapshot: WriteSnapshot
) -> dict[tuple[bool, bool], tuple[Path, Path]]:
    """By (equal sizes, GZIP): a snapshot, and one of another seed."""
    found = {}
    for equal, gzip in ((True, False), (False, False), (True, True)):
        folder = tmp_path_factory.mktemp("damage")
        for name, is_other in (("mine", False), ("other", True)):
            shards = records(equal=equal, is_other=is_other)
            write(folder / name, write_snapshot, shards, gzip)
        found[equal, gzip] = (folder / "mine", folder / "other")
    return found


def shard_of(folder: Path, number: int = 1) -> Path:
    (path,) = folder.glob(f"train-{number:05}-*")
    return path


def index_of(folder: Path, kind: str, number: int = 1) -> Path:
    return folder / "index" / f"{shard_of(folder, number).name}{kind}"


def reorder(kind: str, order: Callable[[list[int]], Iterable[int]]) -> Damage:
    """The entries of a file of the index in another order."""

    def damage(folder: Path, _: Path) -> None:
        path, each = index_of(folder, kind), 16 if kind == ".idx" else 4
        content = path.read_bytes()
        entries = [content[i : i + each] for i in range(0, len(content), each)]
        path.write_bytes(b"".join(entries[i] for i in order([*range(EACH)])))

    return damage


def swapped(order: list[int]) -> list[int]:
    order[7], order[20] = order[20], order[7]
    return order


def moved_boundary(folder: Path, _: Path) -> None:
    """Two entries that are contiguous with all others, and not those of two records."""
    path = index_of(folder, ".idx")
    index = np.frombuffer(path.read_bytes(), "<u8").reshape(-1, 2).copy()
    index[9, 1] += 5
    index[10] += np.array([5, -5], np.int64).astype(np.uint64)
    path.write_bytes(index.tobytes())


def invalid_label(folder: Path, _: Path) -> None:
    path = index_of(folder, ".labels")
    path.write_bytes(struct.pack("<i", 3) + path.read_bytes()[4:])


def copied(kind: str, source: int) -> Damage:
    """A file of another shard of the same snapshot in the place of the shard's own."""

    def damage(folder: Path, _: Path) -> None:
        path = (lambda n: index_of(folder, kind, n)) if kind else (lambda n: shard_of(folder, n))
        shutil.copy(path(source), path(1))

    return damage


def of_another_seed(folder: Path, other: Path) -> None:
    assert shard_of(folder).read_bytes() != shard_of(other).read_bytes()
    shutil.copy(shard_of(other), shard_of(folder))


def rewritten(change: Callable[[list[bytes]], list[bytes]]) -> Damage:
    """A shard of other records, intact in itself."""

    def damage(folder: Path, _: Path) -> None:
        path = shard_of(folder)
        compression = "GZIP" if path.suffix == ".gz" else ""
        found = [*tf.data.TFRecordDataset(str(path), compression).as_numpy_iterator()]
        with tf.io.TFRecordWriter(str(path), compression) as writer:
            for record in change(found):
                writer.write(record)

    return damage


def truncated(folder: Path, _: Path) -> None:
    path = shard_of(folder)
    path.write_bytes(path.read_bytes()[:-1])


def extended(folder: Path, _: Path) -> None:
    path = shard_of(folder)
    path.write_bytes(path.read_bytes() * 2)


DAMAGES: dict[str, Damage] = {
    "index swapped": reorder(".idx", swapped),
    "index entry duplicated": reorder(".idx", lambda order: [*order[:11], *order[10:-1]]),
    "index without its first entry": reorder(".idx", lambda order: [*order[1:], order[-1]]),
    "index rotated": reorder(".idx", lambda order: [*order[:5], *order[6:25], 5, *order[25:]]),
    "index with a boundary moved": moved_boundary,
    "index of another shard": copied(".idx", 2),
    "index truncated": reorder(".idx", lambda order: order[:-1]),
    "index empty": reorder(".idx", lambda order: []),
    "labels reversed": reorder(".labels", reversed),
    "labels swapped": reorder(".labels", swapped),
    "labels invalid": invalid_label,
    "labels of another shard": copied(".labels", 2),
    "shard of another seed": of_another_seed,
    "shard of another place": copied("", 2),
    "shard without its first record": rewritten(lambda found: found[1:]),
    "shard without its last record": rewritten(lambda found: found[:-1]),
    "shard with its first record twice": rewritten(lambda found: [found[0], *found]),
    "shard truncated": truncated,
    "shard extended": extended,
    "shard missing": lambda folder, _: shard_of(folder).unlink(),
}


SIZES_MATTER = {
    "index swapped",
    "index rotated",
    "index with a boundary moved",
    "index of another shard",
    "shard of another seed",
    "shard of another place",
}


def of_dataset(*workers: dict[str, Any]) -> Read:
    """(id, label) of the records of all workers."""

    def read(reader: Any, root: Path) -> Pairs:
        return [
            (int(number), int(label))
            for options in workers
            for batch in reader.dataset("train", 8, root=root, **options)
            for number, label in zip(batch["id"], batch["label"], strict=True)
        ]

    return read


@functools.cache
def service() -> tuple[str, Any, Any]:
    """The address of a tf.data service of one worker, which runs in this process."""
    made = tf.data.experimental.service
    dispatcher = made.DispatchServer()
    address = dispatcher.target.removeprefix("grpc://")
    worker = made.WorkerServer(made.WorkerConfig(dispatcher_address=address))
    return dispatcher.target, dispatcher, worker


def of_service(reader: Any, root: Path) -> Pairs:
    return of_dataset({"service": service()[0]})(reader, root)


def of_workers(count: int, **options: Any) -> Read:
    return of_dataset(*({"shard": (i, count), **options} for i in range(count)))


def of_arrays(make: Callable[[Any, Path], Iterable[Any]]) -> Read:
    def read(reader: Any, root: Path) -> Pairs:
        records = make(part(reader, "arrays"), root)
        return [(int(record["id"]), int(record["label"])) for record in records]

    return read


MODES: dict[str, Read] = {
    "seed": of_dataset({"seed": 1}),
    "stored order": of_dataset({"shuffle": False}),
    "stored order and cache": of_dataset({"shuffle": False, "cache": "memory"}),
    "stored order of decoded": of_dataset({"shuffle": False, "cache": "decoded"}),
    "stored order by a service": lambda reader, root: of_dataset(
        {"shuffle": False, "service": service()[0]}
    )(reader, root),
    "shard": of_workers(3, shuffle=False),
    "shard and seed": of_workers(2, seed=1),
    "start_step": of_dataset({"seed": 1, "start_step": 2}),
    "start_step without shuffling": of_dataset({"shuffle": False, "start_step": 2}),
    "start_step of other workers": of_workers(2, seed=1, start_step=[(2, 6, 3)]),
    "balance": of_dataset({"seed": 1, "balance": "uniform", "epochs": 2}),
    "balance and shard": of_workers(2, seed=1, balance={"a": 2, "b": 1}),
    "cache": of_dataset({"seed": 1, "cache": "memory", "epochs": 2}),
    "cache of decoded": of_dataset({"seed": 1, "cache": "decoded"}),
    "defaults": of_dataset({}),
    "service": of_service,
    "records": of_arrays(lambda arrays, root: arrays.Records("train", root=root)),
    "records backwards": of_arrays(
        lambda arrays, root: (arrays.Records("train", root=root)[i] for i in range(NUM - 1, -1, -1))
    ),
    "records of a part": of_arrays(
        lambda arrays, root: (
            one for i in range(2) for one in arrays.Records("train", shard=(i, 2), root=root)
        )
    ),
    "stream": of_arrays(lambda arrays, root: arrays.Stream("train", seed=1, root=root)),
    "stream of a part": of_arrays(
        lambda arrays, root: (
            one
            for i in range(2)
            for one in arrays.Stream("train", shuffle=False, shard=(i, 2), root=root)
        )
    ),
}


IN_ORDER = {name for name in MODES if name.startswith("stored order")}
WITHOUT_INDEX = {"start_step without shuffling", "cache of decoded", "service", *IN_ORDER}
"""Modes that open no index."""
VARIANTS = {name for name in MODES if " of a part" in name or " and " in name or "by a" in name} | {
    "stored order of decoded",
    "start_step of other workers",
    "records backwards",
}
"""Modes that open shards as another one does, and divide or hold what they read."""
TYPICAL = {
    "index swapped",
    "index empty",
    "labels swapped",
    "labels of another shard",
    "shard of another seed",
    "shard without its last record",
    "shard truncated",
    "shard missing",
}
"""What these modes meet; the others, everything."""
COMPRESSED = {"seed", "stored order", "cache of decoded", "service", "balance", "records", "stream"}
"""Modes that open compressed shards in ways of their own."""
CASES = [
    pytest.param(mode, equal, gzip, id=f"{kind}-{mode}")
    for kind, equal, gzip, modes in (
        ("equal", True, False, {*MODES}),
        ("uneven", False, False, {*MODES} - VARIANTS),
        ("gz", True, True, COMPRESSED),
    )
    for mode in MODES
    if mode in modes
]
"""(mode, whether shards are of equal sizes, whether they are compressed)."""


def damages_for(mode: str, *, equal: bool, gzip: bool) -> list[str]:
    """Those that can matter: labels where they are read, an index where offsets are, and sizes.

    And an empty index and labels of another shard for some of those that read none.
    """
    names = [name for name in DAMAGES if mode not in VARIANTS or name in TYPICAL]
    if equal and "index of another shard" in names:
        names.remove("index of another shard")  # the same bytes
    if mode in WITHOUT_INDEX:
        names = [name for name in names if not name.startswith("index") or name == "index empty"]
    if mode == "seed":
        names = [name for name in names if not name.startswith("labels") or "another" in name]
    if gzip and "balance" not in mode and "record" not in mode:
        names = [name for name in names if not name.startswith("index")]
    if "balance" not in mode and mode != "seed":
        names = [name for name in names if not name.startswith("labels")]
    return names if equal else [name for name in names if name in SIZES_MATTER]


def test_a_manifest_that_cannot_be_read(
    snapshots: dict[tuple[bool, bool], tuple[Path, Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, _ = snapshots[True, False]
    reader = load(mine)

    def refused(path: str, mode: str) -> Any:
        raise tf.errors.PermissionDeniedError(None, None, f"{path}; Permission denied")

    monkeypatch.setattr(tf.io.gfile, "GFile", refused)
    for make in (reader.dataset, reader.steps):
        message = r"manifest.json cannot be read \(.*Permission denied\)\. Check the permissions"
        with pytest.raises(ValueError, match=message):
            make("train", 8)


@pytest.mark.parametrize(("mode", "equal", "gzip"), CASES)
@pytest.mark.slow  # up to 20 damages, a dataset or several for each
def test_an_exact_epoch_or_an_error(
    snapshots: dict[tuple[bool, bool], tuple[Path, Path]],
    tmp_path: Path,
    mode: str,
    equal: bool,
    gzip: bool,
) -> None:
    mine, other = snapshots[equal, gzip]
    reader, read = load(mine), MODES[mode]

    @functools.cache
    def intact() -> Pairs:
        found = sorted(read(reader, mine))
        if "start" not in mode and "balance" not in mode:
            epochs = 2 if mode == "cache" else 1
            assert found == sorted([(i, i * i % 3) for i in range(NUM)] * epochs)
        assert all(label == number * number % 3 for number, label in found)
        return found

    if equal and not gzip:  # of the others, where damage is accepted
        intact()
    for name in damages_for(mode, equal=equal, gzip=gzip):
        folder = tmp_path / name.replace(" ", "_")
        shutil.copytree(mine, folder, ignore=shutil.ignore_patterns("reader"))
        DAMAGES[name](folder, other)
        try:
            found = sorted(read(reader, folder))
        except (ValueError, tf.errors.OpError) as error:
            text = str(error)
            assert SHARD in text, name
            command = f"Verify the snapshot: snapshard verify {folder}"
            assert command in text, (name, text)
            assert mode not in WITHOUT_INDEX or name != "index empty", "it opens the index"
        else:
            # pytest would show what differs, on 1,000 lines
            assert str(found) == str(intact()), name
            assert not name.startswith("shard "), f"{name}: it is not the shard that was written"
