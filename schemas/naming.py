"""All names on disk: the snapshot's files, the output root's, the workspace's.

Paths are joined with '/', so they serve local folders and object stores alike. One class both
formats and parses shard file names.
"""

from __future__ import annotations

import dataclasses
import re
import shlex

from .shards import Compression

MANIFEST = "manifest.json"
READER = "reader"
"""Folder of the package that reads a snapshot."""
READER_FACTS = f"{READER}/facts.py"
"""The one generated file of that package."""
SCHEMA = "schema.pbtxt"
REJECTS = "rejects.parquet"
STATISTICS = "statistics.json"
STATISTICS_PB = "statistics.pb"
BUILD = "build.json"
CROISSANT = "croissant.json"
"""The snapshot's description for data catalogues."""
TFDS_INFO = "dataset_info.json"
"""With ``features.json``: makes the snapshot a folder of TensorFlow Datasets."""
TFDS_FEATURES = "features.json"
REPORT = "report.html"
SERVING = "serving"
LATEST = "latest.json"
LATEST_READER = "reader.py"
WORKSPACE = ".work"

UNLISTED = frozenset({MANIFEST, BUILD, CROISSANT, REPORT})
"""Files of a snapshot that the manifest does not list: itself, and what varies."""

_SHARD = re.compile(
    r"(?P<split>[A-Za-z][A-Za-z0-9_]*)-(?P<index>\d{5,})-of-(?P<num>\d{5,})\.tfrecord(?P<gz>\.gz)?"
)
FINGERPRINT = re.compile("[0-9a-f]{16}")
"""Names of snapshots' folders."""
_READER_FILE = re.compile(rf"{READER}/[A-Za-z0-9_]+\.py|reader(_[a-z]+)*\.py")


def reader_file(name: str) -> str:
    """The name in a snapshot of a file of its reader."""
    return f"{READER}/{name}"


def is_reader_file(name: str) -> bool:
    """Whether a file of a snapshot belongs to its reader, by its name.

    Readers were ``reader.py`` and files beside it before they were a package.

    >>> [is_reader_file(n) for n in ("reader/facts.py", "reader_tools.py", "serving/reader.py")]
    [True, True, False]
    """
    return _READER_FILE.fullmatch(name) is not None


def join(*parts: str) -> str:
    """Joins path or URL parts with '/'.

    >>> join("gs://bucket/out/", "name")
    'gs://bucket/out/name'
    """
    head, *rest = parts
    return "/".join([head.rstrip("/") if head != "/" else "", *rest])


def repair_command(snapshot: str, options: str = "") -> str:
    """The command that repairs a snapshot.

    A folder that is not ``<out>/<name>/<fingerprint>``, such as a copy, does not say where that is.

    >>> repair_command("out/birds/5f0a3b1c9d2e4f60")
    'snapshard build SOURCE --out out --repair'
    >>> repair_command("copies/birds")
    'snapshard build SOURCE --out DIR --repair'
    """
    folder, _, last = snapshot.rstrip("/").rpartition("/")
    out = shlex.quote(folder.rpartition("/")[0] or "/") if FINGERPRINT.fullmatch(last) else "DIR"
    return f"snapshard build SOURCE --out {out}{options} --repair"


def stays_inside(name: str) -> bool:
    """Whether a relative name, joined to a folder, names a file in it, wherever that folder is.

    >>> [stays_inside(name) for name in ("index/a.idx", "../a", "/a", "a//b", "")]
    [True, False, False, False, False]
    """
    parts = name.split("/")
    return "\0" not in name and "\\" not in name and not {"", ".", ".."}.intersection(parts)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShardName:
    """The name of one shard's file: ``train-00000-of-00016.tfrecord``.

    >>> str(ShardName(split="train", index=0, num_shards=16, compression="none"))
    'train-00000-of-00016.tfrecord'
    """

    split: str
    index: int
    num_shards: int
    compression: Compression

    def __str__(self) -> str:
        """The file name."""
        suffix = ".gz" if self.compression == "gzip" else ""
        return f"{self.split}-{self.index:05d}-of-{self.num_shards:05d}.tfrecord{suffix}"

    @classmethod
    def parse(cls, name: str) -> ShardName | None:
        """Reads a file name; None if it is not a shard's."""
        match = _SHARD.fullmatch(name)
        if match is None:
            return None
        return cls(
            split=match["split"],
            index=int(match["index"]),
            num_shards=int(match["num"]),
            compression="gzip" if match["gz"] else "none",
        )

    @property
    def index_files(self) -> tuple[str, str]:
        """Names of the shard's two index files, relative to the snapshot: offsets, and ids."""
        return f"index/{self}.idx", f"index/{self}.parquet"

    @property
    def labels_file(self) -> str:
        """Name of the file of its records' classes, next to the index files."""
        return f"index/{self}.labels"


@dataclasses.dataclass(frozen=True)
class OutputPaths:
    """Where the snapshots of one recipe name are under an output root."""

    out: str
    name: str
    elsewhere: str = ""
    """The workspace, if it is outside the name's folder."""

    @property
    def folder(self) -> str:
        """``<out>/<name>``."""
        return join(self.out, self.name)

    @property
    def latest(self) -> str:
        """The pointer to the last build's snapshot."""
        return join(self.folder, LATEST)

    @property
    def latest_reader(self) -> str:
        """The module that imports the reader of the snapshot which ``latest.json`` names."""
        return join(self.folder, LATEST_READER)

    @property
    def workspace(self) -> str:
        """The workspace of the name."""
        return self.elsewhere or join(self.folder, WORKSPACE)

    def snapshot(self, fingerprint: str) -> str:
        """The folder of one snapshot."""
        return join(self.folder, fingerprint)


@dataclasses.dataclass(frozen=True)
class Workspace:
    """Paths of runs, descriptors, summaries and plans of unfinished and past builds."""

    root: str

    @property
    def elsewhere(self) -> str:
        """In a name's folder: the note that says where its workspace is."""
        return join(self.root, "elsewhere.json")

    @property
    def refused(self) -> str:
        """Facts of the last build, if it was refused because of its rejects."""
        return join(self.root, "refused.json")

    @property
    def refused_rejects(self) -> str:
        """The rejects of that build."""
        return join(self.root, REJECTS)

    @property
    def hash_cache(self) -> str:
        """The hash cache: (path, size, stamp) -> sha256."""
        return join(self.root, "memo.json")

    @property
    def findings(self) -> str:
        """What a source inferred from its files' contents."""
        return join(self.root, "findings.json")

    @property
    def extracted(self) -> str:
        """Extracted records, as Arrow IPC files named by their content."""
        return join(self.root, "extracted")

    def blocks(self, digest: str) -> str:
        """A descriptor file: blocks, one JSON line each."""
        return join(self.root, "blocks", f"{digest}.jsonl")

    def run(self, run_id: str) -> str:
        """An Arrow IPC file of prepared records."""
        return join(self.root, "runs", run_id[:2], f"{run_id}.arrow")

    def run_info(self, run_id: str) -> str:
        """The facts of a run; writing this file commits the run."""
        return join(self.root, "runs", run_id[:2], f"{run_id}.json")

    def run_keys(self, run_id: str, suffix: str) -> str:
        """The run's keys, sizes and strata, for planning."""
        return join(self.root, "runs", run_id[:2], f"{run_id}.{suffix}.keys")

    def run_rejects(self, run_id: str) -> str:
        """The rejects of a run's block."""
        return join(self.root, "runs", run_id[:2], f"{run_id}.rejects")

    def summary(self, name: str, kind: str, part: int | None = None) -> str:
        """A file of a summary, or of a part of it: a set of runs.

        ``arrow`` is the key histogram, which is written last, as the commit; ``runs`` has the facts
        of each run, ``batches`` the positions of their batches.
        """
        number = "" if part is None else f".{part:04d}"
        return join(self.root, "summaries", f"{name}{number}.{kind}")

    def graph(self, digest: str) -> str:
        """A transform graph, named by a hash of what its analysis read and ran."""
        return join(self.root, "graphs", digest)

    def plan(self, fingerprint: str) -> str:
        """The plan of one snapshot's shards."""
        return join(self.root, "plans", f"{fingerprint}.json")

    def inventory(self, digest: str) -> str:
        """An inventory, named by its content."""
        return join(self.root, "inventories", f"{digest}.jsonl")

    @property
    def references(self) -> str:
        """The references, each to the current inventory of a set of options."""
        return join(self.root, "references")

    def reference(self, name: str) -> str:
        """One of the references, the only files of a workspace whose content changes."""
        return join(self.references, f"{name}.json")

    def shard_info(self, fingerprint: str, shard: str) -> str:
        """The facts of a finished shard."""
        return join(self.root, "shards", fingerprint, f"{shard}.json")

    def staged(self, digest: str) -> str:
        """An archive of recipe code."""
        return join(self.root, "staged", f"{digest}.zip")
