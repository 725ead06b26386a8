"""Files of a workspace: each is damaged after a build, which is then done again from what is there.

The build is that of the package without its jobs: inventory, descriptors, runs, summary, plan and
shards, each reused where it lies in place. What may not be: a result with other bytes, another
exception than a SnapshardError, or damage that stops the build for good.
"""

import contextlib
import hashlib
import random
import shutil
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness import DETECTED, HARMLESS, WRONG, Kind
from input_contents import csv_of
from mutations import damage

import snapshard as ss
from snapshard.pipelines.inventory.step import read_descriptors, take_inventory, write_descriptors
from snapshard.pipelines.plan.step import contents_digest, make_plan
from snapshard.pipelines.prepare.run_files import RunFiles, keys_suffix, run_in_place, run_rejects
from snapshard.pipelines.prepare.sort_keys import RecordKeys
from snapshard.pipelines.survey.inference_cache import Findings, infer_features
from snapshard.pipelines.survey.resolve import ResolvedFeatures
from snapshard.schemas.blocks import Block, unit_from_line
from snapshard.schemas.errors import DamagedWorkError
from snapshard.schemas.naming import Workspace
from snapshard.schemas.progress import Silent
from snapshard.transforms.analysis.graph import (
    GraphOutputs,
    checked_graph,
    put_graph,
    read_graph_file,
)
from snapshard.transforms.examples.shards import (
    ShardSettings,
    ShardWriter,
    missing_shards,
    read_shard_info,
    shard_name,
)
from snapshard.transforms.rejects import Dropped, iterate_rejects
from snapshard.transforms.runs.summary import (
    Summary,
    find_summary,
    read_summary,
    remove_summary,
    write_summary,
)
from snapshard.transforms.storage.opened_source import open_source


def put_tables(folder: Path, *, seed: int) -> None:
    """Three CSV files, with a row in one that is a reject."""
    folder.mkdir(parents=True)
    for number in range(3):
        (folder / f"{number}.csv").write_bytes(csv_of(seed + number))
    with (folder / "1.csv").open("ab") as file:
        file.write(b"one,cell,too,many,here\n")


class SmallBuild:
    """A build without Beam and TensorFlow: one process, one stage, steps as the package's."""

    def __init__(self, folder: Path) -> None:
        """Takes the folder: `data` in it is read, `work` and `snapshot` are written."""
        self.data = folder / "data"
        self.recipe = ss.Recipe(
            name="made",
            source=ss.Csv(
                str(self.data), label="flag", types={"flag": ss.ClassLabel(("False", "True"))}
            ),
            splits=ss.Splits(train=0.7, test=0.3),
            shards=ss.Shards(num_shards={"train": 2, "test": 1}, compression="none"),
            max_rejects=5,
        )
        self.workspace = Workspace(str(folder / "work"))
        self.snapshots = folder / "snapshots"

    def result(self) -> dict[str, str]:
        """The hashes of all that would be published, after damage was made good."""
        try:
            return self._build()
        except DamagedWorkError:
            return self._build(dropping=True)

    def _build(self, *, dropping: bool = False) -> dict[str, str]:
        recipe, workspace = self.recipe, self.workspace
        source = recipe.files
        opened = open_source(source.url, recipe.folder)
        inventory = take_inventory(source, opened, workspace=workspace, progress=Silent())
        findings = Findings(workspace.findings, source.settings())
        remembering = findings.opened(opened)
        features = infer_features(source, inventory.files, remembering).features
        findings.write()
        snapshot = self.snapshots / inventory.input_digest[:16]
        entries: list[Summary] = []
        runs = []
        files = RunFiles(
            workspace,
            features,
            label="flag",
            stratify_by=None,
            suffix=keys_suffix(recipe),
        )
        keys = RecordKeys(recipe, features, following=None, ends=None)
        blocks = [Block((part,)) for block in inventory.blocks for part in block.ranges]
        lines = [
            line for url in write_descriptors(blocks, workspace) for line in read_descriptors(url)
        ]
        digest = inventory.input_digest[:32]
        known = find_summary(workspace, digest) if dropping else None
        if known is not None and any([files.drop_damage(entry) for entry in known.entries]):
            remove_summary(workspace, digest)
        for block in map(unit_from_line, lines):
            assert isinstance(block, Block)
            info = run_in_place(workspace, block.block_id)
            made: Summary | None = None
            if info is not None:
                with contextlib.suppress(DamagedWorkError):
                    made = files.summarize(info)
            if info is None or made is None:
                dropped = Dropped()

                def records(block: Block = block, dropped: Dropped = dropped) -> Any:
                    for batch in source.read(
                        block, features=features, opened=opened, ordered=range(len(block.ranges))
                    ):
                        rejects: list[Any] = []
                        if batch.ids:
                            yield keys.add(batch, rejects=rejects)
                        dropped.add([*batch.rejects, *rejects])

                made = files.write(block.block_id, records(), dropped=dropped, in_order=False)
                (info,) = (entry.run for entry in made.entries)
            entries.append(made)
            runs.append(info)
        if find_summary(workspace, digest) is None:
            write_summary(Summary.merge(entries), workspace, digest)
        summary = read_summary(workspace, digest)
        survey: Any = types.SimpleNamespace(
            fingerprint=snapshot.name,
            recipe=recipe,
            features=ResolvedFeatures(raw=dict(features), prepared=dict(features)),
            limit=None,
        )
        plan = make_plan(survey, summary, None, workspace=workspace, progress=Silent())
        settings = ShardSettings(
            workspace=workspace,
            snapshot=str(snapshot),
            fingerprint=snapshot.name,
            contents=contents_digest(summary, None),
            prepared=features,
            final=features,
            label="flag",
            compression=plan.compression,
            numbered=True,
            stratify_by=None,
            graph=None,
        )
        names = [shard_name(shard, settings) for split in plan.splits for shard in split.shards]
        missing_shards(settings, names)  # what is damaged is forgotten, so that it is written again
        writer = ShardWriter(settings, summary.entries)
        for split in plan.splits:
            writer.write(split, split.shards)
        facts = {str(name): str(read_shard_info(settings, name)) for name in names}
        rejects = []
        for info in runs:
            found = run_rejects(workspace, info)
            rejects += [] if found is None else list(iterate_rejects(found))
        return {
            **facts,
            "rejects": str(rejects),
            "features": str(features),
            **{
                str(path.relative_to(snapshot)): hashlib.sha256(path.read_bytes()).hexdigest()
                for path in sorted(snapshot.rglob("*"))
                if path.is_file()
            },
        }


class WorkspaceTarget:
    """A workspace, one file of which is damaged."""

    def __init__(self, folder: Path, pattern: str, *, forget: Sequence[str]) -> None:
        """Builds once.

        Args:
            folder: Where to.
            pattern: The files to damage, below the folder.
            forget: What is removed before the build is done again, so that it reads the damaged
                file: patterns of files.
        """
        self._kept = folder / "kept"
        self._folder = folder / "built"
        put_tables(self._folder / "data", seed=1)
        self._build = SmallBuild(self._folder)
        self._result = self._build.result()
        assert len(self._result) > 10
        for path in sorted(self._folder.glob("**/*")):
            if path.is_file() and any(path.match(one) for one in forget):
                path.unlink()
        shutil.copytree(self._folder, self._kept)
        self._paths = [p for p in sorted(self._folder.glob(pattern)) if p.is_file()]
        assert self._paths, pattern
        self._contents = {path: path.read_bytes() for path in self._paths}
        self._path = self._paths[0]

    def mutate(self, rng: random.Random) -> bytes:
        self._path = rng.choice(self._paths)
        content = self._contents[self._path]
        others = [c for path, c in self._contents.items() if path != self._path]
        return damage(rng, content, others=others, tokens=(b"snapshard ",))

    def try_out(self, content: bytes) -> tuple[str, str]:
        if not self._path.parent.exists():
            self._path.parent.mkdir(parents=True)
        self._path.write_bytes(content)
        try:
            found = self._build.result()
            if found != self._result:
                differing = sorted(k for k in self._result if found.get(k) != self._result[k])
                return WRONG, f"other results: {differing}"
            if self._path.exists() and self._path.read_bytes() == content:
                return HARMLESS, "is not relied on; the same result"
            return DETECTED, "made anew; the same result"
        finally:
            self._restore()

    def _restore(self) -> None:
        there = {p.relative_to(self._folder) for p in self._folder.rglob("*") if p.is_file()}
        kept = {p.relative_to(self._kept) for p in self._kept.rglob("*") if p.is_file()}
        for extra in there - kept:
            (self._folder / extra).unlink()
        for name in kept:
            source, target = self._kept / name, self._folder / name
            if name not in there or source.read_bytes() != target.read_bytes():
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(source.read_bytes())


class GraphTarget:
    """A transform graph's files."""

    def __init__(self, folder: Path) -> None:
        """Puts a folder in place as a graph; what its files are is no matter."""
        rng = random.Random(1)
        local = folder / "local"
        (local / "transform_fn").mkdir(parents=True)
        for name in ("transform_fn/saved_model.pb", "metadata.pbtxt"):
            (local / name).write_bytes(rng.randbytes(400))
        self._url = str(folder / "graph")
        features = {"x": ss.Scalar("int64")}
        outputs = GraphOutputs(features=features, kept={})
        self._info = put_graph(str(local), self._url, inputs=features, outputs=outputs)
        self._paths = [p for p in sorted(Path(self._url).rglob("*")) if p.is_file()]
        self._contents = {path: path.read_bytes() for path in self._paths}
        self._path = self._paths[0]

    def mutate(self, rng: random.Random) -> bytes:
        self._path = rng.choice(self._paths)
        others = list(self._contents.values())
        return damage(rng, self._contents[self._path], others=others)

    def try_out(self, content: bytes) -> tuple[str, str]:
        self._path.write_bytes(content)
        try:
            if checked_graph(self._url) is not None:
                return WRONG, "a damaged graph passes for a whole one"
            with contextlib.suppress(DamagedWorkError):
                name = str(self._path.relative_to(self._url))
                if name in self._info.files:
                    read_graph_file(self._url, self._info, name)
                    return WRONG, "a damaged file of a graph is read"
            return DETECTED, "as good as none"
        finally:
            self._path.write_bytes(self._contents[self._path])


def _kind(name: str, pattern: str, *forget: str, share: int = 1) -> Kind:
    return Kind(name, lambda folder: WorkspaceTarget(folder, pattern, forget=forget), share)


# Without the shards the runs, the summary and the plan have to be read.
_SHARDS = ("work/shards/**/*", "work/shards/*/*", "snapshots/*/*", "snapshots/*/index/*")
_PLANS = ("work/plans/*", "work/summaries/*")
KINDS = (
    _kind("memo", "work/memo.json"),
    _kind("findings", "work/findings.json"),
    _kind("descriptors", "work/blocks/*"),
    _kind("run", "work/runs/*/*.arrow", *_SHARDS, share=2),
    _kind("run info", "work/runs/*/" + "[0-9a-f]" * 32 + ".json", *_SHARDS),
    _kind("run keys", "work/runs/*/*.keys*", *_PLANS, *_SHARDS),
    _kind("run rejects", "work/runs/*/*.rejects"),
    _kind("summary", "work/summaries/*", *_SHARDS),
    _kind("plan", "work/plans/*", *_SHARDS),
    _kind("shard info", "work/shards/*/*"),
    _kind("shard, unpublished", "snapshots/*/*.tfrecord"),
    _kind("index, unpublished", "snapshots/*/index/*"),
    Kind("transform graph", GraphTarget),
)
