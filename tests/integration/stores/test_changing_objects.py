"""Objects of a store that change between the inventory and the end of prepare.

``tests/integration/test_changing_sources.py`` has the same for files of this machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pytest

import snapshard as ss
from snapshard.pipelines.prepare.block_worker import SourceReader
from snapshard.schemas.errors import SourceChangedError
from snapshard.transforms.storage.unchanged import SourceProof

from ...file_bytes import parquet, zip_of
from .proxy import Proxy

pytestmark = [
    pytest.mark.engine,
    # gcsfs leaves sessions to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


def _csv(version: int) -> bytes:
    return b"a\n" + b"%d\n" % version * 50


SOURCES: dict[str, tuple[Callable[[int], bytes], Any]] = {
    "t.csv": (_csv, ss.Csv),
    "t.parquet": (lambda n: parquet(pa.table({"a": [n] * 50})), ss.Parquet),
    "t.zip": (lambda n: zip_of({"t.csv": _csv(n)}), ss.Csv),
}


class Object:
    """An object that can become another, and builds of it."""

    def __init__(self, scheme: str, name: str, folder: Path) -> None:
        self._files = fsspec.filesystem(scheme, use_listings_cache=False)
        self._path = f"bucket/raw/{name}"
        self._content, source = SOURCES[name]
        self.write(1)
        splits = ss.Splits(train=1.0)
        data = source(f"{scheme}://{self._path}")
        self._recipe = ss.Recipe(name="made", source=data, splits=splits)
        self._out = folder / "out"

    def write(self, version: int) -> None:
        self._files.pipe_file(self._path, self._content(version))

    def build(self) -> str:
        return Path(ss.build(self._recipe, self._out).path).name

    def published(self) -> list[Path]:
        return list(self._out.glob("made/*/manifest.json"))


def _as_prepare_begins(changing: Object, monkeypatch: pytest.MonkeyPatch) -> None:
    read = SourceReader.read

    def changed(self: SourceReader, block: Any) -> Iterator[Any]:
        changing.write(2)
        yield from read(self, block)

    monkeypatch.setattr(SourceReader, "read", changed)


def _as_it_is_read(changing: Object, monkeypatch: pytest.MonkeyPatch) -> None:
    """When it has been compared, or its tag is known, and before the request."""

    def then_change(method: Callable[..., Any]) -> Callable[..., Any]:
        def changed(*args: Any) -> Any:
            found = method(*args)
            changing.write(2)
            return found

        return changed

    monkeypatch.setattr(SourceProof, "pin", then_change(SourceProof.pin))
    monkeypatch.setattr(SourceProof, "hold", then_change(SourceProof.hold))


@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.parametrize("scheme", ["s3", "gs"])
def test_a_changed_object_is_never_taken_for_the_listed_one(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    scheme: str,
    name: str,
) -> None:
    proxy: Proxy = request.getfixturevalue({"s3": "s3", "gs": "gcs"}[scheme])
    assert proxy.url
    changing = Object(scheme, name, tmp_path)
    for moment in (_as_prepare_begins, _as_it_is_read):
        changing.write(1)
        with monkeypatch.context() as patched:
            moment(changing, patched)
            with pytest.raises(SourceChangedError, match=name):
                changing.build()
        assert not changing.published()
    new = changing.build()
    changing.write(1)
    assert changing.build() != new
    assert len(changing.published()) == 2
