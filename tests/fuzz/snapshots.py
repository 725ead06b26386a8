"""Files of a published snapshot: each is damaged, and the command line is asked what it thinks.

What may not be: another exception than a SnapshardError, exit code 0 of ``verify`` where a listed
byte differs, a finding that does not name the file, and a command that takes damage for data.
"""

import contextlib
import gzip
import hashlib
import importlib
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from commands import CODES, run_command
from harness import DETECTED, HARMLESS, WRONG, Kind
from input_contents import csv_of, framed
from mutations import damage, edit_json

import snapshard as ss
from snapshard import cli
from snapshard.pipelines.snapshot import read_latest
from snapshard.pipelines.survey.fingerprint_details import fingerprint_details, list_inputs
from snapshard.pipelines.survey.survey import take_survey
from snapshard.schemas.errors import Reject, SnapshardError
from snapshard.schemas.manifest import (
    FORMAT_VERSION,
    FileEntry,
    Manifest,
    ShardEntry,
    SplitEntry,
    json_checksum,
    read_manifest,
    with_checksum,
)
from snapshard.schemas.naming import ShardName, Workspace
from snapshard.schemas.progress import Silent
from snapshard.schemas.visible import visible
from snapshard.transforms.examples.encode import encode_examples
from snapshard.transforms.examples.index import index_bytes, labels_bytes, write_index_table
from snapshard.transforms.rejects import rejects_to_bytes
from snapshard.transforms.runs.keys import record_keys

# Loaded here, so that no child has to.
for _module in (
    *(f"pipelines.inspect.{name}" for name in ("diff", "forecast", "rejects", "suggest", "verify")),
    *(f"transforms.sources.{name}" for name in ("excel", "hdf5", "folders.audio", "folders.clips")),
    *("pipelines.inspect.why", "pipelines.operate.gc", "startup_noise", "terminal"),
):
    importlib.import_module(f"snapshard.{_module}")

NUM = 24


def put_snapshot(folder: Path, *, seed: int, compression: str, num_shards: int = 2) -> str:
    """Writes a snapshot as a build does, but for TensorFlow; gives its fingerprint."""
    rng = random.Random(seed)
    fingerprint, facts = _build_facts(folder, seed)
    root = folder / "made" / fingerprint
    (root / "index").mkdir(parents=True)
    (root / "reader").mkdir()
    files: dict[str, FileEntry] = {}

    def put(name: str, content: bytes) -> FileEntry:
        (root / name).write_bytes(content)
        sha256 = hashlib.sha256(content).hexdigest()
        files[name] = FileEntry(bytes=len(content), sha256=sha256)
        return files[name]

    splits = {}
    for split in ("train", "test"):
        ids = [f"{split}/{number}.csv#{number * 7}" for number in range(NUM)]
        keys = dict(zip(ids, record_keys(ids, 0).tolist(), strict=True))
        ids.sort(key=keys.__getitem__)
        shards = []
        for index, part in enumerate(np.array_split(np.array(ids, object), num_shards)):
            name = ShardName(
                split=split, index=index, num_shards=num_shards, compression=compression
            )  # type: ignore[arg-type]
            classes = np.array([rng.randrange(2) for _ in part], np.int32)
            columns = pa.record_batch(
                {
                    "label": pa.array(classes.astype(np.int64)),
                    "x": pa.array([rng.random() for _ in part], pa.float32()),
                }
            )
            examples = [bytes(one) for one in encode_examples(columns).to_pylist()]
            content = framed(examples)
            lengths = np.array([len(one) + 16 for one in examples], np.uint64)
            offsets = np.cumsum(lengths) - lengths
            stored = gzip.compress(content, mtime=0) if compression == "gzip" else content
            entry = put(str(name), stored)
            put(name.index_files[0], index_bytes(offsets, lengths))
            path = root / name.index_files[1]
            write_index_table(str(path), [pa.array(list(part), pa.large_string())], numbered=True)
            put(name.index_files[1], path.read_bytes())
            put(name.labels_file, labels_bytes([classes]))
            counts = {text: int((classes == code).sum()) for code, text in enumerate(("no", "yes"))}
            shards.append(
                ShardEntry(
                    file=str(name),
                    num_examples=len(part),
                    num_bytes=entry.bytes,
                    sha256=entry.sha256,
                    label_counts=counts,
                )
            )
        splits[split] = SplitEntry(
            num_examples=NUM, num_bytes=sum(s.num_bytes for s in shards), shards=shards
        )
    put("reader/facts.py", f'"""Constants."""\n\nFINGERPRINT = "{fingerprint}"\n'.encode())
    put("schema.pbtxt", b'feature {\n  name: "label"\n  type: INT\n}\n')
    put("rejects.parquet", rejects_to_bytes(_rejects()))
    manifest = Manifest(
        format_version=FORMAT_VERSION,
        name="made",
        fingerprint=fingerprint,
        features={"label": ss.ClassLabel(("no", "yes")), "x": ss.Scalar("float32")},
        label="label",
        compression=compression,  # type: ignore[arg-type]
        num_rejects=len(_rejects()),
        seed=0,
        versions={"snapshard": "0.1.0", "numpy": "2.4"},
        splits=splits,
        files=files,
    )
    (root / "manifest.json").write_bytes(manifest.to_bytes())
    (root / "build.json").write_text(json.dumps(with_checksum(facts)))
    (folder / "made" / "latest.json").write_text(json.dumps({"fingerprint": fingerprint}))
    return fingerprint


def _build_facts(folder: Path, seed: int) -> tuple[str, dict[str, Any]]:
    """The fingerprint and the ``build.json`` of a build that reads a table."""
    data = folder / "data"
    data.mkdir(exist_ok=True)
    (data / f"{seed}.csv").write_bytes(csv_of(seed))
    workspace = Workspace(str(folder / "made" / ".work"))
    recipe = ss.Recipe(name="made", source=ss.Csv(str(data), label="flag"), seed=seed)
    survey = take_survey(recipe, workspace=workspace, progress=Silent())
    work = {
        "blocks": list_inputs(survey, workspace),
        "graph": None,
        "runs": ["0" * 32],
        "summary": ["1" * 32],
    }
    facts = {
        "fingerprint_details": fingerprint_details(survey),
        "fingerprint_parts": survey.parts.to_json(),
        "host": "here",
        "input": {"bytes": 1000, "files": 2, "skipped": {}, "source": str(data)},
        "seconds": {"prepare": 1.5},
        "work": work,
    }
    return survey.fingerprint, facts


def _rejects() -> list[Reject]:
    return [
        Reject(
            record_id=f"a.csv#{number}",
            stage="read",
            reason="wrong number of cells",
            message=f"a.csv row {number}: 3 cells, expected 4.",
            source="a.csv",
            position=number,
            payload=b"1,2,3\n",
        )
        for number in range(4)
    ]


class SnapshotTarget:
    """A snapshot beside another one; one file is damaged."""

    def __init__(
        self,
        folder: Path,
        name: Callable[[str], str],
        judge: Callable[["SnapshotTarget", bytes, int, str], tuple[str, str]],
        *,
        compression: str = "none",
        resealed: Callable[[bytes], bytes] | None = None,
        is_json: bool = False,
    ) -> None:
        """Writes both.

        Args:
            folder: Where to.
            name: The damaged file's, below the folder of names, by the fingerprint.
            judge: Given the damaged content, and what ``verify`` said of it.
            compression: Of the snapshot.
            resealed: Mends the checksum that an edited file has in itself.
            is_json: Whether edits of JSON are tried.
        """
        other = put_snapshot(folder, seed=2, compression=compression)
        self.fingerprint = put_snapshot(folder, seed=1, compression=compression)
        self.root = folder / "made"
        self.snapshot = self.root / self.fingerprint
        self.name = name(self.fingerprint)
        self.path = self.root / self.name
        self.content = self.path.read_bytes()
        self.other = self.root / other
        self._others = [
            path.read_bytes()
            for path in sorted(self.root.rglob("*"))
            if path.suffix == self.path.suffix
        ]
        self._judge, self._resealed, self._json = judge, resealed, is_json
        self._tokens = [self.fingerprint.encode(), other.encode(), b"train", b"index/", b"sha256"]
        self._number = 0
        code, said = run_command("verify", str(self.snapshot))
        assert code == 0, said

    def mutate(self, rng: random.Random) -> bytes:
        if not self._json or rng.random() < 0.4:
            return damage(rng, self.content, others=self._others, tokens=self._tokens)
        edited = edit_json(rng, self.content)
        if self._resealed is not None and rng.random() < 0.5:
            with contextlib.suppress(ValueError, RecursionError, TypeError, AttributeError):
                edited = self._resealed(edited)
        return edited

    def try_out(self, content: bytes) -> tuple[str, str]:
        self.path.write_bytes(content)
        try:
            code, said = run_command("verify", str(self.root))
            if code not in CODES:
                return WRONG, f"verify ends with {code}: {said[-200:]}"
            outcome, how = self.judge(content, code, said)
            if outcome != WRONG:
                wrong = self._ask_others(content)
                if wrong:
                    return WRONG, wrong
            return outcome, how
        finally:
            self.path.write_bytes(self.content)

    def judge(self, content: bytes, code: int, said: str) -> tuple[str, str]:
        """What came of damage, from what ``verify`` said."""
        return self._judge(self, content, code, said)

    def _ask_others(self, content: bytes) -> str:
        """Other commands neither crash nor hang; which of them follows from the damage."""
        commands = (
            ("inspect", str(self.root)),
            ("gc", str(self.root), "--dry-run"),
            ("plan", str(self.snapshot), "--workers", "2"),
            ("verify", str(self.snapshot), "--sample", "50%"),
            ("rejects", str(self.snapshot)),
            ("diff", str(self.other), str(self.snapshot)),
            ("why", str(self.other), str(self.snapshot)),
        )
        known = {
            command.name or getattr(command.callback, "__name__", "")
            for command in cli.app.registered_commands
        }
        asked = [command for command in commands if command[0] in known]
        command = asked[hashlib.sha256(content).digest()[0] % len(asked)]
        code, said = run_command(*command)
        if code not in CODES:
            return f"{' '.join(command)} ends with {code}: {said[-200:]}"
        if code and not said.strip():
            return f"{' '.join(command)} ends with {code} without a word"
        return ""


def _listed(target: SnapshotTarget, content: bytes, code: int, said: str) -> tuple[str, str]:
    """A file that the manifest lists: any other byte is told."""
    del content
    name = target.path.name
    if code == 4 and name in said:
        return DETECTED, "verify: damaged"
    return (
        WRONG,
        f"verify ends with {code} and {'names' if name in said else 'does not name'} {name}",
    )


def _reader(target: SnapshotTarget, content: bytes, code: int, said: str) -> tuple[str, str]:
    """Code may be edited: that is said, and no damage while it is Python."""
    if code in (0, 4) and "reader/facts.py" in said:
        return DETECTED, "verify: damaged" if code else "verify: edited"
    return WRONG, f"verify ends with {code}: {said[-200:]}"


def _rejects_file(target: SnapshotTarget, content: bytes, code: int, said: str) -> tuple[str, str]:
    asked, told = run_command("rejects", str(target.snapshot))
    if asked not in CODES or (asked and "rejects.parquet" not in told):
        return WRONG, f"rejects ends with {asked}: {told[-200:]}"
    return _listed(target, content, code, said)


def _manifest(target: SnapshotTarget, content: bytes, code: int, said: str) -> tuple[str, str]:
    if code in (1, 4) and "manifest.json" in said:
        return DETECTED, f"verify: {code}"
    if code == 2:
        return DETECTED, "no snapshot there"
    listed: set[str] = set()
    with contextlib.suppress(SnapshardError):
        listed = set(read_manifest(content, where="manifest.json")[0].files)
    listed |= set(Manifest.from_bytes(target.content, where="manifest.json").files)
    # Names that are no text are quoted.
    shown = [form for name in listed for form in (visible(name), ascii(name))]
    if code == 4 and any(f"{form}: " in said for form in shown):
        # Forged with its checksum, it still does not fit what lies there.
        return DETECTED, f"verify: {code}, by the file"
    if code:
        return WRONG, f"verify ends with {code} and does not name the manifest: {said[-200:]}"
    found, state = read_manifest(content, where="manifest.json")
    whole = Manifest.from_bytes(target.content, where="manifest.json")
    if found == whole:
        return HARMLESS, "the same manifest"
    if state == "right" and (found.files, found.splits) == (whole.files, whole.splits):
        return HARMLESS, "forged with its checksum; the same files"
    return WRONG, f"verify takes another manifest, whose checksum is {state}"


def _build(target: SnapshotTarget, content: bytes, code: int, said: str) -> tuple[str, str]:
    """It holds what varies: its damage is told, and refuses nothing."""
    if code:
        return WRONG, f"verify ends with {code}: {said[-200:]}"
    if "build.json" in said:
        return DETECTED, "verify: a warning"
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        return WRONG, "verify says nothing of a build.json that is not JSON"
    if value == json.loads(target.content):
        return HARMLESS, "the same facts"
    if isinstance(value, dict) and value.get("checksum") in (None, json_checksum(value)):
        return HARMLESS, "other facts, sealed"
    return WRONG, "verify says nothing of another build.json"


def _latest(target: SnapshotTarget, content: bytes, code: int, said: str) -> tuple[str, str]:
    try:
        named = read_latest(str(target.path))
    except SnapshardError:
        named = None
    if code == 0 and named in (target.fingerprint, target.other.name):
        return HARMLESS, "names a snapshot that is there"
    if code in (2, 4) and ("latest.json" in said or named is None):
        return DETECTED, "verify: no snapshot is named"
    return WRONG, f"verify ends with {code}: {said[-200:]}"


def _reseal(content: bytes) -> bytes:
    value: Any = json.loads(content)
    value["checksum"] = json_checksum(value)
    return json.dumps(value).encode()


def _kind(
    name: str,
    file: Callable[[str], str],
    judge: Callable[..., tuple[str, str]] = _listed,
    share: int = 1,
    **more: Any,
) -> Kind:
    return Kind(name, lambda folder: SnapshotTarget(folder, file, judge, **more), share)


class RefusedTarget:
    """The rejects of a build that was refused for them, in its workspace."""

    def __init__(self, folder: Path) -> None:
        """Writes them, and what is known of that build."""
        workspace = Workspace(str(folder / "made" / ".work"))
        self._path = Path(workspace.refused_rejects)
        self._path.parent.mkdir(parents=True)
        self._path.write_bytes(rejects_to_bytes(_rejects()))
        Path(workspace.refused).write_text(
            json.dumps({"num_records": 99, "num_rejects": 4, "source": str(folder)})
        )
        self._root = str(folder / "made")
        self._content = self._path.read_bytes()
        self._said = [self._ask(number) for number in range(3)]

    def _ask(self, number: int) -> tuple[int, str]:
        return run_command("rejects", self._root, *((), ("--json",), ("--list",))[number])

    def mutate(self, rng: random.Random) -> bytes:
        return damage(rng, self._content, others=[b"PAR1PAR1"], tokens=(b"payload", b"stage"))

    def try_out(self, content: bytes) -> tuple[str, str]:
        self._path.write_bytes(content)
        number = content[len(content) // 2] % 3 if content else 0
        code, said = self._ask(number)
        self._path.write_bytes(self._content)
        if code not in CODES:
            return WRONG, f"rejects ends with {code}: {said[-200:]}"
        if (code, said) == self._said[number]:
            return HARMLESS, "the same is told"
        if code and self._path.name in said:
            return DETECTED, f"rejects ends with {code}"
        return WRONG, f"rejects ends with {code} and tells other rejects"


def _in(name: str) -> Callable[[str], str]:
    return lambda fingerprint: f"{fingerprint}/{name}"


SHARD = "train-00001-of-00002.tfrecord"
KINDS = (
    _kind("manifest.json", _in("manifest.json"), _manifest, 3, resealed=_reseal, is_json=True),
    _kind("build.json", _in("build.json"), _build, 2, resealed=_reseal, is_json=True),
    _kind("latest.json", lambda _: "latest.json", _latest, is_json=True),
    _kind("shard", _in(SHARD), share=2),
    _kind("shard, gzip", _in(f"{SHARD}.gz"), compression="gzip"),
    _kind("index .idx", _in(f"index/{SHARD}.idx")),
    _kind("index .parquet", _in(f"index/{SHARD}.parquet")),
    _kind("index .labels", _in(f"index/{SHARD}.labels")),
    _kind("rejects.parquet", _in("rejects.parquet"), _rejects_file),
    Kind("rejects, refused", RefusedTarget),
    _kind("schema.pbtxt", _in("schema.pbtxt")),
    _kind("reader", _in("reader/facts.py"), _reader),
)
