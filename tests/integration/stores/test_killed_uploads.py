"""Builds killed while they put objects: before a put, in the middle of it, and once it is done.

The store lives on: it may have got half of an object, or a whole one that nobody has heard of.
"""

import re
from collections.abc import Sequence
from pathlib import Path

import fsspec
import pytest

from ..kill_projects import TABLE, write_recipes
from ..killed_builds import Builds, transition_name
from .proxy import CUT, Answer, Proxy
from .test_stores import put

pytestmark = pytest.mark.engine

KINDS = (
    r"staged/.*",
    r"runs/.*\.arrow",
    r"runs/.*(?<!keys)\.json",
    r"summaries/.*\.arrow",
    r"plans/.*",
    r"SNAPSHOT/index/.*\.idx",
    r"SNAPSHOT/.*\.tfrecord",
    r"shards/.*",
    r"SNAPSHOT/manifest\.json",
    r"latest\.json",
)
STOPS = {
    # Each kind at one moment; what commits a run or a snapshot, and the pointer, at all three.
    "s3": [
        (kind, moment)
        for number, kind in enumerate(KINDS)
        for at, moment in enumerate(("begun", "halfway", "done"))
        if number % 3 == at or kind.endswith("json")
    ],
    "gs": [(kind, "halfway") for kind in KINDS[::3]],
}


class KillAtPut:
    """Kills a build at one moment of one put; the store gets nothing, half of it, or all."""

    def __init__(self, builds: Builds, out: str, name: str, moment: str) -> None:
        """Takes the name as :func:`transition_name` gives it."""
        self.struck = False
        self._builds, self._out, self._name, self._moment = builds, out, name, moment

    def __call__(self, path: str, told: str) -> int | Answer:
        scheme = self._out.partition("://")[0]
        name = transition_name(f"{scheme}://{path}", self._out)
        if self.struck or name != self._name or (told == "done") != (self._moment == "done"):
            return 0
        self.struck = True
        self._builds.kill()
        return CUT if self._moment == "halfway" else Answer(503)


def published(out: str) -> dict[str, bytes]:
    """What a reader may rely on: the pointer, and a snapshot that has its manifest."""
    files, root = fsspec.core.url_to_fs(f"{out}/table", use_listings_cache=False)
    found = {path.removeprefix(f"{root}/"): path for path in files.find(root)}
    folders = {name.partition("/")[0] for name in found if name.endswith("/manifest.json")}
    assert len(folders) < 2
    return {
        name: files.cat_file(path)
        for name, path in found.items()
        # build.json says how long it took.
        if name == "latest.json"
        or (name.partition("/")[0] in folders and not name.endswith("/build.json"))
    }


@pytest.mark.parametrize("scheme", STOPS)
def test_kills_at_puts(request: pytest.FixtureRequest, tmp_path: Path, scheme: str) -> None:
    proxy: Proxy = request.getfixturevalue("s3" if scheme == "s3" else "gcs")
    write_recipes(tmp_path / "local")
    source = put(tmp_path / "local" / "tables", f"{scheme}://bucket/tables")
    recipe = tmp_path / "table.py"
    recipe.write_text(TABLE.replace('"tables"', repr(source)))
    builds = Builds(tmp_path, "s3fs" if scheme == "s3" else "gcsfs")
    try:
        undisturbed = builds.build(recipe, f"{scheme}://bucket/whole", one_by_one=True)
        assert undisturbed.code == 0, undisturbed.stderr
        _kill_each(builds, recipe, f"{scheme}://bucket", undisturbed.done, STOPS[scheme], proxy)
    finally:
        builds.close()


def _kill_each(
    builds: Builds,
    recipe: Path,
    bucket: str,
    names: Sequence[str],
    stops: Sequence[tuple[str, str]],
    proxy: Proxy,
) -> None:
    whole, out = published(f"{bucket}/whole"), f"{bucket}/killed"
    snapshot = {name: content for name, content in whole.items() if name != "latest.json"}
    for kind, moment in stops:
        name = next(name for name in names if re.fullmatch(kind, name))
        proxy.at_put = kill = KillAtPut(builds, out, name, moment)
        ended = builds.build(recipe, out, one_by_one=True)
        assert kill.struck, (name, moment, ended)
        assert ended.killed
        # All of it, or nothing.
        assert published(out) in ({}, snapshot, whole), (name, moment)
    proxy.at_put = lambda path, told: 0
    ended = builds.build(recipe, out)
    assert ended.code == 0, ended.stderr
    assert not [name for name in ended.begun if re.match(r"runs/|plans/|shards/", name)]
    assert published(out) == whole
