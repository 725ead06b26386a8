"""The plan of a snapshot: what it is chosen by, and that no shard is written without one."""

from pathlib import Path

import pytest

from snapshard.pipelines.plan.step import find_plan, plan_of
from snapshard.schemas.errors import DamagedWorkError
from snapshard.schemas.naming import Workspace
from snapshard.transforms.examples.shards import ShardSettings
from snapshard.transforms.examples.sizing import SampleSizes


def settings(folder: Path) -> ShardSettings:
    return ShardSettings(
        workspace=Workspace(str(folder)),
        snapshot=str(folder / "snapshot"),
        fingerprint="f" * 64,
        contents="0" * 32,
        prepared={},
        final={},
        label=None,
        compression="none",
        numbered=False,
        stratify_by=None,
        graph=None,
    )


@pytest.mark.parametrize("content", [None, b"", b"{}", b"snapshard plan-5 cut"])
def test_no_shard_is_written_by_a_missing_or_damaged_layout(
    tmp_path: Path, content: bytes | None
) -> None:
    given = settings(tmp_path)
    path = Path(given.workspace.plan(given.fingerprint))
    if content is not None:
        path.parent.mkdir(parents=True)
        path.write_bytes(content)
    assert find_plan(given.workspace, given.fingerprint, given.contents) is None
    with pytest.raises(DamagedWorkError, match=f"{path.name} is missing or damaged"):
        plan_of(given)


def test_ratios_of_a_sample() -> None:
    """One of nothing changes no size."""
    sizes = SampleSizes(prepared=1_000, stored=1_500, packed=1_500, gzipped=300)
    assert (sizes.graph_ratio, sizes.gzip_ratio) == (1.5, 0.2)
    sizes = SampleSizes(prepared=0, stored=0, packed=0, gzipped=0)
    assert (sizes.graph_ratio, sizes.gzip_ratio) == (1.0, 1.0)
