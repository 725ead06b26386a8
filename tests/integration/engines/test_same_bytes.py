"""One recipe on every engine: equal bytes of every file that the manifest lists, and of itself."""

from pathlib import Path
from typing import Any

import pytest

import snapshard as ss
from snapshard.pipelines.recipe.shipping import load_recipe_file

from .flink_cluster import FlinkCluster

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def table_hashes(
    lab: Any, table_recipe: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    """Of a build on the embedded engine, in one process."""
    found: dict[str, str] = lab.hashes(lab.build(table_recipe, tmp_path_factory.mktemp("direct")))
    return found


@pytest.fixture(scope="module")
def image_hashes(
    lab: Any, image_recipe: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    found: dict[str, str] = lab.hashes(lab.build(image_recipe, tmp_path_factory.mktemp("direct")))
    return found


def build_on(runner: Any, recipe: Path, out: Path) -> ss.Snapshot:
    snapshot = ss.build(load_recipe_file(recipe), out, runner=runner)
    assert not snapshot.cached
    return snapshot


def test_direct_with_workers(
    lab: Any, table_recipe: Path, table_hashes: dict[str, str], tmp_path: Path
) -> None:
    snapshot = build_on(ss.Direct(workers=2), table_recipe, tmp_path)
    assert lab.hashes(snapshot) == table_hashes
    assert lab.build_facts(snapshot)["runner"] == "direct"


@pytest.mark.smoke
def test_prism(
    lab: Any,
    table_recipe: Path,
    table_hashes: dict[str, str],
    prism_program: Path,
    tmp_path: Path,
) -> None:
    runner = ss.Prism(workers=2, binary=str(prism_program))
    snapshot = build_on(runner, table_recipe, tmp_path)
    assert lab.hashes(snapshot) == table_hashes
    assert lab.build_facts(snapshot)["runner"] == "prism"


@pytest.mark.smoke
def test_embedded_flink(
    lab: Any, table_recipe: Path, table_hashes: dict[str, str], flink_jar: Path, tmp_path: Path
) -> None:
    """Through the command line, from a file that a team keeps; written by Flink's shuffle."""
    team = tmp_path / "team.toml"
    team.write_text(f'runner = "flink"\nworkers = 2\njar = "{flink_jar}"\n')
    done = lab.run_cli(
        *("build", table_recipe, "--out", tmp_path / "out", "--runner", team, "--json"),
        *("--write-by", "shuffle"),
    )
    snapshot = ss.Snapshot.open(lab.last_json(done)["path"])
    assert lab.hashes(snapshot) == table_hashes
    assert lab.build_facts(snapshot)["shards"]["by"] == "shuffle"
    assert "Multiplexer" not in done.stderr
    assert "pip" not in done.stderr


def test_images_on_embedded_flink(
    lab: Any, image_recipe: Path, image_hashes: dict[str, str], flink_jar: Path, tmp_path: Path
) -> None:
    snapshot = build_on(ss.Flink(workers=2, jar=str(flink_jar)), image_recipe, tmp_path)
    assert lab.hashes(snapshot) == image_hashes


@pytest.mark.smoke
def test_embedded_spark(
    lab: Any, table_recipe: Path, table_hashes: dict[str, str], spark_jar: Path, tmp_path: Path
) -> None:
    snapshot = build_on(ss.Spark(workers=2, jar=str(spark_jar)), table_recipe, tmp_path)
    assert lab.hashes(snapshot) == table_hashes
    assert lab.build_facts(snapshot)["runner"] == "spark"


def test_flink_cluster(
    lab: Any,
    table_recipe: Path,
    table_hashes: dict[str, str],
    flink_cluster: FlinkCluster,
    flink_jar: Path,
    tmp_path: Path,
) -> None:
    """Two TaskManagers; Python runs in workers of its own, which have but the workspace."""
    before = {job["jid"] for job in flink_cluster.overview("jobs/overview")["jobs"]}
    done = lab.run_cli(
        *("build", table_recipe, "--out", tmp_path, "--json", "--workers", "4"),
        *("--runner", "flink", "--flink-master", flink_cluster.master),
        *("--flink-jar", flink_jar, "--", *flink_cluster.beam_options),
    )
    path = lab.last_json(done)["path"]
    assert lab.hashes(path) == table_hashes
    overview = flink_cluster.overview("jobs/overview")["jobs"]
    jobs = [job for job in overview if job["jid"] not in before]
    assert {job["state"] for job in jobs} == {"FINISHED"}
    assert len(jobs) >= 2
