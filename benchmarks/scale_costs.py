"""What builds of 100 GB to 100 TB come to: the table of docs/scale.md. Nothing is run.

Imported by scale.py, which prints it.
"""

import dataclasses
import math
from collections.abc import Callable

import snapshard as ss
from snapshard.pipelines.prepare.sort_keys import bins_for
from snapshard.pipelines.write.strategy import mean_slice_bytes, shuffles
from snapshard.schemas.shards import Shards
from snapshard.transforms.examples.shuffled import SORT_BYTES
from snapshard.transforms.runs.files import BATCH_BYTES, MERGE_BYTES
from snapshard.transforms.runs.key_histogram import KeyBins
from snapshard.transforms.sources.blocks import BLOCK_BYTES

RECORD_BYTES = 1_500
BIN_BYTES = 34
RUN_BYTES = 150
"""In a summary, its batches apart."""

CLASS_A, CLASS_B = 0.005 / 1000, 0.0004 / 1000
"""Dollars a request, list price of Cloud Storage and of S3 Standard; as docs/dataflow.md."""
SHUFFLE = 0.011
"""Dollars a GB that Dataflow shuffles, list price."""
STORAGE = 0.020
"""Dollars a GB and month, list price of Cloud Storage, standard, one region."""


@dataclasses.dataclass(frozen=True)
class Reckoned:
    """What a build of so many bytes comes to, by the product's own constants. Nothing is run."""

    num_bytes: int
    num_shards_given: int | None = None

    @property
    def num_blocks(self) -> int:
        """Of 64 MiB: as many runs."""
        return math.ceil(self.num_bytes / BLOCK_BYTES)

    @property
    def num_shards(self) -> int:
        """By the default rule, unless the recipe gives it."""
        return self.num_shards_given or Shards().num_shards_of(
            "train", num_examples=self.num_bytes // RECORD_BYTES, num_bytes=self.num_bytes
        )

    @property
    def slice_bytes(self) -> float:
        """Of a run, those that belong to a shard, in the mean."""
        return mean_slice_bytes(
            self.num_bytes, num_runs=self.num_blocks, num_shards=self.num_shards
        )

    @property
    def bins(self) -> KeyBins:
        """What the runs' summary counts by."""
        shards = Shards(num_shards=self.num_shards_given)
        return bins_for(ss.Splits(train=1.0), shards, num_units=self.num_blocks)

    @property
    def shuffles(self) -> bool:
        """Whether --write-by auto shuffles, on a store and an engine that shuffles on disk."""
        return shuffles(
            "auto",
            mean_slice_bytes=self.slice_bytes,
            max_shard_bytes=self.num_bytes // self.num_shards,
            workspace="gs://bucket/out",
            engine="dataflow",
        )

    @property
    def range_bytes(self) -> float:
        """Read by ranges: slices lie in whole batches, one more of them in the mean."""
        return self.num_blocks * self.num_shards * (self.slice_bytes + BATCH_BYTES)

    @property
    def summary_bytes(self) -> int:
        """Of the files that planning reads: bins that hold records, and runs."""
        num_bins = min(1 << self.bins.bits, self.num_bytes // RECORD_BYTES)
        return num_bins * BIN_BYTES + self.num_blocks * RUN_BYTES

    @property
    def range_worker_bytes(self) -> int:
        """Above the libraries: where all batches of all runs lie, and what is merged."""
        return self.num_blocks * (BLOCK_BYTES // BATCH_BYTES + 1) * 420 + 2 * MERGE_BYTES

    @property
    def shuffle_worker_bytes(self) -> int:
        """Above the libraries: what is known of runs, and what is sorted."""
        return self.num_blocks * RUN_BYTES + 3 * SORT_BYTES

    def requests(self, *, by_ranges: bool) -> tuple[int, int]:
        """Of class A and B, as docs/dataflow.md counted them; source files of 1 GB."""
        files = math.ceil(self.num_bytes / 10**9)
        runs, shards = self.num_blocks, self.num_shards
        class_b = 38 + 2 * files + 11 * runs + 9 * shards + by_ranges * runs * shards
        return 40 + 5 * runs + 7 * shards + files // 1000, class_b

    def dollars(self, *, by_ranges: bool) -> float:
        """The list price of the requests."""
        class_a, class_b = self.requests(by_ranges=by_ranges)
        return class_a * CLASS_A + class_b * CLASS_B


SIZES = {
    "100 GB": Reckoned(10**11),
    "1 TB": Reckoned(10**12),
    "10 TB": Reckoned(10**13),
    "100 TB": Reckoned(10**14, num_shards_given=125_000),
}


def cost_table() -> str:
    """The table of docs/scale.md."""

    def size(number: float) -> str:
        for unit, name in ((1e15, "PB"), (1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
            if number >= unit:
                return f"{number / unit:,.{0 if number >= 10 * unit else 1}f} {name}"
        return f"{number:,.0f} B"

    def count(number: float) -> str:
        if number < 1e6:
            return f"{number:,.0f}"
        unit, name = (1e9, "billion") if number >= 1e9 else (1e6, "million")
        return f"{number / unit:,.{0 if number >= 100 * unit else 1}f} {name}"

    def money(number: float) -> str:
        return f"{number:,.{0 if number >= 100 else 2}f}"

    rows: dict[str, Callable[[Reckoned], str]] = {
        "blocks of 64 MiB = runs R": lambda r: f"{r.num_blocks:,}",
        "shards S": lambda r: (
            f"{r.num_shards:,}" + (" (given)" if r.num_shards_given else " of 150 MB")
        ),
        "bytes of a run in a shard": lambda r: size(r.slice_bytes),
        "**`auto` writes by**": lambda r: "the shuffle" if r.shuffles else "ranges",
        "shuffled": lambda r: size(r.num_bytes),
        "its price on Dataflow, in $": lambda r: (
            f"{money(r.num_bytes / 1e9 * SHUFFLE)} to {money(2 * r.num_bytes / 1e9 * SHUFFLE)}"
        ),
        "by ranges instead: requests R × S": lambda r: count(r.num_blocks * r.num_shards),
        "… bytes that they read": lambda r: size(r.range_bytes),
        "worker, above its libraries: shuffle": lambda r: size(r.shuffle_worker_bytes),
        "… ranges": lambda r: size(r.range_worker_bytes),
        "key bins": lambda r: f"{1 << r.bins.bits:,}",
        "bins to a shard": lambda r: f"{(1 << r.bins.bits) / r.num_shards:,.0f}",
        "summary that planning reads": lambda r: size(r.summary_bytes),
        "requests, class A (put, list)": lambda r: count(r.requests(by_ranges=False)[0]),
        "… class B (get, look)": lambda r: count(r.requests(by_ranges=False)[1]),
        "… their price, in $": lambda r: money(r.dollars(by_ranges=False)),
        "… by ranges instead, in $": lambda r: money(r.dollars(by_ranges=True)),
        "a month of runs and snapshot, in $": lambda r: money(2 * r.num_bytes / 1e9 * STORAGE),
    }
    lines = [["", *SIZES], ["---"] * (len(SIZES) + 1)]
    lines += [[name, *(row(one) for one in SIZES.values())] for name, row in rows.items()]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
