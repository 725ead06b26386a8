"""Images and sounds on their way through prepare: damaged ones are decoded beside whole ones.

Their bytes go to parsers written in C. What may not be: a crash, another exception than a
SnapshardError, a record that is neither prepared nor rejected, a whole neighbour that comes out
otherwise.
"""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import input_contents as made
from harness import DETECTED, HARMLESS, WRONG, Kind
from inputs import infer, take
from mutations import damage

import snapshard as ss
from snapshard.transforms.prepare.engine.chain import output_features
from snapshard.transforms.prepare.engine.program import StepRunner


class DecodedTarget:
    """A folder of whole files and a damaged one, read and prepared in one batch."""

    def __init__(
        self,
        folder: Path,
        source: Any,
        contents: dict[str, bytes],
        steps: Sequence[Any],
        *,
        declared: Any = None,
    ) -> None:
        """Prepares the whole files once, of ``declared`` features instead of inferred ones."""
        self._folder, self._source, self._contents = folder, source, contents
        for label in ("cat", "dog"):
            (folder / label).mkdir()
            for name, content in contents.items():
                (folder / label / name).write_bytes(content)
        self._path = folder / "cat" / "a-damaged"
        features = infer(source, folder) | (declared or {})
        self._features = features
        self._runner = StepRunner(steps, features, output_features(steps, features))
        self._whole, rejects = self._prepare()
        assert not rejects
        assert len(self._whole) == 2 * len(contents)

    def mutate(self, rng: random.Random) -> bytes:
        name = rng.choice(sorted(self._contents))
        content = self._contents[name]
        if name.startswith("PNG") and rng.random() < 0.5:
            opened, closed = made.PNG
            return closed(damage(rng, opened(content), others=[opened(content)]))
        return damage(rng, content, others=list(self._contents.values()))

    def try_out(self, content: bytes) -> tuple[str, str]:
        self._path.write_bytes(content)
        try:
            found, rejects = self._prepare()
        finally:
            self._path.unlink()
        name = str(self._path.relative_to(self._folder))
        for record_id, row in self._whole.items():
            if repr(found.get(record_id)) != repr(row):
                return WRONG, f"{record_id}, which is whole, is lost or changed"
        if any(reject.record_id != name or not reject.message for reject in rejects):
            return WRONG, f"a reject of another record: {rejects}"
        if (name in found) == bool(rejects):
            return WRONG, "neither prepared nor rejected, or both"
        return (DETECTED, rejects[0].reason) if rejects else (HARMLESS, "it decodes")

    def _prepare(self) -> tuple[dict[str, Any], list[Any]]:
        opened, inventory = take(self._source, self._folder)
        rows: dict[str, Any] = {}
        rejects: list[Any] = []
        for block in inventory.blocks:
            for batch in self._source.read(
                block, features=self._features, opened=opened, ordered=range(len(block.ranges))
            ):
                prepared = self._runner.prepare(batch)
                prepared.columns.validate(full=True)
                values = prepared.columns.to_pylist()
                rows.update(zip(prepared.ids, values, strict=True))
                rejects.extend(prepared.rejects)
        return rows, rejects


FORMS = ("PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF")


def _images(*steps: Any) -> Any:
    contents = {form: made.image(form, 5) for form in FORMS}
    return lambda folder: DecodedTarget(folder, ss.ImageFolder(str(folder)), contents, steps)


def _masks(folder: Path) -> DecodedTarget:
    contents = {"PNG": made.mask(8), "PNG of 4 bits": made.mask(4)}
    steps = (ss.images.decode("image"), ss.images.encode("image", "png"))
    declared = {"image": ss.Mask(storage="encoded", image="none")}
    source = ss.ImageFolder(str(folder))
    return DecodedTarget(folder, source, contents, steps, declared=declared)


def _sounds(folder: Path) -> DecodedTarget:
    contents = {"a.wav": made.wav(1), "b.wav": made.wav(2)}
    return DecodedTarget(folder, ss.AudioFolder(str(folder)), contents, ())


KINDS = (
    Kind("images, checked", _images(), 2, loads="tensorflow"),
    Kind(
        "images, decoded",
        _images(ss.images.decode("image"), ss.images.resize("image", (8, 8))),
        2,
        loads="tensorflow",
    ),
    Kind("masks, decoded", _masks, 2, loads="tensorflow"),
    Kind("sounds, decoded", _sounds, loads="tensorflow"),
)
